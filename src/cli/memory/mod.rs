//! `engram memory`.

mod ask;
mod edit;
mod encoded;
mod search;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use engram_memory::Memory;

use super::{Outcome, output};
pub(super) use encoded::{check_model, prompt_choice};
pub(super) use search::ShownHit;

/// Build, search and edit a key/value memory.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples, on the embedded world, which needs no download:
  engram data world world
  engram memory build --keys world/keys.npy --values world/values.npy \\
      --entries world/entries.jsonl --out memory
  engram memory info memory
  engram memory search memory --queries world/queries.npy -k 3
  engram memory search memory --queries world/queries.npy -k 10 --source kg --output ids.npy
  engram memory update memory --keys world/swap_keys.npy --values world/swap_values.npy \\
      --entries world/swap.jsonl
  engram memory delete memory --ids 3,5
  engram memory index memory
  engram memory search memory --queries world/queries.npy -k 10 --index hnsw --output ids.npy
  engram memory verify memory

With a model of texts or pictures (a folder, or an address on the hub), from raw entries:
  engram memory build --entries world/entries.jsonl --only-encodable \\
      --model hf://sentence-transformers/all-MiniLM-L6-v2 --out texts
  engram memory search texts --text \"what is the octopus made of\"

Keys, values and queries are .npy or safetensors files, a row for each entry. docs/memory.md has the
options, what they cost, and the format of a memory's folder.")]
pub enum MemoryCommand {
    Build(edit::Build),
    Info(Info),
    Search(search::Search),
    Add(edit::Add),
    Update(edit::Update),
    Delete(edit::Delete),
    Compact(edit::Compact),
    Index(edit::Index),
    Verify(Verify),
}

impl MemoryCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Build(command) => command.run(),
            Self::Info(command) => command.run(),
            Self::Search(command) => command.run(),
            Self::Add(command) => command.run(),
            Self::Update(command) => command.run(),
            Self::Delete(command) => command.run(),
            Self::Compact(command) => command.run(),
            Self::Index(command) => command.run(),
            Self::Verify(command) => command.run(),
        }
    }
}

/// Tell what a memory holds.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram memory info memory --json")]
pub struct Info {
    /// The memory's folder
    folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Info {
    fn run(self) -> anyhow::Result<Outcome> {
        let info = Memory::open(&self.folder)?.generation().info()?;
        output::print_report(self.json, &info, || {
            let mut text = format!(
                "{} entries in generation {}, {} deleted rows on the disk\n\
                 keys      {} x f32{}\n\
                 values    {}\n\
                 bytes     {} ({:.0} an entry)\n",
                info.entries,
                info.generation,
                info.deleted,
                info.width,
                if info.normalised { ", unit length" } else { "" },
                info.values.as_deref().unwrap_or("none"),
                info.bytes,
                info.bytes_per_entry,
            );
            if !info.encoders.is_empty() {
                text.push_str("models\n");
            }
            for encoder in &info.encoders {
                let engram_memory::EncoderRecord { name, sha256, reads, width, prompt } = encoder;
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

/// Read every file of a memory against its checksums.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 2 where a file is broken; all broken files are named.
Example:
  engram memory verify memory")]
pub struct Verify {
    /// The memory's folder
    folder: PathBuf,
}

impl Verify {
    fn run(self) -> anyhow::Result<Outcome> {
        let faults = Memory::verify(&self.folder)?;
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        if !faults.is_empty() {
            anyhow::bail!("{}", faults.join("\n       "));
        }
        let generation = Memory::open(&self.folder)?.generation();
        output::print(&format!(
            "{}: generation {}, {} entries, {} bytes: all checksums are right",
            self.folder.display(),
            generation.manifest().generation,
            generation.len(),
            generation.bytes()
        ))?;
        Ok(Outcome::Done)
    }
}
