//! The engine at its start: streams from the catalogue, sessions and links as the log remembers them.

use super::deliver::Reading;
use super::forward::Upstream;
use super::reader::LogReader;
use super::{Bounds, Engine, Map, Partition, Session, Stopping, Stream};
use crate::limits::{DEFAULT_STREAM_BYTES, TAIL_SHARE, UNCOMMITTED_SHARE};
use crate::log::control::{ControlKind, ControlRecord, from_value, to_value};
use crate::log::recovery::Recovered;
use crate::log::{Log, LogConfig};
use crate::mqtt::{Text, Version};
use crate::replication::durable::{StateKind, partition_key};
use crate::replication::link::{LaneStart, LinkConfig};
use crate::replication::mapping::Mapper;
use crate::replication::{Link, ReplicaSet, remembered_cursor};
use crate::router::{Router, StreamRoute, Subscription};
use crate::session::connect::ClientIds;
use crate::session::durable::{self, SessionCursorV1, SessionV1, SubscriptionV1};
use crate::session::inbound::Inbound;
use crate::session::outbound::Outbound;
use crate::session::registry::Registry;
use crate::session::will::Wills;
use crate::settings::{self, Settings, UpstreamKind};
use crate::types::{Acks, BootId, LogPosition, Now, Offset, PartitionId, StreamId, UpstreamId};
use foldhash::fast::FixedState;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What an engine starts from.
pub struct EngineStart {
    /// The checked configuration.
    pub settings: Arc<Settings>,
    /// The log as recovery found it.
    pub recovered: Recovered,
    /// The gateway's id, kept since the first start.
    pub gateway_id: String,
    /// The kernel's boot id.
    pub boot: BootId,
    /// For hash tables, jitter and identifiers: random in the shell, given in the simulator.
    pub seed: u64,
    /// The time.
    pub now: Now,
}

/// A stream in the catalogue, version 1. Key: its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StreamV1 {
    id: u32,
    partitions: u16,
}

/// Name of the stream that takes what no configured one does.
const DEFAULT_STREAM: &str = "default";
/// Name of the stream of records that an upstream refused.
const DEAD_LETTER_STREAM: &str = "dead-letter";

impl Engine {
    /// An engine that goes on where the log ends.
    ///
    /// # Errors
    /// What in the configuration does not fit what the log remembers, in a sentence.
    pub fn new(start: EngineStart) -> Result<Self, String> {
        let EngineStart { settings, recovered, gateway_id, boot, seed, now } = start;
        let budget = usize::try_from(settings.device.memory_budget).unwrap_or(usize::MAX);
        let config = LogConfig {
            boot,
            segment_size: settings.device.segment_size,
            max_packet_size: settings.device.max_packet_size,
            tail_bytes: budget / TAIL_SHARE,
        };
        // What is on its way to the disk fits into one segment, so that the cleaner's reserve holds it.
        let segment_bytes = usize::try_from(settings.device.segment_size).unwrap_or(usize::MAX);
        let log = Log::new(recovered, config);
        let mut engine = Self {
            gateway_id,
            boot,
            log_id_text: log.log_id().to_string(),
            router: Router::new(seed),
            registry: Registry::new(seed),
            client_ids: ClientIds::new(seed),
            wills: Wills::new(),
            conns: Map::with_hasher(FixedState::with_seed(seed)),
            sessions: Map::with_hasher(FixedState::with_seed(seed)),
            streams: BTreeMap::new(),
            partitions: BTreeMap::new(),
            replicated: Vec::new(),
            upstreams: Vec::new(),
            dead_letter: PartitionId::default(),
            any_committed_read: settings.streams.iter().any(|s| s.read == settings::ReadLevel::Committed),
            fresh: Vec::new(),
            unsynced: VecDeque::new(),
            runnable: VecDeque::new(),
            stalled: Vec::new(),
            damage_seen: Default::default(),
            reads: Default::default(),
            held: VecDeque::new(),
            conditions: 0,
            memory_full: false,
            replicated_waiting: 0,
            fault: None,
            full: false,
            space_due: true,
            forward_due: true,
            used_bytes: 0,
            other_bytes: 0,
            free_bytes: None,
            commit_waits_since: None,
            counters: Default::default(),
            admin: Default::default(),
            bounds: Bounds { uncommitted_bytes: (budget / UNCOMMITTED_SHARE).min(segment_bytes) },
            started_ns: now.mono_ns,
            last_upkeep_ns: now.mono_ns,
            stopping: Stopping::No,
            settings,
            log,
        };
        engine.load_streams(now.mono_ns)?;
        engine.load_sessions(now);
        engine.load_upstreams(seed)?;
        Ok(engine)
    }

    /// The catalogue: a name keeps its number for ever, the partition count only grows, a stream that is not configured any more
    /// is read-only.
    fn load_streams(&mut self, mono_ns: u64) -> Result<(), String> {
        let mut known: BTreeMap<String, StreamV1> = BTreeMap::new();
        for (key, entry) in self.log.state().scan(ControlKind::Stream) {
            let name = String::from_utf8_lossy(key).into_owned();
            known.insert(name, from_value(&entry.value).ok_or("the catalogue of streams cannot be read")?);
        }
        let mut next = known.values().map(|stream| stream.id + 1).max().unwrap_or(0);
        let settings = Arc::clone(&self.settings);
        let built_in = [built_in(DEFAULT_STREAM), built_in(DEAD_LETTER_STREAM)];
        let mut routes = Vec::new();
        let mut default = None;
        for stream in settings.streams.iter().chain(&built_in) {
            let former = known.remove(&stream.name);
            let id = former.map_or(next, |former| former.id);
            next = next.max(id + 1);
            let partitions = stream.partitions.max(former.map_or(0, |former| former.partitions));
            let value = StreamV1 { id, partitions };
            if former != Some(value) {
                let key = stream.name.as_bytes().to_vec();
                self.log.control(ControlRecord::put(ControlKind::Stream, key, to_value(&value)));
            }
            let filters = stream.topics.iter().map(|filter| Text::from(filter.as_str())).collect();
            let route = StreamRoute { id: StreamId(id), filters, partitions, key: stream.key };
            match stream.name.as_str() {
                DEFAULT_STREAM => default = Some(route),
                DEAD_LETTER_STREAM => self.dead_letter.stream = StreamId(id),
                _ => routes.push(route),
            }
            self.add_stream(StreamId(id), stream.clone(), partitions, true, mono_ns);
        }
        for (name, former) in known {
            self.add_stream(StreamId(former.id), built_in_as(name), former.partitions, false, mono_ns);
        }
        if let Some(default) = default {
            self.router.set_streams(&routes, &default).map_err(|error| format!("the streams' filters: {error:?}"))?;
        }
        Ok(())
    }

    fn add_stream(&mut self, id: StreamId, stream: settings::Stream, partitions: u16, configured: bool, mono_ns: u64) {
        let settings = Arc::clone(&self.settings);
        let carries = |upstream: &&settings::Upstream| upstream.replica && upstream.streams.contains(&stream.name);
        let replicas: Vec<&settings::Upstream> =
            settings.upstreams.iter().filter(|_| configured).filter(carries).collect();
        for partition in 0..partitions {
            let id = PartitionId { stream: id, partition };
            self.log.add_partition(id);
            if replicas.is_empty() {
                continue;
            }
            let known = self.log.state().get(ControlKind::Isr, &partition_key(id)).map(|entry| entry.value.clone());
            let members: Vec<(String, u64, Offset)> = replicas
                .iter()
                .map(|upstream| {
                    (upstream.name.clone(), upstream.replica_lag_max_ns, self.remembered_cursor(upstream, id))
                })
                .collect();
            let synced = self.log.synced_leo(id);
            let least = stream.min_insync_replicas;
            let replicas = ReplicaSet::new(id, least, synced, &members, known.as_deref(), mono_ns);
            let in_sync = replicas.in_sync();
            self.partitions.insert(id, Partition { in_sync, replicas, waiting: VecDeque::new() });
            self.replicated.push(id);
        }
        let name = stream.name.clone();
        let replicated = !replicas.is_empty();
        let asked_for = configured && ![DEFAULT_STREAM, DEAD_LETTER_STREAM].contains(&name.as_str());
        self.streams.insert(id, Stream { name, settings: stream, partitions, replicated, asked_for, configured });
    }

    /// How far an upstream was with a partition when that was last recorded.
    fn remembered_cursor(&self, upstream: &settings::Upstream, id: PartitionId) -> Offset {
        let state = self.log.state();
        remembered_cursor(&upstream.name, id, &mut |kind, key| {
            state.get(super::forward::control_kind(kind), key).map(|entry| entry.value.to_vec())
        })
        .unwrap_or(0)
    }

    fn load_sessions(&mut self, now: Now) {
        let end = self.end();
        let state = self.log.state();
        let mut ended = Vec::new();
        for (key, entry) in state.scan(ControlKind::Session) {
            let Ok(id) = durable::read_session_key(key) else { continue };
            let Ok(value) = SessionV1::decode(entry.version, &entry.value) else { continue };
            let Ok((client, user)) = value.texts() else { continue };
            let cursor = state
                .get(ControlKind::SessionCursor, key)
                .and_then(|entry| SessionCursorV1::decode(entry.version, &entry.value).ok());
            let offline_ms = match (cursor.as_ref().and_then(|cursor| cursor.offline_wall_ms), now.wall_ms) {
                (Some(since), Some(wall)) if now.wall_synced => wall.saturating_sub(since).max(0),
                _ => 0,
            };
            let offline_s = offline_ms.unsigned_abs() / 1000;
            if !self.registry.restore(id, client.clone(), user, value.expiry, offline_s, now.mono_ns) {
                ended.push(id);
                continue;
            }
            let mut session = Session::new(client);
            session.persistent = true;
            let received = state
                .scan_prefix(ControlKind::ReceivedQos2, key)
                .filter_map(|(key, _)| durable::read_received_key(key).ok())
                .map(|(_, packet_id)| packet_id);
            session.inbound = Inbound::restore(received);
            session.reading = Reading::Live;
            // Without a cursor nothing is known to have been delivered since the first subscription was made.
            let mut first = end;
            for (key, entry) in state.scan_prefix(ControlKind::Subscription, key) {
                let Ok((_, filter)) = durable::read_subscription_key(key) else { continue };
                let Ok(value) = SubscriptionV1::decode(entry.version, &entry.value) else { continue };
                first = first.min(value.since);
                let subscription = Subscription { options: value.options(), id: value.id, since: value.since };
                // Within the bounds that held when it was made; beyond smaller ones it is left out.
                let _ = self.router.subscribe(id, &filter, subscription);
            }
            let (position, beyond) = cursor.map_or((first, Vec::new()), |cursor| (cursor.position, cursor.beyond));
            session.outbound = Outbound::restore(1, position, &beyond);
            // Identifiers that were in flight are not known any more: begin elsewhere than the last life did, so that a client does
            // not take a new message for one that it still holds.
            session.outbound.begin_ids_after((self.log.epoch().wrapping_mul(7_919) % 65_535) as u16);
            self.sessions.insert(id, session);
        }
        for id in ended {
            self.remove_session_records(id);
        }
    }

    fn load_upstreams(&mut self, seed: u64) -> Result<(), String> {
        let settings = Arc::clone(&self.settings);
        for (index, upstream) in settings.upstreams.iter().enumerate() {
            let UpstreamKind::Mqtt(mqtt) = &upstream.kind;
            let carried = self.streams.iter().filter(|(_, stream)| stream.configured);
            let partitions: Vec<PartitionId> = carried
                .filter(|(_, stream)| upstream.streams.contains(&stream.name))
                .flat_map(|(id, stream)| (0..stream.partitions).map(|partition| PartitionId { stream: *id, partition }))
                .collect();
            let starts: Vec<LaneStart> = partitions
                .iter()
                .map(|id| {
                    let end = self.log.synced_leo(*id);
                    let start = if upstream.from_latest { end } else { self.log.start(*id) };
                    LaneStart { partition: *id, start, end }
                })
                .collect();
            let client = mqtt.client_id(&self.gateway_id, &upstream.name);
            let config = LinkConfig {
                name: upstream.name.clone(),
                exactly_once: mqtt.qos == 2,
                peer: format!("{}:{}/{client}/{}", mqtt.host, mqtt.port, if mqtt.v5 { "5" } else { "3.1.1" }),
                log_id: self.log.log_id(),
                window: crate::limits::UPSTREAM_WINDOW_MAX,
                window_bytes: usize::try_from(settings.device.memory_budget).unwrap_or(usize::MAX) / 8,
                stop_on_refusal: upstream.on_refusal == settings::OnRefusal::Stop,
                seed: seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            };
            let state = self.log.state();
            let mut lookup = |kind: StateKind, key: &[u8]| {
                state.get(super::forward::control_kind(kind), key).map(|entry| entry.value.to_vec())
            };
            let mapper = |id: &StreamId, stream: &Stream| {
                (*id, Mapper::new(&mqtt.topic, &self.gateway_id, self.log.log_id(), &stream.name, mqtt.v5))
            };
            let mappers = self.streams.iter().map(|(id, stream)| mapper(id, stream)).collect();
            let link = Link::new(config, &starts, &mut lookup)?;
            let all: Arc<[PartitionId]> = partitions.clone().into();
            let version = if mqtt.v5 { Version::V5 } else { Version::V311 };
            self.upstreams.push(Upstream {
                name: upstream.name.clone(),
                link,
                replica: upstream.replica,
                version,
                mappers,
                reader: LogReader::new(LogPosition::default(), Some(Arc::clone(&all))),
                refused: VecDeque::new(),
                loop_told: false,
                refused_reader: LogReader::new(LogPosition::default(), Some(all)),
                outputs: Vec::new(),
                partitions,
            });
            self.rewind(UpstreamId(index as u16));
        }
        Ok(())
    }
}

fn built_in(name: &str) -> settings::Stream {
    built_in_as(name.to_owned())
}

/// The settings of a built-in stream, and of one that is not configured any more.
fn built_in_as(name: String) -> settings::Stream {
    settings::Stream {
        name,
        topics: Vec::new(),
        partitions: 1,
        key: settings::KeyRule::Topic,
        acks: Acks::Synced,
        acks_min: Acks::Queued,
        min_insync_replicas: 1,
        read: settings::ReadLevel::Synced,
        retention_bytes: Some(DEFAULT_STREAM_BYTES),
        retention_age_ns: None,
        retain_unforwarded: true,
        when_full: settings::WhenFull::Refuse,
        lz4: false,
        priority: 4,
    }
}
