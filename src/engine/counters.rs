//! What the engine counts, cheaply; the status turns it into names.

use crate::mqtt::{QoS, Reason};
use crate::types::{Acks, StreamId};
use foldhash::fast::FixedState;
use std::collections::{BTreeMap, HashMap};

/// Counters since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    received: HashMap<(Option<StreamId>, QoS), u64, FixedState>,
    acks: HashMap<(Acks, Reason), u64, FixedState>,
    lost: HashMap<(Option<StreamId>, &'static str), u64, FixedState>,
    pub(super) payload_bytes: u64,
    pub(super) written_bytes: u64,
    pub(super) delivered: u64,
    pub(super) commits: u64,
    pub(super) commit_records: u64,
}

impl Counters {
    pub(super) fn received(&mut self, stream: Option<StreamId>, qos: QoS) {
        *self.received.entry((stream, qos)).or_default() += 1;
    }

    pub(super) fn acked(&mut self, level: Acks, reason: Reason) {
        *self.acks.entry((level, reason)).or_default() += 1;
    }

    /// `stream` is `None` for what no stream stores.
    pub(super) fn lost(&mut self, stream: Option<StreamId>, cause: &'static str, records: u64) {
        *self.lost.entry((stream, cause)).or_default() += records;
    }

    /// By cause, over all streams.
    pub(super) fn losses(&self) -> BTreeMap<String, u64> {
        let mut losses = BTreeMap::new();
        for ((_, cause), count) in &self.lost {
            *losses.entry((*cause).to_owned()).or_default() += count;
        }
        losses
    }

    /// As the status has them; `name` gives a stream's name.
    pub(super) fn named(&self, name: impl Fn(Option<StreamId>) -> String) -> super::status::Counters {
        let received = self.received.iter().map(|((stream, qos), n)| (format!("{},{}", qos.bits(), name(*stream)), *n));
        let acks = self.acks.iter().map(|((level, reason), n)| (format!("{},{}", level.number(), reason.0), *n));
        let lost = self.lost.iter().map(|((stream, cause), n)| (format!("{},{cause}", name(*stream)), *n));
        super::status::Counters {
            publish_received: received.collect(),
            acks: acks.collect(),
            lost: lost.collect(),
            delivered: self.delivered,
            commits: self.commits,
            commit_records: self.commit_records,
        }
    }
}
