//! The most recent frames in memory, so that readers that keep up never touch the medium.

use super::frame::Frame;
use crate::types::{LogPosition, Seq};
use std::collections::VecDeque;
use std::sync::Arc;

/// What [`Tail::read`] found.
#[derive(Clone, Debug)]
pub enum TailRead {
    /// Frames in log order; the first may begin before the position asked for.
    Frames {
        /// At least one.
        frames: Vec<Arc<Frame>>,
        /// Where to read on.
        next: LogPosition,
    },
    /// The position is older than what is in memory: read the segments.
    Miss,
    /// Nothing stands between the position and the end.
    End,
}

/// Frames with contiguous sequences, bounded in bytes.
#[derive(Debug)]
pub(crate) struct Tail {
    frames: VecDeque<Arc<Frame>>,
    first_seq: Seq,
    bytes: usize,
    limit: usize,
}

impl Tail {
    /// Holds at most `limit` bytes; the first frame pushed will have `first_seq`.
    pub(crate) fn new(limit: usize, first_seq: Seq) -> Self {
        Self { frames: VecDeque::new(), first_seq, bytes: 0, limit }
    }

    /// Adds the next frame and lets the oldest go.
    pub(crate) fn push(&mut self, frame: Arc<Frame>) {
        self.bytes += frame.bytes();
        self.frames.push_back(frame);
        while self.bytes > self.limit {
            let Some(oldest) = self.frames.pop_front() else { break };
            self.bytes -= oldest.bytes();
            self.first_seq = oldest.header.seq + 1;
        }
    }

    /// The frames from `from` to `until`, as many as fit in `max_bytes` but at least one.
    pub(crate) fn read(&self, from: LogPosition, until: Seq, max_bytes: usize) -> TailRead {
        if from.seq > until {
            return TailRead::End;
        }
        if from.seq < self.first_seq {
            return TailRead::Miss;
        }
        let skipped = (from.seq - self.first_seq) as usize;
        let mut frames = Vec::new();
        let mut bytes = 0;
        for frame in self.frames.iter().skip(skipped).take_while(|frame| frame.header.seq <= until) {
            bytes += frame.bytes();
            if bytes > max_bytes && !frames.is_empty() {
                break;
            }
            frames.push(Arc::clone(frame));
        }
        match frames.last() {
            Some(last) => {
                let next = LogPosition { seq: last.header.seq + 1, index: 0 };
                TailRead::Frames { frames, next }
            }
            None => TailRead::End,
        }
    }

    /// The frames in memory from a sequence on.
    pub(crate) fn from(&self, seq: Seq) -> impl Iterator<Item = &Arc<Frame>> {
        self.frames.iter().skip(seq.saturating_sub(self.first_seq) as usize)
    }

    /// Sequence of the oldest frame in memory (of the next one, while there is none).
    pub(crate) fn first_seq(&self) -> Seq {
        self.first_seq
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}
