//! Which folders are runs, and which are memories.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use engram_memory::format::manifest::CURRENT;
use engram_train::{RECIPE, is_finished};
use serde::Serialize;

/// Folders within folders that are looked into: `FOLDER/GRID/seed-1/ROW/memory`.
const DEPTH: usize = 5;

/// What was found.
pub(super) struct Found {
    pub(super) runs: Vec<Run>,
    pub(super) memories: Vec<(String, PathBuf)>,
}

/// A run.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    /// Its folder as it was given, or within one that was.
    pub(super) name: String,
    /// `patent`, `reveal`, …
    pub(super) study: String,
    /// Whether it has come to its end.
    pub(super) finished: bool,
    #[serde(skip)]
    pub(super) folder: PathBuf,
}

/// Finds runs and memories in folders, in the order of their names.
pub(super) fn find(folders: &[PathBuf]) -> anyhow::Result<Found> {
    let mut found = Found { runs: Vec::new(), memories: Vec::new() };
    for folder in folders {
        let before = found.runs.len() + found.memories.len();
        look_into(folder, DEPTH, &mut found)?;
        if found.runs.len() + found.memories.len() == before {
            anyhow::bail!(
                "{}: has no run and no memory in it; give the folder of `engram train … --run` or \
                 `engram memory build --out`, or one around it",
                folder.display()
            );
        }
    }
    Ok(found)
}

fn look_into(folder: &Path, depth: usize, found: &mut Found) -> anyhow::Result<()> {
    let name = || folder.display().to_string();
    if folder.join(CURRENT).is_file() {
        found.memories.push((name(), folder.to_path_buf()));
        return Ok(());
    }
    if folder.join(RECIPE).is_file() {
        let study = study(&folder.join(RECIPE))?;
        let finished = is_finished(folder);
        found.runs.push(Run { name: name(), study, finished, folder: folder.to_path_buf() });
    }
    if depth == 0 {
        return Ok(());
    }
    let entries = fs::read_dir(folder).with_context(|| format!("{}: is no folder", name()))?;
    let mut below: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    below.retain(|path| path.is_dir() && !path.is_symlink());
    below.sort();
    below.iter().try_for_each(|path| look_into(path, depth - 1, found))
}

/// The study of a run's recipe.
fn study(recipe: &Path) -> anyhow::Result<String> {
    let unread = || format!("{}: is no recipe of a run", recipe.display());
    let text = fs::read_to_string(recipe).with_context(unread)?;
    let table: toml::Table = text.parse().with_context(unread)?;
    Ok(table.get("study").and_then(|study| study.as_str()).unwrap_or_default().to_owned())
}
