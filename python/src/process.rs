//! Computations without the interpreter's lock.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// The process that uses the global pool of threads; 0 before the first computation.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The pool of a forked process, which has no threads of its parent.
static OF_CHILD: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

/// Runs a computation while other threads of Python may run.
pub(crate) fn detached<T: Send>(py: Python<'_>, run: impl FnOnce() -> T + Send) -> T {
    py.detach(|| match pool_of_child() {
        Some(pool) => pool.install(run),
        None => run(),
    })
}

/// The pool of this process if it was forked after a computation.
fn pool_of_child() -> Option<Arc<ThreadPool>> {
    let this = process::id();
    let owner = OWNER.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed);
    if owner.unwrap_or_else(|owner| if owner == this { 0 } else { owner }) == 0 {
        return None;
    }
    let mut of_child = OF_CHILD.lock().unwrap_or_else(PoisonError::into_inner);
    if of_child.as_ref().is_none_or(|(process, _)| *process != this) {
        *of_child = ThreadPoolBuilder::new().build().ok().map(|pool| (this, Arc::new(pool)));
    }
    of_child.as_ref().map(|(_, pool)| Arc::clone(pool))
}
