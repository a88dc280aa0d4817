//! Messages to the user: lines on standard error, unless the program sets a receiver.

use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;

static RECEIVER: OnceLock<fn(&str)> = OnceLock::new();

/// Prints a line to standard error, or passes it to the receiver. Ignores write errors, so that a
/// closed standard error does not end the work.
pub fn message(text: &str) {
    match RECEIVER.get() {
        Some(receiver) => receiver(text),
        None => drop(writeln!(std::io::stderr(), "{text}")),
    }
}

/// Passes all later messages to `receiver`, and hides progress bars. A second receiver has no
/// effect.
pub fn send_messages_to(receiver: fn(&str)) {
    let _ = RECEIVER.set(receiver);
}

/// Returns a count with its noun, in the plural unless the count is 1: `1 entry`, `2 entries`.
pub fn counted(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    if count == "1" {
        return format!("{count} {noun}");
    }
    let stem = noun.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o']));
    match stem {
        Some(stem) => format!("{count} {stem}ies"),
        None if noun.ends_with(['s', 'x']) => format!("{count} {noun}es"),
        None => format!("{count} {noun}s"),
    }
}

/// Whether a receiver takes the messages.
pub fn has_receiver() -> bool {
    RECEIVER.get().is_some()
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn a_noun_is_plural_unless_its_count_is_1() {
        let cases = [(1, "entry"), (0, "entry"), (2, "deleted row"), (3, "pass"), (4, "key")];
        let texts = cases.map(|(count, noun)| counted(count, noun));
        assert_eq!(texts, ["1 entry", "0 entries", "2 deleted rows", "3 passes", "4 keys"]);
    }
}
