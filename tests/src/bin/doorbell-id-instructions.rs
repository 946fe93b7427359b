//! Takes and releases shared command identifiers without competitors, for callgrind to count.
//!
//! `doorbell-id-instructions HOW COUNT [fair-share]` does so COUNT times with 32 identifiers: `single` takes
//! and releases one at a time, `batch` takes them at once and releases one at a time, `recycle` takes them at
//! once and releases them at once. What 32 of them cost is the difference between two counts, divided:
//!
//! ```text
//! cargo build --release -p doorbell-tests --bin doorbell-id-instructions
//! for count in 1000 3000; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null \
//!         target/release/doorbell-id-instructions single $count
//! done
//! ```

use anyhow::{Context, Result, bail};
use doorbell::{FairShare, IdLane, SharedIds};

const BATCH: u32 = 32;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (how, count, fair_share) = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [how, count] => ((*how).to_owned(), count.parse::<u32>()?, FairShare::Off),
        [how, count, "fair-share"] => ((*how).to_owned(), count.parse()?, FairShare::On),
        _ => bail!("usage: doorbell-id-instructions single|batch|recycle COUNT [fair-share]"),
    };
    let ids = SharedIds::new(1024, 2, fair_share)?;
    let mut lane = ids.lane()?;
    let turn: fn(&mut IdLane) -> Option<()> = match how.as_str() {
        "single" => single,
        "batch" => batch,
        "recycle" => recycle,
        _ => bail!("{how} is none of single, batch, recycle"),
    };
    for _ in 0..count {
        turn(&mut lane).context("there are 1,024 identifiers, and 32 at most are taken")?;
    }
    Ok(())
}

/// Takes one from a word and gives it back, 32 times.
fn single(lane: &mut IdLane) -> Option<()> {
    for _ in 0..BATCH {
        let token = lane.acquire()?;
        lane.release(token);
    }
    Some(())
}

/// Takes 32 at once, and gives them back one by one.
fn batch(lane: &mut IdLane) -> Option<()> {
    lane.reserve(BATCH);
    for _ in 0..BATCH {
        let token = lane.acquire()?;
        lane.release(token);
    }
    Some(())
}

/// Takes 32 at once, and gives them back at once.
fn recycle(lane: &mut IdLane) -> Option<()> {
    lane.reserve(BATCH);
    for _ in 0..BATCH {
        let token = lane.acquire()?;
        lane.recycle(token);
    }
    lane.release_reserve();
    Some(())
}
