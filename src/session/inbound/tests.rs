use super::AnswerKind::{PubAck, PubRec};
use super::*;
use proptest::prelude::*;

fn answer(kind: AnswerKind, packet_id: u16, gate: Seq) -> Answer {
    Answer { kind, packet_id, reason: Reason::SUCCESS, properties: None, gate }
}

fn answered(inbound: &mut Inbound, answer: Answer) -> Vec<u16> {
    let mut out = Vec::new();
    inbound.answer(answer, |answer| out.push(answer.packet_id));
    out
}

fn resolved(inbound: &mut Inbound, waiting: Waiting) -> Vec<u16> {
    let mut out = Vec::new();
    inbound.resolve(waiting, Reason::SUCCESS, None, 0, |answer| out.push(answer.packet_id));
    out
}

fn nothing(answer: Answer) {
    panic!("{answer:?} leaves too early");
}

#[test]
fn a_qos_2_message_is_new_until_received_and_again_after_its_release() {
    let mut inbound = Inbound::restore([7]);
    assert_eq!(inbound.arrival(PubRec, 7, true), Arrival::Again, "as the log remembers");
    assert_eq!(inbound.arrival(PubRec, 7, false), Arrival::Again, "whatever the DUP flag says");
    assert_eq!(inbound.arrival(PubAck, 7, true), Arrival::New, "QoS 1 has nothing to do with it");
    assert_eq!(inbound.arrival(PubRec, 8, true), Arrival::New);
    inbound.received(8);
    assert_eq!(inbound.received_ids().count(), 2);
    assert!(inbound.release(8));
    assert!(!inbound.release(8));
    assert_eq!(inbound.arrival(PubRec, 8, false), Arrival::New);
}

#[test]
fn without_anything_waiting_answers_leave_at_once() {
    let mut inbound = Inbound::default();
    assert_eq!(answered(&mut inbound, answer(PubAck, 1, 9)), [1]);
    assert_eq!(answered(&mut inbound, answer(PubRec, 2, 9)), [2]);
    assert!(inbound.lines.is_none(), "and nothing is kept");
}

#[test]
fn answers_of_one_kind_keep_their_order_and_the_other_kind_passes() {
    let mut inbound = Inbound::default();
    let one = inbound.wait(PubAck, 1, 10, nothing);
    assert!(answered(&mut inbound, answer(PubAck, 2, 0)).is_empty());
    assert_eq!(answered(&mut inbound, answer(PubRec, 3, 0)), [3]);
    let four = inbound.wait(PubAck, 4, 11, nothing);
    let five = inbound.wait(PubAck, 5, 12, nothing);
    assert_eq!(inbound.oldest_wait_ns(), Some(10));
    assert!(resolved(&mut inbound, five).is_empty());
    assert_eq!(resolved(&mut inbound, one), [1, 2]);
    assert_eq!(inbound.oldest_wait_ns(), Some(11));
    assert_eq!(resolved(&mut inbound, four), [4, 5]);
    assert!(resolved(&mut inbound, four).is_empty(), "once only");
    assert_eq!(inbound.oldest_wait_ns(), None);
    assert_eq!(answered(&mut inbound, answer(PubAck, 6, 0)), [6]);
}

#[test]
fn a_duplicate_attaches_to_the_copy_that_still_waits() {
    let mut inbound = Inbound::default();
    let one = inbound.wait(PubAck, 1, 0, nothing);
    inbound.received(2);
    inbound.wait(PubRec, 2, 0, nothing);
    inbound.resumed(50);
    assert_eq!(inbound.oldest_wait_ns(), Some(50), "its time begins anew with the connection");
    assert_eq!(inbound.arrival(PubAck, 1, true), Arrival::Attached);
    assert_eq!(inbound.arrival(PubRec, 2, true), Arrival::Attached);
    assert_eq!(resolved(&mut inbound, one), [1]);
    assert_eq!(inbound.arrival(PubAck, 1, true), Arrival::New, "acknowledged: at least once");
}

#[test]
fn an_identifier_used_for_another_message_gets_that_messages_answer_only() {
    let mut inbound = Inbound::default();
    let first = inbound.wait(PubAck, 1, 0, nothing);
    assert!(answered(&mut inbound, answer(PubAck, 2, 0)).is_empty());
    assert_eq!(inbound.arrival(PubAck, 1, false), Arrival::New);
    let mut out = Vec::new();
    let second = inbound.wait(PubAck, 1, 0, |answer| out.push(answer.packet_id));
    assert_eq!(out, [2], "it stood behind the one given up");
    assert!(resolved(&mut inbound, first).is_empty());
    assert_eq!(resolved(&mut inbound, second), [1]);
}

#[test]
fn a_release_before_the_pubrec_takes_the_waiting_answer_back() {
    let mut inbound = Inbound::default();
    inbound.received(1);
    let waiting = inbound.wait(PubRec, 1, 0, nothing);
    assert!(inbound.release(1));
    assert!(resolved(&mut inbound, waiting).is_empty());
}

#[test]
fn a_message_that_the_replica_refuses_gets_its_reason_and_frees_its_identifier() {
    let mut inbound = Inbound::default();
    inbound.received(1);
    let first = inbound.wait(PubRec, 9, 0, nothing);
    let waiting = inbound.wait(PubRec, 1, 0, nothing);
    inbound.resolve(waiting, Reason::IMPLEMENTATION_SPECIFIC, None, 0, nothing);
    assert_eq!(inbound.received_ids().count(), 0);
    assert_eq!(inbound.arrival(PubRec, 1, true), Arrival::Attached, "its answer is still in line");
    let mut out = Vec::new();
    inbound.resolve(first, Reason::SUCCESS, None, 0, |answer| out.push((answer.packet_id, answer.is_final())));
    assert_eq!(out, [(9, false), (1, true)]);
    assert_eq!(inbound.arrival(PubRec, 1, false), Arrival::New);
}

/// A client that is back sends again what has no answer. Were the first copy answered meanwhile, the second copy's answer could be
/// taken for that of the identifier's next message.
#[test]
fn what_waited_for_a_former_connection_is_answered_only_when_it_is_sent_again() {
    let mut inbound = Inbound::default();
    let first = inbound.wait(PubAck, 1, 0, nothing);
    let second = inbound.wait(PubAck, 2, 0, nothing);
    inbound.resumed(5);
    assert_eq!(inbound.arrival(PubAck, 1, true), Arrival::Attached);
    let mut out = Vec::new();
    inbound.resolve(first, Reason::SUCCESS, None, 0, |answer| out.push(answer.packet_id));
    inbound.resolve(second, Reason::SUCCESS, None, 0, |answer| out.push(answer.packet_id));
    assert_eq!(out, [1], "2 has not been sent on this connection");
    assert_eq!(inbound.arrival(PubAck, 2, true), Arrival::New);
}

#[test]
fn a_released_identifier_does_not_wait_any_more() {
    let mut inbound = Inbound::default();
    inbound.received(1);
    let waiting = inbound.wait(PubRec, 1, 0, nothing);
    assert!(inbound.is_waiting(waiting));
    inbound.release(1);
    assert!(!inbound.is_waiting(waiting));
}

#[test]
fn a_retained_message_is_refused_where_that_was_announced() {
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: true,
        topic: "a".into(),
        packet_id: 0,
        properties: None,
        payload: bytes::Bytes::new(),
    };
    assert_eq!(check_publish(Version::V5, &publish), Err(Reason(0x9A)));
    assert_eq!(check_publish(Version::V311, &publish), Ok(()));
}

#[test]
fn an_idle_session_costs_little() {
    assert!(size_of::<Inbound>() <= 56, "{}", size_of::<Inbound>());
}

proptest! {
    /// However levels and resolutions mix: each message is answered once, in its kind's order.
    #[test]
    fn every_message_is_answered_once_and_in_order(
        steps in prop::collection::vec((any::<bool>(), any::<bool>(), prop::option::of(any::<prop::sample::Index>())), 1..150)
    ) {
        let mut inbound = Inbound::default();
        let (mut sent, mut came) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        let mut waiting = Vec::new();
        let note = |came: &mut [Vec<u16>; 2], answer: Answer| came[usize::from(answer.kind == PubRec)].push(answer.packet_id);
        for (id, (qos2, waits, resolve)) in (1u16..).zip(steps) {
            let kind = if qos2 { PubRec } else { PubAck };
            prop_assert_eq!(inbound.arrival(kind, id, false), Arrival::New);
            sent[usize::from(qos2)].push(id);
            if waits {
                waiting.push(inbound.wait(kind, id, 0, |answer| note(&mut came, answer)));
            } else {
                inbound.answer(answer(kind, id, 0), |answer| note(&mut came, answer));
            }
            if let Some(index) = resolve.filter(|_| !waiting.is_empty()) {
                let one = waiting.swap_remove(index.index(waiting.len()));
                inbound.resolve(one, Reason::SUCCESS, None, 0, |answer| note(&mut came, answer));
            }
        }
        for one in waiting {
            inbound.resolve(one, Reason::SUCCESS, None, 0, |answer| note(&mut came, answer));
        }
        prop_assert_eq!(came, sent);
    }
}
