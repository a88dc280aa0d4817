//! The study of changed and deleted facts: its claims are in `commands.toml`.

use std::path::PathBuf;

use super::{Reproduce, Results, Scale};
use crate::cli::bundled::{FOLDER, TRIPLETS};

/// The study's name, and the beginning of the ids of its claims.
pub(super) const FORGET: &str = "forget";
/// A wording of prompts that training never shows.
pub(super) const WORDING: &str = "Quiz night! {} Tell me, please.";
const WITHOUT_AUDIT: &str = "Deleted facts: the audit is not tested without --data (ENGRAM_DATA), a \
    folder with the databases of the audit in lmlm-audit/.";

impl Reproduce {
    /// The run that reads facts: the bundled one at scale smoke.
    pub(super) fn fact_reader(&self) -> PathBuf {
        match self.scale {
            Scale::Smoke => self.out.join(FOLDER).join(TRIPLETS.name()),
            Scale::Laptop | Scale::Full => self.out.join("triplets"),
        }
    }

    /// Unpacks or trains the run that reads facts.
    pub(super) fn prepare_fact_reader(&self, results: &mut Results) -> anyhow::Result<()> {
        if self.data.is_none() && self.claims.is_empty() {
            results.notes.push(WITHOUT_AUDIT.to_owned());
        }
        if self.scale == Scale::Smoke {
            TRIPLETS.unpack(&self.out.join(FOLDER))?;
            return Ok(());
        }
        let run = self.fact_reader();
        self.train("reveal/triplets", Vec::new(), &run, results)?;
        self.compare_with_bundled(&TRIPLETS, &run, results)
    }
}
