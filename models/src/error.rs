//! The error type of this crate.

use std::path::PathBuf;

/// Everything that can go wrong while building, loading or running a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A tensor operation failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),

    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// A weights file is not a safetensors file, or is cut short.
    #[error("{}: not a readable safetensors file ({reason}); it is cut or damaged: fetch it \
             again, or take it from a copy", path.display())]
    BadWeights {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        reason: String,
    },

    /// A `model.bin` that is not one of CTranslate2's Whisper models, or is cut short.
    #[error("{}: not a model.bin of CTranslate2 that can be read ({reason}); fetch it again, or \
             convert the model anew", path.display())]
    BadCtranslate2 {
        /// The file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },

    /// The weights lack a tensor that the model needs.
    #[error("{}: tensor `{name}` of shape {wanted:?} is missing{}", path.display(), near(nearest))]
    MissingTensor {
        /// The weights file.
        path: PathBuf,
        /// The tensor's published name.
        name: String,
        /// The shape that the configuration asks for.
        wanted: Vec<usize>,
        /// The most similar name in the file, if any.
        nearest: Option<String>,
    },

    /// A tensor has another shape than the configuration asks for.
    #[error(
        "{}: tensor `{name}` has shape {found:?}, but the configuration needs {wanted:?}; \
         do config.json and the weights belong to the same model?",
        path.display()
    )]
    MisshapenTensor {
        /// The weights file.
        path: PathBuf,
        /// The tensor's published name.
        name: String,
        /// The shape that the configuration asks for.
        wanted: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },

    /// A tensor whose numbers cannot be read.
    #[error("{}: tensor `{name}` cannot be read: {reason}", path.display())]
    UnreadableTensor {
        /// The weights file.
        path: PathBuf,
        /// The tensor's published name.
        name: String,
        /// Why.
        reason: String,
    },

    /// A configuration that no model can be built from.
    #[error("{what}: {reason}")]
    BadConfig {
        /// The file or the field.
        what: String,
        /// Why, and what would be right.
        reason: String,
    },

    /// An input that the model cannot take.
    #[error("{0}")]
    BadInput(String),

    /// A pattern that names no parameter.
    #[error(
        "parameter pattern `{pattern}` matches none of {count} parameters, such as `{example}`"
    )]
    UnusedPattern {
        /// The pattern.
        pattern: String,
        /// How many parameters there are.
        count: usize,
        /// One of their names.
        example: String,
    },
}

/// Results of this crate.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

fn near(nearest: &Option<String>) -> String {
    match nearest {
        Some(name) => format!(" (the nearest name there is `{name}`)"),
        None => String::new(),
    }
}
