//! The words of the synthetic phrase set: families of things, and qualities that the things can
//! have. The table is `words.json`.
//!
//! Four words have a meaning in two families (joint, plate, filter, drum); the context decides
//! which words are their synonyms.

use std::sync::LazyLock;

use serde::Deserialize;

/// All words.
#[derive(Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
pub(crate) struct Words {
    /// All families; each has its own context.
    pub(crate) families: Vec<Family>,
    /// All qualities.
    pub(crate) qualities: Vec<Quality>,
}

/// Things of one kind, in one CPC class.
#[derive(Deserialize)]
pub(crate) struct Family {
    /// The CPC class of these words.
    pub(crate) context: &'static str,
    /// The title of that class.
    pub(crate) title: &'static str,
    /// Two synonymous names of the kind.
    pub(crate) kind: [&'static str; 2],
    /// Three things of the kind, each with two synonymous names.
    pub(crate) things: [[&'static str; 2]; 3],
    /// Words that are related to the kind but are not of the kind.
    pub(crate) related: [&'static str; 2],
}

/// A quality, as an adjective before a thing.
#[derive(Deserialize)]
pub(crate) struct Quality {
    /// Two synonyms.
    pub(crate) names: [&'static str; 2],
    /// Narrower qualities.
    pub(crate) narrower: Vec<&'static str>,
    /// The opposite quality; `None` if there is none in the word list.
    pub(crate) opposite: Option<&'static str>,
}

/// The words of the table. The tests of the phrase set check the table, so it is never empty.
pub(crate) static WORDS: LazyLock<Words> =
    LazyLock::new(|| serde_json::from_str(include_str!("words.json")).unwrap_or_default());
