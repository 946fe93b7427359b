//! The command register of the PCI configuration space (PCI Local Bus 3.0, 6.2.2).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use doorbell_spec::BusMastering;

use super::region::Region;

/// The configuration space of an open device.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConfigSpace {
    /// Where it lies in the device file.
    offset: u64,
}

impl ConfigSpace {
    pub(super) const fn at(region: &Region) -> Self {
        Self { offset: region.offset }
    }

    /// Makes the registers reachable, keeps the old-style interrupt line quiet, and grants or takes the right
    /// to DMA.
    pub(super) fn set_command(self, device: &File, mastering: BusMastering) -> io::Result<()> {
        let old = self.read(device, COMMAND)?;
        self.write(device, COMMAND, command(old, mastering))
    }

    /// Whether the device no longer answers: every read of it is all ones then, or an error.
    pub(super) fn is_gone(self, device: &File) -> bool {
        self.read(device, VENDOR_ID).is_ok_and(|id| id == u16::MAX)
    }

    fn read(self, device: &File, register: u64) -> io::Result<u16> {
        let mut bytes = [0; 2];
        device.read_exact_at(&mut bytes, self.offset + register)?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn write(self, device: &File, register: u64, value: u16) -> io::Result<()> {
        device.write_all_at(&value.to_le_bytes(), self.offset + register)
    }
}

const fn command(old: u16, mastering: BusMastering) -> u16 {
    let enabled = old | MEMORY_SPACE | INTX_DISABLE;
    match mastering {
        BusMastering::On => enabled | BUS_MASTER,
        BusMastering::Off => enabled & !BUS_MASTER,
    }
}

const VENDOR_ID: u64 = 0;
const COMMAND: u64 = 4;
const MEMORY_SPACE: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;
const INTX_DISABLE: u16 = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_register_keeps_its_other_bits() {
        assert_eq!(command(0x0140, BusMastering::On), 0x0546);
        assert_eq!(command(0x0546, BusMastering::Off), 0x0542);
    }

    #[test]
    fn a_device_that_reads_all_ones_is_gone() {
        let file = tempfile::tempfile().expect("temporary file");
        let space = ConfigSpace { offset: 64 };
        assert!(!space.is_gone(&file), "an error is not a sign");
        file.write_all_at(&[0xFF; 64], 64).expect("room");
        assert!(space.is_gone(&file));
        file.write_all_at(&[0x36, 0x1B], 64).expect("room");
        assert!(!space.is_gone(&file));
    }
}
