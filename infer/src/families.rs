//! The families of published models (`families.md`), and what a model's folder contains.

use engram_models::compute::Compute;
use engram_models::mobilenet;
use engram_models::params::ParameterBuilder;
use engram_models::t5::T5;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::asr::AsrModel;
use crate::encode::Encoder;
use crate::error::{InferError, Result};
use crate::pretrained::PretrainedFolder;

/// A family of models.
#[derive(Debug, Clone, Serialize)]
pub struct ModelFamily {
    /// The name of the family.
    pub name: &'static str,
    /// The values of `model_type` in `config.json`; empty for MobileNetV2, which has no such file.
    pub model_types: Vec<&'static str>,
    /// What is encoded as vectors (`texts`, `images`, `texts and images`), `speech` or
    /// `text to text`.
    pub task: &'static str,
    /// Published models on the hub.
    pub examples: Vec<&'static str>,
    /// The commands that train such models; empty if they are only used.
    pub trained_by: &'static str,
    /// The implementation that it is compared with in tests, and what is compared.
    pub compared_with: &'static str,
}

impl ModelFamily {
    /// The families as a Markdown page.
    pub const PAGE: &'static str = include_str!("families.md");

    /// All families: the rows of the table in [`PAGE`](Self::PAGE).
    pub fn all() -> impl Iterator<Item = Self> {
        let rows = Self::PAGE.lines().filter_map(|line| line.strip_prefix("| "));
        rows.skip(1).map(|row| {
            let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('–'));
            let mut cell = || cells.next().unwrap_or_default();
            let list = |cell: &'static str| {
                let items = cell.split(", ").map(|item| item.trim_matches('`'));
                items.filter(|item| !item.is_empty()).collect()
            };
            Self {
                name: cell(),
                model_types: list(cell()),
                task: cell(),
                examples: list(cell()),
                trained_by: cell(),
                compared_with: cell(),
            }
        })
    }

    /// Whether the models give vectors.
    pub(crate) fn is_encoder(&self) -> bool {
        !["speech", "text to text"].contains(&self.task)
    }

    /// The first family that `is_possible` and has the `model_type` of `config`, the content of
    /// `file`. Without a configuration, this is MobileNetV2.
    ///
    /// # Errors
    /// [`InferError::Encoder`] with all possible values of `model_type`.
    pub(crate) fn of_config(
        config: &Map<String, Value>,
        file: String,
        is_possible: fn(&Self) -> bool,
    ) -> Result<Self> {
        let field = |name: &str| config.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = match (field("model_type"), field("position_embedding_type")) {
            ("bert", "alibi") => "bert with alibi positions",
            (kind, _) => kind,
        };
        let mut known = Vec::new();
        for family in Self::all().filter(is_possible) {
            match config.is_empty() {
                true if family.model_types.is_empty() => return Ok(family),
                false if family.model_types.contains(&kind) => return Ok(family),
                _ => known.extend(family.model_types),
            }
        }
        let code = match config.get("auto_map").and_then(|map| map["AutoModel"].as_str()) {
            Some(class) => format!("; the model's own code, `{class}` in `auto_map`, is not run"),
            None => String::new(),
        };
        let reason = format!("model_type `{kind}` is not one of: {}{code}", known.join(", "));
        Err(InferError::Encoder { name: file, reason })
    }

    /// The family of the model in a folder. Checks that the folder has the files of the family, but
    /// does not read the weights.
    ///
    /// # Errors
    /// [`InferError::Encoder`] for an unknown `model_type`; [`InferError::Data`] for a missing
    /// file, and the errors of weights and tokenizers in other formats, with the remedy.
    pub fn of_folder(folder: &PretrainedFolder) -> Result<Self> {
        let (config, model) = match config(folder) {
            Err(_) if folder.optional(mobilenet::WEIGHTS_FILE)?.is_some() => {
                (Map::new(), folder.clone())
            }
            found => found?,
        };
        let family = Self::of_config(&config, model.name_of("config.json"), |_| true)?;
        if !family.model_types.is_empty() {
            model.weights_files()?;
        }
        if family.task != "images" {
            model.tokenizer()?;
        }
        Ok(family)
    }

    /// Loads the model of a folder. Returns its sizes, and what determines its vectors: the modules,
    /// the maximum length of a text, and the prompts.
    ///
    /// # Errors
    /// The errors of the model that is loaded.
    pub fn load(&self, location: &str, compute: &Compute) -> Result<Map<String, Value>> {
        let folder = PretrainedFolder::open(location)?;
        let config = config(&folder).map(|(config, _)| config).unwrap_or_default();
        let mut facts = Map::new();
        let mut add = |name: &str, value: Value| facts.insert(name.to_owned(), value);
        for (name, keys) in SIZES {
            if let Some(size) = keys.iter().find_map(|key| config.get(*key)) {
                add(name, size.clone());
            }
        }
        match self.task {
            "speech" => {
                let seconds = AsrModel::open(location, compute)?.max_seconds();
                add("longest_clip_seconds", seconds.into());
            }
            "text to text" => {
                let config = folder.file("config.json")?;
                let builder = ParameterBuilder::frozen(compute);
                T5::load(config.parent().unwrap_or(&config), &builder)?;
            }
            _ => {
                let encoder = Encoder::open(location, compute)?;
                add("vector_width", encoder.width().into());
                if !encoder.modalities().images {
                    add("modules", encoder.modules().into());
                }
                if let Some(length) = encoder.max_length() {
                    let (prompts, default) = encoder.prompts().all();
                    add("max_length", length.into());
                    add("prompts", serde_json::to_value(prompts).unwrap_or_default());
                    add("default_prompt", default.into());
                }
            }
        }
        Ok(facts)
    }
}

/// The sizes of a model, and their names in the configurations of all families.
const SIZES: [(&str, &[&str]); 4] = [
    ("width", &["hidden_size", "d_model", "dim"]),
    ("blocks", &["num_hidden_layers", "n_layers", "num_layers", "encoder_layers"]),
    ("heads", &["num_attention_heads", "n_heads", "num_heads", "encoder_attention_heads"]),
    ("vocabulary", &["vocab_size"]),
];

/// The configuration, and the folder that has it: that of the first module in `modules.json`.
fn config(folder: &PretrainedFolder) -> Result<(Map<String, Value>, PretrainedFolder)> {
    folder.refuse_ctranslate2()?;
    let modules = folder.optional_text("modules.json")?;
    let modules = modules.and_then(|(text, _)| serde_json::from_str(&text).ok());
    let modules: Value = modules.unwrap_or_default();
    let model = folder.within(modules[0]["path"].as_str().unwrap_or_default());
    let (text, name) = model.text("config.json")?;
    let config = serde_json::from_str(&text).map_err(|error| InferError::Encoder {
        name,
        reason: format!("is not a configuration: {error}; download the file again"),
    })?;
    Ok((config, model))
}

#[cfg(test)]
mod tests {
    use engram_models::text_encoder::Family;

    use super::*;

    #[test]
    fn every_family_of_text_encoders_has_a_row() {
        let rows: Vec<ModelFamily> = ModelFamily::all().collect();
        assert!(rows.iter().all(|row| !row.compared_with.is_empty()), "{rows:?}");
        for model_type in Family::model_types().split(", ") {
            let row = rows.iter().find(|row| row.model_types.contains(&model_type));
            assert_eq!(row.map(|row| row.task), Some("texts"), "{model_type}");
        }
        assert!(rows.iter().any(|row| row.model_types.is_empty() && row.examples.is_empty()));
    }

    #[test]
    fn a_bert_with_alibi_positions_is_of_another_family() {
        for (positions, name) in [("absolute", "BERT"), ("alibi", "jina-embeddings-v2")] {
            let fields = [("model_type", "bert"), ("position_embedding_type", positions)];
            let config = fields.map(|(name, value)| (name.to_owned(), value.into()));
            let config = Map::from_iter(config);
            let family = ModelFamily::of_config(&config, String::new(), |_| true);
            assert_eq!(family.expect("a family").name, name);
        }
    }
}
