//! An upstream that does what the test commands, on our own codec: acknowledges, holds its acks back, refuses, is absent, announces
//! limits. It notes when what arrived and when its ack left.

use super::ms;
use super::wire::Wire;
use forebay::mqtt::decode::Peer as Side;
use forebay::mqtt::properties::{AckProperties, ConnAckProperties};
use forebay::mqtt::{Ack, ConnAck, Packet, Publish, QoS, Reason, Version};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What it announces in CONNACK, and how it judges.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Receive Maximum.
    pub receive_maximum: Option<u16>,
    /// Maximum Packet Size.
    pub maximum_packet_size: Option<u32>,
    /// Topics that contain one of these words are refused with the reason beside it.
    pub refuses: Vec<(String, Reason)>,
    /// CONNACK's reason; success if not given.
    pub connack: Option<Reason>,
    /// An answer to CONNECT as raw bytes, in place of CONNACK: what does not speak our protocol.
    pub raw_answer: Option<Vec<u8>>,
}

/// One PUBLISH that arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The packet.
    pub publish: Publish,
    /// When.
    pub at: Instant,
    /// When its PUBACK or PUBREC was written.
    pub acked_at: Option<Instant>,
    /// When its PUBCOMP was written.
    pub completed_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct State {
    terms: Terms,
    holds: bool,
    arrivals: Vec<Arrival>,
    /// QoS 2 identifiers whose PUBREL has not come: part of the session.
    received: HashSet<u16>,
    session: bool,
    connects: u64,
    most_open: usize,
    largest: usize,
    faults: Vec<String>,
}

/// The upstream.
#[derive(Debug)]
pub struct Peer {
    /// Where the gateway connects.
    pub port: u16,
    state: Arc<Mutex<State>>,
    running: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Peer {
    /// At a port of its own, absent until [`Peer::appear`].
    pub fn absent(terms: Terms) -> Self {
        let state = Arc::new(Mutex::new(State { terms, ..State::default() }));
        Self { port: super::ports::free(), state, running: None }
    }

    /// There from the beginning.
    pub fn new(terms: Terms) -> Self {
        let mut peer = Self::absent(terms);
        peer.appear();
        peer
    }

    /// Listens.
    pub fn appear(&mut self) {
        assert!(self.running.is_none());
        let listener = TcpListener::bind(("127.0.0.1", self.port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (flag, state) = (Arc::clone(&stop), Arc::clone(&self.state));
        let thread = std::thread::spawn(move || {
            let mut connections: Vec<JoinHandle<()>> = Vec::new();
            while !flag.load(Ordering::SeqCst) {
                if let Ok((stream, _)) = listener.accept() {
                    let (flag, state) = (Arc::clone(&flag), Arc::clone(&state));
                    connections.push(std::thread::spawn(move || {
                        if let Ok(wire) = Wire::new(stream, Side::Client) {
                            Connection::new(wire, &state).serve(&flag);
                        }
                    }));
                } else {
                    std::thread::sleep(ms(2));
                }
            }
            for connection in connections {
                let _ = connection.join();
            }
        });
        self.running = Some((stop, thread));
    }

    /// Closes everything; its session is kept.
    pub fn vanish(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            stop.store(true, Ordering::SeqCst);
            let _ = thread.join();
        }
    }

    /// From now on PUBACK and PUBREC are held back.
    pub fn hold(&self) {
        self.state.lock().unwrap().holds = true;
    }

    /// What was held back leaves now.
    pub fn go_on(&self) {
        self.state.lock().unwrap().holds = false;
    }

    /// Everything that arrived.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.state.lock().unwrap().arrivals.clone()
    }

    /// The first arrival with this payload.
    pub fn arrival(&self, payload: &str) -> Option<Arrival> {
        let state = self.state.lock().unwrap();
        state.arrivals.iter().find(|arrival| arrival.publish.payload == payload.as_bytes()).cloned()
    }

    /// Connections so far.
    pub fn connects(&self) -> u64 {
        self.state.lock().unwrap().connects
    }

    /// The most publishes that were open at once, and the largest PUBLISH in bytes.
    pub fn most(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap();
        (state.most_open, state.largest)
    }

    /// What the gateway did against the protocol.
    pub fn faults(&self) -> Vec<String> {
        self.state.lock().unwrap().faults.clone()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.vanish();
    }
}

struct Connection<'a> {
    wire: Wire,
    state: &'a Mutex<State>,
    /// Answers that are due, with the arrival that they belong to.
    due: VecDeque<(Packet, usize)>,
    /// Arrivals of QoS 2 that wait for PUBREL, by identifier.
    by_id: HashMap<u16, usize>,
    open: HashSet<u16>,
}

impl<'a> Connection<'a> {
    fn new(wire: Wire, state: &'a Mutex<State>) -> Self {
        Self { wire, state, due: VecDeque::new(), by_id: HashMap::new(), open: HashSet::new() }
    }

    fn serve(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::SeqCst) {
            match self.wire.receive(Duration::from_millis(2)) {
                Ok(Some(packet)) => {
                    if !self.take(packet) {
                        break;
                    }
                }
                Ok(None) => {}
                Err(_) => break,
            }
            if self.flush().is_err() {
                break;
            }
        }
        self.wire.close();
    }

    /// Deals with one packet; whether the connection goes on.
    fn take(&mut self, packet: Packet) -> bool {
        let state = self.state;
        let mut state = state.lock().unwrap();
        match packet {
            Packet::Connect(connect) => {
                state.connects += 1;
                if let Some(raw) = state.terms.raw_answer.clone() {
                    let _ = self.wire.send_bytes(&raw);
                    return true;
                }
                if connect.clean_start {
                    state.session = false;
                    state.received.clear();
                }
                let reason = state.terms.connack.unwrap_or(Reason::SUCCESS);
                let v5 = connect.version == Version::V5;
                let properties = ConnAckProperties {
                    receive_maximum: state.terms.receive_maximum.filter(|_| v5),
                    maximum_packet_size: state.terms.maximum_packet_size.filter(|_| v5),
                    ..ConnAckProperties::default()
                };
                let reason = if v5 { reason } else { reason.return_code().unwrap_or(Reason(3)) };
                let session_present = state.session && reason == Reason::SUCCESS;
                if reason == Reason::SUCCESS {
                    let expiry_s = connect.properties.session_expiry_s.unwrap_or(0);
                    state.session = if v5 { expiry_s > 0 } else { !connect.clean_start };
                }
                let connack = ConnAck { session_present, reason, properties };
                self.wire.send(&[Packet::ConnAck(Box::new(connack))]).is_ok() && reason == Reason::SUCCESS
            }
            Packet::Publish(publish) => {
                self.publish(&mut state, publish);
                true
            }
            Packet::PubRel(ack) => {
                state.received.remove(&ack.packet_id);
                self.open.remove(&ack.packet_id);
                if let Some(arrival) = self.by_id.remove(&ack.packet_id) {
                    state.arrivals[arrival].completed_at = Some(Instant::now());
                }
                self.wire.send(&[Packet::PubComp(Ack::new(ack.packet_id, Reason::SUCCESS))]).is_ok()
            }
            Packet::PingReq => self.wire.send(&[Packet::PingResp]).is_ok(),
            Packet::Disconnect(_) => false,
            other => {
                state.faults.push(format!("unexpected {other:?}"));
                false
            }
        }
    }

    fn publish(&mut self, state: &mut State, publish: Publish) {
        let id = publish.packet_id;
        if !self.open.insert(id) {
            state.faults.push(format!("identifier {id} used while it is open"));
        }
        state.most_open = state.most_open.max(self.open.len());
        let size = forebay::mqtt::encode::publish_len(&publish, self.wire.version());
        state.largest = state.largest.max(size);
        if state.terms.receive_maximum.is_some_and(|most| self.open.len() > usize::from(most)) {
            state.faults.push(format!("{} open, beyond the Receive Maximum", self.open.len()));
        }
        if state.terms.maximum_packet_size.is_some_and(|most| size > most as usize) {
            state.faults.push(format!("a packet of {size} bytes, beyond the maximum"));
        }
        let topic = publish.topic.to_string();
        let refusal = state.terms.refuses.iter().find(|(word, _)| topic.contains(word)).map(|(_, reason)| *reason);
        let again = publish.qos == QoS::ExactlyOnce && state.received.contains(&id);
        let reason = refusal.unwrap_or(Reason::SUCCESS);
        let mut ack = Ack::new(id, reason);
        if refusal.is_some() && self.wire.version() == Version::V5 {
            let text = Some("refused by the test".into());
            ack.properties = Some(Box::new(AckProperties { reason_string: text, user: Vec::new() }));
        }
        let exactly_once = publish.qos == QoS::ExactlyOnce;
        let answer = if exactly_once { Packet::PubRec(ack) } else { Packet::PubAck(ack) };
        if exactly_once && refusal.is_none() {
            state.received.insert(id);
        }
        let arrival = state.arrivals.len();
        if !again {
            state.arrivals.push(Arrival { publish, at: Instant::now(), acked_at: None, completed_at: None });
            self.by_id.insert(id, arrival);
        }
        self.due.push_back((answer, if again { usize::MAX } else { arrival }));
    }

    /// Sends what is due, unless acks are held back.
    fn flush(&mut self) -> std::io::Result<()> {
        let state = self.state;
        let mut state = state.lock().unwrap();
        while !state.holds {
            let Some((packet, arrival)) = self.due.pop_front() else { break };
            let now = Instant::now();
            if let Packet::PubAck(ack) = &packet {
                self.open.remove(&ack.packet_id);
            }
            if let Packet::PubRec(ack) = &packet
                && ack.reason.is_failure()
            {
                self.open.remove(&ack.packet_id);
            }
            if let Some(arrival) = state.arrivals.get_mut(arrival) {
                arrival.acked_at = Some(now);
            }
            self.wire.send(&[packet])?;
        }
        Ok(())
    }
}
