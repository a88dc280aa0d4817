//! The distance between the encoder's states and the frozen encoder's states: a penalty that limits
//! the effect of adapters.

use std::sync::Arc;

use candle_core::Tensor;

use crate::compute::full_precision;
use crate::error::{Result, bail};
use crate::kernels::{Span, span_mean};
use crate::speech::AudioStates;

/// Returns the distance between the encoder states of `N` clips and their targets, `[N]`: the mean
/// squared error divided by the mean square of the target. `targets` holds pairs of a clip's index
/// and its target states `[T, D]`.
///
/// # Errors
/// [`crate::ModelError::BadInput`] if a clip does not exist, has no states, or has another number
/// of states than its target.
pub fn state_distance(audio: &AudioStates, targets: &[(usize, &Tensor)]) -> Result<Tensor> {
    let clips = audio.clips()?;
    let (mut clip_states, mut target_states, mut spans, mut mean_squares) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut rows = 0;
    for (clip, target) in targets {
        let (length, found) = (target.dim(0)?, audio.lengths.get(*clip).copied());
        if found != Some(length) || length == 0 {
            let found = found.unwrap_or(0);
            bail!("clip {clip} has {found} states, but its target has {length}");
        }
        let states = full_precision(&clips[*clip].states)?;
        let target = full_precision(&target.to_device(states.device())?)?;
        clip_states.push(states);
        spans.push(Span { start: rows, length });
        rows += length;
        mean_squares.push(target.sqr()?.mean_all()?);
        target_states.push(target);
    }
    let errors = (Tensor::cat(&clip_states, 0)? - Tensor::cat(&target_states, 0)?)?
        .sqr()?
        .mean_keepdim(1)?;
    let errors = span_mean(&errors, Arc::from(spans))?.squeeze(1)?;
    Ok((errors / Tensor::stack(&mean_squares, 0)?)?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::finite_difference::check_gradients;

    fn sine_values(count: u32, step: f64) -> Vec<f64> {
        (0..count).map(|i| (f64::from(i) * step).sin()).collect()
    }

    #[test]
    fn gradients_equal_central_differences() -> Result<()> {
        let inputs: [(Vec<f64>, &[usize]); 1] = [(sine_values(14, 0.7), &[7, 2])];
        check_gradients(&inputs, |t| {
            let target = |rows: usize, step| {
                let sine_values = sine_values(2 * rows as u32, step);
                Tensor::from_vec(sine_values, (rows, 2), &Device::Cpu)?.to_dtype(t[0].dtype())
            };
            let (first, last) = (target(3, 1.3)?, target(2, 0.4)?);
            let audio = AudioStates { states: t[0].clone(), lengths: vec![3, 2, 2] };
            state_distance(&audio, &[(0, &first), (2, &last)])
        })?;
        Ok(())
    }

    #[test]
    fn the_distance_is_relative_to_the_target_and_other_lengths_are_errors() -> Result<()> {
        let states = Tensor::new(&[[9f32, 9.0], [2.0, 0.0], [0.0, 2.0]], &Device::Cpu)?;
        let audio = AudioStates { states, lengths: vec![1, 2] };
        let target = Tensor::new(&[[1f32, 0.0], [0.0, 1.0]], &Device::Cpu)?;
        assert_eq!(state_distance(&audio, &[(1, &target)])?.to_vec1::<f32>()?, [1.0]);
        let equal_target = audio.states.narrow(0, 1, 2)?;
        assert_eq!(state_distance(&audio, &[(1, &equal_target)])?.to_vec1::<f32>()?, [0.0]);
        for clip in [0, 2] {
            assert!(state_distance(&audio, &[(clip, &target)]).is_err());
        }
        Ok(())
    }
}
