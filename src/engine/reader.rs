//! One reader of the log: a session that is behind, an upstream, a question of the admin side. It takes frames from the tail in
//! memory, or asks for a read and waits for its answer; it never has more than one question under way.

use super::io::{Output, Outputs, ReadHint, ReadRequest, ReadResult};
use crate::limits::READ_BYTES_MAX;
use crate::log::frame::{Frame, FrameKind};
use crate::log::{Log, TailRead};
use crate::types::{LogPosition, PartitionId, Seq, Ticket};
use std::collections::VecDeque;
use std::sync::Arc;

/// Where a reader stands and what it has in hand.
#[derive(Debug)]
pub struct LogReader {
    position: LogPosition,
    frames: VecDeque<Arc<Frame>>,
    /// Where the frames in hand end: nothing wanted lies between the last of them and this.
    after: LogPosition,
    partitions: Option<Arc<[PartitionId]>>,
    asked: Option<Ticket>,
    hint: Option<ReadHint>,
    failed: bool,
}

/// What a reader has next.
pub enum Next {
    /// A frame, of which the records from this index on are new.
    Frame(Arc<Frame>, u32),
    /// Nothing below the bound.
    End,
    /// The answer to a question is awaited, or no question may be asked now.
    Waiting,
}

impl LogReader {
    /// A reader that begins at `position`, for these partitions or all.
    pub fn new(position: LogPosition, partitions: Option<Arc<[PartitionId]>>) -> Self {
        Self { position, frames: VecDeque::new(), after: position, partitions, asked: None, hint: None, failed: false }
    }

    /// The first position not yet consumed.
    pub fn position(&self) -> LogPosition {
        self.position
    }

    /// The question under way.
    pub fn asked(&self) -> Option<Ticket> {
        self.asked
    }

    /// Goes elsewhere; an answer under way will not be recognised.
    pub fn seek(&mut self, position: LogPosition) {
        *self = Self::new(position, self.partitions.take());
    }

    /// Everything before `position` has been consumed.
    pub fn advance(&mut self, position: LogPosition) {
        if position <= self.position {
            return;
        }
        self.position = position;
        while self.frames.front().is_some_and(|frame| frame.header.seq < position.seq) {
            self.frames.pop_front();
        }
        if self.frames.is_empty() {
            self.position = self.position.max(self.after);
        }
    }

    /// The next frame at or after the position and not beyond `until`. `tickets` gives a ticket if a question may be asked.
    pub fn next(
        &mut self,
        log: &Log,
        until: Seq,
        tickets: &mut dyn FnMut() -> Option<Ticket>,
        out: &mut Outputs,
    ) -> Next {
        loop {
            if self.position.seq > until {
                return Next::End;
            }
            while let Some(frame) = self.frames.front() {
                let seq = frame.header.seq;
                if seq > until {
                    return Next::End;
                }
                let from = if seq == self.position.seq { self.position.index } else { 0 };
                let batch = frame.header.kind == FrameKind::Batch;
                if batch && from < frame.header.count && self.wants(frame.header.partition) {
                    return Next::Frame(frame.clone(), from);
                }
                self.advance(LogPosition { seq: seq + 1, index: 0 });
            }
            if self.asked.is_some() {
                return Next::Waiting;
            }
            match log.read_tail(self.position, until, READ_BYTES_MAX) {
                TailRead::Frames { frames, next } => {
                    self.hint = None;
                    self.take(frames, next);
                }
                TailRead::End => return Next::End,
                TailRead::Miss => {
                    let Some(ticket) = tickets() else { return Next::Waiting };
                    self.asked = Some(ticket);
                    let request = ReadRequest {
                        from: self.position,
                        until: until.min(log.synced_seq()),
                        max_bytes: READ_BYTES_MAX,
                        partitions: self.partitions.clone(),
                        hint: self.hint,
                        find: None,
                    };
                    out.push(Output::Read { ticket, request });
                    return Next::Waiting;
                }
            }
        }
    }

    /// Takes the answer to the question under way. A failed read is tried again at the next occasion.
    pub fn answered(&mut self, result: ReadResult) {
        self.asked = None;
        match result {
            ReadResult::Frames { frames, next, hint, damage: _ } => {
                self.failed = false;
                self.hint = hint;
                self.take(frames, next);
            }
            ReadResult::End { next } => {
                self.failed = false;
                self.hint = None;
                self.advance(next);
            }
            ReadResult::Failed(_) => {
                self.failed = true;
                self.hint = None;
            }
        }
    }

    /// Whether the last read failed.
    pub fn failed(&self) -> bool {
        self.failed
    }

    fn take(&mut self, frames: Vec<Arc<Frame>>, next: LogPosition) {
        self.frames.extend(frames);
        self.after = next;
        if self.frames.is_empty() {
            self.advance(next);
        }
    }

    fn wants(&self, partition: PartitionId) -> bool {
        self.partitions.as_ref().is_none_or(|wanted| wanted.contains(&partition))
    }
}
