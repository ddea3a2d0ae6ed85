//! The log goes upstream: each link reads the log in order from its cursors, through one reader, as its window allows. What it
//! must remember joins the open group; what the peer refuses for good goes to the stream `dead-letter`.

use super::Engine;
use super::io::{AdminReply, Event, Output, Outputs, Severity};
use super::reader::{LogReader, Next};
use super::reads::Asker;
use super::status::UpstreamStatus;
use crate::limits::READ_BYTES_MAX;
use crate::log::Log;
use crate::log::control::{ControlKind, ControlRecord};
use crate::log::record::{NewRecord, StoredRecord};
use crate::mqtt::encode::publish_len;
use crate::mqtt::properties::PublishProperties;
use crate::mqtt::{Publish, QoS, Reason, Text, Version};
use crate::replication::Link;
use crate::replication::durable::{StateChange, StateKind};
use crate::replication::link::{LinkEvent, LinkGravity, LinkOutput, Want};
use crate::replication::mapping::{Mapper, ORIGIN, Outgoing, Unmapped};
use crate::session::extensions::value;
use crate::types::{BootId, IngestTime, LogPosition, Now, Offset, PartitionId, StreamId, UpstreamId};
use std::collections::{BTreeMap, VecDeque};

/// An upstream: its link and where it reads.
pub(super) struct Upstream {
    pub(super) name: String,
    pub(super) link: Link,
    pub(super) partitions: Vec<PartitionId>,
    pub(super) replica: bool,
    pub(super) version: Version,
    /// By stream.
    pub(super) mappers: BTreeMap<StreamId, Mapper>,
    pub(super) reader: LogReader,
    /// Records that it refused, to be dead-lettered one after the other.
    pub(super) refused: VecDeque<Refused>,
    /// Finds them in the log.
    pub(super) refused_reader: LogReader,
    /// It was said that records come back.
    pub(super) loop_told: bool,
    /// Kept between calls, so that nothing is allocated anew.
    pub(super) outputs: Vec<LinkOutput>,
}

/// A record that the upstream will never take.
pub(super) struct Refused {
    partition: PartitionId,
    offset: Offset,
    reason: Reason,
    text: String,
}

impl Upstream {
    pub(super) fn link_status(&self) -> UpstreamStatus {
        let counts = self.link.counts();
        UpstreamStatus {
            name: self.name.clone(),
            state: self.link.state().name().to_owned(),
            reason: self.link.reason().map(str::to_owned),
            forwarded_records: counts.forwarded,
            sent_bytes: counts.sent_bytes,
            refused_records: counts.refused,
            possible_doubles: counts.possible_doubles,
            ..UpstreamStatus::default()
        }
    }
}

impl Engine {
    pub(super) fn upstream_event(&mut self, now: Now, id: UpstreamId, event: LinkEvent, out: &mut Outputs) {
        self.with_link(now, id, out, |link, outputs| link.on_event(now, event, outputs));
        self.forward_due = true;
    }

    pub(super) fn links_tick(&mut self, now: Now, out: &mut Outputs) {
        for id in self.upstream_ids() {
            self.with_link(now, id, out, |link, outputs| link.tick(now, outputs));
        }
        self.forward_due = true;
    }

    /// A commit: what links recorded in it is durable.
    pub(super) fn links_synced(&mut self, now: Now, out: &mut Outputs) {
        let synced = self.log.synced_seq();
        for id in self.upstream_ids() {
            self.with_link(now, id, out, |link, outputs| link.synced(now, synced, outputs));
        }
        self.forward_due = true;
    }

    pub(super) fn stop_links(&mut self, now: Now, out: &mut Outputs) {
        for id in self.upstream_ids() {
            self.with_link(now, id, out, |link, outputs| link.stop(now, outputs));
        }
    }

    pub(super) fn pause(&mut self, now: Now, name: &str, paused: bool, out: &mut Outputs) -> AdminReply {
        let Some(index) = self.upstreams.iter().position(|upstream| upstream.name == name) else {
            return AdminReply::Refused(format!("there is no upstream {name}"));
        };
        self.with_link(now, UpstreamId(index as u16), out, |link, outputs| link.set_paused(now, paused, outputs));
        self.forward_due = true;
        AdminReply::Done
    }

    /// Lets links take from the log. Returns whether one of them could take more at once.
    pub(super) fn pump_links(&mut self, now: Now, out: &mut Outputs) -> bool {
        if !std::mem::take(&mut self.forward_due) {
            return false;
        }
        let mut more = false;
        for id in self.upstream_ids() {
            self.dead_letter_refused(now, id, out);
            more |= self.pump_link(now, id, out);
        }
        self.forward_due |= more;
        more
    }

    fn upstream_ids(&self) -> impl Iterator<Item = UpstreamId> + use<> {
        (0..self.upstreams.len() as u16).map(UpstreamId)
    }

    fn pump_link(&mut self, now: Now, id: UpstreamId, out: &mut Outputs) -> bool {
        let until = self.log.synced_seq();
        let Some(upstream) = self.upstreams.get_mut(usize::from(id.0)) else { return false };
        if upstream.link.room() == 0 {
            return false;
        }
        let mut outputs = std::mem::take(&mut upstream.outputs);
        let mut taken = 0;
        let mut more = false;
        let mut looped = false;
        'reading: while taken < READ_BYTES_MAX {
            more = false;
            let reads = &mut self.reads;
            let next = upstream.reader.next(&self.log, until, &mut || reads.ticket(Asker::Upstream(id)), out);
            let (frame, from) = match next {
                Next::Frame(frame, from) => (frame, from),
                Next::End => {
                    // What was not found up to here will not come: damaged, or retained away.
                    for partition in &upstream.partitions {
                        upstream.link.pass(*partition, self.log.synced_leo(*partition));
                    }
                    break;
                }
                Next::Waiting => break,
            };
            taken += frame.body.len();
            for record in frame.records_from(from).flatten() {
                match upstream.link.want(record.partition, record.offset) {
                    Want::Pass => {}
                    Want::Full => {
                        upstream.reader.advance(record.position);
                        break 'reading;
                    }
                    Want::Send if comes_from(&record, self.log_id_text.as_bytes()) => {
                        upstream.link.pass(record.partition, record.offset + 1);
                        self.counters.lost(Some(record.partition.stream), "loop", 1);
                        looped = true;
                    }
                    Want::Send => {
                        let age_s = age_ms(&self.log, self.boot, &record.ingest, now).map(|ms| ms / 1000);
                        if !offer(upstream, &record, age_s, &mut outputs) {
                            self.counters.lost(Some(record.partition.stream), "expired", 1);
                        }
                    }
                }
            }
            upstream.reader.advance(LogPosition { seq: frame.header.seq + 1, index: 0 });
            more = true;
        }
        upstream.link.flush(now, &mut outputs);
        if looped && !std::mem::replace(&mut upstream.loop_told, true) {
            let text = format!(
                "{}: records of this gateway came back to it: the upstream leads here; they are not sent again",
                upstream.name
            );
            out.push(Output::Event(Event { severity: Severity::Error, part: "upstream", text }));
        }
        self.carry_out(now, id, outputs, out);
        more
    }

    /// Calls the link, then carries out what it asks for.
    fn with_link(
        &mut self,
        now: Now,
        id: UpstreamId,
        out: &mut Outputs,
        call: impl FnOnce(&mut Link, &mut Vec<LinkOutput>),
    ) {
        let Some(upstream) = self.upstreams.get_mut(usize::from(id.0)) else { return };
        let mut outputs = std::mem::take(&mut upstream.outputs);
        call(&mut upstream.link, &mut outputs);
        self.carry_out(now, id, outputs, out);
    }

    fn carry_out(&mut self, now: Now, id: UpstreamId, mut outputs: Vec<LinkOutput>, out: &mut Outputs) {
        let mut recorded = None;
        let name = self.upstreams.get(usize::from(id.0)).map(|upstream| upstream.name.clone()).unwrap_or_default();
        for output in outputs.drain(..) {
            match output {
                LinkOutput::Order(order) => out.push(Output::Upstream { id, order }),
                LinkOutput::State(change) => recorded = Some(self.log.control(control_record(change))),
                LinkOutput::Cursor { partition, offset } => {
                    self.space_due = true;
                    if self.upstreams.get(usize::from(id.0)).is_some_and(|upstream| upstream.replica) {
                        self.replica_reached(now, id, partition, offset, out);
                    }
                }
                LinkOutput::Refused { partition, offset, reason, text } => {
                    self.replica_refused(partition, offset, out);
                    if let Some(upstream) = self.upstreams.get_mut(usize::from(id.0)) {
                        upstream.refused.push_back(Refused { partition, offset, reason, text });
                    }
                }
                LinkOutput::Rewind => self.rewind(id),
                LinkOutput::Event(gravity, text) => out.push(Output::Event(Event {
                    severity: match gravity {
                        LinkGravity::Error => Severity::Error,
                        LinkGravity::Warning => Severity::Warning,
                        LinkGravity::Info => Severity::Info,
                    },
                    part: "upstream",
                    text: format!("{name}: {text}"),
                })),
            }
        }
        if let Some(upstream) = self.upstreams.get_mut(usize::from(id.0)) {
            if let Some(seq) = recorded {
                upstream.link.recorded(seq);
            }
            upstream.outputs = outputs;
        }
    }

    /// The link begins again at its cursors.
    pub(super) fn rewind(&mut self, id: UpstreamId) {
        let Some(upstream) = self.upstreams.get_mut(usize::from(id.0)) else { return };
        let from = upstream.link.lanes().map(|(partition, offset)| self.log.locate(partition, offset)).min();
        upstream.reader.seek(from.unwrap_or_default());
    }

    /// Refused records are read again, and stored in `dead-letter` with the reason; then the link's cursor may pass them.
    fn dead_letter_refused(&mut self, now: Now, id: UpstreamId, out: &mut Outputs) {
        let until = self.log.synced_seq();
        loop {
            let Some(upstream) = self.upstreams.get_mut(usize::from(id.0)) else { return };
            let Some(refused) = upstream.refused.front() else { return };
            let at = self.log.locate(refused.partition, refused.offset);
            if upstream.refused_reader.position() < at || upstream.refused_reader.position().seq > until {
                upstream.refused_reader.seek(at);
            }
            let reads = &mut self.reads;
            let next = upstream.refused_reader.next(&self.log, until, &mut || reads.ticket(Asker::Upstream(id)), out);
            let found = match next {
                Next::Waiting => return,
                Next::End => None,
                Next::Frame(frame, _) => {
                    let header = frame.header;
                    if header.partition != refused.partition || header.next_offset() <= refused.offset {
                        let next = LogPosition { seq: header.seq + 1, index: 0 };
                        upstream.refused_reader.advance(next);
                        continue;
                    }
                    let index = refused.offset.saturating_sub(header.base_offset) as u32;
                    frame.record(index).and_then(Result::ok)
                }
            };
            let Some(refused) = upstream.refused.pop_front() else { return };
            let start = upstream.refused.front().map(|next| self.log.locate(next.partition, next.offset));
            upstream.refused_reader.seek(start.unwrap_or_default());
            let name = upstream.name.clone();
            if let Some(record) = found {
                self.store_dead_letter(now, &name, &refused, &record);
            }
            let stream = self.stream_name(refused.partition.stream).to_owned();
            self.counters.lost(Some(refused.partition.stream), "refused_upstream", 1);
            let text = format!(
                "{name} refused {stream}/{} offset {}: {} (0x{:02X}); it is in the stream dead-letter",
                refused.partition.partition, refused.offset, refused.text, refused.reason.0
            );
            out.push(Output::Event(Event { severity: Severity::Warning, part: "upstream", text }));
            self.with_link(now, id, out, |link, outputs| link.settled(now, refused.partition, refused.offset, outputs));
        }
    }

    fn store_dead_letter(&mut self, now: Now, upstream: &str, refused: &Refused, record: &StoredRecord) {
        let mut properties = record.properties.clone().unwrap_or_else(|| Box::new(PublishProperties::default()));
        let reason = format!("0x{:02X} {}", refused.reason.0, refused.text);
        for (name, value) in [
            ("forebay-refused-by", upstream.to_owned()),
            ("forebay-refused-because", reason),
            ("forebay-refused-record", self.source_text(record.partition, record.offset)),
        ] {
            properties.user.push((Text::from_static(name), Text::from(value)));
        }
        let publish = Publish {
            dup: false,
            qos: record.qos.max(QoS::AtLeastOnce),
            retain: record.retain,
            topic: record.topic.clone(),
            packet_id: 0,
            properties: Some(properties),
            payload: record.payload.clone(),
        };
        let (key, source) = (record.key.as_deref(), record.source.as_deref());
        let copy = NewRecord { publish: &publish, client: record.client.as_bytes(), key, source };
        self.log.append(self.dead_letter, copy, &now);
    }
}

/// Whether a record has been in this log before: it is its source, or the first source that it ever had.
fn comes_from(record: &StoredRecord, log_id: &[u8]) -> bool {
    let names_it = |source: &[u8]| source.windows(log_id.len()).any(|part| part == log_id);
    let origin = record.properties.as_deref().and_then(|properties| value(&properties.user, ORIGIN));
    record.source.as_deref().is_some_and(names_it) || origin.is_some_and(|origin| names_it(origin.as_bytes()))
}

/// Makes a record into the publish that goes upstream and offers it to the link. `false`: it has expired.
fn offer(upstream: &mut Upstream, record: &StoredRecord, age_s: Option<u64>, outputs: &mut Vec<LinkOutput>) -> bool {
    let (partition, offset) = (record.partition, record.offset);
    let Some(mapper) = upstream.mappers.get(&partition.stream) else { return true };
    let outgoing = Outgoing {
        partition: partition.partition,
        offset,
        topic: &record.topic,
        retain: record.retain,
        properties: record.properties.as_deref(),
        source: record.source.as_ref(),
        age_s,
        payload: &record.payload,
    };
    match mapper.map(outgoing) {
        Ok(publish) => {
            // Measured as it will be sent: at QoS 1 or 2, with a packet identifier.
            let size = publish_len(&publish, upstream.version);
            upstream.link.offer(partition, offset, publish, size, outputs);
        }
        Err(Unmapped::Expired) => {
            upstream.link.pass(partition, offset + 1);
            return false;
        }
        Err(Unmapped::Topic) => {
            let text = "its mapped topic cannot be sent".to_owned();
            upstream.link.refuse_unsent(partition, offset, Reason::TOPIC_NAME_INVALID, text, outputs);
        }
    }
    true
}

/// Milliseconds since a record came in: by the monotonic clock within a boot, else by wall clocks that were set.
pub(super) fn age_ms(log: &Log, boot: BootId, time: &IngestTime, now: Now) -> Option<u64> {
    if time.boot == boot {
        return Some((now.mono_ns / 1_000_000).saturating_sub(time.mono_ms));
    }
    let then = log.wall_ms(time)?;
    let now_ms = now.wall_ms.filter(|_| now.wall_synced)?;
    Some(now_ms.saturating_sub(then).max(0).unsigned_abs())
}

/// The log's kind of a link's state.
pub(super) fn control_kind(kind: StateKind) -> ControlKind {
    match kind {
        StateKind::Cursor => ControlKind::UpstreamCursor,
        StateKind::Released => ControlKind::UpstreamReleased,
        StateKind::Session => ControlKind::UpstreamSession,
        StateKind::Isr => ControlKind::Isr,
    }
}

pub(super) fn control_record(change: StateChange) -> ControlRecord {
    ControlRecord::put(control_kind(change.kind), change.key, change.value)
}
