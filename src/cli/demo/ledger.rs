//! What the sensors know: which readings they sent, which were acknowledged, which they sent again.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One sensor's own book. Readings are numbered from 0, in order.
#[derive(Debug)]
pub struct Sensor {
    /// Its name: client identifier and part of the topic.
    pub name: String,
    /// QoS at which it publishes, 1 or 2.
    pub qos: u8,
    /// Readings that were taken so far; those from `published` on wait to be sent.
    due: AtomicU64,
    book: Mutex<Book>,
}

/// What became of the readings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    /// Readings that were sent at least once: all below this number.
    pub published: u64,
    /// Acknowledged, by number.
    acked: Vec<bool>,
    /// How many those are.
    pub acked_count: u64,
    /// Readings that were sent a second time under QoS 1, with another PUBLISH.
    pub republished: BTreeSet<u64>,
    /// How often that happened.
    pub republished_count: u64,
    /// Readings that the gateway refused, with the last reason.
    pub refused: u64,
    /// Why it is not connected, or was not last time.
    pub trouble: Option<String>,
    /// Whether it ever was.
    pub connected: bool,
}

impl Book {
    /// Notes that a reading was sent.
    pub fn sent(&mut self, number: u64) {
        if number >= self.published {
            self.published = number + 1;
        } else {
            self.republished.insert(number);
            self.republished_count += 1;
        }
    }

    /// Notes that a reading was acknowledged.
    pub fn acknowledged(&mut self, number: u64) {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        if self.acked.len() <= at {
            self.acked.resize(at + 1, false);
        }
        if let Some(acked) = self.acked.get_mut(at).filter(|acked| !**acked) {
            *acked = true;
            self.acked_count += 1;
        }
    }

    /// Numbers of the acknowledged readings.
    pub fn acked(&self) -> impl Iterator<Item = u64> + '_ {
        (0..).zip(&self.acked).filter(|(_, acked)| **acked).map(|(number, _)| number)
    }
}

impl Sensor {
    fn new(name: String, qos: u8) -> Self {
        Self { name, qos, due: AtomicU64::new(0), book: Mutex::default() }
    }

    /// The book, for a moment.
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readings taken so far.
    pub fn due(&self) -> u64 {
        self.due.load(SeqCst)
    }

    /// Takes readings until there are this many.
    pub fn take_until(&self, count: u64) {
        self.due.fetch_max(count, SeqCst);
    }
}

/// All sensors.
#[derive(Debug)]
pub struct Ledger {
    /// In the order of their numbers.
    pub sensors: Vec<Sensor>,
}

/// Sums over sensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Readings sent at least once.
    pub published: u64,
    /// Readings acknowledged.
    pub acked: u64,
    /// Readings sent again under QoS 1.
    pub republished: u64,
    /// Readings refused.
    pub refused: u64,
    /// Sensors that are connected.
    pub connected: u64,
}

impl Ledger {
    /// With `count` sensors, of which every third publishes at QoS 2.
    pub fn new(count: u32) -> Self {
        let sensor = |number: u32| match number % 3 {
            2 => Sensor::new(format!("pump-{:02}", number + 1), 2),
            _ => Sensor::new(format!("thermo-{:02}", number + 1), 1),
        };
        Self { sensors: (0..count).map(sensor).collect() }
    }

    /// Sums over the sensors of this QoS; all of them if `None`.
    pub fn sums(&self, qos: Option<u8>) -> Sums {
        let mut sums = Sums::default();
        for sensor in self.sensors.iter().filter(|sensor| qos.is_none_or(|qos| sensor.qos == qos)) {
            let book = sensor.book();
            sums.published += book.published;
            sums.acked += book.acked_count;
            sums.republished += book.republished_count;
            sums.refused += book.refused;
            sums.connected += u64::from(book.trouble.is_none() && book.connected);
        }
        sums
    }

    /// Whether every reading that was taken is acknowledged (or refused).
    pub fn all_settled(&self) -> bool {
        self.sensors.iter().all(|sensor| {
            let book = sensor.book();
            book.acked_count + book.refused >= sensor.due()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_published_once_and_republished_after_that() {
        let mut book = Book::default();
        for number in [0, 1, 2, 1, 2, 3] {
            book.sent(number);
        }
        assert_eq!((book.published, book.republished_count), (4, 2));
        assert_eq!(book.republished, [1, 2].into());
    }

    #[test]
    fn an_acknowledgement_counts_once() {
        let mut book = Book::default();
        for number in [2, 0, 2] {
            book.acknowledged(number);
        }
        assert_eq!(book.acked_count, 2);
        assert_eq!(book.acked().collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn every_third_sensor_is_one_of_qos_2() {
        let ledger = Ledger::new(12);
        assert_eq!(ledger.sensors.iter().filter(|sensor| sensor.qos == 2).count(), 4);
        ledger.sensors[0].take_until(1);
        assert!(!ledger.all_settled());
        ledger.sensors[0].book().acknowledged(0);
        assert!(ledger.all_settled());
    }
}
