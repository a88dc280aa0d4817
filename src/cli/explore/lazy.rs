//! Models that are opened on first use, and images encoded for the page.

use std::io::Cursor;
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::Context;
use image::{ImageFormat, RgbImage};

use super::discover::Run;
use crate::cli::studies::ExplorerTab;

/// A value that is opened on first use. If opening fails, the next call tries again.
pub(super) struct Lazy<T> {
    opened: OnceLock<T>,
    /// Locked while the value is being opened.
    opening: Mutex<()>,
}

/// A value that is opened from a run's folder.
pub(super) trait FromRun: Sized {
    /// The tab that shows runs of this kind.
    const TAB: ExplorerTab;

    fn open(run: &Run) -> anyhow::Result<Self>;
}

/// All runs; each is opened on first use.
pub(super) struct LazyRuns<T>(Vec<LazyRun<T>>);

struct LazyRun<T> {
    run: Run,
    opened: Lazy<T>,
}

impl<T> Default for Lazy<T> {
    fn default() -> Self {
        Self { opened: OnceLock::new(), opening: Mutex::new(()) }
    }
}

impl<T> Lazy<T> {
    /// Returns the value. Opens it with `open` on first use.
    pub(super) fn get(&self, open: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<&T> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let _guard = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
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
        let lazy = |run: &Run| LazyRun { run: run.clone(), opened: Lazy::default() };
        Self(runs.iter().map(lazy).collect())
    }

    /// Opens the run with an index, unless it is already open. An error if the tab does not show
    /// this run.
    pub(super) fn opened(&self, run: usize) -> anyhow::Result<&T> {
        let lazy_run = self.0.get(run).with_context(|| format!("there is no run {run}"))?;
        let tab = T::TAB.name();
        let has_tab = lazy_run.run.tabs.contains(&tab);
        anyhow::ensure!(has_tab, "run {run} has no {tab}; choose another run");
        lazy_run.opened.get(|| T::open(&lazy_run.run))
    }
}

/// Encodes an image as PNG.
pub(super) fn png(image: &RgbImage) -> anyhow::Result<Vec<u8>> {
    let mut png = Cursor::new(Vec::new());
    image.write_to(&mut png, ImageFormat::Png)?;
    Ok(png.into_inner())
}
