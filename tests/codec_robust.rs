//! Bytes from anybody: the decoder never panics, never turns in a circle, and never takes memory for what has not come.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic; clippy sees only #[test] functions as tests, not what they call"
)]

mod codec_generate;

use bytes::Bytes;
use codec_generate::{cases, runner, sent};
use forebay::limits::{FILTERS_PER_PACKET_MAX, PACKET_SIZE_MAX, USER_PROPERTIES_DECODED_MAX};
use forebay::mqtt::decode::{Decoder, Peer};
use forebay::mqtt::encode::encode;
use forebay::mqtt::{Packet, Reason, Version, topic};
use proptest::prelude::*;

const MAX: u32 = 4_096;

/// Decodes as a connection would until an error, the end, or an incomplete packet; gives the number of packets.
fn drain(mut decoder: Decoder, bytes: &[u8]) -> usize {
    let mut input = Bytes::copy_from_slice(bytes);
    let mut packets = 0;
    loop {
        let before = input.len();
        let needed = decoder.needed(&input);
        match decoder.decode(&mut input) {
            Ok(Some(packet)) => {
                assert!(before - input.len() >= 2, "a packet takes bytes");
                assert!(before - input.len() <= MAX as usize, "a packet larger than the largest");
                check_bounds(&packet);
                packets += 1;
            }
            Ok(None) => {
                assert_eq!(before, input.len(), "nothing is taken of an incomplete packet");
                assert!(needed >= 1 && before + needed <= MAX as usize, "asks for {needed} more than {before}");
                return packets;
            }
            Err(error) => {
                assert_eq!(before, input.len());
                assert!(error.reason.is_failure() && !error.message.is_empty());
                assert!(error.reason.in_disconnect() || error.reason == Reason::UNSUPPORTED_VERSION, "{error}");
                assert_eq!(decoder.decode(&mut input), Err(error), "the same again");
                return packets;
            }
        }
    }
}

/// What the rest of the house relies on.
fn check_bounds(packet: &Packet) {
    match packet {
        Packet::Publish(publish) => {
            let aliased = publish.properties.as_ref().is_some_and(|p| p.topic_alias.is_some());
            assert!(topic::valid_topic(publish.topic.as_bytes()) || (publish.topic.is_empty() && aliased));
            assert_eq!(publish.packet_id == 0, publish.qos.bits() == 0);
            assert!(publish.properties.as_ref().is_none_or(|p| p.user.len() <= USER_PROPERTIES_DECODED_MAX));
        }
        Packet::Subscribe(subscribe) => {
            assert!((1..=FILTERS_PER_PACKET_MAX).contains(&subscribe.filters.len()));
            assert!(subscribe.filters.iter().all(|(filter, _)| topic::valid_filter(filter.as_bytes())));
        }
        Packet::Connect(connect) => {
            assert!(connect.will.as_ref().is_none_or(|will| topic::valid_topic(will.topic.as_bytes())));
        }
        _ => {}
    }
}

fn state() -> impl Strategy<Value = Decoder> {
    let version = prop_oneof![
        1 => Just(None),
        1 => Just(Some(Version::V31)),
        2 => Just(Some(Version::V311)),
        4 => Just(Some(Version::V5)),
    ];
    (version, any::<bool>()).prop_map(|(version, of_client)| {
        let mut decoder = Decoder::new(if of_client { Peer::Client } else { Peer::Server }, MAX);
        if let Some(version) = version {
            decoder.set_version(version);
        }
        decoder
    })
}

#[test]
fn random_bytes_are_survived() {
    let byte = prop_oneof![2 => 0..8_u8, 2 => any::<u8>(), 1 => prop::sample::select(vec![0x10, 0x30, 0x32, 0x82, 0x26, 0x80, 0xFF])];
    let bytes =
        prop_oneof![8 => prop::collection::vec(byte.clone(), 0..80), 1 => prop::collection::vec(byte, 0..6_000)];
    let property = |(decoder, bytes): (Decoder, Vec<u8>)| {
        drain(decoder, &bytes);
        Ok(())
    };
    runner(cases(20_000)).run(&(state(), bytes), property).unwrap();
}

#[test]
fn damaged_streams_are_survived() {
    let stream = prop::collection::vec(sent(), 1..8);
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    type Damage = Vec<(prop::sample::Index, u8)>;
    let property = |(decoder, packets, damage): (Decoder, Vec<(Version, Peer, Packet)>, Damage)| {
        let mut bytes = Vec::new();
        for (version, _, packet) in &packets {
            encode(packet, *version, &mut bytes).unwrap();
        }
        for (place, value) in damage {
            let at = place.index(bytes.len());
            bytes[at] = value;
        }
        drain(decoder, &bytes);
        Ok(())
    };
    runner(cases(2_000)).run(&(state(), stream, damage), property).unwrap();
}

#[test]
fn topics_and_filters_of_any_bytes_are_judged_and_matched() {
    let path =
        || prop::collection::vec(prop_oneof![4 => prop::sample::select(b"ab/+#$".to_vec()), 1 => any::<u8>()], 0..24);
    let property = |(filter, name): (Vec<u8>, Vec<u8>)| {
        let _ = topic::shared(&filter);
        let matched = topic::matches(&filter, &name);
        if topic::valid_topic(&name) {
            assert!(topic::valid_filter(&name), "a topic is a filter too");
            assert!(topic::matches(&name, &name), "and matches itself");
            if topic::valid_filter(&filter) {
                assert_eq!(matched, slow_match(&filter, &name));
            }
        }
        Ok(())
    };
    runner(cases(20_000)).run(&(path(), path()), property).unwrap();
}

/// Matching as the standard tells it, level by level, by recursion.
fn slow_match(filter: &[u8], name: &[u8]) -> bool {
    fn rest(filter: &[&[u8]], name: &[&[u8]]) -> bool {
        match (filter, name) {
            ([b"#"], _) => true,
            ([], []) => true,
            ([first, filter @ ..], [level, name @ ..]) => (*first == b"+" || first == level) && rest(filter, name),
            _ => false,
        }
    }
    let split = |path: &[u8]| path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (filter, name) = (split(filter), split(name));
    let hidden = name[0].starts_with(b"$") && (filter[0] == b"+" || filter[0] == b"#");
    !hidden
        && rest(
            &filter.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            &name.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        )
}

/// Address space of this process, in bytes, at its highest.
#[cfg(target_os = "linux")]
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPeak:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[cfg(target_os = "linux")]
#[test]
fn nothing_is_allocated_for_a_packet_that_has_only_been_announced() {
    let announced = [0x30, 0xF0, 0xFF, 0xFF, 0x1F]; // 64 MiB less a few bytes
    let before = peak_bytes();
    let mut waiting = Vec::new();
    for _ in 0..1_000 {
        let mut decoder = Decoder::new(Peer::Client, PACKET_SIZE_MAX);
        decoder.set_version(Version::V5);
        let mut input = Bytes::copy_from_slice(&announced);
        assert_eq!(decoder.decode(&mut input), Ok(None));
        assert!(decoder.needed(&input) > 60 << 20);
        waiting.push((decoder, input));
    }
    // A thousand of them would be 64 GB. Other tests of this file run beside this one, in megabytes.
    assert!(peak_bytes() - before < 1 << 30, "{} MiB", (peak_bytes() - before) >> 20);
}

#[test]
fn lists_in_a_packet_have_a_bound_of_their_own() {
    // The shortest user property is five bytes; in memory it is a pair of shared texts.
    let mut body = vec![0, 1, b'a'];
    let count = USER_PROPERTIES_DECODED_MAX + 1;
    let mut len = count * 5;
    while len >= 0x80 {
        body.push(len as u8 | 0x80);
        len >>= 7;
    }
    body.push(len as u8);
    body.extend([0x26, 0, 0, 0, 0].repeat(count));
    refused_for_its_lists(0x30, &body);
    let mut body = vec![0, 1, 0];
    body.extend([0, 1, b'a', 0].repeat(FILTERS_PER_PACKET_MAX + 1));
    refused_for_its_lists(0x82, &body);
    let mut body = vec![0, 1, 0];
    body.extend([0, 1, b'a'].repeat(FILTERS_PER_PACKET_MAX + 1));
    refused_for_its_lists(0xA2, &body);
}

fn refused_for_its_lists(first: u8, body: &[u8]) {
    let mut bytes = vec![first, body.len() as u8 | 0x80, (body.len() >> 7) as u8 | 0x80, (body.len() >> 14) as u8];
    if body.len() < 1 << 14 {
        bytes.pop();
        bytes[2] &= 0x7F;
    }
    bytes.extend_from_slice(body);
    let mut decoder = Decoder::new(Peer::Client, 1 << 20);
    decoder.set_version(Version::V5);
    assert_eq!(decoder.decode(&mut Bytes::from(bytes)).unwrap_err().reason, Reason::QUOTA_EXCEEDED);
}
