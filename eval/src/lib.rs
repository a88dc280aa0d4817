//! Evaluation metrics that match the reference tools, with confidence intervals and comparisons of
//! two systems.
//!
//! | Module | Content |
//! |---|---|
//! | [`metric`] | metrics as functions of slices, equal to the reference tools |
//! | [`bootstrap`] | confidence intervals from resamples of items or of groups of items |
//! | [`compare`] | two systems on the same items: difference, interval, p-values |
//! | [`significance`] | p-values, and Holm's correction for several tests |
//! | [`result`] | the stable JSON form of an evaluation |
//! | [`normalise`] | text normalisers for transcripts, byte-identical to Whisper's and jiwer's |
//! | [`tokenize`] | the tokenizer of captions, byte-identical to Stanford's PTBTokenizer |
//! | [`caption`] | image captions: COCO and NoCaps files, BLEU, ROUGE-L, CIDEr, by image and by domain |
//! | [`wer`] | speech: word and character error rates, alignments, confusions, rare words |
//! | [`texts`] | translations and other texts: chrF and chrF++ |
//! | [`vqa`] | visual question answering: VQA v2 and OK-VQA |
//! | [`aokvqa`], [`haystack`] | A-OKVQA and Visual Haystacks, with their official rules |
//! | [`benchmark`] | edits of facts and knowledge-based visual questions, with published rules |
//! | [`retrieval`] | recall, success, reciprocal rank, nDCG, average precision |
//! | [`items`] | the result of each item, for comparisons |
//! | [`html`] | reports as HTML pages |
//! | [`phrase`] | phrase similarity in the patent study: correlations, breakdowns, worst rows |
//!
//! ```
//! use engram_eval::phrase::{PhraseOptions, evaluate, read_gold, read_predictions};
//! use engram_textfile::Input;
//!
//! let gold = "id,anchor,target,context,score\n\
//!             a1,abatement,act of abating,A47,0.75\n\
//!             a2,abatement,forest region,A47,0\n\
//!             b1,wood article,wooden article,B44,1\n\
//!             b2,wood article,article of furniture,B44,0.25\n";
//! let predictions = "id,score\na1,0.7\na2,0.2\nb1,0.9\nb2,0.1\n";
//! let gold = read_gold(Input::new("gold.csv", gold.as_bytes())?)?;
//! let predictions = read_predictions(Input::new("mine.csv", predictions.as_bytes())?)?;
//! let report = evaluate(&gold, &predictions, &PhraseOptions::default())?;
//! assert!(report.evaluation.primary.value > 0.9);
//! println!("{}", report.to_text());
//! # Ok::<(), engram_eval::EvalError>(())
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod aokvqa;
pub mod benchmark;
pub mod bootstrap;
pub mod caption;
pub mod compare;
pub mod error;
mod groups;
pub mod haystack;
pub mod html;
pub mod ids;
pub mod items;
mod json;
pub mod metric;
pub mod normalise;
pub mod phrase;
mod random;
pub mod result;
pub mod retrieval;
pub mod significance;
mod table;
mod text;
pub mod texts;
pub mod tokenize;
pub mod vqa;
pub mod wer;

pub use error::{EvalError, Location, TextError};
