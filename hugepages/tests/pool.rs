//! Pools: every block is with one holder at a time, from whatever thread it comes back.

use std::sync::mpsc;
use std::thread;

use doorbell_hugepages::{DmaBuf, DmaPool, DmaSpace, DmaSpaceConfig, HugePolicy};

fn pool(block_bytes: usize, count: usize) -> DmaPool {
    let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
    space.pool(block_bytes, count).expect("memory")
}

#[test]
fn all_blocks_can_be_had_and_no_more() {
    let pool = pool(192, 50);
    assert_eq!((pool.block_bytes(), pool.capacity(), pool.available()), (192, 50, 50));
    let blocks: Vec<DmaBuf> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!((blocks.len(), pool.available(), pool.taken_max()), (50, 0, 50));
    let mut starts: Vec<_> = blocks.iter().map(|block| block.iova().0).collect();
    starts.sort_unstable();
    assert!(starts.windows(2).all(|pair| pair[0] + 192 <= pair[1]));
    drop(blocks);
    assert_eq!((pool.available(), pool.taken_max()), (50, 50));
}

#[test]
fn large_blocks_start_on_a_page() {
    let pool = pool(4096 + 64, 10);
    let blocks: Vec<DmaBuf> = std::iter::from_fn(|| pool.take()).collect();
    assert!(blocks.iter().all(|block| block.iova().0.is_multiple_of(4096) && block.len() == 4160));
}

#[test]
fn a_buffer_keeps_what_was_written() {
    let pool = pool(512, 2);
    let mut block = pool.take().expect("new");
    block[..4].copy_from_slice(&[1, 2, 3, 4]);
    let moved = thread::spawn(move || block[..4].to_vec()).join().expect("no panic");
    assert_eq!(moved, [1, 2, 3, 4]);
    assert_eq!(pool.available(), 2);
}

#[test]
fn buffers_tell_which_space_they_belong_to() {
    let (one, other) = (pool(4096, 1), pool(4096, 1));
    assert_ne!(one.space(), other.space());
    assert_eq!(one.take().expect("new").space(), one.space());
}

#[test]
fn threads_give_back_what_others_took() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 20_000;
    let pool = pool(64, 13);
    thread::scope(|scope| {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..THREADS).map(|_| mpsc::channel::<(u64, DmaBuf)>()).unzip();
        for (me, receiver) in (0..THREADS).zip(receivers) {
            let pool = pool.clone();
            let next = senders[usize::try_from((me + 1) % THREADS).expect("small")].clone();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    if let Some(mut block) = pool.take() {
                        let stamp = me << 32 | round;
                        block[..8].copy_from_slice(&stamp.to_le_bytes());
                        // The neighbour may be done already; the block then comes back at once.
                        let _ = next.send((stamp, block));
                    }
                    while let Ok((stamp, block)) = receiver.try_recv() {
                        assert_eq!(block[..8], stamp.to_le_bytes(), "somebody else had this block too");
                    }
                }
            });
        }
        drop(senders);
    });
    assert_eq!(pool.available(), 13);
    let blocks: Vec<DmaBuf> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(blocks.len(), 13);
}
