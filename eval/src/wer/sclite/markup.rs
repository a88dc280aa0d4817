//! Parses the markup of a transcript into a lattice of words.
//!
//! | markup | meaning |
//! |---|---|
//! | `{ a b / c / @ }` | alternatives; they can be nested |
//! | `@` | no word |
//! | `(uh)` | an optionally deletable word if the option is set, otherwise a word |
//! | `word;tag`, `word*` | the word without tag or star |
//! | `\` | removed; a `;` after it is part of the word |

use std::borrow::Cow;

/// Maximum nesting depth of alternatives.
const MAX_DEPTH: usize = 32;

/// A word of a lattice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word<'a> {
    /// The word without tag or star; `None` for the null word (`@`).
    pub(crate) text: Option<Cow<'a, str>>,
    /// The node where the word starts.
    pub(crate) from: usize,
}

/// The words of a text as a graph: each path from node 0 to the last node is a choice of
/// alternatives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lattice<'a> {
    /// The words, in topological order.
    pub(crate) words: Vec<Word<'a>>,
    /// For each node, the words that end there, in text order. Node 0 is the start.
    pub(crate) nodes: Vec<Vec<usize>>,
    /// The last node of the text.
    pub(crate) end: usize,
}

impl<'a> Lattice<'a> {
    /// Parses a text with markup.
    ///
    /// # Errors
    /// The reason, if braces are unbalanced, stand inside a word, or contain no
    /// alternative
    pub(crate) fn parse(text: &'a str) -> Result<Self, &'static str> {
        let mut lattice = Self { words: Vec::new(), nodes: vec![Vec::new()], end: 0 };
        lattice.end = lattice.parse_sequence(text, 0, 0)?;
        Ok(lattice)
    }

    /// Builds the lattice of a text without markup: a linear sequence of words.
    pub(crate) fn plain(words: impl Iterator<Item = &'a str>) -> Self {
        let mut lattice = Self { words: Vec::new(), nodes: vec![Vec::new()], end: 0 };
        for word in words {
            lattice.end = lattice.push(Some(word.into()), lattice.end);
        }
        lattice
    }

    /// Adds the words and alternatives of a text after node `from`; returns the last node.
    fn parse_sequence(
        &mut self,
        text: &'a str,
        from: usize,
        depth: usize,
    ) -> Result<usize, &'static str> {
        let mut node = from;
        let mut remaining = text.trim_start_matches(is_space);
        while !remaining.is_empty() {
            let length = if remaining.starts_with('{') {
                let length = alternatives_length(remaining)?;
                node = self.parse_alternatives(&remaining[1..length - 1], node, depth)?;
                length
            } else {
                let length = remaining.find(is_space).unwrap_or(remaining.len());
                let word = &remaining[..length];
                if word.contains('{') {
                    return Err("has a `{` inside a word");
                }
                if word.contains('}') {
                    return Err("has a `}` without a `{`");
                }
                node = self.push(plain_word(word), node);
                length
            };
            remaining = remaining[length..].trim_start_matches(is_space);
        }
        Ok(node)
    }

    /// Adds alternatives, separated by `/`; skips empty alternatives.
    fn parse_alternatives(
        &mut self,
        text: &'a str,
        from: usize,
        depth: usize,
    ) -> Result<usize, &'static str> {
        if depth == MAX_DEPTH {
            return Err("has alternatives more than 32 deep");
        }
        let mut ends = Vec::new();
        for alternative in split_alternatives(text) {
            if !alternative.trim_matches(is_space).is_empty() {
                let end = self.parse_sequence(alternative, from, depth + 1)?;
                ends.extend_from_slice(&self.nodes[end]);
            }
        }
        if ends.is_empty() {
            return Err("has `{ }` without an alternative");
        }
        self.nodes.push(ends);
        Ok(self.nodes.len() - 1)
    }

    pub(crate) fn push(&mut self, text: Option<Cow<'a, str>>, from: usize) -> usize {
        self.words.push(Word { text, from });
        self.nodes.push(vec![self.words.len() - 1]);
        self.nodes.len() - 1
    }
}

/// Whether a text contains markup.
pub(crate) fn has_markup(text: &str) -> bool {
    let is_marked = |word: &str| {
        word == "@" || optional_word(word).is_some() || (word.len() > 1 && word.ends_with('*'))
    };
    text.contains(['{', '}', ';', '\\']) || text.split(is_space).any(is_marked)
}

/// The word inside the parentheses of an optionally deletable word; `None` without parentheses.
pub(crate) fn optional_word(word: &str) -> Option<&str> {
    word.strip_prefix('(')?.strip_suffix(')')
}

/// White space in sclite.
fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t'..='\r')
}

/// The length of the alternatives at the start of a text, including the braces.
fn alternatives_length(text: &str) -> Result<usize, &'static str> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok(at + 1);
        }
    }
    Err("has a `{` without a `}`")
}

/// Splits a text at each `/` outside inner braces.
fn split_alternatives(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    text.split(move |c| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == '/' && depth == 0
    })
}

/// A word without tag, backslashes and star; `None` for the null word.
fn plain_word(word: &str) -> Option<Cow<'_, str>> {
    let mut plain_word = Cow::Borrowed(word);
    if word.contains([';', '\\']) {
        let tag = word.match_indices(';').find(|(at, _)| !word[..*at].ends_with('\\'));
        plain_word = word[..tag.map_or(word.len(), |(at, _)| at)].replace('\\', "").into();
    }
    if plain_word.len() > 1 && plain_word.ends_with('*') {
        plain_word = match plain_word {
            Cow::Borrowed(word) => word[..word.len() - 1].into(),
            Cow::Owned(word) => word[..word.len() - 1].to_owned().into(),
        };
    }
    (plain_word != "@" && !plain_word.is_empty()).then_some(plain_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each word with its possible predecessors, as `word<predecessor,predecessor`.
    fn words_and_predecessors(text: &str) -> String {
        let lattice = Lattice::parse(text).unwrap();
        let name = |word: &Word<'_>| word.text.as_deref().unwrap_or("@").to_owned();
        let predecessors = |node: usize| {
            let words = lattice.nodes[node].iter().map(|word| name(&lattice.words[*word]));
            words.collect::<Vec<_>>().join(",")
        };
        let words = lattice.words.iter();
        let words = words.map(|word| format!("{}<{} ", name(word), predecessors(word.from)));
        words.collect::<String>() + "END<" + &predecessors(lattice.end)
    }

    #[test]
    fn words_have_their_predecessors_and_lose_tag_and_star() {
        for (text, expected) in [
            ("i {going/to/gonna} go", "i< going<i to<i gonna<i go<going,to,gonna END<go"),
            ("i {going to/gonna} go", "i< going<i to<going gonna<i go<to,gonna END<go"),
            ("{ a / { b / @ } c / }d", "a< b< @< c<b,@ d<a,c END<d"),
            ("", "END<"),
            ("a;t;u b* * c\\;d; (uh)*", "a< b<a *<b c;d<* (uh)<c;d END<(uh)"),
        ] {
            assert_eq!(words_and_predecessors(text), expected, "{text}");
        }
    }

    #[test]
    fn markup_is_detected() {
        for text in ["a {b}", "a @", "(uh) a", "a;b", "a*", "a\\b"] {
            assert!(has_markup(text), "{text}");
        }
        for text in ["", "a b", "a@b (a b) c", "* a", "1/2 a / b", "(", ")"] {
            assert!(!has_markup(text), "{text}");
        }
    }

    #[test]
    fn invalid_braces_are_refused() {
        let deep = format!("{}a{}", "{".repeat(40), "}".repeat(40));
        for (text, expected) in [
            ("{ a", "has a `{` without a `}`"),
            ("{ a { b }", "has a `{` without a `}`"),
            ("a }", "has a `}` without a `{`"),
            ("a{b/c}", "has a `{` inside a word"),
            ("{ }", "has `{ }` without an alternative"),
            ("{ / }", "has `{ }` without an alternative"),
            (&deep, "has alternatives more than 32 deep"),
        ] {
            assert_eq!(Lattice::parse(text), Err(expected), "{text}");
        }
    }
}
