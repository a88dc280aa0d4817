//! The hashes that identify an encoder.

use std::fmt::{Debug, Write};

use engram_data::image::Preprocessing;
use engram_data::tokenizer::TextForm;
use engram_models::similarity::sentence_transformer::Prompts;

use crate::digest;

/// The hashes of a model's files.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    /// The hash of the weights and the modules.
    pub(super) sha256: String,
    /// The hash of the other settings that change a vector.
    pub(super) inputs_sha256: String,
}

/// The settings that change a vector, apart from the weights. They are hashed as they are used
/// here, so that other keys of a model's files do not matter.
///
/// Memories store the hash. If the text of an unchanged model changes, its memories refuse it. A
/// test compares a known hash.
pub(super) struct Inputs(String);

impl Inputs {
    /// Starts with a model's configuration.
    pub(super) fn of_config(config: &impl Debug) -> Self {
        Self(format!("config {config:?}\n"))
    }

    /// Adds a tokenizer's content, its use for each role of a text, and the prompts.
    pub(super) fn texts(mut self, tokenizer: &[u8], forms: &[TextForm], prompts: &Prompts) -> Self {
        self.add("tokenizer", &digest::of_bytes(tokenizer));
        self.add("forms", &forms);
        self.add("prompts", prompts);
        self
    }

    /// Adds the preprocessing of images.
    pub(super) fn images(mut self, preprocessing: &Preprocessing) -> Self {
        self.add("images", preprocessing);
        self
    }

    /// The identity of a model with this hash of its weights.
    pub(super) fn with_weights(self, sha256: String) -> Identity {
        Identity { sha256, inputs_sha256: digest::of_bytes(self.0) }
    }

    fn add(&mut self, name: &str, value: &dyn Debug) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{name} {value:?}");
    }
}
