//! Messages to the user: lines on standard error, unless the program sets a receiver.

use std::collections::HashSet;
use std::fmt::Display;
use std::io::Write;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

static RECEIVER: OnceLock<fn(&str)> = OnceLock::new();

/// Prints a line to standard error, or passes it to the receiver. Ignores write errors, so that a
/// closed standard error does not end the work.
pub fn message(text: &str) {
    match RECEIVER.get() {
        Some(receiver) => receiver(text),
        None => drop(writeln!(std::io::stderr(), "{}", cleaned(text))),
    }
}

/// Prints a note, once for each `subject`.
pub fn note_once(note: &str, subject: String) {
    static NOTED: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    if NOTED.lock().unwrap_or_else(PoisonError::into_inner).insert(subject) {
        message(note);
    }
}

/// Passes all later messages to `receiver`, and hides progress bars. A second receiver has no
/// effect.
pub fn send_messages_to(receiver: fn(&str)) {
    let _ = RECEIVER.set(receiver);
}

/// The ends of the names of parameters whose values are secret, in lower case.
const SECRETS: [&str; 8] =
    ["password", "passwd", "pwd", "secret", "token", "signature", "sig", "access_key"];
/// The characters between the parameters of an address, and after them.
const SEPARATORS: [char; 6] = ['?', '&', ';', ',', '(', ')'];
/// The number of letters and digits from which `hf_…` is a token of the hub.
const MIN_TOKEN_LETTERS: usize = 20;

/// A text for a terminal or a log: the passwords and tokens of addresses become `***`, and control
/// characters and changes of the writing direction become codes such as `\u001b`, as in JSON.
pub fn cleaned(text: &str) -> String {
    let is_harmless = |c: char| match c {
        '\n' | '\t' => true,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => false,
        _ => !c.is_control(),
    };
    let mut cleaned = String::with_capacity(text.len());
    for c in without_secrets(text).chars() {
        match is_harmless(c) {
            true => cleaned.push(c),
            false => cleaned.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    cleaned
}

/// Replaces the passwords and tokens of addresses by `***`.
pub fn without_secrets(text: &str) -> String {
    // A backslash stands before a quote in JSON.
    let ends_word = |c: char| c.is_whitespace() || "\"'`<>\\".contains(c);
    let words = text.split_inclusive(ends_word).map(|word| {
        let end = word.trim_end_matches(ends_word).len();
        let parameters = without_password(&word[..end]);
        let parameters = parameters.split_inclusive(SEPARATORS);
        let parameters: String = parameters.map(without_secret_value).collect();
        without_tokens(&parameters) + &word[end..]
    });
    words.collect()
}

/// Replaces the password in `scheme://user:password@host`, also if it has an `@` or a `/`.
fn without_password(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else { return word.to_owned() };
    let (login, host) = rest.split_at(rest.rfind('@').unwrap_or(rest.len()));
    let (user, end) = login.split_at(login.find([':', '/', '?', '#']).unwrap_or(login.len()));
    let is_web = scheme.ends_with("http") || scheme.ends_with("https");
    match end.strip_prefix(':').filter(|_| !user.starts_with('[')) {
        // Without a login, a port or nothing follows the colon.
        Some(port) if host.is_empty() && port.bytes().next().is_none_or(|b| b.is_ascii_digit()) => {
            word.to_owned()
        }
        Some(_) => format!("{scheme}://{user}:***{host}"),
        // The user of a web address may be a token.
        None if is_web && end.is_empty() && !host.is_empty() => format!("{scheme}://***{host}"),
        None => word.to_owned(),
    }
}

/// Replaces the value of a secret parameter, `name=value`, which may end with a separator.
fn without_secret_value(parameter: &str) -> String {
    let (name, value) = parameter.split_once('=').unwrap_or_default();
    if !SECRETS.iter().any(|secret| name.to_lowercase().ends_with(secret)) {
        return parameter.to_owned();
    }
    let end = value.trim_end_matches(SEPARATORS).len();
    format!("{name}=***{}", &value[end..])
}

/// Replaces tokens of the hub.
fn without_tokens(text: &str) -> String {
    let mut parts = text.split("hf_");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let length = part.bytes().take_while(u8::is_ascii_alphanumeric).count();
        match length >= MIN_TOKEN_LETTERS {
            true => masked.extend(["***", &part[length..]]),
            false => masked.extend(["hf_", part]),
        }
    }
    masked
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
    use super::{cleaned, counted};

    #[test]
    fn passwords_and_control_characters_are_replaced() {
        for (text, expected) in [
            ("postgres://ann:se:c@r/et@host/wiki: gone", "postgres://ann:***@host/wiki: gone"),
            ("a=\"s3://key:secret@b\",", "a=\"s3://key:***@b\","),
            ("postgres://ann:se'cret", "postgres://ann:***'cret"),
            ("https://ghp_1@host/a", "https://***@host/a"),
            ("x://h/a?user=ann&password=b&c=d", "x://h/a?user=ann&password=***&c=d"),
            ("az://c/?sig=abc)", "az://c/?sig=***)"),
            ("hf://hf_abcdefghij0123456789/x", "hf://***/x"),
            ("a\u{1b}[31mb\u{202e}c\r", "a\\u001b[31mb\\u202ec\\u000d"),
        ] {
            assert_eq!(cleaned(text), expected);
        }
        for text in [
            "hf://owner/name@main: no such file",
            "http://localhost:8080/a and postgres://ann@host:5432: refused",
            "s3://bucket: no such bucket",
            "phase.train.tokens=3, hf_token\tΩ\n",
        ] {
            assert_eq!(cleaned(text), text);
        }
    }

    #[test]
    fn a_noun_is_plural_unless_its_count_is_1() {
        let cases = [(1, "entry"), (0, "entry"), (2, "deleted row"), (3, "pass"), (4, "key")];
        let texts = cases.map(|(count, noun)| counted(count, noun));
        assert_eq!(texts, ["1 entry", "0 entries", "2 deleted rows", "3 passes", "4 keys"]);
    }
}
