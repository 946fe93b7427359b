//! Where a scenario runs: what makes its controllers, and what looks at them afterwards.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use doorbell::pci::PciAddress;
use doorbell::vfio::VfioTransport;
use doorbell::{Controller, ControllerOptions, DmaSpace, DmaSpaceConfig, HugePolicy, Transport};
use doorbell_emulator::{Emulator, EmulatorConfig, IovaSpace, NamespaceConfig};
use doorbell_spec::{Clock, Nanos, Nsid};

/// The place of one run of one scenario.
#[derive(Debug)]
pub struct Place {
    kind: Kind,
    clock: Clock,
    /// Everything that was made here, to be looked at when the scenario is over.
    emulators: Vec<Arc<Emulator>>,
    verdict: Verdict,
}

#[derive(Clone, Debug)]
enum Kind {
    InProcess,
    Pci(PciAddress),
}

/// What is expected of the software controllers' reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Clean,
    /// The scenario makes the host break rules on purpose and looks itself.
    NotAsked,
}

impl Place {
    /// A place of software controllers that move with a virtual clock.
    #[must_use]
    pub fn in_process() -> Self {
        let clock = Clock::virtual_time();
        Self { kind: Kind::InProcess, clock, emulators: Vec::new(), verdict: Verdict::Clean }
    }

    /// The place of one PCI function that is bound to vfio-pci.
    #[must_use]
    pub fn pci(address: PciAddress) -> Self {
        let clock = Clock::monotonic();
        Self { kind: Kind::Pci(address), clock, emulators: Vec::new(), verdict: Verdict::Clean }
    }

    /// Whether controllers are made of software here: how many commands they saw can then be asked.
    #[must_use]
    pub fn is_in_process(&self) -> bool {
        matches!(self.kind, Kind::InProcess)
    }

    /// The clock of driver and controller.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// How long ago `start` was.
    #[must_use]
    pub fn since(&self, start: Nanos) -> Duration {
        Duration::from_nanos(self.clock.now().since(start))
    }

    /// Memory for controllers of this place. Huge pages are left to the guest, where nobody else needs them.
    #[must_use]
    pub fn space(&self) -> DmaSpace {
        let policy = if self.is_in_process() { HugePolicy::Never } else { HugePolicy::Prefer };
        DmaSpace::new(DmaSpaceConfig::default().with_policy(policy))
    }

    /// Options for controllers of this place: its clock, and memory of its own.
    #[must_use]
    pub fn options(&self) -> ControllerOptions {
        ControllerOptions::new().clock(&self.clock).space(&self.space())
    }

    /// A fresh way to the place's controller: with namespace 1 of 512-byte and 2 of 4096-byte blocks.
    ///
    /// # Errors
    /// The device cannot be taken.
    pub fn transport(&mut self) -> Result<Arc<dyn Transport>> {
        Ok(match self.kind {
            Kind::InProcess => self.add(Emulator::new(two_namespaces("")?, self.clock.clone())?),
            Kind::Pci(address) => Arc::new(VfioTransport::open(address)?),
        })
    }

    /// The same for a controller that offers shadow doorbells. The software controller looks at those of an
    /// idle queue only after it was rung, so that a ring which is missed is found out; QEMU's always has
    /// them.
    ///
    /// # Errors
    /// The device cannot be taken.
    pub fn shadowed(&mut self) -> Result<Arc<dyn Transport>> {
        Ok(match self.kind {
            Kind::InProcess => self.add(Emulator::new(two_namespaces(SHADOWED)?, self.clock.clone())?),
            Kind::Pci(_) => self.transport()?,
        })
    }

    /// The place's controller, brought up.
    ///
    /// # Errors
    /// It does not come up.
    pub fn controller(&mut self) -> Result<Controller> {
        let transport = self.transport()?;
        Ok(self.options().open_transport(transport)?)
    }

    /// A second controller, other than the place's own, that sees the memory of `options`.
    ///
    /// # Errors
    /// It does not come up.
    pub fn second_controller(&mut self, options: &ControllerOptions) -> Result<Controller> {
        let config = "size=64M".parse().context("a configuration")?;
        let emulator = self.add(Emulator::new(config, self.clock.clone())?);
        Ok(options.clone().clock(&self.clock).open_transport(emulator)?)
    }

    /// A controller that moves by itself, and options with the machine's clock: for scenarios with threads.
    ///
    /// # Errors
    /// The device cannot be taken.
    pub fn threaded(&mut self) -> Result<(Arc<dyn Transport>, ControllerOptions)> {
        self.threaded_with("")
    }

    /// The same for a controller that offers shadow doorbells, see [`Place::shadowed`].
    ///
    /// # Errors
    /// The device cannot be taken.
    pub fn threaded_shadowed(&mut self) -> Result<(Arc<dyn Transport>, ControllerOptions)> {
        self.threaded_with(SHADOWED)
    }

    fn threaded_with(&mut self, config: &str) -> Result<(Arc<dyn Transport>, ControllerOptions)> {
        let options = self.options().clock(&Clock::monotonic());
        Ok(match self.kind {
            Kind::InProcess => (self.add(Emulator::spawn(two_namespaces(config)?)?), options),
            Kind::Pci(_) => (self.transport()?, options),
        })
    }

    /// A software controller of this form.
    ///
    /// # Errors
    /// The text is no configuration.
    pub fn emulator(&mut self, config: &str) -> Result<Arc<Emulator>> {
        let config = config.parse().with_context(|| format!("the configuration {config:?}"))?;
        Ok(self.add(Emulator::new(config, self.clock.clone())?))
    }

    /// The same in an address space that it shares with others, as devices of one IOMMU group do.
    ///
    /// # Errors
    /// The text is no configuration.
    pub fn emulator_in(&mut self, config: &str, space: &Arc<IovaSpace>) -> Result<Arc<Emulator>> {
        let config = config.parse().with_context(|| format!("the configuration {config:?}"))?;
        Ok(self.add(Emulator::in_space(config, self.clock.clone(), Arc::clone(space))?))
    }

    /// Says that the host will break rules on purpose.
    pub fn expect_violations(&mut self) {
        self.verdict = Verdict::NotAsked;
    }

    /// The command register of the PCI function.
    ///
    /// # Errors
    /// There is no PCI function here, or its configuration space cannot be read.
    pub fn pci_command(&self) -> Result<u16> {
        let Kind::Pci(address) = self.kind else { bail!("there is no PCI function in process") };
        let path = format!("/sys/bus/pci/devices/{address}/config");
        let config = std::fs::read(&path).with_context(|| format!("reading {path}"))?;
        ensure!(config.len() >= 64, "{path} has {} bytes", config.len());
        Ok(u16::from_le_bytes([config[4], config[5]]))
    }

    /// Ends the place, and checks what its software controllers have seen.
    ///
    /// # Errors
    /// The host did something that a host must not do.
    pub fn finish(self) -> Result<()> {
        if self.verdict == Verdict::NotAsked {
            return Ok(());
        }
        for emulator in &self.emulators {
            let report = emulator.report();
            let faults: Vec<String> = report.access_faults.iter().map(ToString::to_string).collect();
            ensure!(report.access_faults_total == 0, "the device was led astray: {}", faults.join("; "));
            let violations: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
            ensure!(report.violations_total == 0, "the host broke rules: {}", violations.join("; "));
        }
        Ok(())
    }

    fn add(&mut self, emulator: Arc<Emulator>) -> Arc<Emulator> {
        self.emulators.push(Arc::clone(&emulator));
        emulator
    }
}

/// A controller with shadow doorbells, which sleeps until it is rung.
const SHADOWED: &str = ",shadow_doorbells=on,shadow_polling=off";

/// What QEMU's default machine has, in memory, with so much more.
fn two_namespaces(more: &str) -> Result<EmulatorConfig> {
    let mut config: EmulatorConfig = format!("size=128M,vwc=on{more}").parse().context("a configuration")?;
    let mut second = NamespaceConfig::default();
    (second.nsid, second.bytes, second.block_bytes) = (Nsid(2), Some(128 << 20), 4096);
    config.namespaces.push(second);
    Ok(config)
}
