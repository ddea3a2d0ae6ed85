//! What is known of each segment without reading it, and the footer in which a sealed one says it.

use super::batch::append_postcard;
use super::control::ControlRecords;
use super::format::{FOOTER_MAGIC, FRAME_HEADER_BYTES, put, u32_at};
use super::frame::{FrameHeader, FrameKind};
use super::record::batch_time;
use super::state::store_key;
use crate::limits::{FRAME_ALIGN, INDEX_STEP_BYTES, SEGMENT_BOOTS_MAX, SEGMENT_KEYS_MAX};
use crate::types::{BootId, IngestTime, Offset, PartitionId, Seq};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Offsets of one partition in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionRange {
    /// The partition.
    pub partition: PartitionId,
    /// First offset in the segment.
    pub first: Offset,
    /// Offset after the last one.
    pub next: Offset,
    /// Frame of the first one.
    pub first_seq: Seq,
    /// Bytes of its frames.
    pub bytes: u64,
}

/// When the batches of one boot came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootSpan {
    /// The boot.
    pub boot: BootId,
    /// Monotonic ms within that boot, of the earliest batch.
    pub first_ms: u64,
    /// Of the latest one.
    pub last_ms: u64,
}

/// A sealed (or abandoned) segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentSummary {
    /// Its number.
    pub number: u64,
    /// First frame.
    pub first_seq: Seq,
    /// Last frame.
    pub last_seq: Seq,
    /// Bytes in use.
    pub bytes: u64,
    /// Offsets per partition, ascending by partition.
    pub ranges: Vec<PartitionRange>,
    /// Earliest and latest ingest time, wall ms, of batches whose clock was synchronised.
    pub wall_ms: Option<(i64, i64)>,
    /// When its batches came in, boot by boot; `None` if there are more than [`SEGMENT_BOOTS_MAX`], so that its age is unknown.
    pub boots: Option<Vec<BootSpan>>,
    /// Control records in it.
    pub control_records: u32,
}

impl SegmentSummary {
    /// Offsets of one partition, if it has any there.
    pub fn range(&self, partition: PartitionId) -> Option<&PartitionRange> {
        let at = self.ranges.binary_search_by_key(&partition, |range| range.partition).ok()?;
        self.ranges.get(at)
    }
}

/// Where a partition's offsets can be found: an entry per partition and 64 KiB or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexEntry {
    /// The partition.
    pub partition: PartitionId,
    /// First offset of a batch.
    pub offset: Offset,
    /// Its frame.
    pub seq: Seq,
    /// Where that frame stands in the segment.
    pub place: u64,
}

/// The newest record of a key in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyPlace {
    /// Its frame.
    pub seq: Seq,
    /// Where that frame stands in the segment.
    pub place: u64,
    /// Whether it removes the key.
    pub tombstone: bool,
}

/// Control frames of a segment, as its footer tells them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Controls {
    /// The newest record of each key (kind, big-endian, and key).
    Keys(Vec<(Vec<u8>, KeyPlace)>),
    /// Only the places of the frames: there were too many keys.
    Places(Vec<u64>),
}

/// Footer, version 1. Never edited; see FORMAT.md.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FooterV1 {
    /// What is known of the segment.
    pub summary: SegmentSummary,
    /// Sparse index, in log order.
    pub index: Vec<IndexEntry>,
    /// Control frames.
    pub controls: Controls,
}

/// Version of footers that is written.
const FOOTER_VERSION: u8 = 1;
/// Bytes at the very end of a footer: its frame's length and the magic.
pub(crate) const FOOTER_LOCATOR_BYTES: usize = 8;
/// At most so many bytes does postcard need for an index entry, a range, a key's place without the key.
const INDEX_ENTRY_BYTES: usize = 40;
const RANGE_BYTES: usize = 50;
const KEY_PLACE_BYTES: usize = 26;
const BOOT_SPAN_BYTES: usize = 36;
const FOOTER_FIXED_BYTES: usize = 128;

/// One partition in a segment, gathered frame by frame.
#[derive(Clone, Copy, Debug)]
struct Gathered {
    range: PartitionRange,
    last_seq: Seq,
    /// Bytes since its last entry in the index.
    since: u64,
}

/// What a segment holds, gathered frame by frame.
#[derive(Clone, Debug, Default)]
pub(crate) struct SegmentIndex {
    number: u64,
    first_seq: Seq,
    last_seq: Seq,
    epoch: u32,
    end: u64,
    ranges: BTreeMap<PartitionId, Gathered>,
    /// Offsets between two batches of a partition.
    holes: Vec<(PartitionId, Offset, Offset)>,
    index: Vec<IndexEntry>,
    wall_ms: Option<(i64, i64)>,
    boots: Vec<BootSpan>,
    too_many_boots: bool,
    control_records: u32,
    control_places: Vec<u64>,
    keys: HashMap<Vec<u8>, KeyPlace, foldhash::fast::FixedState>,
    key_bytes: usize,
    /// There were too many keys to remember: the control frames are read at a rebuild.
    too_many_keys: bool,
}

impl SegmentIndex {
    /// Of a segment in which nothing stands yet.
    pub(crate) fn new(number: u64, first_seq: Seq, data_start: u64) -> Self {
        Self { number, first_seq, last_seq: first_seq.saturating_sub(1), end: data_start, ..Self::default() }
    }

    /// Takes a frame in.
    pub(crate) fn add(&mut self, header: &FrameHeader, body: &[u8], place: u64, bytes: u64) {
        self.end = self.end.max(place + bytes);
        if !header.kind.numbered() {
            return;
        }
        self.last_seq = self.last_seq.max(header.seq);
        self.epoch = self.epoch.max(header.epoch);
        match header.kind {
            FrameKind::Batch => self.add_batch(header, body, place, bytes),
            FrameKind::Control => self.add_controls(header, body, place),
            FrameKind::Pad | FrameKind::Footer | FrameKind::Close => {}
        }
    }

    fn add_batch(&mut self, header: &FrameHeader, body: &[u8], place: u64, bytes: u64) {
        let partition = header.partition;
        let fresh = PartitionRange {
            partition,
            first: header.base_offset,
            next: header.base_offset,
            first_seq: header.seq,
            bytes: 0,
        };
        let new = Gathered { range: fresh, last_seq: 0, since: INDEX_STEP_BYTES };
        let found = self.ranges.entry(partition).or_insert(new);
        if header.base_offset > found.range.next {
            self.holes.push((partition, found.range.next, header.base_offset));
        }
        found.range.next = found.range.next.max(header.next_offset());
        found.range.bytes += bytes;
        found.last_seq = header.seq;
        if found.since >= INDEX_STEP_BYTES {
            found.since = 0;
            self.index.push(IndexEntry { partition, offset: header.base_offset, seq: header.seq, place });
        }
        found.since += bytes;
        let time = batch_time(body);
        if let Some(time) = &time {
            self.add_time(time);
        }
        if let Some(wall) = time.filter(|time| time.wall_synced).and_then(|time| time.wall_ms) {
            let (first, last) = self.wall_ms.unwrap_or((wall, wall));
            self.wall_ms = Some((first.min(wall), last.max(wall)));
        }
    }

    fn add_time(&mut self, time: &IngestTime) {
        let (boot, at) = (time.boot, time.mono_ms);
        let room = self.boots.len() < SEGMENT_BOOTS_MAX;
        match self.boots.iter_mut().rev().find(|span| span.boot == boot) {
            Some(span) => (span.first_ms, span.last_ms) = (span.first_ms.min(at), span.last_ms.max(at)),
            None if room => self.boots.push(BootSpan { boot, first_ms: at, last_ms: at }),
            None => self.too_many_boots = true,
        }
    }

    fn add_controls(&mut self, header: &FrameHeader, body: &[u8], place: u64) {
        self.control_records = self.control_records.saturating_add(header.count);
        self.control_places.push(place);
        for record in ControlRecords::new(body) {
            if self.keys.len() >= SEGMENT_KEYS_MAX {
                self.too_many_keys = true;
                self.keys.clear();
                self.key_bytes = 0;
            }
            if self.too_many_keys {
                break;
            }
            let key = store_key(record.kind, record.key);
            let found = KeyPlace { seq: header.seq, place, tombstone: record.value.is_none() };
            let bytes = key.len() + KEY_PLACE_BYTES;
            if self.keys.insert(key, found).is_none() {
                self.key_bytes += bytes;
            }
        }
    }

    /// Last frame taken in; the one before the first while there is none.
    pub(crate) fn last_seq(&self) -> Seq {
        self.last_seq
    }

    /// Leader epoch of the newest frame.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Frame of a partition's last batch.
    pub(crate) fn last_seq_of(&self, partition: PartitionId) -> Option<Seq> {
        self.ranges.get(&partition).map(|found| found.last_seq)
    }

    /// Offsets that lie between two batches of a partition.
    pub(crate) fn holes(&self) -> &[(PartitionId, Offset, Offset)] {
        &self.holes
    }

    /// Number of the segment.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Sparse index so far.
    pub(crate) fn entries(&self) -> &[IndexEntry] {
        &self.index
    }

    /// What is known of the segment now.
    pub(crate) fn summary(&self) -> SegmentSummary {
        SegmentSummary {
            number: self.number,
            first_seq: self.first_seq,
            last_seq: self.last_seq,
            bytes: self.end,
            ranges: self.ranges.values().map(|found| found.range).collect(),
            wall_ms: self.wall_ms,
            boots: (!self.too_many_boots).then(|| self.boots.clone()),
            control_records: self.control_records,
        }
    }

    /// Its control frames, as a footer tells them.
    pub(crate) fn controls(&self) -> Controls {
        if self.too_many_keys {
            return Controls::Places(self.control_places.clone());
        }
        let mut keys: Vec<_> = self.keys.iter().map(|(key, place)| (key.clone(), *place)).collect();
        keys.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Controls::Keys(keys)
    }

    /// At most so many bytes does the footer's frame take, with all keys.
    pub(crate) fn footer_bound(&self) -> usize {
        self.bound_without_controls() + self.key_bytes
    }

    fn bound_without_controls(&self) -> usize {
        let fixed = FRAME_HEADER_BYTES + FOOTER_FIXED_BYTES + FOOTER_LOCATOR_BYTES + FRAME_ALIGN;
        fixed
            + self.boots.len() * BOOT_SPAN_BYTES
            + self.ranges.len() * RANGE_BYTES
            + self.index.len() * INDEX_ENTRY_BYTES
    }

    /// The footer's body, its frame being a multiple of 8 and at most `room` bytes long; `None` if even the short form does not
    /// fit, so that the segment will be scanned.
    pub(crate) fn encode_footer(&self, room: usize) -> Option<Vec<u8>> {
        let fits = self.footer_bound() <= room;
        let controls = if fits { self.controls() } else { Controls::Places(self.control_places.clone()) };
        let footer = FooterV1 { summary: self.summary(), index: self.index.clone(), controls };
        let mut body = vec![FOOTER_VERSION];
        append_postcard(&footer, &mut body);
        let frame = (FRAME_HEADER_BYTES + body.len() + FOOTER_LOCATOR_BYTES).next_multiple_of(FRAME_ALIGN);
        body.resize(frame - FRAME_HEADER_BYTES, 0);
        let locator = body.len() - FOOTER_LOCATOR_BYTES;
        put(&mut body, locator, &(frame as u32).to_le_bytes());
        put(&mut body, locator + 4, &FOOTER_MAGIC.to_le_bytes());
        (frame <= room).then_some(body)
    }
}

/// Length of the footer's frame, from the last bytes of a segment; `None` if it has none.
pub(crate) fn footer_length(last_bytes: &[u8]) -> Option<u64> {
    let at = last_bytes.len().checked_sub(FOOTER_LOCATOR_BYTES)?;
    (u32_at(last_bytes, at + 4)? == FOOTER_MAGIC).then_some(u64::from(u32_at(last_bytes, at)?))
}

/// Reads the body of a footer frame; `None` if its version is not known or it does not parse.
pub(crate) fn decode_footer(body: &[u8]) -> Option<FooterV1> {
    let (version, rest) = body.split_first()?;
    if *version != FOOTER_VERSION {
        return None;
    }
    postcard::take_from_bytes(rest).ok().map(|(footer, _)| footer)
}

/// Value of a summary in the state store.
pub(crate) fn summary_to_value(summary: &SegmentSummary) -> Vec<u8> {
    let mut bytes = vec![FOOTER_VERSION];
    append_postcard(summary, &mut bytes);
    bytes
}

/// A summary from its value in the state store.
pub(crate) fn summary_of_value(bytes: &[u8]) -> Option<SegmentSummary> {
    let (version, rest) = bytes.split_first()?;
    if *version == FOOTER_VERSION { postcard::from_bytes(rest).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::control::{ControlKind, ControlRecord, encode_envelope};
    use crate::types::StreamId;

    fn batch(seq: Seq, stream: u32, base_offset: Offset, count: u32) -> FrameHeader {
        let partition = PartitionId { stream: StreamId(stream), partition: 0 };
        FrameHeader { kind: FrameKind::Batch, flags: 1, seq, epoch: 1, partition, count, base_offset }
    }

    fn gathered(keys: usize) -> SegmentIndex {
        let mut index = SegmentIndex::new(3, 10, 1024);
        let mut place = 1024;
        for n in 0..100u64 {
            index.add(&batch(10 + n, (n % 3) as u32, n, 1), &[0; 40], place, 8192);
            place += 8192;
        }
        let mut body = Vec::new();
        for n in 0..keys {
            encode_envelope(
                &ControlRecord::put(ControlKind::Session, vec![n as u8, (n >> 8) as u8], vec![1]),
                &mut body,
            );
        }
        let header = FrameHeader { kind: FrameKind::Control, count: keys as u32, ..batch(110, 0, 0, 0) };
        index.add(&header, &body, place, body.len() as u64 + 64);
        index
    }

    #[test]
    fn a_footer_reads_back_and_stays_within_its_bound() {
        for keys in [0, 1, 1000] {
            let index = gathered(keys);
            let body = index.encode_footer(1 << 20).unwrap();
            let frame = FRAME_HEADER_BYTES + body.len();
            assert!(frame <= index.footer_bound());
            assert_eq!(footer_length(&body), Some(frame as u64));
            let footer = decode_footer(&body).unwrap();
            assert_eq!(footer.summary, index.summary());
            assert_eq!(footer.summary.ranges.len(), 3);
            assert!(matches!(footer.controls, Controls::Keys(found) if found.len() == keys));
        }
    }

    #[test]
    fn a_footer_without_room_for_keys_names_the_frames() {
        let index = gathered(1000);
        let footer = decode_footer(&index.encode_footer(8192).unwrap()).unwrap();
        assert!(matches!(footer.controls, Controls::Places(places) if places.len() == 1));
        assert!(index.encode_footer(64).is_none());
    }

    #[test]
    fn a_segment_remembers_a_bounded_number_of_keys() {
        let index = gathered(SEGMENT_KEYS_MAX + 1);
        assert!(index.keys.is_empty());
        assert!(matches!(index.controls(), Controls::Places(places) if places.len() == 1));
        assert!(
            matches!(gathered(SEGMENT_KEYS_MAX).controls(), Controls::Keys(keys) if keys.len() == SEGMENT_KEYS_MAX)
        );
    }

    #[test]
    fn the_index_has_an_entry_per_partition_and_64_kib() {
        let index = gathered(0);
        assert!(index.entries().len() >= 12 && index.entries().len() <= 15, "{}", index.entries().len());
    }
}
