//! Aligns two lattices with the lowest cost over all paths.

/// Costs of sclite. A substitution is cheaper than a deletion plus an insertion (two `GAP`s). A
/// deleted or inserted word costs `OPTIONAL` if it is optionally deletable. A deleted or inserted
/// null word costs almost nothing (`NULL`): of otherwise equal alignments, the one with fewer null
/// words is chosen. A pair of null words costs `BOTH_NULL`. Costs are summed in single precision,
/// as in sclite, because the last bits can decide between alignments.
const SUBSTITUTION: f32 = 4.0;
const GAP: f32 = 3.0;
const OPTIONAL: f32 = 2.0;
const NULL: f32 = 0.001;
const BOTH_NULL: f32 = 1.0;

/// A word of a lattice, as needed for the alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arc {
    /// The token; equal words have equal tokens. `None` for the null word.
    pub(crate) token: Option<u32>,
    /// Whether the word is optionally deletable.
    pub(crate) optional: bool,
    /// The node where the word starts.
    pub(crate) from: usize,
}

/// A lattice with words as integers.
#[derive(Debug, Default)]
pub(crate) struct EncodedLattice {
    /// The words, in topological order.
    pub(crate) arcs: Vec<Arc>,
    /// For each node, the words that end there.
    pub(crate) nodes: Vec<Vec<usize>>,
    /// The last node of the text.
    pub(crate) end: usize,
}

impl EncodedLattice {
    /// A linear sequence of words.
    pub(crate) fn linear(tokens: &[u32]) -> Self {
        let arc = |(from, token): (usize, &u32)| Arc { token: Some(*token), optional: false, from };
        Self {
            arcs: tokens.iter().enumerate().map(arc).collect(),
            nodes: std::iter::once(Vec::new()).chain((0..tokens.len()).map(|i| vec![i])).collect(),
            end: tokens.len(),
        }
    }

    /// The matrix rows of the words that end at a node; row 0 is the start of the text.
    fn rows(&self, node: usize) -> impl Iterator<Item = usize> + Clone {
        let start = (node == 0).then_some(0);
        start.into_iter().chain(self.nodes[node].iter().map(|arc| arc + 1))
    }
}

/// A step of an alignment: the reference word and the hypothesis word; one may be missing.
pub(crate) type Step = (Option<usize>, Option<usize>);

/// Returns the steps of the alignment with the lowest cost, in text order. Ties are broken as in
/// sclite. Of several predecessors, the first is preferred. A pair of words is preferred to an
/// insertion, and an insertion to a deletion.
pub(crate) fn align(reference: &EncodedLattice, hypothesis: &EncodedLattice) -> Vec<Step> {
    let matrix = Matrix::new(reference, hypothesis);
    let mut steps = Vec::new();
    let (mut row, mut column) =
        matrix.cheapest(reference.rows(reference.end), || hypothesis.rows(hypothesis.end));
    while (row, column) != (0, 0) {
        let (_, step, next) = matrix.cheapest_step(row, column);
        steps.push(step);
        (row, column) = next;
    }
    steps.reverse();
    steps
}

/// For each pair of a reference word and a hypothesis word, the lowest cost of an alignment that
/// ends with these words.
struct Matrix<'a> {
    reference: &'a EncodedLattice,
    hypothesis: &'a EncodedLattice,
    columns: usize,
    costs: Vec<f32>,
}

impl<'a> Matrix<'a> {
    fn new(reference: &'a EncodedLattice, hypothesis: &'a EncodedLattice) -> Self {
        let columns = hypothesis.arcs.len() + 1;
        let mut matrix = Self { reference, hypothesis, columns, costs: vec![0.0] };
        matrix.costs.reserve((reference.arcs.len() + 1) * columns - 1);
        for row in 0..=reference.arcs.len() {
            for column in usize::from(row == 0)..columns {
                let cost = matrix.cheapest_step(row, column).0;
                matrix.costs.push(cost);
            }
        }
        matrix
    }

    fn cost(&self, (row, column): (usize, usize)) -> f32 {
        self.costs[row * self.columns + column]
    }

    /// Of several cells, the first with the lowest cost.
    fn cheapest<C: Iterator<Item = usize>>(
        &self,
        rows: impl Iterator<Item = usize>,
        columns: impl Fn() -> C,
    ) -> (usize, usize) {
        let cells = rows.flat_map(|row| columns().map(move |column| (row, column)));
        // `min_by` returns the first of equal elements.
        cells.min_by(|a, b| self.cost(*a).total_cmp(&self.cost(*b))).unwrap_or((0, 0))
    }

    /// The cost of a cell, its last step and the previous cell.
    fn cheapest_step(&self, row: usize, column: usize) -> (f32, Step, (usize, usize)) {
        let reference = row.checked_sub(1).map(|arc| (arc, self.reference.arcs[arc]));
        let hypothesis = column.checked_sub(1).map(|arc| (arc, self.hypothesis.arcs[arc]));
        let deletion = reference.map(|(arc, word)| {
            let previous =
                self.cheapest(self.reference.rows(word.from), || std::iter::once(column));
            (self.cost(previous) + one_sided_cost(word), (Some(arc), None), previous)
        });
        let insertion = hypothesis.map(|(arc, word)| {
            let previous = self.cheapest(std::iter::once(row), || self.hypothesis.rows(word.from));
            (self.cost(previous) + one_sided_cost(word), (None, Some(arc)), previous)
        });
        let pair = reference.zip(hypothesis).map(|((i, reference), (j, hypothesis))| {
            let columns = || self.hypothesis.rows(hypothesis.from);
            let previous = self.cheapest(self.reference.rows(reference.from), columns);
            (self.cost(previous) + pair_cost(reference, hypothesis), (Some(i), Some(j)), previous)
        });
        let steps = [pair, insertion, deletion].into_iter().flatten();
        steps.min_by(|(a, ..), (b, ..)| a.total_cmp(b)).unwrap_or((0.0, (None, None), (0, 0)))
    }
}

fn one_sided_cost(word: Arc) -> f32 {
    match word {
        Arc { token: None, .. } => NULL,
        Arc { optional: true, .. } => OPTIONAL,
        _ => GAP,
    }
}

fn pair_cost(reference: Arc, hypothesis: Arc) -> f32 {
    match (reference.token, hypothesis.token) {
        (None, None) => BOTH_NULL,
        (reference, hypothesis) if reference == hypothesis => 0.0,
        _ => SUBSTITUTION,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_sequence_of_words_is_aligned() {
        let steps = |reference: &[u32], hypothesis: &[u32]| {
            align(&EncodedLattice::linear(reference), &EncodedLattice::linear(hypothesis))
        };
        assert_eq!(
            steps(&[1, 2], &[1, 3, 2]),
            [(Some(0), Some(0)), (None, Some(1)), (Some(1), Some(2))]
        );
        // Two substitutions cost 8; a deletion, a hit and an insertion cost 6.
        assert_eq!(steps(&[1, 2], &[2, 3]), [(Some(0), None), (Some(1), Some(0)), (None, Some(1))]);
        assert_eq!(steps(&[], &[]), []);
        assert_eq!(steps(&[1], &[]), [(Some(0), None)]);
    }
}
