//! The deterministic simulator: the real engine, committer, recovery, reader and ack queues on a simulated disk, with simulated
//! clients, link and centre, in virtual time, all of it from one seed. The same seed is the same run, byte for byte.
//!
//! ```text
//! world       the loop, lives and deaths of the gateway, the end       plan      which faults, what configuration
//! gateway     the real parts, composed as broker/ does                 store     the disk (log::memory) and planted bugs
//! publisher   devices        subscriber  readers        net            connections between clients and gateway
//! link        the link and the centre, with their faults               message   payloads that say who they are
//! oracle      what must hold                                           rng, trace
//! ```
//!
//! A failure names its seed, shows the last of what happened and the command that runs it again.

mod gateway;
mod link;
mod message;
mod net;
mod oracle;
pub mod plan;
mod publisher;
mod rng;
mod store;
mod subscriber;
mod trace;
mod world;

pub use plan::{Bug, Faults, Plan};
pub use world::Summary;

use std::panic::{AssertUnwindSafe, catch_unwind};
use world::World;

/// Runs a plan; a failure comes with the seed and the end of the trace. A panic in the code under test is a failure like others.
pub fn run(plan: Plan) -> Result<Summary, String> {
    let seed = plan.seed;
    let mut world = World::new(plan);
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    let failed = match result {
        Ok(Ok(summary)) => return Ok(summary),
        Ok(Err(failed)) => failed,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_else(|| "panic".to_owned())
        }
    };
    Err(format!("seed {seed}: {failed}\n{}", world.trace.tail()))
}

/// Runs the seeds that the environment asks for: `FOREBAY_SEED` that one, `FOREBAY_SEEDS` so many, else `usual`.
///
/// # Panics
/// At the first seed that fails.
pub fn run_seeds(test: &str, usual: u64, faults: impl Fn(u64) -> Faults) {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seeds = match number("FOREBAY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FOREBAY_SEEDS").unwrap_or(usual),
    };
    let (mut records, mut acked, mut at_centre) = (0, 0, 0);
    for seed in seeds {
        match run(Plan::new(seed, faults(seed))) {
            Ok(summary) => {
                records += summary.records;
                acked += summary.acked;
                at_centre += summary.at_centre;
            }
            Err(failed) => panic!("{failed}\nagain with: FOREBAY_SEED={seed} cargo test --test {test}"),
        }
    }
    println!("{records} records stored, {acked} acknowledged at 1 or -1, {at_centre} at the centre");
    assert!(acked > 0, "nothing was acknowledged: the runs prove nothing");
}
