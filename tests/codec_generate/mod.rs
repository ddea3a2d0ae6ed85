//! Packets as they may legally be, for the tests of the codec: all kinds, all properties, both versions, by the side that sends.

use bytes::Bytes;
use forebay::mqtt::decode::Peer;
use forebay::mqtt::properties::*;
use forebay::mqtt::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

/// Cases per property: small for `cargo test`, more by `FOREBAY_CASES`.
pub fn cases(default: u32) -> u32 {
    std::env::var("FOREBAY_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A runner whose seed is fixed, or `FOREBAY_SEED`.
pub fn runner(cases: u32) -> TestRunner {
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0x00F0_4EBA);
    let rng_seed = RngSeed::Fixed(seed);
    TestRunner::new(Config { cases, rng_seed, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() })
}

/// A version, the side that sends, and a packet that it may send.
pub fn sent() -> impl Strategy<Value = (Version, Peer, Packet)> {
    let version = prop_oneof![1 => Just(Version::V31), 3 => Just(Version::V311), 6 => Just(Version::V5)];
    let peer = prop_oneof![Just(Peer::Client), Just(Peer::Server)];
    (version, peer).prop_flat_map(|(version, peer)| (Just(version), Just(peer), packet(version, peer)))
}

/// A packet that this side may send in this version.
pub fn packet(version: Version, peer: Peer) -> BoxedStrategy<Packet> {
    let v5 = version == Version::V5;
    let mut kinds: Vec<(u32, BoxedStrategy<Packet>)> = vec![
        (4, publish(v5, peer).prop_map(Packet::Publish).boxed()),
        (1, ack(v5, PUBLISH_ACKS).prop_map(Packet::PubAck).boxed()),
        (1, ack(v5, PUBLISH_ACKS).prop_map(Packet::PubRec).boxed()),
        (1, ack(v5, &[0x00, 0x92]).prop_map(Packet::PubRel).boxed()),
        (1, ack(v5, &[0x00, 0x92]).prop_map(Packet::PubComp).boxed()),
    ];
    if peer == Peer::Client {
        kinds.push((3, connect(version).prop_map(|p| Packet::Connect(Box::new(p))).boxed()));
        kinds.push((3, subscribe(v5).prop_map(|p| Packet::Subscribe(Box::new(p))).boxed()));
        kinds.push((2, unsubscribe(v5).prop_map(|p| Packet::Unsubscribe(Box::new(p))).boxed()));
        kinds.push((1, Just(Packet::PingReq).boxed()));
    } else {
        let refusals: &[u8] = if v5 { SUBACKS } else { &[0x00, 0x01, 0x02, 0x80] };
        kinds.push((3, connack(version).prop_map(|p| Packet::ConnAck(Box::new(p))).boxed()));
        kinds.push((2, suback(v5, refusals, 1).prop_map(|p| Packet::SubAck(Box::new(p))).boxed()));
        kinds.push((2, suback(v5, UNSUBACKS, usize::from(v5)).prop_map(|p| Packet::UnsubAck(Box::new(p))).boxed()));
        kinds.push((1, Just(Packet::PingResp).boxed()));
    }
    if v5 || peer == Peer::Client {
        kinds.push((1, disconnect(v5, peer).prop_map(|p| Packet::Disconnect(Box::new(p))).boxed()));
    }
    if v5 {
        kinds.push((1, auth().prop_map(|p| Packet::Auth(Box::new(p))).boxed()));
    }
    proptest::strategy::Union::new_weighted(kinds).boxed()
}

const PUBLISH_ACKS: &[u8] = &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];
const SUBACKS: &[u8] = &[0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2];
const UNSUBACKS: &[u8] = &[0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91];
const CONNACKS: &[u8] = &[
    0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B,
    0x9C, 0x9D, 0x9F,
];
const DISCONNECTS: &[u8] = &[
    0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97,
    0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
];

fn reason(of: &'static [u8]) -> impl Strategy<Value = Reason> {
    proptest::sample::select(of).prop_map(Reason)
}

fn letter() -> impl Strategy<Value = char> {
    prop_oneof![
        20 => proptest::char::range('a', 'z'),
        2 => proptest::char::range('\u{1}', '\u{7f}'),
        1 => any::<char>().prop_map(|c| if c == '\0' { ' ' } else { c }),
    ]
}

fn string(len: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = String> {
    vec(letter(), len).prop_map(|letters| letters.into_iter().collect())
}

fn text() -> impl Strategy<Value = Text> {
    prop_oneof![30 => string(0..20), 1 => string(100..300)].prop_map(Text::from)
}

fn binary() -> impl Strategy<Value = Bytes> {
    prop_oneof![30 => vec(any::<u8>(), 0..20), 1 => vec(any::<u8>(), 100..20_000)].prop_map(Bytes::from)
}

fn level() -> impl Strategy<Value = String> {
    string(0..8).prop_map(|level| level.replace(['+', '#', '/'], "_"))
}

fn topic() -> impl Strategy<Value = Text> {
    vec(level(), 1..5)
        .prop_map(|levels| levels.join("/"))
        .prop_map(|topic| Text::from(if topic.is_empty() { "/" } else { &topic }))
}

/// A filter, and whether it is a shared one.
fn filter() -> impl Strategy<Value = (Text, bool)> {
    let level = prop_oneof![4 => level(), 1 => Just("+".to_owned())];
    let end = prop_oneof![3 => Just(""), 1 => Just("/#")];
    let group = prop_oneof![4 => Just(None), 1 => string(1..5).prop_map(|g| Some(g.replace(['+', '#', '/'], "_")))];
    (vec(level, 1..5), end, group).prop_map(|(levels, end, group)| {
        let mut path = levels.join("/") + end;
        if path.is_empty() {
            path.push('/');
        }
        match group {
            Some(group) => (Text::from(format!("$share/{group}/{path}")), true),
            None => (Text::from(path), false),
        }
    })
}

fn user() -> impl Strategy<Value = UserProperties> {
    vec((text(), text()), 0..4)
}

fn id() -> impl Strategy<Value = u16> {
    1..=u16::MAX
}

fn qos() -> impl Strategy<Value = QoS> {
    prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)]
}

fn subscription_id() -> impl Strategy<Value = u32> {
    prop_oneof![1..300_u32, 16_000..17_000_u32, 1..=268_435_455_u32]
}

fn publish(v5: bool, peer: Peer) -> impl Strategy<Value = Publish> {
    let properties = if v5 { option::of(publish_properties(peer)).boxed() } else { Just(None).boxed() };
    (topic(), binary(), qos(), id(), any::<(bool, bool, bool)>(), properties).prop_map(
        |(topic, payload, qos, packet_id, (dup, retain, hide), properties)| {
            let properties = properties.filter(|p| *p != PublishProperties::default()).map(Box::new);
            let aliased = properties.as_ref().is_some_and(|p| p.topic_alias.is_some());
            let topic = if hide && aliased { Text::default() } else { topic };
            let with_id = qos != QoS::AtMostOnce;
            let packet_id = if with_id { packet_id } else { 0 };
            Publish { dup: dup && with_id, qos, retain, topic, packet_id, properties, payload }
        },
    )
}

fn publish_properties(peer: Peer) -> impl Strategy<Value = PublishProperties> {
    let most_ids = if peer == Peer::Server { 4 } else { 1 };
    (
        (option::of(any::<bool>()), option::of(any::<u32>()), option::of(1..=u16::MAX)),
        (option::of(topic()), option::of(binary()), option::of(text())),
        user(),
        vec(subscription_id(), 0..most_ids),
    )
        .prop_map(|(numbers, fields, user, subscription_ids)| PublishProperties {
            payload_format: numbers.0,
            message_expiry_s: numbers.1,
            topic_alias: numbers.2,
            response_topic: fields.0,
            correlation_data: fields.1,
            content_type: fields.2,
            user,
            subscription_ids,
        })
}

fn ack_properties() -> impl Strategy<Value = AckProperties> {
    (option::of(text()), user()).prop_map(|(reason_string, user)| AckProperties { reason_string, user })
}

fn ack(v5: bool, reasons: &'static [u8]) -> BoxedStrategy<Ack> {
    if !v5 {
        return id().prop_map(|packet_id| Ack::new(packet_id, Reason::SUCCESS)).boxed();
    }
    (id(), reason(reasons), option::of(ack_properties()))
        .prop_map(|(packet_id, reason, properties)| {
            let properties = properties.filter(|p| *p != AckProperties::default()).map(Box::new);
            Ack { packet_id, reason, properties }
        })
        .boxed()
}

fn connect(version: Version) -> impl Strategy<Value = Connect> {
    let v5 = version == Version::V5;
    let properties = if v5 { connect_properties().boxed() } else { Just(ConnectProperties::default()).boxed() };
    let who = (text(), option::of(text()), option::of(binary()));
    (who, any::<(bool, u16)>(), option::of(will(v5)), properties).prop_map(
        move |((client_id, username, password), (clean_start, keep_alive_s), will, properties)| {
            let password = password.filter(|_| v5 || username.is_some());
            let will = will.map(Box::new);
            Connect { version, clean_start, keep_alive_s, client_id, will, username, password, properties }
        },
    )
}

fn connect_properties() -> impl Strategy<Value = ConnectProperties> {
    (
        (option::of(any::<u32>()), option::of(1..=u16::MAX), option::of(1..=u32::MAX), option::of(any::<u16>())),
        (option::of(any::<bool>()), option::of(any::<bool>())),
        user(),
        option::of((text(), option::of(binary()))),
    )
        .prop_map(|(numbers, flags, user, authentication)| ConnectProperties {
            session_expiry_s: numbers.0,
            receive_maximum: numbers.1,
            maximum_packet_size: numbers.2,
            topic_alias_maximum: numbers.3,
            request_response_information: flags.0,
            request_problem_information: flags.1,
            user,
            authentication_method: authentication.as_ref().map(|a| a.0.clone()),
            authentication_data: authentication.and_then(|a| a.1),
        })
}

fn will(v5: bool) -> impl Strategy<Value = Will> {
    let properties = if v5 { will_properties().boxed() } else { Just(WillProperties::default()).boxed() };
    (topic(), binary(), qos(), any::<bool>(), properties).prop_map(|(topic, payload, qos, retain, properties)| Will {
        topic,
        payload,
        qos,
        retain,
        properties,
    })
}

fn will_properties() -> impl Strategy<Value = WillProperties> {
    (
        (option::of(any::<u32>()), option::of(any::<bool>()), option::of(any::<u32>())),
        (option::of(text()), option::of(topic()), option::of(binary())),
        user(),
    )
        .prop_map(|(numbers, fields, user)| WillProperties {
            delay_s: numbers.0,
            payload_format: numbers.1,
            message_expiry_s: numbers.2,
            content_type: fields.0,
            response_topic: fields.1,
            correlation_data: fields.2,
            user,
        })
}

fn connack(version: Version) -> BoxedStrategy<ConnAck> {
    if version != Version::V5 {
        let v311 = version == Version::V311;
        return (any::<bool>(), 0..=5_u8)
            .prop_map(move |(present, code)| ConnAck {
                session_present: present && code == 0 && v311,
                reason: Reason(code),
                properties: ConnAckProperties::default(),
            })
            .boxed();
    }
    (any::<bool>(), reason(CONNACKS), connack_properties())
        .prop_map(|(present, reason, properties)| ConnAck {
            session_present: present && reason == Reason::SUCCESS,
            reason,
            properties,
        })
        .boxed()
}

fn connack_properties() -> impl Strategy<Value = ConnAckProperties> {
    let maximum_qos = option::of(prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce)]);
    (
        (
            option::of(any::<u32>()),
            option::of(1..=u16::MAX),
            maximum_qos,
            option::of(1..=u32::MAX),
            option::of(any::<u16>()),
        ),
        proptest::array::uniform4(option::of(any::<bool>())),
        proptest::array::uniform5(option::of(text())),
        (option::of(binary()), option::of(any::<u16>())),
        user(),
    )
        .prop_map(|(numbers, flags, texts, rest, user)| {
            let [retain_available, wildcard_available, subscription_ids_available, shared_available] = flags;
            let [assigned_client_id, reason_string, response_information, server_reference, authentication_method] =
                texts;
            ConnAckProperties {
                session_expiry_s: numbers.0,
                receive_maximum: numbers.1,
                maximum_qos: numbers.2,
                maximum_packet_size: numbers.3,
                topic_alias_maximum: numbers.4,
                retain_available,
                wildcard_available,
                subscription_ids_available,
                shared_available,
                assigned_client_id,
                reason_string,
                response_information,
                server_reference,
                authentication_method,
                authentication_data: rest.0,
                server_keep_alive_s: rest.1,
                user,
            }
        })
}

fn subscribe(v5: bool) -> impl Strategy<Value = Subscribe> {
    let properties = if v5 {
        (option::of(subscription_id()), user())
            .prop_map(|(subscription_id, user)| SubscribeProperties { subscription_id, user })
            .boxed()
    } else {
        Just(SubscribeProperties::default()).boxed()
    };
    (id(), vec((filter(), options(v5)), 1..5), properties).prop_map(|(packet_id, filters, properties)| {
        let plain = |((filter, shared), options): ((Text, bool), SubscribeOptions)| {
            (filter, SubscribeOptions { no_local: options.no_local && !shared, ..options })
        };
        Subscribe { packet_id, filters: filters.into_iter().map(plain).collect(), properties }
    })
}

fn options(v5: bool) -> impl Strategy<Value = SubscribeOptions> {
    (qos(), any::<(bool, bool)>(), 0..3_u8).prop_map(move |(qos, (no_local, retain_as_published), retain_handling)| {
        if v5 {
            SubscribeOptions { qos, no_local, retain_as_published, retain_handling }
        } else {
            SubscribeOptions { qos, ..SubscribeOptions::default() }
        }
    })
}

fn unsubscribe(v5: bool) -> impl Strategy<Value = Unsubscribe> {
    let user = if v5 { user().boxed() } else { Just(Vec::new()).boxed() };
    (id(), vec(filter(), 1..5), user).prop_map(|(packet_id, filters, user)| Unsubscribe {
        packet_id,
        filters: filters.into_iter().map(|(filter, _)| filter).collect(),
        user,
    })
}

/// SUBACK, or UNSUBACK, which has no reasons in 3.1.1 (`least` is 0).
fn suback(v5: bool, of: &'static [u8], least: usize) -> impl Strategy<Value = SubAck> {
    let properties = if v5 { ack_properties().boxed() } else { Just(AckProperties::default()).boxed() };
    let most = if least == 0 { 1 } else { 6 };
    (id(), vec(reason(of), least..most), properties).prop_map(|(packet_id, reasons, properties)| SubAck {
        packet_id,
        reasons,
        properties,
    })
}

fn disconnect(v5: bool, peer: Peer) -> BoxedStrategy<Disconnect> {
    if !v5 {
        return Just(Disconnect { reason: Reason::SUCCESS, properties: DisconnectProperties::default() }).boxed();
    }
    let of_server = peer == Peer::Server;
    let bare = (Just(Reason::SUCCESS), Just(DisconnectProperties::default()));
    let full = (option::of(any::<u32>()), option::of(text()), option::of(text()), user()).prop_map(
        move |(expiry, why, other, user)| DisconnectProperties {
            session_expiry_s: expiry.filter(|_| !of_server),
            reason_string: why,
            server_reference: other.filter(|_| of_server),
            user,
        },
    );
    prop_oneof![1 => bare, 1 => (reason(DISCONNECTS), Just(DisconnectProperties::default())), 4 => (reason(DISCONNECTS), full)]
        .prop_map(|(reason, properties)| Disconnect { reason, properties })
        .boxed()
}

fn auth() -> impl Strategy<Value = Auth> {
    let bare = Just(Auth { reason: Reason::SUCCESS, properties: AuthProperties::default() });
    let full = (reason(&[0x00, 0x18, 0x19]), text(), option::of(binary()), option::of(text()), user()).prop_map(
        |(reason, method, authentication_data, reason_string, user)| Auth {
            reason,
            properties: AuthProperties {
                authentication_method: Some(method),
                authentication_data,
                reason_string,
                user,
            },
        },
    );
    prop_oneof![1 => bare, 4 => full]
}
