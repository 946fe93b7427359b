//! One namespace: its identity, its shape, and its store.

use doorbell_spec::{Blocks, Lba, Nsid};

use crate::backend::Backend;
use crate::backend::file::FileBackend;
use crate::backend::memory::MemoryBackend;
use crate::config::{BackendConfig, NamespaceConfig, Toggle};
use crate::error::EmulatorError;

/// A namespace of the controller.
pub(crate) struct Namespace {
    pub(crate) nsid: Nsid,
    pub(crate) blocks: u64,
    pub(crate) block_shift: u32,
    pub(crate) protection: Toggle,
    pub(crate) optimal_boundary: u16,
    pub(crate) atomic_write_z: Option<u16>,
    pub(crate) backend: Backend,
}

impl Namespace {
    /// Makes the namespace, with `cache` between the commands and the store or not.
    pub(crate) fn new(config: &NamespaceConfig, cache: Toggle) -> Result<Self, EmulatorError> {
        let asked = config.bytes.unwrap_or(BYTES_DEFAULT);
        let (backend, bytes) = match &config.backend {
            BackendConfig::Null => (Backend::Null, asked),
            BackendConfig::Memory if asked > MEMORY_BYTES_MAX => {
                return Err(EmulatorError::TooLarge { nsid: config.nsid, bytes: asked });
            }
            BackendConfig::Memory => (Backend::Memory(MemoryBackend::new(asked)), asked),
            BackendConfig::File(path) => {
                let opened = FileBackend::open(path, config.bytes, cache, config.write_protection);
                let (file, bytes) =
                    opened.map_err(|source| EmulatorError::BackingFile { path: path.clone(), source })?;
                (Backend::File(file), bytes)
            }
        };
        let block_bytes = u64::from(config.block_bytes);
        if bytes == 0 || !bytes.is_multiple_of(block_bytes) {
            return Err(EmulatorError::PartialBlock { nsid: config.nsid, bytes, block_bytes });
        }
        Ok(Self {
            nsid: config.nsid,
            blocks: bytes / block_bytes,
            block_shift: block_bytes.trailing_zeros(),
            protection: config.write_protection,
            optimal_boundary: config.optimal_boundary,
            atomic_write_z: config.atomic_write_z,
            backend,
        })
    }

    /// Whether all of a range is in the namespace. Nothing overflows, whatever the host asks for.
    #[inline]
    pub(crate) fn contains(&self, lba: Lba, blocks: Blocks) -> bool {
        u64::from(blocks.0) <= self.blocks && lba.0 <= self.blocks - u64::from(blocks.0)
    }

    /// Where a block that is in the namespace begins.
    #[inline]
    pub(crate) fn offset(&self, lba: Lba) -> u64 {
        lba.0 << self.block_shift
    }

    /// The length of a number of blocks: at most 65,536 of at most 64 KiB, so it always fits.
    #[inline]
    pub(crate) fn length(&self, blocks: Blocks) -> usize {
        (blocks.0 as usize) << self.block_shift
    }
}

/// The size of a namespace that has none of its own.
const BYTES_DEFAULT: u64 = 1 << 30;
/// Memory namespaces are sparse, but their table of chunks has to end somewhere.
const MEMORY_BYTES_MAX: u64 = 1 << 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_namespace_is_exact() {
        let config = NamespaceConfig { bytes: Some(64 * 512), ..NamespaceConfig::default() };
        let namespace = Namespace::new(&config, Toggle::Off).expect("a namespace");
        assert!(namespace.contains(Lba(0), Blocks(64)) && namespace.contains(Lba(63), Blocks(1)));
        for (lba, blocks) in [(64, 1), (63, 2), (0, 65), (u64::MAX, 1), (u64::MAX - 1, 65_536)] {
            assert!(!namespace.contains(Lba(lba), Blocks(blocks)), "{lba} {blocks}");
        }
    }

    #[test]
    fn a_size_that_is_no_number_of_blocks_is_refused() {
        let config = NamespaceConfig { bytes: Some(1000), ..NamespaceConfig::default() };
        assert!(matches!(Namespace::new(&config, Toggle::Off), Err(EmulatorError::PartialBlock { .. })));
    }
}
