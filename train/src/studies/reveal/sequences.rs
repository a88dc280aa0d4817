//! Token sequences and images of examples and entries, as model input.

use candle_core::{Device, Tensor};
use engram_data::text_to_text::T5Tokenizer;
use engram_models::packed::PackedTokens;
use engram_models::reveal::RevealInput;

use super::corpus::{Corpus, CorpusEntry, Example, Task};
use super::settings::{Prompts, RevealData};
use crate::study::StudyResult;

/// Turns texts into sequences, with the recipe's prompts and limits.
pub struct Sequencer {
    tokens: T5Tokenizer,
    caption: Vec<u32>,
    question: Vec<u32>,
    knowledge: Vec<u32>,
    /// The sequence of each item of the corpus.
    items: Vec<Vec<u32>>,
    /// The number of truncated items.
    items_cut: usize,
    max_entry_tokens: usize,
    max_query_tokens: usize,
    max_answer_tokens: usize,
    image_size: usize,
}

/// The decoder's input and its target: the next token at each position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Starts with the begin token.
    pub input: Vec<u32>,
    /// Ends with the end token.
    pub output: Vec<u32>,
}

impl Sequencer {
    /// Tokenizes all items once.
    pub fn new(
        tokens: T5Tokenizer,
        corpus: &Corpus,
        data: &RevealData,
        image_size: usize,
    ) -> StudyResult<Self> {
        let Prompts { caption, question, knowledge } = &data.prompts;
        let mut made = Self {
            caption: tokens.encode(caption)?,
            question: tokens.encode(question)?,
            knowledge: tokens.encode(knowledge)?,
            items: Vec::new(),
            items_cut: 0,
            max_entry_tokens: data.max_entry_tokens,
            max_query_tokens: data.max_query_tokens,
            max_answer_tokens: data.max_answer_tokens,
            image_size,
            tokens,
        };
        let sequence = |item: &CorpusEntry| made.entry(&item.text);
        let (items, cut): (Vec<_>, Vec<bool>) =
            corpus.items.iter().map(sequence).collect::<StudyResult<_>>()?;
        (made.items, made.items_cut) = (items, cut.into_iter().filter(|cut| *cut).count());
        Ok(made)
    }

    /// The sequence of an entry's text, and whether it was truncated.
    pub fn entry(&self, text: &str) -> StudyResult<(Vec<u32>, bool)> {
        let mut ids = vec![self.tokens.begin];
        ids.extend(&self.knowledge);
        ids.extend(self.tokens.encode(text)?);
        let cut = ids.len() > self.max_entry_tokens;
        ids.truncate(self.max_entry_tokens);
        Ok((ids, cut))
    }

    /// Warnings about truncated texts: kind, key and limit, and how many of how many.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    pub fn cut_off(&self, corpus: &Corpus) -> StudyResult<Vec<String>> {
        let (mut questions, mut answers, mut asked) = (0, 0, 0);
        for example in [&corpus.train, &corpus.validation, &corpus.test].into_iter().flatten() {
            asked += 1;
            questions +=
                usize::from(example.task == Task::Answer && self.question(&example.text)?.1);
            let longest = |answer: &String| Ok(self.tokens.encode(answer)?.len());
            let lengths =
                example.answers.iter().map(longest).collect::<StudyResult<Vec<usize>>>()?;
            answers +=
                usize::from(lengths.into_iter().any(|length| length > self.max_answer_tokens));
        }
        let counts = [
            (
                "entries",
                self.items_cut,
                self.items.len(),
                "max_entry_tokens",
                self.max_entry_tokens,
            ),
            ("questions", questions, asked, "max_query_tokens", self.max_query_tokens),
            ("answers", answers, asked, "max_answer_tokens", self.max_answer_tokens),
        ];
        let told = counts.into_iter().filter(|(_, cut, ..)| *cut > 0);
        let told = told.map(|(kind, cut, all, key, limit)| {
            format!("{cut} of {all} {kind} are truncated to `data.{key}` = {limit}")
        });
        Ok(told.collect())
    }

    /// The tokenizer.
    pub fn tokens(&self) -> &T5Tokenizer {
        &self.tokens
    }

    /// The largest number of answer tokens.
    pub fn max_answer_tokens(&self) -> usize {
        self.max_answer_tokens
    }

    /// The sequence of a question, and whether it was truncated.
    pub fn question(&self, text: &str) -> StudyResult<(Vec<u32>, bool)> {
        let mut ids = vec![self.tokens.begin];
        ids.extend(&self.question);
        ids.extend(self.tokens.encode(text)?);
        let cut = ids.len() > self.max_query_tokens;
        ids.truncate(self.max_query_tokens);
        Ok((ids, cut))
    }

    /// The sequence that requests a caption of an image.
    pub fn describe(&self) -> Vec<u32> {
        let mut ids = vec![self.tokens.begin];
        ids.extend(&self.caption);
        ids.push(self.tokens.mask);
        ids
    }

    /// The query sequence of an example.
    pub fn asked(&self, example: &Example) -> StudyResult<Vec<u32>> {
        match example.task {
            Task::Answer => Ok(self.question(&example.text)?.0),
            Task::Describe => Ok(self.describe()),
        }
    }

    /// The decoder target of a text.
    pub fn target(&self, text: &[u32]) -> Target {
        let text = &text[..text.len().min(self.max_answer_tokens)];
        let mut input = vec![self.tokens.begin];
        input.extend(text);
        let mut output = text.to_vec();
        output.push(self.tokens.end);
        Target { input, output }
    }

    /// The decoder target of generated tokens, with the end token if it was generated.
    pub fn generated(&self, tokens: &[u32]) -> Target {
        let (output, mut input) = (tokens.to_vec(), vec![self.tokens.begin]);
        input.extend(&tokens[..tokens.len().saturating_sub(1)]);
        Target { input, output }
    }

    /// Splits a text at a fraction of its length: the beginning is the query, the rest is the
    /// target (prefix language modelling).
    pub fn continuation(&self, text: &str, share: f64) -> StudyResult<(Vec<u32>, Target)> {
        let ids = self.tokens.encode(text)?;
        let longest = ids.len().saturating_sub(1).min(self.max_query_tokens.saturating_sub(2));
        let cut = (1 + (share * longest as f64) as usize).min(ids.len());
        let mut query = vec![self.tokens.begin];
        query.extend(&self.caption);
        query.extend(&ids[..cut]);
        query.push(self.tokens.mask);
        Ok((query, self.target(&ids[cut..])))
    }

    /// The model input of entries; entries with the same image share it.
    pub fn entries(&self, corpus: &Corpus, places: &[usize]) -> StudyResult<RevealInput> {
        let texts: Vec<&[u32]> = places.iter().map(|place| self.items[*place].as_slice()).collect();
        let views: Vec<Option<(usize, u32)>> =
            places.iter().map(|place| corpus.items[*place].image.map(|p| (p, 0))).collect();
        self.input(corpus, &texts, &views)
    }

    /// The model input of texts, each with a view of an image.
    pub fn input<T: AsRef<[u32]>>(
        &self,
        corpus: &Corpus,
        texts: &[T],
        views: &[Option<(usize, u32)>],
    ) -> StudyResult<RevealInput> {
        let mut wanted: Vec<(usize, u32)> = views.iter().flatten().copied().collect();
        wanted.sort_unstable();
        wanted.dedup();
        let place = |view: &(usize, u32)| wanted.binary_search(view).ok().map(|i| i as u32);
        let image_of = views.iter().map(|view| view.as_ref().and_then(place)).collect();
        let pixels = match wanted.is_empty() {
            true => None,
            false => {
                let shape = (wanted.len(), 3, self.image_size, self.image_size);
                let pixels = corpus.images.pixels(&wanted)?;
                Some(Tensor::from_vec(pixels, shape, &Device::Cpu)?)
            }
        };
        Ok(RevealInput { tokens: PackedTokens::new(texts), pixels, image_of })
    }
}
