//! Where the run's memory is kept: in the run's folder, an object store for its values
//! (`memory.values`), or servers (`memory.server`).
//!
//! A memory outside of the folder has an owner: a random name, which is in the run's file
//! `memory-owner.txt`. On servers, it is in the memory's record of the model that encoded its keys.
//! For values in an object store, it is the identity of the memory. A run never replaces the memory
//! of another owner.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_infer::InferError;
use engram_infer::reveal::identity::Identity;
use engram_infer::reveal::retriever::Retriever;
use engram_memory::{EncoderRecord, Memory, MemoryServer, Store, ValueStorage, Writer};

use super::settings::RevealMemory;
use crate::checkpoint::write_file;
use crate::error::{Result, TrainError};
use crate::study::StudyResult;
use crate::trainer::RunOptions;

/// The file of a run with the owner of its memory outside of the folder.
pub(crate) const OWNER: &str = "memory-owner.txt";
/// The beginning of an owner.
const REVEAL_RUN: &str = "REVEAL run ";

/// Where a run's memory is kept.
#[derive(Debug, Clone, Default)]
pub(super) enum Placement {
    /// The run's folder.
    #[default]
    Folder,
    /// An object store for the values, with their owner. The keys are in the run's folder.
    Values { store: Arc<dyn ValueStorage>, owner: String, owner_file: PathBuf },
    /// Servers, with the owner of the memory there.
    Server { server: Arc<dyn MemoryServer>, owner: String, owner_file: PathBuf },
}

impl Placement {
    /// Opens the storage that `[memory]` names. Another owner's memory on the servers is an error.
    pub(super) fn open(memory: &RevealMemory, options: &RunOptions) -> Result<Self> {
        let (key, address, feature) = match (&memory.values, &memory.server) {
            (None, None) => return Ok(Self::Folder),
            (Some(address), _) => ("memory.values", address, "objects"),
            (None, Some(address)) => ("memory.server", address, "postgres"),
        };
        // The text of an option `--set` may have a password, so it is not in the message.
        let error = |reason| TrainError::Recipe { location: key.to_owned(), reason };
        if memory.values.is_some() && memory.server.is_some() {
            let reason = "does not go with `memory.server`, which has the values, too; remove one";
            return Err(error(reason.to_owned()));
        }
        if options.ranks.size() > 1 {
            let reason = "needs a single rank; remove the key, or train without mpirun";
            return Err(error(reason.to_owned()));
        }
        let owner_file = options.run.join(OWNER);
        let opened: Option<StudyResult<Self>> = match key {
            "memory.values" => options.value_storages.open(address).map(|store| {
                let (store, owner) = (store?, owner(&owner_file)?);
                Ok(Self::Values { store, owner, owner_file })
            }),
            _ => options.memory_servers.open(address).map(|server| {
                let (server, owner) = (server?, owner(&owner_file)?);
                find_own(server.as_ref(), &owner)?;
                Ok(Self::Server { server, owner, owner_file })
            }),
        };
        let no_client = || {
            error(format!(
                "needs `engram train` of a program with the feature `{feature}`; build it with \
                 `--features {feature}`, or remove the key"
            ))
        };
        opened.ok_or_else(no_client)?.map_err(|reason| error(reason.to_string()))
    }

    /// Whether the memory is on servers.
    pub(super) fn is_server(&self) -> bool {
        matches!(self, Self::Server { .. })
    }

    /// The record of the model that encodes keys of this width, for a memory on servers.
    pub(super) fn encoders(
        &self,
        identity: impl FnOnce() -> Result<Identity, InferError>,
        width: usize,
    ) -> StudyResult<Vec<EncoderRecord>> {
        Ok(match self {
            Self::Server { owner, .. } => vec![identity()?.record(owner, width)],
            _ => Vec::new(),
        })
    }

    /// Moves values of the memory in `folder` to the object store, or copies the memory to the
    /// servers, as the next state of the memory there. Returns the memory there.
    pub(super) fn put(
        &self,
        retriever: Retriever,
        folder: &Path,
        encoders: Vec<EncoderRecord>,
    ) -> StudyResult<Retriever> {
        let memory: Box<dyn Store> = match self {
            Self::Folder => return Ok(retriever),
            Self::Values { store, owner, owner_file } => {
                drop(retriever);
                let target = store.target().ok_or("the object store moves no values")?;
                write_file(owner_file, owner.as_bytes())?;
                let mut writer = Writer::open(folder)?;
                writer.identify(Some(owner))?;
                writer.move_values(store.as_ref(), target)?;
                Box::new(Memory::open_with(folder, Some(Arc::clone(store)))?)
            }
            Self::Server { server, owner, owner_file } => {
                let exists = find_own(server.as_ref(), owner)?.is_some();
                // Written before the push, so that a killed run recognises its memory later.
                write_file(owner_file, owner.as_bytes())?;
                server.push(&Memory::open(folder)?.generation(), encoders, exists)?
            }
        };
        Ok(Retriever::of(memory))
    }
}

/// The owner in the file of a run; a new one if there is no file.
fn owner(file: &Path) -> StudyResult<String> {
    match engram_durable::read_text(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Ok(format!("{REVEAL_RUN}{:032x}", rand::random::<u128>()))
        }
        owner => {
            let owner = owner.map_err(TrainError::io(file))?;
            if !owner.starts_with(REVEAL_RUN) {
                let file = file.display();
                return Err(format!("{file}: has no owner; restore it from a copy").into());
            }
            Ok(owner)
        }
    }
}

/// Opens the memory on servers; `None` if there is none. Another owner's memory is an error.
fn find_own(server: &dyn MemoryServer, owner: &str) -> StudyResult<Option<Box<dyn Store>>> {
    let Some(memory) = server.open()? else { return Ok(None) };
    let is_own = memory.snapshot().description().encoders.iter().any(|model| model.name == owner);
    if !is_own {
        return Err(format!(
            "{}: the memory there belongs to another run; resume that run, use another name \
             (memory=NAME), or remove the memory with `DROP SCHEMA engram_NAME CASCADE`",
            server.location()
        )
        .into());
    }
    Ok(Some(memory))
}
