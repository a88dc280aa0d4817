//! Checks the options before training.

use std::fs::File;

use anyhow::Context;
use engram_data::hub::WeightsLocation;
use engram_durable::{create_folder, open_lock};
use engram_infer::asr::AsrModel;
use engram_models::compute::Compute;

use super::Reproduce;
use crate::cli::bundled;

impl Reproduce {
    /// Whether any claim of a study is requested.
    pub(super) fn includes_study(&self, study: &str) -> bool {
        let is_of_study = |id: &String| id.split('.').next() == Some(study);
        if self.claims.is_empty() {
            self.study.is_empty() || self.study.iter().any(|name| name == study)
        } else {
            self.claims.iter().any(is_of_study)
        }
    }

    /// Whether a claim is requested.
    pub(super) fn includes_claim(&self, id: &str) -> bool {
        self.claims.is_empty() || self.claims.iter().any(|claim| claim == id)
    }

    /// Checks all options.
    pub(super) fn check_inputs(&self) -> anyhow::Result<()> {
        self.check_claims()?;
        if let Some(data) = self.data.as_ref().filter(|data| !data.is_dir()) {
            anyhow::bail!("{}: is not a folder; give another --data (ENGRAM_DATA)", data.display());
        }
        // A missing hub model is only reported in a note, later.
        if let WeightsLocation::Folder(folder) = WeightsLocation::parse(&self.encoder)?
            && !folder.join("model.safetensors").is_file()
        {
            anyhow::bail!(
                "{}: has no model.safetensors; give another --encoder (ENGRAM_MINILM)",
                folder.display()
            );
        }
        if let Some(whisper) = &self.whisper {
            let is_whisper =
                matches!(AsrModel::open(whisper, &Compute::cpu())?, AsrModel::Whisper(_));
            anyhow::ensure!(
                is_whisper,
                "{whisper}: is not a Whisper model; give another --whisper"
            );
        }
        self.export_bundled.as_deref().map_or(Ok(()), bundled::check_folder)
    }

    /// Checks that all requested claims exist.
    fn check_claims(&self) -> anyhow::Result<()> {
        let known = [self.grid_claims()?, self.command_claim_ids()?].concat();
        if let Some(id) = self.claims.iter().find(|id| !known.contains(id)) {
            anyhow::bail!(
                "--claim {id}: scale {} has no such claim with these options; its claims are {}",
                self.scale.name(),
                known.join(", ")
            );
        }
        Ok(())
    }

    /// Locks the output folder until the file is dropped. Refuses folders with other files, because
    /// parts of the folder are replaced.
    pub(super) fn lock_folder(&self) -> anyhow::Result<File> {
        let out = self.out.display();
        let marker = self.out.join(".engram-reproduce");
        let folder = std::fs::read_dir(&self.out);
        if folder.is_ok_and(|mut entries| entries.next().is_some()) && !marker.exists() {
            anyhow::bail!(
                "{out}: contains files that `engram reproduce` did not write; give another --out"
            );
        }
        create_folder(&self.out)
            .with_context(|| format!("{out}: could not be created; give another --out"))?;
        let file = open_lock(&marker);
        let file = file.with_context(|| {
            format!("{}: could not be created; give another --out", marker.display())
        })?;
        file.try_lock().with_context(|| {
            format!(
                "{out}: another `engram reproduce` is using this folder; wait for it, or give \
                 another --out"
            )
        })?;
        Ok(file)
    }
}
