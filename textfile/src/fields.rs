//! The fields of a row of a table, and the separator between them.

use std::borrow::Cow;

use crate::lines::without_end;

/// The separator that a line of the form `sep=;` names, as spreadsheets write and read it. They
/// may add separators for the other columns.
pub(crate) fn named_separator(line: &[u8]) -> Option<u8> {
    let line = without_end(line);
    let line = line.strip_prefix(b"\"").map_or(line, |line| {
        let end = line.iter().position(|byte| *byte == b'"');
        end.map_or(line, |end| &line[..end])
    });
    let (name, separators) = line.split_at_checked(line.iter().position(|byte| *byte == b'=')?)?;
    let mut separators = separators[1..].iter().filter(|byte| **byte != b' ');
    let separator = *separators.next()?;
    let is_named = name.trim_ascii().eq_ignore_ascii_case(b"sep");
    (is_named && separators.all(|other| *other == separator)).then_some(separator)
}

/// The separator of a header: `expected` if the header has it outside of quotes.
pub(crate) fn separator(header: &[u8], expected: u8, has_quotes: bool) -> u8 {
    let mut in_quotes = false;
    let is_outside = |byte: &&u8| {
        in_quotes ^= has_quotes && **byte == b'"';
        !in_quotes
    };
    let outside: Vec<u8> = header.iter().filter(is_outside).copied().collect();
    let candidates = [expected, b';', b'\t', b',', b'|'];
    candidates.into_iter().find(|byte| outside.contains(byte)).unwrap_or(expected)
}

/// Returns the text of a field that a spreadsheet has quoted because it has quotes: it is in quotes,
/// has doubled quotes, and has no others. Any other field is returned unchanged.
pub fn without_quotes(field: &str) -> Cow<'_, str> {
    let inside = field.strip_prefix('"').and_then(|field| field.strip_suffix('"'));
    match inside.filter(|text| text.contains("\"\"") && !text.replace("\"\"", "").contains('"')) {
        Some(text) => text.replace("\"\"", "\"").into(),
        None => field.into(),
    }
}

/// The fields of a row while its lines are read.
pub(crate) struct Fields {
    pub(crate) text: Vec<u8>,
    pub(crate) ends: Vec<usize>,
    pub(crate) delimiter: u8,
    pub(crate) has_quotes: bool,
    pub(crate) in_quotes: bool,
}

impl Fields {
    /// Reads a line: the first line of the row, or the next line of a quoted field. Returns `false`
    /// if a closing quote is followed by text instead of a separator.
    pub(crate) fn read(&mut self, line: &[u8]) -> bool {
        let (mut remaining, line_end) = line.split_at(without_end(line).len());
        loop {
            if self.has_quotes && !self.in_quotes && remaining.first() == Some(&b'"') {
                self.in_quotes = true;
                remaining = &remaining[1..];
            }
            if self.in_quotes {
                match self.read_quoted(remaining) {
                    None => {
                        self.text.extend_from_slice(line_end);
                        return true;
                    }
                    Some(after_quote) => remaining = after_quote,
                }
                if remaining.first().is_some_and(|byte| *byte != self.delimiter) {
                    return false;
                }
            }
            let end = remaining.iter().position(|byte| *byte == self.delimiter);
            let field = &remaining[..end.unwrap_or(remaining.len())];
            match std::str::from_utf8(field) {
                Ok(text) if !self.has_quotes => {
                    self.text.extend_from_slice(without_quotes(text).as_bytes());
                }
                _ => self.text.extend_from_slice(field),
            }
            self.ends.push(self.text.len());
            match end {
                Some(end) => remaining = &remaining[end + 1..],
                None => return true,
            }
        }
    }

    /// Reads a quoted field up to its end and returns the bytes after it; `None` if the line ends
    /// first.
    fn read_quoted<'l>(&mut self, mut remaining: &'l [u8]) -> Option<&'l [u8]> {
        while let Some(quote) = remaining.iter().position(|byte| *byte == b'"') {
            self.text.extend_from_slice(&remaining[..quote]);
            remaining = &remaining[quote + 1..];
            if remaining.first() != Some(&b'"') {
                self.in_quotes = false;
                return Some(remaining);
            }
            self.text.push(b'"');
            remaining = &remaining[1..];
        }
        self.text.extend_from_slice(remaining);
        None
    }
}
