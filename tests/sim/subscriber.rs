//! A client that subscribes to everything below some level and acknowledges what it gets, sometimes late.

use super::gateway::Surroundings;
use super::net::Net;
use super::oracle::Check;
use super::rng::Rng;
use forebay::mqtt::properties::{ConnectProperties, SubscribeProperties};
use forebay::mqtt::topic::matches;
use forebay::mqtt::{Ack, Connect, Packet, Publish, QoS, Reason, Subscribe, SubscribeOptions, Text, Version};
use forebay::types::{ConnId, Seq};
use std::collections::{BTreeSet, VecDeque};

/// What it takes at once, unacknowledged.
const RECEIVE_MAXIMUM: u16 = 8;

pub struct Subscriber {
    number: usize,
    name: Text,
    version: Version,
    pub durable: bool,
    qos: QoS,
    filter: Text,
    conn: Option<ConnId>,
    subscribed: bool,
    /// Frame from which on it must get everything.
    pub since: Option<Seq>,
    /// Acknowledgements that it has not sent yet.
    owed: VecDeque<Packet>,
    /// Received at QoS 1 or 2 and not acknowledged for good.
    open: BTreeSet<u16>,
    retry_ns: u64,
}

impl Subscriber {
    pub fn new(number: usize, rng: &mut Rng) -> Self {
        let filters = ["#", "sensors/#", "local/+/1", "critical/#", "elsewhere/#"];
        Self {
            number,
            name: Text::from(format!("reader-{number}")),
            version: if rng.coin() { Version::V5 } else { Version::V311 },
            durable: rng.coin(),
            qos: QoS::from_bits(rng.below(3) as u8).unwrap_or_default(),
            filter: Text::from_static(filters[rng.index(filters.len())]),
            conn: None,
            subscribed: false,
            since: None,
            owed: VecDeque::new(),
            open: BTreeSet::new(),
            retry_ns: 0,
        }
    }

    pub fn wants(&self, topic: &Text) -> bool {
        self.qos != QoS::AtMostOnce && matches(self.filter.as_bytes(), topic.as_bytes())
    }

    pub fn drop_connection(&mut self, now_ns: u64, net: &mut Net, rng: &mut Rng) {
        if let Some(conn) = self.conn.take() {
            net.drop_client(conn, rng);
        }
        self.owed.clear();
        self.open.clear();
        self.retry_ns = now_ns + rng.below(60_000_000);
    }

    pub fn act(&mut self, lives: bool, world: &mut Surroundings<'_>) -> Check {
        let Some(conn) = self.conn else {
            if lives && world.now.mono_ns >= self.retry_ns {
                self.connect(world);
            }
            return Ok(());
        };
        for _ in 0..=world.rng.below(12) {
            match world.net.receive(conn) {
                Ok(Some(packet)) => self.take(conn, packet, world)?,
                Ok(None) => break,
                Err(()) => {
                    self.drop_connection(world.now.mono_ns, world.net, world.rng);
                    return Ok(());
                }
            }
        }
        for _ in 0..world.rng.below(12) {
            let Some(packet) = self.owed.pop_front() else { break };
            if let Packet::PubAck(ack) = &packet {
                self.open.remove(&ack.packet_id);
            }
            world.net.send(conn, packet);
        }
        Ok(())
    }

    fn connect(&mut self, world: &mut Surroundings<'_>) {
        let conn = world.net.connect();
        self.conn = Some(conn);
        let v5 = self.version == Version::V5;
        let properties = ConnectProperties {
            session_expiry_s: (self.durable && v5).then_some(u32::MAX),
            receive_maximum: v5.then_some(RECEIVE_MAXIMUM),
            ..ConnectProperties::default()
        };
        let connect = Connect {
            version: self.version,
            clean_start: !self.durable,
            keep_alive_s: 0,
            client_id: self.name.clone(),
            will: None,
            username: None,
            password: None,
            properties,
        };
        world.note(format_args!("{} connects as {}", self.name, conn.0));
        world.net.send(conn, Packet::Connect(Box::new(connect)));
    }

    fn take(&mut self, conn: ConnId, packet: Packet, world: &mut Surroundings<'_>) -> Check {
        match packet {
            Packet::ConnAck(connack) if connack.reason == Reason::SUCCESS => {
                if self.durable && self.since.is_some() && !connack.session_present {
                    return Err(format!("the durable session of {} is lost", self.name));
                }
                if !connack.session_present || !self.subscribed {
                    self.subscribe(conn, world);
                }
            }
            Packet::SubAck(suback) => {
                if suback.reasons.iter().any(|reason| reason.is_failure()) {
                    return Err(format!("{} may not subscribe: {:?}", self.name, suback.reasons));
                }
                self.subscribed = true;
                world.note(format_args!("{} has subscribed to {}", self.name, self.filter));
                let granted = world.net.pipes.get(&conn).and_then(|pipe| pipe.granted_at);
                self.since = self.since.or(granted);
            }
            Packet::Publish(publish) => return self.message(&publish, world),
            Packet::PubRel(ack) => {
                self.open.remove(&ack.packet_id);
                self.owed.push_back(Packet::PubComp(Ack::new(ack.packet_id, Reason::SUCCESS)));
            }
            Packet::ConnAck(_) | Packet::Disconnect(_) => {}
            other => return Err(format!("{} gets {other:?}", self.name)),
        }
        Ok(())
    }

    fn subscribe(&mut self, conn: ConnId, world: &mut Surroundings<'_>) {
        self.subscribed = false;
        let options = SubscribeOptions { qos: self.qos, ..SubscribeOptions::default() };
        let subscribe = Subscribe {
            packet_id: 1,
            filters: vec![(self.filter.clone(), options)],
            properties: SubscribeProperties::default(),
        };
        world.net.send(conn, Packet::Subscribe(Box::new(subscribe)));
    }

    fn message(&mut self, publish: &Publish, world: &mut Surroundings<'_>) -> Check {
        if !matches(self.filter.as_bytes(), publish.topic.as_bytes()) || publish.qos > self.qos {
            return Err(format!(
                "{} ({} at {:?}) gets {} at {:?}",
                self.name, self.filter, self.qos, publish.topic, publish.qos
            ));
        }
        if publish.qos != QoS::AtMostOnce {
            self.open.insert(publish.packet_id);
            if self.version == Version::V5 && self.open.len() > usize::from(RECEIVE_MAXIMUM) {
                return Err(format!(
                    "{} has {} messages open, {RECEIVE_MAXIMUM} are its maximum",
                    self.name,
                    self.open.len()
                ));
            }
            let ack = Ack::new(publish.packet_id, Reason::SUCCESS);
            let answer = if publish.qos == QoS::AtLeastOnce { Packet::PubAck(ack) } else { Packet::PubRec(ack) };
            self.owed.push_back(answer);
        }
        // At QoS 0 it is promised nothing, so it may see what is not stored at all.
        let durable = self.durable && publish.qos != QoS::AtMostOnce;
        let key = super::message::Key::of(&publish.payload).map(|key| key.to_string()).unwrap_or_default();
        world.note(format_args!(
            "{} gets {key} at {:?} {} dup {}",
            self.name, publish.qos, publish.packet_id, publish.dup
        ));
        world.oracle.delivered(self.number, durable, &publish.payload)
    }
}
