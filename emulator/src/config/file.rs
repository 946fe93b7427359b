//! The file form of a configuration: TOML with the same keys, `[[namespace]]` and `[[fault]]` tables.
//!
//! ```toml
//! mdts = "128k"
//! latency = "80us"
//!
//! [[namespace]]
//! nsid = 1
//! size = "1G"
//!
//! [[fault]]
//! opcode = 0x02
//! count = 3
//! action = "status:2/81"
//! ```

use std::path::Path;

use doorbell_spec::Nsid;
use toml::{Table, Value};

use super::keys::{CONTROLLER_KEYS, Draft, NAMESPACE_KEYS};
use super::{ConfigError, EmulatorConfig, NamespaceConfig};
use crate::fault::Rule;

/// Reads a configuration file.
pub(super) fn read(path: &Path) -> Result<EmulatorConfig, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    let wrong = |what: String| ConfigError::BadFile { path: path.to_owned(), what };
    let table: Table = text.parse().map_err(|error: toml::de::Error| wrong(error.to_string()))?;
    from_table(&table).map_err(|error| wrong(error.to_string()))
}

fn from_table(table: &Table) -> Result<EmulatorConfig, ConfigError> {
    let mut draft = Draft::new();
    let mut namespaces = Vec::new();
    let mut faults = Vec::new();
    let mut has_own_namespace = false;
    for (key, value) in table {
        match key.as_str() {
            "namespace" => {
                for (index, entry) in tables(key, value)?.iter().enumerate() {
                    namespaces.extend(namespace(index, entry)?);
                }
            }
            "fault" => {
                for entry in tables(key, value)? {
                    faults.push(fault(entry)?);
                }
            }
            _ => {
                has_own_namespace |= NAMESPACE_KEYS.iter().any(|row| row.name == key);
                draft.apply(&[NAMESPACE_KEYS, CONTROLLER_KEYS], key, &plain(key, value)?)?;
            }
        }
    }
    if namespaces.is_empty() {
        namespaces = draft.described_namespaces()?;
    } else if has_own_namespace {
        let what = "namespace keys stand either at the top or in [[namespace]] tables, not in both";
        return Err(ConfigError::Conflict { what: what.to_owned() });
    }
    draft.config.namespaces = namespaces;
    draft.config.faults = faults;
    Ok(draft.config)
}

fn namespace(index: usize, table: &Table) -> Result<Vec<NamespaceConfig>, ConfigError> {
    let mut draft = Draft::new();
    draft.nsids = vec![Nsid(u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1))];
    for (key, value) in table {
        draft.apply(&[NAMESPACE_KEYS], key, &plain(key, value)?)?;
    }
    draft.described_namespaces()
}

/// A fault table is the text form of a rule, one key a line.
fn fault(table: &Table) -> Result<Rule, ConfigError> {
    let mut words = Vec::new();
    for (key, value) in table {
        words.push(format!("{key}={}", plain(key, value)?));
    }
    words.join(" ").parse().map_err(|error: crate::fault::RuleError| ConfigError::Conflict {
        what: format!("in [[fault]]: {error}"),
    })
}

fn tables<'a>(key: &str, value: &'a Value) -> Result<Vec<&'a Table>, ConfigError> {
    let entries = value.as_array().map(|array| array.iter().map(Value::as_table).collect::<Option<Vec<_>>>());
    entries
        .flatten()
        .ok_or_else(|| ConfigError::Conflict { what: format!("{key} must be written as [[{key}]] tables") })
}

/// A TOML value as the text form has it.
fn plain(key: &str, value: &Value) -> Result<String, ConfigError> {
    Ok(match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(on) => (if *on { "on" } else { "off" }).to_owned(),
        Value::Array(items) => {
            let items: Result<Vec<String>, ConfigError> = items.iter().map(|item| plain(key, item)).collect();
            items?.join("+")
        }
        Value::Datetime(_) | Value::Table(_) => {
            let what = format!("{key} must be a text, a number, true, false or a list");
            return Err(ConfigError::Conflict { what });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<EmulatorConfig, ConfigError> {
        from_table(&text.parse().expect("TOML"))
    }

    #[test]
    fn namespaces_and_faults_have_tables() {
        let config = parse(
            "mdts = 5\nlatency = \"1ms\"\n[[namespace]]\nnsid = 1\nsize = \"1G\"\n\
             [[namespace]]\nnsid = [3, 7]\nbackend = \"null\"\nreadonly = true\n\
             [[fault]]\nopcode = 2\nskip = 1\naction = \"drop\"\n",
        )
        .expect("a configuration");
        let nsids: Vec<u32> = config.namespaces.iter().map(|ns| ns.nsid.0).collect();
        assert_eq!((nsids, config.mdts, config.faults.len()), (vec![1, 3, 7], 5, 1));
        assert!(config.namespaces[2].write_protection.is_on());
    }

    #[test]
    fn what_does_not_fit_is_said() {
        assert!(parse("colour = 1").is_err());
        assert!(parse("namespace = 1").is_err());
        assert!(parse("size = \"1G\"\n[[namespace]]\nnsid = 2").is_err());
        assert!(parse("[[fault]]\naction = \"sing\"").is_err());
        assert!(parse("[[namespace]]\nlatency = \"1ms\"").is_err());
    }
}
