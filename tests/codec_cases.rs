//! Every row of `cases/packets.tsv`: what a strict decoder says to it, from the side that the row names.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic; clippy sees only #[test] functions as tests, not what they call"
)]

use bytes::Bytes;
use forebay::mqtt::decode::{DecodeError, Decoder, Peer};
use forebay::mqtt::encode::encode;
use forebay::mqtt::{Packet, Reason, Version};
use std::collections::HashSet;

struct Row {
    line: usize,
    version: Version,
    sender: &'static str,
    valid: bool,
    what: &'static str,
    bytes: Vec<u8>,
}

fn rows() -> Vec<Row> {
    include_str!("cases/packets.tsv")
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.starts_with('#') && !line.is_empty())
        .map(|(index, line)| {
            let [level, sender, verdict, what, hex] =
                line.split('\t').collect::<Vec<_>>().try_into().expect("five columns");
            let bytes =
                hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap());
            let version = if level == "5" { Version::V5 } else { Version::V311 };
            let valid = match verdict {
                "valid" => true,
                "invalid" => false,
                other => panic!("verdict {other}"),
            };
            Row { line: index + 1, version, sender, valid, what, bytes: bytes.collect() }
        })
        .collect()
}

impl Row {
    fn senders(&self) -> &'static [Peer] {
        match self.sender {
            "client" => &[Peer::Client],
            "server" => &[Peer::Server],
            "either" => &[Peer::Client, Peer::Server],
            other => panic!("sender {other}"),
        }
    }

    /// A decoder in the state in which these bytes would come: a CONNECT is the first packet.
    fn decoder(&self, peer: Peer) -> Decoder {
        let mut decoder = Decoder::new(peer, 1 << 20);
        if self.bytes[0] >> 4 != 1 {
            decoder.set_version(self.version);
        }
        decoder
    }

    /// The verdict over all bytes at once: one packet that takes all of them, or an error.
    fn read(&self, peer: Peer) -> Result<Packet, DecodeError> {
        let mut input = Bytes::from(self.bytes.clone());
        let packet = self.decoder(peer).decode(&mut input)?.unwrap_or_else(|| panic!("line {}: incomplete", self.line));
        assert!(input.is_empty(), "line {}: bytes left", self.line);
        Ok(packet)
    }

    /// The verdict if the bytes come one at a time. An error may come before the end.
    fn read_slowly(&self, peer: Peer) -> Result<Packet, DecodeError> {
        let mut decoder = self.decoder(peer);
        for len in 1..=self.bytes.len() {
            if let Some(packet) = decoder.decode(&mut Bytes::copy_from_slice(&self.bytes[..len]))? {
                assert_eq!(len, self.bytes.len(), "line {}: complete before its end", self.line);
                return Ok(packet);
            }
        }
        panic!("line {}: neither a packet nor an error", self.line)
    }
}

#[test]
fn every_row_has_its_verdict() {
    let rows = rows();
    assert!(rows.len() >= 98, "{} rows", rows.len());
    let mut wrong = Vec::new();
    for row in &rows {
        for &peer in row.senders() {
            let read = row.read(peer);
            assert_eq!(read, row.read_slowly(peer), "line {}: {} differs by the way it comes", row.line, row.what);
            if read.is_ok() != row.valid {
                wrong.push(format!("line {} from {peer:?}, {}: {read:?}", row.line, row.what));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn valid_rows_are_written_as_they_were_read() {
    for row in rows().iter().filter(|row| row.valid) {
        let peer = row.senders()[0];
        let packet = row.read(peer).unwrap();
        let version = if let Packet::Connect(connect) = &packet { connect.version } else { row.version };
        let mut out = Vec::new();
        encode(&packet, version, &mut out).unwrap();
        assert_eq!(row.decoder(peer).decode(&mut Bytes::from(out.clone())), Ok(Some(packet)), "line {}", row.line);
        // The order of properties is ours to choose, and a reason of success may be left out.
        assert!(out.len() <= row.bytes.len(), "line {}: {} is longer than it was", row.line, row.what);
    }
}

#[test]
fn what_only_a_server_may_send_is_a_protocol_error_from_a_client() {
    for row in rows().iter().filter(|row| row.sender == "server" && row.valid) {
        let error = row.read(Peer::Client).expect_err(row.what);
        assert_eq!(error.reason, Reason::PROTOCOL_ERROR, "line {}: {}", row.line, row.what);
    }
}

#[test]
fn errors_carry_the_reason_that_mqtt_5_asks_for() {
    let reasons = [
        ("PUBLISH from a client with a subscription identifier [MQTT-3.3.4-6]", Reason::PROTOCOL_ERROR),
        ("topic invalid UTF-8", Reason::MALFORMED_PACKET),
        ("topic U+0000", Reason::MALFORMED_PACKET),
        ("empty topic, no alias", Reason::PROTOCOL_ERROR),
        ("topic alias 0", Reason::TOPIC_ALIAS_INVALID),
        ("QoS 3", Reason::MALFORMED_PACKET),
        ("dup property (PUBLISH expiry x2)", Reason::PROTOCOL_ERROR),
        ("property not allowed (SEI in PUBLISH)", Reason::MALFORMED_PACKET),
        ("5-byte remaining length", Reason::MALFORMED_PACKET),
        ("CONNECT reserved flag bit", Reason::MALFORMED_PACKET),
        ("CONNECT dup prop", Reason::PROTOCOL_ERROR),
        ("receive max 0", Reason::PROTOCOL_ERROR),
        ("auth data w/o method", Reason::PROTOCOL_ERROR),
        ("SUBSCRIBE header flags 0", Reason::MALFORMED_PACKET),
        ("SUBSCRIBE no filters", Reason::PROTOCOL_ERROR),
        ("SUB opts reserved bits", Reason::MALFORMED_PACKET),
        ("$share no-local", Reason::PROTOCOL_ERROR),
        ("type 0", Reason::MALFORMED_PACKET),
    ];
    let rows = rows();
    for (what, reason) in reasons {
        let row = rows.iter().find(|row| row.what == what && row.version == Version::V5).expect(what);
        assert_eq!(row.read(row.senders()[0]).expect_err(what).reason, reason, "{what}");
    }
}

/// The codec names the clause with each refusal; a number that the standards do not have would send a reader astray.
#[test]
fn clauses_that_the_codec_names_exist() {
    let known: HashSet<&str> = include_str!("cases/normative.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split('\t').nth(1))
        .collect();
    let mut files = Vec::new();
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/mqtt")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    let mut cited = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        // `[MQTT-3.14]` is a section, `[MQTT-3.14.2-1]` a statement.
        for clause in text.split("[MQTT-").skip(1).filter_map(|rest| rest.split_once(']')).map(|(clause, _)| clause) {
            if clause.contains('-') {
                cited += 1;
                assert!(
                    known.contains(format!("MQTT-{clause}").as_str()),
                    "{}: no statement MQTT-{clause}",
                    file.display()
                );
            }
        }
    }
    assert!(cited > 50, "only {cited}");
}
