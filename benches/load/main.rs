//! Load on Forebay and on Mosquitto, in turn, in one run: rates, times to the ack, and the broker's CPU per message.
//!
//! ```sh
//! cargo bench --bench load                               # every scenario, three rounds of two seconds
//! cargo bench --bench load -- --only 'qos1 100x20' --rounds 5 --seconds 4
//! cargo bench --bench load -- --forebay-only --keep      # without Mosquitto; leave the data directory
//! ```
//!
//! Rates move with the machine, so what counts is the ratio within one round: the table shows medians of the rounds, and the
//! median of the ratios. Forebay acknowledges what is synced; Mosquitto runs in memory, with `set_tcp_nodelay true` and
//! `max_queued_messages 0`. `plain` is append + fdatasync of the same bytes to a zero-filled file, without any network. The
//! generator takes its share of the same cores.

mod brokers;
mod generator;
mod plain;
mod stats;

use brokers::{Broker, cpu_seconds};
use generator::{Generator, Scenario, Shape};
use stats::median;
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What the command line asks for.
struct Options {
    only: Option<String>,
    rounds: usize,
    time: Duration,
    mosquitto: bool,
    keep: bool,
    dir: PathBuf,
    extra: Vec<String>,
}

impl Options {
    fn parse() -> Result<Self> {
        let mut options = Self {
            only: None,
            rounds: 3,
            time: Duration::from_secs(2),
            mosquitto: true,
            keep: false,
            dir: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("load"),
            extra: Vec::new(),
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--only" => options.only = Some(value()?),
                "--rounds" => options.rounds = value()?.parse()?,
                "--seconds" => options.time = Duration::from_secs_f64(value()?.parse()?),
                "--dir" => options.dir = value()?.into(),
                "--set" => options.extra.push(value()?),
                "--forebay-only" => options.mosquitto = false,
                "--keep" => options.keep = true,
                // cargo adds it.
                "--bench" => {}
                other => return Err(format!("unknown argument {other}; see the head of benches/load/main.rs").into()),
            }
        }
        Ok(options)
    }
}

fn scenarios() -> Vec<Scenario> {
    let publish = |name, qos, connections, window, payload| Scenario {
        name,
        shape: Shape::Publish { qos, connections, window },
        payload,
    };
    let fan_out = |name, qos, subscribers, window| Scenario {
        name,
        shape: Shape::FanOut { qos, subscribers, window },
        payload: 100,
    };
    vec![
        publish("qos1 1x1", 1, 1, 1, 100),
        publish("qos1 10x20", 1, 10, 20, 100),
        publish("qos1 100x20", 1, 100, 20, 100),
        publish("qos1 100x100", 1, 100, 100, 100),
        publish("qos1 100x20 1KiB", 1, 100, 20, 1024),
        publish("qos2 10x20", 2, 10, 20, 100),
        publish("qos0 100 in", 0, 100, 1, 100),
        fan_out("fan-out 1-100 qos0", 0, 100, 100),
        fan_out("fan-out 1-100 qos1", 1, 100, 20),
        fan_out("fan-out 1-1 qos0", 0, 1, 100),
    ]
}

/// What one round of one scenario measured, per broker.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    rate: f64,
    cpu_micros: f64,
    p50_micros: f64,
    p99_micros: f64,
}

fn measure(broker: &Broker, scenario: &Scenario, time: Duration) -> Result<Figures> {
    let mut generator = Generator::connect(broker.address, scenario)?;
    // Let caches, windows and the group size settle.
    generator.run(time / 5)?;
    let cpu = cpu_seconds(broker.pid())?;
    let outcome = generator.run(time)?;
    let cpu = cpu_seconds(broker.pid())? - cpu;
    let messages = outcome.messages as f64;
    Ok(Figures {
        rate: messages / outcome.elapsed.as_secs_f64(),
        cpu_micros: cpu * 1e6 / messages.max(1.0),
        p50_micros: outcome.latency.quantile_micros(0.5),
        p99_micros: outcome.latency.quantile_micros(0.99),
    })
}

fn print_row(name: &str, who: &str, rounds: &[Figures], ratio: Option<f64>) {
    let of = |get: fn(&Figures) -> f64| median(rounds.iter().map(get).collect());
    let ratio = ratio.map(|ratio| format!("{ratio:8.2}")).unwrap_or_default();
    println!(
        "{name:<20} {who:<10} {:>11.1} k/s {:>8.2} µs cpu {:>9.0} µs p50 {:>9.0} µs p99 {ratio}",
        of(|it| it.rate) / 1e3,
        of(|it| it.cpu_micros),
        of(|it| it.p50_micros),
        of(|it| it.p99_micros),
    );
}

fn main() -> Result<()> {
    let options = Options::parse()?;
    std::fs::create_dir_all(&options.dir)?;
    let forebay = Broker::forebay(&options.dir, &options.extra)?;
    let mosquitto = if options.mosquitto { Some(Broker::mosquitto(&options.dir)?) } else { None };
    println!("{:<20} {:<10} rounds of {:?}; the last column is the ratio to Mosquitto", "scenario", "", options.time);
    for scenario in scenarios() {
        if options.only.as_deref().is_some_and(|only| !scenario.name.contains(only)) {
            continue;
        }
        let (mut ours, mut theirs, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            ours.push(measure(&forebay, &scenario, options.time)?);
            if let Some(mosquitto) = &mosquitto {
                theirs.push(measure(mosquitto, &scenario, options.time)?);
            }
            if let Shape::Publish { qos: 1, connections, window } = scenario.shape {
                plain.push(plain::rate(&options.dir, connections * window, scenario.payload, options.time / 2)?);
            }
        }
        let ratio = (!theirs.is_empty())
            .then(|| median(ours.iter().zip(&theirs).map(|(ours, theirs)| ours.rate / theirs.rate).collect()));
        print_row(scenario.name, "forebay", &ours, ratio);
        if !theirs.is_empty() {
            print_row(scenario.name, "mosquitto", &theirs, None);
        }
        if !plain.is_empty() {
            let ratio = median(ours.iter().zip(&plain).map(|(ours, plain)| ours.rate / plain).collect());
            println!(
                "{:<20} {:<10} {:>11.1} k/s   forebay is {ratio:.2} of it",
                scenario.name,
                "plain",
                median(plain) / 1e3
            );
        }
    }
    println!("forebay: peak RSS {:.1} MiB", forebay.peak_rss_mib()?);
    drop((forebay, mosquitto));
    if !options.keep {
        std::fs::remove_dir_all(&options.dir)?;
    }
    Ok(())
}
