//! The forms that values have, what has to fit together, and what is not there yet.

use super::{STREAM, UPSTREAM, error, errors, stream, upstream, warnings};
use forebay::config::{from_str, from_str_with};

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
            "expected \"auto\" or a whole number from 1 to 64, found 0",
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
