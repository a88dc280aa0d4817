//! The encoders of `engram-frozen`, with their tokenizers and image processors.

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use engram_data::tokenizer::SegmentTokenizer;
use engram_frozen::{Family, Texts as FrozenTexts};
use engram_models::packed::PackedTokens;
use serde_json::{Value, json};

use super::identity::Inputs;
use super::images::Images;
use super::layout::Layout;
use super::text::TextModel;
use super::tokenizer::{TextTokens, TokenizerConfig, adapt_tokenizer_json, with_first};
use super::{Parts, Texts};
use crate::error::{InferError, Result};
use crate::pretrained::{PretrainedFolder, TOKENIZER};

/// The file of SigLIP's SentencePiece tokenizer.
const SENTENCEPIECE: &str = "spiece.model";

/// ASCII punctuation, which SigLIP removes from texts.
const PUNCTUATION: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"##;

/// Builds the encoders of a folder with the configuration `config_path`, whose content is `config`.
pub(super) fn open(
    family: Family,
    layout: &Layout,
    config_path: &Path,
    config: &str,
) -> Result<Parts> {
    let folder = layout.transformer();
    let name = config_path.display().to_string();
    let weights = folder.weights()?;
    let mut inputs = Inputs::of_config(config);
    let mut sha256 = weights.sha256.clone();
    let mut processor = None;
    if matches!(family, Family::Siglip | Family::VisionTransformer) {
        layout.check_image_encoder()?;
        let (path, preprocessing) = folder.image_processor()?;
        let Some((height, width)) = preprocessing.output_size() else {
            let reason = "does not produce images of one size; use both files of the same model";
            let (name, reason) = (path.display().to_string(), reason.to_owned());
            return Err(InferError::Encoder { name, reason });
        };
        inputs = inputs.images(&preprocessing);
        processor = Some((preprocessing, (height as usize, width as usize)));
    }
    let encoder = family.open(config, &name, &weights.files, processor.as_ref().map(|it| it.1))?;
    let mut texts = None;
    if let Some(model) = encoder.texts {
        let (tokens, json) = tokenizer(family, layout, &folder, &model)?;
        inputs = inputs.texts(&json, &tokens.forms(), &layout.prompts);
        let model = if family == Family::Siglip {
            siglip_texts(model, &tokens)
        } else {
            let width = model.width;
            let states = Box::new(move |batch: &PackedTokens| {
                let text = |span: &_| model.encode(ids(batch, span));
                let states: Vec<Tensor> =
                    batch.sequences().iter().map(text).collect::<Result<_, _>>()?;
                Ok(Tensor::cat(&states, 0)?)
            });
            let (model, hash) =
                TextModel::with_modules(layout, &tokens, &weights.sha256, width, states)?;
            sha256 = hash;
            model
        };
        texts = Some(Texts::new(model, tokens));
    }
    let images = encoder.images.zip(processor).map(|(model, (preprocessing, size))| {
        let width = model.width;
        let forward = Box::new(move |pixels: &Tensor| Ok(model.encode(pixels)?));
        Images { preprocessing, size, width, batch: Images::BATCH, forward }
    });
    Ok((texts, images, inputs.with_weights(sha256)))
}

/// The tokenizer of a model, and the content of its `tokenizer.json` with the changes that the
/// published tokenizer makes.
fn tokenizer(
    family: Family,
    layout: &Layout,
    folder: &PretrainedFolder,
    model: &FrozenTexts,
) -> Result<(TextTokens, Vec<u8>)> {
    let is_siglip = family == Family::Siglip;
    let settings = layout.settings(is_siglip)?;
    let config = TokenizerConfig::read(folder)?;
    if is_siglip && folder.optional(TOKENIZER)?.is_none() {
        refuse_sentencepiece(folder)?;
    }
    let path = folder.tokenizer()?;
    let json = engram_durable::read_file(&path).map_err(InferError::io(&path))?;
    let (tokenizer, json) = if is_siglip {
        let known = ["Siglip", "Gemma"];
        let config = config.as_ref().filter(|it| known.iter().any(|class| it.has_class(class)));
        let padding = config.and_then(|config| Some((config, config.pad_token()?)));
        let Some((config, padding)) = padding else {
            let name = folder.name_of("tokenizer_config.json");
            let reason = "does not name SigLIP's tokenizer and its `pad_token`; use the file that \
                          was published with the weights";
            return Err(InferError::Encoder { name, reason: reason.to_owned() });
        };
        let json = siglip_json(json, config);
        (SegmentTokenizer::with_padding(&path, &json, padding)?, json)
    } else {
        let json = adapt_tokenizer_json(json, config.as_ref(), settings.do_lower_case);
        (SegmentTokenizer::from_bytes(&path, &json)?, json)
    };
    tokenizer.check_fits(model.vocab_size, None)?;
    let (tokenizer, default_limit) = (Arc::new(tokenizer), model.max_tokens);
    let positions = Some(default_limit);
    Ok((TextTokens { tokenizer, settings, config, default_limit, positions }, json))
}

/// The error for a SigLIP with nothing but a SentencePiece tokenizer, which `save_pretrained` does
/// not convert.
fn refuse_sentencepiece(folder: &PretrainedFolder) -> Result<()> {
    let Some(path) = folder.optional(SENTENCEPIECE)? else { return Ok(()) };
    let (from, to) = (path.display().to_string(), path.with_file_name(TOKENIZER));
    let reason = format!(
        "has no {TOKENIZER} (only {SENTENCEPIECE}); make it (after `pip install transformers \
         sentencepiece protobuf`) with\n  python3 -c 'import transformers as t; \
         s = t.SiglipTokenizer({from:?}); s._extra_ids = 0; \
         t.convert_slow_tokenizer.T5Converter(s).converted().save({:?})'",
        to.display().to_string()
    );
    Err(InferError::Encoder { name: folder.name(), reason })
}

/// Returns the content of SigLIP's `tokenizer.json` with the steps that its tokenizer does before:
/// lower case and, in the first SigLIP, no punctuation and single spaces.
fn siglip_json(json: Vec<u8>, config: &TokenizerConfig) -> Vec<u8> {
    // `SegmentTokenizer` reports invalid JSON later.
    let Ok(mut tokenizer) = serde_json::from_slice::<Value>(&json) else { return json };
    if !tokenizer.is_object() {
        return json;
    }
    let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": content});
    let mut first = Vec::new();
    if config.do_lower_case.unwrap_or(true) {
        first.push(json!({"type": "Lowercase"}));
    }
    if config.has_class("SiglipTokenizer") {
        first.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
        first.extend([replace(PUNCTUATION, ""), replace(r"\s+", " ")]);
        first.push(json!({"type": "Strip", "strip_left": true, "strip_right": true}));
    }
    tokenizer["normalizer"] = with_first(first, tokenizer["normalizer"].take());
    tokenizer.to_string().into_bytes()
}

/// The ids of one text of a batch.
fn ids<'a>(batch: &'a PackedTokens, span: &engram_models::kernels::Span) -> &'a [u32] {
    &batch.ids[span.start..span.start + span.length]
}

/// SigLIP's text encoder. It was trained with texts of one length, so padding is part of its input.
fn siglip_texts(model: FrozenTexts, tokens: &TextTokens) -> TextModel {
    // The first SigLIP pads at the end. The tokenizer of SigLIP 2 pads at the start if its file
    // has no setting.
    let pads_left = tokens
        .config
        .as_ref()
        .is_some_and(|config| config.pads_left(!config.has_class("SiglipTokenizer")));
    let (pad, width) = (tokens.tokenizer.special().pad, model.width);
    let embed = move |batch: &PackedTokens| {
        let mut vectors = Vec::new();
        for span in batch.sequences().iter() {
            let mut padded = vec![pad; model.max_tokens];
            let start = if pads_left { padded.len() - span.length } else { 0 };
            padded[start..start + span.length].copy_from_slice(ids(batch, span));
            vectors.push(model.encode(&padded)?);
        }
        Ok(Tensor::cat(&vectors, 0)?)
    };
    TextModel::new(width, Box::new(embed))
}
