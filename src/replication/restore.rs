//! A link as the log remembers it: cursors, what was released, and the session's ranges of packet identifiers.

use super::backoff::{Backoff, Draw};
use super::durable::{CursorV1, ReleasedV1, SessionV1, StateKind, decode, lane_key, session_key};
use super::forward::{Connection, Link};
use super::lane::{Lane, Usage};
use super::link::{LaneStart, LinkConfig, LinkCounts};
use crate::limits::{LANE_SPAN_MAX, UPSTREAM_LANES_MAX, UPSTREAM_WINDOW_MAX};
use crate::types::{Offset, PartitionId};
use std::collections::{BTreeMap, VecDeque};

/// Finds the value of a control record by kind and key.
pub type Lookup<'a> = dyn FnMut(StateKind, &[u8]) -> Option<Vec<u8>> + 'a;

impl Link {
    /// A link as the log remembers it; `lookup` finds the value of a control record.
    ///
    /// # Errors
    /// More partitions than packet identifiers can be divided among, in words.
    pub fn new(mut config: LinkConfig, starts: &[LaneStart], lookup: &mut Lookup<'_>) -> Result<Self, String> {
        if starts.len() > UPSTREAM_LANES_MAX {
            return Err(format!(
                "upstream {}: its streams have {} partitions, at most {UPSTREAM_LANES_MAX} fit on one link",
                config.name,
                starts.len()
            ));
        }
        let mut draw = Draw::new(config.seed);
        config.peer.push_str(if config.exactly_once { "/2" } else { "/1" });
        let remembered = lookup(StateKind::Session, &session_key(&config.name));
        let had_session = remembered.is_some();
        let session = remembered
            .and_then(|bytes| decode::<SessionV1>(&bytes))
            .filter(|value| value.log_id == config.log_id && value.peer == config.peer);
        let known = session.as_ref().map_or(0, |value| value.slots.len());
        let session = session.and_then(|value| extend_slots(value, starts));
        let mut link = Self {
            lanes: Vec::with_capacity(starts.len()),
            by_slot: BTreeMap::new(),
            session_valid: session.is_some(),
            agreed: session.as_ref().is_some_and(|value| value.slots.len() == known),
            range: 0,
            slots: Vec::new(),
            connection: Connection::Idle { retry_ns: 0 },
            usage: Usage::default(),
            nth: 0,
            session: session.as_ref().map_or(0, |value| value.stamp),
            pending: VecDeque::new(),
            batch: Vec::new(),
            touched: Vec::new(),
            backoff: Backoff::new(draw.draw()),
            draw,
            closing: None,
            reason: None,
            paused: false,
            stopped: false,
            suspect: None,
            alone: false,
            attempts: BTreeMap::new(),
            counts: LinkCounts::default(),
            extended: session.as_ref().is_some_and(|value| value.slots.len() != known),
            warnings: Vec::new(),
            config,
        };
        (link.range, link.slots) = session.map_or_else(|| fresh_slots(starts), |value| (value.range, value.slots));
        link.restore_lanes(starts, had_session, lookup);
        Ok(link)
    }

    fn restore_lanes(&mut self, starts: &[LaneStart], had_session: bool, lookup: &mut Lookup<'_>) {
        let mut starts = starts.to_vec();
        starts.sort_by_key(|start| start.partition);
        starts.dedup_by_key(|start| start.partition);
        let mut restored = Vec::new();
        for start in &starts {
            let (known, released) = remembered(&self.config.name, start.partition, lookup);
            let mut from = known.unwrap_or(start.start);
            if from > start.end {
                self.warnings.push(format!(
                    "the cursor of partition {} stands at {from}, beyond the log's end {}: a restored or foreign log? \
                     Going on from the end of the log, with a new session",
                    start.partition, start.end
                ));
                from = start.end;
                self.session_valid = false;
            }
            // Before a crash at most a window of records was published without a trace in the log.
            let published = if known.is_some() || had_session { UPSTREAM_WINDOW_MAX } else { 0 };
            restored.push((start.partition, from, u64::from(published).min(start.end - from), released));
        }
        let span = self.span();
        let places: BTreeMap<PartitionId, u16> = self.slots.iter().copied().zip(0..).collect();
        for (partition, cursor, doubt, released) in restored {
            let Some(&slot) = places.get(&partition) else { continue };
            let mut lane = Lane::new(partition, slot, self.config.exactly_once, span, cursor, doubt);
            if let Some(released) = released.filter(|value| self.session_valid && value.session == self.session)
                && !lane.restore(&released, &mut self.usage)
            {
                self.session_valid = false;
            }
            self.by_slot.insert(slot, self.lanes.len());
            self.lanes.push(lane);
        }
    }

    fn span(&self) -> u64 {
        u64::from(self.range).min(LANE_SPAN_MAX)
    }
}

/// The cursor that the log remembers for an upstream and a partition: its replica's LEO at a start. It stands in two records, since
/// at QoS 2 the one of what is released carries it along.
pub fn remembered_cursor(upstream: &str, partition: PartitionId, lookup: &mut Lookup<'_>) -> Option<Offset> {
    remembered(upstream, partition, lookup).0
}

fn remembered(upstream: &str, partition: PartitionId, lookup: &mut Lookup<'_>) -> (Option<Offset>, Option<ReleasedV1>) {
    let key = lane_key(upstream, partition);
    let cursor = lookup(StateKind::Cursor, &key).and_then(|bytes| decode::<CursorV1>(&bytes));
    let released = lookup(StateKind::Released, &key).and_then(|bytes| decode::<ReleasedV1>(&bytes));
    (cursor.map(|value| value.next).max(released.as_ref().map(|value| value.cursor)), released)
}

/// Ranges for these partitions, with room to add as many again before the identifiers must be divided anew.
fn fresh_slots(starts: &[LaneStart]) -> (u16, Vec<PartitionId>) {
    let mut slots: Vec<PartitionId> = starts.iter().map(|start| start.partition).collect();
    slots.sort();
    slots.dedup();
    let places = (slots.len() * 2).next_power_of_two().clamp(4, UPSTREAM_LANES_MAX);
    (u16::try_from(65_535 / places).unwrap_or(u16::MAX), slots)
}

/// The agreed ranges with a free one for each new partition; `None` if they are used up: then the session begins anew.
fn extend_slots(mut value: SessionV1, starts: &[LaneStart]) -> Option<SessionV1> {
    let places = 65_535 / value.range.max(1) as usize;
    for start in starts {
        if !value.slots.contains(&start.partition) {
            value.slots.push(start.partition);
        }
    }
    (value.range > 0 && value.slots.len() <= places).then_some(value)
}
