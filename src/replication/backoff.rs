//! How long to wait before the next try: doubling, capped, and jittered, so that gateways do not come back in step.

/// Kinds of trouble, by how soon it makes sense to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The link failed.
    Network,
    /// The peer takes us but not this record now (quota, busy).
    Busy,
    /// The peer does not let us in: a person must act, but may act at the peer.
    Refused,
    /// Somebody else uses our client identifier: each try throws the other one out.
    TakenOver,
}

impl Trouble {
    /// First and longest delay, in nanoseconds.
    const fn bounds(self) -> (u64, u64) {
        const MS: u64 = 1_000_000;
        match self {
            Self::Network => (100 * MS, 30_000 * MS),
            Self::Busy => (500 * MS, 30_000 * MS),
            Self::Refused => (2_000 * MS, 60_000 * MS),
            Self::TakenOver => (30_000 * MS, 300_000 * MS),
        }
    }
}

/// A small generator (SplitMix64): the core has no randomness but the seed it is given.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// Delays of one link.
#[derive(Clone, Debug)]
pub struct Backoff {
    draw: Draw,
    tries: u32,
}

impl Backoff {
    /// A generator of its own by `seed`.
    pub fn new(seed: u64) -> Self {
        Self { draw: Draw::new(seed), tries: 0 }
    }

    /// Nanoseconds until the next try: between half and the whole of the doubled delay.
    pub fn delay(&mut self, trouble: Trouble) -> u64 {
        let (first, longest) = trouble.bounds();
        let whole = first.saturating_mul(1 << self.tries.min(20)).min(longest);
        self.tries = self.tries.saturating_add(1);
        whole / 2 + self.draw.draw() % (whole / 2 + 1)
    }

    /// Something went well: begin again with the shortest delay.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_their_cap_are_jittered_and_begin_anew_after_success() {
        let mut a = Backoff::new(1);
        let mut b = Backoff::new(2);
        let first: Vec<u64> = (0..12).map(|_| a.delay(Trouble::Network)).collect();
        let other: Vec<u64> = (0..12).map(|_| b.delay(Trouble::Network)).collect();
        assert_ne!(first, other, "two gateways do not come back in step");
        assert!(first[0] <= 100_000_000 && first[0] >= 50_000_000);
        assert!(first.iter().all(|&delay| delay <= 30_000_000_000));
        assert!(first[11] >= 15_000_000_000, "capped, not wrapped");
        a.reset();
        assert!(a.delay(Trouble::Network) <= 100_000_000);
    }

    #[test]
    fn a_refusal_is_tried_again_slower_and_a_take_over_slowest() {
        assert!(Backoff::new(3).delay(Trouble::Refused) >= 1_000_000_000);
        assert!(Backoff::new(3).delay(Trouble::TakenOver) >= 15_000_000_000);
    }
}
