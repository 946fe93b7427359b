//! Every scenario in process: one test each.

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    let arguments = Arguments::from_args();
    let in_process = doorbell_tests::all().into_iter().filter(|it| it.needs != doorbell_tests::Needs::Pci);
    let trials = in_process.map(|scenario| {
        Trial::test(scenario.name, move || {
            doorbell_tests::run_in_process(&scenario).map_err(|error| Failed::from(format!("{error:#}")))
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
