//! Compares what was acknowledged with what is stored: by the publishers' own sequence numbers.

use super::gateway::Record;
use super::load::Published;
use forebay::mqtt::QoS;
use std::collections::{BTreeMap, HashSet};

/// What came, by topic and in order: the sequence number in each payload.
pub type Arrived = BTreeMap<String, Vec<u64>>;

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Acknowledged messages.
    pub acked: u64,
    /// Messages that are there, each once.
    pub arrived: u64,
    /// Acknowledged and not there.
    pub lost: u64,
    /// There more than once.
    pub doubled: u64,
    /// First occurrences that come after a later message of their topic.
    pub reordered: u64,
    /// There, though nobody sent it.
    pub invented: u64,
    /// The first few of what is wrong.
    pub examples: Vec<String>,
}

impl Verdict {
    fn note(&mut self, example: String) {
        if self.examples.len() < 8 {
            self.examples.push(example);
        }
    }

    /// Panics where something acknowledged is missing or out of order.
    pub fn nothing_lost(&self) -> &Self {
        assert!(self.lost == 0 && self.reordered == 0 && self.invented == 0, "{self:#?}");
        self
    }

    /// Panics where something is there twice.
    pub fn nothing_doubled(&self) -> &Self {
        assert_eq!(self.doubled, 0, "{self:#?}");
        self
    }
}

/// The sequence number in a payload as the publishers of load.rs make it.
pub fn seq(payload: &[u8]) -> u64 {
    let text = core::str::from_utf8(payload).unwrap_or_default();
    let digits = text.strip_prefix("{\"seq\":").and_then(|rest| rest.split(',').next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no sequence number in {text:?}"))
}

/// Records by topic.
pub fn by_topic<'a>(records: impl IntoIterator<Item = &'a Record>) -> Arrived {
    let mut arrived = Arrived::new();
    for record in records {
        arrived.entry(record.topic.clone()).or_default().push(seq(record.payload.as_bytes()));
    }
    arrived
}

/// Judges one publisher's messages.
pub fn judge(published: &Published, arrived: &Arrived) -> Verdict {
    let mut verdict = Verdict { acked: published.acked.len() as u64, ..Verdict::default() };
    let plan = &published.plan;
    let mut there = HashSet::new();
    for number in 0..plan.topics as u64 {
        let topic = plan.topic(number);
        let mut highest = None;
        for &seq in arrived.get(&topic).into_iter().flatten() {
            if seq >= published.sent || plan.topic(seq) != topic {
                verdict.invented += 1;
                verdict.note(format!("{topic}: {seq} was never sent there"));
            } else if !there.insert(seq) {
                verdict.doubled += 1;
                verdict.note(format!("{topic}: {seq} is there again"));
            } else if highest.is_some_and(|highest| seq < highest) {
                verdict.reordered += 1;
                verdict.note(format!("{topic}: {seq} comes after {highest:?}"));
            } else {
                highest = Some(seq);
            }
        }
    }
    verdict.arrived = there.len() as u64;
    for seq in published.acked.iter().filter(|seq| !there.contains(seq)) {
        verdict.lost += 1;
        verdict.note(format!("{}: {seq} was acknowledged and is missing", plan.topic(*seq)));
    }
    verdict
}

/// Judges all of them: nothing acknowledged lost, first occurrences in order, QoS 2 once.
pub fn judge_all(all: &[Published], arrived: &Arrived) -> Verdict {
    let mut sum = Verdict::default();
    for published in all {
        let verdict = judge(published, arrived);
        verdict.nothing_lost();
        if published.plan.qos == QoS::ExactlyOnce {
            verdict.nothing_doubled();
        }
        assert_eq!(published.sessions_lost, 0, "{}: the gateway forgot its session", published.plan.id);
        assert_eq!(published.refused, [], "{}: refused", published.plan.id);
        sum.acked += verdict.acked;
        sum.arrived += verdict.arrived;
        sum.doubled += verdict.doubled;
    }
    sum
}

/// The centre has each topic's records exactly as the gateway stored them: all, once, in order.
pub fn same(gateway: &Arrived, centre: &Arrived) {
    for (topic, stored) in gateway {
        let none = Vec::new();
        let there = centre.get(topic).unwrap_or(&none);
        if stored != there {
            let at = stored.iter().zip(there).position(|(a, b)| a != b).unwrap_or(stored.len().min(there.len()));
            let around =
                |list: &[u64]| format!("{:?}", &list[at.saturating_sub(3).min(list.len())..(at + 5).min(list.len())]);
            panic!(
                "{topic}: {} stored, {} at the centre, differing from {at} on: {} and {}",
                stored.len(),
                there.len(),
                around(stored),
                around(there)
            );
        }
    }
    assert_eq!(gateway.len(), centre.len(), "topics");
}
