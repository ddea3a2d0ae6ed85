//! A power cut at any instant: what was acknowledged at level 1 is in the log afterwards, in order, once where it was QoS 2.
//!
//! `cargo test` runs 20 seeds; `FOREBAY_SEEDS=500` as many, `FOREBAY_SEED=n` that one.

#[cfg(test)]
#[allow(dead_code, unused_imports, reason = "each suite uses a part of it")]
#[path = "sim/mod.rs"]
mod sim;

use sim::Faults;

#[test]
fn what_was_acknowledged_survives_a_power_cut_at_any_instant() {
    sim::run_seeds("power_cut", 20, |_| Faults { power: true, clients: true, ..Faults::default() });
}

#[test]
fn also_when_the_disk_fails_before() {
    sim::run_seeds("power_cut", 20, |_| Faults { power: true, disk: true, ..Faults::default() });
}
