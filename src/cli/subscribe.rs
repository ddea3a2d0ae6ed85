//! `forebay sub`: subscribes at any MQTT broker and prints what comes.
//!
//! A message is acknowledged once it is printed, so that with `-c` and `-C` nothing is swallowed in between.

use super::mqtt::args::{ConnectArgs, qos};
use super::mqtt::{self, Message, Seen, Trouble};
use super::{Common, Failure};
use crate::admin::records::Line;
use clap::Args;
use std::collections::BTreeSet;
use std::io::{BufWriter, Write};
use std::time::{Duration, Instant};

/// Messages that wait for their acknowledgement, at most: as many as the protocol has identifiers, and a request or two.
const QUEUE: usize = 65_535 + 16;
/// Messages under way towards us.
const INFLIGHT: u16 = 100;
/// How long the last hand-shakes may take once there is nothing more to wait for.
const LEAVE: Duration = Duration::from_secs(2);
/// Connections that may fail one after the other before we give up.
const RETRIES_MAX: u32 = 5;

/// Arguments of `sub`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  forebay sub -t 'sensors/#' -v\n  forebay sub -t 'sensors/#' -q 1 -C 10 -W 30 --json"
)]
pub struct SubArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Topic filter; may be repeated
    #[arg(short = 't', long, value_name = "FILTER", required = true)]
    topic: Vec<String>,
    /// Highest QoS of the deliveries
    #[arg(short = 'q', long, value_name = "0|1|2", default_value = "0", value_parser = qos)]
    qos: u8,
    /// End after this many messages
    #[arg(short = 'C', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this many seconds
    #[arg(short = 'W', long = "timeout", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Print the topic before each payload
    #[arg(short = 'v')]
    with_topic: bool,
}

/// How it ended.
enum End {
    Count,
    Time,
}

/// Subscribes until the count or the time is reached, or for ever.
pub fn run(common: &Common, args: &SubArgs) -> Result<(), Failure> {
    let mut session = Session { common, args, seen: 0, out: BufWriter::new(std::io::stdout()), deadline: None };
    session.deadline = args.timeout.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    match (session.run()?, args.count) {
        (End::Time, Some(count)) => Err(Failure::failed(format!(
            "{} of {count} messages within {} s",
            session.seen,
            args.timeout.unwrap_or_default()
        ))),
        _ => Ok(()),
    }
}

struct Session<'a, W: Write> {
    common: &'a Common,
    args: &'a SubArgs,
    seen: u64,
    out: W,
    deadline: Option<Instant>,
}

impl<W: Write> Session<'_, W> {
    /// One connection after the other: each with a new client, since the event loop keeps nothing safely over an error.
    fn run(&mut self) -> Result<End, Failure> {
        let mut options = self.args.connect.options("sub", INFLIGHT)?;
        options.manual_acks = true;
        let mut ever = false;
        let mut failed = 0;
        loop {
            let (trouble, connected) = match self.connection(&options)? {
                Ok(end) => return Ok(end),
                Err(ended) => ended,
            };
            ever |= connected;
            failed = if connected { 1 } else { failed + 1 };
            let address = self.args.connect.address();
            if !ever || failed > RETRIES_MAX {
                return Err(Failure::failed(format!("{address}: {trouble}")));
            }
            eprintln!("forebay: {address}: {trouble}; connecting again");
            let pause = Duration::from_secs(1);
            if self.deadline.is_some_and(|deadline| Instant::now() + pause >= deadline) {
                return Ok(End::Time);
            }
            std::thread::sleep(pause);
        }
    }

    /// Until the end, or until the connection is lost (with whether it ever stood).
    fn connection(&mut self, options: &mqtt::Options) -> Result<Result<End, (Trouble, bool)>, Failure> {
        let (client, mut events) = mqtt::client(options, QUEUE);
        let mut connected = false;
        let mut ending = false;
        // QoS 2: ours, and not released yet. Leaving before that would leave hand-shakes open that nobody could finish.
        let mut unreleased = BTreeSet::new();
        loop {
            let leaving = ending.then(|| Instant::now() + LEAVE);
            let next = match leaving.or(self.deadline) {
                None => events.wait(),
                Some(deadline) => match events.wait_within(deadline.saturating_duration_since(Instant::now())) {
                    Ok(next) => next,
                    Err(()) => return Ok(Ok(if ending { End::Count } else { End::Time })),
                },
            };
            match next {
                None | Some(Ok(Seen::Disconnected)) => return Ok(Ok(End::Count)),
                Some(Err(_)) if ending => return Ok(Ok(End::Count)),
                Some(Err(trouble)) => return Ok(Err((trouble, connected))),
                Some(Ok(Seen::Ended(reason))) => {
                    return Ok(Err((Trouble(format!("the broker ended the connection, {reason}")), connected)));
                }
                Some(Ok(Seen::Connected)) => {
                    connected = true;
                    client.subscribe(&self.args.topic, self.args.qos).map_err(|Trouble(text)| Failure::usage(text))?;
                }
                Some(Ok(Seen::Subscribed(verdicts))) => self.granted(&verdicts)?,
                Some(Ok(Seen::Message(message))) if !ending => {
                    self.print(&message)?;
                    if let Err(trouble) = client.ack(&message) {
                        return Ok(Err((trouble, connected)));
                    }
                    if message.qos == 2 {
                        unreleased.insert(message.packet_id);
                    }
                    ending = self.args.count == Some(self.seen);
                    if ending && unreleased.is_empty() {
                        client.disconnect();
                    }
                }
                Some(Ok(Seen::Released(id))) => {
                    unreleased.remove(&id);
                    if ending && unreleased.is_empty() {
                        client.disconnect();
                    }
                }
                Some(Ok(_)) => {}
            }
        }
    }

    fn granted(&self, verdicts: &[Result<u8, String>]) -> Result<(), Failure> {
        let filters = || self.args.topic.iter().zip(verdicts);
        for (filter, verdict) in filters() {
            match verdict {
                Err(reason) => {
                    return Err(Failure::failed(format!("{filter}: the broker refused the subscription, {reason}")));
                }
                Ok(granted) if *granted < self.args.qos => {
                    eprintln!("forebay: {filter}: granted at QoS {granted} only")
                }
                Ok(_) if self.common.verbose => eprintln!("forebay: {filter}: subscribed"),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    fn print(&mut self, message: &Message) -> Result<(), Failure> {
        self.seen += 1;
        if self.common.json {
            let mut line = Vec::new();
            let json = Line::message(&message.topic, message.qos, &message.payload);
            let json = match &message.source {
                Some(source) => json.with_source(source),
                None => json,
            };
            json.write(&mut line).map_err(|error| Failure::failed(error.to_string()))?;
            self.out.write_all(&line)?;
        } else {
            if self.args.with_topic {
                write!(self.out, "{} ", message.topic)?;
            }
            self.out.write_all(&message.payload)?;
            self.out.write_all(b"\n")?;
        }
        self.out.flush()?;
        Ok(())
    }
}
