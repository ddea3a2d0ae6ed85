//! Every fault that the simulator knows, mixed. `FOREBAY_SEEDS=n` runs as many seeds, `FOREBAY_SEED=n` that one.

#[cfg(test)]
#[path = "sim/mod.rs"]
mod sim;

use sim::{Bug, Faults, Plan};

fn every_fault() -> Faults {
    Faults {
        power: true,
        kill: true,
        stop: true,
        disk: true,
        link: true,
        peer: true,
        peer_forgets: true,
        refusals: true,
        clients: true,
    }
}

#[test]
fn promises_hold_under_every_fault() {
    sim::run_seeds("sim", 20, |_| every_fault());
}

#[test]
fn a_quiet_run_loses_nothing() {
    sim::run_seeds("sim", 5, |_| Faults { stop: true, ..Faults::default() });
}

#[test]
fn while_the_centre_keeps_its_sessions_qos_2_reaches_it_once() {
    sim::run_seeds("sim", 20, |_| Faults { peer_forgets: false, ..every_fault() });
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..3 {
        let run = || sim::run(Plan::new(seed, every_fault()));
        assert_eq!(run(), run());
    }
}

/// A harness that finds nothing proves nothing: each planted bug must be found, and for what it is.
#[test]
fn planted_bugs_are_found() {
    let power = Faults { power: true, clients: true, ..Faults::default() };
    let kill = Faults { kill: true, clients: true, ..Faults::default() };
    let disk = Faults { power: true, disk: true, ..Faults::default() };
    let planted = [
        (Bug::AckBeforeSync, power, "before its record is synced"),
        (Bug::SyncLies, power, "was synced and is lost"),
        (Bug::SyncAgain, disk, "was synced and is lost"),
        (Bug::DedupLost, kill, "is stored more than once"),
        (Bug::CursorBeforeAck, every_fault(), "centre"),
    ];
    for (bug, faults, expected) in planted {
        let found = (0..100).find_map(|seed| sim::run(Plan::new(seed, faults).with_bug(bug)).err());
        let found = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        assert!(found.contains(expected), "{bug:?} is found, but as: {found}");
    }
}
