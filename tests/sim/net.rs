//! Connections between clients and the gateway: two queues of packets each, in order, cut off whenever one side dies. What was on
//! its way when the gateway died may still arrive, up to any packet.

use super::message::Key;
use super::rng::Rng;
use forebay::mqtt::{Packet, Version};
use forebay::types::{ConnId, Seq};
use std::collections::{BTreeMap, VecDeque};

/// Packets on their way to a client above which its socket counts as clogged, and below which it is free again.
const CLOGGED: usize = 40;
const FREE: usize = 10;

/// A connection, seen from the middle.
#[derive(Default)]
pub struct Pipe {
    pub to_server: VecDeque<Packet>,
    pub inbox: VecDeque<Packet>,
    pub to_client: VecDeque<Packet>,
    pub version: Option<Version>,
    /// The message under each identifier, as the client last published it here.
    pub published: BTreeMap<u16, Key>,
    /// From which frame on the last granted subscription holds, at the latest.
    pub granted_at: Option<Seq>,
    pub opened: bool,
    pub held: bool,
    pub clogged: bool,
    /// The gateway closes it, once everything is sent.
    pub closing: bool,
    /// The engine knows that it is gone.
    pub told: bool,
    pub client_gone: bool,
    /// Nothing more will come to the client.
    pub ended: bool,
}

/// All connections.
#[derive(Default)]
pub struct Net {
    pub pipes: BTreeMap<ConnId, Pipe>,
    next: u64,
}

impl Net {
    /// A client connects to a gateway that lives.
    pub fn connect(&mut self) -> ConnId {
        self.next += 1;
        let id = ConnId(self.next);
        self.pipes.insert(id, Pipe::default());
        id
    }

    pub fn send(&mut self, conn: ConnId, packet: Packet) {
        if let Some(pipe) = self.pipes.get_mut(&conn) {
            pipe.to_server.push_back(packet);
        }
    }

    /// The next packet for the client, or `Err` if the connection has ended.
    pub fn receive(&mut self, conn: ConnId) -> Result<Option<Packet>, ()> {
        let pipe = self.pipes.get_mut(&conn).ok_or(())?;
        match pipe.to_client.pop_front() {
            Some(packet) => Ok(Some(packet)),
            None if pipe.ended => Err(()),
            None => Ok(None),
        }
    }

    /// The client vanishes; what it sent last may be lost.
    pub fn drop_client(&mut self, conn: ConnId, rng: &mut Rng) {
        if let Some(pipe) = self.pipes.get_mut(&conn) {
            pipe.client_gone = true;
            pipe.to_client.clear();
            let kept = rng.index(pipe.to_server.len() + 1);
            pipe.to_server.truncate(kept);
        }
        self.sweep();
    }

    /// The gateway dies.
    pub fn drop_server(&mut self, rng: &mut Rng) {
        for pipe in self.pipes.values_mut() {
            pipe.to_server.clear();
            pipe.inbox.clear();
            let kept = rng.index(pipe.to_client.len() + 1);
            pipe.to_client.truncate(kept);
            (pipe.ended, pipe.told, pipe.closing) = (true, true, true);
        }
        self.sweep();
    }

    /// Forgets connections that both sides have done with.
    pub fn sweep(&mut self) {
        self.pipes.retain(|_, pipe| !(pipe.client_gone && pipe.told));
    }
}

impl Pipe {
    /// Whether the engine is to be told that the socket takes no more now (`true`), or takes more again (`false`).
    pub fn pressure(&mut self) -> Option<bool> {
        let clogged = if self.clogged { self.to_client.len() > FREE } else { self.to_client.len() > CLOGGED };
        (std::mem::replace(&mut self.clogged, clogged) != clogged).then_some(clogged)
    }
}
