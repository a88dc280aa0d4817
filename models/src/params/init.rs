//! Initial values of parameters.

use rand::SeedableRng;
use rand::distr::{Distribution, Uniform};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use crate::error::{ModelError, Result};

/// The initial values of a parameter that is not loaded from published weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// All zero (biases, the up-projection of an adapter).
    Zeros,
    /// All one (the scale of a norm).
    Ones,
    /// All equal to this value.
    Constant(f64),
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Uniform in `[-bound, bound]`.
    Uniform(f64),
    /// A table of sinusoidal positions with rows of this width: sines, then cosines, of frequencies
    /// from 1 down to 1 / 10,000 (`sinusoids` of openai/whisper).
    Sinusoids(usize),
}

/// Returns `count` initial values of the parameter `name`, in row-major order.
pub(super) fn draw(seed: u64, name: &str, count: usize, init: Init) -> Result<Vec<f32>> {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(name.as_bytes());
    let mut rng = ChaCha8Rng::from_seed(hash.finalize().into());
    let invalid_init = |e| ModelError::BadInput(format!("parameter `{name}`: {init:?}: {e}"));
    let mut values = Vec::new();
    // A size from a damaged configuration must not abort the program.
    values.try_reserve_exact(count.saturating_add(1)).map_err(|e| {
        ModelError::BadInput(format!("parameter `{name}` with {count} values: {e}"))
    })?;
    match init {
        Init::Zeros => values.resize(count, 0.0),
        Init::Ones => values.resize(count, 1.0),
        Init::Constant(value) => values.resize(count, value as f32),
        Init::Uniform(bound) => {
            let distribution = Uniform::new_inclusive(-bound, bound).map_err(invalid_init)?;
            values.extend((0..count).map(|_| distribution.sample(&mut rng) as f32));
        }
        Init::Sinusoids(width) => {
            let half = (width / 2).max(1);
            let step = 10_000f64.ln() / (half.max(2) - 1) as f64;
            values.extend((0..count).map(|i| {
                let (position, channel) = ((i / width.max(1)) as f64, i % width.max(1));
                let angle = position * (-step * (channel % half) as f64).exp();
                if channel < half { angle.sin() as f32 } else { angle.cos() as f32 }
            }));
        }
        Init::Normal(std) => {
            // Box-Muller: two uniform values give two independent normal values.
            let distribution = Uniform::new(f64::MIN_POSITIVE, 1.0).map_err(invalid_init)?;
            while values.len() < count {
                let radius = (-2.0 * f64::ln(distribution.sample(&mut rng))).sqrt() * std;
                let angle = std::f64::consts::TAU * distribution.sample(&mut rng);
                values.push((radius * angle.cos()) as f32);
                values.push((radius * angle.sin()) as f32);
            }
            values.truncate(count);
        }
    }
    Ok(values)
}
