//! Why a controller could not be made.

use std::io;
use std::path::PathBuf;

use doorbell_spec::Nsid;

use crate::config::ConfigError;

/// Why a controller could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulatorError {
    /// The configuration does not fit together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A namespace's file could not be opened or made.
    #[error("the file {} could not be used as a namespace", path.display())]
    BackingFile {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The size is not a whole number of blocks.
    #[error(
        "namespace {nsid} has {bytes} bytes, which is not a whole number of blocks of {block_bytes} bytes; \
         try size={}", (bytes / block_bytes).saturating_add(1).saturating_mul(*block_bytes)
    )]
    PartialBlock {
        /// Which namespace.
        nsid: Nsid,
        /// Its size.
        bytes: u64,
        /// Its block size.
        block_bytes: u64,
    },
    /// A namespace in memory is larger than can be kept track of.
    #[error("namespace {nsid} in memory has {bytes} bytes, and at most 1024T are possible; use backend=null")]
    TooLarge {
        /// Which namespace.
        nsid: Nsid,
        /// Its size.
        bytes: u64,
    },
    /// There is no such namespace, or it is there already.
    #[error("namespace {nsid} {problem}")]
    Namespace {
        /// Which namespace.
        nsid: Nsid,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The operating system refused.
    #[error("{action} failed")]
    Os {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}
