//! How much a suite does: a little in `cargo test`, the counts of the promise in `.ci/full`, and what is told when a tool is absent.

use std::path::PathBuf;

/// Whether every suite has to run in full, and whatever it needs has to be there.
pub fn full() -> bool {
    std::env::var("FOREBAY_FULL").is_ok_and(|value| value == "1")
}

/// The number in the environment variable `name`; else `quick`, or `in_full` with FOREBAY_FULL=1.
pub fn count(name: &str, quick: u64, in_full: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}: expected a number, found {text:?}")),
        Err(_) if full() => in_full,
        Err(_) => quick,
    }
}

/// Where a program is.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// The program, or `None` after saying that the suite is skipped. With FOREBAY_FULL=1 its absence is a failure.
pub fn need(program: &str, suite: &str) -> Option<PathBuf> {
    let found = find(program);
    if found.is_none() {
        assert!(!full(), "{suite} needs {program}, which is not installed");
        println!("SKIPPED {suite}: {program} is not installed");
    }
    found
}
