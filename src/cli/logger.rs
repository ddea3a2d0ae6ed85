//! The log on stderr: a level per module, and journald's priority in front of each line when stderr is the journal.

use ::log::{Level, LevelFilter, Log, Metadata, Record};
use std::io::Write;

/// What is let through: `info`, or `info,upstream=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    default: LevelFilter,
    /// By module, the longest name first, so that the most specific one decides.
    modules: Vec<(String, LevelFilter)>,
}

impl Filter {
    /// Reads it; the error says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let level = |text: &str| {
            let level = ["error", "warn", "info", "debug"].contains(&text).then(|| text.parse().ok()).flatten();
            level.ok_or_else(|| format!("expected error, warn, info or debug, found {text:?}"))
        };
        let mut filter = Self { default: LevelFilter::Info, modules: Vec::new() };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                None => filter.default = level(part)?,
                Some((module, text)) => filter.modules.push((module.trim().to_owned(), level(text.trim())?)),
            }
        }
        filter.modules.sort_by_key(|(module, _)| std::cmp::Reverse(module.len()));
        Ok(filter)
    }

    /// With another level where no module says otherwise.
    pub fn with_default(mut self, default: LevelFilter) -> Self {
        self.default = default;
        self
    }

    fn level(&self, target: &str) -> LevelFilter {
        let module = target.strip_prefix("forebay::").unwrap_or(target);
        let named =
            |name: &str| module.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
        self.modules.iter().find(|(name, _)| named(name)).map_or(self.default, |(_, level)| *level)
    }

    fn most(&self) -> LevelFilter {
        self.modules.iter().map(|(_, level)| *level).fold(self.default, std::cmp::max)
    }
}

struct Logger {
    filter: Filter,
    journal: bool,
}

/// Logs to stderr from here on. Only the first call in a process has an effect.
pub fn install(filter: Filter) {
    let most = filter.most();
    if ::log::set_boxed_logger(Box::new(Logger { filter, journal: stderr_is_the_journal() })).is_ok() {
        ::log::set_max_level(most);
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Of the libraries only what is wrong is of interest here.
        let ours = !metadata.target().contains("::") || metadata.target().starts_with("forebay::");
        let level = self.filter.level(metadata.target());
        metadata.level() <= if ours { level } else { level.min(LevelFilter::Warn) }
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let now = (!self.journal).then(jiff::Timestamp::now);
            let line = line(record.level(), record.target(), &record.args().to_string(), now);
            // Where stderr is closed there is nobody to tell.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

/// One line. The journal has its own clock and reads the priority [sd-daemon(3)]; anybody else gets a time and a word.
fn line(level: Level, target: &str, text: &str, now: Option<jiff::Timestamp>) -> String {
    let target = target.strip_prefix("forebay::").unwrap_or(target);
    let (priority, word) = match level {
        Level::Error => (3, "error"),
        Level::Warn => (4, "warn"),
        Level::Info => (6, "info"),
        Level::Debug | Level::Trace => (7, "debug"),
    };
    // What clients send may stand in a message: it must not begin a line of its own.
    let text = text.trim_end().replace('\n', "\\n").replace('\r', "\\r");
    match now {
        None => format!("<{priority}>{target}: {text}\n"),
        Some(now) => format!("{now:.3} {word:<5} {target}: {text}\n"),
    }
}

/// Whether stderr is the stream that systemd names in JOURNAL_STREAM as `device:inode` [systemd.exec(5)]; it is inherited by
/// children whose stderr is something else, so the numbers are compared.
fn stderr_is_the_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(std::io::stderr()).is_ok_and(|stat| named == format!("{}:{}", stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_has_a_level_of_its_own() {
        let filter = Filter::parse("warn,upstream=debug,upstream::mqtt=error").unwrap();
        assert_eq!(filter.level("forebay::net::listener"), LevelFilter::Warn);
        assert_eq!(filter.level("upstream"), LevelFilter::Debug);
        assert_eq!(filter.level("forebay::upstream::tls"), LevelFilter::Debug);
        assert_eq!(filter.level("forebay::upstream::mqtt"), LevelFilter::Error);
        assert_eq!(filter.level("upstreams"), LevelFilter::Warn);
        assert_eq!(filter.most(), LevelFilter::Debug);
    }

    #[test]
    fn a_wrong_level_says_what_was_expected() {
        for text in ["loud", "info,net=trace", "info,net="] {
            assert!(Filter::parse(text).unwrap_err().contains("error, warn, info or debug"), "{text}");
        }
        assert_eq!(Filter::parse("").unwrap().default, LevelFilter::Info);
    }

    #[test]
    fn the_journal_gets_a_priority_and_no_time() {
        assert_eq!(line(Level::Error, "forebay::storage", "disk full\n", None), "<3>storage: disk full\n");
        assert_eq!(line(Level::Debug, "net", "x", None), "<7>net: x\n");
        let now = jiff::Timestamp::from_millisecond(1_796_112_000_123).unwrap();
        assert_eq!(line(Level::Warn, "log", "x", Some(now)), "2026-12-01T08:00:00.123Z warn  log: x\n");
    }

    #[test]
    fn a_message_stays_on_its_line() {
        assert_eq!(line(Level::Info, "session", "a\nb\r", None), "<6>session: a\\nb\\r\n".replace("\\r\n", "\n"));
    }
}
