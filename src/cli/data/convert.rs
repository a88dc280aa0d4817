//! `engram data convert`.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use engram_models::ctranslate2::PublishedWhisper;

use super::super::{Outcome, output};

/// Write weights of other tools under their published names.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  engram data convert ctranslate2 faster-whisper-tiny.en --out whisper-tiny.en")]
pub enum Convert {
    Ctranslate2(Ctranslate2),
}

/// A Whisper model of CTranslate2, as faster-whisper uses it.
///
/// `model.bin` (f32, f16, bf16, int16 or int8) becomes `model.safetensors` with the names of
/// `transformers`; numbers of floats stay as they are.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram data convert ctranslate2 faster-whisper-tiny.en --out whisper-tiny.en
  engram predict --recogniser whisper-tiny.en --input talk.flac --output talk.srt")]
pub struct Ctranslate2 {
    /// The folder with `model.bin`, `config.json` and `tokenizer.json`
    folder: PathBuf,
    /// The folder to make
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
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
        if fs::read_dir(out).map_or_else(|_| out.exists(), |mut files| files.next().is_some()) {
            anyhow::bail!("{}: is there already; give a new folder for --out", out.display());
        }
        let model = PublishedWhisper::read_ctranslate2(&self.folder)?;
        output::write_folder(out, |whole| {
            model.save(whole)?;
            fs::copy(self.folder.join("tokenizer.json"), whole.join("tokenizer.json"))?;
            Ok(())
        })?;
        output::print(&format!("{}: {} tensors", out.display(), model.tensors().len()))
    }
}
