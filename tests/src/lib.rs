//! Scenarios for driver and controller.
