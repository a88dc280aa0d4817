//! Entries from the named columns of a CSV.

use engram_entry::EntryLine;
use engram_textfile::{Input, Table, TextError, shortened};
use serde_json::{Map, Value};

use crate::error::MemoryError;

/// The fields of an entry that are read by default, if the header has columns with these names.
/// `file_name`, as in metadata of Hugging Face, is the image if there is no `image`.
pub const DEFAULT_FIELDS: &str =
    "id source document text image subject relation object question answer file_name";

/// A column of a CSV and the entry field that it fills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryColumn {
    /// The field of the entry: `id`, `source`, `document`, `text`, `image` or any other name.
    pub field: String,
    /// The name of the column.
    pub column: String,
}

impl EntryColumn {
    /// Parses `field=column`, or the common name of both.
    ///
    /// # Errors
    /// A message with the valid forms, if a name is empty.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (field, column) = text.split_once('=').unwrap_or((text, text));
        let (field, column) = (field.trim(), column.trim());
        if field.is_empty() || column.is_empty() {
            return Err("write the name of a column, or FIELD=COLUMN, such as text=Body".to_owned());
        }
        Ok(Self { field: field.to_owned(), column: column.to_owned() })
    }
}

/// The rows of a CSV.
pub(super) struct EntryTable {
    table: Table<'static>,
    /// The index of the id's column; `None` without one.
    id: Option<usize>,
    /// The fields other than the id, each with the index of its column.
    fields: Vec<(String, usize)>,
}

impl EntryTable {
    /// Reads the header. If `columns` is empty, all columns with a name in [`DEFAULT_FIELDS`] are
    /// read.
    pub(super) fn new(input: Input<'static>, columns: &[EntryColumn]) -> Result<Self, MemoryError> {
        let table = Table::csv(input)?;
        let mut fields = Vec::new();
        for EntryColumn { field, column } in columns {
            fields.push((field.clone(), table.column(column)?));
        }
        for field in DEFAULT_FIELDS.split(' ').filter(|_| columns.is_empty()) {
            if let Some(column) = table.optional_column(field)? {
                fields.push((field.to_owned(), column));
            }
        }
        let malformed = |reason: String, remedy| {
            let line = table.line();
            Err(MemoryError::Columns(TextError::malformed(table.file(), line, reason, remedy)))
        };
        if let Some(repeated) =
            (1..fields.len()).find(|i| fields[..*i].iter().any(|(field, _)| *field == fields[*i].0))
        {
            let reason = format!("the field `{}` has two columns", fields[repeated].0);
            return malformed(reason, "give one column for each field");
        }
        let id = fields.iter().position(|(field, _)| field == "id");
        let id = id.map(|index| fields.remove(index).1);
        if !fields.iter().any(|(field, _)| !matches!(field.as_str(), "source" | "document")) {
            let header = shortened(&table.header().join(", "), 200);
            let reason = format!("no column of texts; the header has: {header}");
            return malformed(reason, "name the columns, for example `id=ID,text=Body`");
        }
        Ok(Self { table, id, fields })
    }

    /// Reads the next row; returns `false` at the end.
    pub(super) fn advance(&mut self) -> Result<bool, TextError> {
        self.table.advance()
    }

    /// The line of the current row, from 1.
    pub(super) fn line(&self) -> u64 {
        self.table.line()
    }

    /// Returns the entry of the current row, without blank fields. In other fields than
    /// [`DEFAULT_FIELDS`], the comma of a decimal number becomes a point; see [`Table::with_point`].
    ///
    /// # Errors
    /// The text of an id that is not an integer.
    pub(super) fn entry(&self, default_source: &str) -> Result<EntryLine, &str> {
        let field = |column: usize| self.table.field(column).trim();
        let id = self.id.map(field).map(|text| text.parse().map_err(|_| text)).transpose()?;
        let fields = self.fields.iter().map(|(name, column)| {
            let is_text = DEFAULT_FIELDS.split(' ').any(|field| field == name);
            let text = if is_text { field(*column).into() } else { self.table.with_point(*column) };
            (name.clone(), Value::from(text))
        });
        let mut payload: Map<String, Value> = fields.filter(|(_, text)| *text != "").collect();
        let mut take = |name| payload.remove(name)?.as_str().map(str::to_owned);
        let source = take("source").unwrap_or_else(|| default_source.to_owned());
        Ok(EntryLine { id, source, document: take("document"), payload })
    }
}
