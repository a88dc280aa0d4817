//! Checks the options and their files before training.

use engram_models::compute::Compute;
use std::fs::File;
use std::path::PathBuf;

use anyhow::Context;
use engram_data::hub::WeightsLocation;
use engram_durable::{create_folder, open_lock};
use engram_infer::asr::AsrModel;

use super::study::{ALL, StudyReport};
use super::{Reproduce, bundled};

/// A folder of real data below `--data`.
pub(super) struct RealData {
    pub(super) folder: &'static str,
    /// The required files.
    pub(super) files: &'static [&'static str],
}

impl Reproduce {
    /// Whether any claim of a study is requested.
    pub(super) fn includes_study(&self, study: &dyn StudyReport) -> bool {
        let is_of_study = |id: &String| id.split('.').next() == Some(study.name());
        if self.claims.is_empty() {
            self.study.is_empty() || self.study.iter().any(|name| name == study.name())
        } else {
            self.claims.iter().any(is_of_study)
        }
    }

    /// Whether a claim is requested.
    pub(super) fn includes_claim(&self, id: &str) -> bool {
        self.claims.is_empty() || self.claims.iter().any(|claim| claim == id)
    }

    /// The folder below `--data`. `None` without `--data`, or if a required file is missing; then
    /// adds a note.
    pub(super) fn real_data(&self, data: RealData, notes: &mut Vec<String>) -> Option<PathBuf> {
        let folder = self.data.as_ref()?.join(data.folder);
        match data.files.iter().map(|file| folder.join(file)).find(|file| !file.is_file()) {
            None => Some(folder),
            Some(missing) => {
                let missing = missing.display();
                notes.push(format!("{missing}: missing, so its claims on real data are skipped."));
                None
            }
        }
    }

    /// Checks all inputs, before hours of training.
    pub(super) fn check_inputs(&self) -> anyhow::Result<()> {
        self.check_claims()?;
        if let Some(data) = self.data.as_ref().filter(|data| !data.is_dir()) {
            anyhow::bail!("{}: is not a folder; give another --data (ENGRAM_DATA)", data.display());
        }
        for study in ALL.iter().filter(|study| self.includes_study(**study)) {
            study.check_data(self)?;
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
        if self.claims.is_empty() {
            return Ok(());
        }
        let ids = ALL.iter().map(|study| study.claim_ids(self));
        let known_ids = ids.collect::<anyhow::Result<Vec<_>>>()?.concat();
        if let Some(id) = self.claims.iter().find(|id| !known_ids.contains(id)) {
            let scale = self.scale_name();
            anyhow::bail!(
                "--claim {id}: scale {scale} has no such claim with these options; its claims are {}",
                known_ids.join(", ")
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
