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
        None => drop(writeln!(std::io::stderr(), "{}", cleaned_line(text))),
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

/// The ends of the names of passwords, in lower case and without `_` and `-`.
const PASSWORDS: [&str; 4] = ["password", "passwd", "pwd", "passphrase"];
/// The ends of the names of other secret values.
const SECRETS: &str =
    "secret token signature sig credential accesskey accountkey apikey privatekey secretkey";
/// The characters between the parameters of an address, and after them.
const SEPARATORS: [char; 6] = ['?', '&', ';', ',', '(', ')'];
/// The number of letters and digits from which `hf_…` is a token of the hub: without a digit or a
/// capital, and with one.
const MIN_TOKEN_LETTERS: [usize; 2] = [16, 8];

/// A text for a log: [`printable`], and the passwords and tokens of addresses become `***`.
pub fn cleaned(text: &str) -> String {
    printable(&without_secrets(text))
}

/// A text for a terminal: control characters and changes of the writing direction become codes such
/// as `\u001b`, as in JSON.
pub fn printable(text: &str) -> String {
    let is_harmful = |c: char| match c {
        '\n' | '\t' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        _ => c.is_control(),
    };
    let code = |c: char| match is_harmful(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    text.chars().map(code).collect()
}

/// A [`cleaned`] text whose line breaks are kept only before indented lines: a path may have a line
/// break, and would print a false message.
pub fn cleaned_line(text: &str) -> String {
    cleaned(text).replace('\n', "\\u000a").replace("\\u000a  ", "\n  ")
}

/// Replaces the passwords and tokens of addresses and settings by `***`.
pub fn without_secrets(text: &str) -> String {
    let mut parts = text.split("://");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let before = masked.as_bytes();
        let is_web = ["http", "https"].iter().any(|scheme| {
            let start = before.len().saturating_sub(scheme.len());
            before[start..].eq_ignore_ascii_case(scheme.as_bytes())
        });
        masked.extend(["://", &without_login(part, is_web)]);
    }
    without_tokens(&without_secret_values(&masked))
}

/// Whether a character ends an address or a value that is not quoted.
fn ends_word(c: char) -> bool {
    c.is_whitespace() || is_quote(c) || c == '\''
}

/// Whether a character ends a quoted text, too. A backslash stands before a quote in JSON.
fn is_quote(c: char) -> bool {
    "\n\"`<>\\".contains(c)
}

/// Replaces the password at the start of `user:password@host`, also if it has an `@`, a `/`, an
/// apostrophe or spaces.
fn without_login(text: &str, is_web: bool) -> String {
    let user_end = text.find(|c| ends_word(c) || ":/?#@".contains(c)).unwrap_or(text.len());
    let (user, end) = text.split_at(user_end);
    // The user of a web address may be a token.
    if is_web && end.starts_with('@') {
        return format!("***{end}");
    }
    let Some(login) = end.strip_prefix(':').filter(|_| !user.starts_with('[')) else {
        return text.to_owned();
    };
    let login = &login[..login.find(is_quote).unwrap_or(login.len())];
    let word = login.find(char::is_whitespace).unwrap_or(login.len());
    let word_end = |start: usize| login[start..].find(ends_word).map_or(login.len(), |n| start + n);
    let host = login.find('@').and_then(|at| login[..word_end(at)].rfind('@'));
    let after_digits = login.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_port =
        after_digits.len() < login.len() && !after_digits.starts_with(char::is_alphanumeric);
    let length = match host {
        // A port may be the start of a password with spaces, but not in a sentence about a page.
        Some(host)
            if host > word && is_port && (is_web || word + after_digits.len() > login.len()) =>
        {
            0
        }
        Some(host) if word > 0 => host,
        None if !is_port => login[..word].trim_end_matches(['\'', ',', '.', ';', ')', ':']).len(),
        _ => 0,
    };
    match length {
        0 => text.to_owned(),
        _ => format!("{user}:***{}", &end[1 + length..]),
    }
}

/// Replaces the values of secret settings: `name=value`, also in quotes or with spaces.
fn without_secret_values(text: &str) -> String {
    let (mut masked, mut rest) = (String::new(), text);
    while let Some((before, value)) = rest.split_once('=') {
        masked.extend([before, "="]);
        rest = value;
        if let Some(secret) = secret_of(before) {
            let value = value.trim_start_matches(' ');
            masked.extend([&rest[..rest.len() - value.len()], "***"]);
            rest = &value[length_of_value(value, PASSWORDS.contains(&secret))..];
        }
    }
    masked + rest
}

/// The end of [`SECRETS`] or [`PASSWORDS`] of the name at the end of a text; `None` for other names.
fn secret_of(text: &str) -> Option<&'static str> {
    let name = text.trim_end_matches([' ', '"', '\'']);
    let is_name = |c: &char| c.is_alphanumeric() || "_-.".contains(*c);
    let mut name: Vec<char> = name.chars().rev().take_while(is_name).collect();
    name.reverse();
    let name: String = name.into_iter().filter(|c| c.is_alphanumeric()).collect();
    let mut secrets = PASSWORDS.into_iter().chain(SECRETS.split(' '));
    secrets.find(|secret| name.to_lowercase().ends_with(secret))
}

/// The length in bytes of the value at the start of a text. A password may have spaces: it ends
/// before the next setting, or at a colon.
fn length_of_value(text: &str, is_password: bool) -> usize {
    let quote = ["\\\"", "\"", "'", "`"].into_iter().find(|quote| text.starts_with(quote));
    // A JSON text that ends after `name=` has a quote, too.
    let ends_json =
        [",\"", "}", "]", ": "].iter().any(|end| text[1.min(text.len())..].starts_with(end));
    let quote = quote.filter(|quote| *quote != "\"" || !ends_json);
    if let Some(quote) = quote {
        let start = quote.len();
        let closes = |at: &usize| !text[..*at].ends_with('\\');
        let mut ends = text[start..].match_indices(quote).map(|(at, _)| start + at);
        return match ends.find(closes) {
            Some(end) => end + start,
            None => text[start..].find(is_quote).map_or(text.len(), |end| start + end),
        };
    }
    let ends = |c: char| c != ' ' && ends_word(c) || SEPARATORS.contains(&c);
    let (mut value, mut length) = (&text[..text.find(ends).unwrap_or(text.len())], 0);
    if !is_password {
        value = value.split(' ').next().unwrap_or_default();
    }
    for word in value.split_inclusive(' ') {
        if length > 0 && (word.contains('=') || value[..length].ends_with(": ")) {
            break;
        }
        length += word.len();
    }
    value[..length].trim_end_matches([' ', ':']).len()
}

/// Replaces tokens of the hub.
fn without_tokens(text: &str) -> String {
    let mut parts = text.split("hf_");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let length = part.bytes().take_while(u8::is_ascii_alphanumeric).count();
        let is_name = part[..length].bytes().all(|byte| byte.is_ascii_lowercase());
        match length >= MIN_TOKEN_LETTERS[usize::from(!is_name)] {
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
    use super::{cleaned, cleaned_line, counted};

    #[test]
    fn passwords_and_control_characters_are_replaced() {
        for (text, expected) in [
            ("postgres://ann:se:c@r/et@host/wiki: gone", "postgres://ann:***@host/wiki: gone"),
            ("a=\"s3://key:secret@b\",", "a=\"s3://key:***@b\","),
            ("postgres://ann:se'cret", "postgres://ann:***"),
            ("in 'postgres://ann:se cr@et@host:1/w'", "in 'postgres://ann:***@host:1/w'"),
            ("POSTGRES://ann:12 34@host: gone", "POSTGRES://ann:***@host: gone"),
            ("postgres://ann:1secret: gone", "postgres://ann:***: gone"),
            ("HTTPS://ghp_1@host/a", "HTTPS://***@host/a"),
            ("host=h password='it\\'s a' user=ann", "host=h password=*** user=ann"),
            ("password = x y user=ann", "password = *** user=ann"),
            ("host=h password=x y: refused", "host=h password=***: refused"),
            ("{\"message\":\"pwd=\\\"a b\\\"\"}", "{\"message\":\"pwd=***\"}"),
            ("{\"message\":\"no password=\"}", "{\"message\":\"no password=***\"}"),
            ("AccountKey=/b==;api_key=d&Api-Key=\"e f\"", "AccountKey=***;api_key=***&Api-Key=***"),
            ("https://ghp_1@host/a", "https://***@host/a"),
            ("x://h/a?user=ann&password=b&c=d", "x://h/a?user=ann&password=***&c=d"),
            ("az://c/?sig=abc)", "az://c/?sig=***)"),
            ("hf://hf_abcdefghij0123456789/x", "hf://***/x"),
            ("hf_short123 and hf_abcdefghijklmnop", "*** and ***"),
            ("a\u{1b}[31mb\u{202e}c\r", "a\\u001b[31mb\\u202ec\\u000d"),
        ] {
            assert_eq!(cleaned(text), expected);
        }
        for text in [
            "hf://owner/name@main: no such file",
            "http://localhost:8080/a and postgres://ann@host:5432: refused",
            "s3://bucket: no such bucket; ask ann@host",
            "http://localhost:8080 is used; ask ann@host",
            "postgres://host:5432/wiki: refused; ask ann@host",
            "phase.train.tokens=3, hf_token\tΩ\n",
        ] {
            assert_eq!(cleaned(text), text);
        }
        assert_eq!(cleaned_line("a\nerror: b\n  c"), "a\\u000aerror: b\n  c");
    }

    #[test]
    fn a_noun_is_plural_unless_its_count_is_1() {
        let cases = [(1, "entry"), (0, "entry"), (2, "deleted row"), (3, "pass"), (4, "key")];
        let texts = cases.map(|(count, noun)| counted(count, noun));
        assert_eq!(texts, ["1 entry", "0 entries", "2 deleted rows", "3 passes", "4 keys"]);
    }
}
