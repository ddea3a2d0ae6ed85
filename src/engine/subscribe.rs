//! SUBSCRIBE and UNSUBSCRIBE. A durable session's subscription is a control record; SUBACK follows once it is synced.

use super::Engine;
use super::io::{Output, Outputs};
use crate::log::control::{ControlKind, ControlRecord};
use crate::mqtt::properties::AckProperties;
use crate::mqtt::{Packet, Reason, SubAck, Subscribe, Text, Unsubscribe, Version};
use crate::router::{SubscribeError, Subscription};
use crate::session::{durable, subscribe as rules};
use crate::types::{ConnId, LogPosition, SessionId};

impl Engine {
    /// Grants or refuses each filter [MQTT-3.8.4-5] [MQTT-3.9.3-1].
    pub(super) fn subscribe(&mut self, conn: ConnId, subscribe: &Subscribe, out: &mut Outputs) {
        let Some((id, version)) = self.session_of(conn) else { return };
        let persistent = self.sessions.get(&id).is_some_and(|session| session.persistent);
        let mut reasons = Vec::with_capacity(subscribe.filters.len());
        let mut trouble = None;
        for (index, (filter, options)) in subscribe.filters.iter().enumerate() {
            match rules::check(version, subscribe, index) {
                Err(refused) => {
                    reasons.push(refused.reason);
                    trouble = trouble.or(Some(refused.text));
                }
                Ok(qos) => {
                    let subscription = Subscription {
                        options: *options,
                        id: subscribe.properties.subscription_id,
                        since: self.subscription_since(id, filter),
                    };
                    match self.router.subscribe(id, &filter.detached(), subscription) {
                        Ok(_) => {
                            reasons.push(rules::granted(qos));
                            if persistent {
                                let key = durable::subscription_key(id, filter);
                                let Subscription { options, id: number, since } = subscription;
                                let value = durable::SubscriptionV1::new(options, number, since).encode();
                                // The same again, as many clients send at each connect, is on the disk already.
                                let former = self.log.state().get(ControlKind::Subscription, &key);
                                if former.is_none_or(|former| *former.value != *value) {
                                    self.log.control(ControlRecord::put(ControlKind::Subscription, key, value));
                                }
                            }
                        }
                        Err(error) => {
                            let (reason, text) = refusal(error, version);
                            reasons.push(reason);
                            trouble = trouble.or(Some(text));
                        }
                    }
                }
            }
        }
        let reason_string =
            trouble.filter(|_| version == Version::V5 && self.wants_problem_information(conn)).map(Text::from_static);
        let properties = AckProperties { reason_string, user: Vec::new() };
        let answer = Packet::SubAck(Box::new(SubAck { packet_id: subscribe.packet_id, reasons, properties }));
        self.answer_after_sync(conn, answer, persistent, out);
    }

    /// From where a new subscription holds: what is appended from now on. One that replaces another keeps its beginning.
    fn subscription_since(&self, id: SessionId, filter: &Text) -> LogPosition {
        match self.router.subscription(id, filter) {
            Some(former) => former.since,
            None => self.end(),
        }
    }

    /// Removes each filter [MQTT-3.10.4-4]; deliveries under way complete.
    pub(super) fn unsubscribe(&mut self, conn: ConnId, unsubscribe: &Unsubscribe, out: &mut Outputs) {
        let Some((id, _)) = self.session_of(conn) else { return };
        let persistent = self.sessions.get(&id).is_some_and(|session| session.persistent);
        let mut reasons = Vec::with_capacity(unsubscribe.filters.len());
        for filter in &unsubscribe.filters {
            let existed = self.router.unsubscribe(id, filter);
            if existed && persistent {
                let key = durable::subscription_key(id, filter);
                self.log.control(ControlRecord::remove(ControlKind::Subscription, key));
            }
            reasons.push(if existed { Reason::SUCCESS } else { Reason::NO_SUBSCRIPTION_EXISTED });
        }
        let answer = Packet::UnsubAck(Box::new(SubAck {
            packet_id: unsubscribe.packet_id,
            reasons,
            properties: AckProperties::default(),
        }));
        self.answer_after_sync(conn, answer, persistent, out);
    }

    fn answer_after_sync(&mut self, conn: ConnId, packet: Packet, durable: bool, out: &mut Outputs) {
        let gate = if durable { self.newest_gate() } else { 0 };
        self.note_gate(conn, gate);
        out.push(Output::Ack { conn, packet, gate });
    }
}

fn refusal(error: SubscribeError, version: Version) -> (Reason, &'static str) {
    let (reason, text) = match error {
        SubscribeError::Levels => (Reason::TOPIC_FILTER_INVALID, "the filter has too many levels"),
        SubscribeError::Session => (Reason::QUOTA_EXCEEDED, "this session has as many subscriptions as it may have"),
        SubscribeError::Full => (Reason::QUOTA_EXCEEDED, "there are as many subscriptions as there may be"),
    };
    if version == Version::V5 { (reason, text) } else { (Reason::UNSPECIFIED, text) }
}
