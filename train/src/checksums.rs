//! The checksums of a finished run: `run.sha256`, in the format of `sha256sum`.
//!
//! A run writes the file after its other files. Each reader of the run checks it, so a damaged file
//! is an error instead of a different score. `sha256sum -c run.sha256` checks it, too.

use std::fs;
use std::path::Path;

use engram_data::hub::WeightsLocation;
use rayon::prelude::*;
use serde::Serialize;

use crate::checkpoint::write_file;
use crate::digest;
use crate::error::{Result, TrainError};
use crate::log;
use crate::run_folder::{INPUTS, RECIPE, SUMMARY};
use crate::trainer::WEIGHTS;

/// The file of checksums in a run folder.
pub const CHECKSUMS: &str = "run.sha256";

/// The files that determine a run's predictions, for all studies, except its summary.
const FILES: [&str; 10] = [
    WEIGHTS,
    RECIPE,
    INPUTS,
    "config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "model.json",
    "titles.tsv",
    "calibration.json",
    "stacking.json",
];

/// Hexadecimal digits of a SHA-256.
const DIGITS: usize = 64;

/// Finishes a run: writes the checksums of its files and, last, its summary. A folder with a
/// summary is a finished run.
pub(crate) fn finish_run(run: &Path, summary: &impl Serialize) -> Result<()> {
    let path = run.join(SUMMARY);
    let json =
        serde_json::to_vec_pretty(summary).map_err(|error| TrainError::io(&path)(error.into()))?;
    write(run, Some(digest::of_bytes(&json)))?;
    write_file(&path, &json)
}

/// Writes the checksums of a run's files.
///
/// # Errors
/// [`TrainError::Io`]
pub fn write_checksums(run: &Path) -> Result<()> {
    let summary = run.join(SUMMARY);
    let summary = match summary.is_file() {
        true => Some(digest::of_file(&summary).map_err(TrainError::io(&summary))?.1),
        false => None,
    };
    write(run, summary)
}

fn write(run: &Path, summary: Option<String>) -> Result<()> {
    let mut lines = String::new();
    for name in FILES {
        let path = run.join(name);
        if path.is_file() {
            let (_, sum) = digest::of_file(&path).map_err(TrainError::io(&path))?;
            lines.push_str(&format!("{sum}  {name}\n"));
        }
    }
    if let Some(sum) = summary {
        lines.push_str(&format!("{sum}  {SUMMARY}\n"));
    }
    write_file(&run.join(CHECKSUMS), lines.as_bytes())
}

/// Checks the files of a folder against its checksums. A folder that is not a run needs no
/// checksums. A finished run without checksums gives a warning.
///
/// # Errors
/// [`TrainError::BadChecksum`] with the damaged or missing file; [`TrainError::Io`]
pub fn check_checksums(folder: &Path) -> Result<()> {
    let list = folder.join(CHECKSUMS);
    let text = match fs::read(&list) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            warn_if_run(folder);
            return Ok(());
        }
        read => read.map_err(TrainError::io(&list))?,
    };
    let text = String::from_utf8_lossy(&text);
    let mut listed = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let parts = parse(line).ok_or_else(|| TrainError::BadChecksum {
            path: list.clone(),
            reason: format!("line {} is not a checksum with a file name", index + 1),
        })?;
        listed.push(parts);
    }
    listed.par_iter().try_for_each(|(sum, name)| {
        let path = folder.join(name);
        let reason = match digest::of_file(&path) {
            Ok((_, found)) if found == *sum => return Ok(()),
            Ok(_) => {
                format!(
                    "does not match its SHA-256 in {CHECKSUMS}: the file was damaged or changed"
                )
            }
            // The summary is written after the list. Without it, the run is not finished.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => match *name == SUMMARY {
                true => return Ok(()),
                false => format!("is missing, but {CHECKSUMS} lists it"),
            },
            Err(error) => return Err(TrainError::io(&path)(error)),
        };
        Err(TrainError::BadChecksum { path, reason })
    })
}

/// Checks a model's folder like [`check_checksums`]. Hub models were checked when they were
/// downloaded.
pub(crate) fn check_model(location: &WeightsLocation) -> Result<()> {
    match location {
        WeightsLocation::Folder(folder) => check_checksums(folder),
        WeightsLocation::Hub { .. } => Ok(()),
    }
}

/// The checksum and file name of a line. Only names of files directly in the folder are valid.
fn parse(line: &str) -> Option<(&str, &str)> {
    let (sum, name) = line.split_once(' ')?;
    let name = name.strip_prefix([' ', '*'])?;
    let is_sum = sum.len() == DIGITS && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_inside = !name.is_empty() && !name.contains(['/', '\\']) && name != "..";
    (is_sum && is_inside).then_some((sum, name))
}

/// Warns of a finished run of an older version, which wrote no checksums.
fn warn_if_run(folder: &Path) {
    if folder.join(SUMMARY).is_file() && folder.join(RECIPE).is_file() {
        let folder = folder.display();
        log::print(&format!(
            "warning: {folder} was trained by an older version and has no {CHECKSUMS}: damaged \
             files are not detected"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for name in [WEIGHTS, RECIPE, "config.json"] {
            fs::write(folder.path().join(name), format!("the bytes of {name}")).expect("written");
        }
        finish_run(folder.path(), &["a summary"]).expect("finished");
        folder
    }

    #[test]
    fn a_flipped_byte_is_detected_in_every_file() {
        let folder = finished();
        check_checksums(folder.path()).expect("whole");
        for name in [WEIGHTS, RECIPE, "config.json", SUMMARY, CHECKSUMS] {
            let path = folder.path().join(name);
            let original = fs::read(&path).expect("read");
            for offset in 0..original.len() {
                let mut bytes = original.clone();
                bytes[offset] ^= 1 << (offset % 8);
                fs::write(&path, bytes).expect("written");
                let error = check_checksums(folder.path()).expect_err("damaged");
                assert!(
                    matches!(error, TrainError::BadChecksum { .. }),
                    "{name} {offset}: {error}"
                );
                if name != CHECKSUMS {
                    assert!(error.to_string().contains(name), "{error}");
                }
            }
            fs::write(&path, original).expect("written");
        }
        fs::remove_file(folder.path().join("config.json")).expect("removed");
        let error = check_checksums(folder.path()).expect_err("missing").to_string();
        assert!(error.contains("config.json is missing"), "{error}");
    }

    #[test]
    fn other_folders_need_no_checksums() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(WEIGHTS), "weights").expect("written");
        check_checksums(folder.path()).expect("no checksums needed");
    }
}
