//! Text and image queries.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use engram_infer::encode::{Item, JointEncoder, PromptChoice};
use engram_memory::{Description, MemoryError};
use engram_textfile::base_folder;
use rayon::prelude::*;
use serde::Deserialize;

use super::super::compute::ComputeOptions;
use super::super::paths::{InputFile, InputPath, ModelName};
use super::encode::{check_model, input_kinds, open_own_model, prompt_choice, records};

/// Number of queries to encode in a batch.
const BATCH: usize = 64;

/// Text and image queries, and the model that encodes them.
#[derive(Debug, Args)]
pub(super) struct QueryOptions {
    /// Search for this text
    #[arg(long, value_name = "TEXT", conflicts_with = "queries")]
    text: Option<String>,
    /// Search for this image; with --text, for both together
    #[arg(long, value_name = "FILE", conflicts_with = "queries")]
    image: Option<InputPath>,
    /// Read one text query per line, - is standard input; in a .jsonl file, one object per line
    /// with `text` or `question`, with `image`, or with both
    #[arg(long, value_name = "FILE", conflicts_with_all = ["queries", "text", "image"])]
    texts: Option<InputFile>,
    /// Model that encodes the query, a folder or hf://owner/name; default: the model of the
    /// memory's keys
    #[arg(long, value_name = "MODEL", conflicts_with = "queries")]
    model: Option<ModelName>,
    /// Image encoder, if --model encodes only text
    #[arg(long, value_name = "MODEL", requires = "model", conflicts_with = "queries")]
    image_model: Option<ModelName>,
    /// Name of the prompt before each query, from config_sentence_transformers.json; '' for no
    /// prompt; default: `query`
    #[arg(long, value_name = "NAME", conflicts_with = "queries")]
    prompt: Option<String>,
    #[command(flatten)]
    compute: ComputeOptions,
}

/// A query: a text, an image or both.
pub(super) struct Query {
    pub(super) text: Option<String>,
    image: Option<PathBuf>,
    /// The file and line, or the option, for error messages.
    pub(super) location: String,
}

impl QueryOptions {
    /// Encodes queries: `[queries, width]`.
    pub(super) fn encode(
        &self,
        queries: &[Query],
        memory: &Description,
    ) -> anyhow::Result<Vec<f32>> {
        let encoder = self.encoder(memory)?;
        check_model(&records(&encoder), memory)?;
        let (modalities, expected) = (encoder.modalities(), memory.width);
        if encoder.width() != expected {
            let (what, found) = ("queries".to_owned(), encoder.width());
            return Err(MemoryError::Width { what, expected, found }.into());
        }
        for Query { text, image, location } in queries {
            let parts = [
                (text.is_some(), modalities.text, "a text"),
                (image.is_some(), modalities.images, "an image"),
            ];
            if let Some((.., part)) =
                parts.iter().find(|(is_given, supported, _)| *is_given && !supported)
            {
                let kinds = input_kinds(modalities);
                anyhow::bail!(
                    "{location}: the query has {part}, but the model encodes only {kinds}"
                );
            }
        }
        let mut vectors = Vec::with_capacity(queries.len() * expected);
        for batch in queries.chunks(BATCH) {
            let prepare = |query: &Query| {
                let (text, image) = (query.text.as_deref(), query.image.as_deref());
                encoder.prepare(Item { text, image })
            };
            let prepared: Vec<_> = batch.par_iter().map(prepare).collect();
            let items = prepared.into_iter().zip(batch);
            let items = items.map(|(item, query)| item.with_context(|| query.location.clone()));
            vectors.extend(encoder.encode(&items.collect::<anyhow::Result<Vec<_>>>()?)?);
        }
        Ok(vectors)
    }

    /// Opens `--model`, or the model of the memory's keys.
    fn encoder(&self, memory: &Description) -> anyhow::Result<JointEncoder> {
        let prompt = prompt_choice(self.prompt.as_deref(), PromptChoice::Query);
        let compute = self.compute.open()?;
        if let Some(model) = &self.model {
            let image_model = self.image_model.as_deref();
            return Ok(JointEncoder::open(model, image_model, &prompt, &compute)?);
        }
        open_own_model(memory, &prompt, &compute)
    }

    /// The query of the options, or the queries of `--texts`.
    pub(super) fn queries(&self) -> anyhow::Result<Vec<Query>> {
        let Some(path) = &self.texts else {
            let location = match (&self.text, &self.image) {
                (Some(_), _) => "--text".to_owned(),
                _ => "--image".to_owned(),
            };
            let (text, image) = (self.text.clone(), self.image.as_deref().map(Path::to_path_buf));
            if text.as_deref().is_some_and(|text| text.trim().is_empty()) {
                anyhow::bail!("--text is empty; give a search text");
            }
            return Ok(vec![Query { text, image, location }]);
        };
        engram_textfile::refuse_lfs_pointer_at(path)?;
        let text = engram_durable::read_input_text(path)
            .with_context(|| format!("{}: cannot be read as text", path.display()))?;
        let is_json =
            path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("jsonl"));
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let mut queries = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let location = format!("{}:{line}", path.display());
            if text.trim().is_empty() {
                anyhow::bail!("{location}: the line is empty; write one query per line");
            }
            queries.push(if is_json {
                json_query(text, path, location)?
            } else {
                Query { text: Some(text.to_owned()), image: None, location }
            });
        }
        if queries.is_empty() {
            anyhow::bail!("{}: has no queries; write one query per line", path.display());
        }
        Ok(queries)
    }
}

/// Parses a query from a JSON line. An image path is relative to the file's folder.
fn json_query(line: &str, file: &Path, location: String) -> anyhow::Result<Query> {
    #[derive(Deserialize)]
    struct QueryLine {
        text: Option<String>,
        question: Option<String>,
        image: Option<PathBuf>,
    }
    let remedy = "write an object with `text` or `question`, or `image`, or both";
    let fields: QueryLine = serde_json::from_str(line)
        .with_context(|| format!("{location}: is not a query; {remedy}"))?;
    let text = fields.text.or(fields.question).filter(|text| !text.trim().is_empty());
    let image = fields.image.map(|image| base_folder(file).join(image));
    if text.is_none() && image.is_none() {
        anyhow::bail!("{location}: has no text and no image; {remedy}");
    }
    Ok(Query { text, image, location })
}
