//! The transducer (RNN-T, Graves 2012): the decoder of the AVFormer paper's ASR model.
//!
//! A prediction network reads the labels of the text so far. A joint network combines its output
//! with an encoder state, and gives the probability of the next label, or of the blank, which moves
//! on to the next state. [`transducer_loss`] sums over all alignments.
//!
//! Reference: `transformers` 5, `ParakeetForRNNT`. Parameter names equal the names there
//! (`encoder_projector`, `decoder.{embedding,lstm,decoder_projector}`, `joint.head`), so published
//! models load. Departures: the joint network may have another width than the prediction network,
//! as in BEST-RQ (arXiv 2202.01855). Instead of an LSTM, the prediction network may be stateless
//! (arXiv 2109.07513): an embedding and a convolution over the last labels (`decoder.conv`).

mod alignment;
mod beam;
mod config;
mod greedy;
mod prediction;

use candle_core::Tensor;

use crate::error::{Result, bail};
use crate::kernels::{Activation, Mode, activation, pairwise};
use crate::layers::Linear;
use crate::params::ParameterBuilder;
use crate::speech::transducer::transducer_loss;
use crate::speech::{AlignedTargets, AudioStates};
pub use beam::{beam_search, beam_search_paths};
pub use config::{Prediction, TransducerConfig};
pub use greedy::GreedyDecoder;
pub use prediction::{PredictionNetwork, PredictionState};

/// The largest number of logits that are in memory at once if blocks are recomputed.
const LOGITS_PER_BLOCK: usize = 1 << 24;

/// The prediction network and the joint network.
#[derive(Debug, Clone)]
pub struct TransducerDecoder {
    /// The configuration.
    pub config: TransducerConfig,
    /// Projects encoder states to the width of the joint network.
    encoder_projector: Linear,
    /// The prediction network.
    pub prediction: PredictionNetwork,
    head: Linear,
}

impl TransducerDecoder {
    /// Builds the decoder for encoder states of width `encoder_width`. Without published weights,
    /// linear layers are normal with standard deviation `std`.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], and the errors of [`ParameterBuilder::get`].
    pub fn new(
        config: &TransducerConfig,
        encoder_width: usize,
        std: f64,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        config.validate()?;
        let joint = config.joint_width();
        let projector = builder.pp("encoder_projector");
        let head = builder.pp("joint").pp("head");
        Ok(Self {
            encoder_projector: Linear::new(encoder_width, joint, std, &projector)?,
            prediction: PredictionNetwork::new(config, std, &builder.pp("decoder"))?,
            head: Linear::new(joint, config.vocab_size, std, &head)?,
            config: config.clone(),
        })
    }

    /// Returns the joint network's input of encoder states: `[T, D]` → `[T, J]`.
    pub fn project(&self, states: &Tensor, mode: &Mode) -> Result<Tensor> {
        self.encoder_projector.forward(states, mode)
    }

    /// Returns the logits `[N, V]` of pairs of rows: projected encoder states and outputs of the
    /// prediction network, `[N, J]` each.
    pub fn joint(&self, audio: &Tensor, prediction: &Tensor) -> Result<Tensor> {
        let hidden = activation(&(audio + prediction)?, self.config.hidden_act)?;
        self.head.forward(&hidden, &Mode::inference())
    }

    /// Returns the logits `[Σ T_b (U_b + 1), V]` of the lattices of texts with `U_b` labels: row
    /// `t (U_b + 1) + u` of a clip is encoder state `t` after `u` labels.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if the numbers of texts and clips differ.
    pub fn logits(&self, audio: &AudioStates, texts: &[Vec<u32>], mode: &Mode) -> Result<Tensor> {
        check_texts(audio, texts)?;
        let projected = self.project(&audio.states, mode)?;
        let predicted = self.prediction.forward(texts, mode)?;
        let layer = (self.head.clone(), self.config.hidden_act);
        lattice_logits(&layer, [&projected, &predicted], &lattices(audio, texts), mode)
    }

    /// Returns `-log p(text)` of each clip in nats, `[B]`, summed over all alignments. A text
    /// without a path has infinite loss and zero gradient.
    ///
    /// With [`Recompute::Block`](crate::recompute::Recompute::Block), the logits of a few clips at
    /// a time are in memory.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if the numbers of texts and clips differ, and the errors of
    /// [`transducer_loss`].
    pub fn losses(&self, audio: &AudioStates, texts: &[Vec<u32>], mode: &Mode) -> Result<Tensor> {
        check_texts(audio, texts)?;
        let projected = self.project(&audio.states, mode)?;
        let predicted = self.prediction.forward(texts, mode)?;
        let lattices = lattices(audio, texts);
        let layer = (self.head.clone(), self.config.hidden_act);
        let (mut losses, mut first, mut starts) = (Vec::new(), 0, [0, 0]);
        while first < texts.len() {
            let count = self.clips_per_block(&lattices[first..]);
            let lattices = &lattices[first..first + count];
            let rows = lattices.iter().fold([0, 0], |sum, (t, u)| [sum[0] + t, sum[1] + u]);
            let inputs = [
                projected.narrow(0, starts[0], rows[0])?,
                predicted.narrow(0, starts[1], rows[1])?,
            ];
            let (lattices, targets) = (lattices.to_vec(), texts[first..first + count].to_vec());
            let blank = self.config.blank;
            losses.push(mode.block(&layer, &[&inputs[0], &inputs[1]], move |layer, x, mode| {
                let logits = lattice_logits(layer, [&x[0], &x[1]], &lattices, mode)?;
                let lengths = lattices.iter().map(|(frames, _)| *frames).collect();
                let targets = AlignedTargets { lengths, targets: targets.clone(), blank };
                Ok(transducer_loss(&logits, targets)?)
            })?);
            (first, starts) = (first + count, [starts[0] + rows[0], starts[1] + rows[1]]);
        }
        Ok(Tensor::cat(&losses, 0)?)
    }

    /// The number of clips, at least one, whose logits stay below the limit.
    fn clips_per_block(&self, lattices: &[(usize, usize)]) -> usize {
        let (mut logits, vocab_size) = (0usize, self.config.vocab_size);
        let fits = |(frames, rows): &&(usize, usize)| {
            logits = logits.saturating_add(frames * rows * vocab_size);
            logits <= LOGITS_PER_BLOCK
        };
        lattices.iter().take_while(fits).count().max(1)
    }
}

/// Returns the number of frames of each clip, and the number of its labels plus 1.
fn lattices(audio: &AudioStates, texts: &[Vec<u32>]) -> Vec<(usize, usize)> {
    audio.lengths.iter().zip(texts).map(|(frames, text)| (*frames, text.len() + 1)).collect()
}

/// Returns the logits of all pairs of rows of each lattice.
fn lattice_logits(
    (head, hidden_act): &(Linear, Activation),
    [projected, predicted]: [&Tensor; 2],
    lattices: &[(usize, usize)],
    mode: &Mode,
) -> Result<Tensor> {
    head.forward(&pairwise(projected, predicted, *hidden_act, lattices)?, mode)
}

fn check_texts(audio: &AudioStates, texts: &[Vec<u32>]) -> Result<()> {
    audio.check_texts(texts)?;
    if texts.is_empty() {
        bail!("0 texts for 0 clips");
    }
    Ok(())
}
