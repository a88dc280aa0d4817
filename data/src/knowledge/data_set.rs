//! What a data set consists of, for the command, the fuzzer and the tests with damaged files.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use engram_textfile::Input;

use super::Collector;
use crate::DataError;

/// A published data set that can be read as entries.
#[derive(Debug, Clone, Copy)]
pub struct DataSet {
    /// The name of the data set, as in `engram data entries NAME`.
    pub name: &'static str,
    /// What the command does, in one phrase.
    pub about: &'static str,
    /// The source name of the entries, unless another one is given.
    pub source: &'static str,
    /// The arguments of the reader.
    pub arguments: &'static [Argument],
    /// A description of the file formats for the help, with lines of at most 100 characters; may be
    /// empty.
    pub formats: &'static str,
    /// Example commands, without `engram data entries NAME`.
    pub examples: &'static [&'static str],
    /// Small files with valid records. The tests read them, whole and damaged.
    pub samples: &'static [Sample],
    /// Reads the files of a request and passes the entries to the collector.
    pub read: fn(&Request<'_>, &mut Collector<'_>) -> Result<(), DataError>,
}

impl DataSet {
    /// Creates the request of a command line, which follows the name of the data set, and whose
    /// arguments are separated by spaces.
    ///
    /// # Panics
    /// If the line has another argument.
    pub fn request<'r>(&self, line: &str, open: Open<'r>) -> Request<'r> {
        let mut values = Values::new();
        let mut words = line.split_whitespace();
        while let Some(word) = words.next() {
            let is_named = |argument: &&Argument| match argument.kind {
                ArgumentKind::Files => !word.starts_with("--"),
                _ => word.strip_prefix("--") == Some(argument.name),
            };
            let argument = self.arguments.iter().find(is_named).expect("a known argument");
            let value = match argument.kind {
                ArgumentKind::Files | ArgumentKind::Switch => word,
                _ => words.next().expect("a value"),
            };
            values.entry(argument.name).or_default().push(value.into());
        }
        Request { source: self.source.to_owned(), values, open }
    }
}

/// An argument of a reader.
#[derive(Debug, Clone, Copy)]
pub struct Argument {
    /// The name, which is also the name of the flag.
    pub name: &'static str,
    /// What the argument accepts.
    pub kind: ArgumentKind,
    /// The name of its value in the help; empty for a [`ArgumentKind::Switch`].
    pub value_name: &'static str,
    /// The help, in one phrase.
    pub help: &'static str,
    /// When the argument must or may be given.
    pub rule: Rule,
    /// For files: the switch with which the reader reads them twice.
    pub read_twice_with: Option<&'static str>,
}

/// What an argument accepts.
#[derive(Debug, Clone, Copy)]
pub enum ArgumentKind {
    /// Input files, without a flag.
    Files,
    /// An input file; repeatable.
    File,
    /// A flag without a value.
    Switch,
    /// A text.
    Text,
    /// Texts, separated by commas; repeatable.
    List,
    /// A text that the function accepts; repeatable.
    Checked(fn(&str) -> Result<(), DataError>),
    /// A whole number; default: 0.
    Number,
}

/// When an argument must or may be given.
#[derive(Debug, Clone, Copy)]
pub enum Rule {
    /// It may be given.
    Optional,
    /// It must be given.
    Required,
    /// It must be given, unless this argument is given.
    RequiredUnless(&'static str),
    /// It may only be given together with this argument.
    With(&'static str),
    /// It may only be given without these arguments.
    Without(&'static [&'static str]),
}

impl Argument {
    /// Creates an optional argument. A switch has no `value_name`.
    pub const fn new(
        kind: ArgumentKind,
        name: &'static str,
        value_name: &'static str,
        help: &'static str,
    ) -> Self {
        Self { name, kind, value_name, help, rule: Rule::Optional, read_twice_with: None }
    }

    /// Creates an argument for an input file; repeatable.
    pub const fn file(name: &'static str, help: &'static str) -> Self {
        Self::new(ArgumentKind::File, name, "FILE", help)
    }

    /// Creates a flag without a value.
    pub const fn switch(name: &'static str, help: &'static str) -> Self {
        Self::new(ArgumentKind::Switch, name, "", help)
    }

    /// Sets the rule.
    #[must_use]
    pub const fn rule(self, rule: Rule) -> Self {
        Self { rule, ..self }
    }

    /// Says that the reader reads these files twice if a switch is given. The command then refuses
    /// pipes.
    #[must_use]
    pub const fn read_twice_with(self, switch: &'static str) -> Self {
        Self { read_twice_with: Some(switch), ..self }
    }
}

/// The values of the given arguments, by name. A switch is given if it has any value.
pub type Values = BTreeMap<&'static str, Vec<OsString>>;

/// Opens an input file.
pub type Open<'r> = &'r dyn Fn(&Path) -> Result<Input<'static>, DataError>;

/// What to read.
pub struct Request<'r> {
    /// The source name of the entries.
    pub source: String,
    /// The values of the arguments, which the [rules](Rule) allow.
    pub values: Values,
    /// Opens an input file.
    pub open: Open<'r>,
}

impl Request<'_> {
    fn of(&self, name: &str) -> &[OsString] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether an argument is given.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Returns the texts of an argument, in the given order.
    pub fn texts(&self, name: &str) -> Vec<String> {
        self.of(name).iter().map(|text| text.to_string_lossy().into_owned()).collect()
    }

    /// Returns the text of an argument, if it is given.
    pub fn text(&self, name: &str) -> Option<String> {
        self.texts(name).pop()
    }

    /// Returns the number of an argument; 0 if it is not given.
    pub fn number(&self, name: &str) -> usize {
        self.text(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Opens the files of an argument, each one when the iterator returns it.
    pub fn inputs(
        &self,
        name: &str,
    ) -> impl ExactSizeIterator<Item = Result<Input<'static>, DataError>> {
        self.of(name).iter().map(|path| (self.open)(path.as_ref()))
    }
}

/// Small files with valid records, and the command line that reads them.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// The command line after the name of the data set, separated by spaces.
    pub line: &'static str,
    /// The files: name and content.
    pub files: &'static [(&'static str, &'static str)],
}
