//! The link: its connection, its window, and what it keeps durable. `answers.rs` has what the peer's acknowledgements mean.
//!
//! How the engine uses it, in each step that concerns the link:
//!
//! 1. [`Link::on_event`] (driver), [`Link::synced`] (commit) or [`Link::tick`] (time), which leave [`LinkOutput`]s;
//! 2. while [`Link::room`] is not 0: read the log from the smallest of [`Link::lanes`] on, in log order; ask [`Link::want`] for
//!    each record of the link's partitions; [`Link::offer`] those it wants; stop at [`Want::Full`]; then [`Link::flush`];
//! 3. carry the outputs out in order, appending every [`LinkOutput::State`] to the log; then [`Link::recorded`] with the frame
//!    that they joined.

use super::backoff::{Backoff, Draw, Trouble};
use super::durable::{CursorV1, SessionV1, StateChange, StateKind, encode, lane_key, session_key};
use super::lane::{Lane, Phase, Usage, Verdict};
use super::link::{LinkConfig, LinkCounts, LinkEvent, LinkGravity, LinkOrder, LinkOutput, LinkState, Want};
use crate::mqtt::{Publish, QoS, Reason};
use crate::types::{Now, Offset, PartitionId, Seq};
use std::collections::{BTreeMap, VecDeque};

/// Cursors ride on commits at most this often.
const CURSOR_EVERY_NS: u64 = 1_000_000_000;
/// A connection that lasted this long was a good one: the next delay is the shortest again.
const GOOD_CONNECTION_NS: u64 = 30_000_000_000;

/// Where the connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    /// None; the next try is due then.
    Idle { retry_ns: u64 },
    /// `Connect` was ordered.
    Connecting { clean_start: bool },
    /// CONNACK said yes.
    Up { since_ns: u64, window: usize, maximum_packet_size: usize },
    /// `Disconnect` was ordered.
    Closing,
}

/// A control record on its way to the log.
#[derive(Debug)]
pub(super) struct Pending {
    seq: Option<Seq>,
    what: PendingKind,
}

#[derive(Debug)]
enum PendingKind {
    Session { stamp: u64 },
    Cursor { lane: usize, cursor: Offset },
    Released { lane: usize, cursor: Offset, session: u64, offsets: Vec<Offset> },
}

/// One upstream: connection, window, cursors. Pure; see the module's head for how it is used.
#[derive(Debug)]
pub struct Link {
    pub(super) config: LinkConfig,
    /// Ascending by partition.
    pub(super) lanes: Vec<Lane>,
    /// Lane by its place among the ranges of packet identifiers.
    pub(super) by_slot: BTreeMap<u16, usize>,
    pub(super) slots: Vec<PartitionId>,
    pub(super) range: u16,
    pub(super) connection: Connection,
    pub(super) usage: Usage,
    pub(super) nth: u64,
    /// Stamp of the session that our phases belong to.
    pub(super) session: u64,
    /// Whether `session` is durable and agreed with the peer; if not, the next connection starts clean.
    pub(super) session_valid: bool,
    /// Whether the session's stamp and ranges, as they are now, are durable: nothing is published before.
    pub(super) agreed: bool,
    pub(super) pending: VecDeque<Pending>,
    pub(super) batch: Vec<Publish>,
    /// Lanes in which something moved since the last flush; may name one twice.
    pub(super) touched: Vec<usize>,
    pub(super) draw: Draw,
    pub(super) backoff: Backoff,
    /// Why the link is (being) closed by us; decides the delay.
    pub(super) closing: Option<Trouble>,
    pub(super) reason: Option<String>,
    pub(super) paused: bool,
    pub(super) stopped: bool,
    /// First record without an answer when the peer closed, and how often in a row.
    pub(super) suspect: Option<(PartitionId, Offset, u8)>,
    /// Records are sent one at a time, to find the one that the peer closes at.
    pub(super) alone: bool,
    /// Refusals that did not say whether they are for good, per record.
    pub(super) attempts: BTreeMap<(PartitionId, Offset), u8>,
    pub(super) counts: LinkCounts,
    /// Partitions were added to the session's ranges: it must be written anew before they are used.
    pub(super) extended: bool,
    /// Said at the first tick.
    pub(super) warnings: Vec<String>,
}

impl Link {
    // ── what the engine reads ───────────────────────────────────────────────────────────────────────────────────────────

    /// State, for `status`.
    pub fn state(&self) -> LinkState {
        match self.connection {
            _ if self.stopped => LinkState::Stopped,
            _ if self.paused => LinkState::Paused,
            Connection::Up { .. } => LinkState::Connected,
            Connection::Connecting { .. } => LinkState::Connecting,
            Connection::Idle { .. } | Connection::Closing => LinkState::Waiting,
        }
    }

    /// Why it is not connected, in words.
    pub fn reason(&self) -> Option<&str> {
        if self.state() == LinkState::Connected { None } else { self.reason.as_deref() }
    }

    /// Counters since the start.
    pub fn counts(&self) -> LinkCounts {
        self.counts
    }

    /// Messages in flight.
    pub fn in_flight(&self) -> usize {
        self.usage.open
    }

    /// Each partition with the offset from which reading goes on.
    pub fn lanes(&self) -> impl Iterator<Item = (PartitionId, Offset)> + '_ {
        self.lanes.iter().map(|lane| (lane.partition, lane.next()))
    }

    /// The first offset that the peer has not acknowledged: the replica's LEO.
    pub fn cursor(&self, partition: PartitionId) -> Option<Offset> {
        self.lane_index(partition).and_then(|index| self.lanes.get(index)).map(Lane::cursor)
    }

    /// The cursor as the log has it: what retention may free lies below it.
    pub fn durable_cursor(&self, partition: PartitionId) -> Option<Offset> {
        self.lane_index(partition).and_then(|index| self.lanes.get(index)).map(Lane::durable)
    }

    /// Records that may be offered now. 0 unless a quarter of the window is free: refilling one by one costs more.
    pub fn room(&self) -> usize {
        let Connection::Up { window, .. } = self.connection else { return 0 };
        if !self.agreed || self.paused || self.stopped {
            return 0;
        }
        if self.alone {
            return usize::from(self.usage.sent == 0);
        }
        let free = window.saturating_sub(self.usage.open);
        if free * 4 < window || self.usage.bytes >= self.config.window_bytes { 0 } else { free }
    }

    /// When [`Link::tick`] should come next, monotonic ns; `None` if time changes nothing.
    pub fn wake_ns(&self) -> Option<u64> {
        match self.connection {
            Connection::Idle { retry_ns } if !self.paused && !self.stopped => Some(retry_ns),
            _ => None,
        }
    }

    // ── the window ──────────────────────────────────────────────────────────────────────────────────────────────────────

    /// The reader has found the record at `offset`; offsets between the last one and this do not exist.
    pub fn want(&mut self, partition: PartitionId, offset: Offset) -> Want {
        let open = self.may_send(true);
        let Some(index) = self.lane_index(partition) else { return Want::Pass };
        let Some(lane) = self.lanes.get_mut(index) else { return Want::Pass };
        if offset < lane.next() {
            return Want::Pass;
        }
        if !open {
            return Want::Full;
        }
        let verdict = lane.judge(offset, &mut self.usage);
        self.touch(index);
        match verdict {
            // Asked again: what must be released because of a gap before this record takes places of the window too.
            Verdict::Send { again, .. } if self.may_send(again) => Want::Send,
            Verdict::Pass => Want::Pass,
            Verdict::Send { .. } | Verdict::Full => Want::Full,
        }
    }

    /// Whether one more record may be sent; `again`: one that has a place in the window from before.
    fn may_send(&self, again: bool) -> bool {
        let Connection::Up { window, .. } = self.connection else { return false };
        let taken = self.usage.open + if again { 0 } else { self.usage.maybe };
        self.agreed
            && !self.paused
            && !self.stopped
            && if self.alone {
                self.usage.sent == 0
            } else {
                taken < window && (self.usage.bytes < self.config.window_bytes || self.usage.sent == 0)
            }
    }

    /// A record that [`Link::want`] has just wanted, mapped; `size` is its PUBLISH in bytes on the wire. DUP, QoS and packet id are set here.
    /// `false` if it was not wanted after all. What exceeds the peer's maximum packet size is refused, not sent [MQTT-3.2.2-15].
    pub fn offer(
        &mut self,
        partition: PartitionId,
        offset: Offset,
        mut publish: Publish,
        size: usize,
        out: &mut Vec<LinkOutput>,
    ) -> bool {
        let Some(index) = self.lane_index(partition) else { return false };
        let Connection::Up { maximum_packet_size, .. } = self.connection else { return false };
        let Some(lane) = self.lanes.get_mut(index) else { return false };
        let Verdict::Send { dup, double, .. } = lane.judge(offset, &mut self.usage) else { return false };
        if size > maximum_packet_size {
            let text = format!("{size} bytes, the upstream takes packets of at most {maximum_packet_size}");
            lane.take(offset, 0, 0, Phase::Unsent, &mut self.usage);
            self.refuse(index, offset, Reason::PACKET_TOO_LARGE, text, dup, out);
            return true;
        }
        self.nth += 1;
        lane.take(offset, u32::try_from(size).unwrap_or(u32::MAX), self.nth, Phase::Sent, &mut self.usage);
        self.counts.possible_doubles += u64::from(double);
        publish.qos = if self.config.exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        publish.dup = dup;
        publish.packet_id = self.packet_id(index, offset);
        self.batch.push(publish);
        true
    }

    /// A record that cannot be made into a publish (its mapped topic is too long, say): refused without being sent.
    pub fn refuse_unsent(
        &mut self,
        partition: PartitionId,
        offset: Offset,
        reason: Reason,
        text: String,
        out: &mut Vec<LinkOutput>,
    ) {
        let Some(index) = self.lane_index(partition) else { return };
        let Some(lane) = self.lanes.get_mut(index) else { return };
        if let Verdict::Send { dup, .. } = lane.judge(offset, &mut self.usage) {
            lane.take(offset, 0, 0, Phase::Unsent, &mut self.usage);
            self.refuse(index, offset, reason, text, dup, out);
        }
    }

    /// Nothing below `offset` that was not offered will come: expired, damaged or retained away.
    pub fn pass(&mut self, partition: PartitionId, offset: Offset) {
        let Some(index) = self.lane_index(partition) else { return };
        if let Some(lane) = self.lanes.get_mut(index) {
            lane.pass_below(offset, &mut self.usage);
        }
        self.touch(index);
    }

    /// Ends a series of offers: what was taken goes out as one order, what must be recorded is handed over.
    pub fn flush(&mut self, now: Now, out: &mut Vec<LinkOutput>) {
        if let Some((partition, offset, _)) = self.suspect
            && self.cursor(partition).is_none_or(|cursor| cursor > offset)
        {
            self.clear_suspect(); // it expired or was retained away meanwhile
        }
        if !self.batch.is_empty() {
            out.push(LinkOutput::Order(LinkOrder::Publish(std::mem::take(&mut self.batch))));
        }
        for index in std::mem::take(&mut self.touched) {
            self.flush_lane(index, now, false, out);
        }
    }

    /// Something moved in this lane: the next flush looks at it.
    pub(super) fn touch(&mut self, index: usize) {
        if self.touched.last() != Some(&index) {
            self.touched.push(index);
        }
    }

    fn touch_all(&mut self) {
        self.touched = (0..self.lanes.len()).collect();
    }

    fn flush_lane(&mut self, index: usize, now: Now, force: bool, out: &mut Vec<LinkOutput>) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        lane.trim(&mut self.usage);
        let cursor = lane.cursor();
        if cursor > lane.told {
            lane.told = cursor;
            out.push(LinkOutput::Cursor { partition: lane.partition, offset: cursor });
        }
        let due = now.mono_ns.saturating_sub(lane.recorded_ns) >= CURSOR_EVERY_NS;
        let key = || lane_key(&self.config.name, lane.partition);
        if lane.dirty && self.session_valid {
            let value = encode(&lane.released_value(self.session));
            let offsets = lane.recording().collect();
            out.push(LinkOutput::State(StateChange { kind: StateKind::Released, key: key(), value }));
            let what = PendingKind::Released { lane: index, cursor, session: self.session, offsets };
            self.pending.push_back(Pending { seq: None, what });
            lane.dirty = false;
        } else if cursor > lane.recorded && (force || lane.dirty || !lane.cursor_pending && (due || lane.pressed())) {
            let value = encode(&CursorV1 { next: cursor });
            out.push(LinkOutput::State(StateChange { kind: StateKind::Cursor, key: key(), value }));
            self.pending.push_back(Pending { seq: None, what: PendingKind::Cursor { lane: index, cursor } });
            lane.cursor_pending = true;
        } else {
            return;
        }
        lane.recorded = cursor;
        lane.recorded_ns = now.mono_ns;
    }

    /// Every [`LinkOutput::State`] handed out so far has joined the frame `seq` or an earlier one.
    pub fn recorded(&mut self, seq: Seq) {
        for pending in self.pending.iter_mut().rev() {
            if pending.seq.is_some() {
                break;
            }
            pending.seq = Some(seq);
        }
    }

    /// Frames up to `seq` are synced: what was recorded in them is durable, and its PUBRELs may go.
    pub fn synced(&mut self, now: Now, seq: Seq, out: &mut Vec<LinkOutput>) {
        let mut release = Vec::new();
        while self.pending.front().is_some_and(|pending| pending.seq.is_some_and(|recorded| recorded <= seq)) {
            let Some(pending) = self.pending.pop_front() else { break };
            self.made_durable(pending.what, &mut release);
        }
        if !release.is_empty() && matches!(self.connection, Connection::Up { .. }) {
            out.push(LinkOutput::Order(LinkOrder::Release(release)));
        }
        self.flush(now, out);
    }

    fn made_durable(&mut self, what: PendingKind, release: &mut Vec<u16>) {
        match what {
            PendingKind::Session { stamp } if stamp == self.session => {
                self.session_valid = true;
                self.agreed = true;
            }
            PendingKind::Session { .. } => {}
            PendingKind::Cursor { lane: index, cursor } => {
                if let Some(lane) = self.lanes.get_mut(index) {
                    lane.made_durable(cursor);
                    lane.cursor_pending = false;
                }
                self.touch(index);
            }
            PendingKind::Released { lane: index, cursor, session, offsets } => {
                let Some(lane) = self.lanes.get_mut(index) else { return };
                lane.made_durable(cursor);
                if session != self.session {
                    return self.touch(index);
                }
                let usage = &mut self.usage;
                let released: Vec<Offset> = offsets
                    .into_iter()
                    .filter(|offset| {
                        lane.phase(*offset) == Some(Phase::Recording) && lane.set(*offset, Phase::Released, usage)
                    })
                    .collect();
                release.extend(released.into_iter().map(|offset| self.packet_id(index, offset)));
                self.touch(index);
            }
        }
    }

    // ── the connection ──────────────────────────────────────────────────────────────────────────────────────────────────

    /// Something came from the driver.
    pub fn on_event(&mut self, now: Now, event: LinkEvent, out: &mut Vec<LinkOutput>) {
        match event {
            LinkEvent::Up { session_present, receive_maximum, maximum_packet_size } => {
                self.up(now, session_present, receive_maximum, maximum_packet_size, out);
            }
            LinkEvent::Acks(acks) => self.acks(acks, out),
            LinkEvent::Sent { bytes } => self.counts.sent_bytes += bytes,
            LinkEvent::Down(down) => self.down(now, down, out),
        }
        self.flush(now, out);
    }

    /// Time passes: tries to connect when that is due, lets cursors ride along.
    pub fn tick(&mut self, now: Now, out: &mut Vec<LinkOutput>) {
        for text in std::mem::take(&mut self.warnings) {
            out.push(LinkOutput::Event(LinkGravity::Error, text));
        }
        if std::mem::take(&mut self.extended) {
            self.write_session(out);
        }
        if let Connection::Idle { retry_ns } = self.connection
            && !self.paused
            && !self.stopped
            && now.mono_ns >= retry_ns
        {
            let clean_start = !self.session_valid;
            self.connection = Connection::Connecting { clean_start };
            out.push(LinkOutput::Order(LinkOrder::Connect { clean_start }));
        }
        self.touch_all(); // cursors that are due
        self.flush(now, out);
    }

    fn up(
        &mut self,
        now: Now,
        session_present: bool,
        receive_maximum: u16,
        maximum_packet_size: u32,
        out: &mut Vec<LinkOutput>,
    ) {
        let Connection::Connecting { clean_start } = self.connection else { return };
        self.connection = Connection::Up {
            since_ns: now.mono_ns,
            window: usize::from(receive_maximum.min(self.config.window).max(1)),
            maximum_packet_size: usize::try_from(maximum_packet_size).unwrap_or(usize::MAX),
        };
        self.counts.connections += 1;
        self.reason = None;
        if session_present && !clean_start && self.session_valid {
            out.push(LinkOutput::Event(LinkGravity::Info, "connected, the session was kept".into()));
            self.resume(out);
        } else {
            let text =
                if clean_start { "connected with a new session" } else { "connected, the peer forgot the session" };
            out.push(LinkOutput::Event(LinkGravity::Info, text.into()));
            self.begin_session(out);
        }
        out.push(LinkOutput::Rewind);
    }

    /// PUBREL for all that is released, in order; PUBLISH goes on from the cursor.
    fn resume(&mut self, out: &mut Vec<LinkOutput>) {
        let mut release = Vec::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            release.extend(lane.released().map(|offset| self.packet_id(index, offset)));
        }
        if !release.is_empty() {
            out.push(LinkOutput::Order(LinkOrder::Release(release)));
        }
    }

    /// Nothing is published before the new session's stamp is durable: a crash would take old phases for the new session's.
    ///
    /// One window stays open. A peer that has lost the session makes a new one while it answers CONNECT; if we die after that and
    /// before the stamp is synced, the next start finds a session present and takes it for the old one. Its PUBRELs are then
    /// answered "not found", which after a crash usually means "completed before". A record that was released and not delivered
    /// when the peer lost it would be missing. Two faults within one sync; the other way round (not trusting a session after a
    /// crash while connecting) would double records though both sides kept everything.
    fn begin_session(&mut self, out: &mut Vec<LinkOutput>) {
        for lane in &mut self.lanes {
            lane.forget_session(&mut self.usage);
        }
        self.touch_all();
        self.session = self.draw.draw();
        self.session_valid = false;
        self.write_session(out);
    }

    fn write_session(&mut self, out: &mut Vec<LinkOutput>) {
        self.agreed = false;
        let value = encode(&SessionV1 {
            stamp: self.session,
            log_id: self.config.log_id,
            peer: self.config.peer.clone(),
            range: self.range,
            slots: self.slots.clone(),
        });
        let key = session_key(&self.config.name);
        out.push(LinkOutput::State(StateChange { kind: StateKind::Session, key, value }));
        self.pending.push_back(Pending { seq: None, what: PendingKind::Session { stamp: self.session } });
    }

    /// Stops forwarding in order, or goes on at once (also after `on_refusal = "stop"`).
    pub fn set_paused(&mut self, now: Now, paused: bool, out: &mut Vec<LinkOutput>) {
        self.paused = paused;
        if paused {
            self.close(None, "paused by order".into(), out);
        } else {
            self.stopped = false;
            if let Connection::Idle { .. } = self.connection {
                self.connection = Connection::Idle { retry_ns: now.mono_ns };
            }
        }
        self.tick(now, out);
    }

    /// The process ends: cursors go into the log, the connection is closed in order.
    pub fn stop(&mut self, now: Now, out: &mut Vec<LinkOutput>) {
        self.paused = true;
        self.close(None, "the gateway is stopping".into(), out);
        for index in 0..self.lanes.len() {
            self.flush_lane(index, now, true, out);
        }
    }

    /// Orders the connection closed; its end is taken as `trouble`.
    pub(super) fn close(&mut self, trouble: Option<Trouble>, reason: String, out: &mut Vec<LinkOutput>) {
        self.reason = Some(reason);
        match self.connection {
            Connection::Up { .. } | Connection::Connecting { .. } => {
                self.connection = Connection::Closing;
                self.closing = trouble;
                self.batch.clear();
                out.push(LinkOutput::Order(LinkOrder::Disconnect { graceful: true }));
            }
            Connection::Idle { .. } | Connection::Closing => {}
        }
    }

    pub(super) fn batch_dropped(&mut self) {
        self.batch.clear();
    }

    /// Resets the delay after a connection that served.
    pub(super) fn was_good(&mut self, now: Now) {
        if let Connection::Up { since_ns, .. } = self.connection
            && now.mono_ns.saturating_sub(since_ns) >= GOOD_CONNECTION_NS
        {
            self.backoff.reset();
        }
    }

    // ── packet identifiers ──────────────────────────────────────────────────────────────────────────────────────────────

    pub(super) fn lane_index(&self, partition: PartitionId) -> Option<usize> {
        self.lanes.binary_search_by_key(&partition, |lane| lane.partition).ok()
    }

    /// 1 + the lane's base + the offset modulo the range: never 0 [MQTT-2.2.1-3], never above 65,535.
    pub(super) fn packet_id(&self, lane: usize, offset: Offset) -> u16 {
        let slot = self.lanes.get(lane).map_or(0, |lane| lane.slot);
        let range = u64::from(self.range.max(1));
        (1 + u64::from(slot) * range + offset % range) as u16
    }

    /// The lane, and the offset of its window that has this packet identifier (`None`: it is not in the window).
    pub(super) fn by_packet_id(&self, packet_id: u16) -> Option<(usize, Option<Offset>)> {
        let range = self.range.max(1);
        let place = packet_id.checked_sub(1)?;
        let lane = *self.by_slot.get(&(place / range))?;
        let offset = self.lanes.get(lane)?.offset_of(u64::from(place % range), u64::from(range));
        Some((lane, offset))
    }
}
