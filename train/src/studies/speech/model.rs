//! The encoder with its two heads, for CTC and for BEST-RQ.

use std::path::Path;
use std::sync::Arc;

use engram_models::Result;
use engram_models::compute::Compute;
use engram_models::conformer::{ConformerConfig, ConformerCtc, ConformerCtcConfig};
use engram_models::params::{ParameterBuilder, ParameterGroup};
use engram_models::speech::best_rq::{BestRq, BestRqConfig};
use engram_models::weights::Weights;

/// The modules that the study trains.
#[derive(Debug, Clone)]
pub struct SpeechModules {
    /// Parameters below `encoder` and `ctc_head`, as published.
    pub asr_model: ConformerCtc,
    /// Parameters below `best_rq`.
    pub best_rq: BestRq,
}

impl SpeechModules {
    /// Loads a model from a file, frozen.
    ///
    /// # Errors
    /// If the file cannot be read, or belongs to another model.
    pub fn load(
        encoder: &ConformerConfig,
        best_rq: &BestRqConfig,
        vocabulary_size: usize,
        weights: &Path,
    ) -> Result<Self> {
        let frozen = vec![ParameterGroup::all_frozen()];
        let builder = ParameterBuilder::new(0, frozen, &Compute::cpu());
        let weights = Arc::new(Weights::open(weights)?);
        Self::new(encoder, best_rq, vocabulary_size, &builder.with_weights(weights))
    }

    /// Builds a model. Its classes are the tokens of the vocabulary and the blank of CTC.
    ///
    /// # Errors
    /// Errors of the modules.
    pub fn new(
        encoder: &ConformerConfig,
        best_rq: &BestRqConfig,
        vocabulary_size: usize,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let config = ctc_config(encoder, vocabulary_size);
        Ok(Self {
            asr_model: ConformerCtc::new(&config, builder)?,
            best_rq: BestRq::new(best_rq, encoder, &builder.pp("best_rq"))?,
        })
    }
}

/// The configuration of an ASR model with `vocabulary_size` tokens. The blank of CTC is the last
/// class.
pub fn ctc_config(encoder: &ConformerConfig, vocabulary_size: usize) -> ConformerCtcConfig {
    ConformerCtcConfig {
        encoder_config: encoder.clone(),
        vocab_size: vocabulary_size + 1,
        blank: vocabulary_size as u32,
    }
}
