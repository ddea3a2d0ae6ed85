//! Forebay: a store-and-forward MQTT broker for edge gateways.
//!
//! ```text
//! socket → mqtt decode → session → router → log append → commit (write + one fdatasync) → acks → session → mqtt encode → socket
//!                                     └→ online subscribers
//! log read → forwarding window → upstream link → upstream's ack → cursor → high watermark → acks (-1)
//! ```
//!
//! The core ([`mqtt`], [`session`], [`router`], [`log`], [`replication`], [`engine`]) is pure: no I/O, no clock, no thread, no
//! logging; it runs in the simulator as it runs here. The shell ([`storage`], [`net`], [`upstream`], [`admin`], [`broker`])
//! brings it bytes and time. Imports run one way, which `tests/architecture.rs` enforces:
//!
//! ```text
//! types, limits, settings ← mqtt ← {session, router, log, replication} ← engine ← {storage, net, upstream, admin} ← broker ← cli
//! ```
//!
//! Read [`engine`] first.
#![forbid(unsafe_code)]

pub mod limits;
#[doc(hidden)]
pub mod planted;
pub mod settings;
pub mod types;

pub mod log;
pub mod mqtt;
pub mod replication;
pub mod router;
pub mod session;

pub mod engine;

pub mod admin;
pub mod net;
pub mod storage;
pub mod upstream;

pub mod broker;
pub mod config;
pub mod profile;

pub mod cli;
