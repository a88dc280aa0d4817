//! `engram data convert`: weights of other tools as safetensors.

use engram_data::messages::counted;

use clap::{Args, Subcommand};
use engram_durable::{copy_file, read_text, write_file};
use engram_infer::finished_run::{CHECKSUMS, CHECKSUMS_KEY};
use engram_models::ctranslate2::PublishedWhisper;
use engram_textfile::refuse_lfs_pointer_at;
use engram_train::write_checksums;
use serde_json::Value;

use super::super::paths::{InputFolder, NewFolder};
use super::super::{Outcome, output};

/// Convert the weights of other tools to safetensors with the published names.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  engram data convert ctranslate2 faster-whisper-tiny.en --out whisper-tiny.en")]
pub enum Convert {
    Ctranslate2(Ctranslate2),
}

/// Convert a CTranslate2 Whisper model, as used by faster-whisper.
///
/// Converts `model.bin` (f32, f16, bf16, int16 or int8) to `model.safetensors` with the names of
/// `transformers`. Floating-point weights are unchanged. `run.sha256` has the checksums of the new
/// files, which every command compares when it loads the model.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram data convert ctranslate2 faster-whisper-tiny.en --out whisper-tiny.en
  engram transcribe talk.flac --model whisper-tiny.en --out talk.srt")]
pub struct Ctranslate2 {
    /// Folder with `model.bin`, `config.json` and `tokenizer.json`
    folder: InputFolder,
    /// Output folder
    #[arg(long, value_name = "FOLDER")]
    out: NewFolder,
}

impl Convert {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let Self::Ctranslate2(convert) = self;
        convert.run()?;
        Ok(Outcome::Done)
    }
}

impl Ctranslate2 {
    fn run(&self) -> anyhow::Result<()> {
        let out = &self.out;
        output::check_new_folder(out)?;
        anyhow::ensure!(
            !self.folder.is_file(),
            "{}: is a file; give the folder with model.bin, config.json and tokenizer.json",
            self.folder.display()
        );
        for file in ["model.bin", "config.json", "tokenizer.json"] {
            refuse_lfs_pointer_at(&self.folder.join(file))?;
        }
        let model = PublishedWhisper::read_ctranslate2(&self.folder)?;
        output::write_folder(out, |staging| {
            model.save(staging)?;
            let tokenizer = "tokenizer.json";
            copy_file(&self.folder.join(tokenizer), &staging.join(tokenizer))?;
            let config = staging.join("config.json");
            let mut json: Value = serde_json::from_str(&read_text(&config)?)?;
            json[CHECKSUMS_KEY] = CHECKSUMS.into();
            write_file(&config, format!("{json:#}\n").as_bytes())?;
            Ok(write_checksums(staging)?)
        })?;
        output::print(&format!("{}: {}", out.display(), counted(model.tensors.len(), "tensor")))
    }
}
