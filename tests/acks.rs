//! When an acknowledgement leaves: level × QoS × version × state of the upstream × min_insync_replicas. The moments at which the
//! gateway synced and at which an upstream acknowledged are observed, not assumed: the upstreams are scripted and hold their acks
//! until the test lets go, the sync is made slow or broken from outside, and at the moment of an ack the data directory is copied
//! and read.
#![cfg(test)]

#[allow(dead_code, reason = "each suite uses a part of it")]
mod support;

use forebay::mqtt::{Ack, QoS, Reason, Version};
use std::process::Command;
use std::time::{Duration, Instant};
use support::client::{Client, Options};
use support::gateway::{Gateway, Setup, partition, upstream, upstreams};
use support::peer::{Peer, Terms};
use support::process::Process;
use support::{counts, ms, secs, until};

const VERSIONS: [Version; 2] = [Version::V311, Version::V5];
const QOS: [QoS; 2] = [QoS::AtLeastOnce, QoS::ExactlyOnce];
/// As configured.
const ACK_TIMEOUT: Duration = ms(3_000);

/// Streams by the level of their acks and the replicas that they need: `two` has one replica, `three` has two.
const STREAMS: &str = r#"
[[stream]]
name = "zero"
topics = ["zero/#"]
acks = 0

[[stream]]
name = "one"
topics = ["one/#"]
acks = 1

[[stream]]
name = "one-of-two"
topics = ["one-of-two/#"]
acks = 1
min_insync_replicas = 2

[[stream]]
name = "least"
topics = ["least/#"]
acks = 1
acks_min = 1

[[stream]]
name = "two"
topics = ["two/#"]
acks = -1
min_insync_replicas = 2

[[stream]]
name = "three"
topics = ["three/#"]
acks = -1
min_insync_replicas = 3
"#;

/// Streams whose acks wait for replicas, with the replicas that each needs.
const REPLICATED: [&str; 2] = ["two", "three"];
const LOCAL: [&str; 4] = ["zero", "one", "one-of-two", "least"];

struct House {
    gateway: Gateway,
    a: Peer,
    b: Peer,
}

impl House {
    fn new(id: &str, qos: u8, terms: Terms) -> Self {
        let (a, b) = (Peer::new(terms), Peer::new(Terms::default()));
        let more = format!("replica = true\nreplica_lag_max = \"2s\"\nqos = {qos}");
        let upstreams = upstream("a", a.port, &["one", "one-of-two", "two", "three"], &more)
            + &upstream("b", b.port, &["three"], &more);
        let setup = Setup::new(format!("{STREAMS}\n{upstreams}")).gateway("ack_timeout = \"3s\"");
        let gateway = Gateway::started(id, &setup);
        let house = Self { gateway, a, b };
        house.in_sync(true);
        house
    }

    /// Waits until the replicas are all in sync, or all out of it.
    fn in_sync(&self, wanted: bool) {
        self.gateway.wait("replicas in sync or not", secs(20), |status| {
            let isr = |stream| partition(status, stream, 0)["isr"].as_array().map_or(0, Vec::len);
            if wanted { isr("two") == 2 && isr("three") == 3 } else { isr("two") == 1 && isr("three") == 1 }
        });
    }

    fn ends(&self, stream: &str) -> (u64, u64) {
        let status = self.gateway.status();
        let partition = partition(&status, stream, 0);
        (partition["leo"].as_u64().unwrap(), partition["hw"].as_u64().unwrap())
    }
}

/// One cell of the matrix: a client of its own that publishes one message to one stream.
struct Cell {
    client: Client,
    version: Version,
    qos: QoS,
    stream: &'static str,
    payload: String,
    sent: Instant,
}

impl Cell {
    fn name(&self) -> String {
        format!("{} {:?} {:?}", self.stream, self.version, self.qos)
    }

    fn send(gateway: &Gateway, state: &str, stream: &'static str, version: Version, qos: QoS) -> Self {
        let payload = format!("{state} {stream} {version:?} {qos:?}");
        let id = payload.replace(' ', "-");
        let mut client = Client::connect(gateway.port, &Options::new(version, &id)).unwrap();
        client.publish(&format!("{stream}/t"), payload.clone(), qos, 7).unwrap();
        Self { client, version, qos, stream, payload, sent: Instant::now() }
    }

    fn send_all(gateway: &Gateway, state: &str, streams: &[&'static str]) -> Vec<Self> {
        let mut cells = Vec::new();
        for &stream in streams {
            for version in VERSIONS {
                cells.extend(QOS.map(|qos| Self::send(gateway, state, stream, version, qos)));
            }
        }
        cells
    }

    /// The ack, which must come and be a success; the hand-shake is brought to its end.
    fn acked(&mut self) {
        let ack = self.client.ack(secs(5)).unwrap_or_else(|error| panic!("{}: {error}", self.payload));
        let ack = ack.unwrap_or_else(|| panic!("{}: no ack", self.payload));
        assert_eq!((ack.packet_id, ack.reason), (7, Reason::SUCCESS), "{}", self.name());
        if self.qos == QoS::ExactlyOnce {
            assert_eq!(self.client.release(7).unwrap().reason, Reason::SUCCESS, "{}", self.name());
        }
    }

    /// No ack so far.
    fn not_acked(&mut self, within: Duration) {
        let ack = self.client.ack(within).unwrap_or_else(|error| panic!("{}: {error}", self.name()));
        assert_eq!(ack, None, "{}", self.name());
    }
}

/// One gateway goes through all states of its upstreams; in each, every level, QoS and version is tried.
fn matrix(qos_upstream: u8) {
    let mut house = House::new(&format!("gw-matrix-{qos_upstream}"), qos_upstream, Terms::default());

    // Up: everything is acknowledged, -1 after each replica that it needs.
    for mut cell in Cell::send_all(&house.gateway, "up", &[&LOCAL[..], &REPLICATED[..]].concat()) {
        cell.acked();
        let now = Instant::now();
        if REPLICATED.contains(&cell.stream) {
            let stored = [Some(&house.a), (cell.stream == "three").then_some(&house.b)];
            for peer in stored.into_iter().flatten() {
                let arrival = peer.arrival(&cell.payload).expect("the replica has it");
                assert!(arrival.acked_at.expect("and has acknowledged it") <= now, "{}", cell.name());
            }
        }
    }

    // Lagging, within replica_lag_max: levels 0 and 1 do not wait; -1 waits for exactly the replica's ack.
    house.a.hold();
    let mut replicated = Cell::send_all(&house.gateway, "lagging", &REPLICATED);
    for mut cell in Cell::send_all(&house.gateway, "lagging", &LOCAL) {
        cell.acked();
    }
    for cell in &replicated {
        until("the replica has received it", secs(5), || house.a.arrival(&cell.payload));
    }
    for cell in &mut replicated {
        cell.not_acked(ms(20));
        assert!(house.a.arrival(&cell.payload).unwrap().acked_at.is_none());
    }
    for stream in REPLICATED {
        let (leo, hw) = house.ends(stream);
        assert_eq!(hw + 4, leo, "{stream}: the high watermark stands where the replica stands");
    }
    let released = Instant::now();
    house.a.go_on();
    for cell in &mut replicated {
        cell.acked();
        assert!(house.a.arrival(&cell.payload).unwrap().acked_at.unwrap() >= released, "{}", cell.name());
    }

    // Lagging at the second replica alone: `two` does not wait for it, `three` does.
    house.b.hold();
    let mut three = Cell::send_all(&house.gateway, "second", &["three"]);
    Cell::send_all(&house.gateway, "second", &["two"]).iter_mut().for_each(Cell::acked);
    for cell in &mut three {
        until("the first replica has acknowledged it", secs(5), || house.a.arrival(&cell.payload)?.acked_at);
        cell.not_acked(ms(20));
    }
    house.b.go_on();
    three.iter_mut().for_each(Cell::acked);

    // Down: what was appended before anybody knew waits, and its connection is closed at ack_timeout without an ack.
    house.a.vanish();
    house.b.vanish();
    let before = REPLICATED.map(|stream| house.ends(stream));
    let waiting = Cell::send_all(&house.gateway, "down", &REPLICATED);
    Cell::send_all(&house.gateway, "down", &LOCAL).iter_mut().for_each(Cell::acked);
    for mut cell in waiting {
        let end = cell.client.end(secs(12));
        assert!(end.is_some(), "{}: not closed", cell.name());
        let after = cell.sent.elapsed();
        assert!(after >= ACK_TIMEOUT - ms(50), "{}: closed after {after:?}", cell.name());
    }
    for (stream, (leo, hw)) in REPLICATED.into_iter().zip(before) {
        assert_eq!(house.ends(stream), (leo + 4, hw), "{stream}: appended, and the high watermark has not moved");
    }

    // Too few in sync: nothing is appended. MQTT 5 is told, 3.1.1 is not read and closed at ack_timeout.
    house.in_sync(false);
    let before = REPLICATED.map(|stream| house.ends(stream));
    let mut refused = Cell::send_all(&house.gateway, "short", &REPLICATED);
    Cell::send_all(&house.gateway, "short", &LOCAL).iter_mut().for_each(Cell::acked);
    for cell in &mut refused {
        match cell.version {
            Version::V5 => {
                let ack = cell.client.ack(secs(5)).unwrap().expect("an answer");
                assert_eq!(ack.reason, Reason::IMPLEMENTATION_SPECIFIC, "{}", cell.name());
                let text = ack.properties.and_then(|properties| properties.reason_string).unwrap_or_default();
                assert_eq!(text.as_str(), "NOT_ENOUGH_REPLICAS", "{}", cell.name());
                cell.client.ping().unwrap();
            }
            _ => {
                assert!(cell.client.end(secs(12)).is_some(), "{}: not closed", cell.name());
                assert!(cell.sent.elapsed() >= ACK_TIMEOUT - ms(50), "{}: {:?}", cell.name(), cell.sent.elapsed());
            }
        }
    }
    assert_eq!(REPLICATED.map(|stream| house.ends(stream)), before, "nothing was appended");

    // Back: the links are there again and the replicas catch up while a 3.1.1 publisher waits, who then gets its ack.
    for peer in [&mut house.a, &mut house.b] {
        peer.hold();
        peer.appear();
    }
    house
        .gateway
        .wait("connected again", secs(60), |status| upstreams(status).all(|upstream| upstream["state"] == "connected"));
    let mut patient: Vec<Cell> = QOS.map(|qos| Cell::send(&house.gateway, "patient", "two", Version::V311, qos)).into();
    patient.iter_mut().for_each(|cell| cell.not_acked(ms(50)));
    house.a.go_on();
    house.b.go_on();
    patient.iter_mut().for_each(Cell::acked);
    house.in_sync(true);
    Cell::send_all(&house.gateway, "back", &[&LOCAL[..], &REPLICATED[..]].concat()).iter_mut().for_each(Cell::acked);
    for stream in REPLICATED {
        let (leo, hw) = house.ends(stream);
        assert_eq!(leo, hw, "{stream}");
    }
    for peer in [&house.a, &house.b] {
        assert_eq!(peer.faults(), Vec::<String>::new());
    }
    house.a.vanish();
    let stored: Vec<String> = house.gateway.tail("two").into_iter().map(|record| record.payload).collect();
    for cell in ["up", "lagging", "second", "down", "back"] {
        let found = stored.iter().filter(|payload| payload.starts_with(&format!("{cell} "))).count();
        assert_eq!(found, 4, "{cell}: stored once each, acknowledged or not: {stored:?}");
    }
    assert!(!stored.iter().any(|payload| payload.starts_with("short ")), "what was refused is not stored");
}

#[test]
fn the_matrix_with_replicas_at_qos_1() {
    matrix(1);
}

#[test]
fn the_matrix_with_replicas_at_qos_2() {
    matrix(2);
}

/// QoS 0 has no ack and never waits; configured streams store it all the same.
#[test]
fn qos_0_is_stored_whatever_the_replicas_do() {
    let house = House::new("gw-qos0", 2, Terms::default());
    house.a.hold();
    for stream in ["zero", "one", "two"] {
        for version in VERSIONS {
            let mut client =
                Client::connect(house.gateway.port, &Options::new(version, &format!("q0-{stream}"))).unwrap();
            client.publish(&format!("{stream}/t"), format!("{version:?}"), QoS::AtMostOnce, 0).unwrap();
            client.ping().unwrap();
        }
        let stored = house.gateway.wait("stored", secs(5), |status| partition(status, stream, 0)["synced"] == 2);
        assert_eq!(partition(&stored, stream, 0)["leo"], 2, "{stream}");
    }
}

/// The level for one message, by user property of MQTT 5.
#[test]
fn a_publisher_asks_for_a_level() {
    let house = House::new("gw-level", 2, Terms::default());
    let ask = |stream: &str, level: &str, qos: QoS| {
        let mut client =
            Client::connect(house.gateway.port, &Options::new(Version::V5, &format!("{stream}{level}"))).unwrap();
        let payload = format!("{stream} {level} {qos:?}");
        let topic = format!("{stream}/t");
        client.publish_with(&topic, payload.clone(), qos, 3, &[("forebay-acks", level)]).unwrap();
        (client, payload)
    };
    let reason = |client: &mut Client| client.ack(secs(5)).unwrap().map(|ack: Ack| ack.reason);
    let stored =
        |stream: &str, payload: &str| house.gateway.tail(stream).iter().any(|record| record.payload == payload);

    for qos in QOS {
        for level in ["0", "1"] {
            for stream in ["zero", "one", "least", "two"] {
                let (mut client, payload) = ask(stream, level, qos);
                assert_eq!(reason(&mut client), Some(Reason::SUCCESS), "{payload}");
            }
        }
        // -1 in a stream without a replica, and what is no level.
        for (stream, level) in [("zero", "-1"), ("least", "-1"), ("one", "2"), ("one", ""), ("one", "one")] {
            let (mut client, payload) = ask(stream, level, qos);
            assert_eq!(reason(&mut client), Some(Reason::IMPLEMENTATION_SPECIFIC), "{payload}");
            assert!(!stored(stream, &payload), "{payload}");
            client.ping().unwrap();
        }
        // -1 in a stream of level 1 that has a replica: waits for it, two of them at the least.
        house.a.hold();
        let (mut client, payload) = ask("one", "-1", qos);
        let (mut at_one, _) = ask("two", "1", qos);
        assert_eq!(reason(&mut at_one), Some(Reason::SUCCESS), "level 1 does not wait in a stream of level -1");
        until("the replica has received it", secs(5), || house.a.arrival(&payload));
        assert_eq!(client.ack(ms(100)).unwrap(), None, "{payload}");
        house.a.go_on();
        assert_eq!(reason(&mut client), Some(Reason::SUCCESS), "{payload}");
    }
}

/// A record that its replica refuses for good: the publisher is told, the record is kept as a dead letter, the rest goes on.
#[test]
fn what_the_replica_refuses_is_not_acknowledged() {
    let terms = Terms { refuses: vec![("bad".to_owned(), Reason::NOT_AUTHORIZED)], ..Terms::default() };
    let house = House::new("gw-refused", 2, terms);
    let mut letters = 0;
    for version in VERSIONS {
        for qos in QOS {
            let payload = format!("{version:?} {qos:?}");
            let mut client =
                Client::connect(house.gateway.port, &Options::new(version, &payload.replace(' ', "-"))).unwrap();
            client.publish("two/bad", payload.clone(), qos, 9).unwrap();
            match version {
                Version::V5 => {
                    let ack = client.ack(secs(5)).unwrap().expect("an answer");
                    assert_eq!(ack.reason, Reason::IMPLEMENTATION_SPECIFIC, "{payload}");
                }
                _ => assert!(client.end(secs(6)).is_some(), "{payload}: not closed"),
            }
            letters += 1;
            until("kept as a dead letter", secs(10), || {
                let found = house.gateway.tail("dead-letter");
                (found.len() == letters && found[letters - 1].payload == payload).then_some(())
            });
            Cell::send(&house.gateway, &payload, "two", version, qos).acked();
        }
    }
    let status = house.gateway.status();
    let refused = upstreams(&status).find(|upstream| upstream["name"] == "a").unwrap()["refused_records"].clone();
    assert_eq!(refused, 4);
}

/// A DUP whose first copy still waits for the replica attaches to that copy.
#[test]
fn a_repeated_publish_attaches_to_its_first_copy() {
    let house = House::new("gw-dup", 2, Terms::default());
    for version in VERSIONS {
        for qos in QOS {
            let payload = format!("{version:?} {qos:?}");
            let (leo, _) = house.ends("two");
            house.a.hold();
            let options = Options::durable(version, &payload.replace(' ', "-"));
            let mut client = Client::connect(house.gateway.port, &options).unwrap();
            client.publish("two/t", payload.clone(), qos, 5).unwrap();
            until("the replica has received it", secs(5), || house.a.arrival(&payload));
            client.wire.close();
            let mut client = Client::connect(house.gateway.port, &options).unwrap();
            assert!(client.connack.session_present, "{payload}");
            let again = forebay::mqtt::Publish::new("two/t", payload.clone()).at(qos, 5);
            let again = forebay::mqtt::Publish { dup: true, ..again };
            client.wire.send(&[forebay::mqtt::Packet::Publish(again)]).unwrap();
            assert_eq!(client.ack(ms(100)).unwrap(), None, "{payload}: it waits still");
            house.a.go_on();
            assert_eq!(client.ack(secs(5)).unwrap().map(|ack| ack.reason), Some(Reason::SUCCESS), "{payload}");
            if qos == QoS::ExactlyOnce {
                client.release(5).unwrap();
            }
            assert_eq!(house.ends("two"), (leo + 1, leo + 1), "{payload}: stored once");
            client.disconnect();
        }
    }
}

/// At the moment of an ack at level 1 the record is in the files: they are copied right then, and the copy is read.
#[test]
fn at_the_moment_of_the_ack_the_record_is_in_the_files() {
    let gateway =
        Gateway::started("gw-copy", &Setup::new(STREAMS_WITHOUT_REPLICAS).device("commit_interval = \"300ms\""));
    let mut copies = 0;
    for version in VERSIONS {
        for qos in QOS {
            let id = format!("{version:?}-{qos:?}");
            let mut client = Client::connect(gateway.port, &Options::new(version, &id)).unwrap();
            // The first opens the interval, the second has to wait for its end.
            for payload in [format!("{id} first"), format!("{id} second")] {
                let sent = Instant::now();
                client.publish("one/t", payload.clone(), qos, 1).unwrap();
                let ack = client.ack(secs(5)).unwrap().expect("an ack");
                let waited = sent.elapsed();
                copies += 1;
                let copy = gateway.beside(&format!("copy-{copies}"));
                gateway.copy_data(&copy);
                assert_eq!(ack.reason, Reason::SUCCESS);
                let stored = gateway.tail_copy("one", &copy);
                assert!(stored.iter().any(|record| record.payload == payload), "{payload}: {stored:?}");
                // Level 0 has been acknowledged long before.
                let sent = Instant::now();
                client.publish("zero/t", payload.clone(), QoS::AtLeastOnce, 2).unwrap();
                client.ack(secs(5)).unwrap().expect("an ack");
                let zero = sent.elapsed();
                assert!(zero < ms(150), "level 0 waits for nothing: {zero:?} (level 1: {waited:?})");
                if qos == QoS::ExactlyOnce {
                    client.release(1).unwrap();
                }
            }
        }
    }
}

const STREAMS_WITHOUT_REPLICAS: &str = r#"
[[stream]]
name = "zero"
topics = ["zero/#"]
acks = 0

[[stream]]
name = "one"
topics = ["one/#"]
acks = 1

"#;

/// Attaches strace to the gateway, which then does something to each fdatasync.
fn inject(gateway: &mut Gateway, what: &str) -> Option<Process> {
    let strace = counts::need("strace", "acks, the moment of the sync")?;
    let mut command = Command::new(strace);
    let pid = gateway.running().pid().to_string();
    let inject = format!("inject=fdatasync:{what}");
    command.args(["-f", "-qq", "-e", "trace=fdatasync", "-e", &inject, "-p", &pid]);
    let process = Process::start("strace", command, &gateway.beside("strace.log"));
    until("strace is attached", secs(10), || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().to_owned();
        (tracer != "0").then_some(())
    });
    std::thread::sleep(ms(100));
    Some(process)
}

/// The sync takes 300 ms: acks at level 1 come after it, PUBCOMP after that of its release; level 0 waits for nothing.
#[test]
fn acks_wait_for_the_sync_itself() {
    const SLOW: Duration = ms(300);
    let mut gateway = Gateway::started("gw-slow-sync", &Setup::new(STREAMS_WITHOUT_REPLICAS));
    let Some(_strace) = inject(&mut gateway, "delay_exit=300000") else { return };
    for version in VERSIONS {
        for qos in QOS {
            let id = format!("{version:?}-{qos:?}");
            let mut client = Client::connect(gateway.port, &Options::durable(version, &id)).unwrap();
            for (stream, waits) in [("one", true), ("zero", qos == QoS::ExactlyOnce)] {
                let sent = Instant::now();
                client.publish(&format!("{stream}/t"), id.clone(), qos, 1).unwrap();
                let ack = client.ack(secs(10)).unwrap().expect("an ack");
                let waited = sent.elapsed();
                assert_eq!(ack.reason, Reason::SUCCESS);
                assert_eq!(waited >= SLOW, waits, "{stream} {id}: acknowledged after {waited:?}");
                if qos == QoS::ExactlyOnce {
                    let sent = Instant::now();
                    client.release(1).unwrap();
                    assert!(sent.elapsed() >= SLOW, "{stream} {id}: PUBCOMP after {:?}", sent.elapsed());
                } else {
                    // What is on its way to the disk is not in the way of the next.
                    std::thread::sleep(SLOW);
                }
            }
        }
    }
}

/// While the sync fails nothing is acknowledged, and nothing new is taken; when it works again everything is.
#[test]
fn nothing_is_acknowledged_while_the_sync_fails() {
    let mut gateway = Gateway::started("gw-failed-sync", &Setup::new(STREAMS_WITHOUT_REPLICAS));
    let mut client = Client::connect(gateway.port, &Options::durable(Version::V5, "before")).unwrap();
    // A commit of the gateway's own may find out first: then the publish is refused, and all begins again.
    let mut strace = loop {
        let Some(mut strace) = inject(&mut gateway, "error=EIO") else { return };
        client.publish("one/t", "waits", QoS::AtLeastOnce, 1).unwrap();
        match client.ack(ms(500)).unwrap() {
            None => break strace,
            Some(ack) => assert_eq!(ack.reason, Reason::IMPLEMENTATION_SPECIFIC, "not synced, not acknowledged"),
        }
        strace.terminate(secs(10));
        gateway.wait("is well again", secs(20), |status| status["gateway"]["ready"] == true);
    };
    gateway.wait("says so", secs(10), |status| {
        status["gateway"]["ready"] == false && status["faults"].as_array().is_some_and(|faults| !faults.is_empty())
    });
    for (stream, id) in [("one", 2), ("zero", 3)] {
        client.publish(&format!("{stream}/t"), "refused", QoS::AtLeastOnce, id).unwrap();
    }
    std::thread::sleep(ms(200));
    strace.terminate(secs(10));
    drop(strace);
    let answers: Vec<(u16, Reason)> = (0..3)
        .map(|_| client.ack(secs(20)).unwrap().expect("an answer"))
        .map(|ack| (ack.packet_id, ack.reason))
        .collect();
    assert!(answers.contains(&(1, Reason::SUCCESS)), "{answers:?}");
    for id in [2, 3] {
        assert!(answers.contains(&(id, Reason::IMPLEMENTATION_SPECIFIC)), "{answers:?}");
    }
    gateway.wait("is well again", secs(20), |status| status["gateway"]["ready"] == true);
    client.publish("one/t", "after", QoS::AtLeastOnce, 4).unwrap();
    assert_eq!(client.ack(secs(5)).unwrap().map(|ack| ack.reason), Some(Reason::SUCCESS));
    gateway.kill();
    gateway.start();
    let stored: Vec<String> = gateway.tail("one").into_iter().map(|record| record.payload).collect();
    assert_eq!(stored, ["waits", "after"]);
}
