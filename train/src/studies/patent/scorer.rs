//! Encoder and head of the patent study, built from `[model]`.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use engram_data::tokenizer::SegmentTokenizer;
use engram_data::world::phrases::phrase_tokenizer;
use engram_infer::encode::EncoderFiles;
use engram_models::kernels::Mode;
use engram_models::params::{ParameterBuilder, ParameterGroup, Parameters};
use engram_models::similarity::{BiEncoder, CrossEncoder, CrossEncoderConfig, PairLoss};

use super::sequences::Input;
use super::settings::{Layout, PatentModel};
use crate::study::StudyResult;

/// The files of the encoder named in `[model]`, or of a fresh one.
pub fn find_files(model: &PatentModel) -> StudyResult<EncoderFiles> {
    if model.weights.is_empty() {
        let tokenizer_json = phrase_tokenizer();
        let tokeniser = SegmentTokenizer::from_bytes("the embedded tokenizer", &tokenizer_json)?;
        let config = model.fresh.config(tokeniser.vocabulary_size(), model.max_tokens);
        let config_json = serde_json::to_string_pretty(&config)?;
        let name = "[model.fresh]".to_string();
        return fitted(EncoderFiles::new(config_json, name, tokenizer_json, tokeniser)?, model);
    }
    fitted(EncoderFiles::find(&model.weights)?, model)
}

/// The encoder files in the folder of a finished run.
pub fn files_of_run(run: &Path, model: &PatentModel) -> StudyResult<EncoderFiles> {
    fitted(EncoderFiles::of_folder(run)?, model)
}

/// Sets the recipe's dropout, and checks that the encoder accepts `max_tokens` tokens.
fn fitted(mut files: EncoderFiles, model: &PatentModel) -> StudyResult<EncoderFiles> {
    let (max_tokens, longest) = (model.max_tokens, files.config.max_length());
    if max_tokens > longest {
        let name = &files.name;
        return Err(format!(
            "model.max_tokens is {max_tokens}, but {name} accepts at most {longest} tokens"
        )
        .into());
    }
    files.config.set_dropout(model.hidden_dropout, model.attention_dropout);
    Ok(files)
}

/// A model that scores rows.
pub enum Scorer {
    /// Encodes both phrases together.
    Cross(CrossEncoder),
    /// Encodes each phrase alone.
    Bi(BiEncoder),
}

impl Scorer {
    /// Builds the model and its parameters.
    pub fn build(
        files: &EncoderFiles,
        model: &PatentModel,
        groups: Vec<ParameterGroup>,
        seed: u64,
    ) -> StudyResult<(Self, Parameters)> {
        let builder = ParameterBuilder::new(seed, groups, DType::F32, &Device::Cpu);
        let encoder = files.build(&builder)?;
        let scorer = if model.layout == Layout::BiEncoder {
            Self::Bi(BiEncoder::new(model.pooling, encoder, &builder)?)
        } else {
            let config = CrossEncoderConfig {
                pooling: model.pooling,
                compare_anchor: model.compare_anchor && model.layout == Layout::Listwise,
                head_dropout: model.head_dropout,
                score_bias: model.loss != PairLoss::Pearson,
            };
            Self::Cross(CrossEncoder::new(config, encoder, &builder)?)
        };
        Ok((scorer, builder.finish()?))
    }

    /// One score per row of the input: `[N]`.
    pub fn score(&self, input: &Input, mode: &Mode) -> StudyResult<Tensor> {
        match (self, input) {
            (Self::Cross(model), Input::Spans(tokens, spans)) => {
                Ok(model.score(tokens, spans, mode)?)
            }
            (Self::Bi(model), Input::Phrases(tokens, pairs)) => {
                Ok(model.score(tokens, pairs, mode)?)
            }
            _ => Err("the input layout does not match the model".into()),
        }
    }
}
