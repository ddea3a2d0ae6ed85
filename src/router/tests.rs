//! The router as a whole, and what its parts' tests share.

use super::*;
use crate::mqtt::{QoS, SubscribeOptions};
use crate::settings::KeyRule;
use crate::types::StreamId;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The standard's rules, read word by word.
pub(super) fn naive_matches(filter: &str, topic: &str) -> bool {
    fn rest(filter: &[&str], topic: &[&str]) -> bool {
        match (filter.split_first(), topic.split_first()) {
            (Some((&"#", _)), _) => true,
            (Some((&"+", filter)), Some((_, topic))) => rest(filter, topic),
            (Some((name, filter)), Some((level, topic))) => name == level && rest(filter, topic),
            (None, None) => true,
            _ => false,
        }
    }
    if topic.starts_with('$') && (filter.starts_with('+') || filter.starts_with('#')) {
        return false;
    }
    rest(&filter.split('/').collect::<Vec<_>>(), &topic.split('/').collect::<Vec<_>>())
}

/// Filters over few names, so that they overlap.
pub(super) fn filters() -> impl Strategy<Value = String> {
    let level = prop::sample::select(vec!["a", "b", "", "+", "$x"]);
    (prop::collection::vec(level, 0..5), any::<bool>()).prop_map(|(mut levels, hash)| {
        if hash || levels.is_empty() || levels == [""] {
            levels.push("#");
        }
        levels.join("/")
    })
}

/// Topics over the same names.
pub(super) fn topics() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "", "c", "$x"]), 1..6).prop_map(|levels| {
        let topic = levels.join("/");
        if topic.is_empty() { "a".into() } else { topic }
    })
}

fn with_qos(qos: QoS) -> Subscription {
    Subscription { options: SubscribeOptions { qos, ..Default::default() }, id: None, since: LogPosition::default() }
}

fn route(id: u32, filters: &[&str], partitions: u16, key: KeyRule) -> StreamRoute {
    StreamRoute { id: StreamId(id), filters: filters.iter().map(|f| Text::from(*f)).collect(), partitions, key }
}

fn sessions(set: &MatchSet) -> Vec<u64> {
    set.entries.iter().map(|entry| entry.session.0).collect()
}

#[test]
fn every_change_of_subscriptions_is_seen_by_the_next_look_up() {
    let mut router = Router::<u32>::new(3);
    let topic = Text::from("a/b");
    assert!(router.matches(&topic).entries.is_empty());
    assert!(!router.subscribe(SessionId(1), &Text::from("a/+"), with_qos(QoS::AtMostOnce)).unwrap());
    assert_eq!(sessions(&router.matches(&topic)), [1]);
    router.topic(&topic).attached = 9;
    assert_eq!(router.topic(&topic).attached, 9, "kept as long as nothing changes");
    assert!(router.subscribe(SessionId(1), &Text::from("a/+"), with_qos(QoS::ExactlyOnce)).unwrap());
    assert_eq!(router.matches(&topic).max_qos, QoS::ExactlyOnce);
    assert_eq!(router.topic(&topic).attached, 0, "made anew with the entry");
    router.subscribe(SessionId(2), &Text::from("#"), with_qos(QoS::AtMostOnce)).unwrap();
    assert_eq!(sessions(&router.matches(&topic)), [1, 2]);
    assert!(router.unsubscribe(SessionId(1), &Text::from("a/+")));
    assert!(!router.unsubscribe(SessionId(1), &Text::from("a/+")));
    router.drop_session(SessionId(2));
    assert!(router.matches(&topic).entries.is_empty());
}

#[test]
fn the_first_stream_in_file_order_stores_and_the_default_takes_the_rest() {
    let mut router = Router::<()>::new(3);
    let streams =
        [route(4, &["x/y/+", "sensors/a/#"], 1, KeyRule::Topic), route(5, &["sensors/#"], 8, KeyRule::Level(2))];
    router.set_streams(&streams, &route(9, &[], 1, KeyRule::Topic)).unwrap();
    let stored = |router: &mut Router, topic: &str| {
        let routed = router.route(&Text::from(topic), b"client", None);
        (routed.partition.stream.0, routed.configured)
    };
    assert_eq!(stored(&mut router, "sensors/a/t"), (4, true));
    assert_eq!(stored(&mut router, "sensors/b/t"), (5, true));
    assert_eq!(stored(&mut router, "sensors"), (5, true));
    assert_eq!(stored(&mut router, "other"), (9, false));
    assert_eq!(stored(&mut router, "$SYS/x"), (9, false));
    router.set_streams(&[route(6, &["#"], 1, KeyRule::Topic)], &route(9, &[], 1, KeyRule::Topic)).unwrap();
    assert_eq!(stored(&mut router, "sensors/b/t"), (6, true), "a reload is seen at once");
}

#[test]
fn a_session_that_reads_the_log_gets_what_its_subscriptions_held_for_at_that_position() {
    let mut router = Router::<()>::new(3);
    let at = |seq| LogPosition { seq, index: 0 };
    let since = |qos, seq| Subscription { since: at(seq), ..with_qos(qos) };
    router.subscribe(SessionId(1), &Text::from("a/#"), since(QoS::AtLeastOnce, 10)).unwrap();
    router.subscribe(SessionId(1), &Text::from("a/b"), since(QoS::ExactlyOnce, 20)).unwrap();
    let topic = Text::from("a/b");
    let mut qos = |seq| router.matches_session(SessionId(1), &topic, at(seq)).map(|matched| matched.qos);
    assert_eq!(qos(9), None);
    assert_eq!(qos(10), Some(QoS::AtLeastOnce));
    assert_eq!(qos(19), Some(QoS::AtLeastOnce));
    assert_eq!(qos(20), Some(QoS::ExactlyOnce));
    assert_eq!(router.matches_session(SessionId(2), &topic, at(20)), None);
}

proptest! {
    /// Any sequence of changes: the router answers as a list of subscriptions read by a naive matcher would.
    #[test]
    fn it_answers_as_a_plain_list_of_subscriptions_would(
        changes in prop::collection::vec((0u64..4, filters(), prop::option::weighted(0.8, (0u8..3, any::<bool>(), 0u32..3))), 1..60),
        topics in prop::collection::vec(topics(), 1..6),
    ) {
        let mut router = Router::<()>::new(11);
        let mut list: BTreeMap<(u64, String), (QoS, bool, u32)> = BTreeMap::new();
        for (session, filter, change) in changes {
            match change {
                Some((qos, no_local, id)) => {
                    let qos = QoS::from_bits(qos).unwrap();
                    let subscription = Subscription {
                        options: SubscribeOptions { qos, no_local, ..Default::default() },
                        id: (id > 0).then_some(id),
                        since: LogPosition::default(),
                    };
                    let was = router.subscribe(SessionId(session), &Text::from(filter.as_str()), subscription).unwrap();
                    prop_assert_eq!(was, list.insert((session, filter), (qos, no_local, id)).is_some());
                }
                None if filter.len() % 5 == 4 => {
                    router.drop_session(SessionId(session));
                    list.retain(|(of, _), _| *of != session);
                }
                None => {
                    let was = router.unsubscribe(SessionId(session), &Text::from(filter.as_str()));
                    prop_assert_eq!(was, list.remove(&(session, filter)).is_some());
                }
            }
            prop_assert_eq!(router.subscription_count(), list.len());
            for topic in &topics {
                for publisher in 0..4u64 {
                    let set = router.matches(&Text::from(topic.as_str()));
                    let got: BTreeMap<u64, (QoS, Vec<u32>)> = set
                        .for_publisher(Some(SessionId(publisher)))
                        .map(|matched| (matched.session.0, (matched.qos, matched.ids.to_vec())))
                        .collect();
                    let mut want: BTreeMap<u64, (QoS, Vec<u32>)> = BTreeMap::new();
                    for ((session, filter), (qos, no_local, id)) in &list {
                        if naive_matches(filter, topic) && !(*no_local && *session == publisher) {
                            let entry = want.entry(*session).or_default();
                            entry.0 = entry.0.max(*qos);
                            entry.1.extend(Some(*id).filter(|id| *id > 0));
                            entry.1.sort_unstable();
                        }
                    }
                    prop_assert_eq!(got, want);
                }
            }
        }
    }
}
