//! What the end-to-end suites share: real processes, a real Mosquitto, a link that can be cut, an MQTT client and an MQTT peer that
//! do exactly what a test says, and the judge that compares what was acknowledged with what is stored.
//!
//! Everything that is started here ends with the value that stands for it, also when a test panics.

pub mod client;
pub mod counts;
pub mod cutter;
pub mod gateway;
pub mod judge;
pub mod load;
pub mod mosquitto;
pub mod peer;
pub mod ports;
pub mod process;
pub mod readings;
pub mod wire;

use std::time::{Duration, Instant};

/// Asks again and again until there is an answer; panics with `what` if there is none in time.
pub fn until<T>(what: &str, timeout: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + timeout;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "{what}: not within {timeout:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Seconds, for what takes long on a slow machine: generous, since only a failure waits for it.
pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Milliseconds.
pub const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A small generator of numbers for jitter; the seed is printed by whoever uses it.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `bound` (xorshift).
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
