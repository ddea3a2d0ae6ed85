//! `forebay pub`: publishes to any MQTT broker and waits for every acknowledgement.

use super::mqtt::args::{ConnectArgs, qos};
use super::mqtt::{self, Client, Outgoing, Seen, Trouble};
use super::{Common, Failure};
use crate::limits::{PUB_INFLIGHT_MAX, PUB_PAYLOAD_BYTES_MAX};
use crate::types::Acks;
use bytes::Bytes;
use clap::Args;
use std::collections::HashMap;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Arguments of `pub`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay pub -t sensors/a/temperature -m 21.5 -q 1\n  \
                        forebay pub -t sensors/a/log -l -q 1 --acks -1 < readings.txt")]
pub struct PubArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Topic to publish to
    #[arg(short = 't', long, value_name = "TOPIC", value_parser = topic)]
    topic: String,
    #[command(flatten)]
    payload: Payload,
    /// QoS
    #[arg(short = 'q', long, value_name = "0|1|2", default_value = "0", value_parser = qos)]
    qos: u8,
    /// Retain the message
    #[arg(short = 'r', long)]
    retain: bool,
    /// Publish it this many times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Level of acknowledgement to ask Forebay for, instead of the stream's (MQTT 5)
    #[arg(long, value_name = "0|1|-1", allow_hyphen_values = true, value_parser = acks)]
    acks: Option<Acks>,
    /// Seconds without any progress after which to give up
    #[arg(short = 'W', long = "timeout", value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Payload {
    /// Message
    #[arg(short = 'm', long, value_name = "TEXT", allow_hyphen_values = true)]
    message: Option<String>,
    /// Send the content of a file
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Send each line of standard input
    #[arg(short = 'l', long = "stdin-line")]
    lines: bool,
    /// Send standard input as one message
    #[arg(short = 's', long = "stdin-file")]
    stdin: bool,
    /// Send an empty message
    #[arg(short = 'n', long = "null-message")]
    null: bool,
}

fn topic(text: &str) -> Result<String, String> {
    let fits = !text.is_empty() && text.len() <= 65_535 && !text.contains(['+', '#', '\0']);
    fits.then(|| text.to_owned()).ok_or_else(|| "expected a topic without + and # (those belong into filters)".into())
}

fn acks(text: &str) -> Result<Acks, String> {
    text.parse().ok().and_then(Acks::from_number).ok_or_else(|| "expected 0, 1 or -1".into())
}

/// What the two threads know together: one feeds messages in, the other watches what becomes of them.
#[derive(Debug, Default)]
struct Progress {
    fed: u64,
    settled: u64,
    input: Option<String>,
    over: bool,
}

#[derive(Default)]
struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What became of the messages.
#[derive(Debug, Default)]
struct Tally {
    sent: u64,
    done: u64,
    refused: Option<String>,
}

/// Publishes everything; code 1 unless every message is acknowledged.
pub fn run(common: &Common, args: &PubArgs) -> Result<(), Failure> {
    if args.acks.is_some() && !args.connect.v5() {
        return Err(Failure::usage("--acks travels as a property of MQTT 5; leave -V 311 away, or --acks"));
    }
    let whole = match &args.payload {
        Payload { message: Some(text), .. } => Some(Bytes::from(text.clone())),
        Payload { file: Some(path), .. } => Some(read_file(path)?),
        Payload { stdin: true, .. } => {
            Some(read_whole(std::io::stdin().lock(), "standard input").map_err(Failure::failed)?)
        }
        Payload { null: true, .. } => Some(Bytes::new()),
        Payload { .. } => None,
    };
    let options = args.connect.options("pub", PUB_INFLIGHT_MAX)?;
    let (client, mut events) = mqtt::client(&options, usize::from(PUB_INFLIGHT_MAX));
    let shared = Arc::new(Shared::default());
    let feeder = {
        let (client, shared) = (client.clone(), Arc::clone(&shared));
        let message = Outgoing {
            topic: args.topic.clone(),
            payload: Bytes::new(),
            qos: args.qos,
            retain: args.retain,
            acks: args.acks,
        };
        let repeat = args.repeat;
        move || feed(&client, &shared, &message, whole, repeat)
    };
    // Not joined: it may sit in a read of standard input that never ends, and the process ends without it.
    std::thread::spawn(feeder);
    drop(client);
    let (tally, trouble) = watch(&mut events, &shared, args);
    let input = shared.lock().input.take();
    report(common, args, &tally, trouble, input)
}

fn read_file(path: &Path) -> Result<Bytes, Failure> {
    let file = std::fs::File::open(path).map_err(|error| Failure::usage(format!("-f {}: {error}", path.display())))?;
    read_whole(file, &path.display().to_string()).map_err(Failure::usage)
}

fn read_whole(from: impl Read, name: &str) -> Result<Bytes, String> {
    let mut bytes = Vec::new();
    from.take(PUB_PAYLOAD_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| format!("{name}: {error}"))?;
    if bytes.len() as u64 > PUB_PAYLOAD_BYTES_MAX {
        return Err(format!("{name}: expected at most {PUB_PAYLOAD_BYTES_MAX} bytes, which is the largest packet"));
    }
    Ok(bytes.into())
}

/// Hands the messages over, waits until each is settled, then says DISCONNECT.
fn feed(client: &Client, shared: &Shared, message: &Outgoing, whole: Option<Bytes>, repeat: u64) {
    let give = |payload: Bytes| {
        for _ in 0..repeat {
            let mut progress = shared.lock();
            if progress.over {
                return false;
            }
            progress.fed += 1;
            drop(progress);
            if client.publish(Outgoing { payload: payload.clone(), ..message.clone() }).is_err() {
                return false;
            }
        }
        true
    };
    let input = match whole {
        Some(payload) => {
            give(payload);
            Ok(())
        }
        None => each_line(std::io::stdin().lock(), give),
    };
    let mut progress = shared.lock();
    progress.input = input.err();
    while !progress.over && progress.settled < progress.fed {
        progress = shared.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
    }
    drop(progress);
    client.disconnect();
}

/// Each line without its end; `give` returns false to stop.
fn each_line(mut input: impl BufRead, mut give: impl FnMut(Bytes) -> bool) -> Result<(), String> {
    loop {
        let mut line = Vec::new();
        let read = input.by_ref().take(PUB_PAYLOAD_BYTES_MAX + 1).read_until(b'\n', &mut line);
        read.map_err(|error| format!("standard input: {error}"))?;
        if line.is_empty() {
            return Ok(());
        }
        if line.len() as u64 > PUB_PAYLOAD_BYTES_MAX {
            return Err(format!(
                "a line of standard input has more than {PUB_PAYLOAD_BYTES_MAX} bytes, which is the largest packet"
            ));
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if !give(line.into()) {
            return Ok(());
        }
    }
}

/// Runs the connection until our DISCONNECT left, or something went wrong.
fn watch(events: &mut mqtt::Events, shared: &Shared, args: &PubArgs) -> (Tally, Option<String>) {
    let mut tally = Tally::default();
    let mut open: HashMap<u16, u64> = HashMap::new();
    let limit = Duration::from_secs(args.timeout);
    let mut last_progress = Instant::now();
    let mut connected = false;
    let trouble = loop {
        let next = if open.is_empty() && connected {
            events.wait()
        } else {
            match events.wait_within(limit.saturating_sub(last_progress.elapsed())) {
                Ok(next) => next,
                Err(()) => break Some(format!("no acknowledgement within {} s (-W)", args.timeout)),
            }
        };
        let before = tally.done;
        match next {
            None | Some(Ok(Seen::Disconnected)) => break None,
            Some(Ok(Seen::Connected)) => connected = true,
            Some(Ok(Seen::Sent(0))) => {
                tally.sent += 1;
                tally.done += 1;
            }
            Some(Ok(Seen::Sent(id))) => {
                tally.sent += 1;
                if open.is_empty() {
                    last_progress = Instant::now();
                }
                open.insert(id, tally.sent);
            }
            Some(Ok(Seen::Acked(id))) if open.remove(&id).is_some() => tally.done += 1,
            Some(Ok(Seen::Refused(id, reason))) => {
                let number = open.remove(&id).unwrap_or_default();
                break Some(refused(&mut tally, number, &reason));
            }
            Some(Ok(Seen::Ended(reason))) => break Some(format!("the broker ended the connection, {reason}")),
            Some(Ok(_)) => {}
            Some(Err(Trouble(text))) => break Some(text),
        }
        if tally.done > before {
            last_progress = Instant::now();
            shared.lock().settled = tally.done;
            shared.changed.notify_all();
        }
    };
    shared.lock().over = true;
    shared.changed.notify_all();
    (tally, trouble)
}

fn refused(tally: &mut Tally, number: u64, reason: &str) -> String {
    tally.refused = Some(reason.to_owned());
    format!("message {number} was refused, {reason}")
}

fn report(
    common: &Common,
    args: &PubArgs,
    tally: &Tally,
    trouble: Option<String>,
    input: Option<String>,
) -> Result<(), Failure> {
    let what = if args.qos == 0 { "sent" } else { "acknowledged" };
    if common.json {
        println!("{}", serde_json::json!({ "sent": tally.sent, "done": tally.done, "refused": tally.refused }));
    } else if common.verbose {
        eprintln!("forebay: {} messages {what}", tally.done);
    }
    match trouble.or(input) {
        None => Ok(()),
        Some(text) => Err(Failure::failed(format!(
            "{}: {text}; {} of {} messages {what}",
            args.connect.address(),
            tally.done,
            tally.sent
        ))),
    }
}
