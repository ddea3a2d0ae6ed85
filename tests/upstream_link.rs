//! What a link promises, against a simulated peer: crashes, cuts, lost sessions, small windows, refusals, gaps; seeded
//! (FOREBAY_SEEDS says how many, FOREBAY_TRACE shows every packet).
//!
//! The model: the log is a list of offsets per partition (with gaps); control records are durable once the simulated commit comes
//! by, and a crash forgets those that are not; the network keeps order and may be cut at any byte boundary between packets; the
//! peer keeps a session with the identifiers that it holds (method A of MQTT 4.3.3: it delivers at PUBREL).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic; clippy sees only #[test] functions as tests, not what they call"
)]

use bytes::Bytes;
use forebay::mqtt::{Publish, QoS, Reason, Text};
use forebay::replication::Link;
use forebay::replication::backoff::Draw;
use forebay::replication::durable::StateKind;
use forebay::replication::link::{
    DownKind, LaneStart, LinkAck, LinkAckKind, LinkConfig, LinkDown, LinkEvent, LinkOrder, LinkOutput, Want,
};
use forebay::types::{LogId, Now, Offset, PartitionId, Seq, StreamId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

type Key = (StateKind, Vec<u8>);
type State = BTreeMap<Key, Vec<u8>>;

/// What the peer does besides obeying.
#[derive(Clone, Copy)]
struct Habits {
    exactly_once: bool,
    receive_maximum: u16,
    /// Of 1000: how often in a step something happens.
    crash: u64,
    cut: u64,
    lose_session: u64,
    /// Of 1000 publishes: refused with 0x97 (not now), 0x87 (for good).
    not_now: u64,
    for_good: u64,
    partitions: u16,
    /// Partitions in which nothing happens, which make the ranges of identifiers small.
    idle: u16,
    /// Of 1000 offsets: a gap of some size follows.
    gaps: u64,
    /// Of 1000 steps: a record that may be in flight is gone from the log (expired, damaged).
    vanish: u64,
    /// Of 1000 records: the peer closes the connection when it gets it.
    poison: u64,
}

const PLAIN: Habits = Habits {
    exactly_once: true,
    receive_maximum: 20,
    crash: 3,
    cut: 8,
    lose_session: 0,
    not_now: 0,
    for_good: 0,
    partitions: 1,
    idle: 0,
    gaps: 0,
    vanish: 0,
    poison: 0,
};

#[derive(Clone, Debug)]
enum Up {
    Publish { id: u16, key: (u16, Offset), dup: bool },
    Release(u16),
}

/// The session that the peer keeps for us, and what came of it.
#[derive(Default)]
struct Peer {
    /// Identifiers received and not released, with their message.
    held: BTreeMap<u16, (u16, Offset)>,
    has_session: bool,
    delivered: Vec<(u16, Offset)>,
    had: BTreeSet<(u16, Offset)>,
    refused: BTreeSet<(u16, Offset)>,
    poison: BTreeSet<(u16, Offset)>,
    judged: BTreeSet<(u16, Offset)>,
    /// Of this connection: published and not fully acknowledged.
    open: BTreeSet<u16>,
    most_open: usize,
}

impl Peer {
    fn deliver(&mut self, key: (u16, Offset)) {
        self.delivered.push(key);
        self.had.insert(key);
    }
}

struct World {
    draw: Draw,
    habits: Habits,
    now_ns: u64,
    log: Vec<Vec<Offset>>,
    written: Vec<Offset>,
    durable: State,
    /// (seq, change), not yet synced.
    unsynced: VecDeque<(Seq, Key, Vec<u8>)>,
    seq: Seq,
    link: Link,
    peer: Peer,
    connected: bool,
    to_peer: VecDeque<Up>,
    to_link: VecDeque<LinkAck>,
    /// All records in the order of writing, and where the reader is.
    order: Vec<(u16, Offset)>,
    reader: usize,
    dead: Vec<(u16, Offset)>,
    cursors: Vec<Offset>,
    sessions_lost: u64,
    settled: BTreeSet<(u16, Offset)>,
    refusals_pending: Vec<(u16, Offset)>,
    trace: Vec<String>,
}

fn partition(number: u16) -> PartitionId {
    PartitionId { stream: StreamId(1), partition: number }
}

fn publish() -> Publish {
    Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: Text::from_static("t"),
        packet_id: 0,
        properties: None,
        payload: Bytes::new(),
    }
}

impl World {
    fn new(seed: u64, habits: Habits) -> Self {
        let mut draw = Draw::new(seed);
        let partitions = usize::from(habits.partitions);
        let link = Self::link(habits, &State::new(), draw.draw(), &vec![0; partitions]);
        Self {
            draw,
            habits,
            now_ns: 0,
            log: vec![Vec::new(); partitions],
            written: vec![0; partitions],
            durable: State::new(),
            unsynced: VecDeque::new(),
            seq: 1,
            link,
            peer: Peer::default(),
            connected: false,
            to_peer: VecDeque::new(),
            to_link: VecDeque::new(),
            order: Vec::new(),
            reader: 0,
            dead: Vec::new(),
            cursors: vec![0; partitions],
            sessions_lost: 0,
            settled: BTreeSet::new(),
            refusals_pending: Vec::new(),
            trace: Vec::new(),
        }
    }

    fn link(habits: Habits, durable: &State, seed: u64, ends: &[Offset]) -> Link {
        let config = LinkConfig {
            name: "dc".into(),
            exactly_once: habits.exactly_once,
            peer: "dc:1883/gw/5".into(),
            log_id: LogId([1; 16]),
            window: 64,
            window_bytes: 1 << 20,
            stop_on_refusal: false,
            seed,
        };
        let ends = ends.iter().copied().chain(std::iter::repeat_n(0, usize::from(habits.idle)));
        let starts: Vec<LaneStart> =
            ends.zip(0..).map(|(end, number)| LaneStart { partition: partition(number), start: 0, end }).collect();
        Link::new(config, &starts, &mut |kind, key| durable.get(&(kind, key.to_vec())).cloned()).unwrap()
    }

    fn now(&self) -> Now {
        Now { mono_ns: self.now_ns, wall_ms: None, wall_synced: false }
    }

    fn chance(&mut self, of_1000: u64) -> bool {
        self.draw.draw() % 1000 < of_1000
    }

    fn note(&mut self, text: String) {
        if std::env::var("FOREBAY_TRACE").is_ok() {
            eprintln!("{text}");
        }
        if self.trace.len() > 400 {
            self.trace.remove(0);
        }
        self.trace.push(text);
    }

    /// The engine's part: carries the outputs out.
    fn carry_out(&mut self, outputs: Vec<LinkOutput>) {
        let mut recorded = false;
        for output in outputs {
            match output {
                LinkOutput::Order(order) => self.order(order),
                LinkOutput::State(change) => {
                    recorded = true;
                    self.unsynced.push_back((self.seq, (change.kind, change.key), change.value));
                }
                LinkOutput::Cursor { partition, offset } => {
                    let number = partition.partition;
                    let before = std::mem::replace(&mut self.cursors[usize::from(number)], offset);
                    assert!(offset > before, "the cursor went from {before} to {offset}");
                    for passed in self.log[usize::from(number)].iter().filter(|o| (before..offset).contains(o)) {
                        assert!(
                            self.peer.had.contains(&(number, *passed)) || self.settled.contains(&(number, *passed)),
                            "the cursor of {number} passed {passed}, which was not acknowledged"
                        );
                    }
                }
                LinkOutput::Refused { partition, offset, .. } => {
                    self.refusals_pending.push((partition.partition, offset));
                }
                LinkOutput::Rewind => self.rewind(),
                LinkOutput::Event(..) => {}
            }
        }
        if recorded {
            self.link.recorded(self.seq);
            self.seq += 1;
        }
    }

    fn order(&mut self, order: LinkOrder) {
        match order {
            LinkOrder::Connect { clean_start } => {
                assert!(!self.connected);
                if self.chance(200) {
                    self.down(DownKind::Network);
                    return;
                }
                if clean_start {
                    self.peer.held.clear();
                    self.peer.has_session = false;
                }
                let session_present = self.peer.has_session;
                self.peer.has_session = true;
                self.connected = true;
                // The specification counts per connection. Mosquitto counts what it still holds as well, and that is kept to, except
                // where a record was refused or is gone and the crash came before that was durable: its place was taken already.
                self.peer.open.clear();
                if self.habits.vanish == 0 && self.habits.for_good == 0 {
                    self.peer.open.extend(self.peer.held.keys().copied());
                }
                self.note(format!("up present={session_present} clean={clean_start}"));
                let receive_maximum = self.habits.receive_maximum;
                self.event(LinkEvent::Up { session_present, receive_maximum, maximum_packet_size: 1_000 });
            }
            LinkOrder::Disconnect { .. } => {
                if self.connected {
                    self.down(DownKind::Ordered);
                }
            }
            LinkOrder::Publish(publishes) => {
                assert!(self.connected);
                for publish in publishes {
                    let key: Vec<u64> = publish.topic.as_str().split('/').map(|part| part.parse().unwrap()).collect();
                    let up = Up::Publish { id: publish.packet_id, key: (key[0] as u16, key[1]), dup: publish.dup };
                    self.to_peer.push_back(up);
                }
            }
            LinkOrder::Release(ids) => self.to_peer.extend(ids.into_iter().map(Up::Release)),
        }
    }

    fn event(&mut self, event: LinkEvent) {
        let mut outputs = Vec::new();
        self.link.on_event(self.now(), event, &mut outputs);
        self.carry_out(outputs);
    }

    fn down(&mut self, kind: DownKind) {
        self.note(format!("down {kind:?}"));
        self.connected = false;
        self.to_peer.clear();
        self.to_link.clear();
        self.event(LinkEvent::Down(LinkDown { reason: "cut".into(), kind }));
    }

    /// The peer takes one packet.
    fn peer_step(&mut self) {
        let Some(up) = self.to_peer.pop_front() else { return };
        self.note(format!("peer {up:?}"));
        let exactly_once = self.habits.exactly_once;
        match up {
            Up::Publish { key, .. } if self.poisoned(key) => self.down(DownKind::ClosedInFlight),
            Up::Publish { id, key, dup } => {
                self.peer.open.insert(id);
                self.peer.most_open = self.peer.most_open.max(self.peer.open.len());
                let mut reason = Reason::SUCCESS;
                if let Some(held) = self.peer.held.get(&id) {
                    assert_eq!(*held, key, "identifier {id} is held for another record: it would swallow this one");
                } else if self.peer.refused.contains(&key) || self.chance(self.habits.for_good) {
                    self.peer.refused.insert(key);
                    reason = Reason::NOT_AUTHORIZED;
                } else if self.chance(self.habits.not_now) {
                    reason = Reason::QUOTA_EXCEEDED;
                } else if exactly_once {
                    assert!(!self.peer.had.contains(&key) || self.sessions_lost > 0, "{key:?} again, dup {dup}");
                    self.peer.held.insert(id, key);
                } else {
                    self.peer.deliver(key);
                }
                if reason.is_failure() || !exactly_once {
                    self.peer.open.remove(&id);
                }
                let kind = if exactly_once { LinkAckKind::PubRec } else { LinkAckKind::PubAck };
                self.to_link.push_back(LinkAck { packet_id: id, kind, reason });
            }
            Up::Release(id) => {
                self.peer.open.remove(&id);
                let reason = match self.peer.held.remove(&id) {
                    Some(key) => {
                        self.peer.deliver(key);
                        Reason::SUCCESS
                    }
                    None => Reason::PACKET_ID_NOT_FOUND,
                };
                self.to_link.push_back(LinkAck { packet_id: id, kind: LinkAckKind::PubComp, reason });
            }
        }
    }

    fn poisoned(&mut self, key: (u16, Offset)) -> bool {
        if self.peer.judged.insert(key) && self.chance(self.habits.poison) {
            self.peer.poison.insert(key);
        }
        self.peer.poison.contains(&key)
    }

    /// Acknowledgements reach the link.
    fn acks(&mut self) {
        let count = (self.draw.draw() % 8) as usize;
        let acks: Vec<LinkAck> = (0..count).filter_map(|_| self.to_link.pop_front()).collect();
        if acks.is_empty() {
            return;
        }
        self.note(format!("acks {acks:?}"));
        self.event(LinkEvent::Acks(acks));
    }

    /// The reader's part: offers what the window takes, in log order.
    fn pump(&mut self) {
        let mut outputs = Vec::new();
        let mut more = self.link.room() > 0;
        while let (true, Some((number, offset))) = (more, self.order.get(self.reader).copied()) {
            match self.link.want(partition(number), offset) {
                Want::Pass => self.reader += 1,
                Want::Full => more = false,
                Want::Send => {
                    let mut message = publish();
                    message.topic = Text::from(format!("{number}/{offset}"));
                    assert!(self.link.offer(partition(number), offset, message, 100, &mut outputs));
                    self.reader += 1;
                }
            }
        }
        self.link.flush(self.now(), &mut outputs);
        self.carry_out(outputs);
    }

    /// The reader goes back to the first record that the link may want.
    fn rewind(&mut self) {
        let next: BTreeMap<PartitionId, Offset> = self.link.lanes().collect();
        let first = self.order.iter().position(|(number, offset)| *offset >= next[&partition(*number)]);
        self.reader = first.unwrap_or(self.order.len());
    }

    /// The commit: everything recorded so far is durable.
    fn sync(&mut self) {
        let Some((seq, ..)) = self.unsynced.back() else { return };
        let seq = *seq;
        for (_, key, value) in self.unsynced.drain(..) {
            self.durable.insert(key, value);
        }
        let mut outputs = Vec::new();
        self.link.synced(self.now(), seq, &mut outputs);
        self.carry_out(outputs);
    }

    fn settle(&mut self) {
        for (number, offset) in std::mem::take(&mut self.refusals_pending) {
            self.settled.insert((number, offset));
            self.dead.push((number, offset));
            let mut outputs = Vec::new();
            self.link.settled(self.now(), partition(number), offset, &mut outputs);
            self.carry_out(outputs);
        }
    }

    fn crash(&mut self) {
        // The one window that is left open (replication/forward.rs says why): we die between the CONNACK that says "session
        // lost" and the commit that records it.
        if self.unsynced.iter().any(|(_, (kind, _), _)| *kind == StateKind::Session) {
            return;
        }
        self.note("crash".into());
        self.unsynced.clear();
        self.refusals_pending.clear();
        self.connected = false;
        self.to_peer.clear();
        self.to_link.clear();
        let seed = self.draw.draw();
        self.link = Self::link(self.habits, &self.durable, seed, &self.written);
        for number in 0..self.habits.partitions {
            let cursor = self.link.cursor(partition(number)).unwrap();
            assert!(cursor <= self.cursors[usize::from(number)].max(cursor));
            self.cursors[usize::from(number)] = cursor;
        }
    }

    fn write(&mut self) {
        for number in 0..self.log.len() {
            for _ in 0..self.draw.draw() % 6 {
                if self.chance(self.habits.gaps) {
                    let small = self.chance(700);
                    self.written[number] += if small { 1 + self.draw.draw() % 100 } else { 1 << 20 };
                }
                self.order.push((number as u16, self.written[number]));
                self.log[number].push(self.written[number]);
                self.written[number] += 1;
            }
        }
    }

    fn vanish(&mut self) {
        let number = (self.draw.draw() % u64::from(self.habits.partitions)) as usize;
        let from = self.log[number].partition_point(|offset| *offset < self.cursors[number]);
        let at = from + (self.draw.draw() % 40) as usize;
        if at < self.log[number].len() {
            let offset = self.log[number].remove(at);
            let at = self.order.iter().position(|record| *record == (number as u16, offset)).unwrap();
            self.order.remove(at);
            self.reader -= usize::from(at < self.reader);
            self.note(format!("{number}/{offset} is gone"));
        }
    }

    fn step(&mut self, troubled: bool) {
        self.now_ns += 10_000_000 + self.draw.draw() % 50_000_000;
        let mut outputs = Vec::new();
        self.link.tick(self.now(), &mut outputs);
        self.carry_out(outputs);
        for _ in 0..self.draw.draw() % 30 {
            self.peer_step();
        }
        if !self.draw.draw().is_multiple_of(3) {
            self.acks();
        }
        self.pump();
        if self.draw.draw().is_multiple_of(2) {
            self.sync();
        }
        if self.draw.draw().is_multiple_of(2) {
            self.settle();
        }
        assert!(self.peer.most_open <= usize::from(self.habits.receive_maximum), "{} open", self.peer.most_open);
        if troubled {
            if self.chance(self.habits.cut) && self.connected {
                self.down(DownKind::Network);
            }
            if self.chance(self.habits.lose_session) {
                if self.connected {
                    self.down(DownKind::Network);
                }
                self.note("the peer forgets".into());
                self.peer.held.clear();
                self.peer.has_session = false;
                self.sessions_lost += 1;
            }
            if self.chance(self.habits.crash) {
                self.crash();
            }
            for _ in 0..3 {
                if self.chance(self.habits.vanish) {
                    self.vanish();
                }
            }
        }
    }

    /// Runs through trouble, then lets it drain, then judges.
    fn run(mut self) -> Self {
        for step in 0..600 {
            if step < 400 {
                self.write();
            }
            self.step(true);
        }
        for _ in 0..40_000 {
            if self.drained() {
                break;
            }
            self.now_ns += 100_000_000;
            self.step(false);
        }
        assert!(self.drained(), "it does not drain: {:?} of {:?}", self.cursors, self.written);
        self
    }

    fn drained(&self) -> bool {
        self.log.iter().zip(&self.cursors).all(|(log, cursor)| log.last().is_none_or(|last| cursor > last))
    }

    fn judge(self) {
        for (number, log) in (0u16..).zip(&self.log) {
            let mine: Vec<Offset> = self.peer.delivered.iter().filter(|(n, _)| *n == number).map(|(_, o)| *o).collect();
            let mut first = Vec::new();
            let mut seen = BTreeSet::new();
            for offset in &mine {
                if seen.insert(*offset) {
                    first.push(*offset);
                }
            }
            let dead: BTreeSet<Offset> = self.dead.iter().filter(|(n, _)| *n == number).map(|(_, o)| *o).collect();
            let missing: Vec<&Offset> = log.iter().filter(|o| !seen.contains(o) && !dead.contains(o)).collect();
            assert!(missing.is_empty(), "missing {missing:?}");
            first.retain(|offset| log.binary_search(offset).is_ok()); // what expired may come late, or not at all
            let in_order = first.windows(2).all(|pair| pair[0] < pair[1]);
            if self.habits.not_now == 0 {
                assert!(in_order, "first occurrences out of order");
            }
            if self.habits.exactly_once && self.sessions_lost == 0 {
                assert_eq!(mine.len(), seen.len(), "doubled");
                let both: Vec<&Offset> = dead.intersection(&seen).collect();
                assert!(both.is_empty(), "delivered and dead-lettered: {both:?}");
            }
        }
    }
}

fn seeds(habits: Habits) {
    let count = std::env::var("FOREBAY_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    for seed in 0..count {
        eprintln!("seed {seed}");
        World::new(seed, habits).run().judge();
    }
}

#[test]
fn qos_2_is_once_and_in_order_over_cuts_and_crashes() {
    seeds(PLAIN);
}

#[test]
fn qos_2_keeps_a_receive_maximum_of_5_and_of_1() {
    seeds(Habits { receive_maximum: 5, partitions: 3, ..PLAIN });
    seeds(Habits { receive_maximum: 1, partitions: 2, crash: 1, ..PLAIN });
}

#[test]
fn qos_2_holds_for_several_partitions_with_gaps() {
    seeds(Habits { partitions: 3, gaps: 20, ..PLAIN });
}

#[test]
fn qos_2_is_at_least_once_when_the_peer_forgets_the_session() {
    seeds(Habits { lose_session: 5, partitions: 2, ..PLAIN });
    seeds(Habits { lose_session: 20, crash: 20, gaps: 20, partitions: 2, idle: 2_000, ..PLAIN });
}

#[test]
fn qos_1_is_at_least_once_over_everything() {
    seeds(Habits { exactly_once: false, lose_session: 5, partitions: 3, gaps: 20, ..PLAIN });
}

#[test]
fn refusals_go_to_the_dead_letters_once_and_the_rest_goes_on() {
    for exactly_once in [true, false] {
        seeds(Habits { exactly_once, for_good: 10, partitions: 2, ..PLAIN });
    }
}

#[test]
fn a_full_peer_is_tried_again_until_it_takes_the_records() {
    for exactly_once in [true, false] {
        seeds(Habits { exactly_once, not_now: 5, partitions: 2, ..PLAIN });
    }
}

#[test]
fn a_record_that_expires_in_flight_leaves_no_identifier_behind() {
    for exactly_once in [true, false] {
        seeds(Habits { exactly_once, vanish: 200, cut: 20, crash: 10, partitions: 2, ..PLAIN });
    }
}

#[test]
fn a_record_at_which_the_peer_closes_is_found_and_the_rest_goes_on() {
    for exactly_once in [true, false] {
        seeds(Habits { exactly_once, poison: 5, crash: 1, cut: 1, partitions: 2, ..PLAIN });
    }
}

/// 15 identifiers per partition: each comes round again all the time, and one that is still held would swallow a record.
#[test]
fn identifiers_that_come_round_again_never_meet_a_record_that_still_holds_them() {
    let small = Habits { idle: 2_000, partitions: 2, ..PLAIN };
    seeds(small);
    seeds(Habits { vanish: 200, gaps: 20, cut: 20, crash: 10, ..small });
    seeds(Habits { for_good: 10, not_now: 5, cut: 20, crash: 10, ..small });
    seeds(Habits { poison: 5, crash: 1, cut: 1, ..small });
    seeds(Habits { exactly_once: false, vanish: 200, gaps: 20, crash: 10, ..small });
}
