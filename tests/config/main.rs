//! The configuration's promises: every mistake is told with its place, all of them at once, nothing is ignored, and each value knows
//! the layer that it came from. `rules.rs` has the forms of values and what has to fit together.

mod rules;

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
    match from_str(text, "config.toml") {
        Ok(loaded) => loaded.warnings,
        Err(errors) => vec![errors.to_string()],
    }
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

/// Everything that this version knows, once.
const WHOLE: &str = r#"
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

#[test]
fn everything_that_can_be_said_arrives_in_the_settings() {
    let settings = from_str(WHOLE, "config.toml").unwrap().settings;
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

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_mangled_file_is_an_error_with_a_place_in_it_or_it_is_read_and_never_a_panic(
        edits in proptest::collection::vec((proptest::num::usize::ANY, 0_usize..4, "[\\PC\n]{0,6}"), 1..6),
    ) {
        let mut chars: Vec<char> = WHOLE.chars().collect();
        for (at, remove, insert) in edits {
            let at = at % (chars.len() + 1);
            let end = (at + remove * 5).min(chars.len());
            chars.splice(at..end, insert.chars());
        }
        let text: String = chars.into_iter().collect();
        let lines = text.lines().count() + 1;
        if let Err(errors) = from_str(&text, "config.toml") {
            proptest::prop_assert!(!errors.0.is_empty());
            for error in errors.0 {
                proptest::prop_assert!(error.place.line <= lines, "{}", error);
                proptest::prop_assert!(!error.message.contains('\n'), "{}", error);
            }
        }
    }

    #[test]
    fn whatever_is_set_on_the_command_line_is_an_error_or_is_taken_and_never_a_panic(set in "[a-z_.\\[\\]0-9]{0,20}=?\\PC{0,12}") {
        let _ = from_str_with(WHOLE, "config.toml", &[set]);
    }
}
