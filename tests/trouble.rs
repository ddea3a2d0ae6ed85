//! Bad input and trouble: each is told in a sentence, harms nobody else, and deletes nothing.
#![cfg(test)]

#[allow(dead_code, reason = "each suite uses a part of it")]
mod support;

use forebay::mqtt::{QoS, Reason, Version};
use std::net::TcpListener;
use std::process::Command;
use std::time::Instant;
use support::client::{Client, Options, tcp};
use support::gateway::{FOREBAY, Gateway, Setup, upstream, upstreams};
use support::peer::{Peer, Terms};
use support::process::run;
use support::{ms, ports, secs};

const STREAM: &str = "[[stream]]\nname = \"telemetry\"\ntopics = [\"sensors/#\"]\n";

/// Publishes one message at QoS 1 and waits for its ack.
fn store(gateway: &Gateway, payload: &str) {
    let mut client = Client::connect(gateway.port, &Options::new(Version::V5, "store")).unwrap();
    client.publish("sensors/t", payload.to_owned(), QoS::AtLeastOnce, 1).unwrap();
    assert_eq!(client.ack(secs(10)).unwrap().map(|ack| ack.reason), Some(Reason::SUCCESS));
    client.disconnect();
}

fn payloads(gateway: &Gateway) -> Vec<String> {
    gateway.tail("telemetry").into_iter().map(|record| record.payload).collect()
}

/// `forebay run` that must end by itself, with an exit code and a message.
fn fails(gateway: &Gateway, code: i32, words: &[&str]) -> String {
    let (status, _, err) = run(&mut gateway.command(&["run"]), secs(30));
    assert_eq!(status.code(), Some(code), "{err}");
    for word in words {
        assert!(err.contains(word), "expected {word:?} in: {err}");
    }
    assert!(!err.contains("panicked"), "{err}");
    err
}

#[test]
fn a_malformed_packet_ends_its_connection_and_nobody_else_notices() {
    let gateway = Gateway::started("gw-malformed", &Setup::new(STREAM));
    let mut bystander = Client::connect(gateway.port, &Options::new(Version::V5, "bystander")).unwrap();
    bystander.subscribe("sensors/#", QoS::AtLeastOnce).unwrap();
    let wrong: [(&str, &[u8], Reason); 7] = [
        ("packet type 0", &[0x00, 0x00], Reason::MALFORMED_PACKET),
        ("QoS 3", &[0x36, 0x05, 0x00, 0x01, b't', 0x00, 0x01], Reason::MALFORMED_PACKET),
        ("SUBSCRIBE with wrong flags", &[0x80, 0x06, 0x00, 0x01, 0x00, 0x00, 0x01, b't'], Reason::MALFORMED_PACKET),
        ("a length of five bytes", &[0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0x01], Reason::MALFORMED_PACKET),
        ("a topic with a wildcard", &[0x30, 0x05, 0x00, 0x02, b'a', b'#', 0x00], Reason::TOPIC_NAME_INVALID),
        ("CONNACK from a client", &[0x20, 0x03, 0x00, 0x00, 0x00], Reason::PROTOCOL_ERROR),
        ("a packet too large", &[0x30, 0xFF, 0xFF, 0xFF, 0x7F, 0x00], Reason::PACKET_TOO_LARGE),
    ];
    for (what, bytes, reason) in wrong {
        for version in [Version::V5, Version::V311] {
            let mut client = Client::connect(gateway.port, &Options::new(version, "wrong")).unwrap();
            client.wire.send_bytes(bytes).unwrap();
            let end = client.end(secs(5)).unwrap_or_else(|| panic!("{what} {version:?}: not closed"));
            match version {
                // Malformed and protocol error are near each other, and a topic with a wildcard may be called either.
                Version::V5 => {
                    let said = end.unwrap_or_else(|| panic!("{what}: closed without DISCONNECT"));
                    let near = [reason, Reason::MALFORMED_PACKET, Reason::PROTOCOL_ERROR];
                    let exact = reason == Reason::PACKET_TOO_LARGE;
                    assert!(
                        said == reason || (!exact && near.contains(&said)),
                        "{what}: {said:?}, expected {reason:?}"
                    );
                }
                _ => assert_eq!(end, None, "{what}: 3.1.1 has no DISCONNECT from a server"),
            }
        }
    }
    // Nothing that looks like MQTT, and a packet that never ends.
    use std::io::{Read, Write};
    let mut stranger = tcp(gateway.port).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stranger.set_read_timeout(Some(secs(5))).unwrap();
    assert_eq!(stranger.read(&mut [0; 16]).unwrap_or(0), 0, "closed");
    let mut half = tcp(gateway.port).unwrap();
    half.write_all(&[0x10, 0x20]).unwrap();

    store(&gateway, "after all that");
    match bystander.wire.receive(secs(5)).unwrap() {
        Some(forebay::mqtt::Packet::Publish(publish)) => assert_eq!(&publish.payload[..], b"after all that"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wrong_configuration_tells_every_error_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    let text = "unknown = 1\n\n[gateway]\ndata_dir = \"data\"\ndisk_budget = \"lots\"\n\n[[listener]]\nbind = \"nowhere\"\n\n\
                [[stream]]\nname = \"Telemetry!\"\ntopics = [\"a/#/b\"]\nacks = 2\n";
    std::fs::write(&file, text).unwrap();
    for command in ["run", "check"] {
        let mut process = Command::new(FOREBAY);
        process.arg(command).arg("--config").arg(&file).current_dir(directory.path());
        let (status, _, err) = run(&mut process, secs(20));
        assert_eq!(status.code(), Some(2), "{command}: {err}");
        for place in [":1:1", ":5:", ":8:", ":11:", ":12:", ":13:8: stream[0].acks: expected 0, 1 or -1, found 2"] {
            assert!(err.contains(&format!("config.toml{place}")), "{command}: expected {place:?} in:\n{err}");
        }
        assert!(!directory.path().join("data").exists(), "{command}: nothing was made");
    }
    std::fs::write(&file, "[gateway\n").unwrap();
    let (status, _, err) = run(Command::new(FOREBAY).arg("check").arg("--config").arg(&file), secs(20));
    assert!(status.code() == Some(2) && err.contains("config.toml:1:"), "{err}");
    let absent = directory.path().join("absent.toml");
    let (status, _, err) = run(Command::new(FOREBAY).arg("run").arg("--config").arg(&absent), secs(20));
    assert!(status.code() == Some(2) && err.contains("absent.toml"), "{err}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let gateway = Gateway::new("gw-port", &Setup::new(STREAM));
    let _taken = TcpListener::bind(("127.0.0.1", gateway.port)).unwrap();
    fails(&gateway, 1, &[&format!("127.0.0.1:{}", gateway.port)]);
}

#[test]
fn a_data_directory_that_is_none_is_named() {
    let gateway = Gateway::new("gw-file", &Setup::new(STREAM));
    std::fs::write(&gateway.data, "not a directory").unwrap();
    let path = gateway.data.display().to_string();
    fails(&gateway, 1, &[&path]);
    assert_eq!(std::fs::read_to_string(&gateway.data).unwrap(), "not a directory", "nothing is deleted");
}

#[test]
fn a_second_process_on_the_same_data_directory_is_refused() {
    let first = Gateway::started("gw-first", &Setup::new(STREAM));
    store(&first, "one");
    let set = format!("listener[0].bind=127.0.0.1:{}", ports::free());
    let (status, _, err) = run(&mut first.command(&["run", "--set", &set]), secs(20));
    assert_eq!(status.code(), Some(1), "{err}");
    assert!(err.contains(&first.data.display().to_string()), "{err}");
    store(&first, "two");
    assert_eq!(payloads(&first), ["one", "two"]);
}

/// Every file under a directory, with its length.
fn files(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => found.extend(files(&entry.path())),
            kind if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

#[test]
fn foreign_and_torn_files_stop_nothing_and_stay() {
    let mut gateway = Gateway::started(
        "gw-foreign",
        &Setup::new(STREAM).device("segment_size = \"256KiB\"\nmax_packet_size = \"64KiB\""),
    );
    store(&gateway, "one");
    assert!(gateway.terminate().0.success());
    let log = gateway.data.join("log");
    assert!(log.is_dir(), "{:?}", files(&gateway.data));
    let foreign = [
        (gateway.data.join("notes.txt"), b"mine".to_vec()),
        (log.join("notes.txt"), b"mine too".to_vec()),
        (log.join("99999999999999999999999.seg"), b"no segment".to_vec()),
        (log.join("copy of 0001.seg"), vec![0_u8; 4096]),
        (log.join("zero.seg"), Vec::new()),
    ];
    for (path, bytes) in &foreign {
        std::fs::write(path, bytes).unwrap();
    }
    gateway.start();
    store(&gateway, "two");
    gateway.kill();
    gateway.start();
    assert_eq!(payloads(&gateway), ["one", "two"]);
    for (path, bytes) in &foreign {
        assert_eq!(&std::fs::read(path).unwrap(), bytes, "{}", path.display());
    }
}

#[test]
fn a_damaged_state_directory_is_set_aside_and_rebuilt() {
    let mut gateway = Gateway::started("gw-sled", &Setup::new(STREAM));
    let session = Options::durable(Version::V5, "sleeper");
    let mut sleeper = Client::connect(gateway.port, &session).unwrap();
    sleeper.subscribe("elsewhere/#", QoS::AtLeastOnce).unwrap();
    sleeper.disconnect();
    store(&gateway, "one");
    assert!(gateway.terminate().0.success());
    let state = gateway.data.join("state");
    let damaged = files(&state);
    assert!(!damaged.is_empty(), "{:?}", files(&gateway.data));
    for path in &damaged {
        let length = std::fs::metadata(path).unwrap().len();
        std::fs::write(path, vec![0xA5; usize::try_from(length.clamp(64, 1 << 20)).unwrap()]).unwrap();
    }
    gateway.start();
    let aside = gateway.data.join("state.quarantine");
    assert!(aside.exists(), "set aside: {}", gateway.output());
    store(&gateway, "two");
    assert_eq!(payloads(&gateway), ["one", "two"]);
    assert!(Client::connect(gateway.port, &session).unwrap().connack.session_present, "the session is in the log too");
    // Without any state at all.
    gateway.kill();
    std::fs::remove_dir_all(&state).unwrap();
    gateway.start();
    assert_eq!(payloads(&gateway), ["one", "two"]);
    assert!(Client::connect(gateway.port, &session).unwrap().connack.session_present);
}

#[test]
fn flipped_bits_cost_what_they_hit_and_are_told() {
    let mut gateway = Gateway::started("gw-rot", &Setup::new(STREAM));
    for payload in ["one", "here-it-rots", "three"] {
        store(&gateway, payload);
    }
    assert!(gateway.terminate().0.success());
    let needle = b"here-it-rots";
    let mut hit = 0;
    for path in files(&gateway.data.join("log")) {
        let mut bytes = std::fs::read(&path).unwrap();
        while let Some(at) = bytes.windows(needle.len()).position(|window| window == needle) {
            bytes[at] ^= 0x40;
            hit += 1;
        }
        std::fs::write(&path, bytes).unwrap();
    }
    assert!(hit > 0);
    gateway.start();
    assert_eq!(payloads(&gateway), ["one", "three"]);
    store(&gateway, "four");
    assert_eq!(payloads(&gateway), ["one", "three", "four"]);
    let status = gateway.status();
    let counted = status["losses"]["damaged"].as_u64();
    assert!(counted.is_some_and(|lost| lost >= 1), "{:#}", status["losses"]);
}

/// What is wrong with an upstream is in `status`; publishers notice nothing, and all is well once it is put right.
#[test]
fn a_wrong_upstream_is_explained_and_tried_again() {
    let refusing = |reason| Peer::new(Terms { connack: Some(reason), ..Terms::default() });
    let credentials = refusing(Reason::BAD_USERNAME_OR_PASSWORD);
    let not_authorized = refusing(Reason::NOT_AUTHORIZED);
    // A broker that speaks 3.1.1 only answers MQTT 5 so, and one that is no MQTT at all.
    let old = Peer::new(Terms { raw_answer: Some(vec![0x20, 0x02, 0x00, 0x01]), ..Terms::default() });
    let web = Peer::new(Terms { raw_answer: Some(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()), ..Terms::default() });
    let nobody = ports::free();
    let quick = "connect_timeout = \"2s\"";
    let mut rest = STREAM.to_owned();
    for (name, port) in [
        ("credentials", credentials.port),
        ("authorized", not_authorized.port),
        ("old", old.port),
        ("web", web.port),
        ("nobody", nobody),
    ] {
        rest += &upstream(name, port, &["telemetry"], quick);
    }
    rest += "[[upstream]]\nname = \"noname\"\nkind = \"mqtt\"\naddress = \"mqtt://no-such-host.invalid:1883\"\n\
             streams = [\"telemetry\"]\nconnect_timeout = \"2s\"\n";
    let gateway = Gateway::started("gw-upstream", &Setup::new(rest));
    store(&gateway, "one");
    let words: [(&str, &[&str]); 6] = [
        ("credentials", &["user name", "password", "credential"]),
        ("authorized", &["authorized", "authorised"]),
        ("old", &["version", "3.1.1"]),
        ("web", &["CONNACK", "malformed", "protocol"]),
        ("nobody", &["refused"]),
        ("noname", &["no-such-host", "name", "resolve", "lookup"]),
    ];
    for (name, words) in words {
        gateway.wait(&format!("why {name} is not connected"), secs(20), |status| {
            let entry = upstreams(status).find(|upstream| upstream["name"] == name).unwrap();
            let reason = entry["reason"].as_str().unwrap_or_default().to_lowercase();
            assert!(entry["state"] != "connected", "{entry}");
            words.iter().any(|word| reason.contains(&word.to_lowercase()))
        });
    }
    let first = credentials.connects();
    gateway.wait("tried again", secs(30), |_| credentials.connects() > first + 1);
    store(&gateway, "two");
    let status = gateway.status();
    assert!(upstreams(&status).all(|upstream| upstream["lag_records"] == 2), "{:#}", status["upstreams"]);
    // Somebody comes to where nobody was.
    let mut peer = Peer::absent(Terms { receive_maximum: Some(10), ..Terms::default() });
    peer.port = nobody;
    peer.appear();
    gateway.wait("delivered", secs(60), |status| {
        upstreams(status).any(|upstream| upstream["name"] == "nobody" && upstream["lag_records"] == 0)
    });
    assert_eq!(peer.arrivals().len(), 2);
}

#[test]
fn sigterm_drains_and_exits_0_within_five_seconds() {
    let mut gateway = Gateway::started("gw-term", &Setup::new(STREAM));
    let mut idle = Client::connect(gateway.port, &Options::new(Version::V5, "idle")).unwrap();
    let mut busy = Client::connect(gateway.port, &Options::durable(Version::V311, "busy")).unwrap();
    for number in 1..=50 {
        busy.publish("sensors/t", format!("{number}"), QoS::AtLeastOnce, number).unwrap();
    }
    let mut acked = 0;
    while acked < 10 {
        busy.ack(secs(5)).unwrap().expect("an ack");
        acked += 1;
    }
    let (status, took) = gateway.terminate();
    assert!(status.success(), "{status}");
    assert!(took < secs(5), "{took:?}");
    while let Ok(Some(_)) = busy.ack(ms(500)) {
        acked += 1;
    }
    assert_eq!(idle.end(secs(1)), Some(Some(Reason::SERVER_SHUTTING_DOWN)), "MQTT 5 is told why");
    let stored = payloads(&gateway);
    assert!(stored.len() >= acked, "{acked} acked, {} stored", stored.len());
    let begin = Instant::now();
    gateway.start();
    println!("trouble: SIGTERM to exit {took:?}, start after an orderly stop {:?}", begin.elapsed());
    assert_eq!(payloads(&gateway), stored);
}
