//! x
/// x
pub struct CompletionEntry;
