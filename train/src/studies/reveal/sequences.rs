//! Examples and entries as the token sequences and pictures that the model reads.

use candle_core::{Device, Tensor};
use engram_data::text_to_text::TextToText;
use engram_models::packed::PackedTokens;
use engram_models::reveal::RevealInput;

use super::corpus::{Corpus, Example, Item, Task};
use super::settings::{Prompts, RevealData};
use crate::study::StudyResult;

/// Texts to sequences, by the recipe's prompts and limits.
pub struct Sequencer {
    tokens: TextToText,
    caption: Vec<u32>,
    question: Vec<u32>,
    knowledge: Vec<u32>,
    /// The sequence of each item of the corpus.
    items: Vec<Vec<u32>>,
    /// How many of them are cut off before their end.
    items_cut: usize,
    max_entry_tokens: usize,
    max_query_tokens: usize,
    max_answer_tokens: usize,
    image_size: usize,
}

/// What is to be generated: the decoder's input and, for each place, the token that follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Begins with the begin token.
    pub input: Vec<u32>,
    /// Ends with the end token.
    pub output: Vec<u32>,
}

impl Sequencer {
    /// Tokenises the items once.
    pub fn new(
        tokens: TextToText,
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
        let sequence = |item: &Item| made.entry(&item.text);
        let (items, cut): (Vec<_>, Vec<bool>) =
            corpus.items.iter().map(sequence).collect::<StudyResult<_>>()?;
        (made.items, made.items_cut) = (items, cut.into_iter().filter(|cut| *cut).count());
        Ok(made)
    }

    /// The sequence of an entry's text, and whether it is cut off before its end.
    pub fn entry(&self, text: &str) -> StudyResult<(Vec<u32>, bool)> {
        let mut ids = vec![self.tokens.begin];
        ids.extend(&self.knowledge);
        ids.extend(self.tokens.encode(text)?);
        let cut = ids.len() > self.max_entry_tokens;
        ids.truncate(self.max_entry_tokens);
        Ok((ids, cut))
    }

    /// What is longer than the recipe lets the model read or say: kind, key and limit, how many of how many.
    ///
    /// # Errors
    /// Those of the tokenizer.
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
            ("questions' answers", answers, asked, "max_answer_tokens", self.max_answer_tokens),
        ];
        let told = counts.into_iter().filter(|(_, cut, ..)| *cut > 0);
        let told = told.map(|(kind, cut, all, key, limit)| {
            format!(
                "{cut} of {all} {kind} are longer than `data.{key}`, {limit}, and are cut off there"
            )
        });
        Ok(told.collect())
    }

    /// The tokenizer.
    pub fn tokens(&self) -> &TextToText {
        &self.tokens
    }

    /// Tokens of an answer, at most.
    pub fn max_answer_tokens(&self) -> usize {
        self.max_answer_tokens
    }

    /// The sequence of a question, and whether it is cut off before its end.
    pub fn question(&self, text: &str) -> StudyResult<(Vec<u32>, bool)> {
        let mut ids = vec![self.tokens.begin];
        ids.extend(&self.question);
        ids.extend(self.tokens.encode(text)?);
        let cut = ids.len() > self.max_query_tokens;
        ids.truncate(self.max_query_tokens);
        Ok((ids, cut))
    }

    /// The sequence that asks for a picture's caption.
    pub fn describe(&self) -> Vec<u32> {
        let mut ids = vec![self.tokens.begin];
        ids.extend(&self.caption);
        ids.push(self.tokens.mask);
        ids
    }

    /// The sequence of what an example asks.
    pub fn asked(&self, example: &Example) -> StudyResult<Vec<u32>> {
        match example.task {
            Task::Answer => Ok(self.question(&example.text)?.0),
            Task::Describe => Ok(self.describe()),
        }
    }

    /// What is to be generated for a text.
    pub fn target(&self, text: &[u32]) -> Target {
        let text = &text[..text.len().min(self.max_answer_tokens)];
        let mut input = vec![self.tokens.begin];
        input.extend(text);
        let mut output = text.to_vec();
        output.push(self.tokens.end);
        Target { input, output }
    }

    /// An answer that was generated, its end with it if it has one, as what is to be generated.
    pub fn generated(&self, tokens: &[u32]) -> Target {
        let (output, mut input) = (tokens.to_vec(), vec![self.tokens.begin]);
        input.extend(&tokens[..tokens.len().saturating_sub(1)]);
        Target { input, output }
    }

    /// A text cut in two at a share of its length: the beginning as a query that asks for the rest,
    /// and the rest (prefix language modelling).
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

    /// Entries as the model reads them; entries with the same picture share it.
    pub fn entries(&self, corpus: &Corpus, places: &[usize]) -> StudyResult<RevealInput> {
        let texts: Vec<&[u32]> = places.iter().map(|place| self.items[*place].as_slice()).collect();
        let views: Vec<Option<(usize, u32)>> =
            places.iter().map(|place| corpus.items[*place].picture.map(|p| (p, 0))).collect();
        self.input(corpus, &texts, &views)
    }

    /// Texts, each with a view of a picture.
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
        let picture_of = views.iter().map(|view| view.as_ref().and_then(place)).collect();
        let pixels = match wanted.is_empty() {
            true => None,
            false => {
                let shape = (wanted.len(), 3, self.image_size, self.image_size);
                let pixels = corpus.pictures.pixels(&wanted)?;
                Some(Tensor::from_vec(pixels, shape, &Device::Cpu)?)
            }
        };
        Ok(RevealInput { tokens: PackedTokens::new(texts), pixels, picture_of })
    }
}
