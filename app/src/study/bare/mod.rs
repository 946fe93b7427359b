//! The floor: a loop that does what every driver must do for a read, and nothing else.
//!
//! It writes the same 64 bytes, reads the same 16 and rings the same doorbells, in the same batches, on the
//! same software controller. It keeps no books: a command's identifier is its place in the ring, and so is
//! its buffer; commands are taken to complete in order, since those of this controller do; nothing is
//! checked, timed or handed to anybody. No driver can be built like this, and none can be faster.

mod bring_up;
mod queue;

use super::contest::{Contestant, Load, Rig, Totals};
use super::reads::{BATCH, Offsets};
use super::site::Place;
use super::workload;
use bring_up::BareController;

/// Random reads of one bare queue.
#[derive(Debug)]
struct BareLoop {
    controller: BareController,
    offsets: Offsets,
    /// Reads that wait to be submitted.
    idle: usize,
    depth: usize,
    totals: Totals,
}

/// Sets the loop up, for reads of `block_bytes` at this depth.
pub(super) fn set_up(place: Place, depth: u32, block_bytes: u32) -> anyhow::Result<Box<dyn Contestant>> {
    let device = workload::controller()?;
    let controller = BareController::bring_up(device.clone(), depth, block_bytes)?;
    let offsets = Offsets::draw(workload::BLOCKS, u64::from(block_bytes / workload::BLOCK_BYTES));
    let depth = depth as usize;
    let load = BareLoop { controller, offsets, idle: depth, depth, totals: Totals::default() };
    Ok(Box::new(Rig { load, controllers: vec![device], place }))
}

impl BareLoop {
    #[inline]
    fn take_back(&mut self) -> usize {
        let reaped = self.controller.queue().reap(BATCH);
        self.idle += reaped;
        self.totals.requests += reaped as u64;
        self.totals.completion_doorbells += u64::from(reaped > 0);
        reaped
    }

    #[inline]
    fn submit(&mut self) {
        let Self { controller, offsets, .. } = self;
        controller.queue().submit((0..BATCH).map(|_| offsets.next()));
        self.idle -= BATCH;
        self.totals.submission_doorbells += 1;
    }
}

impl Load for BareLoop {
    fn fill(&mut self) {
        while self.idle >= BATCH {
            self.submit();
        }
    }

    #[inline(never)]
    fn turn(&mut self) -> usize {
        let reaped = self.take_back();
        if self.idle >= BATCH {
            self.submit();
        }
        reaped
    }

    fn reap(&mut self) -> usize {
        self.take_back();
        self.depth - self.idle
    }

    fn totals(&self) -> anyhow::Result<Totals> {
        self.controller.check()?;
        Ok(self.totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::site::Site;
    use doorbell::spec::command::NvmOpcode;

    #[test]
    fn it_reads_what_it_says_and_the_controller_finds_nothing_wrong() {
        let device = workload::controller().expect("a controller");
        let controller = BareController::bring_up(device.clone(), 128, 512).expect("brought up");
        let offsets = Offsets::draw(workload::BLOCKS, 1);
        let load = BareLoop { controller, offsets, idle: 128, depth: 128, totals: Totals::default() };
        let mut rig = Rig { load, controllers: vec![device.clone()], place: Place::Inline };
        for _ in 0..3 {
            rig.run(&Site::find(), 10_000).expect("it runs");
        }
        let totals = rig.totals().expect("all is well");
        let report = device.report();
        assert!(report.is_clean(), "{report:?}");
        let reads = report.io_commands.get(&NvmOpcode::Read.raw()).copied();
        assert_eq!(reads, Some(totals.requests));
        assert_eq!(totals.submission_doorbells * BATCH as u64, totals.requests);
        drop(rig);
        assert!(device.report().is_clean(), "it is put away as it should be");
    }
}
