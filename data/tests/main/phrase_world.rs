//! Tests of the synthetic phrase set: splits, words, and the score of a baseline that counts words.

use std::collections::{HashMap, HashSet};

use engram_data::groups::anchor_groups;
use engram_data::patent::{Labels, PhrasePair, read_pairs_with_titles};
use engram_data::titles::{ClassTitles, SECTIONS};
use engram_data::tokenizer::SegmentTokenizer;
use engram_data::world::phrases::{PhraseWorld, phrase_tokenizer, phrase_world};

fn all_pairs(world: &PhraseWorld) -> Vec<PhrasePair> {
    [&world.train[..], &world.validation, &world.test].concat()
}

fn words(pairs: &[PhrasePair]) -> HashSet<&str> {
    let texts = pairs.iter().flat_map(|pair| [&pair.anchor, &pair.target]);
    texts.flat_map(|text| text.split(' ')).collect()
}

#[test]
fn the_seed_determines_the_pairs() {
    assert_eq!(phrase_world(1), phrase_world(1));
    assert_ne!(phrase_world(1), phrase_world(2));
}

#[test]
fn splits_share_words_but_no_group() {
    for seed in 0..20 {
        let world = phrase_world(seed);
        let pairs = all_pairs(&world);
        let groups = anchor_groups(&pairs);
        let bounds =
            [0, world.train.len(), world.train.len() + world.validation.len(), pairs.len()];
        let groups_of = |split: usize| -> HashSet<usize> {
            groups[bounds[split]..bounds[split + 1]].iter().copied().collect()
        };
        for (left, right) in [(0, 1), (0, 2), (1, 2)] {
            assert!(groups_of(left).is_disjoint(&groups_of(right)), "seed {seed}");
        }
        let training_words = words(&world.train);
        let anchor_words: HashSet<&str> =
            world.train.iter().flat_map(|pair| pair.anchor.split(' ')).collect();
        for pair in world.validation.iter().chain(&world.test) {
            for word in pair.anchor.split(' ') {
                assert!(training_words.contains(word), "seed {seed}: {word} only held out");
            }
            let thing = pair.anchor.split_once(' ').unwrap().1;
            assert!(thing.split(' ').all(|word| anchor_words.contains(word)), "seed {seed}");
        }
    }
}

#[test]
fn sizes_are_as_expected_and_all_scores_and_contexts_occur() {
    let world = phrase_world(7);
    let (train, validation, test) = (world.train.len(), world.validation.len(), world.test.len());
    assert!((1_600..1_900).contains(&train), "{train}");
    assert!((150..250).contains(&validation), "{validation}");
    assert!((350..450).contains(&test), "{test}");
    let pairs = all_pairs(&world);
    let mut pairs_of_class: HashMap<u32, usize> = HashMap::new();
    for pair in &pairs {
        *pairs_of_class.entry((pair.score.unwrap() * 4.0) as u32).or_default() += 1;
    }
    for class in 0..5 {
        let fraction = pairs_of_class[&class] as f64 / pairs.len() as f64;
        assert!((0.1..0.35).contains(&fraction), "class {class}: {fraction}");
    }
    let contexts: HashSet<&str> = pairs.iter().map(|pair| &*pair.context).collect();
    assert_eq!(contexts.len(), world.titles.len());
    let is_known = |context: &str| SECTIONS.iter().any(|(letter, _)| context.starts_with(*letter));
    assert!(contexts.iter().all(|context| is_known(context)));
}

#[test]
fn the_score_of_a_thing_with_two_senses_depends_on_the_context() {
    let mut disagreements = 0;
    let pairs = all_pairs(&phrase_world(7));
    let score_of: HashMap<_, _> = pairs
        .iter()
        .map(|pair| ((&*pair.anchor, &*pair.target, &*pair.context), pair.score))
        .collect();
    for pair in &pairs {
        for ((anchor, target, context), score) in &score_of {
            if (*anchor, *target) == (&*pair.anchor, &*pair.target) && *context < &*pair.context {
                disagreements += usize::from(*score != pair.score);
            }
        }
    }
    assert!(disagreements >= 10, "{disagreements}");
}

/// Pearson's correlation between the score and the fraction of shared words.
#[test]
fn word_overlap_correlates_weakly_with_the_score() {
    let pairs = all_pairs(&phrase_world(7));
    let overlap = |pair: &PhrasePair| {
        let anchor: HashSet<&str> = pair.anchor.split(' ').collect();
        let target: HashSet<&str> = pair.target.split(' ').collect();
        anchor.intersection(&target).count() as f64 / anchor.union(&target).count() as f64
    };
    let x: Vec<f64> = pairs.iter().map(overlap).collect();
    let y: Vec<f64> = pairs.iter().map(|pair| f64::from(pair.score.unwrap())).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_x, mean_y) = (mean(&x), mean(&y));
    let moment = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
        x.iter().zip(&y).map(|(x, y)| f(x - mean_x, y - mean_y)).sum()
    };
    let pearson = moment(&|x, y| x * y) / (moment(&|x, _| x * x) * moment(&|_, y| y * y)).sqrt();
    println!("Pearson of shared words: {pearson:.3}");
    assert!((0.3..0.65).contains(&pearson), "{pearson}");
}

#[test]
fn written_files_can_be_read_and_every_word_has_an_id() {
    let world = phrase_world(3);
    let folder = tempfile::tempdir().unwrap();
    world.write(folder.path()).unwrap();
    let titles = ClassTitles::read(folder.path().join("ipc_class_titles.tsv")).unwrap();
    assert_eq!(titles, world.titles);
    for (name, pairs) in [
        ("train.csv", &world.train),
        ("validation.csv", &world.validation),
        ("test.csv", &world.test),
    ] {
        let path = folder.path().join(name);
        let pairs_of_file = read_pairs_with_titles(path, Labels::Required, Some(&titles)).unwrap();
        assert_eq!(&pairs_of_file, pairs);
    }

    let bytes = phrase_tokenizer();
    assert_eq!(bytes, phrase_tokenizer());
    let tokenizer = SegmentTokenizer::from_bytes("tokenizer.json", &bytes).unwrap();
    let size = tokenizer.vocabulary_size();
    assert!((200..300).contains(&size), "{size}");
    tokenizer.check_fits(size, Some(0)).unwrap();
    let unknown = tokenizer.id_of("[UNK]").unwrap();
    let pairs = all_pairs(&world);
    let texts = pairs.iter().flat_map(|pair| [&*pair.anchor, &*pair.target]);
    let section_of = |(code, _): (&str, _)| {
        SECTIONS.iter().find(|(letter, _)| code.starts_with(*letter)).unwrap().1
    };
    let sections = titles.iter().map(section_of);
    for text in texts.chain(titles.iter().map(|(_, title)| title)).chain(sections) {
        let ids = tokenizer.encode_segment(text).unwrap();
        assert!(!ids.is_empty() && !ids.contains(&unknown), "{text}");
    }
}
