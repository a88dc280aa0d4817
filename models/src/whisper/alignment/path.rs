//! Dynamic time warping of tokens and encoder states.

/// Returns the cheapest path through `costs` `[R, C]` from the first to the last cell, as pairs of
/// row and column. Each step advances a row, a column, or both. Empty if there are no rows or
/// columns.
///
/// # Source
/// `dtw` of openai/whisper, `whisper/timing.py`. As there, ties advance a column.
pub(super) fn cheapest_path(costs: &[f64], columns: usize) -> Vec<(usize, usize)> {
    let rows = costs.len().checked_div(columns).unwrap_or_default();
    if rows == 0 {
        return Vec::new();
    }
    let mut steps = Vec::with_capacity(rows * columns);
    // The cost of the cheapest path to each column of the previous row.
    let mut costs_above = vec![f64::INFINITY; columns];
    for (i, row) in costs.chunks_exact(columns).enumerate() {
        let (mut left, mut diagonal) = (f64::INFINITY, if i == 0 { 0.0 } else { f64::INFINITY });
        for (cost, above) in row.iter().zip(&mut costs_above) {
            let (step, cost_so_far) = if diagonal < *above && diagonal < left {
                (Step::Both, diagonal)
            } else if *above < diagonal && *above < left {
                (Step::Row, *above)
            } else {
                (Step::Column, left)
            };
            steps.push(step);
            diagonal = *above;
            left = cost + cost_so_far;
            *above = left;
        }
    }
    let (mut i, mut j) = (rows - 1, columns - 1);
    let mut path = vec![(i, j)];
    while i > 0 || j > 0 {
        // At an edge only one step is possible; NaN costs cannot leave the matrix.
        match steps[i * columns + j] {
            _ if i == 0 => j -= 1,
            _ if j == 0 => i -= 1,
            Step::Both => (i, j) = (i - 1, j - 1),
            Step::Row => i -= 1,
            Step::Column => j -= 1,
        }
        path.push((i, j));
    }
    path.reverse();
    path
}

/// The last step of a path to a cell.
#[derive(Debug, Clone, Copy)]
enum Step {
    Both,
    Row,
    Column,
}

/// Applies a median filter with a width of 7. The ends are reflected. Fewer than four values are
/// returned unchanged.
///
/// # Source
/// `median_filter` of openai/whisper, `whisper/timing.py`.
pub(super) fn smooth(values: &[f64]) -> Vec<f64> {
    const RADIUS: usize = 3;
    let count = values.len();
    if count <= RADIUS {
        return values.to_vec();
    }
    let value_at = |position: usize| match position.checked_sub(RADIUS) {
        None => values[RADIUS - position],
        Some(i) if i < count => values[i],
        Some(i) => values[2 * (count - 1) - i],
    };
    let median = |i: usize| {
        let mut window: [f64; 2 * RADIUS + 1] = std::array::from_fn(|j| value_at(i + j));
        window.sort_unstable_by(f64::total_cmp);
        window[RADIUS]
    };
    (0..count).map(median).collect()
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Returns the cost of the cheapest path from a cell to the last cell, over all paths.
    fn lowest_cost(costs: &[f64], columns: usize, (i, j): (usize, usize)) -> f64 {
        let (rows, cost) = (costs.len() / columns, costs[i * columns + j]);
        let next_positions = [(i + 1, j), (i, j + 1), (i + 1, j + 1)];
        let next_positions = next_positions.into_iter().filter(|(i, j)| *i < rows && *j < columns);
        let lowest_rest = next_positions
            .map(|position| lowest_cost(costs, columns, position))
            .fold(f64::INFINITY, f64::min);
        if lowest_rest.is_finite() { cost + lowest_rest } else { cost }
    }

    #[test]
    fn the_path_is_valid_and_the_cheapest() {
        let mut random = ChaCha8Rng::seed_from_u64(4);
        for rows in 1..6 {
            for columns in 1..7 {
                let costs: Vec<f64> =
                    (0..rows * columns).map(|_| random.random_range(-1.0..1.0)).collect();
                let path = cheapest_path(&costs, columns);
                assert_eq!((path[0], path[path.len() - 1]), ((0, 0), (rows - 1, columns - 1)));
                for step in path.windows(2) {
                    let (down, right) = (step[1].0 - step[0].0, step[1].1 - step[0].1);
                    assert!(down <= 1 && right <= 1 && down + right > 0, "{path:?}");
                }
                let cost: f64 = path.iter().map(|(i, j)| costs[i * columns + j]).sum();
                let expected = lowest_cost(&costs, columns, (0, 0));
                assert!((cost - expected).abs() < 1e-12, "{rows}, {columns}: {cost}, {expected}");
            }
        }
    }

    #[test]
    fn nan_costs_have_a_path() {
        let path = cheapest_path(&[f64::NAN; 6], 3);
        assert_eq!((path[0], path.last()), ((0, 0), Some(&(1, 2))));
        assert!(cheapest_path(&[], 3).is_empty() && cheapest_path(&[], 0).is_empty());
    }

    /// `torch.nn.functional.pad(x, (3, 3), mode="reflect").unfold(-1, 7, 1).median(-1)`.
    #[test]
    fn smoothing_is_a_median_of_seven_values_with_reflected_ends() {
        let values = [5.0, 1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0];
        // The first window is 2, 9, 1, 5, 1, 9, 2.
        assert_eq!(smooth(&values), [2.0, 5.0, 3.0, 5.0, 4.0, 7.0, 4.0, 7.0]);
        assert_eq!(smooth(&values[..4]), [2.0, 5.0, 2.0, 5.0]);
        assert_eq!(smooth(&values[..3]), values[..3]);
    }
}
