//! Splits text into tokens by the longest match. A match may extend over the next lines, which are
//! loaded when the lexer reaches them.

use std::collections::HashSet;

use super::automaton::{Automaton, DEAD, START, Split, State};
use super::rewrite::Rewrite;

/// A scan records dead ends only if it continues for this number of units after the best match.
const DEAD_END_DISTANCE: usize = 64;

/// Only positions that are multiples of this number are recorded as dead ends.
const DEAD_END_INTERVAL: usize = 16;

/// A lexer, reusable for several texts.
#[derive(Debug)]
pub(super) struct Lexer {
    automaton: Automaton,
    /// Dead ends: states and positions from which no match was found. Later scans stop there.
    /// Without dead ends, a line of unclosed tags would take quadratic time.
    dead_ends: HashSet<(State, usize)>,
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
    /// The UTF-16 code unit at `position` and the position after it; `None` at the end of the last
    /// line.
    ///
    /// A character outside the Basic Multilingual Plane has two units of two bytes each, so every
    /// unit has a position.
    #[inline]
    fn unit(&mut self, position: usize) -> Option<(u16, usize)> {
        if position >= self.bytes.len() {
            let (line, following) = self.following.split_first()?;
            self.following = following;
            self.bytes.push(b'\n');
            push_line(line.as_ref(), &mut self.bytes);
        }
        let byte = self.bytes[position];
        if byte < 0x80 {
            return Some((u16::from(byte), position + 1));
        }
        let tail =
            |offset| u16::from(self.bytes.get(position + offset).copied().unwrap_or(0) & 0x3F);
        Some(match byte {
            0x80..0xC0 => (0xDC00, position + 2),
            0xC0..0xE0 => (u16::from(byte & 0x1F) << 6 | tail(1), position + 2),
            0xE0..0xF0 => (u16::from(byte) << 12 | tail(1) << 6 | tail(2), position + 3),
            _ => (0xD800, position + 2),
        })
    }

    /// The position before `position`.
    fn previous_position(&self, position: usize) -> usize {
        let is_first_byte = |&distance: &usize| {
            position.checked_sub(distance).is_some_and(|at| !matches!(self.bytes[at], 0x80..0xC0))
        };
        match (1..=4).find(is_first_byte) {
            Some(4) => position - 2,
            Some(distance) => position - distance,
            None => position.saturating_sub(1),
        }
    }
}

/// Appends a line as pycocoevalcap writes it: each `\n` inside the line becomes a space.
fn push_line(line: &str, bytes: &mut Vec<u8>) {
    bytes.extend(line.bytes().map(|byte| if byte == b'\n' { b' ' } else { byte }));
}

impl Lexer {
    pub(super) fn new() -> Self {
        Self {
            automaton: Automaton::new(),
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
            let token_end = self.token_end(&mut text, position, match_end, rule);
            let rewrite = self.automaton.rewrite(rule);
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
    ) -> Option<(u16, usize)> {
        let mut best = None;
        let mut best_end = start;
        let mut state = START;
        let mut position = start;
        while let Some((unit, next)) = text.unit(position) {
            state = self.automaton.step(state, unit);
            if state == DEAD {
                break;
            }
            position = next;
            if let Some(rule) = self.automaton.matched(state) {
                best = Some((rule, position));
                best_end = position;
            } else if position > best_end + DEAD_END_DISTANCE
                && position.is_multiple_of(DEAD_END_INTERVAL)
                && self.dead_ends.contains(&(state, position))
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
        let mut state = START;
        let mut position = start;
        while position < end
            && let Some((unit, next)) = text.unit(position)
        {
            state = self.automaton.step(state, unit);
            position = next;
            if position > best_end + DEAD_END_DISTANCE && position.is_multiple_of(DEAD_END_INTERVAL)
            {
                self.dead_ends.insert((state, position));
            }
        }
    }

    /// The end of the token in a match, where the context of the rule begins.
    fn token_end<S: AsRef<str>>(
        &mut self,
        text: &mut Text<'_, S>,
        start: usize,
        match_end: usize,
        rule: u16,
    ) -> usize {
        match self.automaton.split(rule) {
            Split::Whole => match_end,
            Split::ContextLength(units) => {
                (0..units).fold(match_end, |position, _| text.previous_position(position))
            }
            Split::TokenLength(units) => (0..units)
                .fold(start, |position, _| text.unit(position).map_or(position, |(_, next)| next)),
            Split::Search { token, context } => {
                self.search_split(text, start, match_end, token, context)
            }
        }
    }

    /// The end of the token for [`Split::Search`].
    fn search_split<S: AsRef<str>>(
        &mut self,
        text: &mut Text<'_, S>,
        start: usize,
        match_end: usize,
        token: State,
        context: State,
    ) -> usize {
        let mut token_ends = std::mem::take(&mut self.token_ends);
        token_ends.clear();
        let mut state = token;
        let mut position = start;
        while position < match_end
            && let Some((unit, next)) = text.unit(position)
        {
            state = self.automaton.step(state, unit);
            if state == DEAD {
                break;
            }
            position = next;
            if self.automaton.matched(state).is_some() {
                token_ends.push(position);
            }
        }
        let mut state = context;
        let mut position = match_end;
        while position > start {
            while token_ends.last().is_some_and(|&end| end > position) {
                token_ends.pop();
            }
            if token_ends.last() == Some(&position) && self.automaton.matched(state).is_some() {
                break;
            }
            position = text.previous_position(position);
            let Some((unit, _)) = text.unit(position) else {
                break;
            };
            state = self.automaton.step(state, unit);
            if state == DEAD {
                break;
            }
        }
        self.token_ends = token_ends;
        position.max(start + 1)
    }
}
