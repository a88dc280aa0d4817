//! The folder of a finished run: its file names, and its checksums in `run.sha256`, in the format
//! of `sha256sum`.
//!
//! A run writes the checksums after all files except the summary, and a converted model has them,
//! too. Every command that reads the folder checks them, so a damaged file is an error instead of a
//! different score. The list is complete: a file of [`files`] that it lacks is refused, too. You can
//! check the listed files with `sha256sum -c run.sha256`.

use std::io::ErrorKind;
use std::path::Path;

use engram_models::similarity::sentence_transformer::TransformerSettings;
use engram_models::weights::{INDEX_FILE, WEIGHTS_FILE};
use engram_textfile::{refuse_lfs_pointer, refuse_lfs_pointer_at};
use rayon::prelude::*;
use serde::Deserialize;

use crate::digest;
use crate::error::{InferError, Result};

/// The final weights.
pub const WEIGHTS: &str = WEIGHTS_FILE;
/// The resolved recipe.
pub const RECIPE: &str = "recipe.toml";
/// The results; the last file that a run of any study writes.
pub const SUMMARY: &str = "summary.json";
/// The checksums of the files that determine predictions, and of the summary.
pub const CHECKSUMS: &str = "run.sha256";
/// The key of a `config.json` whose folder has checksums, although it may lack a recipe and a
/// summary.
pub const CHECKSUMS_KEY: &str = "engram_checksums";

/// Files that determine predictions: of the runs of all studies, and of models of other tools.
const FILES: [&str; 17] = [
    WEIGHTS,
    INDEX_FILE,
    RECIPE,
    "inputs.json",
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.json",
    "titles.tsv",
    "pairs.json",
    "calibration.json",
    "stacking.json",
    "generation_config.json",
    "modules.json",
    "config_sentence_transformers.json",
];

/// The names of all files that determine predictions. If a folder has checksums, it lists each of
/// these files that exists. Other files, such as notes or plots, may be added to the folder.
pub fn files() -> impl Iterator<Item = &'static str> {
    FILES.into_iter().chain(TransformerSettings::FILES)
}

/// The number of hexadecimal digits of a SHA-256.
const DIGITS: usize = 64;

/// Whether a run of any study is finished: its summary exists.
pub fn is_finished(run: &Path) -> bool {
    run.join(SUMMARY).is_file()
}

/// The study in the recipe of a run, finished or not; `None` for another folder.
pub fn study(run: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct Study {
        study: String,
    }
    let text = engram_durable::read_text(run.join(RECIPE)).ok()?;
    toml::from_str(&text).ok().map(|Study { study }| study)
}

/// Checks the files of a folder against its checksums. A folder needs them if it is a finished run,
/// or if its `config.json` has [`CHECKSUMS_KEY`].
///
/// # Errors
/// [`InferError::BadChecksum`] for a damaged, missing or unlisted file and for an invalid line of
/// the list; [`InferError::BadRun`] for a file in the place of the folder; [`InferError::Data`] for
/// a Git LFS pointer in the place of a file; [`InferError::Io`]
pub fn check_checksums(folder: &Path) -> Result<()> {
    if folder.is_file() {
        let reason = "is a file; give the folder of a run or a model".to_owned();
        return Err(InferError::BadRun { path: folder.to_owned(), reason });
    }
    let list = folder.join(CHECKSUMS);
    let bytes = match engram_durable::read_file(&list) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let reason = "is missing, so damaged files would not be detected";
            let reason = match is_finished(folder) && folder.join(RECIPE).is_file() {
                true => reason.to_owned(),
                false if has_checksums_key(folder) => format!(
                    "{reason} (for a copy of some of the files, remove `{CHECKSUMS_KEY}` from its \
                     config.json)"
                ),
                false => return Ok(()),
            };
            return Err(InferError::BadChecksum { path: list, reason });
        }
        read => read.map_err(InferError::io(&list))?,
    };
    refuse_lfs_pointer(&list, &bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_start_matches('\u{feff}');
    let mut listed = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let checksum = parse_line(line).ok_or_else(|| InferError::BadChecksum {
            path: list.clone(),
            reason: format!("line {} is not a checksum with a file name", index + 1),
        })?;
        listed.push(checksum);
    }
    for name in files().chain([SUMMARY]) {
        let path = folder.join(name);
        if !listed.iter().any(|(_, listed)| *listed == name) && path.exists() {
            let reason = format!(
                "is not listed in {CHECKSUMS} (if another program added the file, remove it)"
            );
            return Err(InferError::BadChecksum { path, reason });
        }
    }
    listed.par_iter().try_for_each(|(expected, name)| {
        let path = folder.join(name);
        let reason = match digest::of_file(&path) {
            Ok((_, actual)) if actual.eq_ignore_ascii_case(expected) => return Ok(()),
            Ok(_) => {
                refuse_lfs_pointer_at(&path)?;
                format!(
                    "does not match its SHA-256 in {CHECKSUMS}: the file was damaged or changed"
                )
            }
            // The summary is written after the checksums. It is missing if the run was interrupted
            // in between.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if *name == SUMMARY {
                    return Ok(());
                } else {
                    format!("is missing, but {CHECKSUMS} lists it")
                }
            }
            Err(error) => return Err(InferError::io(&path)(error)),
        };
        Err(InferError::BadChecksum { path, reason })
    })
}

fn has_checksums_key(folder: &Path) -> bool {
    let config = engram_durable::read_file(folder.join("config.json")).unwrap_or_default();
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap_or_default();
    config.get(CHECKSUMS_KEY).is_some()
}

/// The checksum and file name of a line. Only names of files directly in the folder are valid; other
/// tools write `./` before them.
fn parse_line(line: &str) -> Option<(&str, &str)> {
    let (checksum, name) = line.split_once(' ')?;
    let name = name.strip_prefix([' ', '*'])?;
    let name = name.strip_prefix("./").unwrap_or(name);
    let is_sha256 =
        checksum.len() == DIGITS && checksum.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_in_folder = !name.is_empty() && !name.contains(['/', '\\']) && name != "..";
    (is_sha256 && is_in_folder).then_some((checksum, name))
}
