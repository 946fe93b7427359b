//! What both sides of the wire agree on: NVMe's wire types, and the bus that carries them.
//!
//! ```text
//!   driver ──┐                                     ┌── VFIO
//!            ├─ registers, commands, completions ──┤── software controller
//!   device ──┘    Transport · Mapper · Clock       └── (vfio-user)
//! ```
//!
//! Two halves, and nothing else:
//!
//! * the **wire types** of NVMe Base 2.0, the NVM Command Set 1.0 and the PCIe Transport 1.0, as plain
//!   values with the specification's names ([`register`], [`command`], [`completion`], [`status`],
//!   [`identify`], [`feature`], [`log_page`], [`dsm`]);
//! * the **bus**, as two small traits ([`Transport`], [`Mapper`]), the [`Doorbells`] they hand out and the
//!   [`Clock`] that every wait is measured with.
//!
//! This crate decides nothing: it has no queue, no policy and no state. It depends on no other crate of
//! Doorbell, so that a wrong idea in the driver cannot leak into the software controller through it.

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("Doorbell runs on Linux on x86-64 (tested) and aarch64 (untested), and nowhere else");

pub mod clock;
pub mod command;
pub mod completion;
pub mod doorbell;
pub mod dsm;
pub mod feature;
pub mod identify;
pub mod ids;
pub mod log_page;
pub mod mapper;
pub mod register;
pub mod status;
pub mod transport;
mod tsc;

pub use clock::{Clock, Deadline, Nanos};
pub use command::SubmissionEntry;
pub use completion::CompletionEntry;
pub use doorbell::{Doorbell, DoorbellBuffers, Doorbells, ShadowDoorbell};
pub use ids::{Blocks, Cid, Iova, Lba, Nsid, QueueId};
pub use mapper::{Addressing, HostRegion, MapError, Mapper, MapperLimits};
pub use status::Status;
pub use transport::{BusError, BusEvent, BusMastering, Identity, Transport};
