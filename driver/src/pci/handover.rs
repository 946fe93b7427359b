//! The steps of a handover between drivers, and taking them back.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::binding::{BindError, Outcome};
use super::{Machine, PciAddress, PciDevice, VFIO_DRIVER, sysfs};

impl Machine {
    /// The driver that `driver_override` pins the device to, or [`NO_PIN`].
    pub(super) fn pin(&self, address: PciAddress) -> String {
        let text = sysfs::text(&self.device_path(address).join("driver_override"));
        text.ok().filter(|text| text != "(null)").unwrap_or_else(|| NO_PIN.to_owned())
    }

    /// Pins the device to `pin` and moves it to the driver that is wanted.
    pub(super) fn hand_over(
        &self,
        address: PciAddress,
        pin: &str,
        wanted: Holder<'_>,
    ) -> Result<(), Failure> {
        let folder = self.device_path(address);
        let write = |step, path: PathBuf, text: String| {
            sysfs::write_within(path, text, self.clock(), STEP).map_err(|source| Failure { step, source })
        };
        let driver = || sysfs::link_name(&folder.join("driver")).ok().flatten();
        if self.pin(address) != pin {
            // An empty line takes the pin off.
            write("setting driver_override", folder.join("driver_override"), format!("{pin}\n"))?;
        }
        if let Some(held_by) = driver().filter(|driver| !wanted.is(Some(driver))) {
            let unbind = self.pci("drivers").join(held_by).join("unbind");
            write(UNBINDING, unbind, address.to_string())?;
            if !sysfs::wait_until(self.clock(), STEP, || driver().is_none()) {
                let source = sysfs::timed_out("the driver did not let go of the device", STEP);
                return Err(Failure { step: UNBINDING, source });
            }
        }
        if wanted.is(driver().as_deref()) {
            return Ok(());
        }
        write(PROBING, self.pci("drivers_probe"), address.to_string())?;
        if !sysfs::wait_until(self.clock(), STEP, || wanted.is(driver().as_deref())) {
            let source = sysfs::timed_out("the driver did not take the device", STEP);
            return Err(Failure { step: PROBING, source });
        }
        Ok(())
    }

    /// Notes how `device` is, to put it back later.
    pub(super) fn before(&self, device: &PciDevice) -> Before {
        let address = device.address;
        Before { address, driver: device.driver.clone(), pin: self.pin(address) }
    }

    /// Puts back what was there before, in reverse order, and makes the error that tells of it.
    pub(super) fn take_back(&self, address: PciAddress, failure: Failure, taken: &[Before]) -> BindError {
        let Failure { step, source } = failure;
        // An unbinding that timed out still hangs in the kernel and comes to pass when it can: that device
        // stays on its way.
        let pending = step == UNBINDING && source.kind() == io::ErrorKind::TimedOut;
        let mut left = Vec::new();
        for before in taken.iter().rev() {
            let holder = before.driver.as_deref().map_or(Holder::Nobody, Holder::Driver);
            if pending && before.address == address {
                left.push(format!("{}, and the kernel goes on when that lets go of it", self.state(address)));
            } else if self.hand_over(before.address, &before.pin, holder).is_err() {
                left.push(self.state(before.address));
            }
        }
        if source.kind() == io::ErrorKind::PermissionDenied && left.is_empty() {
            return BindError::NotPermitted { address, source };
        }
        let outcome = if left.is_empty() {
            Outcome::NothingChanged
        } else {
            Outcome::Changed { what: left.join(", ") }
        };
        BindError::Failed { address, step, outcome, source }
    }

    fn state(&self, address: PciAddress) -> String {
        match self.device(address) {
            Ok(PciDevice { driver: Some(driver), .. }) => format!("{address} is held by {driver} now"),
            Ok(_) => format!("{address} has no driver now"),
            Err(_) => format!("{address} is gone"),
        }
    }
}

/// How a device was before it was touched.
pub(super) struct Before {
    address: PciAddress,
    driver: Option<String>,
    pin: String,
}

/// Who is to hold a device.
#[derive(Clone, Copy)]
pub(super) enum Holder<'a> {
    /// vfio-pci.
    Vfio,
    /// Any driver but vfio-pci.
    Kernel,
    /// This one.
    Driver(&'a str),
    /// None.
    Nobody,
}

impl Holder<'_> {
    fn is(self, driver: Option<&str>) -> bool {
        match self {
            Self::Vfio => driver == Some(VFIO_DRIVER),
            Self::Kernel => driver.is_some_and(|driver| driver != VFIO_DRIVER),
            Self::Driver(name) => driver == Some(name),
            Self::Nobody => driver.is_none(),
        }
    }
}

/// A step that failed.
pub(super) struct Failure {
    pub step: &'static str,
    pub source: io::Error,
}

/// Stands for "not pinned to any driver".
pub(super) const NO_PIN: &str = "";
/// The step that asks the kernel for a new driver.
pub(super) const PROBING: &str = "binding";
const UNBINDING: &str = "unbinding";
/// The longest that one step may take. A kernel that stops a busy controller needs some seconds.
const STEP: Duration = Duration::from_secs(5);
