//! Alignments have the fewest edits, and their counts are consistent.

use super::*;

/// The edit distance by its definition.
fn distance(reference: &[&str], hypothesis: &[&str]) -> u64 {
    let mut row: Vec<u64> = (0..=reference.len() as u64).collect();
    for hypothesis_word in hypothesis {
        let mut diagonal = row[0];
        row[0] += 1;
        for (column, reference_word) in reference.iter().enumerate() {
            let substituted = diagonal + u64::from(reference_word != hypothesis_word);
            diagonal = row[column + 1];
            row[column + 1] = substituted.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[reference.len()]
}

fn error_count(unit: TokenUnit, reference: &str, hypothesis: &str) -> u64 {
    EditCounts::of(&align(unit, reference, hypothesis)).errors()
}

#[test]
fn an_alignment_has_the_fewest_edits() {
    check_property(cases(600), (sentence(90), sentence(90)), |(reference, hypothesis)| {
        let (reference_words, hypothesis_words): (Vec<_>, Vec<_>) =
            (words(&reference).collect(), words(&hypothesis).collect());
        assert_eq!(
            error_count(TokenUnit::Word, &reference, &hypothesis),
            distance(&reference_words, &hypothesis_words)
        );
        targets::check_alignment(&reference, &hypothesis);
        // The tokens of a hit are equal; the tokens of a substitution differ.
        let (mut i, mut j) = (0, 0);
        for edit in align(TokenUnit::Word, &reference, &hypothesis) {
            match edit {
                Edit::Hit => assert_eq!(reference_words[i], hypothesis_words[j]),
                Edit::Substitution => assert_ne!(reference_words[i], hypothesis_words[j]),
                Edit::Deletion | Edit::Insertion => {}
            }
            i += usize::from(edit != Edit::Insertion);
            j += usize::from(edit != Edit::Deletion);
        }
        assert_eq!((i, j), (reference_words.len(), hypothesis_words.len()));
    });
}

#[test]
fn the_counts_of_any_alignment_are_consistent() {
    check_property(cases(400), (text(40), text(40)), |(reference, hypothesis)| {
        targets::check_alignment(&reference, &hypothesis);
    });
}

/// The matrices of these alignments are large enough to be halved.
#[test]
fn long_alignments_have_the_fewest_edits_too() {
    let long = || vec(0..40_u8, 3000..3600);
    check_property(cases(2), (long(), long()), |(reference, hypothesis)| {
        let text = |numbers: &[u8]| {
            numbers.iter().map(|number| format!("w{number}")).collect::<Vec<_>>().join(" ")
        };
        let (reference, hypothesis) = (text(&reference), text(&hypothesis));
        let (reference_words, hypothesis_words): (Vec<_>, Vec<_>) =
            (words(&reference).collect(), words(&hypothesis).collect());
        assert_eq!(
            error_count(TokenUnit::Word, &reference, &hypothesis),
            distance(&reference_words, &hypothesis_words)
        );
    });
}

#[test]
fn the_distance_is_a_metric() {
    check_property(cases(500), (sentence(12), sentence(12), sentence(12)), |(a, b, c)| {
        for unit in [TokenUnit::Word, TokenUnit::Char] {
            let distance_between = |x: &str, y: &str| error_count(unit, x, y);
            assert_eq!(distance_between(&a, &b), distance_between(&b, &a));
            assert!(
                distance_between(&a, &c) <= distance_between(&a, &b) + distance_between(&b, &c)
            );
            assert_eq!(distance_between(&a, &a), 0);
            assert_eq!(distance_between(&a, &b) == 0, a == b);
        }
    });
}

#[test]
fn counts_of_pairs_add_up() {
    let pairs = vec((text(12), text(12)), 0..20);
    check_property(cases(150), (pairs, any::<Index>()), |(pairs, split)| {
        let (references, hypotheses): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let split = split.index(references.len() + 1);
        for unit in [TokenUnit::Word, TokenUnit::Char] {
            let counts_between = |from: usize, to: usize| {
                count_errors(unit, &references[from..to], &hypotheses[from..to]).expect("as many")
            };
            let (mut first, second, whole) = (
                counts_between(0, split),
                counts_between(split, references.len()),
                counts_between(0, references.len()),
            );
            first.total += second.total;
            first.pairs.extend(second.pairs);
            assert_eq!(first, whole);
        }
    });
}
