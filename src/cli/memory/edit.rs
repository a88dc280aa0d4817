//! `engram memory build`, `add`, `update`, `delete`, `compact`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};
use engram_data::folder::{FolderFiles, SkippedFiles, files};
use engram_data::messages::counted;
use engram_eval::wer::read::TextFormat;
use engram_memory::rows::{
    DEFAULT_FIELDS, EntryColumn, EntryFile, EntryFormat, RowFiles, RowReader, with_location,
};
use engram_memory::search::graph::GraphSettings;
use engram_memory::{
    Batches, Description, MemoryError, MemoryFormat, Snapshot, Store, Transaction, ValueDtype,
    ValueFormat, Writer,
};
use engram_textfile::{Input, Table, shortened};
use indicatif::ProgressBar;

use super::super::paths::{InputFolder, InputPath, NewFolder};
use super::super::{Outcome, output};
use super::encode::{Encoding, NewRows};
use super::{GraphKindName, location};

/// The endings of the text files in a folder.
const TEXT_ENDINGS: [&str; 2] = ["txt", "md"];
/// Maximum number of characters of a list of columns in a note.
const SHOWN_CHARACTERS: usize = 200;

/// Options for the input files of keys, values and entries.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("entry_file").args(["entries", "texts", "csv"]))]
struct RowOptions {
    /// Keys: .npy or safetensors, [entries, width]
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["model", "images", "prompt", "skip_unencodable"])]
    keys: Option<InputPath>,
    /// Values: .npy or safetensors, [entries, tokens, width]. --model gives no values (in REVEAL,
    /// the value head computes them)
    #[arg(long, value_name = "FILE", requires = "keys", conflicts_with = "model")]
    values: Option<InputPath>,
    /// Entries: JSON lines with id, source, document, text and any other fields; without the id,
    /// entries are numbered
    #[arg(long, value_name = "FILE")]
    entries: Option<InputPath>,
    /// Entries: a file with a text on each line (blank lines are skipped), where the id is the line
    /// number and the source is the file name; or a folder of .txt and .md files, one entry each,
    /// where the document is the file's path in the folder
    #[arg(long, value_name = "PATH")]
    texts: Option<InputPath>,
    /// Entries: comma-separated values with a header
    #[arg(long, value_name = "FILE")]
    csv: Option<InputPath>,
    /// Columns of --csv to read, comma-separated: COLUMN, or FIELD=COLUMN if a field's column has
    /// another name (text=Body). Default: all columns with the name of a field
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', requires = "csv",
        conflicts_with_all = ["entries", "texts"], value_parser = EntryColumn::parse)]
    columns: Vec<EntryColumn>,
    #[command(flatten)]
    encoding: Encoding,
}

/// Opened rows, and their entry file for error messages.
struct OpenRows {
    source: NewRows,
    entries: Option<EntryFile>,
    /// The smallest id that an entry without an id may get.
    first_id: i64,
}

/// The text files in a folder and its subfolders. Hidden files are skipped.
fn text_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let is_text = |path: &Path| {
        let ending = path.extension().unwrap_or_default();
        TEXT_ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known))
    };
    let FolderFiles { files, skipped } = files(folder, &is_text)?;
    let folder = folder.display();
    ensure!(
        !files.is_empty(),
        "{folder}: has no .txt or .md file (skipped {skipped}); give a folder with text files, or \
         a file with a text on each line"
    );
    if skipped != SkippedFiles::default() {
        output::note(&format!("{folder}: skipped {skipped}"));
    }
    Ok(files)
}

/// Names the columns of a CSV that are not read by default, and those without a name that have
/// values.
fn note_unread_columns(path: &Path) -> anyhow::Result<()> {
    let mut table = Table::csv(Input::open(path)?)?;
    let is_read =
        |name: &String| DEFAULT_FIELDS.split(' ').any(|field| field.eq_ignore_ascii_case(name));
    let header = table.header();
    let mut nameless: Vec<usize> = (0..header.len()).filter(|i| header[*i].is_empty()).collect();
    let unread = header.iter().filter(|name| !name.is_empty() && !is_read(name));
    let mut unread: Vec<String> = unread.cloned().collect();
    // An error of a row is left to the reader of the entries.
    while !nameless.is_empty() && table.advance().unwrap_or(false) {
        nameless.retain(|column| {
            let is_blank = table.field(*column).trim().is_empty();
            if !is_blank {
                let what = "which has no name, but a value in line";
                unread.push(format!("column {}, {what} {}", column + 1, table.line()));
            }
            is_blank
        });
    }
    if !unread.is_empty() {
        let columns = shortened(&unread.join(", "), SHOWN_CHARACTERS);
        let path = path.display();
        output::note(&format!(
            "{path}: columns not read: {columns}; --columns reads those it names"
        ));
    }
    Ok(())
}

/// Returns an error if a file is JSON, but a table is wanted, or the reverse.
fn check_kind(path: &Path, wants_json: bool) -> anyhow::Result<()> {
    let first_byte = || Input::open(path).ok()?.first_byte().ok();
    // A pipe can be read only once.
    let Some(first_byte) = path.is_file().then(first_byte).flatten() else { return Ok(()) };
    let path = path.display();
    match (wants_json, first_byte) {
        (true, byte) if !matches!(byte, b'{' | b'[') => anyhow::bail!(
            "{path}: is not JSON lines, because it does not begin with {{; --csv reads a table with \
             a header, --texts a text on each line"
        ),
        (false, b'{') => anyhow::bail!("{path}: is JSON, not a table; --entries reads JSON lines"),
        _ => Ok(()),
    }
}

impl RowOptions {
    fn has_entries(&self) -> bool {
        self.entries.is_some() || self.texts.is_some() || self.csv.is_some()
    }

    /// The entry file; `None` without an option for entries.
    fn entry_file(&self) -> anyhow::Result<Option<EntryFile>> {
        let (path, format) = match (&self.entries, &self.texts, &self.csv) {
            (Some(path), _, _) => {
                check_kind(path, true)?;
                (path, EntryFormat::Json)
            }
            (None, Some(path), _) if path.is_dir() => {
                (path, EntryFormat::TextFiles(text_files(path)?))
            }
            (None, Some(path), _) => {
                let remedy = match TextFormat::of_path(path) {
                    TextFormat::Csv | TextFormat::Tsv => "--csv reads a table",
                    TextFormat::Jsonl => "--entries reads JSON lines",
                    _ => "",
                };
                ensure!(
                    remedy.is_empty(),
                    "{}: is not a text on each line; {remedy}",
                    path.display()
                );
                (path, EntryFormat::Texts)
            }
            (None, None, Some(path)) => {
                check_kind(path, false)?;
                if self.columns.is_empty() && path.is_file() {
                    note_unread_columns(path)?;
                }
                (path, EntryFormat::Csv(self.columns.clone()))
            }
            (None, None, None) => return Ok(None),
        };
        Ok(Some(EntryFile { path: path.to_path_buf(), format }))
    }

    /// Opens the files. Without `--keys` and `--model`, the model of the keys of `memory` encodes
    /// the entries.
    fn open(&self, first_id: i64, memory: Option<&Description>) -> anyhow::Result<OpenRows> {
        let entries = self.entry_file()?;
        let source = match (&self.keys, &entries) {
            (None, Some(file)) => self.encoding.open(file, first_id, memory)?,
            (None, None) => anyhow::bail!("give --keys, --entries, --texts or --csv"),
            (Some(keys), entries) => {
                let (values, entries) = (self.values.as_deref(), entries.as_ref());
                let files = RowFiles { keys, values, entries, first_id };
                NewRows::from_files(RowReader::open(files)?)
            }
        };
        Ok(OpenRows { source, entries, first_id })
    }

    /// Writes rows and shows progress.
    fn write<T>(
        &self,
        rows: OpenRows,
        write: impl FnOnce(usize, &mut Batches<'_>) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let OpenRows { source, entries, first_id } = rows;
        let rows = source.rows;
        let bar = output::progress_bar(rows, "entries");
        let mut batches = source.batches.inspect(|batch| {
            bar.inc(batch.as_ref().map_or(0, |batch| batch.entries.len() as u64));
        });
        let result = write(rows, &mut batches);
        bar.finish_and_clear();
        let (keys, values) = (self.keys.as_deref(), self.values.as_deref());
        result.map_err(|error| {
            with_location(error, keys, values, entries.as_ref().map(|file| (file, first_id)))
        })
    }

    /// Opens a memory and the input files, and checks that they fit.
    fn open_for(
        &self,
        folder: &Path,
        is_same_model: bool,
        first_id: impl FnOnce(&Description) -> i64,
    ) -> anyhow::Result<(Box<dyn Transaction>, OpenRows)> {
        let transaction = location::open_folder(folder)?.begin()?;
        let base = transaction.base();
        let memory = base.description();
        let rows = self.open(first_id(memory), Some(memory))?;
        rows.source.check_model(memory, self.keys.as_deref(), is_same_model)?;
        self.check_shapes(memory, &rows.source)?;
        Ok((transaction, rows))
    }

    /// Returns an error if the new rows do not have the shapes of the memory.
    fn check_shapes(&self, memory: &Description, source: &NewRows) -> anyhow::Result<()> {
        let describe = |path: &Option<InputPath>, what: &str| match path {
            Some(path) => format!("{}: {what}", path.display()),
            None => what.to_owned(),
        };
        let (expected, found) = (memory.width, source.width);
        if found != expected {
            return Err(
                MemoryError::Width { what: describe(&self.keys, "keys"), expected, found }.into()
            );
        }
        let expected = memory.values.map(|format| (format.tokens, format.width));
        match (expected, source.value_shape) {
            (None, Some(_)) => anyhow::bail!(
                "{}, but the memory has none; leave them out, or rebuild the memory with values",
                describe(&self.values, "has values")
            ),
            (Some((tokens, width)), None) => anyhow::bail!(
                "{}: its entries have values of {tokens} x {width}; give --values",
                memory.location
            ),
            (Some(expected @ (tokens, width)), Some(found)) if found != expected => anyhow::bail!(
                "{} are {} x {}, but the memory's are {tokens} x {width}; use the same model",
                describe(&self.values, "values"),
                found.0,
                found.1
            ),
            _ => Ok(()),
        }
    }
}

/// Build a memory from keys, values and entries, or from texts and images with a model.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("key_source").args(["keys", "model"]).required(true))]
#[command(after_help = "\
Examples:
  engram memory build --keys keys.npy --out memory
  engram memory build --keys keys.npy --values values.npy --value-type int8 \\
      --entries entries.jsonl --out memory
  engram memory build --entries entries.jsonl --model hf://sentence-transformers/all-MiniLM-L6-v2 \\
      --image-model mobilenet --images photographs --out memory
  engram memory build --texts notes.txt --model hf://sentence-transformers/all-MiniLM-L6-v2 \\
      --out memory
  engram memory build --texts notes --model minilm --out memory
  engram memory build --entries photographs.jsonl --model runs/clip --out memory
  engram memory build --csv facts.csv --columns id=ID,text=Body,source=Topic \\
      --model hf://sentence-transformers/all-MiniLM-L6-v2 --out memory

--model is a folder or a Hugging Face model (BERT, RoBERTa, XLM-R, DistilBERT, MPNet, DeBERTa,
ModernBERT, CLIP, SigLIP, DINOv2, Jina, Nomic, Stella, MobileNetV2 and others), or the folder of a
run: of `engram train clip` for images, or of `engram train similarity` for texts. It computes keys
only.
docs/explanation/memory.md lists the models for texts and for images.
`engram memory reencode` encodes the entries of an existing memory with another model.

Example of a line in entries.jsonl:
  {\"id\": 7, \"source\": \"wit\", \"document\": \"Q64\", \"text\": \"…\"}")]
pub struct Build {
    #[command(flatten)]
    rows: RowOptions,
    /// Do not scale keys to unit length; scores are then dot products instead of cosines
    #[arg(long)]
    no_normalize: bool,
    /// Number type of the values
    #[arg(long, value_parser = value_types(), default_value = "f16")]
    value_type: ValueDtype,
    /// Output folder
    #[arg(long, value_name = "DIR")]
    out: NewFolder,
}

/// Parses the name of a number type.
fn value_types() -> impl TypedValueParser<Value = ValueDtype> {
    let choice = |dtype: ValueDtype| PossibleValue::new(dtype.name()).help(dtype.description());
    PossibleValuesParser::new(ValueDtype::ALL.map(choice)).try_map(|name| name.parse())
}

impl Build {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let rows = self.rows.open(0, None)?;
        let source = &rows.source;
        let format = MemoryFormat {
            width: source.width,
            normalised: !self.no_normalize,
            values: source.value_shape.map(|(tokens, width)| ValueFormat {
                tokens,
                width,
                dtype: self.value_type,
            }),
        };
        let encoders = source.encoders.clone();
        let create = |rows, batches: &mut Batches<'_>| {
            Writer::create_encoded(&*self.out, format, encoders, rows, batches)
        };
        print_state(self.rows.write(rows, create)?.generation().as_ref())
    }
}

/// Entries to add to a memory, or to replace in it.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("new_rows").args(["keys", "entries", "texts", "csv"])
    .required(true).multiple(true))]
pub struct Change {
    /// Folder of the memory
    folder: InputFolder,
    #[command(flatten)]
    rows: RowOptions,
    /// The new keys come from the model of the memory's keys, although --keys or the memory does not
    /// name it. Without this option, keys of a known and an unknown model are not mixed
    #[arg(long)]
    same_model: bool,
}

impl Change {
    pub(super) fn add(self) -> anyhow::Result<Outcome> {
        let next_id = |memory: &Description| memory.next_id;
        let (mut transaction, rows) = self.rows.open_for(&self.folder, self.same_model, next_id)?;
        self.rows.write(rows, |rows, batches| transaction.add(rows, batches))?;
        print_state(commit(transaction)?.as_ref())
    }

    pub(super) fn update(self) -> anyhow::Result<Outcome> {
        if !self.rows.has_entries() {
            anyhow::bail!(
                "give --entries, --texts or --csv with the ids of the entries to replace"
            );
        }
        // Numbers instead of ids would replace entries at random.
        let (mut transaction, rows) = self.rows.open_for(&self.folder, self.same_model, |_| -1)?;
        self.rows.write(rows, |rows, batches| transaction.update(rows, batches))?;
        print_state(commit(transaction)?.as_ref())
    }
}

/// Delete entries of a memory by id.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram memory delete memory --ids 3,17")]
pub struct Delete {
    /// Folder of the memory
    folder: InputFolder,
    /// Comma-separated ids
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    ids: Vec<i64>,
}

impl Delete {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let mut transaction = location::open_folder(&self.folder)?.begin()?;
        transaction.delete(&self.ids)?;
        print_state(commit(transaction)?.as_ref())
    }
}

/// Rewrite a memory without its deleted entries.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram memory compact memory")]
pub struct Compact {
    /// Folder of the memory
    folder: InputFolder,
}

impl Compact {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let mut writer = location::open_writer(&self.folder)?;
        let bar = output::progress_bar(writer.generation().len(), "entries");
        let has_graph = writer.generation().description().has_graph;
        writer.compact(|rows| show_progress(&bar, rows, has_graph))?;
        bar.finish_and_clear();
        print_state(writer.generation().as_ref())
    }
}

/// Build graphs over a memory's keys, for `engram memory search --index graph`.
#[derive(Debug, Args)]
#[command(after_help = "\
Segments that have a graph of the same settings keep it. Later changes keep the graph: new entries
are merged into larger segments, and a segment of 16,384 rows or more gets a graph, which takes
seconds. Until then they are searched exactly.
docs/results/memory.md has the cost and recall of graphs.

Example:
  engram memory index memory --connections 32 --ef-construction 400")]
pub struct Index {
    /// Folder of the memory
    folder: InputFolder,
    /// Kind of the graphs
    #[arg(long, value_enum, default_value = "vamana")]
    kind: GraphKindName,
    /// Half the maximum number of neighbours of a key (M). Default: 16 for vamana, 24 for hnsw
    #[arg(long, value_name = "N")]
    connections: Option<usize>,
    /// Number of candidates during graph construction. Default: 100 for vamana, 200 for hnsw
    #[arg(long, value_name = "N")]
    ef_construction: Option<usize>,
}

impl Index {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let mut writer = location::open_writer(&self.folder)?;
        let defaults = GraphSettings::of(self.kind.into());
        let settings = GraphSettings {
            connections: self.connections.unwrap_or(defaults.connections),
            ef_construction: self.ef_construction.unwrap_or(defaults.ef_construction),
            ..defaults
        };
        let segments = writer.generation().manifest().segments.iter();
        let rows = segments.filter(|segment| settings.is_missing(segment)).map(|s| s.rows).sum();
        let bar = output::progress_bar(rows, "keys");
        writer.index(settings, || bar.inc(1))?;
        bar.finish_and_clear();
        print_state(writer.generation().as_ref())
    }
}

/// Shows progress by `rows` encoded rows. After the last row, a memory with a graph builds a new
/// graph.
pub(super) fn show_progress(bar: &ProgressBar, rows: usize, has_graph: bool) {
    bar.inc(rows as u64);
    if has_graph && Some(bar.position()) == bar.length() {
        bar.set_message("building the graph");
        bar.enable_steady_tick(Duration::from_secs(1));
    }
}

/// Commits a change. A memory with a graph may then build another graph, which takes seconds per
/// 100,000 entries.
pub(super) fn commit(transaction: Box<dyn Transaction>) -> anyhow::Result<Arc<dyn Snapshot>> {
    let bar = output::elapsed_time("writing the change");
    let snapshot = transaction.commit();
    bar.finish_and_clear();
    Ok(snapshot?)
}

/// Prints the generation of a changed memory and its numbers of entries and deleted rows.
pub(super) fn print_state(snapshot: &dyn Snapshot) -> anyhow::Result<Outcome> {
    let Description { location, generation, entries, deleted, .. } = snapshot.description();
    output::print(&format!(
        "{location}: generation {generation}, {}, {}",
        counted(*entries, "entry"),
        counted(*deleted, "deleted row")
    ))
    .with_context(|| {
        format!("{location}: the change is made: generation {generation} is current")
    })?;
    Ok(Outcome::Done)
}
