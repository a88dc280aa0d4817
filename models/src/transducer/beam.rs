//! Beam search, one encoder state after the other, with merged prefixes.
//!
//! The probability of a text is the sum over all its alignments. At each state, hypotheses emit
//! labels until they take the blank. Hypotheses that have taken the blank become the beams of the
//! next state: equal texts are merged, and the best are kept.
//!
//! Reference: time-synchronous decoding (Saon et al. 2020, "Alignment-length synchronous decoding
//! for RNN transducer", §2). Graves 2012, algorithm 1, instead compares hypotheses with different
//! numbers of blanks. Words can be boosted, as in [`crate::speech::ctc_beam`].

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;

use super::alignment::forced_alignment;
use super::{GreedyDecoder, PredictionState, TransducerDecoder};
use crate::error::Result;
use crate::generation::boosting::{BoostTree, BrokenMatch};
use crate::generation::top_k;
use crate::kernels::{Mode, log_sum_exp};
use crate::speech::AudioStates;
use crate::speech::ctc_beam::{BeamSearchOptions, Hypothesis};
use crate::speech::decode::{BestPath, rows};
use crate::speech::prefixes::{EMPTY, Node, Prefixes, descending, log_add, nan_logits};

/// Returns the best alignment of the best hypothesis of each clip. Each clip is searched
/// independently of the others.
///
/// # Errors
/// [`crate::ModelError::BadInput`] if the numbers of searches and clips differ, and the errors of
/// [`beam_search`].
pub fn beam_search_paths(
    decoder: &TransducerDecoder,
    audio: &AudioStates,
    searches: &[BeamSearchOptions],
) -> Result<Vec<BestPath>> {
    BeamSearchOptions::check(searches, audio.lengths.len())?;
    if searches.iter().all(|search| search.beams().is_none()) {
        let mut greedy = GreedyDecoder::new(decoder, searches.len())?;
        greedy.push(audio)?;
        return Ok(greedy.paths());
    }

    let path = |(clip, search): (AudioStates, &BeamSearchOptions)| {
        let Some(num_beams) = search.beams() else {
            return beam_search_paths(decoder, &clip, std::slice::from_ref(search));
        };
        let best = beam_search(decoder, &clip.states, num_beams, search.boost())?;
        let tokens = best.into_iter().next().ok_or_else(nan_logits)?.tokens;
        let texts = [tokens];
        let logits = decoder.logits(&clip, &texts, &Mode::inference())?.detach();
        let path = forced_alignment(&rows(&logits)?, &texts[0], decoder.config.blank);
        let empty = BestPath { min_blank_probability: 1.0, ..BestPath::default() };
        Ok(vec![path.unwrap_or(empty)])
    };
    let paths =
        audio.clips()?.into_par_iter().zip(searches).map(path).collect::<Result<Vec<_>>>()?;
    Ok(paths.concat())
}

/// Returns the `num_beams` best hypotheses of a clip with encoder states `[T, D]`, ranked by log
/// probability plus bonus, best first. Ties keep the order of discovery.
///
/// A text that needs more than `max_symbols_per_step` labels at one state is not found. The search
/// at a state ends when `num_beams` hypotheses that took the blank score above all others.
///
/// # Errors
/// [`crate::ModelError::BadInput`] if a logit is NaN or plus infinity, or if all logits of a row
/// are minus infinity.
pub fn beam_search(
    decoder: &TransducerDecoder,
    states: &Tensor,
    num_beams: usize,
    boost: Option<&BoostTree>,
) -> Result<Vec<Hypothesis>> {
    let projected = decoder.project(states, &Mode::inference())?.detach();
    let start = decoder.prediction.start(1)?;
    let num_beams = num_beams.max(1);
    let mut search = Search { decoder, num_beams, boost, prefixes: Prefixes::new() };
    let mut beams = Beams { list: vec![Beam { node: EMPTY, log_probability: 0.0 }], state: start };
    for frame in 0..projected.dim(0)? {
        beams = search.advance(&projected.narrow(0, frame, 1)?, beams)?;
    }
    let ends = beams.list.iter().map(|beam| (beam.node, beam.log_probability));
    Ok(search.prefixes.hypotheses(ends, boost))
}

/// A prefix and the log probability of its alignments.
#[derive(Debug, Clone, Copy)]
struct Beam {
    node: usize,
    log_probability: f64,
}

/// Hypotheses, and the prediction network's state of each.
struct Beams {
    list: Vec<Beam>,
    state: PredictionState,
}

struct Search<'a> {
    decoder: &'a TransducerDecoder,
    num_beams: usize,
    boost: Option<&'a BoostTree>,
    prefixes: Prefixes,
}

impl Search<'_> {
    fn score(&self, beam: &Beam) -> f64 {
        beam.log_probability + self.prefixes.nodes[beam.node].bonus
    }

    /// Returns the beams after an encoder state, whose projection `[1, J]` is `audio`.
    fn advance(&mut self, audio: &Tensor, beams: Beams) -> Result<Beams> {
        // The hypotheses that took the blank: each has an index in `states`, the joined states of
        // all hypotheses of this encoder state.
        let mut ended: Vec<(Beam, usize)> = Vec::new();
        let mut states = beams.state.clone();
        let (mut running, mut first) = (beams, 0);
        for symbol in 0..=self.decoder.config.max_symbols_per_step {
            let rows = self.log_probabilities(audio, &running)?;
            let blank = self.decoder.config.blank;
            for (i, (beam, row)) in running.list.iter().zip(&rows).enumerate() {
                let log_probability = beam.log_probability + row[blank as usize];
                match ended.iter_mut().find(|(other, _)| other.node == beam.node) {
                    Some((other, _)) => {
                        other.log_probability = log_add(other.log_probability, log_probability);
                    }
                    None => ended.push((Beam { log_probability, ..*beam }, first + i)),
                }
            }
            let extended = self.extend(&running.list, &rows);
            let best = extended.first().map_or(f64::NEG_INFINITY, |(beam, _)| self.score(beam));
            let better = ended.iter().filter(|(beam, _)| self.score(beam) > best).count();
            let is_last = symbol == self.decoder.config.max_symbols_per_step;
            if is_last || better >= self.num_beams || best == f64::NEG_INFINITY {
                break;
            }
            first += running.list.len();
            let parents: Vec<usize> = extended.iter().map(|(_, parent)| *parent).collect();
            let list: Vec<Beam> = extended.into_iter().map(|(beam, _)| beam).collect();
            let labels: Vec<u32> =
                list.iter().map(|beam| self.prefixes.nodes[beam.node].token).collect();
            let prediction = &self.decoder.prediction;
            let state = prediction.advance(&running.state.select(&parents)?, &labels)?;
            states = states.join(&state)?;
            running = Beams { list, state };
        }
        ended.sort_by(|(a, _), (b, _)| descending(self.score(a), self.score(b)));
        ended.truncate(self.num_beams);
        let indices: Vec<usize> = ended.iter().map(|(_, index)| *index).collect();
        let list = ended.into_iter().map(|(beam, _)| beam).collect();
        Ok(Beams { list, state: states.select(&indices)? })
    }

    /// Returns the log probabilities of all classes after each hypothesis.
    fn log_probabilities(&self, audio: &Tensor, beams: &Beams) -> Result<Vec<Vec<f64>>> {
        let output = &beams.state.output;
        let audio = audio.broadcast_as(output.shape())?.contiguous()?;
        let logits = self.decoder.joint(&audio, output)?.detach();
        let rows = logits.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let row = |row: &Vec<f32>| {
            let log_sum = f64::from(log_sum_exp(row));
            if !log_sum.is_finite() {
                return Err(nan_logits());
            }
            Ok(row.iter().map(|logit| f64::from(*logit) - log_sum).collect())
        };
        rows.iter().map(row).collect()
    }

    /// Returns the best hypotheses with one more label, best first, and the index of the
    /// hypothesis that each extends.
    fn extend(&mut self, beams: &[Beam], rows: &[Vec<f64>]) -> Vec<(Beam, usize)> {
        let blank = self.decoder.config.blank as usize;
        let mut candidates = Vec::new();
        for (i, (beam, row)) in beams.iter().zip(rows).enumerate() {
            let node = self.prefixes.nodes[beam.node];
            let mut scores: Vec<f32> = vec![0.0; row.len()];
            if let Some(tree) = self.boost {
                tree.bonuses(node.boost_state, BrokenMatch::ReturnBonus, &mut scores);
            }
            scores.iter_mut().zip(row).for_each(|(score, value)| *score += *value as f32);
            scores[blank] = f32::NEG_INFINITY;
            // Any other label has `num_beams` better extensions of the same hypothesis.
            for (_, token) in top_k(&scores, self.num_beams) {
                let log_probability = beam.log_probability + row[token as usize];
                if token as usize == blank || log_probability == f64::NEG_INFINITY {
                    continue;
                }
                let (boost_state, token_bonus) = self.boost.map_or(Default::default(), |tree| {
                    tree.advance(node.boost_state, token, BrokenMatch::ReturnBonus)
                });
                let bonus = node.bonus + f64::from(token_bonus);
                let node = Node { parent: beam.node, token, boost_state, bonus };
                candidates.push((log_probability + bonus, log_probability, node, i));
            }
        }
        candidates.sort_by(|a, b| descending(a.0, b.0));
        candidates.truncate(self.num_beams);
        let to_beam = |(_, log_probability, node, i)| {
            (Beam { node: self.prefixes.child(node), log_probability }, i)
        };
        candidates.into_iter().map(to_beam).collect()
    }
}
