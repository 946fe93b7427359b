//! Memory that a device may touch.
