//! The simulated time of one sum of the gradients of all ranks.

use std::time::Instant;

use engram_train::distributed::BUCKET;
use rayon::prelude::*;
use serde::Serialize;

use super::super::median;

/// The number of parameters that a thread adds at a time.
const BLOCK: usize = 1 << 16;
/// The number of measured additions of a bucket.
const ROUNDS: usize = 5;
/// The bytes of a gradient.
const GRADIENT: f64 = 4.0;

/// The network between ranks.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Network {
    /// The time until a message arrives, in seconds.
    pub(super) delay: f64,
    /// Bytes per second, in each direction at the same time.
    pub(super) bandwidth: f64,
}

/// The simulated sum of the gradients of some ranks.
#[derive(Debug, Serialize)]
pub(super) struct Reduction {
    pub(super) ranks: usize,
    pub(super) parameters: usize,
    /// The time on the network, in seconds.
    pub(super) network_seconds: f64,
    /// The time of the additions, in seconds.
    pub(super) addition_seconds: f64,
}

impl Reduction {
    /// The time of a sum of one part of the gradients from each rank. Each rank gets its slice of a
    /// bucket from all other ranks, adds them, and sends the sum to all other ranks. `rate` is the
    /// number of additions per second.
    pub(super) fn new(ranks: usize, parameters: usize, network: Network, rate: f64) -> Self {
        // The numbers that a rank receives, and adds, of all buckets.
        let foreign = (ranks - 1) as f64 / ranks as f64 * parameters as f64;
        let messages = if ranks > 1 { 2 * parameters.div_ceil(BUCKET) } else { 0 };
        Self {
            ranks,
            parameters,
            network_seconds: messages as f64 * network.delay
                + 2.0 * GRADIENT * foreign / network.bandwidth,
            addition_seconds: foreign / rate,
        }
    }
}

/// Measures the additions of gradients per second on this machine, on all threads.
pub(super) fn addition_rate() -> f64 {
    let mut sum = vec![1.0f32; BUCKET];
    let term = vec![1e-3f32; BUCKET];
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        sum.par_chunks_mut(BLOCK).zip(term.par_chunks(BLOCK)).for_each(|(sum, term)| {
            sum.iter_mut().zip(term).for_each(|(sum, term)| *sum += term);
        });
        start.elapsed().as_secs_f64()
    });
    let seconds = median(times.collect());
    std::hint::black_box(&sum);
    BUCKET as f64 / seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_sum_follows_the_delay_and_the_bandwidth() {
        let network = Network { delay: 0.5, bandwidth: 4e6 };
        let one = Reduction::new(1, 1_000_000, network, 1e6);
        assert_eq!((one.network_seconds, one.addition_seconds), (0.0, 0.0));
        // One bucket: two messages; half of the numbers are received, and half are sent back.
        let two = Reduction::new(2, 1_000_000, network, 1e6);
        assert!((two.network_seconds - 2.0).abs() < 1e-9, "{two:?}");
        assert!((two.addition_seconds - 0.5).abs() < 1e-9, "{two:?}");
        let four = Reduction::new(4, BUCKET + 1, network, 1e9);
        let sent = 2.0 * 4.0 * 0.75 * (BUCKET + 1) as f64 / 4e6;
        assert!((four.network_seconds - 2.0 - sent).abs() < 1e-9, "{four:?}");
        assert!(addition_rate() > 1e6);
    }
}
