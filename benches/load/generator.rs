//! The load: raw MQTT 3.1.1 over an epoll set, as cheap as it can be, since it shares the cores with the broker. Packets are made
//! by our codec once and then copied; answers are told apart by their first byte.

use crate::Result;
use crate::stats::Histogram;
use bytes::Bytes;
use forebay::mqtt::encode::encode;
use forebay::mqtt::properties::{ConnectProperties, SubscribeProperties};
use forebay::mqtt::{Connect, Packet, Publish, QoS, Subscribe, SubscribeOptions, Text, Version};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Bytes that a QoS 0 publisher offers at once.
const FLOOD_BYTES: usize = 64 << 10;
const READ_BYTES: usize = 256 << 10;

/// A kind of load.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Publishers with so many messages in flight each; at QoS 0 as fast as the sockets take them.
    Publish { qos: u8, connections: usize, window: usize },
    /// One publisher, `window` messages ahead of the slowest of its subscribers.
    FanOut { qos: u8, subscribers: usize, window: usize },
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub shape: Shape,
    pub payload: usize,
}

/// What a run brought.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Acknowledged, or delivered.
    pub messages: u64,
    pub elapsed: Duration,
    /// From sending to the ack, or to the delivery.
    pub latency: Histogram,
}

/// One connection.
struct Client {
    stream: TcpStream,
    /// An encoded PUBLISH whose packet id is at `id_at`.
    publish: Vec<u8>,
    id_at: Option<usize>,
    /// When the message with this packet id (less one) was sent.
    sent: Vec<Instant>,
    rest: Vec<u8>,
    out: Vec<u8>,
    written: usize,
    writable: bool,
    received: u64,
    answered: bool,
}

/// All connections of one scenario.
pub struct Generator {
    epoll: OwnedFd,
    clients: Vec<Client>,
    shape: Shape,
    buffer: Vec<u8>,
    /// When the fan-out's messages were sent, by number modulo the window.
    sent_at: Vec<Instant>,
    published: u64,
}

impl Client {
    fn connect(address: SocketAddr, topic: &str, qos: u8, payload: usize) -> Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let connect = Connect {
            version: Version::V311,
            clean_start: true,
            keep_alive_s: 0,
            client_id: Text::default(),
            will: None,
            username: None,
            password: None,
            properties: ConnectProperties::default(),
        };
        stream.write_all(&bytes_of(&Packet::Connect(Box::new(connect)))?)?;
        expect(&mut stream, 0x20)?;
        let qos = QoS::from_bits(qos).ok_or("QoS is 0 to 2")?;
        let publish = bytes_of(&Packet::Publish(Publish {
            dup: false,
            qos,
            retain: false,
            topic: Text::from(topic),
            packet_id: u16::from(qos != QoS::AtMostOnce),
            properties: None,
            payload: Bytes::from(vec![b'x'; payload]),
        }))?;
        let id_at = (qos != QoS::AtMostOnce).then(|| publish.len() - payload - 2);
        Ok(Self {
            stream,
            publish,
            id_at,
            sent: Vec::new(),
            rest: Vec::new(),
            out: Vec::new(),
            written: 0,
            writable: true,
            received: 0,
            answered: false,
        })
    }

    fn subscribe(&mut self, filter: &str, qos: u8) -> Result<()> {
        let options =
            SubscribeOptions { qos: QoS::from_bits(qos).ok_or("QoS is 0 to 2")?, ..SubscribeOptions::default() };
        let filters = vec![(Text::from(filter), options)];
        let subscribe = Subscribe { packet_id: 1, filters, properties: SubscribeProperties::default() };
        self.stream.write_all(&bytes_of(&Packet::Subscribe(Box::new(subscribe)))?)?;
        expect(&mut self.stream, 0x90)
    }

    /// Queues a PUBLISH with this packet id.
    fn push(&mut self, id: u16, now: Instant) {
        let start = self.out.len();
        self.out.extend_from_slice(&self.publish);
        if let Some(id_at) = self.id_at {
            if let Some(place) = self.out.get_mut(start + id_at..start + id_at + 2) {
                place.copy_from_slice(&id.to_be_bytes());
            }
            if let Some(sent) = self.sent.get_mut(usize::from(id) - 1) {
                *sent = now;
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        while self.writable && self.written < self.out.len() {
            match self.stream.write(self.out.get(self.written..).unwrap_or_default()) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) => return Err(error.into()),
            }
        }
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        }
        Ok(())
    }

    /// Takes whole packets from the front of `rest` and `bytes`; calls `each` with first byte and body.
    fn packets(&mut self, bytes: &[u8], mut each: impl FnMut(&mut Self, u8, &[u8])) {
        let joined;
        let mut input = if self.rest.is_empty() {
            bytes
        } else {
            self.rest.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.rest);
            &joined
        };
        while let Some((first, body, after)) = split(input) {
            each(self, first, body);
            input = after;
        }
        self.rest = input.to_vec();
    }
}

fn bytes_of(packet: &Packet) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    encode(packet, Version::V311, &mut bytes).map_err(|error| format!("{error:?}"))?;
    Ok(bytes)
}

fn expect(stream: &mut TcpStream, kind: u8) -> Result<()> {
    let mut head = [0; 2];
    stream.read_exact(&mut head)?;
    let mut body = vec![0; usize::from(head[1])];
    stream.read_exact(&mut body)?;
    if head[0] == kind { Ok(()) } else { Err(format!("expected a packet {kind:#x}, found {head:?}").into()) }
}

fn split(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (first, mut rest) = input.split_first()?;
    let (mut len, mut shift) = (0, 0);
    loop {
        let (byte, after) = rest.split_first()?;
        rest = after;
        len |= usize::from(byte & 0x7F) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    let (body, after) = rest.split_at_checked(len)?;
    Some((*first, body, after))
}

fn id_of(body: &[u8]) -> Option<u16> {
    body.first_chunk::<2>().map(|bytes| u16::from_be_bytes(*bytes))
}

impl Generator {
    /// Connects, and subscribes where the scenario does.
    pub fn connect(address: SocketAddr, scenario: &Scenario) -> Result<Self> {
        let mut clients = Vec::new();
        match scenario.shape {
            Shape::Publish { qos, connections, window } => {
                for number in 0..connections {
                    let topic = format!("durable/sensor-{number}/temperature");
                    let mut client = Client::connect(address, &topic, qos, scenario.payload)?;
                    client.sent = vec![Instant::now(); window];
                    clients.push(client);
                }
            }
            Shape::FanOut { qos, subscribers, .. } => {
                clients.push(Client::connect(address, "live/state", qos, scenario.payload)?);
                for _ in 0..subscribers {
                    let mut client = Client::connect(address, "unused", 0, 0)?;
                    client.subscribe("live/state", qos)?;
                    clients.push(client);
                }
            }
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, client) in clients.iter().enumerate() {
            client.stream.set_nonblocking(true)?;
            let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            epoll::add(&epoll, &client.stream, epoll::EventData::new_u64(number as u64), flags)?;
        }
        let mut generator = Self {
            epoll,
            clients,
            shape: scenario.shape,
            buffer: vec![0; READ_BYTES],
            sent_at: Vec::new(),
            published: 0,
        };
        generator.begin()?;
        Ok(generator)
    }

    fn begin(&mut self) -> Result<()> {
        let now = Instant::now();
        match self.shape {
            Shape::Publish { qos: 0, .. } => {}
            Shape::Publish { window, .. } => {
                for client in &mut self.clients {
                    (1..=window).for_each(|id| client.push(u16::try_from(id).unwrap_or(1), now));
                    client.flush()?;
                }
            }
            Shape::FanOut { window, .. } => {
                self.sent_at = vec![now; window * 2];
                self.publish_ahead(now)?;
            }
        }
        Ok(())
    }

    /// Runs the load for a while.
    pub fn run(&mut self, time: Duration) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let start = Instant::now();
        if matches!(self.shape, Shape::Publish { qos: 0, .. }) {
            outcome.messages = self.flood(start + time)?;
        } else {
            while start.elapsed() < time {
                self.turn(&mut outcome)?;
            }
        }
        outcome.elapsed = start.elapsed();
        Ok(outcome)
    }

    fn wait(&mut self) -> Result<Vec<(usize, bool)>> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout))?;
        let ready = |event: &epoll::Event| {
            let (number, flags) = (event.data.u64(), event.flags);
            (usize::try_from(number).unwrap_or_default(), flags.contains(epoll::EventFlags::OUT))
        };
        Ok(events.iter().map(ready).collect())
    }

    fn turn(&mut self, outcome: &mut Outcome) -> Result<()> {
        for (number, writable) in self.wait()? {
            self.serve(number, writable, outcome)?;
        }
        if matches!(self.shape, Shape::FanOut { .. }) {
            self.publish_ahead(Instant::now())?;
        }
        Ok(())
    }

    /// Reads what came for a client, and answers.
    fn serve(&mut self, number: usize, writable: bool, outcome: &mut Outcome) -> Result<()> {
        let Self { clients, buffer, sent_at, shape, .. } = self;
        let Some(client) = clients.get_mut(number) else { return Ok(()) };
        let publishes = matches!(shape, Shape::Publish { .. });
        client.writable |= writable;
        loop {
            let read = match client.stream.read(buffer) {
                Ok(0) => return Err("the broker closed a connection".into()),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            let now = Instant::now();
            client.packets(buffer.get(..read).unwrap_or_default(), |client, first, body| match first & 0xF0 {
                // PUBACK or PUBCOMP: the message is done, the next one takes its id.
                0x40 | 0x70 if publishes => {
                    let Some(id) = id_of(body) else { return };
                    if let Some(sent) = client.sent.get(usize::from(id) - 1) {
                        outcome.latency.add(now - *sent);
                    }
                    outcome.messages += 1;
                    client.push(id, now);
                }
                // PUBREC is answered by PUBREL.
                0x50 => client.out.extend_from_slice(&[
                    0x62,
                    2,
                    body.first().copied().unwrap_or(0),
                    body.get(1).copied().unwrap_or(0),
                ]),
                0x30 => {
                    let sent = usize::try_from(client.received).unwrap_or_default() % sent_at.len().max(1);
                    if let Some(sent) = sent_at.get(sent) {
                        outcome.latency.add(now - *sent);
                    }
                    client.received += 1;
                    outcome.messages += 1;
                    if first & 0x06 != 0 {
                        let topic = id_of(body).map_or(0, usize::from);
                        if let Some([high, low]) = body.get(topic + 2..topic + 4) {
                            client.out.extend_from_slice(&[0x40, 2, *high, *low]);
                        }
                    }
                }
                0xD0 => client.answered = true,
                _ => {}
            });
            if read < buffer.len() {
                break;
            }
        }
        client.flush()
    }

    /// The fan-out's publisher goes on until it is a window ahead of the slowest subscriber.
    fn publish_ahead(&mut self, now: Instant) -> Result<()> {
        let Shape::FanOut { window, .. } = self.shape else { return Ok(()) };
        let Some((publisher, subscribers)) = self.clients.split_first_mut() else { return Ok(()) };
        let slowest = subscribers.iter().map(|client| client.received).min().unwrap_or_default();
        while self.published < slowest + window as u64 {
            let place = usize::try_from(self.published).unwrap_or_default() % self.sent_at.len().max(1);
            if let Some(sent) = self.sent_at.get_mut(place) {
                *sent = now;
            }
            let id = u16::try_from(self.published % (2 * window as u64)).unwrap_or_default() + 1;
            publisher.push(id, now);
            self.published += 1;
        }
        publisher.flush()
    }

    /// QoS 0: offers bytes to every socket that takes them; a ping at the end says that all has been read.
    fn flood(&mut self, until: Instant) -> Result<u64> {
        let mut messages = 0;
        let mut outcome = Outcome::default();
        let now = Instant::now();
        while Instant::now() < until {
            for client in &mut self.clients {
                if client.writable && client.out.is_empty() {
                    let count = FLOOD_BYTES / client.publish.len();
                    (0..count).for_each(|_| client.push(0, now));
                    messages += count as u64;
                }
                client.flush()?;
            }
            if !self.clients.iter().any(|client| client.writable) {
                self.turn(&mut outcome)?;
            }
        }
        for client in &mut self.clients {
            client.out.extend_from_slice(&[0xC0, 0]);
            client.answered = false;
            client.flush()?;
        }
        let limit = Instant::now() + Duration::from_secs(30);
        while self.clients.iter().any(|client| !client.answered) {
            self.turn(&mut outcome)?;
            if Instant::now() > limit {
                return Err("no answer to a ping after a flood".into());
            }
        }
        Ok(messages)
    }
}
