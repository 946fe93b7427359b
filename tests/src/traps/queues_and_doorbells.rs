//! Faults of queues and doorbells.

use super::Row;

/// The rules of this theme.
pub(super) const ROWS: &[Row] = &[
    (
        "MQES 0, 1, 127 and 0xFFFF: sizes are zero-based, and the ring wraps at the real size",
        &[
            "queues::a_queue_of_one_entry_is_refused_with_the_reason",
            "queues::a_queue_of_two_entries_holds_one_request",
            "queues::a_queue_of_128_entries_holds_127_requests",
            "queues::a_queue_of_65536_entries_holds_65535_requests",
            "driver/src/queue/ring.rs::the_tail_wraps_at_the_real_size_and_is_rung_once",
        ],
    ),
    (
        "at most one less than the entries is outstanding, and the completion queue is never overrun",
        &[
            "queues::a_queue_that_is_not_polled_is_never_overrun",
            "queues::a_full_queue_gives_the_request_back",
        ],
    ),
    (
        "every prefix of a plug, and one that ends half-way or by an error, is rung for its last command",
        &[
            "doorbells::every_prefix_of_a_plug_is_rung_for_its_last_command",
            "doorbells::a_plug_that_ends_by_an_error_has_been_rung",
            "doorbells::a_plug_that_ends_by_a_panic_is_rung",
            "doorbells::a_plug_that_is_forgotten_is_rung_by_whatever_comes_next",
            "doorbells::plugs_nest_and_the_outermost_rings",
        ],
    ),
    (
        "doorbell stride 0 to 15, and 1,024 queues whose doorbells lie beyond the first page",
        &[
            "doorbells::every_doorbell_stride_works",
            "doorbells::doorbells_of_1024_queues_lie_where_the_device_looks",
            "driver/tests/vfio.rs::doorbells_beyond_the_first_page_are_there_and_those_beyond_bar0_are_not",
        ],
    ),
    (
        "64 threads create queues at once on a small admin queue",
        &["queues::threads_create_and_delete_queues_at_once"],
    ),
];
