//! Parallel reader for JSON that consists mainly of one or a few long lists. It accepts no text
//! that the serial reader refuses.
//!
//! The reader cuts a list at positions where the text begins like the first element of the list. It
//! then parses the parts between the cuts in parallel. A cut may be wrong: it may be inside a
//! string, or in a list within an element. So a part is accepted only if the part before it ends
//! exactly at its start. On any mismatch or unexpected text, the result is `None`. The caller then
//! parses the whole text with the serial reader, which returns the result or the error.

use rayon::prelude::*;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Deserializer;

use super::{Object, Text};

/// Approximate size in bytes of a part that a thread parses.
pub(crate) const PART_BYTES: usize = 1 << 16;

/// Maximum length of the text that marks the start of an element.
const MAX_MARK_LENGTH: usize = 64;

/// Parses a text that is one list of objects. `None` asks the caller to parse it serially.
pub(crate) fn parse_list<'a, T>(text: &'a str, part_bytes: usize) -> Option<Vec<T>>
where
    T: Deserialize<'a> + Send,
{
    let mut cursor = Cursor::new(text, part_bytes);
    let elements = cursor.parse_parts()?;
    cursor.expect_end()?;
    Some(elements.into_iter().flatten().collect())
}

/// Parses the list of objects under `key`, in a text that is one object. `None` asks the caller to
/// parse the text serially.
pub(crate) fn parse_list_under_key<'a, T>(
    key: &str,
    text: &'a str,
    part_bytes: usize,
) -> Option<Vec<T>>
where
    T: Deserialize<'a> + Send,
{
    let (mut cursor, mut list) = (Cursor::new(text, part_bytes), None);
    cursor.parse_object(|member_key, cursor| {
        if member_key != key {
            return cursor.skip_value();
        }
        let elements = cursor.parse_parts()?;
        // For a duplicate key, the result is `None`: the serial reader reports the error.
        list.replace(elements).is_none().then_some(())
    })?;
    cursor.expect_end()?;
    Some(list?.into_iter().flatten().collect())
}

/// A position in a JSON text. Each method returns `None` if another text than expected follows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    text: &'a str,
    position: usize,
    part_bytes: usize,
}

/// The elements of a list, grouped by the parts that were parsed together.
pub(crate) type Parts<T> = Vec<Vec<T>>;

/// The elements parsed from one cut.
struct Part<T> {
    elements: Vec<T>,
    /// Position after the end of the list; `None` if the list continues after this part.
    end: Option<usize>,
}

impl<'a> Cursor<'a> {
    /// Starts at the beginning of `text`; lists are parsed in parts of about `part_bytes` bytes.
    pub(crate) fn new(text: &'a str, part_bytes: usize) -> Self {
        Self { text, position: 0, part_bytes }
    }

    /// Parses an object; `member` parses or skips each value.
    pub(crate) fn parse_object(
        &mut self,
        mut member: impl FnMut(&str, &mut Self) -> Option<()>,
    ) -> Option<()> {
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            let key: Text<'_> = self.parse_value()?;
            self.take(b':')?;
            member(&key.0, self)?;
            if self.take(b',').is_none() {
                return self.take(b'}');
            }
        }
    }

    /// Parses a list of objects.
    pub(crate) fn parse_parts<T: Deserialize<'a> + Send>(&mut self) -> Option<Parts<T>> {
        self.take(b'[')?;
        if self.take(b']').is_some() {
            return Some(Vec::new());
        }
        let cuts = self.cuts();
        let parse_part = |index: usize| {
            Self { position: cuts[index], ..*self }
                .parse_elements(cuts.get(index + 1).copied().unwrap_or(usize::MAX))
        };
        let parts: Vec<Option<Part<T>>> = (0..cuts.len()).into_par_iter().map(parse_part).collect();
        let mut elements = Vec::with_capacity(parts.len());
        for part in parts {
            let part = part?;
            elements.push(part.elements);
            if let Some(end) = part.end {
                self.position = end;
                return Some(elements);
            }
        }
        None
    }

    /// Skips any value.
    pub(crate) fn skip_value(&mut self) -> Option<()> {
        self.parse_value().map(|IgnoredAny| ())
    }

    /// Checks that only white space is left.
    pub(crate) fn expect_end(mut self) -> Option<()> {
        self.skip_space();
        (self.position == self.text.len()).then_some(())
    }

    /// The start of the first element, and for each further part a likely start of an element.
    fn cuts(&mut self) -> Vec<usize> {
        self.skip_space();
        let mut cuts = vec![self.position];
        let bytes = self.text.as_bytes();
        let first = &bytes[self.position..bytes.len().min(self.position + MAX_MARK_LENGTH)];
        // For example `{"question_id":`.
        let mark =
            first.iter().position(|byte| *byte == b':').and_then(|colon| first.get(..=colon));
        let Some(mark) = mark.filter(|mark| mark.starts_with(b"{")) else { return cuts };
        for from in (self.position..bytes.len()).step_by(self.part_bytes).skip(1) {
            let window = &bytes[from..bytes.len().min(from + self.part_bytes)];
            let is_element_start = |at: &usize| {
                window[*at..].starts_with(mark)
                    && bytes[..from + at].trim_ascii_end().ends_with(b",")
            };
            // A part without a start of an element is probably beyond the end of the list.
            let Some(at) = (0..window.len()).find(is_element_start) else { break };
            cuts.push(from + at);
        }
        cuts
    }

    /// Parses the elements up to the cut `until`, or to the end of the list.
    fn parse_elements<T: Deserialize<'a>>(mut self, until: usize) -> Option<Part<T>> {
        let mut elements = Vec::new();
        loop {
            let Object(element) = self.parse_value()?;
            elements.push(element);
            if self.take(b',').is_none() {
                self.take(b']')?;
                return Some(Part { elements, end: Some(self.position) });
            }
            self.skip_space();
            if self.position >= until {
                return (self.position == until).then_some(Part { elements, end: None });
            }
        }
    }

    /// Parses the value at this position.
    fn parse_value<T: Deserialize<'a>>(&mut self) -> Option<T> {
        let mut values = Deserializer::from_str(self.text.get(self.position..)?).into_iter();
        let value = values.next()?.ok()?;
        self.position += values.byte_offset();
        Some(value)
    }

    /// Consumes `byte` after optional white space.
    fn take(&mut self, byte: u8) -> Option<()> {
        self.skip_space();
        (self.text.as_bytes().get(self.position) == Some(&byte)).then(|| self.position += 1)
    }

    /// Skips JSON white space.
    fn skip_space(&mut self) {
        let remaining = self.text.as_bytes()[self.position..].iter();
        self.position +=
            remaining.take_while(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r')).count();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::{Index, select};
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    use serde_json::{Map, Value};

    use super::*;
    use crate::json::objects;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Row {
        id: Option<u8>,
        text: Option<String>,
        rows: Option<Vec<Value>>,
    }

    #[derive(Deserialize)]
    #[serde(bound(deserialize = "T: Deserialize<'de>"))]
    struct File<T> {
        #[serde(deserialize_with = "objects")]
        annotations: Vec<T>,
    }

    /// Asserts that parallel and serial parsing agree. Returns whether the parallel reader
    /// succeeded.
    fn check_agreement<T>(text: &str, part_bytes: usize) -> bool
    where
        T: for<'a> Deserialize<'a> + Send + PartialEq + std::fmt::Debug,
    {
        let (list, list_under_key) = (
            parse_list::<T>(text, part_bytes),
            parse_list_under_key("annotations", text, part_bytes),
        );
        if let Some(rows) = &list {
            let whole: Vec<Object<T>> =
                serde_json::from_str(text).expect("a list accepted in parts");
            assert!(whole.iter().map(|Object(row)| row).eq(rows), "{text}");
        }
        if let Some(rows) = &list_under_key {
            let Object(whole): Object<File<T>> =
                serde_json::from_str(text).expect("an object accepted in parts");
            assert_eq!(whole.annotations, *rows, "{text}");
        }
        list.is_some() || list_under_key.is_some()
    }

    #[test]
    fn parallel_reading_equals_serial_reading() {
        for list in [
            "[]",
            " [\n] ",
            r#"[{"id": 1}, {"id": 2} ,{"id":3},{"id": 4, "rows": [{}, {"x": "}, {"}]}]"#,
            r#"[{"text": "\u00e9, {\"text\": \"", "id": 1}, {"id": 2}]"#,
        ] {
            let file = format!("{{\"a\": [{{\"b\": 1}}], \"annotations\":{list}, \"c\": -1.5e3}}");
            for part_bytes in 1..100 {
                assert!(
                    check_agreement::<Row>(list, part_bytes)
                        && check_agreement::<Row>(&file, part_bytes),
                    "{list} {part_bytes}"
                );
            }
        }
        // The cut falls inside the first element, where no other element starts.
        let nested = r#"[{"id": 1, "rows": [{"id": 2}, {"id": 3}]}, {"id": 4}]"#;
        assert!(
            !check_agreement::<Row>(nested, 25)
                && check_agreement::<Row>(nested, 45)
                && check_agreement::<Row>(nested, 90)
        );
    }

    #[test]
    fn unexpected_text_is_left_to_the_serial_reader() {
        let file = |list: &str| format!("{{\"annotations\": {list}}}");
        for list in [
            "",
            "[",
            "[,]",
            "{}",
            "null",
            "[1]",
            r#"[{"id": 1},]"#,
            r#"[{"id": 1} {"id": 2}]"#,
            r#"[{"id": 1, "id": 2}]"#,
            r#"[{"id": 256}]"#,
            r#"[{"text": "\ud800"}]"#,
            r#"[[1, "a", []]]"#,
            r#"[{"id": 1}], "annotations": []"#,
            r#"[], "a": tru"#,
            r#"[], "a" 1"#,
            r#"[], "\ud800": 1"#,
            "[],",
            "[]}",
            "[]\u{a0}",
            r#"[], a: 1"#,
            r#"[], "a": 1 "b": 2"#,
        ] {
            for part_bytes in [1, 8, 1000] {
                assert!(
                    !check_agreement::<Row>(list, part_bytes)
                        && !check_agreement::<Row>(&file(list), part_bytes),
                    "{list}"
                );
            }
        }
    }

    /// Valid lists with fragments inserted at random positions.
    #[test]
    fn parallel_and_serial_reading_agree_on_damaged_lists() {
        let fragments = [
            r#"{"id": 1}"#,
            r#"{"id": 2, "text": "a"}"#,
            r#"{"text": "[{\"id\": 1}, "}"#,
            "{}",
            r#"{"id""#,
            r#"{"id": 3, "rows": [{"id": 1}, {"id": 2}]}"#,
            r#""id": 7"#,
            r#""annotations":"#,
            "[",
            "]",
            "{",
            "}",
            ",",
            ":",
            "\"",
            "\\",
            "\n",
            "1",
            "null",
            "é",
        ];
        let element = select(fragments[..6].to_vec());
        let insertions = vec((any::<Index>(), select(fragments.to_vec())), 0..3);
        let inputs = (vec(element, 0..12), insertions, 1..60_usize);
        let config = Config { cases: 4000, failure_persistence: None, ..Config::default() };
        let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let outcome = TestRunner::new_with_rng(config, random).run(
            &inputs,
            |(elements, insertions, part_bytes)| {
                let mut text = format!("{{\"a\": 1, \"annotations\": [{}]}}", elements.join(", "));
                for (index, fragment) in insertions {
                    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
                    text.insert_str(*index.get(&starts), fragment);
                }
                check_agreement::<Row>(&text, part_bytes);
                let list = text.find('[').map_or("", |at| &text[at..text.len() - 1]);
                check_agreement::<Row>(list, part_bytes);
                Ok(())
            },
        );
        if let Err(failure) = outcome {
            panic!("{failure}");
        }
    }

    #[test]
    fn parallel_and_serial_reading_agree_on_the_fuzz_corpus() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
        let mut parsed_in_parts = 0;
        for name in ["vqa", "caption", "aokvqa"] {
            for entry in fs::read_dir(corpus.join(name)).expect("a corpus") {
                let bytes = fs::read(entry.expect("an entry").path()).expect("an input");
                let text = String::from_utf8_lossy(&bytes);
                for part_bytes in [1, 30, 1000] {
                    parsed_in_parts +=
                        usize::from(check_agreement::<Map<String, Value>>(&text, part_bytes));
                }
            }
        }
        assert!(parsed_in_parts > 20, "{parsed_in_parts} of the inputs were read in parts");
    }
}
