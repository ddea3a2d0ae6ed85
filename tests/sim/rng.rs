//! The one source of chance of a run: everything follows from the seed.

/// SplitMix64: small, quick, and good enough to choose what happens next.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x5EED_5EED_5EED_5EED)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from 0 to `n` - 1; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// A number from `from` to `to` - 1.
    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }

    /// A place in something of this length.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True so many times in a thousand.
    pub fn permille(&mut self, n: u64) -> bool {
        self.below(1000) < n
    }

    pub fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}
