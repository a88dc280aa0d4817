//! Memories in folders, and on PostgreSQL servers with the feature `postgres`. With the feature
//! `objects`, values of a memory in a folder may be in an object store.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use engram_memory::{Memory, MemoryError, MemoryServer, Store, ValueStorage, Writer};

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
    let (scheme, _) = text.split_once("://")?;
    let known = ["postgres", "postgresql"];
    known.iter().any(|known| scheme.eq_ignore_ascii_case(known)).then_some(text)
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

/// Opens a memory in a folder, whose values may be in an object store.
pub(in super::super) fn open_folder(folder: &Path) -> Result<Memory, MemoryError> {
    Memory::open_with(folder, value_reader())
}

/// Opens a memory in a folder for changes. Its values may be in an object store.
pub(super) fn open_writer(folder: &Path) -> Result<Writer, MemoryError> {
    Writer::open_with(folder, value_reader())
}

/// A reader of values in any object store, which moves no values there. Sends no request.
#[cfg(feature = "objects")]
pub(in super::super) fn value_reader() -> Option<Arc<dyn ValueStorage>> {
    use engram_memory_objects::{TierSettings, ValueTiers};
    Some(Arc::new(ValueTiers::new(TierSettings::default())))
}

/// `None`: this program has no client of object stores.
#[cfg(not(feature = "objects"))]
pub(in super::super) fn value_reader() -> Option<Arc<dyn ValueStorage>> {
    None
}

/// Opens the object store at `address`: `s3://…`, `gs://…`, `az://…`, `file://…` or a folder. A
/// memory that is opened with it moves its values there, and names the absolute address as their
/// [target](ValueStorage::target). With `recheck`, values that the store has already are read, and
/// sent again if they were changed. With `replace`, the store may have the values of another memory.
/// Sends no request.
#[cfg(feature = "objects")]
pub(in super::super) fn value_storage(
    address: &str,
    recheck: bool,
    replace: bool,
) -> anyhow::Result<Arc<dyn ValueStorage>> {
    use engram_memory_objects::{PushSettings, TierSettings, ValueTiers};
    let storage = object_storage(address)?;
    let target = Some(storage.location().to_owned());
    let push = PushSettings { recheck, replace, ..PushSettings::default() };
    let settings = TierSettings { target, push, ..TierSettings::default() };
    Ok(Arc::new(ValueTiers::new(settings).with_store(storage)))
}

/// Opens the object store at `address`, as [`value_storage`] does. The path of a folder becomes
/// absolute, because the memory stores it and may be used from other folders.
#[cfg(feature = "objects")]
pub(super) fn object_storage(
    address: &str,
) -> anyhow::Result<engram_memory_objects::ObjectStorage> {
    let address = match address.contains("://") {
        true => address.to_owned(),
        false => std::path::absolute(address)?.display().to_string(),
    };
    Ok(engram_memory_objects::ObjectStorage::open(&address, Default::default())?)
}

/// Returns an error: this program has no client of object stores.
#[cfg(not(feature = "objects"))]
pub(in super::super) fn value_storage(
    _: &str,
    _: bool,
    _: bool,
) -> anyhow::Result<Arc<dyn ValueStorage>> {
    Err(without_objects())
}

/// The error of a program without a client of object stores.
#[cfg(not(feature = "objects"))]
pub(super) fn without_objects() -> anyhow::Error {
    anyhow::anyhow!(
        "this program was built without object stores; build it with `cargo install --path . \
         --features objects`"
    )
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

/// The address of a memory on servers, which need not exist yet. Sends no request.
#[cfg(feature = "postgres")]
pub(in super::super) fn memory_server(
    urls: &str,
    options: ServerOptions,
) -> anyhow::Result<Arc<dyn MemoryServer>> {
    let server = engram_memory_postgres::PostgresServer::new(urls, connect(options, false))?;
    Ok(Arc::new(server))
}

/// This program has no client of servers.
#[cfg(not(feature = "postgres"))]
pub(in super::super) fn memory_server(
    _: &str,
    _: ServerOptions,
) -> anyhow::Result<Arc<dyn MemoryServer>> {
    Err(without_feature())
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
