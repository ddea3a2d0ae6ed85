//! A device that publishes: QoS 0, 1 or 2, MQTT 3.1.1 or 5, with a durable session or a new one each time. What has no answer is sent
//! again after a reconnect, in its order, with DUP where the session was kept.

use super::gateway::Surroundings;
use super::message::{Key, Promise};
use super::net::Net;
use super::oracle::Check;
use super::plan::Plan;
use super::rng::Rng;
use bytes::Bytes;
use forebay::mqtt::properties::{ConnectProperties, PublishProperties};
use forebay::mqtt::{Ack, ConnAck, Connect, Packet, Publish, QoS, Reason, Text, Version};
use forebay::types::{Acks, ConnId};
use std::collections::VecDeque;

/// Where a message stands for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for PUBACK or PUBREC.
    Published,
    /// PUBREC came: PUBREL is out.
    Released,
}

struct Flight {
    key: Key,
    packet_id: u16,
    phase: Phase,
    publish: Publish,
}

pub struct Publisher {
    plan: Plan,
    number: u16,
    name: Text,
    version: Version,
    durable: bool,
    qos: Vec<QoS>,
    topics: Vec<(Text, Acks)>,
    window: usize,
    conn: Option<ConnId>,
    accepted: bool,
    /// As CONNACK announced it.
    receive_maximum: usize,
    next_number: u32,
    next_id: u16,
    flights: VecDeque<Flight>,
    /// An acknowledgement has come that the session's record cannot be younger than.
    session_durable: bool,
    retry_ns: u64,
    pub refused: u32,
}

impl Publisher {
    pub fn new(number: u16, plan: &Plan, rng: &mut Rng) -> Self {
        let qos = match rng.below(4) {
            0 => vec![QoS::AtLeastOnce],
            1 => vec![QoS::ExactlyOnce],
            2 => vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce],
            _ => vec![QoS::AtLeastOnce, QoS::ExactlyOnce],
        };
        let mut topics = Vec::new();
        for _ in 0..=rng.below(3) {
            let (stem, acks) = match rng.below(if plan.shape.replica { 7 } else { 5 }) {
                0 => ("bulk", Acks::Queued),
                1 => ("local", Acks::Synced),
                2 => ("elsewhere", Acks::Synced),
                3 | 4 => ("sensors", Acks::Synced),
                _ => ("critical", Acks::Replicated),
            };
            topics.push((Text::from(format!("{stem}/{number}/{}", rng.below(3))), acks));
        }
        Self {
            plan: plan.clone(),
            number,
            name: Text::from(format!("device-{number}")),
            version: if rng.coin() { Version::V5 } else { Version::V311 },
            durable: rng.permille(700),
            qos,
            topics,
            window: 1 + rng.index(20),
            conn: None,
            accepted: false,
            receive_maximum: usize::MAX,
            next_number: 0,
            next_id: rng.below(65_535) as u16,
            flights: VecDeque::new(),
            session_durable: false,
            retry_ns: 0,
            refused: 0,
        }
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// What waits, for a failure's message.
    pub fn waits_for(&self) -> String {
        let first: Vec<String> = self.flights.iter().take(3).map(|f| format!("{} {:?}", f.key, f.phase)).collect();
        format!(
            "{} ({:?}, durable {}) waits for {}: {first:?}",
            self.name,
            self.version,
            self.durable,
            self.flights.len()
        )
    }

    /// The gateway is gone, or the device loses its network.
    pub fn drop_connection(&mut self, now_ns: u64, net: &mut Net, rng: &mut Rng) {
        if let Some(conn) = self.conn.take() {
            net.drop_client(conn, rng);
        }
        self.accepted = false;
        self.retry_ns = now_ns + rng.below(60_000_000);
    }

    /// The device does its next thing. `lives`: somebody listens; `publishes`: it may begin something new.
    pub fn act(&mut self, lives: bool, publishes: bool, world: &mut Surroundings<'_>) -> Check {
        let Some(conn) = self.conn else {
            if lives && world.now.mono_ns >= self.retry_ns {
                self.connect(world);
            }
            return Ok(());
        };
        for _ in 0..=world.rng.below(8) {
            match world.net.receive(conn) {
                Ok(Some(packet)) => self.take(conn, packet, world)?,
                Ok(None) => break,
                Err(()) => {
                    self.drop_connection(world.now.mono_ns, world.net, world.rng);
                    return Ok(());
                }
            }
        }
        if self.accepted && publishes {
            let more = world.rng.below(4);
            for _ in 0..more {
                if self.flights.len() < self.window.min(self.receive_maximum) {
                    self.publish(conn, world);
                }
            }
        }
        Ok(())
    }

    fn connect(&mut self, world: &mut Surroundings<'_>) {
        let conn = world.net.connect();
        self.conn = Some(conn);
        let expiry = (self.durable && self.version == Version::V5).then_some(u32::MAX);
        let connect = Connect {
            version: self.version,
            clean_start: !self.durable,
            keep_alive_s: 0,
            client_id: self.name.clone(),
            will: None,
            username: None,
            password: None,
            properties: ConnectProperties { session_expiry_s: expiry, ..ConnectProperties::default() },
        };
        world.note(format_args!("{} connects as {}", self.name, conn.0));
        world.net.send(conn, Packet::Connect(Box::new(connect)));
    }

    fn take(&mut self, conn: ConnId, packet: Packet, world: &mut Surroundings<'_>) -> Check {
        match packet {
            Packet::ConnAck(connack) => return self.accepted(conn, &connack, world),
            Packet::PubAck(ack) => self.answered(&ack, None, world),
            Packet::PubRec(ack) => self.answered(&ack, Some(conn), world),
            Packet::PubComp(ack) => {
                self.flights.retain(|flight| flight.packet_id != ack.packet_id || flight.phase != Phase::Released);
            }
            Packet::Disconnect(_) => {}
            other => return Err(format!("{} gets {other:?}", self.name)),
        }
        Ok(())
    }

    fn accepted(&mut self, conn: ConnId, connack: &ConnAck, world: &mut Surroundings<'_>) -> Check {
        if connack.reason != Reason::SUCCESS {
            return Ok(()); // the end of the connection follows
        }
        if self.durable && self.session_durable && !connack.session_present {
            return Err(format!("the durable session of {} is lost", self.name));
        }
        if !self.durable && connack.session_present {
            return Err(format!("{} asked for a new session and got an old one", self.name));
        }
        self.accepted = true;
        self.receive_maximum = connack.properties.receive_maximum.map_or(usize::MAX, usize::from);
        if !connack.session_present {
            // What was received is stored; the release died with the session.
            self.flights.retain(|flight| flight.phase == Phase::Published);
        }
        let replicated: Vec<Text> =
            self.topics.iter().filter(|(_, acks)| *acks == Acks::Replicated).map(|(topic, _)| topic.clone()).collect();
        let given_up = |flight: &Flight| {
            let acks = if replicated.contains(&flight.publish.topic) { Acks::Replicated } else { Acks::Synced };
            flight.publish.qos == QoS::AtLeastOnce && self.is_hopeless(&flight.publish.payload, acks)
        };
        let hopeless: Vec<u16> = self.flights.iter().filter(|f| given_up(f)).map(|f| f.packet_id).collect();
        self.flights.retain(|flight| !hopeless.contains(&flight.packet_id));
        for flight in &mut self.flights {
            flight.publish.dup = connack.session_present;
            let packet = match flight.phase {
                Phase::Published => {
                    world.note(format_args!("{} goes out again {}", flight.key, flight.packet_id));
                    remember(world.net, conn, flight);
                    Packet::Publish(flight.publish.clone())
                }
                Phase::Released => Packet::PubRel(Ack::new(flight.packet_id, Reason::SUCCESS)),
            };
            world.net.send(conn, packet);
        }
        Ok(())
    }

    /// PUBACK, or PUBREC on connection `rec`.
    fn answered(&mut self, ack: &Ack, rec: Option<ConnId>, world: &mut Surroundings<'_>) {
        let Some(at) = self.flights.iter().position(|flight| flight.packet_id == ack.packet_id) else { return };
        if ack.reason.is_failure() {
            self.refused += 1;
            world.note(format_args!("{} is refused: 0x{:02X}", self.flights[at].key, ack.reason.0));
            self.flights.remove(at);
            return;
        }
        let level =
            self.topics.iter().find(|(topic, _)| *topic == self.flights[at].publish.topic).map(|(_, acks)| *acks);
        self.session_durable |= self.durable && (rec.is_some() || level != Some(Acks::Queued));
        match rec {
            Some(conn) => {
                self.flights[at].phase = Phase::Released;
                world.net.send(conn, Packet::PubRel(Ack::new(ack.packet_id, Reason::SUCCESS)));
            }
            None => {
                self.flights.remove(at);
            }
        }
    }

    fn publish(&mut self, conn: ConnId, world: &mut Surroundings<'_>) {
        self.next_number += 1;
        let key = Key { publisher: self.number, number: self.next_number };
        let (topic, acks) = self.topics[world.rng.index(self.topics.len())].clone();
        let qos = self.qos[world.rng.index(self.qos.len())];
        let poison = world.rng.permille(10) && topic.as_bytes().starts_with(b"sensors");
        let len = if world.rng.permille(if self.plan.shape.heavy { 400 } else { 30 }) {
            world.rng.range(1000, 6000)
        } else {
            world.rng.range(8, 200)
        };
        let mut payload: Bytes = key.payload(len as usize, poison);
        if self.is_hopeless(&payload, acks) && qos != QoS::AtLeastOnce {
            payload = key.payload(100, false); // at QoS 2 it could never give the identifier up
        }
        let mut publish = Publish::new(topic.clone(), payload).at(qos, 0);
        let mut level = acks;
        if self.version == Version::V5 && world.rng.permille(100) && acks != Acks::Replicated {
            level = Acks::Synced;
            let user = vec![(Text::from_static("forebay-acks"), Text::from_static("1"))];
            publish.properties = Some(Box::new(PublishProperties { user, ..PublishProperties::default() }));
        }
        let level = match qos {
            QoS::AtMostOnce => Acks::Queued,
            QoS::AtLeastOnce => level,
            QoS::ExactlyOnce => level.max(Acks::Synced),
        };
        let ordered = self.version != Version::V5 || self.topics.iter().all(|(_, acks)| *acks != Acks::Replicated);
        let once = self.durable && qos == QoS::ExactlyOnce;
        world.oracle.promised(key, Promise { level, once, ordered });
        if qos == QoS::AtMostOnce {
            world.net.send(conn, Packet::Publish(publish));
            return;
        }
        publish.packet_id = self.free_id();
        let flight = Flight { key, packet_id: publish.packet_id, phase: Phase::Published, publish: publish.clone() };
        remember(world.net, conn, &flight);
        world.note(format_args!(
            "{key} goes out at {qos:?} {}, {topic}, {} bytes",
            publish.packet_id,
            publish.payload.len()
        ));
        world.net.send(conn, Packet::Publish(publish));
        self.flights.push_back(flight);
    }

    /// Whether it can only be told by closing the connection, again and again, that the centre will not take this.
    fn is_hopeless(&self, payload: &[u8], acks: Acks) -> bool {
        self.version != Version::V5 && acks == Acks::Replicated && self.plan.refused_for_good(payload)
    }

    fn free_id(&mut self) -> u16 {
        loop {
            self.next_id = self.next_id % 65_535 + 1;
            if self.flights.iter().all(|flight| flight.packet_id != self.next_id) {
                return self.next_id;
            }
        }
    }
}

fn remember(net: &mut Net, conn: ConnId, flight: &Flight) {
    if let Some(pipe) = net.pipes.get_mut(&conn) {
        pipe.published.insert(flight.packet_id, flight.key);
    }
}
