//! Pictures of named things, with names in several languages, spoken names and sounds. The readers
//! are [`stamps`] (the stamps of Tux Paint, or a folder of one's own) and [`gcompris`].

pub mod gcompris;
mod names;
mod rcc;
pub mod stamps;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::path::{Path, PathBuf};

use engram_textfile::{TextError, non_blank_lines, read_text};
use rayon::prelude::*;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::DataError;
use crate::audio::AudioReader;
use crate::image::DecodedImage;
use crate::world::questions::Split;

/// The sample rate at which [`Pictures::check`] decodes sounds, in Hz.
const RATE: u32 = 16_000;

/// A picture of a thing. As JSON, it is an entry of a memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Picture {
    /// The name of the data set.
    pub source: &'static str,
    /// The thing: see [`thing`]. All pictures of a thing are in the same split.
    #[serde(rename = "document")]
    pub thing: String,
    /// The image file: an absolute path, or the path of one of [`Pictures::files`].
    pub image: PathBuf,
    /// The English name, or a paragraph about the thing.
    pub text: String,
    /// The unique name of the picture in the data set.
    pub picture: String,
    /// The names of the thing, by language.
    pub names: BTreeMap<String, String>,
    /// Sounds of the thing, and its spoken names.
    pub sounds: Vec<Sound>,
    /// The folder or the subject in the data set.
    pub category: String,
    /// The split, after [`Pictures::draw_splits`].
    pub split: Option<Split>,
    /// The licence, if the data set names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub licence: Option<String>,
    /// The author and the address of the original, if the data set names them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

/// A sound file.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Sound {
    /// The file, as [`Picture::image`].
    pub file: PathBuf,
    /// The language in which a person says the thing's name; `None` for a sound of the thing.
    pub language: Option<String>,
    /// The length in seconds, after [`Pictures::check`].
    pub seconds: f64,
}

/// The pictures of a data set.
#[derive(Debug, Default)]
pub struct Pictures {
    /// In the order of the data set.
    pub pictures: Vec<Picture>,
    /// Files that cannot be used, with the reasons.
    pub faults: Vec<String>,
    /// Numbers of other files without use, by kind.
    pub left_out: BTreeMap<&'static str, usize>,
    /// Files from inside of containers, by their paths.
    pub files: Files,
    /// The version of the package, if its folder has a change log.
    pub version: Option<String>,
}

/// Returns the thing that a name stands for: the name up to the first comma, in lower case, without
/// an English article and a full stop.
pub fn thing(name: &str) -> String {
    let name = name.trim().to_lowercase();
    let short = name.split(',').next().unwrap_or_default().trim_end_matches(['.', '!', ' ']);
    let articles = ["a ", "an ", "the "];
    let bare = articles.iter().find_map(|article| short.strip_prefix(article)).unwrap_or(short);
    if bare.is_empty() { name } else { bare.to_owned() }
}

/// Returns the English name of a language, by its code, such as `hu`; `None` for an unknown code.
pub fn language_name(code: &str) -> Option<&'static str> {
    let lines = include_str!("pictures/languages.tsv").lines();
    lines
        .filter_map(|line| line.split_once('\t'))
        .find_map(|(of, name)| (of == code).then_some(name))
}

impl Pictures {
    /// Removes the pictures that the lines of a file name: by [`Picture::picture`], a folder of it,
    /// [`Picture::category`], or a name of the thing. Returns their number.
    ///
    /// # Errors
    /// `Text`, also for a line that names no picture
    pub fn exclude(&mut self, path: &Path) -> Result<usize, DataError> {
        let mut excluded = BTreeSet::new();
        for (line, text) in non_blank_lines(&read_text(path)?) {
            let text = text.trim().trim_end_matches('/');
            let (folder, named) = (format!("{text}/"), thing(text));
            let is_named = |(_, picture): &(usize, &Picture)| {
                picture.picture == text
                    || picture.category == text
                    || picture.picture.starts_with(&folder)
                    || picture.thing == named
            };
            let matches = self.pictures.iter().enumerate().filter(is_named);
            let matches: Vec<usize> = matches.map(|(index, _)| index).collect();
            if matches.is_empty() {
                let reason = format!("no picture is {text:?}");
                let remedy = "write a `picture`, `category` or `document` of entries.jsonl";
                return Err(TextError::malformed(path, line, reason, remedy).into());
            }
            excluded.extend(matches);
        }
        let mut index = 0..;
        self.pictures.retain(|_| index.next().is_some_and(|index| !excluded.contains(&index)));
        Ok(excluded.len())
    }

    /// Decodes all images and sounds, and moves those that cannot be used to the faults.
    pub fn check(&mut self) {
        let files = &self.files;
        let check = |mut picture: Picture| {
            let mut faults = Vec::new();
            for mut sound in take(&mut picture.sounds) {
                match seconds(&sound.file, files) {
                    Ok(seconds) => {
                        sound.seconds = seconds;
                        picture.sounds.push(sound);
                    }
                    Err(error) => faults.push(error.to_string()),
                }
            }
            match check_image(&picture.image, files) {
                Ok(()) => (Some(picture), faults),
                Err(error) => (None, [vec![error.to_string()], faults].concat()),
            }
        };
        let checked: Vec<_> = take(&mut self.pictures).into_par_iter().map(check).collect();
        for (picture, faults) in checked {
            self.pictures.extend(picture);
            self.faults.extend(faults);
        }
    }

    /// Draws the split of each thing: these shares of the things are for validation and test. The
    /// same seed and the same things give the same splits.
    pub fn draw_splits(&mut self, seed: u64, [validation, test]: [f64; 2]) {
        let things: BTreeSet<&String> =
            self.pictures.iter().map(|picture| &picture.thing).collect();
        let mut order: Vec<String> = things.into_iter().cloned().collect();
        order.sort_by_cached_key(|thing| -> [u8; 32] {
            Sha256::new_with_prefix(seed.to_le_bytes()).chain_update(thing).finalize().into()
        });
        let count = |share: f64| (order.len() as f64 * share).round() as usize;
        let (test, validation) = (count(test), count(test) + count(validation));
        let rank: BTreeMap<&String, usize> = order.iter().zip(0..).collect();
        for picture in &mut self.pictures {
            picture.split = Some(match rank[&picture.thing] {
                rank if rank < test => Split::Test,
                rank if rank < validation => Split::Validation,
                _ => Split::Train,
            });
        }
    }
}

/// The files of [`Pictures::files`].
type Files = BTreeMap<String, Vec<u8>>;

/// Refuses an image that models cannot see.
fn check_image(path: &Path, files: &Files) -> Result<(), DataError> {
    let refuse = |reason: &str, remedy| Err(DataError::of_file(path, reason, remedy));
    let Some(name) = path.to_str() else {
        return refuse("the name is not UTF-8", "rename the file");
    };
    let image = match files.get(name) {
        Some(bytes) => DecodedImage::from_bytes(path, bytes)?,
        None => DecodedImage::open(path)?,
    };
    let mut pixels = image.pixels().chunks_exact(3);
    let first = pixels.next();
    if pixels.all(|pixel| Some(pixel) == first) {
        let reason = "has one colour without its transparency, which models do not see";
        return refuse(reason, "save it on a background of another colour");
    }
    Ok(())
}

/// Decodes a sound and returns its length in seconds.
fn seconds(path: &Path, files: &Files) -> Result<f64, DataError> {
    let mut reader = match path.to_str().and_then(|name| files.get(name)) {
        Some(bytes) => AudioReader::from_bytes(path, bytes.clone(), RATE)?,
        None => AudioReader::open(path, RATE)?,
    };
    let samples = reader.read_all()?;
    if samples.is_empty() {
        let (path, reason) = (path.to_owned(), "has no samples".to_owned());
        return Err(DataError::Audio { path, reason });
    }
    Ok(samples.len() as f64 / f64::from(RATE))
}

/// Returns a folder inside `folder` if it exists, otherwise `folder` itself.
fn inside(folder: &Path, inner: &str) -> Result<PathBuf, DataError> {
    let path = Some(folder.join(inner)).filter(|path| path.is_dir()).unwrap_or(folder.to_owned());
    std::path::absolute(&path).map_err(|source| DataError::Io { path, source })
}

/// Returns the package's version from its Debian change log, if there is one.
fn version(doc: &Path) -> Option<String> {
    let text = read_text(doc.join("changelog.Debian.gz")).ok()?;
    Some(text.split_once('(')?.1.split_once(')')?.0.to_owned())
}
