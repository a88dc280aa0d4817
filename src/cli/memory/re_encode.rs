//! `engram memory reencode`: encodes the entries of a memory with another model.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use engram_data::messages::counted;
use engram_memory::{Batch, Entry, MemoryError, MemoryFormat, Row, Snapshot, Store, Writer};

use super::super::paths::{InputFolder, ModelName, NewFolder};
use super::super::{Outcome, output};
use super::edit::{commit, print_state, show_progress};
use super::encode::{EncoderOptions, EntryEncoder, names_with_hashes, print_skipped, records};
use super::location;

/// Encode the entries of a memory again with another model.
#[derive(Debug, Args)]
#[command(after_help = "\
Writes a new generation with new keys, which may have another width. If the command is stopped, the
memory is unchanged. Graphs are removed: build them again with `engram memory index`. With --out, the
memory stays as it is, and a new memory is written.

Examples:
  engram memory reencode memory --model hf://sentence-transformers/all-mpnet-base-v2
  engram memory reencode memory --model clip --images photographs --out clip-memory
  engram memory reencode memory --model minilm --keep-values")]
pub struct ReEncode {
    /// Folder of the memory
    folder: InputFolder,
    /// Model that encodes the entries' texts and images as keys: a folder, or hf://owner/name
    #[arg(long, value_name = "MODEL")]
    model: ModelName,
    #[command(flatten)]
    options: EncoderOptions,
    /// Keep the values, which the model does not compute. Without this option, a memory with values
    /// is refused, because its values may belong to the old model
    #[arg(long)]
    keep_values: bool,
    /// Write a new memory to this folder instead
    #[arg(long, value_name = "DIR")]
    out: Option<NewFolder>,
}

impl ReEncode {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        match &self.out {
            None => print_state(self.rewrite()?.as_ref()),
            Some(out) => print_state(self.write_new(out)?.generation().as_ref()),
        }
    }

    /// Writes a new generation of the memory.
    fn rewrite(&self) -> anyhow::Result<Arc<dyn Snapshot>> {
        anyhow::ensure!(
            !self.options.skip_unencodable,
            "--skip-unencodable would delete entries of {}; write a new memory with --out",
            self.folder.display()
        );
        let mut transaction = location::open_folder(&self.folder)?.begin()?;
        let base = transaction.base();
        let (source, rows) = self.open(base.as_ref())?;
        let bar = output::progress_bar(rows.len(), "entries");
        let (encoders, width) = (records(&source.encoder), source.encoder.width());
        let result = transaction.re_encode(encoders, width, &mut |batch| {
            let mut keys = Vec::with_capacity(batch.entries.len() * width);
            for entries in batch.entries.chunks(self.options.batch()) {
                keys.extend(self.keys(&source, entries)?);
                show_progress(&bar, entries.len(), base.description().has_graph);
            }
            Ok(Batch { keys, ..batch })
        });
        bar.finish_and_clear();
        result?;
        commit(transaction)
    }

    /// Writes a new memory.
    fn write_new(&self, out: &Path) -> anyhow::Result<Writer> {
        let snapshot = location::open_folder(&self.folder)?.snapshot();
        let (source, rows) = self.open(snapshot.as_ref())?;
        let format = MemoryFormat {
            width: source.encoder.width(),
            normalised: snapshot.description().normalised,
            values: snapshot.description().values,
        };
        let bar = output::progress_bar(rows.len(), "entries");
        let batches = rows.chunks(self.options.batch()).map(|rows| {
            let entries = snapshot.entries(rows)?;
            let (keys, values) = (self.keys(&source, &entries)?, snapshot.values(rows)?);
            bar.inc(rows.len() as u64);
            Ok(Batch { entries, keys, values })
        });
        let writer =
            Writer::create_encoded(out, format, records(&source.encoder), rows.len(), batches);
        bar.finish_and_clear();
        Ok(writer?)
    }

    /// Opens the model, and checks all entries before the first is encoded. Returns the rows that
    /// the model can encode.
    fn open(&self, snapshot: &dyn Snapshot) -> anyhow::Result<(EntryEncoder, Vec<Row>)> {
        let folder = self.folder.display();
        let mut source = self.options.open(Some(&self.model), None, Path::new(""))?;
        if let Some(values) = snapshot.description().values.filter(|_| !self.keep_values) {
            anyhow::bail!(
                "{folder}: its entries have values ({values}), which {} does not compute; keep the \
                 old values with --keep-values, or build a memory with new keys and values",
                names_with_hashes(&records(&source.encoder))
            );
        }
        let all_rows = snapshot.rows()?;
        let mut rows = Vec::with_capacity(all_rows.len());
        for row in &all_rows {
            let entry = snapshot.entry(*row)?;
            if source.check(&entry, &|reason, remedy| self.error(reason, remedy))? {
                rows.push(*row);
            }
        }
        print_skipped(&self.folder, all_rows.len() - rows.len());
        anyhow::ensure!(
            !rows.is_empty(),
            "{folder}: has no entry to encode ({}); add entries with `engram memory add`",
            counted(all_rows.len(), "entry")
        );
        Ok((source, rows))
    }

    /// Encodes entries, which all have been checked.
    fn keys(&self, source: &EntryEncoder, entries: &[Entry]) -> Result<Vec<f32>, MemoryError> {
        let mut contents = Vec::with_capacity(entries.len());
        for entry in entries {
            let content = source.content(entry, &|reason, remedy| self.error(reason, remedy))?;
            let location = format!("{}: the entry {}", self.folder.display(), entry.id);
            contents.extend(content.map(|content| (location, content)));
        }
        source.encode(&contents)
    }

    /// An error about an entry.
    fn error(&self, reason: String, remedy: &'static str) -> MemoryError {
        MemoryError::Malformed { file: self.folder.to_path_buf(), line: None, reason, remedy }
    }
}
