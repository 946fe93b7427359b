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
        "a shadow doorbell's store is before the load of EventIdx: no ring is missed",
        &[
            "driver/spec/src/doorbell.rs::of_host_and_device_one_always_sees_the_other",
            concat!(
                "driver/src/queue/doorbell/tests.rs::",
                "no_interleaving_loses_a_move_while_both_sides_have_their_barrier"
            ),
            "driver/src/queue/doorbell/tests.rs::without_either_barrier_a_move_can_be_lost",
            "shadows::no_ring_is_missed_between_threads",
        ],
    ),
    (
        "EventIdx is compared right where a queue wraps, whatever its size",
        &[
            concat!(
                "driver/src/queue/doorbell/tests.rs::",
                "a_register_is_wanted_exactly_when_the_way_leads_over_event_idx"
            ),
            "driver/src/queue/doorbell/tests.rs::large_queues_wrap_like_small_ones",
            "shadows::rings_of_any_size_come_round_by_shadows",
        ],
    ),
    (
        "a reset ends the shadow doorbells: bring-up makes new ones, and no old EventIdx is believed",
        &[
            "shadows::a_reset_ends_the_shadows_and_bring_up_makes_new_ones",
            "shadows::a_reset_in_the_midst_of_use_ends_every_request",
            "shadows::a_queue_that_is_made_again_starts_with_shadows_at_zero",
        ],
    ),
    (
        "the memory of shadow doorbells is freed only after the queues, and when the device is disabled",
        &[
            "shadows::the_pages_are_freed_only_after_the_device_has_let_go",
            "shadows::a_bring_up_that_fails_later_frees_the_pages_last",
            "shadows::the_device_writes_no_event_index_after_close",
            "shadows::a_controller_that_does_not_answer_is_no_controller",
        ],
    ),
    (
        "queues whose doorbells lie beyond the page of the shadows are rung by their registers",
        &[
            concat!(
                "driver/src/controller/shadow.rs::",
                "beyond_the_page_the_register_is_rung_too_and_beyond_the_buffer_alone"
            ),
            "shadows::every_stride_has_its_shadows",
        ],
    ),
    (
        "any EventIdx costs a ring at most, and a controller that never looks at its shadows is found out",
        &[
            "driver/src/queue/doorbell/tests.rs::any_event_idx_has_an_answer",
            "driver/tests/hostile/main.rs::whatever_a_device_says_the_driver_stays_whole",
            "shadows::a_controller_that_ignores_its_shadows_is_found_out",
            "shadows::a_controller_that_refuses_its_shadows_is_driven_without",
            "shadows::shadows_are_not_used_when_they_are_not_wanted",
        ],
    ),
    (
        "the admin queue and shadow doorbells: controllers differ, and a quirk decides",
        &[
            "shadows::every_kind_of_controller_with_shadows_works",
            "shadows::the_admin_queue_works_with_its_shadows_and_without",
        ],
    ),
    (
        "64 threads create queues at once on a small admin queue",
        &["queues::threads_create_and_delete_queues_at_once"],
    ),
];
