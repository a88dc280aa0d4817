//! Text pairs of one CSV: the split by first text, and the range of the scores.

use std::path::Path;

use engram_data::DataError;
use engram_data::folds::{hold_out, score_class};
use engram_data::groups::anchor_groups;
use engram_data::messages::counted;
use engram_data::patent::{Labels, PhrasePair, read_named_pairs};
use engram_infer::similarity::pairs::{PAIRS, ScoreRange, TrainedPairs};

use super::settings::PairTable;
use crate::checkpoint::write_file;
use crate::error::{Result, TrainError};

/// Training and validation pairs with similarities from 0 to 1.
pub(super) struct SplitPairs {
    pub(super) train: Vec<PhrasePair>,
    pub(super) validation: Vec<PhrasePair>,
    pub(super) range: ScoreRange,
}

/// Reads the CSV and holds out some pairs. Pairs with the same first text stay together, and both
/// parts have similar distributions of scores.
///
/// # Errors
/// The errors of [`read_named_pairs`]; [`DataError::Malformed`] if no pairs can be held out, or if
/// all training or validation pairs have the same score; [`DataError::OutOfRange`] for an invalid
/// fraction.
pub(super) fn read(table: &PairTable, seed: u64) -> std::result::Result<SplitPairs, DataError> {
    let pairs = read_named_pairs(&table.file, Labels::Required, table.columns())?;
    let range = ScoreRange::of(&pairs);
    let class = |pair: &PhrasePair| score_class(range.to_similarity(pair.score.unwrap_or(0.0)));
    let classes: Vec<usize> = pairs.iter().map(class).collect();
    let malformed = |reason, remedy| {
        let path = table.file.clone().into();
        DataError::Malformed { path, place: None, reason, remedy }
    };
    let split = hold_out(&classes, &anchor_groups(&pairs), table.validation_fraction, seed);
    let split = split.map_err(|error| match error {
        DataError::TooFewGroups { .. } => malformed(
            "all pairs share texts with each other, directly or through other pairs, so none can \
             be held out for validation"
                .to_owned(),
            "add pairs of other texts",
        ),
        error => error,
    })?;
    let select = |rows: &[usize]| rows.iter().map(|&row| pairs[row].clone()).collect::<Vec<_>>();
    let (mut train, mut validation) = (select(&split.train), select(&split.held_out));
    for (part, pairs) in [("training", &train), ("validation", &validation)] {
        if pairs.windows(2).all(|two| two[0].score == two[1].score) {
            let count = counted(pairs.len(), &format!("{part} pair"));
            let reason = format!("{count} without two different scores (column `{}`)", table.score);
            return Err(malformed(
                reason,
                "add pairs with other scores, or hold out another fraction of the pairs",
            ));
        }
    }
    let range = ScoreRange::of(&train);
    for pair in train.iter_mut().chain(&mut validation) {
        pair.score = pair.score.map(|score| range.to_similarity(score));
    }
    Ok(SplitPairs { train, validation, range })
}

/// Writes the columns and the score range of the CSV into the run's folder.
pub(super) fn write(table: &PairTable, range: ScoreRange, run: &Path) -> Result<()> {
    let PairTable { anchor, target, score, .. } = table.clone();
    let path = run.join(PAIRS);
    let json = serde_json::to_vec_pretty(&TrainedPairs { anchor, target, score, range })
        .map_err(|error| TrainError::io(&path)(error.into()))?;
    write_file(&path, &json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> (tempfile::TempDir, PairTable) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pairs.csv");
        std::fs::write(&file, text).unwrap();
        let file = file.display().to_string();
        let [anchor, target, score] = ["Left", "Right", "Rating"].map(str::to_owned);
        (folder, PairTable { file, anchor, target, score, validation_fraction: 0.25 })
    }

    #[test]
    fn pairs_are_split_by_first_text_and_scaled() {
        let mut text = "right,Note,rating,LEFT\n".to_owned();
        for pair in 0..40 {
            text += &format!("target {pair},x,{},anchor {}\n", 1 + pair % 5, pair / 4);
        }
        let (_folder, table) = table(&text);
        let SplitPairs { train, validation, range } = read(&table, 1).unwrap();
        assert_eq!(range, ScoreRange { minimum: 1.0, maximum: 5.0 });
        assert_eq!(train.len() + validation.len(), 40);
        assert!((8..=12).contains(&validation.len()), "{}", validation.len());
        assert!(train.iter().all(|a| validation.iter().all(|b| a.anchor != b.anchor)));
        let first = train.iter().chain(&validation).find(|pair| pair.id == "2").unwrap();
        assert_eq!((first.target.as_str(), first.score), ("target 1", Some(0.25)));
        assert_eq!(range.to_score(0.25), 2.0);
    }

    #[test]
    fn invalid_tables_are_refused() {
        for (text, expected) in [
            ("left,right\na,b\n", "pairs.csv:1: column `Rating` is missing"),
            ("left,right,rating\na,b,high\n", "pairs.csv:2: rating `high` is not a finite number"),
            ("left,right,rating\na,b,1e60\n", "pairs.csv:2: score 1"),
            ("left,right,rating\na,b,1\na,c,2\n", "pairs.csv: all pairs share texts"),
            ("left,right,rating\na,b,1\nc,d,1\n", "1 training pair without two different scores"),
            ("left,right,rating\n,b,1\n", "pairs.csv:2: left is empty"),
        ] {
            let (_folder, table) = table(text);
            let error = read(&table, 1).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
