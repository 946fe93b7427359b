//! Scenarios that run unchanged against every controller: in process and in QEMU.
//!
//! ```text
//!   Scenario ──► Place ──► Transport ─┬─ the software controller, stepped with a virtual clock
//!      │           │                  └─ VFIO, in the guest of a QEMU machine
//!      │           └─ checks afterwards that the host kept the protocol
//!      └─ Rig: one controller, one queue, one namespace, driven to the end of every request
//! ```
//!
//! * A scenario is a function of a [`Place`]; it says in its [`Needs`] where it can run.
//! * In process nothing sleeps: whoever waits steps the controller and moves the clock. Where threads are the
//!   point, the controller has one of its own.
//! * After each scenario the software controller must have seen no access to memory that is not mapped and
//!   nothing that a host must not do.
//!
//! [`traps`] says which test belongs to which fault that a driver of this kind once had.

mod by_hand;
mod bytes;
mod onlooker;
mod place;
mod programs;
mod random;
mod rig;
mod scenario;
mod scenarios;
mod successor;
mod team;
mod traps;

pub use place::Place;
pub use programs::{program, workspace};
pub use random::Random;
pub use rig::Rig;
pub use scenario::{Needs, Scenario, run_in_process, run_on};
pub use scenarios::all;
pub use team::Team;
pub use traps::{Trap, traps};
