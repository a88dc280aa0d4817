//! The error type of this crate.

use std::path::PathBuf;

/// An error while building, loading or running a model.
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
        /// The error of the operating system.
        source: std::io::Error,
    },

    /// A model's file is damaged, is not supported, or does not fit the configuration.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// The problem, and the remedy.
        reason: String,
    },
    /// The configuration is not valid.
    #[error("{what}: {reason}")]
    BadConfig {
        /// The file or the field.
        what: String,
        /// The problem, and the valid values.
        reason: String,
    },

    /// The model does not accept the input.
    #[error("{0}")]
    BadInput(String),

    /// The pattern of a parameter group matches no parameter.
    #[error(
        "parameter pattern `{pattern}` matches none of {count} parameters, such as `{example}`"
    )]
    UnmatchedPattern {
        /// The pattern.
        pattern: String,
        /// The number of parameters.
        count: usize,
        /// The name of one parameter.
        example: String,
    },

    /// A pattern of low-rank branches or of quantised weights matches no linear layer.
    #[error("pattern `{pattern}` matches no linear layer{}", layer_hint(matched, example))]
    NoLinearLayer {
        /// The setting of the pattern: `low_rank` or `quantised`.
        setting: &'static str,
        /// The pattern.
        pattern: String,
        /// Something else in the model that the pattern matches, if any.
        matched: Option<String>,
        /// The path of one linear layer; `None` for a model without linear layers.
        example: Option<String>,
    },

    /// An external embedding table is frozen.
    #[error(
        "the embedding table `{table}` is frozen, and only trained tables can be kept in parts; give \
         it a rate above 0, or remove it from the patterns"
    )]
    FrozenTable {
        /// The name of the table.
        table: String,
    },

    /// A pattern of external embedding tables matches none.
    #[error(
        "pattern `{pattern}` matches no embedding table that can be kept in parts; the tables are: {}",
        names(tables)
    )]
    NoEmbeddingTable {
        /// The pattern.
        pattern: String,
        /// The names of the model's tables.
        tables: Vec<String>,
    },

    /// The settings of a low-rank branch are not valid, or do not fit a layer.
    #[error("low-rank pattern `{pattern}`, layer `{layer}`: {value} {reason}")]
    BadLowRank {
        /// The pattern.
        pattern: String,
        /// The path of the layer.
        layer: String,
        /// The name of the value.
        value: &'static str,
        /// The problem.
        reason: String,
    },
}

/// The result type of this crate.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

/// Returns [`ModelError::BadInput`] with a formatted text from a function.
macro_rules! bail {
    ($($text:tt)+) => {
        return Err($crate::error::ModelError::BadInput(format!($($text)+)))
    };
}
pub(crate) use bail;

/// A list of names for an error text.
fn names(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names => format!("`{}`", names.join("`, `")),
    }
}

/// Returns a hint on a pattern that matches no linear layer.
fn layer_hint(matched: &Option<String>, example: &Option<String>) -> String {
    let example = match example {
        Some(layer) => format!("; one of them is `{layer}`"),
        None => "; the model has none".into(),
    };
    match matched {
        Some(other) => format!(" (`{other}` is not one){example}"),
        None => example,
    }
}
