//! Texts out of the logits of a head for CTC.

use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::kernels::log_sum;

/// The likeliest path of a clip.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BestPath {
    /// Its tokens: repeats and blanks are taken out.
    pub tokens: Vec<u32>,
    /// The state at which each of them begins.
    pub states: Vec<usize>,
    /// The logarithm of the highest probability that each of them has along the path, in nats.
    pub log_probabilities: Vec<f32>,
    /// The mean logarithm of the probabilities along the path, in nats; 0 of no states.
    pub mean_log_probability: f32,
    /// The least probability of the blank: near 1 where nothing is said; 1 of no states.
    pub least_blank: f32,
}

/// The likeliest path of each packed clip: `logits` `[T, V]`.
///
/// # Errors
/// Those of candle.
pub fn best_paths(logits: &Tensor, lengths: &[usize], blank: u32) -> Result<Vec<BestPath>> {
    let rows = logits.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
    let mut rest = rows.as_slice();
    let mut paths = Vec::with_capacity(lengths.len());
    for length in lengths {
        let (own, behind) = rest.split_at((*length).min(rest.len()));
        rest = behind;
        paths.push(best_path(own, blank));
    }
    Ok(paths)
}

fn best_path(rows: &[Vec<f32>], blank: u32) -> BestPath {
    let mut path = BestPath { least_blank: 1.0, ..BestPath::default() };
    let (mut before, mut sum) = (blank, 0.0);
    for (state, row) in rows.iter().enumerate() {
        let mut best = (0, f32::NEG_INFINITY);
        for (token, logit) in (0..).zip(row) {
            if *logit > best.1 {
                best = (token, *logit);
            }
        }
        let total = log_sum(row);
        let log_probability = best.1 - total;
        sum += log_probability;
        if let Some(logit) = row.get(blank as usize) {
            path.least_blank = path.least_blank.min((logit - total).exp());
        }
        if best.0 != blank && best.0 != before {
            path.tokens.push(best.0);
            path.states.push(state);
            path.log_probabilities.push(log_probability);
        } else if let Some(highest) = path.log_probabilities.last_mut().filter(|_| best.0 != blank)
        {
            *highest = highest.max(log_probability);
        }
        before = best.0;
    }
    path.mean_log_probability = sum / rows.len().max(1) as f32;
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_one_token_unless_a_blank_is_between() -> Result<()> {
        let path = [0u32, 0, 2, 0, 1, 1, 2, 2, 1];
        let rows: Vec<f32> =
            path.iter().flat_map(|best| (0..3).map(move |v| f32::from(v == *best as u8))).collect();
        let logits = Tensor::from_vec(rows, (9, 3), &Device::Cpu)?;
        let paths = best_paths(&logits, &[4, 0, 5], 2)?;
        let tokens: Vec<&[u32]> = paths.iter().map(|path| path.tokens.as_slice()).collect();
        assert_eq!(tokens, [&[0, 0][..], &[], &[1, 1]]);
        assert_eq!((&paths[0].states[..], &paths[2].states[..]), (&[0, 3][..], &[0, 4][..]));
        let likeliest = 1.0 - (1f32.exp() + 2.0).ln();
        assert!((paths[0].mean_log_probability - likeliest).abs() < 1e-6);
        assert!((paths[0].least_blank - 1.0 / (1f32.exp() + 2.0)).abs() < 1e-6);
        assert!(paths[0].log_probabilities.iter().all(|own| (own - likeliest).abs() < 1e-6));
        assert_eq!(paths[0].log_probabilities.len(), 2);
        assert_eq!((paths[1].mean_log_probability, paths[1].least_blank), (0.0, 1.0));
        Ok(())
    }
}
