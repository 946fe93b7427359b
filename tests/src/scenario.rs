//! What a scenario is, and how one is run.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, anyhow};

use crate::Place;

/// Something that must hold for driver and controller together.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What holds, as a name: the name of the function, with the module before it.
    pub name: &'static str,
    /// Where it can run.
    pub needs: Needs,
    /// Does it, and says what does not hold.
    pub run: fn(&mut Place) -> Result<()>,
}

/// Where a scenario can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Any controller with a writable namespace 1 of 512-byte and 2 of 4096-byte blocks.
    Nothing,
    /// A fault plan or an odd configuration: only the software controller has them.
    Emulator,
    /// A PCI function: only QEMU has one.
    Pci,
}

/// Runs a scenario against software controllers, and checks what they have seen.
///
/// # Errors
/// What did not hold.
pub fn run_in_process(scenario: &Scenario) -> Result<()> {
    run_on(scenario, Place::in_process())
}

/// Runs a scenario in a place of its own. A panic is a failure like another.
///
/// # Errors
/// What did not hold.
pub fn run_on(scenario: &Scenario, mut place: Place) -> Result<()> {
    let outcome = catch_unwind(AssertUnwindSafe(|| (scenario.run)(&mut place)));
    match outcome {
        Ok(outcome) => outcome.and_then(|()| place.finish()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(anyhow!("it panicked: {text}"))
        }
    }
}

/// Makes the table of a module's scenarios: `scenarios!(Nothing: a, b; Emulator: c)`.
macro_rules! scenarios {
    ($($needs:ident: $($name:ident),+ $(,)?);+ $(;)?) => {
        /// The scenarios of this file.
        pub(super) const SCENARIOS: &[$crate::Scenario] = &[
            $($($crate::Scenario {
                name: concat!(module_path!(), "::", stringify!($name)),
                needs: $crate::Needs::$needs,
                run: $name,
            },)+)+
        ];
    };
}
pub(crate) use scenarios;
