//! Synthetic phrase pairs in the schema of the patent data, generated from word lists with known
//! relations.
//!
//! A phrase is a quality and a thing (`metal fastener`). The score of a pair follows from how the
//! target's quality and thing relate to the anchor's, in the anchor's context:
//!
//! | thing \ quality | same | synonym | narrower or none | opposite or other |
//! |---|---|---|---|---|
//! | same | 1 (other word order) | 0.75 | 0.5 | 0.25 |
//! | synonym | 0.75 | 0.75 | 0.5 | 0.25 |
//! | broader or narrower | 0.5 | 0.5 | – | – |
//! | same family, or related to it | 0.25 | 0.25 | – | 0.25 |
//! | other family | 0 | 0 | – | 0 |
//!
//! There are no pairs for `–`. Held-out anchors are new combinations of qualities and things from
//! training, so a model must have learnt relations between words. Counting shared words does not
//! help: `metal fastener` shares one word with `metal melody` (0), `plastic fastener` (0.25),
//! `fastener` (0.5) and `metallic fastener` (0.75), and none with `metallic securing element`
//! (0.75). Four things have other synonyms in another context: `metal joint` is `metal coupling` in
//! F16 and `metal articulation` in A61.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::questions::Split;
use super::words::{Family, Quality, WORDS};
use crate::DataError;
use crate::patent::{PhrasePair, write_pairs};
use crate::titles::{ClassTitles, SECTIONS};

/// The number of anchors per thing, each with another quality.
const ANCHORS_PER_THING: usize = 4;

/// The synthetic phrase set. The splits share no anchor, and no anchor of one split is a target in
/// another.
#[derive(Debug, Clone, PartialEq)]
pub struct PhraseWorld {
    /// Training pairs, about three quarters of all pairs.
    pub train: Vec<PhrasePair>,
    /// Validation pairs, for model selection.
    pub validation: Vec<PhrasePair>,
    /// Test pairs, for the final evaluation.
    pub test: Vec<PhrasePair>,
    /// Titles of all contexts.
    pub titles: ClassTitles,
}

impl PhraseWorld {
    /// Writes `train.csv`, `validation.csv`, `test.csv` (all with scores) and
    /// `ipc_class_titles.tsv` into a folder.
    ///
    /// # Errors
    /// `Io`
    pub fn write(&self, folder: impl AsRef<Path>) -> Result<(), DataError> {
        let folder = folder.as_ref();
        let io_error = |source| DataError::Io { path: folder.into(), source };
        engram_durable::create_folder(folder).map_err(io_error)?;
        write_pairs(folder.join("train.csv"), &self.train)?;
        write_pairs(folder.join("validation.csv"), &self.validation)?;
        write_pairs(folder.join("test.csv"), &self.test)?;
        let titles = self.titles.to_tsv();
        engram_durable::write_file(&folder.join("ipc_class_titles.tsv"), titles.as_bytes())
            .map_err(io_error)
    }
}

/// Builds the phrase set. The same seed gives the same set.
pub fn phrase_world(seed: u64) -> PhraseWorld {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let anchors = choose_anchors(&mut rng);
    let anchor_texts: HashSet<String> = anchors.iter().map(Anchor::text).collect();
    let mut world = PhraseWorld {
        train: Vec::new(),
        validation: Vec::new(),
        test: Vec::new(),
        titles: class_titles(),
    };
    let mut count = 0;
    for anchor in &anchors {
        let pairs = match anchor.split {
            Split::Train => &mut world.train,
            Split::Validation => &mut world.validation,
            Split::Test => &mut world.test,
        };
        for family in WORDS.families.iter().filter(|family| family.contains(anchor.thing)) {
            for rated_target in rated_targets(anchor, family, &anchor_texts, &mut rng) {
                count += 1;
                pairs.push(PhrasePair {
                    id: format!("{count:016x}"),
                    anchor: anchor.text(),
                    target: rated_target.target,
                    context: family.context.to_owned(),
                    score: Some(rated_target.score),
                    rating: Some(rated_target.rating.to_owned()),
                });
            }
        }
    }
    world
}

/// Returns a `tokenizer.json` for the phrase set: BERT's special tokens, then one token for each
/// word of the word lists, the titles and the section names, for `which` and `is`, and for four
/// punctuation marks.
pub fn phrase_tokenizer() -> Vec<u8> {
    let mut words: BTreeSet<String> = [".", ",", ";", ":", "which", "is"].map(Into::into).into();
    let texts = word_list_texts().chain(SECTIONS.iter().map(|(_, name)| *name));
    for text in texts {
        let letters_only = text.replace(|c: char| !c.is_alphanumeric(), " ");
        words.extend(letters_only.split_whitespace().map(str::to_lowercase));
    }
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let vocabulary: serde_json::Map<String, serde_json::Value> = special
        .into_iter()
        .map(str::to_owned)
        .chain(words)
        .zip(0..)
        .map(|(word, id)| (word, json!(id)))
        .collect();
    let added_tokens: Vec<_> = special
        .iter()
        .enumerate()
        .map(|(id, token)| {
            json!({
                "id": id, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true
            })
        })
        .collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    });
    tokenizer.to_string().into_bytes()
}

fn word_list_texts() -> impl Iterator<Item = &'static str> {
    let family_texts =
        WORDS.families.iter().flat_map(|family| family.words().chain([family.title]));
    let quality_texts = WORDS.qualities.iter().flat_map(|quality| {
        let names = quality.names.iter().chain(&quality.narrower).copied();
        names.chain(quality.opposite)
    });
    family_texts.chain(quality_texts)
}

fn class_titles() -> ClassTitles {
    WORDS
        .families
        .iter()
        .map(|family| (family.context.to_owned(), family.title.to_owned()))
        .collect()
}

/// An anchor phrase: a quality and a thing.
struct Anchor {
    quality: &'static Quality,
    thing: &'static str,
    split: Split,
}

impl Anchor {
    fn text(&self) -> String {
        format!("{} {}", self.quality.names[0], self.thing)
    }
}

/// Combines each thing with several qualities. One anchor of each thing is held out: in test for
/// two thirds of the things, and in validation for one third. All other anchors are in training,
/// so training has each thing with other qualities.
fn choose_anchors(rng: &mut ChaCha8Rng) -> Vec<Anchor> {
    let things: BTreeSet<&str> = WORDS
        .families
        .iter()
        .flat_map(|family| family.things.iter().chain([&family.kind]))
        .map(|names| names[0])
        .collect();
    let mut things: Vec<&str> = things.into_iter().collect();
    things.shuffle(rng);
    let mut anchors = Vec::new();
    for (index, thing) in things.into_iter().enumerate() {
        for (index_of_quality, quality) in
            WORDS.qualities.choose_multiple(rng, ANCHORS_PER_THING).enumerate()
        {
            let split = match (index_of_quality, index % 3) {
                (0, 0 | 1) => Split::Test,
                (0, _) => Split::Validation,
                _ => Split::Train,
            };
            anchors.push(Anchor { quality, thing, split });
        }
    }
    anchors
}

/// A target with the score and rating of its pair.
struct RatedTarget {
    target: String,
    score: f32,
    rating: &'static str,
}

impl Family {
    /// Whether `thing` is the first name of the kind or of one of its things.
    fn contains(&self, thing: &str) -> bool {
        self.kind[0] == thing || self.things.iter().any(|names| names[0] == thing)
    }

    /// Returns every word of the family: names and related words.
    fn words(&self) -> impl Iterator<Item = &'static str> {
        let names = self.things.iter().flatten().chain(&self.kind);
        names.chain(&self.related).copied()
    }
}

/// The relatives of a thing in its family.
struct Relatives {
    synonym: &'static str,
    /// For a thing, the names of its kind; for a kind, the names of its things.
    other_level: Vec<&'static str>,
    /// The rating of a pair with one of the names in `other_level`.
    other_level_rating: &'static str,
    /// The other things of the family, and related words.
    related_things: Vec<&'static str>,
}

impl Relatives {
    /// Finds the relatives of `thing`, the first name of the kind or of one of its things.
    fn new(family: &'static Family, thing: &str) -> Self {
        let things = family.things.iter();
        let Some(thing_names) = things.clone().find(|names| names[0] == thing) else {
            return Self {
                synonym: family.kind[1],
                other_level: things.flatten().copied().collect(),
                other_level_rating: "Hyponym",
                related_things: family.related.to_vec(),
            };
        };
        let others = things.filter(|names| *names != thing_names).flatten();
        Self {
            synonym: thing_names[1],
            other_level: family.kind.to_vec(),
            other_level_rating: "Hypernym",
            related_things: others.chain(&family.related).copied().collect(),
        }
    }
}

/// Returns the distinct targets of an anchor in one of its contexts.
fn rated_targets(
    anchor: &Anchor,
    family: &'static Family,
    anchor_texts: &HashSet<String>,
    rng: &mut ChaCha8Rng,
) -> Vec<RatedTarget> {
    let thing = anchor.thing;
    let [quality, quality_synonym] = anchor.quality.names;
    let relatives = Relatives::new(family, thing);
    let synonym = relatives.synonym;
    let mut targets = Targets { rated: Vec::new(), used_texts: anchor_texts.clone() };

    let reordered = [format!("{thing} {quality}"), format!("{thing} which is {quality}")];
    for target in reordered {
        targets.add(target, 1.0, "Exact");
    }
    targets.add(format!("{quality_synonym} {thing}"), 0.75, "Synonym");
    targets.add(format!("{quality} {synonym}"), 0.75, "Synonym");
    targets.add(format!("{quality_synonym} {synonym}"), 0.75, "Synonym");

    targets.add([thing, synonym][rng.random_range(0..2)].to_owned(), 0.5, "Hypernym");
    if let Some(narrower) = anchor.quality.narrower.choose(rng) {
        targets.add(format!("{narrower} {thing}"), 0.5, "Hyponym");
        targets.add(format!("{narrower} {synonym}"), 0.5, "Hyponym");
    }
    for name in relatives.other_level.choose_multiple(rng, 3) {
        let quality = [quality, quality_synonym][rng.random_range(0..2)];
        targets.add(format!("{quality} {name}"), 0.5, relatives.other_level_rating);
    }

    let different_quality = draw_other_quality(anchor.quality, rng);
    for thing in [thing, synonym] {
        let (quality, rating) = match anchor.quality.opposite {
            Some(opposite) if rng.random() => (opposite, "Antonym"),
            _ => (different_quality, "Other high level"),
        };
        targets.add(format!("{quality} {thing}"), 0.25, rating);
    }
    for related in relatives.related_things.choose_multiple(rng, 3) {
        let quality = [quality, quality_synonym, different_quality][rng.random_range(0..3)];
        targets.add(format!("{quality} {related}"), 0.25, "Domain related");
    }

    // In this context, a synonym of the thing's other sense is unrelated.
    let other_families = WORDS
        .families
        .iter()
        .filter(|other| other.context != family.context && other.contains(thing));
    for other_family in other_families {
        let synonym = Relatives::new(other_family, thing).synonym;
        targets.add(format!("{quality} {synonym}"), 0.0, "Not related");
    }
    let unrelated: Vec<&str> = WORDS
        .families
        .iter()
        .filter(|other| !other.contains(thing))
        .flat_map(Family::words)
        .filter(|word| !family.words().any(|family_word| family_word == *word))
        .collect();
    for (index, word) in unrelated.choose_multiple(rng, 4).enumerate() {
        let quality = [quality, quality, quality_synonym, different_quality][index];
        targets.add(format!("{quality} {word}"), 0.0, "Not related");
    }
    targets.rated
}

/// Draws a quality other than the given one.
fn draw_other_quality(quality: &Quality, rng: &mut ChaCha8Rng) -> &'static str {
    let others: Vec<&str> = WORDS
        .qualities
        .iter()
        .map(|other| other.names[0])
        .filter(|name| *name != quality.names[0])
        .collect();
    others.choose(rng).copied().unwrap_or(WORDS.qualities[0].names[0])
}

/// Collects targets. Skips a text that is already a target, or is an anchor.
struct Targets {
    rated: Vec<RatedTarget>,
    used_texts: HashSet<String>,
}

impl Targets {
    fn add(&mut self, target: String, score: f32, rating: &'static str) {
        if self.used_texts.insert(target.clone()) {
            self.rated.push(RatedTarget { target, score, rating });
        }
    }
}
