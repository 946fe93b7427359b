//! A software NVMe controller: registers, admin and NVM command sets, several namespaces, and a fault plan.
//!
//! ```text
//!             Transport::read32/write32 ──► registers ─┐
//!   host ──── Doorbells (shared memory) ──► window ────┼─► Device ── Storage ── Backend (null, mem, file)
//!             Mapper::map/unmap ──────────► IovaSpace ─┘     │
//!                                                       FaultPlan, Report
//! ```
//!
//! * **It moves when it is told to.** [`Emulator::new`] makes a controller that works only inside
//!   [`Emulator::step`] and `Transport::relax`: a test drives driver and device from one thread with a
//!   virtual clock. [`Emulator::spawn`] gives it a thread of its own.
//! * **Memory is not the process's memory.** The device has an address space of its own; an access
//!   outside of what is mapped is reported and does not happen.
//! * **The host is not trusted, and neither is it excused.** Nothing that a host does makes the device panic
//!   or loop; what a host must not do is in the [`Report`].
//! * **It is cheap.** A command of a null namespace costs less than the driver that sent it, so that it is
//!   not what is measured.
//!
//! What it does not do: metadata and protection information, scatter gather lists, queues in pieces, fused
//! commands, several controllers on one subsystem. It knows nothing of the driver crate.

mod admin;
mod backend;
mod config;
mod device;
mod emulator;
mod error;
pub mod fault;
mod flight;
mod interrupts;
mod iova;
mod namespace;
mod nvm;
mod outcome;
mod prp;
mod queues;
mod quick;
mod registers;
mod report;
mod serve;
mod shadow;
mod thread;
mod transport;
mod twist;
mod watch;
mod window;

pub use config::{
    BackendConfig, ConfigError, ConfigOption, EmulatorConfig, LatencyConfig, NamespaceConfig, Progress,
    ShadowDoorbells, Toggle,
};
pub use emulator::Emulator;
pub use error::EmulatorError;
pub use fault::{FaultPlan, RuleId};
pub use iova::IovaSpace;
pub use iova::access::{Access, AccessFault};
pub use report::{Report, Violation};
