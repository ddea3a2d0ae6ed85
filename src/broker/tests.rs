//! A whole gateway in this process, by its sockets.

use super::*;
use crate::mqtt::properties::*;
use crate::mqtt::*;
use crate::net::test_client::{Client, publish};
use std::path::Path;

fn settings(data_dir: &Path, more: &str) -> Settings {
    let text = format!(
        "[gateway]\nid = \"gw\"\ndata_dir = {:?}\ndisk_budget = \"64MiB\"\n[device]\nsegment_size = \"1MiB\"\nmax_packet_size = \"64KiB\"\n\
         [[listener]]\nbind = \"127.0.0.1:0\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [[stream]]\nname = \"telemetry\"\ntopics = [\"a/#\"]\n{more}",
        data_dir
    );
    match crate::config::from_str(&text, "test.toml") {
        Ok(loaded) => loaded.settings,
        Err(errors) => panic!("{errors}"),
    }
}

fn subscribe(client: &mut Client, filter: &str, qos: QoS) {
    let options = SubscribeOptions { qos, ..SubscribeOptions::default() };
    let properties = SubscribeProperties::default();
    let filters = vec![(Text::from(filter), options)];
    client.send(&Packet::Subscribe(Box::new(Subscribe { packet_id: 1, filters, properties })), Version::V311);
    assert!(matches!(client.wait(), Some(Packet::SubAck(it)) if it.reasons == [Reason(qos.bits())]));
}

/// Publishes `count` at QoS 1 and waits for all answers.
fn publish_all(client: &mut Client, count: u16) {
    let version = client.decoder.version().unwrap();
    for id in 1..=count {
        client.send(&Packet::Publish(publish(QoS::AtLeastOnce, id, b"reading")), version);
    }
    for id in 1..=count {
        assert_eq!(client.wait(), Some(Packet::PubAck(Ack::new(id, Reason::SUCCESS))));
    }
}

#[test]
fn what_is_published_is_answered_and_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let handle = start(settings(dir.path(), "")).unwrap();
    let mut subscriber = Client::connected(handle.addresses[0], Version::V311);
    subscribe(&mut subscriber, "a/+", QoS::AtMostOnce);
    let mut second = Client::connected(handle.addresses[0], Version::V311);
    publish_all(&mut second, 100);
    for _ in 0..100 {
        assert_eq!(subscriber.wait(), Some(Packet::Publish(publish(QoS::AtMostOnce, 0, b"reading"))));
    }
    handle.stop().unwrap();
}

#[test]
fn several_io_threads_keep_the_order_of_each_connection() {
    let dir = tempfile::tempdir().unwrap();
    let handle = start(settings(dir.path(), "[[upstream]]\nname = \"x\"\nkind = \"mqtt\"\naddress = \"mqtt://127.0.0.1:1\"\nstreams = [\"telemetry\"]\n").tap(|it| it.device.io_threads = 3)).unwrap();
    let mut subscribers: Vec<Client> = (0..4).map(|_| Client::connected(handle.addresses[0], Version::V311)).collect();
    let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::AtMostOnce, QoS::AtLeastOnce];
    subscribers.iter_mut().zip(qos).for_each(|(client, qos)| subscribe(client, "a/#", qos));
    let mut publishers: Vec<Client> = (0..3).map(|_| Client::connected(handle.addresses[0], Version::V311)).collect();
    for id in 1..=100u16 {
        for (number, client) in publishers.iter_mut().enumerate() {
            let payload = [number as u8, id as u8];
            client.send(&Packet::Publish(publish(QoS::AtLeastOnce, id, &payload)), Version::V311);
        }
    }
    for client in &mut publishers {
        (1..=100).for_each(|id| assert_eq!(client.wait(), Some(Packet::PubAck(Ack::new(id, Reason::SUCCESS)))));
    }
    for (client, qos) in subscribers.iter_mut().zip(qos) {
        let mut last = [0; 3];
        for _ in 0..300 {
            let Some(Packet::Publish(message)) = client.wait() else { panic!("no message") };
            let [number, id] = message.payload[..] else { panic!("foreign message") };
            assert_eq!(std::mem::replace(&mut last[usize::from(number)], id) + 1, id);
            if qos == QoS::AtLeastOnce {
                client.send(&Packet::PubAck(Ack::new(message.packet_id, Reason::SUCCESS)), Version::V311);
            }
        }
        assert_eq!(last, [100; 3]);
    }
    handle.stop().unwrap();
}

#[test]
fn clients_are_told_of_the_stop_and_it_takes_less_than_five_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let handle = start(settings(dir.path(), "")).unwrap();
    let address = handle.addresses[0];
    let mut v5 = Client::connected(address, Version::V5);
    let mut v3 = Client::connected(address, Version::V311);
    publish_all(&mut v3, 10);
    let begin = Instant::now();
    handle.stop().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(matches!(v5.wait(), Some(Packet::Disconnect(it)) if it.reason == Reason::SERVER_SHUTTING_DOWN));
    assert_eq!(v3.wait(), None);
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_second_gateway_on_the_same_data_or_port_is_refused_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let handle = start(settings(dir.path(), "")).unwrap();
    let error = start(settings(dir.path(), "")).unwrap_err();
    assert!(matches!(error, RunError::Storage(_)), "{error}");
    let other = tempfile::tempdir().unwrap();
    let same_port = settings(other.path(), "").tap(|it| it.listeners[0].bind = handle.addresses[0]);
    let error = start(same_port.clone()).unwrap_err().to_string();
    assert!(error.starts_with("listener[0].bind: cannot listen on"), "{error}");
    handle.stop().unwrap();
    start(same_port).unwrap().stop().unwrap();
}

#[test]
fn a_restart_goes_on_with_the_next_offset_and_keeps_what_was_answered() {
    let dir = tempfile::tempdir().unwrap();
    for round in 1..=3 {
        let handle = start(settings(dir.path(), "")).unwrap();
        let mut client = Client::connected(handle.addresses[0], Version::V5);
        publish_all(&mut client, 20);
        let mut control = admin::client::Client::new(dir.path());
        let target = "/api/v1/streams/telemetry/partitions/0/records?from=earliest&limit=1000";
        let answer = control.get(target).unwrap();
        let offset = |line: &[u8]| serde_json::from_slice::<serde_json::Value>(line).unwrap()["offset"].as_u64();
        let lines = answer.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let offsets: Vec<u64> = lines.filter_map(offset).collect();
        assert_eq!(offsets, (0..round * 20).collect::<Vec<_>>());
        handle.stop().unwrap();
    }
}

#[test]
fn the_admin_side_asks_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let handle = start(settings(dir.path(), "")).unwrap();
    let mut client = Client::connected(handle.addresses[0], Version::V311);
    publish_all(&mut client, 10);
    let mut control = admin::client::Client::new(dir.path());
    let status: serde_json::Value = serde_json::from_slice(&control.get("/api/v1/status").unwrap()).unwrap();
    assert_eq!(status["gateway"]["id"], "gw");
    let streams = status["streams"].as_array().unwrap();
    assert!(streams.iter().any(|it| it["name"] == "telemetry" && it["partitions"][0]["leo"] == 10), "{status}");
    handle.stop().unwrap();
}

/// Changes a value in passing.
trait Tap: Sized {
    fn tap(self, change: impl FnOnce(&mut Self)) -> Self;
}

impl Tap for Settings {
    fn tap(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}
