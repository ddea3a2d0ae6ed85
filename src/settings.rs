//! The checked values of the configuration, as plain data that the core may read. `config.rs` makes them.

use crate::limits::{GATEWAY_ID_MAX, STREAM_NAME_MAX};
use crate::types::Acks;
use std::path::PathBuf;

/// Everything that was configured, checked and with defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Name of the firmware profile in force.
    pub profile: String,
    /// Log filter, as `info` or `info,upstream=debug`.
    pub log: String,
    /// The gateway itself.
    pub gateway: Gateway,
    /// Bounds and sizes that come from the profile.
    pub device: Device,
    /// Where MQTT clients connect.
    pub listeners: Vec<Listener>,
    /// The HTTP side; `None` turns it off (the control socket stays).
    pub admin: Option<Admin>,
    /// Who may connect.
    pub auth: Auth,
    /// Streams in file order, without the built-in ones.
    pub streams: Vec<Stream>,
    /// Upstreams in file order.
    pub upstreams: Vec<Upstream>,
}

/// `[gateway]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gateway {
    /// `None`: the host's name at the first start, then kept.
    pub id: Option<String>,
    /// Directory of everything durable.
    pub data_dir: PathBuf,
    /// Bytes that everything in `data_dir` may take.
    pub disk_budget: u64,
    /// Nanoseconds that an ack may wait before its connection is closed.
    pub ack_timeout_ns: u64,
}

/// What the firmware profile sets; each may be overridden in `config.toml` under `[device]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Bytes for queues, windows and caches together.
    pub memory_budget: u64,
    /// Threads that serve sockets.
    pub io_threads: usize,
    /// Bytes of one segment file.
    pub segment_size: u64,
    /// Nanoseconds to wait before a commit, on media that wear; 0 commits at once.
    pub commit_interval_ns: u64,
    /// Bytes waiting that end a `commit_interval` early.
    pub commit_bytes: u64,
    /// Bytes of sled's cache.
    pub state_cache: u64,
    /// Connections in all.
    pub max_connections: usize,
    /// QoS 1 and 2 messages in flight per connection and direction.
    pub max_inflight: u16,
    /// Bytes of the largest packet, at most a quarter of a segment.
    pub max_packet_size: u32,
    /// Bytes a day that the medium stands; 0 is unknown.
    pub write_endurance: u64,
}

/// `[[listener]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    /// Address and port.
    pub bind: std::net::SocketAddr,
    /// Connections through this listener.
    pub max_connections: usize,
    /// Bytes of the largest packet.
    pub max_packet_size: u32,
    /// In flight per connection and direction.
    pub max_inflight: u16,
    /// Bytes per second and client; `None` is no limit.
    pub rate: Option<u64>,
}

/// `[admin]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// Address and port.
    pub bind: std::net::SocketAddr,
    /// File that holds the token.
    pub token_file: Option<PathBuf>,
}

/// `[auth]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Auth {
    /// Clients without a user name.
    pub allow_anonymous: bool,
}

/// From what a message's partition follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyRule {
    /// The whole topic.
    #[default]
    Topic,
    /// The client identifier.
    Client,
    /// The topic's N-th level, from 1; a missing level is empty.
    Level(u16),
}

/// How far readers of a stream see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadLevel {
    /// To the synced end.
    #[default]
    Synced,
    /// To the high watermark.
    Committed,
}

/// What happens when the budget is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The oldest records go, counted.
    #[default]
    DropOldest,
    /// Publishes are refused with 0x97.
    Refuse,
}

/// `[[stream]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// `[a-z0-9_-]+`.
    pub name: String,
    /// Topic filters; the first matching stream in file order stores.
    pub topics: Vec<String>,
    /// Number of partitions, at least 1.
    pub partitions: u16,
    /// From what the partition follows.
    pub key: KeyRule,
    /// Level of acknowledgement.
    pub acks: Acks,
    /// The least that a publisher may ask for.
    pub acks_min: Acks,
    /// Replicas in sync, the local log included, that level -1 needs.
    pub min_insync_replicas: u16,
    /// How far readers see.
    pub read: ReadLevel,
    /// Bytes to keep of what every upstream has passed.
    pub retention_bytes: Option<u64>,
    /// Nanoseconds to keep of it.
    pub retention_age_ns: Option<u64>,
    /// Whether what is not forwarded yet is kept beyond the retention limits.
    pub retain_unforwarded: bool,
    /// At the budget.
    pub when_full: WhenFull,
    /// LZ4 of batches.
    pub lz4: bool,
    /// 0 (first to be dropped, last to be sent) … 9.
    pub priority: u8,
}

/// `[[upstream]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// Its name, under which its cursors are kept.
    pub name: String,
    /// Kind and what only that kind has.
    pub kind: UpstreamKind,
    /// Names of the streams that it carries.
    pub streams: Vec<String>,
    /// Whether it counts in the ISR.
    pub replica: bool,
    /// Nanoseconds of lag within which it is in sync.
    pub replica_lag_max_ns: u64,
    /// Where a new upstream begins.
    pub from_latest: bool,
    /// What happens with a record that it refuses for good.
    pub on_refusal: OnRefusal,
    /// User name.
    pub username: Option<String>,
    /// File that holds the password; read at each connection.
    pub password_file: Option<PathBuf>,
    /// TLS; `None` is plain TCP.
    pub tls: Option<UpstreamTls>,
    /// Nanoseconds between pings.
    pub keep_alive_ns: u64,
    /// Nanoseconds for each of DNS, TCP, TLS and CONNACK.
    pub connect_timeout_ns: u64,
}

/// What happens with a record that the upstream refuses for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRefusal {
    /// It goes to the stream `dead-letter`, the rest goes on.
    #[default]
    DeadLetter,
    /// The upstream stops with an alarm.
    Stop,
}

/// Kinds of upstream.
#[derive(Clone, Debug, PartialEq)]
pub enum UpstreamKind {
    /// An MQTT broker.
    Mqtt(MqttUpstream),
}

/// What only an MQTT upstream has.
#[derive(Clone, Debug, PartialEq)]
pub struct MqttUpstream {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// MQTT 5 if true, else 3.1.1.
    pub v5: bool,
    /// 1 or 2.
    pub qos: u8,
    /// `None`: made from the gateway's id and the upstream's name.
    pub client_id: Option<String>,
    /// Topic mapping; `{topic}` stands for the original topic, `{stream}` for the stream, `{gateway}` for the gateway's id.
    pub topic: String,
}

impl MqttUpstream {
    /// The client identifier on this link: the configured one, or one made of the gateway's id and the upstream's name.
    pub fn client_id(&self, gateway_id: &str, upstream: &str) -> String {
        self.client_id.clone().unwrap_or_else(|| format!("forebay-{gateway_id}-{upstream}"))
    }
}

/// TLS towards an upstream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpstreamTls {
    /// Authorities to trust (PEM).
    pub ca_file: Option<PathBuf>,
    /// Client certificate (PEM).
    pub cert_file: Option<PathBuf>,
    /// Its key (PEM).
    pub key_file: Option<PathBuf>,
    /// Name to check instead of the host.
    pub server_name: Option<String>,
}

/// Whether `id` may name a gateway: it stands in `forebay-source` between slashes and in topics, so `[A-Za-z0-9._-]`, 1 to 64.
pub fn valid_gateway_id(id: &str) -> bool {
    (1..=GATEWAY_ID_MAX).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Whether `name` may name a stream or an upstream: `[a-z0-9_-]`, 1 to 64.
pub fn valid_name(name: &str) -> bool {
    (1..=STREAM_NAME_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte))
}
