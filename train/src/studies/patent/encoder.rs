//! The encoder that a member starts from.

use engram_data::tokenizer::SegmentTokenizer;
use engram_data::world::phrases::phrase_tokenizer;
use engram_infer::encode::EncoderFiles;
use engram_infer::similarity::settings::ScorerSettings;

use crate::error::{Result, TrainError};

/// The files of the encoder named in `[model]`, or of a new encoder with random weights. The
/// configuration gets the recipe's dropout.
pub(super) fn find_files(settings: &ScorerSettings) -> Result<EncoderFiles> {
    let mut files = if settings.weights.is_empty() {
        new_encoder_files(settings)?
    } else {
        EncoderFiles::find(&settings.weights)?
    };
    settings.check_fits(&files)?;
    files.config.set_dropout(settings.hidden_dropout, settings.attention_dropout);
    Ok(files)
}

/// The files of a new encoder with random weights and the embedded tokenizer.
fn new_encoder_files(settings: &ScorerSettings) -> Result<EncoderFiles> {
    let tokenizer_json = phrase_tokenizer();
    let tokenizer = SegmentTokenizer::from_bytes("the embedded tokenizer", &tokenizer_json)?;
    let config = settings.fresh.config(tokenizer.vocabulary_size(), settings.max_tokens);
    let config_json = serde_json::to_string_pretty(&config)
        .map_err(TrainError::in_study(super::NAME, "the encoder's configuration"))?;
    let name = "[model.fresh]".to_owned();
    Ok(EncoderFiles::new(config_json, name, tokenizer_json, tokenizer)?)
}
