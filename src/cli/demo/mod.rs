//! `forebay demo`: the whole promise on one machine, in about 20 s.
//!
//! ```text
//! sensors (threads here) ── MQTT, QoS 1 and 2 ──▶ gateway (a child process) ── link (cutter.rs) ──▶ centre (a broker here)
//! ```
//!
//! The link is cut, the gateway is killed in the middle and started again, the link is mended, the backlog drains. Meanwhile the
//! sensors keep their own books (ledger.rs); the judge reads the centre's log and compares (judge.rs).

mod cutter;
pub mod gateway;
mod judge;
mod ledger;
mod readings;
mod sensor1;
mod sensor2;
mod show;
mod stage;

use super::logger::{self, Filter};
use super::{Common, Failure, print};
use crate::admin::client::{Client, ClientError};
use crate::admin::records::{Line, Next};
use crate::limits::{ADMIN_RECORDS_MAX, DEMO_READINGS_MAX, DEMO_SENSORS_MAX};
use async_signal::{Signal, Signals};
use clap::Args;
use cutter::Cutter;
use judge::{Judge, Verdict};
use ledger::Ledger;
use show::{Column, Report, Scene, Show};
use smol::stream::StreamExt;
use stage::{CENTRE_STREAM, Directory, Gateway};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay demo\n  forebay demo --json --sensors 30 --rate 200")]
pub struct DemoArgs {
    /// Seconds that it takes, about
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(8..=3600))]
    seconds: u64,
    /// Sensors; every third publishes at QoS 2, the others at QoS 1
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(3..=i64::from(DEMO_SENSORS_MAX)))]
    sensors: u32,
    /// Readings a second and sensor
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
}

/// Moments of the demo, as shares of its length.
const CUT: f64 = 0.15;
const KILL: f64 = 0.35;
const RESTART: f64 = 0.40;
const MEND: f64 = 0.60;
const QUIET: f64 = 0.85;
/// How long the sensors may take to connect at first.
const CONNECT: Duration = Duration::from_secs(15);
/// How long the drain may take beyond the demo's length: for slow machines and a back-off that has grown.
const DRAIN: Duration = Duration::from_secs(90);
/// Between looks at how things are.
const LOOK: Duration = Duration::from_millis(100);
/// How long to look for doubles after everything has come.
const GRACE: Duration = Duration::from_millis(700);

/// Plays it; code 3 if anything acknowledged was lost, doubled or reordered.
pub fn run(common: &Common, args: &DemoArgs) -> Result<(), Failure> {
    let readings = u64::from(args.sensors) * u64::from(args.rate) * args.seconds;
    if readings > DEMO_READINGS_MAX {
        return Err(Failure::usage(format!(
            "{readings} readings are more than the judge keeps in memory ({DEMO_READINGS_MAX}): lower --sensors, --rate or --seconds"
        )));
    }
    let filter = if common.verbose { "info" } else { "error" };
    logger::install(Filter::parse(filter).map_err(Failure::failed)?);
    let interrupted = Interrupted::watch()?;
    let show = Show::new(args.seconds, common.json, common.quiet);
    let (report, columns) = Play::set_up(args, show, interrupted)?.play()?;
    let mut out = std::io::stdout().lock();
    if common.json {
        let line = serde_json::to_string(&report).map_err(|error| Failure::failed(error.to_string()))?;
        writeln!(out, "{line}")?;
    } else {
        let [qos1, qos2] = &columns;
        write!(out, "\n{}", show::table(&report, qos1, qos2, print::colour()))?;
    }
    drop(out);
    let verdict = Verdict {
        arrived: report.arrived,
        lost: report.lost,
        duplicated: report.duplicated,
        reordered: report.reordered,
    };
    match verdict.kept() {
        true if report.refused > 0 => Err(Failure::failed(format!(
            "the gateway refused {} readings; its log says why (--verbose)",
            report.refused
        ))),
        true => Ok(()),
        false => {
            Err(Failure::damage("the promise was not kept: something acknowledged was lost, doubled or reordered"))
        }
    }
}

/// Whether a person wants it to end.
#[derive(Clone)]
struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    fn watch() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        let mut signals =
            Signals::new([Signal::Int, Signal::Term]).map_err(|error| Failure::failed(format!("signals: {error}")))?;
        let raised = Arc::clone(&flag);
        thread::spawn(move || {
            smol::block_on(async {
                while signals.next().await.is_some() {
                    raised.store(true, SeqCst);
                }
            });
        });
        Ok(Self(flag))
    }

    fn check(&self) -> Result<(), Failure> {
        match self.0.load(SeqCst) {
            true => Err(Failure::failed("interrupted; the gateway is ended and the temporary directory removed")),
            false => Ok(()),
        }
    }
}

/// The judge while it reads, in a thread of its own.
struct Court {
    judge: Arc<Mutex<Judge>>,
    closed: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), ClientError>>,
}

fn lock(judge: &Mutex<Judge>) -> MutexGuard<'_, Judge> {
    judge.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Court {
    fn open(ledger: &Ledger, centre: &Path) -> std::io::Result<Self> {
        let judge = Arc::new(Mutex::new(Judge::new(ledger)));
        let closed = Arc::new(AtomicBool::new(false));
        let (reading, closing, mut client) = (Arc::clone(&judge), Arc::clone(&closed), Client::new(centre));
        let thread = thread::Builder::new().name("judge".into()).spawn(move || {
            let mut from = "earliest".to_owned();
            loop {
                // Looked at first: what stands in the log when the court closes is read to its end.
                let last = closing.load(SeqCst);
                while read_page(&mut client, &mut from, &reading)? {}
                if last {
                    return Ok(());
                }
                thread::sleep(Duration::from_millis(50));
            }
        })?;
        Ok(Self { judge, closed, thread })
    }

    fn judge(&self) -> MutexGuard<'_, Judge> {
        lock(&self.judge)
    }

    /// Reads to the end of the centre's log, then gives the judge back.
    fn close(self) -> Result<Arc<Mutex<Judge>>, Failure> {
        self.closed.store(true, SeqCst);
        match self.thread.join() {
            Ok(Ok(())) => Ok(self.judge),
            Ok(Err(error)) => Err(Failure::failed(format!("the centre's log cannot be read: {error}"))),
            Err(_) => Err(Failure::failed("the judge failed")),
        }
    }
}

/// Reads one page; whether it held anything.
fn read_page(client: &mut Client, from: &mut String, judge: &Mutex<Judge>) -> Result<bool, ClientError> {
    let target = format!("/api/v1/streams/{CENTRE_STREAM}/records?from={from}&limit={ADMIN_RECORDS_MAX}");
    let body = client.get(&target)?;
    let mut any = false;
    let mut judge = lock(judge);
    for line in body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        if let Ok(Next { next }) = serde_json::from_slice(line) {
            *from = next.into_owned();
        } else if let Ok(line) = serde_json::from_slice::<Line<'_>>(line) {
            any = true;
            judge.record(&line);
        }
    }
    Ok(any)
}

/// Everything that plays. Fields are dropped in this order: the sensors' peers after the sensors, the directory last.
struct Play {
    args_seconds: f64,
    rate: f64,
    show: Show,
    interrupted: Interrupted,
    ledger: Arc<Ledger>,
    sensors: Option<(sensor1::Sensors, sensor2::Sensors)>,
    court: Court,
    gateway: Gateway,
    link: Cutter,
    link_stands: bool,
    centre: crate::broker::Handle,
    _directory: Directory,
    /// When the sensors began.
    start: Instant,
    sensing_until: Option<Instant>,
}

impl Play {
    fn set_up(args: &DemoArgs, mut show: Show, interrupted: Interrupted) -> Result<Self, Failure> {
        let system =
            |error: std::io::Error| Failure::failed(format!("the system refuses a socket or a thread: {error}"));
        let directory = Directory::new()?;
        let centre_dir = directory.path().join("centre");
        let centre = stage::start_centre(&centre_dir)?;
        let address = centre.addresses.first().copied();
        let address = address.ok_or_else(|| Failure::failed("the demo's centre has no address"))?;
        let link = Cutter::new(address).map_err(system)?;
        let mut gateway = Gateway::new(directory.path(), link.address())?;
        gateway.start()?;
        interrupted.check()?;
        let ledger = Arc::new(Ledger::new(args.sensors));
        let court = Court::open(&ledger, &centre_dir).map_err(system)?;
        show.say(&format!(
            "a centre, a link, a gateway, {} sensors; everything in {}",
            args.sensors,
            directory.path().display()
        ));
        let sensors = (
            sensor1::Sensors::start(&ledger, &gateway.address()).map_err(system)?,
            sensor2::Sensors::start(&ledger, &gateway.address()).map_err(system)?,
        );
        Ok(Self {
            args_seconds: args.seconds as f64,
            rate: f64::from(args.rate),
            show,
            interrupted,
            ledger,
            sensors: Some(sensors),
            court,
            gateway,
            link,
            link_stands: true,
            centre,
            _directory: directory,
            start: Instant::now(),
            sensing_until: None,
        })
    }

    fn play(mut self) -> Result<(Report, [Column; 2]), Failure> {
        let begun = Instant::now();
        self.wait_for_sensors("the sensors do not get a connection")?;
        self.start = Instant::now();
        self.show.say("the sensors publish; everything goes through");
        self.until(CUT)?;

        self.show.say("the link is cut: the gateway keeps what comes");
        self.link.cut();
        self.link_stands = false;
        let cut = Instant::now();
        self.until(KILL)?;

        self.show.say("the gateway is killed (SIGKILL), in the middle of it");
        self.gateway.kill();
        let killed = Instant::now();
        self.forget_connections();
        self.until(RESTART)?;

        self.show.say("the gateway is started again");
        let restarted = Instant::now();
        self.gateway.start()?;
        self.wait_for_sensors("after its restart the gateway lets no sensor in")?;
        let (gateway_outage, restart) = (killed.elapsed(), restarted.elapsed());
        self.until(MEND)?;

        self.court.judge().mended(&self.ledger, now_ms());
        self.link.mend();
        self.link_stands = true;
        let outage = cut.elapsed();
        self.show.say("the link is mended: the backlog drains while the sensors go on");
        self.until(QUIET)?;

        self.sensing_until = Some(Instant::now());
        self.show.say("the sensors take no more readings; waiting for the rest");
        self.drain()?;
        self.show.end();
        self.verdict(begun, outage, gateway_outage, restart)
    }

    /// Takes the readings that are due, and shows how things are.
    fn look(&mut self) -> Result<(), Failure> {
        self.interrupted.check()?;
        if let Some(failure) = self.gateway.ended() {
            return Err(failure);
        }
        if self.court.thread.is_finished() {
            return Err(Failure::failed("the centre's log cannot be read any more"));
        }
        let until = self.sensing_until.unwrap_or_else(Instant::now);
        let due = until.saturating_duration_since(self.start).as_secs_f64() * self.rate;
        for sensor in &self.ledger.sensors {
            sensor.take_until(due as u64);
        }
        let arrived = self.court.judge().arrived();
        let sums = self.ledger.sums(None);
        let gateway = stage::look_up(&self.gateway.address()).is_some();
        self.show.scene(&Scene { link: self.link_stands, gateway, sums, arrived });
        Ok(())
    }

    /// Until this share of the demo.
    fn until(&mut self, share: f64) -> Result<(), Failure> {
        let end = self.start + Duration::from_secs_f64(self.args_seconds * share);
        loop {
            self.look()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(Duration::from_millis(10)));
        }
    }

    /// So that the first connection after the restart is seen.
    fn forget_connections(&self) {
        for sensor in &self.ledger.sensors {
            sensor.book().connected = false;
        }
    }

    /// Until a sensor of each kind is connected; without readings being taken before the demo's start.
    fn wait_for_sensors(&mut self, otherwise: &str) -> Result<(), Failure> {
        let since = Instant::now();
        let connected = |qos: u8| self.ledger.sums(Some(qos)).connected > 0;
        while !(connected(1) && connected(2)) {
            self.interrupted.check()?;
            if since.elapsed() > CONNECT {
                let trouble = self.ledger.sensors.iter().find_map(|sensor| sensor.book().trouble.clone());
                return Err(Failure::failed(format!("{otherwise}: {}", trouble.unwrap_or_else(|| "no answer".into()))));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Until everything is acknowledged and at the centre, or the time for it is over.
    fn drain(&mut self) -> Result<(), Failure> {
        let end = self.start + Duration::from_secs_f64(self.args_seconds) + DRAIN;
        while Instant::now() < end {
            self.look()?;
            if self.ledger.all_settled() && self.court.judge().verdict(&self.ledger, None).lost == 0 {
                break;
            }
            thread::sleep(LOOK);
        }
        let grace = Instant::now() + GRACE;
        while Instant::now() < grace {
            self.look()?;
            thread::sleep(LOOK);
        }
        Ok(())
    }

    fn verdict(
        mut self,
        begun: Instant,
        outage: Duration,
        gateway_outage: Duration,
        restart: Duration,
    ) -> Result<(Report, [Column; 2]), Failure> {
        if let Some((qos1, qos2)) = self.sensors.take() {
            qos1.stop();
            qos2.stop();
        }
        let judge = self.court.close()?;
        let judge = lock(&judge);
        if judge.strange() > 0 {
            return Err(Failure::failed(format!(
                "{} records at the centre are no readings or carry no forebay-source: they cannot be judged",
                judge.strange()
            )));
        }
        let column = |qos| Column { sums: self.ledger.sums(qos), verdict: judge.verdict(&self.ledger, qos) };
        let (all, columns) = (column(None), [column(Some(1)), column(Some(2))]);
        if all.sums.acked == 0 {
            return Err(Failure::failed("no reading was acknowledged"));
        }
        let drain = judge.drain();
        let report = Report {
            published: all.sums.published,
            acked: all.sums.acked,
            arrived: all.verdict.arrived,
            lost: all.verdict.lost,
            duplicated: all.verdict.duplicated,
            reordered: all.verdict.reordered,
            republished: all.sums.republished,
            refused: all.sums.refused,
            outage_seconds: rounded(outage.as_secs_f64()),
            gateway_outage_seconds: rounded(gateway_outage.as_secs_f64()),
            restart_seconds: rounded(restart.as_secs_f64()),
            drain_records: drain.records,
            drain_seconds: rounded(drain.seconds()),
            drain_rate: drain.rate().round(),
            link_bytes: self.link.bytes(),
            sensors: self.ledger.sensors.len() as u64,
            qos2_sensors: self.ledger.sensors.iter().filter(|sensor| sensor.qos == 2).count() as u64,
            seconds: rounded(begun.elapsed().as_secs_f64()),
        };
        self.gateway.kill();
        if let Err(error) = self.centre.stop() {
            ::log::error!(target: "demo", "the centre: {error}");
        }
        Ok((report, columns))
    }
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// To the millisecond.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}
