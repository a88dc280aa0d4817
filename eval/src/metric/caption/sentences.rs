//! Tokenized captions in one array, with words as integers.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::normalise::characters::is_space;

/// A tokenized caption.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sentence<'s> {
    /// The words for ROUGE-L, between single spaces; an empty caption is one empty word.
    pub(super) words: &'s [u32],
    /// The words for BLEU and CIDEr, between white space of any kind.
    pub(super) tokens: &'s [u32],
}

/// Sentences in input order, with their vocabulary.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sentences {
    words: Vec<u32>,
    /// The end of each sentence in `words`.
    ends: Vec<usize>,
    /// The tokens of the few sentences whose tokens differ from their words.
    tokens: HashMap<usize, Box<[u32]>>,
    vocabulary: Vocabulary,
}

/// Word indices, from 0 in order of first occurrence.
#[derive(Debug, Clone, Default)]
pub(super) struct Vocabulary(HashMap<Box<str>, u32, RandomState>);

impl Sentences {
    /// Allocates memory for `sentences` sentences with `bytes` bytes in total.
    pub(crate) fn with_capacity(sentences: usize, bytes: usize) -> Self {
        // An English word and its space take five to six bytes.
        let (words, ends) = (Vec::with_capacity(bytes / 4), Vec::with_capacity(sentences));
        Self { words, ends, ..Self::default() }
    }

    /// Number of sentences.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, sentence: usize) -> Sentence<'_> {
        let start = sentence.checked_sub(1).map_or(0, |previous| self.ends[previous]);
        let words = &self.words[start..self.ends[sentence]];
        Sentence { words, tokens: self.tokens.get(&sentence).map_or(words, |tokens| tokens) }
    }

    pub(super) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Adds a tokenized caption.
    pub(crate) fn push(&mut self, text: &str) {
        let mut tokens_differ = false;
        for word in text.split(' ') {
            tokens_differ |= word.is_empty() || word.contains(is_space);
            self.words.push(self.vocabulary.get_or_insert(word));
        }
        if tokens_differ {
            let tokens = text.split(is_space).filter(|word| !word.is_empty());
            let tokens = tokens.map(|word| self.vocabulary.get_or_insert(word)).collect();
            self.tokens.insert(self.ends.len(), tokens);
        }
        self.ends.push(self.words.len());
    }

    /// Appends the sentences of `other`, with the same word indices as if each were pushed.
    pub(crate) fn append(&mut self, other: &Self) {
        let (sentence_offset, word_offset) = (self.ends.len(), self.words.len());
        let new_indices = self.vocabulary.merge(&other.vocabulary);
        let new_index = |word: &u32| new_indices[*word as usize];
        self.words.extend(other.words.iter().map(new_index));
        self.ends.extend(other.ends.iter().map(|end| word_offset + end));
        for (sentence, tokens) in &other.tokens {
            self.tokens.insert(sentence_offset + sentence, tokens.iter().map(new_index).collect());
        }
    }

    /// Truncates to `sentences` sentences, or appends empty sentences.
    pub(crate) fn resize(&mut self, sentences: usize) {
        self.ends.truncate(sentences);
        self.words.truncate(self.ends.last().copied().unwrap_or(0));
        self.tokens.retain(|sentence, _| *sentence < sentences);
        while self.ends.len() < sentences {
            self.push("");
        }
    }
}

impl Vocabulary {
    /// Number of words.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The index of a word; `None` if it is not in the vocabulary.
    pub(super) fn get(&self, word: &str) -> Option<u32> {
        self.0.get(word).copied()
    }

    /// The index of a word, which is added if it is new.
    fn get_or_insert(&mut self, word: &str) -> u32 {
        if let Some(&index) = self.0.get(word) {
            return index;
        }
        let next = self.0.len() as u32;
        self.0.insert(word.into(), next);
        next
    }

    /// Adds the words of `other`; returns the new index of each index in `other`.
    fn merge(&mut self, other: &Self) -> Vec<u32> {
        let mut words = vec![""; other.0.len()];
        for (word, index) in &other.0 {
            words[*index as usize] = word;
        }
        words.into_iter().map(|word| self.get_or_insert(word)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_texts(texts: &[&str]) -> Sentences {
        let mut sentences = Sentences::default();
        texts.iter().for_each(|text| sentences.push(text));
        sentences
    }

    fn words_and_tokens(sentences: &Sentences) -> Vec<(&[u32], &[u32])> {
        let both = |sentence| (sentences.get(sentence).words, sentences.get(sentence).tokens);
        (0..sentences.len()).map(both).collect()
    }

    #[test]
    fn tokens_end_at_any_white_space_and_words_at_single_spaces() {
        let sentences = from_texts(&["3\u{A0}1/2 x", "", " ", "a  b", "x"]);
        let lengths: Vec<_> = words_and_tokens(&sentences)
            .iter()
            .map(|(words, tokens)| (words.len(), tokens.len()))
            .collect();
        assert_eq!(lengths, [(2, 3), (1, 0), (2, 0), (3, 2), (1, 1)]);
        assert_eq!(sentences.get(0).words[1], sentences.get(4).words[0]);
    }

    #[test]
    fn appended_parts_have_the_word_indices_of_the_whole() {
        let texts = ["a b a", "", "c b", "a\u{A0}d e", "b e"];
        let whole = from_texts(&texts);
        for split in 0..=texts.len() {
            let mut parts = from_texts(&texts[..split]);
            parts.append(&from_texts(&texts[split..]));
            assert_eq!(words_and_tokens(&parts), words_and_tokens(&whole), "{split}");
            assert_eq!(parts.vocabulary.len(), 7);
        }
    }
}
