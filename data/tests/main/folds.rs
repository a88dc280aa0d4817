//! Tests of groups, other targets and folds: small cases, comparison with scikit-learn, and
//! properties on random data.

use std::collections::HashSet;

use engram_data::folds::{Split, hold_out, score_class, split_of_fold, stratified_group_folds};
use engram_data::groups::{Grouping, anchor_groups, grouped_rows, shared_anchors};
use engram_data::patent::PhrasePair;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn pair(anchor: &str, target: &str, context: &str) -> PhrasePair {
    PhrasePair {
        id: String::new(),
        anchor: anchor.into(),
        target: target.into(),
        context: context.into(),
        score: None,
        rating: None,
    }
}

#[test]
fn anchors_that_are_targets_of_one_another_are_one_group() {
    let pairs = [
        pair("bolt", "screw", "F16"),  // `screw` is an anchor below: 0
        pair("lamp", "light", "H05"),  // `light` is a target twice, but not an anchor: 1
        pair("screw", "nail", "F16"),  // `nail` is an anchor too, so all three are one group: 0
        pair("torch", "light", "H05"), // 2
        pair("nail", "spike", "E04"),  // 0
        pair("bolt", "bolt", "F16"),
    ];
    assert_eq!(anchor_groups(&pairs), [0, 1, 0, 2, 0, 0]);
    assert!(anchor_groups(&[]).is_empty());
}

#[test]
fn rows_are_grouped_by_the_fields_of_the_grouping() {
    let pairs = [
        PhrasePair { id: "0".into(), ..pair("bolt", "screw", "F16") },
        PhrasePair { id: "1".into(), ..pair("nut", "hazel", "F16") },
        PhrasePair { id: "2".into(), ..pair("bolt", "nut", "F02") },
        PhrasePair { id: "3".into(), ..pair("bolt", "nut", "F16") },
        PhrasePair { id: "4".into(), ..pair("bolt", "lightning", "H02") },
    ];
    let groups = |grouping| grouped_rows(&pairs, grouping);
    assert_eq!(groups(Grouping::Row), [[0], [1], [2], [3], [4]]);
    assert_eq!(groups(Grouping::Context), [vec![0, 3], vec![1], vec![2], vec![4]]);
    assert_eq!(groups(Grouping::Section), [vec![0, 2, 3], vec![1], vec![4]]);
    assert_eq!(groups(Grouping::Anchor), [vec![0, 2, 3, 4], vec![1]]);
}

#[test]
fn shared_anchors_are_found_in_any_letter_case() {
    let left = [pair("bolt", "screw", "F16"), pair("nut", "hazel", "F16")];
    let right = [pair("Bolt", "x", "F16"), pair("washer", "bolt", "F16"), pair("Bolt", "y", "F16")];
    assert_eq!(shared_anchors(&left, &right), ["Bolt"]);
    assert!(shared_anchors(&left[1..], &right).is_empty());
}

#[test]
fn score_classes_are_quarters_rounded_down() {
    let classes = [0.0, 0.25, 0.5, 0.75, 1.0, 0.3, 0.99].map(score_class);
    assert_eq!(classes, [0, 1, 2, 3, 4, 1, 3]);
}

/// The expected fold of each row, from scikit-learn 1.9.1:
/// ```python
/// from sklearn.model_selection import StratifiedGroupKFold
/// x = 12345; ys = []; gs = []
/// for i in range(120):
///     x = (x * 1103515245 + 12345) % 2147483648; gs.append((x >> 16) % 23)
///     x = (x * 1103515245 + 12345) % 2147483648; ys.append(((x >> 16) % 7) % 5)
/// for k, (_, rows) in enumerate(StratifiedGroupKFold(4).split(ys, ys, gs)): ...
/// ```
#[test]
fn folds_equal_those_of_scikit_learn() {
    let expected = "321331301332223230230223030212013012300220112011211301120330030022100231211301230203200300022110123031130120231001233213";
    let mut state: u64 = 12345;
    let mut next = || {
        state = (state * 1_103_515_245 + 12345) % 2_147_483_648;
        (state >> 16) as usize
    };
    let (groups, classes): (Vec<_>, Vec<_>) =
        (0..120).map(|_| (next() % 23, next() % 7 % 5)).unzip();
    let folds = stratified_group_folds(&classes, &groups, 4, None).unwrap();
    let folds: String = folds.iter().map(usize::to_string).collect();
    assert_eq!(folds, expected);
}

/// Returns random classes and groups; each group has 1 to 30 rows.
fn random_rows(seed: u64) -> (Vec<usize>, Vec<usize>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut rows = Vec::new();
    for group in 0..rng.random_range(60..200) {
        for _ in 0..rng.random_range(1..=30) {
            rows.push(([0, 1, 1, 2, 2, 2, 3, 4][rng.random_range(0..8)], group * 3));
        }
    }
    rows.into_iter().unzip()
}

fn class_fraction(classes: &[usize], rows: &[usize], class: usize) -> f64 {
    rows.iter().filter(|&&row| classes[row] == class).count() as f64 / rows.len() as f64
}

#[track_caller]
fn check_split(classes: &[usize], groups: &[usize], split: &Split, fraction: f64, tolerance: f64) {
    let mut rows: Vec<usize> = split.train.iter().chain(&split.held_out).copied().collect();
    rows.sort_unstable();
    assert!(rows.into_iter().eq(0..classes.len()), "each row on exactly one side");
    let groups_of = |rows: &[usize]| rows.iter().map(|&row| groups[row]).collect::<HashSet<_>>();
    assert!(groups_of(&split.train).is_disjoint(&groups_of(&split.held_out)));
    let held_out_fraction = split.held_out.len() as f64 / classes.len() as f64;
    assert!((held_out_fraction - fraction).abs() < 0.02, "{held_out_fraction} {fraction}");
    for class in 0..5 {
        let (train, held_out) = (
            class_fraction(classes, &split.train, class),
            class_fraction(classes, &split.held_out, class),
        );
        assert!((train - held_out).abs() < tolerance, "class {class}: {train} and {held_out}");
    }
}

#[test]
fn folds_and_held_out_sets_keep_groups_and_class_fractions() {
    for seed in 0..30 {
        println!("seed {seed}");
        let (classes, groups) = random_rows(seed);
        let folds = stratified_group_folds(&classes, &groups, 5, Some(seed)).unwrap();
        assert!(folds.iter().all(|&fold| fold < 5));
        for fold in 0..5 {
            check_split(&classes, &groups, &split_of_fold(&folds, fold), 0.2, 0.06);
        }
        for fraction in [0.1, 0.3, 0.8] {
            let split = hold_out(&classes, &groups, fraction, seed).unwrap();
            check_split(&classes, &groups, &split, fraction, 0.03);
        }
    }
}

#[test]
fn the_seed_determines_the_folds() {
    let (classes, groups) = random_rows(7);
    let folds = |seed| stratified_group_folds(&classes, &groups, 5, seed).unwrap();
    assert_eq!(folds(Some(1)), folds(Some(1)));
    assert_ne!(folds(Some(1)), folds(Some(2)));
    assert_ne!(folds(Some(1)), folds(None));
}

#[test]
fn impossible_splits_are_refused() {
    let message = |result: Result<_, engram_data::DataError>| match result {
        Ok(()) => panic!("an error is expected"),
        Err(error) => error.to_string(),
    };
    let folds = |classes: &[usize], groups: &[usize], folds| {
        message(stratified_group_folds(classes, groups, folds, None).map(|_| ()))
    };
    assert!(folds(&[0, 1, 0], &[4, 4, 9], 3).contains("2 groups cannot fill 3 parts"));
    assert!(folds(&[], &[], 2).contains("0 groups"));
    assert!(folds(&[0, 1], &[0, 1], 1).contains("number of folds is 1"));
    for fraction in [0.0, 1.0, f64::NAN] {
        let message = message(hold_out(&[0, 1], &[0, 1], fraction, 0).map(|_| ()));
        assert!(message.contains("held-out fraction"), "{message}");
    }
}
