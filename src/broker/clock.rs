//! The clocks, read for the core once per turn.

use crate::types::Now;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// 2026-01-01: a clock that says less was never set.
const PLAUSIBLE_MS: i64 = 1_767_225_600_000;
/// Where systemd-timesyncd keeps its mark; without it something else (chrony, the host of a container) keeps the time.
const TIMESYNC: &str = "/run/systemd/timesync";

/// Whether the wall clock is set, as last looked up.
static WALL_SYNCED: AtomicBool = AtomicBool::new(false);

/// Monotonic nanoseconds within this boot, the same in every process.
pub fn mono_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(nanoseconds(time)).unwrap_or(0)
}

/// The time for a step of the engine.
pub fn now() -> Now {
    let wall_ms = i64::try_from(nanoseconds(clock_gettime(ClockId::Realtime)) / 1_000_000).ok();
    Now { mono_ns: mono_ns(), wall_ms, wall_synced: WALL_SYNCED.load(Ordering::Relaxed) }
}

fn nanoseconds(time: Timespec) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// Looks up whether the wall clock is set: systemd-timesyncd says so, or where it does not run the time is plausible. To be called
/// now and then; it looks at a file.
pub fn look_up_synced() {
    let synced = match Path::new(TIMESYNC).exists() {
        true => Path::new(TIMESYNC).join("synchronized").exists(),
        false => nanoseconds(clock_gettime(ClockId::Realtime)) / 1_000_000 > i128::from(PLAUSIBLE_MS),
    };
    WALL_SYNCED.store(synced, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_is_that_of_the_boot_and_grows() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime_s: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let (first, second) = (mono_ns(), mono_ns());
        assert!(first > 0 && second >= first);
        // The monotonic clock stands still while the machine sleeps, /proc/uptime does not.
        assert!((first as f64) / 1e9 <= uptime_s + 1.0);
    }
}
