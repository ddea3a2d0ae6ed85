//! Our decoder against an independent one, over random and mutated packets: where they disagree, a clause of the standard says why,
//! or the test fails.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic; clippy sees only #[test] functions as tests, not what they call"
)]

#[path = "../codec_generate/mod.rs"]
mod codec_generate;
mod explained;
mod other;

use bytes::Bytes;
use codec_generate::{cases, runner, sent};
use forebay::limits::PACKET_SIZE_MAX;
use forebay::mqtt::decode::{DecodeError, Decoder, Peer};
use forebay::mqtt::encode::encode;
use forebay::mqtt::{Packet, Version};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Our verdict, as the side that may send this type of packet; for what both may send, the server may a little more.
fn ours(bytes: &[u8], version: Version) -> Result<Packet, DecodeError> {
    let kind = bytes[0] >> 4;
    let peer = if matches!(kind, 1 | 8 | 10 | 12) || (kind == 14 && version != Version::V5) {
        Peer::Client
    } else {
        Peer::Server
    };
    let mut decoder = Decoder::new(peer, PACKET_SIZE_MAX);
    if kind != 1 {
        decoder.set_version(version);
    }
    let mut input = Bytes::copy_from_slice(bytes);
    let packet = decoder.decode(&mut input)?.expect("whole packets only");
    assert!(input.is_empty());
    Ok(packet)
}

/// Cuts or extends the bytes so that they are one packet as the header says, if it can be read.
fn whole(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let mut remaining = 0_usize;
    let mut len = 1;
    loop {
        let byte = *bytes.get(len)?;
        remaining |= usize::from(byte & 0x7F) << (7 * (len - 1));
        len += 1;
        if byte & 0x80 == 0 {
            break;
        }
        if len == 5 {
            return None;
        }
    }
    let total = len + remaining;
    if total > bytes.len() + 64 {
        return None;
    }
    bytes.resize(total, b'a');
    Some(bytes)
}

/// The version of a CONNECT is in it, whatever was meant; the other decoder has a module for each.
fn asked_for(bytes: &[u8]) -> Option<Version> {
    let after_name =
        |name: &[u8]| bytes.windows(name.len()).position(|window| window == name).map(|at| bytes.get(at + name.len()));
    let level = after_name(b"\0\x04MQTT").filter(|_| bytes[0] >> 4 == 1)?;
    Some(if level == Some(&5) { Version::V5 } else { Version::V311 })
}

/// The name of the agreement or of the clause that explains the disagreement; an error if nothing does.
fn compare(bytes: &[u8], version: Version) -> Result<&'static str, String> {
    let version = asked_for(bytes).unwrap_or(version);
    let ours = ours(bytes, version);
    let theirs = other::read(bytes, version);
    let (explained, what) = match (&ours, &theirs) {
        (Ok(packet), Ok(read)) if *packet == read.packet => return Ok("agree: valid"),
        (Err(_), Err(_)) => return Ok("agree: invalid"),
        (Err(error), Ok(read)) => (
            explained::stricter(bytes, version, error, read),
            format!("we refuse ({error}), the other reads {}", read.debug),
        ),
        (Ok(packet), Err(error)) => (
            explained::wider(bytes, version, packet, error),
            format!("the other refuses ({error}), we read {packet:?}"),
        ),
        (Ok(packet), Ok(read)) => {
            (explained::otherwise(version, packet, read), format!("we read {packet:?}, the other {}", read.debug))
        }
    };
    explained.ok_or_else(|| format!("{version:?} {}: {what}", hex(bytes)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(600).map(|byte| format!("{byte:02x}")).collect()
}

fn run(name: &str, cases: u32, strategy: impl Strategy<Value = (Version, Vec<u8>)>, at_least: &[&str]) {
    let counts: Mutex<BTreeMap<&'static str, u64>> = Mutex::default();
    let property = |(version, bytes): (Version, Vec<u8>)| {
        if let Some(bytes) = whole(bytes) {
            let kind = compare(&bytes, version).map_err(TestCaseError::fail)?;
            *counts.lock().unwrap().entry(kind).or_default() += 1;
        }
        Ok(())
    };
    runner(cases).run(&strategy, property).unwrap_or_else(|error| panic!("{name}: {error}"));
    let counts = counts.into_inner().unwrap();
    println!("{name}:");
    for (kind, count) in &counts {
        println!("{count:>8}  {kind}");
    }
    for kind in at_least {
        assert!(counts.get(kind).is_some_and(|count| *count > 0), "{name} never had: {kind}");
    }
}

fn written() -> impl Strategy<Value = (Version, Vec<u8>)> {
    sent().prop_map(|(version, _, packet)| {
        let mut bytes = Vec::new();
        encode(&packet, version, &mut bytes).unwrap();
        (version, bytes)
    })
}

/// A few changes to a valid packet, mostly near its front, where the structure is; the remaining length is often mended.
fn mutated() -> impl Strategy<Value = (Version, Vec<u8>)> {
    let edit = (0..5_u8, prop_oneof![4 => 0..40_usize, 1 => any::<usize>()], any::<u8>());
    (written(), prop::collection::vec(edit, 1..4), prop::bool::weighted(0.8)).prop_map(
        |((version, mut bytes), edits, mend)| {
            let header = 1 + bytes[1..].iter().take_while(|byte| **byte & 0x80 != 0).count() + 1;
            let mut body = bytes.split_off(header);
            for (kind, place, value) in edits {
                let at = if body.is_empty() { 0 } else { place % body.len() };
                match kind {
                    0 if !body.is_empty() => body[at] ^= 1 << (value % 8),
                    1 if !body.is_empty() => {
                        body[at] = [0, 1, 2, 3, 0x26, 0x7F, 0x80, 0xFF, b'#', b'+', b'/', b'$'][usize::from(value) % 12]
                    }
                    2 => body.insert(at, value),
                    3 if !body.is_empty() => drop(body.remove(at)),
                    _ if place % 4 == 0 => bytes[0] ^= 1 << (value % 8),
                    _ => {}
                }
            }
            if mend {
                bytes.truncate(1);
                let mut rest = body.len();
                while rest >= 0x80 {
                    bytes.push(rest as u8 | 0x80);
                    rest >>= 7;
                }
                bytes.push(rest as u8);
            }
            bytes.extend(body);
            (version, bytes)
        },
    )
}

/// Random bodies behind a plausible header.
fn random() -> impl Strategy<Value = (Version, Vec<u8>)> {
    let version = prop_oneof![1 => Just(Version::V311), 2 => Just(Version::V5)];
    let byte = prop_oneof![3 => 0..6_u8, 1 => any::<u8>(), 1 => Just(b'a')];
    (version, any::<u8>(), prop::collection::vec(byte, 0..40)).prop_map(|(version, first, body)| {
        // Half of them with the flags that the type wants.
        let first =
            if first & 1 == 0 { first } else { first & 0xF0 | if matches!(first >> 4, 6 | 8 | 10) { 2 } else { 0 } };
        let mut bytes = vec![first, body.len() as u8];
        bytes.extend(body);
        (version, bytes)
    })
}

#[test]
fn both_read_valid_packets_alike() {
    run("valid", cases(4_000), written(), &["agree: valid"]);
}

#[test]
fn mutated_packets_are_judged_alike_or_the_standard_says_why() {
    run("mutated", cases(20_000), mutated(), &["agree: valid", "agree: invalid"]);
}

#[test]
fn random_packets_are_judged_alike_or_the_standard_says_why() {
    run("random", cases(20_000), random(), &["agree: valid", "agree: invalid"]);
}

/// For each explanation a packet that needs it: an explanation that nothing needs would only hide a fault to come.
#[test]
fn every_explanation_is_needed() {
    let rows = include_str!("../cases/packets.tsv").lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let rows = rows.map(|line| {
        let mut columns = line.split('\t');
        let version = if columns.next() == Some("5") { Version::V5 } else { Version::V311 };
        (version, columns.next_back().unwrap())
    });
    let mut seen = BTreeMap::new();
    for (version, hex) in rows.chain(explained::EXAMPLES.iter().copied()) {
        let bytes = hex
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect();
        if let Some(bytes) = whole(bytes) {
            seen.insert(compare(&bytes, version).unwrap(), hex);
        }
    }
    let unneeded: Vec<_> = explained::clauses().filter(|clause| !seen.contains_key(clause)).collect();
    assert!(unneeded.is_empty(), "no packet needs: {unneeded:#?}");
}
