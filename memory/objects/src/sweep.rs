//! Removes old generations, and the shards that no manifest names.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use engram_memory::MemoryError;

use crate::failure::remote;
use crate::manifest::{self, Manifest, SHARDS};
use crate::push::{SHORTEST_STAY, check_conditions};
use crate::storage::{Client, ObjectStorage};

/// Settings of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SweepSettings {
    /// The number of the newest generations of each memory that stay, at least 1; `None` to keep
    /// all. A copy of a memory's folder reads the generation that was current when it was copied.
    pub keep: Option<usize>,
    /// How long a shard without a generation stays. Less than the default, a week, is safe only
    /// while no push runs.
    pub stay: Duration,
}

impl Default for SweepSettings {
    fn default() -> Self {
        Self { keep: None, stay: SHORTEST_STAY }
    }
}

/// The result of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Swept {
    /// The number of removed generations.
    pub generations: usize,
    /// The number of removed shards.
    pub shards: usize,
    /// The size of the removed shards in bytes.
    pub bytes: u64,
}

/// Removes shards that no generation names. With [`SweepSettings::keep`], first removes generations
/// of each memory other than its newest ones. Generations of memories without identity stay,
/// because they may be of several memories. Readers of a removed generation get errors.
///
/// # Errors
/// [`MemoryError::InvalidOption`] if `keep` is 0; [`MemoryError::Remote`] if a request failed, if
/// there are no values, or if a manifest is damaged: its shards are unknown, so nothing is removed
pub fn sweep(storage: &ObjectStorage, settings: SweepSettings) -> Result<Swept, MemoryError> {
    if settings.keep == Some(0) {
        return Err(MemoryError::invalid("the number of generations to keep", "0", "at least 1"));
    }
    let client = Arc::clone(&storage.client);
    storage.wait(async move { run(&client, settings).await })
}

async fn run(client: &Client, settings: SweepSettings) -> Result<Swept, MemoryError> {
    let address = || client.address("").trim_end_matches('/').to_owned();
    // Checked before anything is written, because the address may be mistyped.
    if manifest::generations(client).await?.is_empty() && client.list(SHARDS).await?.is_empty() {
        return Err(remote(&address(), "has no values of a memory", "check the address"));
    }
    let now = check_conditions(client).await?.last_modified;
    // Shards are listed before the manifests are read. So a shard of a push that runs meanwhile is
    // missing from this list, in a manifest, or new.
    let shards = client.list(SHARDS).await?;
    let generations = manifest::generations(client).await?;
    let (mut removed, mut named) = (Vec::new(), HashSet::new());
    // The number of generations of each memory so far.
    let mut newer: HashMap<String, usize> = HashMap::new();
    for generation in generations.iter().rev() {
        let manifest = match Manifest::read_any(client, *generation).await {
            Err(MemoryError::DamagedObject { location, reason }) => {
                let remedy = "restore a copy of the object; if no memory reads this generation any \
                              more, move the object away, then sweep again";
                return Err(remote(&location, reason, remedy));
            }
            manifest => manifest?,
        };
        if manifest.generation == *generation
            && let (Some(keep), Some(memory)) = (settings.keep, &manifest.memory)
        {
            let newer = newer.entry(memory.clone()).or_default();
            *newer += 1;
            if *newer > keep {
                removed.push(*generation);
                continue;
            }
        }
        named.extend(manifest.shards().map(|(record, _)| record.sha256.clone()));
    }
    if generations.is_empty() && !shards.is_empty() {
        let reason = "has shards, but no generation";
        let remedy = "check the address; push the memory, then sweep again";
        return Err(remote(&address(), reason, remedy));
    }
    let mut swept = Swept::default();
    for generation in removed {
        client.delete(&manifest::name(generation)).await?;
        swept.generations += 1;
    }
    for (file, meta) in shards {
        if !named.contains(&file) && meta.last_modified + settings.stay <= now {
            client.delete(&format!("{SHARDS}/{file}")).await?;
            swept.shards += 1;
            swept.bytes += meta.size;
        }
    }
    Ok(swept)
}
