//! Reads published configurations, and checks the values that all encoders share.

use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

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
    let text = std::fs::read_to_string(path)
        .map_err(|source| ModelError::Io { path: path.to_path_buf(), source })?;
    let bad_config =
        |reason: String| ModelError::BadConfig { what: path.display().to_string(), reason };
    let ModelType { model_type: found } =
        serde_json::from_str(&text).map_err(|e| bad_config(e.to_string()))?;
    if found != model_type {
        return Err(bad_config(format!("model_type is `{found}`; expected `{model_type}`")));
    }
    let config = serde_json::from_str(&text).map_err(|e| bad_config(e.to_string()))?;
    in_file(path, validate(&config))?;
    Ok(config)
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
pub(crate) fn bad_field(what: &str, reason: String) -> ModelError {
    ModelError::BadConfig { what: what.to_string(), reason }
}

/// The largest accepted number of rows or channels.
const MAX_SIZE: usize = 1 << 24;

/// The largest accepted number of blocks.
const MAX_LAYERS: usize = 1 << 12;

/// Returns an error if a size is 0 or too large.
pub(crate) fn check_sizes(sizes: &[(&str, usize)]) -> Result<()> {
    match sizes.iter().find(|(_, size)| !(1..=MAX_SIZE).contains(size)) {
        Some((what, size)) => {
            Err(bad_field(what, format!("{size} is not between 1 and {MAX_SIZE}")))
        }
        None => Ok(()),
    }
}

/// Returns an error if there are too many blocks.
pub(crate) fn check_layers(layers: usize) -> Result<()> {
    check_layers_of("num_hidden_layers", layers)
}

/// Like [`check_layers`], for a field of another name.
pub(crate) fn check_layers_of(what: &str, layers: usize) -> Result<()> {
    match layers {
        0..=MAX_LAYERS => Ok(()),
        _ => Err(bad_field(what, format!("{layers} is more than {MAX_LAYERS}"))),
    }
}

/// Returns an error unless the width is a multiple of the number of heads.
pub(crate) fn check_heads(width: usize, heads: usize) -> Result<()> {
    if heads == 0 || width == 0 || !width.is_multiple_of(heads) {
        let reason = format!("hidden_size {width} is not a multiple of {heads} heads");
        return Err(bad_field("num_attention_heads", reason));
    }
    Ok(())
}

/// Returns an error unless the epsilon of a norm is above 0 and below 1.
pub(crate) fn check_epsilon(what: &str, epsilon: f64) -> Result<()> {
    if !(epsilon > 0.0 && epsilon < 1.0) {
        return Err(bad_field(what, format!("{epsilon} is not between 0 and 1")));
    }
    Ok(())
}

/// Returns an error unless both values are probabilities below 1.
pub(crate) fn check_dropout(hidden: f64, attention: f64) -> Result<()> {
    check_probability("hidden_dropout_prob", hidden)?;
    check_probability("attention_probs_dropout_prob", attention)
}

/// Returns an error unless `p` is a probability below 1.
pub(crate) fn check_probability(what: &str, p: f64) -> Result<()> {
    if (0.0..1.0).contains(&p) {
        Ok(())
    } else {
        Err(bad_field(what, format!("{p} is not a probability below 1")))
    }
}
