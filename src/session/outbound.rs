//! QoS 1 and 2 to a client: packet identifiers, phases, and how far the session is.
//!
//! No message is kept here: an entry names the log position at which its record stands. When the client returns, PUBRELs leave at
//! once and the log is read again from the cursor; a record whose entry is still in its first phase leaves with the same identifier
//! and DUP [MQTT-4.4.0-1], one that is done is passed over. Records in flight keep going when their subscription is gone
//! [MQTT-3.10.4-3].
//!
//! Order for the reader: ask [`Outbound::is_full`], then [`Outbound::overtaken`] and [`Outbound::offer`] for every record that it
//! passes, and [`Outbound::send`] where that answers `New` and a subscription at QoS 1 or 2 matches.

use crate::limits::OUTBOUND_BEYOND_MAX;
use crate::mqtt::{QoS, Reason};
use crate::types::LogPosition;
use std::collections::VecDeque;

/// The state of one session. A few words as long as nothing is in flight.
#[derive(Debug)]
pub struct Outbound {
    /// In the order of their positions; done ones stay only behind one that is not.
    entries: VecDeque<Entry>,
    /// The identifier given last.
    last_id: u16,
    /// So many identifiers after it are known to be free.
    free_ids: u16,
    /// The client's Receive Maximum, within ours [MQTT-3.3.4-9].
    max: u16,
    /// Entries sent on this connection and not done.
    in_flight: u16,
    /// Entries that wait for the reader to come by again.
    again: u16,
    /// The reader has been at everything below.
    offered_to: LogPosition,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Sequence 0 for a message that is not stored: no frame has it.
    position: LogPosition,
    packet_id: u16,
    phase: Phase,
    /// Not sent on this connection yet.
    again: bool,
}

const _: () = assert!(size_of::<Entry>() <= 24);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// QoS 1, waits for PUBACK.
    Publish1,
    /// QoS 2, waits for PUBREC.
    Publish2,
    /// QoS 2, PUBREL sent, waits for PUBCOMP.
    Release,
    Done,
}

/// What a record is to the session when its reader passes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// Not offered before: the subscriptions decide.
    New,
    /// In flight from a former connection: to be sent with this identifier, this QoS and DUP.
    Again {
        /// Its packet identifier.
        packet_id: u16,
        /// 1 or 2.
        qos: QoS,
    },
    /// Done, under way, or sent at QoS 0 before: nothing is to be done.
    Done,
}

/// What an acknowledgement of the client means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acked {
    /// The message is done.
    Done,
    /// PUBREL is to be sent.
    Release,
    /// There is no such identifier. A PUBREC is answered by PUBREL all the same, in MQTT 5 with 0x92; others by nothing.
    Unknown,
    /// It is the wrong packet for that identifier's QoS or phase: a protocol error.
    Wrong,
}

/// Entries whose records the reader will not meet again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overtaken {
    /// QoS 1 messages given up: lost to this session, unless the client had them.
    pub lost: usize,
    /// QoS 2 messages given up: PUBREL is to be sent, so that the client forgets the identifier.
    pub release: Vec<u16>,
}

impl Outbound {
    /// Of a new session, to which so many messages may be in flight.
    pub fn new(max: u16) -> Self {
        Self::restore(max, LogPosition::default(), &[])
    }

    /// Of a session read from the log: everything below `cursor` is done, and what stands in `beyond`, ascending.
    pub fn restore(max: u16, cursor: LogPosition, beyond: &[LogPosition]) -> Self {
        let done =
            |position: &LogPosition| Entry { position: *position, packet_id: 0, phase: Phase::Done, again: false };
        Self {
            entries: beyond.iter().take(OUTBOUND_BEYOND_MAX).map(done).collect(),
            last_id: 0,
            free_ids: u16::MAX,
            max: max.max(1),
            in_flight: 0,
            again: 0,
            offered_to: cursor,
        }
    }

    /// The next identifier follows this one.
    pub fn begin_ids_after(&mut self, last: u16) {
        self.last_id = last;
    }

    /// Whether no further message at QoS 1 or 2 may leave now. The reader stops before the next record then.
    pub fn is_full(&self) -> bool {
        let crowded = self.entries.len() >= usize::from(self.max) + OUTBOUND_BEYOND_MAX;
        self.in_flight >= self.max || (crowded && self.again == 0)
    }

    /// Messages sent on this connection and not done.
    pub fn in_flight(&self) -> usize {
        usize::from(self.in_flight)
    }

    /// Takes a packet identifier for a message at QoS 1 or 2, which stands at `position` if it is stored. `None`: full.
    pub fn send(&mut self, qos: QoS, position: Option<LogPosition>) -> Option<u16> {
        let every_id_in_use = self.in_flight.saturating_add(self.again) == u16::MAX;
        if self.is_full() || every_id_in_use {
            return None;
        }
        let packet_id = self.next_id();
        let phase = if qos == QoS::ExactlyOnce { Phase::Publish2 } else { Phase::Publish1 };
        let entry = Entry { position: position.unwrap_or_default(), packet_id, phase, again: false };
        // The last one in nearly all cases; only what a restored cursor had beyond it stands further on.
        let behind = |other: &&Entry| position.is_some_and(|position| other.position > position);
        let place = self.entries.len() - self.entries.iter().rev().take_while(behind).count();
        self.entries.insert(place, entry);
        self.in_flight += 1;
        if let Some(position) = position {
            self.offered_to = self.offered_to.max(after(position));
        }
        Some(packet_id)
    }

    /// The reader passes a record.
    pub fn offer(&mut self, position: LogPosition) -> Passed {
        let new = position >= self.offered_to;
        if new && self.entries.back().is_none_or(|last| last.position < position) {
            self.offered_to = after(position);
            return Passed::New;
        }
        let found = self.entries.iter_mut().find(|entry| entry.position >= position);
        let passed = match found.filter(|entry| entry.position == position) {
            None if new => Passed::New,
            Some(entry) if entry.again => {
                entry.again = false;
                let qos = if entry.phase == Phase::Publish2 { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
                let packet_id = entry.packet_id;
                self.again -= 1;
                self.in_flight += 1;
                Passed::Again { packet_id, qos }
            }
            _ => Passed::Done,
        };
        self.offered_to = self.offered_to.max(after(position));
        self.settle();
        passed
    }

    /// The reader is at `position` and will not come back: entries below that wait for it are given up, as their records are gone.
    pub fn overtaken(&mut self, position: LogPosition) -> Overtaken {
        let mut overtaken = Overtaken::default();
        if self.again == 0 {
            return overtaken;
        }
        for entry in self.entries.iter_mut().filter(|entry| entry.again && entry.position < position) {
            entry.again = false;
            self.again -= 1;
            if entry.phase == Phase::Publish2 {
                entry.phase = Phase::Release;
                self.in_flight += 1;
                overtaken.release.push(entry.packet_id);
            } else {
                entry.phase = Phase::Done;
                overtaken.lost += 1;
            }
        }
        self.settle();
        overtaken
    }

    /// PUBACK. One with a failure ends the message as well [MQTT-4.4.0-2].
    pub fn puback(&mut self, packet_id: u16) -> Acked {
        self.acked(packet_id, |phase| match phase {
            Phase::Publish1 => Some(Phase::Done),
            _ => None,
        })
    }

    /// PUBREC. One with a failure ends the message [MQTT-4.3.3-4].
    pub fn pubrec(&mut self, packet_id: u16, reason: Reason) -> Acked {
        self.acked(packet_id, |phase| match phase {
            Phase::Publish2 | Phase::Release if reason.is_failure() => Some(Phase::Done),
            Phase::Publish2 | Phase::Release => Some(Phase::Release),
            _ => None,
        })
    }

    /// PUBCOMP.
    pub fn pubcomp(&mut self, packet_id: u16) -> Acked {
        self.acked(packet_id, |phase| match phase {
            Phase::Release => Some(Phase::Done),
            _ => None,
        })
    }

    /// The client is back with this maximum: the identifiers whose PUBREL is to be sent at once, in order. Reading begins anew at
    /// [`Outbound::cursor`]. What is not stored cannot be sent again: at QoS 2 it is released, so that its identifier is not taken for
    /// a duplicate later.
    pub fn resume(&mut self, max: u16) -> Vec<u16> {
        self.max = max.max(1);
        (self.in_flight, self.again) = (0, 0);
        let mut release = Vec::new();
        for entry in &mut self.entries {
            entry.again = false;
            match entry.phase {
                Phase::Publish1 | Phase::Publish2 if entry.position.seq > 0 => {
                    entry.again = true;
                    self.again += 1;
                }
                Phase::Publish1 => entry.phase = Phase::Done,
                Phase::Publish2 | Phase::Release => {
                    entry.phase = Phase::Release;
                    self.in_flight += 1;
                    release.push(entry.packet_id);
                }
                Phase::Done => {}
            }
        }
        self.settle();
        release
    }

    /// Everything below this position is done. Where nothing is open it is the reader's own place.
    pub fn cursor(&self) -> LogPosition {
        let open = |entry: &&Entry| entry.phase != Phase::Done && entry.position.seq > 0;
        self.entries.iter().find(open).map_or(self.offered_to, |entry| entry.position.min(self.offered_to))
    }

    /// The reader has come to `position` without a record in between that concerns this session.
    pub fn reached(&mut self, position: LogPosition) {
        self.offered_to = self.offered_to.max(position);
        self.settle();
    }

    /// Positions beyond the cursor that are done, ascending.
    pub fn beyond(&self) -> impl Iterator<Item = LogPosition> {
        let cursor = self.cursor();
        let done = move |entry: &&Entry| entry.phase == Phase::Done && entry.position > cursor;
        self.entries.iter().filter(done).map(|entry| entry.position)
    }

    /// Whether entries still wait for the reader to come by again.
    pub fn is_replaying(&self) -> bool {
        self.again > 0
    }

    fn acked(&mut self, packet_id: u16, next: impl FnOnce(Phase) -> Option<Phase>) -> Acked {
        let live = |entry: &&mut Entry| entry.packet_id == packet_id && entry.phase != Phase::Done;
        let Some(entry) = self.entries.iter_mut().find(live) else { return Acked::Unknown };
        let Some(phase) = next(entry.phase) else { return Acked::Wrong };
        entry.phase = phase;
        if core::mem::take(&mut entry.again) {
            // Acknowledged before it was sent again: it had arrived, and now counts as sent.
            self.again -= 1;
            self.in_flight += 1;
        }
        if phase == Phase::Release {
            return Acked::Release;
        }
        self.in_flight -= 1;
        self.settle();
        Acked::Done
    }

    /// Lets go of what is done at the front, as far as the reader has been there.
    fn settle(&mut self) {
        let to = self.offered_to;
        let passed = |entry: &mut Entry| entry.position < to || entry.position.seq == 0;
        while self.entries.pop_front_if(|entry| entry.phase == Phase::Done && passed(entry)).is_some() {}
        if self.entries.is_empty() && self.entries.capacity() > 64 {
            self.entries = VecDeque::new();
        }
    }

    /// The next identifier that no entry has. There is one, as there are fewer entries that are not done than identifiers.
    fn next_id(&mut self) -> u16 {
        while self.free_ids == 0 {
            let next = following(self.last_id);
            // How far the nearest one in use is ahead; looked at once per lap in the usual case.
            let live = self.entries.iter().filter(|entry| entry.phase != Phase::Done);
            let ahead =
                |entry: &Entry| entry.packet_id.checked_sub(next).unwrap_or_else(|| u16::MAX - next + entry.packet_id);
            self.free_ids = live.map(ahead).min().unwrap_or(u16::MAX);
            if self.free_ids == 0 {
                self.last_id = next;
            }
        }
        self.free_ids -= 1;
        self.last_id = following(self.last_id);
        self.last_id
    }
}

/// The first position after this one.
fn after(position: LogPosition) -> LogPosition {
    LogPosition { seq: position.seq, index: position.index.saturating_add(1) }
}

/// The identifier after this one; there is no 0 [MQTT-2.2.1-4].
fn following(packet_id: u16) -> u16 {
    packet_id.checked_add(1).unwrap_or(1)
}

#[cfg(test)]
mod tests;
