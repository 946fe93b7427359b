//! Where a result goes: standard output, or a file that is opened before anything is run.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;

/// The form of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text for people.
    #[default]
    Normal,
    /// JSON for programs.
    Json,
}

/// An open place for a result.
#[derive(Debug)]
pub(crate) struct Output {
    file: Option<(File, PathBuf)>,
}

impl Output {
    /// Standard output.
    pub(crate) fn standard() -> Self {
        Self { file: None }
    }

    /// The file at `path`, emptied, or standard output. A file that cannot be written is found here, before
    /// the run, and not after it.
    pub(crate) fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(Self::standard()) };
        let file = File::create(path).with_context(|| {
            format!(
                "--output {} cannot be written; name a file in a folder that you may write to",
                path.display()
            )
        })?;
        Ok(Self { file: Some((file, path.to_owned())) })
    }

    /// Writes all of `text`.
    pub(crate) fn write(&mut self, text: &str) -> anyhow::Result<()> {
        match &mut self.file {
            Some((file, path)) => {
                file.write_all(text.as_bytes()).with_context(|| format!("writing {}", path.display()))
            }
            None => {
                let mut out = io::stdout().lock();
                out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("writing standard output")
            }
        }
    }

    /// Writes a value as JSON.
    pub(crate) fn write_json(&mut self, value: &impl serde::Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(value).context("writing JSON")?;
        text.push('\n');
        self.write(&text)
    }
}
