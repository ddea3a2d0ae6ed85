//! MQTT 3.1.1.

use super::{
    CLOSED, Message, Options, Outgoing, Receipt, SILENT, Seen, Trouble, UNFINISHED, host, io_trouble, refused,
    too_large,
};
use crate::limits::PACKET_SIZE_MAX;
use rumqttc::{
    ConnectionError, Error as MqttError, Event, MqttOptions, Outgoing as Left, Packet, QoS, StateError,
    SubscribeFilter, SubscribeReasonCode, TlsConfiguration, Transport,
};
use std::time::Duration;

pub(super) fn options(options: &Options) -> MqttOptions {
    let mut out = MqttOptions::new(options.client_id.clone(), host(options), options.port);
    let size = PACKET_SIZE_MAX as usize;
    out.set_keep_alive(Duration::from_secs(options.keep_alive_s.into()))
        .set_clean_session(options.clean)
        .set_max_packet_size(size, size)
        .set_inflight(options.inflight)
        .set_manual_acks(options.manual_acks);
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

pub(super) fn publish(client: &rumqttc::Client, message: Outgoing) -> Result<(), Trouble> {
    let Outgoing { topic, payload, qos: level, retain, .. } = message;
    client.publish(topic, qos(level), retain, payload).map_err(|error| Trouble(error.to_string()))
}

pub(super) fn subscribe(client: &rumqttc::Client, filters: &[String], level: u8) -> Result<(), Trouble> {
    let filters = filters.iter().map(|filter| SubscribeFilter::new(filter.clone(), qos(level)));
    client.try_subscribe_many(filters).map_err(|error| Trouble(format!("the filters cannot be sent: {error}")))
}

pub(super) fn seen(event: Result<Event, ConnectionError>) -> Result<Seen, Trouble> {
    Ok(match event.map_err(|error| trouble(&error))? {
        Event::Outgoing(Left::Publish(id)) => Seen::Sent(id),
        Event::Outgoing(Left::Disconnect) => Seen::Disconnected,
        Event::Incoming(Packet::ConnAck(_)) => Seen::Connected,
        Event::Incoming(Packet::PubAck(ack)) => Seen::Acked(ack.pkid),
        Event::Incoming(Packet::PubRec(ack)) => Seen::Received(ack.pkid),
        Event::Incoming(Packet::PubComp(ack)) => Seen::Acked(ack.pkid),
        Event::Incoming(Packet::PubRel(ack)) => Seen::Released(ack.pkid),
        Event::Incoming(Packet::SubAck(ack)) => Seen::Subscribed(ack.return_codes.into_iter().map(verdict).collect()),
        Event::Incoming(Packet::Publish(publish)) => Seen::Message(Box::new(Message {
            topic: publish.topic.clone(),
            payload: publish.payload.clone(),
            qos: publish.qos as u8,
            packet_id: publish.pkid,
            source: None,
            receipt: Receipt::V4(publish),
        })),
        _ => Seen::Other,
    })
}

fn verdict(code: SubscribeReasonCode) -> Result<u8, String> {
    match code {
        SubscribeReasonCode::Success(qos) => Ok(qos as u8),
        SubscribeReasonCode::Failure => Err("refused".into()),
    }
}

fn trouble(error: &ConnectionError) -> Trouble {
    match error {
        ConnectionError::Io(error) | ConnectionError::MqttState(StateError::Io(error)) => io_trouble(error),
        ConnectionError::ConnectionRefused(reason) => refused(reason),
        ConnectionError::NetworkTimeout | ConnectionError::FlushTimeout => Trouble(SILENT.into()),
        ConnectionError::MqttState(StateError::ConnectionAborted) => Trouble(CLOSED.into()),
        ConnectionError::MqttState(StateError::AwaitPingResp) => Trouble(SILENT.into()),
        ConnectionError::MqttState(StateError::Deserialization(MqttError::OutgoingPacketTooLarge {
            pkt_size,
            max,
        })) => too_large(*pkt_size, *max),
        ConnectionError::MqttState(StateError::Unsolicited(_)) => Trouble(UNFINISHED.into()),
        error => Trouble(error.to_string()),
    }
}
