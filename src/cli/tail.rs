//! `forebay tail`: reads a stream, from the running broker or straight from a stopped one's data directory.

mod stopped;

use super::print;
use super::status::data_dir;
use super::{Common, Failure};
use crate::admin::client::{Client, ClientError};
use crate::admin::from;
use crate::admin::records::{Line, Next};
use crate::config;
use crate::engine::io::ReadFrom;
use crate::limits::ADMIN_RECORDS_MAX;
use clap::Args;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stopped::Stopped;

/// Between looks for new records.
const FOLLOW: Duration = Duration::from_millis(200);

/// Arguments of `tail`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  forebay tail telemetry --from -1h --follow\n  forebay tail telemetry --partition 0 --from 1000 -n 10 --json"
)]
pub struct TailArgs {
    /// Stream to read
    #[arg(value_name = "STREAM")]
    stream: String,
    /// Where to begin: earliest, latest, an offset, a time as 2026-12-01T08:00:00Z, or a time ago as -1h [default: earliest, with --follow latest]
    #[arg(long, value_name = "FROM", allow_hyphen_values = true)]
    from: Option<String>,
    /// One partition only
    #[arg(long, value_name = "N")]
    partition: Option<u16>,
    /// Go on with what comes
    #[arg(short = 'f', long)]
    follow: bool,
    /// End after this many records
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Data directory, instead of the configuration's
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// Where the records come from.
enum Source {
    Running(Client),
    Stopped(Box<Stopped>),
}

/// Prints the records.
pub fn run(common: &Common, args: &TailArgs) -> Result<(), Failure> {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
    let said = args.from.as_deref().unwrap_or(if args.follow { "latest" } else { "earliest" });
    let begin = from::parse(said, now_ms).map_err(|error| Failure::usage(format!("--from: {error}")))?;
    let source = open(common, args)?;
    let out = BufWriter::new(std::io::stdout().lock());
    let harmless = std::io::stdout().is_terminal();
    Tail { common, args, source, out, begin, harmless, printed: 0 }.run()
}

fn open(common: &Common, args: &TailArgs) -> Result<Source, Failure> {
    let dir = data_dir(common, args.data_dir.as_deref())?;
    let mut client = Client::new(&dir);
    match client.get("/healthz") {
        Ok(_) => return Ok(Source::Running(client)),
        Err(ClientError::NotRunning) if args.follow => {
            let dir = dir.display();
            return Err(Failure::failed(format!("no broker runs on {dir}: start it, or leave --follow away")));
        }
        Err(ClientError::NotRunning) => {}
        Err(error) => return Err(Failure::failed(error.to_string())),
    }
    // A directory that was named is read as it is; the configuration only says what else there is to know of its streams.
    let settings = match &args.data_dir {
        Some(_) => {
            config::from_str("", "the built-in defaults").map_err(|errors| Failure::failed(errors.to_string()))?
        }
        None => common.load()?,
    };
    let (stopped, warnings) = Stopped::open(settings.settings, &dir)?;
    if !common.quiet {
        warnings.iter().for_each(|warning| eprintln!("forebay: {warning}"));
    }
    Ok(Source::Stopped(Box::new(stopped)))
}

struct Tail<'a, W: Write> {
    common: &'a Common,
    args: &'a TailArgs,
    source: Source,
    out: W,
    begin: ReadFrom,
    /// Whether control characters are shown instead of obeyed.
    harmless: bool,
    printed: u64,
}

impl<W: Write> Tail<'_, W> {
    fn run(&mut self) -> Result<(), Failure> {
        let mut from = self.begin;
        let mut gone = false;
        loop {
            let body = match self.page(from) {
                Ok(body) => body,
                // Positions outlive a restart: it goes on where it was.
                Err(Failed::Gone) if self.args.follow => {
                    if !gone && !self.common.quiet {
                        eprintln!("forebay: the broker is gone; waiting for it to come back");
                    }
                    gone = true;
                    std::thread::sleep(FOLLOW);
                    continue;
                }
                Err(Failed::Gone) => return Err(Failure::failed("the broker stopped while it was asked")),
                Err(Failed::Other(failure)) => return Err(failure),
            };
            gone = false;
            let (next, any) = self.print(&body)?;
            if self.args.limit == Some(self.printed) {
                return Ok(());
            }
            let still = ReadFrom::Position(next) == from;
            from = ReadFrom::Position(next);
            match (any, self.args.follow) {
                (true, _) => {}
                (false, true) => std::thread::sleep(FOLLOW),
                (false, false) if still => return Ok(()),
                (false, false) => {}
            }
        }
    }

    fn page(&mut self, from: ReadFrom) -> Result<Vec<u8>, Failed> {
        let (stream, partition) = (&self.args.stream, self.args.partition);
        match &mut self.source {
            Source::Stopped(stopped) => stopped.page(stream, partition, from, ADMIN_RECORDS_MAX).map_err(Failed::Other),
            Source::Running(client) => {
                let place = partition.map_or_else(String::new, |partition| format!("/partitions/{partition}"));
                let from = from::write(from);
                let target = format!("/api/v1/streams/{stream}{place}/records?from={from}&limit={ADMIN_RECORDS_MAX}");
                client.get(&target).map_err(|error| match error {
                    ClientError::NotRunning | ClientError::Broken(_) => Failed::Gone,
                    ClientError::Refused { code, .. } if code == "stopping" => Failed::Gone,
                    error => Failed::Other(Failure::failed(error.to_string())),
                })
            }
        }
    }

    /// Prints a page; where to read on, and whether there was any record in it.
    fn print(&mut self, body: &[u8]) -> Result<(crate::types::LogPosition, bool), Failure> {
        let strange = || Failure::failed("the broker answered in another shape: it is of another version");
        let mut any = false;
        for text in body.split_inclusive(|byte| *byte == b'\n') {
            if let Ok(Next { next }) = serde_json::from_slice(text) {
                self.out.flush()?;
                return match from::parse(&next, 0) {
                    Ok(ReadFrom::Position(position)) => Ok((position, any)),
                    _ => Err(strange()),
                };
            }
            let line: Line<'_> = serde_json::from_slice(text).map_err(|_| strange())?;
            any = true;
            if self.wanted(&line) {
                self.record(text, &line)?;
                self.printed += 1;
                if self.args.limit == Some(self.printed) {
                    self.out.flush()?;
                    return Ok((crate::types::LogPosition::default(), any));
                }
            }
        }
        Err(strange())
    }

    /// From an offset on, that offset holds for every partition, on later pages too.
    fn wanted(&self, line: &Line<'_>) -> bool {
        match self.begin {
            ReadFrom::Offset(begin) => line.offset.is_none_or(|offset| offset >= begin),
            _ => true,
        }
    }

    fn record(&mut self, text: &[u8], line: &Line<'_>) -> std::io::Result<()> {
        if self.common.json {
            return self.out.write_all(text);
        }
        let time = line.ts_ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        let time = time.map_or_else(|| "-".to_owned(), |time| format!("{time:.3}"));
        let shown = |text: &str| if self.harmless { print::harmless(text) } else { text.to_owned() };
        let payload = match (&line.payload, &line.payload_b64) {
            (Some(text), _) => shown(text),
            (None, Some(b64)) => format!("base64:{b64}"),
            (None, None) => String::new(),
        };
        let (partition, offset) = (line.partition.unwrap_or_default(), line.offset.unwrap_or_default());
        writeln!(self.out, "{partition}:{offset}  {time}  {}  {payload}", shown(&line.topic))
    }
}

/// Why there is no page.
enum Failed {
    /// The broker stopped.
    Gone,
    /// Something else.
    Other(Failure),
}
