//! What the controller reports by itself (NVMe Base 2.0, 5.2), as values.

use doorbell_spec::log_page::{AsyncEvent, AsyncEventKind, HealthPage, LogPage};
use doorbell_spec::{BusEvent, Nsid, SubmissionEntry};

use super::{Controller, Shared};
use crate::error::ControllerError;

/// Something that happened to the controller, not to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControllerEvent {
    /// Namespaces were added, removed or changed: [`Controller::namespaces`] has them anew.
    NamespacesChanged,
    /// Reliability, temperature or spare: `info` of the event.
    Health(u8),
    /// An error that belongs to no command: `info` of the event.
    Error(u8),
    /// An event of another kind.
    Other(AsyncEvent),
    /// Somebody asks for the device back: close it soon.
    RemovalRequested,
    /// The device is gone.
    Removed,
}

impl Controller {
    /// The next event, if there is one. Never waits for an event; when there is one, reads the log page
    /// that belongs to it, which takes an admin command, and asks for the next.
    ///
    /// Each event is given once: to whoever asks first, here or by
    /// [`PollGroup::next_event`](crate::PollGroup::next_event), on whatever thread.
    ///
    /// # Errors
    /// The controller has failed.
    pub fn poll_event(&self) -> Result<Option<ControllerEvent>, ControllerError> {
        self.shared.next_event()
    }

    /// The SMART / Health log of the whole controller. Waits for an admin command.
    ///
    /// # Errors
    /// The controller did not answer, or refused.
    pub fn health(&self) -> Result<HealthPage, ControllerError> {
        let bytes = u32::try_from(size_of::<HealthPage>()).unwrap_or(u32::MAX);
        let entry = SubmissionEntry::query_log_page(LogPage::Health, Nsid::ALL, bytes);
        let data = self.shared.with_admin(|admin| admin.fetch("Get Log Page (Health)", entry))?;
        let mut page = [0; size_of::<HealthPage>()];
        page.copy_from_slice(&data[..size_of::<HealthPage>()]);
        Ok(zerocopy::transmute!(page))
    }
}

impl Shared {
    /// See [`Controller::poll_event`].
    pub(crate) fn next_event(&self) -> Result<Option<ControllerEvent>, ControllerError> {
        if let Some(event) = self.bus_event() {
            return Ok(Some(event));
        }
        let Some(event) = self.with_admin(|admin| Ok(admin.next_event()))? else { return Ok(None) };
        clear(self, event)?;
        let limit = self.identify.event_limit();
        self.with_admin(|admin| {
            admin.arm_events(limit);
            Ok(())
        })?;
        Ok(Some(match event.kind {
            AsyncEventKind::Notice if event.info == AsyncEvent::NAMESPACE_CHANGED => {
                self.find_namespaces_again()?;
                ControllerEvent::NamespacesChanged
            }
            AsyncEventKind::Health => ControllerEvent::Health(event.info),
            AsyncEventKind::Error => ControllerEvent::Error(event.info),
            _ => ControllerEvent::Other(event),
        }))
    }

    /// The same, but while another thread has the admin queue it finds only events of the bus, and does not
    /// wait.
    pub(crate) fn next_event_if_free(&self) -> Result<Option<ControllerEvent>, ControllerError> {
        match self.bus_event() {
            Some(event) => Ok(Some(event)),
            None if !self.is_running() => Err(ControllerError::ControllerFailed),
            None if self.has_event() => self.next_event(),
            None => Ok(None),
        }
    }

    fn bus_event(&self) -> Option<ControllerEvent> {
        match self.device.transport.poll_event() {
            Some(BusEvent::RemovalRequested) => Some(ControllerEvent::RemovalRequested),
            Some(BusEvent::Removed) => {
                self.fail("the device was removed");
                Some(ControllerEvent::Removed)
            }
            _ => None,
        }
    }

    /// Lets the admin queue move: takes what the controller has written there, and says whether an event
    /// waits to be fetched. Does nothing while another thread has the admin queue, and waits for nobody.
    pub(crate) fn has_event(&self) -> bool {
        self.device.admin_if_free().is_some_and(|mut admin| admin.has_event())
    }
}

/// Reads the log page that an event names: until then the controller reports no other of its kind (5.2).
fn clear(shared: &Shared, event: AsyncEvent) -> Result<(), ControllerError> {
    let bytes = match event.log_page {
        LogPage::Error => 64,
        LogPage::Health | LogPage::FirmwareSlot => 512,
        LogPage::ChangedNamespaces => 4096,
        _ => return Ok(()),
    };
    let entry = SubmissionEntry::query_log_page(event.log_page, Nsid::ALL, bytes);
    match shared.with_admin(|admin| admin.fetch("Get Log Page", entry)) {
        // A page that the controller refuses cannot be read, and that is no reason to stop.
        Ok(_) | Err(ControllerError::Admin { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
