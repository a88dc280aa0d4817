//! Removes old generations, and the shards that no manifest names.

use std::collections::HashSet;
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
    /// The number of the newest generations that stay; at least 1.
    pub keep: usize,
    /// How long a shard without a generation stays. Less than the default, a week, is safe only
    /// while no push runs.
    pub stay: Duration,
}

impl Default for SweepSettings {
    fn default() -> Self {
        Self { keep: 2, stay: SHORTEST_STAY }
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

/// Removes generations other than the newest ones, and shards that no generation names. Readers of
/// a removed generation get errors, and open the current one.
///
/// # Errors
/// [`MemoryError::InvalidOption`] if `keep` is 0; [`MemoryError::Remote`] if a request failed, if
/// there are no values, or if a manifest is damaged: its shards are unknown, so nothing is removed
pub fn sweep(storage: &ObjectStorage, settings: SweepSettings) -> Result<Swept, MemoryError> {
    if settings.keep == 0 {
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
    let (removed, kept) = generations.split_at(generations.len().saturating_sub(settings.keep));
    let mut named = HashSet::new();
    for generation in kept {
        let manifest = Manifest::read(client, *generation).await?;
        named.extend(manifest.shards().map(|(record, _)| record.sha256.clone()));
    }
    if kept.is_empty() && !shards.is_empty() {
        let reason = "has shards, but no generation";
        let remedy = "check the address; push the memory, then sweep again";
        return Err(remote(&address(), reason, remedy));
    }
    let mut swept = Swept::default();
    for generation in removed {
        client.delete(&manifest::name(*generation)).await?;
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
