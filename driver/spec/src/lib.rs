//! NVMe's wire types, and the bus that carries them.
