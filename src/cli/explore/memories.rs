//! Memories: what they hold, and what is found in them.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use engram_memory::generation::Info;
use engram_memory::search::exact::Exact;
use engram_memory::search::{Filter, Index, Queries};
use engram_memory::{Generation, Memory, Row};
use engram_train::encode::{Item, JointEncoder};
use engram_train::studies::reveal::predict::Evidence;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::answers::Asking;
use super::found::FoundMemory;
use super::lazily::{Lazily, LazyRuns};
use super::uploads::{Upload, words};
use crate::cli::memory::{ShownHit, check_model};
use crate::cli::output;

/// The most entries that are shown.
const MOST: usize = 200;

/// How many of the nearest entries are looked through for those that have some words: where the first number is too few,
/// the second.
const LOOKED_THROUGH: [usize; 2] = [1_000, 100_000];

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
    picture: String,
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
    /// Of the search; and of making its query.
    seconds: [f64; 2],
    hits: Vec<Found>,
    /// How many of the nearest entries were looked through for the words that are wanted in them.
    looked_through: Option<usize>,
}

/// An entry that was found.
#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    hit: ShownHit,
    /// The weight of its source for the query, by which its score was multiplied; of runs alone.
    gate: Option<f64>,
}

impl Memories {
    /// Opens memories; those that are broken are told and left out.
    pub(super) fn open(found: Vec<FoundMemory>, images: Option<&Path>) -> Self {
        let open = |FoundMemory { name, folder, run }: FoundMemory| {
            let beside = folder.parent().unwrap_or(Path::new(""));
            let images = images.unwrap_or(beside).to_path_buf();
            let told = |error| {
                output::note(&format!("left out: {:#}", anyhow::Error::from(error)), false);
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
            let told = |error| output::note(&format!("{}: {error:#}", memory.name), false);
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

    /// The bytes of an entry's picture: a file within the folder of pictures, or what a run on the embedded world shows.
    pub(super) fn picture(
        &self,
        memory: usize,
        id: i64,
        answerers: &LazyRuns<Asking>,
    ) -> anyhow::Result<Vec<u8>> {
        let explorable = self.get(memory)?;
        let generation = explorable.memory.generation();
        let row = generation.row_of(id)?.with_context(|| format!("there is no entry {id}"))?;
        let entry = generation.entry(row)?;
        let path = entry.image().with_context(|| format!("the entry {id} has no picture"))?;
        if let Some(run) = explorable.run
            && let Some(slug) = path.strip_prefix("pictures/").and_then(|p| p.strip_suffix(".png"))
            && let Ok(png) = answerers.opened(run).and_then(|opened| opened.view(slug, 0))
        {
            return Ok(png);
        }
        let absent = || format!("the picture {path} is not in {}", explorable.images.display());
        let folder = explorable.images.canonicalize().with_context(absent)?;
        let file = folder.join(path).canonicalize().with_context(absent)?;
        anyhow::ensure!(file.starts_with(&folder) && file.is_file(), absent());
        std::fs::read(&file).with_context(absent)
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
        let having = Having::of(&wanted.having)?;
        if let (Some(run), None, true) = (self.run, wanted.like, asks) {
            let opened = answerers.opened(run)?;
            let mut generation = 0;
            let (hits, looked_through) = having.fill(k, |depth| {
                let asked = (text, picture.as_ref());
                let (now, found) = opened.find(asked, depth, &wanted.sources)?;
                generation = now;
                Ok(found.into_iter().map(Found::of_run).collect())
            })?;
            let seconds = [0.0, started.elapsed().as_secs_f64()];
            return Ok(Hits { generation, seconds, hits, looked_through });
        }
        let generation = self.newest()?;
        let known = &generation.manifest().sources;
        if let Some(other) = wanted.sources.iter().find(|source| !known.contains(source)) {
            anyhow::bail!("there is no source {other:?}; there are {}", known.join(", "));
        }
        let query = match wanted.like {
            Some(id) => {
                let row = generation.row_of(id)?;
                let row = row.with_context(|| format!("there is no entry {id}"))?;
                Some(generation.key(row)?.to_vec())
            }
            None if !asks => None,
            None => Some(self.query(&generation, (text, picture.as_ref()))?),
        };
        let asked = started.elapsed().as_secs_f64();
        let started = Instant::now();
        let shown = |(row, score): (Row, f32)| {
            Ok(Found { hit: ShownHit::of(&generation, row, score)?, gate: None })
        };
        let (hits, looked_through) = having.fill(k, |k| {
            let found: Vec<(Row, f32)> = match &query {
                Some(keys) => {
                    let sources = (!wanted.sources.is_empty()).then(|| wanted.sources.clone());
                    let filter = Filter { sources, ..Filter::default() };
                    let found = Exact.search(&generation, Queries { keys, k }, &filter)?;
                    found.hits.into_iter().flatten().map(|hit| (hit.row, hit.score)).collect()
                }
                None => first(&generation, k, &wanted.sources)?,
            };
            found.into_par_iter().map(shown).collect()
        })?;
        let seconds = [started.elapsed().as_secs_f64(), asked];
        let generation = generation.manifest().generation;
        Ok(Hits { generation, seconds, hits, looked_through })
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

/// Words that are wanted in entries, in lower case.
struct Having(Vec<String>);

impl Having {
    fn of(typed: &str) -> anyhow::Result<Self> {
        let typed = words(typed)?.unwrap_or_default().to_lowercase();
        Ok(Self(typed.split_whitespace().map(str::to_owned).collect()))
    }

    /// The first `k` of what `search` finds that have the words, and of how many these are; `search` is asked for more
    /// where there are fewer.
    fn fill(
        &self,
        k: usize,
        mut search: impl FnMut(usize) -> anyhow::Result<Vec<Found>>,
    ) -> anyhow::Result<(Vec<Found>, Option<usize>)> {
        if self.0.is_empty() {
            return Ok((search(k)?, None));
        }
        let (mut hits, mut looked_through) = (Vec::new(), 0);
        for depth in LOOKED_THROUGH {
            let found = search(depth)?;
            looked_through = found.len();
            hits = found.into_par_iter().filter(|hit| self.are_in(hit)).collect();
            if hits.len() >= k || looked_through < depth {
                break;
            }
        }
        hits.truncate(k);
        Ok((hits, Some(looked_through)))
    }

    fn are_in(&self, Found { hit, .. }: &Found) -> bool {
        let other = [&hit.document, &hit.image].map(|name| name.as_deref().unwrap_or_default());
        let all = format!("{} {} {}", hit.text, other[0], other[1]).to_lowercase();
        self.0.iter().all(|word| all.contains(word))
    }
}

impl Found {
    fn of_run(evidence: Evidence) -> Self {
        let Evidence { id, source, text, image, score, gate, .. } = evidence;
        let hit = ShownHit { id, score: score as f32, source, document: None, image, text };
        Self { hit, gate: Some(gate) }
    }
}

/// The first entries of some sources, all where none is named; without scores.
fn first(generation: &Generation, k: usize, sources: &[String]) -> anyhow::Result<Vec<(Row, f32)>> {
    let mut first = Vec::new();
    for row in generation.live_rows() {
        if sources.is_empty() || sources.contains(&generation.entry(row)?.source) {
            first.push((row, f32::NAN));
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
    let encoder = JointEncoder::open(&first.name, encoders.get(1).map(|one| one.name.as_str()))?;
    check_model(&encoder, generation)?;
    Ok(encoder)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids of what is found in `entries` texts `entry 0`, `entry 1`, …, how many were looked through, and what was asked.
    fn looked_for(having: &str, k: usize, entries: usize) -> (Vec<i64>, Option<usize>, Vec<usize>) {
        let found = |id: usize| {
            let (source, text) = ("all".to_owned(), format!("Entry {id}"));
            let hit =
                ShownHit { id: id as i64, score: 0.0, source, document: None, image: None, text };
            Found { hit, gate: None }
        };
        let mut asked = Vec::new();
        let search = |depth: usize| {
            asked.push(depth);
            Ok((0..entries.min(depth)).map(found).collect())
        };
        let (hits, looked_through) = Having::of(having).unwrap().fill(k, search).unwrap();
        (hits.iter().map(|found| found.hit.id).collect(), looked_through, asked)
    }

    #[test]
    fn more_is_looked_through_until_there_are_enough() {
        assert_eq!(looked_for(" ", 3, 9), (vec![0, 1, 2], None, vec![3]));
        assert_eq!(looked_for("ENTRY 7", 2, 2_000), (vec![7, 17], Some(1_000), vec![1_000]));
        let found = looked_for("5000 entry", 2, 90_000);
        assert_eq!(found, (vec![5_000, 15_000], Some(90_000), vec![1_000, 100_000]));
        let none = looked_for("exit", 1, 20_000);
        assert_eq!(none, (vec![], Some(20_000), vec![1_000, 100_000]));
        let most = looked_for("exit", 1, 200_000);
        assert_eq!(most, (vec![], Some(100_000), vec![1_000, 100_000]));
    }
}
