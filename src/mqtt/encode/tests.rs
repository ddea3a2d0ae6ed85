use super::*;
use crate::mqtt::packet::*;
use crate::mqtt::properties::*;
use crate::mqtt::text::Text;
use bytes::Bytes;

fn write_one(packet: Packet, version: Version) -> Result<Vec<u8>, EncodeError> {
    let mut out = b"before".to_vec();
    let result = encode(&packet, version, &mut out);
    assert_eq!(&out[..6], b"before", "what stood there stays");
    if result.is_err() {
        assert_eq!(out.len(), 6, "nothing is written of a packet that cannot be");
    } else {
        assert_eq!(out.len() - 6, encoded_len(&packet, version));
    }
    result.map(|()| out.split_off(6))
}

fn publish(qos: QoS, packet_id: u16) -> Publish {
    Publish::new("a", &b"x"[..]).at(qos, packet_id)
}

fn refused(packet: Packet, version: Version) {
    assert!(matches!(write_one(packet.clone(), version), Err(EncodeError::Forbidden(_))), "{version:?} {packet:?}");
}

#[test]
fn a_publish_without_properties_costs_one_byte_more_in_mqtt_5() {
    let packet = Packet::Publish(publish(QoS::AtLeastOnce, 7));
    assert_eq!(write_one(packet.clone(), Version::V311).unwrap(), b"\x32\x06\x00\x01a\x00\x07x");
    assert_eq!(write_one(packet, Version::V5).unwrap(), b"\x32\x07\x00\x01a\x00\x07\x00x");
}

#[test]
fn flags_of_a_publish_are_in_its_first_byte() {
    let first = |dup, qos, retain| {
        let publish = Publish { dup, retain, ..publish(qos, 1) };
        write_one(Packet::Publish(publish), Version::V5).unwrap()[0]
    };
    assert_eq!(first(false, QoS::AtMostOnce, true), 0x31);
    assert_eq!(first(true, QoS::AtLeastOnce, false), 0x3A);
    assert_eq!(first(true, QoS::ExactlyOnce, true), 0x3D);
    assert_eq!(first(true, QoS::AtMostOnce, false), 0x30, "QoS 0 is never a duplicate [MQTT-3.3.1-2]");
}

#[test]
fn properties_are_dropped_in_3_1_1() {
    let properties = PublishProperties { message_expiry_s: Some(9), ..Default::default() };
    let packet = Packet::Publish(Publish { properties: Some(Box::new(properties)), ..publish(QoS::AtMostOnce, 0) });
    assert_eq!(write_one(packet.clone(), Version::V311).unwrap(), b"\x30\x04\x00\x01ax");
    assert_eq!(write_one(packet, Version::V5).unwrap(), b"\x30\x0A\x00\x01a\x05\x02\x00\x00\x00\x09x");
}

#[test]
fn acknowledgements_are_as_short_as_they_can_be() {
    let ack = |reason, why: Option<&str>| {
        let properties = AckProperties { reason_string: why.map(Text::from), user: Vec::new() };
        Packet::PubAck(Ack { packet_id: 7, reason, properties: Some(Box::new(properties)) })
    };
    assert_eq!(write_one(ack(Reason::SUCCESS, None), Version::V5).unwrap(), b"\x40\x02\x00\x07");
    assert_eq!(write_one(ack(Reason::QUOTA_EXCEEDED, None), Version::V5).unwrap(), b"\x40\x03\x00\x07\x97");
    assert_eq!(
        write_one(ack(Reason::SUCCESS, Some("y")), Version::V5).unwrap(),
        b"\x40\x08\x00\x07\x00\x04\x1F\x00\x01y"
    );
    assert_eq!(write_one(ack(Reason::NO_MATCHING_SUBSCRIBERS, Some("y")), Version::V311).unwrap(), b"\x40\x02\x00\x07");
}

#[test]
fn good_byes_are_as_short_as_they_can_be() {
    let end = |reason| Packet::Disconnect(Box::new(Disconnect { reason, properties: DisconnectProperties::default() }));
    assert_eq!(write_one(end(Reason::SUCCESS), Version::V5).unwrap(), b"\xE0\x00");
    assert_eq!(write_one(end(Reason::SUCCESS), Version::V311).unwrap(), b"\xE0\x00");
    assert_eq!(write_one(end(Reason::SESSION_TAKEN_OVER), Version::V5).unwrap(), b"\xE0\x01\x8E");
    let auth = Auth { reason: Reason::SUCCESS, properties: AuthProperties::default() };
    assert_eq!(write_one(Packet::Auth(Box::new(auth)), Version::V5).unwrap(), b"\xF0\x00");
}

#[test]
fn a_refusal_never_turns_into_a_success_in_3_1_1() {
    refused(Packet::PubAck(Ack::new(7, Reason::QUOTA_EXCEEDED)), Version::V311);
    refused(Packet::PubRec(Ack::new(7, Reason::IMPLEMENTATION_SPECIFIC)), Version::V311);
    let unknown = Packet::PubComp(Ack::new(7, Reason::PACKET_ID_NOT_FOUND));
    assert_eq!(write_one(unknown, Version::V311).unwrap(), b"\x70\x02\x00\x07", "3.1.1 always completes");
    let end = Disconnect { reason: Reason::SERVER_SHUTTING_DOWN, properties: DisconnectProperties::default() };
    refused(Packet::Disconnect(Box::new(end)), Version::V311);
    let auth = Auth { reason: Reason::SUCCESS, properties: AuthProperties::default() };
    refused(Packet::Auth(Box::new(auth)), Version::V311);
    let connack = |reason| {
        Packet::ConnAck(Box::new(ConnAck { session_present: false, reason, properties: ConnAckProperties::default() }))
    };
    refused(connack(Reason::NOT_AUTHORIZED), Version::V311);
    let code = Reason::NOT_AUTHORIZED.return_code().unwrap();
    assert_eq!(write_one(connack(code), Version::V311).unwrap(), b"\x20\x02\x00\x05");
    refused(connack(code), Version::V5);
}

#[test]
fn failures_of_a_subscription_have_one_code_in_3_1_1() {
    let suback =
        SubAck { packet_id: 7, reasons: vec![Reason(1), Reason::QUOTA_EXCEEDED], properties: Default::default() };
    let packet = Packet::SubAck(Box::new(suback));
    assert_eq!(write_one(packet.clone(), Version::V311).unwrap(), b"\x90\x04\x00\x07\x01\x80");
    assert_eq!(write_one(packet, Version::V5).unwrap(), b"\x90\x05\x00\x07\x00\x01\x97");
    let unsuback =
        SubAck { packet_id: 7, reasons: vec![Reason::NO_SUBSCRIPTION_EXISTED], properties: Default::default() };
    assert_eq!(write_one(Packet::UnsubAck(Box::new(unsuback)), Version::V311).unwrap(), b"\xB0\x02\x00\x07");
}

#[test]
fn what_a_strict_peer_refuses_is_not_written() {
    refused(Packet::Publish(publish(QoS::AtLeastOnce, 0)), Version::V5);
    refused(Packet::Publish(Publish::new("", &b"x"[..])), Version::V5);
    for properties in [
        PublishProperties { topic_alias: Some(0), ..Default::default() },
        PublishProperties { subscription_ids: vec![1, 0], ..Default::default() },
        PublishProperties { subscription_ids: vec![268_435_456], ..Default::default() },
        PublishProperties { response_topic: Some(Text::default()), ..Default::default() },
    ] {
        refused(
            Packet::Publish(Publish { properties: Some(Box::new(properties)), ..Publish::new("a", &b""[..]) }),
            Version::V5,
        );
    }
    for properties in [
        ConnAckProperties { receive_maximum: Some(0), ..Default::default() },
        ConnAckProperties { maximum_packet_size: Some(0), ..Default::default() },
        ConnAckProperties { maximum_qos: Some(QoS::ExactlyOnce), ..Default::default() },
    ] {
        refused(
            Packet::ConnAck(Box::new(ConnAck { session_present: false, reason: Reason::SUCCESS, properties })),
            Version::V5,
        );
    }
    let present = ConnAck { session_present: true, reason: Reason::BANNED, properties: ConnAckProperties::default() };
    refused(Packet::ConnAck(Box::new(present)), Version::V5);
    refused(Packet::PubAck(Ack::new(0, Reason::SUCCESS)), Version::V5);
    refused(Packet::PubAck(Ack::new(7, Reason::KEEP_ALIVE_TIMEOUT)), Version::V5);
    refused(Packet::PubRel(Ack::new(7, Reason::QUOTA_EXCEEDED)), Version::V5);
    let none = Subscribe { packet_id: 7, filters: Vec::new(), properties: Default::default() };
    refused(Packet::Subscribe(Box::new(none)), Version::V5);
    let options = SubscribeOptions { no_local: true, ..Default::default() };
    let shared =
        Subscribe { packet_id: 7, filters: vec![("$share/g/a".into(), options)], properties: Default::default() };
    refused(Packet::Subscribe(Box::new(shared)), Version::V5);
    let properties =
        DisconnectProperties { session_expiry_s: Some(1), server_reference: Some("b".into()), ..Default::default() };
    refused(Packet::Disconnect(Box::new(Disconnect { reason: Reason::SUCCESS, properties })), Version::V5);
}

#[test]
fn fields_and_packets_that_mqtt_cannot_express_are_too_large() {
    let long = "a".repeat(65_536);
    let packet = Packet::Publish(Publish::new(long.as_str(), &b""[..]));
    assert_eq!(write_one(packet, Version::V311), Err(EncodeError::TooLarge));
    let fits = Packet::Publish(Publish::new(&long[1..], &b""[..]));
    assert_eq!(write_one(fits, Version::V311).unwrap().len(), 65_535 + 2 + 4);
    let payload = Bytes::from(vec![0; REMAINING_LENGTH_MAX as usize]);
    assert_eq!(write_one(Packet::Publish(Publish::new("a", payload)), Version::V311), Err(EncodeError::TooLarge));
}

#[test]
fn lengths_grow_by_a_byte_where_the_standard_says() {
    for (payload, header) in [(124, 2), (125, 3), (16_380, 3), (16_381, 4), (2_097_148, 4), (2_097_149, 5)] {
        let packet = Packet::Publish(Publish::new("a", vec![0; payload]));
        assert_eq!(write_one(packet, Version::V311).unwrap().len(), header + 3 + payload, "{payload}");
    }
}
