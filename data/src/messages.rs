//! Messages to the user: lines on standard error, unless the program sets a receiver.

use std::io::Write;
use std::sync::OnceLock;

static RECEIVER: OnceLock<fn(&str)> = OnceLock::new();

/// Prints a line to standard error, or gives it to the receiver. Ignores write errors, so that a
/// closed standard error does not end the work.
pub fn message(text: &str) {
    match RECEIVER.get() {
        Some(receiver) => receiver(text),
        None => drop(writeln!(std::io::stderr(), "{text}")),
    }
}

/// Gives all later messages to `receiver`, and hides progress bars. A second receiver has no
/// effect.
pub fn give_messages_to(receiver: fn(&str)) {
    let _ = RECEIVER.set(receiver);
}

/// Whether a receiver takes the messages.
pub fn has_receiver() -> bool {
    RECEIVER.get().is_some()
}
