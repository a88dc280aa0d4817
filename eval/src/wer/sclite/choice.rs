//! Chooses among the alternatives of a pair: the alignment with the lowest cost determines the
//! texts.

use std::collections::HashMap;

use super::is_too_long;
use super::lattice::{Arc, EncodedLattice, align};
use super::markup::{Lattice, optional_word};
use crate::normalise::Normaliser;
use crate::wer::tokens::words;

/// Chooses among the alternatives of both texts. Words are compared after normalisation, but the
/// chosen texts are not normalised. Returns the reference and the hypothesis, or `None` if the
/// texts are too long.
///
/// With `optional_deletions`, an optionally deletable word that is in one text only is copied into
/// the other text, with its parentheses. So it counts as correct.
pub(crate) fn choose(
    reference: &Lattice<'_>,
    hypothesis: &Lattice<'_>,
    normaliser: Normaliser,
    optional_deletions: bool,
) -> Option<[String; 2]> {
    let mut token_indices = HashMap::new();
    let mut normalised = |lattice| {
        NormalisedLattice::new(lattice, normaliser, optional_deletions, &mut token_indices)
    };
    let (reference, hypothesis) = (normalised(reference), normalised(hypothesis));
    if is_too_long(reference.encoded.arcs.len(), hypothesis.encoded.arcs.len()) {
        return None;
    }
    let (mut reference_words, mut hypothesis_words) = (Vec::new(), Vec::new());
    for (i, j) in align(&reference.encoded, &hypothesis.encoded) {
        let optional_word = match (i, j) {
            (Some(i), None) => reference.in_parentheses[i],
            (None, Some(j)) => hypothesis.in_parentheses[j],
            _ => None,
        };
        if let Some(word) = optional_word {
            reference_words.push(word);
            hypothesis_words.push(word);
            continue;
        }
        reference_words.extend(i.and_then(|i| reference.written[i]));
        hypothesis_words.extend(j.and_then(|j| hypothesis.written[j]));
    }
    Some([reference_words.join(" "), hypothesis_words.join(" ")])
}

/// A lattice after normalisation.
struct NormalisedLattice<'a> {
    encoded: EncodedLattice,
    /// For the first arc of each original word: the word, without the parentheses if it is
    /// optional.
    written: Vec<Option<&'a str>>,
    /// For the first arc of each original word: the word with its parentheses, if it is optional.
    in_parentheses: Vec<Option<&'a str>>,
}

impl<'a> NormalisedLattice<'a> {
    fn new(
        lattice: &'a Lattice<'a>,
        normaliser: Normaliser,
        optional_deletions: bool,
        token_indices: &mut HashMap<String, u32>,
    ) -> Self {
        let mut normalised = Self {
            encoded: EncodedLattice {
                nodes: vec![Vec::new(); lattice.nodes.len()],
                ..EncodedLattice::default()
            },
            written: Vec::new(),
            in_parentheses: Vec::new(),
        };
        // The last arc of each original word.
        let mut last_arcs = Vec::with_capacity(lattice.words.len());
        for word in &lattice.words {
            let text = word.text.as_deref();
            let inner = text.filter(|_| optional_deletions).and_then(optional_word);
            let written = inner.or(text);
            let normalised_text =
                written.map(|text| normaliser.normalise(text)).unwrap_or_default();
            let mut tokens: Vec<Option<u32>> = words(&normalised_text)
                .map(|token| {
                    let next = token_indices.len() as u32;
                    Some(*token_indices.entry(token.to_owned()).or_insert(next))
                })
                .collect();
            if tokens.is_empty() {
                tokens.push(None);
            }
            let mut from = word.from;
            for (index, token) in tokens.into_iter().enumerate() {
                if index > 0 {
                    from = normalised.encoded.nodes.len();
                    normalised.encoded.nodes.push(vec![normalised.encoded.arcs.len() - 1]);
                }
                normalised.encoded.arcs.push(Arc { token, optional: inner.is_some(), from });
                normalised.written.push(written.filter(|_| index == 0));
                normalised.in_parentheses.push(text.filter(|_| index == 0 && inner.is_some()));
            }
            last_arcs.push(normalised.encoded.arcs.len() - 1);
        }
        for (node, words) in lattice.nodes.iter().enumerate() {
            normalised.encoded.nodes[node] = words.iter().map(|word| last_arcs[*word]).collect();
        }
        normalised.encoded.end = lattice.end;
        normalised
    }
}
