//! Stop requests to a running training or command, for example on Ctrl-C.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Two flags that a run shares with the code that started it: whether the run was asked to stop,
/// and whether it has unsaved steps. Clones share the flags.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    requested: AtomicBool,
    unsaved: AtomicBool,
}

/// The error of work that ended early because of a stop request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the run was asked to stop")]
pub struct Stopped;

impl Stopped {
    /// Whether an error stands for a stop request: it is `Stopped`, or one of its sources is.
    pub fn is_cause_of(error: &(dyn Error + 'static)) -> bool {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if error.is::<Self>() {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

impl Stop {
    /// Asks the run to write a checkpoint and stop after the current step.
    pub fn request(&self) {
        self.0.requested.store(true, Ordering::SeqCst);
    }

    /// Whether the run was asked to stop.
    pub fn is_requested(&self) -> bool {
        self.0.requested.load(Ordering::SeqCst)
    }

    /// Returns an error if the run was asked to stop. Call it in long work between two steps.
    ///
    /// # Errors
    /// [`Stopped`]
    pub fn check(&self) -> Result<(), Stopped> {
        if self.is_requested() { Err(Stopped) } else { Ok(()) }
    }

    /// Whether the run has made steps since its last checkpoint. If not, the process may exit at
    /// once without loss.
    pub fn has_unsaved(&self) -> bool {
        self.0.unsaved.load(Ordering::SeqCst)
    }

    /// Records whether the run has made steps since its last checkpoint.
    pub fn set_unsaved(&self, unsaved: bool) {
        self.0.unsaved.store(unsaved, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use engram_memory::MemoryError;

    use super::*;
    use crate::InferError;
    use crate::reveal::RevealError;

    #[test]
    fn stopped_is_found_among_the_sources_of_an_error() {
        let errors: [Box<dyn Error>; 4] = [
            Box::new(InferError::from(Stopped)),
            Box::new(RevealError::from(Stopped)),
            Box::new(RevealError::from(MemoryError::Rows(Stopped.into()))),
            Box::new(RevealError::from(MemoryError::Rows(RevealError::from(Stopped).into()))),
        ];
        for error in &errors {
            assert!(Stopped::is_cause_of(&**error), "{error:?}");
        }
    }
}
