//! The network side with real sockets and, in place of the engine, a few lines.

use super::connection::ConnectionLimits;
use super::test_client::{Client, connect, publish};
use super::*;
use crate::engine::io::{CloseCause, Input, Output};
use crate::limits::{SOCKET_QUEUE_HIGH, SOCKET_QUEUE_LOW};
use crate::mqtt::encode::encode;
use crate::mqtt::properties::*;
use crate::mqtt::*;
use crate::types::{ConnId, Seq};
use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

const LIMITS: ConnectionLimits = ConnectionLimits { max_packet_size: 1 << 20, rate: None };

/// A network in the test's own thread; `turn` is what an I/O thread does.
struct Bench {
    network: Network,
    address: SocketAddr,
    start: Instant,
    /// What the engine was told, in order.
    log: Vec<String>,
    opened: Vec<ConnId>,
    packets: Vec<(ConnId, Packet)>,
    hold_publishes: bool,
}

impl Bench {
    fn new(limits: ConnectionLimits) -> Self {
        Self::with_partial(limits, 4 << 20)
    }

    fn with_partial(limits: ConnectionLimits, partial_max: usize) -> Self {
        let listener: TcpListener = bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let address = listener.local_addr().unwrap();
        let mut network = Network::new(0, Arc::new(Bell::new().unwrap()), vec![limits], partial_max).unwrap();
        network.listen(listener, 0, Quota::new(100, Arc::new(AtomicUsize::new(0)), 100)).unwrap();
        Self {
            network,
            address,
            start: Instant::now(),
            log: Vec::new(),
            opened: Vec::new(),
            packets: Vec::new(),
            hold_publishes: false,
        }
    }

    fn turn(&mut self) {
        let start = self.start;
        self.network.wait(5_000_000, || start.elapsed().as_nanos() as u64).unwrap();
        for incoming in self.network.accepted() {
            self.network.adopt(incoming).unwrap();
        }
        let mut outputs = Vec::new();
        let Self { network, log, opened, packets, hold_publishes, .. } = self;
        network.inputs(|input| match input {
            Input::Opened { conn, .. } => opened.push(conn),
            Input::Packets { conn, inbox } => take(conn, inbox, *hold_publishes, packets, &mut outputs),
            Input::Closed { cause, .. } => log.push(format!("closed {cause:?}")),
            Input::Clogged { .. } => log.push("clogged".into()),
            Input::Writable { .. } => log.push("writable".into()),
            _ => unreachable!(),
        });
        self.apply(outputs);
        self.network.tick();
        self.network.flush();
    }

    fn apply(&mut self, outputs: Vec<Output>) {
        outputs.into_iter().for_each(|output| assert!(self.network.apply(output).is_none()));
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        for _ in 0..2_000 {
            if done(self) {
                return;
            }
            self.turn();
        }
        panic!("never: {what}; log {:?}", self.log);
    }

    fn client(&mut self, version: Version) -> (Client, ConnId) {
        let mut client = Client::new(self.address);
        client.send(&connect(version), version);
        let seen = self.packets.len();
        self.until("CONNECT", |bench| bench.packets.len() > seen);
        let conn = self.packets.last().unwrap().0;
        client.decoder.set_version(version);
        self.until("CONNACK", |_| client.receive().is_some_and(|packet| matches!(packet, Packet::ConnAck(_))));
        (client, conn)
    }
}

fn take(
    conn: ConnId,
    inbox: &mut VecDeque<Packet>,
    hold: bool,
    packets: &mut Vec<(ConnId, Packet)>,
    out: &mut Vec<Output>,
) {
    while let Some(packet) = inbox.pop_front() {
        match &packet {
            Packet::Publish(_) if hold => {
                inbox.push_front(packet);
                out.push(Output::Hold { conn });
                return;
            }
            Packet::Connect(connect) => {
                let (version, max_packet_size) = (connect.version, 100_000);
                let idle_limit_ns = Some(u64::from(connect.keep_alive_s) * 1_500_000_000).filter(|limit| *limit > 0);
                let receive_max = (version == Version::V5).then_some(4);
                out.push(Output::Accepted { conn, version, max_packet_size, receive_max, idle_limit_ns });
                let properties = ConnAckProperties::default();
                let answer = ConnAck { session_present: false, reason: Reason::SUCCESS, properties };
                out.push(Output::Send { conn, packet: Packet::ConnAck(Box::new(answer)) });
            }
            _ => {}
        }
        packets.push((conn, packet));
    }
}

fn ack(conn: ConnId, packet_id: u16, gate: Seq) -> Output {
    Output::Ack { conn, packet: Packet::PubAck(Ack::new(packet_id, Reason::SUCCESS)), gate }
}

#[test]
fn packets_come_whole_and_in_order_however_they_are_cut() {
    let mut bench = Bench::new(LIMITS);
    let (mut client, conn) = bench.client(Version::V311);
    bench.packets.clear();
    let mut bytes = Vec::new();
    let large = vec![7; 300_000];
    let sent: Vec<Publish> =
        (1..=300u16).map(|id| publish(QoS::AtLeastOnce, id, if id % 100 == 0 { &large } else { b"small" })).collect();
    sent.iter().for_each(|publish| encode(&Packet::Publish(publish.clone()), Version::V311, &mut bytes).unwrap());
    let mut rest = &bytes[..];
    for step in [1, 2, 3, 5, 7, 100, 1_000, 7_000, 65_536].into_iter().cycle() {
        let len = rest.len().min(step);
        if len == 0 {
            break;
        }
        client.stream.set_nonblocking(false).unwrap();
        client.stream.write_all(&rest[..len]).unwrap();
        rest = &rest[len..];
        bench.turn();
    }
    bench.until("all packets", |bench| bench.packets.len() == sent.len());
    assert!(bench.packets.iter().zip(&sent).all(|(came, sent)| *came == (conn, Packet::Publish(sent.clone()))));
}

#[test]
fn acks_leave_only_after_their_frame_is_synced() {
    let mut bench = Bench::new(LIMITS);
    let (mut client, conn) = bench.client(Version::V311);
    bench.apply(vec![ack(conn, 1, 5), ack(conn, 2, 6)]);
    (0..5).for_each(|_| bench.turn());
    assert_eq!(client.receive(), None);
    bench.network.release(5);
    bench.turn();
    bench.until("first", |_| client.receive() == Some(Packet::PubAck(Ack::new(1, Reason::SUCCESS))));
    (0..3).for_each(|_| bench.turn());
    assert_eq!(client.receive(), None);
    bench.network.release(7);
    bench.until("second", |_| client.receive() == Some(Packet::PubAck(Ack::new(2, Reason::SUCCESS))));
    assert_eq!(bench.network.waiting_acks(), 0);
}

#[test]
fn a_held_connection_is_not_read_and_goes_on_where_it_stood() {
    let mut bench = Bench::new(LIMITS);
    let (mut client, conn) = bench.client(Version::V311);
    bench.packets.clear();
    bench.hold_publishes = true;
    client.send(&Packet::Publish(publish(QoS::AtLeastOnce, 1, b"x")), Version::V311);
    (0..5).for_each(|_| bench.turn());
    client.send(&Packet::PingReq, Version::V311);
    (0..5).for_each(|_| bench.turn());
    assert!(bench.packets.is_empty());
    bench.hold_publishes = false;
    bench.apply(vec![Output::Release { conn }]);
    bench.until("both", |bench| bench.packets.len() == 2);
    assert!(matches!(&bench.packets[..], [(_, Packet::Publish(_)), (_, Packet::PingReq)]));
}

#[test]
fn a_malformed_packet_ends_its_connection_with_the_code_after_what_came_before_it() {
    let mut bench = Bench::new(LIMITS);
    let (mut good, _) = bench.client(Version::V5);
    let (mut bad, _) = bench.client(Version::V5);
    bench.packets.clear();
    bad.send(&Packet::PingReq, Version::V5);
    bad.stream.set_nonblocking(false).unwrap();
    bad.stream.write_all(&[0x36, 0x02, 0, 0]).unwrap();
    bad.stream.set_nonblocking(true).unwrap();
    bench.until("told", |bench| !bench.log.is_empty());
    assert!(matches!(&bench.packets[..], [(_, Packet::PingReq)]));
    assert!(bench.log[0].starts_with("closed Malformed(Reason(129)"), "{:?}", bench.log);
    let mut last = None;
    bench.until("closed", |_| {
        last = bad.receive().or(last.take());
        bad.ended
    });
    assert!(matches!(last, Some(Packet::Disconnect(it)) if it.reason == Reason::MALFORMED_PACKET));
    good.send(&Packet::PingReq, Version::V5);
    bench.until("the other", |bench| bench.packets.len() == 2);
    drop(bad);
    bench.until("gone", |bench| bench.network.connections() == 1);
}

#[test]
fn more_than_receive_maximum_is_a_protocol_error_in_5_and_not_counted_in_3() {
    let mut bench = Bench::new(LIMITS);
    let (mut v5, conn) = bench.client(Version::V5);
    let (mut v3, _) = bench.client(Version::V311);
    bench.packets.clear();
    for id in 1..=4 {
        v5.send(&Packet::Publish(publish(QoS::AtLeastOnce, id, b"x")), Version::V5);
    }
    (1..=9).for_each(|id| v3.send(&Packet::Publish(publish(QoS::AtLeastOnce, id, b"x")), Version::V311));
    bench.until("13", |bench| bench.packets.len() == 13);
    bench.apply(vec![ack(conn, 1, 0)]);
    bench.turn();
    v5.send(&Packet::Publish(publish(QoS::AtLeastOnce, 5, b"x")), Version::V5);
    bench.until("14", |bench| bench.packets.len() == 14);
    assert!(bench.log.is_empty());
    v5.send(&Packet::Publish(publish(QoS::ExactlyOnce, 6, b"x")), Version::V5);
    bench.until("closed", |bench| !bench.log.is_empty());
    assert!(bench.log[0].starts_with("closed Malformed(Reason(147)"), "{:?}", bench.log);
}

#[test]
fn qos_0_goes_to_many_in_each_version_and_a_slow_reader_is_told_of() {
    let mut bench = Bench::new(LIMITS);
    let mut clients: Vec<(Client, ConnId)> =
        [Version::V311, Version::V5, Version::V31].into_iter().map(|version| bench.client(version)).collect();
    let subscribers: Arc<[ConnId]> = clients.iter().map(|(_, conn)| *conn).collect();
    let message = Arc::new(publish(QoS::AtMostOnce, 0, &[1; 50_000]));
    let too_large = Arc::new(publish(QoS::AtMostOnce, 0, &[1; 100_000]));
    let mut delivered = 0;
    while !bench.log.iter().any(|line| line == "clogged") {
        let outputs = [&message, &too_large]
            .map(|publish| Output::Deliver { subscribers: Arc::clone(&subscribers), publish: Arc::clone(publish) });
        bench.apply(outputs.into_iter().collect());
        delivered += 1;
        bench.turn();
        assert!(delivered < 10_000, "the kernel takes everything");
    }
    assert!(delivered * 50_000 > SOCKET_QUEUE_HIGH && SOCKET_QUEUE_LOW > 50_000);
    let mut came = [0; 3];
    bench.until("all", |_| {
        for ((client, _), came) in clients.iter_mut().zip(&mut came) {
            while let Some(packet) = client.receive() {
                assert_eq!(packet, Packet::Publish((*message).clone()));
                *came += 1;
            }
        }
        came == [delivered; 3]
    });
    bench.until("writable", |bench| bench.log.iter().filter(|line| *line == "writable").count() == 3);
    assert!(!bench.network.has_unsent());
}

#[test]
fn a_closed_connection_gets_its_last_bytes_and_the_engine_hears_of_it_once() {
    let mut bench = Bench::new(LIMITS);
    let (mut client, conn) = bench.client(Version::V5);
    // Unread input: closing the descriptor now would reset the connection and take the DISCONNECT back.
    (0..50).for_each(|_| client.send(&Packet::PingReq, Version::V5));
    let disconnect = Disconnect { reason: Reason::SESSION_TAKEN_OVER, properties: DisconnectProperties::default() };
    bench.apply(vec![
        Output::Send { conn, packet: Packet::Disconnect(Box::new(disconnect)) },
        Output::Close { conn },
        Output::Send { conn, packet: Packet::PingResp },
    ]);
    let mut packets = Vec::new();
    bench.until("end", |_| {
        packets.extend(client.receive());
        client.ended
    });
    assert!(matches!(&packets[..], [Packet::Disconnect(_)]));
    drop(client);
    bench.until("gone", |bench| bench.network.connections() == 0);
    assert_eq!(bench.log, [format!("closed {:?}", CloseCause::Ordered)]);
}

#[test]
fn who_sends_no_connect_or_no_ping_in_time_is_closed() {
    let mut bench = Bench::new(LIMITS);
    let _silent = Client::new(bench.address);
    bench.until("opened", |bench| bench.opened.len() == 1);
    let (mut quick, conn) = bench.client(Version::V5);
    let (version, max_packet_size) = (Version::V5, 1000);
    let (receive_max, idle_limit_ns) = (None, Some(1_500_000_000));
    bench.apply(vec![Output::Accepted { conn, version, max_packet_size, receive_max, idle_limit_ns }]);
    bench.turn();
    bench.start -= Duration::from_secs(1);
    bench.turn();
    assert!(bench.log.is_empty());
    bench.start -= Duration::from_secs(1);
    let mut last = None;
    bench.until("idle", |_| {
        last = quick.receive().or(last.take());
        quick.ended
    });
    assert!(matches!(last, Some(Packet::Disconnect(it)) if it.reason == Reason::KEEP_ALIVE_TIMEOUT));
    bench.start -= Duration::from_secs(10);
    bench.until("no CONNECT", |bench| bench.log.len() == 2);
}

#[test]
fn large_packets_beyond_their_share_of_memory_come_one_after_the_other() {
    let mut bench = Bench::with_partial(LIMITS, 0);
    let mut clients: Vec<Client> = (0..3).map(|_| bench.client(Version::V311).0).collect();
    bench.packets.clear();
    let mut bytes = Vec::new();
    encode(&Packet::Publish(publish(QoS::AtMostOnce, 0, &[9; 200_000])), Version::V311, &mut bytes).unwrap();
    let (begin, end) = bytes.split_at(100_000);
    for client in &mut clients {
        client.stream.set_nonblocking(false).unwrap();
        client.stream.write_all(begin).unwrap();
    }
    (0..20).for_each(|_| bench.turn());
    // The later ones are whole in the kernel's buffers, and wait for the first.
    for client in clients.iter_mut().skip(1) {
        client.stream.write_all(end).unwrap();
    }
    (0..20).for_each(|_| bench.turn());
    assert!(bench.packets.len() < 3);
    clients[0].stream.write_all(end).unwrap();
    bench.until("all", |bench| bench.packets.len() == 3);
}

#[test]
fn a_rate_limit_slows_its_connection_only() {
    let mut bench = Bench::new(ConnectionLimits { rate: Some(100_000), ..LIMITS });
    let (mut client, _) = bench.client(Version::V311);
    bench.packets.clear();
    let start = Instant::now();
    for _ in 0..15 {
        client.send(&Packet::Publish(publish(QoS::AtMostOnce, 0, &[0; 10_000])), Version::V311);
    }
    bench.until("15", |bench| bench.packets.len() == 15);
    assert!(start.elapsed() > Duration::from_millis(300), "{:?}", start.elapsed());
}

#[test]
fn a_ring_from_another_thread_ends_the_wait() {
    let bell = Arc::new(Bell::new().unwrap());
    let mut network = Network::new(0, Arc::clone(&bell), vec![LIMITS], 0).unwrap();
    for _ in 0..3 {
        let bell = Arc::clone(&bell);
        let ringer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            bell.ring();
            bell.ring();
        });
        let start = Instant::now();
        network.wait(5_000_000_000, || 0).unwrap();
        assert!(start.elapsed() < Duration::from_secs(2));
        ringer.join().unwrap();
    }
}
