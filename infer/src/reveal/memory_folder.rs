//! Removes the memory that a run created, and nothing else.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use engram_durable as durable;
use engram_memory::is_own_generation;

use super::identity::{self, Identity};
use crate::error::{InferError, Result};

/// The file that names the current generation (version) of the memory.
const CURRENT: &str = "CURRENT";
/// The lock file.
const LOCK: &str = "LOCK";
/// The current generation of a memory that was not changed since it was built.
pub(super) const FIRST: &str = "gen-000001";

/// Removes a memory that a run created; does nothing if it is missing.
///
/// # Errors
/// [`InferError::ForeignFile`] if the folder has other files; an error if the memory was changed
/// after its run ended. In both cases nothing is removed.
pub fn remove_memory(folder: &Path) -> Result<()> {
    for path in entries(folder)? {
        let is_known = path.file_name().is_some_and(is_memory_file)
            || is_own_generation(&path).map_err(InferError::io(&path))?;
        if !is_known {
            return Err(InferError::ForeignFile { path });
        }
    }
    let finished = Identity::read(folder)?.map(|identity| identity.generation);
    let is_changed = finished.is_some_and(|generation| {
        let finished = generation.as_deref().unwrap_or(FIRST);
        current_generation(folder).is_some_and(|current| current != finished)
    });
    if is_changed {
        return Err(format!(
            "{}: was changed after its run ended, and would be overwritten; move it elsewhere first",
            folder.display()
        )
        .into());
    }
    durable::remove_folder(folder).map_err(InferError::io(folder))
}

/// The name of the current generation of a memory.
pub(super) fn current_generation(folder: &Path) -> Option<String> {
    let current = engram_durable::read_text(folder.join(CURRENT)).ok()?;
    current.split_whitespace().next().map(str::to_owned)
}

/// Whether a name is the name of a memory's file, or of the temporary file of an interrupted write.
/// Generations are folders or packs.
fn is_memory_file(name: &OsStr) -> bool {
    let is_known = |name: &str| [CURRENT, LOCK, identity::FILE].contains(&name);
    name.to_str().is_some_and(|text| {
        let target = text.strip_prefix('.').and_then(|hidden| hidden.rsplit_once('.'));
        is_known(text)
            || target
                .is_some_and(|(target, _)| is_known(target) && durable::is_leftover(name, target))
    })
}

/// The paths of the files and folders in a folder; empty if the folder is missing.
///
/// # Errors
/// [`InferError::ForeignFile`] for a symbolic link; [`InferError::Io`]
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    if folder.is_symlink() {
        return Err(InferError::ForeignFile { path: folder.to_path_buf() });
    }
    match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        result => result
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
            .map_err(InferError::io(folder)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memories_of_a_run_are_removed() {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = parent.path().join("memory");
        remove_memory(&folder).expect("nothing is there");
        fs::create_dir_all(folder.join("gen-000002")).expect("made");
        fs::write(folder.join(CURRENT), "gen-000002 0123\n").expect("written");
        fs::write(folder.join(".CURRENT.engram-Ab12Cd"), "gen").expect("written");
        // The folder of a generation whose build was killed.
        fs::create_dir_all(folder.join("gen-000003.partial")).expect("made");
        fs::write(folder.join("gen-000003.partial/UNFINISHED"), "").expect("written");
        // The memory was refreshed during its run, so there is a second generation.
        remove_memory(&folder).expect("removed");
        assert!(!folder.exists());
        for other in ["notes.txt", ".CURRENT.Ab12Cd", "gen-old"] {
            fs::create_dir_all(folder.join("gen-000001")).expect("made");
            fs::write(folder.join(other), "precious").expect("written");
            let error = remove_memory(&folder).expect_err("refused").to_string();
            assert!(error.contains(other), "{error}");
            assert_eq!(fs::read(folder.join(other)).expect("there"), b"precious");
            fs::remove_file(folder.join(other)).expect("removed");
        }
        let notes = folder.join("gen-000001/notes.txt");
        fs::write(&notes, "precious").expect("written");
        assert!(remove_memory(&folder).expect_err("refused").to_string().contains("gen-000001"));
        fs::remove_file(notes).expect("removed");
        // The run finished the first generation, or the second one. Entries were added afterwards.
        let hash = String::new;
        let identity = Identity {
            weights_sha256: hash(),
            tokenizer_sha256: hash(),
            inputs_sha256: hash(),
            generation: None,
        };
        let names = ["gen-000001", "gen-000002.pack", "gen-000003.pack"];
        for [finished, later] in [[names[0], names[1]], [names[1], names[2]]] {
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join(CURRENT), format!("{finished} 0123\n")).expect("written");
            identity.write(&folder).expect("written");
            fs::write(folder.join(CURRENT), format!("{later} 0123\n")).expect("written");
            let error = remove_memory(&folder).expect_err("refused").to_string();
            assert!(error.contains("was changed after its run ended"), "{error}");
            fs::write(folder.join(CURRENT), format!("{finished} 0123\n")).expect("written");
            remove_memory(&folder).expect("removed");
        }
    }
}
