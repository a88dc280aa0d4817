//! The manifest of a generation: its shards, with their checksums.
//!
//! Manifests are the objects `generations/NNNNNNNNNN`. They are created once and never replaced.
//! The one with the largest number is current. So a push makes its generation current by one
//! conditional request, "create if missing", and the second of two pushes fails. All kinds of
//! stores have this request. A pointer object would need a conditional replacement, which folders
//! and some servers lack.
//!
//! The first line is the SHA-256 of the rest, which is JSON.

use std::path::PathBuf;

use bytes::Bytes;
use engram_memory::{MemoryError, ValueFormat};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::failure::{damaged, is_missing};
use crate::shard::Layout;
use crate::storage::Client;

/// The folder of manifests.
pub(crate) const GENERATIONS: &str = "generations";
/// The folder of shards. The name of a shard is its SHA-256.
pub(crate) const SHARDS: &str = "shards";
/// The version of this format.
const FORMAT_VERSION: u64 = 1;

/// The manifest of a generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) format_version: u64,
    /// The number of the generation in the store.
    pub(crate) generation: u64,
    /// A random number, which distinguishes pushes.
    pub(crate) push: String,
    /// The identity of the local memory; `None` for one without identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<String>,
    /// The number of the generation of the local memory.
    pub(crate) memory_generation: u64,
    pub(crate) values: ValueFormat,
    /// The number of values of a block.
    pub(crate) block_rows: usize,
    /// The number of values of a shard. The last shard of a segment may have fewer.
    pub(crate) shard_rows: usize,
    /// The segments of the local memory, in row order.
    pub(crate) segments: Vec<SegmentRecord>,
}

/// The values of a segment of the local memory, including deleted rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SegmentRecord {
    /// The identity of the segment's values in the local memory.
    pub(crate) id: u64,
    pub(crate) rows: usize,
    pub(crate) shards: Vec<ShardRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShardRecord {
    pub(crate) sha256: String,
    pub(crate) table_sha256: String,
}

impl ShardRecord {
    /// The name of the shard's object.
    pub(crate) fn name(&self) -> String {
        format!("{SHARDS}/{}", self.sha256)
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a text is a SHA-256, as [`hex`] writes it.
fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// The name of a manifest's object.
pub(crate) fn name(generation: u64) -> String {
    format!("{GENERATIONS}/{generation:010}")
}

/// Returns the numbers of all generations, in order.
pub(crate) async fn generations(client: &Client) -> Result<Vec<u64>, MemoryError> {
    let objects = client.list(GENERATIONS).await?;
    let number = |file: &String| {
        let number = file.parse().ok()?;
        (name(number).ends_with(file.as_str()) && file.len() >= 10).then_some(number)
    };
    let mut numbers: Vec<u64> = objects.iter().filter_map(|(file, _)| number(file)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

impl Manifest {
    pub(crate) const FORMAT_VERSION: u64 = FORMAT_VERSION;

    /// Reads and checks the manifest of a generation.
    pub(crate) async fn read(client: &Client, generation: u64) -> Result<Self, MemoryError> {
        let manifest = Self::read_any(client, generation).await?;
        if manifest.generation == generation {
            return Ok(manifest);
        }
        let reason = format!("is a copy of generation {}", manifest.generation);
        Err(damaged(&client.address(&name(generation)), reason))
    }

    /// Reads the manifest of the current generation: the newest that is no copy of another one.
    /// Returns the largest number, too. With `skip_damaged`, damaged manifests are passed over.
    pub(crate) async fn read_current(
        client: &Client,
        skip_damaged: bool,
    ) -> Result<(u64, Option<Self>), MemoryError> {
        let generations = generations(client).await?;
        let last = generations.last().copied().unwrap_or_default();
        for &generation in generations.iter().rev() {
            match Self::read_any(client, generation).await {
                Ok(manifest) if manifest.generation == generation => {
                    return Ok((last, Some(manifest)));
                }
                Err(MemoryError::DamagedObject { .. }) if skip_damaged => {}
                copy => drop(copy?),
            }
        }
        Ok((last, None))
    }

    /// Reads and checks a manifest, which may be a copy of that of another generation.
    pub(crate) async fn read_any(client: &Client, generation: u64) -> Result<Self, MemoryError> {
        let name = name(generation);
        let location = client.address(&name);
        let bytes = client.get(&name, None).await;
        if bytes.as_ref().is_err_and(is_missing) && !generations(client).await?.is_empty() {
            let reason = "is missing, because a sweep or another program removed it; the values \
                          that a memory reads there are gone; open a newer copy of its folder";
            return Err(damaged(&location, reason.to_owned()));
        }
        let bytes = bytes?;
        let manifest = Self::decode(&bytes, &location)?;
        match manifest.check() {
            Ok(()) => Ok(manifest),
            Err(reason) => Err(damaged(&location, reason)),
        }
    }

    pub(crate) fn encode(&self) -> Result<Bytes, MemoryError> {
        let json = serde_json::to_vec(self).map_err(|error| MemoryError::Rows(error.into()))?;
        let sha256 = hex(&Sha256::digest(&json));
        Ok([sha256.as_bytes(), b"\n", &json].concat().into())
    }

    fn decode(bytes: &[u8], location: &str) -> Result<Self, MemoryError> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u64,
        }
        let (sha256, json) = bytes.split_at_checked(65).unwrap_or_default();
        let expected = hex(&Sha256::digest(json));
        if sha256.strip_suffix(b"\n") != Some(expected.as_bytes()) {
            return Err(damaged(location, "was changed or truncated".to_owned()));
        }
        let invalid = |error: serde_json::Error| damaged(location, format!("is invalid: {error}"));
        let Version { format_version: found } = serde_json::from_slice(json).map_err(invalid)?;
        if found != FORMAT_VERSION {
            let file = PathBuf::from(location);
            return Err(MemoryError::UnknownFormat { file, found, known: FORMAT_VERSION });
        }
        serde_json::from_slice(json).map_err(invalid)
    }

    /// The checksum shows only that the object is as written. So all sizes are checked before use.
    fn check(&self) -> Result<(), String> {
        let Self { block_rows, shard_rows, values, .. } = self;
        if [*block_rows, *shard_rows, values.tokens, values.width].contains(&0) {
            return Err("has a size of 0".to_owned());
        }
        if shard_rows % block_rows != 0 {
            return Err("has shards with a part of a block".to_owned());
        }
        let mut rows = 0usize;
        for segment in &self.segments {
            rows = rows.saturating_add(segment.rows);
            if segment.rows.div_ceil(*shard_rows) != segment.shards.len() {
                let shards = segment.shards.len();
                return Err(format!("has {shards} shards for {} rows", segment.rows));
            }
            let is_valid =
                |shard: &ShardRecord| is_sha256(&shard.sha256) && is_sha256(&shard.table_sha256);
            if !segment.shards.iter().all(is_valid) {
                return Err("has a shard with an invalid checksum".to_owned());
            }
        }
        let bytes = values.bytes().checked_mul(rows.max(*shard_rows)).filter(|n| *n < 1 << 60);
        if rows > u32::MAX as usize || bytes.is_none() {
            return Err("has too many rows".to_owned());
        }
        Ok(())
    }

    /// Returns the shards in row order, each with its sizes.
    pub(crate) fn shards(&self) -> impl Iterator<Item = (&ShardRecord, Layout)> {
        self.segments.iter().flat_map(move |segment| {
            segment.shards.iter().enumerate().map(move |(shard, record)| {
                let rows = (segment.rows - shard * self.shard_rows).min(self.shard_rows);
                (record, self.layout(rows))
            })
        })
    }

    /// The sizes of a shard with this number of rows.
    pub(crate) fn layout(&self, rows: usize) -> Layout {
        Layout { rows, row_bytes: self.values.bytes(), block_rows: self.block_rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engram_memory::ValueDtype;

    fn manifest() -> Manifest {
        let shard = || ShardRecord { sha256: hex(&[7; 32]), table_sha256: hex(&[0xa0; 32]) };
        let segment = |rows, shards| SegmentRecord { id: 1, rows, shards: vec![shard(); shards] };
        Manifest {
            format_version: FORMAT_VERSION,
            generation: 12,
            push: "x".to_owned(),
            memory: Some("m".to_owned()),
            memory_generation: 3,
            values: ValueFormat { tokens: 2, width: 3, dtype: ValueDtype::Int4 },
            block_rows: 2,
            shard_rows: 4,
            segments: vec![segment(9, 3), segment(1, 1)],
        }
    }

    #[test]
    fn every_changed_byte_and_every_truncation_is_noticed() {
        let bytes = manifest().encode().unwrap();
        assert_eq!(Manifest::decode(&bytes, "m").unwrap(), manifest());
        for at in 0..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[at] ^= 4;
            assert!(Manifest::decode(&changed, "m").is_err(), "{at}");
            assert!(Manifest::decode(&bytes[..at], "m").is_err(), "{at}");
        }
    }

    #[test]
    fn wrong_sizes_are_refused() {
        assert_eq!(manifest().check(), Ok(()));
        let rows: Vec<usize> = manifest().shards().map(|(_, layout)| layout.rows).collect();
        assert_eq!(rows, [4, 4, 1, 1]);
        let changes: [fn(&mut Manifest); 10] = [
            |manifest| manifest.block_rows = 0,
            |manifest| manifest.block_rows = 3,
            |manifest| manifest.values.width = 0,
            |manifest| manifest.values.width = usize::MAX,
            |manifest| manifest.segments[0].rows = 13,
            |manifest| manifest.segments[1].shards.clear(),
            |manifest| manifest.segments[1].shards[0].sha256 = "../x".to_owned(),
            |manifest| manifest.segments[1].shards[0].sha256.clear(),
            |manifest| manifest.segments[0].shards[2].sha256 = "A0".repeat(32),
            |manifest| manifest.segments[0].shards[0].table_sha256.truncate(63),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut changed = manifest();
            change(&mut changed);
            assert!(changed.check().is_err(), "{number}");
        }
    }

    #[test]
    fn another_format_version_is_named() {
        let mut newer = manifest();
        newer.format_version += 1;
        let error = Manifest::decode(&newer.encode().unwrap(), "m").unwrap_err();
        assert!(matches!(error, MemoryError::UnknownFormat { found: 2, .. }), "{error}");
    }
}
