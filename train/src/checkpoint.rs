//! Checkpoints: written beside, synced, renamed; never seen half-written.
//!
//! `checkpoints/step-00000123/` holds `parameters.safetensors`, `optimiser.safetensors`, with a
//! running mean `ema.safetensors`, the training state as `state.json`, and, written last,
//! `manifest.json` with the size and SHA-256 of each. `LATEST` and `BEST` name a folder each.

mod manifest;
mod tensors;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use atomic_write_file::AtomicWriteFile;
use candle_core::{DType, Device};
use engram_models::params::Parameters;
use engram_models::weights::Weights;

use crate::ema::Ema;
use crate::error::{Result, TrainError};
use crate::optimiser::Optimiser;
use crate::trainer::State;
use tensors::Source;

/// The parameters' file in a checkpoint.
pub const PARAMETERS: &str = "parameters.safetensors";
/// The running mean's file, complete with the frozen parameters.
pub const EMA: &str = "ema.safetensors";
/// The folder of a run's checkpoints.
pub(crate) const FOLDER: &str = "checkpoints";
const OPTIMISER: &str = "optimiser.safetensors";
const STATE: &str = "state.json";
const LATEST: &str = "LATEST";
const BEST: &str = "BEST";
const UNFINISHED: &str = ".unfinished-";

/// The checkpoints of a run.
pub(crate) struct Checkpoints {
    folder: PathBuf,
}

/// What is in memory and goes into a checkpoint.
pub(crate) struct Contents<'a> {
    pub(crate) parameters: &'a Parameters,
    pub(crate) optimiser: &'a dyn Optimiser,
    pub(crate) ema: Option<&'a Ema>,
    pub(crate) state: &'a State,
    /// Writes the study's own files into the folder.
    pub(crate) study: &'a dyn Fn(&Path) -> Result<()>,
}

impl Checkpoints {
    /// Opens the folder of checkpoints of a run and removes what a killed writer left there.
    pub(crate) fn open(run: &Path) -> Result<Self> {
        let folder = run.join(FOLDER);
        fs::create_dir_all(&folder).map_err(TrainError::io(&folder))?;
        sweep(&folder)?;
        for entry in fs::read_dir(&folder).map_err(TrainError::io(&folder))?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                fs::remove_dir_all(entry.path()).map_err(TrainError::io(&entry.path()))?;
            }
        }
        Ok(Self { folder })
    }

    /// Writes a checkpoint, points `LATEST` to it (`BEST` too if it is the best one) and removes
    /// old ones. After an error the older checkpoints and pointers are as they were.
    pub(crate) fn save(&self, contents: &Contents<'_>, best: bool, keep: usize) -> Result<PathBuf> {
        let name = folder_name(contents.state.step);
        let unfinished = self.folder.join(format!("{UNFINISHED}{name}"));
        let target = self.folder.join(&name);
        if let Err(error) = write_all(&unfinished, contents) {
            // The error that matters is the first one.
            let _ = fs::remove_dir_all(&unfinished);
            return Err(error);
        }
        if target.exists() {
            fs::remove_dir_all(&target).map_err(TrainError::io(&target))?;
        }
        fs::rename(&unfinished, &target).map_err(TrainError::io(&target))?;
        sync(&self.folder)?;
        self.point(LATEST, &name)?;
        if best {
            self.point(BEST, &name)?;
        }
        self.prune(keep)?;
        Ok(target)
    }

    /// The newest checkpoint that is whole, with its state. Each damaged one is reported to
    /// `warn`.
    ///
    /// # Errors
    /// [`TrainError::NoGoodCheckpoint`] if there are some, and all are damaged.
    pub(crate) fn newest_good(
        &self,
        warn: &mut dyn FnMut(&TrainError),
    ) -> Result<Option<(PathBuf, State)>> {
        let mut reasons = Vec::new();
        for path in self.list()?.into_iter().rev() {
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

    /// Makes the folder what it was when the checkpoint that a run goes on from was written: its
    /// writer may have been killed before the last pointer was set, or newer ones were given up.
    /// `best` is the step of the best checkpoint, where one is kept.
    pub(crate) fn go_back(
        &self,
        restored: Option<&Path>,
        best: Option<u64>,
        keep: usize,
    ) -> Result<()> {
        if let Some(name) = restored.and_then(Path::file_name) {
            self.point(LATEST, &name.to_string_lossy())?;
        }
        match best.map(folder_name).filter(|name| self.folder.join(name).exists()) {
            Some(name) => self.point(BEST, &name)?,
            None => match fs::remove_file(self.folder.join(BEST)) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(TrainError::Io { path: self.folder.join(BEST), source: e });
                }
                _ => {}
            },
        }
        self.prune(keep)
    }

    /// The newest checkpoint.
    pub(crate) fn latest(&self) -> Option<PathBuf> {
        self.pointer(LATEST)
    }

    /// The best checkpoint.
    pub(crate) fn best(&self) -> Option<PathBuf> {
        self.pointer(BEST)
    }

    fn pointer(&self, pointer: &str) -> Option<PathBuf> {
        let name = fs::read_to_string(self.folder.join(pointer)).ok()?;
        Some(self.folder.join(name.trim())).filter(|path| path.is_dir())
    }

    fn point(&self, pointer: &str, name: &str) -> Result<()> {
        write_file(&self.folder.join(pointer), format!("{name}\n").as_bytes())
    }

    fn list(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.folder).map_err(TrainError::io(&self.folder))?;
        let mut found: Vec<PathBuf> = entries
            .flatten()
            .filter(|entry| is_one(&entry.file_name()))
            .map(|entry| entry.path())
            .collect();
        found.sort();
        Ok(found)
    }

    fn prune(&self, keep: usize) -> Result<()> {
        let all = self.list()?;
        let spared = [self.latest(), self.best()];
        for path in &all[..all.len().saturating_sub(keep)] {
            if !spared.iter().flatten().any(|spared| spared == path) {
                fs::remove_dir_all(path).map_err(TrainError::io(path))?;
            }
        }
        Ok(())
    }
}

/// Reads a checkpoint's tensors into what is in memory.
pub(crate) fn load(
    path: &Path,
    parameters: &Parameters,
    optimiser: &mut dyn Optimiser,
    ema: Option<&mut Ema>,
) -> Result<()> {
    parameters.load(&path.join(PARAMETERS))?;
    let weights = Weights::open(&path.join(OPTIMISER))?;
    for (name, values) in optimiser.state_mut() {
        read_tensor(&weights, name, &[values.len()], values)?;
    }
    if let Some(ema) = ema {
        let weights = Weights::open(&path.join(EMA))?;
        for (parameter, mean) in parameters.trainable().zip(&mut ema.mean) {
            read_tensor(&weights, parameter.name(), parameter.tensor().dims(), mean)?;
        }
    }
    Ok(())
}

/// Writes parameters to a file of their own.
pub(crate) fn write_parameters(path: &Path, parameters: &Parameters) -> Result<()> {
    tensors::write(path, parameters.iter().map(Source::parameter).collect::<Result<_>>()?)
}

/// Removes what a killed [`write_file`] left in a folder: `.NAME.XXXXXX`.
pub(crate) fn sweep(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(TrainError::io(folder))?.flatten() {
        let name = entry.file_name();
        let parts = name.to_str().and_then(|name| name.strip_prefix('.')?.rsplit_once('.'));
        let unfinished = parts.is_some_and(|(_, suffix)| {
            suffix.len() == 6 && suffix.bytes().all(|letter| letter.is_ascii_alphanumeric())
        });
        if unfinished && entry.path().is_file() {
            fs::remove_file(entry.path()).map_err(TrainError::io(&entry.path()))?;
        }
    }
    Ok(())
}

/// Writes a file beside, synced, renamed.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = AtomicWriteFile::open(path).map_err(TrainError::io(path))?;
    file.write_all(bytes).map_err(TrainError::io(path))?;
    file.commit().map_err(TrainError::io(path))
}

fn write_all(folder: &Path, contents: &Contents<'_>) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(TrainError::io(folder))?;
    }
    fs::create_dir(folder).map_err(TrainError::io(folder))?;
    let parameters = contents.parameters;
    write_parameters(&folder.join(PARAMETERS), parameters)?;
    let state = contents.optimiser.state();
    let state = state.iter().map(|tensor| Source::flat(tensor.name, tensor.values));
    tensors::write(&folder.join(OPTIMISER), state.collect())?;
    if let Some(ema) = contents.ema {
        let mut means = ema.mean.iter();
        let all = parameters.iter().map(|parameter| {
            match if parameter.is_trainable() { means.next() } else { None } {
                Some(mean) => Ok(Source::shaped(parameter, mean)),
                None => Source::parameter(parameter),
            }
        });
        tensors::write(&folder.join(EMA), all.collect::<Result<_>>()?)?;
    }
    (contents.study)(folder)?;
    let state = serde_json::to_vec_pretty(contents.state).map_err(|e| {
        TrainError::BadCheckpoint { path: folder.join(STATE), reason: e.to_string() }
    })?;
    let path = folder.join(STATE);
    fs::write(&path, state).map_err(TrainError::io(&path))?;
    sync(&path)?;
    manifest::write(folder)?;
    sync(folder)
}

fn read_state(folder: &Path) -> Result<State> {
    let path = folder.join(STATE);
    let bytes = fs::read(&path).map_err(TrainError::io(&path))?;
    serde_json::from_slice(&bytes)
        .map_err(|e| TrainError::BadCheckpoint { path, reason: e.to_string() })
}

fn read_tensor(weights: &Weights, name: &str, shape: &[usize], values: &mut [f32]) -> Result<()> {
    let tensor = weights.get(name, shape, DType::F32, &Device::Cpu)?;
    let flat = tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>());
    values.copy_from_slice(&flat.map_err(engram_models::ModelError::from)?);
    Ok(())
}

fn sync(path: &Path) -> Result<()> {
    fs::File::open(path).and_then(|file| file.sync_all()).map_err(TrainError::io(path))
}

/// Whether a name in the folder is that of a checkpoint.
pub(crate) fn is_one(name: &OsStr) -> bool {
    name.to_string_lossy().starts_with("step-")
}

fn folder_name(step: u64) -> String {
    format!("step-{step:08}")
}
