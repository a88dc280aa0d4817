//! Memories in folders, and on PostgreSQL servers with the feature `postgres`. With the feature
//! `objects`, values of a memory in a folder may be in an object store.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use engram_memory::{Memory, MemoryError, Store, ValueStorage};

/// Options for memories on servers.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ServerOptions {
    /// Allow an unencrypted connection to a server over a network, for example through a tunnel
    #[arg(long, hide = !cfg!(feature = "postgres"))]
    pub(crate) insecure: bool,
}

/// The addresses of a memory on servers; `None` for a folder.
pub(crate) fn addresses(location: &Path) -> Option<&str> {
    let text = location.to_str()?;
    let is_address = text.starts_with("postgres://") || text.starts_with("postgresql://");
    is_address.then_some(text)
}

/// Opens a memory in a folder or on servers. With `partial`, unreachable servers are left out of
/// results.
pub(crate) fn open(
    location: &Path,
    options: ServerOptions,
    partial: bool,
) -> anyhow::Result<Box<dyn Store>> {
    match addresses(location) {
        Some(urls) => open_on_servers(urls, options, partial),
        None => Ok(Box::new(open_folder(location)?)),
    }
}

/// Opens a memory in a folder, whose values may be elsewhere.
pub(in crate::cli) fn open_folder(folder: &Path) -> Result<Memory, MemoryError> {
    Memory::open_with(folder, value_storage())
}

/// The client of values in object stores.
#[cfg(feature = "objects")]
pub(in crate::cli) fn value_storage() -> Option<Arc<dyn ValueStorage>> {
    use engram_memory_objects::{TierSettings, ValueTiers};
    Some(Arc::new(ValueTiers::new(TierSettings::default())))
}

/// This program has no client of object stores.
#[cfg(not(feature = "objects"))]
pub(in crate::cli) fn value_storage() -> Option<Arc<dyn ValueStorage>> {
    None
}

#[cfg(feature = "postgres")]
fn open_on_servers(
    urls: &str,
    options: ServerOptions,
    partial: bool,
) -> anyhow::Result<Box<dyn Store>> {
    let store = engram_memory_postgres::PostgresStore::open(urls, connect(options, partial))?;
    Ok(Box::new(store))
}

/// The means to connect to servers.
#[cfg(feature = "postgres")]
pub(crate) fn connect(options: ServerOptions, partial: bool) -> engram_memory_postgres::Connect {
    let ServerOptions { insecure } = options;
    engram_memory_postgres::Connect { insecure, partial, ..Default::default() }
}

#[cfg(not(feature = "postgres"))]
fn open_on_servers(_: &str, _: ServerOptions, _: bool) -> anyhow::Result<Box<dyn Store>> {
    Err(without_feature())
}

/// The error of a program that cannot reach servers.
#[cfg(not(feature = "postgres"))]
pub(crate) fn without_feature() -> anyhow::Error {
    anyhow::anyhow!(
        "this program was built without memories on PostgreSQL; build it with `cargo install \
         --path . --features postgres`"
    )
}
