//! A real gateway is killed with SIGKILL in the middle of load, again and again: nothing that was acknowledged at level 1 is
//! missing, first occurrences are in order, QoS 2 is there once, and it is back within a second.
#![cfg(test)]

#[allow(dead_code, reason = "each suite uses a part of it")]
mod support;

use forebay::mqtt::{QoS, Version};
use support::gateway::{Gateway, Setup};
use support::judge::{by_topic, judge_all};
use support::load::{Plan, Published, Publisher};
use support::{Dice, counts, ms, secs, until};

/// Small segments, so that kills also hit the moments when the log goes on to the next one.
const SETUP: &str = "[[stream]]\nname = \"telemetry\"\ntopics = [\"sensors/#\"]\npartitions = 3\n";

fn publishers(port: u16) -> Vec<Publisher> {
    let plans = [
        Plan::new("one-v5", Version::V5, QoS::AtLeastOnce),
        Plan::new("one-v311", Version::V311, QoS::AtLeastOnce),
        Plan::new("two-v5", Version::V5, QoS::ExactlyOnce),
        Plan::new("two-v311", Version::V311, QoS::ExactlyOnce),
    ];
    plans.into_iter().map(|plan| Publisher::start(port, plan)).collect()
}

#[test]
fn nothing_acknowledged_is_lost_when_the_gateway_is_killed() {
    let kills = counts::count("FOREBAY_KILLS", 3, 50);
    let seed = counts::count("FOREBAY_SEED", u64::from(std::process::id()), u64::from(std::process::id()));
    println!("kill: {kills} kills, seed {seed}");
    let mut dice = Dice::new(seed);
    let setup = Setup::new(SETUP).device("segment_size = \"512KiB\"\nmax_packet_size = \"64KiB\"");
    let mut gateway = Gateway::started("gw-kill", &setup);
    let publishers = publishers(gateway.port);
    let acked = |publishers: &[Publisher]| publishers.iter().map(Publisher::acked).collect::<Vec<_>>();
    let mut back = Vec::new();
    for _ in 0..kills {
        // Each of them gets somewhere between two kills.
        let before = acked(&publishers);
        until("every publisher goes on", secs(30), || {
            acked(&publishers).iter().zip(&before).all(|(now, before)| now > before).then_some(())
        });
        std::thread::sleep(ms(20 + dice.below(400)));
        gateway.kill();
        std::thread::sleep(ms(dice.below(30)));
        back.push(gateway.start());
    }
    std::thread::sleep(ms(200));
    let published: Vec<Published> = publishers.into_iter().map(Publisher::finish).collect();

    let running = by_topic(&gateway.tail("telemetry"));
    let verdict = judge_all(&published, &running);
    gateway.kill();
    let stopped = by_topic(&gateway.tail("telemetry"));
    assert_eq!(running, stopped, "what is read from the running gateway and from its directory is the same");

    back.sort();
    let republished: u64 = published.iter().map(|published| published.republished).sum();
    println!(
        "kill: {kills} kills, {} acked, {} stored, lost 0, republished {republished} (stored twice: {} at QoS 1, 0 at QoS 2); start to \
         first CONNACK: median {:?}, longest {:?}",
        verdict.acked,
        verdict.arrived,
        verdict.doubled,
        back[back.len() / 2],
        back[back.len() - 1]
    );
    assert!(back[back.len() - 1] < secs(5), "five times the goal of one second: {back:?}");
}
