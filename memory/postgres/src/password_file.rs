//! The password file of PostgreSQL, `~/.pgpass`: lines of `host:port:database:user:password`, where
//! `*` stands for anything, and a backslash precedes a colon or a backslash of a field.

use std::fs;
use std::path::Path;

/// Returns the password of the first line that matches the host, port, database and user; `None` if
/// there is none, or if other users may read the file.
pub(crate) fn find_password(file: &Path, login: [&str; 4]) -> Option<String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if fs::metadata(file).ok()?.permissions().mode() & 0o077 != 0 {
            return None;
        }
    }
    let text = engram_durable::read_text(file).ok()?;
    text.lines().find_map(|line| password_of(line, login))
}

/// Returns the password of a line if it matches.
fn password_of(line: &str, [host, port, database, user]: [&str; 4]) -> Option<String> {
    let fields = fields(line)?;
    // PostgreSQL's own programs look for a Unix socket as `localhost`, too.
    let is_host =
        fields[0] == "*" || fields[0] == host || fields[0] == "localhost" && host.starts_with('/');
    let others = fields[1..4].iter().zip([port, database, user]);
    let matches = !line.starts_with('#') && is_host;
    let matches =
        matches && others.into_iter().all(|(field, value)| field == "*" || field == value);
    matches.then(|| fields[4].clone())
}

/// Splits a line into its five fields.
fn fields(line: &str) -> Option<Vec<String>> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => fields.last_mut()?.extend(characters.next()),
            ':' if fields.len() < 5 => fields.push(String::new()),
            _ => fields.last_mut()?.push(character),
        }
    }
    (fields.len() == 5).then_some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_matches_has_the_password() {
        let login = ["db", "5432", "wiki", "ann"];
        for (line, expected) in [
            ("db:5432:wiki:ann:secret", Some("secret")),
            ("*:*:*:ann:a\\:b\\\\c:d", Some("a:b\\c:d")),
            ("db:5433:wiki:ann:secret", None),
            ("localhost:*:*:*:secret", None),
            ("#db:5432:wiki:ann:secret", None),
            ("db:5432", None),
            ("", None),
        ] {
            assert_eq!(password_of(line, login).as_deref(), expected, "{line}");
        }
        let socket = ["/run/pg", "5432", "wiki", "ann"];
        assert_eq!(password_of("localhost:*:*:*:x", socket).as_deref(), Some("x"));
    }
}
