//! The counts of any alignment are consistent. The unit tests of `wer::alignment` compare alignments
//! with the full matrix.

use super::*;

#[test]
fn the_counts_of_any_alignment_are_consistent() {
    check_property(cases(400), (text(40), text(40)), |(reference, hypothesis)| {
        targets::check_alignment(&reference, &hypothesis);
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
                count_errors(Alignment::Jiwer, unit, &references[from..to], &hypotheses[from..to])
                    .expect("as many")
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
