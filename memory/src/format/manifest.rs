//! The manifest of a generation.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::file::{FileRecord, check_is_file, hex, write_new};
use super::pack;
pub use super::pointer::CURRENT;
use super::pointer::Pointer;
pub(crate) use super::pointer::folder_name;
use crate::error::MemoryError;
use crate::external_values::ValuesLocation;
use crate::search::graph::GraphSettings;
use crate::sweep::has_finished_generation;
pub use crate::values::ValueFormat;

/// The version of the format. A memory with another version is refused.
pub const FORMAT_VERSION: u64 = 1;

/// The manifest's file in the folder of its generation.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The columns that each segment has.
pub(crate) const REQUIRED_COLUMNS: [&str; 7] =
    ["keys", "codes", "ids", "sources", "documents", "entries", "offsets"];
/// The columns with values.
pub(crate) const VALUE_COLUMNS: [&str; 2] = ["values", "scales"];
/// The column with the rows sorted by id.
pub(crate) const ORDER: &str = "order";

/// The content of a generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT_VERSION`].
    pub format_version: u64,
    /// The number of the generation, from 1.
    pub generation: u64,
    /// The name by which object stores recognise the memory: see
    /// [`Writer::identify`](crate::Writer::identify). `None` before its values are first pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
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
    /// for keys that a REVEAL run encoded. An unknown hash is not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs_sha256: Option<String>,
    /// The kind of input: `text`, `images`, or `text and images`; `questions` for a REVEAL run,
    /// which only `engram answer` reads.
    pub reads: String,
    /// The width of the model's part of a key.
    pub width: usize,
    /// The prompt before each text; `None` if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// A segment: rows that were written together. Its columns are parts of a pack, or files:
///
/// | column | content |
/// |---|---|
/// | `keys` | the keys, `[rows, width]` f32 |
/// | `codes` | the codes of the keys, u8 `[panels, bytes of a panel]` |
/// | `values` | the values, `[rows, tokens, width]`; for int4 u8 `[rows, tokens, width / 2 rounded up]` |
/// | `scales` | the scales of int8 values, `[rows, tokens]` f32, or of int4 values, bfloat16 `[rows, tokens, width / 32 rounded up]` |
/// | `ids` | the ids of the entries, `[rows]` i64 |
/// | `order` | the rows sorted by id, `[rows]` u32; missing if the ids ascend from row to row |
/// | `sources` | the sources, `[rows]` u32: indices of the manifest's list of sources |
/// | `documents` | the documents, `[rows]` u64: the first 8 bytes of the SHA-256 of the document's name; 0 without a document |
/// | `entries` | the entries of the rows, one JSON object per line |
/// | `offsets` | offsets in bytes, `[rows + 1]` u64: the start of each line of `entries`, and the end of the last line |
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentRecord {
    /// The folder of the generation that wrote the segment.
    pub folder: String,
    /// The number of rows.
    pub rows: usize,
    /// The largest norm of a key.
    pub longest_key: f32,
    /// The part of a pack that has all columns; `None` if each column has its own file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<FileRecord>,
    /// The file of each column, by its name; empty for a pack.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, FileRecord>,
    /// The location of the values if they are external; `None` if they are in the folder. The
    /// records of the columns `values` and `scales` stay, because their checksums identify the
    /// values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values_at: Option<ValuesLocation>,
    /// The deleted rows; `None` if there are none.
    pub deleted: Option<DeletedRecord>,
    /// A graph over the keys, for search; `None` if it was not built.
    pub graph: Option<GraphRecord>,
}

/// A graph over the keys of a segment. It can be rebuilt from the keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphRecord {
    /// The folder of the generation that wrote the graph.
    pub folder: String,
    /// The settings of its construction.
    pub settings: GraphSettings,
    /// The row at which a search starts.
    pub start: u32,
    /// The neighbours of each row, `[rows, 2 connections]` u32. Unused positions hold the row
    /// itself. If a key equals the key of an earlier row, all positions hold that earlier row.
    pub neighbours: FileRecord,
    /// The number of nodes of each layer above the lowest, smallest first. The nodes of a layer are
    /// the first nodes of the next larger layer. The lowest layer has all rows.
    pub nodes: Vec<usize>,
    /// The layers above the lowest, `[nodes of all layers, 2 connections + 1]` u32: for each node
    /// its row, then its neighbours, as indices of nodes. Unused positions hold the node itself.
    pub upper: FileRecord,
    /// The codes of the keys, u8 `[rows, width rounded up to a multiple of 64]`; `None` for keys of
    /// fewer than 64 components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codes: Option<FileRecord>,
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

/// A file with one bit per row of a segment, 1 for a deleted row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeletedFile {
    /// The folder of the generation that last wrote the file.
    pub folder: String,
    /// The number of deleted rows.
    pub rows: usize,
    /// The record of the file, or of its part of a pack.
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

    /// Returns all files in the memory's folder, each with the name of its folder.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &FileRecord)> {
        let is_here = |name: &str| self.values_at.is_none() || !VALUE_COLUMNS.contains(&name);
        let columns = self.columns.iter().filter(move |(name, _)| is_here(name));
        let columns = columns.map(|(_, file)| file);
        let columns = self.pack.iter().chain(columns).map(|file| (self.folder.as_str(), file));
        let deleted = self.deleted.iter().filter_map(DeletedRecord::file);
        let graphs = self
            .graph
            .iter()
            .flat_map(|graph| graph.files().map(|file| (graph.folder.as_str(), file)));
        columns.chain(deleted).chain(graphs)
    }

    /// The number of rows that are not deleted.
    pub(crate) fn live_rows(&self) -> usize {
        self.rows - self.deleted.as_ref().map_or(0, DeletedRecord::rows)
    }

    /// The size in bytes of all files, and of the deleted rows in the manifest.
    pub fn bytes(&self) -> u64 {
        let inline = match &self.deleted {
            Some(DeletedRecord::Inline(DeletedBits { hex, .. })) => hex.len() as u64,
            _ => 0,
        };
        inline + self.files().map(|(_, file)| file.bytes).sum::<u64>()
    }
}

impl GraphRecord {
    /// Returns all files of the graph.
    pub(crate) fn files(&self) -> impl Iterator<Item = &FileRecord> {
        [&self.neighbours, &self.upper].into_iter().chain(&self.codes)
    }
}

impl Manifest {
    /// The number of components of a value; 0 for a memory without values.
    pub(crate) fn value_len(&self) -> usize {
        self.values.map_or(0, |format| format.tokens * format.width)
    }

    /// Returns two lists of segment folders: of segments with values in the memory's folder, and of
    /// segments with external values.
    pub(crate) fn value_folders(&self) -> [Vec<&str>; 2] {
        let (external, here): (Vec<&SegmentRecord>, _) =
            self.segments.iter().partition(|record| record.values_at.is_some());
        [here, external]
            .map(|records| records.iter().map(|record| record.folder.as_str()).collect())
    }

    /// Returns the names of the generations whose files this generation needs, its own name first.
    pub(crate) fn folders(&self) -> Vec<String> {
        let mut folders = vec![folder_name(self.generation)];
        for segment in &self.segments {
            folders.push(segment.folder.clone());
            let deleted = segment.deleted.iter().filter_map(DeletedRecord::file);
            folders.extend(deleted.map(|(folder, _)| folder.to_owned()));
            folders.extend(segment.graph.iter().map(|graph| graph.folder.clone()));
        }
        folders
    }

    /// Reads the current generation's manifest.
    ///
    /// # Errors
    /// [`MemoryError::NoMemory`], [`MemoryError::UnknownFormat`], [`MemoryError::Corrupt`]
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
        let mut file = engram_durable::open_file(&path).map_err(MemoryError::read(&path))?;
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
            && found != FORMAT_VERSION
        {
            return Err(MemoryError::UnknownFormat {
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

    /// Returns the folder or pack that `CURRENT` names, whether it exists or not; `None` if
    /// `CURRENT` is missing or invalid.
    pub(crate) fn current_name(memory: &Path) -> Option<String> {
        Some(Pointer::read(memory).ok()??.name())
    }

    /// Reads the manifest in a folder, without checks; `None` if it is missing or cannot be parsed.
    pub(crate) fn of_folder(folder: &Path) -> Option<Self> {
        let path = folder.join(MANIFEST);
        check_is_file(&path).ok()?;
        serde_json::from_slice(&engram_durable::read_file(path).ok()?).ok()
    }

    /// Reads the manifest of a pack, without checks; `None` if it is missing or cannot be parsed.
    pub(crate) fn of_pack(path: &Path) -> Option<Self> {
        check_is_file(path).ok()?;
        let bytes = pack::read_manifest(path, &mut engram_durable::open_file(path).ok()?).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Writes the manifest into a folder, which completes the generation. Returns the pointer to
    /// it.
    pub(crate) fn write(&self, folder: &Path) -> Result<Pointer, MemoryError> {
        let path = folder.join(MANIFEST);
        let mut bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| MemoryError::write(&path)(error.into()))?;
        bytes.push(b'\n');
        write_new(&path, &bytes)?;
        Ok(self.pointer(&bytes, false))
    }

    /// Returns the pointer to this manifest, which was written as these bytes.
    pub(super) fn pointer(&self, bytes: &[u8], is_pack: bool) -> Pointer {
        let sha256 = hex(&Sha256::digest(bytes));
        Pointer { generation: self.generation, is_pack, sha256 }
    }
}
