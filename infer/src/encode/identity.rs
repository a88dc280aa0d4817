//! The hashes that identify an encoder.

use engram_data::image::Preprocessing;
use engram_data::tokenizer::TextForm;
use engram_models::similarity::sentence_transformer::Prompts;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::digest;

/// The hashes of a model's files.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    /// The hash of the weights, the modules and `do_lower_case`.
    pub(super) sha256: String,
    /// The hash of [`Inputs`].
    pub(super) inputs_sha256: String,
}

/// The settings and files that change a vector, apart from weights and modules, as JSON.
///
/// A memory stores the hash of this JSON, and refuses a model with another hash. So the JSON of an
/// unchanged model must stay the same: leave out a new field while it has its default value. A test
/// compares a known hash.
pub(super) struct Inputs(Map<String, Value>);

/// Keys that no encoder reads, at any level of a `config.json`.
const UNUSED_KEYS: [&str; 5] =
    ["_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"];

impl Inputs {
    /// Creates the inputs of a model with a `config.json`, given as text.
    pub(super) fn of_config(text: &str) -> Self {
        let mut config = serde_json::from_str(text).unwrap_or_else(|_| text.into());
        remove_unused(&mut config);
        Self(Map::from_iter([("config".to_owned(), config)]))
    }

    /// Creates the inputs of a model without a configuration file, given by its architecture.
    pub(super) fn of_architecture(name: &str) -> Self {
        Self(Map::from_iter([("architecture".to_owned(), name.into())]))
    }

    /// Adds the hash of a `tokenizer.json`, the tokenizer settings for each role (query, document,
    /// or neither), and the prompts.
    pub(super) fn texts(mut self, json: &[u8], forms: &[TextForm], prompts: &Prompts) -> Self {
        self.0.insert("tokenizer".to_owned(), digest::of_bytes(json).into());
        self.add("forms", &forms);
        self.add("prompts", prompts);
        self
    }

    /// Adds the preprocessing of images.
    pub(super) fn images(mut self, preprocessing: &Preprocessing) -> Self {
        self.add("images", preprocessing);
        self
    }

    /// The identity of a model. `sha256` is the hash of its weights and modules.
    pub(super) fn with_weights(self, sha256: String) -> Identity {
        let mut inputs = Value::Object(self.0);
        inputs.sort_all_objects();
        Identity { sha256, inputs_sha256: digest::of_bytes(inputs.to_string()) }
    }

    fn add(&mut self, name: &str, settings: &impl Serialize) {
        // Serialisation only fails for maps with keys other than strings. Settings have none.
        self.0.insert(name.to_owned(), serde_json::to_value(settings).unwrap_or_default());
    }
}

fn remove_unused(config: &mut Value) {
    let Some(config) = config.as_object_mut() else { return };
    config.retain(|key, _| !UNUSED_KEYS.contains(&key.as_str()));
    config.values_mut().for_each(remove_unused);
}
