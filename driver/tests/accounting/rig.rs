//! A software controller that moves when it is told to, and the driver on top of it.

use std::sync::Arc;
use std::time::Duration;

use doorbell::{
    Clock, Completion, Controller, ControllerOptions, DmaSpace, DmaSpaceConfig, HugePolicy, QueuePair,
};
use doorbell_emulator::fault::{Action, Match, Point, Rule};
use doorbell_emulator::{Emulator, EmulatorConfig};

pub struct Rig {
    pub device: Arc<Emulator>,
    pub clock: Clock,
    pub space: DmaSpace,
    pub controller: Controller,
}

/// A controller of this configuration in a space of its own.
pub fn rig(config: &str) -> Rig {
    rig_in(config, &space(), &ControllerOptions::new())
}

pub fn rig_in(config: &str, space: &DmaSpace, options: &ControllerOptions) -> Rig {
    let (device, clock) = device(config);
    let transport = Arc::<Emulator>::clone(&device);
    let options = options.clone().space(space).clock(&clock);
    let controller = options.open_transport(transport).expect("a software controller comes up");
    Rig { device, clock, space: space.clone(), controller }
}

pub fn device(config: &str) -> (Arc<Emulator>, Clock) {
    let clock = Clock::virtual_time();
    let config: EmulatorConfig = config.parse().expect("a configuration");
    (Emulator::new(config, clock.clone()).expect("a software controller"), clock)
}

/// Ordinary pages: nothing here depends on huge ones.
pub fn space() -> DmaSpace {
    DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never))
}

impl Rig {
    /// Does something to admin commands of an opcode, `skip` of them spared.
    pub fn on_admin(&self, opcode: u8, skip: u64, action: Action) {
        let matches = Match { point: Point::Admin, opcode: Some(opcode), skip, ..Match::default() };
        self.device.faults().arm(Rule::new(matches, action));
    }

    /// Loses all I/O commands of an opcode.
    pub fn lose_io(&self, opcode: u8) {
        let matches = Match { point: Point::Io, opcode: Some(opcode), ..Match::default() };
        self.device.faults().arm(Rule::new(matches, Action::Drop));
    }

    /// Moves the device and polls until nothing is outstanding.
    pub fn finish(&self, queue: &mut QueuePair, mut on_completion: impl FnMut(Completion)) {
        for _ in 0..100_000 {
            if queue.outstanding() == 0 {
                return;
            }
            self.device.step(64);
            self.clock.advance(Duration::from_millis(1));
            queue.poll(64, |_, completion| on_completion(completion));
        }
        panic!("{} requests were never answered", queue.outstanding());
    }
}

pub const IDENTIFY: u8 = 0x06;
pub const DELETE_SQ: u8 = 0x00;
pub const DELETE_CQ: u8 = 0x04;
pub const CREATE_SQ: u8 = 0x01;
pub const CREATE_CQ: u8 = 0x05;
pub const SET_FEATURES: u8 = 0x09;
pub const READ: u8 = 0x02;

/// A small generator of numbers (SplitMix64): the same on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Less than `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).expect("small")]
    }
}
