//! Threads: a panic or an error in one of them ends the process, with a message, so that whoever supervises it starts it anew.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Starts a thread. The process does not outlive it unless it ends without an error.
pub(super) fn spawn<E: std::fmt::Display>(
    name: &str,
    body: impl FnOnce() -> Result<(), E> + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let title = name.to_owned();
    Builder::new().name(name.to_owned()).spawn(move || match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => die(&title, &error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            die(&title, text.unwrap_or("panicked"));
        }
    })
}

/// Ends the process at once: what is not synced was not acknowledged, so nothing is lost by it.
fn die(thread: &str, text: &str) -> ! {
    ::log::error!(target: "broker", "thread {thread} failed, so the process ends: {text}");
    std::process::exit(1)
}

/// Waits for the threads, not beyond `until`; false if any is left.
pub(super) fn join(threads: Vec<JoinHandle<()>>, until: Instant) -> bool {
    let mut all = true;
    for thread in threads {
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        // A panic has ended the process already.
        all &= thread.is_finished() && thread.join().is_ok();
    }
    all
}
