//! The durable partitioned log: one series of segments for all partitions, so that one sync commits whatever arrived.
//!
//! Records of one partition and one commit form a batch, which is one frame; the frames of one commit form a group, of which
//! the last is marked. Everything durable is a frame first; sled holds what is looked up and can be rebuilt from the frames.
//!
//! [`Log`] is the log in the core's memory: it takes records, seals groups, learns what is synced. [`commit`] writes groups to a
//! [`store::LogStore`], [`recovery`] opens what a crash left, [`read`] reads segments, [`retention`] gives them up. [`format`] has
//! the bytes.

pub(crate) mod batch;
pub mod commit;
pub mod control;
pub mod damage;
pub mod format;
pub mod frame;
mod live;
mod locate;
pub mod memory;
pub mod read;
pub mod record;
pub mod recovery;
pub mod retention;
pub(crate) mod scan;
pub mod segments;
pub mod state;
pub mod store;
mod tail;
#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;

pub use live::{Appended, Log, LogConfig};
pub use tail::TailRead;
