//! The durable partitioned log: one series of segments for all partitions, so that one sync commits whatever arrived.
//!
//! Records of one partition and one commit form a batch, which is one frame; the frames of one commit form a group, of which
//! the last is marked. Everything durable is a frame first; sled holds what is looked up and can be rebuilt from the frames.

pub mod control;
pub mod frame;
pub mod record;
pub mod segments;
pub mod store;
