//! The judge: reads what stands in the centre's log and compares it with the sensors' own books.
//!
//! A reading is known by its sensor and number, a stored record of the gateway by its source (log id, partition, offset). So these
//! can be told apart: one record of the gateway that the centre has twice is *duplicated* by the link; two records with one reading
//! are what a QoS 1 sensor sent twice because no PUBACK had come (*republished*, which MQTT allows); the same from a QoS 2 sensor,
//! or from one that never sent it twice, is duplicated by the gateway.

use super::ledger::Ledger;
use crate::admin::records::{Line, Source};
use serde::Deserialize;
use std::collections::{HashMap, HashSet};

/// A reading's payload, as far as the judge looks at it.
#[derive(Debug, Deserialize)]
struct Reading {
    sensor: String,
    number: u64,
}

/// What was seen of one sensor.
#[derive(Debug, Default)]
struct Seen {
    /// Times that each reading stands in the centre's log under different sources.
    times: Vec<u32>,
    arrived: u64,
    /// The highest number so far.
    last: Option<u64>,
    reordered: u64,
    /// Readings under a second source.
    again: Vec<u64>,
    duplicated: u64,
}

/// Everything that was seen.
#[derive(Debug)]
pub struct Judge {
    sensors: HashMap<String, usize>,
    seen: Vec<Seen>,
    sources: HashSet<(String, u16, u64)>,
    /// Records that are no reading, or carry no source: the judge cannot work with them.
    strange: u64,
    backlog: Option<Backlog>,
}

/// What waited at the gateway when the link was mended.
#[derive(Debug)]
struct Backlog {
    /// Per sensor: readings below this number.
    below: Vec<u64>,
    since_ms: i64,
    drain: Drain,
}

/// How the backlog came.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drain {
    /// Readings of it that arrived since.
    pub records: u64,
    /// First and last of their arrivals, ms since 1970.
    pub span_ms: Option<(i64, i64)>,
}

impl Drain {
    /// From the first arrival to the last; a millisecond at least, since the clock is no finer.
    pub fn seconds(&self) -> f64 {
        self.span_ms.map_or(0.0, |(first, last)| (last - first).max(1) as f64 / 1000.0)
    }

    /// Records per second.
    pub fn rate(&self) -> f64 {
        if self.records == 0 { 0.0 } else { self.records as f64 / self.seconds() }
    }
}

/// What came out, for the sensors of one QoS or for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Different readings that are at the centre.
    pub arrived: u64,
    /// Readings that were acknowledged and are not at the centre.
    pub lost: u64,
    /// Readings that are there more often than they may.
    pub duplicated: u64,
    /// First occurrences that came after a later reading of the same sensor.
    pub reordered: u64,
}

impl Verdict {
    /// Whether the promise was kept.
    pub fn kept(&self) -> bool {
        self.lost == 0 && self.duplicated == 0 && self.reordered == 0
    }
}

impl Judge {
    /// Of these sensors.
    pub fn new(ledger: &Ledger) -> Self {
        let sensors = ledger.sensors.iter().enumerate().map(|(index, sensor)| (sensor.name.clone(), index)).collect();
        let seen = ledger.sensors.iter().map(|_| Seen::default()).collect();
        Self { sensors, seen, sources: HashSet::new(), strange: 0, backlog: None }
    }

    /// Readings at the centre so far.
    pub fn arrived(&self) -> u64 {
        self.seen.iter().map(|seen| seen.arrived).sum()
    }

    /// Records that the judge cannot work with.
    pub fn strange(&self) -> u64 {
        self.strange
    }

    /// Everything published until now and not arrived is the backlog; what arrives of it is timed.
    pub fn mended(&mut self, ledger: &Ledger, now_ms: i64) {
        let below = ledger.sensors.iter().map(|sensor| sensor.book().published).collect();
        self.backlog = Some(Backlog { below, since_ms: now_ms, drain: Drain::default() });
    }

    /// How the backlog came.
    pub fn drain(&self) -> Drain {
        self.backlog.as_ref().map(|backlog| backlog.drain).unwrap_or_default()
    }

    /// The next record of the centre's log, in order.
    pub fn record(&mut self, line: &Line<'_>) {
        let reading: Option<Reading> = line.payload.as_deref().and_then(|payload| serde_json::from_str(payload).ok());
        let source = line.source.as_deref().and_then(Source::parse);
        let known = reading.and_then(|reading| Some((*self.sensors.get(&reading.sensor)?, reading.number)));
        let (Some((index, number)), Some(source)) = (known, source) else {
            self.strange += 1;
            return;
        };
        let Some(seen) = self.seen.get_mut(index) else { return };
        if !self.sources.insert((source.log_id.to_owned(), source.partition, source.offset)) {
            seen.duplicated += 1;
            return;
        }
        let Ok(at) = usize::try_from(number) else { return };
        if seen.times.len() <= at {
            seen.times.resize(at + 1, 0);
        }
        let Some(times) = seen.times.get_mut(at) else { return };
        *times += 1;
        if *times > 1 {
            seen.again.push(number);
            return;
        }
        seen.arrived += 1;
        if seen.last.is_some_and(|last| number < last) {
            seen.reordered += 1;
        }
        seen.last = seen.last.max(Some(number));
        if let (Some(backlog), Some(ts_ms)) = (&mut self.backlog, line.ts_ms)
            && ts_ms >= backlog.since_ms
            && backlog.below.get(index).is_some_and(|below| number < *below)
        {
            backlog.drain.records += 1;
            let first = backlog.drain.span_ms.map_or(ts_ms, |(first, _)| first);
            backlog.drain.span_ms = Some((first, ts_ms));
        }
    }

    /// What comes out, for the sensors of this QoS; for all if `None`.
    pub fn verdict(&self, ledger: &Ledger, qos: Option<u8>) -> Verdict {
        let mut verdict = Verdict::default();
        for (sensor, seen) in ledger.sensors.iter().zip(&self.seen) {
            if qos.is_some_and(|qos| sensor.qos != qos) {
                continue;
            }
            let book = sensor.book();
            let there =
                |number: u64| usize::try_from(number).is_ok_and(|at| seen.times.get(at).is_some_and(|n| *n > 0));
            verdict.arrived += seen.arrived;
            verdict.lost += book.acked().filter(|number| !there(*number)).count() as u64;
            verdict.reordered += seen.reordered;
            let allowed = |number: &u64| sensor.qos == 1 && book.republished.contains(number);
            verdict.duplicated += seen.duplicated + seen.again.iter().filter(|number| !allowed(number)).count() as u64;
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    /// Sensors 0 and 1 publish at QoS 1, sensor 2 at QoS 2; each has sent and got acknowledged readings 0 to 3.
    fn ledger() -> Ledger {
        let ledger = Ledger::new(3);
        for sensor in &ledger.sensors {
            let mut book = sensor.book();
            for number in 0..4 {
                book.sent(number);
                book.acknowledged(number);
            }
        }
        ledger
    }

    /// A centre's log: sensor, number and the gateway's offset of each record.
    fn judged(ledger: &Ledger, log: &[(usize, u64, u64)]) -> Judge {
        let mut judge = Judge::new(ledger);
        for (sensor, number, offset) in log {
            let name = &ledger.sensors[*sensor].name;
            judge.record(&line(name, *number, Some(*offset), 0));
        }
        judge
    }

    fn line(sensor: &str, number: u64, offset: Option<u64>, ts_ms: i64) -> Line<'static> {
        Line {
            ts_ms: Some(ts_ms),
            source: offset.map(|offset| Cow::Owned(format!("gw/00ff/sensors/0/{offset}"))),
            payload: Some(Cow::Owned(super::super::readings::payload(sensor, 1, number))),
            ..Line::default()
        }
    }

    fn whole() -> Vec<(usize, u64, u64)> {
        (0..3).flat_map(|sensor| (0..4).map(move |number| (sensor, number, sensor as u64 * 4 + number))).collect()
    }

    #[test]
    fn everything_once_and_in_order_keeps_the_promise() {
        let ledger = ledger();
        let judge = judged(&ledger, &whole());
        assert_eq!(judge.verdict(&ledger, None), Verdict { arrived: 12, ..Verdict::default() });
        assert_eq!(judge.verdict(&ledger, Some(2)).arrived, 4);
        assert!(judge.verdict(&ledger, None).kept());
    }

    #[test]
    fn an_acknowledged_reading_that_is_not_there_is_lost() {
        let ledger = ledger();
        let log: Vec<_> = whole().into_iter().filter(|(sensor, number, _)| (*sensor, *number) != (1, 2)).collect();
        assert_eq!(judged(&ledger, &log).verdict(&ledger, None).lost, 1);
        assert_eq!(judged(&ledger, &[]).verdict(&ledger, None).lost, 12);
    }

    #[test]
    fn a_reading_that_was_not_acknowledged_may_be_missing() {
        let ledger = ledger();
        ledger.sensors[0].book().sent(4);
        assert!(judged(&ledger, &whole()).verdict(&ledger, None).kept());
    }

    #[test]
    fn one_record_of_the_gateway_twice_is_duplicated() {
        let ledger = ledger();
        let mut log = whole();
        log.push((0, 1, 1));
        let verdict = judged(&ledger, &log).verdict(&ledger, None);
        assert_eq!((verdict.duplicated, verdict.reordered, verdict.arrived), (1, 0, 12));
    }

    #[test]
    fn a_reading_that_a_qos_1_sensor_sent_again_is_no_duplicate() {
        let ledger = ledger();
        ledger.sensors[0].book().sent(3);
        let mut log = whole();
        log.push((0, 3, 100));
        assert!(judged(&ledger, &log).verdict(&ledger, None).kept());
        // Sensor 1 never sent it twice: the gateway stored it twice.
        log.push((1, 3, 101));
        assert_eq!(judged(&ledger, &log).verdict(&ledger, None).duplicated, 1);
    }

    #[test]
    fn a_reading_of_a_qos_2_sensor_is_there_once_or_duplicated() {
        let ledger = ledger();
        let mut log = whole();
        log.push((2, 3, 100));
        let judge = judged(&ledger, &log);
        assert_eq!(judge.verdict(&ledger, Some(2)).duplicated, 1);
        assert_eq!(judge.verdict(&ledger, Some(1)).duplicated, 0);
    }

    #[test]
    fn only_first_occurrences_have_an_order() {
        let ledger = ledger();
        // 0 1 2, and again 1 2 after the gateway died, then 3: as QoS 1 may look.
        ledger.sensors[0].book().sent(1);
        ledger.sensors[0].book().sent(2);
        let fine: Vec<_> =
            [0, 1, 2, 1, 2, 3].into_iter().zip(0..).map(|(number, offset)| (0, number, offset)).collect();
        let judge = judged(&ledger, &fine);
        assert_eq!((judge.verdict(&ledger, None).reordered, judge.verdict(&ledger, None).duplicated), (0, 0));
        let wrong: Vec<_> = [0, 2, 1, 3].into_iter().zip(0..).map(|(number, offset)| (0, number, offset)).collect();
        assert_eq!(judged(&ledger, &wrong).verdict(&ledger, None).reordered, 1);
    }

    #[test]
    fn what_is_no_reading_or_has_no_source_is_strange() {
        let ledger = ledger();
        let mut judge = Judge::new(&ledger);
        judge.record(&line("thermo-01", 0, None, 0));
        judge.record(&line("stranger", 0, Some(0), 0));
        judge.record(&Line::default());
        assert_eq!((judge.strange(), judge.arrived()), (3, 0));
    }

    #[test]
    fn the_drain_is_what_waited_when_the_link_was_mended() {
        let ledger = ledger();
        let mut judge = Judge::new(&ledger);
        judge.record(&line("thermo-01", 0, Some(0), 900));
        judge.mended(&ledger, 1_000);
        for (number, ts_ms) in [(1, 1_100), (2, 1_200), (3, 1_300)] {
            judge.record(&line("thermo-01", number, Some(number), ts_ms));
        }
        // Published after the link was mended: not of the backlog.
        judge.record(&line("thermo-01", 4, Some(4), 1_900));
        assert_eq!(judge.drain(), Drain { records: 3, span_ms: Some((1_100, 1_300)) });
        assert!((judge.drain().rate() - 15.0).abs() < 1e-9);
        assert_eq!(Drain::default().rate(), 0.0);
    }
}
