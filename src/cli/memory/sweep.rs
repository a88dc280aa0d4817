//! `engram memory sweep`: removes unused values from an object store.

use clap::Args;

use super::super::Outcome;

/// Remove unused values from an object store.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs a program with the feature `objects`. Each push makes a generation, and so does each refresh
during training with `memory.values`. Without --keep, only objects that no generation uses are removed,
for example those of a push that was stopped. With --keep N, all but the N newest generations of each
memory are removed, too. A folder whose values were moved reads the generation of its last push, and so
does each copy of that folder, such as a backup: after its generation is removed, its values are gone.
Objects younger than a week stay; a later sweep removes them. Use --keep 1 only while nothing pushes or
trains.

Examples:
  engram memory sweep s3://bucket/birds
  engram memory sweep /mnt/values/birds --keep 2 --json")]
pub struct Sweep {
    /// Address of the object store: s3://…, gs://…, az://…, file://… or a folder
    #[arg(value_name = "URL")]
    address: String,
    /// Number of newest generations of each memory to keep [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Sweep {
    #[cfg(feature = "objects")]
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        use engram_data::messages::counted;
        use engram_memory_objects::{SweepSettings, Swept, sweep};

        let storage = super::location::object_storage(&self.address)?;
        let keep = self.keep.map(|keep| keep as usize);
        let settings = SweepSettings { keep, ..SweepSettings::default() };
        let swept = sweep(&storage, settings)?;
        super::output::print_report(self.json, &swept, || {
            let Swept { generations, shards, bytes } = swept;
            let generations = counted(generations, "generation");
            let objects = counted(shards, "object");
            format!("{}: removed {generations} and {objects}, {bytes} bytes", storage.location())
        })?;
        Ok(Outcome::Done)
    }

    #[cfg(not(feature = "objects"))]
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        // Otherwise, nothing reads these options without the feature.
        let _ = (self.address, self.keep, self.json);
        Err(super::location::without_objects())
    }
}
