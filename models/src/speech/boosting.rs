//! Word boosting: a prefix tree over listed words, and what a search adds for following one.
//!
//! Reference: the shallow fusion of D. Le and others, arXiv 2104.02194, §3.2: each token that begins
//! or continues a listed word gets a bonus; a match that breaks gives back what it got, a whole word
//! keeps it. Unlike there, a word is whole only where no letters follow (`gut`, not `gutter`), and a
//! token counts for one word at most.

use std::sync::Arc;

/// How the tokens of a vocabulary join to words, by their ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WordEdges {
    /// Whether a token begins with a letter or a digit, and so goes on with a word before it.
    pub begins_inside: Vec<bool>,
    /// Whether it ends with one, so that the next may go on with its word.
    pub ends_inside: Vec<bool>,
}

/// What the tokens of listed words get, in nats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bonus {
    /// The first token of a word.
    pub begin: f32,
    /// Each further one.
    pub go_on: f32,
}

/// The listed words of a text.
#[derive(Debug, Clone)]
pub struct BoostTree {
    /// The root first.
    nodes: Vec<Node>,
    edges: Arc<WordEdges>,
}

/// How far a text is in the words of a tree. The default is that of a text without a token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BoostState {
    node: u32,
    /// Whether the last token ended with a letter, behind which no word begins without a space.
    inside: bool,
}

/// What happens to the bonus of a match that breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokenMatch {
    /// It is given back, so that hypotheses are compared by their whole words alone.
    GivesBack,
    /// It is kept: one who cannot choose again would be pushed to end each word that was begun.
    Keeps,
}

#[derive(Debug, Clone, Default)]
struct Node {
    /// Token and node, by token.
    children: Vec<(u32, u32)>,
    /// What the tokens up to here got.
    bonus: f32,
    /// Whether a word ends here.
    is_end: bool,
    /// Of the bonus, what belongs to a whole word before the end.
    kept: f32,
    /// Where a match that breaks here goes on: the longest end of it that begins a word, behind what
    /// is kept.
    fallback: u32,
}

const ROOT: u32 = 0;

impl WordEdges {
    /// Of a vocabulary whose tokens have these texts.
    pub fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let (begins_inside, ends_inside) = texts
            .into_iter()
            .map(|text| {
                let joins = |c: Option<char>| c.is_some_and(joins_words);
                (joins(text.chars().next()), joins(text.chars().next_back()))
            })
            .unzip();
        Self { begins_inside, ends_inside }
    }

    fn begins_inside(&self, token: u32) -> bool {
        self.begins_inside.get(token as usize).copied().unwrap_or(false)
    }

    fn ends_inside(&self, token: u32) -> bool {
        self.ends_inside.get(token as usize).copied().unwrap_or(false)
    }
}

/// Whether a letter goes on with the word before it. Scripts without spaces, and Korean, whose words
/// take endings, have words that end anywhere. A part of a letter (`U+FFFD`) goes on.
fn joins_words(c: char) -> bool {
    let without_spaces = matches!(c,
        '\u{0E00}'..='\u{0EFF}' | '\u{1000}'..='\u{109F}' | '\u{1100}'..='\u{11FF}'
        | '\u{1780}'..='\u{17FF}' | '\u{2E80}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7FF}'
        | '\u{F900}'..='\u{FAFF}' | '\u{20000}'..='\u{3FFFF}');
    c == char::REPLACEMENT_CHARACTER || (c.is_alphanumeric() && !without_spaces)
}

impl BoostTree {
    /// The tree of these sequences of tokens. One that begins with a letter is looked for at the start
    /// of a text and behind what is no letter, others anywhere.
    pub fn new<S: AsRef<[u32]>>(sequences: &[S], bonus: Bonus, edges: Arc<WordEdges>) -> Self {
        let mut tree = Self { nodes: vec![Node::default()], edges };
        for sequence in sequences.iter().map(AsRef::as_ref).filter(|s| !s.is_empty()) {
            tree.insert(sequence, bonus);
        }
        for sequence in sequences {
            tree.set_fallbacks(sequence.as_ref());
        }
        tree
    }

    fn insert(&mut self, sequence: &[u32], bonus: Bonus) {
        let mut at = ROOT;
        for token in sequence {
            let next = self.nodes.len() as u32;
            let node = &mut self.nodes[at as usize];
            at = match node.children.binary_search_by_key(token, |(token, _)| *token) {
                Ok(place) => node.children[place].1,
                Err(place) => {
                    node.children.insert(place, (*token, next));
                    let gets = if at == ROOT { bonus.begin } else { bonus.go_on };
                    let bonus = node.bonus + gets;
                    self.nodes.push(Node { bonus, ..Node::default() });
                    next
                }
            };
        }
        self.nodes[at as usize].is_end = true;
    }

    fn set_fallbacks(&mut self, sequence: &[u32]) {
        let (mut at, mut kept, mut kept_tokens) = (ROOT, 0.0, 0);
        for (read, token) in sequence.iter().enumerate() {
            let before = &self.nodes[at as usize];
            if before.is_end && !self.edges.begins_inside(*token) {
                (kept, kept_tokens) = (before.bonus, read);
            }
            let Some(next) = self.child(at, *token) else { return };
            at = next;
            let starts = kept_tokens.max(1)..=read;
            let found = starts
                .filter(|start| {
                    let inside = self.edges.ends_inside(sequence[start - 1]);
                    self.may_begin(sequence[*start], inside)
                })
                .find_map(|start| {
                    let mut end = sequence[start..=read].iter();
                    end.try_fold(ROOT, |node, token| self.child(node, *token))
                });
            let node = &mut self.nodes[at as usize];
            (node.kept, node.fallback) = (kept, found.unwrap_or(ROOT));
        }
    }

    /// Whether the tree has no word.
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// The state behind one more token, and what that gives: less than nothing where a match gives
    /// back.
    pub fn advance(&self, state: BoostState, token: u32, broken: BrokenMatch) -> (BoostState, f32) {
        let (node, gives) = self.step(state, Some(token), false, broken);
        (BoostState { node, inside: self.edges.ends_inside(token) }, gives)
    }

    /// What the end of a text gives: less than nothing where a match that is not whole gives back.
    pub fn end(&self, state: BoostState) -> f32 {
        self.step(state, None, false, BrokenMatch::GivesBack).1
    }

    /// What each token gives behind a text, into `gives`, which has a number for each id.
    pub fn bonuses(&self, state: BoostState, broken: BrokenMatch, gives: &mut [f32]) {
        let of_others = |inside| self.step(state, None, inside, broken).1;
        let (other, inside) = (of_others(false), of_others(true));
        gives.fill(other);
        if inside != other {
            let places = gives.iter_mut().zip(&self.edges.begins_inside);
            places
                .filter(|(_, begins_inside)| **begins_inside)
                .for_each(|(gives, _)| *gives = inside);
        }
        let mut at = state.node;
        loop {
            let node = &self.nodes[at as usize];
            for (token, _) in &node.children {
                if let Some(gives) = gives.get_mut(*token as usize) {
                    let begins_inside = self.edges.begins_inside(*token);
                    *gives = self.step(state, Some(*token), begins_inside, broken).1;
                }
            }
            if at == ROOT {
                break;
            }
            at = node.fallback;
        }
    }

    /// The node behind a token, `None` being one that no word has, and what it gives.
    fn step(
        &self,
        state: BoostState,
        token: Option<u32>,
        begins_inside: bool,
        broken: BrokenMatch,
    ) -> (u32, f32) {
        let begins_inside = token.map_or(begins_inside, |token| self.edges.begins_inside(token));
        let (mut at, mut gives) = (state.node, 0.0);
        loop {
            let node = &self.nodes[at as usize];
            let may = |token: &u32| at != ROOT || self.may_begin(*token, state.inside);
            if let Some(next) = token.filter(may).and_then(|token| self.child(at, token)) {
                return (next, gives + self.nodes[next as usize].bonus - node.bonus);
            }
            if at == ROOT {
                return (ROOT, gives);
            }
            if node.is_end && !begins_inside {
                at = ROOT;
                continue;
            }
            at = node.fallback;
            if broken == BrokenMatch::GivesBack {
                gives -= node.bonus - node.kept;
                gives += self.nodes[at as usize].bonus;
            }
        }
    }

    /// Whether a word may begin with a token.
    fn may_begin(&self, token: u32, inside: bool) -> bool {
        !inside || !self.edges.begins_inside(token)
    }

    fn child(&self, node: u32, token: u32) -> Option<u32> {
        let children = &self.nodes[node as usize].children;
        let place = children.binary_search_by_key(&token, |(token, _)| *token).ok()?;
        Some(children[place].1)
    }
}

#[cfg(test)]
mod tests;
