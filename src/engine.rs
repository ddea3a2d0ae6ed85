//! The engine: what the broker does, as one pure function of its state, the time and an input. See `step`.

pub mod io;
pub mod status;
