//! What the log in memory and the committer promise.

use super::control::{ControlKind, ControlRecord, GapCause, PartitionStartV1, from_value, partition_key};
use super::frame::FrameKind;
use super::memory::{MemLogStore, MemStateStore};
use super::read::{ReadRequest, ReadResult, Reader};
use super::record::NewRecord;
use super::retention::{PartitionPolicy, bytes_needed, plan};
use super::store::LogStore;
use super::testkit::{Kit, SEGMENT, config, p, publish};
use super::{LogConfig, TailRead};
use crate::limits::{GROUP_CONTROL_ROOM, GROUP_PARTITIONS_MAX};
use crate::mqtt::properties::PublishProperties;
use crate::mqtt::{Publish, QoS, Text};
use crate::types::{BootId, LogPosition};
use bytes::Bytes;
use proptest::prelude::*;
use std::sync::Arc;

fn text() -> impl Strategy<Value = Text> {
    "[a-z/é]{0,12}".prop_map(Text::from)
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from)
}

prop_compose! {
    fn properties()(
        payload_format in any::<Option<bool>>(),
        message_expiry_s in any::<Option<u32>>(),
        response_topic in prop::option::of(text()),
        correlation_data in prop::option::of(bytes()),
        user in prop::collection::vec((text(), text()), 0..4),
        content_type in prop::option::of(text()),
    ) -> PublishProperties {
        PublishProperties {
            payload_format, message_expiry_s, response_topic, correlation_data, user, content_type, ..Default::default()
        }
    }
}

prop_compose! {
    fn any_publish()(
        qos in 0u8..3,
        retain in any::<bool>(),
        topic in text(),
        payload in bytes(),
        properties in prop::option::of(properties()),
    ) -> Publish {
        let qos = QoS::from_bits(qos).unwrap();
        Publish { dup: false, qos, retain, topic, packet_id: 3, properties: properties.map(Box::new), payload }
    }
}

proptest! {
    #[test]
    fn what_is_appended_is_read_back(
        records in prop::collection::vec((any_publish(), text(), prop::option::of(bytes()), prop::option::of(bytes()), 0u16..3), 1..40)
    ) {
        let mut kit = Kit::new();
        let mut sent = Vec::new();
        for (n, (publish, client, key, source, partition)) in records.iter().enumerate() {
            kit.now.mono_ns += 7_000_000;
            kit.now.wall_ms = Some(1_000_000 + 7 * n as i64);
            let record = NewRecord { publish, client: client.as_bytes(), key: key.as_deref(), source: source.as_deref() };
            let appended = kit.log.append(p(1, *partition), record, &kit.now);
            sent.push((appended, kit.now, n));
            if n % 7 == 6 {
                kit.commit();
            }
        }
        kit.commit();
        let (found, damage) = kit.read(None);
        prop_assert!(damage.is_empty());
        prop_assert_eq!(found.len(), records.len());
        for (appended, now, n) in sent {
            let (publish, client, key, source, partition) = &records[n];
            let record = found.iter().find(|record| record.position == appended.position).unwrap();
            prop_assert_eq!(record.partition, p(1, *partition));
            prop_assert_eq!(record.offset, appended.offset);
            prop_assert_eq!((&record.topic, &record.client), (&publish.topic, client));
            prop_assert_eq!((record.qos, record.retain), (publish.qos, publish.retain));
            prop_assert_eq!(&record.payload, &publish.payload);
            prop_assert_eq!((&record.key, &record.source), (key, source));
            let properties = publish.properties.clone().filter(|properties| **properties != PublishProperties::default());
            prop_assert_eq!(&record.properties, &properties);
            prop_assert_eq!(record.ingest.mono_ms, now.mono_ns / 1_000_000);
            prop_assert_eq!(record.ingest.wall_ms, now.wall_ms);
        }
    }
}

#[test]
fn topic_alias_and_subscription_ids_are_not_stored() {
    let mut kit = Kit::new();
    let mut publish = publish("t", b"x");
    let properties = PublishProperties { topic_alias: Some(3), subscription_ids: vec![9], ..Default::default() };
    publish.properties = Some(Box::new(properties));
    let record = NewRecord { publish: &publish, client: b"c", key: None, source: None };
    kit.log.append(p(1, 0), record, &kit.now);
    kit.commit();
    assert_eq!(kit.read(None).0[0].properties, None);
}

#[test]
fn records_are_found_by_their_index_in_the_frame() {
    let mut kit = Kit::new();
    for n in 0..5u8 {
        kit.append(p(1, 0), &[n]);
    }
    let group = kit.log.seal().unwrap();
    let frame = group.frames.iter().find(|frame| frame.header.kind == FrameKind::Batch).unwrap();
    assert_eq!(frame.record(3).unwrap().unwrap().payload, [3u8][..]);
    assert_eq!(frame.records_from(3).count(), 2);
    assert!(frame.record(5).is_none());
}

#[test]
fn a_topic_is_written_once_per_batch() {
    let mut kit = Kit::new();
    let topic = "x".repeat(1000);
    let publish = publish(&topic, b"1");
    let record = NewRecord { publish: &publish, client: b"c", key: None, source: None };
    kit.log.append(p(1, 0), record, &kit.now);
    assert!(kit.log.append(p(1, 0), record, &kit.now).bytes < 40);
}

#[test]
fn what_belongs_together_is_in_one_group_whatever_its_size() {
    let mut kit = Kit::new();
    for n in 0..200u64 {
        let size = [10, 3900, 700][n as usize % 3];
        let appended = kit.append(p(1, (n % 5) as u16), &vec![1; size]);
        let record = ControlRecord::put(ControlKind::ReceivedQos2, n.to_be_bytes().to_vec(), vec![]);
        let control = kit.log.control(record);
        let groups: Vec<_> = std::iter::from_fn(|| if n % 20 == 19 { kit.log.seal() } else { None }).collect();
        for group in groups {
            assert!(group.bytes <= kit.log.max_group_bytes());
            let seqs: Vec<_> = group.frames.iter().map(|frame| frame.header.seq).collect();
            assert_eq!(seqs.contains(&appended.position.seq), seqs.contains(&control));
            assert!(seqs.is_sorted());
            let last = group.frames.iter().filter(|frame| frame.header.is_last()).count();
            assert!(last == 1 && group.frames.last().unwrap().header.is_last());
        }
    }
}

#[test]
fn a_group_touches_a_bounded_number_of_partitions() {
    let mut kit = Kit::new();
    for n in 0..GROUP_PARTITIONS_MAX as u16 + 10 {
        kit.append(p(1, n), b"x");
    }
    let mut frames = 0;
    while let Some(group) = kit.log.seal() {
        assert!(group.frames.len() <= GROUP_PARTITIONS_MAX + 1);
        frames += group.frames.len();
        kit.committer.commit([group]).unwrap();
    }
    assert_eq!(frames, GROUP_PARTITIONS_MAX + 10 + 1, "and the control frame of the start");
}

#[test]
fn a_commit_of_more_frames_than_one_system_call_takes_is_whole() {
    let mut kit = Kit::new();
    let partitions = 2 * GROUP_PARTITIONS_MAX as u16;
    for n in 0..partitions {
        kit.append(p(1, n), &n.to_le_bytes());
    }
    kit.commit();
    let (records, damage) = kit.read(None);
    assert!(damage.is_empty());
    assert!(records.iter().map(|record| record.partition.partition).eq(0..partitions));
}

#[test]
fn every_group_fits_into_an_empty_segment() {
    for size in [64 << 10, 1 << 20, 16 << 20, 1 << 30] {
        let config = LogConfig {
            boot: BootId([1; 16]),
            segment_size: size,
            max_packet_size: (size / 4).min(64 << 20) as u32,
            tail_bytes: 0,
        };
        let largest = config.max_group_bytes() + GROUP_CONTROL_ROOM;
        assert!((largest as u64) < size * 7 / 8 - 2048, "{size}");
        assert!(config.max_group_bytes() > config.max_packet_size as usize + 2 * GROUP_CONTROL_ROOM);
    }
}

#[test]
fn several_groups_are_one_write_and_one_sync() {
    let mut kit = Kit::new();
    kit.append(p(1, 0), b"first");
    kit.commit();
    let mut groups = Vec::new();
    for n in 0..5u8 {
        kit.append(p(1, 0), &[n]);
        kit.append(p(2, 0), &[n]);
        groups.extend(kit.log.seal());
    }
    let (_, syncs, operations) = kit.store.counts();
    let done = kit.committer.commit(groups).unwrap();
    assert_eq!((kit.store.counts().1 - syncs, kit.store.counts().2 - operations), (1, 2));
    assert_eq!((done.synced, done.syncs), (kit.log.last_seq(), 1));
}

#[test]
fn nothing_is_committed_before_it_is_synced() {
    let mut kit = Kit::new();
    let appended = kit.append(p(1, 0), b"x");
    assert_eq!((kit.log.leo(p(1, 0)), kit.log.synced_leo(p(1, 0)), kit.log.synced_seq()), (1, 0, 0));
    assert!(kit.log.uncommitted_bytes() > 0);
    kit.commit();
    assert!(kit.log.synced_seq() >= appended.position.seq);
    assert_eq!((kit.log.synced_leo(p(1, 0)), kit.log.uncommitted_bytes()), (1, 0));
}

#[test]
fn after_a_failed_sync_everything_not_acked_goes_to_a_new_segment_and_the_old_one_is_never_synced_again() {
    let mut kit = Kit::new();
    kit.append(p(1, 0), b"synced");
    kit.commit();
    kit.append(p(1, 0), b"not synced");
    kit.store.fail_syncs(1);
    let group = kit.log.seal().unwrap();
    let error = kit.committer.commit([group]).unwrap_err();
    assert_eq!(error.done.synced, kit.log.synced_seq());
    assert_eq!(error.done.sealed.len(), 1, "the poisoned segment is abandoned");
    kit.log.committed(error.done.synced, error.done.sealed);
    assert_eq!(kit.log.synced_leo(p(1, 0)), 1);
    let done = kit.committer.commit([]).unwrap();
    kit.log.committed(done.synced, done.sealed);
    assert_eq!(kit.store.list().unwrap(), [1, 2]);
    // The disk never got the first copy; the second is the one that counts.
    kit.store.power_cut();
    let kit = kit.reopen(false);
    assert_eq!(kit.payloads(p(1, 0)), [(0, b"synced".to_vec()), (1, b"not synced".to_vec())]);
    assert!(kit.report.damage.is_empty(), "{:?}", kit.report);
}

#[test]
fn a_medium_that_goes_on_failing_does_not_fill_up_with_attempts() {
    let mut kit = Kit::new();
    kit.append(p(1, 0), b"x");
    kit.commit();
    kit.append(p(1, 0), b"y");
    let group = kit.log.seal().unwrap();
    kit.store.fail_syncs(20);
    assert!(kit.committer.commit([group]).is_err());
    for _ in 0..19 {
        assert!(kit.committer.commit([]).is_err());
        assert!(kit.store.list().unwrap().len() <= 4);
    }
    let done = kit.committer.commit([]).unwrap();
    assert_eq!(done.synced, kit.log.last_seq());
    assert_eq!(kit.store.list().unwrap().len(), 2);
    let kit = kit.reopen(false);
    assert_eq!(kit.payloads(p(1, 0)).len(), 2);
}

#[test]
fn without_space_for_a_new_segment_groups_wait_until_there_is_some() {
    let mut kit = Kit::new();
    kit.store.no_space(true);
    kit.append(p(1, 0), b"x");
    let group = kit.log.seal().unwrap();
    let error = kit.committer.commit([group]).unwrap_err();
    assert_eq!(error.error.kind, std::io::ErrorKind::StorageFull);
    assert!(kit.committer.waiting_bytes() > 0);
    kit.store.no_space(false);
    assert_eq!(kit.committer.commit([]).unwrap().synced, kit.log.last_seq());
    assert_eq!(kit.committer.waiting_bytes(), 0);
}

#[test]
fn a_group_that_no_segment_holds_makes_none() {
    let kit = Kit::new();
    let mut large = Kit::new();
    for n in 0..8 {
        large.append(p(n, 0), &[1; 4000]);
    }
    let mut groups: Vec<_> = std::iter::from_fn(|| large.log.seal()).collect();
    let mut all = groups.remove(0);
    for group in groups {
        all.bytes += group.bytes;
        all.frames.extend(group.frames);
    }
    let mut committer = kit.committer;
    assert!(committer.commit([all]).unwrap_err().error.message.contains("more than a segment"));
    assert!(kit.store.list().unwrap().is_empty());
}

#[test]
fn the_tail_serves_who_keeps_up_and_tells_who_does_not() {
    let mut kit = Kit::new();
    for n in 0..100u8 {
        kit.append(p(1, 0), &[n; 1000]);
        kit.commit();
    }
    assert!(kit.log.tail_bytes() <= config().tail_bytes);
    let end = LogPosition { seq: kit.log.synced_seq() + 1, index: 0 };
    assert!(matches!(kit.log.read_tail(end, kit.log.synced_seq(), 1000), TailRead::End));
    assert!(matches!(kit.log.read_tail(LogPosition::default(), kit.log.synced_seq(), 1000), TailRead::Miss));
    let from = LogPosition { seq: kit.log.synced_seq() - 9, index: 0 };
    let TailRead::Frames { frames, next } = kit.log.read_tail(from, kit.log.synced_seq(), 1 << 20) else { panic!() };
    assert_eq!((frames.len(), next), (10, end));
    // One frame always comes; never beyond what is asked for.
    let TailRead::Frames { frames, .. } = kit.log.read_tail(from, kit.log.synced_seq(), 0) else { panic!() };
    assert_eq!(frames.len(), 1);
    let TailRead::Frames { frames, .. } = kit.log.read_tail(from, from.seq + 2, 1 << 20) else { panic!() };
    assert_eq!(frames.len(), 3);
}

#[test]
fn a_reader_of_one_partition_begins_near_its_offset_and_skips_what_is_not_asked_for() {
    let mut kit = Kit::new();
    for n in 0..120u64 {
        kit.append(p(1, 0), &n.to_le_bytes());
        if n == 60 {
            kit.append(p(2, 0), b"rare");
        }
        kit.append(p(1, 1), &[0; 900]);
        kit.commit();
    }
    for offset in [0, 1, 59, 60, 61, 100, 119] {
        let from = kit.log.locate(p(1, 0), offset);
        let mut request = ReadRequest {
            from,
            until: kit.log.synced_seq(),
            max_bytes: 1,
            partitions: Some(Arc::from([p(1, 0)])),
            find: Some((p(1, 0), offset)),
            ..ReadRequest::default()
        };
        let mut reader = Reader::new();
        let first = loop {
            match reader.read(&*kit.store, &request) {
                ReadResult::Frames { frames, next, hint, .. } => {
                    if let Some(frame) = frames.first() {
                        break frame.header.base_offset;
                    }
                    request = ReadRequest { from: next, hint, ..request };
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(first, offset);
    }
    assert_eq!(kit.payloads(p(2, 0)), [(0, b"rare".to_vec())]);
    assert_eq!(kit.log.locate(p(1, 0), 120).seq, kit.log.last_seq() + 1);
}

#[test]
fn a_reader_that_passes_over_much_before_its_position_finds_no_damage_there() {
    // Told by `tail` of a log of 100,000 records: each page begins without a hint, and beyond 4 MiB in the segment the second read
    // of a page began at frames older than its position.
    let store = Arc::new(MemLogStore::new(8 << 20, 1));
    let mut kit = Kit::open(store, MemStateStore::new(), false);
    for _ in 0..1_600 {
        kit.append(p(1, 0), &[7; 3_000]);
        kit.commit();
    }
    let last = kit.log.last_seq();
    let from = LogPosition { seq: last - 10, index: 0 };
    let mut request = ReadRequest { from, until: last, max_bytes: 1 << 20, ..ReadRequest::default() };
    let mut reader = Reader::new();
    let mut seqs = Vec::new();
    while let ReadResult::Frames { frames, next, hint, damage } = reader.read(&*kit.store, &request) {
        assert_eq!(damage, []);
        seqs.extend(frames.iter().map(|frame| frame.header.seq));
        request = ReadRequest { from: next, hint, ..request };
    }
    assert_eq!(seqs, (last - 10..=last).collect::<Vec<_>>());
}

#[test]
fn bytes_behind_a_cursor_shrink_as_it_moves() {
    let mut kit = Kit::new();
    for _ in 0..100 {
        kit.append(p(1, 0), &[0; 500]);
        kit.commit();
    }
    let all = kit.log.bytes_of(p(1, 0));
    assert!((50_000..80_000).contains(&all), "{all}");
    assert_eq!(kit.log.bytes_after(p(1, 0), 0), all);
    let mut before = all + 1;
    for offset in 0..=100 {
        let left = kit.log.bytes_after(p(1, 0), offset);
        assert!(left < before || left == 0);
        before = left;
    }
    assert_eq!(before, 0);
    let kit = kit.reopen(false);
    let again = kit.log.bytes_of(p(1, 0));
    assert_eq!(again, all);
}

#[test]
fn burnt_offsets_are_on_record_and_never_given() {
    let mut kit = Kit::new();
    kit.append(p(1, 0), b"a");
    kit.log.burn(p(1, 0), 50, GapCause::Cursor);
    kit.log.burn(p(1, 0), 10, GapCause::Cursor);
    assert_eq!(kit.append(p(1, 0), b"b").offset, 50);
    kit.commit();
    let kit = kit.reopen(false);
    assert!(kit.report.damage.is_empty(), "{:?}", kit.report);
    assert_eq!(kit.payloads(p(1, 0)), [(0, b"a".to_vec()), (50, b"b".to_vec())]);
    assert_eq!(kit.log.state().scan(ControlKind::Gap).count(), 1);
}

#[test]
fn time_of_a_boot_is_mapped_once_its_clock_is_set() {
    let mut kit = Kit::new();
    kit.append(p(1, 0), b"early");
    kit.commit();
    let early = kit.log.ingest_time(p(1, 0), 0).unwrap();
    assert_eq!((early.wall_synced, kit.log.wall_ms(&early)), (false, None));
    kit.now.mono_ns += 10_000_000_000;
    kit.now.wall_ms = Some(1_700_000_010_000);
    kit.now.wall_synced = true;
    kit.append(p(1, 0), b"late");
    kit.commit();
    assert_eq!(kit.log.wall_ms(&early), Some(1_700_000_000_000));
    let late = kit.log.ingest_time(p(1, 0), 1).unwrap();
    assert_eq!(kit.log.wall_ms(&late), Some(1_700_000_010_000));
    assert_eq!(kit.log.ingest_time(p(1, 0), 2), None);
    let kit = kit.reopen(true);
    assert_eq!(kit.log.wall_ms(&early), Some(1_700_000_000_000));
}

#[test]
fn a_reader_by_time_begins_before_everything_that_is_not_older() {
    let mut kit = Kit::new();
    kit.now.wall_synced = true;
    for n in 0..60i64 {
        kit.now.wall_ms = Some(n * 1000);
        kit.append(p(1, 0), &[0; 900]);
        kit.commit();
    }
    let mut before = 0;
    for n in 0..60i64 {
        let from = kit.log.locate_time(n * 1000);
        assert!(from.seq >= before);
        before = from.seq;
        let earlier = kit.read(None).0.into_iter().filter(|record| record.position < from);
        assert!(earlier.into_iter().all(|record| record.ingest.wall_ms.unwrap() < n * 1000));
    }
    assert!(before > 30, "it skips what is older");
}

fn policy(kit: &Kit, passed: Option<u64>, keep_bytes: Option<u64>) -> PartitionPolicy {
    let passed = passed.map(|passed| passed.min(kit.log.synced_leo(p(1, 0))));
    PartitionPolicy { partition: p(1, 0), passed, keep_bytes, retain_unforwarded: true }
}

fn full(records: usize) -> Kit {
    let mut kit = Kit::new();
    for n in 0..records {
        kit.append(p(1, 0), &[n as u8; 900]);
        kit.log.control(ControlRecord::put(ControlKind::SessionCursor, vec![n as u8 % 4], vec![n as u8]));
        kit.commit();
        kit.apply();
    }
    kit
}

#[test]
fn retention_frees_only_what_was_passed_and_only_as_much_as_it_must() {
    let kit = full(100);
    let sealed = kit.log.segments().len();
    assert!(sealed >= 5);
    let numbers = |passed, keep, needed| plan(&kit.log, &[policy(&kit, passed, keep)], needed, SEGMENT).numbers.len();
    assert_eq!(numbers(Some(0), Some(0), 0), 0, "nothing was passed");
    assert_eq!(numbers(Some(100), None, 0), 0, "no limit and no need");
    assert_eq!(numbers(Some(100), Some(0), 0), sealed);
    assert_eq!(numbers(None, Some(0), 0), sealed, "no upstream holds anything back");
    assert_eq!(numbers(Some(100), None, 1), 1, "space is needed");
    assert_eq!(numbers(Some(100), None, 2 * SEGMENT), 2);
    assert_eq!(numbers(Some(0), None, 2 * SEGMENT), 0);
    assert_eq!(numbers(None, None, 2 * SEGMENT), 0, "nobody has it but we: refused rather than given up");
    let kept = kit.log.bytes_of(p(1, 0)) - 1;
    assert_eq!(numbers(Some(100), Some(kept), 0), 0, "never below the limit");
    let first = kit.log.segments().next().unwrap().range(p(1, 0)).unwrap().next;
    assert_eq!(numbers(Some(first), Some(0), 0), 1);
    assert_eq!(numbers(Some(first - 1), Some(0), 0), 0);
    let loose = PartitionPolicy { retain_unforwarded: false, ..policy(&kit, Some(3), Some(0)) };
    let plan = plan(&kit.log, &[loose], 0, SEGMENT);
    assert_eq!(plan.lost, [(p(1, 0), plan.starts[0].1 - 3)], "what goes unforwarded is counted");
    assert_eq!(bytes_needed(10 * SEGMENT, 11 * SEGMENT, SEGMENT), SEGMENT);
    assert_eq!(bytes_needed(9 * SEGMENT, 11 * SEGMENT, SEGMENT), 0);
}

#[test]
fn what_is_freed_takes_neither_state_nor_offsets_with_it() {
    let mut kit = full(100);
    let cursors: Vec<_> = kit
        .log
        .state()
        .scan(ControlKind::SessionCursor)
        .map(|(key, entry)| (key.to_vec(), entry.value.clone()))
        .collect();
    let plan = plan(&kit.log, &[policy(&kit, Some(100), Some(0))], 0, SEGMENT);
    assert!(kit.log.retain(&plan));
    assert!(!kit.log.retain(&plan), "one at a time");
    assert!(kit.log.take_freed().is_empty(), "not before the copies are synced");
    kit.commit();
    let freed = kit.log.take_freed();
    assert_eq!(freed, plan.numbers);
    for number in &freed {
        kit.store.recycle(*number).unwrap();
    }
    let (start, leo) = (kit.log.start(p(1, 0)), kit.log.leo(p(1, 0)));
    assert_eq!(start, plan.starts[0].1);
    for trusted in [true, false] {
        kit.apply();
        kit = kit.reopen(trusted);
        assert!(kit.report.damage.is_empty() && kit.report.burnt.is_empty(), "{:?}", kit.report);
        let found =
            kit.log.state().scan(ControlKind::SessionCursor).map(|(key, entry)| (key.to_vec(), entry.value.clone()));
        assert!(found.eq(cursors.iter().cloned()));
        assert_eq!((kit.log.start(p(1, 0)), kit.log.leo(p(1, 0))), (start, leo));
        assert_eq!(kit.payloads(p(1, 0)).first().map(|first| first.0), Some(start));
    }
    let entry = kit.log.state().get(ControlKind::PartitionStart, &partition_key(p(1, 0))).unwrap();
    assert_eq!(from_value::<PartitionStartV1>(&entry.value).unwrap().start, start);
}

#[test]
fn a_start_with_the_state_intact_reads_no_footers() {
    let kit = full(100);
    let segments: Vec<_> = kit.log.segments().cloned().collect();
    let last = segments.len() as u64;
    // Whatever stands in the older segments: their headers are enough.
    for number in 1..=last {
        for at in [2000, 5000, SEGMENT - 3, SEGMENT - 60] {
            kit.store.flip(number, at, 0xFF);
        }
    }
    let kit = kit.reopen(true);
    assert!(kit.report.damage.is_empty());
    assert_eq!(kit.report.scanned.0, 1);
    assert!(kit.log.segments().cloned().eq(segments));
}

#[test]
fn the_committer_goes_on_where_an_orderly_stop_left_the_log() {
    let mut kit = full(3);
    kit.close();
    let next = kit.log.next_seq();
    let mut kit = kit.reopen(true);
    assert_eq!(kit.log.next_seq(), next, "no gap in the sequences");
    assert_eq!(kit.append(p(1, 0), b"on").offset, 3);
    kit.commit();
    assert_eq!(kit.store.list().unwrap(), [1]);
    let store = Arc::clone(&kit.store);
    let kit = Kit::open(store, MemStateStore::new(), false);
    assert_eq!(kit.payloads(p(1, 0)).len(), 4);
}
