//! The driver with a real Mosquitto at the other end, and the link core between them.

use super::*;

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A Mosquitto of our own; killed when dropped.
struct Mosquitto {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
}

fn mosquitto_there() -> bool {
    let there = find("mosquitto").is_some() && find("mosquitto_sub").is_some();
    if !there {
        assert!(std::env::var("FOREBAY_FULL").as_deref() != Ok("1"), "FOREBAY_FULL=1, but mosquitto is not installed");
        println!("skipped: mosquitto and mosquitto_sub are not installed (apt install mosquitto mosquitto-clients)");
    }
    there
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .map(str::to_owned)
        .chain(["/usr/sbin".to_owned()])
        .map(|dir| Path::new(&dir).join(program))
        .find(|p| p.exists())
}

impl Mosquitto {
    fn start(settings: &str) -> Self {
        Self::start_with(settings, |_| {})
    }

    fn start_with(settings: &str, prepare: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path());
        let port = free_port();
        let settings = settings.replace("$DIR", &dir.path().display().to_string());
        let anonymous = if settings.contains("allow_anonymous") { "" } else { "allow_anonymous true\n" };
        let user = if Command::new("id").arg("-u").output().unwrap().stdout == b"0\n" { "user root\n" } else { "" };
        let text = format!(
            "{user}listener {port} 127.0.0.1\n{anonymous}max_queued_messages 0\nset_tcp_nodelay true\nlog_type error\n{settings}\n"
        );
        let file = dir.path().join("mosquitto.conf");
        std::fs::write(&file, text).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new(find("mosquitto").unwrap())
            .arg("-c")
            .arg(&file)
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let said = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
            assert!(begun.elapsed() < LONG, "mosquitto does not come up: {said}");
            thread::sleep(Duration::from_millis(20));
        }
        Self { child, port, dir }
    }

    /// A subscriber that stands by the time this returns.
    fn subscribe(&self, extra: &[&str]) -> Subscriber {
        let file = self.dir.path().join("received");
        let child = Command::new(find("mosquitto_sub").unwrap())
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                &self.port.to_string(),
                "-i",
                "sub",
                "-q",
                "2",
                "-t",
                "up/#",
                "-t",
                "ready",
            ])
            .args(["-F", "%t %p", "-V", "mqttv311"]) // 2.0.11 breaks off at QoS 2 with its own mqttv5 client
            .args(extra)
            .stdout(std::fs::File::create(&file).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let subscriber = Subscriber { child, file };
        let begun = Instant::now();
        while subscriber.lines().is_empty() {
            assert!(begun.elapsed() < LONG, "the subscriber does not come up");
            let mut publish = Command::new(find("mosquitto_pub").unwrap());
            publish.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-t", "ready", "-m", "yes"]).args(extra);
            assert!(publish.status().unwrap().success());
            thread::sleep(Duration::from_millis(50));
        }
        subscriber
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Subscriber {
    child: Child,
    file: PathBuf,
}

impl Subscriber {
    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn expect_all(&self, count: usize) {
        assert_same(&self.payloads(count), &numbers(count));
    }

    /// Payloads under `up/`, once there are `count` (or long enough was waited); then a little longer, to see doubles.
    fn payloads(&self, count: usize) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let lines: Vec<String> = self.lines();
            let found = lines.iter().filter_map(|line| Some(line.strip_prefix("up/")?.split_once(' ')?.1.to_owned()));
            let found: Vec<String> = found.collect();
            if (found.len() >= count || begun.elapsed() > LONG) && begun.elapsed() > Duration::from_millis(300) {
                return found;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn assert_same(found: &[String], expected: &[String]) {
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    let around = differs.map(|at| &found[at.saturating_sub(3)..(at + 4).min(found.len())]);
    assert!(
        found == expected,
        "{} of {} payloads; the first difference is at {differs:?}: {around:?}; the last is {:?}",
        found.len(),
        expected.len(),
        found.last()
    );
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A link with its driver over a log in memory: what the engine does, without the engine.
struct Gateway {
    driver: Driver,
    link: Link,
    version: Version,
    begun: Instant,
    records: Vec<Publish>,
    state: BTreeMap<(StateKind, Vec<u8>), Vec<u8>>,
    seq: u64,
    refused: Vec<(Offset, Reason)>,
    most_in_flight: usize,
}

const PARTITION: PartitionId = PartitionId { stream: StreamId(1), partition: 0 };

impl Gateway {
    fn new(config: DriverConfig, records: Vec<Publish>) -> Self {
        let (v5, exactly_once) = (config.v5, config.qos == 2);
        let state = BTreeMap::new();
        let link = Self::link(exactly_once, v5, records.len(), &state);
        let version = if v5 { Version::V5 } else { Version::V311 };
        let driver = Driver::start(config);
        let begun = Instant::now();
        Self { driver, link, version, begun, records, state, seq: 0, refused: Vec::new(), most_in_flight: 0 }
    }

    fn link(exactly_once: bool, v5: bool, end: usize, state: &BTreeMap<(StateKind, Vec<u8>), Vec<u8>>) -> Link {
        let config = LinkConfig {
            name: "dc".into(),
            exactly_once,
            peer: format!("dc/{v5}"),
            log_id: LogId([7; 16]),
            window: 200,
            window_bytes: 1 << 20,
            stop_on_refusal: false,
            seed: u64::from(std::process::id()),
        };
        let start = LaneStart { partition: PARTITION, start: 0, end: end as u64 };
        Link::new(config, &[start], &mut |kind, key| state.get(&(kind, key.to_vec())).cloned()).unwrap()
    }

    fn now(&self) -> Now {
        Now { mono_ns: self.begun.elapsed().as_nanos() as u64, wall_ms: None, wall_synced: false }
    }

    fn carry_out(&mut self, outputs: Vec<LinkOutput>) {
        for output in outputs {
            match output {
                LinkOutput::Order(order) => self.driver.order(order),
                LinkOutput::State(change) => {
                    self.seq += 1;
                    self.state.insert((change.kind, change.key), change.value);
                }
                LinkOutput::Refused { partition, offset, reason, .. } => {
                    self.refused.push((offset, reason));
                    let mut outputs = Vec::new();
                    self.link.settled(self.now(), partition, offset, &mut outputs);
                    self.carry_out(outputs);
                }
                LinkOutput::Event(_, text) => println!("{text}"),
                LinkOutput::Cursor { .. } | LinkOutput::Rewind => {}
            }
        }
        self.link.recorded(self.seq);
    }

    fn step(&mut self) {
        let mut outputs = Vec::new();
        match self.driver.events.recv_timeout(Duration::from_millis(5)) {
            Ok(event) => self.link.on_event(self.now(), event, &mut outputs),
            Err(RecvTimeoutError::Timeout) => self.link.tick(self.now(), &mut outputs),
            Err(RecvTimeoutError::Disconnected) => panic!("the driver is gone"),
        }
        self.carry_out(outputs);
        let mut outputs = Vec::new();
        self.link.synced(self.now(), self.seq, &mut outputs);
        if self.link.room() > 0 {
            let from = self.link.lanes().next().unwrap().1 as usize;
            for (offset, record) in self.records.iter().enumerate().skip(from) {
                let offset = offset as u64;
                match self.link.want(PARTITION, offset) {
                    Want::Pass => {}
                    Want::Full => break,
                    Want::Send => {
                        let size = publish_len(
                            &Publish { qos: QoS::AtLeastOnce, packet_id: 1, ..record.clone() },
                            self.version,
                        );
                        assert!(self.link.offer(PARTITION, offset, record.clone(), size, &mut outputs));
                    }
                }
            }
        }
        self.link.flush(self.now(), &mut outputs);
        self.carry_out(outputs);
        self.most_in_flight = self.most_in_flight.max(self.link.in_flight());
    }

    fn cursor(&self) -> usize {
        self.link.cursor(PARTITION).unwrap() as usize
    }

    fn run_to(&mut self, cursor: usize) {
        let begun = Instant::now();
        while self.cursor() < cursor {
            self.step();
            let (at, reason) = (self.cursor(), self.link.reason());
            assert!(begun.elapsed() < LONG * 2, "stuck at {at} of {cursor}: {:?} {reason:?}", self.link.state());
        }
    }
}

fn records(count: usize) -> Vec<Publish> {
    (0..count).map(|number| message(&format!("up/{}", number % 7), &number.to_string())).collect()
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

#[test]
fn everything_arrives_once_and_in_order_at_both_levels_and_in_both_versions() {
    if !mosquitto_there() {
        return;
    }
    for (v5, qos) in [(true, 2), (false, 2), (true, 1), (false, 1)] {
        let broker = Mosquitto::start("");
        let subscriber = broker.subscribe(&[]);
        let mut gateway = Gateway::new(config(broker.port, v5, qos), records(3_000));
        gateway.run_to(3_000);
        subscriber.expect_all(3_000);
        assert_eq!(gateway.link.counts().forwarded, 3_000);
        assert_eq!(gateway.link.counts().possible_doubles, 0);
        assert!(gateway.link.counts().sent_bytes > 3_000 * 10);
    }
}

#[test]
fn a_receive_maximum_of_5_is_never_exceeded() {
    if !mosquitto_there() {
        return;
    }
    let broker = Mosquitto::start("max_inflight_messages 5");
    let subscriber = broker.subscribe(&[]);
    let mut gateway = Gateway::new(config(broker.port, true, 2), records(500));
    gateway.run_to(500);
    subscriber.expect_all(500);
    assert_eq!(gateway.most_in_flight, 5, "the window is kept full, and not more than full");
}

/// Passes bytes between the gateway and the broker; cuts them, or swallows them.
struct Cutter {
    port: u16,
    open: Arc<Mutex<Vec<TcpStream>>>,
    swallow: Arc<AtomicBool>,
}

impl Cutter {
    fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let open = Arc::new(Mutex::new(Vec::new()));
        let swallow = Arc::new(AtomicBool::new(false));
        let (kept, swallowing) = (Arc::clone(&open), Arc::clone(&swallow));
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                kept.lock().unwrap().extend([socket.try_clone().unwrap(), upstream.try_clone().unwrap()]);
                for (mut from, mut to) in
                    [(socket.try_clone().unwrap(), upstream.try_clone().unwrap()), (upstream, socket)]
                {
                    let swallow = Arc::clone(&swallowing);
                    thread::spawn(move || {
                        let mut buffer = [0; 4096];
                        while let Ok(count) = from.read(&mut buffer) {
                            if count == 0 || !swallow.load(Ordering::Relaxed) && to.write_all(&buffer[..count]).is_err()
                            {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { port, open, swallow }
    }

    fn cut(&self) {
        for socket in self.open.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn over_cuts_qos_2_doubles_nothing_and_qos_1_loses_nothing() {
    if !mosquitto_there() {
        return;
    }
    let cuts = if std::env::var("FOREBAY_FULL").as_deref() == Ok("1") { 20 } else { 8 };
    for (v5, qos) in [(true, 2), (false, 2), (true, 1)] {
        let broker = Mosquitto::start("");
        let subscriber = broker.subscribe(&[]);
        let cutter = Cutter::start(broker.port);
        let mut gateway = Gateway::new(config(cutter.port, v5, qos), records(4_200));
        for cut in 1..=cuts {
            gateway.run_to(cut * 4_000 / cuts);
            cutter.cut();
        }
        gateway.run_to(4_200);
        let found = subscriber.payloads(4_200);
        assert!(gateway.link.counts().connections > cuts as u64 / 2);
        if qos == 2 {
            assert_same(&found, &numbers(4_200));
            assert_eq!(gateway.link.counts().possible_doubles, 0);
            continue;
        }
        let mut first = Vec::new();
        for number in &found {
            if !first.contains(number) {
                first.push(number.clone());
            }
        }
        assert_same(&first, &numbers(4_200)); // each arrived, first occurrences in order
        let doubles = (found.len() - first.len()) as u64;
        assert!(doubles <= gateway.link.counts().possible_doubles, "{doubles} doubles");
    }
}

#[test]
fn a_crash_of_the_gateway_is_resumed_from_what_was_durable() {
    if !mosquitto_there() {
        return;
    }
    for v5 in [true, false] {
        let broker = Mosquitto::start("");
        let subscriber = broker.subscribe(&[]);
        let config = config(broker.port, v5, 2);
        let mut gateway = Gateway::new(config.clone(), records(3_000));
        for crash in 1..=10 {
            gateway.run_to(crash * 250);
            // All memory is gone; the durable state and the log remain. The old driver's socket closes with its channel.
            let link = Gateway::link(true, v5, gateway.records.len(), &gateway.state);
            assert!(link.cursor(PARTITION).unwrap() as usize <= gateway.cursor());
            gateway.link = link;
            gateway.driver = Driver::start(config.clone());
        }
        gateway.run_to(3_000);
        subscriber.expect_all(3_000);
    }
}

#[test]
fn a_black_hole_is_left_and_everything_arrives_all_the_same() {
    if !mosquitto_there() {
        return;
    }
    let broker = Mosquitto::start("");
    let subscriber = broker.subscribe(&[]);
    let cutter = Cutter::start(broker.port);
    let mut gateway = Gateway::new(
        DriverConfig { keep_alive: Duration::from_secs(1), ..config(cutter.port, true, 2) },
        records(2_000),
    );
    gateway.run_to(500);
    cutter.swallow.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    while gateway.link.reason().is_none() {
        gateway.step();
        assert!(begun.elapsed() < LONG, "half-open and not noticed");
    }
    assert!(gateway.link.reason().unwrap().contains("silent"), "{:?}", gateway.link.reason());
    cutter.swallow.store(false, Ordering::Relaxed);
    gateway.run_to(2_000);
    subscriber.expect_all(2_000);
}

#[test]
fn wrong_credentials_are_said_so_and_a_corrected_password_file_needs_no_restart() {
    if !mosquitto_there() {
        return;
    }
    let Some(passwd) = find("mosquitto_passwd") else {
        println!("skipped: mosquitto_passwd is not installed");
        return;
    };
    for v5 in [true, false] {
        let broker = Mosquitto::start_with("allow_anonymous false\npassword_file $DIR/passwords", |dir| {
            let file = dir.join("passwords");
            std::fs::write(&file, "").unwrap();
            assert!(Command::new(&passwd).arg("-b").arg(&file).args(["gw", "right"]).status().unwrap().success());
        });
        let secret = broker.dir.path().join("secret");
        std::fs::write(&secret, "wrong\n").unwrap();
        let (username, password_file) = (Some("gw".to_owned()), Some(secret.clone()));
        let driver = Driver::start(DriverConfig { username, password_file, ..config(broker.port, v5, 1) });
        let LinkEvent::Down(down) = driver.connect() else { panic!("it cannot be up") };
        assert!(matches!(down.kind, DownKind::Refused(Reason::NOT_AUTHORIZED | Reason::BAD_USERNAME_OR_PASSWORD)));
        assert!(down.reason.contains("not authorized") || down.reason.contains("bad user name"), "{}", down.reason);
        std::fs::write(&secret, "right\n").unwrap();
        assert!(matches!(driver.connect(), LinkEvent::Up { .. }));
        std::fs::remove_file(&secret).unwrap();
        driver.order(LinkOrder::Disconnect { graceful: true });
        driver.down();
        let LinkEvent::Down(down) = driver.connect() else { panic!("it cannot be up") };
        assert!(down.reason.contains("password_file") && down.reason.contains("secret"), "{}", down.reason);
    }
}

#[test]
fn what_the_peer_refuses_or_is_too_large_for_it_is_refused_and_the_rest_arrives() {
    if !mosquitto_there() {
        return;
    }
    for qos in [1, 2] {
        let broker = Mosquitto::start_with("max_packet_size 300\nacl_file $DIR/acl", |dir| {
            let text = "topic read #\ntopic write up/#\ntopic write ready\ntopic deny up/5\n";
            std::fs::write(dir.join("acl"), text).unwrap();
        });
        let subscriber = broker.subscribe(&[]);
        let mut records: Vec<Publish> = (0..20).map(|number| message("up/a", &number.to_string())).collect();
        records[5] = message("up/5", "denied");
        records[7] = message("up/a", &"x".repeat(400));
        let mut gateway = Gateway::new(config(broker.port, true, qos), records);
        gateway.run_to(20);
        let mut refused = gateway.refused.clone();
        refused.sort();
        assert_eq!(refused, [(5, Reason::NOT_AUTHORIZED), (7, Reason::PACKET_TOO_LARGE)], "QoS {qos}");
        let expected: Vec<String> = (0..20).filter(|n| ![5, 7].contains(n)).map(|n: i32| n.to_string()).collect();
        assert_eq!(subscriber.payloads(18), expected);
    }
}

#[test]
fn mutual_tls_reads_its_files_at_each_connection() {
    if !mosquitto_there() {
        return;
    }
    let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "test authority");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(params, ca_key);
    let issue = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    let (server, client) = (issue("localhost"), issue("gw"));
    let settings = "cafile $DIR/ca.pem\ncertfile $DIR/server.pem\nkeyfile $DIR/server.key\nrequire_certificate true\ntls_version tlsv1.2";
    let broker = Mosquitto::start_with(settings, |dir| {
        std::fs::write(dir.join("ca.pem"), ca.pem()).unwrap();
        std::fs::write(dir.join("server.pem"), &server.0).unwrap();
        std::fs::write(dir.join("server.key"), &server.1).unwrap();
    });
    let dir = broker.dir.path().to_owned();
    let tls = UpstreamTls {
        ca_file: Some(dir.join("ca.pem")),
        cert_file: Some(dir.join("gw.pem")),
        key_file: Some(dir.join("gw.key")),
        server_name: Some("localhost".into()),
    };
    let driver = Driver::start(DriverConfig { tls: Some(tls), ..config(broker.port, true, 1) });
    let LinkEvent::Down(down) = driver.connect() else { panic!("it cannot be up") };
    assert!(down.reason.contains("gw.pem"), "{}", down.reason);
    std::fs::write(dir.join("gw.pem"), &client.0).unwrap();
    std::fs::write(dir.join("gw.key"), &client.1).unwrap();
    let event = driver.connect();
    assert!(matches!(event, LinkEvent::Up { .. }), "{event:?}");
    let payload = "x".repeat(100_000);
    let publish = |packet_id| Publish { packet_id, qos: QoS::AtLeastOnce, ..message("up/t", &payload) };
    driver.order(LinkOrder::Publish((1..=20).map(publish).collect()));
    let mut acks = 0;
    while acks < 20 {
        match driver.next() {
            LinkEvent::Acks(some) => acks += some.len(),
            other => panic!("{other:?} after {acks} acks"),
        }
    }
    // A certificate for another name is not taken.
    let tls =
        UpstreamTls { ca_file: Some(dir.join("ca.pem")), server_name: Some("other".into()), ..UpstreamTls::default() };
    let driver = Driver::start(DriverConfig { tls: Some(tls), ..config(broker.port, true, 1) });
    let LinkEvent::Down(down) = driver.connect() else { panic!("it cannot be up") };
    assert!(down.reason.starts_with("TLS with 127.0.0.1"), "{}", down.reason);
}
