//! Threads and what connects them: nothing else.
//!
//! ```text
//! io-N       sockets of its connections, and the engine inline, behind one Mutex     net/, broker/io_thread.rs
//! committer  takes sealed groups, writes, syncs, rings the I/O threads               broker/committer.rs
//! store      catch-up reads, freeing, state, spare segments, space                   broker/store_thread.rs
//! admin      HTTP over TCP and the control socket                                    admin/, broker/services.rs
//! upstream   the drivers of the upstream links, where there are any                  upstream/, broker/services.rs
//! ```
//!
//! [`hub`](self) holds what they share. [`start`] embeds a gateway (the demo's centre, tests); [`run`] is what `forebay run` does.

mod clock;
mod committer;
mod hub;
mod io_thread;
mod services;
mod store_thread;
mod supervisor;
mod threads;

#[cfg(test)]
mod tests;

use crate::admin::measures::Measures;
use crate::admin::{self, AdminError, ControlServer, TcpServer};
use crate::engine::{Engine, EngineStart};
use crate::limits::{DESCRIPTORS_BESIDE_CONNECTIONS, IO_THREADS_MAX, PARTIAL_SHARE, STOP_TIMEOUT_NS};
use crate::log::commit::Committer;
use crate::net::connection::ConnectionLimits;
use crate::net::{Bell, BindError, Network, Quota, bind};
use crate::replication::link::LinkOrder;
use crate::settings::{self, Settings, UpstreamKind};
use crate::storage::{self, FileStore, OpenError, Opened};
use crate::types::{Acks, LogId, UpstreamId};
use crate::upstream::DriverConfig;
use async_signal::{Signal, Signals};
use core::fmt;
use hub::Hub;
use io_thread::IoThread;
use smol::channel::{Receiver, Sender};
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store_thread::StoreThread;

/// Why a gateway cannot start, or did not end in order.
#[derive(Debug)]
pub enum RunError {
    /// The data directory cannot be used.
    Storage(OpenError),
    /// A listener cannot be opened; with its index in the configuration.
    Listener(usize, BindError),
    /// The admin side cannot be opened.
    Admin(AdminError),
    /// The configuration does not fit what the log remembers.
    Engine(String),
    /// The system refuses threads or descriptors.
    System(std::io::Error),
    /// An orderly stop did not end in time; nothing acknowledged is lost.
    Unfinished,
}

impl RunError {
    /// The exit code that goes with it (surface.md §1).
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Engine(_) => 2,
            _ => 1,
        }
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Storage(error) => error.fmt(f),
            Self::Listener(index, error) => write!(f, "listener[{index}].bind: {error}"),
            Self::Admin(error) => error.fmt(f),
            Self::Engine(error) => f.write_str(error),
            Self::System(error) => write!(f, "the system refuses a thread or a descriptor: {error}; raise its limits"),
            Self::Unfinished => f.write_str(
                "the orderly stop did not end in time: the log is intact, but the next start has to read its end again",
            ),
        }
    }
}

impl std::error::Error for RunError {}

/// A running gateway.
pub struct Handle {
    /// Where MQTT clients connect, by listener; with port 0 in the settings, the port that was found.
    pub addresses: Vec<SocketAddr>,
    /// Where the admin side listens, if it does.
    pub admin_address: Option<SocketAddr>,
    hub: Arc<Hub>,
    threads: Option<Threads>,
    /// Closed to end the services.
    quit: Sender<()>,
}

/// The threads, by the order in which they end.
struct Threads {
    io: Vec<JoinHandle<()>>,
    services: Vec<JoinHandle<()>>,
    committer: JoinHandle<()>,
    store: JoinHandle<()>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Everything that was opened before the first thread starts: so that whatever is wrong is told before anything runs.
struct Prepared {
    opened: Opened,
    listeners: Vec<TcpListener>,
    tcp: Option<TcpServer>,
    control: ControlServer,
}

fn prepare(settings: &Settings) -> Result<Prepared, RunError> {
    raise_descriptor_limit(settings);
    clock::look_up_synced();
    let opened = storage::open(settings).map_err(RunError::Storage)?;
    match open_sockets(settings, opened.data_dir.path()) {
        Ok((listeners, tcp, control)) => Ok(Prepared { opened, listeners, tcp, control }),
        Err(error) => {
            // So that the next start finds what this one found.
            if let Err(state) = opened.close() {
                ::log::warn!(target: "storage", "{state}");
            }
            Err(error)
        }
    }
}

type Sockets = (Vec<TcpListener>, Option<TcpServer>, ControlServer);

fn open_sockets(settings: &Settings, data_dir: &Path) -> Result<Sockets, RunError> {
    let tcp = settings.admin.as_ref().map(TcpServer::bind).transpose().map_err(RunError::Admin)?;
    let control = ControlServer::bind(data_dir).map_err(RunError::Admin)?;
    let listeners = settings.listeners.iter().enumerate().map(|(index, listener)| {
        let address = listener.bind;
        // `[::]` takes IPv4 too, unless another listener wants that.
        let other = settings.listeners.iter().any(|other| other.bind.is_ipv4() && other.bind.port() == address.port());
        bind(address, other).map_err(|error| RunError::Listener(index, error))
    });
    Ok((listeners.collect::<Result<_, _>>()?, tcp, control))
}

/// Starts a gateway in this process.
///
/// # Errors
/// What is in the way, in a sentence that says what to do. Nothing runs then.
pub fn start(settings: Settings) -> Result<Handle, RunError> {
    let settings = Arc::new(settings);
    let Prepared { opened, listeners, tcp, control } = prepare(&settings)?;
    let Opened { data_dir, store, state, recovered, tail, gateway_id, boot, events } = opened;
    events.iter().for_each(hub::report);
    let addresses =
        listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>().map_err(RunError::System)?;
    let admin_address = tcp.as_ref().map(TcpServer::address);
    let bells = (0..settings.device.io_threads.clamp(1, IO_THREADS_MAX)).map(|_| Bell::new().map(Arc::new));
    let bells: Vec<Arc<Bell>> = bells.collect::<Result<_, _>>().map_err(RunError::System)?;

    let (orders, drivers) = drivers(&settings, &gateway_id, recovered.log_id);
    let committed = recovered.synced;
    let seed = storage::identity::random_u64().map_err(|error| RunError::System(std::io::Error::other(error)))?;
    let start = EngineStart { settings: Arc::clone(&settings), recovered, gateway_id, boot, seed, now: clock::now() };
    let engine = Engine::new(start).map_err(RunError::Engine)?;

    let hub = Hub::new(engine, committed, bells.clone(), orders);
    let measures = Arc::new(Measures::default());
    let (quit, ended) = smol::channel::bounded(1);
    let store_thread = {
        let (hub, store, disk_budget) = (Arc::clone(&hub), Arc::clone(&store), settings.gateway.disk_budget);
        StoreThread { hub, store, state, data_dir, disk_budget }
    };
    let threads = || -> std::io::Result<Threads> {
        Ok(Threads {
            store: spawn("store", move || store_thread.run())?,
            committer: spawn_committer(&settings, &hub, Committer::new(store, tail), &measures)?,
            io: spawn_io(&settings, &hub, bells, listeners, &measures)?,
            services: spawn_services(&hub, tcp, control, measures, drivers, ended)?,
        })
    };
    let threads = threads().map_err(RunError::System)?;
    Ok(Handle { addresses, admin_address, hub, threads: Some(threads), quit })
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    threads::spawn(name, move || {
        body();
        Ok::<_, Infallible>(())
    })
}

fn spawn_io(
    settings: &Settings,
    hub: &Arc<Hub>,
    bells: Vec<Arc<Bell>>,
    listeners: Vec<TcpListener>,
    measures: &Arc<Measures>,
) -> std::io::Result<Vec<JoinHandle<()>>> {
    let limits = |listener: &settings::Listener| ConnectionLimits {
        max_packet_size: listener.max_packet_size,
        rate: listener.rate,
    };
    let limits: Vec<ConnectionLimits> = settings.listeners.iter().map(limits).collect();
    let partial_max = settings.device.memory_budget / PARTIAL_SHARE / bells.len().max(1) as u64;
    let partial_max = usize::try_from(partial_max).unwrap_or(usize::MAX);
    let connections = Arc::new(AtomicUsize::new(0));
    let quota = |listener: &settings::Listener| {
        Quota::new(listener.max_connections, Arc::clone(&connections), settings.device.max_connections)
    };
    // The first thread accepts and spreads what it accepts.
    let mut listening: Vec<_> = listeners.into_iter().zip(settings.listeners.iter().map(quota)).collect();
    let mut threads = Vec::new();
    for (index, bell) in bells.into_iter().enumerate() {
        let (hub, measures, limits) = (Arc::clone(hub), Arc::clone(measures), limits.clone());
        let listening = std::mem::take(&mut listening);
        threads.push(threads::spawn(&format!("io-{index}"), move || {
            let mut network = Network::new(index, bell, limits, partial_max)?;
            for (number, (listener, quota)) in (0..).zip(listening) {
                network.listen(listener, number, quota)?;
            }
            let measure = move |micros, count| measures.acked(Acks::Synced, micros, count);
            IoThread { index, network, hub, measure }.run()
        })?);
    }
    Ok(threads)
}

fn spawn_committer(
    settings: &Settings,
    hub: &Arc<Hub>,
    committer: Committer<FileStore>,
    measures: &Arc<Measures>,
) -> std::io::Result<JoinHandle<()>> {
    let (hub, measures) = (Arc::clone(hub), Arc::clone(measures));
    let (interval_ns, bytes) = (settings.device.commit_interval_ns, settings.device.commit_bytes);
    let measure = move |took: Duration, records: usize| {
        measures.committed(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), records as u64);
    };
    spawn("committer", move || committer::run(&hub, committer, interval_ns, bytes, measure))
}

fn spawn_services(
    hub: &Arc<Hub>,
    tcp: Option<TcpServer>,
    control: ControlServer,
    measures: Arc<Measures>,
    drivers: Vec<services::Driver>,
    ended: Receiver<()>,
) -> std::io::Result<Vec<JoinHandle<()>>> {
    let (sender, requests) = admin::channel();
    let shared = admin::Shared::new(sender, measures);
    let mut threads = Vec::new();
    let (admin_hub, admin_ended) = (Arc::clone(hub), ended.clone());
    let serve = move || services::admin(&admin_hub, tcp, control, shared, &requests, &admin_ended);
    threads.push(spawn("admin", serve)?);
    if !drivers.is_empty() {
        let hub = Arc::clone(hub);
        threads.push(spawn("upstream", move || services::upstreams(&hub, drivers, &ended))?);
    }
    Ok(threads)
}

/// The channels of orders, by upstream, and the drivers at their other ends.
fn drivers(settings: &Settings, gateway_id: &str, log_id: LogId) -> (Vec<Sender<LinkOrder>>, Vec<services::Driver>) {
    let of = |(number, upstream): (u16, &settings::Upstream)| {
        let UpstreamKind::Mqtt(mqtt) = &upstream.kind;
        let client_id = mqtt.client_id(gateway_id, &upstream.name);
        let config = DriverConfig::new(upstream, mqtt, client_id, format!("{gateway_id}/{log_id}"));
        let (sender, receiver) = smol::channel::unbounded();
        (sender, (UpstreamId(number), config, receiver))
    };
    (0..).zip(&settings.upstreams).map(of).unzip()
}

/// A descriptor for each connection, and some for files: as many as the hard limit allows.
fn raise_descriptor_limit(settings: &Settings) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = settings.device.max_connections as u64 + DESCRIPTORS_BESIDE_CONNECTIONS;
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limit.maximum }).is_err()
        || current < wanted
    {
        ::log::warn!(target: "broker", "{current} open files are allowed, fewer than the {wanted} of max_connections; raise LimitNOFILE");
    }
}

impl Handle {
    /// Ends in order: clients are told, what was appended is synced, the log is closed. Takes less than five seconds.
    ///
    /// # Errors
    /// [`RunError::Unfinished`] if the medium did not answer in that time.
    pub fn stop(mut self) -> Result<(), RunError> {
        self.end()
    }

    /// Whether the broker has made turns since the last call: what a watchdog asks.
    fn turns(&self) -> u64 {
        self.hub.turns()
    }

    fn end(&mut self) -> Result<(), RunError> {
        let Some(threads) = self.threads.take() else { return Ok(()) };
        let until = Instant::now() + Duration::from_nanos(STOP_TIMEOUT_NS);
        self.hub.stop();
        while !self.hub.is_closed() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let closed = self.hub.is_closed();
        self.hub.quit();
        self.quit.close();
        let mut ended = threads::join(threads.io, until) & threads::join(threads.services, until);
        self.hub.slot.quit();
        ended &= threads::join(vec![threads.committer], until);
        self.hub.store.quit();
        ended &= threads::join(vec![threads.store], until);
        if closed && ended { Ok(()) } else { Err(RunError::Unfinished) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            ::log::error!(target: "broker", "{error}");
        }
    }
}

/// Runs a gateway until SIGTERM or SIGINT, then ends it in order.
///
/// # Errors
/// As [`start`], and as [`Handle::stop`].
pub fn run(settings: Settings) -> Result<(), RunError> {
    let signals = Signals::new([Signal::Term, Signal::Int, Signal::Hup]).map_err(RunError::System)?;
    let handle = start(settings)?;
    for address in &handle.addresses {
        ::log::info!(target: "broker", "MQTT on {address}");
    }
    if let Some(address) = handle.admin_address {
        ::log::info!(target: "broker", "HTTP on http://{address}");
    }
    supervisor::ready(&handle.addresses);
    let signal = smol::block_on(supervisor::until_signal(signals, || handle.turns()));
    supervisor::stopping(signal);
    let result = handle.stop();
    if result.is_ok() {
        ::log::info!(target: "broker", "stopped in order");
    }
    result
}
