//! How a run is asked to stop from outside, for example by Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request to stop, shared by a run and whoever may end it. Clones share one request.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    requested: AtomicBool,
    unsaved: AtomicBool,
}

/// The error of work that ended early because its run was asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the run was asked to stop")]
pub struct Stopped;

impl Stop {
    /// Asks the run to stop after its present step, with a checkpoint.
    pub fn request(&self) {
        self.0.requested.store(true, Ordering::SeqCst);
    }

    /// Whether the run was asked to stop.
    pub fn is_requested(&self) -> bool {
        self.0.requested.load(Ordering::SeqCst)
    }

    /// Fails if the run was asked to stop; for long work between two steps.
    ///
    /// # Errors
    /// [`Stopped`]
    pub fn check(&self) -> Result<(), Stopped> {
        if self.is_requested() { Err(Stopped) } else { Ok(()) }
    }

    /// Whether the run has made steps that no checkpoint has. If not, the process may end at once
    /// and nothing is lost.
    pub fn has_unsaved(&self) -> bool {
        self.0.unsaved.load(Ordering::SeqCst)
    }

    pub(crate) fn set_unsaved(&self, unsaved: bool) {
        self.0.unsaved.store(unsaved, Ordering::SeqCst);
    }
}
