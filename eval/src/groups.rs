//! Rows by label (speaker, anchor, question type), and the rows with the lowest values.

use std::collections::HashMap;
use std::hash::Hash;

/// Returns each label with the indices of its rows. Labels are in order of first occurrence.
pub(crate) fn rows_by_label<L: Hash + Eq + Copy>(
    labels: impl IntoIterator<Item = L>,
) -> Vec<(L, Vec<usize>)> {
    let mut groups: Vec<(L, Vec<usize>)> = Vec::new();
    let mut index = HashMap::new();
    for (row, label) in labels.into_iter().enumerate() {
        let group = *index.entry(label).or_insert(groups.len());
        if group == groups.len() {
            groups.push((label, Vec::new()));
        }
        groups[group].1.push(row);
    }
    groups
}

/// The rows with the `count` lowest values below `limit`, lowest first; ties in the order of the
/// rows.
pub(crate) fn lowest_rows(values: &[f64], limit: f64, count: usize) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..values.len()).filter(|row| values[*row] < limit).collect();
    rows.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    rows.truncate(count);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_order_of_appearance() {
        let groups = rows_by_label(["b", "a", "b", "c", "a"]);
        assert_eq!(groups, [("b", vec![0, 2]), ("a", vec![1, 4]), ("c", vec![3])]);
    }
}
