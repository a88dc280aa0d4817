//! The manifest of a generation.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::file::{FileRecord, check_is_file, hex};
pub use super::pointer::CURRENT;
use super::pointer::Pointer;
pub(crate) use super::pointer::folder_name;
use crate::error::MemoryError;
use crate::sweep::has_finished_generation;

/// The last version of the format that is read. A memory that names its encoders has this one; others have 1,
/// so that programs which know no encoders read them.
pub const FORMAT_VERSION: u64 = 2;
/// The version of a memory that names no encoders.
const PLAIN_VERSION: u64 = 1;

/// The manifest's file in the folder of its generation.
pub(crate) const MANIFEST: &str = "manifest.json";

/// All that a generation consists of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// 1, or 2 where there are `encoders`.
    pub format_version: u64,
    /// Counts from 1.
    pub generation: u64,
    /// Numbers in a key.
    pub width: usize,
    /// Whether keys have unit length.
    pub normalised: bool,
    /// The values; `None` for a memory of keys alone.
    pub values: Option<ValueFormat>,
    /// The models that made the keys, in the order in which their parts lie in a key; none where keys came from
    /// elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub encoders: Vec<EncoderRecord>,
    /// Names of the sources; entries hold places in this list, which only grows.
    pub sources: Vec<String>,
    /// No id that was ever given is as large.
    pub next_id: i64,
    /// Rows in the order in which they were written.
    pub segments: Vec<SegmentRecord>,
}

/// A model that makes keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncoderRecord {
    /// The folder or address that it was read from.
    pub name: String,
    /// The SHA-256 of its weights file.
    pub sha256: String,
    /// What it encodes: `text`, `pictures`, or `text and pictures`.
    pub reads: String,
    /// Numbers of a key that are its own.
    pub width: usize,
    /// What stood before each text when it was encoded; `None` for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// How the value of an entry is kept: `[tokens, width]` numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueFormat {
    /// Tokens of a value.
    pub tokens: usize,
    /// Numbers of a token.
    pub width: usize,
    /// What a number is.
    pub number: ValueNumber,
}

/// What a number of a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueNumber {
    /// 16-bit floating point.
    F16,
    /// 8-bit integers, with a scale for each token.
    Int8,
}

/// Rows that were written together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentRecord {
    /// The folder of the generation that wrote them.
    pub folder: String,
    /// Their number.
    pub rows: usize,
    /// The length of the longest key.
    pub longest_key: f32,
    /// The largest length of what rounding to bfloat16 takes from a key.
    pub largest_rounding: f32,
    /// Whether the ids rise from row to row.
    pub ids_rise: bool,
    /// `[rows, width]` f32.
    pub keys: FileRecord,
    /// `[rows, tokens, width]`.
    pub values: Option<FileRecord>,
    /// `[rows, tokens]` f32, for int8 values.
    pub scales: Option<FileRecord>,
    /// `[rows]` i64.
    pub ids: FileRecord,
    /// `[rows]` u32: places in the manifest's list of sources.
    pub sources: FileRecord,
    /// `[rows]` u64: the first 8 bytes of the SHA-256 of the document's name; 0 without a document.
    pub documents: FileRecord,
    /// A JSON object a line.
    pub entries: FileRecord,
    /// `[rows + 1]` u64: where each line begins, and the end of the last.
    pub offsets: FileRecord,
    /// Rows that were deleted later.
    pub deleted: Option<DeletedRecord>,
    /// A graph over the keys, which a search may use.
    pub graph: Option<GraphRecord>,
}

/// A graph over the keys of a segment; it can be made again from them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphRecord {
    /// The folder of the generation that made it.
    pub folder: String,
    /// Most neighbours of a key in a layer, and half of the most in layer 0.
    pub connections: usize,
    /// Candidates that were kept while it was made.
    pub ef_construction: usize,
    /// Keys, counted once for each layer that they are in.
    pub nodes: usize,
    /// Neighbours of all nodes together.
    pub edges: usize,
    /// The node at which a search begins.
    pub entry: u32,
    /// `[nodes + 1]` u64: where the neighbours of each node begin, and the end of the last.
    pub offsets: FileRecord,
    /// `[edges]` u32: nodes.
    pub neighbours: FileRecord,
    /// `[nodes - rows, 2]` u32: of each node above layer 0 its row, and its node in the layer below.
    pub upper: FileRecord,
}

/// The deleted rows of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeletedRecord {
    /// The folder of the generation that wrote the list last.
    pub folder: String,
    /// How many rows are deleted.
    pub rows: usize,
    /// A bit for each row, the first row in the lowest bit of the first byte.
    pub bits: FileRecord,
}

impl SegmentRecord {
    /// Whether another record is of the same rows, of which others may be deleted.
    pub(crate) fn has_rows_of(&self, other: &Self) -> bool {
        let files = |record: &Self| Self { deleted: None, graph: None, ..record.clone() };
        files(self) == files(other)
    }

    /// All its files, each with the name of its folder.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &FileRecord)> {
        let own =
            [&self.keys, &self.ids, &self.sources, &self.documents, &self.entries, &self.offsets];
        let own = own.into_iter().chain(&self.values).chain(&self.scales);
        let deleted = self.deleted.iter().map(|deleted| (deleted.folder.as_str(), &deleted.bits));
        let graphs = self.graph.iter().flat_map(|graph| {
            let files = [&graph.offsets, &graph.neighbours, &graph.upper];
            files.map(|file| (graph.folder.as_str(), file))
        });
        own.map(|file| (self.folder.as_str(), file)).chain(deleted).chain(graphs)
    }

    /// Bytes of all its files.
    pub fn bytes(&self) -> u64 {
        self.files().map(|(_, file)| file.bytes).sum()
    }
}

impl fmt::Display for ValueFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = match self.number {
            ValueNumber::F16 => "f16",
            ValueNumber::Int8 => "int8",
        };
        write!(f, "{} x {} {number}", self.tokens, self.width)
    }
}

impl Manifest {
    /// The version that a memory of these encoders has.
    pub(crate) fn version_with(encoders: &[EncoderRecord]) -> u64 {
        if encoders.is_empty() { PLAIN_VERSION } else { FORMAT_VERSION }
    }

    /// Numbers of a value; 0 for a memory of keys alone.
    pub fn value_len(&self) -> usize {
        self.values.map_or(0, |format| format.tokens * format.width)
    }

    /// Folders that the generation needs, its own first.
    pub(crate) fn folders(&self) -> Vec<String> {
        let mut folders = vec![folder_name(self.generation)];
        for segment in &self.segments {
            folders.push(segment.folder.clone());
            folders.extend(segment.deleted.iter().map(|deleted| deleted.folder.clone()));
            folders.extend(segment.graph.iter().map(|graph| graph.folder.clone()));
        }
        folders
    }

    /// The current generation's manifest.
    ///
    /// # Errors   [`MemoryError::NoMemory`], [`MemoryError::Newer`], [`MemoryError::Corrupt`]
    pub(crate) fn current(memory: &Path) -> Result<Self, MemoryError> {
        Ok(Self::open_current(memory)?.0)
    }

    /// The current generation's manifest, and its file with a shared lock: while a reader holds it, no writer sweeps the
    /// generation away.
    ///
    /// # Errors   as [`Manifest::current`]
    pub(crate) fn open_current(memory: &Path) -> Result<(Self, File), MemoryError> {
        let Some(pointer) = Pointer::read(memory)? else {
            // A first build that was killed has told nobody of its generation.
            return Err(match has_finished_generation(memory) {
                true => MemoryError::corrupt(&memory.join(CURRENT), "is missing"),
                false => MemoryError::NoMemory { folder: memory.to_owned() },
            });
        };
        let path = memory.join(folder_name(pointer.generation)).join(MANIFEST);
        check_is_file(&path)?;
        let mut file = File::open(&path).map_err(MemoryError::read(&path))?;
        // Not every file system has locks.
        let _ = file.try_lock_shared();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(MemoryError::read(&path))?;
        let manifest = Self::parse(&path, &bytes, &pointer)?;
        Ok((manifest, file))
    }

    /// The manifest that a pointer names.
    fn parse(path: &Path, bytes: &[u8], pointer: &Pointer) -> Result<Self, MemoryError> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u64,
        }
        if let Ok(Version { format_version: found }) = serde_json::from_slice(bytes)
            && found > FORMAT_VERSION
        {
            return Err(MemoryError::Newer { file: path.to_owned(), found, known: FORMAT_VERSION });
        }
        if hex(&Sha256::digest(bytes)) != pointer.sha256 {
            return Err(MemoryError::corrupt(path, "does not have the SHA-256 that CURRENT names"));
        }
        let manifest: Self = serde_json::from_slice(bytes)
            .map_err(|error| MemoryError::corrupt(path, format!("is no manifest: {error}")))?;
        let fault = match manifest.generation == pointer.generation {
            true => manifest.check().err(),
            false => Some(format!("is of generation {}", manifest.generation)),
        };
        fault.map_or(Ok(manifest), |fault| Err(MemoryError::corrupt(path, fault)))
    }

    /// The folder of the generation that is current, whether it is there or not.
    pub(crate) fn current_folder(memory: &Path) -> Option<String> {
        Some(folder_name(Pointer::read(memory).ok()??.generation))
    }

    /// The generation in a folder that a manifest in it makes one of ours; `None` without such a manifest.
    pub(crate) fn of_folder(folder: &Path) -> Option<Self> {
        let path = folder.join(MANIFEST);
        check_is_file(&path).ok()?;
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Writes the manifest into a folder, which makes that folder a generation; the pointer to it.
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
        Ok(Pointer { generation: self.generation, sha256: hex(&Sha256::digest(&bytes)) })
    }
}
