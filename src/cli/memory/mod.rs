//! `engram memory`: builds, searches and edits key/value memories.

mod conditions;
mod edit;
mod encode;
pub(super) mod location;
mod push;
mod query;
mod re_encode;
mod remove;
mod retrieval;
mod search;
mod show;
mod sweep;

use engram_data::messages::counted;

use clap::{Args, Subcommand, ValueEnum};
use engram_memory::search::graph::GraphKind;
use engram_memory::{EncoderRecord, Memory};

use super::paths::InputFolder;
use super::{Outcome, output};
pub(super) use encode::{check_model, prompt_choice, records};
use location::ServerOptions;
pub(super) use location::{open_folder, value_reader, value_storage};
pub(super) use search::ShownHit;

/// Build, search and edit a key/value memory.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples on the embedded world (no download needed):
  engram data world --out world
  engram memory build --keys world/keys.npy --values world/values.npy \\
      --entries world/entries.jsonl --out memory
  engram memory info memory
  engram memory search memory --queries world/queries.npy -k 3
  engram memory search memory --queries world/queries.npy -k 10 --source kg --out ids.npy
  engram memory show memory --where source=kg,subject=octopus
  engram memory update memory --keys world/swap_keys.npy --values world/swap_values.npy \\
      --entries world/swap.jsonl
  engram memory delete memory --ids 3,5
  engram memory index memory
  engram memory search memory --queries world/queries.npy -k 10 --index graph --out graph.npy
  engram memory verify memory

Example with a text or image encoder (a folder or hf://owner/name) instead of keys:
  engram memory build --entries world/entries.jsonl --skip-unencodable \\
      --model hf://sentence-transformers/all-MiniLM-L6-v2 --out texts
  engram memory search texts --text \"what is the octopus made of\"
  engram memory search texts --text \"octopus\" --hybrid
  engram memory reencode texts --model hf://sentence-transformers/all-mpnet-base-v2

Keys, values and queries are .npy or safetensors files with one row per entry or query.
docs/explanation/memory.md describes the search and the models for keys,
docs/results/memory.md has the cost, and docs/reference/formats.md the files of a memory.")]
pub enum MemoryCommand {
    Build(edit::Build),
    Info(Info),
    Search(search::Search),
    Show(show::Show),
    /// Add entries to a memory
    #[command(after_help = "\
Entries without an id get new ids, after the largest id that the memory ever had. Without --keys, the
model of the memory's keys encodes the entries.

Examples:
  engram memory add memory --keys more.npy --values more_values.npy
  engram memory add memory --entries more.jsonl
  engram memory add memory --texts more.txt --model moved/minilm")]
    Add(edit::Change),
    /// Replace entries of a memory with new entries that have the same ids
    #[command(after_help = "\
Each line of --entries, and each row of --csv, needs an id. Without --keys, the model of the memory's
keys encodes the entries.

Examples:
  engram memory update memory --keys new.npy --values new_values.npy --entries new.jsonl
  engram memory update memory --csv new.csv")]
    Update(edit::Change),
    Delete(edit::Delete),
    Compact(edit::Compact),
    #[command(name = "reencode")]
    ReEncode(re_encode::ReEncode),
    Index(edit::Index),
    Verify(Verify),
    Push(push::Push),
    Pull(push::Pull),
    Sweep(sweep::Sweep),
    Remove(remove::Remove),
}

impl MemoryCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Build(command) => command.run(),
            Self::Info(command) => command.run(),
            Self::Search(command) => command.run(),
            Self::Show(command) => command.run(),
            Self::Add(change) => change.add(),
            Self::Update(change) => change.update(),
            Self::Delete(command) => command.run(),
            Self::Compact(command) => command.run(),
            Self::ReEncode(command) => command.run(),
            Self::Index(command) => command.run(),
            Self::Verify(command) => command.run(),
            Self::Push(command) => command.run(),
            Self::Pull(command) => command.run(),
            Self::Sweep(command) => command.run(),
            Self::Remove(command) => command.run(),
        }
    }
}

/// The kind of a graph.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum GraphKindName {
    /// A Vamana graph, built on all threads
    Vamana,
    /// An HNSW graph, built in one thread
    Hnsw,
}

impl From<GraphKindName> for GraphKind {
    fn from(kind: GraphKindName) -> Self {
        match kind {
            GraphKindName::Vamana => Self::Vamana,
            GraphKindName::Hnsw => Self::Hnsw,
        }
    }
}

/// Print the size, models and sources of a memory.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram memory info memory --json
  engram memory info 'postgres://ann@db.example/wiki?memory=birds'")]
pub struct Info {
    /// Folder or address of the memory
    folder: InputFolder,
    #[command(flatten)]
    server: ServerOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Info {
    fn run(self) -> anyhow::Result<Outcome> {
        let info = location::open(&self.folder, self.server, false)?.snapshot().info()?;
        output::print_report(self.json, &info, || {
            let mut text = format!(
                "{} in generation {}, {} on disk\n\
                 keys      {} x f32{}\n\
                 values    {}\n\
                 bytes     {} ({:.0} per entry)\n",
                counted(info.entries, "entry"),
                info.generation,
                counted(info.deleted, "deleted row"),
                info.width,
                if info.normalised { ", unit length" } else { "" },
                info.values.as_deref().unwrap_or("none"),
                info.bytes,
                info.bytes_per_row,
            );
            if !info.encoders.is_empty() {
                text.push_str("models\n");
            }
            for encoder in &info.encoders {
                let EncoderRecord { name, sha256, reads, width, prompt, .. } = encoder;
                let prompt = match prompt {
                    Some(prompt) => format!(", prompt {prompt:?}"),
                    None => String::new(),
                };
                let line = format!("  {width:>9}  {reads} by {name} (SHA-256 {sha256}){prompt}\n");
                text.push_str(&line);
            }
            text.push_str("sources\n");
            for (name, entries) in &info.sources {
                text.push_str(&format!("  {entries:>9}  {name}\n"));
            }
            text
        })?;
        Ok(Outcome::Done)
    }
}

/// Check every file of a memory against its checksum.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints every file that is damaged or missing, and ends with exit code 1 if there is one. Values that
were moved to an object store are read and checked, too.

Example:
  engram memory verify memory")]
pub struct Verify {
    /// Folder of the memory
    folder: InputFolder,
}

impl Verify {
    fn run(self) -> anyhow::Result<Outcome> {
        anyhow::ensure!(
            location::addresses(&self.folder).is_none(),
            "only the files of a folder have checksums here; PostgreSQL checks its own \
             (pg_amcheck, data checksums)"
        );
        let mut faults = Memory::verify(&*self.folder)?;
        let reads_values = value_reader().is_some();
        if faults.is_empty() && reads_values {
            faults = open_folder(&self.folder)?.generation().verify_external_values(true)?;
        }
        if !faults.is_empty() {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            output::print(&faults.join("\n"))?;
            return Ok(Outcome::CheckFailed);
        }
        let generation = Memory::open(&*self.folder)?.generation();
        output::print(&format!(
            "{}: generation {}, {}, {} bytes: all checksums match",
            self.folder.display(),
            generation.manifest().generation,
            counted(generation.len(), "entry"),
            generation.bytes()
        ))?;
        let unread = generation.external_values().into_iter().filter(|_| !reads_values);
        for (at, entries) in unread {
            let entries = counted(entries, "entry");
            output::note(&format!("not checked: the values of {entries} at {}", at.address));
        }
        Ok(Outcome::Done)
    }
}
