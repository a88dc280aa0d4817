//! Kendall's rank correlation with ties (tau-b), equal to `scipy.stats.kendalltau`.

use super::rank::DenseRanks;
use super::registry::{CORRELATION, Metric, RowMetric};
use super::{MetricError, MetricInfo, Unit, check_lengths};

/// Name, version, direction and unit of the metric.
pub const INFO: MetricInfo = MetricInfo::higher("kendall", Unit::Coefficient);
/// The metric in the list of all metrics.
pub(super) const METRIC: Metric = Metric::of_rows(INFO, "Kendall", CORRELATION, of_rows);

fn of_rows(gold: &[f64], predicted: &[f64]) -> Result<RowMetric, MetricError> {
    let weighted = WeightedKendall::new(gold, predicted)?;
    Ok(RowMetric::new(kendall_tau_b(gold, predicted)?, move |counts| weighted.value(counts)))
}

/// Kendall's `τ_b`, in `[-1, 1]`, in `O(n log n)`.
///
/// `τ_b = (C - D) / √(T - T_x) / √(T - T_y)`, with these numbers of pairs of rows: `C` concordant,
/// `D` discordant, `T = n(n-1)/2` in total, `T_x` and `T_y` tied in `x` and in `y`. NaN for a
/// constant input, a NaN, or fewer than two rows.
///
/// # Errors
/// [`MetricError::LengthMismatch`]
/// # Source   `scipy.stats.kendalltau` 1.17 (`variant="b"`), statistic only
pub fn kendall_tau_b(x: &[f64], y: &[f64]) -> Result<f64, MetricError> {
    Ok(WeightedKendall::new(x, y)?.value(&vec![1; x.len()]))
}

/// Kendall's `τ_b` of a resample in which row `i` occurs `counts[i]` times.
///
/// The rows are sorted once; a resample takes `O(n log m)`, where `m` is the smaller number of
/// distinct values.
#[derive(Debug, Clone)]
pub struct WeightedKendall {
    /// `None` if an input contains NaN: then the value of every resample is NaN.
    ranks: Option<SortedRanks>,
}

/// The dense ranks of both inputs: the inner input has at most as many distinct values as the
/// outer. `order` has the rows by outer rank, then by inner rank.
#[derive(Debug, Clone)]
struct SortedRanks {
    outer: DenseRanks,
    inner: DenseRanks,
    order: Vec<u32>,
}

impl WeightedKendall {
    /// Ranks and sorts both inputs.
    ///
    /// # Errors
    /// [`MetricError::LengthMismatch`]
    pub fn new(x: &[f64], y: &[f64]) -> Result<Self, MetricError> {
        check_lengths(&INFO, x, y)?;
        let ranks = DenseRanks::new(x).zip(DenseRanks::new(y)).map(|(x, y)| {
            // τ is symmetric. The input with fewer distinct values is the inner one, because it
            // gives the smaller tree.
            let (outer, inner) = if x.distinct >= y.distinct { (x, y) } else { (y, x) };
            let mut order: Vec<u32> = (0..outer.ranks.len() as u32).collect();
            order.sort_unstable_by_key(|&row| {
                (outer.ranks[row as usize], inner.ranks[row as usize])
            });
            SortedRanks { outer, inner, order }
        });
        Ok(Self { ranks })
    }

    /// `τ_b` of the resample; NaN if one of the inputs is constant or contains NaN.
    ///
    /// `counts` has one entry per row; missing entries count as 0.
    pub fn value(&self, counts: &[u32]) -> f64 {
        let Some(SortedRanks { outer, inner, order }) = &self.ranks else {
            return f64::NAN;
        };
        let count = |row: u32| counts.get(row as usize).map_or(0, |&count| u64::from(count));
        let total = pairs(order.iter().map(|&row| count(row)).sum());
        let outer_ties: u64 = outer.tie_counts(counts).into_iter().map(pairs).sum();
        let inner_ties: u64 = inner.tie_counts(counts).into_iter().map(pairs).sum();
        if outer_ties == total || inner_ties == total {
            return f64::NAN;
        }

        let mut added_rows = CountTree::new(inner.distinct);
        let (mut discordant, mut joint_ties) = (0, 0);
        for tied in order.chunk_by(|&a, &b| outer.ranks[a as usize] == outer.ranks[b as usize]) {
            for &row in tied {
                if count(row) > 0 {
                    discordant += count(row) * added_rows.above(inner.ranks[row as usize]);
                }
            }
            for equal_rows in
                tied.chunk_by(|&a, &b| inner.ranks[a as usize] == inner.ranks[b as usize])
            {
                let rows = equal_rows.iter().map(|&row| count(row)).sum();
                joint_ties += pairs(rows);
                if rows > 0 {
                    added_rows.add(inner.ranks[equal_rows[0] as usize], rows);
                }
            }
        }
        let untied = total + joint_ties - outer_ties - inner_ties;
        let difference = untied as f64 - 2.0 * discordant as f64;
        let tau = difference
            / ((total - outer_ties) as f64).sqrt()
            / ((total - inner_ties) as f64).sqrt();
        tau.clamp(-1.0, 1.0)
    }
}

/// Number of pairs among `rows` rows.
fn pairs(rows: u64) -> u64 {
    rows * rows.saturating_sub(1) / 2
}

/// Row counts by dense rank with fast range sums (a Fenwick tree).
struct CountTree {
    nodes: Vec<u64>,
    total: u64,
}

impl CountTree {
    fn new(ranks: usize) -> Self {
        Self { nodes: vec![0; ranks + 1], total: 0 }
    }

    fn add(&mut self, rank: u32, rows: u64) {
        self.total += rows;
        let mut node = rank as usize + 1;
        while node < self.nodes.len() {
            self.nodes[node] += rows;
            node += node & node.wrapping_neg();
        }
    }

    /// Number of rows added so far whose rank is greater than `rank`.
    fn above(&self, rank: u32) -> u64 {
        let mut node = rank as usize + 1;
        let mut at_most_rank = 0;
        while node > 0 {
            at_most_rank += self.nodes[node];
            node &= node - 1;
        }
        self.total - at_most_rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weighted_value_equals_that_of_the_expanded_resample() {
        let weighted = WeightedKendall::new(&[0.0, 0.5, 0.5, 1.0], &[2.0, 1.0, 3.0, 3.0]).unwrap();
        let (x, y) = ([0.0, 0.0, 0.5, 1.0, 1.0], [2.0, 2.0, 3.0, 3.0, 3.0]);
        let expected = kendall_tau_b(&x, &y).unwrap();
        assert!((weighted.value(&[2, 0, 1, 2]) - expected).abs() < 1e-14);
        assert!(weighted.value(&[0, 3, 1, 0]).is_nan(), "x is constant");
        assert!(weighted.value(&[0; 4]).is_nan());
        assert!(kendall_tau_b(&[], &[]).unwrap().is_nan() && kendall_tau_b(&[1.0], &[]).is_err());
    }
}
