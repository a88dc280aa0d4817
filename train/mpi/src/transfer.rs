//! The time that this process may spend in one call of MPI or NCCL.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A call is late if it takes this long beyond the transfer time of its bytes.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(20);
/// The assumed lowest bandwidth: 10 MB/s.
const BYTES_PER_MILLISECOND: u64 = 10_000;
/// No call is running.
const NONE: u64 = u64::MAX;

/// The running call of MPI or NCCL. All processes have entered it, so it should end soon. It does
/// not end if a process is out of memory: Open MPI repeats the allocation forever.
pub(crate) struct Transfer {
    start: Instant,
    /// The time at which the call is late, in milliseconds since `start`.
    deadline: AtomicU64,
}

/// Ends the call when it is dropped.
pub(crate) struct InTransfer<'a>(&'a Transfer);

impl Transfer {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), deadline: AtomicU64::new(NONE) }
    }

    /// Starts a call.
    pub(crate) fn begin(&self) -> InTransfer<'_> {
        self.allow(0);
        InTransfer(self)
    }

    /// Extends the deadline of the running call for this number of bytes.
    pub(crate) fn allow(&self, bytes: usize) {
        let time = Duration::from_millis(bytes as u64 / BYTES_PER_MILLISECOND);
        self.allow_time(TIME_LIMIT + time);
    }

    fn allow_time(&self, time: Duration) {
        self.deadline.store(self.now() + time.as_millis() as u64, Ordering::SeqCst);
    }

    /// Extends the deadline of a running call, because this process was stopped meanwhile.
    pub(crate) fn extend(&self) {
        let deadline = self.deadline.load(Ordering::SeqCst);
        let later = self.now() + TIME_LIMIT.as_millis() as u64;
        if deadline < later {
            // If the call has ended meanwhile, nothing changes.
            let order = Ordering::SeqCst;
            let _ = self.deadline.compare_exchange(deadline, later, order, order);
        }
    }

    /// Whether a call takes too long.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.load(Ordering::SeqCst) < self.now()
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

impl InTransfer<'_> {
    /// See [`Transfer::allow`].
    pub(crate) fn allow(&self, bytes: usize) {
        self.0.allow(bytes);
    }

    /// Lets the call take this time from now on.
    #[cfg(feature = "cuda")]
    pub(crate) fn allow_time(&self, time: Duration) {
        self.0.allow_time(time);
    }
}

impl Drop for InTransfer<'_> {
    fn drop(&mut self) {
        self.0.deadline.store(NONE, Ordering::SeqCst);
    }
}
