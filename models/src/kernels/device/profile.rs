//! Times of the passes of kernels on a GPU, for measurements.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use candle_core::{Result, Tensor};

/// The name of a kernel and of its pass.
type Key = (&'static str, &'static str);

/// The number of calls and the seconds for each pass; `None` while nothing is measured.
static TIMES: Mutex<Option<BTreeMap<Key, (usize, f64)>>> = Mutex::new(None);

fn times() -> MutexGuard<'static, Option<BTreeMap<Key, (usize, f64)>>> {
    TIMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to measure the passes of all kernels with a device path. Each pass then waits for the
/// device.
pub fn begin_profile() {
    *times() = Some(BTreeMap::new());
}

/// Ends the measurement. Returns kernel, pass, number of calls and seconds. The time of a chain
/// contains the times of its kernels.
pub fn end_profile() -> Vec<(&'static str, &'static str, usize, f64)> {
    let times = times().take().unwrap_or_default();
    times.into_iter().map(|((kernel, pass), (calls, time))| (kernel, pass, calls, time)).collect()
}

/// Runs a pass, and measures it between [`begin_profile`] and [`end_profile`].
pub(super) fn timed<R>(key: Key, inputs: &[Tensor], run: impl FnOnce() -> Result<R>) -> Result<R> {
    let is_measured = times().is_some();
    let Some(x) = inputs.first().filter(|_| is_measured) else { return run() };
    x.device().synchronize()?;
    let start = Instant::now();
    let result = run()?;
    x.device().synchronize()?;
    if let Some(times) = times().as_mut() {
        let (calls, seconds) = times.entry(key).or_default();
        *calls += 1;
        *seconds += start.elapsed().as_secs_f64();
    }
    Ok(result)
}
