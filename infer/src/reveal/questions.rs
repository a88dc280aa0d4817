//! Questions about images, in a file of JSON lines.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use engram_textfile::{TextError, base_folder, non_blank_lines, read_text};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Result;

/// A line of the input: a question about an image, or an image to describe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// The id, copied to the answer.
    pub id: Value,
    /// The question; `None` to describe the image.
    #[serde(default, alias = "text")]
    pub question: Option<String>,
    /// The image file, relative to the folder of the question file.
    pub image: PathBuf,
    /// The index of the image in [`Questions::images`].
    #[serde(skip)]
    pub image_index: usize,
    /// The line number in the file; the first line is 1.
    #[serde(skip)]
    pub line: u64,
}

/// Questions, and their distinct images.
#[derive(Debug, Clone, Default)]
pub struct Questions {
    /// The questions.
    pub list: Vec<Question>,
    /// The image files.
    pub images: Vec<PathBuf>,
}

/// The remedy for an invalid line.
const LINE_FORMAT: &str = "a line is {\"id\": …, \"question\": …, \"image\": a path from the \
                           file's folder}, or without a question, for a description of the image";

/// Reads questions from JSON lines.
///
/// # Errors
/// [`TextError::Malformed`] naming the file and line of an invalid question, a missing image or a
/// repeated id.
pub fn read_questions(path: &Path) -> Result<Questions> {
    let text = read_text(path)?;
    let folder = base_folder(path);
    let mut questions = Questions::default();
    let mut index_of: HashMap<PathBuf, usize> = HashMap::new();
    let mut line_of: HashMap<String, u64> = HashMap::new();
    for (number, line) in non_blank_lines(&text) {
        let malformed = |reason: String| TextError::malformed(path, number, reason, LINE_FORMAT);
        let mut question = parse_question(line).map_err(malformed)?;
        if let Some(first) = line_of.insert(question.id.to_string(), number) {
            let id = &question.id;
            return Err(malformed(format!("the id {id} is already used in line {first}")).into());
        }
        let file = folder.join(&question.image);
        if !file.is_file() {
            return Err(malformed(format!("image not found: {}", file.display())).into());
        }
        question.image_index = *index_of.entry(file.clone()).or_insert_with(|| {
            questions.images.push(file);
            questions.images.len() - 1
        });
        question.line = number;
        questions.list.push(question);
    }
    if questions.list.is_empty() {
        let remedy = "write JSON lines, each with `id`, `question` and `image`";
        return Err(TextError::malformed(path, None, "has no questions", remedy).into());
    }
    Ok(questions)
}

/// Parses a line, or returns the reason why it is invalid.
fn parse_question(line: &str) -> Result<Question, String> {
    let without_line = |error: serde_json::Error| error.to_string().replace(" at line 1 ", " at ");
    let fields: Map<String, Value> = serde_json::from_str(line).map_err(without_line)?;
    // Other fields are allowed, but a misspelt `question` would turn the line into a description.
    for key in fields.keys() {
        let known = ["id", "question", "text", "image"];
        if let Some(similar) = known.into_iter().find(|name| key.trim().eq_ignore_ascii_case(name))
            && key != similar
        {
            return Err(format!("has `{key}`; did you mean `{similar}`?"));
        }
    }
    let question: Question = serde_json::from_value(Value::Object(fields)).map_err(without_line)?;
    if question.id.is_null() {
        return Err("has no id".to_owned());
    }
    if question.question.as_ref().is_some_and(|text| text.trim().is_empty()) {
        return Err("has an empty question; remove it for a description of the image".to_owned());
    }
    Ok(question)
}
