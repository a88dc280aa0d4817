//! Visual question answering data: VQA v1, VQA v2 and OK-VQA (a questions file and an annotations
//! file), and A-OKVQA (one list).
//!
//! # Source   `data/vqa_table_dataset.py` of REVEAL's released code (google-research/scenic,
//! `projects/knowledge_visual_language`, commit 03c3032): one text per image, made from all its
//! questions: `Question: Q Answer: a1, a2,  <extra_id_99> ` (`, ` follows each answer, including
//! the last). Its `top_answers` are not in the published files. Here they are the distinct answers,
//! the most frequent first; ties keep the order of the file.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::str::FromStr;

use engram_textfile::{Input, shortened};
use serde::Deserialize;

use super::json::{Id, Item, Lists, WHOLE, missing_list, read_lists};
use super::{
    Argument, ArgumentKind, Collector, DataSet, Entry, Reason, Request, Rule, SEPARATOR, Sample,
};
use crate::DataError;

/// The data set for the command and the tests.
pub const DATA_SET: DataSet = DataSet {
    name: "vqa",
    about: "Convert visual questions and answers: VQA, OK-VQA, A-OKVQA",
    source: "vqa",
    arguments: &[
        Argument::file("questions", "Question file of VQA or OK-VQA (repeatable)")
            .rule(Rule::RequiredUnless("aokvqa")),
        Argument::file("annotations", "Annotation file for each question file, in the same order"),
        Argument::file("aokvqa", "A-OKVQA file with questions and answers (repeatable)")
            .rule(Rule::Without(&["questions", "annotations"])),
        Argument::new(
            ArgumentKind::Checked(|pattern| pattern.parse::<ImageName>().map(drop)),
            "image-name",
            "PATTERN",
            "Pattern of image file names, where %012d, %d or %s stands for the image id; give one \
             for all question files, or one for each",
        ),
        Argument::switch(
            "per-image",
            "Join all questions of an image to one entry, with REVEAL's text format",
        ),
    ],
    formats: "",
    examples: &[
        "--questions train_questions.json --annotations train_annotations.json \\
      --questions val_questions.json --annotations val_annotations.json \\
      --image-name COCO_train2014_%012d.jpg --image-name COCO_val2014_%012d.jpg \\
      --per-image --out vqa.jsonl",
        "--aokvqa aokvqa_v1p0_val.json --image-name val2017/%012d.jpg \\
      --out aokvqa.jsonl",
    ],
    samples: &[
        Sample { line: "--questions q.json --annotations a.json", files: SAMPLE },
        Sample {
            line: "--questions q.json --annotations a.json --image-name %012d.jpg --per-image",
            files: SAMPLE,
        },
        Sample { line: "--aokvqa q.json", files: AOKVQA_SAMPLE },
        Sample { line: "--aokvqa q.json --image-name %012d.jpg --per-image", files: AOKVQA_SAMPLE },
    ],
    read: read_files,
};

const SAMPLE: &[(&str, &str)] = &[
    ("q.json", r#"{"questions": [{"question_id": 1, "image_id": 9, "question": "What?"}]}"#),
    ("a.json", r#"{"annotations": [{"question_id": 1, "answers": [{"answer": "cat"}]}]}"#),
];
const AOKVQA_SAMPLE: &[(&str, &str)] = &[(
    "q.json",
    r#"[{"question_id": "a", "image_id": 9, "question": "What?", "direct_answers": ["cat"]}]"#,
)];

const ANNOTATIONS: Lists = Lists {
    names: &["annotations"],
    remedy: "use the annotations of VQA or OK-VQA: {\"annotations\": [{\"question_id\", \
             \"answers\": [{\"answer\"}]}]}",
};
const QUESTIONS: Lists = Lists {
    names: &["questions"],
    remedy: "use the questions of VQA or OK-VQA: {\"questions\": [{\"question_id\", \
             \"image_id\", \"question\"}]}",
};
const AOKVQA: Lists = Lists {
    names: &[WHOLE],
    remedy: "use the list of A-OKVQA: [{\"question_id\", \"image_id\", \"question\", \
             \"direct_answers\": [\"…\"]}]",
};

/// The maximum number of digits in a file name.
const MAX_DIGITS: usize = 64;

/// A pattern for image file names, from the image id: `COCO_val2014_%012d.jpg`.
///
/// ```
/// use engram_data::knowledge::vqa::ImageName;
///
/// let name: ImageName = "COCO_val2014_%012d.jpg".parse()?;
/// assert_eq!(name.of("42").as_deref(), Some("COCO_val2014_000000000042.jpg"));
/// assert_eq!(name.of("a cat"), None);
/// # Ok::<(), engram_data::DataError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageName {
    prefix: String,
    /// The minimum number of digits; `None` for an id of any kind (`%s`).
    min_digits: Option<usize>,
    suffix: String,
}

impl ImageName {
    /// Returns the file name of an image; `None` if the pattern needs a number and the id is not a
    /// number.
    pub fn of(&self, id: &str) -> Option<String> {
        let Self { prefix, min_digits, suffix } = self;
        match min_digits {
            Some(_) if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_digit()) => None,
            digits => Some(format!("{prefix}{id:0>width$}{suffix}", width = digits.unwrap_or(0))),
        }
    }
}

impl FromStr for ImageName {
    type Err = DataError;

    fn from_str(pattern: &str) -> Result<Self, DataError> {
        let invalid = || {
            let pattern = format!("{:?}", shortened(pattern, 200));
            let wanted = "write %d, %012d or %s once, in place of the image id";
            DataError::out_of_range("the file name pattern", pattern, wanted)
        };
        let (prefix, placeholder) = pattern.split_once('%').ok_or_else(invalid)?;
        let end = placeholder.find(['d', 's']).ok_or_else(invalid)?;
        let (width, suffix) = (&placeholder[..end], &placeholder[end + 1..]);
        let min_digits = match (placeholder.as_bytes()[end], width.strip_prefix('0')) {
            (b's', None) if width.is_empty() => None,
            (b'd', None) if width.is_empty() => Some(0),
            (b'd', Some(digits)) => {
                let digits = digits.parse().ok().filter(|digits| *digits <= MAX_DIGITS);
                Some(digits.ok_or_else(invalid)?)
            }
            _ => return Err(invalid()),
        };
        if suffix.contains('%') {
            return Err(invalid());
        }
        Ok(Self { prefix: prefix.to_owned(), min_digits, suffix: suffix.to_owned() })
    }
}

#[derive(Deserialize)]
struct Annotation<'a> {
    question_id: Id,
    #[serde(borrow)]
    answers: Vec<Answer<'a>>,
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    answer: Cow<'a, str>,
}

/// A question; in A-OKVQA, it includes its answers.
#[derive(Deserialize)]
struct Question<'a> {
    question_id: Id,
    image_id: Id,
    #[serde(borrow)]
    question: Cow<'a, str>,
    #[serde(borrow)]
    direct_answers: Option<Vec<Cow<'a, str>>>,
}

/// A question about an image with all human answers, for evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisualQuestion {
    /// The question id.
    pub id: String,
    /// The image id.
    pub image_id: String,
    /// The question.
    pub text: String,
    /// The distinct answers, the most frequent first.
    pub answers: Vec<String>,
}

/// Passes each question with its answers to `each`, in the order of the questions. `annotations` is
/// `None` for A-OKVQA. `collector` only counts records and receives no entries.
///
/// # Errors
/// [`DataError::Malformed`] and [`DataError::Text`].
pub fn read_questions(
    questions: Input<'_>,
    annotations: Option<Input<'_>>,
    collector: &mut Collector<'_>,
    each: &mut dyn FnMut(VisualQuestion),
) -> Result<(), DataError> {
    let mut entries = Entries { each: Some(each), ..Entries::default() };
    add_all(questions, annotations, &mut entries, collector)
}

/// Passes the questions with their answers to `collector`, in the order of the questions. With
/// `per-image`, entries are in the order of the images' first questions. The document of an entry is
/// the image id. Each question is one record of the counts.
fn read_files(request: &Request<'_>, collector: &mut Collector<'_>) -> Result<(), DataError> {
    let [questions, annotations] = ["questions", "annotations"].map(|name| request.inputs(name));
    let aokvqa = request.inputs("aokvqa");
    if questions.len() != annotations.len() {
        let (questions, annotations) = (questions.len(), annotations.len());
        let reason = format!("{questions} question files, {annotations} annotation files");
        let remedy = "give one of each, in the same order";
        return Err(DataError::Arguments { reason, remedy });
    }
    let count = questions.len() + aokvqa.len();
    let image_names = request.texts("image-name");
    let names: Vec<Option<&String>> = match image_names.len() {
        0 => vec![None; count],
        1 => vec![image_names.first(); count],
        given if given == count => image_names.iter().map(Some).collect(),
        given => {
            let reason = format!("{given} image names for {count} question files");
            let remedy = "give one, or one for each file";
            return Err(DataError::Arguments { reason, remedy });
        }
    };
    let pairs = annotations.zip(questions).map(|(annotations, questions)| {
        // The annotations are opened first.
        annotations.and_then(|annotations| Ok((questions?, Some(annotations))))
    });
    let files = pairs.chain(aokvqa.map(|questions| Ok((questions?, None))));
    for (file, name) in files.zip(names) {
        let (questions, annotations) = file?;
        let image_name = name.map(|name| name.parse()).transpose()?;
        let (source, per_image) = (&*request.source, request.has("per-image"));
        let mut entries = Entries { source, image_name, per_image, ..Entries::default() };
        add_all(questions, annotations, &mut entries, collector)?;
        entries.finish(collector)?;
    }
    Ok(())
}

fn add_all(
    questions: Input<'_>,
    annotations: Option<Input<'_>>,
    entries: &mut Entries<'_>,
    collector: &mut Collector<'_>,
) -> Result<(), DataError> {
    let Some(annotations) = annotations else {
        let read = read_lists(questions, &AOKVQA, &mut |item| {
            entries.add_question(item, collector, |question| {
                Some(distinct(question.direct_answers.iter().flatten().map(|answer| &**answer)))
            })
        });
        return read.map(drop);
    };
    let file = annotations.file().to_owned();
    let mut answers = HashMap::new();
    let found_lists = read_lists(annotations, &ANNOTATIONS, &mut |item| {
        let parsed = item.parse_object().and_then(|Annotation { question_id, answers: all }| {
            check_first(item, &question_id, !answers.contains_key(&question_id))?;
            Ok((question_id, distinct(all.iter().map(|answer| &*answer.answer))))
        });
        if let Some((id, distinct)) = collector.accept(parsed)? {
            answers.insert(id, distinct);
        }
        Ok(())
    })?;
    if found_lists.is_empty() {
        return Err(missing_list(&file, "annotations", ANNOTATIONS.remedy));
    }
    let file = questions.file().to_owned();
    let found_lists = read_lists(questions, &QUESTIONS, &mut |item| {
        entries.add_question(item, collector, |question| answers.remove(&question.question_id))
    })?;
    if found_lists.is_empty() {
        return Err(missing_list(&file, "questions", QUESTIONS.remedy));
    }
    answers.into_keys().for_each(|_| collector.skip(Reason::NoQuestion));
    Ok(())
}

/// Returns the distinct answers, the most frequent first, without blank answers.
fn distinct<'a>(answers: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    let mut indices = HashMap::new();
    for answer in answers.map(str::trim).filter(|answer| !answer.is_empty()) {
        let index = *indices.entry(answer).or_insert(counts.len());
        if index == counts.len() {
            counts.push((answer, 0));
        }
        counts[index].1 += 1;
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.into_iter().map(|(answer, _)| answer.to_owned()).collect()
}

fn check_first(item: &Item<'_>, id: &Id, is_first: bool) -> Result<(), DataError> {
    if is_first {
        return Ok(());
    }
    Err(item.error(format!("question {} appears twice", shortened(&id.0, 60))))
}

/// Makes entries from questions.
#[derive(Default)]
struct Entries<'o> {
    /// The source name of the entries.
    source: &'o str,
    /// The pattern of image file names; with `None`, the entries have no image.
    image_name: Option<ImageName>,
    /// Whether all questions of an image become one entry, with REVEAL's text. Otherwise each
    /// question becomes an entry.
    per_image: bool,
    /// The ids of the questions so far.
    seen: HashSet<Id>,
    /// The id and the text of each image.
    images: Vec<(Id, String)>,
    /// The index in `images` of each image id.
    image_indices: HashMap<Id, usize>,
    /// Receives the questions; if it is set, no entries are made from them.
    each: Option<&'o mut dyn FnMut(VisualQuestion)>,
}

impl Entries<'_> {
    fn add_question(
        &mut self,
        item: &Item<'_>,
        collector: &mut Collector<'_>,
        find_answers: impl FnOnce(&Question<'_>) -> Option<Vec<String>>,
    ) -> Result<(), DataError> {
        collector.count_record();
        let parsed = item.parse_object().and_then(|question: Question<'_>| {
            check_first(item, &question.question_id, !self.seen.contains(&question.question_id))?;
            let image = self.image_file(&question.image_id);
            Ok((question, image.map_err(|reason| item.error(reason))?))
        });
        let Some((question, image)) = collector.accept(parsed)? else { return Ok(()) };
        let answers = find_answers(&question).unwrap_or_default();
        let Question { question_id, image_id, question, .. } = question;
        self.seen.insert(question_id.clone());
        let question = question.trim();
        if question.is_empty() {
            collector.skip(Reason::NoText);
        } else if answers.is_empty() {
            collector.skip(Reason::NoAnswer);
        } else if let Some(each) = &mut self.each {
            let (id, image_id) = (question_id.0.to_string(), image_id.0.to_string());
            each(VisualQuestion { id, image_id, text: question.to_owned(), answers });
        } else if self.per_image {
            let index = *self.image_indices.entry(image_id.clone()).or_insert(self.images.len());
            if index == self.images.len() {
                self.images.push((image_id, String::new()));
            }
            let text = &mut self.images[index].1;
            text.push_str(&format!("Question: {question} Answer: "));
            answers.iter().for_each(|answer| text.extend([answer, ", "]));
            text.push_str(SEPARATOR);
        } else {
            let entry = Entry::question_answer(self.source, image, question, answers);
            collector.emit(entry.of_document(image_id.0))?;
        }
        Ok(())
    }

    fn finish(mut self, collector: &mut Collector<'_>) -> Result<(), DataError> {
        for (id, text) in std::mem::take(&mut self.images) {
            let entry = match self.image_name.as_ref().and_then(|name| name.of(&id.0)) {
                Some(image) => Entry::image_text(self.source, image, text),
                None => Entry::passage(self.source, text),
            };
            collector.emit(entry.of_document(id.0))?;
        }
        Ok(())
    }

    /// Returns the image file name, if there is a pattern.
    fn image_file(&self, id: &Id) -> Result<Option<String>, String> {
        let Some(name) = &self.image_name else { return Ok(None) };
        let reason = || format!("image id {} is not a number", shortened(&id.0, 60));
        name.of(&id.0).map(Some).ok_or_else(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_one_placeholder_for_the_id() {
        let file_name = |pattern: &str, id| pattern.parse::<ImageName>().unwrap().of(id);
        assert_eq!(file_name("%d.png", "007").as_deref(), Some("007.png"));
        assert_eq!(file_name("%03d", "12345").as_deref(), Some("12345"));
        assert_eq!(file_name("a/%s.jpg", "b c").as_deref(), Some("a/b c.jpg"));
        assert_eq!(file_name("%03d", "-1"), None);
        for pattern in ["", "a.jpg", "%", "%x", "%5d", "%065d", "%0d", "%d%d", "%0s", "%é"] {
            let error = pattern.parse::<ImageName>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("the file name pattern is {pattern:?}")), "{error}");
        }
    }

    #[test]
    fn answers_are_sorted_by_count_and_then_in_file_order() {
        let answers = ["b", "a", " ", "c", "a ", "c", "d"];
        assert_eq!(distinct(answers.into_iter()), ["a", "c", "b", "d"]);
    }

    #[test]
    fn many_distinct_answers_keep_the_file_order() {
        let answers: Vec<String> = (0..300_000).map(|number| number.to_string()).collect();
        assert_eq!(distinct(answers.iter().map(String::as_str)), answers);
    }
}
