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

mod with_mosquitto;

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
