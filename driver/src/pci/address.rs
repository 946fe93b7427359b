//! Where a device sits: domain, bus, device and function.

use std::fmt;
use std::str::FromStr;

use super::PciError;

/// The address of a PCI function.
///
/// Read from `0000:01:00.0` or, for domain 0, `01:00.0`; all numbers are hexadecimal. Written in the long
/// form, as sysfs names the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    // Wider than PCI's 16 bits: Linux numbers the domains behind Intel VMD from 0x10000 on.
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl PciAddress {
    /// The address made of these numbers, or `None` if `device` is above 31 or `function` above 7.
    #[must_use]
    pub const fn new(domain: u32, bus: u8, device: u8, function: u8) -> Option<Self> {
        if device > DEVICE_MAX || function > FUNCTION_MAX {
            return None;
        }
        Some(Self { domain, bus, device, function })
    }
}

impl FromStr for PciAddress {
    type Err = PciError;

    fn from_str(text: &str) -> Result<Self, PciError> {
        parse(text).ok_or_else(|| PciError::BadAddress { text: text.to_owned() })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (place, function) = text.rsplit_once('.')?;
    let (place, device) = place.rsplit_once(':')?;
    let (domain, bus) = place.split_once(':').unwrap_or(("0000", place));
    PciAddress::new(
        hex(domain, 4..=8)?,
        u8::try_from(hex(bus, 2..=2)?).ok()?,
        u8::try_from(hex(device, 2..=2)?).ok()?,
        u8::try_from(hex(function, 1..=1)?).ok()?,
    )
}

/// A hexadecimal number with as many digits as `digits` says, without a sign.
fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let plain = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(text, 16).ok())?
}

const DEVICE_MAX: u8 = 31;
const FUNCTION_MAX: u8 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_and_the_short_form_are_read_and_the_long_one_written() {
        for (text, written) in [
            ("0000:01:00.0", "0000:01:00.0"),
            ("01:00.0", "0000:01:00.0"),
            ("10000:E1:1f.7", "10000:e1:1f.7"),
            ("abcd:ff:1f.7", "abcd:ff:1f.7"),
        ] {
            let address: PciAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), written);
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_form() {
        let bad = [
            "",
            ".",
            ":",
            "0",
            "01:00",
            "1:00.0",
            "01:0.0",
            "01:20.0",
            "01:00.8",
            "01:00.00",
            "+1:00.0",
            "0000:01:00.0 ",
            "0000:01:00.",
            "000:01:00.0",
            "0:0000:01:00.0",
            "123456789:01:00.0",
            "gg:00.0",
            "0000:01:00.0/..",
            "emu:",
            "é1:00.0",
        ];
        for text in bad {
            let error = text.parse::<PciAddress>().expect_err(text).to_string();
            assert!(error.contains("0000:01:00.0"), "{error}");
        }
    }
}
