//! The loop: virtual time, and a seeded choice of who does the next thing. Lives of the gateway follow one another, each ended by a
//! fault; after the last one everything is given time to come right, and what was promised is looked for.

use super::gateway::{Gateway, Surroundings};
use super::link::Link;
use super::net::Net;
use super::oracle::{Check, Oracle};
use super::plan::{Plan, SEGMENT_SIZE};
use super::publisher::Publisher;
use super::rng::Rng;
use super::store::Disk;
use super::subscriber::Subscriber;
use super::trace::Trace;
use forebay::engine::{Engine, EngineStart};
use forebay::log::commit::Committer;
use forebay::log::control::{ControlKind, GapV1, from_value, gap_of_key};
use forebay::log::memory::MemStateStore;
use forebay::log::read::{ReadRequest, ReadResult, Reader};
use forebay::log::record::StoredRecord;
use forebay::log::recovery::{Recovered, RecoveryContext, recover};
use forebay::types::{BootId, LogId, LogPosition, Now, Seq};
use std::sync::Arc;

/// Steps after the last fault within which everything must have come right.
const SETTLING_STEPS: u64 = 60_000;

/// How a life of the gateway ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Power,
    Kill,
    Stop,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Over everything that happened: equal for equal runs.
    pub hash: u64,
    pub records: usize,
    pub acked: usize,
    pub at_centre: usize,
}

pub struct World {
    plan: Plan,
    rng: Rng,
    now_ns: u64,
    boot: u8,
    boot_ns: u64,
    disk: Arc<Disk>,
    state: MemStateStore,
    /// The state store as it was some time ago: what a power cut may leave of it.
    old_state: MemStateStore,
    /// The state store can be believed: it was flushed, or the kernel has not gone.
    trusted: bool,
    gateway: Option<Gateway>,
    net: Net,
    publishers: Vec<Publisher>,
    subscribers: Vec<Subscriber>,
    link: Link,
    oracle: Oracle,
    pub trace: Trace,
    /// Faults may come.
    rough: bool,
    publishing: bool,
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let mut rng = Rng::new(plan.seed);
        let publishers = (0..plan.shape.publishers).map(|n| Publisher::new(n as u16, &plan, &mut rng)).collect();
        let subscribers = (0..plan.shape.subscribers).map(|n| Subscriber::new(n, &mut rng)).collect();
        Self {
            now_ns: 1_000_000_000,
            boot: 1,
            boot_ns: 0,
            disk: Arc::new(Disk::new(SEGMENT_SIZE, rng.next(), plan.bug)),
            state: MemStateStore::new(),
            old_state: MemStateStore::new(),
            trusted: true,
            gateway: None,
            net: Net::default(),
            publishers,
            subscribers,
            link: Link::new(&plan),
            oracle: Oracle::new(&plan),
            trace: Trace::new(),
            rough: true,
            publishing: true,
            rng,
            plan,
        }
    }

    /// Runs to the end.
    pub fn run(&mut self) -> Result<Summary, String> {
        for life in 0..self.plan.lives {
            self.start()?;
            let steps = self.rng.range(self.plan.steps / 8, self.plan.steps + 1);
            let end = self.draw_end();
            self.note(format_args!("life {life}: {steps} steps, then {end:?}"));
            self.live(steps, end)?;
            self.die(end)?;
        }
        self.start()?;
        self.settle()?;
        let (records, acked, at_centre) = self.oracle.counts();
        Ok(Summary { hash: self.trace.hash(), records, acked, at_centre })
    }

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.note(self.now_ns, what);
    }

    fn draw_end(&mut self) -> End {
        let faults = self.plan.faults;
        let ends = [(faults.power, End::Power), (faults.kill, End::Kill), (faults.stop, End::Stop)];
        let ends: Vec<End> = ends.into_iter().filter(|(on, _)| *on).map(|(_, end)| end).collect();
        ends.get(self.rng.index(ends.len())).copied().unwrap_or(End::Kill)
    }

    // ── a life ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    fn live(&mut self, steps: u64, end: End) -> Check {
        let mut armed = false;
        for step in 0..steps {
            // Half of the deaths come in the middle of a call of the store, the others between steps.
            if !armed && end != End::Stop && step + 200 >= steps && self.rng.permille(5) {
                armed = true;
                self.disk.memory.crash_after(self.rng.below(12));
            }
            self.step()?;
            if self.disk.memory.is_dead() {
                return Ok(());
            }
        }
        if end == End::Stop {
            self.stop()?;
        }
        Ok(())
    }

    fn stop(&mut self) -> Check {
        self.note(format_args!("orderly stop"));
        if let Some(gateway) = &mut self.gateway {
            gateway.stop();
        }
        for _ in 0..20_000 {
            self.step()?;
            if self.gateway.as_ref().is_some_and(Gateway::is_closed) {
                return Ok(());
            }
        }
        Err("an orderly stop does not come to an end".to_owned())
    }

    fn die(&mut self, end: End) -> Check {
        let closed = self.gateway.as_ref().is_some_and(Gateway::is_closed);
        self.gateway = None;
        self.net.drop_server(&mut self.rng);
        self.with(|world, surroundings| world.link.cut(None, surroundings))?;
        self.disk.restart();
        self.trusted = closed || end == End::Kill;
        if end == End::Power {
            self.power_cut();
        } else {
            self.disk.memory.kill();
        }
        self.note(format_args!("the gateway is gone: {end:?}"));
        for _ in 0..self.rng.below(40) {
            self.step()?;
        }
        Ok(())
    }

    fn power_cut(&mut self) {
        self.disk.memory.power_cut();
        self.boot += 1;
        self.boot_ns = self.now_ns;
        match self.rng.below(4) {
            0 => self.state.forget(),
            1 => self.state = self.old_state.clone(),
            2 => self.state.broken = true,
            _ => {}
        }
    }

    fn now(&self) -> Now {
        let wall_synced = self.boot % 2 == 1;
        let wall_ms = Some(1_700_000_000_000 + (self.now_ns / 1_000_000) as i64);
        Now { mono_ns: self.now_ns - self.boot_ns, wall_ms, wall_synced }
    }

    /// Recovery, and a new engine on what it found. The process may die in the middle of it, once.
    fn start(&mut self) -> Check {
        let dies = self.plan.faults.power || self.plan.faults.kill;
        if self.rough && dies && self.rng.permille(300) {
            self.disk.memory.crash_after(self.rng.below(10));
        }
        let mut opened = self.open();
        if self.disk.memory.is_dead() {
            self.note(format_args!("died in recovery"));
            if self.plan.faults.power && (!self.plan.faults.kill || self.rng.coin()) {
                self.power_cut();
                self.trusted = false;
            } else {
                self.disk.memory.kill();
                self.trusted = false;
            }
            opened = self.open();
        }
        self.disk.memory.kill(); // what was to come in recovery does not come later
        let (recovered, committer) = opened?;
        self.check_log(&recovered)?;
        let synced = recovered.synced;
        let start = EngineStart {
            settings: Arc::new(self.plan.settings()),
            recovered,
            gateway_id: "gw".to_owned(),
            boot: BootId([self.boot; 16]),
            seed: self.rng.next(),
            now: self.now(),
        };
        let engine = Engine::new(start)?;
        self.gateway = Some(Gateway::new(&self.plan, engine, committer, Arc::clone(&self.disk), synced));
        self.trusted = true;
        self.note(format_args!("the gateway lives"));
        Ok(())
    }

    fn open(&mut self) -> Result<(Recovered, Committer<Disk>), String> {
        let context =
            RecoveryContext { state_trusted: self.trusted, new_log_id: LogId([7; 16]), salt_seed: self.rng.next() };
        // A disk that fails at the start as well keeps the gateway down; that is no case for the oracle.
        self.disk.memory.fail_syncs(0);
        self.disk.memory.fail_writes(0);
        let opened = recover(&*self.disk, &mut self.state, &context).map_err(|error| error.to_string())?;
        let (recovered, tail) = opened;
        let report = &recovered.report;
        let what = format!(
            "recovered up to {}, next {}, orderly {}, state {:?}, torn {:?}, burnt {:?}, damage {:?}",
            recovered.synced,
            recovered.next_seq,
            report.orderly,
            report.state,
            report.torn,
            report.burnt,
            report.damage
        );
        self.note(format_args!("{what}"));
        Ok((recovered, Committer::new(Arc::clone(&self.disk), tail)))
    }

    /// Reads the whole log and lets the oracle compare.
    fn check_log(&mut self, recovered: &Recovered) -> Check {
        for (key, entry) in recovered.state.scan(ControlKind::Gap) {
            if let Some(((partition, first), gap)) = gap_of_key(key).zip(from_value::<GapV1>(&entry.value)) {
                self.oracle.gap(partition, first, gap.until);
            }
        }
        let found = read_all(&self.disk, recovered.synced)?;
        let starts: Vec<_> = recovered.partitions.iter().map(|partition| (partition.id, partition.start)).collect();
        self.oracle.recovered(&found, &starts)
    }

    // ── a step ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    fn with(&mut self, act: impl FnOnce(&mut Parts<'_>, &mut Surroundings<'_>) -> Check) -> Check {
        let (now, at_ns) = (self.now(), self.now_ns);
        let Self { rng, net, oracle, trace, gateway, link, state, publishers, subscribers, .. } = self;
        let mut parts = Parts { gateway, link, state, publishers, subscribers };
        act(&mut parts, &mut Surroundings { now, at_ns, rng, net, oracle, trace })
    }

    fn step(&mut self) -> Check {
        self.now_ns += self.rng.below(400_000);
        if self.rng.permille(4) {
            self.now_ns += self.rng.below(300_000_000);
        }
        if self.rough {
            self.fault()?;
        }
        let choice = self.rng.below(100);
        let publishing = self.publishing;
        self.with(|parts, world| match choice {
            0..32 => parts.turn(world),
            32..46 => parts.gateway.as_mut().map_or(Ok(()), |gateway| gateway.commit(world)),
            46..54 => {
                let state = &mut *parts.state;
                parts.gateway.as_mut().map_or(Ok(()), |gateway| gateway.store(state, world))
            }
            54..72 => {
                let index = world.rng.index(parts.publishers.len());
                parts.publishers[index].act(parts.gateway.is_some(), publishing, world)
            }
            72..80 if !parts.subscribers.is_empty() => {
                let index = world.rng.index(parts.subscribers.len());
                parts.subscribers[index].act(parts.gateway.is_some(), world)
            }
            _ => parts.link(world),
        })?;
        if self.rng.permille(5) {
            self.old_state = self.state.clone();
        }
        Ok(())
    }

    fn fault(&mut self) -> Check {
        let faults = self.plan.faults;
        if faults.clients && self.rng.permille(4) {
            let index = self.rng.index(self.publishers.len() + self.subscribers.len());
            let Self { publishers, subscribers, net, rng, now_ns, boot_ns, .. } = self;
            let mono_ns = *now_ns - *boot_ns;
            match publishers.get_mut(index) {
                Some(publisher) => publisher.drop_connection(mono_ns, net, rng),
                None => subscribers[index - publishers.len()].drop_connection(mono_ns, net, rng),
            }
        }
        if faults.disk && self.rng.permille(2) {
            let count = 1 + self.rng.below(3) as u32;
            self.note(format_args!("the disk fails {count} times"));
            if self.rng.coin() { self.disk.memory.fail_syncs(count) } else { self.disk.memory.fail_writes(count) }
        }
        if faults.link && self.rng.permille(2) {
            self.with(|parts, world| parts.link.cut(parts.gateway.as_mut(), world))?;
        }
        if faults.peer && self.rng.permille(1) {
            let forgets = faults.peer_forgets && self.rng.coin();
            self.with(|parts, world| parts.link.restart(forgets, parts.gateway.as_mut(), world))?;
        }
        Ok(())
    }

    // ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    /// No more faults, no more messages: what is under way must come to an end.
    fn settle(&mut self) -> Check {
        self.note(format_args!("no more faults"));
        (self.rough, self.publishing) = (false, false);
        self.disk.memory.fail_syncs(0);
        self.disk.memory.fail_writes(0);
        let mut settled = 0;
        for step in 0..SETTLING_STEPS {
            self.step()?;
            // Quickly at first, then with long steps: a link that a peer has closed again and again waits for half a minute each time.
            self.now_ns += if step < SETTLING_STEPS / 4 { 500_000 } else { 10_000_000 };
            if step % 50 == 0 {
                if let Some(gateway) = &mut self.gateway {
                    settled += u64::from(gateway.lag == Some(0) && self.publishers.iter().all(Publisher::is_idle));
                    gateway.ask_status();
                }
                // A while longer, for what no status shows: subscribers, dead letters.
                if settled > 60 && step % 1000 == 0 && self.finish().is_ok() {
                    return Ok(());
                }
            }
        }
        let lag = self.gateway.as_ref().and_then(|gateway| gateway.lag);
        let waiting: Vec<String> = self.publishers.iter().filter(|p| !p.is_idle()).map(Publisher::waits_for).collect();
        self.finish()?;
        Err(format!("it does not come to an end: lag {lag:?} records, {waiting:?}"))
    }

    fn finish(&self) -> Check {
        self.oracle.finished()?;
        for (number, subscriber) in self.subscribers.iter().enumerate() {
            if let Some(since) = subscriber.since.filter(|_| subscriber.durable) {
                self.oracle.saw_all(number, since, |topic| subscriber.wants(topic))?;
            }
        }
        Ok(())
    }
}

/// The parts of the world that act.
struct Parts<'w> {
    gateway: &'w mut Option<Gateway>,
    link: &'w mut Link,
    state: &'w mut MemStateStore,
    publishers: &'w mut Vec<Publisher>,
    subscribers: &'w mut Vec<Subscriber>,
}

impl Parts<'_> {
    fn turn(&mut self, world: &mut Surroundings<'_>) -> Check {
        let Some(gateway) = self.gateway else { return Ok(()) };
        if world.rng.permille(20) {
            gateway.ask_status();
        }
        let index = world.rng.index(gateway.threads());
        gateway.turn(index, world)
    }

    fn link(&mut self, world: &mut Surroundings<'_>) -> Check {
        let Some(gateway) = self.gateway else { return Ok(()) };
        match world.rng.below(4) {
            0 => self.link.drive(gateway, world),
            1 => {
                self.link.answer(gateway, world);
                Ok(())
            }
            _ => (0..=world.rng.below(6)).try_for_each(|_| self.link.centre(gateway, world)),
        }
    }
}

/// Every record of the log, in log order, as its reader finds them.
fn read_all(disk: &Disk, until: Seq) -> Result<Vec<StoredRecord>, String> {
    let mut reader = Reader::new();
    let mut request =
        ReadRequest { from: LogPosition { seq: 1, index: 0 }, until, max_bytes: 64 << 10, ..ReadRequest::default() };
    let mut found = Vec::new();
    for _ in 0..100_000 {
        match reader.read(disk, &request) {
            ReadResult::Frames { frames, next, hint, damage } => {
                if !damage.is_empty() {
                    return Err(format!("the reader finds damage: {damage:?}"));
                }
                for frame in frames {
                    for record in frame.records() {
                        found.push(record.map_err(|error| format!("a stored record cannot be read: {error}"))?);
                    }
                }
                if next <= request.from {
                    return Err(format!("the reader does not get beyond {:?}", request.from));
                }
                (request.from, request.hint) = (next, hint);
            }
            ReadResult::End { .. } => return Ok(found),
            ReadResult::Failed(error) => return Err(format!("the log cannot be read: {error}")),
        }
    }
    Err("reading the log does not come to an end".to_owned())
}
