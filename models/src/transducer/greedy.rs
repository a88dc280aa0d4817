//! Greedy decoding of whole clips, or of clips that arrive in chunks.

use candle_core::{D, DType, Device, Tensor};

use super::{PredictionState, TransducerDecoder};
use crate::error::{Result, bail};
use crate::kernels::{Mode, log_sum_exp, packed_spans};
use crate::speech::AudioStates;
use crate::speech::decode::BestPath;
use crate::speech::prefixes::nan_logits;

/// At each encoder state, takes the likeliest label until it is the blank, or until
/// `max_symbols_per_step` labels were taken. Ties go to the lowest class. Clips may arrive in
/// chunks, because the texts do not depend on the division into chunks.
#[derive(Debug, Clone)]
pub struct GreedyDecoder<'a> {
    decoder: &'a TransducerDecoder,
    state: PredictionState,
    clips: Vec<Clip>,
}

/// The text of a clip so far.
#[derive(Debug, Clone)]
struct Clip {
    path: BestPath,
    /// The number of encoder states so far.
    states: usize,
    /// The sum of the log probabilities of all decisions, and their number.
    sum: f64,
    decisions: usize,
}

impl<'a> GreedyDecoder<'a> {
    /// Starts the texts of `clips` clips.
    ///
    /// # Errors
    /// The errors of candle.
    pub fn new(decoder: &'a TransducerDecoder, clips: usize) -> Result<Self> {
        let path = BestPath { min_blank_probability: 1.0, ..BestPath::default() };
        let clip = Clip { path, states: 0, sum: 0.0, decisions: 0 };
        let state = decoder.prediction.start(clips)?;
        Ok(Self { decoder, state, clips: vec![clip; clips] })
    }

    /// Decodes the next encoder states of each clip, which may be none.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] for another number of clips, or NaN or infinite logits.
    pub fn push(&mut self, audio: &AudioStates) -> Result<()> {
        if audio.lengths.len() != self.clips.len() {
            let (found, clips) = (audio.lengths.len(), self.clips.len());
            bail!("states of {found} clips, expected {clips}");
        }
        let projected = self.decoder.project(&audio.states, &Mode::inference())?.detach();
        let spans = packed_spans(&audio.lengths);
        for offset in 0..audio.lengths.iter().copied().max().unwrap_or(0) {
            let mut running: Vec<usize> =
                (0..self.clips.len()).filter(|i| audio.lengths[*i] > offset).collect();
            let at_state = running.clone();
            for _ in 0..self.decoder.config.max_symbols_per_step {
                let rows: Vec<usize> = running.iter().map(|i| spans[*i].start + offset).collect();
                running = self.decide(&projected, &rows, &running)?;
                if running.is_empty() {
                    break;
                }
            }
            at_state.into_iter().for_each(|i| self.clips[i].states += 1);
        }
        Ok(())
    }

    /// Returns the texts so far. `states` are counted from the first chunk.
    pub fn paths(&self) -> Vec<BestPath> {
        let path = |clip: &Clip| BestPath {
            mean_log_probability: (clip.sum / clip.decisions.max(1) as f64) as f32,
            ..clip.path.clone()
        };
        self.clips.iter().map(path).collect()
    }

    /// Makes one decision for each of these clips at these rows of the projected states. Returns
    /// the clips that got a label.
    fn decide(
        &mut self,
        projected: &Tensor,
        rows: &[usize],
        running: &[usize],
    ) -> Result<Vec<usize>> {
        let indices = |list: &[usize]| {
            let list: Vec<u32> = list.iter().map(|i| *i as u32).collect();
            Tensor::from_vec(list, rows.len(), projected.device())
        };
        let audio = projected.index_select(&indices(rows)?, 0)?;
        let predicted = self.state.output.index_select(&indices(running)?, 0)?;
        let logits = self.decoder.joint(&audio, &predicted)?.detach();
        let classes = logits.argmax(D::Minus1)?.to_vec1::<u32>()?;
        let logits = logits.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let blank = self.decoder.config.blank;
        let (mut labelled, mut labels) = (Vec::new(), Vec::new());
        for ((i, class), row) in running.iter().zip(classes).zip(&logits) {
            let log_sum = log_sum_exp(row);
            if !log_sum.is_finite() {
                return Err(nan_logits());
            }
            let clip = &mut self.clips[*i];
            let log_probability = row[class as usize] - log_sum;
            clip.sum += f64::from(log_probability);
            clip.decisions += 1;
            let blank_probability = (row[blank as usize] - log_sum).exp();
            let min = clip.path.min_blank_probability.min(blank_probability);
            clip.path.min_blank_probability = min;
            if class != blank {
                clip.path.tokens.push(class);
                clip.path.states.push(clip.states);
                clip.path.log_probabilities.push(log_probability);
                labelled.push(*i);
                labels.push(class);
            }
        }
        if !labelled.is_empty() {
            let next = self.decoder.prediction.advance(&self.state.select(&labelled)?, &labels)?;
            let mut order: Vec<usize> = (0..self.clips.len()).collect();
            labelled.iter().enumerate().for_each(|(j, i)| order[*i] = self.clips.len() + j);
            self.state = self.state.join(&next)?.select(&order)?;
        }
        Ok(labelled)
    }
}
