//! SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK.

use super::packet_id;
use super::sink::Sink;
use crate::mqtt::packet::{SubAck, Subscribe, SubscribeOptions, Unsubscribe};
use crate::mqtt::reason::Reason;
use crate::mqtt::text::Text;
use crate::mqtt::topic;
use crate::mqtt::wire::subscribe_option as option;

/// [MQTT-3.8].
pub(super) fn subscribe<S: Sink>(subscribe: &Subscribe, v5: bool, sink: &mut S) {
    packet_id(subscribe.packet_id, sink);
    if v5 {
        sink.section(&subscribe.properties);
    }
    if subscribe.filters.is_empty() {
        sink.refuse("SUBSCRIBE without a filter");
    }
    for (wanted, options) in &subscribe.filters {
        filter(wanted, sink);
        if options.retain_handling > 2 {
            sink.refuse("retain handling above 2");
        }
        if v5 && options.no_local && topic::is_shared(wanted.as_bytes()) {
            sink.refuse("no local on a shared subscription");
        }
        sink.u8(if v5 { option_bits(*options) } else { options.qos.bits() });
    }
}

fn filter<S: Sink>(filter: &Text, sink: &mut S) {
    if filter.is_empty() {
        sink.refuse("empty topic filter");
    }
    sink.text(filter);
}

fn option_bits(options: SubscribeOptions) -> u8 {
    let mut bits = options.qos.bits() | options.retain_handling << option::RETAIN_HANDLING_SHIFT;
    if options.no_local {
        bits |= option::NO_LOCAL;
    }
    if options.retain_as_published {
        bits |= option::RETAIN_AS_PUBLISHED;
    }
    bits
}

/// [MQTT-3.9]. 3.1.1 has one code for all failures.
pub(super) fn suback<S: Sink>(suback: &SubAck, v5: bool, sink: &mut S) {
    packet_id(suback.packet_id, sink);
    if v5 {
        sink.section(&suback.properties);
    }
    reasons(
        suback,
        Reason::in_suback,
        sink,
        |reason| if v5 || !reason.is_failure() { reason } else { Reason::UNSPECIFIED },
    );
}

/// [MQTT-3.11]. In 3.1.1 it has nothing but the identifier.
pub(super) fn unsuback<S: Sink>(unsuback: &SubAck, v5: bool, sink: &mut S) {
    packet_id(unsuback.packet_id, sink);
    if v5 {
        sink.section(&unsuback.properties);
        reasons(unsuback, Reason::in_unsuback, sink, |reason| reason);
    }
}

fn reasons<S: Sink>(suback: &SubAck, allowed: fn(Reason) -> bool, sink: &mut S, say: impl Fn(Reason) -> Reason) {
    if suback.reasons.is_empty() {
        sink.refuse("no reason code at all");
    }
    for &reason in &suback.reasons {
        if !allowed(reason) {
            sink.refuse("a reason code that this acknowledgement does not have");
        }
        sink.u8(say(reason).0);
    }
}

/// [MQTT-3.10].
pub(super) fn unsubscribe<S: Sink>(unsubscribe: &Unsubscribe, v5: bool, sink: &mut S) {
    packet_id(unsubscribe.packet_id, sink);
    if v5 {
        sink.section(&unsubscribe.user);
    }
    if unsubscribe.filters.is_empty() {
        sink.refuse("UNSUBSCRIBE without a filter");
    }
    for wanted in &unsubscribe.filters {
        filter(wanted, sink);
    }
}
