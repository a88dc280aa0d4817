//! Maximal marginal relevance against a brute-force reference, and minimum scores.

use crate::support::*;
use engram_memory::retrieval::mmr::maximal_marginal_relevance;

/// The formula of Carbonell and Goldstein, evaluated over all candidates and all chosen entries in
/// each step.
fn by_formula(generation: &Generation, candidates: &[Hit], lambda: f64, k: usize) -> Vec<i64> {
    let key = |hit: &Hit| generation.key(hit.row).unwrap().to_vec();
    let product = |a: &Hit, b: &Hit| product(&key(a), &key(b));
    let mut chosen: Vec<Hit> = Vec::new();
    while chosen.len() < k.min(candidates.len()) {
        let marginal = |hit: &Hit| {
            let similarity = chosen.iter().map(|other| product(hit, other)).reduce(f64::max);
            lambda * f64::from(hit.score) - (1.0 - lambda) * similarity.unwrap_or(0.0)
        };
        let mut best: Option<(f64, Hit)> = None;
        for hit in candidates.iter().filter(|hit| chosen.iter().all(|other| other.id != hit.id)) {
            let score = marginal(hit);
            // The products of the reference have another order of summation.
            if best.is_none_or(|(highest, _)| score > highest + 1e-12) {
                best = Some((score, *hit));
            }
        }
        chosen.push(best.unwrap().1);
    }
    chosen.iter().map(|hit| hit.id).collect()
}

fn hit_ids(hits: &[Hit]) -> Vec<i64> {
    hits.iter().map(|hit| hit.id).collect()
}

#[test]
fn choices_equal_the_formula() {
    let mut rng = Rng::new(17);
    let mut differs_from_search = 0;
    for (round, width) in (0..24).zip([1, 2, 3, 5, 8, 40].into_iter().cycle()) {
        let format = MemoryFormat { width, normalised: round % 2 == 0, values: None };
        // Small integers as components, so there are equal keys and equal scores.
        let rows = batch(&mut rng, format, 0..80);
        let (_folder, mut writer) = temporary(format, rows);
        writer.delete(&[4, 5]).unwrap();
        let generation = writer.generation();
        let keys: Vec<f32> = (0..3 * width).map(|_| rng.uniform()).collect();
        let weights: Vec<f32> = (0..9).map(|_| rng.uniform()).collect();
        let sources = &generation.manifest().sources;
        let filter = if round % 3 == 0 { with_gates(sources, weights) } else { Filter::default() };
        let found = exact(generation, &keys, 40, &filter);
        for lambda in [0.0, 0.3, 0.5, 0.8, 1.0] {
            for k in [1, 7, 100] {
                let diverse =
                    maximal_marginal_relevance(generation.as_ref(), &found, lambda, k).unwrap();
                for (candidates, chosen) in found.hits.iter().zip(&diverse.hits) {
                    let expected = by_formula(generation, candidates, lambda, k);
                    assert_eq!(hit_ids(chosen), expected, "round {round}, lambda {lambda}, k {k}");
                    let in_order = hit_ids(candidates)[..chosen.len()] == hit_ids(chosen)[..];
                    assert!(in_order || lambda < 1.0);
                    differs_from_search += usize::from(!in_order);
                }
            }
        }
    }
    assert!(differs_from_search > 100, "{differs_from_search}");
}

/// A memory with these keys of width 2, whose ids are 0, 1, …
fn memory_of(keys: &[[f32; 2]]) -> (tempfile::TempDir, Writer) {
    let format = MemoryFormat { width: 2, normalised: true, values: None };
    temporary(format, bare(0, keys.concat(), 2))
}

#[test]
fn near_copies_give_way_to_another_entry() {
    // Entries 0 to 2 are almost the same; 3 is less relevant, but different.
    let (_folder, writer) = memory_of(&[[1.0, 0.0], [1.0, 0.01], [1.0, 0.02], [0.7, -0.7]]);
    let generation = writer.generation();
    let found = exact(generation, &[1.0, -0.2], 4, &Filter::default());
    assert_eq!(hit_ids(&found.hits[0]), [0, 1, 2, 3]);
    let diverse = maximal_marginal_relevance(generation.as_ref(), &found, 0.5, 2).unwrap();
    assert_eq!(hit_ids(&diverse.hits[0]), [0, 3]);
    // The hits keep the scores of the search.
    assert_eq!(diverse.hits[0][1], found.hits[0][3]);
}

#[test]
fn thousands_of_equal_keys_are_chosen_by_id() {
    let (_folder, writer) = memory_of(&[[0.6, 0.8]; 3000]);
    let generation = writer.generation();
    let found = exact(generation, &[1.0, 0.0, 0.0, 1.0], 2000, &Filter::default());
    let diverse = maximal_marginal_relevance(generation.as_ref(), &found, 0.4, 50).unwrap();
    for hits in &diverse.hits {
        assert_eq!(hit_ids(hits), (0..50).collect::<Vec<_>>());
    }
}

#[test]
fn an_invalid_lambda_and_other_generations_are_refused() {
    let (_folder, mut writer) = memory_of(&[[1.0, 0.0], [0.0, 1.0]]);
    let before = std::sync::Arc::clone(writer.generation());
    let found = exact(&before, &[1.0, 0.0], 2, &Filter::default());
    for lambda in [-0.1, 1.1, f64::NAN] {
        assert_refused(maximal_marginal_relevance(before.as_ref(), &found, lambda, 1), ["0 to 1"]);
    }
    writer.delete(&[0]).unwrap();
    assert_refused(
        maximal_marginal_relevance(writer.generation().as_ref(), &found, 0.5, 1),
        ["the generation of the candidates is 1"],
    );
}

#[test]
fn a_minimum_score_keeps_equal_and_higher_scores() {
    let (_folder, writer) = memory_of(&[[1.0, 0.0], [0.6, 0.8], [0.6, -0.8], [-1.0, 0.0]]);
    let found = exact(writer.generation(), &[1.0, 0.0, 0.0, 1.0], 4, &Filter::default());
    let at_least = |score: f32| ids(&found.clone().with_min_score(score));
    assert_eq!(at_least(-1.0), [vec![0, 1, 2, 3], vec![1, 0, 3, 2]]);
    assert_eq!(at_least(0.6), [vec![0, 1, 2], vec![1]]);
    assert_eq!(at_least(0.61), [vec![0], vec![1]]);
    assert_eq!(at_least(1.1), [[0i64; 0]; 2]);
}
