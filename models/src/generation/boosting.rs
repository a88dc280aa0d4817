//! Word boosting: a prefix tree of boosted words, and the bonus that a search adds to their tokens.
//!
//! Reference: shallow fusion of D. Le et al., arXiv 2104.02194, §3.2. Each token that begins or
//! continues a boosted word gets a bonus. If the match breaks before the word is complete, the
//! bonus is *returned*: subtracted again. Unlike the reference, a word is complete only if no
//! letter follows (`gut`, not `gutter`), and a token counts for at most one word.

use std::sync::Arc;

/// For each token id of a vocabulary, whether the token can share a word with the previous or the
/// next token. "Letter" below means a letter or digit of a script that separates words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WordBoundaries {
    /// Whether a token begins with a letter, so that it can continue the previous word.
    pub continues_word: Vec<bool>,
    /// Whether a token ends with a letter, so that the next token can continue its word.
    pub ends_in_word: Vec<bool>,
}

/// The bonuses for tokens of boosted words, in nats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bonus {
    /// The bonus of the first token of a word.
    pub begin: f32,
    /// The bonus of each further token.
    pub next: f32,
}

/// The prefix tree of boosted words.
#[derive(Debug, Clone)]
pub struct BoostTree {
    /// The nodes; the root is first.
    nodes: Vec<Node>,
    boundaries: Arc<WordBoundaries>,
}

/// The state of matching at the end of a text. The default is the state of the empty text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BoostState {
    node: u32,
    /// Whether the last token ended with a letter. No word begins directly after a letter.
    inside_word: bool,
}

/// The treatment of the bonus of a broken match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokenMatch {
    /// The bonus is returned, so that hypotheses compete only by complete words.
    ReturnBonus,
    /// The bonus is kept. Greedy decoding cannot go back: returning the bonus would force it to
    /// complete every word that it began.
    KeepBonus,
}

/// A prefix of boosted words.
#[derive(Debug, Clone, Default)]
struct Node {
    /// Pairs of token and node, sorted by token.
    children: Vec<(u32, u32)>,
    /// The total bonus of the tokens up to this node.
    bonus: f32,
    /// Whether a word ends here.
    is_end: bool,
    /// The part of the bonus that belongs to the last complete word before this node.
    completed_bonus: f32,
    /// The node where a match continues after it breaks here: the longest suffix, after the
    /// complete word, that begins a boosted word.
    fallback: u32,
}

/// The node of the empty prefix.
const ROOT: u32 = 0;

impl WordBoundaries {
    /// Computes the boundaries from the texts of a vocabulary's tokens.
    pub fn from_tokens<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let (continues_word, ends_in_word) = texts
            .into_iter()
            .map(|text| {
                let joins = |c: Option<char>| c.is_some_and(joins_words);
                (joins(text.chars().next()), joins(text.chars().next_back()))
            })
            .unzip();
        Self { continues_word, ends_in_word }
    }

    fn continues_word(&self, token: u32) -> bool {
        self.continues_word.get(token as usize).copied().unwrap_or(false)
    }

    fn ends_in_word(&self, token: u32) -> bool {
        self.ends_in_word.get(token as usize).copied().unwrap_or(false)
    }
}

/// Whether a character continues the previous word. Letters of scripts without spaces and of Korean
/// do not, because there words can end anywhere. A partial character (`U+FFFD`) continues the word.
fn joins_words(c: char) -> bool {
    let without_spaces = matches!(c,
        '\u{0E00}'..='\u{0EFF}' | '\u{1000}'..='\u{109F}' | '\u{1100}'..='\u{11FF}'
        | '\u{1780}'..='\u{17FF}' | '\u{2E80}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7FF}'
        | '\u{F900}'..='\u{FAFF}' | '\u{20000}'..='\u{3FFFF}');
    c == char::REPLACEMENT_CHARACTER || (c.is_alphanumeric() && !without_spaces)
}

impl BoostTree {
    /// Creates the tree of words, given as token sequences. A sequence that begins with a letter
    /// matches only at the start of a text or after a non-letter. Other sequences match anywhere.
    /// Empty sequences are ignored.
    pub fn new<S: AsRef<[u32]>>(
        sequences: &[S],
        bonus: Bonus,
        boundaries: Arc<WordBoundaries>,
    ) -> Self {
        let mut tree = Self { nodes: vec![Node::default()], boundaries };
        for sequence in sequences.iter().map(AsRef::as_ref).filter(|s| !s.is_empty()) {
            tree.insert(sequence, bonus);
        }
        for sequence in sequences {
            tree.set_fallbacks(sequence.as_ref());
        }
        tree
    }

    /// Adds the nodes of a sequence.
    fn insert(&mut self, sequence: &[u32], bonus: Bonus) {
        let mut current = ROOT;
        for token in sequence {
            let next = self.nodes.len() as u32;
            let node = &mut self.nodes[current as usize];
            current = match node.children.binary_search_by_key(token, |(token, _)| *token) {
                Ok(index) => node.children[index].1,
                Err(index) => {
                    node.children.insert(index, (*token, next));
                    let token_bonus = if current == ROOT { bonus.begin } else { bonus.next };
                    let bonus = node.bonus + token_bonus;
                    self.nodes.push(Node { bonus, ..Node::default() });
                    next
                }
            };
        }
        self.nodes[current as usize].is_end = true;
    }

    /// Sets `completed_bonus` and `fallback` of the nodes of a sequence.
    fn set_fallbacks(&mut self, sequence: &[u32]) {
        let (mut current, mut bonus_of_completed, mut completed_tokens) = (ROOT, 0.0, 0);
        for (index, token) in sequence.iter().enumerate() {
            let previous = &self.nodes[current as usize];
            if previous.is_end && !self.boundaries.continues_word(*token) {
                (bonus_of_completed, completed_tokens) = (previous.bonus, index);
            }
            let Some(next) = self.child(current, *token) else { return };
            current = next;
            let starts = completed_tokens.max(1)..=index;
            let fallback = starts
                .filter(|start| {
                    let inside_word = self.boundaries.ends_in_word(sequence[start - 1]);
                    self.may_begin(sequence[*start], inside_word)
                })
                .find_map(|start| {
                    let mut end = sequence[start..=index].iter();
                    end.try_fold(ROOT, |node, token| self.child(node, *token))
                });
            let node = &mut self.nodes[current as usize];
            (node.completed_bonus, node.fallback) = (bonus_of_completed, fallback.unwrap_or(ROOT));
        }
    }

    /// Whether the tree has no words.
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Returns the state after one more token, and the token's bonus: negative if it subtracts the
    /// bonus of a broken match.
    pub fn advance(
        &self,
        state: BoostState,
        token: u32,
        broken_match: BrokenMatch,
    ) -> (BoostState, f32) {
        let (node, bonus) = self.step(state, Some(token), false, broken_match);
        (BoostState { node, inside_word: self.boundaries.ends_in_word(token) }, bonus)
    }

    /// Returns the bonus at the end of a text: 0, or negative to subtract the bonus of an
    /// incomplete word.
    pub fn final_bonus(&self, state: BoostState) -> f32 {
        self.step(state, None, false, BrokenMatch::ReturnBonus).1
    }

    /// Writes the bonus of each possible next token into `bonuses`, indexed by token id.
    pub fn bonuses(&self, state: BoostState, broken_match: BrokenMatch, bonuses: &mut [f32]) {
        let unmatched_bonus =
            |continues_word| self.step(state, None, continues_word, broken_match).1;
        let (new_word_bonus, same_word_bonus) = (unmatched_bonus(false), unmatched_bonus(true));
        bonuses.fill(new_word_bonus);
        if same_word_bonus != new_word_bonus {
            let tokens = bonuses.iter_mut().zip(&self.boundaries.continues_word);
            tokens
                .filter(|(_, continues_word)| **continues_word)
                .for_each(|(bonus, _)| *bonus = same_word_bonus);
        }
        let mut current = state.node;
        loop {
            let node = &self.nodes[current as usize];
            for (token, _) in &node.children {
                if let Some(bonus) = bonuses.get_mut(*token as usize) {
                    let continues_word = self.boundaries.continues_word(*token);
                    *bonus = self.step(state, Some(*token), continues_word, broken_match).1;
                }
            }
            if current == ROOT {
                break;
            }
            current = node.fallback;
        }
    }

    /// Returns the node after a token and the token's bonus. `None` means that no boosted word
    /// begins or continues with the token; `continues_word` is read only then.
    fn step(
        &self,
        state: BoostState,
        token: Option<u32>,
        continues_word: bool,
        broken_match: BrokenMatch,
    ) -> (u32, f32) {
        let continues_word =
            token.map_or(continues_word, |token| self.boundaries.continues_word(token));
        let (mut current, mut bonus) = (state.node, 0.0);
        loop {
            let node = &self.nodes[current as usize];
            let can_match =
                |token: &u32| current != ROOT || self.may_begin(*token, state.inside_word);
            if let Some(next) = token.filter(can_match).and_then(|token| self.child(current, token))
            {
                return (next, bonus + self.nodes[next as usize].bonus - node.bonus);
            }
            if current == ROOT {
                return (ROOT, bonus);
            }
            if node.is_end && !continues_word {
                current = ROOT;
                continue;
            }
            current = node.fallback;
            if broken_match == BrokenMatch::ReturnBonus {
                bonus -= node.bonus - node.completed_bonus;
                bonus += self.nodes[current as usize].bonus;
            }
        }
    }

    /// Whether a word may begin with this token.
    fn may_begin(&self, token: u32, inside_word: bool) -> bool {
        !inside_word || !self.boundaries.continues_word(token)
    }

    /// Returns the child of a node for a token.
    fn child(&self, node: u32, token: u32) -> Option<u32> {
        let children = &self.nodes[node as usize].children;
        let index = children.binary_search_by_key(&token, |(token, _)| *token).ok()?;
        Some(children[index].1)
    }
}

#[cfg(test)]
mod tests;
