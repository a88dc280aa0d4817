//! JSON whose bulk is one long list, or a few: read by all threads at once, and as strictly as by one.
//!
//! A list is cut where its text looks as at the beginning of its first element, and every part is read from cut to
//! cut. That may be a wrong guess: the text may stand inside a string, or in a list within an element. So a part counts
//! only if the part before it ends exactly where it begins. Where that is not so, and wherever anything is not as
//! expected, the answer is `None`; the caller then reads the whole text in the ordinary way, with its messages.

use rayon::prelude::*;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Deserializer;

use super::{Object, Text};

/// Length in bytes of the parts that a thread reads at a time.
pub(crate) const PART: usize = 1 << 16;

/// A beginning of an element longer than this is not looked for.
const LONGEST_MARK: usize = 64;

/// The rows of a file that is one list of objects.
pub(crate) fn list_alone<'a, T>(text: &'a str, part: usize) -> Option<Vec<T>>
where
    T: Deserialize<'a> + Send,
{
    let mut cursor = Cursor::new(text, part);
    let rows = cursor.list()?;
    cursor.end()?;
    Some(rows.into_iter().flatten().collect())
}

/// The rows of the list of objects under a key of a file that is one object.
pub(crate) fn list_under<'a, T>(key: &str, text: &'a str, part: usize) -> Option<Vec<T>>
where
    T: Deserialize<'a> + Send,
{
    let (mut cursor, mut list) = (Cursor::new(text, part), None);
    cursor.object(|found, cursor| {
        if found != key {
            return cursor.skip();
        }
        let rows = cursor.list()?;
        // A key that stands twice is for the ordinary way to refuse.
        list.replace(rows).is_none().then_some(())
    })?;
    cursor.end()?;
    Some(list?.into_iter().flatten().collect())
}

/// A place in a JSON text. A method that finds anything but what it is for gives `None`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    part: usize,
}

/// The elements of a list, in the parts that were read together.
pub(crate) type Parts<T> = Vec<Vec<T>>;

/// What was read from one cut.
struct Part<T> {
    rows: Vec<T>,
    /// Behind the end of the list; none where the next cut came first.
    end: Option<usize>,
}

impl<'a> Cursor<'a> {
    /// At the beginning of a text, of which lists are read in parts of so many bytes.
    pub(crate) fn new(text: &'a str, part: usize) -> Self {
        Self { text, at: 0, part }
    }

    /// An object, of which `member` reads the values or passes over them.
    pub(crate) fn object(
        &mut self,
        mut member: impl FnMut(&str, &mut Self) -> Option<()>,
    ) -> Option<()> {
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            let key: Text<'_> = self.value()?;
            self.take(b':')?;
            member(&key.0, self)?;
            if self.take(b',').is_none() {
                return self.take(b'}');
            }
        }
    }

    /// A list of objects.
    pub(crate) fn list<T: Deserialize<'a> + Send>(&mut self) -> Option<Parts<T>> {
        self.take(b'[')?;
        if self.take(b']').is_some() {
            return Some(Vec::new());
        }
        let cuts = self.cuts();
        let read = |place: usize| {
            Self { at: cuts[place], ..*self }
                .part(cuts.get(place + 1).copied().unwrap_or(usize::MAX))
        };
        let parts: Vec<Option<Part<T>>> = (0..cuts.len()).into_par_iter().map(read).collect();
        let mut rows = Vec::with_capacity(parts.len());
        for part in parts {
            let part = part?;
            rows.push(part.rows);
            if let Some(end) = part.end {
                self.at = end;
                return Some(rows);
            }
        }
        None
    }

    /// Any value, which is passed over.
    pub(crate) fn skip(&mut self) -> Option<()> {
        self.value().map(|IgnoredAny| ())
    }

    /// The end of the text.
    pub(crate) fn end(mut self) -> Option<()> {
        self.space();
        (self.at == self.text.len()).then_some(())
    }

    /// Where the first element begins, and where later ones seem to: one for each part.
    fn cuts(&mut self) -> Vec<usize> {
        self.space();
        let mut cuts = vec![self.at];
        let bytes = self.text.as_bytes();
        let first = &bytes[self.at..bytes.len().min(self.at + LONGEST_MARK)];
        // As `{"question_id":`.
        let mark =
            first.iter().position(|byte| *byte == b':').and_then(|colon| first.get(..=colon));
        let Some(mark) = mark.filter(|mark| mark.starts_with(b"{")) else { return cuts };
        for from in (self.at..bytes.len()).step_by(self.part).skip(1) {
            let window = &bytes[from..bytes.len().min(from + self.part)];
            let begins = |at: &usize| {
                window[*at..].starts_with(mark)
                    && bytes[..from + at].trim_ascii_end().ends_with(b",")
            };
            // The list is likely to end before a part without a beginning.
            let Some(at) = (0..window.len()).find(begins) else { break };
            cuts.push(from + at);
        }
        cuts
    }

    /// The elements up to the cut `until`, or up to the end of the list.
    fn part<T: Deserialize<'a>>(mut self, until: usize) -> Option<Part<T>> {
        let mut rows = Vec::new();
        loop {
            let Object(row) = self.value()?;
            rows.push(row);
            if self.take(b',').is_none() {
                self.take(b']')?;
                return Some(Part { rows, end: Some(self.at) });
            }
            self.space();
            if self.at >= until {
                return (self.at == until).then_some(Part { rows, end: None });
            }
        }
    }

    /// The value here, read strictly.
    fn value<T: Deserialize<'a>>(&mut self) -> Option<T> {
        let mut values = Deserializer::from_str(self.text.get(self.at..)?).into_iter();
        let value = values.next()?.ok()?;
        self.at += values.byte_offset();
        Some(value)
    }

    /// This byte, after white space.
    fn take(&mut self, byte: u8) -> Option<()> {
        self.space();
        (self.text.as_bytes().get(self.at) == Some(&byte)).then(|| self.at += 1)
    }

    /// White space as JSON has it.
    fn space(&mut self) {
        let rest = self.text.as_bytes()[self.at..].iter();
        self.at += rest.take_while(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r')).count();
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

    /// What is read in parts is what is read as a whole; returns whether anything was.
    fn agree<T>(text: &str, part: usize) -> bool
    where
        T: for<'a> Deserialize<'a> + Send + PartialEq + std::fmt::Debug,
    {
        let (alone, under) = (list_alone::<T>(text, part), list_under("annotations", text, part));
        if let Some(rows) = &alone {
            let whole: Vec<Object<T>> = serde_json::from_str(text).expect("what the parts are");
            assert!(whole.iter().map(|Object(row)| row).eq(rows), "{text}");
        }
        if let Some(rows) = &under {
            let Object(whole): Object<File<T>> = serde_json::from_str(text).expect("the same");
            assert_eq!(whole.annotations, *rows, "{text}");
        }
        alone.is_some() || under.is_some()
    }

    #[test]
    fn parts_are_read_as_the_whole() {
        for list in [
            "[]",
            " [\n] ",
            r#"[{"id": 1}, {"id": 2} ,{"id":3},{"id": 4, "rows": [{}, {"x": "}, {"}]}]"#,
            r#"[{"text": "\u00e9, {\"text\": \"", "id": 1}, {"id": 2}]"#,
        ] {
            let file = format!("{{\"a\": [{{\"b\": 1}}], \"annotations\":{list}, \"c\": -1.5e3}}");
            for part in 1..100 {
                assert!(agree::<Row>(list, part) && agree::<Row>(&file, part), "{list} {part}");
            }
        }
        // Cut within the first element, which is no beginning of another.
        let nested = r#"[{"id": 1, "rows": [{"id": 2}, {"id": 3}]}, {"id": 4}]"#;
        assert!(!agree::<Row>(nested, 25) && agree::<Row>(nested, 45) && agree::<Row>(nested, 90));
    }

    #[test]
    fn what_is_not_as_expected_is_left_to_the_whole() {
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
            for part in [1, 8, 1000] {
                assert!(!agree::<Row>(list, part) && !agree::<Row>(&file(list), part), "{list}");
            }
        }
    }

    /// Pieces of lists, broken in random places.
    #[test]
    fn no_text_is_read_otherwise_in_parts() {
        let pieces = [
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
        let element = select(pieces[..6].to_vec());
        let broken = vec((any::<Index>(), select(pieces.to_vec())), 0..3);
        let inputs = (vec(element, 0..12), broken, 1..60_usize);
        let config = Config { cases: 4000, failure_persistence: None, ..Config::default() };
        let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let found =
            TestRunner::new_with_rng(config, random).run(&inputs, |(elements, broken, part)| {
                let mut text = format!("{{\"a\": 1, \"annotations\": [{}]}}", elements.join(", "));
                for (place, piece) in broken {
                    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
                    text.insert_str(*place.get(&places), piece);
                }
                agree::<Row>(&text, part);
                let list = text.find('[').map_or("", |at| &text[at..text.len() - 1]);
                agree::<Row>(list, part);
                Ok(())
            });
        if let Err(failure) = found {
            panic!("{failure}");
        }
    }

    #[test]
    fn the_inputs_of_the_fuzzer_are_not_read_otherwise() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
        let mut read = 0;
        for name in ["vqa", "caption", "aokvqa"] {
            for entry in fs::read_dir(corpus.join(name)).expect("a corpus") {
                let bytes = fs::read(entry.expect("an entry").path()).expect("an input");
                let text = String::from_utf8_lossy(&bytes);
                for part in [1, 30, 1000] {
                    read += usize::from(agree::<Map<String, Value>>(&text, part));
                }
            }
        }
        assert!(read > 20, "{read} of the inputs were read in parts");
    }
}
