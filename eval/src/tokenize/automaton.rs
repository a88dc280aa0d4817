//! The rules as lazy automata: each state is built when a text first reaches it.

use std::sync::LazyLock;

use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::{Compiler, NFA, WhichCaptures};
use regex_automata::{Anchored, Input, MatchKind, PatternID};
use regex_syntax::hir::Hir;

use super::grammar::rules;
use super::rewrite::Rewrite;

/// All rules, compiled.
pub(super) struct Rules {
    /// The whole match of each rule: the token and its context.
    pub(super) whole: DFA,
    /// The tokens and the contexts of the rules that have a context.
    pub(super) parts: DFA,
    pub(super) rewrites: Vec<Rewrite>,
    /// For each rule, the patterns of its token and its context in `parts`; `None` without a
    /// context.
    pub(super) parts_of_rule: Vec<Option<[PatternID; 2]>>,
}

pub(super) static RULES: LazyLock<Rules> = LazyLock::new(|| Rules::new(CACHE_CAPACITY));

/// The memory for the states of an automaton, in bytes. A full cache is cleared, so that any number
/// of states is correct. Captions reach few states.
const CACHE_CAPACITY: usize = 1 << 26;

impl Rules {
    /// Compiles the rules. Each automaton has at least the smallest usable cache.
    pub(super) fn new(cache_capacity: usize) -> Self {
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        let (mut rewrites, mut parts_of_rule) = (Vec::new(), Vec::new());
        for rule in rules() {
            rewrites.push(rule.rewrite);
            let Some(context) = rule.context else {
                whole.push(rule.pattern.0);
                parts_of_rule.push(None);
                continue;
            };
            let indices = [parts.len(), parts.len() + 1];
            parts_of_rule.push(Some(indices.map(PatternID::must)));
            parts.extend([rule.pattern.0.clone(), context.0.clone()]);
            whole.push((rule.pattern + context).0);
        }
        let [whole, parts] = [whole, parts].map(|patterns| automaton(&patterns, cache_capacity));
        Self { whole, parts, rewrites, parts_of_rule }
    }
}

/// An automaton that finds all matches of all patterns.
fn automaton(patterns: &[Hir], cache_capacity: usize) -> DFA {
    let nfa = NFA::config().which_captures(WhichCaptures::None);
    let nfa = Compiler::new().configure(nfa).build_many_from_hir(patterns);
    let config = DFA::config().cache_capacity(cache_capacity).skip_cache_capacity_check(true);
    let config = config.match_kind(MatchKind::All).starts_for_each_pattern(true);
    let dfa = DFA::builder().configure(config).build_from_nfa(nfa.expect("the rules are fixed"));
    dfa.expect("the rules are fixed")
}

/// A state of an automaton, valid until the cache is cleared. A step returns a valid state even if
/// it clears the cache.
pub(super) type State = LazyStateID;

/// An automaton with the states that have been built. Each thread has its own.
#[derive(Debug)]
pub(super) struct Scanner {
    dfa: &'static DFA,
    cache: Cache,
}

/// Searches never fail: a cache can be cleared any number of times, and no byte ends a search.
const NEVER_FAILS: &str = "a full cache is cleared";

impl Scanner {
    pub(super) fn new(dfa: &'static DFA) -> Self {
        Self { dfa, cache: dfa.create_cache() }
    }

    /// The first state, of all patterns or of one pattern.
    pub(super) fn start(&mut self, patterns: Anchored) -> State {
        let input = Input::new("").anchored(patterns);
        self.dfa.start_state_forward(&mut self.cache, &input).expect(NEVER_FAILS)
    }

    /// The state after a byte.
    #[inline]
    pub(super) fn step(&mut self, state: State, byte: u8) -> State {
        self.dfa.next_state(&mut self.cache, state, byte).expect(NEVER_FAILS)
    }

    /// The state after the end of the text.
    pub(super) fn end(&mut self, state: State) -> State {
        self.dfa.next_eoi_state(&mut self.cache, state).expect(NEVER_FAILS)
    }

    /// How often the cache has been cleared. States from before a clear are invalid.
    pub(super) fn clear_count(&self) -> usize {
        self.cache.clear_count()
    }

    /// The first pattern that matches the text before the last byte or before the end; `None` if no
    /// pattern does. (The automaton knows a match one step later.)
    #[inline]
    pub(super) fn matched(&self, state: State) -> Option<usize> {
        state.is_match().then(|| self.dfa.match_pattern(&self.cache, state, 0).as_usize())
    }
}
