//! What `/proc` says of this process, for the `process_*` metrics. Linux only, like the rest of the house; what cannot be read is
//! left out.

use std::fs;

/// Clock ticks in a second as `/proc` counts them: USER_HZ, 100 on every Linux that Rust runs on.
const TICKS: f64 = 100.0;

/// One look at the process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// User and system time.
    pub cpu_seconds: Option<f64>,
    /// Resident memory.
    pub resident_bytes: Option<u64>,
    /// Virtual memory.
    pub virtual_bytes: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// When it started, seconds since 1970.
    pub start_seconds: Option<f64>,
    /// Open file descriptors.
    pub open_fds: Option<u64>,
    /// File descriptors that may be open.
    pub max_fds: Option<u64>,
}

impl Process {
    /// Reads it. Blocks for some tens of microseconds.
    pub fn read() -> Self {
        let mut process = Self::default();
        if let Ok(stat) = fs::read_to_string("/proc/self/stat") {
            process.read_stat(&stat);
        }
        if let Ok(status) = fs::read_to_string("/proc/self/status") {
            let field = |name: &str| {
                status.lines().find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next()?.parse().ok())
            };
            let kib = |name| field(name).map(|kib: u64| kib << 10);
            (process.resident_bytes, process.virtual_bytes) = (kib("VmRSS:"), kib("VmSize:"));
            process.threads = field("Threads:");
        }
        if let (Some(ticks), Ok(stat)) = (process.start_seconds, fs::read_to_string("/proc/stat")) {
            let boot = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
            process.start_seconds = boot.map(|boot| boot + ticks);
        }
        process.open_fds = fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as u64);
        process.max_fds = fs::read_to_string("/proc/self/limits").ok().as_deref().and_then(max_fds);
        process
    }

    /// Fields of `/proc/self/stat`; `start_seconds` counts from the boot here.
    fn read_stat(&mut self, stat: &str) {
        // The second field is the program's name in parentheses and may hold anything: count from its end.
        let Some((_, rest)) = stat.rsplit_once(')') else { return };
        let field = |number: usize| rest.split_ascii_whitespace().nth(number - 3);
        let ticks = |number| field(number).and_then(|text| text.parse::<f64>().ok()).map(|ticks| ticks / TICKS);
        self.cpu_seconds = ticks(14).zip(ticks(15)).map(|(user, system)| user + system);
        self.start_seconds = ticks(22);
    }
}

fn max_fds(limits: &str) -> Option<u64> {
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_ascii_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen() {
        let process = Process::read();
        assert!(process.resident_bytes.unwrap() > 100_000);
        assert!(process.threads.unwrap() >= 1 && process.open_fds.unwrap() >= 3);
        assert!(process.start_seconds.unwrap() > 1.5e9);
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat =
            "7 (a) b (c)) S 1 1 1 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 6 0 12345 1000000 25 18446744073709551615";
        let mut process = Process::default();
        process.read_stat(stat);
        assert_eq!((process.cpu_seconds, process.start_seconds), (Some(2.0), Some(123.45)));
    }
}
