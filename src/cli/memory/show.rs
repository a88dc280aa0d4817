//! `engram memory show`: prints entries.

use anyhow::Context;
use clap::Args;
use engram_memory::Row;

use super::super::paths::InputFolder;
use super::super::{Outcome, output};
use super::conditions::{ENTRIES_AT_ONCE, WhereOptions};
use super::location::{self, ServerOptions};

/// Print entries of a memory as JSON lines.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram memory show memory 7 12
  engram memory show memory --where 'source=wit,year>=2000'
  engram memory show memory > entries.jsonl")]
pub struct Show {
    /// Folder or address of the memory
    folder: InputFolder,
    #[command(flatten)]
    server: ServerOptions,
    /// Ids of the entries; default: all entries
    #[arg(value_name = "ID", conflicts_with = "conditions")]
    ids: Vec<i64>,
    #[command(flatten)]
    conditions: WhereOptions,
}

impl Show {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let snapshot = location::open(&self.folder, self.server, false)?.snapshot();
        let snapshot = snapshot.as_ref();
        let rows = match self.conditions.rows(snapshot)? {
            Some(rows) => rows.into_iter().map(|(row, _)| row).collect(),
            None if self.ids.is_empty() => snapshot.rows()?,
            None => {
                let row = |(row, id): (Option<Row>, &i64)| {
                    let location = &snapshot.description().location;
                    row.with_context(|| format!("{location}: no entry has the id {id}"))
                };
                let rows = snapshot.find(&self.ids)?.into_iter().zip(&self.ids).map(row);
                rows.collect::<anyhow::Result<Vec<Row>>>()?
            }
        };
        for rows in rows.chunks(ENTRIES_AT_ONCE) {
            let entries = snapshot.entries(rows)?;
            let lines = entries.iter().map(serde_json::to_string);
            output::print(&lines.collect::<Result<Vec<String>, _>>()?.join("\n"))?;
        }
        Ok(Outcome::Done)
    }
}
