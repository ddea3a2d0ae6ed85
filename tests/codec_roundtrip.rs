//! What is encoded is what is decoded: for every packet, in every version, however the bytes come.
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
use forebay::limits::PACKET_SIZE_MAX;
use forebay::mqtt::decode::{DecodeError, Decoder, Peer};
use forebay::mqtt::encode::{encode, encode_within, encoded_len};
use forebay::mqtt::{Packet, Reason, Version};

fn bytes_of(packet: &Packet, version: Version) -> Vec<u8> {
    let mut out = Vec::new();
    assert_eq!(encode(packet, version, &mut out), Ok(()), "{packet:?}");
    out
}

/// A decoder that has seen the CONNECT already, unless this is it.
fn decoder(packet: &Packet, version: Version, peer: Peer, max: u32) -> Decoder {
    let mut decoder = Decoder::new(peer, max);
    if !matches!(packet, Packet::Connect(_)) {
        decoder.set_version(version);
    }
    decoder
}

#[test]
fn a_packet_survives_encoding_and_decoding() {
    let property = |(version, peer, packet): (Version, Peer, Packet)| {
        let bytes = bytes_of(&packet, version);
        assert_eq!(bytes.len(), encoded_len(&packet, version), "the length is known before");
        let mut decoder = decoder(&packet, version, peer, PACKET_SIZE_MAX);
        // Another packet's bytes stand behind it and stay.
        let mut input = Bytes::from([bytes.as_slice(), b"\xC0\x00"].concat());
        assert_eq!(decoder.decode(&mut input), Ok(Some(packet)));
        assert_eq!(&input[..], b"\xC0\x00");
        assert_eq!(decoder.version(), Some(version));
        Ok(())
    };
    runner(cases(2_000)).run(&sent(), property).unwrap();
}

#[test]
fn bytes_may_come_one_at_a_time() {
    let property = |(version, peer, packet): (Version, Peer, Packet)| {
        let bytes = bytes_of(&packet, version);
        let mut decoder = decoder(&packet, version, peer, PACKET_SIZE_MAX);
        let mut next_try = 0;
        for len in 0..bytes.len() {
            let mut input = Bytes::copy_from_slice(&bytes[..len]);
            // Long payloads: only where the decoder says that it is worth while, and around.
            if len > 64 && len + 64 < bytes.len() && len != next_try {
                continue;
            }
            assert_eq!(decoder.decode(&mut input), Ok(None), "after {len} of {} bytes", bytes.len());
            assert_eq!(input.len(), len, "nothing is taken of an incomplete packet");
            let needed = decoder.needed(&input);
            assert!(needed >= 1 && len + needed <= bytes.len(), "{needed} more than {len} of {}", bytes.len());
            next_try = len + needed;
        }
        assert_eq!(next_try, bytes.len(), "the last one asked for completes the packet");
        assert_eq!(decoder.decode(&mut Bytes::from(bytes)), Ok(Some(packet)));
        Ok(())
    };
    runner(cases(300)).run(&sent(), property).unwrap();
}

#[test]
fn a_packet_that_is_too_large_is_refused_by_its_header() {
    let property = |(version, peer, packet): (Version, Peer, Packet)| {
        let bytes = bytes_of(&packet, version);
        let size = bytes.len() as u32;
        let mut fits = decoder(&packet, version, peer, size);
        assert_eq!(fits.decode(&mut Bytes::from(bytes.clone())), Ok(Some(packet.clone())));
        let mut small = decoder(&packet, version, peer, size - 1);
        let header = 1 + bytes[1..].iter().take_while(|byte| **byte & 0x80 != 0).count() + 1;
        let refused = small.decode(&mut Bytes::copy_from_slice(&bytes[..header]));
        assert!(matches!(refused, Err(DecodeError { reason: Reason::PACKET_TOO_LARGE, .. })), "{refused:?}");
        Ok(())
    };
    runner(cases(300)).run(&sent(), property).unwrap();
}

#[test]
fn diagnostics_give_way_where_a_peer_takes_only_small_packets() {
    let property = |(version, peer, packet): (Version, Peer, Packet)| {
        let bare = packet.clone().without_diagnostics();
        assert!(!bare.has_diagnostics());
        let (full, least) = (encoded_len(&packet, version) as u32, encoded_len(&bare, version) as u32);
        assert!(least <= full && (least < full || !packet.has_diagnostics() || version != Version::V5));
        let mut out = Vec::new();
        encode_within(&packet, version, full, &mut out).unwrap();
        assert_eq!(out, bytes_of(&packet, version));
        if least < full {
            out.clear();
            encode_within(&packet, version, full - 1, &mut out).unwrap();
            assert_eq!(decoder(&packet, version, peer, full).decode(&mut Bytes::from(out.clone())), Ok(Some(bare)));
        }
        out.clear();
        assert!(encode_within(&packet, version, least - 1, &mut out).is_err());
        assert!(out.is_empty(), "nothing is written of a packet that is too large");
        Ok(())
    };
    runner(cases(300)).run(&sent(), property).unwrap();
}

#[test]
fn payload_and_topic_are_slices_of_the_input() {
    let property = |(version, peer, packet): (Version, Peer, Packet)| {
        let Packet::Publish(publish) = &packet else { return Ok(()) };
        let input = Bytes::from(bytes_of(&packet, version));
        let range = input.as_ptr_range();
        let Ok(Some(Packet::Publish(read))) =
            decoder(&packet, version, peer, PACKET_SIZE_MAX).decode(&mut input.clone())
        else {
            panic!("{publish:?}")
        };
        for part in [read.topic.bytes(), &read.payload].into_iter().filter(|part| !part.is_empty()) {
            assert!(range.contains(&part.as_ptr()), "copied");
        }
        Ok(())
    };
    runner(cases(300)).run(&sent(), property).unwrap();
}
