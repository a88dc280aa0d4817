//! Compares CTC prefix beam search with the sum over all paths of small clips, with greedy decoding
//! and with bonuses computed by hand.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use engram_models::generation::boosting::{
    Bonus, BoostState, BoostTree, BrokenMatch, WordBoundaries,
};
use engram_models::speech::ctc_beam::{
    BeamSearchOptions, Hypothesis, beam_search, beam_search_paths,
};
use engram_models::speech::decode::{BestPath, forced_alignment, greedy_paths};
use engram_models::{ModelError, Result};

use super::reference::numbers;
use super::speech_losses::{labels_of_path, sequences};

type Rows = Vec<Vec<f32>>;

/// Returns irregular logits between -`size` and `size`.
fn rows(states: usize, classes: usize, size: f64, seed: usize) -> Rows {
    let numbers = numbers(states * classes, seed as u64);
    let row = |row: &[f64]| row.iter().map(|number| (size * number) as f32).collect();
    numbers.chunks(classes).map(row).collect()
}

/// Returns one row per class of the path, with nearly all probability on that class.
fn peaked_rows(path: &[u32], classes: usize) -> Rows {
    let row =
        |best: &u32| (0..classes).map(|v| if v as u32 == *best { 9.0 } else { 0.0 }).collect();
    path.iter().map(row).collect()
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let sum: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
    row.iter().map(|v| f64::from(*v) - sum.ln()).collect()
}

/// For each text: the probability over all its paths, the best path, and that path's probability.
fn all_texts(rows: &Rows, blank: u32) -> HashMap<Vec<u32>, (f64, Vec<u32>, f64)> {
    let classes = rows.first().map_or(0, Vec::len);
    let log_probabilities: Vec<Vec<f64>> = rows.iter().map(|row| log_softmax(row)).collect();
    let mut texts = HashMap::new();
    for path in sequences(rows.len(), classes) {
        let steps = path.iter().zip(&log_probabilities).map(|(class, row)| row[*class as usize]);
        let log_probability: f64 = steps.sum();
        let text = labels_of_path(&path, blank);
        let entry = texts.entry(text).or_insert((0.0, Vec::new(), f64::NEG_INFINITY));
        entry.0 += log_probability.exp();
        if log_probability > entry.2 {
            (entry.1, entry.2) = (path, log_probability);
        }
    }
    texts
}

/// A tree in which each token is a letter and token 3 is a space.
fn tree(words: &[&[u32]], weight: f32) -> BoostTree {
    let bonus = Bonus { begin: weight / 2.0, next: weight };
    BoostTree::new(words, bonus, Arc::new(WordBoundaries::from_tokens(["a", "b", "c", " "])))
}

/// Returns the state after a text, and the sum of the bonuses of its tokens.
fn advance(tree: &BoostTree, tokens: &[u32]) -> (BoostState, f64) {
    tokens.iter().fold((BoostState::default(), 0.0), |(state, sum), token| {
        let (next, bonus) = tree.advance(state, *token, BrokenMatch::ReturnBonus);
        (next, sum + f64::from(bonus))
    })
}

/// Returns the total bonus of boosted words in a complete text.
fn bonus(tree: &BoostTree, tokens: &[u32]) -> f64 {
    let (state, sum) = advance(tree, tokens);
    sum + f64::from(tree.final_bonus(state))
}

#[test]
fn enough_beams_find_every_text_with_its_probability() -> Result<()> {
    let words = tree(&[&[0, 1], &[1], &[2, 0, 0]], 0.7);
    for (states, classes) in [(1, 2), (2, 3), (3, 4), (4, 4), (5, 3), (6, 2), (6, 4)] {
        for (seed, blank) in [(1, 0), (2, classes as u32 - 1), (3, 1)] {
            let rows = rows(states, classes, 2.0, seed);
            let all = all_texts(&rows, blank);
            for boost in [None, Some(&words)] {
                let name = format!("{states} states, {classes} classes, seed {seed}");
                let found = beam_search(&rows, blank, 2000, boost)?;
                assert_eq!(found.len(), all.len(), "{name}");
                for Hypothesis { tokens, log_probability, bonus: bonus_of_text } in &found {
                    let exact = all[tokens].0.ln();
                    assert!((log_probability - exact).abs() < 1e-5, "{name}: {tokens:?}");
                    let exact = boost.map_or(0.0, |tree| bonus(tree, tokens));
                    assert!(
                        (bonus_of_text - exact).abs() < 1e-5,
                        "{name}: {tokens:?}: {bonus_of_text}, {exact}"
                    );
                }
                let score = |text: &Hypothesis| text.log_probability + text.bonus;
                assert!(found.is_sorted_by(|a, b| score(a) >= score(b)), "{name}");
                let best = |(tokens, (sum, ..)): (&Vec<u32>, &(f64, Vec<u32>, f64))| {
                    sum.ln() + boost.map_or(0.0, |tree| bonus(tree, tokens))
                };
                let best = all.iter().map(best).fold(f64::NEG_INFINITY, f64::max);
                assert!((score(&found[0]) - best).abs() < 1e-5, "{name}");
            }
        }
    }
    Ok(())
}

/// A beam adds its probability to another beam that extends it by one token, even if that token is
/// not among the best next tokens of the first beam. With few beams, the probabilities equal
/// those of a search over all tokens.
#[test]
fn pruning_omits_no_relevant_token() -> Result<()> {
    // The reference search: all tokens of all beams, text by text.
    let exhaustive = |rows: &Rows, blank: u32, beams: usize, words: Option<&BoostTree>| {
        let bonus_of_text = |tokens: &[u32]| words.map_or(0.0, |tree| advance(tree, tokens).1);
        let mut texts: Vec<(Vec<u32>, f64, f64)> = vec![(Vec::new(), 1.0, 0.0)];
        for row in rows.iter().map(|row| log_softmax(row)) {
            let mut next: HashMap<Vec<u32>, (f64, f64)> = HashMap::new();
            for (text, ends_in_blank, ends_in_label) in &texts {
                for (class, p) in (0..).zip(row.iter().map(|p| p.exp())) {
                    let total = ends_in_blank + ends_in_label;
                    let extended = [&text[..], &[class]].concat();
                    if class == blank {
                        next.entry(text.clone()).or_default().0 += total * p;
                    } else if text.last() == Some(&class) {
                        next.entry(text.clone()).or_default().1 += ends_in_label * p;
                        next.entry(extended).or_default().1 += ends_in_blank * p;
                    } else {
                        next.entry(extended).or_default().1 += total * p;
                    }
                }
            }
            let mut sorted: Vec<_> = next.into_iter().map(|(text, (b, l))| (text, b, l)).collect();
            let score = |(text, b, l): &(Vec<u32>, f64, f64)| (b + l).ln() + bonus_of_text(text);
            sorted.sort_by(|a, b| score(b).total_cmp(&score(a)));
            sorted.truncate(beams);
            texts = sorted;
        }
        texts.into_iter().map(|(text, b, l)| (text, (b + l).ln())).collect::<HashMap<_, _>>()
    };
    let words = tree(&[&[0, 1], &[9, 8], &[2, 3, 4]], 1.3);
    for seed in 0..40 {
        let (classes, beams) = (12, 1 + seed % 5);
        let (rows, blank) = (rows(9, classes, 3.0, seed), (seed % classes) as u32);
        for boost in [None, Some(&words)] {
            let found = beam_search(&rows, blank, beams, boost)?;
            let reference = exhaustive(&rows, blank, beams, boost);
            assert_eq!(found.len(), reference.len());
            for Hypothesis { tokens, log_probability, .. } in found {
                let exact = reference.get(&tokens).copied().unwrap_or(f64::NAN);
                assert!((log_probability - exact).abs() < 1e-5, "seed {seed}: {tokens:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn forced_alignment_finds_the_most_likely_path_of_a_text() {
    for (states, seed) in [(1, 1), (3, 2), (4, 3), (5, 4)] {
        let (rows, blank) = (rows(states, 3, 2.0, seed), 2);
        for (tokens, (_, path, log_probability)) in all_texts(&rows, blank) {
            let Some(found) = forced_alignment(&rows, &tokens, blank) else {
                panic!("{tokens:?} has the path {path:?}");
            };
            let begins = |t: &usize| path[*t] != blank && (*t == 0 || path[*t - 1] != path[*t]);
            let states: Vec<usize> = (0..path.len()).filter(begins).collect();
            assert_eq!((&found.tokens, &found.states), (&tokens, &states), "{path:?}");
            let mean = log_probability / path.len() as f64;
            assert!((f64::from(found.mean_log_probability) - mean).abs() < 1e-5);
        }
        assert_eq!(forced_alignment(&rows, &vec![0; states], blank).is_some(), states == 1);
    }
    let impossible = vec![vec![f32::NEG_INFINITY, 0.0]];
    assert_eq!(forced_alignment(&impossible, &[0], 1), None);
    assert_eq!(forced_alignment(&[], &[0], 1), None);
    let empty_path = BestPath { min_blank_probability: 1.0, ..BestPath::default() };
    assert_eq!(forced_alignment(&[], &[], 1), Some(empty_path));
}

/// Returns the best path of each clip.
fn search_paths(
    clips: &[&Rows],
    blank: u32,
    searches: &[BeamSearchOptions],
) -> Result<Vec<BestPath>> {
    let lengths: Vec<usize> = clips.iter().map(|rows| rows.len()).collect();
    let packed: Rows = clips.iter().flat_map(|rows| rows.to_vec()).collect();
    beam_search_paths(&Tensor::new(packed, &Device::Cpu)?, &lengths, blank, searches)
}

/// Clips of a batch with different searches give the same results as alone. An empty clip gives an
/// empty text.
#[test]
fn clips_of_a_batch_do_not_affect_each_other() -> Result<()> {
    let clips =
        [rows(7, 4, 3.0, 1), Rows::new(), rows(12, 4, 3.0, 2), peaked_rows(&[0, 0, 3, 0, 1], 4)];
    let search = |num_beams, boost: Option<BoostTree>| BeamSearchOptions {
        num_beams,
        boost: boost.map(Arc::new),
    };
    let searches = [
        search(3, None),
        search(4, Some(tree(&[&[0, 1]], 1.0))),
        search(1, Some(tree(&[&[2, 2]], 9.0))),
        search(5, None),
    ];
    let together = search_paths(&clips.each_ref(), 3, &searches)?;
    for ((clip, search), path) in clips.iter().zip(&searches).zip(&together) {
        if !clip.is_empty() {
            let alone = search_paths(&[clip], 3, std::slice::from_ref(search))?;
            assert_eq!(alone, std::slice::from_ref(path));
        }
    }
    assert_eq!(together[1], BestPath { min_blank_probability: 1.0, ..BestPath::default() });
    assert!(together[2].tokens.windows(2).any(|pair| pair == [2, 2]), "{:?}", together[2]);
    // One beam without boosted words gives the best path, whatever the probability of its text.
    let logits = Tensor::new(clips[0].clone(), &Device::Cpu)?;
    let greedy = greedy_paths(&logits, &[7], 3)?;
    for boost in [None, Some(tree(&[], 5.0))] {
        assert_eq!(search_paths(&[&clips[0]], 3, &[search(1, boost)])?, greedy);
    }
    // If one path has nearly all probability, any number of beams finds it.
    let (logits, blank) = (Tensor::new(clips[3].clone(), &Device::Cpu)?, 3);
    for beams in [2, 8, 64] {
        let path = search_paths(&[&clips[3]], 3, &[search(beams, None)])?;
        assert_eq!(path, greedy_paths(&logits, &[5], blank)?, "{beams} beams");
    }
    assert!(search_paths(&[&clips[0]], 3, &[]).is_err());
    Ok(())
}

/// Three states: `a` or `b` with probabilities 0.6 and 0.4, a blank, then `c` or a blank. The
/// boosted word is `bc`.
#[test]
fn a_word_is_transcribed_if_its_bonus_exceeds_its_cost() -> Result<()> {
    let (half, impossible) = (0.5f32.ln(), f32::NEG_INFINITY);
    let rows = vec![
        vec![0.6f32.ln(), 0.4f32.ln(), impossible, impossible, impossible],
        vec![impossible, impossible, impossible, impossible, 0.0],
        vec![impossible, impossible, half, impossible, half],
    ];
    // The probability is 0.3 for `ac` and `a`, and 0.2 for `bc` and `b`.
    let transcribe = |weight: f32| beam_search(&rows, 4, 8, Some(&tree(&[&[1, 2]], weight)));
    let costs = (0.3f64 / 0.2).ln();
    for (weight, expected) in [(0.0, &[0][..]), (0.26, &[0]), (0.28, &[1, 2]), (3.0, &[1, 2])] {
        let found = transcribe(weight)?;
        assert_eq!(found[0].tokens, expected, "bonus {weight}, cost {costs}");
        assert_eq!(found.len(), 4);
        for text in found {
            // `b` is not a complete word, so its bonus is returned.
            let bonus = if text.tokens == [1, 2] { 1.5 * f64::from(weight) } else { 0.0 };
            assert!((text.bonus - bonus).abs() < 1e-6, "{text:?}");
            let exact = if text.tokens[0] == 0 { 0.3f64 } else { 0.2 };
            assert!((text.log_probability - exact.ln()).abs() < 1e-6, "{text:?}");
        }
    }
    Ok(())
}

#[test]
fn impossible_texts_are_not_found_and_nan_is_an_error() -> Result<()> {
    let impossible = f32::NEG_INFINITY;
    // The only possible path is `a`, `a` again, then a blank or `b`.
    let rows = vec![
        vec![0.0, impossible, impossible],
        vec![0.0, impossible, impossible],
        vec![impossible, 1.0, 1.0],
    ];
    for boost in [None, Some(&tree(&[&[1, 1], &[2]], 50.0))] {
        let found = beam_search(&rows, 2, 16, boost)?;
        let texts: Vec<&[u32]> = found.iter().map(|text| text.tokens.as_slice()).collect();
        assert_eq!(texts, [&[0][..], &[0, 1]]);
        let is_half = |text: &Hypothesis| (text.log_probability - 0.5f64.ln()).abs() < 1e-6;
        assert!(found.iter().all(is_half), "{found:?}");
    }
    for invalid in [f32::NAN, f32::INFINITY, impossible] {
        let rows = vec![vec![0.0, 1.0], vec![invalid, invalid]];
        assert!(
            matches!(beam_search(&rows, 1, 4, None), Err(ModelError::BadInput(_))),
            "{invalid}"
        );
    }
    let empty = beam_search(&[], 0, 4, Some(&tree(&[&[1]], 1.0)))?;
    assert_eq!(empty, [Hypothesis { tokens: Vec::new(), log_probability: 0.0, bonus: 0.0 }]);
    Ok(())
}
