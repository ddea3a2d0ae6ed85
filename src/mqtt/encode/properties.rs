//! The property sections of MQTT 5.0 [MQTT-2.2.2].

use super::sink::{Layout, Sink};
use crate::limits::REMAINING_LENGTH_MAX;
use crate::mqtt::packet::QoS;
use crate::mqtt::properties::{
    AckProperties, AuthProperties, ConnAckProperties, ConnectProperties, DisconnectProperties, PublishProperties,
    SubscribeProperties, UserProperties, WillProperties,
};
use crate::mqtt::text::Text;
use crate::mqtt::wire::property as id;
use bytes::Bytes;

/// What each kind of value looks like behind its identifier. All of them write nothing for a value that is absent.
trait PropertySink: Sink {
    fn flag(&mut self, property: u8, value: Option<bool>) {
        if let Some(value) = value {
            self.u8(property);
            self.u8(u8::from(value));
        }
    }

    fn short(&mut self, property: u8, value: Option<u16>) {
        if let Some(value) = value {
            self.u8(property);
            self.u16(value);
        }
    }

    /// Not 0.
    fn short_not_zero(&mut self, property: u8, value: Option<u16>) {
        if value == Some(0) {
            self.refuse("a property of 0 where 0 is not allowed");
        }
        self.short(property, value);
    }

    fn long(&mut self, property: u8, value: Option<u32>) {
        if let Some(value) = value {
            self.u8(property);
            self.u32(value);
        }
    }

    /// Not 0.
    fn long_not_zero(&mut self, property: u8, value: Option<u32>) {
        if value == Some(0) {
            self.refuse("a property of 0 where 0 is not allowed");
        }
        self.long(property, value);
    }

    fn string(&mut self, property: u8, value: Option<&Text>) {
        if let Some(value) = value {
            self.u8(property);
            self.text(value);
        }
    }

    /// A topic name: not empty [MQTT-4.7.3-1].
    fn response_topic(&mut self, value: Option<&Text>) {
        if value.is_some_and(Text::is_empty) {
            self.refuse("empty response topic");
        }
        self.string(id::RESPONSE_TOPIC, value);
    }

    fn binary(&mut self, property: u8, value: Option<&Bytes>) {
        if let Some(value) = value {
            self.u8(property);
            self.field(value);
        }
    }

    fn user(&mut self, list: &UserProperties) {
        for (name, value) in list {
            self.u8(id::USER);
            self.text(name);
            self.text(value);
        }
    }

    fn subscription_id(&mut self, value: u32) {
        if value == 0 || value > REMAINING_LENGTH_MAX {
            self.refuse("subscription identifier that is not 1 to 268,435,455");
        }
        self.u8(id::SUBSCRIPTION_ID);
        self.varint(value as usize);
    }
}

impl<S: Sink> PropertySink for S {}

impl Layout for ConnectProperties {
    fn put<S: Sink>(&self, sink: &mut S) {
        if self.authentication_data.is_some() && self.authentication_method.is_none() {
            sink.refuse("authentication data without a method");
        }
        sink.long(id::SESSION_EXPIRY, self.session_expiry_s);
        sink.short_not_zero(id::RECEIVE_MAXIMUM, self.receive_maximum);
        sink.long_not_zero(id::MAXIMUM_PACKET_SIZE, self.maximum_packet_size);
        sink.short(id::TOPIC_ALIAS_MAXIMUM, self.topic_alias_maximum);
        sink.flag(id::REQUEST_RESPONSE_INFORMATION, self.request_response_information);
        sink.flag(id::REQUEST_PROBLEM_INFORMATION, self.request_problem_information);
        sink.string(id::AUTHENTICATION_METHOD, self.authentication_method.as_ref());
        sink.binary(id::AUTHENTICATION_DATA, self.authentication_data.as_ref());
        sink.user(&self.user);
    }
}

impl Layout for WillProperties {
    fn put<S: Sink>(&self, sink: &mut S) {
        sink.long(id::WILL_DELAY, self.delay_s);
        sink.flag(id::PAYLOAD_FORMAT, self.payload_format);
        sink.long(id::MESSAGE_EXPIRY, self.message_expiry_s);
        sink.string(id::CONTENT_TYPE, self.content_type.as_ref());
        sink.response_topic(self.response_topic.as_ref());
        sink.binary(id::CORRELATION_DATA, self.correlation_data.as_ref());
        sink.user(&self.user);
    }
}

impl Layout for ConnAckProperties {
    fn put<S: Sink>(&self, sink: &mut S) {
        if self.maximum_qos == Some(QoS::ExactlyOnce) {
            sink.refuse("a maximum QoS of 2 is said by leaving it out [MQTT-3.2.2.3.4]");
        }
        sink.long(id::SESSION_EXPIRY, self.session_expiry_s);
        sink.short_not_zero(id::RECEIVE_MAXIMUM, self.receive_maximum);
        if let Some(qos) = self.maximum_qos {
            sink.u8(id::MAXIMUM_QOS);
            sink.u8(qos.bits());
        }
        sink.flag(id::RETAIN_AVAILABLE, self.retain_available);
        sink.long_not_zero(id::MAXIMUM_PACKET_SIZE, self.maximum_packet_size);
        sink.string(id::ASSIGNED_CLIENT_ID, self.assigned_client_id.as_ref());
        sink.short(id::TOPIC_ALIAS_MAXIMUM, self.topic_alias_maximum);
        sink.string(id::REASON_STRING, self.reason_string.as_ref());
        sink.flag(id::WILDCARD_AVAILABLE, self.wildcard_available);
        sink.flag(id::SUBSCRIPTION_IDS_AVAILABLE, self.subscription_ids_available);
        sink.flag(id::SHARED_AVAILABLE, self.shared_available);
        sink.short(id::SERVER_KEEP_ALIVE, self.server_keep_alive_s);
        sink.string(id::RESPONSE_INFORMATION, self.response_information.as_ref());
        sink.string(id::SERVER_REFERENCE, self.server_reference.as_ref());
        sink.string(id::AUTHENTICATION_METHOD, self.authentication_method.as_ref());
        sink.binary(id::AUTHENTICATION_DATA, self.authentication_data.as_ref());
        sink.user(&self.user);
    }
}

impl Layout for PublishProperties {
    fn put<S: Sink>(&self, sink: &mut S) {
        sink.flag(id::PAYLOAD_FORMAT, self.payload_format);
        sink.long(id::MESSAGE_EXPIRY, self.message_expiry_s);
        sink.short_not_zero(id::TOPIC_ALIAS, self.topic_alias);
        sink.response_topic(self.response_topic.as_ref());
        sink.binary(id::CORRELATION_DATA, self.correlation_data.as_ref());
        for &value in &self.subscription_ids {
            sink.subscription_id(value);
        }
        sink.string(id::CONTENT_TYPE, self.content_type.as_ref());
        sink.user(&self.user);
    }
}

impl Layout for AckProperties {
    fn put<S: Sink>(&self, sink: &mut S) {
        sink.string(id::REASON_STRING, self.reason_string.as_ref());
        sink.user(&self.user);
    }
}

impl Layout for SubscribeProperties {
    fn put<S: Sink>(&self, sink: &mut S) {
        if let Some(value) = self.subscription_id {
            sink.subscription_id(value);
        }
        sink.user(&self.user);
    }
}

impl Layout for UserProperties {
    fn put<S: Sink>(&self, sink: &mut S) {
        sink.user(self);
    }
}

impl Layout for DisconnectProperties {
    fn put<S: Sink>(&self, sink: &mut S) {
        sink.long(id::SESSION_EXPIRY, self.session_expiry_s);
        sink.string(id::REASON_STRING, self.reason_string.as_ref());
        sink.string(id::SERVER_REFERENCE, self.server_reference.as_ref());
        sink.user(&self.user);
    }
}

impl Layout for AuthProperties {
    fn put<S: Sink>(&self, sink: &mut S) {
        sink.string(id::AUTHENTICATION_METHOD, self.authentication_method.as_ref());
        sink.binary(id::AUTHENTICATION_DATA, self.authentication_data.as_ref());
        sink.string(id::REASON_STRING, self.reason_string.as_ref());
        sink.user(&self.user);
    }
}
