//! x
/// x
pub struct Status;
