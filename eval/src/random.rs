//! The random number generator of the bootstrap.

/// The SplitMix64 generator: the same numbers on every machine and in every version.
///
/// # Source   G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators",
/// OOPSLA 2014
pub(crate) struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

    /// The generator of the random stream `number` of a seed. Each pair of seed and number has its
    /// own stream.
    pub(crate) fn stream(seed: u64, number: u64) -> Self {
        let start = Self { state: seed }.next() ^ number;
        Self { state: Self { state: start }.next() }
    }

    /// The next 64 random bits.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(Self::STEP);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A uniform random number below `bound`, which must not be 0 (Lemire's method).
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        loop {
            let product = u128::from(self.next()) * u128::from(bound);
            let fraction = product as u64;
            if fraction >= bound || fraction >= bound.wrapping_neg() % bound {
                return (product >> 64) as usize;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_gives_the_published_numbers() {
        let mut random = SplitMix64 { state: 1_234_567 };
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(first, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn numbers_below_a_bound_are_equally_likely() {
        let mut random = SplitMix64::stream(3, 5);
        let mut counts = [0u32; 7];
        (0..70_000).for_each(|_| counts[random.below(7)] += 1);
        assert!(counts.iter().all(|c| c.abs_diff(10_000) < 400), "{counts:?}");
    }
}
