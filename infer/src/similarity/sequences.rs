//! Token sequences of rows (phrase pairs).

use std::collections::HashMap;
use std::sync::Arc;

use engram_data::DataError;
use engram_data::groups::grouped_rows;
use engram_data::patent::PhrasePair;
use engram_data::titles::ClassTitles;
use engram_data::tokenizer::longest_first;
use engram_models::kernels::Span;
use engram_models::packed::PackedTokens;
use engram_models::similarity::ScoredSpans;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::settings::{Layout, ScorerSettings};
use crate::encode::EncoderFiles;

/// One sequence and the rows scored in it.
#[derive(Debug, Clone)]
pub struct Sequence {
    ids: Vec<u32>,
    /// The branch of each token, if targets do not attend to each other: 0 for the anchor and the
    /// title, and the number of the target for its tokens. Otherwise empty.
    branches: Vec<u32>,
    scored: Vec<ScoredPair>,
}

impl Sequence {
    /// Creates a sequence of tokens without scored rows.
    fn new(ids: &[u32]) -> Self {
        Self { ids: ids.to_vec(), branches: Vec::new(), scored: Vec::new() }
    }
}

/// A phrase pair, by its index among the rows, and its token spans in the sequence.
#[derive(Debug, Clone)]
struct ScoredPair {
    row: usize,
    target: Span,
    anchor: Span,
}

/// The input of one forward pass.
#[derive(Debug, Clone)]
pub enum Input {
    /// For a cross-encoder: scored spans of packed sequences.
    Spans(PackedTokens, ScoredSpans),
    /// For a bi-encoder: packed phrases, and pairs of their indices.
    Phrases(PackedTokens, Vec<(u32, u32)>),
}

/// An input, and the phrase pairs that it scores.
#[derive(Debug, Clone)]
pub struct RowBatch {
    /// The input of the scorer.
    pub input: Input,
    /// For each score, the index of its phrase pair among the rows.
    pub rows: Vec<usize>,
}

impl RowBatch {
    /// The number of tokens.
    pub fn tokens(&self) -> usize {
        match &self.input {
            Input::Spans(tokens, _) | Input::Phrases(tokens, _) => tokens.len(),
        }
    }
}

/// The maximum size of a batch. A larger sequence is a batch by itself.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    /// The maximum number of rows.
    pub rows: usize,
    /// The maximum number of tokens; 0 for no limit.
    pub tokens: usize,
}

/// Turns rows into token sequences, by a recipe's `[model]`.
#[derive(Clone)]
pub struct Sequencer {
    files: Arc<EncoderFiles>,
    titles: ClassTitles,
    settings: ScorerSettings,
}

impl Sequencer {
    /// Creates a sequencer for an encoder's tokenizer.
    pub fn new(files: Arc<EncoderFiles>, titles: ClassTitles, settings: ScorerSettings) -> Self {
        Self { files, titles, settings }
    }

    /// The files of the encoder.
    pub fn files(&self) -> &EncoderFiles {
        &self.files
    }

    /// The class titles.
    pub fn titles(&self) -> &ClassTitles {
        &self.titles
    }

    /// The settings of the scorer.
    pub fn settings(&self) -> &ScorerSettings {
        &self.settings
    }

    /// Batches all rows. Targets that share a sequence are shuffled, and with `shuffled` also the
    /// sequences.
    ///
    /// # Errors
    /// [`DataError`] for a phrase that cannot be tokenized.
    pub fn batches(
        &self,
        rows: &[PhrasePair],
        limits: BatchLimits,
        rng: &mut ChaCha8Rng,
        shuffled: bool,
    ) -> Result<Vec<RowBatch>, DataError> {
        let mut sequences = match self.settings.layout {
            Layout::Listwise => self.listwise(rows, rng)?,
            Layout::Pairs => self.pairs(rows, rng)?,
            Layout::BiEncoder => self.phrases(rows)?,
        };
        if shuffled {
            sequences.shuffle(rng);
        }
        Ok(self.pack_all(sequences, limits))
    }

    fn pack_all(&self, sequences: Vec<Sequence>, limits: BatchLimits) -> Vec<RowBatch> {
        let mut batches = Vec::new();
        let (mut batch, mut num_rows, mut num_tokens) = (Vec::new(), 0, 0);
        for sequence in sequences {
            let (added_rows, added_tokens) = (sequence.scored.len(), sequence.ids.len());
            let is_full = num_rows + added_rows > limits.rows.max(added_rows)
                || (limits.tokens > 0 && num_tokens + added_tokens > limits.tokens);
            if is_full && !batch.is_empty() {
                batches.push(self.pack(std::mem::take(&mut batch)));
                (num_rows, num_tokens) = (0, 0);
            }
            num_rows += added_rows;
            num_tokens += added_tokens;
            batch.push(sequence);
        }
        if !batch.is_empty() {
            batches.push(self.pack(batch));
        }
        batches
    }

    /// Concatenates sequences into one batch.
    fn pack(&self, sequences: Vec<Sequence>) -> RowBatch {
        let ids: Vec<&[u32]> = sequences.iter().map(|s| s.ids.as_slice()).collect();
        if self.settings.layout == Layout::BiEncoder {
            return pack_phrases(&sequences);
        }
        let mut packed = PackedTokens::new(&ids);
        let branches: Vec<u32> = sequences.iter().flat_map(|s| s.branches.clone()).collect();
        if !branches.is_empty() {
            packed = packed.with_branches(branches.into());
        }
        let (mut rows, mut targets, mut anchors) = (Vec::new(), Vec::new(), Vec::new());
        for (sequence, packed_span) in sequences.iter().zip(packed.sequences().iter()) {
            let shifted =
                |span: Span| Span { start: packed_span.start + span.start, length: span.length };
            for scored in &sequence.scored {
                rows.push(scored.row);
                targets.push(shifted(scored.target));
                anchors.push(shifted(scored.anchor));
            }
        }
        let spans = ScoredSpans { targets: targets.into(), anchors: anchors.into() };
        RowBatch { input: Input::Spans(packed, spans), rows }
    }

    /// Builds `[CLS] anchor [SEP] title [SEP] target [SEP] target [SEP] …`: one sequence per group
    /// of rows, or several if the group is too long. A title precedes the targets of its class.
    fn listwise(
        &self,
        rows: &[PhrasePair],
        rng: &mut ChaCha8Rng,
    ) -> Result<Vec<Sequence>, DataError> {
        let special = self.files.tokenizer.special();
        let mut sequences = Vec::new();
        for mut group in grouped_rows(rows, self.settings.group) {
            group.shuffle(rng);
            let mut contexts: Vec<&str> = Vec::new();
            for &row in &group {
                if !contexts.contains(&rows[row].context.as_str()) {
                    contexts.push(&rows[row].context);
                }
            }
            group.sort_by_key(|&row| contexts.iter().position(|c| *c == rows[row].context));
            let max_length = self.settings.max_tokens / 4;
            let anchor = self.phrase_tokens(&rows[group[0]].anchor, max_length)?;
            let mut prefix = vec![special.cls];
            prefix.extend(anchor);
            prefix.push(special.sep);
            let anchor = Span { start: 1, length: prefix.len() - 2 };
            let mut sequence = Sequence::new(&prefix);
            let mut context = "";
            for row in group {
                let target = self.phrase_tokens(&rows[row].target, max_length)?;
                let title = self.title_tokens(&rows[row].context, max_length)?;
                let added =
                    target.len() + 1 + if rows[row].context == context { 0 } else { title.len() };
                if !sequence.scored.is_empty()
                    && sequence.ids.len() + added > self.settings.max_tokens
                {
                    let next = Sequence::new(&prefix);
                    sequences.push(std::mem::replace(&mut sequence, next));
                    context = "";
                }
                if rows[row].context != context {
                    sequence.ids.extend(title);
                    context = &rows[row].context;
                }
                let span = Span { start: sequence.ids.len(), length: target.len() };
                sequence.scored.push(ScoredPair { row, target: span, anchor });
                sequence.ids.extend(target);
                sequence.ids.push(special.sep);
                if self.settings.targets_apart {
                    sequence.branches.resize(span.start, 0);
                    sequence.branches.resize(sequence.ids.len(), sequence.scored.len() as u32);
                }
            }
            sequences.push(sequence);
        }
        Ok(sequences)
    }

    /// Builds `[CLS] anchor [SEP] target [SEP] title [SEP] other; other; … [SEP]` for each row. The
    /// span of the target is the whole sequence.
    fn pairs(&self, rows: &[PhrasePair], rng: &mut ChaCha8Rng) -> Result<Vec<Sequence>, DataError> {
        let special = self.files.tokenizer.special();
        let semicolon = self.files.tokenizer.encode_segment(";")?;
        let mut group_of_row = vec![0; rows.len()];
        let groups = grouped_rows(rows, self.settings.group);
        for (index, group) in groups.iter().enumerate() {
            group.iter().for_each(|&row| group_of_row[row] = index);
        }
        let mut sequences = Vec::with_capacity(rows.len());
        for (row, pair) in rows.iter().enumerate() {
            let budget = self.settings.max_tokens - 4;
            let texts = [&pair.anchor, &pair.target];
            let [anchor, target] = texts.map(|text| self.files.tokenizer.encode_segment(text));
            let (anchor, target) = (anchor?, target?);
            let title = self.title_tokens(&pair.context, budget / 4)?;
            let lengths = longest_first(&[anchor.len(), target.len()], budget - title.len());
            let mut ids = vec![special.cls];
            ids.extend(&anchor[..lengths[0]]);
            ids.push(special.sep);
            ids.extend(&target[..lengths[1]]);
            ids.push(special.sep);
            ids.extend(title);
            if self.settings.other_targets > 0 {
                let group = groups[group_of_row[row]].iter();
                let mut others: Vec<&str> = group.map(|&row| rows[row].target.as_str()).collect();
                others.sort_unstable();
                others.dedup();
                others.retain(|other| *other != pair.target);
                let (chosen, _) = others.partial_shuffle(rng, self.settings.other_targets);
                let mut delimiter: &[u32] = &[];
                for other in chosen {
                    let other = self.files.tokenizer.encode_segment(other)?;
                    if ids.len() + delimiter.len() + other.len() + 1 > self.settings.max_tokens {
                        continue;
                    }
                    ids.extend(delimiter);
                    ids.extend(&*other);
                    delimiter = &semicolon;
                }
                ids.push(special.sep);
            }
            let all_tokens = Span { start: 0, length: ids.len() };
            let anchor = Span { start: 1, length: lengths[0].max(1) };
            sequences.push(Sequence {
                scored: vec![ScoredPair { row, target: all_tokens, anchor }],
                ..Sequence::new(&ids)
            });
        }
        Ok(sequences)
    }

    /// Builds `[CLS] anchor [SEP] [CLS] target [SEP]` for each row. [`pack_phrases`] splits it into
    /// two sequences.
    fn phrases(&self, rows: &[PhrasePair]) -> Result<Vec<Sequence>, DataError> {
        let special = self.files.tokenizer.special();
        let mut sequences = Vec::with_capacity(rows.len());
        for (row, pair) in rows.iter().enumerate() {
            let mut ids = Vec::new();
            let mut span_of = |text: &str| -> Result<Span, DataError> {
                let tokens = self.phrase_tokens(text, self.settings.max_tokens - 2)?;
                let span = Span { start: ids.len(), length: tokens.len() + 2 };
                ids.push(special.cls);
                ids.extend(tokens);
                ids.push(special.sep);
                Ok(span)
            };
            let (anchor, target) = (span_of(&pair.anchor)?, span_of(&pair.target)?);
            sequences.push(Sequence {
                scored: vec![ScoredPair { row, target, anchor }],
                ..Sequence::new(&ids)
            });
        }
        Ok(sequences)
    }

    /// The tokens of a phrase, at most `max_length`; a padding token for a phrase without tokens.
    fn phrase_tokens(&self, text: &str, max_length: usize) -> Result<Vec<u32>, DataError> {
        let ids = self.files.tokenizer.encode_segment(text)?;
        if ids.is_empty() {
            return Ok(vec![self.files.tokenizer.special().pad]);
        }
        Ok(ids[..ids.len().min(max_length.max(1))].to_vec())
    }

    /// The tokens of a class title, at most `max_length`, and a separator; empty if titles are not
    /// used.
    fn title_tokens(&self, context: &str, max_length: usize) -> Result<Vec<u32>, DataError> {
        match self.titles.title(context) {
            Some(title) if self.settings.context_title => {
                let max_length = max_length.min(MAX_TITLE_TOKENS);
                let mut ids = self.phrase_tokens(&title.to_lowercase(), max_length)?;
                ids.push(self.files.tokenizer.special().sep);
                Ok(ids)
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// The maximum number of tokens of a class title. A title is a list of headings, from general to
/// specific; its first words suffice.
const MAX_TITLE_TOKENS: usize = 24;

/// Packs the phrases of bi-encoder rows, without duplicates.
fn pack_phrases(sequences: &[Sequence]) -> RowBatch {
    let mut index_by_ids: HashMap<&[u32], u32> = HashMap::new();
    let mut phrases: Vec<&[u32]> = Vec::new();
    let (mut pairs, mut rows) = (Vec::new(), Vec::new());
    for sequence in sequences {
        for scored in &sequence.scored {
            let mut index_of = |span: Span| {
                let ids = &sequence.ids[span.start..span.start + span.length];
                *index_by_ids.entry(ids).or_insert_with(|| {
                    phrases.push(ids);
                    phrases.len() as u32 - 1
                })
            };
            pairs.push((index_of(scored.anchor), index_of(scored.target)));
            rows.push(scored.row);
        }
    }
    let packed = PackedTokens::new(&phrases);
    RowBatch { input: Input::Phrases(packed, pairs), rows }
}
