//! Scratch folders, snapshots of folders, and parallel work.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result};

/// A temporary folder; removed on drop.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Result<Self> {
        let path =
            std::env::temp_dir().join(format!("engram-torture-{}-{name}", std::process::id()));
        empty(&path)?;
        Ok(Self(path))
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Files that cannot be removed stay in the temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Creates an empty folder; removes its old contents.
pub fn empty(folder: &Path) -> Result<()> {
    remove(folder)?;
    fs::create_dir_all(folder)
        .with_context(|| format!("{}: could not be created", folder.display()))
}

/// Removes a folder or a file if it exists.
pub fn remove(path: &Path) -> Result<()> {
    let result = match path.symlink_metadata() {
        Ok(data) if data.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    };
    result.with_context(|| format!("{}: could not be removed", path.display()))
}

/// Copies a folder with its contents.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("{}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// All files below a folder with a hash of their bytes, and all empty folders.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Snapshot(pub BTreeMap<String, u64>);

impl Snapshot {
    /// Takes a snapshot, without locks and files whose content depends on time.
    pub fn of(folder: &Path) -> Result<Self> {
        let mut hashes = BTreeMap::new();
        if folder.exists() {
            collect(folder, "", &mut hashes).with_context(|| format!("{}", folder.display()))?;
        }
        Ok(Self(hashes))
    }

    /// Paths that differ; at most four.
    pub fn difference(&self, other: &Self) -> String {
        let mut paths: Vec<&str> = Vec::new();
        for path in self.0.keys().chain(other.0.keys()) {
            if self.0.get(path) != other.0.get(path) && !paths.contains(&path.as_str()) {
                paths.push(path);
            }
        }
        paths.truncate(4);
        paths.join(", ")
    }
}

/// Whether a file is a lock, or has times or event records.
fn is_volatile(name: &str) -> bool {
    ["LOCK", "timing.jsonl", "README.md", "report-of-claims.html", "grid.html"].contains(&name)
        || name.ends_with(".lock")
        || name.starts_with("events.")
}

/// The bytes of a file, without the lines that depend on time or on the number of threads.
fn steady_bytes(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let bytes = fs::read(path)?;
    if !["report-of-claims.json", "grid.json"].contains(&name) {
        return Ok(bytes);
    }
    let lines = bytes.split(|byte| *byte == b'\n');
    let steady = lines.filter(|line| {
        let line = line.trim_ascii_start();
        !["\"date\":", "\"seconds\":", "\"threads\":"]
            .iter()
            .any(|key| line.starts_with(key.as_bytes()))
    });
    Ok(steady.collect::<Vec<_>>().join(&b'\n'))
}

fn collect(folder: &Path, prefix: &str, found: &mut BTreeMap<String, u64>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        let kind = entry.file_type()?;
        if is_volatile(&name) || name == "lost+found" {
            continue;
        } else if kind.is_dir() {
            let before = found.len();
            collect(&entry.path(), &format!("{path}/"), found)?;
            if found.len() == before {
                found.insert(format!("{path}/"), 0);
            }
        } else {
            let mut hasher = DefaultHasher::new();
            if kind.is_symlink() {
                fs::read_link(entry.path())?.hash(&mut hasher)
            } else {
                steady_bytes(&entry.path(), &name)?.hash(&mut hasher)
            }
            found.insert(path, hasher.finish());
        }
    }
    Ok(())
}

/// Calls `work` for each item, on one thread per processor. Each thread has its own folder.
pub fn for_each<T: Sync>(
    items: &[T],
    scratch: &Scratch,
    work: impl Fn(&T, &Path) -> Result<()> + Sync,
) -> Result<()> {
    let next_index = AtomicUsize::new(0);
    let error = Mutex::new(None);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (next_index, error, work) = (&next_index, &error, &work);
            scope.spawn(move || {
                let folder = scratch.join(&format!("worker{thread}"));
                let mut result = empty(&folder);
                while result.is_ok() {
                    let Some(item) = items.get(next_index.fetch_add(1, Ordering::Relaxed)) else {
                        return;
                    };
                    result = work(item, &folder);
                }
                if let Ok(mut error) = error.lock() {
                    *error = result.err();
                }
                next_index.store(items.len(), Ordering::Relaxed);
            });
        }
    });
    error.into_inner().ok().flatten().map_or(Ok(()), Err)
}
