use super::QoS::{AtLeastOnce, ExactlyOnce};
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn at(seq: u64) -> LogPosition {
    LogPosition { seq, index: 0 }
}

fn read(outbound: &mut Outbound, seq: u64, qos: QoS) -> u16 {
    assert_eq!(outbound.offer(at(seq)), Passed::New);
    outbound.send(qos, Some(at(seq))).unwrap()
}

#[test]
fn the_window_is_the_clients_receive_maximum() {
    let mut outbound = Outbound::new(2);
    let (one, two) = (read(&mut outbound, 1, AtLeastOnce), read(&mut outbound, 2, ExactlyOnce));
    assert_eq!((one, two), (1, 2));
    assert!(outbound.is_full());
    assert_eq!(outbound.send(AtLeastOnce, Some(at(3))), None);
    assert_eq!(outbound.pubrec(two, Reason::SUCCESS), Acked::Release);
    assert!(outbound.is_full(), "PUBREC gives nothing back");
    assert_eq!(outbound.pubcomp(two), Acked::Done);
    assert!(!outbound.is_full());
    assert_eq!(read(&mut outbound, 3, ExactlyOnce), 3);
    assert_eq!(outbound.pubrec(3, Reason::NOT_AUTHORIZED), Acked::Done, "a refusal ends it");
    assert_eq!(outbound.puback(one), Acked::Done);
    assert_eq!((outbound.in_flight(), outbound.entries.len()), (0, 0));
}

#[test]
fn packets_that_do_not_fit_are_told_apart() {
    let mut outbound = Outbound::new(9);
    let (one, two) = (read(&mut outbound, 1, AtLeastOnce), read(&mut outbound, 2, ExactlyOnce));
    assert_eq!(outbound.pubrec(one, Reason::SUCCESS), Acked::Wrong);
    assert_eq!(outbound.pubcomp(two), Acked::Wrong);
    assert_eq!(outbound.puback(two), Acked::Wrong);
    assert_eq!(outbound.puback(77), Acked::Unknown);
    assert_eq!(outbound.puback(one), Acked::Done);
    assert_eq!(outbound.puback(one), Acked::Unknown);
    assert_eq!(outbound.pubrec(two, Reason::SUCCESS), Acked::Release);
    assert_eq!(outbound.pubrec(two, Reason::SUCCESS), Acked::Release, "PUBREC again: PUBREL again");
}

#[test]
fn the_cursor_stands_before_the_first_that_is_not_done() {
    let mut outbound = Outbound::new(9);
    let ids: Vec<u16> = (1..=4).map(|seq| read(&mut outbound, seq, AtLeastOnce)).collect();
    assert_eq!(outbound.cursor(), at(1));
    outbound.puback(ids[1]);
    outbound.puback(ids[3]);
    assert_eq!(outbound.cursor(), at(1));
    assert_eq!(outbound.beyond().collect::<Vec<_>>(), [at(2), at(4)]);
    outbound.puback(ids[0]);
    assert_eq!(outbound.cursor(), at(3));
    outbound.puback(ids[2]);
    assert_eq!(outbound.cursor(), LogPosition { seq: 4, index: 1 });
    outbound.reached(at(9));
    assert_eq!(outbound.cursor(), at(9));
}

#[test]
fn a_client_that_returns_gets_the_same_identifiers() {
    let mut outbound = Outbound::new(9);
    let ids: Vec<u16> =
        (1..=5).map(|seq| read(&mut outbound, seq, if seq < 4 { ExactlyOnce } else { AtLeastOnce })).collect();
    outbound.pubrec(ids[0], Reason::SUCCESS);
    outbound.puback(ids[4]);
    assert_eq!(outbound.offer(at(6)), Passed::New, "at QoS 0, say");
    assert_eq!(outbound.resume(1), [ids[0]]);
    assert_eq!(outbound.cursor(), at(1));
    assert!(outbound.is_full(), "the release counts until PUBCOMP");
    assert_eq!(outbound.pubcomp(ids[0]), Acked::Done);
    assert_eq!(outbound.offer(at(1)), Passed::Done);
    assert_eq!(outbound.offer(at(2)), Passed::Again { packet_id: ids[1], qos: ExactlyOnce });
    assert!(outbound.is_full());
    assert_eq!(outbound.offer(at(2)), Passed::Done, "only once per connection");
    outbound.pubrec(ids[1], Reason::SUCCESS);
    outbound.pubcomp(ids[1]);
    assert_eq!(outbound.offer(at(3)), Passed::Again { packet_id: ids[2], qos: ExactlyOnce });
    outbound.resume(9);
    assert_eq!(
        outbound.offer(at(3)),
        Passed::Again { packet_id: ids[2], qos: ExactlyOnce },
        "and once more on the next"
    );
    assert_eq!(outbound.offer(at(4)), Passed::Again { packet_id: ids[3], qos: AtLeastOnce });
    assert_eq!(outbound.offer(at(5)), Passed::Done);
    assert_eq!(outbound.offer(at(6)), Passed::Done, "QoS 0 is not sent again");
    assert_eq!(outbound.offer(at(7)), Passed::New);
    assert!(!outbound.is_replaying());
}

#[test]
fn a_record_that_is_gone_does_not_leave_its_identifier_behind() {
    let mut outbound = Outbound::new(9);
    let (one, two, three) =
        (read(&mut outbound, 1, AtLeastOnce), read(&mut outbound, 2, ExactlyOnce), read(&mut outbound, 3, AtLeastOnce));
    outbound.resume(9);
    assert_eq!(outbound.overtaken(at(3)), Overtaken { lost: 1, release: vec![two] });
    assert_eq!(outbound.offer(at(3)), Passed::Again { packet_id: three, qos: AtLeastOnce });
    assert_eq!(outbound.puback(one), Acked::Unknown);
    assert_eq!(outbound.pubcomp(two), Acked::Done);
}

#[test]
fn what_is_not_stored_is_not_sent_again_but_released() {
    let mut outbound = Outbound::new(9);
    let (one, two) = (outbound.send(AtLeastOnce, None).unwrap(), outbound.send(ExactlyOnce, None).unwrap());
    assert_eq!(outbound.cursor(), LogPosition::default());
    assert_eq!(outbound.resume(9), [two]);
    assert_eq!((outbound.puback(one), outbound.pubcomp(two)), (Acked::Unknown, Acked::Done));
    assert!(outbound.entries.is_empty());
}

#[test]
fn a_restored_cursor_passes_over_what_was_done_beyond_it() {
    let mut outbound = Outbound::restore(9, at(5), &[at(7), at(8)]);
    assert_eq!(outbound.cursor(), at(5));
    assert_eq!(outbound.beyond().collect::<Vec<_>>(), [at(7), at(8)]);
    let five = read(&mut outbound, 5, AtLeastOnce);
    assert_eq!(outbound.offer(at(7)), Passed::Done);
    assert_eq!(outbound.beyond().collect::<Vec<_>>(), [at(7), at(8)]);
    assert_eq!(outbound.cursor(), at(5));
    outbound.puback(five);
    assert_eq!(outbound.offer(at(8)), Passed::Done);
    assert_eq!((outbound.cursor(), outbound.entries.len()), (LogPosition { seq: 8, index: 1 }, 0));
}

#[test]
fn one_that_is_never_acknowledged_stops_the_rest_at_a_bound() {
    let mut outbound = Outbound::new(10);
    read(&mut outbound, 1, AtLeastOnce);
    let mut seq = 1;
    while !outbound.is_full() {
        seq += 1;
        let id = read(&mut outbound, seq, AtLeastOnce);
        outbound.puback(id);
    }
    assert_eq!(outbound.entries.len(), 10 + OUTBOUND_BEYOND_MAX);
    outbound.resume(10);
    assert!(!outbound.is_full(), "the one must be sent again");
    assert!(matches!(outbound.offer(at(1)), Passed::Again { packet_id: 1, .. }));
    assert!(outbound.is_full());
    outbound.puback(1);
    assert!(!outbound.is_full() && outbound.entries.is_empty());
}

#[test]
fn identifiers_come_round_without_meeting_one_in_use() {
    let mut outbound = Outbound::new(u16::MAX);
    let kept = outbound.send(ExactlyOnce, None).unwrap();
    let other = outbound.send(ExactlyOnce, None).unwrap();
    outbound.pubrec(other, Reason::NOT_AUTHORIZED);
    for _ in 0..200_000 {
        let id = outbound.send(AtLeastOnce, None).unwrap();
        assert!(id != 0 && id != kept);
        outbound.puback(id);
        outbound.settle();
        // The kept one holds the done ones behind it; that bound is another test's.
        outbound.entries.truncate(1);
    }
}

#[test]
fn every_identifier_can_be_in_use_at_once() {
    let mut outbound = Outbound::new(u16::MAX);
    let ids: BTreeSet<u16> = (0..u16::MAX).map(|_| outbound.send(AtLeastOnce, None).unwrap()).collect();
    assert_eq!((ids.len(), ids.contains(&0)), (65_535, false));
    assert_eq!(outbound.send(AtLeastOnce, None), None);
    outbound.puback(40_000);
    assert_eq!(outbound.send(AtLeastOnce, None), Some(40_000));
}

#[test]
fn an_idle_session_costs_little() {
    assert!(size_of::<Outbound>() <= 64);
}

/// A client of a simple mind: it keeps what it got, and the QoS 2 identifiers that it received.
#[derive(Default)]
struct Client {
    got: Vec<u64>,
    held: BTreeMap<u16, u64>,
    /// Packets that it has to answer: (kind, id); lost when the connection is.
    answers: Vec<(u8, u16)>,
}

impl Client {
    fn publish(&mut self, seq: u64, packet_id: u16, qos: QoS) {
        if qos == ExactlyOnce {
            if let Some(held) = self.held.get(&packet_id) {
                assert_eq!(*held, seq, "a new record under an identifier that the client holds would be swallowed");
            } else {
                self.held.insert(packet_id, seq);
                self.got.push(seq);
            }
            self.answers.push((5, packet_id));
        } else {
            self.got.push(seq);
            self.answers.push((4, packet_id));
        }
    }

    fn pubrel(&mut self, packet_id: u16) {
        self.held.remove(&packet_id);
        self.answers.push((7, packet_id));
    }
}

proptest! {
    /// Whatever is acknowledged in whatever order, and however often the connection breaks: every record arrives, at QoS 2 once, first
    /// copies in order, and the cursor never passes one that is not done.
    #[test]
    fn every_record_arrives_and_at_qos_2_once(
        steps in prop::collection::vec((0u8..10, any::<prop::sample::Index>()), 1..400),
        max in 1u16..6,
    ) {
        const RECORDS: u64 = 60;
        let qos = |seq: u64| if seq.is_multiple_of(3) { AtLeastOnce } else { ExactlyOnce };
        let (mut outbound, mut client) = (Outbound::new(max), Client::default());
        let mut next = 1u64;
        let mut done: BTreeSet<u64> = BTreeSet::new();
        let mut of_id: BTreeMap<u16, u64> = BTreeMap::new();
        let finish = (0..3_000).map(|n| (5 + (n % 2) as u8, steps[0].1));
        for (step, index) in steps.clone().into_iter().chain(finish) {
            match step {
                0 => {
                    client.answers.clear();
                    for id in outbound.resume(max) {
                        client.pubrel(id);
                    }
                    next = outbound.cursor().seq.max(1);
                }
                1..=5 => {
                    if next <= RECORDS && !outbound.is_full() {
                        prop_assert_eq!(outbound.overtaken(at(next)), Overtaken::default());
                        match outbound.offer(at(next)) {
                            Passed::New => {
                                let id = outbound.send(qos(next), Some(at(next))).unwrap();
                                of_id.insert(id, next);
                                client.publish(next, id, qos(next));
                            }
                            Passed::Again { packet_id, qos: again } => {
                                prop_assert_eq!((of_id[&packet_id], qos(next)), (next, again));
                                client.publish(next, packet_id, again);
                            }
                            Passed::Done => {}
                        }
                        next += 1;
                        prop_assert!(outbound.in_flight() <= usize::from(max));
                    }
                }
                _ => {
                    if !client.answers.is_empty() {
                        let (kind, id) = client.answers.remove(index.index(client.answers.len()));
                        let acked = match kind {
                            4 => outbound.puback(id),
                            5 => outbound.pubrec(id, Reason::SUCCESS),
                            _ => outbound.pubcomp(id),
                        };
                        match acked {
                            Acked::Done => {
                                done.insert(of_id[&id]);
                            }
                            Acked::Release => client.pubrel(id),
                            Acked::Unknown => {}
                            Acked::Wrong => prop_assert!(false, "kind {} of {}", kind, id),
                        }
                    }
                }
            }
            let cursor = outbound.cursor();
            prop_assert!((1..cursor.seq).all(|seq| done.contains(&seq)), "{:?} {:?}", cursor, done);
        }
        prop_assert_eq!(done.len() as u64, RECORDS);
        prop_assert_eq!((outbound.in_flight(), outbound.entries.len()), (0, 0));
        let mut first = Vec::new();
        let mut count: BTreeMap<u64, usize> = BTreeMap::new();
        for seq in client.got {
            *count.entry(seq).or_default() += 1;
            if count[&seq] == 1 {
                first.push(seq);
            }
        }
        prop_assert_eq!(first, (1..=RECORDS).collect::<Vec<_>>());
        prop_assert!(count.iter().all(|(seq, count)| *count == 1 || qos(*seq) == AtLeastOnce));
    }
}
