//! `engram data audiovisual`: spoken names from the embedded world in noise, with images, as files.

use engram_data::messages::counted;
use std::collections::BTreeSet;
use std::io::Cursor;
use std::ops::Range;

use anyhow::Context;
use clap::Args;
use engram_data::speech::frames::Frame;
use engram_data::speech::manifest::{Clip, manifest};
use engram_data::world::questions::Split;
use engram_infer::asr::sample_evenly;
use engram_train::studies::avformer::corpus::{ClipWithFrames, Corpus};
use engram_train::studies::avformer::settings::{AvformerData, AvformerFeed};
use image::{ImageFormat, RgbImage};
use rayon::prelude::*;

use super::super::paths::NewFolder;
use super::super::{Outcome, output};
use super::SplitName;
use super::speech::wav;

/// Number of clips in a batch. Their audio is in memory at once.
const BATCH: usize = 256;

/// Write audio-visual clips: names spoken in noise, with images of the named things, and a
/// manifest.
///
/// The clips are the same as in `engram train avformer` with the same names, seed and noise. The
/// voices and the noise of the test split do not occur in training. The same options give the same
/// bytes.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram data audiovisual --out seen
  engram transcribe seen/clips.jsonl --model whisper --adapters runs/a1 --out hyp.tsv
  engram eval wer --ref seen/ref.tsv --hyp hyp.tsv --normalizer whisper-en")]
pub struct Audiovisual {
    /// Output folder for clips.jsonl, ref.tsv, audio files and images
    #[arg(long, value_name = "FOLDER")]
    out: NewFolder,
    /// Split of the voices and the noise
    #[arg(long, default_value = "test")]
    split: SplitName,
    /// Number of clips
    #[arg(long, value_name = "N", default_value_t = 552,
        value_parser = clap::value_parser!(u32).range(1..=20_000))]
    count: u32,
    /// Number of different names
    #[arg(long, value_name = "N", default_value_t = 138)]
    names: usize,
    /// Random seed of voices, noise and views, as data.world_seed in a recipe
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Lowest and highest signal-to-noise ratio in dB
    #[arg(long, value_name = "DB", num_args = 2, allow_negative_numbers = true,
        default_values_t = [-16.0f32, -8.0])]
    snr_db: Vec<f32>,
    /// Write speech without noise
    #[arg(long)]
    clean: bool,
    /// Number of images per clip
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(0..=8))]
    frames: u8,
}

impl Audiovisual {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        output::check_new_folder(&self.out)?;
        let &[low, high] = self.snr_db.as_slice() else {
            anyhow::bail!("--snr-db needs two values")
        };
        let count = self.count as usize;
        let data = AvformerData {
            names: self.names,
            world_seed: self.seed,
            sweep_clips: 0,
            clips: count,
            validation_clips: count,
            test_clips: count,
            test_snr_db: [low, high],
            ..AvformerData::default()
        };
        if let Some((key, reason)) = data.first_invalid_key() {
            anyhow::bail!("--{}: {reason}", key.trim_start_matches("test_").replace('_', "-"));
        }
        let corpus = Corpus::load(&data, 1, true)?;
        let generate = |numbers: Range<usize>| -> anyhow::Result<Vec<ClipWithFrames>> {
            Ok(match Split::from(self.split) {
                Split::Train => {
                    let clean = if self.clean { 1.0 } else { 0.0 };
                    let feed =
                        AvformerFeed { snr_db: [low, high], clean, ..AvformerFeed::default() };
                    let clips = numbers.into_par_iter().map(|i| corpus.training(i, &feed));
                    clips.collect::<Result<_, _>>()?
                }
                split => corpus.world_clips(split, self.clean, numbers),
            })
        };
        output::write_folder(&self.out, |staging| {
            let (mut clips, mut references, mut image_indices) =
                (Vec::new(), String::new(), BTreeSet::new());
            let image_file = |index: usize| staging.join(format!("frames/{index:05}.png"));
            output::create_folder(&staging.join("frames"))?;
            for first in (0..count).step_by(BATCH) {
                for clip in generate(first..count.min(first + BATCH))? {
                    let audio = staging.join(format!("{}.wav", clip.id));
                    output::write_new(&audio, &wav(&clip.samples)?)?;
                    references += &format!("{}\t{}\n", clip.id, clip.text);
                    let indices = sample_evenly(&clip.frames, usize::from(self.frames));
                    let frames = indices.map(|index| Frame::from(image_file(*index))).collect();
                    image_indices.extend(sample_evenly(&clip.frames, usize::from(self.frames)));
                    let (id, text) = (clip.id, Some(clip.text));
                    clips.push(Clip { id, audio, text, frames, ..Clip::default() });
                }
            }
            for index in image_indices {
                let (view, _) = corpus.image(index)?;
                let (width, height, pixels) = (view.width(), view.height(), view.pixels().to_vec());
                let image = RgbImage::from_raw(width, height, pixels).context("no pixels")?;
                let mut png = Cursor::new(Vec::new());
                image.write_to(&mut png, ImageFormat::Png)?;
                output::write_new(&image_file(index), png.get_ref())?;
            }
            output::write_new(&staging.join("ref.tsv"), references.as_bytes())?;
            let manifest_path = staging.join("clips.jsonl");
            output::write_new(&manifest_path, &manifest(&manifest_path, &clips)?)
        })?;
        output::print(&format!("{}: {}", self.out.display(), counted(count, "clip")))?;
        Ok(Outcome::Done)
    }
}
