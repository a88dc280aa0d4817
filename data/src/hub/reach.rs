//! Remembers which hubs this program has reached, so that a missing network costs one time limit,
//! not one for each file.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time after which an unreachable hub is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The last result of a request to a hub.
enum Reach {
    Responded,
    Unreachable { since: Instant, reason: String },
}

static HUBS: LazyLock<Mutex<HashMap<String, Reach>>> = LazyLock::new(Mutex::default);

fn hubs() -> MutexGuard<'static, HashMap<String, Reach>> {
    HUBS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that the hub has responded.
pub(super) fn note_response(endpoint: &str) {
    hubs().insert(endpoint.to_owned(), Reach::Responded);
}

/// Records that the hub cannot be reached. A hub that has responded before stays reachable.
pub(super) fn note_failure(endpoint: &str, reason: &str) {
    let mut hubs = hubs();
    if !matches!(hubs.get(endpoint), Some(Reach::Responded)) {
        let reach = Reach::Unreachable { since: Instant::now(), reason: reason.to_owned() };
        hubs.insert(endpoint.to_owned(), reach);
    }
}

/// Whether the hub has responded to this program.
pub fn has_responded(endpoint: &str) -> bool {
    matches!(hubs().get(endpoint), Some(Reach::Responded))
}

/// Returns the reason why the hub was unreachable in the last [`RETRY_AFTER`]; `None` if it was
/// not.
pub(super) fn recent_failure(endpoint: &str) -> Option<String> {
    match hubs().get(endpoint) {
        Some(Reach::Unreachable { since, reason }) if since.elapsed() < RETRY_AFTER => {
            Some(reason.clone())
        }
        _ => None,
    }
}
