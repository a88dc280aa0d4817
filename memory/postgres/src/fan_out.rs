//! The same work on several servers at the same time.

use std::panic::resume_unwind;
use std::thread;

/// Calls `work` for each item, on a thread each. A single item needs no thread. Returns the results
/// in the order of the items.
pub(crate) fn each<I: Send, T: Send>(
    items: impl ExactSizeIterator<Item = I>,
    work: impl Fn(usize, I) -> T + Sync,
) -> Vec<T> {
    let work = &work;
    if items.len() < 2 {
        return items.enumerate().map(|(index, item)| work(index, item)).collect();
    }
    thread::scope(|scope| {
        let mut items = items.enumerate();
        // This thread works, too.
        let Some((_, first)) = items.next() else { return Vec::new() };
        let threads: Vec<_> =
            items.map(|(index, item)| scope.spawn(move || work(index, item))).collect();
        let first = work(0, first);
        let others = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        std::iter::once(first).chain(others).collect()
    })
}
