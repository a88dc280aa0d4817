//! `engram data stamps` and `engram data gcompris`: pictures of named things, with spoken names and
//! sounds, as entries and manifests.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Args;
use engram_data::DataError;
use engram_data::messages::counted;
use engram_data::pictures::{Picture, Pictures};
use engram_data::speech::frames::Frame;
use engram_data::speech::manifest::{Clip, manifest};
use engram_data::world::questions::Split;
use serde_json::{Value, json};

use super::super::paths::{InputFile, InputFolder, NewFolder};
use super::super::transcribe::OnError;
use super::super::{Outcome, output};
use super::world::json_lines;

pub(super) const STAMPS_HELP: &str = "\
The folder is the unpacked package tuxpaint-stamps-default (or the folder `stamps` in it), or a
folder with a file names.csv. Its columns are: file; name, or languages such as de or pt_BR;
optionally category, licence, sound, and recordings of the names such as voice_de. Others are refused.

Examples:
  engram data stamps tuxpaint-stamps --on-error skip --out stamps
  engram data stamps my-pictures --test-share 0.3 --out mine
  engram memory build --model hf://openai/clip-vit-base-patch32 --entries stamps/entries.jsonl \\
      --out memory
  engram transcribe stamps/voices/fr-test.jsonl --model hf://openai/whisper-base \\
      --language fr --out hyp.tsv
  engram eval wer --ref stamps/voices/fr-test.jsonl --hyp hyp.tsv --normalizer basic";
pub(super) const GCOMPRIS_HELP: &str = "\
The folder is the unpacked package gcompris-qt-data, or the folder `rcc` in it.

Example:
  engram data gcompris gcompris-qt-data --out gcompris";

#[derive(Debug, Args)]
pub struct PictureOptions {
    /// Folder of the pictures
    folder: InputFolder,
    /// Output folder for entries.jsonl, summary.json and README.md, and for voices or pictures
    #[arg(long, value_name = "FOLDER")]
    out: NewFolder,
    /// File of pictures to leave out: each line is a `picture`, `category` or `document` of
    /// entries.jsonl
    #[arg(long, value_name = "FILE")]
    exclude: Option<InputFile>,
    /// Random seed of the splits
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Share of the things for validation
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = parse_share)]
    validation_share: f64,
    /// Share of the things for the test
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, value_parser = parse_share)]
    test_share: f64,
    /// How to treat files without a name, and images and sounds that cannot be decoded
    #[arg(long, value_name = "ACTION", default_value = "stop")]
    on_error: OnError,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

impl PictureOptions {
    pub(super) fn run(
        self,
        read: fn(&Path) -> Result<Pictures, DataError>,
    ) -> anyhow::Result<Outcome> {
        output::check_new_folder(&self.out)?;
        let mut pictures = read(&self.folder)?;
        let excluded = self.exclude.as_deref().map_or(Ok(0), |file| pictures.exclude(file))?;
        pictures.check();
        let (folder, faults) = (self.folder.display(), &pictures.faults);
        let number = counted(faults.len(), "unusable file");
        let first: Vec<&str> = faults.iter().take(20).map(String::as_str).collect();
        let unusable = format!("{number}: {}", first.join("; "));
        if pictures.pictures.is_empty() {
            anyhow::bail!("{folder}: has no usable picture, and {unusable}");
        }
        if self.on_error == OnError::Stop && !faults.is_empty() {
            anyhow::bail!("{folder}: --on-error skip skips {unusable}");
        }
        if !faults.is_empty() {
            output::warn(&format!("{folder}: skipped {unusable}"));
        }
        pictures.draw_splits(self.seed, [self.validation_share, self.test_share]);
        let summary = self.summary(&pictures, excluded);
        output::write_folder(&self.out, |staging| {
            let write = |name: &str, bytes: &[u8]| {
                let path = staging.join(name);
                output::create_folder(path.parent().unwrap_or(staging))?;
                output::write_new(&path, bytes)
            };
            pictures.files.iter().try_for_each(|(path, bytes)| write(path, bytes))?;
            write("entries.jsonl", &json_lines(&pictures.pictures)?)?;
            for (name, clips) in voices(&pictures.pictures) {
                let name = format!("voices/{name}.jsonl");
                write(&name, &manifest(&staging.join(&name), &clips)?)?;
            }
            write("summary.json", &serde_json::to_vec_pretty(&summary)?)?;
            write("README.md", include_bytes!("pictures_readme.md"))
        })?;
        output::print_report(self.json, &summary, || {
            let things = counted(&summary["things"], "thing");
            let number = counted(pictures.pictures.len(), "picture");
            format!("{}: {number} of {things}; summary.json has more counts", self.out.display())
        })?;
        Ok(Outcome::Done)
    }

    fn summary(&self, all: &Pictures, excluded: usize) -> Value {
        let pictures = &all.pictures;
        let sounds = pictures.iter().flat_map(|picture| &picture.sounds);
        let names = pictures.iter().flat_map(|picture| picture.names.keys());
        let mut minutes = BTreeMap::<&str, f64>::new();
        for sound in sounds.clone() {
            if let Some(language) = &sound.language {
                *minutes.entry(language).or_default() += sound.seconds / 60.0;
            }
        }
        json!({
            "folder": self.folder.display().to_string(),
            "version": all.version,
            "seed": self.seed,
            "pictures": pictures.len(),
            "things": counts(pictures.iter().map(|picture| &*picture.thing)).len(),
            "splits": counts(pictures.iter().filter_map(|picture| Some(picture.split?.name()))),
            "categories": counts(pictures.iter().map(|picture| &*picture.category)),
            "licences": counts(pictures.iter().filter_map(|picture| picture.licence.as_deref())),
            "names": counts(names.map(String::as_str)),
            "voices": counts(sounds.clone().filter_map(|sound| sound.language.as_deref())),
            "minutes": minutes,
            "sounds": sounds.filter(|sound| sound.language.is_none()).count(),
            "excluded": excluded,
            "left_out": all.left_out,
            "skipped": all.faults,
        })
    }
}

/// How often each name occurs.
fn counts<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    counts
}

/// The spoken names as clips with the picture as their frame, by language and split: `fr-test`.
fn voices(pictures: &[Picture]) -> BTreeMap<String, Vec<Clip>> {
    let mut voices: BTreeMap<String, Vec<Clip>> = BTreeMap::new();
    for picture in pictures {
        for sound in &picture.sounds {
            let Some(language) = &sound.language else { continue };
            let name = format!("{language}-{}", picture.split.map_or("", Split::name));
            voices.entry(name).or_default().push(Clip {
                id: picture.picture.clone(),
                audio: sound.file.clone(),
                text: picture.names.get(language).cloned(),
                frames: vec![Frame::from(picture.image.clone())],
                ..Clip::default()
            });
        }
    }
    voices
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=0.5).contains(&share) => Ok(share),
        _ => Err("must be a share of the things from 0 to 0.5".to_string()),
    }
}
