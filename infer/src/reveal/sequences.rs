//! Token sequences and images of examples and entries, as model input.

use engram_data::text_to_text::T5Tokenizer;
use engram_models::packed::PackedTokens;
use engram_models::reveal::RevealInput;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::corpus::{Corpus, CorpusEntry, Example, Task};
use crate::error::Result;

/// The settings of sequences, in a recipe's `[data]`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct SequenceSettings {
    /// Prompts before the texts of queries and entries.
    pub prompts: Prompts,
    /// Maximum number of tokens of an entry.
    pub max_entry_tokens: usize,
    /// Maximum number of tokens of a query.
    pub max_query_tokens: usize,
    /// Maximum number of tokens of an answer.
    pub max_answer_tokens: usize,
}

/// `[data.prompts]`: prompts before texts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Prompts {
    /// Before a text to continue, or for an image to describe; published: "Please describe this
    /// image:".
    pub caption: String,
    /// Before a question; published: "Please based on this image to answer the question:".
    pub question: String,
    /// Before an entry; published: "Please summarize this knowledge:".
    pub knowledge: String,
}

/// Turns texts into sequences, with the recipe's prompts and limits.
pub struct Sequencer {
    tokens: T5Tokenizer,
    /// The tokens of the prompts.
    caption: Vec<u32>,
    question: Vec<u32>,
    knowledge: Vec<u32>,
    /// The sequence of each item of the corpus.
    items: Vec<Vec<u32>>,
    /// The number of truncated items.
    truncated_items: usize,
    settings: SequenceSettings,
}

/// The decoder's input and its target: the next token at each position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The input tokens of the decoder; the first is the begin token.
    pub input: Vec<u32>,
    /// The tokens to predict. The last is the end token, unless generation stopped at the maximum
    /// length.
    pub output: Vec<u32>,
}

impl Sequencer {
    /// Creates a sequencer, and tokenizes all items of the corpus.
    pub fn new(tokens: T5Tokenizer, corpus: &Corpus, settings: &SequenceSettings) -> Result<Self> {
        let Prompts { caption, question, knowledge } = &settings.prompts;
        let mut sequencer = Self {
            caption: tokens.encode(caption)?,
            question: tokens.encode(question)?,
            knowledge: tokens.encode(knowledge)?,
            items: Vec::new(),
            truncated_items: 0,
            settings: settings.clone(),
            tokens,
        };
        let sequence = |item: &CorpusEntry| sequencer.entry(&item.text);
        let (items, is_truncated): (Vec<_>, Vec<bool>) =
            corpus.items.iter().map(sequence).collect::<Result<_>>()?;
        (sequencer.items, sequencer.truncated_items) =
            (items, is_truncated.into_iter().filter(|is_truncated| *is_truncated).count());
        Ok(sequencer)
    }

    /// The same tokenizer and settings, for the items of another corpus.
    pub fn of(&self, corpus: &Corpus) -> Result<Self> {
        Self::new(self.tokens.clone(), corpus, &self.settings)
    }

    /// The sequence of an entry's text, and whether it was truncated.
    pub fn entry(&self, text: &str) -> Result<(Vec<u32>, bool)> {
        self.prompted(&self.knowledge, text, self.settings.max_entry_tokens)
    }

    /// The sequence of a prompt and a text of at most `max_tokens`, and whether it was truncated.
    fn prompted(&self, prompt: &[u32], text: &str, max_tokens: usize) -> Result<(Vec<u32>, bool)> {
        let mut ids = vec![self.tokens.begin];
        ids.extend(prompt);
        ids.extend(self.tokens.encode(text)?);
        let is_truncated = ids.len() > max_tokens;
        ids.truncate(max_tokens);
        Ok((ids, is_truncated))
    }

    /// Warnings about truncated texts, one for each kind of text. A warning has two counts, the
    /// kind of text, and the recipe key with its limit. The counts are of truncated entries and all
    /// entries, or of examples with a truncated question or answer and all examples.
    ///
    /// # Errors
    /// The errors of the tokenizer.
    pub fn truncation_warnings(&self, corpus: &Corpus) -> Result<Vec<String>> {
        let (mut questions, mut answers, mut examples) = (0, 0, 0);
        for example in [&corpus.train, &corpus.validation, &corpus.test].into_iter().flatten() {
            examples += 1;
            questions +=
                usize::from(example.task == Task::Answer && self.question(&example.text)?.1);
            let length = |answer: &String| Ok(self.tokens.encode(answer)?.len());
            let lengths = example.answers.iter().map(length).collect::<Result<Vec<usize>>>()?;
            answers += usize::from(
                lengths.into_iter().any(|length| length > self.settings.max_answer_tokens),
            );
        }
        let counts = [
            (
                "entries",
                self.truncated_items,
                self.items.len(),
                "max_entry_tokens",
                self.settings.max_entry_tokens,
            ),
            ("questions", questions, examples, "max_query_tokens", self.settings.max_query_tokens),
            ("answers", answers, examples, "max_answer_tokens", self.settings.max_answer_tokens),
        ];
        let truncated = counts.into_iter().filter(|(_, count, ..)| *count > 0);
        let warnings = truncated.map(|(kind, count, total, key, limit)| {
            format!("{count} of {total} {kind} are truncated to `data.{key}` = {limit}")
        });
        Ok(warnings.collect())
    }

    /// The tokenizer.
    pub fn tokens(&self) -> &T5Tokenizer {
        &self.tokens
    }

    /// The maximum number of answer tokens.
    pub fn max_answer_tokens(&self) -> usize {
        self.settings.max_answer_tokens
    }

    /// The sequence of a question, and whether it was truncated.
    pub fn question(&self, text: &str) -> Result<(Vec<u32>, bool)> {
        self.prompted(&self.question, text, self.settings.max_query_tokens)
    }

    /// The sequence that requests a caption of an image.
    pub fn describe(&self) -> Vec<u32> {
        let mut ids = vec![self.tokens.begin];
        ids.extend(&self.caption);
        ids.push(self.tokens.mask);
        ids
    }

    /// The query sequence of an example.
    pub fn query_of(&self, example: &Example) -> Result<Vec<u32>> {
        match example.task {
            Task::Answer => Ok(self.question(&example.text)?.0),
            Task::Describe => Ok(self.describe()),
        }
    }

    /// The decoder target of a text, which is truncated to the maximum number of answer tokens.
    pub fn target(&self, text: &[u32]) -> Target {
        let text = &text[..text.len().min(self.settings.max_answer_tokens)];
        let mut input = vec![self.tokens.begin];
        input.extend(text);
        let mut output = text.to_vec();
        output.push(self.tokens.end);
        Target { input, output }
    }

    /// The decoder target of generated tokens. `tokens` includes the end token if it was generated.
    pub fn generated(&self, tokens: &[u32]) -> Target {
        let (output, mut input) = (tokens.to_vec(), vec![self.tokens.begin]);
        input.extend(&tokens[..tokens.len().saturating_sub(1)]);
        Target { input, output }
    }

    /// Splits a text at a fraction of its length: the beginning is the query, the remainder is the
    /// target (prefix language modelling).
    pub fn continuation(&self, text: &str, fraction: f64) -> Result<(Vec<u32>, Target)> {
        let ids = self.tokens.encode(text)?;
        let max_prefix =
            ids.len().saturating_sub(1).min(self.settings.max_query_tokens.saturating_sub(2));
        let split_at = (1 + (fraction * max_prefix as f64) as usize).min(ids.len());
        let mut query = vec![self.tokens.begin];
        query.extend(&self.caption);
        query.extend(&ids[..split_at]);
        query.push(self.tokens.mask);
        Ok((query, self.target(&ids[split_at..])))
    }

    /// The model input of entries; entries with the same image share it.
    pub fn entries(&self, corpus: &Corpus, indices: &[usize]) -> Result<RevealInput> {
        let texts: Vec<&[u32]> =
            indices.iter().map(|index| self.items[*index].as_slice()).collect();
        let views: Vec<Option<(usize, u32)>> =
            indices.iter().map(|index| corpus.items[*index].image.map(|i| (i, 0))).collect();
        self.input(corpus, &texts, &views)
    }

    /// The model input of texts. `views` holds the index and view of the image of each text; `None`
    /// for a text without an image.
    pub fn input<T: AsRef<[u32]>>(
        &self,
        corpus: &Corpus,
        texts: &[T],
        views: &[Option<(usize, u32)>],
    ) -> Result<RevealInput> {
        let mut distinct: Vec<(usize, u32)> = views.iter().flatten().copied().collect();
        distinct.sort_unstable();
        distinct.dedup();
        let index = |view: &(usize, u32)| distinct.binary_search(view).ok().map(|i| i as u32);
        let image_of = views.iter().map(|view| view.as_ref().and_then(index)).collect();
        let pixels = if distinct.is_empty() { None } else { Some(corpus.image_input(&distinct)?) };
        Ok(RevealInput { tokens: PackedTokens::new(texts), pixels, image_of })
    }
}
