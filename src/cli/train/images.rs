//! `engram train reveal --images FOLDER --captions FILE`: a model that describes images, without a
//! recipe file.
//!
//! The command changes the recipe `reveal/coco` to suit the data. The run folder has the complete
//! recipe.

use std::collections::BTreeMap;
use std::path::{Path, absolute};

use anyhow::{anyhow, ensure};
use clap::{Arg, Args, Command};
use engram_data::knowledge::{Collector, EntryLine, Input, coco};
use engram_data::messages::counted;
use engram_data::world::questions::Split;
use engram_textfile::{Table, shortened};
use engram_train::studies::reveal::REVEAL;
use engram_train::studies::reveal::settings::CaptionFile;
use engram_train::{Recipe, RecipeOptions};
use toml::Value;

use super::super::paths::{BaseFolder, InputPath};
use super::column_names;

/// The smallest number of images that can be split into training, validation and test.
const MIN_IMAGES: usize = 5;
/// The share of the images that the recipe trains on.
const TRAINING_SHARE: f64 = 0.65;
/// How often a phase sees each image, within the limits on its steps.
const EPOCHS: f64 = 30.0;
/// The phases of the recipe, with their batch sizes and their smallest numbers of steps.
const PHASES: [(&str, f64, f64); 3] =
    [("images", 64.0, 60.0), ("warm-start", 32.0, 150.0), ("fine-tune", 32.0, 150.0)];
const MAX_STEPS: f64 = 3000.0;
/// The largest limit on the tokens of a text.
const MAX_TOKENS: usize = 512;
/// The tokens of the recipe's prompt before an entry, at most.
const PROMPT_TOKENS: usize = 40;
/// The names of splits in a column `split`.
const SPLITS: [(&[&str], Option<Split>); 3] = [
    (&["train"], Some(Split::Train)),
    (&["val", "valid", "validation", "dev"], Some(Split::Validation)),
    (&["test"], Some(Split::Test)),
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
    /// Columns of the image's file name and of the caption. With a column `split`, its values
    /// (train, val, test) are used
    #[arg(long, value_name = "IMAGE,CAPTION", requires = "images", default_value = "image,caption",
        value_parser = |text: &str| column_names::<2>(text, "give two names: image, caption"))]
    columns: [String; 2],
}

/// Whether a study can be trained on images without a recipe.
pub(super) fn are_possible(study: &str) -> bool {
    study == REVEAL.name
}

/// Adds the options to the command of a study for which they are possible.
pub(super) fn augment(study: &str, command: Command) -> Command {
    if !are_possible(study) {
        return command;
    }
    let optional = |recipe: Arg| recipe.required(false).required_unless_present("images");
    OwnImages::augment_args(command).mut_arg("recipe", optional)
}

impl OwnImages {
    /// The recipe for the images, with the user's `options`; `None` without images.
    pub(super) fn recipe(&self, options: &RecipeOptions) -> anyhow::Result<Option<Recipe>> {
        let (Some(images), Some(path)) = (&self.images, &self.captions) else { return Ok(None) };
        ensure!(images.is_dir(), "{}: is not a folder; --images needs one", images.display());
        let files = self.caption_files(images, path)?;
        // The numbers of characters of the captions of each image.
        let mut lengths: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let mut collector = Collector::new(|entry: EntryLine| {
            let image = entry.image().unwrap_or_default().to_owned();
            lengths.entry(image).or_default().push(entry.text().chars().count());
            Ok(())
        });
        let every_split = CaptionFile { only: Vec::new(), ..files[0].clone() };
        coco::read(Input::open(path)?, &every_split.coco_options(), &mut collector)?;
        drop(collector);
        let count = lengths.len();
        ensure!(
            count >= MIN_IMAGES,
            "{}: has captions of {}; training, validation and test need at least {MIN_IMAGES}",
            path.display(),
            counted(count, "image")
        );
        // A text has at most one token per character, and one for its start.
        let limit = |tokens: Option<usize>| tokens.map_or(1, |tokens| tokens.min(MAX_TOKENS) + 1);
        let answer = limit(lengths.values().flatten().copied().max());
        let all_captions = |lengths: &Vec<usize>| lengths.iter().map(|length| length + 1).sum();
        let entry = limit(lengths.values().map(all_captions).max()) + PROMPT_TOKENS;
        let mut set = vec![
            format!("data.path={}", Value::from(images.display().to_string())),
            format!("data.captions={}", Value::try_from(&files)?),
            "data.on_bad_image=refuse".to_owned(),
            format!("data.max_entry_tokens={entry}"),
            format!("data.max_answer_tokens={answer}"),
        ];
        if !options.tiny {
            set.push(format!("data.vocabulary={}", (2 * count).clamp(800, 8000)));
            set.extend(PHASES.map(|(phase, batch, min_steps)| {
                let steps = (count as f64 * TRAINING_SHARE * EPOCHS / batch).ceil();
                format!("phase.{phase}.steps={}", steps.clamp(min_steps, MAX_STEPS))
            }));
        }
        set.extend(options.set.iter().cloned());
        Ok(Some(Recipe::built_in("reveal/coco", &RecipeOptions { tiny: options.tiny, set })?))
    }

    /// The recipe's caption files: one for each split if the CSV has a column `split`.
    fn caption_files(&self, images: &Path, path: &Path) -> anyhow::Result<Vec<CaptionFile>> {
        let has_splits = self.check_table(path)?;
        let file = match path.strip_prefix(images) {
            Ok(file) => file.to_owned(),
            Err(_) => absolute(path)?,
        };
        let part = |(only, split): &(&[&str], Option<Split>)| CaptionFile {
            file: file.display().to_string(),
            only: only.iter().map(|name| (*name).to_owned()).collect(),
            split: *split,
            describe: true,
            source: Some("captions".to_owned()),
            columns: Some(self.columns.clone()),
            ..CaptionFile::default()
        };
        Ok(if has_splits { SPLITS.iter().map(part).collect() } else { vec![part(&(&[], None))] })
    }

    /// Checks the columns of the CSV and the splits of its images. Returns whether it has splits.
    fn check_table(&self, path: &Path) -> anyhow::Result<bool> {
        let mut table = Table::csv(Input::open(path)?)?;
        let columns = table.columns(self.columns.each_ref().map(String::as_str));
        let [image, _] = columns.map_err(|error| anyhow!("{error}, or name it with --columns"))?;
        let Some(split) = table.optional_column("split")? else { return Ok(false) };
        let mut split_of: BTreeMap<String, usize> = BTreeMap::new();
        while table.advance()? {
            let (image, name) = (table.field(image).trim(), table.field(split).trim());
            let Some(split) = SPLITS.iter().position(|(names, _)| names.contains(&name)) else {
                let reason = format!("the split `{}` is unknown", shortened(name, 60));
                return Err(table.error(reason, "write train, val or test").into());
            };
            let first = *split_of.entry(image.to_owned()).or_insert(split);
            if first != split {
                let (image, first) = (shortened(image, 60), SPLITS[first].0[0]);
                let reason = format!("the image {image} is in the split {first} already");
                return Err(table.error(reason, "give an image the same split in all rows").into());
            }
        }
        for (index, (names, _)) in SPLITS.iter().enumerate() {
            ensure!(
                split_of.values().any(|split| *split == index),
                "{}: the column split has no row with {}; give some images this split, or rename the \
                 column, so that the splits are drawn",
                path.display(),
                names[0]
            );
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_splits_of_a_table_are_checked() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("captions.csv");
        let columns = ["image", "caption"].map(str::to_owned);
        let images = OwnImages { images: None, captions: None, columns };
        for (rows, expected) in [
            ("image,caption\na,x\n", "false"),
            ("image,caption,split\na,x,train\na,y,train\nb,x,dev\nc,x,test\n", "true"),
            ("image,caption,split\na,x,train\nb,x,val\n", "has no row with test; give some"),
            ("image,caption,split\na,x,trian\n", "csv:2: the split `trian` is unknown; write"),
            ("image,caption,split\na,x,train\na,y,val\n", "csv:3: the image a is in the split"),
            ("file_name,text\na,x\n", "rename or add the column, or name it with --columns"),
        ] {
            std::fs::write(&path, rows).expect("a file");
            let result = images.check_table(&path);
            let text = result.map_or_else(|error| error.to_string(), |splits| splits.to_string());
            assert!(text.contains(expected), "{rows}: {text}");
        }
    }
}
