//! Splits text into tokens by the longest match. A match may extend over the next lines, which are
//! loaded when the lexer reaches them.

use std::collections::HashSet;
use std::ops::Range;

use regex_automata::{Anchored, PatternID};

use super::automaton::{RULES, Rules, Scanner, State};
use super::rewrite::Rewrite;

/// The bytes that stand for each half of a character outside the Basic Multilingual Plane. The
/// rules are for UTF-16, where such a character has two units. No rule names U+E000, so all rules
/// treat it like such a unit.
const HALF: &[u8] = "\u{E000}".as_bytes();

/// A scan records dead ends only if it continues for this number of units after the best match.
const DEAD_END_DISTANCE: usize = 64;

/// Only positions that are multiples of this number are recorded as dead ends.
const DEAD_END_INTERVAL: usize = 16;

/// A lexer, reusable for several texts.
#[derive(Debug)]
pub(super) struct Lexer {
    /// Scans for whole matches.
    whole: Scanner,
    /// Scans for the token or the context of one rule.
    parts: Scanner,
    /// Dead ends: states and positions from which no match was found. Later scans stop there.
    /// Without dead ends, a line of unclosed tags would take quadratic time. The first number is
    /// the clear count of the scanner, because a clear makes states invalid.
    dead_ends: HashSet<(usize, State, usize)>,
    last_dead_end: usize,
    token_ends: Vec<usize>,
}

/// The loaded text, and the lines that are not loaded yet.
struct Text<'a, S> {
    bytes: Vec<u8>,
    /// The lines after the lines in `bytes`.
    following: &'a [S],
}

impl<S: AsRef<str>> Text<'_, S> {
    /// The bytes of the UTF-16 code unit at `position`, and the position after it; `None` at the
    /// end of the last line.
    ///
    /// A character outside the Basic Multilingual Plane has two units of two bytes each, so every
    /// unit has a position.
    #[inline]
    fn unit(&mut self, position: usize) -> Option<(&[u8], usize)> {
        if position >= self.bytes.len() {
            let (line, following) = self.following.split_first()?;
            self.following = following;
            self.bytes.push(b'\n');
            push_line(line.as_ref(), &mut self.bytes);
        }
        let end = match self.bytes[position] {
            0..0x80 => position + 1,
            0xC0..0xE0 => position + 2,
            0xE0..0xF0 => position + 3,
            _ => return Some((HALF, position + 2)),
        };
        Some((&self.bytes[position..end], end))
    }
}

/// Appends a line as pycocoevalcap writes it: each `\n` inside the line becomes a space.
fn push_line(line: &str, bytes: &mut Vec<u8>) {
    bytes.extend(line.bytes().map(|byte| if byte == b'\n' { b' ' } else { byte }));
}

impl Lexer {
    pub(super) fn new() -> Self {
        Self::with_rules(&RULES)
    }

    /// A lexer with the automata of `rules`.
    fn with_rules(rules: &'static Rules) -> Self {
        Self {
            whole: Scanner::new(&rules.whole),
            parts: Scanner::new(&rules.parts),
            dead_ends: HashSet::new(),
            last_dead_end: 0,
            token_ends: Vec::new(),
        }
    }

    /// Returns the tokens of `lines`, with a space between tokens and `\n` between lines. If
    /// `following` has lines, `\n` also ends the last line.
    ///
    /// Also returns whether the last token extends into `following`.
    pub(super) fn run<S: AsRef<str>>(&mut self, lines: &[S], following: &[S]) -> (String, bool) {
        self.dead_ends.clear();
        self.last_dead_end = 0;
        let length = lines.iter().map(|line| line.as_ref().len() + 1).sum::<usize>();
        let mut text = Text { bytes: Vec::with_capacity(length + 1), following };
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                text.bytes.push(b'\n');
            }
            push_line(line.as_ref(), &mut text.bytes);
        }
        // A line end belongs to the preceding line.
        let end = text.bytes.len() + usize::from(!following.is_empty());
        let mut output = String::with_capacity(length + length / 8);
        let mut at_line_start = true;
        let mut position = 0;
        while position < end {
            let Some((rule, match_end)) = self.longest_match(&mut text, position) else {
                break;
            };
            let token_end = match RULES.parts_of_rule[rule] {
                Some(parts) => self.token_end(&mut text, position, match_end, parts),
                None => match_end,
            };
            let rewrite = RULES.rewrites[rule];
            // A token never ends inside a character. Only deleted text can, so the default is
            // harmless.
            let matched = std::str::from_utf8(&text.bytes[position..token_end]).unwrap_or_default();
            match rewrite {
                Rewrite::Delete => {}
                Rewrite::LineEnd => {
                    output.push('\n');
                    at_line_start = true;
                }
                _ => {
                    if !at_line_start {
                        output.push(' ');
                    }
                    at_line_start = false;
                    rewrite.write(matched, &mut output);
                }
            }
            position = token_end - rewrite.rescanned_bytes(matched);
        }
        (output, position > end)
    }

    /// The rule with the longest match from `start`, and the end of the match; `None` without a
    /// match.
    fn longest_match<S: AsRef<str>>(
        &mut self,
        text: &mut Text<'_, S>,
        start: usize,
    ) -> Option<(usize, usize)> {
        let mut best = None;
        let mut best_end = start;
        let mut state = self.whole.start(Anchored::Yes);
        let mut position = start;
        while !state.is_dead() {
            let unit = text.unit(position);
            state = match unit {
                Some((unit, _)) => self.whole.step(state, unit[0]),
                None => self.whole.end(state),
            };
            if let Some(rule) = self.whole.matched(state) {
                best = Some((rule, position));
                best_end = position;
            }
            let Some((unit, next)) = unit else { break };
            for byte in &unit[1..] {
                state = self.whole.step(state, *byte);
            }
            position = next;
            if position > best_end + DEAD_END_DISTANCE
                && position.is_multiple_of(DEAD_END_INTERVAL)
                && self.dead_ends.contains(&(self.whole.clear_count(), state, position))
            {
                break;
            }
        }
        if position > best_end + DEAD_END_DISTANCE {
            self.record_dead_ends(text, start, best_end, position);
        }
        best
    }

    /// Repeats the scan from `start` and records its states between `best_end` and `end`.
    #[cold]
    fn record_dead_ends<S: AsRef<str>>(
        &mut self,
        text: &mut Text<'_, S>,
        start: usize,
        best_end: usize,
        end: usize,
    ) {
        if start > self.last_dead_end {
            self.dead_ends.clear();
        }
        self.last_dead_end = self.last_dead_end.max(end);
        let mut state = self.whole.start(Anchored::Yes);
        let mut position = start;
        while position < end
            && let Some((unit, next)) = text.unit(position)
        {
            state = unit.iter().fold(state, |state, byte| self.whole.step(state, *byte));
            position = next;
            if position > best_end + DEAD_END_DISTANCE && position.is_multiple_of(DEAD_END_INTERVAL)
            {
                self.dead_ends.insert((self.whole.clear_count(), state, position));
            }
        }
    }

    /// The end of the token in a match: the token is as long as possible, and the rest of the match
    /// is the context.
    fn token_end<S: AsRef<str>>(
        &mut self,
        text: &mut Text<'_, S>,
        start: usize,
        match_end: usize,
        [token, context]: [PatternID; 2],
    ) -> usize {
        let mut token_ends = std::mem::take(&mut self.token_ends);
        token_ends.clear();
        self.for_each_match(text, token, start..match_end, |end| token_ends.push(end));
        let is_context = |end: &&usize| {
            let mut is_context = false;
            self.for_each_match(text, context, **end..match_end, |end| {
                is_context = end == match_end
            });
            is_context
        };
        let token_end = token_ends.iter().rev().find(is_context).copied();
        self.token_ends = token_ends;
        token_end.unwrap_or(match_end)
    }

    /// Calls `on_match` with the end of each match of a pattern that starts at the start of `range`
    /// and does not go beyond its end, the shortest match first.
    fn for_each_match<S: AsRef<str>>(
        &mut self,
        text: &mut Text<'_, S>,
        pattern: PatternID,
        range: Range<usize>,
        mut on_match: impl FnMut(usize),
    ) {
        let mut state = self.parts.start(Anchored::Pattern(pattern));
        let mut position = range.start;
        while !state.is_dead() {
            let unit = if position < range.end { text.unit(position) } else { None };
            state = match unit {
                Some((unit, _)) => self.parts.step(state, unit[0]),
                None => self.parts.end(state),
            };
            if self.parts.matched(state).is_some() {
                on_match(position);
            }
            let Some((unit, next)) = unit else { return };
            state = unit[1..].iter().fold(state, |state, byte| self.parts.step(state, *byte));
            position = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cleared_cache_changes_no_token() {
        let mut lexer = Lexer::with_rules(Box::leak(Box::new(Rules::new(0))));
        let unclosed_tags = "<a b ".repeat(40);
        // Each leading part of a character is a state of its own, in each context.
        let characters = (0x80..0x3000).step_by(29).filter_map(char::from_u32);
        let characters: String = characters.map(|c| format!("{c} a{c} 1{c} <{c} ")).collect();
        for line in [
            "A dog's 3 1/2 \u{1F415} in the U.S. can't wait: http://a.b/c?d=e (555) 123-4567",
            "Ωmega naïve «quotes» 5:30pm, Mr. O'Neil & co.! 日本語 ... -- $3.50 #tag @home",
            &unclosed_tags,
            &characters,
        ] {
            let expected = Lexer::new().run(&[line], &["The next"]);
            assert_eq!(lexer.run(&[line], &["The next"]), expected, "{line}");
        }
        assert!(lexer.whole.clear_count() > 0);
    }
}
