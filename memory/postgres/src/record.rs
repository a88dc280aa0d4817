//! The record of a generation: all of its state except the rows.

use engram_memory::{Description, EncoderRecord, MemoryError, ValueFormat};
use serde::{Deserialize, Serialize};

use crate::connection::Connection;
use crate::failure::Failure;
use crate::tables::create_partition;

/// The version of the tables.
const FORMAT_VERSION: u64 = 1;

/// The settings of the graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSettings {
    /// The maximum number of neighbours of a key per layer, from 2 to 100; layer 0 allows twice as
    /// many.
    pub connections: u16,
    /// The number of candidate neighbours of a new key during construction, from twice the
    /// connections to 1000.
    pub ef_construction: u16,
}

impl Default for GraphSettings {
    fn default() -> Self {
        Self { connections: 16, ef_construction: 100 }
    }
}

/// A source with its number of entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SourceRecord {
    pub(crate) name: String,
    pub(crate) entries: u64,
}

/// A server's share of a memory: the entries whose ids are `server` modulo `servers`, and the rows
/// with such numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Share {
    pub(crate) server: u32,
    pub(crate) servers: u32,
}

impl Share {
    /// Whether the server has the entry with this id.
    pub(crate) fn has(self, id: i64) -> bool {
        server_of(id, self.servers as usize) == self.server as usize
    }
}

/// The server of an entry.
pub(crate) fn server_of(id: i64, servers: usize) -> usize {
    id.rem_euclid(servers as i64) as usize
}

/// The content of a generation, except its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GenerationRecord {
    pub(crate) format_version: u64,
    /// The generation that last wrote all rows. Its number is in the names of the tables of rows.
    pub(crate) base: u64,
    pub(crate) width: usize,
    pub(crate) normalised: bool,
    pub(crate) values: Option<ValueFormat>,
    pub(crate) encoders: Vec<EncoderRecord>,
    /// The sources. Rows hold indices of this list, so sources are only appended.
    pub(crate) sources: Vec<SourceRecord>,
    pub(crate) next_id: i64,
    /// The number of the next new row.
    pub(crate) next_row: u64,
    /// The number of rows in the tables, including rows of other generations.
    pub(crate) stored_rows: u64,
    /// The largest norm of a key so far.
    pub(crate) longest_key: f32,
    /// The settings of the graphs; `None` without graphs.
    pub(crate) graph: Option<GraphSettings>,
    /// The share of this server.
    pub(crate) share: Share,
}

impl GenerationRecord {
    /// The record of a generation without rows.
    pub(crate) fn empty(
        number: u64,
        (width, normalised, values): (usize, bool, Option<ValueFormat>),
        encoders: Vec<EncoderRecord>,
        share: Share,
    ) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            base: number,
            width,
            normalised,
            values,
            encoders,
            sources: Vec::new(),
            next_id: 0,
            next_row: u64::from(share.server),
            stored_rows: 0,
            longest_key: 0.0,
            graph: None,
            share,
        }
    }

    /// Reads a record. `location` is the address of the memory.
    pub(crate) fn parse(text: &str, location: &str) -> Result<Self, MemoryError> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u64,
        }
        let corrupt = |error: serde_json::Error| MemoryError::Corrupt {
            file: location.into(),
            reason: format!("the record of its generation is not valid: {error}"),
        };
        let Version { format_version } = serde_json::from_str(text).map_err(corrupt)?;
        if format_version != FORMAT_VERSION {
            return Err(MemoryError::UnknownFormat {
                file: location.into(),
                found: format_version,
                known: FORMAT_VERSION,
            });
        }
        serde_json::from_str(text).map_err(corrupt)
    }

    /// The record as JSON.
    pub(crate) fn to_json(&self) -> Result<String, MemoryError> {
        serde_json::to_string(self).map_err(|error| MemoryError::Rows(error.into()))
    }

    /// Creates the partitions of new sources, and names sources without a name.
    pub(crate) fn create_sources(
        &mut self,
        connection: &mut Connection,
        names: &[String],
    ) -> Result<(), Failure> {
        for (index, name) in names.iter().enumerate() {
            if index == self.sources.len() {
                create_partition(connection, self.base, index as u32)?;
                self.sources.push(SourceRecord { name: String::new(), entries: 0 });
            }
            if self.sources[index].name.is_empty() {
                self.sources[index].name.clone_from(name);
            }
        }
        Ok(())
    }

    /// The number of entries.
    pub(crate) fn entries(&self) -> u64 {
        self.sources.iter().map(|source| source.entries).sum()
    }

    /// The number of entries of each source.
    pub(crate) fn entries_by_source(&self) -> Vec<u64> {
        self.sources.iter().map(|source| source.entries).collect()
    }

    /// Describes the generation with this number.
    pub(crate) fn description(&self, location: &str, number: u64) -> Description {
        let entries = self.entries();
        Description {
            location: location.to_owned(),
            generation: number,
            entries: entries as usize,
            deleted: self.stored_rows.saturating_sub(entries) as usize,
            width: self.width,
            normalised: self.normalised,
            values: self.values,
            encoders: self.encoders.clone(),
            sources: self.sources.iter().map(|source| source.name.clone()).collect(),
            next_id: self.next_id,
            has_graph: self.graph.is_some(),
        }
    }
}
