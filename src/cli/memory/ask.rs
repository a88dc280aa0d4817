//! Queries in words or by picture.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use engram_memory::{Generation, MemoryError};
use engram_train::encode::{Item, JointEncoder, PromptChoice};
use rayon::prelude::*;
use serde::Deserialize;

use super::encoded::{check_model, kinds, prompt_choice};

/// Queries that are encoded together.
const BATCH: usize = 64;

/// What is asked in words or by picture.
#[derive(Debug, Args)]
pub(super) struct Question {
    /// Search by these words
    #[arg(long, value_name = "TEXT", conflicts_with = "queries")]
    text: Option<String>,
    /// Search by this picture; with --text, by both together
    #[arg(long, value_name = "FILE", conflicts_with = "queries")]
    image: Option<PathBuf>,
    /// A query a line; in a .jsonl file, an object a line with `text` or `question`, and `image`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["queries", "text", "image"])]
    texts: Option<PathBuf>,
    /// The model that encodes the query, a folder or hf://owner/name; without it, the one that made the memory
    #[arg(long, value_name = "MODEL", conflicts_with = "queries")]
    model: Option<String>,
    /// The model of pictures beside a --model of texts alone
    #[arg(long, value_name = "MODEL", requires = "model", conflicts_with = "queries")]
    image_model: Option<String>,
    /// The prompt of the model before each query, by its name in config_sentence_transformers.json; '' for none. Without
    /// it, the prompt `query`
    #[arg(long, value_name = "NAME", conflicts_with = "queries")]
    prompt: Option<String>,
}

/// A query.
struct Query {
    text: Option<String>,
    picture: Option<PathBuf>,
    /// Where it stands.
    place: String,
}

impl Question {
    /// The queries as vectors, `[queries, width]`.
    pub(super) fn encode(&self, generation: &Generation) -> anyhow::Result<Vec<f32>> {
        let queries = self.queries()?;
        let encoder = self.encoder(generation)?;
        check_model(&encoder, generation)?;
        let (modalities, expected) = (encoder.modalities(), generation.manifest().width);
        if encoder.width() != expected {
            let (what, found) = ("queries".to_owned(), encoder.width());
            return Err(MemoryError::Width { what, expected, found }.into());
        }
        for Query { text, picture, place } in &queries {
            let asked = [
                (text.is_some(), modalities.text, "text"),
                (picture.is_some(), modalities.images, "picture"),
            ];
            if let Some((.., what)) = asked.iter().find(|(has, supported, _)| *has && !supported) {
                let known = kinds(modalities);
                anyhow::bail!(
                    "{place}: a {what}, but the model encodes {known} alone; ask by that"
                );
            }
        }
        let mut vectors = Vec::with_capacity(queries.len() * expected);
        for batch in queries.chunks(BATCH) {
            let prepare = |query: &Query| {
                let (text, picture) = (query.text.as_deref(), query.picture.as_deref());
                encoder.prepare(Item { text, image: picture })
            };
            let prepared: Vec<_> = batch.par_iter().map(prepare).collect();
            let items = prepared.into_iter().zip(batch);
            let items = items.map(|(item, query)| item.with_context(|| query.place.clone()));
            vectors.extend(encoder.encode(&items.collect::<anyhow::Result<Vec<_>>>()?)?);
        }
        Ok(vectors)
    }

    /// The model that was named, else the one that the memory was made with.
    fn encoder(&self, generation: &Generation) -> anyhow::Result<JointEncoder> {
        let prompt = prompt_choice(self.prompt.as_deref(), PromptChoice::Query);
        if let Some(model) = &self.model {
            return Ok(JointEncoder::open(model, self.image_model.as_deref(), &prompt)?);
        }
        let folder = generation.folder().display();
        let encoders = &generation.manifest().encoders;
        let Some(first) = encoders.first() else {
            anyhow::bail!("{folder} does not say which model made its keys; name it by --model");
        };
        let second = encoders.get(1).map(|encoder| encoder.name.as_str());
        JointEncoder::open(&first.name, second, &prompt)
            .with_context(|| format!("the model that made {folder}; name another place by --model"))
    }

    fn queries(&self) -> anyhow::Result<Vec<Query>> {
        let Some(path) = &self.texts else {
            let place = match (&self.text, &self.image) {
                (Some(_), _) => "--text".to_owned(),
                _ => "--image".to_owned(),
            };
            let (text, picture) = (self.text.clone(), self.image.clone());
            if text.as_deref().is_some_and(|text| text.trim().is_empty()) {
                anyhow::bail!("--text is empty; say what to look for");
            }
            return Ok(vec![Query { text, picture, place }]);
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("{}: could not be read as text", path.display()))?;
        let json = path.extension().is_some_and(|extension| extension == "jsonl");
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let mut queries = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let place = format!("{}:{line}", path.display());
            if text.trim().is_empty() {
                anyhow::bail!("{place}: an empty line; write a query on each line");
            }
            queries.push(match json {
                true => json_query(text, path, place)?,
                false => Query { text: Some(text.to_owned()), picture: None, place },
            });
        }
        if queries.is_empty() {
            anyhow::bail!("{}: no query in it; write one on each line", path.display());
        }
        Ok(queries)
    }
}

/// A query of a line of JSON; the path of a picture begins in the file's folder.
fn json_query(line: &str, file: &Path, place: String) -> anyhow::Result<Query> {
    #[derive(Deserialize)]
    struct Line {
        text: Option<String>,
        question: Option<String>,
        image: Option<PathBuf>,
    }
    let remedy = "write an object with `text` or `question`, or `image`, or both";
    let read: Line =
        serde_json::from_str(line).with_context(|| format!("{place}: is no query; {remedy}"))?;
    let text = read.text.or(read.question).filter(|text| !text.trim().is_empty());
    let picture = read.image.map(|image| file.parent().unwrap_or(Path::new("")).join(image));
    if text.is_none() && picture.is_none() {
        anyhow::bail!("{place}: asks nothing; {remedy}");
    }
    Ok(Query { text, picture, place })
}
