//! The encoder with its decoder and its head for BEST-RQ.

use std::path::Path;
use std::sync::Arc;

use engram_models::Result;
use engram_models::compute::Compute;
use engram_models::conformer::ConformerAsrModel;
use engram_models::params::ParameterBuilder;
use engram_models::speech::best_rq::BestRq;
use engram_models::weights::Weights;

use super::settings::SpeechModel;

/// The modules that the study trains.
#[derive(Debug, Clone)]
pub struct SpeechModules {
    /// Parameters below `encoder` and the decoder's names, as published.
    pub asr_model: ConformerAsrModel,
    /// Parameters below `best_rq`.
    pub best_rq: BestRq,
}

impl SpeechModules {
    /// Loads a model from a file, frozen, to compute on `compute`.
    ///
    /// # Errors
    /// If the file cannot be read, or belongs to another model.
    pub fn load(
        model: &SpeechModel,
        vocabulary_size: usize,
        weights: &Path,
        compute: &Compute,
    ) -> Result<Self> {
        let builder = ParameterBuilder::frozen(compute);
        let weights = Arc::new(Weights::open(weights)?);
        Self::new(model, vocabulary_size, &builder.with_weights(weights))
    }

    /// Builds a model. Its classes are the tokens of the vocabulary and the blank.
    ///
    /// # Errors
    /// Errors of the modules.
    pub fn new(
        model: &SpeechModel,
        vocabulary_size: usize,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let encoder = model.encoder();
        let config = model.decoder.config(&encoder, vocabulary_size);
        Ok(Self {
            asr_model: ConformerAsrModel::new(&config, builder)?,
            best_rq: BestRq::new(&model.best_rq, &encoder, &builder.pp("best_rq"))?,
        })
    }
}
