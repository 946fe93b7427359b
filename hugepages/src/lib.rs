//! Memory that a device may touch.
//!
//! ```text
//!   DmaSpace ──┬── region (memfd, huge pages) ──┬── DmaPool ── DmaBuf, DmaBuf, …
//!              │       one IOVA range           └── DmaBuf (a ring)
//!              ├── region …
//!              └── every attached Mapper: each region, at the same IOVA
//! ```
//!
//! * Memory comes from the kernel's huge page pool, in few and large pieces, each mapped with one call.
//! * It belongs to a [`DmaSpace`] and not to a device: every device attached sees all of it at one address.
//! * A [`DmaBuf`] in a caller's hands is named by no live command; what it must not do is in its docs.
//! * Memory that a device may still write is never freed, whatever fails; it is leaked and counted.
//! * Every error names the limit that was hit and the command that raises it.
//!
//! What this does not do: it moves no data, knows no NVMe, has no thread, and mounts no file system.
//!
//! ```
//! use doorbell_hugepages::{DmaSpace, DmaSpaceConfig};
//!
//! let space = DmaSpace::new(DmaSpaceConfig::default());
//! let pool = space.pool(4096, 256)?;
//! let mut block = pool.take().expect("nobody has taken one yet");
//! block[..5].copy_from_slice(b"hello");
//! assert_eq!(pool.available(), 255);
//! drop(block);
//! assert_eq!(pool.available(), 256);
//! if let Some(reason) = space.stats().fell_back {
//!     eprintln!("{reason}");
//! }
//! # Ok::<(), doorbell_hugepages::DmaError>(())
//! ```

mod buf;
mod carve;
mod error;
mod foreign;
mod iova;
mod lease;
mod mapping;
mod page;
mod pagemap;
mod pool;
mod region;
mod reserve;
mod space;
mod state;
mod stats;
mod status;

pub use buf::{DmaBuf, MAX_BUFFER_BYTES};
pub use error::{AddressingName, DmaError};
pub use foreign::ForeignRegion;
pub use page::{HugePolicy, PageKind};
pub use pagemap::PagemapError;
pub use pool::DmaPool;
pub use reserve::{Reservation, ReserveError, Shrink, reserve};
pub use space::{Attachment, Detached, DmaSpace, DmaSpaceConfig, SpaceId};
pub use stats::DmaStats;
pub use status::{HugepagePools, HugepageStatus};
