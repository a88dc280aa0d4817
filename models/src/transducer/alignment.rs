//! Forced alignment: the best path of a given text through its lattice.

use crate::kernels::log_sum_exp;
use crate::speech::decode::BestPath;

/// Returns the best path of `tokens` through the lattice, whose logits are in `rows`: row
/// `t (U + 1) + u` is state `t` after `u` labels. Returns `None` if there is no path. Ties prefer a
/// later state for a label.
pub(super) fn forced_alignment(rows: &[Vec<f32>], tokens: &[u32], blank: u32) -> Option<BestPath> {
    let width = tokens.len() + 1;
    let frames = rows.len() / width;
    let sums: Vec<f32> = rows.iter().map(|row| log_sum_exp(row)).collect();
    let log_probability = |row: usize, class: u32| {
        rows[row].get(class as usize).map_or(f32::NEG_INFINITY, |logit| logit - sums[row])
    };
    let mut scores = vec![f64::NEG_INFINITY; frames * width];
    let mut is_label = vec![false; frames * width];
    for row in 0..frames * width {
        let (frame, labels) = (row / width, row % width);
        let from_label = match labels {
            0 => f64::NEG_INFINITY,
            _ => scores[row - 1] + f64::from(log_probability(row - 1, tokens[labels - 1])),
        };
        let from_blank = match frame {
            0 if labels == 0 => 0.0,
            0 => f64::NEG_INFINITY,
            _ => scores[row - width] + f64::from(log_probability(row - width, blank)),
        };
        is_label[row] = from_label >= from_blank && labels > 0;
        scores[row] = if is_label[row] { from_label } else { from_blank };
    }
    let mut row = (frames * width).checked_sub(1)?;
    let total = scores[row] + f64::from(log_probability(row, blank));
    if !total.is_finite() {
        return None;
    }
    let mut path = BestPath { tokens: tokens.to_vec(), ..BestPath::default() };
    path.mean_log_probability = (total / (frames + tokens.len()) as f64) as f32;
    path.min_blank_probability = log_probability(row, blank).exp();
    while row > 0 {
        let is_label_at_row = is_label[row];
        row -= if is_label_at_row { 1 } else { width };
        if is_label_at_row {
            path.states.push(row / width);
            path.log_probabilities.push(log_probability(row, tokens[row % width]));
        }
        let blank_probability = log_probability(row, blank).exp();
        path.min_blank_probability = path.min_blank_probability.min(blank_probability);
    }
    path.states.reverse();
    path.log_probabilities.reverse();
    Some(path)
}
