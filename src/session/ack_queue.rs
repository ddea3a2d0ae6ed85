//! Who waits for which commit. One queue per I/O thread; acknowledgements leave it in the order in which they were pushed.
//!
//! A receiver answers PUBLISH packets of one QoS in the order in which they came [MQTT-4.6.0-2] [MQTT-4.6.0-3], so within a
//! connection nothing overtakes. The queue is one line for all connections of the thread: frames are synced in order, so
//! everything behind the first entry that still waits waits as well. An acknowledgement takes 16 bytes; consecutive ones of a
//! connection with the same gate share one entry, so that the caller looks a connection up once per run.

use crate::mqtt::{Ack, Packet, Reason};
use crate::types::{ConnId, Seq};
use foldhash::fast::FixedState;
use std::collections::{HashMap, VecDeque};

/// The gate of what may leave at once: nothing has to be synced for it.
pub const OPEN: Seq = 0;

/// Acknowledgements of one I/O thread that wait for a commit.
///
/// Bounded by what the engine lets in: at most one entry for each publish that is appended and not committed.
#[derive(Debug, Default)]
pub struct AckQueue {
    runs: VecDeque<Run>,
    waiting: VecDeque<Waiting>,
    /// Gate of the last entry of each connection that ever waited here, until [`AckQueue::forget`]. Connection numbers are ours,
    /// so nobody can choose them to collide.
    last_gates: HashMap<ConnId, Seq, FixedState>,
    committed: Seq,
}

/// Consecutive entries of `waiting` that go to one connection at one moment.
#[derive(Debug)]
struct Run {
    conn: ConnId,
    gate: Seq,
    len: usize,
}

/// An acknowledgement as it waits: small in the usual case.
#[derive(Debug)]
enum Waiting {
    PubAck(u16, Reason),
    PubRec(u16, Reason),
    PubRel(u16, Reason),
    PubComp(u16, Reason),
    Whole(Box<Packet>),
}

const _: () = assert!(size_of::<Waiting>() <= 16);

impl Waiting {
    fn new(packet: Packet) -> Self {
        match packet {
            Packet::PubAck(Ack { packet_id, reason, properties: None }) => Self::PubAck(packet_id, reason),
            Packet::PubRec(Ack { packet_id, reason, properties: None }) => Self::PubRec(packet_id, reason),
            Packet::PubRel(Ack { packet_id, reason, properties: None }) => Self::PubRel(packet_id, reason),
            Packet::PubComp(Ack { packet_id, reason, properties: None }) => Self::PubComp(packet_id, reason),
            other => Self::Whole(Box::new(other)),
        }
    }

    fn into_packet(self) -> Packet {
        match self {
            Self::PubAck(packet_id, reason) => Packet::PubAck(Ack::new(packet_id, reason)),
            Self::PubRec(packet_id, reason) => Packet::PubRec(Ack::new(packet_id, reason)),
            Self::PubRel(packet_id, reason) => Packet::PubRel(Ack::new(packet_id, reason)),
            Self::PubComp(packet_id, reason) => Packet::PubComp(Ack::new(packet_id, reason)),
            Self::Whole(packet) => *packet,
        }
    }
}

impl AckQueue {
    /// An empty queue; it takes no memory until something waits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes an acknowledgement whose frame is `gate`, or [`OPEN`]. `Some` gives it back: nothing of this connection waits and the
    /// gate is passed, so it is to be sent at once.
    pub fn push(&mut self, conn: ConnId, packet: Packet, gate: Seq) -> Option<Packet> {
        if gate <= self.committed && self.last_gates.get(&conn).is_none_or(|last| *last <= self.committed) {
            return Some(packet);
        }
        // Frames of one group are synced together, so waiting for the highest gate so far costs no time.
        let gate = self.runs.back().map_or(gate, |last| last.gate.max(gate));
        self.waiting.push_back(Waiting::new(packet));
        if let Some(last) = self.runs.back_mut()
            && last.conn == conn
            && last.gate == gate
        {
            last.len += 1;
            return None;
        }
        self.runs.push_back(Run { conn, gate, len: 1 });
        self.last_gates.insert(conn, gate);
        None
    }

    /// Everything up to frame `committed` is synced: hands over what waited for it, in order. `deliver` gets each connection with
    /// a run of packets, which it may leave unread (the connection is gone). A number lower than an earlier one changes nothing.
    pub fn release(&mut self, committed: Seq, mut deliver: impl FnMut(ConnId, &mut dyn Iterator<Item = Packet>)) {
        self.committed = self.committed.max(committed);
        while let Some(run) = self.runs.pop_front_if(|run| run.gate <= self.committed) {
            let mut packets = self.waiting.drain(..run.len.min(self.waiting.len())).map(Waiting::into_packet);
            deliver(run.conn, &mut packets);
        }
    }

    /// The connection is gone: what still waits for it will be handed over in its turn, and is to be dropped there.
    pub fn forget(&mut self, conn: ConnId) {
        self.last_gates.remove(&conn);
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Acknowledgements that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The gate that must be passed before anything more can leave.
    pub fn next_gate(&self) -> Option<Seq> {
        self.runs.front().map(|run| run.gate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::properties::AckProperties;
    use crate::mqtt::{SubAck, Text};
    use proptest::prelude::*;

    fn puback(packet_id: u16) -> Packet {
        Packet::PubAck(Ack::new(packet_id, Reason::SUCCESS))
    }

    fn released(queue: &mut AckQueue, committed: Seq) -> Vec<(u64, Packet)> {
        let mut out = Vec::new();
        queue.release(committed, |conn, packets| out.extend(packets.map(|packet| (conn.0, packet))));
        out
    }

    #[test]
    fn nothing_leaves_before_its_frame_is_synced() {
        let mut queue = AckQueue::new();
        assert_eq!(queue.push(ConnId(1), puback(1), 5), None);
        assert!(released(&mut queue, 4).is_empty());
        assert_eq!(released(&mut queue, 5), [(1, puback(1))]);
        assert!(queue.is_empty());
    }

    #[test]
    fn an_open_gate_leaves_at_once_unless_something_of_its_connection_waits() {
        let mut queue = AckQueue::new();
        assert_eq!(queue.push(ConnId(1), puback(1), OPEN), Some(puback(1)));
        assert_eq!(queue.push(ConnId(1), puback(2), 7), None);
        assert_eq!(queue.push(ConnId(1), puback(3), OPEN), None);
        assert_eq!(queue.push(ConnId(2), puback(4), OPEN), Some(puback(4)));
        assert_eq!(released(&mut queue, 7), [(1, puback(2)), (1, puback(3))]);
        assert_eq!(queue.push(ConnId(1), puback(5), 6), Some(puback(5)));
    }

    #[test]
    fn every_kind_comes_out_as_it_went_in() {
        let properties = Some(Box::new(AckProperties { reason_string: Some(Text::from("x")), user: Vec::new() }));
        let packets = vec![
            puback(1),
            Packet::PubRec(Ack::new(2, Reason::NO_MATCHING_SUBSCRIBERS)),
            Packet::PubRel(Ack::new(3, Reason::SUCCESS)),
            Packet::PubComp(Ack::new(4, Reason::PACKET_ID_NOT_FOUND)),
            Packet::PubAck(Ack { packet_id: 5, reason: Reason::SUCCESS, properties }),
            Packet::SubAck(Box::new(SubAck {
                packet_id: 6,
                reasons: vec![Reason(1)],
                properties: AckProperties::default(),
            })),
        ];
        let mut queue = AckQueue::new();
        packets.iter().for_each(|packet| assert_eq!(queue.push(ConnId(9), packet.clone(), 1), None));
        assert_eq!(queue.runs.len(), 1, "one entry for the whole run");
        let out: Vec<_> = released(&mut queue, 1).into_iter().map(|(_, packet)| packet).collect();
        assert_eq!(out, packets);
    }

    #[test]
    fn what_a_gone_connection_left_behind_does_not_mix_with_others() {
        let mut queue = AckQueue::new();
        queue.push(ConnId(1), puback(1), 3);
        queue.push(ConnId(1), puback(2), 3);
        queue.push(ConnId(2), puback(3), 3);
        queue.forget(ConnId(1));
        let mut out = Vec::new();
        queue.release(3, |conn, packets| {
            if conn != ConnId(1) {
                out.extend(packets);
            }
        });
        assert_eq!(out, [puback(3)]);
        assert_eq!(queue.len(), 0);
    }

    proptest! {
        /// Order within each connection, nothing early, nothing lost, nothing twice.
        #[test]
        fn order_and_gates_hold_for_any_mix(
            events in prop::collection::vec((0u64..4, 0u64..6, prop::option::of(0u64..4)), 1..200)
        ) {
            let mut queue = AckQueue::new();
            let (mut sealed, mut committed) = (1u64, 0u64);
            let mut pushed: Vec<Vec<(u16, u64)>> = vec![Vec::new(); 4];
            let mut came: Vec<Vec<u16>> = vec![Vec::new(); 4];
            for (number, (conn, back, commit)) in (1u16..).zip(events) {
                let gate = if back == 5 { OPEN } else { sealed.saturating_sub(back).max(1) };
                pushed[conn as usize].push((number, gate));
                if let Some(packet) = queue.push(ConnId(conn), puback(number), gate) {
                    prop_assert!(gate <= committed);
                    prop_assert_eq!(packet, puback(number));
                    came[conn as usize].push(number);
                }
                if let Some(step) = commit {
                    committed = (committed + step).min(sealed);
                    for (conn, packet) in released(&mut queue, committed) {
                        let Packet::PubAck(ack) = packet else { unreachable!() };
                        let gate = pushed[conn as usize].iter().find(|(id, _)| *id == ack.packet_id).unwrap().1;
                        prop_assert!(gate <= committed);
                        came[conn as usize].push(ack.packet_id);
                    }
                    sealed += 1;
                }
            }
            for (conn, packet) in released(&mut queue, u64::MAX) {
                let Packet::PubAck(ack) = packet else { unreachable!() };
                came[conn as usize].push(ack.packet_id);
            }
            let want: Vec<Vec<u16>> = pushed.iter().map(|acks| acks.iter().map(|(id, _)| *id).collect()).collect();
            prop_assert_eq!(came, want);
        }
    }
}
