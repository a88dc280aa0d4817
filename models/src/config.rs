//! What the configurations of all encoders are checked for.

use crate::error::{ModelError, Result};

/// The error of a field.
pub(crate) fn bad_field(what: &str, reason: String) -> ModelError {
    ModelError::BadConfig { what: what.to_string(), reason }
}

/// More rows or channels than this are a mistake in the configuration.
const LARGEST_SIZE: usize = 1 << 24;

/// More blocks than this are a mistake in the configuration.
const MOST_LAYERS: usize = 1 << 12;

/// Fails for a size that is 0 or absurd.
pub(crate) fn check_sizes(sizes: &[(&str, usize)]) -> Result<()> {
    match sizes.iter().find(|(_, size)| !(1..=LARGEST_SIZE).contains(size)) {
        Some((what, size)) => {
            Err(bad_field(what, format!("{size} is not between 1 and {LARGEST_SIZE}")))
        }
        None => Ok(()),
    }
}

/// Fails for an absurd number of blocks.
pub(crate) fn check_layers(layers: usize) -> Result<()> {
    check_layers_of("num_hidden_layers", layers)
}

/// The same where the field has another name.
pub(crate) fn check_layers_of(what: &str, layers: usize) -> Result<()> {
    match layers {
        0..=MOST_LAYERS => Ok(()),
        _ => Err(bad_field(what, format!("{layers} is more than {MOST_LAYERS}"))),
    }
}

/// Fails unless the width can be divided among the heads.
pub(crate) fn check_heads(width: usize, heads: usize) -> Result<()> {
    if heads == 0 || width == 0 || !width.is_multiple_of(heads) {
        let reason = format!("hidden_size {width} is not a multiple of {heads} heads");
        return Err(bad_field("num_attention_heads", reason));
    }
    Ok(())
}

/// Fails unless both are probabilities of dropout.
pub(crate) fn check_dropout(hidden: f64, attention: f64) -> Result<()> {
    for (what, p) in [("hidden_dropout_prob", hidden), ("attention_probs_dropout_prob", attention)]
    {
        if !(0.0..1.0).contains(&p) {
            return Err(bad_field(what, format!("{p} is not a probability below 1")));
        }
    }
    Ok(())
}
