//! Tests of the readers and folds on the real patent files.

use engram_data::folds::{score_class, stratified_group_folds};
use engram_data::groups::{Grouping, anchor_groups, grouped_rows, shared_anchors};
use engram_data::patent::{Labels, read_pairs, read_pairs_with_titles};
use engram_data::titles::ClassTitles;

use super::real_data;

#[test]
#[ignore = "needs ENGRAM_DATA: patent"]
fn the_files_have_the_expected_counts() {
    let folder = real_data("patent");
    let titles = ClassTitles::read(folder.join("ipc_class_titles.tsv")).unwrap();
    assert_eq!(titles.len(), 106);
    assert!(titles.title("A21").unwrap().starts_with("BAKING; EQUIPMENT"));
    let read = |name: &str, labels| {
        read_pairs_with_titles(folder.join(name), labels, Some(&titles)).unwrap()
    };
    let train = read("train.csv", Labels::Required);
    let validation = read("validation.csv", Labels::Required);
    let test = read("test.csv", Labels::Optional);
    assert_eq!((train.len(), validation.len(), test.len()), (27_309, 1_859, 7_305));
    assert!(test.iter().all(|pair| pair.score.is_none()));
    assert!(read_pairs(folder.join("test.csv"), Labels::Required).is_err());

    let groups = grouped_rows(&train, Grouping::Context);
    assert!(groups[0][0] == 0 && groups[0].len() > 5);
    assert!(shared_anchors(&train, &validation).is_empty());
    assert!(shared_anchors(&train, &test).is_empty());
}

/// Expected values from scikit-learn 1.9.1's `StratifiedGroupKFold(5)` on the same groups.
#[test]
#[ignore = "needs ENGRAM_DATA: patent"]
fn folds_of_the_training_file_equal_those_of_scikit_learn() {
    let folder = real_data("patent");
    let pairs = read_pairs(folder.join("train.csv"), Labels::Required).unwrap();
    let groups = anchor_groups(&pairs);
    assert_eq!(groups.iter().max(), Some(&518));
    let classes: Vec<usize> = pairs.iter().map(|pair| score_class(pair.score.unwrap())).collect();
    let folds = stratified_group_folds(&classes, &groups, 5, None).unwrap();
    let expected = [
        [1103, 1728, 1855, 605, 169],
        [1093, 1733, 1839, 606, 171],
        [1110, 1734, 1842, 605, 170],
        [1091, 1739, 1871, 609, 171],
        [1103, 1735, 1852, 606, 169],
    ];
    let mut counts = [[0; 5]; 5];
    let mut row_sums = [0; 5];
    for (row, (&fold, &class)) in folds.iter().zip(&classes).enumerate() {
        counts[fold][class] += 1;
        row_sums[fold] = (row_sums[fold] + row * (fold + 1)) % 1_000_003;
    }
    assert_eq!(counts, expected);
    assert_eq!(row_sums, [391_473, 636_186, 959_074, 979_249, 426_176]);
}
