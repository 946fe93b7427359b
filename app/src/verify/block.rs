//! The blocks that `verify` writes: what they say, and how a block is read again.
//!
//! ```text
//!   bytes 0-7    magic, the ASCII characters DBELLVFY
//!         8-15   LBA: the block's number within its namespace
//!        16-23   generation: 1 for the first pass over the namespace, 2 for the second, …
//!        24-31   seed: which run wrote it
//!        32-35   CRC-32C of bytes 40 to the end of the block
//!        36-39   zero
//!        40-end  words of 8 bytes, pseudo-random
//! ```
//!
//! All numbers are little-endian and unsigned. CRC-32C is the usual one of iSCSI (polynomial 0x1EDC6F41,
//! reflected, starting with and inverted by 0xFFFFFFFF; that of the ASCII text `123456789` is 0xE3069283).
//! The pseudo-random words are splitmix64's, from a state that the header decides; all arithmetic is modulo
//! 2^64, `^` is exclusive or:
//!
//! ```text
//!   mix(z):  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
//!            z = (z ^ (z >> 27)) * 0x94D049BB133111EB
//!            return z ^ (z >> 31)
//!
//!   state = mix(mix(mix(seed) ^ lba) ^ generation)
//!   for each word, from byte 40 on:
//!       state = state + 0x9E3779B97F4A7C15
//!       word  = mix(state)
//! ```
//!
//! So every bit of a block is decided by its LBA, generation and seed, and anybody can check an image.

use std::fmt;

use crate::random::Random;

/// What a block says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) lba: u64,
    pub(crate) generation: u64,
    pub(crate) seed: u64,
}

/// What a block turns out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A block that `verify` wrote, whole and in its place.
    Whole(Stamp),
    /// All zeros: never written, or deallocated.
    Zeros,
    /// Something that `verify` did not write.
    Foreign,
    /// A block of `verify`'s in which something is wrong.
    Corrupt(Fault),
}

/// What is wrong with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The rest of the block is right.
    Magic { found: [u8; 8] },
    /// The block belongs elsewhere.
    Lba { found: u64 },
    /// There is no generation 0.
    Generation,
    /// Bytes 36 to 39 are not zero.
    Reserved { found: u32 },
    /// The words do not have the checksum that the header names.
    Checksum { found: u32, computed: u32 },
    /// The words have the right checksum, but are not those of the header's seed and generation.
    Words { stamp: Stamp, first_byte: usize },
}

/// Writes the block of a stamp. A block has at least 48 bytes, and a multiple of 8.
pub(crate) fn fill(block: &mut [u8], stamp: Stamp) {
    let (header, words) = block.split_at_mut(HEADER_BYTES);
    let mut random = words_of(stamp);
    for word in words.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&stamp.lba.to_le_bytes());
    header[16..24].copy_from_slice(&stamp.generation.to_le_bytes());
    header[24..32].copy_from_slice(&stamp.seed.to_le_bytes());
    header[32..36].copy_from_slice(&crc32c::crc32c(words).to_le_bytes());
    header[36..40].fill(0);
}

/// Reads what should be the block number `lba`.
pub(crate) fn read(block: &[u8], lba: u64) -> Content {
    let (header, words) = block.split_at(HEADER_BYTES);
    let stamp = Stamp { lba: u64_at(header, 8), generation: u64_at(header, 16), seed: u64_at(header, 24) };
    let (checksum, reserved) = (u32_at(header, 32), u32_at(header, 36));
    let computed = crc32c::crc32c(words);
    if &header[..8] != MAGIC {
        return if stamp.lba == lba && checksum == computed && words_differ_at(words, stamp).is_none() {
            let mut found = [0; 8];
            found.copy_from_slice(&header[..8]);
            Content::Corrupt(Fault::Magic { found })
        } else if block.iter().all(|byte| *byte == 0) {
            Content::Zeros
        } else {
            Content::Foreign
        };
    }
    let fault = if stamp.lba != lba {
        Some(Fault::Lba { found: stamp.lba })
    } else if stamp.generation == 0 {
        Some(Fault::Generation)
    } else if reserved != 0 {
        Some(Fault::Reserved { found: reserved })
    } else if checksum != computed {
        Some(Fault::Checksum { found: checksum, computed })
    } else {
        words_differ_at(words, stamp).map(|offset| Fault::Words { stamp, first_byte: HEADER_BYTES + offset })
    };
    fault.map_or(Content::Whole(stamp), Content::Corrupt)
}

/// Where the words differ first from those of the stamp.
fn words_differ_at(words: &[u8], stamp: Stamp) -> Option<usize> {
    let mut random = words_of(stamp);
    words.chunks_exact(8).position(|word| word != random.next().to_le_bytes()).map(|index| index * 8)
}

fn words_of(stamp: Stamp) -> Random {
    Random::of(stamp.seed, stamp.lba, stamp.generation)
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} of generation {} and seed {}", self.lba, self.generation, self.seed)
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(stamp) => stamp.fmt(f),
            Self::Zeros => f.write_str("only zeros"),
            Self::Foreign => f.write_str("data that verify did not write"),
            Self::Corrupt(fault) => fault.fmt(f),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic { found } => write!(f, "a block whose magic is {}", found.escape_ascii()),
            Self::Lba { found } => write!(f, "a block that says it is block {found}"),
            Self::Generation => f.write_str("a block that says it is of generation 0"),
            Self::Reserved { found } => {
                write!(f, "a block with {found:#010x} instead of zero in bytes 36 to 39")
            }
            Self::Checksum { found, computed } => {
                write!(f, "a block with the checksum {found:#010x} over data of {computed:#010x}")
            }
            Self::Words { stamp, first_byte } => {
                write!(f, "{stamp} by its header, with other data from byte {first_byte} on")
            }
        }
    }
}

const MAGIC: &[u8; 8] = b"DBELLVFY";
const HEADER_BYTES: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { lba: 0x0123_4567, generation: 3, seed: 42 };

    fn block() -> Vec<u8> {
        let mut block = vec![0xEE; 512];
        fill(&mut block, STAMP);
        block
    }

    #[test]
    fn the_bytes_are_the_documented_ones() {
        let block = block();
        assert_eq!(&block[..8], b"DBELLVFY");
        assert_eq!(block[8..40], GOLDEN_HEADER);
        assert_eq!(block[40..56], GOLDEN_WORDS);
        assert_eq!(crc32c::crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn a_whole_block_says_what_it_is() {
        assert_eq!(read(&block(), STAMP.lba), Content::Whole(STAMP));
        for bytes in [48, 512, 4096] {
            let mut block = vec![0; bytes];
            fill(&mut block, Stamp { lba: 0, generation: 1, seed: 0 });
            assert!(matches!(read(&block, 0), Content::Whole(_)));
        }
    }

    #[test]
    fn the_corruption_of_any_bit_is_found() {
        let good = block();
        for byte in 0..512 {
            for bit in 0..8 {
                let mut block = good.clone();
                block[byte] ^= 1 << bit;
                let found = read(&block, STAMP.lba);
                let expected = match byte {
                    0..8 => matches!(found, Content::Corrupt(Fault::Magic { .. })),
                    8..16 => matches!(found, Content::Corrupt(Fault::Lba { .. })),
                    16..32 => matches!(found, Content::Corrupt(Fault::Words { .. })),
                    36..40 => matches!(found, Content::Corrupt(Fault::Reserved { .. })),
                    _ => matches!(found, Content::Corrupt(Fault::Checksum { .. })),
                };
                assert!(expected, "byte {byte} bit {bit}: {found:?}");
            }
        }
    }

    #[test]
    fn blocks_in_wrong_places_and_of_other_kinds_are_told_apart() {
        assert_eq!(read(&block(), 7), Content::Corrupt(Fault::Lba { found: STAMP.lba }));
        assert_eq!(read(&[0; 512], 7), Content::Zeros);
        assert_eq!(read(&[0xA5; 512], 7), Content::Foreign);
        let mut torn = block();
        let mut other = vec![0; 512];
        fill(&mut other, Stamp { generation: 4, ..STAMP });
        torn[256..].copy_from_slice(&other[256..]);
        assert!(matches!(read(&torn, STAMP.lba), Content::Corrupt(Fault::Checksum { .. })));
        let mut zeroth = vec![0; 512];
        fill(&mut zeroth, Stamp { generation: 0, ..STAMP });
        assert_eq!(read(&zeroth, STAMP.lba), Content::Corrupt(Fault::Generation));
    }

    // Computed by a program in another language from the description above.
    const GOLDEN_HEADER: [u8; 32] = [
        0x67, 0x45, 0x23, 0x01, 0x00, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x2A,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x8C, 0xB2, 0xA6, 0x4B, 0x00, 0x00, 0x00, 0x00,
    ];
    const GOLDEN_WORDS: [u8; 16] =
        [0x64, 0x6F, 0xEF, 0xDD, 0x45, 0xC1, 0x1B, 0x4A, 0xDA, 0xF9, 0x40, 0x02, 0x3C, 0xF3, 0xAD, 0x28];
}
