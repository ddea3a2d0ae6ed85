//! Reading segments: the one reader of catch-up sessions, upstreams, `tail` and `log verify`, in bounded memory.

use super::damage::{Damage, DamageKind};
use super::format::{SegmentHeader, SegmentHeaderRead};
use super::frame::{Frame, FrameKind};
use super::recovery::survey::{Survey, bad, judge};
use super::scan::{Found, SegmentPlan, Walk, read_footer, read_segment_header};
use super::segments::FooterV1;
use super::store::{LogStore, StoreError};
use crate::limits::{DAMAGE_REPORTS_MAX, READ_CHUNK_BYTES, READ_SCAN_BYTES_MAX, READER_FOOTERS_MAX};
use crate::types::{LogPosition, Offset, PartitionId, Seq};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A catch-up read.
#[derive(Clone, Debug, Default)]
pub struct ReadRequest {
    /// First position wanted.
    pub from: LogPosition,
    /// Not beyond this frame (the synced end when the request was made).
    pub until: Seq,
    /// Bytes of frames to bring at most, except that one frame always comes.
    pub max_bytes: usize,
    /// Only batches of these partitions; `None` is all.
    pub partitions: Option<Arc<[PartitionId]>>,
    /// Where the bytes lie, if known from the last read.
    pub hint: Option<ReadHint>,
    /// The reader wants this partition from this offset on and nothing before it: the sparse index may be used to skip.
    pub find: Option<(PartitionId, Offset)>,
}

/// What a catch-up read found.
#[derive(Clone, Debug)]
pub enum ReadResult {
    /// Frames in log order, all at or after the position asked for (the first may begin before it).
    Frames {
        /// Batches of the partitions asked for. May be empty: the read passed over much that was not asked for.
        frames: Vec<Arc<Frame>>,
        /// Where to read on.
        next: LogPosition,
        /// Where those bytes lie, to be given back with the next read.
        hint: Option<ReadHint>,
        /// What could not be read on the way, at most [`DAMAGE_REPORTS_MAX`] of it.
        damage: Vec<Damage>,
    },
    /// Nothing stands below `until` any more.
    End {
        /// Where to read on.
        next: LogPosition,
    },
    /// The medium failed.
    Failed(String),
}

/// Where a reader stopped: a segment and a byte in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadHint {
    /// Segment number.
    pub segment: u64,
    /// Byte offset of the next frame.
    pub offset: u64,
}

/// Reads segments for whoever asks, one request at a time. It remembers which segments there are and what the footers of some of
/// them say; what is in them it asks the store.
#[derive(Debug, Default)]
pub struct Reader {
    headers: BTreeMap<u64, Option<SegmentHeader>>,
    survey: Survey,
    footers: VecDeque<(SegmentHeader, Option<Arc<FooterV1>>)>,
}

/// What one read gathers.
struct Gathering<'a> {
    request: &'a ReadRequest,
    frames: Vec<Arc<Frame>>,
    bytes: usize,
    passed: u64,
    next: LogPosition,
    hint: Option<ReadHint>,
    damage: Vec<Damage>,
}

/// Whether a read goes on in the next segment.
enum Going {
    On,
    Full,
}

impl Reader {
    /// A reader that knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Frames from a position on.
    pub fn read(&mut self, store: &dyn LogStore, request: &ReadRequest) -> ReadResult {
        let result = self.try_read(store, request).or_else(|_| {
            // A segment may have been given back under our hands.
            self.headers.clear();
            self.try_read(store, request)
        });
        result.unwrap_or_else(|error| ReadResult::Failed(error.to_string()))
    }

    fn try_read(&mut self, store: &dyn LogStore, request: &ReadRequest) -> Result<ReadResult, StoreError> {
        self.refresh(store)?;
        let mut gathering = Gathering {
            request,
            frames: Vec::new(),
            bytes: 0,
            passed: 0,
            next: request.from,
            hint: None,
            damage: Vec::new(),
        };
        let plans: Vec<SegmentPlan> = self.covering(request);
        let mut full = false;
        for (n, plan) in plans.iter().enumerate() {
            if gathering.next.seq > request.until {
                break;
            }
            if n > 0 {
                gathering.missing_before(plan);
            }
            let footer = self.footer(store, plan)?;
            full = matches!(gathering.segment(store, plan, footer.as_deref())?, Going::Full);
            if full {
                break;
            }
        }
        Ok(gathering.finish(full))
    }

    /// Segments that can hold what is asked for, oldest first.
    fn covering(&self, request: &ReadRequest) -> Vec<SegmentPlan> {
        let plans = &self.survey.plans;
        let behind = plans.partition_point(|plan| plan.header.first_seq <= request.from.seq);
        let mut first = behind.saturating_sub(1);
        // A segment whose header was made up begins nobody knows where.
        while first > 0 && plans.get(first).is_some_and(|plan| self.survey.headless.contains(&plan.header.number)) {
            first -= 1;
        }
        plans.iter().skip(first).take_while(|plan| plan.header.first_seq <= request.until).copied().collect()
    }

    /// Learns which segments there are now. Headers do not change while a segment exists; a number is not used again.
    fn refresh(&mut self, store: &dyn LogStore) -> Result<(), StoreError> {
        let numbers = store.list()?;
        // The newest without a header may be getting one.
        let same = self.headers.len() == numbers.len()
            && numbers.iter().zip(&self.headers).all(|(number, (known, header))| number == known && header.is_some());
        if same {
            return Ok(());
        }
        let mut headers = BTreeMap::new();
        for number in numbers {
            let known = self.headers.get(&number).copied().flatten();
            let header = match known {
                Some(header) => Some(header),
                None => match read_segment_header(store, number)? {
                    SegmentHeaderRead::Valid(header) if header.number == number => Some(header),
                    _ => None,
                },
            };
            headers.insert(number, header);
        }
        self.survey = judge(&headers, store.segment_size());
        self.headers = headers;
        Ok(())
    }

    /// The footer of a segment that is not the newest; what was read is remembered for a while.
    fn footer(&mut self, store: &dyn LogStore, plan: &SegmentPlan) -> Result<Option<Arc<FooterV1>>, StoreError> {
        if plan.valid_to == Seq::MAX {
            return Ok(None);
        }
        if let Some((_, footer)) = self.footers.iter().find(|(header, _)| *header == plan.header) {
            return Ok(footer.clone());
        }
        let footer = read_footer(store, &plan.header)?.map(Arc::new);
        if self.footers.len() >= READER_FOOTERS_MAX {
            self.footers.pop_front();
        }
        self.footers.push_back((plan.header, footer.clone()));
        Ok(footer)
    }
}

impl Gathering<'_> {
    fn wants(&self, header: &super::frame::FrameHeader) -> bool {
        let listed = |partitions: &Arc<[PartitionId]>| partitions.contains(&header.partition);
        header.kind == FrameKind::Batch
            && header.seq >= self.request.from.seq
            && self.request.partitions.as_ref().is_none_or(listed)
            && self
                .request
                .find
                .is_none_or(|(partition, offset)| header.partition != partition || header.next_offset() > offset)
    }

    /// Reports frames that stand in no segment.
    fn missing_before(&mut self, plan: &SegmentPlan) {
        let header = &plan.header;
        if self.next.seq <= header.previous_last && header.previous != 0 {
            let seqs = Some((self.next.seq, header.previous_last));
            let kind = DamageKind::MissingFrames;
            self.damaged(Damage { kind, segment: header.previous, place: (0, 0), seqs, offsets: None });
        }
    }

    fn damaged(&mut self, damage: Damage) {
        if self.damage.len() < DAMAGE_REPORTS_MAX {
            self.damage.push(damage);
        }
    }

    /// Whether the footer says that nothing asked for stands in the segment.
    fn irrelevant(&self, footer: &FooterV1) -> bool {
        let inside = |partition: &PartitionId| footer.summary.range(*partition).is_some();
        footer.summary.last_seq < self.next.seq
            || self.request.partitions.as_ref().is_some_and(|partitions| !partitions.iter().any(inside))
    }

    /// Where in a segment to begin: at the hint, or where the sparse index says.
    fn begin(&self, plan: &SegmentPlan, footer: Option<&FooterV1>, walk: &mut Walk<'_>) {
        if let Some(hint) = self.request.hint.filter(|hint| hint.segment == plan.header.number) {
            walk.jump(hint.offset, self.request.from.seq);
            return;
        }
        let Some(footer) = footer else { return };
        let passed = footer.index.iter().take_while(|entry| entry.seq <= self.next.seq).last();
        let found = self.request.find.filter(|(partition, _)| self.only(*partition)).and_then(|(partition, offset)| {
            let of = footer.index.iter().filter(|entry| entry.partition == partition);
            of.take_while(|entry| entry.offset <= offset).last()
        });
        if let Some(entry) = passed.into_iter().chain(found).max_by_key(|entry| entry.place) {
            walk.jump(entry.place, entry.seq);
        }
    }

    /// Whether the request is for one partition alone.
    fn only(&self, partition: PartitionId) -> bool {
        self.request.partitions.as_ref().is_some_and(|partitions| partitions.iter().all(|one| *one == partition))
    }

    fn segment(
        &mut self,
        store: &dyn LogStore,
        plan: &SegmentPlan,
        footer: Option<&FooterV1>,
    ) -> Result<Going, StoreError> {
        let until = self.request.until;
        if let Some(footer) = footer.filter(|footer| self.irrelevant(footer)) {
            let last = footer.summary.last_seq.min(until);
            self.next = self.next.max(LogPosition { seq: last.saturating_add(1), index: 0 });
            self.passed += READ_CHUNK_BYTES as u64 / 4;
            return Ok(if self.passed >= READ_SCAN_BYTES_MAX { Going::Full } else { Going::On });
        }
        let mut walk = Walk::new(store, *plan, until).in_chunks_of(self.request.max_bytes);
        self.begin(plan, footer, &mut walk);
        let start = walk.place();
        loop {
            let place = walk.place();
            if (self.bytes > 0 && self.bytes >= self.request.max_bytes)
                || self.passed + (place - start) >= READ_SCAN_BYTES_MAX
            {
                self.passed += place - start;
                self.hint = Some(ReadHint { segment: plan.header.number, offset: place });
                return Ok(Going::Full);
            }
            match walk.next(|raw| self.wants(&raw.header))? {
                Found::Frame { raw, .. } if raw.header.seq > until => break,
                Found::Frame { place, raw, body } => {
                    let header = raw.header;
                    let wanted = self.wants(&header);
                    if wanted && self.bytes > 0 && self.bytes + raw.frame_bytes() as usize > self.request.max_bytes {
                        self.hint = Some(ReadHint { segment: plan.header.number, offset: place });
                        return Ok(Going::Full);
                    }
                    if wanted {
                        self.bytes += raw.frame_bytes() as usize;
                        self.frames.push(Arc::new(Frame { header, body: detached(body) }));
                    }
                    let last = if header.kind.numbered() { header.seq } else { header.base_offset - 1 };
                    self.next = self.next.max(LogPosition { seq: last + 1, index: 0 });
                }
                Found::Bad { place, until, header } => {
                    self.damaged(bad(plan.header.number, place, until, header.as_ref()));
                }
                Found::End { .. } => break,
            }
        }
        self.passed += walk.place() - start;
        self.end_of(plan, until);
        Ok(Going::On)
    }

    /// The segment is read to its end, or to the end of what was asked for.
    fn end_of(&mut self, plan: &SegmentPlan, until: Seq) {
        let last = plan.valid_to.min(until);
        if plan.exact && self.next.seq <= last {
            let seqs = Some((self.next.seq, last));
            let kind = DamageKind::MissingFrames;
            self.damaged(Damage { kind, segment: plan.header.number, place: (0, 0), seqs, offsets: None });
        }
        let newest = plan.valid_to == Seq::MAX && until != Seq::MAX;
        if plan.exact || newest {
            self.next = self.next.max(LogPosition { seq: last.saturating_add(1), index: 0 });
        }
    }

    fn finish(self, full: bool) -> ReadResult {
        let Self { frames, next, hint, damage, .. } = self;
        if frames.is_empty() && damage.is_empty() && !full {
            return ReadResult::End { next };
        }
        ReadResult::Frames { frames, next, hint, damage }
    }
}

/// A body that does not hold on to a chunk many times its size.
fn detached(body: Bytes) -> Bytes {
    if body.len() * 4 < READ_CHUNK_BYTES { Bytes::copy_from_slice(&body) } else { body }
}
