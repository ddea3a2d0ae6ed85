//! Walking over the frames of one segment: header by header, checking, and finding the way again behind damage. The one way in
//! which segments are read, by recovery and by readers, in bounded memory.

use super::format::{
    FRAME_HEADER_BYTES, FRAME_MAGIC, RawHeader, SEGMENT_DATA_START, SegmentHeader, SegmentHeaderRead, check_frame,
    decode_header,
};
use super::frame::FrameKind;
use super::segments::{FOOTER_LOCATOR_BYTES, FooterV1, decode_footer, footer_length};
use super::store::{LogStore, StoreError};
use crate::limits::{FRAME_ALIGN, READ_CHUNK_BYTES, READ_CHUNK_BYTES_MIN};
use crate::types::Seq;
use bytes::Bytes;

/// A segment's header and what else is needed to walk it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentPlan {
    pub(crate) header: SegmentHeader,
    /// Last sequence that counts in it: the newer segment's word, or no bound for the newest.
    pub(crate) valid_to: Seq,
    /// That is exactly its last one: it is the predecessor that a newer segment names.
    pub(crate) exact: bool,
}

/// What stands at the place where the walk is.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// A frame with a sequence of its own, or a PAD; its check was made if it was asked for.
    Frame { place: u64, raw: RawHeader, body: Bytes },
    /// Bytes that are no frame, up to where the walk goes on; with the header, if it can be read.
    Bad { place: u64, until: u64, header: Option<RawHeader> },
    /// Nothing follows. `marked`: by an end mark (or the segment's end), else by bytes that say nothing.
    End { marked: bool },
}

/// Reads the header of a segment.
pub(crate) fn read_segment_header(store: &dyn LogStore, number: u64) -> Result<SegmentHeaderRead, StoreError> {
    let mut bytes = [0u8; SEGMENT_DATA_START as usize];
    let read = read_full(store, number, 0, &mut bytes)?;
    Ok(SegmentHeader::decode(bytes.get(..read).unwrap_or_default()))
}

/// Reads until the buffer is full or the segment ends.
pub(crate) fn read_full(store: &dyn LogStore, number: u64, at: u64, buffer: &mut [u8]) -> Result<usize, StoreError> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match store.read_at(number, at + done as u64, rest)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Reads the footer of a segment; `None` if it has none that checks.
pub(crate) fn read_footer(store: &dyn LogStore, header: &SegmentHeader) -> Result<Option<FooterV1>, StoreError> {
    let size = header.size;
    let mut locator = [0u8; FOOTER_LOCATOR_BYTES];
    if read_full(store, header.number, size.saturating_sub(FOOTER_LOCATOR_BYTES as u64), &mut locator)? < locator.len()
    {
        return Ok(None);
    }
    let room = size.saturating_sub(SEGMENT_DATA_START);
    let Some(length) = footer_length(&locator).filter(|length| (FRAME_HEADER_BYTES as u64..=room).contains(length))
    else {
        return Ok(None);
    };
    let place = size - length;
    let mut frame = vec![0u8; length as usize];
    read_full(store, header.number, place, &mut frame)?;
    let Some((head, body)) = frame.split_at_checked(FRAME_HEADER_BYTES) else { return Ok(None) };
    let raw = decode_header(head, header.salt, place);
    if raw.is_none_or(|raw| raw.header.kind != FrameKind::Footer || raw.header.seq < header.first_seq)
        || !check_frame(head, body, header.salt, place)
    {
        return Ok(None);
    }
    Ok(decode_footer(body).filter(|footer| footer.summary.number == header.number))
}

/// A walk over the frames of one segment.
pub(crate) struct Walk<'s> {
    store: &'s dyn LogStore,
    plan: SegmentPlan,
    place: u64,
    /// Sequence of the last frame met, and its epoch: what follows is not older.
    last: Seq,
    epoch: u32,
    /// The walk looks behind damage and end marks until it has met this sequence.
    until: Seq,
    window: Bytes,
    window_at: u64,
    chunk: usize,
    bytes_read: u64,
}

impl<'s> Walk<'s> {
    /// From the first frame of the segment; looks for frames up to `until` (or what is valid in the segment).
    pub(crate) fn new(store: &'s dyn LogStore, plan: SegmentPlan, until: Seq) -> Self {
        let last = plan.header.first_seq.saturating_sub(1);
        Self {
            store,
            plan,
            place: SEGMENT_DATA_START,
            last,
            epoch: 0,
            until: until.min(plan.valid_to),
            window: Bytes::new(),
            window_at: 0,
            chunk: READ_CHUNK_BYTES,
            bytes_read: 0,
        }
    }

    /// Takes about so many bytes from the medium at once.
    pub(crate) fn in_chunks_of(mut self, bytes: usize) -> Self {
        self.chunk = bytes.clamp(READ_CHUNK_BYTES_MIN, READ_CHUNK_BYTES);
        self
    }

    /// Goes on at a place where a frame begins whose sequence is at least `seq`.
    pub(crate) fn jump(&mut self, place: u64, seq: Seq) {
        self.place = place.max(SEGMENT_DATA_START);
        self.last = self.last.max(seq.saturating_sub(1));
    }

    /// Where the walk is.
    pub(crate) fn place(&self) -> u64 {
        self.place
    }

    /// Bytes taken from the medium so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// The bytes of the segment at a place; fewer only at its end.
    fn bytes(&mut self, place: u64, length: usize) -> Result<Bytes, StoreError> {
        let length = (length as u64).min(self.plan.header.size.saturating_sub(place)) as usize;
        let inside = |window: &Bytes, at: u64| {
            let skip = place.checked_sub(at)? as usize;
            (skip + length <= window.len()).then(|| window.slice(skip..skip + length))
        };
        if let Some(bytes) = inside(&self.window, self.window_at) {
            return Ok(bytes);
        }
        let left = self.plan.header.size.saturating_sub(place);
        let mut buffer = vec![0u8; (self.chunk.max(length) as u64).min(left) as usize];
        let read = read_full(self.store, self.plan.header.number, place, &mut buffer)?;
        buffer.truncate(read);
        self.bytes_read += read as u64;
        self.window = Bytes::from(buffer);
        self.window_at = place;
        Ok(inside(&self.window, place).unwrap_or_else(|| self.window.clone()))
    }

    /// The header at a place, if it can be read and can belong there.
    fn header(&mut self, place: u64) -> Result<Option<RawHeader>, StoreError> {
        let bytes = self.bytes(place, FRAME_HEADER_BYTES)?;
        let raw = decode_header(&bytes, self.plan.header.salt, place);
        Ok(raw.filter(|raw| self.plausible(raw, place)))
    }

    fn plausible(&self, raw: &RawHeader, place: u64) -> bool {
        let grows = match raw.header.kind {
            FrameKind::Pad => raw.header.seq >= self.last && raw.header.base_offset > raw.header.seq,
            FrameKind::Footer => false, // found by its locator
            _ => raw.header.seq > self.last,
        };
        grows && raw.header.epoch >= self.epoch && place + raw.frame_bytes() <= self.plan.header.size
    }

    /// The body behind a header that was read; `None` if the frame does not check.
    fn body(&mut self, place: u64, raw: &RawHeader) -> Result<Option<Bytes>, StoreError> {
        let length = if raw.header.kind == FrameKind::Pad { 0 } else { raw.length as usize };
        let frame = self.bytes(place, FRAME_HEADER_BYTES + length)?;
        let salt = self.plan.header.salt;
        let checks =
            frame.split_at_checked(FRAME_HEADER_BYTES).is_some_and(|(head, body)| check_frame(head, body, salt, place));
        Ok((checks && frame.len() == FRAME_HEADER_BYTES + length).then(|| frame.slice(FRAME_HEADER_BYTES..)))
    }

    /// The next thing in the segment. With `wanted` false for a header, its body is neither read nor checked.
    pub(crate) fn next(&mut self, wanted: impl Fn(&RawHeader) -> bool) -> Result<Found, StoreError> {
        let place = self.place;
        if self.last >= self.until {
            let marked = self.marked(place)?;
            return Ok(Found::End { marked });
        }
        let Some(raw) = self.header(place)? else { return self.behind(place) };
        let next = place + raw.frame_bytes();
        let body = if wanted(&raw) || raw.header.kind == FrameKind::Pad {
            self.body(place, &raw)?
        } else {
            Some(Bytes::new())
        };
        self.place = next;
        match body {
            Some(body) => {
                self.epoch = raw.header.epoch;
                let pad = raw.header.kind == FrameKind::Pad;
                self.last = if pad { raw.header.base_offset - 1 } else { raw.header.seq };
                if self.last > self.plan.valid_to && !pad {
                    self.place = place;
                    let marked = self.marked(place)?;
                    return Ok(Found::End { marked });
                }
                Ok(Found::Frame { place, raw, body })
            }
            None => Ok(Found::Bad { place, until: next, header: Some(raw) }),
        }
    }

    /// Whether an end mark, or the end of the segment, stands there.
    pub(crate) fn marked(&mut self, place: u64) -> Result<bool, StoreError> {
        let bytes = self.bytes(place, FRAME_ALIGN)?;
        Ok(bytes.iter().all(|byte| *byte == 0))
    }

    /// No header stands at `place`: looks for the next frame that checks.
    fn behind(&mut self, place: u64) -> Result<Found, StoreError> {
        let marked = self.marked(place)?;
        match self.search(place + FRAME_ALIGN as u64)? {
            Some(until) => {
                self.place = until;
                Ok(Found::Bad { place, until, header: None })
            }
            None => Ok(Found::End { marked }),
        }
    }

    /// The first place at or behind `from` where a frame stands that checks.
    fn search(&mut self, from: u64) -> Result<Option<u64>, StoreError> {
        let mut at = from;
        while at + FRAME_HEADER_BYTES as u64 <= self.plan.header.size {
            let chunk = self.bytes(at, self.chunk)?;
            if chunk.len() < FRAME_ALIGN {
                break;
            }
            for (n, step) in chunk.chunks_exact(FRAME_ALIGN).enumerate() {
                if step.first_chunk::<4>() == Some(&FRAME_MAGIC.to_le_bytes()) {
                    let place = at + (n * FRAME_ALIGN) as u64;
                    if let Some(raw) = self.header(place)?
                        && self.body(place, &raw)?.is_some()
                    {
                        return Ok(Some(place));
                    }
                }
            }
            at += (chunk.len() / FRAME_ALIGN * FRAME_ALIGN) as u64;
        }
        Ok(None)
    }
}
