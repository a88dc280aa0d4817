//! The manifest of a generation.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::file::{FileRecord, check_is_file, hex};
use super::pack;
pub use super::pointer::CURRENT;
use super::pointer::Pointer;
pub(crate) use super::pointer::folder_name;
use crate::error::MemoryError;
use crate::external_values::ValuesLocation;
use crate::sweep::has_finished_generation;
pub use crate::values::ValueFormat;

/// The newest supported format version. Only memories with values outside of their folder have this
/// version. Other memories have an older version, so that older programs can read them.
pub const FORMAT_VERSION: u64 = 7;
/// The version of a memory with packs, inline deleted rows, a stored order of ids or a Vamana graph.
pub(crate) const PACKS_VERSION: u64 = 5;
/// The version of a memory with codes.
const CODES_VERSION: u64 = 4;
/// The version of a memory without codes, with the `inputs_sha256` of an encoder.
const INPUTS_VERSION: u64 = 3;
/// The version of a memory with encoders that have no `inputs_sha256`.
const ENCODERS_VERSION: u64 = 2;
/// The version of a memory without recorded encoders.
const PLAIN_VERSION: u64 = 1;

/// The manifest's file in the folder of its generation.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The names of the columns with values.
pub(crate) const VALUE_COLUMNS: [&str; 2] = ["values", "scales"];

/// The content of a generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The format version: 1, or 2 if there are `encoders`, or 3 if one of them has an
    /// `inputs_sha256`, or 4 if a segment has `codes`, or 5 if the generation is a pack, or if a
    /// segment has a `pack`, an `order`, deleted rows in hexadecimal, or a Vamana graph, or 6 if the
    /// values are int4, or 7 if a segment has `values_at`.
    pub format_version: u64,
    /// The number of the generation, from 1.
    pub generation: u64,
    /// The width of a key.
    pub width: usize,
    /// Whether keys are normalised to unit length.
    pub normalised: bool,
    /// The format of values; `None` for a memory without values.
    pub values: Option<ValueFormat>,
    /// The models that encoded the keys, in the order of their parts of a key. Empty if the models
    /// are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub encoders: Vec<EncoderRecord>,
    /// The names of the sources. Rows hold indices of this list, so names are only appended.
    pub sources: Vec<String>,
    /// A number above every id so far, including ids of deleted entries.
    pub next_id: i64,
    /// The segments, in the order in which they were written.
    pub segments: Vec<SegmentRecord>,
}

/// A model that encodes keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncoderRecord {
    /// The folder or address of the model.
    pub name: String,
    /// The SHA-256 of the model's weights.
    pub sha256: String,
    /// The SHA-256 of the model's configuration, tokenizer, prompts and image preprocessing; `None`
    /// if it is unknown, as in memories of older versions. An unknown hash is not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs_sha256: Option<String>,
    /// The kind of input: `text`, `images`, or `text and images`. Older versions wrote
    /// `pictures` for images. A REVEAL run, which only `engram answer` reads, has `questions`.
    pub reads: String,
    /// The width of the model's part of a key.
    pub width: usize,
    /// The prompt before each text; `None` if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// A segment: rows that were written together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentRecord {
    /// The folder of the generation that wrote the segment.
    pub folder: String,
    /// The number of rows.
    pub rows: usize,
    /// The largest norm of a key.
    pub longest_key: f32,
    /// The largest norm of a key's rounding error in bfloat16, for older programs.
    pub largest_rounding: f32,
    /// Whether the ids ascend from row to row.
    #[serde(rename = "ids_rise")]
    pub ids_ascend: bool,
    /// A part of a pack with all columns; `None` if each column has its own file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<FileRecord>,
    /// The keys, `[rows, width]` f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<FileRecord>,
    /// The codes of the keys, u8 `[panels, bytes of a panel]`; `None` for few or very wide keys,
    /// and in memories of older versions. Search then reads all keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codes: Option<FileRecord>,
    /// The values, `[rows, tokens, width]`, for int4 u8 `[rows, tokens, width / 2 rounded up]`; `None`
    /// for a memory without values.
    pub values: Option<FileRecord>,
    /// The scales of int8 values, `[rows, tokens]` f32, or of int4 values, bfloat16 `[rows, tokens,
    /// width / 32 rounded up]`; `None` for f16 values.
    pub scales: Option<FileRecord>,
    /// The location of external values: the files `values` and `scales` are not
    /// there, but stay recorded as the identity of the values. `None` if they are in the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values_at: Option<ValuesLocation>,
    /// The ids of the entries, `[rows]` i64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<FileRecord>,
    /// The rows sorted by id, `[rows]` u32; `None` if the ids ascend, and in memories of older
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<FileRecord>,
    /// The sources, `[rows]` u32: indices of the manifest's list of sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<FileRecord>,
    /// The documents, `[rows]` u64: the first 8 bytes of the SHA-256 of the document's name; 0
    /// without a document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<FileRecord>,
    /// The entries of the rows, one JSON object per line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<FileRecord>,
    /// Offsets in bytes, `[rows + 1]` u64: the start of each line of `entries`, and the end of the
    /// last line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offsets: Option<FileRecord>,
    /// The deleted rows; `None` if there are none.
    pub deleted: Option<DeletedRecord>,
    /// A graph over the keys, for search; `None` if it was not built.
    pub graph: Option<GraphRecord>,
}

/// A graph over the keys of a segment. It can be rebuilt from the keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum GraphRecord {
    /// A graph of several layers, built by the crate hnsw_rs.
    Hnsw(HnswRecord),
    /// A graph of one layer.
    Vamana(VamanaRecord),
}

/// A Vamana graph over the keys of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VamanaRecord {
    /// The folder of the generation that wrote the graph.
    pub folder: String,
    /// A key has at most this many neighbours. Some keys have one more, so that a search can reach
    /// all keys.
    pub degree: usize,
    /// The number of candidate neighbours of a new key during construction.
    pub ef_construction: usize,
    /// The row at which a search starts.
    pub start: u32,
    /// The neighbours of each row, `[rows, degree + 1]` u32. The unused positions of a list have the
    /// number of its own row. If a key equals the key of an earlier row, all positions have that row.
    pub neighbours: FileRecord,
    /// The number of nodes of each layer above the lowest, smallest first. A layer has the first
    /// nodes of the next layer. The lowest layer has all rows.
    pub nodes: Vec<usize>,
    /// The layers above the lowest, `[nodes of all layers, degree + 2]` u32: for each node its row,
    /// and its neighbours, which are nodes of the layer. The unused positions have the node itself.
    pub upper: FileRecord,
    /// The codes of the keys, u8 `[rows, width rounded up to a multiple of 64]`; `None` for keys of
    /// fewer than 64 components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codes: Option<FileRecord>,
}

/// An HNSW graph over the keys of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HnswRecord {
    /// The folder of the generation that wrote the graph.
    pub folder: String,
    /// The maximum number of neighbours of a key per layer; layer 0 allows twice as many.
    pub connections: usize,
    /// The number of candidate neighbours of a new key during construction.
    pub ef_construction: usize,
    /// The number of nodes. A key has one node in each of its layers.
    pub nodes: usize,
    /// The total number of neighbours of all nodes.
    pub edges: usize,
    /// The node at which a search starts.
    pub entry: u32,
    /// Indices of `neighbours`, `[nodes + 1]` u64: the start of each node's neighbours, and the end
    /// of the last node's neighbours.
    pub offsets: FileRecord,
    /// The neighbours of each node, `[edges]` u32.
    pub neighbours: FileRecord,
    /// The nodes above layer 0, `[nodes - rows, 2]` u32: each node's row, and the node of the same
    /// row in the layer below.
    pub upper: FileRecord,
}

/// The deleted rows of a segment: one bit per row, 1 for a deleted row. The first row is the lowest
/// bit of the first byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DeletedRecord {
    /// The bits are in a file or in a pack.
    File(DeletedFile),
    /// The bits are in the manifest.
    Inline(DeletedBits),
}

/// A file with the deleted rows of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeletedFile {
    /// The folder of the generation that last wrote the list.
    pub folder: String,
    /// The number of deleted rows.
    pub rows: usize,
    /// The bits.
    pub bits: FileRecord,
}

/// The deleted rows of a small segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeletedBits {
    /// The number of deleted rows.
    pub rows: usize,
    /// The bits, in hexadecimal.
    pub hex: String,
}

impl DeletedRecord {
    /// The number of deleted rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::File(DeletedFile { rows, .. }) | Self::Inline(DeletedBits { rows, .. }) => *rows,
        }
    }

    /// The file with the bits; `None` if they are in the manifest.
    pub(crate) fn file(&self) -> Option<(&str, &FileRecord)> {
        match self {
            Self::File(DeletedFile { folder, bits, .. }) => Some((folder, bits)),
            Self::Inline(_) => None,
        }
    }
}

impl SegmentRecord {
    /// Whether another record has the same rows, regardless of deletions and graphs.
    pub(crate) fn has_rows_of(&self, other: &Self) -> bool {
        // Most records differ in their folders. Comparing them first saves most copies.
        let rows = |record: &Self| Self { deleted: None, graph: None, ..record.clone() };
        self.folder == other.folder && self.rows == other.rows && rows(self) == rows(other)
    }

    /// Returns the files of the columns, with their names. Codes, values, scales and the order are
    /// optional.
    fn columns(&self) -> [(&'static str, &Option<FileRecord>); 10] {
        [
            ("keys", &self.keys),
            ("ids", &self.ids),
            ("sources", &self.sources),
            ("documents", &self.documents),
            ("entries", &self.entries),
            ("offsets", &self.offsets),
            ("codes", &self.codes),
            ("values", &self.values),
            ("scales", &self.scales),
            ("order", &self.order),
        ]
    }

    /// Returns the name of a missing column; `None` if the columns are complete.
    pub(super) fn missing_column(&self) -> Option<&'static str> {
        let required = &self.columns()[..6];
        let missing = required.iter().find(|(_, file)| file.is_none());
        missing.filter(|_| self.pack.is_none()).map(|(name, _)| *name)
    }

    /// Returns all files in the memory's folder, each with the name of its folder.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &FileRecord)> {
        let is_here = |name: &str| self.values_at.is_none() || !VALUE_COLUMNS.contains(&name);
        let columns = self.columns().into_iter().filter(move |(name, _)| is_here(name));
        let columns = columns.filter_map(|(_, file)| file.as_ref());
        let columns = self.pack.iter().chain(columns).map(|file| (self.folder.as_str(), file));
        let deleted = self.deleted.iter().filter_map(DeletedRecord::file);
        let graphs = self
            .graph
            .iter()
            .flat_map(|graph| graph.files().into_iter().map(|file| (graph.folder(), file)));
        columns.chain(deleted).chain(graphs)
    }

    /// The number of rows that are not deleted.
    pub(crate) fn live_rows(&self) -> usize {
        self.rows - self.deleted.as_ref().map_or(0, DeletedRecord::rows)
    }

    /// The size of all files in bytes, and of deleted rows in the manifest.
    pub fn bytes(&self) -> u64 {
        let inline = match &self.deleted {
            Some(DeletedRecord::Inline(DeletedBits { hex, .. })) => hex.len() as u64,
            _ => 0,
        };
        inline + self.files().map(|(_, file)| file.bytes).sum::<u64>()
    }
}

impl GraphRecord {
    /// The folder of the generation that wrote the graph.
    pub fn folder(&self) -> &str {
        match self {
            Self::Hnsw(record) => &record.folder,
            Self::Vamana(record) => &record.folder,
        }
    }

    /// Returns all files of the graph.
    pub(crate) fn files(&self) -> Vec<&FileRecord> {
        match self {
            Self::Hnsw(record) => vec![&record.offsets, &record.neighbours, &record.upper],
            Self::Vamana(record) => {
                [&record.neighbours, &record.upper].into_iter().chain(&record.codes).collect()
            }
        }
    }
}

impl Manifest {
    /// Returns the oldest format version with all that the memory contains.
    pub(crate) fn oldest_version(&self) -> u64 {
        let has_parts = |segment: &SegmentRecord| {
            segment.pack.is_some()
                || segment.order.is_some()
                || segment.files().any(|(_, file)| file.start.is_some())
                || matches!(segment.deleted, Some(DeletedRecord::Inline(_)))
                || matches!(segment.graph, Some(GraphRecord::Vamana(_)))
        };
        let version = if self.segments.iter().any(|segment| segment.values_at.is_some()) {
            FORMAT_VERSION
        } else if self.segments.iter().any(has_parts) {
            PACKS_VERSION
        } else if self.segments.iter().any(|segment| segment.codes.is_some()) {
            CODES_VERSION
        } else if self.encoders.iter().any(|encoder| encoder.inputs_sha256.is_some()) {
            INPUTS_VERSION
        } else if self.encoders.is_empty() {
            PLAIN_VERSION
        } else {
            ENCODERS_VERSION
        };
        let values = self.values.map_or(PLAIN_VERSION, |values| values.dtype.format_version());
        version.max(values)
    }

    /// The number of components of a value; 0 for a memory without values.
    pub(crate) fn value_len(&self) -> usize {
        self.values.map_or(0, |format| format.tokens * format.width)
    }

    /// Returns the folders whose values are external, or in the memory's folder.
    pub(crate) fn value_folders(&self, is_external: bool) -> impl Iterator<Item = &str> {
        let segments = self.segments.iter();
        let segments = segments.filter(move |record| record.values_at.is_some() == is_external);
        segments.map(|record| record.folder.as_str())
    }

    /// Returns the names of the generations whose files this generation needs, its own name first.
    pub(crate) fn folders(&self) -> Vec<String> {
        let mut folders = vec![folder_name(self.generation)];
        for segment in &self.segments {
            folders.push(segment.folder.clone());
            let deleted = segment.deleted.iter().filter_map(DeletedRecord::file);
            folders.extend(deleted.map(|(folder, _)| folder.to_owned()));
            folders.extend(segment.graph.iter().map(|graph| graph.folder().to_owned()));
        }
        folders
    }

    /// Reads the current generation's manifest.
    ///
    /// # Errors
    /// [`MemoryError::NoMemory`], [`MemoryError::NewerFormat`], [`MemoryError::Corrupt`]
    pub(crate) fn current(memory: &Path) -> Result<Self, MemoryError> {
        Ok(Self::open_current(memory)?.0)
    }

    /// Reads the current generation's manifest. Also returns its file with a shared lock: while a
    /// reader holds it, no writer removes the generation.
    ///
    /// # Errors
    /// The errors of [`Manifest::current`].
    pub(crate) fn open_current(memory: &Path) -> Result<(Self, File), MemoryError> {
        let Some(pointer) = Pointer::read(memory)? else {
            // A killed first build leaves no pointer.
            return Err(if has_finished_generation(memory) {
                MemoryError::corrupt(&memory.join(CURRENT), "is missing")
            } else {
                MemoryError::NoMemory { folder: memory.to_owned() }
            });
        };
        let path = pointer.manifest_path(memory);
        check_is_file(&path)?;
        let mut file = File::open(&path).map_err(MemoryError::read(&path))?;
        // Not every file system supports locks.
        let _ = file.try_lock_shared();
        let bytes = if pointer.is_pack {
            pack::read_manifest(&path, &mut file)?
        } else {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(MemoryError::read(&path))?;
            bytes
        };
        let manifest = Self::parse(&path, &bytes, &pointer)?;
        Ok((manifest, file))
    }

    /// Parses and checks the manifest that a pointer names.
    fn parse(path: &Path, bytes: &[u8], pointer: &Pointer) -> Result<Self, MemoryError> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u64,
        }
        if let Ok(Version { format_version: found }) = serde_json::from_slice(bytes)
            && found > FORMAT_VERSION
        {
            return Err(MemoryError::NewerFormat {
                file: path.to_owned(),
                found,
                known: FORMAT_VERSION,
            });
        }
        if hex(&Sha256::digest(bytes)) != pointer.sha256 {
            return Err(MemoryError::corrupt(path, "differs from the SHA-256 in CURRENT"));
        }
        let manifest: Self = serde_json::from_slice(bytes)
            .map_err(|error| MemoryError::corrupt(path, format!("is not a manifest: {error}")))?;
        let error = if manifest.generation == pointer.generation {
            manifest.check().err()
        } else {
            Some(format!("belongs to generation {}", manifest.generation))
        };
        error.map_or(Ok(manifest), |reason| Err(MemoryError::corrupt(path, reason)))
    }

    /// Returns the folder or pack that `CURRENT` names, whether it exists or not; `None` if `CURRENT`
    /// is missing or invalid.
    pub(crate) fn current_name(memory: &Path) -> Option<String> {
        Some(Pointer::read(memory).ok()??.name())
    }

    /// Reads the manifest in a folder, without checks; `None` if it is missing or cannot be parsed.
    pub(crate) fn of_folder(folder: &Path) -> Option<Self> {
        let path = folder.join(MANIFEST);
        check_is_file(&path).ok()?;
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Reads the manifest of a pack, without checks; `None` if it is missing or cannot be parsed.
    pub(crate) fn of_pack(path: &Path) -> Option<Self> {
        check_is_file(path).ok()?;
        let bytes = pack::read_manifest(path, &mut File::open(path).ok()?).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Writes the manifest into a folder, which completes the generation. Returns the pointer to
    /// it.
    pub(crate) fn write(&self, folder: &Path) -> Result<Pointer, MemoryError> {
        let path = folder.join(MANIFEST);
        let mut bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| MemoryError::write(&path)(error.into()))?;
        bytes.push(b'\n');
        let write = || -> std::io::Result<()> {
            let mut file = engram_durable::create_new_file(&path)?;
            file.write_all(&bytes)?;
            file.sync_all()
        };
        write().map_err(MemoryError::write(&path))?;
        Ok(self.pointer(&bytes, false))
    }

    /// Returns the pointer to this manifest, which was written as these bytes.
    pub(super) fn pointer(&self, bytes: &[u8], is_pack: bool) -> Pointer {
        let sha256 = hex(&Sha256::digest(bytes));
        Pointer { generation: self.generation, is_pack, sha256 }
    }
}
