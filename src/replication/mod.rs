//! What leaves the gateway: replica sets with their high watermarks, and the forwarding windows of upstream links.

pub mod link;
