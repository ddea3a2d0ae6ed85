//! What happened, line by line: a hash over all of it tells whether two runs were the same, the last lines tell how it went wrong.

use std::collections::VecDeque;
use std::fmt::{Arguments, Write as _};

/// Lines that a failure shows.
const TAIL_LINES: usize = 60;

#[derive(Debug, Default)]
pub struct Trace {
    /// Every line is printed at once: `FOREBAY_TRACE=1`, for looking at one seed.
    loud: bool,
    hash: u64,
    lines: u64,
    tail: VecDeque<String>,
}

impl Trace {
    pub fn new() -> Self {
        Self { loud: std::env::var_os("FOREBAY_TRACE").is_some(), ..Self::default() }
    }

    pub fn note(&mut self, at_ns: u64, what: Arguments<'_>) {
        let mut line =
            if self.tail.len() == TAIL_LINES { self.tail.pop_front().unwrap_or_default() } else { String::new() };
        line.clear();
        let _ = write!(line, "{:>12.3} ms  {what}", at_ns as f64 / 1e6);
        if self.loud {
            println!("{line}");
        }
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
        self.hash = self.hash.rotate_left(17) ^ self.lines;
        self.lines += 1;
        self.tail.push_back(line);
    }

    /// The same for two runs that did the same.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn tail(&self) -> String {
        self.tail.iter().map(|line| format!("{line}\n")).collect()
    }
}
