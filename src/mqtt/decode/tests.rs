use super::*;
use crate::mqtt::packet::{Connect, QoS};

fn decoder(peer: Peer, version: Version) -> Decoder {
    let mut decoder = Decoder::new(peer, 1 << 20);
    decoder.set_version(version);
    decoder
}

fn one(decoder: &mut Decoder, bytes: &[u8]) -> Result<Option<Packet>, DecodeError> {
    decoder.decode(&mut Bytes::copy_from_slice(bytes))
}

fn connect_of(bytes: &[u8]) -> Connect {
    match one(&mut Decoder::new(Peer::Client, 1 << 20), bytes) {
        Ok(Some(Packet::Connect(connect))) => *connect,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_connect_tells_the_version_of_what_follows() {
    let mut decoder = Decoder::new(Peer::Client, 1 << 20);
    let mut input = Bytes::from_static(b"\x10\x0D\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00\x30\x05\x00\x01a\x00x");
    assert!(matches!(decoder.decode(&mut input), Ok(Some(Packet::Connect(_)))));
    assert_eq!(decoder.version(), Some(Version::V5));
    let Ok(Some(Packet::Publish(publish))) = decoder.decode(&mut input) else { panic!() };
    assert_eq!((publish.topic.as_str(), &publish.payload[..], publish.properties), ("a", b"x".as_slice(), None));
    assert!(input.is_empty());
}

#[test]
fn nothing_but_connect_comes_first() {
    for first in (0_u8..16).filter(|kind| *kind != kind::CONNECT) {
        let flags = if matches!(first, kind::PUBREL | kind::SUBSCRIBE | kind::UNSUBSCRIBE) { 2 } else { 0 };
        let error = one(&mut Decoder::new(Peer::Client, 100), &[first << 4 | flags]).unwrap_err();
        let expected = if first == 0 { Reason::MALFORMED_PACKET } else { Reason::PROTOCOL_ERROR };
        assert_eq!(error.reason, expected, "known by its first byte: {first}");
    }
}

#[test]
fn a_version_that_we_do_not_speak_is_answered_in_the_nearest() {
    for (name, level, answer) in [
        ("MQTT", 6, Some(Version::V5)),
        ("MQTT", 0x84, Some(Version::V311)),
        ("MQTT", 0x85, Some(Version::V5)),
        ("MQTT", 3, Some(Version::V311)),
        ("MQIsdp", 4, Some(Version::V311)),
        ("MQTX", 5, None),
        ("HTTP", 4, None),
    ] {
        let mut bytes = vec![0x10, (name.len() + 7) as u8, 0, name.len() as u8];
        bytes.extend(name.as_bytes());
        bytes.extend([level, 2, 0, 0]);
        bytes.push(0);
        let mut decoder = Decoder::new(Peer::Client, 1 << 20);
        let error = one(&mut decoder, &bytes).unwrap_err();
        assert_eq!((error.reason, decoder.version()), (Reason::UNSUPPORTED_VERSION, answer), "{name} {level}");
    }
}

#[test]
fn a_broken_connect_still_tells_the_version_for_the_answer() {
    let mut decoder = Decoder::new(Peer::Client, 1 << 20);
    let error = one(&mut decoder, b"\x10\x0A\x00\x04MQTT\x05\x03\x00\x00").unwrap_err();
    assert_eq!((error.reason, decoder.version()), (Reason::MALFORMED_PACKET, Some(Version::V5)));
}

#[test]
fn a_second_connect_is_read_so_that_the_caller_can_refuse_it() {
    let bytes = b"\x10\x0C\x00\x04MQTT\x04\x02\x00\x00\x00\x00";
    assert!(matches!(one(&mut decoder(Peer::Client, Version::V311), bytes), Ok(Some(Packet::Connect(_)))));
    assert_eq!(one(&mut decoder(Peer::Client, Version::V5), bytes).unwrap_err().reason, Reason::PROTOCOL_ERROR);
}

#[test]
fn old_clients_may_announce_a_user_name_and_not_send_it() {
    let connect = connect_of(b"\x10\x0F\x00\x06MQIsdp\x03\xC2\x00\x3C\x00\x01c");
    assert_eq!((connect.version, connect.username, connect.password), (Version::V31, None, None));
    let full = connect_of(b"\x10\x15\x00\x06MQIsdp\x03\xC2\x00\x3C\x00\x01c\x00\x01u\x00\x01p");
    assert_eq!((full.username.unwrap().as_str(), &full.password.unwrap()[..]), ("u", b"p".as_slice()));
    let strict = one(&mut Decoder::new(Peer::Client, 100), b"\x10\x0D\x00\x04MQTT\x04\xC2\x00\x3C\x00\x01c");
    assert_eq!(strict.unwrap_err().reason, Reason::MALFORMED_PACKET);
}

#[test]
fn old_clients_may_repeat_a_release_with_dup() {
    assert!(one(&mut decoder(Peer::Client, Version::V31), b"\x6A\x02\x00\x07").is_ok());
    for version in [Version::V311, Version::V5] {
        assert!(one(&mut decoder(Peer::Client, version), b"\x6A").is_err(), "{version:?}");
    }
}

#[test]
fn each_side_sends_its_own_packets() {
    let of_client = [kind::CONNECT << 4, kind::SUBSCRIBE << 4 | 2, kind::UNSUBSCRIBE << 4 | 2, kind::PINGREQ << 4];
    let of_server = [kind::CONNACK << 4, kind::SUBACK << 4, kind::UNSUBACK << 4, kind::PINGRESP << 4];
    let both = [kind::PUBLISH << 4, kind::PUBACK << 4, kind::PUBREC << 4, kind::PUBREL << 4 | 2, kind::PUBCOMP << 4];
    for version in [Version::V31, Version::V311, Version::V5] {
        let takes = |peer, first: u8| one(&mut decoder(peer, version), &[first]).is_ok();
        assert!(of_client.iter().all(|first| takes(Peer::Client, *first) && !takes(Peer::Server, *first)));
        assert!(of_server.iter().all(|first| takes(Peer::Server, *first) && !takes(Peer::Client, *first)));
        assert!(both.iter().all(|first| takes(Peer::Server, *first) && takes(Peer::Client, *first)));
        let v5 = version == Version::V5;
        assert!(takes(Peer::Client, 0xE0) && takes(Peer::Server, 0xE0) == v5, "DISCONNECT");
        assert!(takes(Peer::Client, 0xF0) == v5 && takes(Peer::Server, 0xF0) == v5, "AUTH");
    }
}

#[test]
fn the_size_is_judged_when_the_length_is_known() {
    let mut decoder = decoder(Peer::Client, Version::V311);
    decoder.set_max_packet_size(100);
    assert_eq!(one(&mut decoder, b"\x30\x62"), Ok(None), "100 bytes");
    assert_eq!(one(&mut decoder, b"\x30\x63").unwrap_err().reason, Reason::PACKET_TOO_LARGE, "101 bytes");
    assert_eq!(one(&mut decoder, b"\x30\xFF\xFF\xFF"), Ok(None), "the length is not complete");
    assert_eq!(one(&mut decoder, b"\x30\xFF\xFF\xFF\x7F").unwrap_err().reason, Reason::PACKET_TOO_LARGE);
    assert_eq!(one(&mut decoder, b"\x30\xFF\xFF\xFF\xFF").unwrap_err().reason, Reason::MALFORMED_PACKET);
}

#[test]
fn needed_tells_how_many_bytes_are_missing() {
    let decoder = decoder(Peer::Client, Version::V311);
    for (bytes, needed) in [
        (b"".as_slice(), 2),
        (b"\x30", 1),
        (b"\x30\x05", 5),
        (b"\x30\x05\x00\x01a", 2),
        (b"\x30\x80", 1),
        (b"\x30\x80\x01", 128),
        (b"\x30\x00", 1),
        (b"\x00", 1),
    ] {
        assert_eq!(decoder.needed(bytes), needed, "{bytes:?}");
    }
}

#[test]
fn a_length_in_more_bytes_than_needed_is_legal_in_3_1_1_only() {
    assert_eq!(one(&mut decoder(Peer::Client, Version::V311), b"\xC0\x80\x00"), Ok(Some(Packet::PingReq)));
    assert_eq!(
        one(&mut decoder(Peer::Client, Version::V5), b"\xC0\x80\x00").unwrap_err().reason,
        Reason::MALFORMED_PACKET
    );
    let v5 = b"\x10\x8D\x00\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00";
    assert_eq!(one(&mut Decoder::new(Peer::Client, 100), v5).unwrap_err().reason, Reason::MALFORMED_PACKET);
    let v311 = b"\x10\x8C\x00\x00\x04MQTT\x04\x02\x00\x00\x00\x00";
    assert!(one(&mut Decoder::new(Peer::Client, 100), v311).is_ok());
}

#[test]
fn a_server_of_3_1_1_is_recognised_by_its_refusal() {
    let error = one(&mut decoder(Peer::Server, Version::V5), b"\x20\x02\x00\x01").unwrap_err();
    assert_eq!(error.reason, Reason::UNSUPPORTED_VERSION);
}

#[test]
fn acknowledgements_come_in_three_lengths() {
    let mut decoder = decoder(Peer::Server, Version::V5);
    for (bytes, reason) in [
        (b"\x40\x02\x00\x07".as_slice(), Reason::SUCCESS),
        (b"\x40\x03\x00\x07\x10", Reason::NO_MATCHING_SUBSCRIBERS),
        (b"\x40\x04\x00\x07\x97\x00", Reason::QUOTA_EXCEEDED),
    ] {
        let Ok(Some(Packet::PubAck(ack))) = one(&mut decoder, bytes) else { panic!("{bytes:?}") };
        assert_eq!((ack.packet_id, ack.reason, ack.properties), (7, reason, None));
    }
    assert!(one(&mut decoder, b"\x40\x05\x00\x07\x00\x00\x00").is_err());
    assert!(one(&mut decoder, b"\x40\x01\x00").is_err());
}

#[test]
fn an_alias_may_stand_for_the_topic_and_only_in_mqtt_5() {
    let aliased = b"\x32\x08\x00\x00\x00\x07\x03\x23\x00\x09";
    let Ok(Some(Packet::Publish(publish))) = one(&mut decoder(Peer::Client, Version::V5), aliased) else { panic!() };
    assert_eq!((publish.qos, publish.packet_id, publish.topic.len()), (QoS::AtLeastOnce, 7, 0));
    assert_eq!(publish.properties.unwrap().topic_alias, Some(9));
    assert!(one(&mut decoder(Peer::Client, Version::V311), aliased).is_err());
}

#[test]
fn shared_filters_are_looked_into_in_mqtt_5() {
    let subscribe = |filter: &str, v5: bool| {
        let mut body = vec![0, 7];
        if v5 {
            body.push(0);
        }
        body.extend([0, filter.len() as u8]);
        body.extend(filter.as_bytes());
        body.push(1);
        let mut bytes = vec![0x82, body.len() as u8];
        bytes.extend(body);
        one(&mut decoder(Peer::Client, if v5 { Version::V5 } else { Version::V311 }), &bytes)
    };
    for filter in ["$share/g", "$share/g/", "$share//a", "$share/", "$share/+/a"] {
        assert_eq!(subscribe(filter, true).unwrap_err().reason, Reason::MALFORMED_PACKET, "{filter}");
        assert!(subscribe(filter, false).is_ok(), "3.1.1 knows no shared subscriptions: {filter}");
    }
    assert!(subscribe("$share/g/a", true).is_ok() && subscribe("$share", true).is_ok());
}
