//! Sentence embeddings of a text encoder, as `sentence-transformers` makes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device};
use engram_data::DataError;
use engram_data::tokenise::Tokeniser;
use engram_models::kernels::Mode;
use engram_models::packed::PackedTokens;
use engram_models::params::{ParameterBuilder, ParameterGroup};
use engram_models::similarity::{BiEncoder, Pooling};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::EncoderFiles;
use crate::error::{Result, TrainError};

/// Tokens of a text where its folder does not say how many; what most encoders were trained with.
const USUAL_TOKENS: usize = 512;
/// Tokens in a forward pass.
const BATCH_TOKENS: usize = 4096;

/// An encoder with its pooling and tokeniser.
pub(super) struct TextModel {
    encoder: BiEncoder,
    tokeniser: Arc<Tokeniser>,
    max_tokens: usize,
    width: usize,
}

/// `1_Pooling/config.json`; all ways of pooling that are on.
#[derive(Deserialize)]
#[serde(default)]
struct PublishedPooling {
    pooling_mode_mean_tokens: bool,
    pooling_mode_cls_token: bool,
    pooling_mode_max_tokens: bool,
    pooling_mode_mean_sqrt_len_tokens: bool,
    pooling_mode_weightedmean_tokens: bool,
    pooling_mode_lasttoken: bool,
}

impl Default for PublishedPooling {
    fn default() -> Self {
        Self {
            pooling_mode_mean_tokens: true,
            pooling_mode_cls_token: false,
            pooling_mode_max_tokens: false,
            pooling_mode_mean_sqrt_len_tokens: false,
            pooling_mode_weightedmean_tokens: false,
            pooling_mode_lasttoken: false,
        }
    }
}

impl PublishedPooling {
    fn understood(&self) -> Option<Pooling> {
        let others = self.pooling_mode_max_tokens
            || self.pooling_mode_mean_sqrt_len_tokens
            || self.pooling_mode_weightedmean_tokens
            || self.pooling_mode_lasttoken;
        match (self.pooling_mode_mean_tokens, self.pooling_mode_cls_token, others) {
            (true, false, false) => Some(Pooling::Mean),
            (false, true, false) => Some(Pooling::First),
            _ => None,
        }
    }
}

/// `sentence_bert_config.json`.
#[derive(Deserialize)]
struct PublishedLength {
    max_seq_length: Option<usize>,
}

impl TextModel {
    /// Builds the model; `optional` finds the files that not every folder has.
    pub(super) fn open(
        files: &EncoderFiles,
        optional: &dyn Fn(&str) -> Result<Option<PathBuf>, DataError>,
    ) -> Result<Self> {
        let pooling = match optional("1_Pooling/config.json")? {
            None => Pooling::Mean,
            Some(path) => {
                let published: PublishedPooling = read_json(&path)?;
                published.understood().ok_or_else(|| TrainError::Encoder {
                    name: path.display().to_string(),
                    reason: "asks for another pooling than the mean or the first token; \
                             take a model with one of these"
                        .into(),
                })?
            }
        };
        let longest = match optional("sentence_bert_config.json")? {
            None => None,
            Some(path) => read_json::<PublishedLength>(&path)?.max_seq_length,
        };
        let max_tokens = longest.unwrap_or(USUAL_TOKENS).min(files.config.max_length()).max(3);
        let frozen = vec![ParameterGroup::all_frozen()];
        let builder = ParameterBuilder::new(0, frozen, DType::F32, &Device::Cpu);
        let encoder = files.build(&builder)?;
        let width = encoder.hidden_size();
        let encoder = BiEncoder::new(pooling, encoder, &builder)?;
        Ok(Self { encoder, tokeniser: Arc::clone(&files.tokeniser), max_tokens, width })
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// `[CLS] text [SEP]`.
    pub(super) fn tokens(&self, text: &str) -> Result<Vec<u32>> {
        framed(&self.tokeniser, text, self.max_tokens)
    }

    /// `[N, D]`.
    pub(super) fn embed(&self, texts: &[&[u32]]) -> Result<Vec<f32>> {
        let mut vectors = Vec::with_capacity(texts.len() * self.width);
        for batch in batches_of_tokens(texts) {
            let embedded = self.encoder.embed(&PackedTokens::new(batch), &Mode::predict())?;
            vectors.extend(embedded.flatten_all().and_then(|v| v.to_vec1::<f32>()).map_err(model)?);
        }
        Ok(vectors)
    }
}

/// The tokens of a text between the special ones that start and end it, cut to `longest` in all.
pub(super) fn framed(tokeniser: &Tokeniser, text: &str, longest: usize) -> Result<Vec<u32>> {
    let special = tokeniser.special();
    let piece = tokeniser.encode_with_offsets(text)?.ids;
    let mut ids = vec![special.cls];
    ids.extend(&piece[..piece.len().min(longest.saturating_sub(2))]);
    ids.push(special.sep);
    Ok(ids)
}

/// Runs of texts of at most about [`BATCH_TOKENS`] tokens.
pub(super) fn batches_of_tokens<'a, 'b>(
    texts: &'a [&'b [u32]],
) -> impl Iterator<Item = &'a [&'b [u32]]> {
    let mut rest = texts;
    std::iter::from_fn(move || {
        let mut tokens = 0;
        let fits = |text: &&&[u32]| {
            tokens += text.len();
            tokens <= BATCH_TOKENS
        };
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (batch, others) = rest.split_at(count);
        rest = others;
        (!batch.is_empty()).then_some(batch)
    })
}

pub(super) fn model(error: candle_core::Error) -> TrainError {
    TrainError::Model(error.into())
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).map_err(TrainError::io(path))?;
    serde_json::from_slice(&text).map_err(|error| TrainError::Encoder {
        name: path.display().to_string(),
        reason: format!("is not what a model's folder has under this name: {error}"),
    })
}
