//! `engram train reveal --images FOLDER --captions FILE`: a model that describes images, without a
//! recipe file.
//!
//! The command changes the recipe `reveal/coco` to suit the data. The run folder has the complete
//! recipe.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf, absolute};

use anyhow::ensure;
use clap::{Args, Command};
use engram_data::folder;
use engram_data::knowledge::{Collector, EntryLine, Input, coco};
use engram_data::messages::counted;
use engram_data::text_to_text::T5Tokenizer;
use engram_data::world::questions::Split;
use engram_textfile::Table;
use engram_train::studies::reveal::REVEAL;
use engram_train::studies::reveal::settings::{CaptionFile, RevealData};
use engram_train::{Recipe, RecipeOptions};
use toml::Value;

use super::super::output;
use super::super::paths::{BaseFolder, InputPath};
use super::column_names;

/// The recipe that is changed.
const RECIPE: &str = "reveal/coco";
/// Each of training, validation and test needs an image.
const MIN_IMAGES: usize = 5;
/// The share of the images that the recipe trains on.
const TRAINING_SHARE: f64 = 0.65;
/// How often a phase sees each image, unless its number of steps is outside its limits.
const EPOCHS: f64 = 30.0;
/// The phases of the recipe, their batch sizes, and their smallest numbers of steps.
const PHASES: [(&str, f64, f64); 3] =
    [("images", 64.0, 60.0), ("warm-start", 32.0, 150.0), ("fine-tune", 32.0, 150.0)];
/// The largest number of steps of a phase.
const MAX_STEPS: f64 = 3000.0;
/// The largest limit on the tokens of a text.
const MAX_TOKENS: usize = 512;
/// The values of a column `split`.
const SPLITS: [(&[&str], Split); 3] = [
    (&["train"], Split::Train),
    (&["val", "valid", "validation", "dev"], Split::Validation),
    (&["test"], Split::Test),
];

/// Images and captions in place of a recipe.
#[derive(Debug, Args)]
pub(super) struct OwnImages {
    /// Train on the images of this folder, without a recipe
    #[arg(long, value_name = "FOLDER", requires = "captions", conflicts_with = "recipe")]
    images: Option<BaseFolder>,
    /// Captions of the images: a CSV with one row for each caption
    #[arg(long, value_name = "FILE", requires = "images")]
    captions: Option<InputPath>,
    /// Columns of the image's file name and of the caption. A column `split` (train, val, test) is
    /// optional
    #[arg(long, value_name = "IMAGE,CAPTION", requires = "images", default_value = "image,caption",
        value_parser = |text: &str| column_names::<2>(text, "give two names: image, caption"))]
    columns: [String; 2],
}

/// Adds the options to `engram train reveal`; other studies stay as they are.
pub(super) fn augment(study: &str, command: Command) -> Command {
    if study != REVEAL.name {
        return command;
    }
    let without_images =
        |recipe: clap::Arg| recipe.required(false).required_unless_present("images");
    OwnImages::augment_args(command).mut_arg("recipe", without_images)
}

impl OwnImages {
    /// The recipe for the images, with the user's `options`; `None` without images.
    pub(super) fn recipe(&self, options: &RecipeOptions) -> anyhow::Result<Option<Recipe>> {
        let (Some(images), Some(captions)) = (&self.images, &self.captions) else {
            return Ok(None);
        };
        ensure!(images.is_dir(), "{}: --images needs an existing folder", images.display());
        let files = self.files(images, captions)?;
        let texts = texts(images, &files[0])?;
        ensure!(
            texts.len() >= MIN_IMAGES,
            "{}: has captions of {}; training, validation and test need at least {MIN_IMAGES}",
            captions.display(),
            counted(texts.len(), "image")
        );
        note_images_without_caption(images, &texts)?;
        let count = texts.len() as f64;
        let mut set = vec![
            format!("data.path={}", Value::from(images.display().to_string())),
            format!("data.captions={}", Value::try_from(&files)?),
            "data.on_bad_image=refuse".to_owned(),
        ];
        if !options.tiny {
            set.push(format!("data.vocabulary={}", (2 * texts.len()).clamp(800, 8000)));
            set.extend(PHASES.map(|(phase, batch, min_steps)| {
                let steps = (count * TRAINING_SHARE * EPOCHS / batch).ceil();
                format!("phase.{phase}.steps={}", steps.clamp(min_steps, MAX_STEPS))
            }));
        }
        let recipe = |set: &[String]| {
            let set = set.iter().chain(&options.set).cloned().collect();
            Recipe::built_in(RECIPE, &RecipeOptions { tiny: options.tiny, set })
        };
        set.extend(token_limits(&texts, &recipe(&set)?.data()?)?);
        Ok(Some(recipe(&set)?))
    }

    /// The recipe's caption files: one for each split if there is a column `split`.
    fn files(&self, images: &Path, captions: &Path) -> anyhow::Result<Vec<CaptionFile>> {
        let file = match captions.strip_prefix(images) {
            Ok(file) => file.to_owned(),
            Err(_) => absolute(captions)?,
        };
        let file = CaptionFile {
            file: file.display().to_string(),
            describe: true,
            source: Some("captions".to_owned()),
            columns: Some(self.columns.clone()),
            ..CaptionFile::default()
        };
        let table = Table::csv(Input::open(captions)?)?;
        if table.optional_column("split")?.is_none() {
            return Ok(vec![file]);
        }
        let part = |(names, split): (&[&str], Split)| CaptionFile {
            only: names.iter().map(|name| (*name).to_owned()).collect(),
            split: Some(split),
            source: file.source.clone().filter(|_| split == Split::Train),
            ..file.clone()
        };
        Ok(SPLITS.map(part).into())
    }
}

/// The captions of each image.
fn texts(images: &Path, file: &CaptionFile) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut collector = Collector::new(|entry: EntryLine| {
        let image = entry.image().unwrap_or_default().to_owned();
        texts.entry(image).or_default().push(entry.text());
        Ok(())
    });
    let all_splits = CaptionFile { only: Vec::new(), ..file.clone() };
    let input = Input::open(images.join(&file.file))?;
    coco::read(input, &all_splits.coco_options(), &mut collector)?;
    drop(collector);
    Ok(texts)
}

/// Prints how many images of the folder have no caption, if there are any.
fn note_images_without_caption(
    images: &Path,
    texts: &BTreeMap<String, Vec<String>>,
) -> anyhow::Result<()> {
    let normal = |path: PathBuf| path.components().collect::<PathBuf>();
    let named: HashSet<PathBuf> = texts.keys().map(|image| normal(images.join(image))).collect();
    let endings = ["jpg", "jpeg", "png", "webp", "gif", "bmp"];
    let is_image = |path: &Path| {
        let ending = path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
        ending.is_some_and(|ending| endings.contains(&&*ending))
    };
    let found = folder::files(images, &is_image)?.files.into_iter().map(normal);
    let unnamed = found.filter(|path| !named.contains(path)).count();
    if unnamed > 0 {
        let (unnamed, folder) = (counted(unnamed, "image"), images.display());
        output::note(&format!("note: {unnamed} of {folder} without a caption: not used"));
    }
    Ok(())
}

/// The limits on tokens, so that no caption is truncated. A quarter is added, because the tokenizer
/// of the run is made without the captions of held-out images, so these may have more tokens.
fn token_limits(
    texts: &BTreeMap<String, Vec<String>>,
    data: &RevealData,
) -> anyhow::Result<[String; 2]> {
    let tokenizer = T5Tokenizer::train(texts.values().flatten().cloned(), data.vocabulary)?;
    let limit = |texts: &mut dyn Iterator<Item = String>| -> anyhow::Result<usize> {
        let lengths = texts.map(|text| Ok(tokenizer.encode(&text)?.len()));
        let longest = lengths.collect::<anyhow::Result<Vec<_>>>()?.into_iter().max();
        Ok((longest.unwrap_or(1) * 5 / 4 + 1).min(MAX_TOKENS))
    };
    // An entry has the prompt and all captions of an image.
    let prompt = &data.prompts.knowledge;
    let entry = |captions: &Vec<String>| format!("{prompt} {}", captions.join(" "));
    Ok([
        format!("data.max_entry_tokens={}", limit(&mut texts.values().map(entry))? + 1),
        format!("data.max_answer_tokens={}", limit(&mut texts.values().flatten().cloned())?),
    ])
}
