//! Tests of keys and values without a model: retrieval recall, and answers decoded from values.
//!
//! This command prints the recall that docs/explanation/world.md names:
//! `cargo test --release -p engram-data --test main world_features -- --nocapture`

use engram_data::world::attributes::Source;
use engram_data::world::features::{HashFeatures, KEY_WIDTH, VALUE_TOKENS, VALUE_WIDTH};
use engram_data::world::questions::{Question, Split};
use engram_data::world::{World, WorldOptions};
use rayon::prelude::*;

/// Returns the dot product of vectors whose length is a multiple of 8. The compiler vectorizes the
/// eight sums.
fn dot_product(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    for (left, right) in left.chunks_exact(8).zip(right.chunks_exact(8)) {
        for (sum, (left, right)) in sums.iter_mut().zip(left.iter().zip(right)) {
            *sum += left * right;
        }
    }
    sums.iter().sum()
}

#[test]
fn the_correct_entry_is_found_far_above_chance() {
    let world = World::new(&WorldOptions::default()).unwrap();
    let features = HashFeatures::new(&world);
    let keys = features.fact_keys(&world.facts).unwrap();
    assert_eq!(keys.len(), world.facts.len() * KEY_WIDTH);
    let test_questions = world.questions.iter().filter(|question| question.split == Split::Test);
    // A quarter of the questions suffices for two digits of each fraction.
    let questions: Vec<Question> = test_questions.step_by(4).cloned().collect();
    let queries = features.queries(&questions).unwrap();
    let ranks: Vec<usize> = questions
        .par_iter()
        .zip(queries.par_chunks(KEY_WIDTH))
        .map(|(question, query)| {
            let scores: Vec<f32> =
                keys.chunks(KEY_WIDTH).map(|key| dot_product(key, query)).collect();
            let ids = world.facts.iter().map(|fact| fact.entry.id);
            let correct_score = ids.zip(&scores).find(|(id, _)| *id == question.entry).unwrap().1;
            scores.iter().filter(|score| *score > correct_score).count()
        })
        .collect();
    println!("| source | facts | questions | recall@1 | recall@10 |\n|---|---|---|---|---|");
    let cases = Source::ALL.iter().flat_map(|source| [(*source, true), (*source, false)]);
    for (source, made_up) in cases {
        let ranked = questions.iter().zip(&ranks);
        let ranked =
            ranked.filter(|(question, _)| question.source == source && question.made_up == made_up);
        let ranks: Vec<usize> = ranked.map(|(_, rank)| *rank).collect();
        if ranks.is_empty() {
            continue;
        }
        let recall = |cutoff| {
            ranks.iter().filter(|rank| **rank < cutoff).count() as f64 / ranks.len() as f64
        };
        let (facts, count) = (if made_up { "made up" } else { "real" }, ranks.len());
        println!(
            "| {} | {facts} | {count} | {:.2} | {:.2} |",
            source.name(),
            recall(1),
            recall(10)
        );
        // By chance, recall@10 is 10 / 18,056.
        assert!(recall(10) > 0.7, "{source:?} {made_up}: {}", recall(10));
    }
}

#[test]
fn keys_have_unit_length_and_answers_can_be_read_from_values() {
    let options = WorldOptions { images: Some(200), ..WorldOptions::default() };
    let world = World::new(&options).unwrap();
    let features = HashFeatures::new(&world);
    let keys = features.fact_keys(&world.facts).unwrap();
    let queries = features.queries(&world.questions).unwrap();
    for key in keys.chunks(KEY_WIDTH).chain(queries.chunks(KEY_WIDTH)) {
        assert!((dot_product(key, key) - 1.0).abs() < 1e-4);
    }
    let values = features.values(&world.facts);
    for (fact, value) in world.facts.iter().zip(values.chunks(VALUE_TOKENS * VALUE_WIDTH)) {
        let similarity =
            |answer: &&&str| dot_product(&features.answer_token(answer), &value[..VALUE_WIDTH]);
        let answers = fact.attribute.answers.iter();
        let decoded = answers.max_by(|left, right| similarity(left).total_cmp(&similarity(right)));
        assert!(decoded.is_none_or(|answer| *answer == fact.answers[0]));
    }
}

#[test]
fn a_view_of_one_pixel_has_finite_keys() {
    let view = engram_data::world::view_augmentation(1);
    let options = WorldOptions { images: Some(40), view, ..WorldOptions::default() };
    let world = World::new(&options).unwrap();
    let keys = HashFeatures::new(&world).fact_keys(&world.facts).unwrap();
    assert!(keys.iter().all(|value| value.is_finite()));
}
