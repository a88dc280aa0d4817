//! Memories: what they hold, and what is found in them.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use engram_memory::generation::Info;
use engram_memory::search::exact::Exact;
use engram_memory::search::{Filter, Index, Queries};
use engram_memory::{Entry, Generation, Memory, Row};
use engram_train::encode::{Item, JointEncoder, PromptChoice};
use engram_train::studies::reveal::predict::Evidence;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::answers::Asking;
use super::found::FoundMemory;
use super::lazily::{Lazily, LazyRuns};
use super::uploads::{Upload, has_all, words};
use crate::cli::memory::{ShownHit, check_model};
use crate::cli::output;

/// The most entries that are shown.
const MOST: usize = 200;

/// The memories that are explored.
pub(super) struct Memories(Vec<Explorable>);

/// A memory with the model that asks it.
struct Explorable {
    name: String,
    memory: Memory,
    /// Where the paths of entries' pictures begin.
    images: PathBuf,
    encoder: Lazily<JointEncoder>,
    /// The run whose memory it is: its model makes queries and gates.
    run: Option<usize>,
}

/// What the page says of a memory.
#[derive(Serialize)]
pub(super) struct Described {
    /// Its place among all: its name for the program.
    place: usize,
    name: String,
    #[serde(flatten)]
    info: Info,
    /// Whether it can be asked in words, and by a picture.
    asked_by: AskedBy,
    /// The run whose memory it is.
    run: Option<usize>,
}

#[derive(Serialize)]
struct AskedBy {
    text: bool,
    pictures: bool,
}

/// What is looked for; without a query the first entries.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Wanted {
    text: String,
    /// A picture's file in base64.
    pub(super) picture: String,
    /// An entry whose neighbours are wanted.
    like: Option<i64>,
    k: usize,
    /// All sources where it is empty.
    sources: Vec<String>,
    /// Words each of which an entry has in its text, its document's name or its picture's, whatever their case.
    having: String,
}

/// What was found.
#[derive(Serialize)]
pub(super) struct Hits {
    generation: u64,
    /// Of the search; and of making its query, or of both where a run's model asks.
    seconds: [f64; 2],
    hits: Vec<Found>,
    /// How many entries of these sources have the words that are wanted in them.
    having: Option<usize>,
}

/// An entry that was found.
#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    hit: ShownHit,
    /// The weight of its source for the query, by which its score was multiplied; of runs alone.
    gate: Option<f64>,
}

/// The image of an entry.
pub(super) enum EntryImage {
    Made(Vec<u8>),
    File(PathBuf),
}

impl Memories {
    /// Opens memories; those that are broken are told and left out.
    pub(super) fn open(found: Vec<FoundMemory>, images: Option<&Path>) -> Self {
        let open = |FoundMemory { name, folder, run }: FoundMemory| {
            let beside = folder.parent().unwrap_or(Path::new(""));
            let images = images.unwrap_or(beside).to_path_buf();
            let told = |error| {
                let why = output::with_causes(&anyhow::Error::from(error));
                output::note(&format!("left out: {why}"), false);
            };
            let memory = Memory::open(&folder).map_err(told).ok()?;
            Some(Explorable { name, memory, images, encoder: Lazily::default(), run })
        };
        Self(found.into_iter().filter_map(open).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// All that can be read at the moment; the others are told.
    pub(super) fn describe(&self) -> Vec<Described> {
        let described = self.0.iter().enumerate().filter_map(|(place, memory)| {
            let described = memory.describe(place);
            let told = |error| {
                output::note(&format!("{}: {}", memory.name, output::with_causes(&error)), false);
            };
            described.map_err(told).ok()
        });
        described.collect()
    }

    pub(super) fn search(
        &self,
        memory: usize,
        wanted: &Wanted,
        answerers: &LazyRuns<Asking>,
    ) -> anyhow::Result<Hits> {
        self.get(memory)?.search(wanted, answerers)
    }

    /// An entry's picture: a file within the folder of pictures, or what a run on the embedded world shows.
    pub(super) fn picture(
        &self,
        memory: usize,
        id: i64,
        answerers: &LazyRuns<Asking>,
    ) -> anyhow::Result<EntryImage> {
        let explorable = self.get(memory)?;
        let generation = explorable.memory.generation();
        let row = generation.row_of(id)?.with_context(|| format!("there is no entry {id}"))?;
        let entry = generation.entry(row)?;
        let path = entry.image().with_context(|| format!("the entry {id} has no picture"))?;
        if let Some(run) = explorable.run
            && let Some(slug) = path.strip_prefix("pictures/").and_then(|p| p.strip_suffix(".png"))
            && let Ok(png) = answerers.opened(run).and_then(|opened| opened.view(slug, 0))
        {
            return Ok(EntryImage::Made(png));
        }
        let absent = || format!("the picture {path} is not in {}", explorable.images.display());
        let folder = explorable.images.canonicalize().with_context(absent)?;
        let file = folder.join(path).canonicalize().with_context(absent)?;
        anyhow::ensure!(file.starts_with(&folder) && file.is_file(), absent());
        Ok(EntryImage::File(file))
    }

    fn get(&self, memory: usize) -> anyhow::Result<&Explorable> {
        self.0.get(memory).with_context(|| format!("there is no memory {memory}"))
    }
}

impl Explorable {
    fn describe(&self, place: usize) -> anyhow::Result<Described> {
        let generation = self.newest()?;
        let reads = |what: &str| {
            generation.manifest().encoders.iter().any(|encoder| encoder.reads.contains(what))
        };
        let is_run = self.run.is_some();
        let asked_by =
            AskedBy { text: is_run || reads("text"), pictures: is_run || reads("pictures") };
        let (name, info) = (self.name.clone(), generation.info()?);
        Ok(Described { place, name, info, asked_by, run: self.run })
    }

    /// Its current generation, which may be another one than before.
    fn newest(&self) -> anyhow::Result<std::sync::Arc<Generation>> {
        self.memory.reload()?;
        Ok(self.memory.generation())
    }

    fn search(&self, wanted: &Wanted, answerers: &LazyRuns<Asking>) -> anyhow::Result<Hits> {
        let k = wanted.k.clamp(1, MOST);
        let started = Instant::now();
        let (text, picture) = (words(&wanted.text)?, Upload::of(&wanted.picture)?);
        let asks = text.is_some() || picture.is_some();
        let generation = self.newest()?;
        let known = &generation.manifest().sources;
        if let Some(other) = wanted.sources.iter().find(|source| !known.contains(source)) {
            anyhow::bail!("there is no source {other:?}; there are {}", known.join(", "));
        }
        let run = self.run.filter(|_| wanted.like.is_none() && asks);
        let query = match wanted.like {
            Some(id) => {
                let row = generation.row_of(id)?;
                let row = row.with_context(|| format!("there is no entry {id}"))?;
                Some(generation.key(row)?.to_vec())
            }
            None if asks && run.is_none() => {
                Some(self.query(&generation, (text, picture.as_ref()))?)
            }
            None => None,
        };
        let asked = started.elapsed().as_secs_f64();
        let having = match words(&wanted.having)? {
            Some(words) => Some(having_words(&generation, words, &wanted.sources)?),
            None => None,
        };
        let filter = Filter {
            sources: (!wanted.sources.is_empty()).then(|| wanted.sources.clone()),
            ids: having.as_ref().map(|entries| entries.iter().map(|(_, id)| *id).collect()),
            ..Filter::default()
        };
        let shown = |row, score| {
            anyhow::Ok(Found { hit: ShownHit::of(&generation, row, score)?, gate: None })
        };
        let mut number = generation.manifest().generation;
        let hits = match (&query, run, &having) {
            (.., Some(having)) if having.is_empty() => Vec::new(),
            (Some(keys), ..) => {
                let found = Exact.search(&generation, Queries { keys, k }, &filter)?.hits;
                let found = found.into_iter().flatten().map(|hit| shown(hit.row, hit.score));
                found.collect::<anyhow::Result<_>>()?
            }
            (None, Some(run), _) => {
                let opened = answerers.opened(run)?;
                let found;
                (number, found) = opened.find((text, picture.as_ref()), k, filter)?;
                found.into_iter().map(Found::of_run).collect()
            }
            (None, None, having) => {
                let first = match having {
                    Some(having) => having.iter().take(k).map(|(row, _)| *row).collect(),
                    None => first(&generation, k, &wanted.sources)?,
                };
                let first = first.into_iter().map(|row| shown(row, f32::NAN));
                first.collect::<anyhow::Result<_>>()?
            }
        };
        let seconds = match (started.elapsed().as_secs_f64(), run) {
            (all, Some(_)) => [0.0, all],
            (all, None) => [all - asked, asked],
        };
        Ok(Hits { generation: number, seconds, hits, having: having.map(|having| having.len()) })
    }

    /// The vector of words, a picture or both.
    fn query(
        &self,
        generation: &Generation,
        (text, picture): (Option<&str>, Option<&Upload>),
    ) -> anyhow::Result<Vec<f32>> {
        let encoder = self.encoder.get(|| open_encoder(generation))?;
        let reads = encoder.reads();
        for (is_asked, is_read, what) in
            [(text.is_some(), reads.text, "words"), (picture.is_some(), reads.pictures, "pictures")]
        {
            anyhow::ensure!(!is_asked || is_read, "the model of this memory reads no {what}");
        }
        let prepared = encoder.prepare(Item { text, picture: picture.map(Upload::path) });
        let prepared = prepared.map_err(|error| match picture {
            Some(picture) => picture.told(error.into()),
            None => error.into(),
        })?;
        Ok(encoder.encode(&[prepared])?)
    }
}

/// The entries of some sources, all where none is named, that have all of some words in their text, their document's name
/// or their picture's, whatever their case.
fn having_words(
    generation: &Generation,
    words: &str,
    sources: &[String],
) -> anyhow::Result<Vec<(Row, i64)>> {
    let has_words = has_all(words);
    let having = |row: Row| {
        let entry = generation.entry(row)?;
        if !is_of(&entry, sources) {
            return Ok(None);
        }
        let names = [entry.document.as_deref(), entry.image()].map(Option::unwrap_or_default);
        let has = has_words(&format!("{} {} {}", entry.text(), names[0], names[1]));
        Ok(has.then_some((row, entry.id)))
    };
    let rows: Vec<Row> = generation.live_rows().collect();
    rows.into_par_iter().filter_map(|row| having(row).transpose()).collect()
}

/// Whether an entry is of one of the sources, or any is asked for.
fn is_of(entry: &Entry, sources: &[String]) -> bool {
    sources.is_empty() || sources.contains(&entry.source)
}

impl Found {
    fn of_run(evidence: Evidence) -> Self {
        let Evidence { id, source, text, image, score, gate, .. } = evidence;
        let hit = ShownHit { id, score: score as f32, source, document: None, image, text };
        Self { hit, gate: Some(gate) }
    }
}

/// The first entries of some sources, all where none is named.
fn first(generation: &Generation, k: usize, sources: &[String]) -> anyhow::Result<Vec<Row>> {
    let mut first = Vec::new();
    for row in generation.live_rows() {
        if is_of(&generation.entry(row)?, sources) {
            first.push(row);
        }
        if first.len() == k {
            break;
        }
    }
    Ok(first)
}

/// The model that made a memory's keys.
fn open_encoder(generation: &Generation) -> anyhow::Result<JointEncoder> {
    let encoders = &generation.manifest().encoders;
    let Some(first) = encoders.first() else {
        anyhow::bail!(
            "this memory does not say which model made its keys: look at an entry's neighbours, or build \
             it with `engram memory build --model`"
        );
    };
    let second = encoders.get(1).map(|one| one.name.as_str());
    let encoder = JointEncoder::open(&first.name, second, &PromptChoice::Query)?;
    check_model(&encoder, generation)?;
    Ok(encoder)
}
