//! x
/// x
pub struct SubmissionEntry;
