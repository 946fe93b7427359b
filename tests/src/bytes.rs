//! Contents of buffers that tell where they belong.

use crate::Random;

/// `bytes` bytes that belong to `seed` and to nothing else.
#[must_use]
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed ^ 0x5eed_0f0f_d00d);
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        data.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    data.truncate(bytes);
    data
}

/// Where two contents differ first, for a message that helps.
#[must_use]
pub(crate) fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{} bytes instead of {}", found.len(), expected.len()));
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b)?;
    Some(format!("byte {at} of {} is {:#04x} instead of {:#04x}", found.len(), found[at], expected[at]))
}
