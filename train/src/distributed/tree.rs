//! The order in which the gradients of a step's micro-batches are added: a binary tree over their
//! numbers. It does not depend on the number of ranks.
//!
//! A node of `n` micro-batches is split after the largest power of two below `n`. With 6
//! micro-batches the sum is `((g0 + g1) + (g2 + g3)) + (g4 + g5)`. The sums of two ranks that
//! compute micro-batches 0–2 and 3–5 are the nodes `g0 + g1` and `g2`, and `g3` and `g4 + g5`.

use std::convert::Infallible;
use std::ops::Range;

/// Consecutive micro-batches whose gradients are added before all others: a node of the tree.
pub(crate) type Node = Range<usize>;

/// The micro-batches of one rank: equal shares of `count` micro-batches, in rank order. The first
/// `count % ranks` ranks have one more than the others.
pub(crate) fn share(count: usize, ranks: usize, rank: usize) -> Range<usize> {
    let (each, more) = (count / ranks, count % ranks);
    let start = rank * each + rank.min(more);
    start..start + each + usize::from(rank < more)
}

/// Whether the sum of two nodes of the tree over `count` micro-batches is a node, too.
pub(crate) fn are_siblings(count: usize, left: &Node, right: &Node) -> bool {
    if left.end != right.start {
        return false;
    }
    let mut node = 0..count;
    while node.len() > 1 {
        let middle = split(&node);
        if node == (left.start..right.end) {
            return middle == left.end;
        }
        node = if left.start < middle { node.start..middle } else { middle..node.end };
    }
    false
}

/// The fewest nodes of the tree over `count` micro-batches that together are `part`, in order.
pub(crate) fn nodes(count: usize, part: &Range<usize>) -> Vec<Node> {
    let mut stack = Vec::new();
    for micro_batch in part.clone() {
        let Ok(()) = push(count, &mut stack, (micro_batch..micro_batch + 1, ()), |(), ()| {
            Ok::<_, Infallible>(())
        });
    }
    stack.into_iter().map(|(node, ())| node).collect()
}

/// Appends a node with its sum to the stack of finished nodes, after adding its left neighbours in
/// the tree over `count` micro-batches.
pub(crate) fn push<T, E>(
    count: usize,
    stack: &mut Vec<(Node, T)>,
    (mut node, mut sum): (Node, T),
    add: impl Fn(T, T) -> Result<T, E>,
) -> Result<(), E> {
    while let Some((left, left_sum)) = stack.pop_if(|(left, _)| are_siblings(count, left, &node)) {
        node = left.start..node.end;
        sum = add(left_sum, sum)?;
    }
    stack.push((node, sum));
    Ok(())
}

/// Adds the sums of nodes that together are the whole tree, in its order. The sums are in the order
/// of the nodes. A sum without a gradient is `None`.
pub(super) fn sum_in_order<T, E>(
    count: usize,
    sums: impl Iterator<Item = (Node, Option<T>)>,
    add: impl Fn(T, T) -> Result<T, E>,
) -> Result<Option<T>, E> {
    let mut stack = Vec::new();
    for sum in sums {
        push(count, &mut stack, sum, |left: Option<T>, right| match (left, right) {
            (Some(left), Some(right)) => Ok(Some(add(left, right)?)),
            (left, right) => Ok(left.or(right)),
        })?;
    }
    Ok(stack.pop().and_then(|(_, sum)| sum))
}

/// The position at which a node of two or more micro-batches is split.
fn split(node: &Node) -> usize {
    let length = node.len();
    node.start + (1 << (length - 1).ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_six_is_as_documented() {
        assert_eq!(nodes(6, &(0..3)), [0..2, 2..3]);
        assert_eq!(nodes(6, &(3..6)), [3..4, 4..6]);
        assert!(are_siblings(6, &(0..4), &(4..6)) && !are_siblings(6, &(2..4), &(4..6)));
    }

    #[test]
    fn shares_of_all_ranks_are_all_micro_batches_and_differ_by_at_most_one() {
        for count in 0..40 {
            for ranks in 1..=9 {
                let shares: Vec<_> = (0..ranks).map(|rank| share(count, ranks, rank)).collect();
                let flat: Vec<usize> = shares.iter().cloned().flatten().collect();
                assert_eq!(flat, (0..count).collect::<Vec<_>>());
                let lengths = || shares.iter().map(ExactSizeIterator::len);
                assert!(lengths().max() <= lengths().min().map(|least| least + 1));
            }
        }
    }
}
