//! What recovery promises about each kind of trouble. `tests/power_cut.rs` has the random ones.

use super::*;
use crate::limits::{OFFSET_JUMP, SEGMENT_KEYS_MAX, SEQ_JUMP};
use crate::log::control::{ControlKind, EpochV1, GapCause, GapV1, from_value, gap_of_key};
use crate::log::damage::DamageKind;
use crate::log::format::{FRAME_HEADER_BYTES, RawHeader, decode_header};
use crate::log::frame::FrameKind;
use crate::log::memory::{MemLogStore, MemStateStore};
use crate::log::scan::{Found as Step, SegmentPlan, Walk};
use crate::log::testkit::{Kit, SEGMENT, p};
use std::sync::Arc;

/// A log of a few segments: 24 groups of two partitions, some control records.
fn filled() -> Kit {
    let mut kit = Kit::new();
    for n in 0..24u8 {
        for m in 0..4u8 {
            kit.append(p(1, 0), &[n * 4 + m; 300]);
            kit.append(p(2, 0), &[n * 4 + m; 100]);
        }
        kit.log.control(ControlRecord::put(ControlKind::Session, vec![n % 3], vec![n]));
        kit.commit();
        kit.apply();
    }
    kit
}

/// The frames of a segment with their places.
fn frames(store: &MemLogStore, number: u64) -> Vec<(u64, RawHeader)> {
    let survey = survey::survey(store).unwrap();
    let plan: SegmentPlan = *survey.plans.iter().find(|plan| plan.header.number == number).unwrap();
    let mut walk = Walk::new(store, plan, u64::MAX);
    let mut found = Vec::new();
    while let Step::Frame { place, raw, .. } = walk.next(|_| true).unwrap() {
        found.push((place, raw));
    }
    found
}

fn newest(store: &MemLogStore) -> u64 {
    *store.list().unwrap().last().unwrap()
}

fn gaps(log: &crate::log::Log) -> Vec<(PartitionId, Offset, Offset, GapCause)> {
    let entries = log.state().scan(ControlKind::Gap);
    entries
        .map(|(key, entry)| {
            let (partition, first) = gap_of_key(key).unwrap();
            let gap: GapV1 = from_value(&entry.value).unwrap();
            (partition, first, gap.until, gap.cause)
        })
        .collect()
}

#[test]
fn a_new_directory_begins_at_the_beginning() {
    let kit = Kit::new();
    assert!(kit.report.fresh);
    assert_eq!((kit.log.epoch(), kit.log.next_seq(), kit.log.log_id()), (1, 2, LogId([7; 16])));
    assert_eq!(kit.report.state, StateOutcome::Fresh);
}

#[test]
fn an_orderly_stop_leaves_nothing_to_repair() {
    let mut kit = filled();
    kit.close();
    let epoch = kit.log.epoch();
    let leo = kit.log.leo(p(1, 0));
    for trusted in [true, false, true] {
        kit = kit.reopen(trusted);
        assert!(kit.report.orderly && kit.report.damage.is_empty() && kit.report.burnt.is_empty(), "{:?}", kit.report);
        assert_eq!((kit.log.epoch(), kit.log.leo(p(1, 0))), (epoch, leo));
        assert_eq!(kit.payloads(p(1, 0)).len() as u64, leo);
    }
}

#[test]
fn a_crash_of_the_process_costs_nothing_that_was_committed_and_raises_the_epoch() {
    let kit = filled();
    let (leo, epoch, seq) = (kit.log.leo(p(1, 0)), kit.log.epoch(), kit.log.synced_seq());
    let before = kit.payloads(p(1, 0));
    let kit = kit.reopen(true);
    assert!(!kit.report.orderly);
    assert!(matches!(kit.report.state, StateOutcome::Replayed { stamp } if stamp == seq));
    assert_eq!((kit.log.leo(p(1, 0)), kit.log.epoch()), (leo, epoch + 1));
    assert_eq!(kit.payloads(p(1, 0)), before);
    assert!(kit.report.burnt.is_empty() && gaps(&kit.log).is_empty());
    let recorded = kit.log.state().get(ControlKind::Epoch, &[]).unwrap();
    assert_eq!(from_value::<EpochV1>(&recorded.value).unwrap().epoch, epoch + 1);
}

#[test]
fn a_lost_or_broken_state_store_is_rebuilt_exactly() {
    let kit = filled();
    let want: Vec<_> = kit.log.state().all().map(|(kind, key, entry)| (kind, key.to_vec(), entry.clone())).collect();
    let store = Arc::clone(&kit.store);
    let mut broken = kit.state.clone();
    broken.broken = true;
    for (state, trusted) in
        [(MemStateStore::new(), false), (MemStateStore::new(), true), (kit.state.clone(), false), (broken, true)]
    {
        let again = Kit::open(Arc::clone(&store), state, trusted);
        assert!(matches!(again.report.state, StateOutcome::Rebuilt(_)), "{:?}", again.report.state);
        let found: Vec<_> = again.log.state().all().filter(|(kind, ..)| *kind != ControlKind::Epoch as u16).collect();
        let want: Vec<_> = want.iter().filter(|(kind, ..)| *kind != ControlKind::Epoch as u16).collect();
        assert_eq!(found.len(), want.len());
        for ((kind, key, entry), want) in found.into_iter().zip(want) {
            assert_eq!((kind, key, entry), (want.0, want.1.as_slice(), &want.2));
        }
        assert_eq!(again.state.stamp().unwrap(), Some(again.log.synced_seq()));
    }
}

#[test]
fn a_state_store_newer_than_the_log_is_not_believed_and_offsets_are_burnt() {
    let mut kit = filled();
    let stamp = kit.log.synced_seq() + 5;
    kit.state.apply(&[], stamp).unwrap();
    let leo = kit.log.leo(p(1, 0));
    let kit = kit.reopen(true);
    assert!(matches!(kit.report.state, StateOutcome::Rebuilt(_)));
    assert_eq!(kit.log.leo(p(1, 0)), leo + OFFSET_JUMP);
    assert!(kit.log.next_seq() > stamp);
    assert!(gaps(&kit.log).contains(&(p(1, 0), leo, leo + OFFSET_JUMP, GapCause::TornEnd)));
}

#[test]
fn a_torn_last_frame_is_cut_off_and_its_offsets_are_burnt() {
    let mut kit = filled();
    kit.append(p(1, 0), &[9; 50]);
    let appended = kit.append(p(1, 0), &[9; 50]);
    kit.commit();
    let number = newest(&kit.store);
    let (place, raw) = *frames(&kit.store, number).last().unwrap();
    kit.store.flip(number, place + raw.frame_bytes() - 20, 1);
    let mut kit = kit.reopen(false);
    // One batch of one partition: its header can be read, so exactly its offsets are burnt.
    assert_eq!(kit.report.torn.map(|torn| (torn.0, torn.1)), Some((number, place)));
    assert_eq!(kit.report.burnt, [(p(1, 0), appended.offset - 1, appended.offset + 1)]);
    assert_eq!(kit.append(p(1, 0), &[1]).offset, appended.offset + 1);
    kit.commit();
    assert_eq!(newest(&kit.store), number, "it goes on in the same segment");
    let kit = kit.reopen(false);
    assert!(kit.report.burnt.is_empty() && kit.report.damage.is_empty(), "{:?}", kit.report);
    assert_eq!(gaps(&kit.log), [(p(1, 0), appended.offset - 1, appended.offset + 1, GapCause::TornEnd)]);
    assert_eq!(kit.payloads(p(1, 0)).last().unwrap(), &(appended.offset + 1, vec![1]));
}

#[test]
fn a_torn_end_that_says_nothing_burns_every_partition() {
    let mut kit = filled();
    let leo = kit.log.leo(p(2, 0));
    let seq = kit.append(p(1, 0), &[9; 50]).position.seq;
    kit.commit();
    let number = newest(&kit.store);
    let (place, _) = *frames(&kit.store, number).last().unwrap();
    kit.store.flip(number, place + 20, 1);
    let mut kit = kit.reopen(false);
    assert_eq!(kit.log.leo(p(2, 0)), leo + OFFSET_JUMP);
    // Nor will a position that someone may have seen be given again.
    assert!(kit.log.next_seq() > seq + SEQ_JUMP);
    // A partition that nothing is known of may have had records too.
    kit.log.add_partition(p(3, 0));
    assert_eq!(kit.log.leo(p(3, 0)), OFFSET_JUMP);
    // Before the gap records are durable, another crash must come to the same.
    let kit = kit.reopen(false);
    assert!(kit.log.leo(p(2, 0)) >= leo + OFFSET_JUMP);
    assert!(kit.report.burnt.len() == 2);
}

#[test]
fn a_frame_that_later_ones_say_was_synced_is_damage_and_its_offsets_are_named() {
    let kit = filled();
    let number = newest(&kit.store);
    let all = frames(&kit.store, number);
    let (place, raw) = *all.iter().find(|(_, raw)| raw.header.kind == FrameKind::Batch).unwrap();
    let leo = kit.log.leo(raw.header.partition);
    let records = kit.payloads(raw.header.partition).len();
    kit.store.flip(number, place + FRAME_HEADER_BYTES as u64 + 60, 0x80);
    let kit = kit.reopen(false);
    let header = raw.header;
    let offsets = Some((header.partition, header.base_offset, header.next_offset()));
    let damage = |kind| kit.report.damage.iter().find(|damage| damage.kind == kind);
    assert_eq!(damage(DamageKind::Frame).unwrap().offsets, offsets);
    assert_eq!(damage(DamageKind::MissingOffsets).unwrap().offsets, offsets);
    assert!(gaps(&kit.log).contains(&(header.partition, header.base_offset, header.next_offset(), GapCause::Damaged)));
    assert_eq!(kit.log.leo(header.partition), leo);
    assert_eq!(kit.payloads(header.partition).len(), records - header.count as usize);
    // Told once: the gap is on record now.
    let mut kit = kit;
    kit.commit();
    let kit = kit.reopen(false);
    assert!(!kit.report.damage.iter().any(|damage| damage.kind == DamageKind::MissingOffsets));
    assert!(kit.report.burnt.is_empty());
}

#[test]
fn a_damaged_footer_costs_a_scan_and_nothing_else() {
    let kit = filled();
    let before = kit.payloads(p(1, 0));
    kit.store.flip(1, SEGMENT - 100, 0xFF);
    let kit = kit.reopen(false);
    assert_eq!(kit.report.scanned.0, 2);
    assert!(kit.report.damage.is_empty(), "{:?}", kit.report);
    assert_eq!(kit.payloads(p(1, 0)), before);
    assert_eq!(kit.log.state().scan(ControlKind::Session).count(), 3);
}

#[test]
fn a_segment_that_lost_both_headers_is_read_by_what_its_successor_knows() {
    let kit = filled();
    let before = kit.payloads(p(1, 0));
    for at in [0, 20, 512, 540] {
        kit.store.flip(2, at, 0xFF);
    }
    let kit = kit.reopen(false);
    assert!(kit.report.damage.iter().all(|damage| damage.kind == DamageKind::Header && damage.segment == 2));
    assert_eq!(kit.payloads(p(1, 0)), before);
    assert!(kit.report.burnt.is_empty());
}

#[test]
fn a_missing_segment_is_reported_and_its_offsets_become_a_gap() {
    let kit = filled();
    assert!(newest(&kit.store) >= 3);
    let summary = kit.log.segments().find(|segment| segment.number == 2).unwrap().clone();
    kit.store.lose(2);
    let mut kit = kit.reopen(false);
    assert!(kit.report.damage.iter().any(|damage| damage.kind == DamageKind::MissingSegment && damage.segment == 2));
    for range in &summary.ranges {
        assert!(gaps(&kit.log).contains(&(range.partition, range.first, range.next, GapCause::Damaged)));
    }
    assert!(kit.report.burnt.is_empty(), "both partitions go on behind it");
    kit.commit();
    assert!(kit.reopen(false).report.burnt.is_empty());
}

#[test]
fn a_segment_of_another_log_is_left_alone() {
    let kit = filled();
    let other = filled();
    let mut bytes = other.store.bytes(1).unwrap();
    // The same place in the series, another identity.
    let header = crate::log::format::SegmentHeader {
        log_id: LogId([8; 16]),
        number: 77,
        salt: 1,
        previous_salt: 0,
        first_seq: 1,
        previous_last: 0,
        size: SEGMENT,
        previous: 0,
    };
    bytes[..1024].copy_from_slice(&header.encode());
    kit.store.put(77, bytes.clone());
    let before = kit.payloads(p(1, 0));
    let mut kit = kit.reopen(false);
    assert!(kit.report.damage.iter().any(|damage| damage.kind == DamageKind::Foreign && damage.segment == 77));
    assert_eq!(kit.payloads(p(1, 0)), before);
    for _ in 0..10 {
        kit.append(p(1, 0), &[3; 3000]);
        kit.commit();
    }
    assert!(newest(&kit.store) > 77, "new numbers do not collide");
    assert_eq!(kit.store.bytes(77).unwrap(), bytes);
    assert_eq!(kit.payloads(p(1, 0)).len(), before.len() + 10);
}

#[test]
fn a_later_format_is_refused_and_nothing_is_touched() {
    let kit = filled();
    let mut bytes = kit.store.bytes(2).unwrap();
    for at in [0, 512] {
        bytes[at + 8] = 2;
        bytes[at + 12..at + 16].fill(0);
        let crc = crc32c::crc32c(&bytes[at..at + 88]);
        bytes[at + 12..at + 16].copy_from_slice(&crc.to_le_bytes());
    }
    kit.store.put(2, bytes);
    let all: Vec<_> = kit.store.list().unwrap().into_iter().map(|number| kit.store.bytes(number)).collect();
    let context = RecoveryContext { state_trusted: false, new_log_id: LogId([1; 16]), salt_seed: 1 };
    let error = recover(&*kit.store, &mut MemStateStore::new(), &context).unwrap_err();
    assert_eq!(error, RecoveryError::Newer { segment: 2, major: 2 });
    assert!(error.to_string().contains("later version"));
    assert!(kit.store.list().unwrap().into_iter().map(|number| kit.store.bytes(number)).eq(all));
}

#[test]
fn an_unknown_control_record_stops_the_start_if_it_is_required_and_is_kept_if_not() {
    let mut kit = filled();
    let optional = ControlRecord { kind: 0x8002, version: 9, required: false, key: vec![1], value: Some(vec![2, 3]) };
    kit.log.control(optional.clone());
    kit.commit();
    let mut kit = kit.reopen(false);
    let kept = |kit: &Kit| {
        kit.log.state().all().any(|(kind, key, entry)| kind == 0x8002 && key == [1] && entry.value == [2, 3][..])
    };
    assert!(kept(&kit));
    kit.log.control(ControlRecord { required: true, ..optional });
    kit.commit();
    let context = RecoveryContext { state_trusted: false, new_log_id: LogId([1; 16]), salt_seed: 1 };
    let error = recover(&*kit.store, &mut MemStateStore::new(), &context).unwrap_err();
    assert_eq!(error, RecoveryError::UnknownControl { kind: 0x8002, version: 9 });
}

#[test]
fn whatever_byte_is_changed_the_log_opens_and_the_other_frames_are_read() {
    let kit = filled();
    let store = Arc::clone(&kit.store);
    let numbers = store.list().unwrap();
    let (before, _) = kit.read(None);
    let known: std::collections::HashMap<_, _> =
        before.iter().map(|record| ((record.partition, record.offset), record.payload.clone())).collect();
    let images: Vec<(u64, Vec<u8>)> = numbers.iter().map(|number| (*number, store.bytes(*number).unwrap())).collect();
    let step = if std::env::var("FOREBAY_SEEDS").is_ok() { 1 } else { 13 };
    for (number, image) in &images {
        for at in (0..image.len()).step_by(step) {
            let copy = MemLogStore::new(SEGMENT, 1);
            for (number, image) in &images {
                copy.put(*number, image.clone());
            }
            copy.flip(*number, at as u64, 0x40);
            let kit = Kit::open(Arc::new(copy), MemStateStore::new(), false);
            let (records, _) = kit.read(None);
            for record in &records {
                assert_eq!(
                    known.get(&(record.partition, record.offset)),
                    Some(&record.payload),
                    "segment {number} byte {at}"
                );
            }
            // At most the frame that was hit is lost: a batch of four records, and of the last group all of it.
            let lost = before.len() - records.len();
            assert!(lost <= 8, "segment {number} byte {at}: {lost} lost, {:#?}", kit.report);
            for partition in [p(1, 0), p(2, 0)] {
                let leo = before.iter().filter(|record| record.partition == partition).count() as u64;
                assert!(kit.log.leo(partition) >= leo, "segment {number} byte {at}: LEO went back");
            }
        }
    }
}

#[test]
fn more_keys_than_a_footer_names_are_found_by_reading_the_control_frames() {
    let mut kit = Kit::open(Arc::new(MemLogStore::new(2 << 20, 1)), MemStateStore::new(), false);
    let keys = SEGMENT_KEYS_MAX as u32 + 1000;
    for n in 0..keys {
        kit.log.control(ControlRecord::put(ControlKind::ReceivedQos2, n.to_be_bytes().to_vec(), vec![1]));
        if n % 3 == 0 {
            kit.log.control(ControlRecord::remove(ControlKind::ReceivedQos2, n.to_be_bytes().to_vec()));
        }
        if n % 200 == 199 {
            kit.commit();
        }
    }
    kit.commit();
    let want: Vec<_> = kit.log.state().scan(ControlKind::ReceivedQos2).map(|(key, _)| key.to_vec()).collect();
    let kit = kit.reopen(false);
    assert!(kit.log.state().scan(ControlKind::ReceivedQos2).map(|(key, _)| key.to_vec()).eq(want));
}

#[test]
fn a_frame_forged_inside_a_payload_is_never_accepted() {
    let mut kit = filled();
    let number = newest(&kit.store);
    // The best forger copies a whole frame of this segment, at every alignment, with a sequence to come.
    let image = kit.store.bytes(number).unwrap();
    let (place, raw) = frames(&kit.store, number)[0];
    let copy = &image[place as usize..(place + raw.frame_bytes()) as usize];
    let mut payload = vec![0u8; 5];
    for _ in 0..2 {
        payload.extend_from_slice(copy);
        payload.resize(payload.len() + 3, 0);
    }
    kit.append(p(1, 0), &payload);
    kit.commit();
    kit.append(p(1, 0), b"after");
    kit.commit();
    let (place, raw) = frames(&kit.store, number).into_iter().rev().nth(1).unwrap();
    let image = kit.store.bytes(number).unwrap();
    assert!(decode_header(&image[place as usize..], 0, place).is_none());
    // The header of the frame around it is damaged, so the way is looked for inside the payload.
    kit.store.flip(number, place + 3, 1);
    let before = kit.log.leo(p(1, 0));
    let kit = kit.reopen(false);
    let found = kit.payloads(p(1, 0));
    assert_eq!(found.last().unwrap(), &(before - 1, b"after".to_vec()));
    assert_eq!(found.len() as u64, before - 1);
    assert_eq!(raw.header.count, 1);
}
