//! Ports for servers that must come back at the same address after a restart: outside the range from which the system takes ports
//! for outgoing connections, so that nobody sits there meanwhile.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 12_000;
const RANGE: u16 = 18_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port of 127.0.0.1 on which nobody listens.
pub fn free() -> u16 {
    // Test processes that run at the same time begin at different places.
    let start = u16::try_from(u64::from(std::process::id()) * 131 % u64::from(RANGE)).unwrap();
    for _ in 0..RANGE {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (start.wrapping_add(step) % RANGE);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {FIRST} on");
}
