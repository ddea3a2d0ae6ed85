//! Store and forward over MQTT: the centre is a Forebay or a real Mosquitto, links are cut, processes are killed, peers have narrow
//! limits or refuse. Nothing that the gateway acknowledged is lost; at QoS 2 nothing is doubled while both sides keep the session.
#![cfg(test)]

#[allow(dead_code, reason = "each suite uses a part of it")]
mod support;

use forebay::mqtt::{QoS, Reason, Version};
use std::time::Instant;
use support::client::{Client, Options};
use support::cutter::Cutter;
use support::gateway::{Gateway, Setup, partition, upstream, upstreams};
use support::judge::{Arrived, Verdict, by_topic, judge, judge_all, same, seq};
use support::load::{Plan, Published, Publisher};
use support::mosquitto::Mosquitto;
use support::peer::{Peer, Terms};
use support::{Dice, counts, ms, ports, secs, until};

const STREAM: &str = "[[stream]]\nname = \"telemetry\"\ntopics = [\"sensors/#\"]\npartitions = 3\n\n";
/// Silence is noticed soon, and a broken link is tried again soon.
const QUICK: &str = "keep_alive = \"1s\"\nconnect_timeout = \"2s\"";

fn centre() -> Gateway {
    Gateway::started("centre", &Setup::new(STREAM).device("max_inflight = 200"))
}

fn gateway(port: u16, more: &str) -> Gateway {
    let rest = format!("{STREAM}{}", upstream("centre", port, &["telemetry"], &format!("{QUICK}\n{more}")));
    Gateway::started("gw", &Setup::new(rest))
}

/// Two publishers at QoS 1 and two at QoS 2, at a rate that any machine can carry while everything around is killed.
fn publishers(port: u16) -> Vec<Publisher> {
    let plans = [
        Plan::new("one-v5", Version::V5, QoS::AtLeastOnce),
        Plan::new("one-v311", Version::V311, QoS::AtLeastOnce),
        Plan::new("two-v5", Version::V5, QoS::ExactlyOnce),
        Plan::new("two-v311", Version::V311, QoS::ExactlyOnce),
    ];
    plans.into_iter().map(|plan| Publisher::start(port, plan.every(ms(4)))).collect()
}

fn total(publishers: &[Publisher]) -> u64 {
    publishers.iter().map(Publisher::acked).sum()
}

/// Waits until some more has been acknowledged, so that each fault hits running traffic.
fn flow(publishers: &[Publisher]) {
    let before = total(publishers);
    until("publishers go on", secs(60), || (total(publishers) > before + 50).then_some(()));
}

/// Waits until some more has reached the centre.
fn forwarded(gateway: &Gateway) {
    let before = done(gateway);
    gateway.wait("forwarding goes on", secs(60), |status| cursors(status) > before + 20);
}

fn cursors(status: &serde_json::Value) -> u64 {
    upstreams(status)
        .flat_map(|upstream| upstream["cursors"].as_object().into_iter().flatten())
        .filter_map(|(_, cursor)| cursor.as_u64())
        .sum()
}

fn done(gateway: &Gateway) -> u64 {
    cursors(&gateway.status())
}

fn finish(publishers: Vec<Publisher>) -> Vec<Published> {
    publishers.into_iter().map(Publisher::finish).collect()
}

/// Stops the publishers, waits for the drain, judges the gateway and then the centre against it.
fn settle(what: &str, gateway: &Gateway, publishers: Vec<Publisher>, read: impl FnOnce() -> Arrived) {
    let published = finish(publishers);
    let begin = Instant::now();
    let status = gateway.drained(secs(120));
    let drain = begin.elapsed();
    let stored = by_topic(&gateway.tail("telemetry"));
    let verdict = judge_all(&published, &stored);
    let arrived = read();
    same(&stored, &arrived);
    let doubles = upstreams(&status).map(|upstream| upstream["possible_doubles"].as_u64().unwrap_or(0)).sum::<u64>();
    assert_eq!(doubles, 0, "both sides kept the session");
    println!(
        "upstream: {what}: {} acked, {} at the centre, lost 0, doubled 0, reordered 0 (stored twice at the gateway by QoS 1: {}), \
         drained in {drain:?}",
        verdict.acked, verdict.arrived, verdict.doubled
    );
}

fn read_forebay(centre: &Gateway) -> Arrived {
    by_topic(&centre.tail("telemetry"))
}

fn read_mosquitto(centre: &Mosquitto) -> Arrived {
    let mut arrived = Arrived::new();
    centre.read(|publish| arrived.entry(publish.topic.to_string()).or_default().push(seq(&publish.payload)));
    arrived
}

#[test]
fn forebay_centre_killed() {
    let kills = counts::count("FOREBAY_CENTRE_KILLS", 2, 20);
    let mut centre = centre();
    let gateway = gateway(centre.port, "qos = 2");
    let publishers = publishers(gateway.port);
    let mut dice = Dice::new(u64::from(std::process::id()));
    for _ in 0..kills {
        flow(&publishers);
        forwarded(&gateway);
        std::thread::sleep(ms(dice.below(200)));
        centre.kill();
        std::thread::sleep(ms(dice.below(200)));
        centre.start();
    }
    settle(&format!("Forebay centre, {kills} SIGKILLs of the centre"), &gateway, publishers, || read_forebay(&centre));
}

#[test]
fn gateway_killed_before_a_forebay_centre() {
    let kills = counts::count("FOREBAY_GATEWAY_KILLS", 2, 20);
    let centre = centre();
    let mut gateway = gateway(centre.port, "qos = 2");
    let publishers = publishers(gateway.port);
    let mut dice = Dice::new(u64::from(std::process::id()));
    for _ in 0..kills {
        flow(&publishers);
        forwarded(&gateway);
        std::thread::sleep(ms(dice.below(200)));
        gateway.kill();
        gateway.start();
    }
    settle(&format!("Forebay centre, {kills} SIGKILLs of the gateway"), &gateway, publishers, || read_forebay(&centre));
}

/// As above over MQTT 3.1.1, which has neither reason codes nor sources.
#[test]
fn gateway_and_centre_killed_over_3_1_1() {
    let kills = counts::count("FOREBAY_OLD_KILLS", 1, 10);
    let mut centre = centre();
    let mut gateway = gateway(centre.port, "qos = 2\nprotocol = \"3.1.1\"");
    let publishers = publishers(gateway.port);
    let mut dice = Dice::new(u64::from(std::process::id()));
    for _ in 0..kills {
        flow(&publishers);
        forwarded(&gateway);
        std::thread::sleep(ms(dice.below(200)));
        gateway.kill();
        gateway.start();
        forwarded(&gateway);
        std::thread::sleep(ms(dice.below(200)));
        centre.kill();
        centre.start();
    }
    settle(&format!("Forebay centre over 3.1.1, {kills} SIGKILLs of each"), &gateway, publishers, || {
        read_forebay(&centre)
    });
}

/// At QoS 1 what is in flight may come twice; nothing is missing, and first occurrences are in order.
#[test]
fn at_qos_1_nothing_is_lost_either() {
    let kills = counts::count("FOREBAY_QOS1_KILLS", 1, 10);
    let mut centre = centre();
    let mut gateway = gateway(centre.port, "qos = 1");
    let publishers = publishers(gateway.port);
    for _ in 0..kills {
        flow(&publishers);
        forwarded(&gateway);
        gateway.kill();
        gateway.start();
        forwarded(&gateway);
        centre.kill();
        centre.start();
    }
    let published = finish(publishers);
    gateway.drained(secs(120));
    let arrived = read_forebay(&centre);
    let verdicts: Vec<_> =
        published.iter().map(|published| judge(published, &arrived).nothing_lost().clone()).collect();
    let sum = |of: fn(&Verdict) -> u64| verdicts.iter().map(of).sum::<u64>();
    println!(
        "upstream: QoS 1, {kills} SIGKILLs of each: {} acked, {} at the centre, lost 0, reordered 0, doubled {}",
        sum(|verdict| verdict.acked),
        sum(|verdict| verdict.arrived),
        sum(|verdict| verdict.doubled)
    );
}

fn cut_before_a_mosquitto(protocol: &str) {
    let cuts = counts::count("FOREBAY_CUTS", 2, 20);
    let Some(centre) = Mosquitto::start("upstream_mqtt, cuts before a Mosquitto", "") else { return };
    centre.register_reader();
    let link = Cutter::new(ports::free(), centre.port);
    let gateway = gateway(link.port, &format!("qos = 2\nprotocol = \"{protocol}\""));
    let publishers = publishers(gateway.port);
    let mut dice = Dice::new(u64::from(std::process::id()));
    for _ in 0..cuts {
        flow(&publishers);
        forwarded(&gateway);
        std::thread::sleep(ms(dice.below(200)));
        link.cut();
        std::thread::sleep(ms(dice.below(300)));
        flow(&publishers);
        link.mend();
    }
    let what = format!("Mosquitto centre, MQTT {protocol}, {cuts} cuts");
    settle(&what, &gateway, publishers, || read_mosquitto(&centre));
}

#[test]
fn mosquitto_centre_cut() {
    cut_before_a_mosquitto("5");
}

#[test]
fn mosquitto_centre_cut_over_3_1_1() {
    cut_before_a_mosquitto("3.1.1");
}

#[test]
fn mosquitto_centre_restarted() {
    let restarts = counts::count("FOREBAY_RESTARTS", 2, 10);
    let Some(mut centre) = Mosquitto::start("upstream_mqtt, restarts of a Mosquitto", "") else { return };
    centre.register_reader();
    let gateway = gateway(centre.port, "qos = 2");
    let publishers = publishers(gateway.port);
    for _ in 0..restarts {
        flow(&publishers);
        forwarded(&gateway);
        centre.restart();
    }
    settle(&format!("Mosquitto centre, {restarts} orderly restarts"), &gateway, publishers, || read_mosquitto(&centre));
}

/// The link goes dead without a FIN: the gateway finds out by itself, and goes on when there is a way again.
#[test]
fn mosquitto_centre_behind_a_black_hole() {
    let Some(centre) = Mosquitto::start("upstream_mqtt, a black hole before a Mosquitto", "") else { return };
    centre.register_reader();
    let link = Cutter::new(ports::free(), centre.port);
    let gateway = gateway(link.port, "qos = 2");
    let publishers = publishers(gateway.port);
    flow(&publishers);
    forwarded(&gateway);
    link.black_hole();
    let begin = Instant::now();
    gateway.wait("the dead link is found", secs(30), |status| {
        upstreams(status).any(|upstream| upstream["state"] != "connected")
    });
    let found = begin.elapsed();
    link.mend();
    forwarded(&gateway);
    println!(
        "upstream: black hole found after {found:?} (keep-alive 1 s), forwarding again after {:?}",
        begin.elapsed()
    );
    settle("Mosquitto centre, a black hole", &gateway, publishers, || read_mosquitto(&centre));
}

/// Receive Maximum 5: never more than five are open, and everything comes through.
#[test]
fn a_receive_maximum_of_five_is_honoured() {
    for qos in [1, 2] {
        let peer = Peer::new(Terms { receive_maximum: Some(5), ..Terms::default() });
        let gateway = gateway(peer.port, &format!("qos = {qos}"));
        let plan = Plan::new("five", Version::V5, QoS::ExactlyOnce).messages(1_000);
        peer.hold();
        let publisher = Publisher::start(gateway.port, plan);
        until("the window is used", secs(10), || (peer.most().0 == 5).then_some(()));
        std::thread::sleep(ms(100));
        peer.go_on();
        let published = publisher.join();
        gateway.drained(secs(60));
        assert_eq!(peer.faults(), Vec::<String>::new());
        assert_eq!(peer.most().0, 5, "and no more than that");
        let mut arrived = Arrived::new();
        for arrival in peer.arrivals() {
            arrived.entry(arrival.publish.topic.to_string()).or_default().push(seq(&arrival.publish.payload));
        }
        judge_all(&[published], &arrived).nothing_doubled();
    }
    let centres = [Gateway::started("centre", &Setup::new(STREAM).listener("max_inflight = 5"))];
    let mosquitto = Mosquitto::start("upstream_mqtt, Receive Maximum before a Mosquitto", "max_inflight_messages 5");
    let ports = centres.iter().map(|centre| centre.port).chain(mosquitto.iter().map(|centre| centre.port));
    if let Some(mosquitto) = &mosquitto {
        mosquitto.register_reader();
    }
    for port in ports {
        let gateway = gateway(port, "qos = 2");
        let publishers = vec![Publisher::start(gateway.port, Plan::new("five", Version::V5, QoS::ExactlyOnce))];
        until("a thousand messages", secs(60), || (total(&publishers) > 1_000).then_some(()));
        settle("Receive Maximum 5", &gateway, publishers, || match &mosquitto {
            Some(mosquitto) if mosquitto.port == port => read_mosquitto(mosquitto),
            _ => read_forebay(&centres[0]),
        });
    }
}

/// What the peer cannot take, or will not, goes to the stream `dead-letter` with the reason; the rest goes on in order.
fn dead_letters(
    what: &str,
    port: u16,
    bad: &dyn Fn(u64) -> (String, String),
    read: &dyn Fn() -> Vec<(String, String)>,
) {
    for qos in [1, 2] {
        let gateway = gateway(port, &format!("qos = {qos}"));
        let mut client = Client::connect(gateway.port, &Options::new(Version::V5, "sensor")).unwrap();
        let (mut good, mut refused) = (Vec::new(), Vec::new());
        for number in 0..40_u64 {
            let message =
                if number % 8 == 5 { bad(number) } else { ("sensors/good".to_owned(), format!("{qos} {number}")) };
            client.publish(&message.0, message.1.clone(), QoS::AtLeastOnce, 1).unwrap();
            assert_eq!(client.ack(secs(5)).unwrap().map(|ack| ack.reason), Some(Reason::SUCCESS));
            if number % 8 == 5 { refused.push(message) } else { good.push(message) }
        }
        let status = gateway.drained(secs(60));
        assert_eq!(upstreams(&status).next().unwrap()["refused_records"], 5, "{what}");
        let letters = gateway.tail("dead-letter");
        let kept: Vec<_> = letters.iter().map(|record| (record.topic.clone(), record.payload.clone())).collect();
        assert_eq!(kept.len(), refused.len(), "{what}, QoS {qos}: {kept:?}");
        for (kept, refused) in kept.iter().zip(&refused) {
            assert_eq!(kept.1, refused.1, "{what}, QoS {qos}: a dead letter is whole");
        }
        let mine: Vec<_> = read().into_iter().filter(|(_, payload)| payload.starts_with(&format!("{qos} "))).collect();
        assert_eq!(mine, good, "{what}, QoS {qos}");
        assert_eq!(partition(&status, "dead-letter", 0)["leo"], 5);
    }
}

fn at_peer(peer: &Peer, refuses: &str) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let arrivals = peer.arrivals().into_iter().map(|arrival| arrival.publish);
    arrivals
        .map(|publish| (publish.topic.to_string(), text(&publish.payload)))
        .filter(|(topic, _)| !topic.contains(refuses))
        .collect()
}

fn large(number: u64) -> (String, String) {
    ("sensors/large".to_owned(), format!("large {number} {}", "x".repeat(3_000)))
}

fn forbidden(number: u64) -> (String, String) {
    ("sensors/forbidden".to_owned(), format!("forbidden {number}"))
}

#[test]
fn records_beyond_the_maximum_packet_size_are_dead_letters() {
    let peer = Peer::new(Terms { maximum_packet_size: Some(2_000), ..Terms::default() });
    dead_letters("small packets, scripted peer", peer.port, &large, &|| at_peer(&peer, "nothing"));
    assert_eq!(peer.faults(), Vec::<String>::new());

    let centre =
        Gateway::started("centre", &Setup::new(STREAM.replace('3', "1")).listener("max_packet_size = \"2KiB\""));
    let read = || centre.tail("telemetry").into_iter().map(|record| (record.topic, record.payload)).collect();
    dead_letters("small packets, Forebay", centre.port, &large, &read);

    let Some(centre) = Mosquitto::start("upstream_mqtt, small packets before a Mosquitto", "max_packet_size 2000")
    else {
        return;
    };
    centre.register_reader();
    dead_letters("small packets, Mosquitto", centre.port, &large, &|| after_reading(&centre));
}

#[test]
fn refused_records_are_dead_letters() {
    for reason in [Reason::NOT_AUTHORIZED, Reason::TOPIC_NAME_INVALID, Reason::PAYLOAD_FORMAT_INVALID] {
        let peer = Peer::new(Terms { refuses: vec![("forbidden".to_owned(), reason)], ..Terms::default() });
        dead_letters("refusals, scripted peer", peer.port, &forbidden, &|| at_peer(&peer, "forbidden"));
        assert_eq!(peer.faults(), Vec::<String>::new());
    }
    let directory = tempfile::tempdir().unwrap();
    let rights = directory.path().join("acl");
    std::fs::write(&rights, "topic read #\ntopic write sensors/good\n").unwrap();
    let more = format!("acl_file {}", rights.display());
    let Some(centre) = Mosquitto::start("upstream_mqtt, refusals by a Mosquitto", &more) else { return };
    centre.register_reader();
    dead_letters("refusals, Mosquitto", centre.port, &forbidden, &|| after_reading(&centre));
}

/// All that has come for the reader since the last time.
fn after_reading(centre: &Mosquitto) -> Vec<(String, String)> {
    let mut read = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    centre.read(|publish| read.push((publish.topic.to_string(), text(&publish.payload))));
    read
}

/// Memory does not grow with the backlog.
#[test]
fn memory_is_flat_while_records_wait() {
    let records = counts::count("FOREBAY_BACKLOG", 50_000, 1_000_000);
    let centre = Gateway::new("centre", &Setup::new(STREAM).device("max_inflight = 200"));
    let rest = format!("{STREAM}{}", upstream("centre", centre.port, &["telemetry"], QUICK));
    let mut gateway = Gateway::started("gw", &Setup::new(rest).device("max_inflight = 200"));
    let load = |id: &str, messages: u64| {
        let plan = Plan { window: 200, ..Plan::new(id, Version::V5, QoS::AtLeastOnce).messages(messages) };
        Publisher::start(gateway.port, plan)
    };
    // A fifth first: queues, caches and the tail in memory take what they are allowed to.
    let mut published = vec![load("first-a", records / 10), load("first-b", records / 10)];
    let mut all: Vec<Published> = published.drain(..).map(Publisher::join).collect();
    let rss = |gateway: &mut Gateway| gateway.running().rss_kib();
    published = vec![load("then-a", records * 4 / 10), load("then-b", records * 4 / 10)];
    let early = gateway.running().rss_kib();
    let begin = Instant::now();
    all.extend(published.drain(..).map(Publisher::join));
    let rate = (records * 8 / 10) as f64 / begin.elapsed().as_secs_f64();
    let late = rss(&mut gateway);
    let status = gateway.status();
    assert_eq!(upstreams(&status).next().unwrap()["lag_records"], records / 10 * 2 + records * 4 / 10 * 2);

    let mut centre = centre;
    let begin = Instant::now();
    centre.start();
    gateway.drained(secs(600));
    let took = begin.elapsed();
    let after = rss(&mut gateway);
    println!(
        "upstream: {records} records waited: RSS {} MiB at a fifth, {} MiB at the end, {} MiB after the drain (peak {} MiB); taken at \
         {rate:.0}/s, drained in {took:?}",
        early / 1024,
        late / 1024,
        after / 1024,
        gateway.running().peak_rss_kib() / 1024
    );
    let room = 8 * 1024;
    assert!(late < early + room, "RSS grew from {early} to {late} KiB while records waited");
    assert!(after < early + 2 * room, "RSS grew from {early} to {after} KiB in the drain");
    let arrived = read_forebay(&centre);
    judge_all(&all, &arrived).nothing_doubled();
}
