//! Titles of the CPC and IPC classes: the text for a context such as `A47`.
//!
//! Three formats are supported: our own (`code<TAB>title…` with a header), Kaggle's `titles.csv`
//! (`code,title,section,…`), and the patent office's title lists (`code<TAB><TAB>title`, no
//! header).

use std::collections::BTreeMap;
use std::path::Path;

pub use engram_textfile::phrases::SECTIONS;
use engram_textfile::{Input, Table, TextError, non_blank_lines, read_text};

use crate::DataError;

/// Titles by class code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassTitles {
    titles: BTreeMap<String, String>,
}

impl ClassTitles {
    /// Reads a title list in any of the three formats.
    ///
    /// # Errors
    /// `Text` with file and line
    pub fn read(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let text = read_text(path)?;
        let first_line = text.lines().next().unwrap_or_default();
        let has_header = first_line
            .split(['\t', ',', ';'])
            .any(|field| field.trim().trim_matches('"').eq_ignore_ascii_case("code"));
        let input = Input::new(path, text.as_bytes())?;
        Ok(match (first_line.contains('\t'), has_header) {
            (true, false) => Self::read_list(path, &text)?,
            (true, true) => Self::read_table(Table::tsv(input, false)?)?,
            (false, _) => Self::read_table(Table::csv(input)?)?,
        })
    }

    /// Returns the title of a class, or `None` if the list lacks the code.
    pub fn title(&self, code: &str) -> Option<&str> {
        self.titles.get(code).map(String::as_str)
    }

    /// Returns the code in the list that is nearest to a mistyped code. Codes of the same length
    /// are preferred. `None` if the list is empty.
    pub fn nearest(&self, code: &str) -> Option<&str> {
        let uppercase = code.to_uppercase();
        self.titles
            .keys()
            .min_by_key(|listed| {
                let length_difference = listed.len().abs_diff(uppercase.len());
                (length_difference, strsim::damerau_levenshtein(listed, &uppercase))
            })
            .map(String::as_str)
    }

    /// Returns the list as text for [`ClassTitles::read`]: `code<TAB>title` below a header, without
    /// quotes. White space within a title becomes single spaces.
    pub fn to_tsv(&self) -> String {
        let single_spaced = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines = self.iter().map(|(code, title)| format!("{code}\t{}\n", single_spaced(title)));
        format!("code\ttitle\n{}", lines.collect::<String>())
    }

    /// Iterates over codes and titles, in the order of the codes.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.titles.iter().map(|(code, title)| (&**code, &**title))
    }

    /// Returns the number of codes.
    pub fn len(&self) -> usize {
        self.titles.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.titles.is_empty()
    }

    fn read_table(mut table: Table<'_>) -> Result<Self, TextError> {
        let [code, title] = table.columns(["code", "title"])?;
        let mut titles = BTreeMap::new();
        while table.advance()? {
            let field = |column| table.field(column).trim().to_owned();
            titles.insert(field(code), field(title));
        }
        Ok(Self { titles })
    }

    /// Reads lines `code<TAB>level<TAB>title`; the level is blank for sections, classes and
    /// subclasses, and may be missing.
    fn read_list(path: &Path, text: &str) -> Result<Self, TextError> {
        let parse_line = |(line, text): (u64, &str)| {
            let mut fields = text.split('\t').map(str::trim);
            let code = fields.next().filter(|code| !code.is_empty());
            let title = fields.next_back().filter(|title| !title.is_empty());
            code.zip(title).map(|(code, title)| (code.to_owned(), title.to_owned())).ok_or_else(
                || {
                    let reason = "expected `code<TAB>title` or `code<TAB><TAB>title`";
                    let remedy = "use a list of class titles";
                    TextError::malformed(path, line, reason, remedy)
                },
            )
        };
        non_blank_lines(text).map(parse_line).collect()
    }
}

impl FromIterator<(String, String)> for ClassTitles {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(titles: I) -> Self {
        Self { titles: titles.into_iter().collect() }
    }
}
