//! A polled-mode userspace NVMe driver.
//!
//! ```text
//!   your thread                                              the SSD
//!  ┌───────────┐ submit  ┌───────────┐ doorbell ┌───────────────────┐
//!  │  Request  ├────────►│ QueuePair ├─────────►│ submission queue  │
//!  │ (DmaBuf)  │         │  slots    │          │                   │
//!  │           │◄────────┤  CIDs     │◄─────────┤ completion queue  │
//!  └───────────┘  poll   └───────────┘   DMA    └───────────────────┘
//!        ▲                     │
//!     DmaPool              Controller ── admin queue ── Transport (VFIO, emu:)
//! ```
//!
//! Six ideas: a [`Transport`] reaches the device, its registers bring it up, a [`Controller`] is the
//! device once it is up, a [`Namespace`] is what it stores, a [`QueuePair`] takes [`Request`]s.
//!
//! ```
//! use doorbell::{Controller, Lba, Nsid, QueueConfig, Request};
//!
//! let controller = Controller::open("emu:size=64M")?;
//! let namespace = controller.namespace(Nsid(1))?;
//! let mut queue = controller.create_queue(QueueConfig::with_depth(32))?;
//! let pool = controller.space().pool(4096, 32)?;
//! let mut block = pool.take().expect("32 blocks are free");
//! block[..5].copy_from_slice(b"hello");
//! queue.submit(Request::write(&namespace, Lba(0), block).user_data(7)).map_err(|refused| refused.error)?;
//! while queue.outstanding() > 0 {
//!     queue.poll(32, |_, completion| {
//!         assert_eq!(completion.user_data, 7);
//!         completion.result.expect("the write succeeded");
//!     });
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A thread with several queue pairs, of one controller or of many, polls them as one [`PollGroup`].
//!
//! Principles:
//!
//! * The I/O path makes no system call, takes no lock and allocates nothing.
//! * A buffer is with its request until the completion gives it back; memory that the device may still
//!   reach is never freed.
//! * The device may say anything: it can make requests fail, and nothing worse.
//! * Every wait has a deadline; every error says what to do.
//!
//! What this does not do: no file system, no partitions, no page cache, no scheduling unless asked, no
//! thread of its own. Requests on blocks with metadata are refused.

mod buffer;
mod completion;
mod controller;
mod error;
mod group;
mod ids;
mod namespace;
pub mod pci;
mod queue;
mod request;
mod target;
pub mod vfio;

pub use buffer::{Buffer, BufferPieces, BufferRange, ForeignRange, RangeError, SharedRange};
pub use completion::{Completion, IoError};
pub use controller::{
    AdminShadow, Controller, ControllerEvent, ControllerNames, ControllerOptions, ShadowDoorbells,
    TransportView, WriteCache,
};
pub use error::{ControllerError, SubmitError};
pub use group::{GroupPlug, Member, PollGroup};
pub use ids::{FairShare, IdLane, IdToken, SharedIds, SharedIdsError};
pub use namespace::{AtomicUnits, ControllerId, Namespace, NamespaceError};
pub use queue::{
    Cancelled, ClassWeights, Generations, LatencyBucket, LatencyHistogram, Plug, QueueConfig, QueueMonitor,
    QueuePair, QueueStats, Rejected, RequestHandle, Statistics,
};
pub use request::{
    DeallocateError, Durability, IoClass, Operation, ReplayPolicy, Request, RequestOptions, TimeoutClass,
};
pub use target::{Target, TargetError};

/// The in-process software controller, for those who move it themselves: it is a [`Transport`], see
/// [`ControllerOptions::open_transport`].
#[cfg(feature = "emulator")]
pub use doorbell_emulator as emulator;
pub use doorbell_hugepages as hugepages;
pub use doorbell_hugepages::{DmaBuf, DmaError, DmaPool, DmaSpace, DmaSpaceConfig, HugePolicy, PageKind};
pub use doorbell_spec as spec;
pub use doorbell_spec::{Blocks, Clock, Lba, Mapper, Nsid, QueueId, Status, Transport};
