//! Greedy decoding and forced alignment of CTC logits.

use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::kernels::log_sum_exp;

/// A path through the encoder states of a clip, one class per state: the best path of all texts, or
/// the best path of a given text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BestPath {
    /// The tokens of the path, without repeats and blanks.
    pub tokens: Vec<u32>,
    /// The index of the state at which each token begins.
    pub states: Vec<usize>,
    /// The log probability of each token in nats: the maximum over its states on the path.
    pub log_probabilities: Vec<f32>,
    /// The mean log probability of the path's classes in nats; 0 if there are no states.
    pub mean_log_probability: f32,
    /// The minimum probability of the blank over all states: near 1 in silence, and 1 if there are
    /// no states.
    pub min_blank_probability: f32,
}

/// Returns the best path of each packed clip of `lengths` states: `logits` `[T, V]`.
///
/// # Errors
/// The errors of candle.
pub fn greedy_paths(logits: &Tensor, lengths: &[usize], blank: u32) -> Result<Vec<BestPath>> {
    let rows = rows(logits)?;
    Ok(clips(&rows, lengths).into_iter().map(|rows| greedy_path(rows, blank)).collect())
}

/// Returns the rows of logits `[T, V]`, in f32.
pub(crate) fn rows(logits: &Tensor) -> Result<Vec<Vec<f32>>> {
    Ok(logits.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.to_vec2()?)
}

/// Splits the rows by clip.
pub(crate) fn clips<'a>(rows: &'a [Vec<f32>], lengths: &[usize]) -> Vec<&'a [Vec<f32>]> {
    let mut remaining = rows;
    let next_clip = |length: &usize| {
        let (clip, following) = remaining.split_at((*length).min(remaining.len()));
        remaining = following;
        clip
    };
    lengths.iter().map(next_clip).collect()
}

/// Returns the best path of a clip: the argmax of each state. Ties go to the lowest class.
pub(super) fn greedy_path(rows: &[Vec<f32>], blank: u32) -> BestPath {
    let likeliest = |row: &Vec<f32>| {
        let mut best = (0, f32::NEG_INFINITY);
        for (token, logit) in (0..).zip(row) {
            if *logit > best.1 {
                best = (token, *logit);
            }
        }
        best.0
    };
    path_of_classes(rows, rows.iter().map(likeliest), blank)
}

/// Returns the best path of a clip for the given `U` tokens (forced alignment), from the logits of
/// its states. Returns `None` if there is no path: the clip is too short, or the probability of a
/// token is 0.
///
/// The alignment has `2 U + 1` positions: a blank, then each token and a blank. Ties prefer to stay
/// at the same position.
pub fn forced_alignment(rows: &[Vec<f32>], tokens: &[u32], blank: u32) -> Option<BestPath> {
    let class = |position: usize| if position % 2 == 1 { tokens[position / 2] } else { blank };
    let positions = 2 * tokens.len() + 1;
    // Equal neighbouring labels need a blank between them.
    let may_skip = |position: usize| {
        position % 2 == 1 && position > 1 && class(position) != class(position - 2)
    };
    let (mut scores, mut next_scores) = (vec![f64::NEG_INFINITY; positions], vec![0.0; positions]);
    // A path starts at the first blank.
    scores[0] = 0.0;
    // The number of positions that the best path advances, by state and position.
    let mut moves = vec![0u8; rows.len() * positions];
    for (row, moves) in rows.iter().zip(moves.chunks_exact_mut(positions)) {
        for position in 0..positions {
            let mut best = (scores[position], 0);
            for steps in 1..=(1 + usize::from(may_skip(position))).min(position) {
                if scores[position - steps] > best.0 {
                    best = (scores[position - steps], steps);
                }
            }
            // The softmax denominator is the same for all classes of a state, so it is omitted.
            let logit = row.get(class(position) as usize).copied().unwrap_or(f32::NEG_INFINITY);
            (next_scores[position], moves[position]) = (best.0 + f64::from(logit), best.1 as u8);
        }
        std::mem::swap(&mut scores, &mut next_scores);
    }
    let ends = [positions - 1, positions.saturating_sub(2)];
    let mut position = if scores[ends[1]] > scores[ends[0]] { ends[1] } else { ends[0] };
    if scores[position].is_nan() || scores[position] == f64::NEG_INFINITY {
        return None;
    }
    let mut classes = vec![blank; rows.len()];
    for (state, path) in classes.iter_mut().enumerate().rev() {
        *path = class(position);
        position -= usize::from(moves[state * positions + position]);
    }
    Some(path_of_classes(rows, classes.into_iter(), blank))
}

/// Returns the path of these classes, one class per state.
fn path_of_classes(rows: &[Vec<f32>], classes: impl Iterator<Item = u32>, blank: u32) -> BestPath {
    let mut path = BestPath { min_blank_probability: 1.0, ..BestPath::default() };
    let (mut previous_class, mut sum) = (blank, 0.0);
    for (state, (row, class)) in rows.iter().zip(classes).enumerate() {
        let log_sum = log_sum_exp(row);
        let log_probability = row.get(class as usize).map_or(f32::NEG_INFINITY, |v| v - log_sum);
        sum += log_probability;
        if let Some(logit) = row.get(blank as usize) {
            path.min_blank_probability = path.min_blank_probability.min((logit - log_sum).exp());
        }
        if class != blank && class != previous_class {
            path.tokens.push(class);
            path.states.push(state);
            path.log_probabilities.push(log_probability);
        } else if let Some(highest) = path.log_probabilities.last_mut().filter(|_| class != blank) {
            *highest = highest.max(log_probability);
        }
        previous_class = class;
    }
    path.mean_log_probability = sum / rows.len().max(1) as f32;
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_paths_merge_repeats_that_no_blank_separates() -> Result<()> {
        let path = [0u32, 0, 2, 0, 1, 1, 2, 2, 1];
        let rows: Vec<f32> =
            path.iter().flat_map(|best| (0..3).map(move |v| f32::from(v == *best as u8))).collect();
        let logits = Tensor::from_vec(rows, (9, 3), &Device::Cpu)?;
        let paths = greedy_paths(&logits, &[4, 0, 5], 2)?;
        let tokens: Vec<&[u32]> = paths.iter().map(|path| path.tokens.as_slice()).collect();
        assert_eq!(tokens, [&[0, 0][..], &[], &[1, 1]]);
        assert_eq!((&paths[0].states[..], &paths[2].states[..]), (&[0, 3][..], &[0, 4][..]));
        let likeliest = 1.0 - (1f32.exp() + 2.0).ln();
        assert!((paths[0].mean_log_probability - likeliest).abs() < 1e-6);
        assert!((paths[0].min_blank_probability - 1.0 / (1f32.exp() + 2.0)).abs() < 1e-6);
        assert!(paths[0].log_probabilities.iter().all(|value| (value - likeliest).abs() < 1e-6));
        assert_eq!(paths[0].log_probabilities.len(), 2);
        assert_eq!((paths[1].mean_log_probability, paths[1].min_blank_probability), (0.0, 1.0));
        Ok(())
    }
}
