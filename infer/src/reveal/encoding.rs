//! Model sizes, data and token sequences: everything that the encoding of entries and questions
//! needs, except weights.

use std::path::Path;
use std::sync::Arc;

use engram_models::compute::Compute;
use engram_models::params::{ParameterBuilder, Parameters};
use engram_models::reveal::{Reveal, RevealConfig};
use engram_models::weights::Weights;

use super::corpus::Corpus;
use super::sequences::Sequencer;
use crate::error::{InferError, Result};

/// The file with the model's sizes, in a run's folder.
pub const MODEL: &str = "model.json";
/// The file with the tokenizer, in a run's folder.
pub const TOKENIZER: &str = "tokenizer.json";

/// The model sizes, entries and sequences for encoding; shared with the thread that refreshes the
/// memory during training.
pub struct Encoding {
    /// The model's sizes.
    pub config: RevealConfig,
    /// The entries.
    pub corpus: Corpus,
    /// The token sequences of the entries, and the tokenizer for questions.
    pub sequencer: Sequencer,
}

impl Encoding {
    /// The names and contents of a run's files [`MODEL`] and [`TOKENIZER`].
    ///
    /// # Errors
    /// The errors of the tokenizer.
    pub fn files(&self) -> Result<[(&'static str, String); 2]> {
        let tokenizer = self.sequencer.tokens().json()?;
        let config = serde_json::to_string_pretty(&self.config);
        let config = config.map_err(|error| InferError::Refused(error.to_string()))?;
        Ok([(MODEL, config), (TOKENIZER, tokenizer)])
    }

    /// Loads the frozen model of a finished run, and checks that all parameters are finite.
    ///
    /// # Errors
    /// The errors of [`Self::load`]; an error that names a parameter that is not finite.
    pub fn load_checked(&self, weights: &Path, compute: &Compute) -> Result<Reveal> {
        let (model, parameters) = self.load_with_parameters(weights, compute)?;
        for parameter in parameters.iter() {
            if parameter.to_vec()?.iter().any(|value| !value.is_finite()) {
                let (file, name) = (weights.display(), parameter.name());
                let remedy = "the file is damaged: restore a copy, or train the run again";
                return Err(format!("{file}: `{name}` is not finite; {remedy}").into());
            }
        }
        Ok(model)
    }

    /// Loads a frozen model from a file.
    ///
    /// # Errors
    /// The file cannot be read, or belongs to another model.
    pub fn load(&self, weights: &Path, compute: &Compute) -> Result<Reveal> {
        Ok(self.load_with_parameters(weights, compute)?.0)
    }

    fn load_with_parameters(
        &self,
        weights: &Path,
        compute: &Compute,
    ) -> Result<(Reveal, Parameters)> {
        let builder =
            ParameterBuilder::frozen(compute).with_weights(Arc::new(Weights::open(weights)?));
        let model = Reveal::new(&self.config, &builder)?;
        Ok((model, builder.finish()?))
    }
}
