//! Words that a recogniser listens for.

use std::sync::Arc;

use engram_models::speech::boosting::{Bonus, BoostTree, WordEdges};

use super::Recogniser;
use crate::error::{Result, TrainError};

/// What a token that goes on with a listed word gets by default, in nats.
pub const DEFAULT_BOOST_WEIGHT: f32 = 3.0;

/// Of that, what the first token of a word gets: many words begin with it.
const OF_FIRST: f32 = 0.5;

/// Makes the trees of lists of words.
pub struct Booster<'a> {
    recogniser: &'a Recogniser,
    edges: Arc<WordEdges>,
    bonus: Bonus,
}

impl Recogniser {
    /// What makes trees of words; `weight` is what their tokens get, in nats.
    ///
    /// # Errors
    /// [`TrainError::Recognise`] for a weight that is not a number from 0 on; [`TrainError::Data`] for
    /// tokens that have no text.
    pub fn booster(&self, weight: f32) -> Result<Booster<'_>> {
        if !(weight.is_finite() && weight >= 0.0) {
            let reason = format!("the weight {weight} of boosted words is not a number from 0 on");
            return Err(TrainError::Recognise { reason });
        }
        let words = 0..self.tokens.end;
        let texts = words.map(|token| self.tokeniser.decode(&[token]));
        let texts = texts.collect::<std::result::Result<Vec<String>, _>>()?;
        let bonus = Bonus { begin: OF_FIRST * weight, go_on: weight };
        let edges = Arc::new(WordEdges::of(texts.iter().map(String::as_str)));
        Ok(Booster { recogniser: self, edges, bonus })
    }
}

impl Booster<'_> {
    /// The tree of these words and phrases, as they are written and with capitals, behind a space and
    /// behind none.
    ///
    /// # Errors
    /// [`TrainError::Recognise`] for a word that holds the name of a special token, such as
    /// `<|endoftext|>`; [`TrainError::Data`]
    pub fn tree<S: AsRef<str>>(&self, words: &[S]) -> Result<Arc<BoostTree>> {
        let mut sequences = Vec::new();
        for word in words {
            let word = word.as_ref().split_whitespace().collect::<Vec<_>>().join(" ");
            for form in forms(&word).iter().flat_map(|form| [format!(" {form}"), form.clone()]) {
                let tokens = self.recogniser.tokeniser.encode(&form)?;
                if tokens.iter().any(|token| *token >= self.recogniser.tokens.end) {
                    let reason = format!("the boosted word `{word}` holds a special token");
                    return Err(TrainError::Recognise { reason });
                }
                sequences.push(tokens);
            }
        }
        Ok(Arc::new(BoostTree::new(&sequences, self.bonus, self.edges.clone())))
    }
}

/// A phrase as it is written, with its first letter as a capital, and with that of each word.
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
    let mut rest = text.chars();
    let first = rest.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    first + rest.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_looked_for_with_capitals_too() {
        assert_eq!(forms("rigor mortis"), ["rigor mortis", "Rigor mortis", "Rigor Mortis"]);
        assert_eq!(forms("élan"), ["élan", "Élan"]);
        assert_eq!(forms("NATO"), ["NATO"]);
        assert!(forms("").is_empty());
    }
}
