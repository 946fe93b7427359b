//! Why a configuration was refused, said so that the next try works.

use std::path::PathBuf;

/// Why a configuration was refused. Every text names the key, what is allowed, and an example.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no such key.
    #[error("the software controller has no option {key:?}; it has {allowed} (for example: {example})")]
    UnknownKey {
        /// What was written.
        key: String,
        /// All keys there are.
        allowed: String,
        /// A line that works.
        example: &'static str,
    },
    /// A key without a value.
    #[error("{text:?} is not of the form key=value (for example: {example})")]
    NotAPair {
        /// What was written.
        text: String,
        /// A line that works.
        example: &'static str,
    },
    /// The value does not fit the key.
    #[error("{key}={value} is not possible: {key} is {allowed} (for example: {key}={example})")]
    BadValue {
        /// The key.
        key: String,
        /// What was written.
        value: String,
        /// What may be written.
        allowed: &'static str,
        /// A value that works.
        example: &'static str,
    },
    /// Values that are fine alone but not together.
    #[error("{what}")]
    Conflict {
        /// What does not fit, and what would.
        what: String,
    },
    /// The file could not be read.
    #[error("the configuration file {} could not be read", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML, or not of the expected form.
    #[error("the configuration file {} is wrong: {what}", path.display())]
    BadFile {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}
