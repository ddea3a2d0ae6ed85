//! What the peer's answers mean for a link: acknowledgements with their reasons, refusals, closes.
//!
//! A failure code in PUBACK or PUBREC frees the identifier; what becomes of the record depends on the code:
//!
//! | code | taken as | what happens |
//! |---|---|---|
//! | 0x97 quota, 0x89 busy, 0x88, 0x96, 0x9F | not now | the connection is closed, backs off and offers the record again |
//! | 0x80 unspecified, 0x83 implementation specific (also NOT_ENOUGH_REPLICAS) | unclear | the same, five times; then for good |
//! | 0x91 identifier in use | our phases are not the session's | a new session; possible doubles are counted |
//! | all others (0x87, 0x90, 0x95, 0x99 …) | for good | dead-letter (or stop), the rest goes on |
//!
//! A 3.1.1 peer has no codes and refuses by closing [MQTT-3.3.5-2 of 3.1.1]: the first record without an answer is then the
//! suspect. After three closes at the same one, records are sent one at a time; the one at which it closes again is refused.

use super::backoff::Trouble;
use super::forward::{Connection, Link};
use super::lane::Phase;
use super::link::{DownKind, LinkAck, LinkAckKind, LinkDown, LinkGravity, LinkOrder, LinkOutput};
use crate::limits::{CLOSES_AT_HEAD_MAX, REFUSALS_UNSPECIFIC_MAX};
use crate::mqtt::Reason;
use crate::types::{Now, Offset, PartitionId};

/// What a failure code says about the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    NotNow,
    Unclear,
    OutOfStep,
    ForGood,
}

fn meaning(reason: Reason) -> Meaning {
    match reason {
        Reason::QUOTA_EXCEEDED
        | Reason::SERVER_BUSY
        | Reason::SERVER_UNAVAILABLE
        | Reason::MESSAGE_RATE_TOO_HIGH
        | Reason::CONNECTION_RATE_EXCEEDED => Meaning::NotNow,
        Reason::UNSPECIFIED | Reason::IMPLEMENTATION_SPECIFIC => Meaning::Unclear,
        Reason::PACKET_ID_IN_USE => Meaning::OutOfStep,
        _ => Meaning::ForGood,
    }
}

/// A failure code in words, for `status` and the dead-letter stream.
pub fn reason_words(reason: Reason) -> String {
    let words = match reason {
        Reason::UNSPECIFIED => "unspecified error",
        Reason::MALFORMED_PACKET => "malformed packet",
        Reason::PROTOCOL_ERROR => "protocol error",
        Reason::IMPLEMENTATION_SPECIFIC => "implementation specific error",
        Reason::UNSUPPORTED_VERSION => "unsupported protocol version",
        Reason::CLIENT_ID_NOT_VALID => "client identifier not valid",
        Reason::BAD_USERNAME_OR_PASSWORD => "bad user name or password",
        Reason::NOT_AUTHORIZED => "not authorized",
        Reason::SERVER_UNAVAILABLE => "server unavailable",
        Reason::SERVER_BUSY => "server busy",
        Reason::BANNED => "banned",
        Reason::SERVER_SHUTTING_DOWN => "server shutting down",
        Reason::BAD_AUTHENTICATION_METHOD => "bad authentication method",
        Reason::KEEP_ALIVE_TIMEOUT => "keep alive timeout",
        Reason::SESSION_TAKEN_OVER => "session taken over",
        Reason::TOPIC_NAME_INVALID => "topic name invalid",
        Reason::PACKET_ID_IN_USE => "packet identifier in use",
        Reason::RECEIVE_MAXIMUM_EXCEEDED => "receive maximum exceeded",
        Reason::TOPIC_ALIAS_INVALID => "topic alias invalid",
        Reason::PACKET_TOO_LARGE => "packet too large",
        Reason::MESSAGE_RATE_TOO_HIGH => "message rate too high",
        Reason::QUOTA_EXCEEDED => "quota exceeded",
        Reason::ADMINISTRATIVE_ACTION => "administrative action",
        Reason::PAYLOAD_FORMAT_INVALID => "payload format invalid",
        Reason::RETAIN_NOT_SUPPORTED => "retain not supported",
        Reason::QOS_NOT_SUPPORTED => "QoS not supported",
        Reason::USE_ANOTHER_SERVER => "use another server",
        Reason::SERVER_MOVED => "server moved",
        Reason::CONNECTION_RATE_EXCEEDED => "connection rate exceeded",
        Reason::MAXIMUM_CONNECT_TIME => "maximum connect time",
        _ => "refused",
    };
    format!("{words} (0x{:02x})", reason.0)
}

impl Link {
    pub(super) fn acks(&mut self, acks: Vec<LinkAck>, out: &mut Vec<LinkOutput>) {
        if !matches!(self.connection, Connection::Up { .. } | Connection::Closing) {
            return;
        }
        let mut release = Vec::new();
        for ack in acks {
            self.ack(ack, &mut release, out);
        }
        if !release.is_empty() && matches!(self.connection, Connection::Up { .. }) {
            out.push(LinkOutput::Order(LinkOrder::Release(release)));
        }
    }

    fn ack(&mut self, ack: LinkAck, release: &mut Vec<u16>, out: &mut Vec<LinkOutput>) {
        let found = self.by_packet_id(ack.packet_id);
        let phase = found.and_then(|(index, offset)| self.lanes.get(index)?.phase(offset?));
        let exactly_once = self.config.exactly_once;
        match (ack.kind, phase) {
            (LinkAckKind::PubAck, _) if exactly_once => self.out_of_step("PUBACK for a QoS 2 publish", out),
            (LinkAckKind::PubRec | LinkAckKind::PubComp, _) if !exactly_once => {
                self.out_of_step("PUBREC or PUBCOMP for a QoS 1 publish", out);
            }
            (LinkAckKind::PubAck | LinkAckKind::PubRec, Some(Phase::Sent)) => {
                let Some((index, Some(offset))) = found else { return };
                if ack.reason.is_failure() {
                    self.refused(index, offset, ack.reason, out);
                } else if exactly_once {
                    self.received(index, offset);
                } else {
                    self.done(index, offset);
                }
            }
            (LinkAckKind::PubComp, Some(Phase::Released)) => {
                // 0x92: it was completed before a crash or cut of ours; any other code ends the hand-shake as well.
                if let Some((index, Some(offset))) = found {
                    self.done(index, offset);
                }
            }
            // Asked again, or it holds an identifier that we are done with: PUBREL ends it [MQTT-4.3.3].
            (LinkAckKind::PubRec, Some(Phase::Released) | None) if !ack.reason.is_failure() => {
                release.push(ack.packet_id)
            }
            _ => {}
        }
    }

    fn received(&mut self, index: usize, offset: Offset) {
        if let Some(lane) = self.lanes.get_mut(index) {
            if lane.cursor() == offset {
                self.backoff.reset();
            }
            lane.set(offset, Phase::Recording, &mut self.usage);
            lane.dirty = true;
        }
        self.progress(index, offset);
    }

    fn done(&mut self, index: usize, offset: Offset) {
        if let Some(lane) = self.lanes.get_mut(index) {
            let before = lane.cursor();
            lane.set(offset, Phase::Done, &mut self.usage);
            lane.trim(&mut self.usage);
            self.counts.forwarded += 1;
            // Answers behind a record that the peer closes at are no reason to come back sooner: the oldest one decides.
            if lane.cursor() > before {
                self.backoff.reset();
            }
        }
        self.progress(index, offset);
    }

    fn progress(&mut self, index: usize, offset: Offset) {
        self.touch(index);
        let Some(partition) = self.lanes.get(index).map(|lane| lane.partition) else { return };
        if !self.attempts.is_empty() {
            self.attempts.remove(&(partition, offset));
        }
        if self.suspect.is_some_and(|(p, o, _)| (p, o) == (partition, offset)) {
            self.clear_suspect();
        }
    }

    pub(super) fn clear_suspect(&mut self) {
        self.suspect = None;
        self.alone = false;
    }

    fn out_of_step(&mut self, what: &str, out: &mut Vec<LinkOutput>) {
        self.session_valid = false;
        self.close(Some(Trouble::Network), format!("the peer and we are out of step ({what}): a new session"), out);
    }

    fn refused(&mut self, index: usize, offset: Offset, reason: Reason, out: &mut Vec<LinkOutput>) {
        let Some(partition) = self.lanes.get(index).map(|lane| lane.partition) else { return };
        let words = reason_words(reason);
        match meaning(reason) {
            Meaning::ForGood => self.refuse(index, offset, reason, words, false, out),
            Meaning::OutOfStep => self.out_of_step(&words, out),
            Meaning::Unclear if self.tried_enough(partition, offset) => {
                self.refuse(index, offset, reason, words, false, out);
            }
            Meaning::NotNow | Meaning::Unclear => {
                if let Some(lane) = self.lanes.get_mut(index) {
                    lane.set(offset, Phase::Unsent, &mut self.usage);
                }
                self.close(Some(Trouble::Busy), format!("the upstream does not take records now: {words}"), out);
            }
        }
    }

    fn tried_enough(&mut self, partition: PartitionId, offset: Offset) -> bool {
        let tries = self.attempts.entry((partition, offset)).or_insert(0);
        *tries += 1;
        *tries >= REFUSALS_UNSPECIFIC_MAX
    }

    /// The record will not be taken, ever. `held`: the peer may hold its identifier, which PUBREL must free.
    pub(super) fn refuse(
        &mut self,
        index: usize,
        offset: Offset,
        reason: Reason,
        text: String,
        held: bool,
        out: &mut Vec<LinkOutput>,
    ) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let partition = lane.partition;
        self.attempts.remove(&(partition, offset));
        if self.config.stop_on_refusal {
            lane.set(offset, if held { Phase::Maybe } else { Phase::Unsent }, &mut self.usage);
            self.stopped = true;
            let text = format!("stopped: record {offset} of partition {partition} was refused: {text}");
            out.push(LinkOutput::Event(LinkGravity::Error, text.clone()));
            self.close(None, text, out);
            return;
        }
        lane.set(offset, Phase::Refused { held: held && self.config.exactly_once }, &mut self.usage);
        self.counts.refused += 1;
        out.push(LinkOutput::Event(
            LinkGravity::Warning,
            format!("record {offset} of partition {partition} was refused for good: {text}"),
        ));
        out.push(LinkOutput::Refused { partition, offset, reason, text });
    }

    /// The refused record is in the dead-letter stream (or cannot be read any more): the cursor may pass it. What this hands out
    /// must join the same group as the dead-letter record, so that a crash doubles nothing there.
    pub fn settled(&mut self, now: Now, partition: PartitionId, offset: Offset, out: &mut Vec<LinkOutput>) {
        let Some(index) = self.lane_index(partition) else { return };
        if let Some(lane) = self.lanes.get_mut(index)
            && let Some(Phase::Refused { held }) = lane.phase(offset)
        {
            lane.set(offset, if held { Phase::Recording } else { Phase::Done }, &mut self.usage);
            lane.dirty = true;
        }
        self.touch(index);
        self.flush(now, out);
    }

    pub(super) fn down(&mut self, now: Now, down: LinkDown, out: &mut Vec<LinkOutput>) {
        if let Connection::Idle { .. } = self.connection {
            return;
        }
        self.was_good(now);
        let was_up = matches!(self.connection, Connection::Up { .. });
        self.connection = Connection::Idle { retry_ns: now.mono_ns };
        if down.kind == DownKind::ClosedInFlight && self.closing.is_none() {
            self.closed_in_flight(out);
        }
        for lane in &mut self.lanes {
            lane.rewind(&mut self.usage);
        }
        self.batch_dropped();
        let closing = self.closing.take();
        let trouble = match down.kind {
            DownKind::Ordered => closing,
            DownKind::Network | DownKind::ClosedInFlight => Some(closing.unwrap_or(Trouble::Network)),
            DownKind::Refused(reason) if meaning(reason) == Meaning::NotNow => Some(Trouble::Busy),
            DownKind::Refused(_) => Some(Trouble::Refused),
            DownKind::TakenOver => Some(Trouble::TakenOver),
        };
        let delay = trouble.map_or(0, |trouble| self.backoff.delay(trouble));
        self.connection = Connection::Idle { retry_ns: now.mono_ns.saturating_add(delay) };
        self.tell_down(down, closing.is_some(), was_up, out);
    }

    fn tell_down(&mut self, down: LinkDown, ours: bool, was_up: bool, out: &mut Vec<LinkOutput>) {
        if down.kind == DownKind::TakenOver {
            let text = "somebody else connects with our client identifier (a cloned gateway?): set client_id apart";
            out.push(LinkOutput::Event(LinkGravity::Error, text.into()));
        }
        if down.kind == DownKind::Ordered || ours {
            return; // the reason was given when it was ordered
        }
        // Told once: the same trouble at each further try is in `status`, not in the log.
        if was_up || self.reason.as_deref() != Some(down.reason.as_str()) {
            out.push(LinkOutput::Event(LinkGravity::Warning, format!("not connected: {}", down.reason)));
        }
        self.reason = Some(down.reason);
    }

    /// The connection ended without a word while records were in flight; see the module's head.
    fn closed_in_flight(&mut self, out: &mut Vec<LinkOutput>) {
        let first = self.lanes.iter().enumerate().filter_map(|(index, lane)| Some((index, lane.first_sent()?)));
        let Some((index, entry)) = first.min_by_key(|(_, entry)| entry.nth) else { return };
        let Some(partition) = self.lanes.get(index).map(|lane| lane.partition) else { return };
        if self.alone && self.usage.sent == 1 {
            self.clear_suspect();
            let text = "the upstream closes the connection whenever it is sent".into();
            self.refuse(index, entry.offset, Reason::UNSPECIFIED, text, true, out);
            return;
        }
        let closes = match self.suspect {
            Some((p, offset, closes)) if (p, offset) == (partition, entry.offset) => closes.saturating_add(1),
            _ => 1,
        };
        self.suspect = Some((partition, entry.offset, closes));
        if closes >= CLOSES_AT_HEAD_MAX {
            self.alone = true;
        }
    }
}
