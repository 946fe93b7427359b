//! A writer of cpio archives in the "newc" format, which the kernel unpacks as its first file system.
//!
//! The format is a sequence of entries: a header of thirteen eight-digit hexadecimal fields after the magic
//! `070701`, the name with its terminating NUL, and the contents, each padded to four bytes. The entry
//! `TRAILER!!!` ends it. Being a text format with owners as numbers, it can hold device nodes without root.

use std::collections::BTreeSet;

/// An archive that is being written. Paths are absolute and have no trailing slash; the parents of an entry
/// are created with it, so the order of entries does not matter.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode_next: u32,
    present: BTreeSet<String>,
}

impl Archive {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether an entry of this path has been added.
    pub fn contains(&self, path: &str) -> bool {
        self.present.contains(path.trim_start_matches('/'))
    }

    /// Adds a directory, unless it is there already.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, S_IFDIR | 0o755, 0, &[]);
    }

    /// Adds a file with these permissions, unless it is there already.
    pub fn file(&mut self, path: &str, permissions: u32, contents: &[u8]) {
        self.entry(path, S_IFREG | permissions, 0, contents);
    }

    /// Adds a symbolic link to `target`, unless an entry of this path is there already.
    pub fn symlink(&mut self, path: &str, target: &str) {
        self.entry(path, S_IFLNK | 0o777, 0, target.as_bytes());
    }

    /// Adds a character device, unless an entry of this path is there already.
    pub fn character_device(&mut self, path: &str, major: u8, minor: u8) {
        self.entry(path, S_IFCHR | 0o600, (u32::from(major) << 8) | u32::from(minor), &[]);
    }

    /// Ends the archive and gives its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.write("TRAILER!!!", 0, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: u32, contents: &[u8]) {
        let path = path.trim_start_matches('/');
        if path.is_empty() || !self.present.insert(path.to_owned()) {
            return;
        }
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
        self.write(path, mode, device, contents);
    }

    fn write(&mut self, name: &str, mode: u32, device: u32, contents: &[u8]) {
        // A file of 4 GiB cannot be described; nothing near that size could be unpacked into a guest's
        // memory.
        let size = u32::try_from(contents.len()).expect("a file in the archive is smaller than 4 GiB");
        let name_size = u32::try_from(name.len()).expect("a path is short") + 1;
        let inode = self.inode_next;
        self.inode_next += 1;
        let links = if mode & S_IFMT == S_IFDIR { 2 } else { 1 };
        let (major, minor) = (device >> 8, device & 0xFF);
        let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, major, minor, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;
const S_IFCHR: u32 = 0o020_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, mode, device and contents of an entry.
    type Entry = (String, u32, (u32, u32), Vec<u8>);

    /// Reads an archive back by the rules of the format.
    fn read(bytes: &[u8]) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(at % 4, 0, "headers are aligned to four bytes");
            assert_eq!(&bytes[at..at + 6], b"070701");
            let field = |n: usize| {
                let text = std::str::from_utf8(&bytes[at + 6 + 8 * n..at + 14 + 8 * n]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            let (size, name_size) = (field(6) as usize, field(11) as usize);
            let name = String::from_utf8(bytes[at + 110..at + 110 + name_size - 1].to_vec()).unwrap();
            assert_eq!(bytes[at + 110 + name_size - 1], 0);
            let start = (at + 110 + name_size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                assert_eq!(start, bytes.len());
                return entries;
            }
            entries.push((name, field(1), (field(9), field(10)), bytes[start..start + size].to_vec()));
            at = (start + size).next_multiple_of(4);
        }
    }

    #[test]
    fn entries_of_every_kind_come_back_with_their_parents_before_them() {
        let mut archive = Archive::new();
        archive.file("/usr/bin/tool", 0o755, b"12345");
        archive.symlink("/bin", "usr/bin");
        archive.character_device("/dev/console", 5, 1);
        let entries = read(&archive.finish());
        let expected = vec![
            ("usr".to_owned(), 0o040_755, (0, 0), vec![]),
            ("usr/bin".to_owned(), 0o040_755, (0, 0), vec![]),
            ("usr/bin/tool".to_owned(), 0o100_755, (0, 0), b"12345".to_vec()),
            ("bin".to_owned(), 0o120_777, (0, 0), b"usr/bin".to_vec()),
            ("dev".to_owned(), 0o040_755, (0, 0), vec![]),
            ("dev/console".to_owned(), 0o020_600, (5, 1), vec![]),
        ];
        assert_eq!(entries, expected);
    }

    #[test]
    fn the_first_of_two_entries_of_one_path_stays() {
        let mut archive = Archive::new();
        archive.file("/a", 0o644, b"first");
        archive.file("/a", 0o644, b"second");
        assert!(archive.contains("/a"));
        assert_eq!(read(&archive.finish()), vec![("a".to_owned(), 0o100_644, (0, 0), b"first".to_vec())]);
    }

    #[test]
    fn contents_of_every_length_modulo_four_keep_the_next_header_aligned() {
        let mut archive = Archive::new();
        for length in 0..9_u8 {
            archive.file(&format!("/f{length}"), 0o644, &vec![length; usize::from(length)]);
        }
        let entries = read(&archive.finish());
        assert_eq!(entries.len(), 9);
        for (length, entry) in entries.iter().enumerate() {
            assert_eq!(entry.3, vec![length as u8; length]);
        }
    }
}
