//! Seeded random numbers: SplitMix64.

/// A generator; equal seeds give equal numbers.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    /// The generator of one trial of a seeded attack.
    pub fn new(seed: u64, trial: u64) -> Self {
        let mut random = Self(seed ^ trial.wrapping_mul(0xd134_2543_de82_ef95));
        random.next();
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap_or(0)
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// `count` different numbers below `end`, sorted; all numbers if `count` is at least `end`.
    pub fn sample(&mut self, end: usize, count: usize) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..end).collect();
        for i in 0..count.min(end) {
            let j = i + self.below(end - i);
            numbers.swap(i, j);
        }
        numbers.truncate(count);
        numbers.sort_unstable();
        numbers
    }
}
