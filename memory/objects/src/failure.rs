//! Failed requests, and their errors.

use std::error::Error;
use std::time::Duration;

use engram_memory::MemoryError;

/// The reason of the error for a missing object.
pub(crate) const MISSING: &str = "is missing";

/// A request that failed, also when it was repeated.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The store's error.
    Store(object_store::Error),
    /// No answer within the time limit.
    Late(Duration),
    /// The object is not as expected, with the reason.
    Damaged(String),
}

impl From<object_store::Error> for Failure {
    fn from(error: object_store::Error) -> Self {
        Self::Store(error)
    }
}

impl Failure {
    /// An object of another size than in its record.
    pub(crate) fn of_size(expected: u64, found: u64) -> Self {
        Self::Damaged(format!("is truncated or changed: {found} bytes instead of {expected}"))
    }

    /// Whether the same request may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        use object_store::Error::JoinError;
        match self {
            Self::Late(_) | Self::Store(JoinError { .. }) => true,
            _ if !self.is_generic() => false,
            _ => self.status().is_none_or(|status| {
                matches!(status, 408 | 429) || (status >= 500 && status != 501)
            }),
        }
    }

    /// Whether the store's error has no kind.
    pub(crate) fn is_generic(&self) -> bool {
        matches!(self, Self::Store(object_store::Error::Generic { .. }))
    }

    /// The HTTP status of an error. Errors of listing have a kind only in their message.
    fn status(&self) -> Option<u16> {
        let Self::Store(error) = self else { return None };
        let message = printable(error);
        message.split_once("status code: ")?.1.get(..3)?.parse().ok()
    }

    /// The error for the object or address `location`.
    pub(crate) fn error(&self, location: &str) -> MemoryError {
        use object_store::Error::{
            NotFound, NotImplemented, NotSupported, PermissionDenied, Unauthenticated,
        };
        let (reason, remedy) = match self {
            Self::Late(limit) => (
                format!("no answer within {:.1} s", limit.as_secs_f64()),
                "check the network and the store, or raise the time limit",
            ),
            Self::Damaged(reason) => return damaged(location, reason.clone()),
            Self::Store(error)
                if matches!(error, NotFound { .. }) || self.status() == Some(404) =>
            {
                (
                    MISSING.to_owned(),
                    "check the address; if the generation was swept, open the current one; else push \
                 the memory again",
                )
            }
            Self::Store(error)
                if matches!(error, PermissionDenied { .. } | Unauthenticated { .. })
                    || matches!(self.status(), Some(401 | 403)) =>
            {
                (
                    format!("access was denied: {}", printable(error)),
                    "check the credentials and their rights, for example AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY",
                )
            }
            Self::Store(error @ (NotImplemented { .. } | NotSupported { .. })) => {
                (printable(error), "use a store with conditional writes")
            }
            Self::Store(error) => {
                (printable(error), "check the address, the network and the state of the store")
            }
        };
        remote(location, reason, remedy)
    }
}

pub(crate) fn remote(
    location: &str,
    reason: impl Into<String>,
    remedy: &'static str,
) -> MemoryError {
    MemoryError::Remote { location: location.to_owned(), reason: reason.into(), remedy }
}

/// Whether the error is that of a missing object.
pub(crate) fn is_missing(error: &MemoryError) -> bool {
    matches!(error, MemoryError::Remote { reason, .. } if reason == MISSING)
}

/// The error for a missing or damaged object.
pub(crate) fn damaged(location: &str, reason: String) -> MemoryError {
    MemoryError::DamagedObject { location: location.to_owned(), reason }
}

/// The maximum number of characters of a store's message.
const MAX_CHARS: usize = 300;

/// The message of an error and of its sources that add something, on one line. Without the queries
/// of addresses, which may contain a signature.
pub(crate) fn printable(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        source = error.source();
    }
    let (mut line, mut in_query) = (String::new(), false);
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(4 * MAX_CHARS) {
        in_query = (in_query || c == '?') && !matches!(c, ' ' | '"' | ')' | '<');
        if !in_query {
            line.push(c);
        }
    }
    match line.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_in_a_message_decides() {
        let failure = |source: &str| {
            Failure::Store(object_store::Error::Generic { store: "S3", source: source.into() })
        };
        let status = |code: &str| failure(&format!("x - non-2xx status code: {code} Y: z"));
        for code in ["403", "404", "400", "501"] {
            assert!(!status(code).is_transient(), "{code}");
        }
        for failure in [status("503"), status("429"), failure("connection reset")] {
            assert!(failure.is_transient(), "{failure:?}");
        }
        let denied = status("403").error("s3://b/x").to_string();
        assert!(denied.starts_with("s3://b/x: access was denied: "), "{denied}");
        assert!(status("404").error("s3://b/x").to_string().contains("is missing"));
    }

    #[test]
    fn a_message_has_no_signature_and_one_line() {
        let error = std::io::Error::other("GET http://h/b?sig=SECRET&x=1 \"failed\"\nat once");
        assert_eq!(printable(&error), "GET http://h/b \"failed\" at once");
        let long = std::io::Error::other("é".repeat(1000));
        assert_eq!(printable(&long).chars().count(), MAX_CHARS + 1);
    }
}
