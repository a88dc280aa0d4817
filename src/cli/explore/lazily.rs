//! Models, each opened when it is first needed; and pictures as the page takes them.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::Context;
use image::{ImageFormat, RgbImage};

use super::found::Run;

/// What is opened by who first wants it. Where it cannot be, the next one tries again.
pub(super) struct Lazily<T> {
    opened: OnceLock<T>,
    /// Held by who opens it.
    opening: Mutex<()>,
}

/// What is opened from a run's folder.
pub(super) trait FromRun: Sized {
    /// The study of its runs.
    const STUDY: &'static str;

    fn open(run: &Path) -> anyhow::Result<Self>;
}

/// All runs, of which those are opened that are asked for.
pub(super) struct LazyRuns<T>(Vec<LazyRun<T>>);

struct LazyRun<T> {
    study: String,
    folder: PathBuf,
    opened: Lazily<T>,
}

impl<T> Default for Lazily<T> {
    fn default() -> Self {
        Self { opened: OnceLock::new(), opening: Mutex::new(()) }
    }
}

impl<T> Lazily<T> {
    pub(super) fn get(&self, open: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<&T> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let _mine = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        match self.opened.get() {
            Some(opened) => Ok(opened),
            None => {
                let opened = open()?;
                Ok(self.opened.get_or_init(|| opened))
            }
        }
    }
}

impl<T: FromRun> LazyRuns<T> {
    pub(super) fn of(runs: &[Run]) -> Self {
        let lazy = |run: &Run| LazyRun {
            study: run.study.clone(),
            folder: run.folder.clone(),
            opened: Lazily::default(),
        };
        Self(runs.iter().map(lazy).collect())
    }

    /// Opens a run, unless it is open.
    pub(super) fn opened(&self, run: usize) -> anyhow::Result<&T> {
        let one = self.0.get(run).with_context(|| format!("there is no run {run}"))?;
        let (study, wanted) = (&one.study, T::STUDY);
        anyhow::ensure!(study == wanted, "run {run} is of {study}; this is asked of {wanted}");
        one.opened.get(|| T::open(&one.folder))
    }
}

/// A picture's bytes as PNG.
pub(super) fn png(picture: &RgbImage) -> anyhow::Result<Vec<u8>> {
    let mut png = Cursor::new(Vec::new());
    picture.write_to(&mut png, ImageFormat::Png)?;
    Ok(png.into_inner())
}
