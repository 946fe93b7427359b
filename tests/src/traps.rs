//! Which test belongs to which fault that a driver of this kind once had.
//!
//! Each rule is a fault that a real driver had, said as what must hold. A test is named as a scenario
//! (`module::name`, see `scenarios/`), or as `file::name` for a test elsewhere. `tests/traps.rs` checks that
//! every one of them exists.

mod queues_and_doorbells;

/// A kind of fault that a real driver had, and the tests that keep it out of this one.
#[derive(Clone, Copy, Debug)]
pub struct Trap {
    /// The kind of thing.
    pub theme: &'static str,
    /// What must hold.
    pub rule: &'static str,
    /// Names of scenarios, or `file::name` of tests elsewhere.
    pub tests: &'static [&'static str],
}

/// All of them.
#[must_use]
pub fn traps() -> Vec<Trap> {
    let themes: [(&str, &[Row]); 5] = [
        ("completions and command IDs", COMPLETIONS_AND_COMMAND_IDS),
        ("queues and doorbells", queues_and_doorbells::ROWS),
        ("bring-up and shutdown", BRING_UP_AND_SHUTDOWN),
        ("data pointers, sizes, formats", DATA_POINTERS_SIZES_FORMATS),
        ("VFIO and memory", VFIO_AND_MEMORY),
    ];
    let trap = |theme, &(rule, tests): &Row| Trap { theme, rule, tests };
    themes.iter().flat_map(|(theme, rows)| rows.iter().map(|row| trap(*theme, row))).collect()
}

/// A rule and its tests.
type Row = (&'static str, &'static [&'static str]);

const COMPLETIONS_AND_COMMAND_IDS: &[Row] = &[
    (
        "commands complete in any order while the ring wraps, and no live identifier is issued twice",
        &[
            "completions::commands_that_complete_out_of_order_are_told_apart",
            "queues::a_ring_comes_round_many_times_at_every_small_depth",
            "driver/src/queue/ids.rs::every_slot_is_handed_out_once_and_comes_back",
        ],
    ),
    (
        "a completion that comes twice, or for an identifier that is not live, is counted and ends nothing",
        &[
            "completions::a_completion_that_comes_twice_is_counted_and_dropped",
            "completions::a_late_duplicate_does_not_end_the_next_request_of_its_slot",
            "completions::identifiers_that_nobody_gave_out_are_counted_and_dropped",
            "completions::a_command_that_was_not_rung_is_not_ended_by_a_made_up_completion",
            "driver/src/queue/ids.rs::a_released_slot_does_not_repeat_its_identifier_soon",
        ],
    ),
    (
        "a submission queue head that cannot be is counted and believed by nobody",
        &["completions::a_wrong_submission_queue_head_is_counted_and_believed_by_nobody"],
    ),
    (
        "an entry of the round before is not taken",
        &[
            "completions::a_completion_with_the_wrong_phase_is_not_taken",
            "driver/src/queue/ring.rs::completions_are_taken_by_phase_over_several_rounds",
        ],
    ),
    (
        "a device that needs identifiers below the depth works",
        &[
            "completions::a_device_that_needs_small_identifiers_gets_them",
            "driver/src/queue/ids.rs::without_generations_identifiers_stay_below_the_depth",
        ],
    ),
    (
        "a queue is deleted while completions are on their way: each request is answered exactly once",
        &[
            "closing::a_queue_closed_with_requests_outstanding_answers_each_once",
            "closing::requests_that_the_device_holds_are_answered_at_close",
        ],
    ),
    (
        "nobody waits any more when the completion comes",
        &[
            "completions::the_waiter_of_a_request_may_be_gone",
            "closing::a_queue_dropped_with_requests_outstanding_gives_its_memory_back",
        ],
    ),
    (
        "a buffer that the device may still write to is not freed",
        &["closing::buffers_are_parked_while_the_device_may_write_to_them"],
    ),
    (
        "a callback that submits again while a queue drains does not loop for ever",
        &["closing::a_callback_that_submits_again_does_not_keep_a_failed_queue_alive"],
    ),
    (
        "a queue pair cannot be polled from two threads: such a program does not compile",
        &["driver/src/queue/pair.rs::shared_between_threads"],
    ),
    (
        "an entry that another thread writes, phase last or phase first, is never half-read",
        &[
            "driver/src/queue/entry.rs::an_entry_is_never_half_read",
            "driver/src/queue/entry.rs::who_sees_the_phase_sees_the_data",
            "driver/src/queue/entry.rs::a_phase_that_was_written_first_ends_the_right_command_once",
            "driver/src/queue/entry.rs::a_load_without_acquire_would_be_noticed",
        ],
    ),
    (
        "an error at submission is the only outcome",
        &[
            "refusals::a_request_that_is_refused_has_no_completion",
            "queues::a_full_queue_gives_the_request_back",
        ],
    ),
    (
        "killed with requests in flight and started again, the next 10,000 commands are clean",
        &[
            "closing::a_controller_taken_over_with_requests_in_flight_is_clean_for_10000_commands",
            "tests/tests/qemu.rs::a_killed_process_costs_the_next_one_nothing",
        ],
    ),
    (
        "a device that fails or goes under load answers each request once",
        &[
            "closing::a_device_that_fails_under_load_answers_each_request_once",
            "closing::a_device_that_is_pulled_under_load_answers_each_request_once",
        ],
    ),
];

const BRING_UP_AND_SHUTDOWN: &[Row] = &[
    (
        "CSTS or CAP all ones at any step is a removed device, in bounded time",
        &[
            "bring_up_faults::all_ones_at_any_register_read_is_a_removed_device",
            "bring_up_faults::all_ones_at_any_register_write_is_a_removed_device",
            "bring_up_faults::a_device_that_goes_at_any_admin_command_is_removed",
        ],
    ),
    (
        "CSTS.CFS ends the wait for ready",
        &[
            "bring_up_faults::a_fatal_status_ends_the_wait_for_ready",
            "bring_up_faults::a_fatal_status_at_any_register_read_is_an_error",
        ],
    ),
    (
        "RDY that comes late within CAP.TO is waited for; that never comes is an error at CAP.TO",
        &[
            "bring_up_faults::ready_that_comes_late_is_waited_for",
            "bring_up_faults::ready_that_never_comes_is_an_error_at_cap_to",
            "bring_up_faults::ready_is_waited_for_as_long_as_the_longer_of_cap_to_and_crto",
        ],
    ),
    (
        "an admin command that fails or is lost is a typed error in bounded time",
        &[
            "bring_up_faults::an_admin_command_that_fails_is_a_typed_error_or_does_not_matter",
            "bring_up_faults::an_admin_command_that_is_lost_is_an_error_in_bounded_time",
        ],
    ),
    (
        "number of queues: fewer than asked for, NSQA not NCQA, 0xFFFF never asked for, queue 2 of 1",
        &[
            "bring_up::fewer_queues_than_asked_for_are_granted",
            "bring_up::the_smaller_of_two_queue_counts_decides",
            "bring_up::the_largest_number_of_queues_is_never_65536",
            "bring_up::queue_2_of_1_is_a_typed_error",
        ],
    ),
    (
        "MPSMIN above 4 KiB is supported, or refused with a clear error",
        &["bring_up::pages_above_4_kib_are_used_or_refused_with_the_reason"],
    ),
    (
        "rings are freed only after Delete has completed or CC.EN = 0 has taken effect",
        &[
            "shutdown::rings_are_freed_only_after_the_device_has_let_go",
            "shutdown::the_device_reaches_no_memory_after_close",
        ],
    ),
    (
        "a shutdown that never completes: close returns within RTD3E",
        &[
            "shutdown::a_shutdown_that_never_ends_returns_within_rtd3e",
            "shutdown::a_shutdown_that_takes_long_is_waited_for",
            "shutdown::the_controller_is_told_before_it_is_disabled",
        ],
    ),
    (
        "AERL is zero-based, and no more events are armed than it allows",
        &[
            "bring_up::event_requests_are_as_many_as_aerl_allows",
            "features::more_events_than_requests_all_arrive",
        ],
    ),
    (
        "a controller is dropped with events outstanding: no leak, no error",
        &["bring_up::a_controller_with_events_outstanding_is_dropped"],
    ),
    (
        "INTx is disabled, and bus mastering on",
        &[
            "bring_up::intx_is_off_and_bus_mastering_is_on",
            "bring_up::the_device_may_access_memory_only_while_it_is_driven",
        ],
    ),
    (
        "a namespace list with gaps, and one longer than 1,024",
        &[
            "namespaces::a_list_with_gaps_is_found_whole",
            "namespaces::a_list_longer_than_1024_is_found_whole",
        ],
    ),
    (
        "a controller that somebody left running is reset before it is used",
        &["bring_up::a_running_controller_is_reset_before_it_is_used"],
    ),
];

const DATA_POINTERS_SIZES_FORMATS: &[Row] = &[
    (
        "every length up to 2 MiB at offsets 0, 4, 512 and 4092 equals an independent oracle",
        &[
            concat!(
                "driver/src/queue/prp_tests.rs::",
                "every_length_up_to_two_mebibytes_at_four_offsets_equals_the_oracle"
            ),
            "sizes::lengths_up_to_two_mebibytes_at_four_offsets_arrive",
            "sizes::every_number_of_blocks_up_to_three_pages_arrives_at_every_offset",
        ],
    ),
    (
        "lists of exactly 511, 512, 513, 1023, 1024 and 1025 entries; no list entry with an offset",
        &[
            "sizes::lists_of_511_to_1025_entries_arrive",
            "driver/src/queue/prp_tests.rs::lists_around_one_and_two_pages_are_chained_and_given_back",
            "driver/src/queue/prp_tests.rs::the_promise_of_bytes_max_is_kept_to_the_byte",
        ],
    ),
    (
        "pieces that are not page-shaped (968 + 3128) are split or refused with the reason",
        &[
            "buffers::pieces_that_meet_inside_of_a_block_and_a_page_are_refused",
            "buffers::pieces_that_meet_at_blocks_are_transferred_in_order",
            "buffers::many_random_pieces_arrive",
            "driver/src/queue/prp_tests.rs::pieces_that_meet_elsewhere_are_cut_at_blocks_or_refused",
        ],
    ),
    (
        "a buffer that is not dword aligned is refused at submission",
        &["refusals::memory_that_is_not_dword_aligned_is_refused"],
    ),
    ("PRP lists lie in DMA memory", &["sizes::prp_lists_lie_in_memory_of_the_device"]),
    ("MDTS 0 is no limit", &["splitting::mdts_0_is_no_limit"]),
    ("MDTS is in units of MPSMIN", &["splitting::mdts_counts_in_the_smallest_page_and_is_kept"]),
    ("a 64 MiB request at depth 2 completes", &["splitting::a_request_of_64_mebibytes_completes_at_depth_2"]),
    ("the optimal boundary is not crossed", &["splitting::the_optimal_boundary_is_not_crossed"]),
    (
        "512-byte and 4 KiB blocks",
        &[
            "sizes::blocks_of_512_and_4096_bytes_work",
            "sizes::blocks_of_every_size_work",
            "tests/tests/qemu.rs::what_verify_wrote_through_vfio_is_in_the_backing_files",
        ],
    ),
];

const VFIO_AND_MEMORY: &[Row] = &[
    (
        "an IOMMU 39 bits wide: addresses are inside the ranges that VFIO reports, and with 48 bits too",
        &[
            "spaces::a_39_bit_device_is_given_addresses_that_it_can_reach",
            "driver/tests/vfio.rs::mappings_keep_to_the_windows_and_to_themselves",
            "driver/src/vfio/iommu_info.rs::ranges_entries_and_granule_are_read",
        ],
    ),
    (
        "1 GiB of memory does not need 512 mappings",
        &[
            "hugepages/tests/space.rs::a_gibibyte_needs_one_mapping_and_not_512",
            "spaces::a_gibibyte_of_buffers_is_mapped_in_large_pieces",
            "spaces::a_device_with_few_mappings_is_an_error_that_names_the_limit",
        ],
    ),
    (
        "a group that is not viable names the device that blocks it",
        &["driver/src/pci/binding/tests.rs::a_group_that_is_not_viable_names_the_device_that_blocks_it"],
    ),
    (
        "the memory lock limit is named, and the need",
        &["driver/src/vfio/container.rs::locked_memory_is_read_from_the_status"],
    ),
    (
        "BAR0 with the MSI-X table inside: sparse areas are honoured",
        &["driver/src/vfio/region.rs::a_hole_for_the_interrupt_table_ends_the_window"],
    ),
    (
        "a controller attached after the memory was allocated sees all of it",
        &[
            "spaces::a_controller_attached_late_sees_memory_that_was_there",
            "spaces::memory_that_came_late_is_seen_by_all",
            "hugepages/tests/space.rs::a_device_attached_late_sees_all_at_the_same_addresses",
        ],
    ),
    (
        "kill -9 and start again: no huge page is lost",
        &[
            "tests/tests/qemu.rs::a_killed_process_costs_the_next_one_nothing",
            "hugepages/tests/hugepages.rs::a_killed_process_leaves_no_huge_page_behind",
        ],
    ),
    (
        "two controllers in two groups, and two in one",
        &[
            "spaces::one_buffer_is_written_to_two_controllers_at_once",
            "spaces::two_controllers_in_one_group_share_their_mappings",
            "driver/src/pci/binding/tests.rs::two_controllers_of_one_group_are_bound_together",
        ],
    ),
];
