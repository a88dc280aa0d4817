//! Reads published configurations, and checks the values that all encoders share.

use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{ModelError, Result};

/// Reads a published `config.json` of this `model_type` and validates it; errors name the file.
pub(crate) fn read_published<C: DeserializeOwned>(
    path: &Path,
    model_type: &str,
    validate: impl FnOnce(&C) -> Result<()>,
) -> Result<C> {
    #[derive(Deserialize)]
    struct ModelType {
        model_type: String,
    }
    let text = engram_durable::read_text(path)
        .map_err(|source| ModelError::Io { path: path.to_path_buf(), source })?;
    let bad_config =
        |reason: String| ModelError::BadConfig { what: path.display().to_string(), reason };
    let ModelType { model_type: found } =
        serde_json::from_str(&text).map_err(|e| bad_config(e.to_string()))?;
    if found != model_type {
        return Err(bad_config(format!("model_type is `{found}`; expected `{model_type}`")));
    }
    refuse_quantised(&text, &path.display().to_string())?;
    let config = serde_json::from_str(&text).map_err(|e| bad_config(e.to_string()))?;
    in_file(path, validate(&config))?;
    Ok(config)
}

/// What a model is that has codes in the place of weights, and what to do.
pub(crate) const UNQUANTISED: &str = "a quantised model of a kind that is not supported; give the \
     folder of the original model, or dequantise it and save it again";

/// The methods whose codes [`Weights`](crate::weights::Weights) dequantises.
const DEQUANTISED: [&str; 6] =
    ["awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq"];

/// Refuses the `config.json` of a model of transformers or MLX that is quantised by a method other
/// than [`DEQUANTISED`]; `name` names the file.
pub(crate) fn refuse_quantised(text: &str, name: &str) -> Result<()> {
    let config: Value = serde_json::from_str(text).unwrap_or_default();
    for key in ["quantization_config", "compression_config", "quantization"] {
        if config[key].as_object().is_some_and(|settings| !settings.is_empty()) {
            let method = config[key]["quant_method"].as_str().unwrap_or("an unknown method");
            let is_old =
                ["load_in_8bit", "load_in_4bit"].iter().any(|old| config[key][old] == true);
            if DEQUANTISED.contains(&method) || is_old {
                continue;
            }
            return Err(bad_field(name, format!("`{key}` with {method} belongs to {UNQUANTISED}")));
        }
    }
    Ok(())
}

/// Adds the file's name to an error of a configuration check.
pub(crate) fn in_file(path: &Path, checked: Result<()>) -> Result<()> {
    checked.map_err(|error| match error {
        ModelError::BadConfig { what, reason } => ModelError::BadConfig {
            what: path.display().to_string(),
            reason: format!("`{what}`: {reason}"),
        },
        other => other,
    })
}

/// Returns the error for a field of a configuration.
pub(crate) fn bad_field(what: &str, reason: impl Into<String>) -> ModelError {
    ModelError::BadConfig { what: what.to_string(), reason: reason.into() }
}

/// Returns an error for a field of a configuration unless the condition holds.
pub(crate) fn require<R: Into<String>>(
    holds: bool,
    what: &str,
    reason: impl FnOnce() -> R,
) -> Result<()> {
    if holds { Ok(()) } else { Err(bad_field(what, reason())) }
}

/// The largest accepted number of rows or channels.
const MAX_SIZE: usize = 1 << 24;

/// The largest accepted number of blocks.
const MAX_LAYERS: usize = 1 << 12;

/// Returns an error if a size is 0 or too large.
pub(crate) fn check_sizes(sizes: &[(&str, usize)]) -> Result<()> {
    sizes.iter().try_for_each(|(what, size)| {
        let fits = (1..=MAX_SIZE).contains(size);
        require(fits, what, || format!("{size} is not between 1 and {MAX_SIZE}"))
    })
}

/// Returns an error if there are too many blocks.
pub(crate) fn check_layers(what: &str, layers: usize) -> Result<()> {
    require(layers <= MAX_LAYERS, what, || format!("{layers} is more than {MAX_LAYERS}"))
}

/// Returns an error unless the width is a multiple of the number of heads.
pub(crate) fn check_heads(width: usize, heads: usize) -> Result<()> {
    let fits = heads > 0 && width > 0 && width.is_multiple_of(heads);
    require(fits, "num_attention_heads", || {
        format!("hidden_size {width} is not a multiple of {heads} heads")
    })
}

/// Returns an error unless buckets of relative positions fit the distance from which on positions
/// share the last bucket.
pub(crate) fn check_buckets(buckets: usize, max_distance: usize) -> Result<()> {
    let what = "relative_attention_num_buckets";
    let fits = buckets >= 4 && buckets.is_multiple_of(4);
    require(fits, what, || format!("{buckets} is not a multiple of 4"))?;
    require(max_distance > buckets / 2, "relative_attention_max_distance", || {
        format!("must be more than half of the {buckets} buckets")
    })
}

/// Returns an error unless the vocabulary has the token.
pub(crate) fn check_token(what: &str, token: u32, vocab_size: usize) -> Result<()> {
    require((token as usize) < vocab_size, what, || {
        format!("token {token} is not below vocab_size {vocab_size}")
    })
}

/// Returns an error unless the epsilon of a norm is above 0 and below 1.
pub(crate) fn check_epsilon(what: &str, epsilon: f64) -> Result<()> {
    let fits = epsilon > 0.0 && epsilon < 1.0;
    require(fits, what, || format!("{epsilon} is not between 0 and 1"))
}

/// Returns an error unless both values are probabilities below 1.
pub(crate) fn check_dropout(hidden: f64, attention: f64) -> Result<()> {
    check_probability("hidden_dropout_prob", hidden)?;
    check_probability("attention_probs_dropout_prob", attention)
}

/// Returns an error unless `p` is a probability below 1.
pub(crate) fn check_probability(what: &str, p: f64) -> Result<()> {
    require((0.0..1.0).contains(&p), what, || format!("{p} is not a probability below 1"))
}
