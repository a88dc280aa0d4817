//! Settings of the patent study: `[data]`. Its `[model]` is
//! [`ScorerSettings`](engram_infer::similarity::settings::ScorerSettings).

use crate::recipe::table;
use engram_data::patent::PhraseColumns;
use engram_infer::similarity::combination::Combination;

table! {
    /// `[data]`: the rows (phrase pairs) and their folds.
    pub struct PatentData {
        /// Folder of the files below; empty for the embedded phrase set.
        pub dir: String = String::new(),
        /// File of training rows.
        pub train: String = "train.csv".into(),
        /// File of validation rows, measured at the end. With folds they are not used for model
        /// selection.
        pub validation: String = "validation.csv".into(),
        /// File of class titles: Engram's `ipc_class_titles.tsv`, Kaggle's `titles.csv` or the CPC
        /// list.
        pub titles: String = "ipc_class_titles.tsv".into(),
        /// Number of grouped, stratified folds of the training rows. Each fold's member trains on
        /// the other folds and is measured on this fold, its held-out rows. 0 trains one model on
        /// all rows and measures it on the validation rows. If `evaluation.keep_best` is set, the
        /// measured rows select the checkpoint.
        pub folds: usize = 5,
        /// Number of folds to train; 0 for all.
        pub members: usize = 0,
        /// The seed of the folds and of the embedded set, separate from the run's seed.
        pub fold_seed: u64 = 1,
        /// How to combine the members' scores.
        pub combine: Combination = Combination::Mean,
        /// Text pairs of one CSV instead of `dir`; needs `folds = 0`.
        #[serde(skip_serializing_if = "PairTable::is_unused")]
        pub pairs: PairTable = PairTable::default(),
    }
}

table! {
    /// `[data.pairs]`: a CSV of text pairs with any column names, without classes.
    pub struct PairTable {
        /// The CSV file, with a header; empty to read `dir`.
        pub file: String = String::new(),
        /// The column of the first text. Pairs with the same first text are all trained on or all
        /// held out.
        pub anchor: String = "anchor".into(),
        /// The column of the second text.
        pub target: String = "target".into(),
        /// The column of scores, of any range. The lowest and the highest training score become 0
        /// and 1. Predictions have the range of the file.
        pub score: String = "score".into(),
        /// The fraction of pairs to hold out for validation.
        pub validation_fraction: f64 = 0.2,
    }
}

impl PairTable {
    /// Whether the recipe has no `[data.pairs]`.
    pub fn is_unused(&self) -> bool {
        self.file.is_empty()
    }

    /// The columns of the file.
    pub fn columns(&self) -> PhraseColumns<'_> {
        let Self { anchor, target, score, .. } = self;
        PhraseColumns { anchor, target, context: None, score }
    }
}
