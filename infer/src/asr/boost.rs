//! Word boosting: raises the probability of listed words in a transcript.

use std::sync::Arc;

use engram_data::DataError;
use engram_data::speech::tokenizer::SpeechTokenizer;
use engram_models::generation::boosting::{Bonus, BoostTree, WordBoundaries};

use super::{ConformerAsr, WhisperAsr};
use crate::error::{InferError, Result};

/// The default bonus for a token that continues a listed word, in nats, for Whisper. Whisper's
/// tokens are subwords.
const WHISPER_BOOST_WEIGHT: f32 = 3.0;
/// The default bonus for a Conformer, in nats. The tokens of `engram train` runs are letters.
const CONFORMER_BOOST_WEIGHT: f32 = 2.0;

/// The fraction of the bonus for a word's first token, which many words share.
const FIRST_TOKEN_FRACTION: f32 = 0.5;

/// Builds trees from lists of words.
pub struct BoostTreeBuilder<'a> {
    tokenizer: &'a SpeechTokenizer,
    vocabulary: Vocabulary,
    boundaries: Arc<WordBoundaries>,
    bonus: Bonus,
}

enum Vocabulary {
    /// Tokens below `end` can express any text. The tokens from `end` on are special.
    Open { end: u32 },
    /// The tokens cannot express every text. `is_space` marks tokens that only contain spaces.
    Closed { is_space: Vec<bool> },
}

impl WhisperAsr {
    pub(super) fn boost_builder(&self, weight: Option<f32>) -> Result<BoostTreeBuilder<'_>> {
        let (tokenizer, end) = (&self.tokenizer, self.tokens.end);
        let texts = (0..end).map(|token| tokenizer.decode(&[token]));
        let texts = texts.collect::<std::result::Result<Vec<String>, _>>()?;
        let weight = weight.unwrap_or(WHISPER_BOOST_WEIGHT);
        BoostTreeBuilder::new(tokenizer, Vocabulary::Open { end }, &texts, weight)
    }
}

impl ConformerAsr {
    pub(super) fn boost_builder(&self, weight: Option<f32>) -> Result<BoostTreeBuilder<'_>> {
        let weight = weight.unwrap_or(CONFORMER_BOOST_WEIGHT);
        BoostTreeBuilder::with_closed_vocabulary(&self.tokenizer, weight)
    }
}

impl<'a> BoostTreeBuilder<'a> {
    /// Creates a builder for a vocabulary that cannot express every text.
    fn with_closed_vocabulary(tokenizer: &'a SpeechTokenizer, weight: f32) -> Result<Self> {
        let texts = texts_after_a_letter(tokenizer)?;
        let is_space = |text: &String| !text.is_empty() && text.trim().is_empty();
        let is_space = texts.iter().map(is_space).collect();
        Self::new(tokenizer, Vocabulary::Closed { is_space }, &texts, weight)
    }

    fn new(
        tokenizer: &'a SpeechTokenizer,
        vocabulary: Vocabulary,
        texts: &[String],
        weight: f32,
    ) -> Result<Self> {
        if !(weight.is_finite() && weight >= 0.0) {
            let reason = format!(
                "the weight {weight} of boosted words has to be a finite number of at least 0"
            );
            return Err(InferError::Refused(reason));
        }
        let bonus = Bonus { begin: FIRST_TOKEN_FRACTION * weight, next: weight };
        let boundaries = Arc::new(WordBoundaries::from_tokens(texts.iter().map(String::as_str)));
        Ok(Self { tokenizer, vocabulary, boundaries, bonus })
    }

    /// Returns the tree of words and phrases: as written and capitalised, with and without a space
    /// before them. For a Conformer, also in lower case. If two forms have the same tokens, the
    /// bonus counts once.
    ///
    /// # Errors
    /// [`InferError::Refused`] for a word with the name of a special token, such as
    /// `<|endoftext|>`, and for a character that a Conformer's tokens cannot express;
    /// [`InferError::Data`] for a word that cannot be tokenized.
    pub fn tree<S: AsRef<str>>(&self, words: &[S]) -> Result<Arc<BoostTree>> {
        let mut sequences = Vec::new();
        for word in words {
            let word = word.as_ref().split_whitespace().collect::<Vec<_>>().join(" ");
            match &self.vocabulary {
                Vocabulary::Open { end } => self.add_open_forms(&word, *end, &mut sequences)?,
                Vocabulary::Closed { is_space } => {
                    self.add_closed_forms(&word, is_space, &mut sequences)?
                }
            }
        }
        Ok(Arc::new(BoostTree::new(&sequences, self.bonus, self.boundaries.clone())))
    }

    /// Adds the tokens of all forms of a word, for a vocabulary that can express any text.
    fn add_open_forms(&self, word: &str, end: u32, sequences: &mut Vec<Vec<u32>>) -> Result<()> {
        for form in forms(word).iter().flat_map(|form| [format!(" {form}"), form.clone()]) {
            let tokens = self.tokenizer.encode(&form)?;
            if tokens.iter().any(|token| *token >= end) {
                let reason = format!(
                    "the boosted word `{word}` contains a special token; remove it from the list"
                );
                return Err(InferError::Refused(reason));
            }
            sequences.push(tokens);
        }
        Ok(())
    }

    /// Adds the tokens of the forms that the vocabulary can express, including lower case: many
    /// vocabularies have no capitals. Space tokens get no bonus: the search would split words to
    /// collect it.
    fn add_closed_forms(
        &self,
        word: &str,
        is_space: &[bool],
        sequences: &mut Vec<Vec<u32>>,
    ) -> Result<()> {
        let mut forms = forms(word);
        forms.push(word.to_lowercase());
        let encode = |form: &str| self.tokenizer.encode_strict(form);
        forms.retain(|form| encode(form).is_ok());
        if forms.is_empty() {
            // The error names the word as the user wrote it.
            encode(word).map_err(|error| match error {
                DataError::Tokenizer { reason, .. } => {
                    let reason = format!("{reason} of the model; remove the word from the list");
                    InferError::Refused(reason)
                }
                other => other.into(),
            })?;
        }
        for form in forms.iter().flat_map(|form| [format!(" {form}"), form.clone()]) {
            // The vocabulary may have no token for a space.
            let Ok(tokens) = encode(&form) else { continue };
            let is_space = |token: &u32| is_space.get(*token as usize).copied().unwrap_or(false);
            let spaces = tokens.iter().take_while(|token| is_space(token)).count();
            sequences.push(tokens[spaces..].to_vec());
        }
        Ok(())
    }
}

/// Returns the text of each token after a letter. At the start of a text, many tokens omit their
/// leading space.
fn texts_after_a_letter(tokenizer: &SpeechTokenizer) -> Result<Vec<String>> {
    let ids = 0..tokenizer.vocabulary_size() as u32;
    let mut letter = None;
    for id in ids.clone() {
        let text = tokenizer.decode(&[id])?;
        if !text.is_empty() && text.chars().all(char::is_alphanumeric) {
            letter = Some(id);
            break;
        }
    }
    let Some(letter) = letter else {
        return Ok(ids.map(|id| tokenizer.decode(&[id])).collect::<std::result::Result<_, _>>()?);
    };
    let text = |id| Ok(tokenizer.pieces(&[letter, id])?.pop().unwrap_or_default());
    ids.map(text).collect()
}

/// Returns a phrase as written, with a capital first letter, and with a capital first letter in
/// each word, without directly repeated forms.
fn forms(phrase: &str) -> Vec<String> {
    if phrase.is_empty() {
        return Vec::new();
    }
    let words: Vec<String> = phrase.split(' ').map(capitalised).collect();
    let mut forms = vec![phrase.to_string(), capitalised(phrase), words.join(" ")];
    forms.dedup();
    forms
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    first + letters.as_str()
}

#[cfg(test)]
mod tests {
    use engram_models::generation::boosting::{BoostState, BrokenMatch};

    use super::*;

    #[test]
    fn phrases_are_also_boosted_with_capitals() {
        assert_eq!(forms("rigor mortis"), ["rigor mortis", "Rigor mortis", "Rigor Mortis"]);
        assert_eq!(forms("élan"), ["élan", "Élan"]);
        assert_eq!(forms("NATO"), ["NATO"]);
        assert!(forms("").is_empty());
    }

    /// The total bonus of each text at weight 2, including the end of the text.
    fn bonuses(tokenizer: &SpeechTokenizer, words: &[&str], texts: &[&str]) -> Result<Vec<f32>> {
        let tree = BoostTreeBuilder::with_closed_vocabulary(tokenizer, 2.0)?.tree(words)?;
        let total = |text: &&str| {
            let (mut state, mut sum) = (BoostState::default(), 0.0);
            for token in tokenizer.encode_strict(text)? {
                let (next, bonus) = tree.advance(state, token, BrokenMatch::ReturnBonus);
                (state, sum) = (next, sum + bonus);
            }
            Ok(sum + tree.final_bonus(state))
        };
        texts.iter().map(total).collect()
    }

    #[test]
    fn repeated_words_count_once_and_spaces_get_no_bonus() -> Result<()> {
        let letters = SpeechTokenizer::letters()?;
        let words = ["Ash", "ash", "ASH", "mountain ash"];
        let texts = ["ash", "an ash", "as", "cash", "ashes", "ash'", "the mountain ash", "a  b"];
        let expected = [5.0, 5.0, 0.0, 0.0, 0.0, 5.0, 23.0, 0.0];
        assert_eq!(bonuses(&letters, &words, &texts)?, expected);
        let error = bonuses(&letters, &["oak", "café au lait"], &[]).unwrap_err().to_string();
        assert!(error.contains("'é' of \"café au lait\""), "{error}");
        assert!(BoostTreeBuilder::with_closed_vocabulary(&letters, f32::NAN).is_err());
        Ok(())
    }

    /// A vocabulary as in published Fast Conformers: `▁` is a space, and there are no capitals.
    #[test]
    fn subwords_may_start_with_a_space() -> Result<()> {
        // Each letter is also a token.
        let vocabulary = ["<unk>", "▁", "▁as", "h", "as", "e", "a", "s"].map(|text| (text, -1.0));
        let json = serde_json::json!({
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": { "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always" },
            "decoder": { "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always" },
            "model": { "type": "Unigram", "unk_id": 0, "vocab": vocabulary },
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), json.to_string()).unwrap();
        let tokenizer = SpeechTokenizer::from_file(file.path())?;
        let texts = texts_after_a_letter(&tokenizer)?;
        assert_eq!(texts[1..], [" ", " as", "h", "as", "e", "a", "s"]);
        // `he` is `▁`, `h`, `e`.
        let expected = [3.0, 3.0, 0.0, 3.0, 0.0];
        let totals = bonuses(&tokenizer, &["Ash", "HE"], &["ash", "e ash", "ashe", "he", "ehe"])?;
        assert_eq!(totals, expected);
        Ok(())
    }
}
