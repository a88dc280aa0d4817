//! A corpus of made-up facts: databases to train on, and others for validation and test. The memory
//! has the facts of the latter alone.

use engram_data::image::Preprocessing;
use engram_data::triplets::generate::{PromptedFact, database};
use engram_data::world::questions::Part;
use engram_infer::reveal::corpus::{Corpus, CorpusEntry, Example, FACTS, MetricKind, UNKNOWN};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::studies::reveal::settings::RevealData;

/// Number of databases for validation, and for the test.
const VALIDATION: usize = 3;
const TEST: usize = 6;
/// One of this number of facts for validation and test is not in the memory.
const ABSENT: usize = 4;

/// Makes up `data.triplets` databases to train on, and those for validation and test.
pub(super) fn load(data: &RevealData, size: usize, preprocessing: Preprocessing) -> Corpus {
    let mut corpus = Corpus::of_images(Vec::new(), size, preprocessing);
    corpus.sources = vec![FACTS.to_owned()];
    corpus.metric_kinds = vec![MetricKind::Entries];
    let mut rng = ChaCha8Rng::seed_from_u64(data.world_seed);
    let mut facts_of = |databases: usize| -> Vec<PromptedFact> {
        (0..databases).flat_map(|_| database(&mut rng)).collect()
    };
    for (databases, is_test) in [(VALIDATION, false), (TEST, true)] {
        let mut examples = Vec::new();
        for (index, fact) in facts_of(databases).into_iter().enumerate() {
            let is_absent = index % ABSENT == 0;
            let own_entry = (!is_absent).then(|| add_entry(&mut corpus, &fact, false));
            let answer = if is_absent { UNKNOWN } else { &fact.triplet.object }.to_owned();
            let (answers, part) = (vec![answer], Part::HeldOut);
            let example = Example::of_text(examples.len(), fact.prompt);
            examples.push(Example { answers, own_entry, part, ..example });
        }
        *(if is_test { &mut corpus.test } else { &mut corpus.validation }) = examples;
    }
    corpus.stored = corpus.items.len();
    for fact in facts_of(data.triplets) {
        let own_entry = Some(add_entry(&mut corpus, &fact, true));
        let example = Example::of_text(corpus.train.len(), fact.prompt);
        let answers = vec![fact.triplet.object];
        corpus.train.push(Example { answers, own_entry, ..example });
    }
    corpus
}

/// Adds the entry of a fact, and returns its index.
fn add_entry(corpus: &mut Corpus, fact: &PromptedFact, in_training: bool) -> usize {
    let index = corpus.items.len();
    corpus.items.push(CorpusEntry::of_fact(index, fact.triplet.text(), in_training));
    index
}

#[cfg(test)]
mod tests {
    use super::*;
    use engram_infer::reveal::images::squared;

    #[test]
    fn the_memory_has_no_training_facts_and_lacks_some_tested_ones() {
        let data = RevealData { triplets: 2, ..RevealData::default() };
        let corpus = load(&data, 8, squared(8));
        let stored = |example: &Example| example.own_entry.is_some_and(|own| own < corpus.stored);
        assert!(corpus.train.iter().all(|example| !stored(example)));
        for examples in [&corpus.validation, &corpus.test] {
            let absent: Vec<&Example> = examples.iter().filter(|e| !stored(e)).collect();
            assert_eq!(absent.len(), examples.len().div_ceil(ABSENT));
            assert!(absent.iter().all(|example| example.answers == [UNKNOWN]));
        }
        let texts: Vec<&str> = corpus.items.iter().map(|item| &*item.text).collect();
        for example in corpus.train.iter().chain(&corpus.test) {
            let Some(own) = example.own_entry else { continue };
            assert!(texts[own].starts_with(&example.answers[0]), "{}", texts[own]);
        }
    }
}
