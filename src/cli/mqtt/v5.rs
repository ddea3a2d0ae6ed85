//! MQTT 5.0.

use super::{
    CLOSED, Message, Options, Outgoing, Receipt, SILENT, Seen, Trouble, UNFINISHED, host, io_trouble, network, refused,
    too_large, with_reason, words,
};
use crate::admin::records::SOURCE_PROPERTY;
use crate::limits::PACKET_SIZE_MAX;
use rumqttc::v5::mqttbytes::v5::{Filter, Packet, PubAckReason, PubRecReason, PublishProperties, SubscribeReasonCode};
use rumqttc::v5::mqttbytes::{Error as MqttError, QoS};
use rumqttc::v5::{ConnectionError, Event, MqttOptions, StateError};
use rumqttc::{Outgoing as Left, TlsConfiguration, Transport};
use std::time::Duration;

/// The user property that asks for a level of acknowledgement.
const ACKS_PROPERTY: &str = "forebay-acks";

pub(super) fn options(options: &Options) -> MqttOptions {
    let mut out = MqttOptions::new(options.client_id.clone(), host(options), options.port);
    out.set_keep_alive(Duration::from_secs(options.keep_alive_s.into()))
        .set_clean_start(options.clean)
        .set_max_packet_size(Some(PACKET_SIZE_MAX))
        .set_receive_maximum(Some(options.inflight))
        .set_outgoing_inflight_upper_limit(options.inflight)
        .set_session_expiry_interval(options.session_expiry_s)
        .set_manual_acks(options.manual_acks)
        .set_network_options(network());
    if let Some((name, password)) = &options.login {
        out.set_credentials(name.clone(), password.clone());
    }
    if let Some(tls) = &options.tls {
        out.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(tls.clone())));
    }
    out
}

fn qos(qos: u8) -> QoS {
    match qos {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        _ => QoS::ExactlyOnce,
    }
}

pub(super) fn publish(client: &rumqttc::v5::Client, message: Outgoing) -> Result<(), Trouble> {
    let Outgoing { topic, payload, qos: level, retain, acks } = message;
    let sent = match acks {
        None => client.publish(topic, qos(level), retain, payload),
        Some(acks) => {
            let user_properties = vec![(ACKS_PROPERTY.to_owned(), acks.number().to_string())];
            let properties = PublishProperties { user_properties, ..PublishProperties::default() };
            client.publish_with_properties(topic, qos(level), retain, payload, properties)
        }
    };
    sent.map_err(|error| Trouble(error.to_string()))
}

pub(super) fn subscribe(client: &rumqttc::v5::Client, filters: &[String], level: u8) -> Result<(), Trouble> {
    let filters = filters.iter().map(|filter| Filter::new(filter.clone(), qos(level)));
    client.try_subscribe_many(filters).map_err(|error| Trouble(format!("the filters cannot be sent: {error}")))
}

pub(super) fn seen(event: Result<Event, ConnectionError>) -> Result<Seen, Trouble> {
    Ok(match event.map_err(|error| trouble(&error))? {
        Event::Outgoing(Left::Publish(id)) => Seen::Sent(id),
        Event::Outgoing(Left::Disconnect) => Seen::Disconnected,
        Event::Incoming(Packet::ConnAck(_)) => Seen::Connected,
        Event::Incoming(Packet::PubAck(ack)) => match ack.reason {
            PubAckReason::Success | PubAckReason::NoMatchingSubscribers => Seen::Acked(ack.pkid),
            reason => {
                Seen::Refused(ack.pkid, with_reason(&reason, ack.properties.and_then(|p| p.reason_string).as_ref()))
            }
        },
        Event::Incoming(Packet::PubRec(ack)) => match ack.reason {
            PubRecReason::Success | PubRecReason::NoMatchingSubscribers => Seen::Received(ack.pkid),
            reason => {
                Seen::Refused(ack.pkid, with_reason(&reason, ack.properties.and_then(|p| p.reason_string).as_ref()))
            }
        },
        Event::Incoming(Packet::PubComp(ack)) => Seen::Acked(ack.pkid),
        Event::Incoming(Packet::PubRel(ack)) => Seen::Released(ack.pkid),
        Event::Incoming(Packet::SubAck(ack)) => Seen::Subscribed(ack.return_codes.into_iter().map(verdict).collect()),
        Event::Incoming(Packet::Disconnect(end)) => {
            Seen::Ended(with_reason(&end.reason_code, end.properties.and_then(|p| p.reason_string).as_ref()))
        }
        Event::Incoming(Packet::Publish(publish)) => {
            let user =
                publish.properties.as_ref().map(|properties| properties.user_properties.as_slice()).unwrap_or_default();
            let source = user.iter().find(|(name, _)| name == SOURCE_PROPERTY).map(|(_, value)| value.clone());
            Seen::Message(Box::new(Message {
                topic: String::from_utf8_lossy(&publish.topic).into_owned(),
                payload: publish.payload.clone(),
                qos: publish.qos as u8,
                packet_id: publish.pkid,
                source,
                receipt: Receipt::V5(publish),
            }))
        }
        _ => Seen::Other,
    })
}

fn verdict(code: SubscribeReasonCode) -> Result<u8, String> {
    match code {
        SubscribeReasonCode::Success(qos) => Ok(qos as u8),
        reason => Err(words(&reason)),
    }
}

fn trouble(error: &ConnectionError) -> Trouble {
    match error {
        ConnectionError::Io(error) | ConnectionError::MqttState(StateError::Io(error)) => io_trouble(error),
        ConnectionError::ConnectionRefused(reason) => refused(reason),
        ConnectionError::Timeout(_) => Trouble(SILENT.into()),
        ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, reason_string }) => {
            Trouble(format!("the broker ended the connection, {}", with_reason(reason_code, reason_string.as_ref())))
        }
        ConnectionError::MqttState(StateError::ConnectionAborted) => Trouble(CLOSED.into()),
        ConnectionError::MqttState(StateError::AwaitPingResp) => Trouble(SILENT.into()),
        ConnectionError::MqttState(
            StateError::OutgoingPacketTooLarge { pkt_size, max }
            | StateError::Deserialization(MqttError::OutgoingPacketTooLarge { pkt_size, max }),
        ) => too_large(*pkt_size as usize, *max as usize),
        ConnectionError::MqttState(StateError::Unsolicited(_)) => Trouble(UNFINISHED.into()),
        error => Trouble(error.to_string()),
    }
}
