//! Medians, and times in buckets of about 3 %.

use std::time::Duration;

/// The middle value; the mean of the two middle ones would invent a figure.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

const SUB_BITS: u32 = 5;
const BUCKETS: usize = 64 << SUB_BITS;

/// A histogram of times.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0 }
    }
}

impl Histogram {
    /// Counts one time.
    pub fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1 << SUB_BITS);
        let exponent = nanos.ilog2();
        let sub = (nanos >> (exponent - SUB_BITS)) & ((1 << SUB_BITS) - 1);
        let index = ((exponent as usize) << SUB_BITS) | usize::try_from(sub).unwrap_or_default();
        if let Some(count) = self.counts.get_mut(index) {
            *count += 1;
            self.total += 1;
        }
    }

    /// The time below which this part of all lies, in µs.
    pub fn quantile_micros(&self, part: f64) -> f64 {
        let wanted = (self.total as f64 * part).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                let exponent = (index >> SUB_BITS) as i32;
                let sub = (index & ((1 << SUB_BITS) - 1)) as f64;
                return (1.0 + (sub + 0.5) / f64::from(1 << SUB_BITS)) * 2f64.powi(exponent) / 1e3;
            }
        }
        f64::NAN
    }
}
