//! What a recipe's `[data]` says of files: pictures, captions, questions, entries.

use engram_data::world::PICTURES;
use engram_data::world::haystack::WorldName;
use engram_data::world::questions::Split;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RevealData;

/// What is done about a picture that is missing or does not decode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BadPictures {
    /// The run does not start.
    #[default]
    Refuse,
    /// What shows it is left out, and counted.
    LeaveOut,
    /// What shows it stays as a text alone, and is counted; it is not to be described.
    TextAlone,
}

/// `[[data.captions]]`: a file of captions, COCO's or Karpathy's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CaptionFile {
    /// The file, in `data.path`.
    pub file: String,
    /// The folder of its pictures, in `data.path`.
    pub pictures: String,
    /// The splits of Karpathy's file that are read; all without it.
    pub only: Vec<String>,
    /// The split that all its pictures belong to; by the seed without it.
    pub split: Option<Split>,
    /// Whether its pictures are to be described: in training, and in the evaluation.
    pub asked: bool,
    /// The source that its captions are in the memory; not in it without one.
    pub source: Option<String>,
}

/// `[[data.questions]]`: questions about pictures, of VQA or OK-VQA (two files), or of A-OKVQA.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QuestionFile {
    /// The questions of VQA or OK-VQA, in `data.path`.
    pub questions: String,
    /// Their annotations.
    pub annotations: String,
    /// A-OKVQA, in the place of both.
    pub aokvqa: String,
    /// How pictures are called in `data.path`: `%012d`, `%d` or `%s` stands for the image's id.
    pub image_name: String,
    /// The split that all its pictures belong to; by the seed without it.
    pub split: Option<Split>,
    /// The source that its questions with their answers are in the memory; not in it without one.
    pub source: Option<String>,
}

impl QuestionFile {
    /// The file that messages name.
    pub fn name(&self) -> &str {
        if self.aokvqa.is_empty() { &self.questions } else { &self.aokvqa }
    }
}

impl RevealData {
    /// Whether the data are the embedded world.
    pub fn is_world(&self) -> bool {
        self.captions.is_empty() && self.questions.is_empty() && self.entries.is_empty()
    }

    /// The embedded world that the data are.
    pub fn world(&self) -> Option<WorldName> {
        let pictures = if self.pictures == 0 { PICTURES } else { self.pictures };
        self.is_world().then_some(WorldName { seed: self.world_seed, pictures })
    }

    /// The first setting that no run can work with, and why.
    pub fn conflict(&self) -> Option<(String, String)> {
        let least = [
            ("max_entry_tokens", self.max_entry_tokens, 4),
            ("max_query_tokens", self.max_query_tokens, 4),
            ("max_answer_tokens", self.max_answer_tokens, 1),
            ("vocabulary", self.vocabulary, 64),
        ];
        if let Some((key, value, least)) = least.into_iter().find(|(_, value, least)| value < least)
        {
            return Some((key.into(), format!("is {value}; give {least} or more")));
        }
        for (key, share) in
            [("validation_share", self.validation_share), ("test_share", self.test_share)]
        {
            if !(0.0..1.0).contains(&share) {
                return Some((key.into(), format!("is {share}; give a share from 0 to below 1")));
            }
        }
        if self.validation_share + self.test_share >= 1.0 {
            let reason = "leaves no pictures to train on, together with `validation_share`";
            return Some(("test_share".into(), reason.into()));
        }
        if self.is_world() {
            let reason = "names a folder, but no file in it: give `[[data.captions]]`, \
                          `[[data.questions]]` or `entries`, or leave it out for the embedded world";
            if !self.path.is_empty() {
                return Some(("path".into(), reason.into()));
            }
            let fresh = Self::default();
            let of_files = [
                ("validation_share", self.validation_share != fresh.validation_share),
                ("test_share", self.test_share != fresh.test_share),
                ("bad_pictures", self.bad_pictures != fresh.bad_pictures),
                ("cached_pictures_mib", self.cached_pictures_mib != fresh.cached_pictures_mib),
            ];
            let given = of_files.into_iter().find(|(_, given)| *given);
            let reason =
                "is about files and counts for nothing on the embedded world; leave it out";
            return given.map(|(key, _)| (key.into(), reason.into()));
        }
        let asks = self.captions.iter().any(|file| file.asked) || !self.questions.is_empty();
        if !asks {
            let reason = "asks nothing: give `[[data.questions]]`, or `asked = true` to captions";
            return Some(("captions".into(), reason.into()));
        }
        for (i, file) in self.captions.iter().enumerate() {
            if file.file.is_empty() {
                return Some((format!("captions.{i}.file"), "is missing".into()));
            }
        }
        for (i, file) in self.questions.iter().enumerate() {
            let pair = !file.questions.is_empty() && !file.annotations.is_empty();
            let neither = file.questions.is_empty() && file.annotations.is_empty();
            if !(pair && file.aokvqa.is_empty() || neither && !file.aokvqa.is_empty()) {
                let reason = "names no files: give `questions` and `annotations`, or `aokvqa`";
                return Some((format!("questions.{i}"), reason.into()));
            }
            if file.image_name.is_empty() {
                let reason = "is missing: say how pictures are called, such as val2017/%012d.jpg";
                return Some((format!("questions.{i}.image_name"), reason.into()));
            }
        }
        None
    }
}
