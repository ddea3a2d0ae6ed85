//! The configuration's promises: every mistake is told with its place, all of them at once, nothing is ignored, and each value knows
//! the layer that it came from.

use forebay::config::{LoadOptions, from_str, from_str_with, load};
use forebay::settings::{KeyRule, OnRefusal, ReadLevel, UpstreamKind, WhenFull};
use forebay::types::Acks;
use std::fs;
use std::path::{Path, PathBuf};

/// Errors of a text, one to a line.
fn errors(text: &str) -> Vec<String> {
    match from_str(text, "config.toml") {
        Ok(_) => Vec::new(),
        Err(errors) => errors.to_string().lines().map(str::to_owned).collect(),
    }
}

/// The one error of a text.
fn error(text: &str) -> String {
    let errors = errors(text);
    assert_eq!(errors.len(), 1, "{text}\n{errors:#?}");
    errors.concat()
}

fn warnings(text: &str) -> Vec<String> {
    from_str(text, "config.toml").unwrap_or_else(|errors| panic!("{text}\n{errors}")).warnings
}

const STREAM: &str = "[[stream]]\nname = \"telemetry\"\ntopics = [\"sensors/#\"]\n";
const UPSTREAM: &str =
    "[[upstream]]\nname = \"dc\"\nkind = \"mqtt\"\naddress = \"mqtt://dc\"\nstreams = [\"telemetry\"]\n";

/// A stream with one more line, which is line 4.
fn stream(line: &str) -> String {
    format!("{STREAM}{line}\n")
}

/// A stream and an upstream with one more line, which is line 9.
fn upstream(line: &str) -> String {
    format!("{STREAM}{UPSTREAM}{line}\n")
}

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

#[test]
fn the_shipped_configuration_runs_as_it_is_and_listens_on_loopback_only() {
    let loaded = load(LoadOptions { file: Some(shipped("config.toml")), sets: Vec::new() }).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let settings = loaded.settings;
    assert!(settings.listeners.iter().all(|listener| listener.bind.ip().is_loopback()));
    assert!(settings.admin.unwrap().bind.ip().is_loopback());
    assert_eq!(settings.streams.len(), 1);
    assert_eq!(settings.upstreams.len(), 0);
    assert_eq!(settings.gateway.data_dir, Path::new("data"));
}

#[test]
fn the_shipped_configuration_explains_each_key_that_it_sets_and_its_upstream_is_right_too() {
    let text = fs::read_to_string(shipped("config.toml")).unwrap();
    for line in text.lines().filter(|line| line.contains(" = ")) {
        let (_, comment) = line.rsplit_once("  # ").unwrap_or_else(|| panic!("unexplained: {line}"));
        assert!(comment.len() > 20, "{line}");
    }
    let (head, tail) = text.split_once("# [[upstream]]").unwrap();
    let with_upstream = format!("{head}[[upstream]]{}", tail.replace("\n# ", "\n"));
    let settings = from_str(&with_upstream, "config.toml").unwrap().settings;
    assert_eq!(settings.upstreams.len(), 1);
    assert_eq!(settings.upstreams[0].password_file.as_deref(), Some(Path::new("/etc/forebay/datacenter.password")));
}

#[test]
fn every_profile_loads_with_the_reason_beside_each_key() {
    for (name, text) in forebay::profile::BUILT_IN {
        let loaded = from_str(&format!("profile = \"{name}\"\n"), "config.toml").unwrap();
        assert_eq!(loaded.settings.profile, name);
        let from_profile = loaded
            .print()
            .lines()
            .filter(|line| line.contains(&format!("# profile firmware-profiles/{name}.toml:")))
            .count();
        assert_eq!(from_profile, 10, "{}", loaded.print());
        for line in text.lines().filter(|line| line.contains(" = ")) {
            assert!(line.split_once(" # ").is_some_and(|(_, reason)| reason.len() > 9), "{name}: {line}");
        }
    }
}

#[test]
fn generic_is_what_holds_without_a_profile_file() {
    let device = from_str("", "config.toml").unwrap().settings.device;
    assert_eq!(device.memory_budget, 64 << 20);
    assert_eq!(device.segment_size, 16 << 20);
    assert_eq!(device.max_packet_size, 1 << 20);
    assert_eq!(device.max_inflight, 32);
    assert_eq!(device.max_connections, 1000);
    assert_eq!(device.commit_interval_ns, 0);
    assert!(device.io_threads >= 1);
}

#[test]
fn everything_that_can_be_said_arrives_in_the_settings() {
    let text = r#"
profile = "raspberry-pi-4"
log = "warn,upstream=debug"
[gateway]
id = "gw-1"
data_dir = "/var/lib/forebay"
disk_budget = "4GiB"
ack_timeout = "1m30s"
[device]
io_threads = 1
commit_interval = "500us"
[[listener]]
bind = "[::1]:1884"
transport = "tcp"
max_connections = 10
max_packet_size = "64KiB"
max_inflight = 8
[admin]
bind = "0.0.0.0:8080"
token_file = "/etc/forebay/token"
[auth]
allow_anonymous = true
[[stream]]
name = "alarms_1"
topics = ["alarms/+/high", "alarms/all"]
partitions = 3
key = "level:2"
acks = -1
acks_min = 1
min_insync_replicas = 2
read = "committed"
retention_bytes = "1GiB"
retain_unforwarded = false
when_full = "refuse"
compression = "none"
priority = 4
[[upstream]]
name = "dc"
kind = "mqtt"
address = "mqtts://[fd00::1]:9883"
streams = ["alarms_1", "default"]
replica = true
replica_lag_max = "5s"
from = "latest"
batch_min = "0B"
max_delay = "0s"
on_refusal = "stop"
username = "me"
password_file = "/etc/forebay/password"
keep_alive = "1m"
connect_timeout = "3s"
qos = 1
protocol = "3.1.1"
client_id = "gw-1-dc"
topic = "plant7/{gateway}/{stream}/{topic}"
tls = { ca_file = "ca.pem", cert_file = "c.pem", key_file = "k.pem", server_name = "dc" }
"#;
    let settings = from_str(text, "config.toml").unwrap().settings;
    assert_eq!(settings.gateway.id.as_deref(), Some("gw-1"));
    assert_eq!(settings.gateway.ack_timeout_ns, 90_000_000_000);
    assert_eq!((settings.device.io_threads, settings.device.commit_interval_ns), (1, 500_000));
    assert_eq!(settings.device.memory_budget, 128 << 20, "the profile's");
    assert_eq!(settings.listeners[0].bind.to_string(), "[::1]:1884");
    assert_eq!((settings.listeners[0].max_connections, settings.listeners[0].max_packet_size), (10, 65_536));
    assert_eq!(settings.admin.unwrap().token_file.unwrap(), Path::new("/etc/forebay/token"));
    let stream = &settings.streams[0];
    assert_eq!(stream.topics, ["alarms/+/high", "alarms/all"]);
    assert_eq!((stream.partitions, stream.key), (3, KeyRule::Level(2)));
    assert_eq!((stream.acks, stream.acks_min, stream.min_insync_replicas), (Acks::Replicated, Acks::Synced, 2));
    assert_eq!((stream.read, stream.when_full), (ReadLevel::Committed, WhenFull::Refuse));
    assert_eq!((stream.retention_bytes, stream.retain_unforwarded), (Some(1 << 30), false));
    let upstream = &settings.upstreams[0];
    let UpstreamKind::Mqtt(mqtt) = &upstream.kind;
    assert_eq!((mqtt.host.as_str(), mqtt.port, mqtt.v5, mqtt.qos), ("fd00::1", 9883, false, 1));
    assert_eq!(mqtt.topic, "plant7/{gateway}/{stream}/{topic}");
    assert_eq!((upstream.replica, upstream.from_latest, upstream.on_refusal), (true, true, OnRefusal::Stop));
    assert_eq!((upstream.replica_lag_max_ns, upstream.keep_alive_ns), (5_000_000_000, 60_000_000_000));
    assert_eq!(upstream.tls.as_ref().unwrap().ca_file.as_deref(), Some(Path::new("ca.pem")));
}

#[test]
fn defaults_of_an_upstream_are_the_safe_ones() {
    let settings = from_str(&upstream(""), "config.toml").unwrap().settings;
    let UpstreamKind::Mqtt(mqtt) = &settings.upstreams[0].kind;
    assert_eq!((mqtt.port, mqtt.v5, mqtt.qos, mqtt.topic.as_str()), (1883, true, 2, "{topic}"));
    assert!(!settings.upstreams[0].replica && !settings.upstreams[0].from_latest);
    assert_eq!(settings.upstreams[0].tls, None);
    let tls = from_str(&upstream("").replace("mqtt://dc", "mqtts://dc"), "config.toml").unwrap().settings;
    let UpstreamKind::Mqtt(mqtt) = &tls.upstreams[0].kind;
    assert_eq!(mqtt.port, 8883);
    assert!(tls.upstreams[0].tls.is_some());
}

#[test]
fn an_error_names_file_line_column_key_what_was_expected_and_what_was_found() {
    assert_eq!(error(&stream("acks = 2")), "config.toml:4:8: stream[0].acks: expected 0, 1 or -1, found 2");
    assert_eq!(
        error(&stream("  acks   =   \"1\" # no")),
        "config.toml:4:14: stream[0].acks: expected 0, 1 or -1, found \"1\""
    );
    assert_eq!(
        error("[gateway]\r\nid = \"ä\" # ü\r\n"),
        "config.toml:2:6: gateway.id: expected a name of letters, digits, \".\", \"_\" and \"-\", at most 64, found \"ä\""
    );
    assert_eq!(
        error("gateway = { disk_budget = \"1GB\" }"),
        "config.toml:1:27: gateway.disk_budget: expected a size from \"0B\" up, as \"64KiB\" or \"1GiB\", found \"1GB\""
    );
}

#[test]
fn columns_count_characters_not_bytes() {
    assert_eq!(
        error("gateway = { id = \"gw\", data_dir = \"\u{fc}\u{fc}\", ack_timeout = 5 }"),
        "config.toml:1:55: gateway.ack_timeout: expected a time from \"100ms\" to \"1h\", found 5"
    );
}

#[test]
fn all_errors_are_told_in_the_order_of_the_file() {
    let text = format!(
        "prophile = \"generic\"\n[gateway]\ndisk_budget = 5\nack_timeout = \"soon\"\n{}{}",
        stream("acks = 2\npartitions = 0\nkey = \"level:0\""),
        "[[upstream]]\nkind = \"mqtt\"\n"
    );
    assert_eq!(
        errors(&text),
        [
            "config.toml:1:1: prophile: unknown key, did you mean profile?",
            "config.toml:3:15: gateway.disk_budget: expected a size from \"0B\" up, as \"64KiB\" or \"1GiB\", found 5",
            "config.toml:4:15: gateway.ack_timeout: expected a time from \"100ms\" to \"1h\", found \"soon\"",
            "config.toml:8:8: stream[0].acks: expected 0, 1 or -1, found 2",
            "config.toml:9:14: stream[0].partitions: expected a whole number from 1 to 1024, found 0",
            "config.toml:10:7: stream[0].key: expected \"topic\", \"client\" or \"level:N\" with N from 1 to 128, found \"level:0\"",
            "config.toml:11:1: upstream[0].name: missing: expected a name, as \"datacenter\"",
            "config.toml:11:1: upstream[0].streams: missing: expected a list of stream names, as [\"telemetry\"]",
            "config.toml:11:1: upstream[0].address: missing: expected an address, as \"mqtts://dc.example.net:8883\"",
        ]
        .map(str::to_owned)
        .as_slice()
    );
}

#[test]
fn unknown_keys_are_errors_at_every_depth() {
    for (text, expected) in [
        ("x = 1".to_owned(), "config.toml:1:1: x: unknown key"),
        ("[gatway]\nid = \"a\"".to_owned(), "config.toml:1:2: gatway: unknown key, did you mean gateway?"),
        (
            "[device]\nsegmentsize = 1".to_owned(),
            "config.toml:2:1: device.segmentsize: unknown key, did you mean segment_size?",
        ),
        (stream("colour = \"red\""), "config.toml:4:1: stream[0].colour: unknown key"),
        (upstream("adress = \"x\""), "config.toml:9:1: upstream[0].adress: unknown key, did you mean address?"),
        ("[admin]\nport = 1".to_owned(), "config.toml:2:1: admin.port: unknown key"),
        ("[[listener]]\nbind = \"127.0.0.1:1\"\nport = 1".to_owned(), "config.toml:3:1: listener[0].port: unknown key"),
        ("[auth]\nanonymous = true".to_owned(), "config.toml:2:1: auth.anonymous: unknown key"),
        (
            upstream("tls = { ca = \"x\" }").replace("mqtt://", "mqtts://"),
            "config.toml:9:9: upstream[0].tls.ca: unknown key",
        ),
    ] {
        assert_eq!(error(&text), expected);
    }
}

#[test]
fn syntax_errors_are_told_with_what_else_is_wrong() {
    let errors = errors("[gateway]\nid = gw-1\ndisk_budget = 7\n[[stream]\nname = \"x\"\n");
    assert!(errors[0].starts_with("config.toml:2:6: "), "{errors:#?}");
    assert!(errors[0].contains("quoted"), "{errors:#?}");
    assert!(errors[1].starts_with("config.toml:3:15: gateway.disk_budget: "), "{errors:#?}");
    assert!(errors[2].starts_with("config.toml:4:"), "{errors:#?}");
    assert_eq!(errors.len(), 3, "{errors:#?}");
    let twice = error("[gateway]\nid = \"a\"\nid = \"b\"\n");
    assert!(twice.starts_with("config.toml:3:1: ") && twice.contains("duplicate key"), "{twice}");
}

#[test]
fn forms_are_checked_one_by_one() {
    for (text, place, message) in [
        ("log = \"loud\"".to_owned(), "1:7: log: ", "expected error, warn, info or debug"),
        ("log = \"upstream=debug\"".to_owned(), "1:7: log: ", "expected error, warn"),
        ("profile = \"mainframe\"".to_owned(), "1:11: profile: ", "expected a profile that exists (generic, "),
        ("profile = \"../x\"".to_owned(), "1:11: profile: ", "expected the name of a profile"),
        (
            "[device]\nio_threads = 0".to_owned(),
            "2:14: device.io_threads: ",
            "expected \"auto\" or a whole number from 1 to 16, found 0",
        ),
        (
            "[device]\nsegment_size = \"1KiB\"".to_owned(),
            "2:16: device.segment_size: ",
            "expected a size from \"64KiB\" to \"1GiB\"",
        ),
        (
            "[device]\nsegment_size = \"1000001B\"".to_owned(),
            "2:16: device.segment_size: ",
            "expected a multiple of \"4KiB\"",
        ),
        (
            "[device]\nmax_connections = 1000000".to_owned(),
            "2:19: device.max_connections: ",
            "from 1 to 20000, found 1000000",
        ),
        ("[device]\nmax_inflight = -1".to_owned(), "2:16: device.max_inflight: ", "from 1 to 1024, found -1"),
        (
            "[device]\nmax_packet_size = \"1GiB\"".to_owned(),
            "2:19: device.max_packet_size: ",
            "to \"64MiB\", found \"1GiB\"",
        ),
        (
            "[device]\ncommit_interval = 1.5".to_owned(),
            "2:19: device.commit_interval: ",
            "expected a time from \"0s\" to \"1s\", found 1.5",
        ),
        ("listener = 3".to_owned(), "1:12: listener: ", "expected a list of tables, as [[listener]], found 3"),
        (
            "[stream]\nname = \"a\"".to_owned(),
            "1:1: stream: ",
            "expected a list of tables, as [[stream]], found a table",
        ),
        ("gateway = \"gw\"".to_owned(), "1:11: gateway: ", "expected a table, as [gateway], found \"gw\""),
        (
            "[[listener]]\nbind = \"localhost:1883\"".to_owned(),
            "2:8: listener[0].bind: ",
            "expected an address and port",
        ),
        ("[[listener]]".to_owned(), "1:1: listener[0].bind: ", "missing: expected an address and port"),
        (
            "[admin]\nbind = 8080".to_owned(),
            "2:8: admin.bind: ",
            "expected an address and port, as \"127.0.0.1:8080\", or \"off\", found 8080",
        ),
        (stream("partitions = 1025"), "4:14: stream[0].partitions: ", "from 1 to 1024"),
        (stream("key = \"level:129\""), "4:7: stream[0].key: ", "expected \"topic\", \"client\" or \"level:N\""),
        (stream("read = \"dirty\""), "4:8: stream[0].read: ", "expected \"synced\" or \"committed\", found \"dirty\""),
        (stream("when_full = \"panic\""), "4:13: stream[0].when_full: ", "expected \"refuse\" or \"drop-oldest\""),
        (stream("retention_bytes = \"lots\""), "4:19: stream[0].retention_bytes: ", "expected a size"),
        (
            stream("retain_unforwarded = \"yes\""),
            "4:22: stream[0].retain_unforwarded: ",
            "expected true or false, found \"yes\"",
        ),
        (upstream("qos = 0"), "9:7: upstream[0].qos: ", "expected a whole number from 1 to 2, found 0"),
        (upstream("protocol = 5"), "9:12: upstream[0].protocol: ", "expected \"5\" or \"3.1.1\", found 5"),
        (upstream("keep_alive = \"1d\""), "9:14: upstream[0].keep_alive: ", "expected a time from \"1s\" to"),
        (upstream("topic = \"a/{stram}\""), "9:9: upstream[0].topic: ", "expected a topic that may contain {topic}"),
        (upstream("topic = \"a/#\""), "9:9: upstream[0].topic: ", "without \"+\" and \"#\""),
        (upstream("client_id = \"\""), "9:13: upstream[0].client_id: ", "expected a client identifier"),
        (upstream("on_refusal = \"shrug\""), "9:14: upstream[0].on_refusal: ", "expected \"dead-letter\" or \"stop\""),
        (upstream("from = \"yesterday\""), "9:8: upstream[0].from: ", "expected \"earliest\" or \"latest\""),
        (
            upstream("").replace("\"mqtt\"", "\"nats\""),
            "6:8: upstream[0].kind: ",
            "expected \"mqtt\", \"kafka\" or \"forebay\"",
        ),
    ] {
        let error = error(&text);
        assert!(error.starts_with(&format!("config.toml:{place}")) && error.contains(message), "{text}\n{error}");
    }
}

#[test]
fn addresses_of_upstreams_are_read_strictly() {
    for address in [
        "dc",
        "mqtt://",
        "mqtt://a b",
        "http://dc",
        "mqtt://dc:0",
        "mqtt://dc:70000",
        "mqtt://[::1",
        "mqtt://[x]:1",
        "mqtt://::1",
    ] {
        let error = error(&upstream("").replace("mqtt://dc", address));
        assert!(error.starts_with("config.toml:7:11: upstream[0].address: expected an address"), "{address}: {error}");
    }
}

#[test]
fn names_are_unique_and_in_their_alphabet() {
    for name in ["Telemetry", "", "a/b", "ä", "a.b", &"a".repeat(65)] {
        let error = error(&format!("[[stream]]\nname = \"{name}\"\ntopics = [\"a\"]\n"));
        assert!(error.starts_with("config.toml:2:8: stream[0].name: expected a name of a-z, 0-9"), "{error}");
    }
    let twice = format!("{STREAM}[[stream]]\nname = \"telemetry\"\ntopics = [\"x\"]\n");
    assert_eq!(
        error(&twice),
        "config.toml:5:8: stream[1].name: expected a name of its own, found that of stream[0].name again"
    );
    for name in ["default", "dead-letter"] {
        let error = error(&format!("[[stream]]\nname = \"{name}\"\ntopics = [\"a\"]\n"));
        assert!(error.starts_with("config.toml:2:8: stream[0].name: ") && error.contains("is built in"), "{error}");
    }
    let twice = format!("{}{UPSTREAM}", upstream(""));
    assert!(error(&twice).contains("upstream[1].name: expected a name of its own"));
}

#[test]
fn filters_of_streams_are_plain_ones() {
    for (filter, message) in [
        ("$share/g/a", "expected a plain topic filter, found the shared one"),
        ("$SYS/#", "expected a filter that does not begin with \"$\""),
        ("a/#/b", "expected a topic filter with"),
        ("a+", "expected a topic filter with"),
        ("", "expected a topic filter with"),
    ] {
        let error = error(&format!("[[stream]]\nname = \"a\"\ntopics = [\"ok\", \"{filter}\"]\n"));
        assert!(error.starts_with("config.toml:3:17: stream[0].topics[1]: "), "{error}");
        assert!(error.contains(message), "{error}");
    }
    let deep = vec!["a"; 129].join("/");
    assert!(
        error(&format!("[[stream]]\nname = \"a\"\ntopics = [\"{deep}\"]\n")).contains("at most 128 levels, found 129")
    );
    assert!(error("[[stream]]\nname = \"a\"\ntopics = []\n").contains("expected a list of topic filters"));
    assert!(error("[[stream]]\nname = \"a\"\ntopics = \"a/#\"\n").contains("expected a list of topic filters"));
}

#[test]
fn overlapping_streams_are_warned_of() {
    let streams = |one: &str, other: &str| {
        format!("[[stream]]\nname = \"a\"\ntopics = [\"{one}\"]\n[[stream]]\nname = \"b\"\ntopics = [\"{other}\"]\n")
    };
    assert_eq!(warnings(&streams("a/#", "b/#")), [""; 0]);
    assert_eq!(
        warnings(&streams("a/b", "a/#")),
        [
            "config.toml:6:11: stream[1].topics[0]: \"a/#\" overlaps with \"a/b\" (stream[0].topics[0]): what matches both goes to \
          the earlier stream"
        ]
    );
    assert_eq!(
        warnings(&streams("a/#", "a/b")),
        [
            "config.toml:6:11: stream[1].topics[0]: \"a/b\" never receives anything: \"a/#\" (stream[0].topics[0]) comes first and \
          matches all of it"
        ]
    );
    assert_eq!(
        warnings("[[stream]]\nname = \"a\"\ntopics = [\"a/#\", \"a/b\"]\n"),
        [""; 0],
        "of one stream: no matter"
    );
}

#[test]
fn level_minus_one_needs_a_replica_and_two_in_sync() {
    let replicated = |stream: &str, upstream: &str| format!("{STREAM}{stream}\n{UPSTREAM}{upstream}\n");
    assert!(errors(&replicated("acks = -1\nmin_insync_replicas = 2", "replica = true")).is_empty());
    assert_eq!(
        errors(&stream("acks = -1")),
        [
            "config.toml:4:8: stream[0].acks: -1 needs a replica: an [[upstream]] with replica = true and \"telemetry\" in its streams",
            "config.toml:4:8: stream[0].acks: -1 needs min_insync_replicas of at least 2, the local log and a replica",
        ]
    );
    assert!(error(&replicated("acks = -1\nmin_insync_replicas = 1", "replica = true")).contains("at least 2"));
    let not_a_replica = errors(&replicated("acks = -1\nmin_insync_replicas = 2", "replica = false"));
    assert_eq!(not_a_replica.len(), 2, "{not_a_replica:#?}");
    assert!(error(&replicated("min_insync_replicas = 3", "replica = true")).contains("expected at most 2"));
    assert!(error(&stream("min_insync_replicas = 2")).contains("expected at most 1"));
    assert_eq!(
        error(&stream("acks = 0\nacks_min = 1")),
        "config.toml:5:12: stream[0].acks_min: 1 is more than acks = 0: every publish would be raised"
    );
}

#[test]
fn a_replica_has_no_window() {
    let errors = errors(&upstream("replica = true\nwindow = [\"22:00-06:00\"]"));
    assert_eq!(errors.len(), 2, "{errors:#?}");
    assert!(
        errors[0].starts_with("config.toml:9:11: upstream[0].replica: a replica cannot have a window"),
        "{errors:#?}"
    );
    assert!(
        errors[1].starts_with("config.toml:10:10: upstream[0].window: not available in this version yet"),
        "{errors:#?}"
    );
}

#[test]
fn sizes_have_to_fit_together() {
    for (text, expected) in [
        (
            "[gateway]\ndisk_budget = \"100MiB\"",
            "config.toml:2:15: gateway.disk_budget: expected gateway.disk_budget of at least 8 segments of 16MiB, that is \"128MiB\", found \"100MiB\"",
        ),
        (
            "[device]\nsegment_size = \"512MiB\"",
            "config.toml:2:16: device.segment_size: expected gateway.disk_budget of at least 8 segments of 512MiB, that is \"4GiB\", found \"2GiB\"",
        ),
        (
            "[device]\nmax_packet_size = \"8MiB\"",
            "config.toml:2:19: device.max_packet_size: expected max_packet_size of at most a quarter of device.segment_size (16MiB), that is \"4MiB\", found \"8MiB\"",
        ),
        (
            "[[listener]]\nbind = \"127.0.0.1:1\"\nmax_packet_size = \"5MiB\"",
            "config.toml:3:19: listener[0].max_packet_size: expected max_packet_size of at most a quarter of device.segment_size (16MiB), that is \"4MiB\", found \"5MiB\"",
        ),
        (
            "[device]\nmemory_budget = \"8MiB\"\nmax_packet_size = \"3MiB\"",
            "config.toml:3:19: device.max_packet_size: expected max_packet_size of at most a quarter of device.memory_budget (8MiB), that is \"2MiB\", found \"3MiB\"",
        ),
        (
            "[device]\nstate_cache = \"1GiB\"",
            "config.toml:2:15: device.state_cache: expected state_cache of at most memory_budget (\"64MiB\"), found \"1GiB\"",
        ),
        (
            "[[listener]]\nbind = \"127.0.0.1:1\"\nmax_connections = 1001",
            "config.toml:3:19: listener[0].max_connections: expected at most device.max_connections (1000), found 1001",
        ),
    ] {
        assert_eq!(error(text), expected);
    }
}

#[test]
fn what_others_can_reach_has_to_be_meant() {
    assert!(error("[[listener]]\nbind = \"0.0.0.0:1883\"").contains("set auth.allow_anonymous"));
    assert!(
        error("[[listener]]\nbind = \"[::]:1883\"")
            .starts_with("config.toml:2:8: listener[0].bind: others than this host")
    );
    assert!(errors("[[listener]]\nbind = \"0.0.0.0:1883\"\n[auth]\nallow_anonymous = true").is_empty());
    assert!(errors("[[listener]]\nbind = \"127.8.0.1:1883\"").is_empty());
    assert!(error("[admin]\nbind = \"0.0.0.0:8080\"").contains("set admin.token_file"));
    assert!(errors("[admin]\nbind = \"0.0.0.0:8080\"\ntoken_file = \"t\"").is_empty());
    assert!(error("[auth]\nallow_anonymous = false").contains("nobody could connect"));
}

#[test]
fn addresses_are_taken_once() {
    let two = |one: &str, other: &str| format!("[[listener]]\nbind = \"{one}\"\n[[listener]]\nbind = \"{other}\"\n");
    assert!(error(&two("127.0.0.1:1883", "127.0.0.1:1883")).starts_with("config.toml:4:8: listener[1].bind: "));
    assert!(errors(&two("127.0.0.1:0", "127.0.0.1:0")).is_empty());
    assert!(error("[admin]\nbind = \"127.0.0.1:1883\"").contains("found that of listener[0].bind again"));
}

#[test]
fn the_admin_side_can_be_turned_off() {
    assert_eq!(from_str("[admin]\nbind = \"off\"", "config.toml").unwrap().settings.admin, None);
}

#[test]
fn upstreams_carry_streams_that_exist() {
    let error_of = |streams: &str| error(&upstream("").replace("[\"telemetry\"]", streams));
    assert_eq!(
        error_of("[\"telemetri\"]"),
        "config.toml:8:12: upstream[0].streams[0]: expected the name of a [[stream]] (telemetry), found \"telemetri\""
    );
    assert!(error_of("[\"telemetry\", \"telemetry\"]").contains("stands there twice"));
    assert!(error_of("[\"dead-letter\"]").contains("is not forwarded"));
    assert!(errors(&upstream("").replace("[\"telemetry\"]", "[\"default\"]")).is_empty());
    let same_client =
        format!("{}{}client_id = \"x\"\n", upstream("client_id = \"x\""), UPSTREAM.replace("\"dc\"", "\"dc2\""));
    assert!(error(&same_client).contains("each would throw the other out"));
}

#[test]
fn tls_is_whole_or_not_at_all() {
    let tls = |line: &str| upstream(line).replace("mqtt://", "mqtts://");
    assert!(errors(&tls("tls = { ca_file = \"x\" }")).is_empty());
    assert!(error(&upstream("tls = { ca_file = \"x\" }")).contains("nothing would be encrypted"));
    assert!(error(&tls("tls = { cert_file = \"x\" }")).contains("a certificate needs its key"));
    assert!(error(&tls("tls = { key_file = \"x\" }")).contains("a key needs its certificate"));
    assert!(error(&upstream("password_file = \"x\"")).contains("a password needs a user name"));
    let warnings = warnings(&upstream("username = \"u\"\npassword_file = \"x\""));
    assert!(warnings[0].contains("unencrypted"), "{warnings:?}");
}

#[test]
fn secrets_are_refused_and_never_shown() {
    for text in [
        upstream("password = \"hunter2\""),
        upstream("").replace("mqtt://dc", "mqtt://me:hunter2@dc"),
        "[admin]\ntoken = \"hunter2\"".to_owned(),
        upstream("tls = { key = \"hunter2\" }").replace("mqtt://", "mqtts://"),
        "[auth]\npassword = \"hunter2\"".to_owned(),
    ] {
        let error = error(&text);
        assert!(!error.contains("hunter2"), "{error}");
    }
    let sets = ["upstream.dc.password=hunter2".to_owned(), "upstream.nope.password=hunter2".to_owned()];
    let errors = from_str_with(&upstream(""), "config.toml", &sets).unwrap_err().to_string();
    assert!(errors.contains("password_file") && !errors.contains("hunter2"), "{errors}");
}

#[test]
fn what_a_later_version_knows_is_refused_in_words_and_its_form_is_checked() {
    let listener = |line: &str| format!("[[listener]]\nbind = \"127.0.0.1:1\"\n{line}\n");
    for (text, key) in [
        (listener("transport = \"ws\""), "listener[0].transport"),
        (listener("rate = \"10KiB/s\""), "listener[0].rate"),
        (listener("tls = { cert_file = \"c\", key_file = \"k\" }"), "listener[0].tls"),
        ("[auth]\npassword_file = \"p\"".to_owned(), "auth.password_file"),
        ("[auth]\nacl_file = \"p\"".to_owned(), "auth.acl_file"),
        ("[admin]\ntls = {}".to_owned(), "admin.tls"),
        (stream("retention_age = \"7d\""), "stream[0].retention_age"),
        (stream("when_full = \"drop-oldest\""), "stream[0].when_full"),
        (stream("compression = \"lz4\""), "stream[0].compression"),
        (stream("priority = 9"), "stream[0].priority"),
        (upstream("rate = \"200KiB/s\""), "upstream[0].rate"),
        (upstream("window = [\"22:00-06:00\"]"), "upstream[0].window"),
        (upstream("batch_min = \"64KiB\""), "upstream[0].batch_min"),
        (upstream("max_delay = \"1m\""), "upstream[0].max_delay"),
        (upstream("share = { telemetry = 3 }"), "upstream[0].share"),
        (upstream("[[upstream.pull]]\ntopics = [\"x\"]"), "upstream[0].pull"),
        (
            upstream("")
                .replace("\"mqtt\"", "\"kafka\"")
                .replace("address = \"mqtt://dc\"", "bootstrap = [\"k:9092\"]"),
            "upstream[0].kind",
        ),
        (upstream("").replace("\"mqtt\"", "\"forebay\""), "upstream[0].kind"),
    ] {
        let error = error(&text);
        assert!(error.contains(&format!(" {key}: ")) && error.contains("not available in this version yet"), "{error}");
    }
    for (text, message) in [
        (listener("transport = \"quic\""), "expected \"tcp\" or \"ws\""),
        (listener("rate = 5"), "expected a rate"),
        (stream("retention_age = \"old\""), "expected a time"),
        (stream("compression = \"zip\""), "expected \"none\" or \"lz4\""),
        (stream("priority = 10"), "expected a whole number from 0 to 9"),
        (upstream("window = [\"25:00-06:00\"]"), "expected a list of times of day"),
        (upstream("share = { telemetry = 0 }"), "expected weights"),
        (upstream("pull = 1"), "expected a list of tables"),
    ] {
        let error = error(&text);
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn layers_lie_on_each_other_and_each_value_knows_its_own() {
    let text = "profile = \"raspberry-pi-zero\"\n[device]\nmax_inflight = 20\n[gateway]\ndisk_budget = \"1GiB\"\n";
    let sets = ["device.max_inflight=24".to_owned(), "gateway.ack_timeout=5s".to_owned()];
    let loaded = from_str_with(text, "config.toml", &sets).unwrap();
    assert_eq!(loaded.settings.device.max_inflight, 24);
    let print = loaded.print();
    let line = |key: &str| {
        let line = print
            .lines()
            .find(|line| line.starts_with(&format!("{key} = ")))
            .unwrap_or_else(|| panic!("{key}\n{print}"));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("gateway.data_dir"), "gateway.data_dir = \"data\" # default");
    assert_eq!(
        line("device.max_connections"),
        "device.max_connections = 200 # profile firmware-profiles/raspberry-pi-zero.toml:9:19"
    );
    assert_eq!(line("gateway.disk_budget"), "gateway.disk_budget = \"1GiB\" # config.toml:5:15");
    assert_eq!(line("device.max_inflight"), "device.max_inflight = 24 # --set");
    assert_eq!(line("gateway.ack_timeout"), "gateway.ack_timeout = \"5s\" # --set");
    assert_eq!(line("listener[0].max_connections"), "listener[0].max_connections = 200 # as device.max_connections");
    assert_eq!(line("profile"), "profile = \"raspberry-pi-zero\" # config.toml:1:11");
    assert_eq!(line("log"), "log = \"info\" # default");
}

#[test]
fn what_is_printed_can_be_set() {
    let loaded =
        from_str(&upstream("tls = { ca_file = \"ca\" }").replace("mqtt://", "mqtts://"), "config.toml").unwrap();
    let sets: Vec<String> = loaded.resolved.iter().map(|one| format!("{}={}", one.path, one.value)).collect();
    assert_eq!(from_str_with("", "config.toml", &sets).unwrap().settings, loaded.settings);
}

#[test]
fn a_value_from_the_command_line_is_checked_like_any_other() {
    let set = |argument: &str| from_str_with(STREAM, "config.toml", &[argument.to_owned()]).unwrap_err().to_string();
    assert_eq!(set("stream.telemetry.acks=2"), "--set: stream[0].acks: expected 0, 1 or -1, found 2");
    assert_eq!(set("gateway.colour=red"), "--set: gateway.colour: unknown key");
    assert_eq!(set("stream.x.acks=1"), "--set: stream.x.acks: there is no stream with the name \"x\"");
    let loaded = from_str_with("", "config.toml", &["gateway.id=42".to_owned(), "admin.bind=off".to_owned()]).unwrap();
    assert_eq!(loaded.settings.gateway.id.as_deref(), Some("42"));
}

#[test]
fn errors_of_a_profile_name_the_profile() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("firmware-profiles");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("mine.toml"), "io_threads = 1\nsegment_sise = \"1MiB\"\nmemory_budget = \"x\"\n").unwrap();
    let file = dir.path().join("config.toml");
    fs::write(&file, "profile = \"mine\"\nlog = 1\n").unwrap();
    let errors = load(LoadOptions { file: Some(file.clone()), sets: Vec::new() }).unwrap_err().to_string();
    let lines: Vec<&str> = errors.lines().collect();
    let profile = folder.join("mine.toml").display().to_string();
    assert_eq!(lines[0], format!("{profile}:2:1: device.segment_sise: unknown key, did you mean segment_size?"));
    assert!(lines[1].starts_with(&format!("{profile}:3:17: device.memory_budget: expected a size")), "{errors}");
    assert!(lines[2].starts_with(&format!("{}:2:7: log: ", file.display())), "{errors}");
    assert_eq!(lines.len(), 3, "{errors}");
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let read =
        |path: &Path| load(LoadOptions { file: Some(path.to_owned()), sets: Vec::new() }).unwrap_err().to_string();
    let missing = dir.path().join("none.toml");
    assert!(read(&missing).starts_with(&format!("{}: cannot be read: No such file", missing.display())));
    let binary = dir.path().join("binary.toml");
    fs::write(&binary, b"log = \"info\"\n# \xff\n").unwrap();
    assert!(read(&binary).contains("expected UTF-8, found other bytes in line 2"));
    let large = dir.path().join("large.toml");
    fs::write(&large, "#".repeat(2 << 20)).unwrap();
    assert!(read(&large).contains("expected at most 1MiB"));
}

#[test]
fn credentials_of_systemd_are_named_by_their_directory() {
    let text =
        upstream("username = \"u\"\npassword_file = \"$CREDENTIALS_DIRECTORY/dc\"").replace("mqtt://", "mqtts://");
    let loaded = from_str(&text, "config.toml").unwrap();
    assert!(loaded.warnings[0].contains("LoadCredential="), "{:?}", loaded.warnings);
}
