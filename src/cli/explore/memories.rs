//! Memories: their description, and searches in them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use engram_data::audio::read_audio;
use engram_data::world::speech::SAMPLE_RATE;
use engram_infer::encode::{Item, JointEncoder, PromptChoice};
use engram_infer::reveal::answerer::{Evidence, recording};
use engram_memory::generation::Info;
use engram_memory::search::{Filter, Queries};
use engram_memory::{EncoderRecord, Entry, Method, Row, Snapshot, Store};
use engram_models::compute::Compute;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::answers::RevealRun;
use super::discover::{FoundMemory, Run};
use super::images::{ShownImage, file_in};
use super::lazy::LazyRuns;
use super::uploads::{Upload, contains_all, trimmed};
use crate::cli::data::wav;
use crate::cli::memory::{ShownHit, check_model, open_folder, records};
use crate::cli::output;

/// Maximum number of entries in a response.
const MAX_HITS: usize = 200;

/// Number of entries that are read at once.
const ENTRIES_AT_ONCE: usize = 1024;

/// The memories on the page.
pub(super) struct Memories(Vec<SearchableMemory>);

/// A memory with the model that encodes its queries.
struct SearchableMemory {
    name: String,
    memory: Box<dyn Store>,
    /// Base folder for the image paths of entries; `None` if it is unknown.
    images: Option<PathBuf>,
    /// The model of the keys, with its records; `None` before the first query.
    encoder: Mutex<Option<(Vec<EncoderRecord>, Arc<JointEncoder>)>>,
    /// Index of the run that the memory belongs to. The run's model then computes queries and
    /// gates. `None` for other memories.
    run: Option<usize>,
}

/// The description of a memory for the page.
#[derive(Serialize)]
pub(super) struct MemoryDescription {
    /// Index of the memory; identifies it in requests.
    index: usize,
    name: String,
    #[serde(flatten)]
    info: Info,
    /// Whether it can be searched by text, and by an image.
    accepts: QueryKinds,
    /// Index of the run that the memory belongs to; `None` for other memories.
    run: Option<usize>,
}

#[derive(Serialize)]
struct QueryKinds {
    text: bool,
    images: bool,
}

/// A search request; without a query it lists the first entries.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SearchRequest {
    text: String,
    /// An image file in base64.
    pub(super) image: String,
    /// Search for the nearest neighbours of the entry with this id; `None` for other searches.
    near: Option<i64>,
    k: usize,
    /// Names of the sources to search; all sources if empty.
    sources: Vec<String>,
    /// Words that must all occur in an entry's text, document name or image name; case is ignored.
    containing: String,
}

#[derive(Serialize)]
pub(super) struct SearchResponse {
    generation: u64,
    /// Seconds for the search, and for encoding the query. If a run's model searches, the first
    /// number is 0 and the second is for both.
    seconds: [f64; 2],
    hits: Vec<Hit>,
    /// Number of entries in these sources that contain all the requested words; `None` if no words
    /// were requested.
    containing: Option<usize>,
}

/// An entry in the response.
#[derive(Serialize)]
struct Hit {
    #[serde(flatten)]
    hit: ShownHit,
    /// The gate of the entry's source for this query, which multiplies the score. `None` if no
    /// run's model searched.
    gate: Option<f64>,
}

impl Memories {
    /// Opens memories. Skips broken memories with a warning. `images` is the base folder for image
    /// paths; by default the folder of the run's data, or the folder that contains the memory.
    pub(super) fn open(memories: Vec<FoundMemory>, runs: &[Run], images: Option<&Path>) -> Self {
        let open = |FoundMemory { name, folder, run }: FoundMemory| {
            let parent = folder.parent().unwrap_or(Path::new(""));
            let data_folder = run.and_then(|run| runs.get(run)?.data_folder.as_deref());
            let images = Some(images.or(data_folder).unwrap_or(parent).to_path_buf());
            let warn_skipped = |error| {
                let causes = output::with_causes(&anyhow::Error::from(error));
                output::warn(&format!("skipped: {causes}"));
            };
            let memory = Box::new(open_folder(&folder).map_err(warn_skipped).ok()?);
            Some(SearchableMemory { name, memory, images, encoder: Mutex::default(), run })
        };
        Self(memories.into_iter().filter_map(open).collect())
    }

    /// Adds a memory on servers. Images are files in the folder `images`.
    pub(super) fn add(&mut self, memory: Box<dyn Store>, images: Option<PathBuf>) {
        let name = memory.location();
        self.0.push(SearchableMemory {
            name,
            memory,
            images,
            encoder: Mutex::default(),
            run: None,
        });
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Describes all memories that are readable at the moment. Prints the errors of the others in
    /// the terminal.
    pub(super) fn describe(&self) -> Vec<MemoryDescription> {
        let described = self.0.iter().enumerate().filter_map(|(index, memory)| {
            let described = memory.describe(index);
            let report = |error| {
                output::warn(&format!("{}: {}", memory.name, output::with_causes(&error)));
            };
            described.map_err(report).ok()
        });
        described.collect()
    }

    pub(super) fn search(
        &self,
        memory: usize,
        request: &SearchRequest,
        answerers: &LazyRuns<RevealRun>,
    ) -> anyhow::Result<SearchResponse> {
        self.get(memory)?.search(request, answerers)
    }

    /// The image of an entry: a file within the image folder, or a view rendered by a run on the
    /// embedded world.
    pub(super) fn image(
        &self,
        memory: usize,
        id: i64,
        answerers: &LazyRuns<RevealRun>,
    ) -> anyhow::Result<ShownImage> {
        let searchable = self.get(memory)?;
        let snapshot = searchable.memory.snapshot();
        let entry = snapshot.entry(row_of(snapshot.as_ref(), id)?)?;
        let path = entry.image().with_context(|| format!("the entry {id} has no image"))?;
        if let Some(run) = searchable.run
            && let Some(slug) = path.strip_prefix("pictures/").and_then(|p| p.strip_suffix(".png"))
            && let Ok(image) = answerers.opened(run).and_then(|opened| opened.world_image(slug))
        {
            return Ok(image);
        }
        file_in(searchable.folder()?, path.as_ref()).map(ShownImage::File)
    }

    /// The recording of an entry's words, as WAV.
    pub(super) fn recording(&self, memory: usize, id: i64) -> anyhow::Result<Vec<u8>> {
        let searchable = self.get(memory)?;
        let snapshot = searchable.memory.snapshot();
        let entry = snapshot.entry(row_of(snapshot.as_ref(), id)?)?;
        let path = recording(&entry).with_context(|| format!("the entry {id} has no recording"))?;
        // Only decoded sound is served, even if an entry names another file.
        wav(&read_audio(&file_in(searchable.folder()?, path.as_ref())?, SAMPLE_RATE)?)
    }

    fn get(&self, memory: usize) -> anyhow::Result<&SearchableMemory> {
        self.0.get(memory).with_context(|| format!("there is no memory {memory}"))
    }
}

impl SearchableMemory {
    /// The folder of its images and recordings.
    fn folder(&self) -> anyhow::Result<&Path> {
        self.images.as_deref().with_context(|| {
            let name = &self.name;
            format!("{name}: the folder of its images is unknown; start again with --images FOLDER")
        })
    }

    fn describe(&self, index: usize) -> anyhow::Result<MemoryDescription> {
        let snapshot = self.reload()?;
        let reads = |modality: &str| {
            snapshot.description().encoders.iter().any(|encoder| encoder.reads.contains(modality))
        };
        let is_run = self.run.is_some();
        let accepts =
            QueryKinds { text: is_run || reads("text"), images: is_run || reads("images") };
        let (name, info) = (self.name.clone(), snapshot.info()?);
        Ok(MemoryDescription { index, name, info, accepts, run: self.run })
    }

    /// Reloads the memory and returns its current state.
    fn reload(&self) -> anyhow::Result<Arc<dyn Snapshot>> {
        self.memory.reload()?;
        Ok(self.memory.snapshot())
    }

    fn search(
        &self,
        request: &SearchRequest,
        answerers: &LazyRuns<RevealRun>,
    ) -> anyhow::Result<SearchResponse> {
        let k = request.k.clamp(1, MAX_HITS);
        let start = Instant::now();
        let (text, image) = (trimmed(&request.text)?, Upload::of(&request.image)?);
        let has_query = text.is_some() || image.is_some();
        let snapshot = self.reload()?;
        let snapshot = snapshot.as_ref();
        let sources = &snapshot.description().sources;
        if let Some(unknown) = request.sources.iter().find(|source| !sources.contains(source)) {
            anyhow::bail!("there is no source {unknown:?}; the sources are {}", sources.join(", "));
        }
        let run = self.run.filter(|_| request.near.is_none() && has_query);
        let query = match request.near {
            Some(id) => Some(snapshot.keys(&[row_of(snapshot, id)?])?),
            None if has_query && run.is_none() => {
                Some(self.query(snapshot, text, image.as_ref())?)
            }
            None => None,
        };
        let query_seconds = start.elapsed().as_secs_f64();
        let containing = match trimmed(&request.containing)? {
            Some(words) => Some(containing_words(snapshot, words, &request.sources)?),
            None => None,
        };
        let filter = Filter {
            sources: (!request.sources.is_empty()).then(|| request.sources.clone()),
            ids: containing.as_ref().map(|entries| entries.iter().map(|(_, id)| *id).collect()),
            ..Filter::default()
        };
        let to_hit =
            |row, score| anyhow::Ok(Hit { hit: ShownHit::of(snapshot, row, score)?, gate: None });
        let mut generation = snapshot.description().generation;
        let hits = match (&query, run, &containing) {
            (.., Some(containing)) if containing.is_empty() => Vec::new(),
            (Some(keys), ..) => {
                let results = snapshot.search(Method::Exact, Queries { keys, k }, &filter)?;
                let hits = results.hits.into_iter().flatten().map(|hit| to_hit(hit.row, hit.score));
                hits.collect::<anyhow::Result<_>>()?
            }
            (None, Some(run), _) => {
                let opened = answerers.opened(run)?;
                let evidence;
                (generation, evidence) = opened.find(text, image.as_ref(), k, filter)?;
                evidence.into_iter().map(Hit::of_run).collect()
            }
            (None, None, containing) => {
                let rows = match containing {
                    Some(containing) => containing.iter().take(k).map(|(row, _)| *row).collect(),
                    None => first_rows(snapshot, k, &request.sources)?,
                };
                let hits = rows.into_iter().map(|row| to_hit(row, f32::NAN));
                hits.collect::<anyhow::Result<_>>()?
            }
        };
        let seconds = match (start.elapsed().as_secs_f64(), run) {
            (total, Some(_)) => [0.0, total],
            (total, None) => [total - query_seconds, query_seconds],
        };
        Ok(SearchResponse {
            generation,
            seconds,
            hits,
            containing: containing.map(|containing| containing.len()),
        })
    }

    /// Returns the model that encoded the keys. Opens it if the keys have another model than at the
    /// last query.
    fn encoder(&self, snapshot: &dyn Snapshot) -> anyhow::Result<Arc<JointEncoder>> {
        let records = &snapshot.description().encoders;
        let mut opened = self.encoder.lock().unwrap_or_else(PoisonError::into_inner);
        match opened.as_ref() {
            Some((known, encoder)) if known == records => Ok(Arc::clone(encoder)),
            _ => {
                let encoder = Arc::new(open_encoder(snapshot)?);
                *opened = Some((records.clone(), Arc::clone(&encoder)));
                Ok(encoder)
            }
        }
    }

    /// Encodes text, an image or both as a query vector.
    fn query(
        &self,
        snapshot: &dyn Snapshot,
        text: Option<&str>,
        image: Option<&Upload>,
    ) -> anyhow::Result<Vec<f32>> {
        let encoder = self.encoder(snapshot)?;
        let modalities = encoder.modalities();
        for (in_query, is_supported, modality) in [
            (text.is_some(), modalities.text, "text"),
            (image.is_some(), modalities.images, "images"),
        ] {
            anyhow::ensure!(
                !in_query || is_supported,
                "the model of this memory cannot encode {modality}"
            );
        }
        let prepared = encoder.prepare(Item { text, image: image.map(Upload::path) });
        let prepared = prepared.map_err(|error| match image {
            Some(image) => image.without_path(error.into()),
            None => error.into(),
        })?;
        Ok(encoder.encode(&[prepared])?)
    }
}

/// The entries that contain all of the words in their text, document name or image name; case is
/// ignored. Searches the named sources, or all if none is named.
fn containing_words(
    snapshot: &dyn Snapshot,
    words: &str,
    sources: &[String],
) -> anyhow::Result<Vec<(Row, i64)>> {
    let has_words = contains_all(words);
    let mut matching = Vec::new();
    for rows in snapshot.rows()?.chunks(ENTRIES_AT_ONCE) {
        let entries = snapshot.entries(rows)?;
        let found = rows.par_iter().zip(entries).filter_map(|(row, entry)| {
            let names = [entry.document.as_deref(), entry.image()].map(Option::unwrap_or_default);
            let text = || format!("{} {} {}", entry.text(), names[0], names[1]);
            let is_match = is_in_sources(&entry, sources) && has_words(&text());
            is_match.then_some((*row, entry.id))
        });
        matching.extend(found.collect::<Vec<_>>());
    }
    Ok(matching)
}

/// Whether an entry belongs to one of the sources; true if no source is named.
fn is_in_sources(entry: &Entry, sources: &[String]) -> bool {
    sources.is_empty() || sources.contains(&entry.source)
}

impl Hit {
    fn of_run(evidence: Evidence) -> Self {
        let Evidence { id, source, text, image, recording, score, gate, .. } = evidence;
        let (score, document) = (score as f32, None);
        let hit = ShownHit { id, score, source, document, image, recording, text };
        Self { hit, gate: Some(gate) }
    }
}

/// The first `k` entries of the named sources, or of all sources if none is named.
fn first_rows(snapshot: &dyn Snapshot, k: usize, sources: &[String]) -> anyhow::Result<Vec<Row>> {
    let mut first = Vec::new();
    for rows in snapshot.rows()?.chunks(ENTRIES_AT_ONCE) {
        let entries = snapshot.entries(rows)?;
        let is_included = |(_, entry): &(&Row, Entry)| is_in_sources(entry, sources);
        first.extend(rows.iter().zip(entries).filter(is_included).map(|(row, _)| *row));
        if first.len() >= k {
            break;
        }
    }
    first.truncate(k);
    Ok(first)
}

/// The row of the entry with this id.
fn row_of(snapshot: &dyn Snapshot, id: i64) -> anyhow::Result<Row> {
    let row = snapshot.find(&[id])?.into_iter().flatten().next();
    row.with_context(|| format!("there is no entry {id}"))
}

/// Opens the model that encoded a memory's keys.
fn open_encoder(snapshot: &dyn Snapshot) -> anyhow::Result<JointEncoder> {
    let encoders = &snapshot.description().encoders;
    let Some(first) = encoders.first() else {
        anyhow::bail!(
            "the model of this memory's keys is unknown; search for the neighbours of an entry, or \
             rebuild the memory with `engram memory build --model`"
        );
    };
    let second = encoders.get(1).map(|encoder| encoder.name.as_str());
    let encoder = JointEncoder::open(&first.name, second, &PromptChoice::Query, &Compute::cpu())?;
    check_model(&records(&encoder), snapshot.description())?;
    Ok(encoder)
}
