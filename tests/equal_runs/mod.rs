//! The files that are equal in equal runs.

use std::fs;
use std::path::{Path, PathBuf};

/// Weights, metrics, checkpoints and results, with their paths in the run. Only folders whose names
/// satisfy `is_included` are read.
pub fn reproducible_files(
    run: &Path,
    is_included: impl Fn(&str) -> bool,
) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut folders) = (Vec::new(), vec![run.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let (path, name) = (entry.path(), entry.file_name().into_string().expect("a name"));
            if path.is_dir() {
                if is_included(&name) {
                    folders.push(path);
                }
            } else if !["timing.jsonl", ".lock", "README.md"].contains(&name.as_str())
                && !name.starts_with("events.")
            {
                let bytes = fs::read(&path).expect("a file");
                found.push((path.strip_prefix(run).expect("inside").into(), bytes));
            }
        }
    }
    found.sort();
    found
}
