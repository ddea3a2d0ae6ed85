//! One partition on one link: which offsets are in flight and in which phase, and how far everything is done.
//!
//! ```text
//!  QoS 1:  Sent ── PUBACK ──────────────────────────────────────────► Done
//!  QoS 2:  Sent ── PUBREC ─► Recording ── synced ─► Released ── PUBCOMP ─► Done
//!  refused: Sent ── reason ≥ 0x80 ─► Refused ── dead-lettered ─► Done
//!  the connection ends: Sent ─► Maybe;   the peer forgot the session: all that is not Done or Refused ─► Again
//! ```
//!
//! The offset tells the packet identifier, so nothing need be durable before PUBLISH. Every offset from the cursor up to `end`
//! that is not done has an entry; two of them never share an identifier, because `end` stays within a span of the *durable*
//! cursor: after a crash, everything that the peer may still hold lies within one range of identifiers.

use super::durable::{ReleasedV1, RunState, RunV1};
use crate::types::{Offset, PartitionId};
use std::collections::VecDeque;

/// Where an offset stands in its hand-shake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The peer does not have it: to be published.
    Unsent,
    /// Published in a session that is gone; to be published, possibly a double.
    Again,
    /// Published earlier in this session, no answer seen: to be published with DUP.
    Maybe,
    /// Published on this connection.
    Sent,
    /// PUBREC came; "released" is on its way to the log.
    Recording,
    /// "Released" is durable: PUBREL.
    Released,
    /// The peer will not have it: waits until it is dead-lettered. `held`: the peer may still hold its identifier.
    Refused {
        /// PUBREL must free the identifier.
        held: bool,
    },
    /// Nothing more to do.
    Done,
}

/// One offset of the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Which.
    pub offset: Offset,
    /// Bytes of its PUBLISH.
    pub size: u32,
    /// Order of sending on this connection, for telling which the peer closed at.
    pub nth: u64,
    /// Where it stands.
    pub phase: Phase,
}

/// What is in flight on the whole link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Messages that take a place of the peer's Receive Maximum on this connection.
    pub open: usize,
    /// Of these, not answered at all yet.
    pub sent: usize,
    /// Messages of former connections that the peer may hold and that were not sent again yet. By the specification they take no
    /// place, but Mosquitto counts them: nothing new is sent in their stead.
    pub maybe: usize,
    /// Bytes of those.
    pub bytes: usize,
}

impl Usage {
    fn add(&mut self, entry: &Entry) {
        match entry.phase {
            Phase::Sent => {
                self.open += 1;
                self.sent += 1;
                self.bytes += entry.size as usize;
            }
            Phase::Recording | Phase::Released => self.open += 1,
            Phase::Maybe => self.maybe += 1,
            _ => {}
        }
    }

    fn remove(&mut self, entry: &Entry) {
        match entry.phase {
            Phase::Sent => {
                self.open = self.open.saturating_sub(1);
                self.sent = self.sent.saturating_sub(1);
                self.bytes = self.bytes.saturating_sub(entry.size as usize);
            }
            Phase::Recording | Phase::Released => self.open = self.open.saturating_sub(1),
            Phase::Maybe => self.maybe = self.maybe.saturating_sub(1),
            _ => {}
        }
    }
}

/// What a lane says to an offset that the reader has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Send it.
    Send {
        /// With DUP: it may have been sent earlier in this session.
        dup: bool,
        /// The peer may have had it already.
        double: bool,
        /// It has a place in the window from before.
        again: bool,
    },
    /// It is done, in flight or released: pass over it.
    Pass,
    /// Not now.
    Full,
}

/// One partition on one link.
#[derive(Debug)]
pub(super) struct Lane {
    /// The partition.
    pub partition: PartitionId,
    /// Its place among the ranges of packet identifiers.
    pub slot: u16,
    exactly_once: bool,
    span: u64,
    entries: VecDeque<Entry>,
    /// One beyond the last offset that was ever taken in.
    end: Offset,
    /// Offsets below have been offered since the connection came up.
    next: Offset,
    /// After a start: so many offsets from `end` on may have been published before the crash, nobody knows.
    doubt: u64,
    /// Whether these are in the session that the peer holds now.
    doubt_in_session: bool,
    /// Cursor that is durable.
    durable: Offset,
    /// Cursor in the last control record that was handed out.
    pub recorded: Offset,
    /// When that was.
    pub recorded_ns: u64,
    /// Cursor that was last reported.
    pub told: Offset,
    /// A record of what is released must be written.
    pub dirty: bool,
    /// A cursor record is on its way.
    pub cursor_pending: bool,
}

impl Lane {
    /// A lane that begins at `cursor`; `doubt` offsets from there on may have been published before.
    pub fn new(partition: PartitionId, slot: u16, exactly_once: bool, span: u64, cursor: Offset, doubt: u64) -> Self {
        Self {
            partition,
            slot,
            exactly_once,
            span,
            entries: VecDeque::new(),
            end: cursor,
            next: cursor,
            doubt: doubt.min(span),
            doubt_in_session: true,
            durable: cursor,
            recorded: cursor,
            recorded_ns: 0,
            told: cursor,
            dirty: false,
            cursor_pending: false,
        }
    }

    /// Takes up what was released before a restart. `false` if it cannot be this lane's (damaged): the session is then not ours.
    pub fn restore(&mut self, released: &ReleasedV1, usage: &mut Usage) -> bool {
        let length = released.runs.iter().map(|run| u64::from(run.len)).sum::<u64>();
        if length > self.span {
            return false;
        }
        let mut offset = released.cursor;
        for run in &released.runs {
            for _ in 0..run.len {
                let phase = match run.state {
                    RunState::Open => Phase::Maybe,
                    RunState::Released => Phase::Released,
                    RunState::Done => Phase::Done,
                };
                if offset >= self.end {
                    self.push(Entry { offset, size: 0, nth: 0, phase }, usage);
                }
                offset += 1;
            }
        }
        let open = self.entries.iter().filter(|entry| entry.phase == Phase::Maybe).count() as u64;
        self.doubt = self.doubt.saturating_sub(open).min((self.durable + self.span).saturating_sub(self.end));
        self.trim(usage);
        true
    }

    /// The first offset that is not done.
    pub fn cursor(&self) -> Offset {
        self.entries.front().map_or(self.end, |entry| entry.offset)
    }

    /// The cursor as the log has it durable.
    pub fn durable(&self) -> Offset {
        self.durable
    }

    /// Where reading goes on.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// The cursor up to `cursor` is durable.
    pub fn made_durable(&mut self, cursor: Offset) {
        self.durable = self.durable.max(cursor);
    }

    /// Whether the durable cursor lags so far that it may hold the window back.
    pub fn pressed(&self) -> bool {
        self.exactly_once && self.recorded < self.cursor() && self.end.saturating_sub(self.durable) > self.span / 2
    }

    fn floor(&self) -> Offset {
        if self.exactly_once { self.durable.min(self.cursor()) } else { self.cursor() }
    }

    fn push(&mut self, entry: Entry, usage: &mut Usage) {
        usage.add(&entry);
        self.end = entry.offset + 1;
        self.entries.push_back(entry);
    }

    fn index(&self, offset: Offset) -> Option<usize> {
        let first = self.entries.front()?.offset;
        let guess = usize::try_from(offset.checked_sub(first)?).ok()?;
        if self.entries.get(guess).is_some_and(|entry| entry.offset == offset) {
            return Some(guess); // no gap before it, the usual case
        }
        self.entries.binary_search_by_key(&offset, |entry| entry.offset).ok()
    }

    /// The phase of an offset of the window.
    pub fn phase(&self, offset: Offset) -> Option<Phase> {
        self.entries.get(self.index(offset)?).map(|entry| entry.phase)
    }

    /// Moves an offset to another phase; `false` if it is not in the window.
    pub fn set(&mut self, offset: Offset, phase: Phase, usage: &mut Usage) -> bool {
        let Some(entry) = self.index(offset).and_then(|index| self.entries.get_mut(index)) else { return false };
        usage.remove(entry);
        entry.phase = phase;
        usage.add(entry);
        true
    }

    /// The offset whose identifier has this place in the range of `range` identifiers, if it is in the window.
    pub fn offset_of(&self, place: u64, range: u64) -> Option<Offset> {
        let first = self.cursor();
        let ahead = (place + range - first % range) % range;
        let offset = first + ahead;
        self.index(offset).map(|_| offset)
    }

    /// The reader has found `offset`; everything between the last one and this will not come (gaps, expired, damaged).
    pub fn judge(&mut self, offset: Offset, usage: &mut Usage) -> Verdict {
        if offset < self.next {
            return Verdict::Pass;
        }
        if offset >= self.end && offset - self.floor() >= self.span {
            // Beyond what identifiers can tell apart. With nothing in flight it is a gap: the cursor passes it first.
            self.pass_below(offset, usage);
            if offset - self.floor() >= self.span {
                return Verdict::Full;
            }
        }
        self.pass_below(offset, usage);
        if offset >= self.end {
            let doubt = self.doubt > 0;
            let in_session = doubt && self.doubt_in_session;
            let double = doubt && (!self.exactly_once || !self.doubt_in_session);
            return Verdict::Send { dup: in_session, double, again: false };
        }
        match self.phase(offset) {
            Some(Phase::Unsent) => Verdict::Send { dup: false, double: false, again: false },
            Some(Phase::Again) => Verdict::Send { dup: false, double: true, again: false },
            Some(Phase::Maybe) => Verdict::Send { dup: true, double: !self.exactly_once, again: true },
            _ => Verdict::Pass,
        }
    }

    /// Nothing below `offset` that has not been offered by now will come.
    pub fn pass_below(&mut self, offset: Offset, usage: &mut Usage) {
        if offset <= self.next {
            return;
        }
        let from = self.next;
        let exactly_once = self.exactly_once;
        for entry in self.entries.iter_mut().skip_while(|entry| entry.offset < from).take_while(|e| e.offset < offset) {
            // What the peer may hold but can never get again is released: else its identifier would swallow a later record.
            let phase = match entry.phase {
                Phase::Maybe if exactly_once => {
                    self.dirty = true;
                    Phase::Recording
                }
                Phase::Maybe | Phase::Again | Phase::Unsent => Phase::Done,
                other => other,
            };
            usage.remove(entry);
            entry.phase = phase;
            usage.add(entry);
        }
        self.trim(usage);
        if offset > self.end {
            if exactly_once && self.doubt_in_session {
                let orphans = self.doubt.min(offset - self.end);
                for _ in 0..orphans {
                    let entry = Entry { offset: self.end, size: 0, nth: 0, phase: Phase::Recording };
                    self.dirty = true;
                    self.push(entry, usage);
                }
                self.doubt -= orphans;
            } else {
                self.doubt = self.doubt.saturating_sub(offset - self.end);
            }
            // With entries before it the gap must not move `end` beyond the span; the next offer comes back to it.
            if self.entries.is_empty() || offset - self.floor() < self.span {
                self.end = offset;
            }
        }
        self.next = self.next.max(offset.min(self.end));
    }

    /// Takes the offset into the window as sent (or refused at once); [`Lane::judge`] said `Send`.
    pub fn take(&mut self, offset: Offset, size: u32, nth: u64, phase: Phase, usage: &mut Usage) {
        if let Some(entry) = self.index(offset).and_then(|index| self.entries.get_mut(index)) {
            usage.remove(entry);
            *entry = Entry { offset, size, nth, phase };
            usage.add(entry);
        } else {
            self.push(Entry { offset, size, nth, phase }, usage);
            self.doubt = self.doubt.saturating_sub(1);
        }
        self.next = offset + 1;
    }

    /// Drops what is done from the front: the cursor moves over the contiguous part.
    pub fn trim(&mut self, usage: &mut Usage) {
        while self.entries.front().is_some_and(|entry| entry.phase == Phase::Done) {
            if let Some(entry) = self.entries.pop_front() {
                usage.remove(&entry);
            }
        }
        self.next = self.next.max(self.cursor());
    }

    /// The connection is gone: what was published on it may or may not have arrived.
    pub fn rewind(&mut self, usage: &mut Usage) {
        for entry in &mut self.entries {
            if entry.phase == Phase::Sent {
                usage.remove(entry);
                entry.phase = Phase::Maybe;
                usage.add(entry);
            }
        }
        self.next = self.cursor();
    }

    /// The peer has forgotten the session: what was published in it and is not done begins anew.
    pub fn forget_session(&mut self, usage: &mut Usage) {
        for entry in &mut self.entries {
            usage.remove(entry);
            entry.phase = match entry.phase {
                Phase::Done => Phase::Done,
                Phase::Refused { .. } => Phase::Refused { held: false },
                Phase::Unsent => Phase::Unsent,
                _ => Phase::Again,
            };
        }
        self.doubt_in_session = false;
        // What is done is written anew: the last record of it belongs to the session that is gone.
        self.dirty = !self.entries.is_empty() || self.cursor() > self.recorded;
        self.next = self.cursor();
    }

    /// Offsets that are released and durably so, in order.
    pub fn released(&self) -> impl Iterator<Item = Offset> + '_ {
        self.entries.iter().filter(|entry| entry.phase == Phase::Released).map(|entry| entry.offset)
    }

    /// Offsets whose release waits to be recorded, in order.
    pub fn recording(&self) -> impl Iterator<Item = Offset> + '_ {
        self.entries.iter().filter(|entry| entry.phase == Phase::Recording).map(|entry| entry.offset)
    }

    /// The entry that was sent first on this connection and has no answer.
    pub fn first_sent(&self) -> Option<Entry> {
        self.entries.iter().filter(|entry| entry.phase == Phase::Sent).min_by_key(|entry| entry.nth).copied()
    }

    /// The durable value: what is released or done from the cursor on.
    pub fn released_value(&self, session: u64) -> ReleasedV1 {
        let cursor = self.cursor();
        let mut runs: Vec<RunV1> = Vec::new();
        let mut add = |len: u64, state: RunState| match runs.last_mut() {
            _ if len == 0 => {}
            Some(run) if run.state == state => run.len = run.len.saturating_add(len as u32),
            _ => runs.push(RunV1 { len: len as u32, state }),
        };
        let mut at = cursor;
        for entry in &self.entries {
            add(entry.offset - at, RunState::Done); // offsets that are not there
            let state = match entry.phase {
                Phase::Recording | Phase::Released => RunState::Released,
                Phase::Done => RunState::Done,
                _ => RunState::Open,
            };
            add(1, state);
            at = entry.offset + 1;
        }
        while runs.last().is_some_and(|run| run.state == RunState::Open) {
            runs.pop();
        }
        ReleasedV1 { session, cursor, runs }
    }
}
