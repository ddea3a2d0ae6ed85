//! Publishers that keep publishing while the world around them is killed, and remember exactly what was acknowledged.

use super::client::{Client, Options};
use super::{ms, readings};
use forebay::mqtt::{Ack, Packet, Publish, QoS, Reason, Version};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What one publisher does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Client identifier; also part of its topics.
    pub id: String,
    /// Protocol version.
    pub version: Version,
    /// QoS of everything it publishes.
    pub qos: QoS,
    /// Messages in flight.
    pub window: usize,
    /// Topics, taken in turn: `<root>/<id>/<n>`.
    pub root: String,
    /// How many topics.
    pub topics: usize,
    /// After so many messages it is done.
    pub messages: u64,
    /// Pause after each burst, which fills the window: for a steady rate.
    pub pause: Duration,
}

impl Plan {
    /// 16 in flight on 6 topics under `sensors`, without end.
    pub fn new(id: &str, version: Version, qos: QoS) -> Self {
        let root = "sensors".to_owned();
        Self { id: id.to_owned(), version, qos, window: 16, root, topics: 6, messages: u64::MAX, pause: Duration::ZERO }
    }

    /// So many messages.
    pub fn messages(self, messages: u64) -> Self {
        Self { messages, ..self }
    }

    /// A burst of one window, then a pause.
    pub fn every(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    /// The topic of message `seq`.
    pub fn topic(&self, seq: u64) -> String {
        format!("{}/{}/{}", self.root, self.id, seq % self.topics as u64)
    }
}

/// What a publisher knows at the end.
#[derive(Clone, Debug)]
pub struct Published {
    /// What it did.
    pub plan: Plan,
    /// Sequence numbers that were acknowledged (PUBACK or PUBREC), in the order of the acks.
    pub acked: Vec<u64>,
    /// The numbers that were sent at all are those below.
    pub sent: u64,
    /// PUBLISH packets that were sent again.
    pub republished: u64,
    /// Refusals, with their reason.
    pub refused: Vec<(u64, Reason)>,
    /// Reconnects at which the server did not know the session any more.
    pub sessions_lost: u64,
    /// Reconnects.
    pub reconnects: u64,
    /// Longest silence between two acks.
    pub longest_silence: Duration,
}

/// A publisher that runs in a thread of its own.
#[derive(Debug)]
pub struct Publisher {
    stop: Arc<AtomicBool>,
    acked: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<Published>>,
}

impl Publisher {
    /// Starts publishing to a port of this host.
    pub fn start(port: u16, plan: Plan) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let acked = Arc::new(AtomicU64::new(0));
        let mut state = State::new(plan, Arc::clone(&stop), Arc::clone(&acked));
        let thread = std::thread::spawn(move || {
            state.run(port);
            state.done
        });
        Self { stop, acked, thread: Some(thread) }
    }

    /// Messages acknowledged so far.
    pub fn acked(&self) -> u64 {
        self.acked.load(Ordering::SeqCst)
    }

    /// Nothing new is published; what is in flight is brought to its end.
    pub fn finish(mut self) -> Published {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap()
    }

    /// Waits until all messages of the plan are acknowledged.
    pub fn join(mut self) -> Published {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

struct Flight {
    seq: u64,
    packet_id: u16,
    released: bool,
}

struct State {
    done: Published,
    flights: VecDeque<Flight>,
    texts: Vec<String>,
    stop: Arc<AtomicBool>,
    acked: Arc<AtomicU64>,
    last_ack: Instant,
    /// When whatever is wrong must be over: a gateway that never comes back fails the test, not the machine.
    patience: Duration,
}

impl State {
    fn new(plan: Plan, stop: Arc<AtomicBool>, acked: Arc<AtomicU64>) -> Self {
        let texts = readings::all().into_iter().step_by(37).map(|reading| reading.payload[1..].to_owned()).collect();
        let done = Published {
            plan,
            acked: Vec::new(),
            sent: 0,
            republished: 0,
            refused: Vec::new(),
            sessions_lost: 0,
            reconnects: 0,
            longest_silence: Duration::ZERO,
        };
        let patience = Duration::from_secs(60);
        Self { done, flights: VecDeque::new(), texts, stop, acked, last_ack: Instant::now(), patience }
    }

    fn run(&mut self, port: u16) {
        let options = Options::durable(self.done.plan.version, &self.done.plan.id);
        let mut first = true;
        let mut quiet_since = Instant::now();
        loop {
            match Client::connect(port, &options) {
                Ok(mut client) => {
                    if !first {
                        self.done.reconnects += 1;
                        self.done.sessions_lost += u64::from(!client.connack.session_present);
                    }
                    first = false;
                    quiet_since = Instant::now();
                    if self.session(&mut client).is_ok() {
                        client.disconnect();
                        return;
                    }
                }
                Err(_) => std::thread::sleep(ms(3)),
            }
            let id = &self.done.plan.id;
            assert!(quiet_since.elapsed() < self.patience, "{id}: no connection for {:?}", self.patience);
        }
    }

    /// One connection: what was in flight again, then on.
    fn session(&mut self, client: &mut Client) -> io::Result<()> {
        let again: Vec<Packet> = self.flights.iter().map(|flight| self.packet(flight, true)).collect();
        self.done.republished += self.flights.iter().filter(|flight| !flight.released).count() as u64;
        client.wire.send(&again)?;
        loop {
            let ended = self.stop.load(Ordering::SeqCst) || self.done.sent >= self.done.plan.messages;
            if ended && self.flights.is_empty() {
                return Ok(());
            }
            if !ended {
                self.send_new(client)?;
            }
            self.receive(client)?;
            let id = &self.done.plan.id;
            assert!(self.last_ack.elapsed() < self.patience, "{id}: no ack for {:?}", self.patience);
        }
    }

    fn packet(&self, flight: &Flight, dup: bool) -> Packet {
        if flight.released {
            return Packet::PubRel(Ack::new(flight.packet_id, Reason::SUCCESS));
        }
        let text = &self.texts[usize::try_from(flight.seq).unwrap() % self.texts.len()];
        let payload = format!("{{\"seq\":{},{text}", flight.seq);
        let publish = Publish::new(self.done.plan.topic(flight.seq), payload).at(self.done.plan.qos, flight.packet_id);
        Packet::Publish(Publish { dup, ..publish })
    }

    fn send_new(&mut self, client: &mut Client) -> io::Result<()> {
        let free = self.done.plan.window.saturating_sub(self.flights.len());
        // Where a window is full it is refilled when a quarter is free, as any good client does.
        if free == 0 || free * 4 < self.done.plan.window {
            return Ok(());
        }
        let mut packets = Vec::new();
        for _ in 0..free {
            let seq = self.done.sent;
            if seq >= self.done.plan.messages {
                break;
            }
            self.done.sent += 1;
            let flight = Flight { seq, packet_id: 1 + u16::try_from(seq % 65_535).unwrap(), released: false };
            packets.push(self.packet(&flight, false));
            self.flights.push_back(flight);
        }
        std::thread::sleep(self.done.plan.pause);
        client.wire.send(&packets)
    }

    fn receive(&mut self, client: &mut Client) -> io::Result<()> {
        let mut next = client.wire.receive(ms(20))?;
        let mut answers = Vec::new();
        while let Some(packet) = next {
            match packet {
                Packet::PubAck(ack) | Packet::PubRec(ack) if ack.reason.is_failure() => {
                    let flight = self.remove(ack.packet_id);
                    self.done.refused.push((flight.seq, ack.reason));
                }
                Packet::PubAck(ack) => {
                    let flight = self.remove(ack.packet_id);
                    self.note_ack(flight.seq);
                }
                Packet::PubRec(ack) => answers.push(self.released(&ack)),
                Packet::PubComp(ack) => {
                    let flight = self.remove(ack.packet_id);
                    assert!(flight.released, "PUBCOMP for what was not released");
                }
                Packet::Disconnect(_) => return Err(io::ErrorKind::ConnectionAborted.into()),
                other => panic!("{}: unexpected {other:?}", self.done.plan.id),
            }
            next = client.wire.at_hand();
        }
        if answers.is_empty() { Ok(()) } else { client.wire.send(&answers) }
    }

    fn remove(&mut self, packet_id: u16) -> Flight {
        let place = self.flights.iter().position(|flight| flight.packet_id == packet_id);
        let place = place.unwrap_or_else(|| panic!("{}: an ack for {packet_id}, not in flight", self.done.plan.id));
        self.flights.remove(place).unwrap()
    }

    fn released(&mut self, ack: &Ack) -> Packet {
        let id = &self.done.plan.id;
        let flight = self.flights.iter_mut().find(|flight| flight.packet_id == ack.packet_id);
        let flight = flight.unwrap_or_else(|| panic!("{id}: PUBREC for {}, not in flight", ack.packet_id));
        let (seq, fresh) = (flight.seq, !flight.released);
        flight.released = true;
        if fresh {
            self.note_ack(seq);
        }
        Packet::PubRel(Ack::new(ack.packet_id, Reason::SUCCESS))
    }

    fn note_ack(&mut self, seq: u64) {
        self.done.acked.push(seq);
        self.done.longest_silence = self.done.longest_silence.max(self.last_ack.elapsed());
        self.last_ack = Instant::now();
        self.acked.fetch_add(1, Ordering::SeqCst);
    }
}
