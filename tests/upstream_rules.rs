//! The rules of a link, one by one: sessions, refusals, closes, back-off, ranges of identifiers. `upstream_link.rs` has them all
//! at once, against a simulated peer.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic; clippy sees only #[test] functions as tests, not what they call"
)]

use bytes::Bytes;
use forebay::mqtt::{Publish, QoS, Reason, Text};
use forebay::replication::Link;
use forebay::replication::durable::{SessionV1, StateKind, decode};
use forebay::replication::link::{
    DownKind, LaneStart, LinkAck, LinkAckKind, LinkConfig, LinkDown, LinkEvent, LinkGravity, LinkOrder, LinkOutput,
    LinkState, Want,
};
use forebay::types::{LogId, Now, Offset, PartitionId, StreamId};
use std::collections::BTreeMap;

const S: u64 = 1_000_000_000;

fn config() -> LinkConfig {
    LinkConfig {
        name: "dc".into(),
        exactly_once: true,
        peer: "dc:1883/gw/5".into(),
        log_id: LogId([1; 16]),
        window: 100,
        window_bytes: 1 << 20,
        stop_on_refusal: false,
        seed: 1,
    }
}

fn p(partition: u16) -> PartitionId {
    PartitionId { stream: StreamId(1), partition }
}

/// A link with its durable state; every commit comes at once.
struct Bench {
    link: Link,
    state: BTreeMap<(StateKind, Vec<u8>), Vec<u8>>,
    now_ns: u64,
    seq: u64,
    end: Offset,
    partitions: u16,
    /// Since they were last taken.
    orders: Vec<LinkOrder>,
    refused: Vec<(Offset, Reason)>,
    events: Vec<(LinkGravity, String)>,
}

impl Bench {
    fn new(config: LinkConfig) -> Self {
        Self::with(config, 1, 10_000, BTreeMap::new())
    }

    fn with(config: LinkConfig, partitions: u16, end: Offset, state: BTreeMap<(StateKind, Vec<u8>), Vec<u8>>) -> Self {
        let starts: Vec<LaneStart> =
            (0..partitions).map(|number| LaneStart { partition: p(number), start: 0, end }).collect();
        let link = Link::new(config, &starts, &mut |kind, key| state.get(&(kind, key.to_vec())).cloned()).unwrap();
        let (orders, refused, events) = (Vec::new(), Vec::new(), Vec::new());
        Self { link, state, now_ns: S, seq: 0, end, partitions, orders, refused, events }
    }

    /// The process dies; what was durable remains.
    fn restart(self, config: LinkConfig) -> Self {
        Self::with(config, self.partitions, self.end, self.state)
    }

    fn now(&self) -> Now {
        Now { mono_ns: self.now_ns, wall_ms: None, wall_synced: false }
    }

    fn call(&mut self, call: impl FnOnce(&mut Link, Now, &mut Vec<LinkOutput>)) {
        let mut outputs = Vec::new();
        let now = self.now();
        call(&mut self.link, now, &mut outputs);
        while !outputs.is_empty() {
            self.seq += 1;
            for output in std::mem::take(&mut outputs) {
                match output {
                    LinkOutput::Order(order) => self.orders.push(order),
                    LinkOutput::State(change) => drop(self.state.insert((change.kind, change.key), change.value)),
                    LinkOutput::Refused { offset, reason, .. } => self.refused.push((offset, reason)),
                    LinkOutput::Event(gravity, text) => self.events.push((gravity, text)),
                    LinkOutput::Cursor { .. } | LinkOutput::Rewind => {}
                }
            }
            self.link.recorded(self.seq);
            self.link.synced(now, self.seq, &mut outputs);
        }
    }

    fn event(&mut self, event: LinkEvent) {
        self.call(|link, now, out| link.on_event(now, event, out));
    }

    /// Waits until the link wants to connect; whether it wants to start clean.
    fn connect(&mut self) -> bool {
        self.now_ns = self.now_ns.max(self.link.wake_ns().expect("it wants to connect"));
        self.orders.clear();
        self.call(|link, now, out| link.tick(now, out));
        let [LinkOrder::Connect { clean_start }] = self.orders[..] else { panic!("{:?}", self.orders) };
        self.orders.clear();
        clean_start
    }

    fn up(&mut self, session_present: bool) {
        self.event(LinkEvent::Up { session_present, receive_maximum: 65_535, maximum_packet_size: 1_000 });
    }

    fn down(&mut self, kind: DownKind) {
        self.event(LinkEvent::Down(LinkDown { reason: "gone".into(), kind }));
    }

    fn acks(&mut self, kind: LinkAckKind, ids: impl IntoIterator<Item = u16>, reason: Reason) {
        let acks = ids.into_iter().map(|packet_id| LinkAck { packet_id, kind, reason }).collect();
        self.event(LinkEvent::Acks(acks));
    }

    /// Offers all records of partition 0 that there are; gives the packet ids and DUP flags of what goes out.
    fn offer(&mut self) -> Vec<(u16, bool)> {
        self.offer_sized(|_| 100)
    }

    fn offer_sized(&mut self, size: impl Fn(Offset) -> usize) -> Vec<(u16, bool)> {
        let (from, end) = (self.link.lanes().next().unwrap().1, self.end);
        let open = self.link.room() > 0;
        self.call(|link, now, out| {
            for offset in (from..end).take_while(|_| open) {
                match link.want(p(0), offset) {
                    Want::Pass => {}
                    Want::Full => break,
                    Want::Send => assert!(link.offer(p(0), offset, message(), size(offset), out)),
                }
            }
            link.flush(now, out);
        });
        self.published()
    }

    fn published(&mut self) -> Vec<(u16, bool)> {
        let mut found = Vec::new();
        self.orders.retain(|order| match order {
            LinkOrder::Publish(publishes) => {
                found.extend(publishes.iter().map(|publish| (publish.packet_id, publish.dup)));
                false
            }
            _ => true,
        });
        found
    }

    fn released(&mut self) -> Vec<u16> {
        let mut found = Vec::new();
        self.orders.retain(|order| match order {
            LinkOrder::Release(ids) => {
                found.extend(ids);
                false
            }
            _ => true,
        });
        found
    }

    fn disconnected(&mut self) -> bool {
        let before = self.orders.len();
        self.orders.retain(|order| !matches!(order, LinkOrder::Disconnect { .. }));
        before != self.orders.len()
    }

    fn cursor(&self) -> Offset {
        self.link.cursor(p(0)).unwrap()
    }
}

fn message() -> Publish {
    Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: Text::from_static("t"),
        packet_id: 0,
        properties: None,
        payload: Bytes::new(),
    }
}

/// Up with a session agreed, and `count` records in flight.
fn flying(config: LinkConfig, count: u16) -> Bench {
    let mut bench = Bench::new(LinkConfig { window: count, ..config });
    assert!(bench.connect());
    bench.up(false);
    let expected: Vec<(u16, bool)> = (1..=count).map(|id| (id, false)).collect();
    assert_eq!(bench.offer(), expected);
    bench
}

#[test]
fn identifiers_follow_from_offsets_and_nothing_is_durable_before_publish() {
    let bench = flying(config(), 5);
    assert!(bench.state.keys().all(|(kind, _)| *kind == StateKind::Session));
    assert_eq!(bench.link.state(), LinkState::Connected);
    assert_eq!(bench.link.in_flight(), 5);
}

#[test]
fn released_is_durable_before_pubrel_leaves_and_the_cursor_waits_for_pubcomp() {
    let mut bench = flying(config(), 5);
    let mut outputs = Vec::new();
    let acks = (1..=3).map(|packet_id| LinkAck { packet_id, kind: LinkAckKind::PubRec, reason: Reason::SUCCESS });
    bench.link.on_event(bench.now(), LinkEvent::Acks(acks.collect()), &mut outputs);
    assert!(matches!(&outputs[..], [LinkOutput::State(change)] if change.kind == StateKind::Released));
    bench.link.recorded(7);
    outputs.clear();
    bench.link.synced(bench.now(), 6, &mut outputs);
    assert!(outputs.is_empty(), "an earlier commit releases nothing");
    bench.link.synced(bench.now(), 7, &mut outputs);
    assert!(matches!(&outputs[..], [LinkOutput::Order(LinkOrder::Release(ids))] if *ids == [1, 2, 3]));
    assert_eq!(bench.cursor(), 0);
    bench.acks(LinkAckKind::PubComp, [2, 3], Reason::SUCCESS);
    assert_eq!(bench.cursor(), 0, "it moves over the contiguous part only");
    bench.acks(LinkAckKind::PubComp, [1], Reason::PACKET_ID_NOT_FOUND);
    assert_eq!(bench.cursor(), 3);
}

#[test]
fn a_kept_session_resumes_with_pubrel_then_with_dup_passing_over_what_is_released_or_done() {
    let mut bench = flying(config(), 6);
    bench.acks(LinkAckKind::PubRec, [1, 2, 3, 4], Reason::SUCCESS);
    assert_eq!(bench.released(), [1, 2, 3, 4]);
    bench.acks(LinkAckKind::PubComp, [2], Reason::SUCCESS);
    bench.down(DownKind::Network);
    assert!(!bench.connect());
    bench.up(true);
    assert_eq!(bench.released(), [1, 3, 4]);
    bench.acks(LinkAckKind::PubComp, [3], Reason::SUCCESS);
    assert_eq!(bench.offer(), [(5, true), (6, true), (7, false), (8, false)]);
    assert_eq!(bench.link.counts().possible_doubles, 0);
}

#[test]
fn after_a_crash_the_released_ones_are_released_again_and_the_rest_is_sent_with_dup() {
    let mut bench = flying(config(), 6);
    bench.acks(LinkAckKind::PubRec, [1, 2], Reason::SUCCESS);
    let mut bench = bench.restart(LinkConfig { window: 6, seed: 2, ..config() });
    assert!(!bench.connect());
    bench.up(true);
    assert_eq!(bench.released(), [1, 2]);
    assert_eq!(bench.offer(), [(3, true), (4, true), (5, true), (6, true)]);
}

#[test]
fn a_lost_session_begins_at_the_cursor_without_dup_and_counts_what_may_be_doubled() {
    let mut bench = flying(config(), 6);
    bench.acks(LinkAckKind::PubRec, [1, 2], Reason::SUCCESS);
    bench.acks(LinkAckKind::PubComp, [1], Reason::SUCCESS);
    bench.down(DownKind::Network);
    assert!(!bench.connect());
    bench.up(false);
    assert!(bench.released().is_empty());
    assert_eq!(bench.offer(), [(2, false), (3, false), (4, false), (5, false), (6, false), (7, false)]);
    assert_eq!(bench.link.counts().possible_doubles, 5);
}

#[test]
fn nothing_is_published_in_a_new_session_before_its_stamp_is_durable() {
    let mut bench = Bench::new(config());
    bench.connect();
    let mut outputs = Vec::new();
    let up = LinkEvent::Up { session_present: false, receive_maximum: 10, maximum_packet_size: 1_000 };
    bench.link.on_event(bench.now(), up, &mut outputs);
    assert_eq!(bench.link.room(), 0);
    assert_eq!(bench.link.want(p(0), 0), Want::Full);
    bench.link.recorded(3);
    bench.link.synced(bench.now(), 3, &mut outputs);
    assert_eq!(bench.link.room(), 10);
}

#[test]
fn another_log_peer_or_qos_and_a_lost_session_record_mean_a_clean_start() {
    let other: [(&str, LinkConfig); 3] = [
        ("log", LinkConfig { log_id: LogId([2; 16]), ..config() }),
        ("peer", LinkConfig { peer: "elsewhere:1883/gw/5".into(), ..config() }),
        ("QoS", LinkConfig { exactly_once: false, ..config() }),
    ];
    for (what, other) in other {
        let mut bench = flying(config(), 5).restart(other);
        assert!(bench.connect(), "{what}");
    }
    let mut bench = flying(config(), 5);
    bench.acks(LinkAckKind::PubRec, [1], Reason::SUCCESS);
    bench.state.retain(|(kind, _), _| *kind != StateKind::Session);
    let mut bench = bench.restart(config());
    assert!(bench.connect());
    bench.up(false);
    bench.offer();
    assert!(bench.link.counts().possible_doubles >= 5, "what was in flight may be doubled, and that is counted");
    let mut bench = flying(config(), 5).restart(config());
    assert!(!bench.connect(), "the same one resumes");
}

#[test]
fn a_cursor_beyond_the_log_is_an_alarm_and_skips_nothing() {
    let mut bench = flying(config(), 5);
    bench.acks(LinkAckKind::PubRec, 1..=5, Reason::SUCCESS);
    bench.acks(LinkAckKind::PubComp, 1..=5, Reason::SUCCESS);
    bench.call(|link, now, out| link.stop(now, out));
    bench.end = 3;
    let mut bench = bench.restart(config());
    assert_eq!(bench.cursor(), 3);
    assert!(bench.connect(), "what the peer holds is not of this log");
    assert!(bench.events.iter().any(|(gravity, text)| *gravity == LinkGravity::Error && text.contains("beyond")));
}

#[test]
fn a_new_partition_gets_a_free_range_and_the_session_goes_on() {
    let mut bench = flying(config(), 5);
    bench.partitions = 2;
    let mut bench = bench.restart(config());
    assert!(!bench.connect());
    bench.up(true);
    bench.call(|link, now, out| {
        assert_eq!(link.want(p(1), 0), Want::Send);
        assert!(link.offer(p(1), 0, message(), 100, out));
        link.flush(now, out);
    });
    let session = bench.state.iter().find(|((kind, _), _)| *kind == StateKind::Session).unwrap().1;
    let session = decode::<SessionV1>(session).unwrap();
    assert_eq!(session.slots, [p(0), p(1)]);
    assert_eq!(bench.published(), [(1 + session.range, true)], "its range begins after the first one's");
}

#[test]
fn the_window_is_refilled_when_a_quarter_is_free() {
    let mut bench = flying(config(), 20);
    bench.acks(LinkAckKind::PubRec, 1..=4, Reason::SUCCESS);
    bench.acks(LinkAckKind::PubComp, 1..=4, Reason::SUCCESS);
    assert_eq!(bench.link.room(), 0);
    bench.acks(LinkAckKind::PubRec, [5], Reason::SUCCESS);
    bench.acks(LinkAckKind::PubComp, [5], Reason::SUCCESS);
    assert_eq!(bench.link.room(), 5);
}

#[test]
fn large_records_are_bounded_by_bytes_but_one_always_goes() {
    let mut bench = Bench::new(LinkConfig { window_bytes: 1_500, ..config() });
    bench.connect();
    bench.event(LinkEvent::Up { session_present: false, receive_maximum: 100, maximum_packet_size: 10_000 });
    assert_eq!(bench.offer_sized(|_| 1_000).len(), 2);
    let mut bench = Bench::new(LinkConfig { window_bytes: 1_500, ..config() });
    bench.connect();
    bench.event(LinkEvent::Up { session_present: false, receive_maximum: 100, maximum_packet_size: 10_000 });
    assert_eq!(bench.offer_sized(|_| 9_000).len(), 1);
}

#[test]
fn what_is_too_large_for_the_peer_is_refused_without_being_sent_and_holds_nothing_up() {
    let mut bench = Bench::new(LinkConfig { window: 4, ..config() });
    bench.connect();
    bench.up(false);
    let sent = bench.offer_sized(|offset| if offset == 1 { 1_001 } else { 1_000 });
    assert_eq!(sent, [(1, false), (3, false), (4, false), (5, false)]);
    assert_eq!(bench.refused, [(1, Reason::PACKET_TOO_LARGE)]);
    bench.acks(LinkAckKind::PubRec, [1, 3], Reason::SUCCESS);
    bench.acks(LinkAckKind::PubComp, [1, 3], Reason::SUCCESS);
    assert_eq!(bench.cursor(), 1, "it waits until the record is dead-lettered");
    bench.call(|link, now, out| link.settled(now, p(0), 1, out));
    assert_eq!(bench.cursor(), 3);
    assert_eq!(bench.link.counts().refused, 1);
}

#[test]
fn a_refusal_for_good_frees_the_identifier_and_is_not_repeated_after_a_crash() {
    for reason in [Reason::NOT_AUTHORIZED, Reason::TOPIC_NAME_INVALID, Reason::PAYLOAD_FORMAT_INVALID] {
        let mut bench = flying(config(), 4);
        bench.acks(LinkAckKind::PubRec, [2], reason);
        assert_eq!(bench.refused, [(1, reason)]);
        assert!(bench.released().is_empty(), "no PUBREL");
        assert_eq!(bench.link.in_flight(), 3);
        bench.call(|link, now, out| link.settled(now, p(0), 1, out));
        let mut bench = bench.restart(LinkConfig { window: 4, ..config() });
        bench.connect();
        bench.up(true);
        assert_eq!(bench.offer(), [(1, true), (3, true), (4, true), (5, true)]);
    }
}

#[test]
fn success_with_no_subscribers_is_success() {
    let mut bench = flying(LinkConfig { exactly_once: false, ..config() }, 2);
    bench.acks(LinkAckKind::PubAck, [1, 2], Reason::NO_MATCHING_SUBSCRIBERS);
    assert_eq!((bench.cursor(), bench.link.counts().forwarded), (2, 2));
}

#[test]
fn a_full_peer_is_left_alone_for_a_while_and_then_gets_the_same_record() {
    for exactly_once in [true, false] {
        let kind = if exactly_once { LinkAckKind::PubRec } else { LinkAckKind::PubAck };
        let mut bench = flying(LinkConfig { exactly_once, ..config() }, 3);
        bench.acks(kind, [1, 2, 3], Reason::QUOTA_EXCEEDED);
        assert!(bench.disconnected() && bench.refused.is_empty());
        bench.down(DownKind::Ordered);
        assert!(bench.link.wake_ns().unwrap() >= bench.now_ns + S / 4, "it backs off");
        assert!(bench.link.reason().unwrap().contains("quota exceeded (0x97)"));
        assert_eq!(bench.link.state(), LinkState::Waiting);
        bench.connect();
        bench.up(true);
        assert_eq!(bench.offer(), [(1, false), (2, false), (3, false)]);
        assert_eq!(bench.link.counts().possible_doubles, 0, "it said that it did not take them");
    }
}

#[test]
fn a_refusal_that_does_not_say_whether_it_is_for_good_is_believed_the_fifth_time() {
    let mut bench = flying(config(), 1);
    for time in 1..=5 {
        bench.acks(LinkAckKind::PubRec, [1], Reason::IMPLEMENTATION_SPECIFIC);
        assert_eq!(bench.refused.len(), usize::from(time == 5), "time {time}");
        if time < 5 {
            bench.down(DownKind::Ordered);
            bench.connect();
            bench.up(true);
            assert_eq!(bench.offer(), [(1, false)]);
        }
    }
}

#[test]
fn an_identifier_in_use_means_that_the_phases_are_not_the_sessions() {
    let mut bench = flying(config(), 3);
    bench.acks(LinkAckKind::PubRec, [1], Reason::PACKET_ID_IN_USE);
    assert!(bench.disconnected());
    bench.down(DownKind::Ordered);
    assert!(bench.connect(), "a clean start");
    bench.up(false);
    assert_eq!(bench.offer().len(), 3);
    assert_eq!(bench.link.counts().possible_doubles, 3);
}

#[test]
fn on_refusal_stop_stops_until_somebody_resumes() {
    let mut bench = flying(LinkConfig { stop_on_refusal: true, ..config() }, 3);
    bench.acks(LinkAckKind::PubRec, [1], Reason::NOT_AUTHORIZED);
    assert!(bench.disconnected() && bench.refused.is_empty());
    bench.down(DownKind::Ordered);
    assert_eq!((bench.link.state(), bench.link.wake_ns(), bench.cursor()), (LinkState::Stopped, None, 0));
    assert!(bench.link.reason().unwrap().contains("not authorized"));
    assert!(bench.events.iter().any(|(gravity, _)| *gravity == LinkGravity::Error));
    bench.call(|link, now, out| link.set_paused(now, false, out));
    assert!(matches!(bench.orders[..], [LinkOrder::Connect { .. }]));
}

#[test]
fn after_three_closes_at_the_same_head_it_is_sent_alone_and_at_the_fourth_dead_lettered() {
    let mut bench = flying(config(), 5);
    for _ in 0..3 {
        bench.down(DownKind::ClosedInFlight);
        assert!(bench.refused.is_empty());
        bench.connect();
        bench.up(true);
        bench.offer();
    }
    assert_eq!(bench.link.in_flight(), 1, "alone");
    bench.down(DownKind::ClosedInFlight);
    assert_eq!(bench.refused, [(0, Reason::UNSPECIFIED)]);
    bench.connect();
    bench.up(true);
    assert_eq!(
        bench.offer().iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        [2, 3, 4, 5, 6],
        "the rest goes on together"
    );
    bench.call(|link, now, out| link.settled(now, p(0), 0, out));
    assert_eq!(bench.released(), [1], "should the peer hold it after all, its identifier is freed");
}

#[test]
fn a_peer_that_takes_the_record_when_it_is_alone_loses_nothing() {
    let mut bench = flying(config(), 5);
    for _ in 0..3 {
        bench.down(DownKind::ClosedInFlight);
        bench.connect();
        bench.up(true);
        bench.offer();
    }
    bench.acks(LinkAckKind::PubRec, [1], Reason::SUCCESS);
    assert_eq!(bench.offer().len(), 4);
    assert!(bench.refused.is_empty());
}

#[test]
fn somebody_elses_use_of_our_name_is_an_alarm_and_a_long_wait() {
    let mut bench = flying(config(), 1);
    bench.down(DownKind::TakenOver);
    assert!(
        bench.events.iter().any(|(gravity, text)| *gravity == LinkGravity::Error && text.contains("client identifier"))
    );
    assert!(bench.link.wake_ns().unwrap() >= bench.now_ns + 15 * S);
}

#[test]
fn the_same_trouble_is_told_once_and_the_delays_grow() {
    let mut bench = Bench::new(config());
    let mut delays = Vec::new();
    for _ in 0..8 {
        bench.connect();
        bench.down(DownKind::Network);
        delays.push(bench.link.wake_ns().unwrap() - bench.now_ns);
        assert_eq!(bench.link.reason(), Some("gone"));
    }
    assert_eq!(bench.events.len(), 1, "{:?}", bench.events);
    assert!(delays[7] > 20 * delays[0], "{delays:?}");
    bench.connect();
    bench.up(false);
    bench.offer();
    bench.acks(LinkAckKind::PubRec, [1], Reason::SUCCESS);
    bench.down(DownKind::Network);
    assert!(bench.link.wake_ns().unwrap() - bench.now_ns <= S / 10, "progress begins anew");
}

#[test]
fn pausing_is_in_order_and_resuming_is_at_once() {
    let mut bench = flying(config(), 3);
    bench.call(|link, now, out| link.set_paused(now, true, out));
    assert!(matches!(bench.orders[..], [LinkOrder::Disconnect { graceful: true }]));
    assert_eq!((bench.link.state(), bench.link.room()), (LinkState::Paused, 0));
    bench.acks(LinkAckKind::PubRec, [1], Reason::SUCCESS); // what is under way still counts
    bench.down(DownKind::Ordered);
    assert_eq!(bench.link.wake_ns(), None);
    bench.orders.clear();
    bench.call(|link, now, out| link.set_paused(now, false, out));
    assert!(matches!(bench.orders[..], [LinkOrder::Connect { clean_start: false }]));
    bench.up(true);
    assert_eq!(bench.released(), [1]);
    assert_eq!(bench.offer(), [(2, true), (3, true)]);
}

#[test]
fn cursors_are_recorded_at_most_once_a_second_and_when_the_process_ends() {
    let mut bench = flying(LinkConfig { exactly_once: false, ..config() }, 50);
    let cursors = |bench: &Bench| bench.state.keys().filter(|(kind, _)| *kind == StateKind::Cursor).count();
    bench.acks(LinkAckKind::PubAck, [1], Reason::SUCCESS);
    assert_eq!((cursors(&bench), bench.link.durable_cursor(p(0))), (1, Some(1)));
    bench.acks(LinkAckKind::PubAck, [2], Reason::SUCCESS);
    assert_eq!(bench.link.durable_cursor(p(0)), Some(1), "not again within the second");
    bench.now_ns += S;
    bench.call(|link, now, out| link.tick(now, out));
    assert_eq!(bench.link.durable_cursor(p(0)), Some(2));
    bench.acks(LinkAckKind::PubAck, [3], Reason::SUCCESS);
    bench.call(|link, now, out| link.stop(now, out));
    assert_eq!(bench.link.durable_cursor(p(0)), Some(3));
    assert!(bench.disconnected());
}

#[test]
fn a_gap_larger_than_the_identifiers_is_passed_once_nothing_before_it_is_in_flight() {
    let mut bench = flying(config(), 2);
    let far = 1 << 20;
    assert_eq!(bench.link.want(p(0), far), Want::Full);
    bench.acks(LinkAckKind::PubRec, [1, 2], Reason::SUCCESS);
    bench.acks(LinkAckKind::PubComp, [1, 2], Reason::SUCCESS);
    assert_eq!(bench.link.want(p(0), far), Want::Full, "first the cursor behind the gap must be durable");
    bench.call(|link, now, out| link.flush(now, out));
    assert_eq!(bench.link.want(p(0), far), Want::Send);
    assert_eq!(bench.cursor(), far);
}

#[test]
fn more_partitions_than_identifiers_can_be_divided_among_are_refused_in_words() {
    let starts: Vec<LaneStart> =
        (0..9_000).map(|number| LaneStart { partition: p(number), start: 0, end: 0 }).collect();
    let error = Link::new(config(), &starts, &mut |_, _| None).unwrap_err();
    assert!(error.contains("9000 partitions"), "{error}");
}
