//! Drivers of upstreams: they carry packets and say what happened; every decision is the core's (`replication/`).
//!
//! One rule: any error drops the connection with all its memory; the core resumes from what is durable. [`mqtt::run`] is the MQTT
//! driver, on smol, with rumqttc's packets. Its event loop is not used: it writes PUBREL before "released" could be durable.
//!
//! ```text
//! mqtt     one upstream: waits for orders, connects, serves, says how it ended
//! serve    an established connection: one read and one write per turn, and the timers
//! connect  name, TCP, TLS, CONNECT and CONNACK, each with its time-out
//! wire     frames: rumqttc's packets, and the short ones that it would swallow
//! tls      certificates from files, read anew at each connection
//! ```

mod connect;
pub mod mqtt;
mod serve;
mod tls;
mod wire;

pub use mqtt::{DriverConfig, run};
