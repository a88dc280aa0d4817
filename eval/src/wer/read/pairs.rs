//! References with their hypotheses, joined by id or by line number.

use std::borrow::Cow;

use engram_textfile::shortened;

use super::super::sclite::{self, Lattice, has_markup};
use super::super::tokens;
use super::super::{Alignment, check_equal_lengths};
use super::formats::MARKUP_REMEDY;
use super::{LENGTH_REMEDY, TextFormat, Utterance};
use crate::error::{EvalError, malformed};
use crate::ids::{FileIds, join as join_ids};
use crate::normalise::Normaliser;

/// The sclite markup of the texts, and its scoring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Markup {
    /// Whether the references have markup.
    pub references: bool,
    /// Whether the hypotheses have markup.
    pub hypotheses: bool,
    /// Whether an optionally deletable word, such as `(uh)`, counts as correct if it is missing
    /// (sclite's `-D`).
    pub optional_deletions: bool,
}

/// References with their hypotheses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairs<'a> {
    /// The id of each pair; for plain lines, the line number from 1.
    pub ids: Vec<Cow<'a, str>>,
    /// The reference of each pair.
    pub references: Vec<Cow<'a, str>>,
    /// The hypothesis of each pair.
    pub hypotheses: Vec<Cow<'a, str>>,
    /// The markup of the texts; most formats have none.
    pub markup: Markup,
    /// The formats of the files of references and of hypotheses, or of one file with both. `None`
    /// for texts that are not from a file.
    pub formats: [Option<TextFormat>; 2],
    /// The alignment of words. Readers set sclite's alignment if the texts have markup.
    pub alignment: Alignment,
}

impl<'a> Pairs<'a> {
    /// Pairs each reference with the hypothesis of the same index. The ids are numbers from 1.
    ///
    /// # Errors
    /// [`EvalError::LengthMismatch`]
    pub fn new(
        references: &'a [impl AsRef<str>],
        hypotheses: &'a [impl AsRef<str>],
    ) -> Result<Self, EvalError> {
        check_equal_lengths(references.len(), hypotheses.len())?;
        Ok(Self {
            ids: (1..=references.len()).map(|id| id.to_string().into()).collect(),
            references: references.iter().map(|text| text.as_ref().into()).collect(),
            hypotheses: hypotheses.iter().map(|text| text.as_ref().into()).collect(),
            ..Self::default()
        })
    }

    /// Returns the pairs after normalisation.
    pub fn normalised(&self, normaliser: Normaliser) -> Self {
        if normaliser == Normaliser::None {
            return self.clone();
        }
        let normalise = |texts: &[Cow<'a, str>]| {
            normaliser.normalise_all(texts).into_iter().map(Cow::Owned).collect()
        };
        Self {
            ids: self.ids.clone(),
            references: normalise(&self.references),
            hypotheses: normalise(&self.hypotheses),
            ..*self
        }
    }

    /// Returns the pairs without markup. Of several alternatives, the one that aligns best after
    /// normalisation is chosen. The chosen texts are not normalised.
    ///
    /// # Errors
    /// [`EvalError::Text`] for a text with invalid markup, and for a text that is
    /// too long
    pub fn without_markup(&self, normaliser: Normaliser) -> Result<Self, EvalError> {
        let Markup { references, hypotheses, optional_deletions } = self.markup;
        let mut pairs = Self { markup: Markup::default(), ..self.clone() };
        for (pair, id) in self.ids.iter().enumerate() {
            let [reference, hypothesis] = [&self.references[pair], &self.hypotheses[pair]];
            if !(references && has_markup(reference) || hypotheses && has_markup(hypothesis)) {
                continue;
            }
            let error = |reason: &str, remedy| {
                malformed(&format!("utterance {}", shortened(id, 60)), None, reason, remedy)
            };
            let lattice = |text, markup| {
                if markup {
                    Lattice::parse(text).map_err(|reason| error(reason, MARKUP_REMEDY))
                } else {
                    Ok(Lattice::plain(tokens::words(text)))
                }
            };
            let (reference, hypothesis) =
                (lattice(reference, references)?, lattice(hypothesis, hypotheses)?);
            let [reference, hypothesis] =
                sclite::choose(&reference, &hypothesis, normaliser, optional_deletions)
                    .ok_or_else(|| {
                        error("is too long for a choice of alternatives", LENGTH_REMEDY)
                    })?;
            pairs.references[pair] = reference.into();
            pairs.hypotheses[pair] = hypothesis.into();
        }
        Ok(pairs)
    }
}

/// Joins the references and hypotheses of two files; the names are for error messages.
///
/// # Errors
/// [`EvalError::MissingPrediction`], [`EvalError::ExtraPrediction`] for an id in only one file;
/// [`EvalError::Text`] if the files have different numbers of plain lines, and if only one
/// file has ids
pub fn join<'a>(
    reference_file: &str,
    references: Vec<Utterance<'a>>,
    hypothesis_file: &str,
    hypotheses: Vec<Utterance<'a>>,
) -> Result<Pairs<'a>, EvalError> {
    let has_ids = |utterances: &[Utterance<'_>]| utterances.iter().any(|u| u.id.is_some());
    let has_markup = |utterances: &[Utterance<'_>]| utterances.iter().any(|u| u.markup);
    // For each reference, the index of its hypothesis.
    let indices: Vec<usize> = match (has_ids(&references), has_ids(&hypotheses)) {
        (true, true) => {
            let [references, hypotheses] =
                [(reference_file, &references), (hypothesis_file, &hypotheses)]
                    .map(|(file, utterances)| file_ids(file, utterances));
            join_ids(&references, &hypotheses, false)?.into_iter().flatten().collect()
        }
        (false, false) if references.len() == hypotheses.len() => (0..references.len()).collect(),
        (false, false) => {
            let (found, expected) = (hypotheses.len(), references.len());
            let reason = format!("has {found} lines, but {reference_file} has {expected}");
            let remedy = "line i of one file must match line i of the other, including empty lines";
            return Err(malformed(hypothesis_file, None, reason, remedy));
        }
        (references_have_ids, _) => {
            let (file_with_ids, file_without_ids) = if references_have_ids {
                (reference_file, hypothesis_file)
            } else {
                (hypothesis_file, reference_file)
            };
            let reason = format!("has no ids, but {file_with_ids} has");
            let remedy = "write it with the ids of the other, for example as id<TAB>text into a file \
                          that ends in .tsv";
            return Err(malformed(file_without_ids, None, reason, remedy));
        }
    };
    let mut pairs = Pairs::default();
    (pairs.markup.references, pairs.markup.hypotheses) =
        (has_markup(&references), has_markup(&hypotheses));
    if pairs.markup.references || pairs.markup.hypotheses {
        pairs.alignment = Alignment::Sclite;
    }
    let mut texts: Vec<_> = hypotheses.into_iter().map(|hypothesis| hypothesis.text).collect();
    for (Utterance { id, text, line, .. }, index) in references.into_iter().zip(indices) {
        pairs.ids.push(id.unwrap_or_else(|| line.to_string().into()));
        pairs.references.push(text);
        pairs.hypotheses.push(std::mem::take(&mut texts[index]));
    }
    Ok(pairs)
}

fn file_ids<'u>(file: &'u str, utterances: &'u [Utterance<'_>]) -> FileIds<'u> {
    let rows = utterances.iter();
    let rows = rows.map(|utterance| (utterance.id.as_deref().unwrap_or(""), Some(utterance.line)));
    FileIds { file, rows: rows.collect() }
}
