//! Finds runs and memories below the given folders.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use engram_data::folder::is_hidden;
use engram_infer::finished_run::{RECIPE, is_finished};
use engram_memory::format::manifest::CURRENT;
use engram_train::studies::reveal::evaluation::restore_missing_memory;
use serde::Serialize;

use crate::cli::output;
use crate::cli::studies::{self, ExplorerTab};

/// Maximum depth of the searched folders below a given folder. The memory of a grid's run is at
/// depth 4: `FOLDER/GRID/seed-1/CONFIGURATION/memory`.
const MAX_DEPTH: usize = 5;

/// The runs and memories that were found.
pub(super) struct RunsAndMemories {
    pub(super) runs: Vec<Run>,
    pub(super) memories: Vec<FoundMemory>,
}

/// A memory on disk.
pub(super) struct FoundMemory {
    /// The folder, without the common parent of all folders found.
    pub(super) name: String,
    pub(super) folder: PathBuf,
    /// Index of the run whose folder contains the memory; `None` for other memories.
    pub(super) run: Option<usize>,
}

/// A training run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Run {
    /// The folder, without the common parent of all folders found.
    pub(super) name: String,
    /// The name of the study, such as `patent`.
    pub(super) study: String,
    /// The names of the tabs that can show it when it is finished.
    pub(super) tabs: Vec<&'static str>,
    /// Whether it was trained on the embedded world.
    pub(super) is_world: bool,
    /// Whether training has finished.
    pub(super) finished: bool,
    /// Whether its memory exists. Grids keep only the memory of the main configuration;
    /// `engram answer` builds the others again.
    pub(super) has_memory: bool,
    #[serde(skip)]
    pub(super) folder: PathBuf,
    /// The folder of the data that a REVEAL run was trained on, and so of its images; `None` for
    /// other runs and for the embedded world.
    #[serde(skip)]
    pub(super) data_folder: Option<PathBuf>,
}

impl Run {
    /// The current state of the run: training may have finished, and the memory may exist by now.
    pub(super) fn current_state(&self) -> Self {
        let has_memory = self.folder.join("memory").join(CURRENT).is_file();
        Self { finished: is_finished(&self.folder), has_memory, ..self.clone() }
    }
}

/// Builds the memory again for each finished REVEAL run that has none, among the given folders and
/// the folders in them. A failure is a warning.
pub(super) fn restore_memories(folders: &[PathBuf]) {
    let subfolders = folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
    let subfolders = subfolders.flatten().map(|entry| entry.path());
    let mut runs: Vec<PathBuf> = folders.iter().cloned().chain(subfolders).collect();
    runs.retain(|run| run.join(RECIPE).is_file() && is_finished(run));
    runs.sort();
    for run in runs {
        let has_answers = |(name, ..): (String, bool, Option<PathBuf>)| {
            studies::explorer_tabs(&name).contains(&ExplorerTab::Answers)
        };
        if read_recipe(&run.join(RECIPE)).is_ok_and(has_answers)
            && let Err(error) = restore_missing_memory(&run, output::is_quiet())
        {
            output::warn(&output::with_causes(&error.into()));
        }
    }
}

/// Finds runs and memories below folders, in the order of the folders, and sorted by path below
/// each. Skips unreadable runs and folders with a warning.
pub(super) fn find(folders: &[PathBuf]) -> anyhow::Result<RunsAndMemories> {
    let mut found = RunsAndMemories { runs: Vec::new(), memories: Vec::new() };
    // Canonical paths give each folder its real name and avoid duplicates.
    let canonicalize = |folder: &PathBuf| {
        let canonical = folder.canonicalize().ok().filter(|folder| folder.is_dir());
        canonical.with_context(|| {
            format!(
                "{}: is not a folder; give one that contains runs or memories",
                folder.display()
            )
        })
    };
    let canonical = folders.iter().map(canonicalize).collect::<anyhow::Result<Vec<PathBuf>>>()?;
    for folder in &canonical {
        fs::read_dir(folder).with_context(|| {
            format!("{}: could not be read; give another folder", folder.display())
        })?;
        add_below(folder, MAX_DEPTH, &mut found);
        let mut runs = found.runs.iter().map(|run| &run.folder);
        let mut memories = found.memories.iter().map(|memory| &memory.folder);
        if !runs.any(|run| run.starts_with(folder))
            && !memories.any(|memory| memory.starts_with(folder))
        {
            anyhow::bail!(
                "{}: contains no run and no memory; give the folder of `engram train … --run` or \
                 `engram memory build --out`, or a parent of it",
                folder.display()
            );
        }
    }
    for memory in &mut found.memories {
        memory.run = found.runs.iter().position(|run| memory.folder.parent() == Some(&run.folder));
    }
    found.set_names();
    Ok(found)
}

impl RunsAndMemories {
    /// Sets the names of all runs and memories: their folders, without the common parent.
    fn set_names(&mut self) {
        let runs = self.runs.iter().map(|run| run.folder.as_path());
        let folders = runs.chain(self.memories.iter().map(|memory| memory.folder.as_path()));
        let parents = folders.map(|folder| folder.parent().unwrap_or(folder));
        let common_parent = parents.reduce(common_ancestor).unwrap_or(Path::new("")).to_path_buf();
        let name = |folder: &Path| {
            folder.strip_prefix(&common_parent).unwrap_or(folder).display().to_string()
        };
        self.runs.iter_mut().for_each(|run| run.name = name(&run.folder));
        self.memories.iter_mut().for_each(|memory| memory.name = name(&memory.folder));
    }
}

/// The deepest common ancestor of two folders.
fn common_ancestor<'a>(folder: &'a Path, other: &Path) -> &'a Path {
    folder.ancestors().find(|ancestor| other.starts_with(ancestor)).unwrap_or(Path::new(""))
}

/// Adds the run or memory in a folder, and the runs and memories below it. Skips unreadable runs
/// and folders with a warning.
fn add_below(folder: &Path, depth: usize, found: &mut RunsAndMemories) {
    let (name, path) = (String::new(), folder.to_path_buf());
    let is_known = found.runs.iter().any(|run| run.folder == path)
        || found.memories.iter().any(|memory| memory.folder == path);
    if folder.join(CURRENT).is_file() {
        if !is_known {
            found.memories.push(FoundMemory { name, folder: path, run: None });
        }
        return;
    }
    if folder.join(RECIPE).is_file() && !is_known {
        match read_recipe(&folder.join(RECIPE)) {
            Ok((study, is_world, data_folder)) => {
                let (finished, has_memory) = (false, false);
                let tabs = studies::explorer_tabs(&study);
                let tabs = tabs.iter().map(|tab| tab.name()).collect();
                let run = Run {
                    name,
                    study,
                    tabs,
                    is_world,
                    finished,
                    has_memory,
                    data_folder: data_folder.map(|data| data_folder_of(&path, data)),
                    folder: path,
                };
                found.runs.push(run.current_state());
            }
            Err(error) => output::warn(&format!("skipped: {}", output::with_causes(&error))),
        }
    }
    if depth == 0 {
        return;
    }
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            return output::warn(&format!("skipped: {}: {error}", folder.display()));
        }
    };
    let visible = entries.flatten().filter(|entry| !is_hidden(&entry.file_name()));
    let mut subfolders: Vec<PathBuf> = visible.map(|entry| entry.path()).collect();
    subfolders.retain(|path| path.is_dir());
    subfolders.sort();
    for path in subfolders {
        if path.is_symlink() {
            let path = path.display();
            output::note(&format!("{path}: is a link, so it is not searched; give its own path"));
        } else {
            add_below(&path, depth - 1, found);
        }
    }
}

/// The folder of a run's data. A relative path starts at the folder in which the run was started,
/// which usually is one above the run; otherwise, at the current folder.
fn data_folder_of(run: &Path, data: PathBuf) -> PathBuf {
    let mut above = run.ancestors().skip(1).map(|folder| folder.join(&data));
    above.find(|folder| folder.is_dir()).unwrap_or(data)
}

/// The study of a run's recipe, whether the run was trained on the embedded world, and the folder
/// of its data.
fn read_recipe(recipe: &Path) -> anyhow::Result<(String, bool, Option<PathBuf>)> {
    let invalid = || format!("{}: is not a run's recipe", recipe.display());
    let text = engram_durable::read_text(recipe).with_context(invalid)?;
    let table: toml::Table = text.parse().with_context(invalid)?;
    let string = |value: Option<&toml::Value>| {
        value.and_then(|value| value.as_str()).unwrap_or_default().to_owned()
    };
    let data = |key| string(table.get("data").and_then(|data| data.get(key)));
    let folder = Some(data("path")).filter(|path| !path.is_empty()).map(PathBuf::from);
    let is_world = data("train").is_empty() && folder.is_none();
    Ok((string(table.get("study")), is_world, folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, file: &str, text: &str) {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn runs_and_memories_are_found_and_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        for run in ["runs/a", "runs/grid/seed-1/main"] {
            write(root, &format!("{run}/recipe.toml"), "study = \"reveal\"\n[data]\n");
        }
        write(root, "runs/a/summary.json", "{}");
        write(root, "runs/grid/seed-1/main/memory/CURRENT", "1");
        write(root, "runs/other/notes.txt", "");
        let found = find(&[root.join("runs")]).expect("found");
        let runs: Vec<_> = found
            .runs
            .iter()
            .map(|run| (run.name.as_str(), run.study.as_str(), run.finished, run.has_memory))
            .collect();
        let expected = [("a", "reveal", true, false), ("grid/seed-1/main", "reveal", false, true)];
        assert_eq!(runs, expected);
        let memories: Vec<_> =
            found.memories.iter().map(|memory| (memory.name.as_str(), memory.run)).collect();
        assert_eq!(memories, [("grid/seed-1/main/memory", Some(1))]);
        let single = find(&[root.join("runs/a")]).expect("found");
        assert_eq!(single.runs[0].name, "a");
        // Duplicates are merged, and a memory belongs to its run, in any order of the arguments.
        let folders = ["runs/grid/seed-1/main/memory", "runs", "runs/a", "runs/../runs"];
        let merged = find(&folders.map(|folder| root.join(folder))).expect("found");
        assert_eq!((merged.runs.len(), merged.memories.len()), (2, 1));
        assert_eq!(merged.memories[0].run, Some(1));
        // Broken runs are skipped; a run that finished in the meantime is reported as finished.
        write(root, "runs/broken/recipe.toml", "study = ");
        assert_eq!(find(&[root.join("runs")]).expect("found").runs.len(), 2);
        write(root, "runs/relative/recipe.toml", "[data]\npath = \"photographs\"\n");
        write(root, "photographs/a.png", "");
        std::os::unix::fs::symlink("a", root.join("runs/link")).expect("a link");
        let relative = find(&[root.join("runs")]).expect("found").runs;
        let photographs = root.canonicalize().expect("a folder").join("photographs");
        assert_eq!((relative.len(), &relative[2].data_folder), (3, &Some(photographs)));
        write(root, "runs/grid/seed-1/main/summary.json", "{}");
        assert!(!found.runs[1].finished && found.runs[1].current_state().finished);
    }
}
