//! The link to the centre and the centre itself: what a driver and an MQTT broker do, as far as the core can tell.
//!
//! - **Link**: packets in order, both ways; cut at any moment, when any first part of what was on its way still arrives.
//! - **Centre**: commits a record, then answers; it may die before, between or after. It keeps its QoS 2 state (which identifiers
//!   are held) over a restart, or forgets it with the session, where that is planned.
//! - **Refusals**: some records are refused for good (MQTT 5 by a reason code, 3.1.1 by closing); now and then it takes nothing
//!   for the rest of a connection.

use super::gateway::{Gateway, Surroundings};
use super::oracle::Check;
use super::plan::{Bug, Plan};
use forebay::mqtt::encode::publish_len;
use forebay::mqtt::{Publish, QoS, Reason, Version};
use forebay::replication::link::{DownKind, LinkAck, LinkAckKind, LinkDown, LinkEvent, LinkOrder};
use forebay::types::{Offset, PartitionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Debug)]
enum Wire {
    Publish(Publish),
    Release(u16),
}

#[derive(Default)]
struct Connection {
    to_centre: VecDeque<Wire>,
    to_gateway: VecDeque<LinkAck>,
    /// Published and not done, for the Receive Maximum.
    open: usize,
    /// It takes nothing more on this connection.
    busy: bool,
}

pub struct Link {
    exactly_once: bool,
    v5: bool,
    receive_maximum: u16,
    maximum_packet_size: u32,
    plan: Plan,
    streams: BTreeMap<String, Vec<PartitionId>>,
    connection: Option<Connection>,
    /// The centre holds a session for the gateway.
    session: bool,
    /// Identifiers received and not released.
    held: BTreeSet<u16>,
    /// The centre is down, or the link is, until then.
    down_until_ns: u64,
}

impl Link {
    pub fn new(plan: &Plan) -> Self {
        let settings = plan.settings();
        let streams = settings.streams.iter().map(|stream| (stream.name.clone(), plan.partitions(&stream.name)));
        Self {
            exactly_once: plan.shape.link_qos == 2,
            v5: plan.shape.link_v5,
            receive_maximum: plan.shape.receive_maximum,
            maximum_packet_size: plan.centre_packet_max(),
            plan: plan.clone(),
            streams: streams.collect(),
            connection: None,
            session: false,
            held: BTreeSet::new(),
            down_until_ns: 0,
        }
    }

    /// The driver carries out the next order.
    pub fn drive(&mut self, gateway: &mut Gateway, world: &mut Surroundings<'_>) -> Check {
        let Some(order) = gateway.orders.pop_front() else { return Ok(()) };
        match order {
            LinkOrder::Connect { clean_start } => {
                if self.connection.is_some() {
                    return Err("the link is told to connect while it is connected".to_owned());
                }
                if world.now.mono_ns < self.down_until_ns {
                    gateway.tell(down(DownKind::Network));
                    return Ok(());
                }
                let session_present = self.session && !clean_start;
                if !session_present {
                    self.held.clear();
                }
                self.session = true;
                self.connection = Some(Connection::default());
                world.note(format_args!("link up, session present {session_present}"));
                gateway.tell(LinkEvent::Up {
                    session_present,
                    receive_maximum: self.receive_maximum,
                    maximum_packet_size: self.maximum_packet_size,
                });
            }
            LinkOrder::Disconnect { .. } => {
                if self.connection.take().is_some() {
                    gateway.tell(down(DownKind::Ordered));
                }
            }
            LinkOrder::Publish(list) => return self.publish(list, world),
            LinkOrder::Release(ids) => {
                if let Some(connection) = &mut self.connection {
                    connection.to_centre.extend(ids.into_iter().map(Wire::Release));
                }
            }
        }
        Ok(())
    }

    fn publish(&mut self, list: Vec<Publish>, world: &mut Surroundings<'_>) -> Check {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let qos = if self.exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        for publish in list {
            if publish.qos != qos || publish.packet_id == 0 {
                return Err(format!("the link sends {:?} with identifier {}", publish.qos, publish.packet_id));
            }
            let size = publish_len(&publish, if self.v5 { Version::V5 } else { Version::V311 });
            if size > self.maximum_packet_size as usize {
                return Err(format!("the link sends {size} bytes, the centre takes {}", self.maximum_packet_size));
            }
            world.note(format_args!("link: PUBLISH {} dup {}", publish.packet_id, publish.dup));
            if self.plan.bug == Bug::CursorBeforeAck {
                let kind = if self.exactly_once { LinkAckKind::PubRec } else { LinkAckKind::PubAck };
                connection.to_gateway.push_back(LinkAck {
                    packet_id: publish.packet_id,
                    kind,
                    reason: Reason::SUCCESS,
                });
            }
            connection.to_centre.push_back(Wire::Publish(publish));
            connection.open += 1;
        }
        if connection.open > usize::from(self.receive_maximum) {
            return Err(format!(
                "{} publishes are open at the centre, it takes {}",
                connection.open, self.receive_maximum
            ));
        }
        Ok(())
    }

    /// The centre takes the next packet.
    pub fn centre(&mut self, gateway: &mut Gateway, world: &mut Surroundings<'_>) -> Check {
        let Some(wire) = self.connection.as_mut().and_then(|connection| connection.to_centre.pop_front()) else {
            return Ok(());
        };
        if !self.v5 && matches!(&wire, Wire::Publish(publish) if self.plan.refused_for_good(&publish.payload)) {
            // What it had answered arrives before the end of the stream.
            let acks = self.connection.take().map(|connection| Vec::from(connection.to_gateway)).unwrap_or_default();
            if !acks.is_empty() {
                gateway.tell(LinkEvent::Acks(acks));
            }
            world.note(format_args!("the centre closes at a record"));
            gateway.tell(down(DownKind::ClosedInFlight));
            return Ok(());
        }
        let ack = self.take(wire, world)?;
        if let Some(connection) = &mut self.connection
            && self.plan.bug != Bug::CursorBeforeAck
        {
            connection.to_gateway.push_back(ack);
        }
        Ok(())
    }

    fn take(&mut self, wire: Wire, world: &mut Surroundings<'_>) -> Result<LinkAck, String> {
        let publish = match wire {
            Wire::Release(packet_id) => {
                let held = self.held.remove(&packet_id);
                let reason = if held || !self.v5 { Reason::SUCCESS } else { Reason::PACKET_ID_NOT_FOUND };
                return Ok(LinkAck { packet_id, kind: LinkAckKind::PubComp, reason });
            }
            Wire::Publish(publish) => publish,
        };
        let packet_id = publish.packet_id;
        let kind = if self.exactly_once { LinkAckKind::PubRec } else { LinkAckKind::PubAck };
        if self.exactly_once && self.held.contains(&packet_id) {
            if !publish.dup {
                return Err(format!("identifier {packet_id} is used anew while the centre holds it"));
            }
            return Ok(LinkAck { packet_id, kind, reason: Reason::SUCCESS });
        }
        let busy = self.connection.as_mut().is_some_and(|connection| {
            connection.busy |= self.v5 && self.plan.faults.refusals && world.rng.permille(3);
            connection.busy
        });
        if busy {
            return Ok(LinkAck { packet_id, kind, reason: Reason::QUOTA_EXCEEDED });
        }
        if self.plan.refused_for_good(&publish.payload) {
            return Ok(LinkAck { packet_id, kind, reason: Reason::PAYLOAD_FORMAT_INVALID });
        }
        let source = self.source(&publish)?;
        world.oracle.arrived(&publish.payload, source)?;
        if self.exactly_once {
            self.held.insert(packet_id);
        }
        Ok(LinkAck { packet_id, kind, reason: Reason::SUCCESS })
    }

    /// Where a record says that it comes from.
    fn source(&self, publish: &Publish) -> Result<Option<(PartitionId, Offset)>, String> {
        if !self.v5 {
            return Ok(None);
        }
        let text = publish.user("forebay-source").ok_or("a record without its source")?.as_str().to_owned();
        let parts: Vec<&str> = text.split('/').collect();
        let [_, _, stream, partition, offset] = parts[..] else { return Err(format!("a strange source: {text}")) };
        let number: u16 = partition.parse().map_err(|_| format!("a strange source: {text}"))?;
        let partitions = self.streams.get(stream).ok_or_else(|| format!("a strange source: {text}"))?;
        let partition =
            partitions.iter().find(|id| id.partition == number).ok_or_else(|| format!("a strange source: {text}"))?;
        Ok(Some((*partition, offset.parse().map_err(|_| format!("a strange source: {text}"))?)))
    }

    /// Acknowledgements reach the gateway.
    pub fn answer(&mut self, gateway: &mut Gateway, world: &mut Surroundings<'_>) {
        let Some(connection) = &mut self.connection else { return };
        let come = world.rng.index(connection.to_gateway.len() + 1);
        let acks: Vec<LinkAck> = connection.to_gateway.drain(..come).collect();
        let done = |ack: &&LinkAck| ack.kind != LinkAckKind::PubRec || ack.reason.is_failure();
        connection.open = connection.open.saturating_sub(acks.iter().filter(done).count());
        if !acks.is_empty() {
            gateway.tell(LinkEvent::Acks(acks));
        }
    }

    /// The link is cut, or the gateway has died: any first part of what was on its way still arrives.
    pub fn cut(&mut self, gateway: Option<&mut Gateway>, world: &mut Surroundings<'_>) -> Check {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let arrives = world.rng.index(connection.to_centre.len() + 1);
        let wires: Vec<Wire> = connection.to_centre.drain(..arrives).collect();
        for wire in wires {
            let refused =
                !self.v5 && matches!(&wire, Wire::Publish(publish) if self.plan.refused_for_good(&publish.payload));
            if refused {
                break;
            }
            self.take(wire, world)?;
        }
        self.connection = None;
        if let Some(gateway) = gateway {
            gateway.tell(down(DownKind::Network));
        }
        self.down_until_ns = world.now.mono_ns + world.rng.below(400_000_000);
        world.note(format_args!("link down"));
        Ok(())
    }

    /// The centre dies and comes back, with its sessions or without.
    pub fn restart(&mut self, forgets: bool, gateway: Option<&mut Gateway>, world: &mut Surroundings<'_>) -> Check {
        self.cut(gateway, world)?;
        if forgets && self.session {
            world.note(format_args!("the centre forgets its sessions"));
            self.session = false;
            self.held.clear();
            world.oracle.centre_forgot();
        }
        Ok(())
    }
}

fn down(kind: DownKind) -> LinkEvent {
    LinkEvent::Down(LinkDown { reason: "the link is down".to_owned(), kind })
}
