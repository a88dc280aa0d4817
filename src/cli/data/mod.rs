//! `engram data`: downloads weights, writes the embedded data sets, converts data sets.

mod audiovisual;
mod clips;
mod convert;
mod entries;
mod pictures;
mod speech;
mod voices;
mod world;

pub(super) use entries::with_sample_listing;
pub(super) use speech::wav;

use clap::{Args, Subcommand, ValueEnum};
use engram_data::hub::{HubSettings, WeightsLocation};
use engram_data::pictures::{gcompris, stamps};
use engram_data::world::phrases::phrase_world;
use engram_data::world::questions::Split;

use super::paths::NewFolder;
use super::{Outcome, bundled, output};

/// Download weights, write the embedded data sets, convert data sets to memory entries.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  engram data fetch hf://openai/whisper-tiny.en
  engram data world --out world --images 100 --split test
  engram data phrases --out phrases
  engram data bundled --out bundled
  engram data clips librispeech LibriSpeech/test-clean --out clips.jsonl")]
pub enum Data {
    Fetch(Fetch),
    Phrases(Phrases),
    Bundled(Bundled),
    World(world::World),
    Speech(speech::Speech),
    Audiovisual(audiovisual::Audiovisual),
    Clips(clips::Clips),
    /// Read pictures with names in many languages, spoken names and sounds: the stamps of Tux Paint,
    /// or your own.
    ///
    /// Writes entries of a memory, and manifests of the spoken names for each language and split.
    /// Files are referred to by their absolute paths, not copied. All pictures of a thing are in one
    /// split.
    #[command(after_help = pictures::STAMPS_HELP)]
    Stamps(pictures::PictureOptions),
    /// Read the pictures of GCompris: photographs with titles and paragraphs, and several photographs
    /// of each kind of thing.
    ///
    /// Writes entries of a memory. The pictures are copied out of their containers.
    #[command(after_help = pictures::GCOMPRIS_HELP)]
    Gcompris(pictures::PictureOptions),
    Voices(voices::Voices),
    /// Convert a published data set to memory entries (JSON lines)
    #[command(subcommand)]
    Entries(entries::Entries),
    /// Convert the weights of other tools to safetensors with the published names
    #[command(subcommand)]
    Convert(convert::Convert),
}

/// Download a model to the Hugging Face cache, for offline use.
#[derive(Debug, Args)]
#[command(after_help = "\
Uses the environment variables HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE.

Example:
  engram data fetch hf://sentence-transformers/all-MiniLM-L6-v2")]
pub struct Fetch {
    /// The model: `hf://owner/name[@revision]`
    location: String,
    /// File to download (repeatable)
    #[arg(long = "file", value_name = "NAME", default_values_t =
        ["config.json", "tokenizer.json", "model.safetensors"].map(String::from))]
    files: Vec<String>,
}

/// Write the small trained models that are part of the program, for example for `engram explore`.
///
/// There is a folder for each model: REVEAL, AVFormer with its speech and image models, and an encoder
/// of phrases.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram data bundled --out bundled
  engram explore bundled")]
pub struct Bundled {
    /// Output folder
    #[arg(long, value_name = "FOLDER")]
    out: NewFolder,
}

/// Write the embedded phrase pairs as CSV files in the format of the patent data.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram data phrases --out phrases
  engram train patent --recipe patent/world --run runs/p0
  engram score phrases/test.csv --model runs/p0 --out scores.csv
  engram eval phrase --ref phrases/test.csv --hyp scores.csv")]
pub struct Phrases {
    /// Output folder
    #[arg(long, value_name = "FOLDER")]
    out: NewFolder,
    /// Random seed of the set
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A split of the embedded world.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum SplitName {
    Train,
    Validation,
    Test,
}

impl From<SplitName> for Split {
    fn from(name: SplitName) -> Self {
        match name {
            SplitName::Train => Self::Train,
            SplitName::Validation => Self::Validation,
            SplitName::Test => Self::Test,
        }
    }
}

impl Data {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Fetch(fetch) => {
                let location = WeightsLocation::parse(&fetch.location)?;
                let settings = HubSettings::from_env()?;
                for file in &fetch.files {
                    output::print(&location.file(file, &settings)?.display().to_string())?;
                }
            }
            Self::Phrases(phrases) => {
                output::check_new_folder(&phrases.out)?;
                output::write_folder(&phrases.out, |staging| {
                    Ok(phrase_world(phrases.seed).write(staging)?)
                })?;
                for name in ["train.csv", "validation.csv", "test.csv", "ipc_class_titles.tsv"] {
                    output::print(&phrases.out.join(name).display().to_string())?;
                }
            }
            Self::Bundled(Bundled { out }) => {
                output::check_new_folder(&out)?;
                output::write_folder(&out, bundled::unpack_all)?;
                output::print(&out.display().to_string())?;
            }
            Self::World(world) => world.run()?,
            Self::Speech(speech) => return speech.run(),
            Self::Audiovisual(audiovisual) => return audiovisual.run(),
            Self::Clips(clips) => return clips.run(),
            Self::Stamps(options) => return options.run(stamps::read),
            Self::Gcompris(options) => return options.run(gcompris::read),
            Self::Voices(voices) => return voices.run(),
            Self::Entries(entries) => return entries.run(),
            Self::Convert(convert) => return convert.run(),
        }
        Ok(Outcome::Done)
    }
}
