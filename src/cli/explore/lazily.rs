//! Models, each opened when it is first needed; and pictures as the page takes them.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Context;
use image::{ImageFormat, RgbImage};

use super::found::Run;

/// What is opened by who first wants it; the reason, told each time, where it cannot be.
pub(super) struct Lazily<T>(OnceLock<Result<T, String>>);

/// What is opened from a run's folder.
pub(super) trait FromRun: Sized {
    fn open(run: &Path) -> anyhow::Result<Self>;
}

/// All runs, of which those are opened that are asked for.
pub(super) struct LazyRuns<T>(Vec<(PathBuf, Lazily<T>)>);

impl<T> Default for Lazily<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> Lazily<T> {
    pub(super) fn get(&self, open: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<&T> {
        let opened = self.0.get_or_init(|| open().map_err(|error| format!("{error:#}")));
        opened.as_ref().map_err(|reason| anyhow::anyhow!("{reason}"))
    }
}

impl<T: FromRun> LazyRuns<T> {
    pub(super) fn of(runs: &[Run]) -> Self {
        Self(runs.iter().map(|run| (run.folder.clone(), Lazily::default())).collect())
    }

    /// Opens a run, unless it is open.
    pub(super) fn opened(&self, run: usize) -> anyhow::Result<&T> {
        let (folder, opened) = self.0.get(run).with_context(|| format!("there is no run {run}"))?;
        opened.get(|| T::open(folder))
    }
}

/// A picture's bytes as PNG.
pub(super) fn png(picture: &RgbImage) -> anyhow::Result<Vec<u8>> {
    let mut png = Cursor::new(Vec::new());
    picture.write_to(&mut png, ImageFormat::Png)?;
    Ok(png.into_inner())
}
