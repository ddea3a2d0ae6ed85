//! What a run is made of: which faults, which shape of gateway, all of it from the seed.

use super::message::Key;
use super::rng::Rng;
use forebay::settings::{
    Auth, Device, Gateway, KeyRule, Listener, MqttUpstream, OnRefusal, ReadLevel, Settings, Stream, Upstream,
    UpstreamKind, WhenFull,
};
use forebay::types::{Acks, PartitionId, StreamId};
use std::net::SocketAddr;

/// Bytes of a segment: the smallest, so that a short run fills several.
pub const SEGMENT_SIZE: u64 = 64 << 10;
/// How long the gateway lets an acknowledgement wait, in virtual time.
pub const ACK_TIMEOUT_NS: u64 = 10_000_000_000;

/// Which faults may come. A power cut, a kill and an orderly stop end a life of the gateway; the others come within one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub power: bool,
    pub kill: bool,
    pub stop: bool,
    /// Writes and syncs that fail.
    pub disk: bool,
    /// The link to the centre is cut.
    pub link: bool,
    /// The centre is killed, before or after it has committed.
    pub peer: bool,
    /// The centre comes back without its sessions now and then.
    pub peer_forgets: bool,
    /// The centre refuses: some records for good, some times everything for a while.
    pub refusals: bool,
    /// Clients vanish and come back.
    pub clients: bool,
}

/// A bug that the harness plants, so that it is known to find something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bug {
    #[default]
    None,
    /// Acknowledgements leave before their frame is synced.
    AckBeforeSync,
    /// The disk says that it has synced, and has not.
    SyncLies,
    /// The state store forgets received QoS 2 identifiers.
    DedupLost,
    /// The driver reports acknowledgements that the centre has not given.
    CursorBeforeAck,
    /// A failed sync is called again on the same segment, and taken for a success.
    SyncAgain,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub faults: Faults,
    pub bug: Bug,
    /// How often the gateway starts.
    pub lives: u32,
    /// Steps of one life at most.
    pub steps: u64,
    pub shape: Shape,
}

/// What kind of gateway it is.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub io_threads: usize,
    /// The link's QoS, 1 or 2.
    pub link_qos: u8,
    pub link_v5: bool,
    pub receive_maximum: u16,
    /// Whether the centre is a replica, so that there are publishers at level -1.
    pub replica: bool,
    pub publishers: usize,
    pub subscribers: usize,
    /// Large payloads, so that segments fill.
    pub heavy: bool,
    /// Streams keep little of what the centre has, so that segments are freed.
    pub forgetful: bool,
}

impl Plan {
    /// A run of `seed` with these faults.
    pub fn new(seed: u64, faults: Faults) -> Self {
        let mut rng = Rng::new(seed ^ 0x0050_1A17);
        let shape = Shape {
            io_threads: 1 + rng.index(2),
            link_qos: 1 + rng.below(2) as u8,
            link_v5: rng.permille(750),
            receive_maximum: *[5, 20, 1000].get(rng.index(3)).unwrap_or(&5),
            replica: rng.coin(),
            publishers: 3 + rng.index(4),
            subscribers: rng.index(4),
            heavy: rng.permille(400),
            forgetful: rng.coin(),
        };
        Self { seed, faults, bug: Bug::None, lives: 2 + rng.below(4) as u32, steps: 300 + rng.below(2200), shape }
    }

    pub fn with_bug(mut self, bug: Bug) -> Self {
        self.bug = bug;
        self
    }

    /// The configuration of the gateway.
    pub fn settings(&self) -> Settings {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let shape = &self.shape;
        let mut carried = vec!["telemetry".to_owned(), "bulk".to_owned()];
        let mut streams = vec![
            stream("telemetry", "sensors/#", 3, Acks::Synced),
            stream("bulk", "bulk/#", 1, Acks::Queued),
            stream("local", "local/#", 2, Acks::Synced),
        ];
        if shape.replica {
            let mut critical = stream("critical", "critical/#", 2, Acks::Replicated);
            critical.min_insync_replicas = 2;
            streams.push(critical);
            carried.push("critical".to_owned());
        }
        for stream in streams.iter_mut().filter(|_| shape.forgetful) {
            stream.retention_bytes = Some(16 << 10);
        }
        Settings {
            profile: "generic".to_owned(),
            log: "info".to_owned(),
            gateway: Gateway {
                id: Some("gw".to_owned()),
                data_dir: "nowhere".into(),
                disk_budget: 1 << 30,
                ack_timeout_ns: ACK_TIMEOUT_NS,
            },
            device: Device {
                memory_budget: 1 << 20,
                io_threads: shape.io_threads,
                segment_size: SEGMENT_SIZE,
                commit_interval_ns: 0,
                commit_bytes: 0,
                state_cache: 0,
                max_connections: 100,
                max_inflight: 16,
                max_packet_size: 8 << 10,
                write_endurance: 0,
            },
            listeners: vec![Listener {
                bind: any,
                max_connections: 100,
                max_packet_size: 8 << 10,
                max_inflight: 16,
                rate: None,
            }],
            admin: None,
            auth: Auth { allow_anonymous: true },
            streams,
            upstreams: vec![Upstream {
                name: "dc".to_owned(),
                kind: UpstreamKind::Mqtt(MqttUpstream {
                    host: "dc".to_owned(),
                    port: 1883,
                    v5: shape.link_v5,
                    qos: shape.link_qos,
                    client_id: None,
                    topic: "{topic}".to_owned(),
                }),
                streams: carried,
                replica: shape.replica,
                replica_lag_max_ns: 2_000_000_000,
                from_latest: false,
                on_refusal: OnRefusal::DeadLetter,
                username: None,
                password_file: None,
                tls: None,
                keep_alive_ns: 60_000_000_000,
                connect_timeout_ns: 10_000_000_000,
            }],
        }
    }

    /// The partitions of a stream. Numbers are given in the order of the configuration, the built-in streams last.
    pub fn partitions(&self, name: &str) -> Vec<PartitionId> {
        let settings = self.settings();
        let mut all: Vec<(String, u16)> = settings.streams.iter().map(|s| (s.name.clone(), s.partitions)).collect();
        all.extend([("default".to_owned(), 1), ("dead-letter".to_owned(), 1)]);
        let found = all.iter().position(|(candidate, _)| candidate == name);
        let stream = |number: usize| StreamId(number as u32);
        found
            .map(|number| {
                (0..all[number].1).map(|partition| PartitionId { stream: stream(number), partition }).collect()
            })
            .unwrap_or_default()
    }

    /// Bytes of the largest packet that the centre takes.
    pub fn centre_packet_max(&self) -> u32 {
        if self.shape.link_v5 && self.faults.refusals { 4_000 } else { 1 << 20 }
    }

    /// Whether the centre never takes a record with this payload. Well below the bound of its packets, since topic and properties add
    /// something: so nobody needs to know what exactly.
    pub fn refused_for_good(&self, payload: &[u8]) -> bool {
        self.faults.refusals && (Key::is_poison(payload) || payload.len() > self.centre_packet_max() as usize - 500)
    }

    /// The partitions that go to the centre.
    pub fn forwarded(&self) -> Vec<PartitionId> {
        let settings = self.settings();
        settings.upstreams[0].streams.iter().flat_map(|name| self.partitions(name)).collect()
    }
}

fn stream(name: &str, filter: &str, partitions: u16, acks: Acks) -> Stream {
    Stream {
        name: name.to_owned(),
        topics: vec![filter.to_owned()],
        partitions,
        key: KeyRule::Topic,
        acks,
        acks_min: Acks::Queued,
        min_insync_replicas: 1,
        read: ReadLevel::Synced,
        retention_bytes: None,
        retention_age_ns: None,
        retain_unforwarded: true,
        when_full: WhenFull::Refuse,
        lz4: false,
        priority: 4,
    }
}
