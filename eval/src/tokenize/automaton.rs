//! All rules as one finite automaton over UTF-16 code units. Each state is built when a text first
//! reaches it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use super::grammar::{Rule, rules};
use super::pattern::{CharacterSet, Pattern};
use super::rewrite::Rewrite;

/// A state of an [`Automaton`].
pub(super) type State = u16;

/// The state from which no match is possible.
pub(super) const DEAD: State = u16::MAX;
const UNKNOWN: State = u16::MAX - 1;

/// The start state of all rules.
pub(super) const START: State = 0;

const NO_RULE: u16 = u16::MAX;

/// How to find the end of the token in a match. (The rest of the match is the trailing context of
/// the rule.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Split {
    /// The token is the whole match: the rule has no context.
    Whole,
    /// The context has this number of units, at the end of the match.
    ContextLength(usize),
    /// The token has this number of units, at the start of the match.
    TokenLength(usize),
    /// The token is as long as possible, if the rest of the match matches the context. A forward
    /// pass from the state `token` marks possible ends of the token. A backward pass from the end
    /// of the match, from the state `context`, stops at the first mark that is also a start of the
    /// context.
    Search { token: State, context: State },
}

/// A node of the non-deterministic automaton, which has no empty transitions.
#[derive(Debug)]
enum Node {
    /// Reads one unit of the set, then continues in all of `next`.
    Read { set: usize, next: Vec<u32> },
    /// A match of this rule.
    Match(u16),
}

/// The immutable parts of the automaton, built once.
#[derive(Debug)]
struct Blueprint {
    class_of_unit: Vec<u8>,
    classes: usize,
    /// The classes of each set, as bits.
    sets: Vec<[u64; 4]>,
    nodes: Vec<Node>,
    /// Lists of start nodes: one list for all rules together, then two lists (token and context)
    /// for each [`Split::Search`].
    start_nodes: Vec<Vec<u32>>,
    rewrites: Vec<Rewrite>,
    splits: Vec<Split>,
}

static BLUEPRINT: LazyLock<Blueprint> = LazyLock::new(|| Blueprint::new(&rules()));

impl Blueprint {
    fn new(rules: &[Rule]) -> Self {
        let mut builder = Builder::default();
        let mut start = Vec::new();
        let mut search_starts = Vec::new();
        let mut splits = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            let end = builder.node(Node::Match(index as u16));
            let after = match &rule.context {
                None => vec![end],
                Some(context) => builder.compile(context, &[end]),
            };
            start.extend(builder.compile(&rule.pattern, &after));
            splits.push(match &rule.context {
                None => Split::Whole,
                Some(context) => {
                    if let Some(length) = context.fixed_length() {
                        Split::ContextLength(length)
                    } else if let Some(length) = rule.pattern.fixed_length() {
                        Split::TokenLength(length)
                    } else {
                        let end = builder.node(Node::Match(index as u16));
                        let token = search_starts.len() as State + 1;
                        search_starts.push(builder.compile(&rule.pattern, &[end]));
                        search_starts.push(builder.compile(&context.reversed(), &[end]));
                        Split::Search { token, context: token + 1 }
                    }
                }
            });
        }
        let mut start_nodes = vec![start];
        start_nodes.append(&mut search_starts);
        let (class_of_unit, sets) = classes(&builder.sets);
        let classes = class_of_unit.iter().max().map_or(0, |&class| usize::from(class) + 1);
        let rewrites = rules.iter().map(|rule| rule.rewrite).collect();
        Self { class_of_unit, classes, sets, nodes: builder.nodes, start_nodes, rewrites, splits }
    }

    fn contains(&self, set: usize, class: u8) -> bool {
        self.sets[set][usize::from(class) / 64] >> (class % 64) & 1 == 1
    }
}

/// Compiles patterns to nodes, from end to start.
#[derive(Default)]
struct Builder {
    nodes: Vec<Node>,
    sets: Vec<CharacterSet>,
    set_index: HashMap<CharacterSet, usize>,
}

impl Builder {
    fn node(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    fn set(&mut self, set: &CharacterSet) -> usize {
        if let Some(&index) = self.set_index.get(set) {
            return index;
        }
        self.sets.push(set.clone());
        self.set_index.insert(set.clone(), self.sets.len() - 1);
        self.sets.len() - 1
    }

    /// Compiles `pattern`, which is followed by the nodes `after`. Returns its first nodes.
    fn compile(&mut self, pattern: &Pattern, after: &[u32]) -> Vec<u32> {
        match pattern {
            Pattern::One(set) => {
                let set = self.set(set);
                vec![self.node(Node::Read { set, next: after.to_vec() })]
            }
            Pattern::Sequence(parts) => {
                parts.iter().rev().fold(after.to_vec(), |after, part| self.compile(part, &after))
            }
            Pattern::Choice(parts) => {
                distinct(parts.iter().flat_map(|part| self.compile(part, after)).collect())
            }
            Pattern::Repeated(part) => {
                // The successors of the part include its own first nodes, which are known only
                // after compilation. A marker node represents them until then.
                let marker = self.node(Node::Match(NO_RULE));
                let first_new_node = self.nodes.len();
                let mut ends = after.to_vec();
                ends.push(marker);
                let mut first_nodes = self.compile(part, &ends);
                first_nodes.retain(|&node| node != marker);
                for node in &mut self.nodes[first_new_node..] {
                    if let Node::Read { next, .. } = node
                        && next.contains(&marker)
                    {
                        next.retain(|&node| node != marker);
                        next.extend(&first_nodes);
                        *next = distinct(std::mem::take(next));
                    }
                }
                first_nodes.extend(after);
                distinct(first_nodes)
            }
        }
    }
}

fn distinct(mut nodes: Vec<u32>) -> Vec<u32> {
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// Partitions all units into classes so that each set is a union of classes. Returns the class of
/// each unit and the classes of each set.
fn classes(sets: &[CharacterSet]) -> (Vec<u8>, Vec<[u64; 4]>) {
    let mut signatures = vec![0_u32; 1 << 16];
    let mut signature_count = 1;
    for set in sets {
        // Two units stay in one class if both are in the set or both are not.
        let mut signature_inside = HashMap::new();
        for &(low, high) in set.ranges() {
            for signature in &mut signatures[usize::from(low)..=usize::from(high)] {
                *signature = *signature_inside.entry(*signature).or_insert_with(|| {
                    signature_count += 1;
                    signature_count - 1
                });
            }
        }
    }
    let mut class_of_signature = HashMap::new();
    let class_of_unit: Vec<u8> = signatures
        .iter()
        .map(|signature| {
            let next = class_of_signature.len();
            *class_of_signature.entry(signature).or_insert(next) as u8
        })
        .collect();
    let class_bits = |set: &CharacterSet| {
        let mut class_bits = [0; 4];
        for &(low, high) in set.ranges() {
            for &class in &class_of_unit[usize::from(low)..=usize::from(high)] {
                class_bits[usize::from(class) / 64] |= 1 << (class % 64);
            }
        }
        class_bits
    };
    let sets = sets.iter().map(class_bits).collect();
    (class_of_unit, sets)
}

/// The deterministic automaton, with the states that have been built. Each thread has its own.
#[derive(Debug)]
pub(super) struct Automaton {
    blueprint: &'static Blueprint,
    /// The next state by state and class; [`UNKNOWN`] if it is not built yet.
    transitions: Vec<State>,
    /// The first rule that matches in each state, or [`NO_RULE`].
    rule_of_state: Vec<u16>,
    nodes_of_state: Vec<Arc<[u32]>>,
    state_of_nodes: HashMap<Arc<[u32]>, State>,
}

impl Automaton {
    pub(super) fn new() -> Self {
        let mut automaton = Self {
            blueprint: &BLUEPRINT,
            transitions: Vec::new(),
            rule_of_state: Vec::new(),
            nodes_of_state: Vec::new(),
            state_of_nodes: HashMap::new(),
        };
        for nodes in &automaton.blueprint.start_nodes {
            automaton.state(distinct(nodes.clone()));
        }
        automaton
    }

    /// The state after reading one UTF-16 code unit.
    #[inline]
    pub(super) fn step(&mut self, state: State, unit: u16) -> State {
        let class = self.blueprint.class_of_unit[usize::from(unit)];
        let transition = usize::from(state) * self.blueprint.classes + usize::from(class);
        match self.transitions[transition] {
            UNKNOWN => self.build_transition(state, class, transition),
            known => known,
        }
    }

    /// The first rule that matches in this state; `None` if no rule does.
    #[inline]
    pub(super) fn matched(&self, state: State) -> Option<u16> {
        let rule = self.rule_of_state[usize::from(state)];
        (rule != NO_RULE).then_some(rule)
    }

    pub(super) fn rewrite(&self, rule: u16) -> Rewrite {
        self.blueprint.rewrites[usize::from(rule)]
    }

    pub(super) fn split(&self, rule: u16) -> Split {
        self.blueprint.splits[usize::from(rule)]
    }

    #[cold]
    fn build_transition(&mut self, state: State, class: u8, transition: usize) -> State {
        let mut nodes = Vec::new();
        for &node in &*self.nodes_of_state[usize::from(state)] {
            if let Node::Read { set, next } = &self.blueprint.nodes[node as usize]
                && self.blueprint.contains(*set, class)
            {
                nodes.extend(next);
            }
        }
        let state = if nodes.is_empty() { DEAD } else { self.state(distinct(nodes)) };
        self.transitions[transition] = state;
        state
    }

    /// The state of a set of nodes.
    fn state(&mut self, nodes: Vec<u32>) -> State {
        let nodes: Arc<[u32]> = nodes.into();
        if let Some(&state) = self.state_of_nodes.get(&nodes) {
            return state;
        }
        let state = self.rule_of_state.len() as State;
        let rule = |&node: &u32| match self.blueprint.nodes[node as usize] {
            Node::Match(rule) => Some(rule),
            Node::Read { .. } => None,
        };
        self.rule_of_state.push(nodes.iter().filter_map(rule).min().unwrap_or(NO_RULE));
        self.transitions.resize(self.transitions.len() + self.blueprint.classes, UNKNOWN);
        self.nodes_of_state.push(nodes.clone());
        self.state_of_nodes.insert(nodes, state);
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// State numbers have 16 bits; the rules are fixed, so the number of states is fixed too.
    #[test]
    fn the_automaton_has_few_states() {
        let mut automaton = Automaton::new();
        let classes = automaton.blueprint.classes;
        assert!(classes <= 255);
        let mut units = vec![0; classes];
        for (unit, &class) in automaton.blueprint.class_of_unit.iter().enumerate() {
            units[usize::from(class)] = unit as u16;
        }
        let mut state = 0;
        while usize::from(state) < automaton.rule_of_state.len() {
            for &unit in &units {
                automaton.step(state, unit);
            }
            state += 1;
        }
        assert!(automaton.rule_of_state.len() < 20_000, "{} states", automaton.rule_of_state.len());
    }
}
