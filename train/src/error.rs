//! The error type of this crate.

use std::path::{Path, PathBuf};

use engram_data::DataError;
use engram_models::ModelError;

/// Results of this crate.
pub type Result<T, E = TrainError> = std::result::Result<T, E>;

/// Whatever a study's own code fails with.
pub type StudyError = Box<dyn std::error::Error + Send + Sync>;

/// Everything that can stop a run or keep it from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A model, a tensor or a weights file failed.
    #[error(transparent)]
    Model(#[from] ModelError),

    /// A file of data, of a tokenizer or of the hub failed.
    #[error(transparent)]
    Data(Box<DataError>),

    /// A model that cannot make keys or queries.
    #[error("{name}: {reason}")]
    Encoder {
        /// Its address or file.
        name: String,
        /// Why not, and what would do.
        reason: String,
    },

    /// Speech that cannot be transcribed as it was asked for.
    #[error("{reason}")]
    Recognise {
        /// Why not, and what would do.
        reason: String,
    },

    /// The study's own code failed.
    #[error("study `{study}` failed in {part}: {source}")]
    Study {
        /// The study.
        study: String,
        /// The function that failed.
        part: &'static str,
        /// What it said.
        source: StudyError,
    },

    /// A file could not be read or written.
    #[error("{}: {source}{}", path.display(), remedy(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// A recipe is wrong in one place.
    #[error("{place}: {reason}")]
    Recipe {
        /// File and line, or the option that set the value.
        place: String,
        /// What is wrong there, and what would be right.
        reason: String,
    },

    /// The recipe is for another study.
    #[error("the recipe is for study `{recipe}`, but `{study}` is run")]
    WrongStudy {
        /// The name in the recipe.
        recipe: String,
        /// The study that was started.
        study: String,
    },

    /// The run folder already holds something.
    #[error(
        "{} is not empty; give --resume to go on with that run, or choose another folder",
        run.display()
    )]
    RunExists {
        /// The run folder.
        run: PathBuf,
    },

    /// A run cannot go on.
    #[error(
        "{} has a run without its checkpoints, so there is nothing to go on from; put them back, or \
         choose another folder",
        run.display()
    )]
    CheckpointsGone {
        /// The run folder.
        run: PathBuf,
    },

    /// The run folder holds other things.
    #[error("{} holds other files and no run (recipe.toml with inputs.json); choose an empty or a new folder", run.display())]
    NoRun {
        /// The run folder.
        run: PathBuf,
    },

    /// A file that no run writes, where one would be removed or replaced.
    #[error(
        "{} was not written by a run, so it is not removed; move it elsewhere, or choose another folder",
        path.display()
    )]
    OtherFile {
        /// The file or folder.
        path: PathBuf,
    },

    /// Another process writes to the run folder.
    #[error("{} is in use by process {holder}; wait for it or choose another folder", run.display())]
    Locked {
        /// The run folder.
        run: PathBuf,
        /// The process id that its lock file names.
        holder: String,
    },

    /// A run is resumed with another recipe than it was started with.
    #[error(
        "{} was started with another recipe (`{key}` was {was}, now {now}); resume with the same \
         recipe and options, or choose another folder",
        run.display()
    )]
    RecipeChanged {
        /// The run folder.
        run: PathBuf,
        /// The first line that differs.
        key: String,
        /// Its value in the run folder.
        was: String,
        /// Its value now.
        now: String,
    },

    /// A run is resumed on other data or weights than it was started with.
    #[error(
        "{} was started with other {name} (their SHA-256 in inputs.json differs); put back what \
         they were, or choose another folder",
        run.display()
    )]
    InputChanged {
        /// The run folder.
        run: PathBuf,
        /// Which of the run's inputs.
        name: String,
    },

    /// A file of a finished run is damaged or missing.
    #[error(
        "{} {reason}; take it from a copy of the run, or train the run again",
        path.display()
    )]
    BadChecksum {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },

    /// The run was asked to stop, and did.
    #[error("{} was stopped at step {step}; --resume goes on with it", run.display())]
    Stopped {
        /// The run folder.
        run: PathBuf,
        /// Steps that its newest checkpoint has.
        step: u64,
    },

    /// A checkpoint is incomplete or damaged.
    #[error("checkpoint {} is damaged: {reason}", path.display())]
    BadCheckpoint {
        /// The checkpoint's folder or file.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },

    /// Checkpoints exist and none of them is whole.
    #[error(
        "no checkpoint in {} is whole ({}); restore one of them, or start again in another folder",
        folder.display(),
        reasons.join("; ")
    )]
    NoGoodCheckpoint {
        /// The folder of checkpoints.
        folder: PathBuf,
        /// What is wrong with each.
        reasons: Vec<String>,
    },

    /// The gradient check of a phase's first step found parameters that would not learn.
    #[error(
        "gradient check in phase `{phase}`: {}; freeze them with a [[group]] of rate 0, allow \
         them in [gradient_check], or mend the model",
        found.iter().map(|(name, reason)| format!("`{name}`: {reason}")).collect::<Vec<_>>().join(", ")
    )]
    GradientCheck {
        /// The phase.
        phase: String,
        /// Each parameter with the reason.
        found: Vec<(String, &'static str)>,
    },

    /// The loss or the gradients were not finite three times in a row.
    #[error(
        "{what} in {in_a_row} steps in a row, up to step {step}; the same recipe comes to it again: \
         start a new run in another folder with a lower `optimiser.learning_rate` or a smaller \
         `optimiser.clip_norm`{}",
        match last_good {
            Some(path) => format!("; the last good checkpoint is {}", path.display()),
            None => String::new(),
        }
    )]
    NotFinite {
        /// What was not finite, with names where known.
        what: String,
        /// How many steps in a row.
        in_a_row: u32,
        /// The last of them.
        step: u64,
        /// The newest checkpoint.
        last_good: Option<PathBuf>,
    },

    /// A frozen parameter moved: an error in this toolkit or in the study.
    #[error(
        "frozen parameters changed during phase `{phase}`: fingerprint {before} became {after}"
    )]
    FrozenMoved {
        /// The phase.
        phase: String,
        /// SHA-256 at the phase's start.
        before: String,
        /// SHA-256 at its end.
        after: String,
    },

    /// A phase drops a parameter that an earlier phase had trained.
    #[error(
        "phase `{phase}` builds no parameter `{name}` of shape {shape:?}, which the phase before had"
    )]
    ParameterLost {
        /// The phase.
        phase: String,
        /// The parameter.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },

    /// Nothing to train on, or nothing to train.
    #[error("phase `{phase}`: {reason}")]
    EmptyPhase {
        /// The phase.
        phase: String,
        /// What is lacking.
        reason: String,
    },

    /// The evaluation lacks the primary metric.
    #[error("the evaluation has no metric `{wanted}`, only {}", found.join(", "))]
    MissingMetric {
        /// The primary metric.
        wanted: String,
        /// What there is.
        found: Vec<String>,
    },
}

impl From<DataError> for TrainError {
    fn from(error: DataError) -> Self {
        Self::Data(Box::new(error))
    }
}

impl TrainError {
    /// An error with the file it is about; for use in `map_err`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_path_buf(), source }
    }
}

fn remedy(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound => "; check the path: a relative one starts at the working folder",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "; you may not read or write this: change its permissions or choose another path"
        }
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
            "; a file stands where a run folder has to be: choose another folder or move the file"
        }
        ErrorKind::IsADirectory => "; this is a folder: name a file in it",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "; free some space, then --resume from the last checkpoint"
        }
        _ => "",
    }
}
