//! Every accepted request is answered once, and every buffer comes back or is parked: whatever the caller
//! does, on the software controller, with a virtual clock and a seed.

mod clock;
mod elsewhere;
mod ends;
mod model;
mod refusals;
mod rig;
