//! The MQTT driver and the link against a real Mosquitto and against scripted peers: what is sent arrives, and what goes wrong is
//! found in time and said in words.
//!
//! Tests that need Mosquitto say so and pass where it is not installed, unless FOREBAY_FULL=1.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic; clippy sees only #[test] functions as tests, not what they call"
)]

use bytes::Bytes;
use forebay::mqtt::encode::publish_len;
use forebay::mqtt::{Publish, QoS, Reason, Text, Version};
use forebay::replication::Link;
use forebay::replication::durable::StateKind;
use forebay::replication::link::{DownKind, LaneStart, LinkConfig, LinkDown, LinkEvent, LinkOrder, LinkOutput, Want};
use forebay::settings::UpstreamTls;
use forebay::types::{LogId, Now, Offset, PartitionId, StreamId};
use forebay::upstream::{DriverConfig, run};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

// ── the driver by itself ────────────────────────────────────────────────────────────────────────────────────────────────────

struct Driver {
    orders: smol::channel::Sender<LinkOrder>,
    events: Receiver<LinkEvent>,
}

fn config(port: u16, v5: bool, qos: u8) -> DriverConfig {
    DriverConfig {
        name: "dc".into(),
        host: "127.0.0.1".into(),
        port,
        v5,
        qos,
        client_id: "gw-dc".into(),
        forwarder: "gw/0".into(),
        username: None,
        password_file: None,
        tls: None,
        keep_alive: Duration::from_secs(30),
        connect_timeout: Duration::from_secs(2),
        ack_timeout: Duration::from_secs(30),
        write_timeout: Duration::from_secs(30),
    }
}

impl Driver {
    fn start(config: DriverConfig) -> Self {
        let (orders, incoming) = smol::channel::unbounded();
        let (emit, events) = channel();
        thread::spawn(move || {
            smol::block_on(run(config, incoming, move |event| {
                let _ = emit.send(event);
            }));
        });
        Self { orders, events }
    }

    fn order(&self, order: LinkOrder) {
        self.orders.send_blocking(order).unwrap();
    }

    fn connect(&self) -> LinkEvent {
        self.order(LinkOrder::Connect { clean_start: false });
        self.next()
    }

    fn next(&self) -> LinkEvent {
        loop {
            match self.events.recv_timeout(LONG).expect("an event within 30 s") {
                LinkEvent::Sent { .. } => {}
                event => return event,
            }
        }
    }

    fn down(&self) -> LinkDown {
        loop {
            if let LinkEvent::Down(down) = self.next() {
                return down;
            }
        }
    }
}

fn message(topic: &str, payload: &str) -> Publish {
    Publish {
        dup: false,
        qos: QoS::ExactlyOnce,
        retain: false,
        topic: Text::from(topic),
        packet_id: 0,
        properties: None,
        payload: Bytes::copy_from_slice(payload.as_bytes()),
    }
}

/// A peer that reads CONNECT and then does what `script` says with the socket.
fn scripted(script: impl FnOnce(TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let _ = socket.read(&mut [0; 1024]);
        script(socket);
    });
    port
}

const CONNACK_V5: [u8; 5] = [0x20, 3, 0, 0, 0];
const CONNACK_V4: [u8; 4] = [0x20, 2, 0, 0];

fn hold(mut socket: TcpStream) {
    let mut buffer = [0; 1024];
    while socket.read(&mut buffer).is_ok_and(|count| count > 0) {}
}

#[test]
fn a_port_where_nobody_listens_and_a_name_that_does_not_exist_are_said_so() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let driver = Driver::start(config(free, true, 1));
    let LinkEvent::Down(down) = driver.connect() else { panic!("it cannot be up") };
    assert_eq!(down, LinkDown { reason: format!("127.0.0.1:{free}: connection refused"), kind: DownKind::Network });
    let driver = Driver::start(DriverConfig { host: "no-such-host.invalid".into(), ..config(1883, true, 1) });
    let LinkEvent::Down(down) = driver.connect() else { panic!("it cannot be up") };
    assert!(down.reason.starts_with("name not found: no-such-host.invalid"), "{}", down.reason);
}

#[test]
fn a_peer_that_never_answers_connect_is_given_up() {
    let port = scripted(hold);
    let driver = Driver::start(DriverConfig { connect_timeout: Duration::from_millis(300), ..config(port, true, 1) });
    let begun = Instant::now();
    let LinkEvent::Down(down) = driver.connect() else { panic!("it cannot be up") };
    assert!(down.reason.starts_with("no CONNACK within 300ms"), "{}", down.reason);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_peer_that_speaks_only_3_1_1_is_named_as_such() {
    for answer in [vec![0x20, 2, 0, 1], vec![0x20, 2, 0, 0]] {
        let port = scripted(move |mut socket| socket.write_all(&answer).unwrap());
        let LinkEvent::Down(down) = Driver::start(config(port, true, 1)).connect() else { panic!("it cannot be up") };
        assert_eq!(down.kind, DownKind::Refused(Reason::UNSUPPORTED_VERSION));
        assert!(down.reason.contains("speaks only MQTT 3.1.1"), "{}", down.reason);
    }
}

#[test]
fn refusals_of_connect_are_read_in_both_versions() {
    let cases: [(bool, &[u8], Reason, &str); 6] = [
        (false, &[0x20, 2, 0, 4], Reason::BAD_USERNAME_OR_PASSWORD, "bad user name or password"),
        (false, &[0x20, 2, 0, 5], Reason::NOT_AUTHORIZED, "not authorized"),
        (false, &[0x20, 2, 0, 1], Reason::UNSUPPORTED_VERSION, "does not speak MQTT 3.1.1"),
        (true, &[0x20, 3, 0, 0x86, 0], Reason::BAD_USERNAME_OR_PASSWORD, "bad user name or password (0x86)"),
        (true, &[0x20, 8, 0, 0x97, 5, 0x1F, 0, 2, b'n', b'o'], Reason::QUOTA_EXCEEDED, "quota exceeded (0x97): no"),
        (true, &[0x20, 5, 0, 0, 2, 0x24, 1], Reason::QOS_NOT_SUPPORTED, "takes QoS 1 at most"),
    ];
    for (v5, answer, reason, words) in cases {
        let port = scripted(move |mut socket| socket.write_all(answer).unwrap());
        let LinkEvent::Down(down) = Driver::start(config(port, v5, 2)).connect() else { panic!("{words}") };
        assert_eq!(down.kind, DownKind::Refused(reason), "{words}");
        assert!(down.reason.contains(words), "{}", down.reason);
    }
}

#[test]
fn disconnect_with_a_reason_is_read_however_short_it_is() {
    let cases: [(&[u8], DownKind, &str); 4] = [
        (&[0xE0, 1, 0x8B], DownKind::Network, "server shutting down"),
        (&[0xE0, 0], DownKind::Network, "the peer closed"),
        (&[0xE0, 2, 0x8E, 0], DownKind::TakenOver, "taken over"),
        (&[0xE0, 1, 0x95], DownKind::ClosedInFlight, "packet too large"),
    ];
    for (packet, kind, words) in cases {
        let port = scripted(move |mut socket| {
            socket.write_all(&[&CONNACK_V5[..], packet].concat()).unwrap();
            hold(socket);
        });
        let driver = Driver::start(config(port, true, 1));
        assert!(matches!(driver.connect(), LinkEvent::Up { .. }));
        let down = driver.down();
        assert_eq!(down.kind, kind, "{words}");
        assert!(down.reason.contains(words), "{}", down.reason);
    }
}

#[test]
fn a_link_that_goes_silent_is_found_by_the_keep_alive() {
    let port = scripted(|mut socket| {
        socket.write_all(&CONNACK_V5).unwrap();
        hold(socket); // the black hole: bytes are taken, nothing comes back
    });
    let driver = Driver::start(DriverConfig { keep_alive: Duration::from_secs(1), ..config(port, true, 1) });
    assert!(matches!(driver.connect(), LinkEvent::Up { .. }));
    let begun = Instant::now();
    let down = driver.down();
    assert!(down.reason.contains("silent for 1.5s"), "{}", down.reason);
    assert!(begun.elapsed() >= Duration::from_millis(1400) && begun.elapsed() < Duration::from_secs(6));
}

#[test]
fn a_server_keep_alive_replaces_ours() {
    let port = scripted(|mut socket| {
        socket.write_all(&[0x20, 6, 0, 0, 3, 0x13, 0, 1]).unwrap();
        hold(socket);
    });
    let driver = Driver::start(config(port, true, 1));
    assert!(matches!(driver.connect(), LinkEvent::Up { .. }));
    assert!(driver.down().reason.contains("silent for 1.5s"));
}

#[test]
fn pings_that_are_answered_do_not_hide_that_nothing_is_acknowledged() {
    let port = scripted(|mut socket| {
        socket.write_all(&CONNACK_V4).unwrap();
        let mut buffer = [0; 1024];
        while let Ok(count) = socket.read(&mut buffer) {
            if buffer[..count].ends_with(&[0xC0, 0]) {
                socket.write_all(&[0xD0, 0]).unwrap();
            } else if count == 0 {
                return;
            }
        }
    });
    let short = Duration::from_millis(2_500);
    let driver = Driver::start(DriverConfig {
        keep_alive: Duration::from_secs(1),
        ack_timeout: short,
        ..config(port, false, 1)
    });
    assert!(matches!(driver.connect(), LinkEvent::Up { .. }));
    thread::sleep(Duration::from_millis(3_000)); // nothing is due: the timer does not run
    let mut publish = message("t", "x");
    publish.packet_id = 1;
    driver.order(LinkOrder::Publish(vec![publish]));
    let begun = Instant::now();
    let down = driver.down();
    assert!(down.reason.contains("no acknowledgement for 2.5s"), "{}", down.reason);
    assert!(begun.elapsed() >= Duration::from_millis(2_400) && begun.elapsed() < Duration::from_secs(8));
}

#[test]
fn a_peer_that_does_not_read_is_found() {
    let port = scripted(|mut socket| {
        socket.write_all(&CONNACK_V5).unwrap();
        thread::sleep(LONG);
    });
    let driver = Driver::start(DriverConfig { write_timeout: Duration::from_millis(500), ..config(port, true, 1) });
    let event = driver.connect();
    assert!(matches!(event, LinkEvent::Up { .. }), "{event:?}");
    let payload = "x".repeat(1 << 20);
    let publishes = (1..=20).map(|packet_id| Publish { packet_id, ..message("t", &payload) }).collect();
    driver.order(LinkOrder::Publish(publishes));
    assert!(driver.down().reason.contains("took no byte for 500ms"));
}

#[test]
fn a_3_1_1_peer_that_closes_at_a_record_is_told_apart_from_one_that_closes_idle() {
    for (publishes, kind) in [(1, DownKind::ClosedInFlight), (0, DownKind::Network)] {
        let port = scripted(move |mut socket| {
            socket.write_all(&CONNACK_V4).unwrap();
            if publishes > 0 {
                let _ = socket.read(&mut [0; 64]);
            }
        });
        let driver = Driver::start(config(port, false, 1));
        assert!(matches!(driver.connect(), LinkEvent::Up { .. }));
        if publishes > 0 {
            driver.order(LinkOrder::Publish(vec![Publish { packet_id: 1, ..message("t", "x") }]));
        }
        assert_eq!(driver.down().kind, kind);
    }
}

#[test]
fn orders_for_a_connection_that_is_gone_are_dropped_and_closing_is_in_order() {
    let (tell, told) = channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for _ in 0..2 {
            let (mut socket, _) = listener.accept().unwrap();
            let _ = socket.read(&mut [0; 1024]);
            socket.write_all(&CONNACK_V4).unwrap();
            let mut all = Vec::new();
            let _ = socket.read_to_end(&mut all);
            tell.send(all).unwrap();
        }
    });
    let driver = Driver::start(config(port, false, 1));
    driver.order(LinkOrder::Disconnect { graceful: true }); // nothing to close: nothing happens
    for _ in 0..2 {
        assert!(matches!(driver.connect(), LinkEvent::Up { .. }));
        driver.order(LinkOrder::Disconnect { graceful: true });
        assert_eq!(driver.down().kind, DownKind::Ordered);
        driver.order(LinkOrder::Publish(vec![Publish { packet_id: 1, ..message("t", "stale") }]));
        assert_eq!(told.recv_timeout(LONG).unwrap(), [0xE0, 0], "DISCONNECT and nothing else");
    }
}

/// A session that began with the flag "clean" ends with its connection in 3.1.1, and Mosquitto 2.0 does not write it to its disk in
/// 5.0: so the old session is ended by a connection of its own, and the new one begins without the flag.
#[test]
fn a_clean_start_ends_the_old_session_and_begins_one_that_lasts() {
    for (v5, kept, flags) in [(true, true, vec![0, 2, 0]), (false, true, vec![0, 2, 0]), (true, false, vec![0])] {
        let (tell, told) = channel();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for number in 0..3 {
                let (mut socket, _) = listener.accept().unwrap();
                let mut buffer = [0; 1024];
                let _ = socket.read(&mut buffer);
                let flags = buffer.windows(4).position(|bytes| bytes == b"MQTT").unwrap() + 5;
                tell.send(buffer[flags]).unwrap();
                let mut connack = if v5 { CONNACK_V5.to_vec() } else { CONNACK_V4.to_vec() };
                connack[2] = u8::from(kept && number == 0);
                socket.write_all(&connack).unwrap();
                hold(socket);
            }
        });
        let driver = Driver::start(config(port, v5, 2));
        driver.order(LinkOrder::Connect { clean_start: true });
        let receive_maximum = if v5 { 65_535 } else { 20 };
        let up = LinkEvent::Up { session_present: false, receive_maximum, maximum_packet_size: u32::MAX };
        assert_eq!(driver.next(), up);
        assert_eq!(told.try_iter().collect::<Vec<u8>>(), flags);
    }
}

#[test]
fn an_order_to_close_ends_even_a_connection_that_does_not_come_up() {
    let port = scripted(hold);
    let driver = Driver::start(DriverConfig { connect_timeout: LONG, ..config(port, true, 1) });
    driver.order(LinkOrder::Connect { clean_start: false });
    thread::sleep(Duration::from_millis(200));
    driver.order(LinkOrder::Disconnect { graceful: true });
    assert_eq!(driver.down().kind, DownKind::Ordered);
}

// ── with Mosquitto ──────────────────────────────────────────────────────────────────────────────────────────────────────────

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A Mosquitto of our own; killed when dropped.
struct Mosquitto {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
}

fn mosquitto_there() -> bool {
    let there = find("mosquitto").is_some() && find("mosquitto_sub").is_some();
    if !there {
        assert!(std::env::var("FOREBAY_FULL").as_deref() != Ok("1"), "FOREBAY_FULL=1, but mosquitto is not installed");
        println!("skipped: mosquitto and mosquitto_sub are not installed (apt install mosquitto mosquitto-clients)");
    }
    there
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .map(str::to_owned)
        .chain(["/usr/sbin".to_owned()])
        .map(|dir| Path::new(&dir).join(program))
        .find(|p| p.exists())
}

impl Mosquitto {
    fn start(settings: &str) -> Self {
        Self::start_with(settings, |_| {})
    }

    fn start_with(settings: &str, prepare: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path());
        let port = free_port();
        let settings = settings.replace("$DIR", &dir.path().display().to_string());
        let anonymous = if settings.contains("allow_anonymous") { "" } else { "allow_anonymous true\n" };
        let user = if Command::new("id").arg("-u").output().unwrap().stdout == b"0\n" { "user root\n" } else { "" };
        let text = format!(
            "{user}listener {port} 127.0.0.1\n{anonymous}max_queued_messages 0\nset_tcp_nodelay true\nlog_type error\n{settings}\n"
        );
        let file = dir.path().join("mosquitto.conf");
        std::fs::write(&file, text).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new(find("mosquitto").unwrap())
            .arg("-c")
            .arg(&file)
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let said = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
            assert!(begun.elapsed() < LONG, "mosquitto does not come up: {said}");
            thread::sleep(Duration::from_millis(20));
        }
        Self { child, port, dir }
    }

    /// A subscriber that stands by the time this returns.
    fn subscribe(&self, extra: &[&str]) -> Subscriber {
        let file = self.dir.path().join("received");
        let child = Command::new(find("mosquitto_sub").unwrap())
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                &self.port.to_string(),
                "-i",
                "sub",
                "-q",
                "2",
                "-t",
                "up/#",
                "-t",
                "ready",
            ])
            .args(["-F", "%t %p", "-V", "mqttv311"]) // 2.0.11 breaks off at QoS 2 with its own mqttv5 client
            .args(extra)
            .stdout(std::fs::File::create(&file).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let subscriber = Subscriber { child, file };
        let begun = Instant::now();
        while subscriber.lines().is_empty() {
            assert!(begun.elapsed() < LONG, "the subscriber does not come up");
            let mut publish = Command::new(find("mosquitto_pub").unwrap());
            publish.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-t", "ready", "-m", "yes"]).args(extra);
            assert!(publish.status().unwrap().success());
            thread::sleep(Duration::from_millis(50));
        }
        subscriber
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Subscriber {
    child: Child,
    file: PathBuf,
}

impl Subscriber {
    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn expect_all(&self, count: usize) {
        assert_same(&self.payloads(count), &numbers(count));
    }

    /// Payloads under `up/`, once there are `count` (or long enough was waited); then a little longer, to see doubles.
    fn payloads(&self, count: usize) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let lines: Vec<String> = self.lines();
            let found = lines.iter().filter_map(|line| Some(line.strip_prefix("up/")?.split_once(' ')?.1.to_owned()));
            let found: Vec<String> = found.collect();
            if (found.len() >= count || begun.elapsed() > LONG) && begun.elapsed() > Duration::from_millis(300) {
                return found;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn assert_same(found: &[String], expected: &[String]) {
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    let around = differs.map(|at| &found[at.saturating_sub(3)..(at + 4).min(found.len())]);
    assert!(
        found == expected,
        "{} of {} payloads; the first difference is at {differs:?}: {around:?}; the last is {:?}",
        found.len(),
        expected.len(),
        found.last()
    );
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A link with its driver over a log in memory: what the engine does, without the engine.
struct Gateway {
    driver: Driver,
    link: Link,
    version: Version,
    begun: Instant,
    records: Vec<Publish>,
    state: BTreeMap<(StateKind, Vec<u8>), Vec<u8>>,
    seq: u64,
    refused: Vec<(Offset, Reason)>,
    most_in_flight: usize,
}

const PARTITION: PartitionId = PartitionId { stream: StreamId(1), partition: 0 };

impl Gateway {
    fn new(config: DriverConfig, records: Vec<Publish>) -> Self {
        let (v5, exactly_once) = (config.v5, config.qos == 2);
        let state = BTreeMap::new();
        let link = Self::link(exactly_once, v5, records.len(), &state);
        let version = if v5 { Version::V5 } else { Version::V311 };
        let driver = Driver::start(config);
        let begun = Instant::now();
        Self { driver, link, version, begun, records, state, seq: 0, refused: Vec::new(), most_in_flight: 0 }
    }

    fn link(exactly_once: bool, v5: bool, end: usize, state: &BTreeMap<(StateKind, Vec<u8>), Vec<u8>>) -> Link {
        let config = LinkConfig {
            name: "dc".into(),
            exactly_once,
            peer: format!("dc/{v5}"),
            log_id: LogId([7; 16]),
            window: 200,
            window_bytes: 1 << 20,
            stop_on_refusal: false,
            seed: u64::from(std::process::id()),
        };
        let start = LaneStart { partition: PARTITION, start: 0, end: end as u64 };
        Link::new(config, &[start], &mut |kind, key| state.get(&(kind, key.to_vec())).cloned()).unwrap()
    }

    fn now(&self) -> Now {
        Now { mono_ns: self.begun.elapsed().as_nanos() as u64, wall_ms: None, wall_synced: false }
    }

    fn carry_out(&mut self, outputs: Vec<LinkOutput>) {
        for output in outputs {
            match output {
                LinkOutput::Order(order) => self.driver.order(order),
                LinkOutput::State(change) => {
                    self.seq += 1;
                    self.state.insert((change.kind, change.key), change.value);
                }
                LinkOutput::Refused { partition, offset, reason, .. } => {
                    self.refused.push((offset, reason));
                    let mut outputs = Vec::new();
                    self.link.settled(self.now(), partition, offset, &mut outputs);
                    self.carry_out(outputs);
                }
                LinkOutput::Event(_, text) => println!("{text}"),
                LinkOutput::Cursor { .. } | LinkOutput::Rewind => {}
            }
        }
        self.link.recorded(self.seq);
    }

    fn step(&mut self) {
        let mut outputs = Vec::new();
        match self.driver.events.recv_timeout(Duration::from_millis(5)) {
            Ok(event) => self.link.on_event(self.now(), event, &mut outputs),
            Err(RecvTimeoutError::Timeout) => self.link.tick(self.now(), &mut outputs),
            Err(RecvTimeoutError::Disconnected) => panic!("the driver is gone"),
        }
        self.carry_out(outputs);
        let mut outputs = Vec::new();
        self.link.synced(self.now(), self.seq, &mut outputs);
        if self.link.room() > 0 {
            let from = self.link.lanes().next().unwrap().1 as usize;
            for (offset, record) in self.records.iter().enumerate().skip(from) {
                let offset = offset as u64;
                match self.link.want(PARTITION, offset) {
                    Want::Pass => {}
                    Want::Full => break,
                    Want::Send => {
                        let size = publish_len(
                            &Publish { qos: QoS::AtLeastOnce, packet_id: 1, ..record.clone() },
                            self.version,
                        );
                        assert!(self.link.offer(PARTITION, offset, record.clone(), size, &mut outputs));
                    }
                }
            }
        }
        self.link.flush(self.now(), &mut outputs);
        self.carry_out(outputs);
        self.most_in_flight = self.most_in_flight.max(self.link.in_flight());
    }

    fn cursor(&self) -> usize {
        self.link.cursor(PARTITION).unwrap() as usize
    }

    fn run_to(&mut self, cursor: usize) {
        let begun = Instant::now();
        while self.cursor() < cursor {
            self.step();
            let (at, reason) = (self.cursor(), self.link.reason());
            assert!(begun.elapsed() < LONG * 2, "stuck at {at} of {cursor}: {:?} {reason:?}", self.link.state());
        }
    }
}

fn records(count: usize) -> Vec<Publish> {
    (0..count).map(|number| message(&format!("up/{}", number % 7), &number.to_string())).collect()
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

#[test]
fn everything_arrives_once_and_in_order_at_both_levels_and_in_both_versions() {
    if !mosquitto_there() {
        return;
    }
    for (v5, qos) in [(true, 2), (false, 2), (true, 1), (false, 1)] {
        let broker = Mosquitto::start("");
        let subscriber = broker.subscribe(&[]);
        let mut gateway = Gateway::new(config(broker.port, v5, qos), records(3_000));
        gateway.run_to(3_000);
        subscriber.expect_all(3_000);
        assert_eq!(gateway.link.counts().forwarded, 3_000);
        assert_eq!(gateway.link.counts().possible_doubles, 0);
        assert!(gateway.link.counts().sent_bytes > 3_000 * 10);
    }
}

#[test]
fn a_receive_maximum_of_5_is_never_exceeded() {
    if !mosquitto_there() {
        return;
    }
    let broker = Mosquitto::start("max_inflight_messages 5");
    let subscriber = broker.subscribe(&[]);
    let mut gateway = Gateway::new(config(broker.port, true, 2), records(500));
    gateway.run_to(500);
    subscriber.expect_all(500);
    assert_eq!(gateway.most_in_flight, 5, "the window is kept full, and not more than full");
}

/// Passes bytes between the gateway and the broker; cuts them, or swallows them.
struct Cutter {
    port: u16,
    open: Arc<Mutex<Vec<TcpStream>>>,
    swallow: Arc<AtomicBool>,
}

impl Cutter {
    fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let open = Arc::new(Mutex::new(Vec::new()));
        let swallow = Arc::new(AtomicBool::new(false));
        let (kept, swallowing) = (Arc::clone(&open), Arc::clone(&swallow));
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                kept.lock().unwrap().extend([socket.try_clone().unwrap(), upstream.try_clone().unwrap()]);
                for (mut from, mut to) in
                    [(socket.try_clone().unwrap(), upstream.try_clone().unwrap()), (upstream, socket)]
                {
                    let swallow = Arc::clone(&swallowing);
                    thread::spawn(move || {
                        let mut buffer = [0; 4096];
                        while let Ok(count) = from.read(&mut buffer) {
                            if count == 0 || !swallow.load(Ordering::Relaxed) && to.write_all(&buffer[..count]).is_err()
                            {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { port, open, swallow }
    }

    fn cut(&self) {
        for socket in self.open.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn over_cuts_qos_2_doubles_nothing_and_qos_1_loses_nothing() {
    if !mosquitto_there() {
        return;
    }
    let cuts = if std::env::var("FOREBAY_FULL").as_deref() == Ok("1") { 20 } else { 8 };
    for (v5, qos) in [(true, 2), (false, 2), (true, 1)] {
        let broker = Mosquitto::start("");
        let subscriber = broker.subscribe(&[]);
        let cutter = Cutter::start(broker.port);
        let mut gateway = Gateway::new(config(cutter.port, v5, qos), records(4_200));
        for cut in 1..=cuts {
            gateway.run_to(cut * 4_000 / cuts);
            cutter.cut();
        }
        gateway.run_to(4_200);
        let found = subscriber.payloads(4_200);
        assert!(gateway.link.counts().connections > cuts as u64 / 2);
        if qos == 2 {
            assert_same(&found, &numbers(4_200));
            assert_eq!(gateway.link.counts().possible_doubles, 0);
            continue;
        }
        let mut first = Vec::new();
        for number in &found {
            if !first.contains(number) {
                first.push(number.clone());
            }
        }
        assert_same(&first, &numbers(4_200)); // each arrived, first occurrences in order
        let doubles = (found.len() - first.len()) as u64;
        assert!(doubles <= gateway.link.counts().possible_doubles, "{doubles} doubles");
    }
}

#[test]
fn a_crash_of_the_gateway_is_resumed_from_what_was_durable() {
    if !mosquitto_there() {
        return;
    }
    for v5 in [true, false] {
        let broker = Mosquitto::start("");
        let subscriber = broker.subscribe(&[]);
        let config = config(broker.port, v5, 2);
        let mut gateway = Gateway::new(config.clone(), records(3_000));
        for crash in 1..=10 {
            gateway.run_to(crash * 250);
            // All memory is gone; the durable state and the log remain. The old driver's socket closes with its channel.
            let link = Gateway::link(true, v5, gateway.records.len(), &gateway.state);
            assert!(link.cursor(PARTITION).unwrap() as usize <= gateway.cursor());
            gateway.link = link;
            gateway.driver = Driver::start(config.clone());
        }
        gateway.run_to(3_000);
        subscriber.expect_all(3_000);
    }
}

#[test]
fn a_black_hole_is_left_and_everything_arrives_all_the_same() {
    if !mosquitto_there() {
        return;
    }
    let broker = Mosquitto::start("");
    let subscriber = broker.subscribe(&[]);
    let cutter = Cutter::start(broker.port);
    let mut gateway = Gateway::new(
        DriverConfig { keep_alive: Duration::from_secs(1), ..config(cutter.port, true, 2) },
        records(2_000),
    );
    gateway.run_to(500);
    cutter.swallow.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    while gateway.link.reason().is_none() {
        gateway.step();
        assert!(begun.elapsed() < LONG, "half-open and not noticed");
    }
    assert!(gateway.link.reason().unwrap().contains("silent"), "{:?}", gateway.link.reason());
    cutter.swallow.store(false, Ordering::Relaxed);
    gateway.run_to(2_000);
    subscriber.expect_all(2_000);
}

#[test]
fn wrong_credentials_are_said_so_and_a_corrected_password_file_needs_no_restart() {
    if !mosquitto_there() {
        return;
    }
    let Some(passwd) = find("mosquitto_passwd") else {
        println!("skipped: mosquitto_passwd is not installed");
        return;
    };
    for v5 in [true, false] {
        let broker = Mosquitto::start_with("allow_anonymous false\npassword_file $DIR/passwords", |dir| {
            let file = dir.join("passwords");
            std::fs::write(&file, "").unwrap();
            assert!(Command::new(&passwd).arg("-b").arg(&file).args(["gw", "right"]).status().unwrap().success());
        });
        let secret = broker.dir.path().join("secret");
        std::fs::write(&secret, "wrong\n").unwrap();
        let (username, password_file) = (Some("gw".to_owned()), Some(secret.clone()));
        let driver = Driver::start(DriverConfig { username, password_file, ..config(broker.port, v5, 1) });
        let LinkEvent::Down(down) = driver.connect() else { panic!("it cannot be up") };
        assert!(matches!(down.kind, DownKind::Refused(Reason::NOT_AUTHORIZED | Reason::BAD_USERNAME_OR_PASSWORD)));
        assert!(down.reason.contains("not authorized") || down.reason.contains("bad user name"), "{}", down.reason);
        std::fs::write(&secret, "right\n").unwrap();
        assert!(matches!(driver.connect(), LinkEvent::Up { .. }));
        std::fs::remove_file(&secret).unwrap();
        driver.order(LinkOrder::Disconnect { graceful: true });
        driver.down();
        let LinkEvent::Down(down) = driver.connect() else { panic!("it cannot be up") };
        assert!(down.reason.contains("password_file") && down.reason.contains("secret"), "{}", down.reason);
    }
}

#[test]
fn what_the_peer_refuses_or_is_too_large_for_it_is_refused_and_the_rest_arrives() {
    if !mosquitto_there() {
        return;
    }
    for qos in [1, 2] {
        let broker = Mosquitto::start_with("max_packet_size 300\nacl_file $DIR/acl", |dir| {
            let text = "topic read #\ntopic write up/#\ntopic write ready\ntopic deny up/5\n";
            std::fs::write(dir.join("acl"), text).unwrap();
        });
        let subscriber = broker.subscribe(&[]);
        let mut records: Vec<Publish> = (0..20).map(|number| message("up/a", &number.to_string())).collect();
        records[5] = message("up/5", "denied");
        records[7] = message("up/a", &"x".repeat(400));
        let mut gateway = Gateway::new(config(broker.port, true, qos), records);
        gateway.run_to(20);
        let mut refused = gateway.refused.clone();
        refused.sort();
        assert_eq!(refused, [(5, Reason::NOT_AUTHORIZED), (7, Reason::PACKET_TOO_LARGE)], "QoS {qos}");
        let expected: Vec<String> = (0..20).filter(|n| ![5, 7].contains(n)).map(|n: i32| n.to_string()).collect();
        assert_eq!(subscriber.payloads(18), expected);
    }
}

#[test]
fn mutual_tls_reads_its_files_at_each_connection() {
    if !mosquitto_there() {
        return;
    }
    let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "test authority");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(params, ca_key);
    let issue = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    let (server, client) = (issue("localhost"), issue("gw"));
    let settings = "cafile $DIR/ca.pem\ncertfile $DIR/server.pem\nkeyfile $DIR/server.key\nrequire_certificate true\ntls_version tlsv1.2";
    let broker = Mosquitto::start_with(settings, |dir| {
        std::fs::write(dir.join("ca.pem"), ca.pem()).unwrap();
        std::fs::write(dir.join("server.pem"), &server.0).unwrap();
        std::fs::write(dir.join("server.key"), &server.1).unwrap();
    });
    let dir = broker.dir.path().to_owned();
    let tls = UpstreamTls {
        ca_file: Some(dir.join("ca.pem")),
        cert_file: Some(dir.join("gw.pem")),
        key_file: Some(dir.join("gw.key")),
        server_name: Some("localhost".into()),
    };
    let driver = Driver::start(DriverConfig { tls: Some(tls), ..config(broker.port, true, 1) });
    let LinkEvent::Down(down) = driver.connect() else { panic!("it cannot be up") };
    assert!(down.reason.contains("gw.pem"), "{}", down.reason);
    std::fs::write(dir.join("gw.pem"), &client.0).unwrap();
    std::fs::write(dir.join("gw.key"), &client.1).unwrap();
    let event = driver.connect();
    assert!(matches!(event, LinkEvent::Up { .. }), "{event:?}");
    let payload = "x".repeat(100_000);
    let publish = |packet_id| Publish { packet_id, qos: QoS::AtLeastOnce, ..message("up/t", &payload) };
    driver.order(LinkOrder::Publish((1..=20).map(publish).collect()));
    let mut acks = 0;
    while acks < 20 {
        match driver.next() {
            LinkEvent::Acks(some) => acks += some.len(),
            other => panic!("{other:?} after {acks} acks"),
        }
    }
    // A certificate for another name is not taken.
    let tls =
        UpstreamTls { ca_file: Some(dir.join("ca.pem")), server_name: Some("other".into()), ..UpstreamTls::default() };
    let driver = Driver::start(DriverConfig { tls: Some(tls), ..config(broker.port, true, 1) });
    let LinkEvent::Down(down) = driver.connect() else { panic!("it cannot be up") };
    assert!(down.reason.starts_with("TLS with 127.0.0.1"), "{}", down.reason);
}
