//! Tables in text: columns as wide as what is in them.

/// A table with a heading, or pairs of a name and a value.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this heading.
    pub(crate) fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|&word| word.to_owned()).collect()] }
    }

    /// A table without a heading.
    pub(crate) fn of_pairs() -> Self {
        Self { rows: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn add(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// Adds a name and a value.
    pub(crate) fn pair(&mut self, name: &str, value: impl Into<String>) {
        self.rows.push(vec![name.to_owned(), value.into()]);
    }

    /// The text: two spaces between columns, none at the end of a line.
    pub(crate) fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells: Vec<_> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["A", "LONG"]);
        table.add(vec!["wide".to_owned(), "x".to_owned()]);
        assert_eq!(table.text(), "A     LONG\nwide  x\n");
        let mut pairs = Table::of_pairs();
        pairs.pair("name", "value");
        assert_eq!(pairs.text(), "name  value\n");
    }
}
