//! What leaves the gateway: replica sets with their high watermarks, and the forwarding windows of upstream links.
//!
//! A [`Link`] is one upstream's side of the story: it connects and backs off, keeps a window of publishes open in which every
//! packet identifier follows from an offset, records "released" before PUBREL, and moves a cursor per partition over what the
//! peer has acknowledged. Its driver (in `upstream/`) only carries packets. A [`ReplicaSet`] is one partition's side: who is in
//! sync, and how far all of them are.
//!
//! ```text
//! replica  LEO, ISR, high watermark           durable  values and keys of the control records
//! link     orders, events, plain values       mapping  a stored record → the publish that goes upstream
//! forward  the link: connection, window       answers  the link: what acknowledgements and closes mean
//! lane     one partition's hand-shakes        restore  the link: what the log remembers
//! backoff  jittered delays
//! ```

pub mod answers;
pub mod backoff;
pub mod durable;
mod forward;
mod lane;
pub mod link;
pub mod mapping;
pub mod replica;
mod restore;

pub use forward::Link;
pub use replica::ReplicaSet;
pub use restore::{Lookup, remembered_cursor};
