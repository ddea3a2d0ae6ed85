//! The whole status as plain data: what `forebay status`, the API and the metrics show.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One look at the running gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The gateway itself.
    pub gateway: GatewayStatus,
    /// Streams, by name.
    pub streams: Vec<StreamStatus>,
    /// Upstreams, in file order.
    pub upstreams: Vec<UpstreamStatus>,
    /// Sessions.
    pub sessions: SessionsStatus,
    /// Space and writes.
    pub disk: DiskStatus,
    /// Records lost, by cause.
    pub losses: BTreeMap<String, u64>,
    /// Faults that hold now, in words.
    pub faults: Vec<String>,
    /// Counters.
    pub counters: Counters,
}

/// The gateway itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GatewayStatus {
    /// Its id.
    pub id: String,
    /// Its log id, hexadecimal.
    pub log_id: String,
    /// Version of the program.
    pub version: String,
    /// Whether publishes at acks=1 are accepted now; else why not.
    pub ready: bool,
    /// Why not.
    pub not_ready_because: Option<String>,
    /// Leader epoch.
    pub epoch: u32,
    /// Seconds since the start.
    pub uptime_seconds: u64,
}

/// A stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamStatus {
    /// Name.
    pub name: String,
    /// Partitions in order.
    pub partitions: Vec<PartitionStatus>,
}

/// A partition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartitionStatus {
    /// Number.
    pub partition: u16,
    /// Next offset to be written.
    pub leo: u64,
    /// High watermark.
    pub hw: u64,
    /// First offset that is there.
    pub start: u64,
    /// Synced end: the local replica's LEO.
    pub synced: u64,
    /// Names of the in-sync replicas; the local log is `local`.
    pub isr: Vec<String>,
    /// Names of all assigned replicas.
    pub ar: Vec<String>,
}

/// An upstream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UpstreamStatus {
    /// Name.
    pub name: String,
    /// `connected`, `connecting`, `waiting`, `paused`, `stopped`.
    pub state: String,
    /// Why it is not connected.
    pub reason: Option<String>,
    /// Records between its cursors and the ends.
    pub lag_records: u64,
    /// Their bytes, about.
    pub lag_bytes: u64,
    /// Age of the oldest of them.
    pub lag_seconds: f64,
    /// Records acknowledged by it since the start.
    pub forwarded_records: u64,
    /// Bytes on the wire since the start.
    pub sent_bytes: u64,
    /// Records refused and dead-lettered.
    pub refused_records: u64,
    /// Records that may have been delivered twice (the peer lost the session).
    pub possible_doubles: u64,
    /// Cursor per `stream/partition`.
    pub cursors: BTreeMap<String, u64>,
}

/// Sessions and connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionsStatus {
    /// With a connection.
    pub online: u64,
    /// Persistent, without one.
    pub offline: u64,
    /// Open connections.
    pub connections: u64,
    /// Subscriptions in all.
    pub subscriptions: u64,
}

/// Space and writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Configured budget in bytes.
    pub budget_bytes: u64,
    /// Bytes that data_dir takes.
    pub used_bytes: u64,
    /// Bytes free on the file system.
    pub free_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes written to the log since the start.
    pub written_bytes: u64,
    /// Payload bytes accepted into the log since the start.
    pub payload_bytes: u64,
}

/// Counters since the start, for metrics. Keys are label values joined by `,` in the order of surface.md §6.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// `qos,stream` → publishes received.
    pub publish_received: BTreeMap<String, u64>,
    /// `level,reason` → acknowledgements.
    pub acks: BTreeMap<String, u64>,
    /// `stream,cause` → records lost.
    pub lost: BTreeMap<String, u64>,
    /// Messages sent to subscribers.
    pub delivered: u64,
    /// Groups committed.
    pub commits: u64,
    /// Records committed.
    pub commit_records: u64,
}
