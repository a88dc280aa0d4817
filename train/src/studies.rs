//! The studies, one module each: data, model, training and evaluation.

pub mod avformer;
mod checks;
pub mod clip;
pub mod patent;
mod reports;
pub mod reveal;
pub mod speech;

use crate::registry::Studies;

/// All studies.
pub const ALL: Studies =
    &[&patent::PATENT, &reveal::REVEAL, &speech::SPEECH, &avformer::AVFORMER, &clip::CLIP];
