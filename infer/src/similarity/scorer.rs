//! The encoder and head that score phrase pairs.

use std::path::Path;

use candle_core::Tensor;
use engram_data::patent::PhrasePair;
use engram_models::ModelError;
use engram_models::compute::{Compute, to_host};
use engram_models::kernels::Mode;
use engram_models::params::{Lookup, ParameterBuilder};
use engram_models::similarity::{BiEncoder, CrossEncoder, CrossEncoderConfig, PairLoss};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::sequences::{BatchLimits, Input, Sequencer};
use super::settings::{Layout, ScorerSettings};
use crate::encode::EncoderFiles;
use crate::error::Result;
use crate::stop::Stop;

/// The maximum number of tokens per forward pass in prediction. A longer sequence is a batch of its
/// own.
const PREDICT_TOKENS: usize = 2048;

/// A model that scores rows (phrase pairs).
pub enum Scorer {
    /// Encodes both phrases together.
    Cross(CrossEncoder),
    /// Encodes each phrase alone.
    Bi(BiEncoder),
}

impl Scorer {
    /// Builds the model and its parameters: the encoder from published weights if `files` has them,
    /// the other parameters at random.
    ///
    /// # Errors
    /// [`InferError::Model`](crate::InferError::Model)
    pub fn build(
        files: &EncoderFiles,
        settings: &ScorerSettings,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let encoder = files.build(builder)?;
        let scorer = if settings.layout == Layout::BiEncoder {
            Self::Bi(BiEncoder::new(settings.pooling, encoder, builder)?)
        } else {
            let config = CrossEncoderConfig {
                pooling: settings.pooling,
                compare_anchor: settings.compare_anchor && settings.layout == Layout::Listwise,
                head_dropout: settings.head_dropout,
                score_bias: settings.loss != PairLoss::Pearson,
            };
            Self::Cross(CrossEncoder::new(config, encoder, builder)?)
        };
        Ok(scorer)
    }

    /// Builds the frozen model on `compute` and loads its parameters from a weights file.
    ///
    /// # Errors
    /// [`InferError::Model`](crate::InferError::Model), also if the file lacks a parameter.
    pub fn open(sequencer: &Sequencer, weights: &Path, compute: &Compute) -> Result<Self> {
        let builder = ParameterBuilder::frozen(compute);
        let scorer = Self::build(sequencer.files(), sequencer.settings(), &builder)?;
        builder.finish()?.load(weights)?;
        Ok(scorer)
    }

    /// Computes one score per row of the input: `[N]`.
    ///
    /// # Errors
    /// [`InferError::Model`](crate::InferError::Model), also for the input of another layout.
    pub fn score(&self, input: &Input, mode: &Mode) -> Result<Tensor> {
        match (self, input) {
            (Self::Cross(model), Input::Spans(tokens, spans)) => {
                Ok(model.score(tokens, spans, mode)?)
            }
            (Self::Bi(model), Input::Phrases(tokens, pairs)) => {
                Ok(model.score(tokens, pairs, mode)?)
            }
            _ => {
                let reason = "the layout of the input is not the layout of the model";
                Err(ModelError::BadInput(reason.to_owned()).into())
            }
        }
    }

    /// The embedding tables of the encoder, with the ids `[T]` that this input looks up in each.
    ///
    /// # Errors
    /// [`InferError::Model`](crate::InferError::Model) for a position beyond its table.
    pub fn lookups(&self, input: &Input) -> Result<Vec<Lookup<'_>>> {
        let (Input::Spans(tokens, _) | Input::Phrases(tokens, _)) = input;
        let encoder = match self {
            Self::Cross(model) => &model.encoder,
            Self::Bi(model) => &model.encoder,
        };
        Ok(encoder.lookups(tokens)?)
    }

    /// Scores rows, by the mean over [`ScorerSettings::passes`]. Depending on the loss, scores are
    /// probabilities, cosines, or (Pearson loss) unscaled values. For a cross-encoder whose input
    /// has several targets, scores also depend on the other targets of the group. `progress`
    /// receives the number of new scores.
    ///
    /// # Errors
    /// [`InferError::Data`](crate::InferError::Data) for a phrase that cannot be tokenized;
    /// [`InferError::Model`](crate::InferError::Model);
    /// [`InferError::Stopped`](crate::InferError::Stopped)
    pub fn predict(
        &self,
        sequencer: &Sequencer,
        rows: &[PhrasePair],
        stop: &Stop,
        progress: &dyn Fn(usize),
    ) -> Result<Vec<f64>> {
        let settings = sequencer.settings();
        let limits = BatchLimits { rows: usize::MAX, tokens: PREDICT_TOKENS };
        let mut sums = vec![0.0; rows.len()];
        for pass in 0..settings.passes {
            let mut rng = ChaCha8Rng::seed_from_u64(pass as u64);
            for batch in sequencer.batches(rows, limits, &mut rng, false)? {
                stop.check()?;
                let scores = self.score(&batch.input, &Mode::inference())?;
                let scores = to_host(&scores)?;
                for (row, score) in batch.rows.iter().zip(scores) {
                    sums[*row] += logit_to_probability(settings.loss, f64::from(score));
                }
                progress(batch.rows.len());
            }
        }
        let passes = settings.passes as f64;
        Ok(sums.into_iter().map(|sum| sum / passes).collect())
    }
}

/// Converts the score of a model that was trained with a loss of logits (MSE or BCE) to a
/// probability. Scores for other losses stay the same.
fn logit_to_probability(loss: PairLoss, score: f64) -> f64 {
    match loss {
        PairLoss::Mse | PairLoss::Bce => 1.0 / (1.0 + (-score).exp()),
        _ => score,
    }
}
