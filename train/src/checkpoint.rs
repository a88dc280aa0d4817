//! Checkpoints. Each is written to a temporary folder, synced and renamed, so it is never
//! incomplete.
//!
//! `checkpoints/step-00000123/` contains `parameters.safetensors`, `optimiser.safetensors`,
//! `state.json` with the training state and, with `[ema]`, `ema.safetensors`. `manifest.json` is
//! written last and has the size and SHA-256 of each file. A study can add its own files. The files
//! `LATEST` and `BEST` hold the folder names of the newest and of the best checkpoint.
//!
//! A run that is asked to stop between two checkpoints writes `stop-00000123/`. The next checkpoint
//! replaces it, so the final folder equals the folder of an uninterrupted run.

mod manifest;
mod tensors;

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use engram_durable::{self as durable, FolderWriter};
use engram_models::params::Parameters;
use engram_models::weights::Weights;

use crate::ema::Ema;
use crate::error::{Result, TrainError};
use crate::optimiser::Optimiser;
use crate::run_folder::sweep_names;
use crate::trainer::State;
use tensors::Source;

/// The file of the parameters.
pub(crate) const PARAMETERS: &str = "parameters.safetensors";
/// The file of the averaged weights, including the frozen parameters.
pub const EMA: &str = "ema.safetensors";
/// The folder of a run's checkpoints.
pub(crate) const FOLDER: &str = "checkpoints";
pub(crate) const OPTIMISER: &str = "optimiser.safetensors";
const STATE: &str = "state.json";
const LATEST: &str = "LATEST";
const BEST: &str = "BEST";
/// The minimum number of digits of the step in a folder name.
const DIGITS: usize = 8;

/// The step of a checkpoint and its kind, from its folder name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    step: u64,
    /// Whether it was written on the recipe's schedule or after the best evaluation so far, and not
    /// because the run was asked to stop. At equal steps, the regular checkpoint is the newer one.
    is_regular: bool,
}

/// The reason for writing a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The recipe's schedule.
    Due,
    /// The evaluation is the best so far.
    Best,
    /// The run was asked to stop.
    Stop,
}

/// The checkpoints of a run.
pub(crate) struct Checkpoints {
    /// The folder of the checkpoints.
    pub(crate) folder: PathBuf,
}

/// The in-memory data that a checkpoint stores.
pub(crate) struct Contents<'a> {
    pub(crate) parameters: &'a Parameters,
    pub(crate) optimiser: &'a Optimiser,
    pub(crate) ema: Option<&'a Ema>,
    /// The embedding tables that the ranks keep in parts.
    pub(crate) tables: &'a [TableTensor],
    pub(crate) state: &'a State,
    /// Writes the study's own files to the folder.
    pub(crate) study: &'a dyn Fn(&Path) -> Result<()>,
}

/// A tensor of an embedding table that is not among the parameters.
pub(crate) struct TableTensor {
    /// The file of a checkpoint that has it.
    pub(crate) file: &'static str,
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

impl Checkpoints {
    /// Opens a run's checkpoint folder and removes temporary files of a killed process.
    pub(crate) fn open(run: &Path) -> Result<Self> {
        let folder = create_folder_in(run, FOLDER)?;
        let is_checkpoint_file =
            |name: &str| [LATEST, BEST].contains(&name) || Name::parse(name).is_some();
        sweep_names(&folder, is_checkpoint_file)?;
        Ok(Self { folder })
    }

    /// Writes a checkpoint, sets `LATEST` and `BEST` (to the best one of the phase) and removes old
    /// checkpoints, except the newest `keep` and the best one. If the checkpoint cannot be written,
    /// older checkpoints and pointers are unchanged.
    pub(crate) fn save(
        &self,
        contents: &Contents<'_>,
        reason: Reason,
        keep: usize,
    ) -> Result<PathBuf> {
        let is_regular = reason != Reason::Stop;
        let name = Name { step: contents.state.step, is_regular }.to_string();
        let target = self.folder.join(&name);
        if target.exists() {
            // The run was resumed from an older checkpoint, because this one was damaged or
            // discarded.
            durable::remove_folder(&target).map_err(TrainError::io(&target))?;
        }
        let folder = FolderWriter::create(&target).map_err(TrainError::io(&target))?;
        write_all(folder.path(), contents)?;
        folder.commit().map_err(TrainError::io(&target))?;
        self.set_pointer(LATEST, &name)?;
        if reason == Reason::Best {
            self.set_pointer(BEST, &name)?;
        } else if contents.state.best.is_none() {
            // The best checkpoint of an earlier phase is none of this phase.
            self.remove_pointer(BEST)?;
        }
        self.prune(keep)?;
        Ok(target)
    }

    /// The newest intact checkpoint and its state; `None` if there are no checkpoints. Each damaged
    /// checkpoint is reported to `warn`.
    ///
    /// # Errors
    /// [`TrainError::NoGoodCheckpoint`] if checkpoints exist and all are damaged.
    pub(crate) fn newest_intact(
        &self,
        warn: &mut dyn FnMut(&TrainError),
    ) -> Result<Option<(PathBuf, State)>> {
        let mut reasons = Vec::new();
        for name in self.list()?.into_iter().rev() {
            let path = self.folder.join(name.to_string());
            match manifest::verify(&path).and_then(|()| read_state(&path)) {
                Ok(state) => return Ok(Some((path, state))),
                Err(error) => {
                    warn(&error);
                    reasons.push(error.to_string());
                }
            }
        }
        if reasons.is_empty() {
            return Ok(None);
        }
        Err(TrainError::NoGoodCheckpoint { folder: self.folder.clone(), reasons })
    }

    /// Sets the pointers and removes old checkpoints, as if the checkpoint `restored` had just been
    /// written (`None`: no checkpoint). This repairs a folder whose process was killed before it
    /// set a pointer, or whose newer checkpoints are damaged. `best` is the step of the best
    /// checkpoint; `None` if there is none. `keep` is the number of recent checkpoints to keep.
    pub(crate) fn reset_to(
        &self,
        restored: Option<&Path>,
        best: Option<u64>,
        keep: usize,
    ) -> Result<()> {
        if let Some(name) = restored.and_then(Path::file_name) {
            self.set_pointer(LATEST, &name.to_string_lossy())?;
        }
        let best = best.map(|step| Name { step, is_regular: true }.to_string());
        match best.filter(|name| self.folder.join(name).exists()) {
            Some(name) => self.set_pointer(BEST, &name)?,
            None => self.remove_pointer(BEST)?,
        }
        self.prune(keep)
    }

    /// The folder of the newest checkpoint; `None` if there is none.
    pub(crate) fn latest(&self) -> Option<PathBuf> {
        self.pointer(LATEST)
    }

    /// The folder of the best checkpoint; `None` if there is none.
    pub(crate) fn best(&self) -> Option<PathBuf> {
        self.pointer(BEST)
    }

    fn pointer(&self, pointer: &str) -> Option<PathBuf> {
        let name = engram_durable::read_text(self.folder.join(pointer)).ok()?;
        Some(self.folder.join(name.trim())).filter(|path| path.is_dir())
    }

    fn set_pointer(&self, pointer: &str, name: &str) -> Result<()> {
        write_file(&self.folder.join(pointer), format!("{name}\n").as_bytes())
    }

    fn remove_pointer(&self, pointer: &str) -> Result<()> {
        let path = self.folder.join(pointer);
        durable::remove_file(&path).map_err(TrainError::io(&path))
    }

    /// All checkpoints, oldest first.
    fn list(&self) -> Result<Vec<Name>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(TrainError::io(&self.folder))? {
            let entry = entry.map_err(TrainError::io(&self.folder))?;
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            names.extend(entry.file_name().to_str().and_then(Name::parse).filter(|_| is_folder));
        }
        names.sort();
        Ok(names)
    }

    /// Removes all regular checkpoints except the newest `keep`, the best and the latest. Removes
    /// stop checkpoints unless they are the newest. The remaining regular checkpoints equal those
    /// of an uninterrupted run.
    fn prune(&self, keep: usize) -> Result<()> {
        let checkpoints = self.list()?;
        let pointed_to = [self.latest(), self.best()];
        let newest = checkpoints.last().copied();
        let regular: Vec<Name> =
            checkpoints.iter().copied().filter(|name| name.is_regular).collect();
        let old = &regular[..regular.len().saturating_sub(keep)];
        let replaced_stops =
            checkpoints.iter().filter(|name| !name.is_regular && Some(**name) != newest);
        for name in old.iter().chain(replaced_stops) {
            let path = self.folder.join(name.to_string());
            if !pointed_to.iter().flatten().any(|target| *target == path) {
                durable::remove_folder(&path).map_err(TrainError::io(&path))?;
            }
        }
        Ok(())
    }
}

impl Name {
    /// Parses `step-00000123` or `stop-00000123`; `None` for any other name.
    fn parse(name: &str) -> Option<Self> {
        let (kind, digits) = name.split_once('-')?;
        let parsed = Self { step: digits.parse().ok()?, is_regular: kind == "step" };
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_regular { "step" } else { "stop" };
        write!(f, "{kind}-{:0DIGITS$}", self.step)
    }
}

/// Loads a checkpoint's tensors into the parameters, the optimiser and the EMA. `steps` is the
/// number of steps that the optimiser has done.
pub(crate) fn load(
    path: &Path,
    parameters: &Parameters,
    optimiser: &mut Optimiser,
    steps: u64,
    ema: Option<&mut Ema>,
) -> Result<()> {
    parameters.load(&path.join(PARAMETERS))?;
    let weights = Weights::open(&path.join(OPTIMISER))?;
    optimiser.restore(steps, |name, length| read_tensor(&weights, name, &[length]))?;
    if let Some(ema) = ema {
        let weights = Weights::open(&path.join(EMA))?;
        ema.restore(parameters, |parameter| {
            read_tensor(&weights, parameter.name(), parameter.tensor().dims())
        })?;
    }
    Ok(())
}

/// Removes the checkpoints of a finished run. Other files in their folder stay.
///
/// # Errors
/// [`TrainError::Io`]
pub fn remove_all(run: &Path) -> Result<()> {
    let folder = run.join(FOLDER);
    if !folder.is_dir() {
        return Ok(());
    }
    let checkpoints = Checkpoints::open(run)?;
    for pointer in [LATEST, BEST].map(|pointer| folder.join(pointer)) {
        durable::remove_file(&pointer).map_err(TrainError::io(&pointer))?;
    }
    for name in checkpoints.list()? {
        let path = folder.join(name.to_string());
        durable::remove_folder(&path).map_err(TrainError::io(&path))?;
    }
    // Fails if the folder holds other files.
    let _ = fs::remove_dir(&folder);
    Ok(())
}

/// Writes parameters to a safetensors file.
pub(crate) fn write_parameters(path: &Path, parameters: &Parameters) -> Result<()> {
    tensors::write(path, parameters.iter().map(Source::parameter).collect())
}

/// Creates a folder inside a run, unless it exists. Returns its path.
///
/// # Errors
/// [`TrainError::Io`], also for a symbolic link
pub(crate) fn create_folder_in(run: &Path, name: &str) -> Result<PathBuf> {
    durable::create_folder_in(run, name).map_err(TrainError::io(&run.join(name)))
}

/// Writes a file durably.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    durable::write_file(path, bytes).map_err(TrainError::io(path))
}

fn write_all(folder: &Path, contents: &Contents<'_>) -> Result<()> {
    let parameters = contents.parameters;
    let of_tables = |file: &'static str| {
        let tables = contents.tables.iter().filter(move |tensor| tensor.file == file);
        tables.map(|tensor| Source::new(&tensor.name, &tensor.shape[..], &tensor.values))
    };
    let values = parameters.iter().map(Source::parameter).chain(of_tables(PARAMETERS));
    tensors::write(&folder.join(PARAMETERS), values.collect())?;
    let state = contents.optimiser.state()?;
    let state = state.iter().map(|(name, values)| Source::new(name, vec![values.len()], values));
    tensors::write(&folder.join(OPTIMISER), state.chain(of_tables(OPTIMISER)).collect())?;
    if let Some(ema) = contents.ema {
        let means = ema.values()?;
        let mut means = means.iter();
        let sources = parameters.iter().map(|parameter| {
            match if parameter.is_trainable() { means.next() } else { None } {
                Some(mean) => Source::new(parameter.name(), parameter.tensor().dims(), mean),
                None => Source::parameter(parameter),
            }
        });
        tensors::write(&folder.join(EMA), sources.chain(of_tables(EMA)).collect())?;
    }
    (contents.study)(folder)?;
    let state = serde_json::to_vec_pretty(contents.state).map_err(|e| {
        TrainError::BadCheckpoint { path: folder.join(STATE), reason: e.to_string() }
    })?;
    write_file(&folder.join(STATE), &state)?;
    manifest::write(folder)
}

fn read_state(folder: &Path) -> Result<State> {
    let path = folder.join(STATE);
    let bytes = engram_durable::read_file(&path).map_err(TrainError::io(&path))?;
    serde_json::from_slice(&bytes)
        .map_err(|e| TrainError::BadCheckpoint { path, reason: e.to_string() })
}

fn read_tensor(weights: &Weights, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    let tensor = weights.get(name, shape, DType::F32, &Device::Cpu)?;
    let flat = tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>());
    Ok(flat.map_err(engram_models::ModelError::from)?)
}

/// Whether this is the name of a checkpoint folder.
pub(crate) fn is_checkpoint_name(name: &OsStr) -> bool {
    name.to_str().and_then(Name::parse).is_some()
}
