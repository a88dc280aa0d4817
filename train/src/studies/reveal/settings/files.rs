//! File settings in `[data]`: images, captions, questions and entries.

use engram_data::knowledge::coco::CocoOptions;
use engram_data::world::IMAGES;
use engram_data::world::haystack::WorldId;
use engram_data::world::questions::Split;
use engram_infer::reveal::sequences::SequenceSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{RevealData, below_one, first, invalid_if};

/// What to do with an image that is missing or does not decode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnBadImage {
    /// Refuse to start the run.
    #[default]
    Refuse,
    /// Skip the examples and entries of the image, and count them.
    Skip,
    /// Use the questions and entries of the image without it, and count them. The model does not
    /// describe the image.
    TextOnly,
}

/// `[[data.captions]]`: a caption file in COCO's or Karpathy's format, or a `.csv` with the columns
/// `image` (file in `image_folder`), `caption` and optionally `split`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CaptionFile {
    /// The file, in `data.path`.
    pub file: String,
    /// The folder of the images, in `data.path`.
    pub image_folder: String,
    /// The splits to read of a Karpathy file or a CSV; all by default.
    pub only: Vec<String>,
    /// The split of all images of the file; by default drawn for each image with
    /// `data.world_seed`.
    pub split: Option<Split>,
    /// Whether the model describes the images, in training and evaluation.
    pub describe: bool,
    /// The source name of the captions in the memory. Without a name, the captions are not in the
    /// memory.
    pub source: Option<String>,
    /// The columns of the image and of the caption in a CSV with other names.
    pub columns: Option<[String; 2]>,
}

impl CaptionFile {
    /// The options for reading the file.
    pub fn coco_options(&self) -> CocoOptions {
        let options = CocoOptions::default();
        CocoOptions {
            folder: Some(self.image_folder.clone()).filter(|folder| !folder.is_empty()),
            splits: self.only.clone(),
            columns: self.columns.clone().unwrap_or(options.columns),
            ..options
        }
    }
}

/// `[[data.questions]]`: questions about images, from VQA or OK-VQA (two files), or A-OKVQA.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QuestionFile {
    /// The questions file of VQA or OK-VQA, in `data.path`.
    pub questions: String,
    /// The annotations file of VQA or OK-VQA, in `data.path`.
    pub annotations: String,
    /// The A-OKVQA file, in `data.path`, instead of `questions` and `annotations`.
    pub aokvqa: String,
    /// The name pattern of images in `data.path`: `%012d`, `%d` or `%s` stands for the image's id.
    pub image_name: String,
    /// The split of all images of the file; by default drawn for each image with
    /// `data.world_seed`.
    pub split: Option<Split>,
    /// The source name of the questions with answers in the memory. Without a name, they are not in
    /// the memory.
    pub source: Option<String>,
}

/// `[data.things]`: pictures of named things, with their names in several languages as the memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Things {
    /// The entries that `engram data stamps` or `engram data gcompris` wrote, in `data.path`.
    pub file: String,
    /// Folders of photographs. Questions show things on parts of them; the photographs of training
    /// and those of validation and test differ.
    pub backgrounds: Vec<String>,
    /// Further files by `engram data stamps` or `engram data gcompris`. Their pictures are in no
    /// question. The test searches with each for other pictures of the same name: for photographs
    /// of both files, and for graphics of the embedded world.
    pub others: Vec<String>,
    /// The languages to use; by default, all that name 95 % of the things.
    pub languages: Vec<String>,
    /// Maximum number of characters of a name; longer names are not used.
    pub max_name: usize,
    /// Number of made-up names for exercises in reading (`feed.examples = "reading"`).
    pub reading: usize,
    /// Number of views of each thing in training; 0 for a new view in each step. With
    /// `model.mobilenet`, a new view takes time, and a view that was used before is cached.
    pub views: u32,
    /// Number of graphics of the embedded world in the phases `images` and `naming`, beside the pictures of
    /// the training things. They have a quarter of the views.
    pub graphics: usize,
}

impl Default for Things {
    fn default() -> Self {
        Self {
            file: "entries.jsonl".to_owned(),
            backgrounds: Vec::new(),
            others: Vec::new(),
            languages: Vec::new(),
            max_name: 24,
            reading: 20_000,
            views: 0,
            graphics: 1500,
        }
    }
}

impl QuestionFile {
    /// The file name for messages.
    pub fn name(&self) -> &str {
        if self.aokvqa.is_empty() { &self.questions } else { &self.aokvqa }
    }
}

impl RevealData {
    /// Whether the data are the embedded world.
    pub fn is_world(&self) -> bool {
        let has_files = !(self.captions.is_empty() && self.questions.is_empty());
        !has_files && self.entries.is_empty() && self.things.is_none() && self.triplets == 0
    }

    /// The embedded world of the data; `None` for files.
    pub fn world(&self) -> Option<WorldId> {
        let images = if self.max_images == 0 { IMAGES } else { self.max_images };
        self.is_world().then_some(WorldId { seed: self.world_seed, images })
    }

    /// The settings of token sequences.
    pub fn sequences(&self) -> SequenceSettings {
        SequenceSettings {
            prompts: self.prompts.clone(),
            max_entry_tokens: self.max_entry_tokens,
            max_query_tokens: self.max_query_tokens,
            max_answer_tokens: self.max_answer_tokens,
        }
    }

    /// The first invalid key, with the reason.
    pub fn first_invalid_key(&self) -> Option<(String, String)> {
        let minimums = [
            ("max_entry_tokens", self.max_entry_tokens, 4),
            ("max_query_tokens", self.max_query_tokens, 4),
            ("max_answer_tokens", self.max_answer_tokens, 1),
            ("vocabulary", self.vocabulary, 64),
        ];
        if let Some((key, value, min)) = minimums.into_iter().find(|(_, value, min)| value < min) {
            return Some((key.into(), format!("is {value}; must be at least {min}")));
        }
        let of_shares = first([
            below_one("validation_share", self.validation_share),
            below_one("test_share", self.test_share),
            invalid_if(
                self.validation_share + self.test_share >= 1.0,
                "test_share",
                "together with `validation_share`, leaves no images to train on",
            ),
        ]);
        if let Some((key, reason)) = of_shares {
            return Some((key.into(), reason));
        }
        if self.is_world() {
            let reason = "names a folder, but no file is given: add `[[data.captions]]`, \
                          `[[data.questions]]` or `entries`, or remove it for the embedded world";
            if !self.path.is_empty() {
                return Some(("path".into(), reason.into()));
            }
            let defaults = Self::default();
            let file_keys = [
                ("validation_share", self.validation_share != defaults.validation_share),
                ("test_share", self.test_share != defaults.test_share),
                ("on_bad_image", self.on_bad_image != defaults.on_bad_image),
                ("image_cache_mib", self.image_cache_mib != defaults.image_cache_mib),
            ];
            let first_given = file_keys.into_iter().find(|(_, is_given)| *is_given);
            let reason = "is for files and has no effect on the embedded world; remove it";
            return first_given.map(|(key, _)| (key.into(), reason.into()));
        }
        let alone = [
            ("things", self.things.is_some(), "pictures of things"),
            ("triplets", self.triplets > 0, "made-up facts"),
        ];
        if let Some((key, _, kind)) = alone.iter().find(|(_, is_given, _)| *is_given) {
            let has_others = !self.captions.is_empty()
                || !self.questions.is_empty()
                || !self.entries.is_empty()
                || alone.iter().all(|(_, is_given, _)| *is_given);
            let reason = format!("is for {kind} alone; remove the other data");
            return has_others.then(|| ((*key).into(), reason));
        }
        let has_examples =
            self.captions.iter().any(|file| file.describe) || !self.questions.is_empty();
        if !has_examples {
            let reason =
                "has no examples: add `[[data.questions]]`, or set `describe = true` for captions";
            return Some(("captions".into(), reason.into()));
        }
        for (i, file) in self.captions.iter().enumerate() {
            if file.file.is_empty() {
                return Some((format!("captions.{i}.file"), "is missing".into()));
            }
        }
        for (i, file) in self.questions.iter().enumerate() {
            let has_both = !file.questions.is_empty() && !file.annotations.is_empty();
            let has_neither = file.questions.is_empty() && file.annotations.is_empty();
            if !(has_both && file.aokvqa.is_empty() || has_neither && !file.aokvqa.is_empty()) {
                let reason = "names no files: set `questions` and `annotations`, or `aokvqa`";
                return Some((format!("questions.{i}"), reason.into()));
            }
            if file.image_name.is_empty() {
                let reason =
                    "is missing: set the name pattern of images, such as val2017/%012d.jpg";
                return Some((format!("questions.{i}.image_name"), reason.into()));
            }
        }
        None
    }
}
