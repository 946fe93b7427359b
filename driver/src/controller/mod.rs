//! The controller: opened, configured, asked, closed. Control plane only.
//!
//! Everything here is simple and blocking, and every wait has a deadline. Locks are taken in this order
//! and never while a callback runs: admin queue, queue numbers, namespaces, parked memory.

mod admin;
mod bring_up;
mod claim;
mod device;
mod events;
mod features;
mod identify;
mod open;
mod options;
mod queues;
mod registers;
mod shadow;
mod shared;
mod view;

use std::sync::Arc;

use doorbell_hugepages::DmaSpace;
use doorbell_spec::identify::{IdentifyController, field_text};
use doorbell_spec::register::{Cap, Version};
use doorbell_spec::{Identity, Nsid};

use crate::error::ControllerError;
use crate::namespace::{ControllerId, Namespace, NamespaceError};
use crate::queue::{QueueConfig, QueuePair};

pub use events::ControllerEvent;
pub use features::WriteCache;
pub use options::ControllerOptions;
pub use shadow::{AdminShadow, ShadowDoorbells};
pub(crate) use shared::{Parked, QueueEnd, Shared};
pub use view::TransportView;

/// An NVMe controller that this process drives.
///
/// Share it between threads by reference or `Arc`; every thread makes a queue pair of its own. The
/// controller is shut down in order when this value and all of its queue pairs are gone, or by
/// [`close`](Controller::close).
#[derive(Debug)]
pub struct Controller {
    shared: Arc<Shared>,
}

impl Controller {
    /// Opens a device with default options: `0000:01:00.0`, `emu:`, `emu:size=1G,lba=4096`, …
    ///
    /// Takes the device over, brings it up and identifies it. Waits as long as the device says it needs,
    /// at most. Does not bind the device to `vfio-pci`: see [`crate::pci::bind`].
    ///
    /// # Errors
    /// Which step failed, why, and what mends it. The device is left as it was found, or disabled.
    ///
    /// ```
    /// let controller = doorbell::Controller::open("emu:size=64M")?;
    /// assert_eq!(controller.namespaces().len(), 1);
    /// # Ok::<(), doorbell::ControllerError>(())
    /// ```
    pub fn open(target: &str) -> Result<Self, ControllerError> {
        ControllerOptions::new().open(target)
    }

    /// Tells this controller from all others of the process.
    #[must_use]
    pub fn id(&self) -> ControllerId {
        self.shared.id
    }

    /// What and where the device is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.shared.device.transport.identity()
    }

    /// Model, serial number and firmware revision, as the device gives them.
    #[must_use]
    pub fn names(&self) -> ControllerNames {
        let data = &self.shared.identify;
        ControllerNames {
            model: field_text(&data.model),
            serial: field_text(&data.serial),
            firmware: field_text(&data.firmware),
        }
    }

    /// Identify Controller, as the device answered it at bring-up.
    #[must_use]
    pub fn identify(&self) -> &IdentifyController {
        &self.shared.identify
    }

    /// The capabilities register.
    #[must_use]
    pub fn capabilities(&self) -> Cap {
        self.shared.device.cap
    }

    /// The version that the controller complies with.
    #[must_use]
    pub fn version(&self) -> Version {
        self.shared.device.version
    }

    /// The memory that the controller sees: buffers for its requests come from here.
    #[must_use]
    pub fn space(&self) -> &DmaSpace {
        &self.shared.device.space
    }

    /// How many I/O queue pairs the controller grants.
    #[must_use]
    pub fn queue_pairs_max(&self) -> u32 {
        self.shared.queues_granted()
    }

    /// The most commands that can be outstanding on one queue.
    #[must_use]
    pub fn depth_max(&self) -> u32 {
        self.shared.depth_max()
    }

    /// The most data of one command, in bytes. Larger requests are split.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> u64 {
        self.shared.transfer_bytes_max
    }

    /// Whether the controller has accepted shadow doorbells: then most moves of a queue need no register.
    #[must_use]
    pub fn has_shadow_doorbells(&self) -> bool {
        self.shared.shadows.is_some()
    }

    /// The active namespaces, ascending.
    #[must_use]
    pub fn namespaces(&self) -> Vec<Namespace> {
        self.shared.namespaces()
    }

    /// One namespace.
    ///
    /// # Errors
    /// There is none with this identifier, or its blocks have metadata.
    pub fn namespace(&self, nsid: Nsid) -> Result<Namespace, ControllerError> {
        let all = self.namespaces();
        let Some(namespace) = all.iter().find(|namespace| namespace.nsid() == nsid) else {
            let present = match all.as_slice() {
                [] => "none".to_owned(),
                some => some.iter().map(|it| it.nsid().to_string()).collect::<Vec<_>>().join(", "),
            };
            return Err(NamespaceError::NotFound { nsid, present }.into());
        };
        let metadata_bytes = namespace.metadata_bytes();
        if metadata_bytes != 0 {
            return Err(NamespaceError::Metadata { nsid, metadata_bytes }.into());
        }
        Ok(*namespace)
    }

    /// Makes a queue pair. Waits for two admin commands.
    ///
    /// # Errors
    /// No queue is left, the depth is more than the controller has, there is no such interrupt vector, or
    /// memory cannot be had. Nothing is left behind.
    pub fn create_queue(&self, config: QueueConfig) -> Result<QueuePair, ControllerError> {
        queues::create(&self.shared, config)
    }

    /// How many interrupt vectors the device has.
    #[must_use]
    pub fn interrupt_vectors(&self) -> u32 {
        self.shared.device.transport.interrupt_vectors()
    }

    /// The transport below: for what this type has no call for, such as reading registers or interrupts.
    ///
    /// It has nothing that changes what the device does: no register is written by it.
    ///
    /// ```
    /// # use doorbell::{Controller, spec::register::CC};
    /// fn look(controller: &Controller) -> bool {
    ///     controller.transport().read32(CC).is_ok()
    /// }
    /// ```
    /// ```compile_fail,E0599
    /// # use doorbell::{Controller, spec::register::CC, Transport};
    /// fn stray(controller: &Controller) -> bool {
    ///     controller.transport().write32(CC, 0).is_ok()
    /// }
    /// ```
    #[must_use]
    pub fn transport(&self) -> TransportView<'_> {
        TransportView(&*self.shared.device.transport)
    }

    /// Notifies the controller of the shutdown, waits for it (at most RTD3E) and disables it.
    ///
    /// # Errors
    /// Queue pairs are still open: then the controller stays as it is until they are gone. Or the
    /// controller did not answer in time: then it was disabled all the same, or its memory stays parked for
    /// good.
    pub fn close(self) -> Result<(), ControllerError> {
        self.shared.refuse_while_queues_are_open()?;
        self.shared.shut_down()
    }
}

/// What a controller calls itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerNames {
    /// MN.
    pub model: String,
    /// SN.
    pub serial: String,
    /// FR.
    pub firmware: String,
}
