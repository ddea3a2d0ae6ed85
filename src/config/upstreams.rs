//! `[[upstream]]`: where streams are forwarded to.

use super::forms::{bytes, choice, flag, integer, nanoseconds, rate, text, text_as, texts, windows};
use super::reader::{Field, Findings, Reader, Unset};
use super::sections::file;
use super::streams::{BUILT_IN, Stream};
use super::tree::{Node, Place, Value};
use crate::limits;
use crate::settings::{self, MqttUpstream, OnRefusal, UpstreamKind, UpstreamTls, valid_name};

const SECOND: u64 = 1_000_000_000;
/// Bytes of a client identifier that brokers take without complaint.
const CLIENT_ID_MAX: usize = 256;

/// One `[[upstream]]` as read.
pub(super) struct Upstream {
    pub(super) name: Field<String>,
    pub(super) streams: Field<Vec<(String, Place)>>,
    pub(super) replica: Field<bool>,
    replica_lag_max: Field<u64>,
    from_latest: Field<bool>,
    on_refusal: Field<OnRefusal>,
    address: Field<Address>,
    v5: Field<bool>,
    qos: Field<u8>,
    client_id: Field<String>,
    topic: Field<String>,
    username: Field<String>,
    password_file: Field<std::path::PathBuf>,
    tls: Option<UpstreamTls>,
    keep_alive: Field<u64>,
    connect_timeout: Field<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mqtt,
    Kafka,
    Forebay,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Address {
    tls: bool,
    host: String,
    port: u16,
}

impl Upstream {
    /// The plain value; stand-ins where errors were reported.
    pub(super) fn settings(self) -> settings::Upstream {
        let address = self.address.or(Address { tls: false, host: String::new(), port: 1883 });
        settings::Upstream {
            name: self.name.or(String::new()),
            kind: UpstreamKind::Mqtt(MqttUpstream {
                host: address.host,
                port: address.port,
                v5: self.v5.or(true),
                qos: self.qos.or(2),
                client_id: self.client_id.value,
                topic: self.topic.or(String::new()),
            }),
            streams: self.streams.or(Vec::new()).into_iter().map(|(name, _)| name).collect(),
            replica: self.replica.or(false),
            replica_lag_max_ns: self.replica_lag_max.or(10 * SECOND),
            from_latest: self.from_latest.or(false),
            on_refusal: self.on_refusal.or(OnRefusal::DeadLetter),
            username: self.username.value,
            password_file: self.password_file.value,
            tls: self.tls,
            keep_alive_ns: self.keep_alive.or(30 * SECOND),
            connect_timeout_ns: self.connect_timeout.or(10 * SECOND),
        }
    }

    /// Whether it counts in the ISR of this stream.
    pub(super) fn replicates(&self, stream: &str) -> bool {
        self.replica.value == Some(true) && self.streams.value.iter().flatten().any(|(name, _)| name == stream)
    }
}

pub(super) fn upstreams(root: &mut Reader<'_>, streams: &[Stream]) -> Vec<Upstream> {
    let mut upstreams: Vec<Upstream> = Vec::new();
    for (path, place, table) in root.tables("upstream", limits::UPSTREAMS_MAX) {
        let mut reader = Reader::new(root.findings, path, place, table);
        upstreams.extend(upstream(&mut reader));
        reader.finish();
    }
    for (index, upstream) in upstreams.iter().enumerate() {
        let earlier = upstreams.get(..index).unwrap_or_default();
        unique(root.findings, upstream, earlier);
        known_streams(root.findings, upstream, streams);
    }
    upstreams
}

/// Reads one. `None`: of a kind that this version does not have, which is reported.
fn upstream(reader: &mut Reader<'_>) -> Option<Upstream> {
    let name =
        text_as("a name of a-z, 0-9, \"_\" and \"-\", at most 64", |text| valid_name(text).then(|| text.to_owned()));
    let name = reader.get("name", Unset::Required("a name, as \"datacenter\""), name);
    let kinds = [("mqtt", Kind::Mqtt), ("kafka", Kind::Kafka), ("forebay", Kind::Forebay)];
    let kind = reader.get("kind", Unset::Required("\"mqtt\", \"kafka\" or \"forebay\""), choice(&kinds));
    let streams = reader.get(
        "streams",
        Unset::Required("a list of stream names, as [\"telemetry\"]"),
        texts("stream names, as [\"telemetry\"]"),
    );
    let windowed = reader.given("window");
    let replica = reader.get("replica", Unset::Default("false"), flag);
    if windowed && replica.value == Some(true) {
        let message = "a replica cannot have a window: acks = -1 would wait for hours; leave out one of them";
        reader.findings.error(&replica.place, &replica.path, message);
    }
    links(reader);
    let username = reader.get("username", Unset::Absent, text("a user name"));
    let password_file = file(reader, "password_file");
    reader.no_secret("password", "password_file");
    if password_file.given && !username.given && kind.value == Some(Kind::Mqtt) {
        let message = "a password needs a user name: set username too";
        reader.findings.error(&password_file.place, &password_file.path, message);
    }
    let (tls, tls_given) = tls(reader);
    match kind.value {
        Some(Kind::Mqtt) => {}
        Some(Kind::Kafka | Kind::Forebay) => {
            let message = "not available in this version yet: use \"mqtt\"";
            reader.findings.error(&kind.place, &kind.path, message);
            other_kinds(reader);
            return None;
        }
        None => {
            other_kinds(reader);
            return None;
        }
    }
    let from = [("earliest", false), ("latest", true)];
    let refusal = [("dead-letter", OnRefusal::DeadLetter), ("stop", OnRefusal::Stop)];
    let address = reader.get("address", Unset::Required("an address, as \"mqtts://dc.example.net:8883\""), address);
    if let (Some(Address { tls: false, .. }), true) = (&address.value, tls_given) {
        let message = "tls is given, but the address is not \"mqtts://\": nothing would be encrypted";
        reader.findings.error(&address.place, &address.path, message);
    }
    if let (Some(Address { tls: false, host, .. }), true) = (&address.value, password_file.given)
        && !matches!(host.as_str(), "localhost" | "127.0.0.1" | "::1")
    {
        let message = "the password goes over the network unencrypted: use \"mqtts://\"";
        reader.findings.warn(&address.place, &address.path, message);
    }
    let encrypted = address.value.as_ref().is_some_and(|address| address.tls);
    reader.later("pull", None, |node| match node.value {
        Value::List(_) => Ok(()),
        _ => Err("a list of tables, as [[upstream.pull]]".to_owned()),
    });
    let qos = integer(1..=2_u16);
    Some(Upstream {
        name,
        streams,
        replica,
        replica_lag_max: reader.get(
            "replica_lag_max",
            Unset::Default("\"10s\""),
            nanoseconds(SECOND / 10..=86_400 * SECOND),
        ),
        from_latest: reader.get("from", Unset::Default("\"earliest\""), choice(&from)),
        on_refusal: reader.get("on_refusal", Unset::Default("\"dead-letter\""), choice(&refusal)),
        address,
        v5: reader.get("protocol", Unset::Default("\"5\""), choice(&[("5", true), ("3.1.1", false)])),
        qos: reader.get("qos", Unset::Default("2"), |node| qos(node).map(|qos| if qos == 1 { 1 } else { 2 })),
        client_id: reader.get("client_id", Unset::Absent, client_id()),
        topic: reader.get("topic", Unset::Default("\"{topic}\""), topic),
        username,
        password_file,
        tls: encrypted.then_some(tls),
        keep_alive: reader.get("keep_alive", Unset::Default("\"30s\""), nanoseconds(SECOND..=65_535 * SECOND)),
        connect_timeout: reader.get(
            "connect_timeout",
            Unset::Default("\"10s\""),
            nanoseconds(SECOND / 10..=600 * SECOND),
        ),
    })
}

/// What shapes the use of a link; all of it comes later.
fn links(reader: &mut Reader<'_>) {
    reader.later("rate", None, rate);
    reader.later("window", None, windows);
    reader.later("batch_min", Some("\"0B\""), bytes(0..=u64::MAX));
    reader.later("max_delay", Some("\"0s\""), nanoseconds(0..=u64::MAX));
    reader.later("share", None, |node| match &node.value {
        Value::Table(table) if table.values().all(|entry| matches!(entry.node.value, Value::Integer(1..))) => Ok(()),
        _ => Err("weights from 1 up by stream, as { telemetry = 3 }".to_owned()),
    });
}

/// The keys of the other kinds: the kind itself was refused, so only what no kind knows is still an error.
fn other_kinds(reader: &mut Reader<'_>) {
    const KEYS: [&str; 20] = [
        "address",
        "bootstrap",
        "from",
        "on_refusal",
        "protocol",
        "qos",
        "client_id",
        "topic",
        "keep_alive",
        "pull",
        "connect_timeout",
        "replica_lag_max",
        "delivery",
        "create_topics",
        "offsets_topic",
        "transaction_bytes",
        "transaction_time",
        "compression",
        "headers",
        "sasl",
    ];
    KEYS.into_iter().for_each(|key| reader.skip(key));
}

fn tls(reader: &mut Reader<'_>) -> (UpstreamTls, bool) {
    let (mut reader, given) = reader.table("tls");
    let tls = UpstreamTls {
        ca_file: file(&mut reader, "ca_file").value,
        cert_file: None,
        key_file: None,
        server_name: reader.get("server_name", Unset::Absent, text("a host name")).value,
    };
    let cert = file(&mut reader, "cert_file");
    let key = file(&mut reader, "key_file");
    match (cert.given, key.given) {
        (true, false) => {
            reader.findings.error(&cert.place, &cert.path, "a certificate needs its key: set key_file too")
        }
        (false, true) => reader.findings.error(&key.place, &key.path, "a key needs its certificate: set cert_file too"),
        _ => {}
    }
    reader.no_secret("key", "key_file");
    reader.finish();
    (UpstreamTls { cert_file: cert.value, key_file: key.value, ..tls }, given)
}

/// `mqtt://host[:port]` or `mqtts://host[:port]`, IPv6 in brackets. What might hold a password is not repeated in the error.
fn address(node: &Node) -> Result<Address, String> {
    let expected = || "an address, as \"mqtt://host:1883\" or \"mqtts://host:8883\"".to_owned();
    let text = node.text().ok_or_else(expected)?;
    let (tls, rest) = match text.split_once("://") {
        Some(("mqtt", rest)) => (false, rest),
        Some(("mqtts", rest)) => (true, rest),
        _ => return Err(expected()),
    };
    let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => {
            host.parse::<std::net::Ipv6Addr>().map_err(|_| expected())?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or_else(expected)?) })
        }
        None => match rest.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        },
    };
    let ipv6 = host.contains(':');
    let named = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    if host.is_empty() || host.len() > 253 || !(ipv6 || named) {
        return Err(expected());
    }
    let port = match port {
        None if tls => 8883,
        None => 1883,
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(expected)?,
    };
    Ok(Address { tls, host: host.to_owned(), port })
}

fn client_id() -> impl Fn(&Node) -> Result<String, String> {
    text_as("a client identifier of 1 to 256 bytes", |text| {
        let fits = (1..=CLIENT_ID_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
        fits.then(|| text.to_owned())
    })
}

/// A topic with placeholders.
fn topic(node: &Node) -> Result<String, String> {
    let expected = || "a topic that may contain {topic}, {stream} and {gateway}, without \"+\" and \"#\"".to_owned();
    let text = node.text().filter(|text| !text.is_empty() && text.len() <= 1024).ok_or_else(expected)?;
    let plain = ["{topic}", "{stream}", "{gateway}"].iter().fold(text.to_owned(), |text, name| text.replace(name, ""));
    let wrong = |c: char| matches!(c, '{' | '}' | '+' | '#') || c.is_control();
    if plain.chars().any(wrong) { Err(expected()) } else { Ok(text.to_owned()) }
}

fn unique(findings: &mut Findings, upstream: &Upstream, earlier: &[Upstream]) {
    let same_name = |other: &&Upstream| upstream.name.value.is_some() && other.name.value == upstream.name.value;
    if let Some(other) = earlier.iter().find(same_name) {
        let message = format!("expected a name of its own, found that of {} again", other.name.path);
        findings.error(&upstream.name.place, &upstream.name.path, message);
    }
    let same_client = |other: &&Upstream| {
        upstream.client_id.value.is_some()
            && other.client_id.value == upstream.client_id.value
            && other.address.value == upstream.address.value
    };
    if let Some(other) = earlier.iter().find(same_client) {
        let message =
            format!("the same as {} at the same address: each would throw the other out", other.client_id.path);
        findings.error(&upstream.client_id.place, &upstream.client_id.path, message);
    }
}

fn known_streams(findings: &mut Findings, upstream: &Upstream, streams: &[Stream]) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, (name, place)) in upstream.streams.value.iter().flatten().enumerate() {
        let path = format!("{}[{index}]", upstream.streams.path);
        let configured = streams.iter().any(|stream| stream.name.value.as_deref() == Some(name));
        if seen.contains(&name.as_str()) {
            findings.error(place, path, format!("{name:?} stands there twice"));
        } else if name == "dead-letter" {
            let message =
                "what an upstream refused is kept here for people and is not forwarded: read it with forebay tail";
            findings.error(place, path, message);
        } else if !configured && !BUILT_IN.contains(&name.as_str()) {
            let names: Vec<&str> = streams.iter().filter_map(|stream| stream.name.value.as_deref()).collect();
            let known = if names.is_empty() { "none is configured".to_owned() } else { names.join(", ") };
            findings.error(place, path, format!("expected the name of a [[stream]] ({known}), found {name:?}"));
        }
        seen.push(name);
    }
}
