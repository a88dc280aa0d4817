//! The modules after a text encoder.

use std::path::Path;

use candle_core::{D, Device, Tensor};
use serde::Deserialize;

use super::dense::{Dense, DenseConfig, Feature, frozen_builder};
use super::parse_json;
use super::pooling::PoolingConfig;
use crate::config::{bad_field, check_sizes, require};
use crate::error::{ModelError, Result};
use crate::layers::LayerNorm;
use crate::packed::PackedTokens;

/// `eps` of `torch.nn.LayerNorm`.
const LAYER_NORM_EPS: f64 = 1e-5;
/// The smallest norm that `torch.nn.functional.normalize` divides by.
const MIN_NORM: f64 = 1e-12;

/// A module after the text encoder.
#[derive(Debug, Clone)]
pub struct SentenceModule {
    /// The module's `config.json`, or `modules.json` if it has none. Errors start with this name.
    name: String,
    step: Step,
}

/// The operation of a module.
#[derive(Debug, Clone)]
enum Step {
    Pooling(PoolingConfig),
    Dense(Dense),
    Normalize(Feature),
    LayerNorm(LayerNorm, usize),
}

impl SentenceModule {
    /// A Pooling module.
    pub fn pooling(config: PoolingConfig, name: &str) -> Self {
        Self { name: name.to_owned(), step: Step::Pooling(config) }
    }

    /// A Dense module with its weights file.
    ///
    /// # Errors
    /// See [`Weights::open`](crate::weights::Weights::open) and
    /// [`Weights::get`](crate::weights::Weights::get).
    pub fn dense(config: DenseConfig, weights: &Path, name: &str) -> Result<Self> {
        Ok(Self { name: name.to_owned(), step: Step::Dense(Dense::open(config, weights)?) })
    }

    /// A Normalize module. `config` is the text of its `config.json`, or `None` for older versions,
    /// which do not write it.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) if the text is not valid, or the
    /// module's input and output are different features.
    pub fn normalize(config: Option<&str>, name: &str) -> Result<Self> {
        #[derive(Default, Deserialize)]
        struct ConfigFile {
            module_input_name: Option<String>,
            module_output_name: Option<String>,
        }
        let file = match config {
            Some(text) => parse_json(text, name, "the configuration of a Normalize module")?,
            None => ConfigFile::default(),
        };
        let (input, output) = (file.module_input_name, file.module_output_name);
        let feature = Feature::of(input.as_deref(), output.as_deref(), name)?;
        Ok(Self { name: name.to_owned(), step: Step::Normalize(feature) })
    }

    /// A LayerNorm module from the text of its `config.json`, with its weights file.
    ///
    /// # Errors
    /// See [`SentenceModule::dense`].
    pub fn layer_norm(config: &str, weights: &Path, name: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct ConfigFile {
            dimension: usize,
        }
        let ConfigFile { dimension } =
            parse_json(config, name, "the configuration of a LayerNorm module")?;
        check_sizes(&[("dimension", dimension)])
            .map_err(|error| bad_field(name, error.to_string()))?;
        let norm = LayerNorm::new(dimension, LAYER_NORM_EPS, &frozen_builder(weights)?.pp("norm"))?;
        Ok(Self { name: name.to_owned(), step: Step::LayerNorm(norm, dimension) })
    }
}

/// A batch of texts.
#[derive(Debug, Clone)]
pub struct SentenceBatch {
    /// The tokens of the texts.
    pub tokens: PackedTokens,
    /// The number of prompt tokens at the start of each text.
    pub prompt_length: usize,
}

/// Modules that turn the states of a text encoder into one vector.
#[derive(Debug, Clone)]
pub struct SentenceHead {
    modules: Vec<SentenceModule>,
    truncate_dim: Option<usize>,
    width: usize,
}

impl SentenceHead {
    /// Checks the modules after an encoder of width `tokens`. `truncate_dim` keeps only the first components of a vector;
    /// `None` keeps all.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig), with the module, if the widths or
    /// the order of the modules are wrong, or if there is no Pooling module.
    pub fn new(
        mut tokens: usize,
        modules: Vec<SentenceModule>,
        truncate_dim: Option<usize>,
    ) -> Result<Self> {
        let mut sentence = None;
        for SentenceModule { name, step } in &modules {
            let check_width = |width: Option<usize>, expected: usize| {
                let width =
                    width.ok_or_else(|| bad_field(name, "must come after the Pooling module"))?;
                require(width == expected, name, || {
                    format!("takes vectors of width {expected}, but gets {width}")
                })
            };
            match step {
                Step::Pooling(config) => sentence = Some(tokens * config.modes.len()),
                Step::Dense(Dense { config, .. }) => match config.feature {
                    Feature::Tokens => {
                        check_width(Some(tokens), config.in_features)?;
                        tokens = config.out_features;
                    }
                    Feature::Sentence => {
                        check_width(sentence, config.in_features)?;
                        sentence = Some(config.out_features);
                    }
                },
                Step::LayerNorm(_, dimension) => check_width(sentence, *dimension)?,
                Step::Normalize(_) => {}
            }
        }
        let width = sentence.ok_or_else(no_pooling)?;
        let width = truncate_dim.map_or(width, |max_width| max_width.min(width));
        Ok(Self { modules, truncate_dim, width })
    }

    /// The width `D` of the vectors.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether [`SentenceBatch::prompt_length`] matters, because a module does not pool the prompt.
    pub fn needs_prompt_length(&self) -> bool {
        self.modules.iter().any(|module| match &module.step {
            Step::Pooling(config) => !config.include_prompt,
            Step::Dense(_) | Step::Normalize(_) | Step::LayerNorm(..) => false,
        })
    }

    /// Returns the vectors of `S` texts with the states `tokens` `[T, D]`: `[S, D]`.
    ///
    /// # Errors
    /// [`ModelError::Candle`]
    pub fn embed(&self, mut tokens: Tensor, batch: &SentenceBatch) -> Result<Tensor> {
        let mut sentence: Option<Tensor> = None;
        for SentenceModule { step, .. } in &self.modules {
            match step {
                Step::Pooling(config) => sentence = Some(pool_texts(config, &tokens, batch)?),
                Step::Dense(dense) => match (dense.config.feature, &sentence) {
                    (Feature::Sentence, Some(vectors)) => sentence = Some(dense.forward(vectors)?),
                    _ => tokens = dense.forward(&tokens)?,
                },
                Step::Normalize(Feature::Tokens) => tokens = normalise_rows(&tokens)?,
                Step::Normalize(Feature::Sentence) => {
                    sentence = sentence.as_ref().map(normalise_rows).transpose()?;
                }
                Step::LayerNorm(norm, _) => {
                    sentence =
                        sentence.as_ref().map(|vectors| norm.forward(vectors)).transpose()?;
                }
            }
        }
        let vectors = sentence.ok_or_else(no_pooling)?;
        match self.truncate_dim {
            Some(_) => Ok(vectors.narrow(D::Minus1, 0, self.width)?.contiguous()?),
            None => Ok(vectors),
        }
    }
}

fn no_pooling() -> ModelError {
    bad_field("modules.json", "has no Pooling module, so texts have no vector")
}

/// Pools each text into one vector: states `[T, D]` → `[S, modes × D]`.
fn pool_texts(config: &PoolingConfig, states: &Tensor, batch: &SentenceBatch) -> Result<Tensor> {
    let width = states.dim(D::Minus1)?;
    let states = states.flatten_all()?.to_vec1::<f32>()?;
    let spans = batch.tokens.sequences();
    let mut vectors = Vec::with_capacity(spans.len() * width * config.modes.len());
    for span in spans.iter() {
        let text_states = &states[span.start * width..(span.start + span.length) * width];
        vectors.extend(config.pool(text_states, width, batch.prompt_length));
    }
    Ok(Tensor::from_vec(vectors, (spans.len(), width * config.modes.len()), &Device::Cpu)?)
}

/// Divides rows by their norm, like `torch.nn.functional.normalize`.
fn normalise_rows(rows: &Tensor) -> Result<Tensor> {
    let norm = rows.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
    Ok(rows.broadcast_div(&norm.maximum(MIN_NORM)?)?)
}
