//! Stop requests to a running training or command, for example on Ctrl-C.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Flags that a run shares with the code that started it: whether the run was asked to stop,
/// whether it has unsaved steps, and whether the process has to end by itself. Clones share the
/// flags.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicU8>);

/// The flag of a requested stop. The flags are bits of one number, so that [`Stop::request`] and
/// [`Stop::begin_step`] set one and read the others in one atomic operation.
const REQUESTED: u8 = 1;
/// The flag of unsaved steps.
const UNSAVED: u8 = 2;
/// The flag of [`Stop::hold`].
const HELD: u8 = 4;

/// While this value of [`Stop::hold`] exists, a stop request does not end the process.
#[derive(Debug)]
pub struct Hold(Stop);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.0.fetch_and(!HELD, Ordering::SeqCst);
    }
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
    /// Asks the run to write a checkpoint and stop after the current step. Returns whether the run
    /// has unsaved steps or the process is held. If not, the run begins no step after this call,
    /// and the process may exit at once without loss.
    pub fn request(&self) -> bool {
        self.0.fetch_or(REQUESTED, Ordering::SeqCst) & (UNSAVED | HELD) != 0
    }

    /// Whether the run was asked to stop.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::SeqCst) & REQUESTED != 0
    }

    /// Returns an error if the run was asked to stop. Call it in long work between two steps.
    ///
    /// # Errors
    /// [`Stopped`]
    pub fn check(&self) -> Result<(), Stopped> {
        if self.is_requested() { Err(Stopped) } else { Ok(()) }
    }

    /// Whether the run has begun steps since its last checkpoint.
    pub fn has_unsaved(&self) -> bool {
        self.0.load(Ordering::SeqCst) & UNSAVED != 0
    }

    /// Records that a step begins. Returns `false`, and records nothing, if the run was asked to
    /// stop.
    pub fn begin_step(&self) -> bool {
        let begin = |flags| (flags & REQUESTED == 0).then_some(flags | UNSAVED);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, begin).is_ok()
    }

    /// Holds the process for a command that ends by itself after a stop request, for example with a
    /// report on the work so far.
    #[must_use]
    pub fn hold(&self) -> Hold {
        self.0.fetch_or(HELD, Ordering::SeqCst);
        Hold(self.clone())
    }

    /// Whether the process must not exit yet: steps are unsaved, or the process is held.
    pub fn must_wait(&self) -> bool {
        self.0.load(Ordering::SeqCst) & (UNSAVED | HELD) != 0
    }

    /// Records that no step is unsaved: a checkpoint is written, or the run has ended.
    pub fn clear_unsaved(&self) {
        self.0.fetch_and(!UNSAVED, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use engram_memory::MemoryError;

    use super::*;
    use crate::InferError;

    #[test]
    fn no_step_begins_after_a_request() {
        let stop = Stop::default();
        assert!(!stop.has_unsaved() && stop.begin_step() && stop.has_unsaved());
        assert!(stop.request() && stop.is_requested() && !stop.begin_step());
        stop.clear_unsaved();
        assert!(!stop.request() && !stop.begin_step() && !stop.has_unsaved());
    }

    #[test]
    fn a_held_process_waits_without_unsaved_steps() {
        let stop = Stop::default();
        let hold = stop.hold();
        assert!(stop.request() && stop.must_wait() && !stop.has_unsaved());
        stop.clear_unsaved();
        assert!(stop.must_wait());
        drop(hold);
        assert!(!stop.must_wait() && !stop.request());
    }

    /// Either the step is waited for, or it does not begin.
    #[test]
    fn a_request_and_a_step_at_the_same_time_agree() {
        for _ in 0..2000 {
            let stop = Stop::default();
            let other = stop.clone();
            let step = std::thread::spawn(move || other.begin_step());
            let waits = stop.request();
            assert_eq!(step.join().expect("no panic"), waits);
        }
    }

    #[test]
    fn stopped_is_found_among_the_sources_of_an_error() {
        let errors: [Box<dyn Error>; 3] = [
            Box::new(InferError::from(Stopped)),
            Box::new(InferError::from(MemoryError::Rows(Stopped.into()))),
            Box::new(InferError::from(MemoryError::Rows(InferError::from(Stopped).into()))),
        ];
        for error in &errors {
            assert!(Stopped::is_cause_of(&**error), "{error:?}");
        }
    }
}
