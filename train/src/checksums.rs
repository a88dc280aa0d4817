//! The end of a run: writes its checksums and its summary. [`engram_infer::finished_run`] reads
//! them.

use std::path::Path;

use engram_infer::digest;
use engram_infer::finished_run::{CHECKSUMS, SUMMARY, files};
use serde::Serialize;

use crate::card;
use crate::checkpoint::write_file;
use crate::error::{Result, TrainError};
use crate::recipe::Recipe;
use crate::study::{StudyExtension, StudyResult};
use crate::trainer::{RunOptions, RunSummary, train};

/// Finishes a run: adds the measures of its summary to its model card, then writes the checksums of
/// its files and, last, its summary. A folder with a summary is a finished run.
///
/// # Errors
/// [`TrainError::Io`]
pub fn finish_run(run: &Path, summary: &impl Serialize) -> Result<()> {
    let path = run.join(SUMMARY);
    let json =
        serde_json::to_vec_pretty(summary).map_err(|error| TrainError::io(&path)(error.into()))?;
    let value =
        serde_json::from_slice(&json).map_err(|error| TrainError::io(&path)(error.into()))?;
    card::add_results(run, &value)?;
    write(run, Some(digest::of_bytes(&json)))?;
    write_file(&path, &json)
}

/// Trains a study by a recipe, then calls `finish` to measure the finished model, and finishes the
/// run with its summary.
///
/// # Errors
/// The errors of [`train`] and `finish`. A [`TrainError`] of `finish` is returned as it is, another
/// error as [`TrainError::Study`].
pub(crate) fn train_and_finish<S: StudyExtension, T: Serialize>(
    study: &mut S,
    recipe: &Recipe,
    options: &RunOptions,
    finish: impl FnOnce(&mut S, &RunSummary) -> StudyResult<T>,
) -> Result<T> {
    let trained = train(study, recipe, options)?;
    let summary =
        finish(study, &trained).map_err(|source| match source.downcast::<TrainError>() {
            Ok(error) => *error,
            Err(source) => TrainError::Study {
                study: study.name().to_owned(),
                part: "measuring the finished run",
                source,
            },
        })?;
    finish_run(&options.run, &summary)?;
    Ok(summary)
}

/// Writes the checksums of the files of a run or a model, and of its summary if it has one.
///
/// # Errors
/// [`TrainError::Io`]
pub fn write_checksums(run: &Path) -> Result<()> {
    let summary = run.join(SUMMARY);
    let summary = if summary.is_file() {
        Some(digest::of_file(&summary).map_err(TrainError::io(&summary))?.1)
    } else {
        None
    };
    write(run, summary)
}

/// Writes the list of checksums. `summary` is the summary's SHA-256; `None` without a summary.
fn write(run: &Path, summary: Option<String>) -> Result<()> {
    let mut lines = String::new();
    for name in files() {
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

#[cfg(test)]
mod tests {
    use std::fs;

    use engram_infer::InferError;
    use engram_infer::finished_run::{CHECKSUMS_KEY, RECIPE, WEIGHTS, check_checksums};

    use super::*;

    /// A finished run with dummy files.
    fn finished() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for name in [WEIGHTS, RECIPE, "config.json"] {
            fs::write(folder.path().join(name), format!("the bytes of {name}")).expect("written");
        }
        finish_run(folder.path(), &["a summary"]).expect("finished");
        folder
    }

    #[test]
    fn a_flipped_bit_or_a_missing_file_is_detected() {
        let folder = finished();
        check_checksums(folder.path()).expect("whole");
        for name in [WEIGHTS, RECIPE, "config.json", SUMMARY, CHECKSUMS] {
            let path = folder.path().join(name);
            let original = fs::read(&path).expect("read");
            for offset in 0..original.len() {
                let mut bytes = original.clone();
                bytes[offset] ^= 1 << (offset % 8);
                // The case of a hexadecimal digit has no meaning.
                if name == CHECKSUMS && bytes.eq_ignore_ascii_case(&original) {
                    continue;
                }
                fs::write(&path, bytes).expect("written");
                let error = check_checksums(folder.path()).expect_err("damaged");
                assert!(matches!(error, InferError::BadChecksum { .. }), "{name} {offset} {error}");
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

    /// A lost line and an added file that a model is read with are refused; notes are not.
    #[test]
    fn the_list_of_checksums_is_complete() {
        let folder = finished();
        let list = folder.path().join(CHECKSUMS);
        let lines = fs::read_to_string(&list).expect("read");
        fs::write(folder.path().join("notes.json"), "{}").expect("written");
        check_checksums(folder.path()).expect("notes may be added");
        for lost in lines.split_inclusive('\n').chain([lines.as_str()]) {
            fs::write(&list, lines.replace(lost, "")).expect("written");
            let error = check_checksums(folder.path()).expect_err("incomplete").to_string();
            assert!(error.contains("is not listed in run.sha256"), "{lost}: {error}");
        }
        // The forms of other tools.
        let upper = |line: &str| line.split_at(64).0.to_uppercase() + line.split_at(64).1 + "\r\n";
        let forms = [lines.lines().map(upper).collect(), lines.replace("  ", " *./")];
        for form in forms {
            fs::write(&list, format!("\u{feff}{form}")).expect("written");
            check_checksums(folder.path()).expect("another form");
        }
        fs::write(&list, &lines).expect("written");
        fs::write(folder.path().join("modules.json"), "[]").expect("written");
        let error = check_checksums(folder.path()).expect_err("added").to_string();
        assert!(error.contains("modules.json is not listed"), "{error}");
        fs::write(&list, "version https://git-lfs.github.com/spec/v1\n").expect("written");
        let error = check_checksums(folder.path()).expect_err("a pointer").to_string();
        assert!(error.contains("run.sha256: is a Git LFS pointer"), "{error}");
    }

    #[test]
    fn a_folder_without_a_run_needs_no_checksums() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(WEIGHTS), "weights").expect("written");
        check_checksums(folder.path()).expect("no checksums needed");
        // A model with this key was made with checksums.
        let config = format!("{{\"{CHECKSUMS_KEY}\": \"{CHECKSUMS}\"}}");
        fs::write(folder.path().join("config.json"), config).expect("written");
        let error = check_checksums(folder.path()).expect_err("missing").to_string();
        assert!(error.contains("run.sha256 is missing"), "{error}");
        write_checksums(folder.path()).expect("written");
        check_checksums(folder.path()).expect("whole");
    }
}
