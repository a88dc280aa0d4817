//! Memories: what they hold, and what is found in them.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engram_memory::generation::Info;
use engram_memory::search::exact::Exact;
use engram_memory::search::{Filter, Index, Queries};
use engram_memory::{Generation, Memory, Row};
use engram_train::encode::{Item, JointEncoder};
use serde::{Deserialize, Serialize};

use crate::cli::memory::{ShownHit, check_model};

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
    /// Opened by the first question; the reason where it cannot be.
    encoder: OnceLock<Result<JointEncoder, String>>,
}

/// What the page says of a memory.
#[derive(Serialize)]
pub(super) struct Described {
    name: String,
    #[serde(flatten)]
    info: Info,
    /// Whether it can be asked in words, and by a picture.
    asked_by: AskedBy,
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
}

/// What was found.
#[derive(Serialize)]
pub(super) struct Hits {
    generation: u64,
    /// Of the search; and of making its query.
    seconds: [f64; 2],
    hits: Vec<ShownHit>,
}

impl Memories {
    pub(super) fn open(
        folders: Vec<(String, PathBuf)>,
        images: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let open = |(name, folder): (String, PathBuf)| {
            let beside = folder.parent().unwrap_or(Path::new("")).to_path_buf();
            let images = images.clone().unwrap_or(beside);
            let memory = Memory::open(&folder)?;
            anyhow::Ok(Explorable { name, memory, images, encoder: OnceLock::new() })
        };
        folders.into_iter().map(open).collect::<anyhow::Result<_>>().map(Self)
    }

    pub(super) fn describe(&self) -> anyhow::Result<Vec<Described>> {
        self.0.iter().map(Explorable::describe).collect()
    }

    pub(super) fn search(&self, memory: usize, wanted: &Wanted) -> anyhow::Result<Hits> {
        self.get(memory)?.search(wanted)
    }

    /// The file of an entry's picture, within the folder of pictures.
    pub(super) fn picture(&self, memory: usize, id: i64) -> anyhow::Result<PathBuf> {
        let explorable = self.get(memory)?;
        let generation = explorable.memory.generation();
        let row = generation.row_of(id)?.with_context(|| format!("there is no entry {id}"))?;
        let entry = generation.entry(row)?;
        let path = entry.payload.get("image").and_then(|image| image.as_str());
        let path = path.with_context(|| format!("the entry {id} has no picture"))?;
        let absent = || format!("the picture {path} is not in {}", explorable.images.display());
        let folder = explorable.images.canonicalize().with_context(absent)?;
        let file = folder.join(path).canonicalize().with_context(absent)?;
        anyhow::ensure!(file.starts_with(&folder), absent());
        Ok(file)
    }

    fn get(&self, memory: usize) -> anyhow::Result<&Explorable> {
        self.0.get(memory).with_context(|| format!("there is no memory {memory}"))
    }
}

impl Explorable {
    fn describe(&self) -> anyhow::Result<Described> {
        let generation = self.newest()?;
        let reads = |what: &str| {
            generation.manifest().encoders.iter().any(|encoder| encoder.reads.contains(what))
        };
        let asked_by = AskedBy { text: reads("text"), pictures: reads("pictures") };
        Ok(Described { name: self.name.clone(), info: generation.info()?, asked_by })
    }

    /// Its current generation, which may be another one than before.
    fn newest(&self) -> anyhow::Result<std::sync::Arc<Generation>> {
        self.memory.reload()?;
        Ok(self.memory.generation())
    }

    fn search(&self, wanted: &Wanted) -> anyhow::Result<Hits> {
        let generation = self.newest()?;
        let k = wanted.k.clamp(1, MOST);
        let started = Instant::now();
        let query = self.query(&generation, wanted)?;
        let asked = started.elapsed().as_secs_f64();
        let started = Instant::now();
        let wants = |source: &str| {
            wanted.sources.is_empty() || wanted.sources.iter().any(|name| name == source)
        };
        let found: Vec<(Row, f32)> = match query {
            Some(keys) => {
                let mut filter = Filter::default();
                if !wanted.sources.is_empty() {
                    filter.sources = Some(wanted.sources.clone());
                }
                let found = Exact.search(&generation, Queries { keys: &keys, k }, &filter)?;
                found.hits.into_iter().flatten().map(|hit| (hit.row, hit.score)).collect()
            }
            None => {
                let mut first = Vec::new();
                for row in generation.live_rows() {
                    if wants(&generation.entry(row)?.source) {
                        first.push((row, f32::NAN));
                    }
                    if first.len() == k {
                        break;
                    }
                }
                first
            }
        };
        let seconds = [started.elapsed().as_secs_f64(), asked];
        let shown = found.iter().map(|(row, score)| ShownHit::of(&generation, *row, *score));
        Ok(Hits {
            generation: generation.manifest().generation,
            seconds,
            hits: shown.collect::<Result<_, _>>()?,
        })
    }

    /// The vector of what is looked for; `None` where nothing is.
    fn query(
        &self,
        generation: &Generation,
        wanted: &Wanted,
    ) -> anyhow::Result<Option<Vec<f32>>> {
        if let Some(id) = wanted.like {
            let row = generation.row_of(id)?.with_context(|| format!("there is no entry {id}"))?;
            return Ok(Some(generation.key(row)?.to_vec()));
        }
        let text = Some(wanted.text.trim()).filter(|text| !text.is_empty());
        if text.is_none() && wanted.picture.is_empty() {
            return Ok(None);
        }
        let encoder = self.encoder.get_or_init(|| {
            open_encoder(generation).map_err(|error| format!("{error:#}"))
        });
        let encoder = encoder.as_ref().map_err(|reason| anyhow::anyhow!("{reason}"))?;
        let file = match wanted.picture.is_empty() {
            true => None,
            false => {
                let bytes = STANDARD.decode(&wanted.picture).context("the picture is no base64")?;
                let file = tempfile::NamedTempFile::new().context("no file for the picture")?;
                std::fs::write(file.path(), bytes).context("no file for the picture")?;
                Some(file)
            }
        };
        let reads = encoder.reads();
        for (is_asked, is_read, what) in
            [(text.is_some(), reads.text, "words"), (file.is_some(), reads.pictures, "pictures")]
        {
            anyhow::ensure!(!is_asked || is_read, "the model of this memory reads no {what}");
        }
        let picture = file.as_ref().map(|file| file.path());
        let prepared = encoder.prepare(Item { text, picture }).map_err(|error| {
            // Where the file lies for the moment is nobody's concern.
            let told = format!("{:#}", anyhow::Error::from(error));
            let place = picture.map(|path| path.display().to_string()).unwrap_or_default();
            anyhow::anyhow!("{}", told.replace(&place, "the picture"))
        })?;
        Ok(Some(encoder.encode(&[prepared])?))
    }
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
