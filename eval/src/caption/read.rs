//! Reads annotations, results and document frequencies from JSON.

use std::borrow::Cow;
use std::collections::HashMap;

use engram_textfile::{Object, shortened};
use serde::Deserialize;

use super::{AnnotatedImage, CaptionAnnotations, CaptionResult, CaptionResults};
use crate::error::{EvalError, malformed};
use crate::ids::Id;
use crate::json::{DistinctKeys, objects, parse, parse_list};
use crate::metric::caption::cider::DocumentFrequency;

const ANNOTATION_REMEDY: &str = "expected {\"images\": [{\"id\": 1}, …], \"annotations\": [{\"image_id\": 1, \"caption\": \"a dog\"}, …]}";
const RESULT_REMEDY: &str = "expected [{\"image_id\": 1, \"caption\": \"a dog\"}, …]";
const FREQUENCY_REMEDY: &str =
    "expected {\"num_documents\": 5000, \"document_frequency\": {\"a dog\": 120, …}}";

/// The fields of an annotation file that are read.
#[derive(Deserialize)]
struct AnnotationFile<'a> {
    #[serde(borrow)]
    images: Option<Vec<Object<ImageEntry<'a>>>>,
    #[serde(borrow, deserialize_with = "objects")]
    annotations: Vec<CaptionEntry<'a>>,
}

#[derive(Deserialize)]
struct ImageEntry<'a> {
    #[serde(borrow)]
    id: Id<'a>,
    domain: Option<String>,
}

#[derive(Deserialize)]
struct CaptionEntry<'a> {
    #[serde(borrow)]
    image_id: Id<'a>,
    #[serde(borrow)]
    caption: Cow<'a, str>,
}

#[derive(Deserialize)]
struct FrequencyFile {
    #[serde(alias = "ref_len")]
    num_documents: f64,
    #[serde(alias = "df")]
    document_frequency: DistinctKeys<f64>,
}

/// Reads annotations of COCO, or of NoCaps, which gives each image a `domain`. `file` is the name
/// for error messages.
///
/// The images keep the order of the list `images`. If the file has no such list, they are in the
/// order of their first captions. (The order matters: see [`caption`](super).)
///
/// # Errors
/// [`EvalError::Text`]
pub fn parse_annotations(file: &str, text: &str) -> Result<CaptionAnnotations, EvalError> {
    let Object(parsed): Object<AnnotationFile<'_>> = parse(file, text, ANNOTATION_REMEDY)?;
    let refuse = |reason: String| Err(malformed(file, None, reason, ANNOTATION_REMEDY));
    let mut images: Vec<AnnotatedImage> = Vec::new();
    let mut index = HashMap::new();
    let has_image_list = parsed.images.is_some();
    for (entry, Object(ImageEntry { id, domain })) in
        parsed.images.into_iter().flatten().enumerate()
    {
        if let Some(first) = index.insert(id.clone(), images.len()) {
            let (id, first, entry) = (id.for_message(), first + 1, entry + 1);
            let reason = format!("entry {entry} of `images` has the same id {id} as entry {first}");
            return refuse(reason);
        }
        images.push(AnnotatedImage { id: id.into_owned(), domain, references: Vec::new() });
    }
    for (entry, CaptionEntry { image_id, caption }) in parsed.annotations.into_iter().enumerate() {
        let position = match index.get(&image_id) {
            Some(position) => *position,
            None if has_image_list => {
                let (id, entry) = (image_id.for_message(), entry + 1);
                let entry = format!("entry {entry} of `annotations` is for image {id}");
                return refuse(format!("{entry}, not in `images`"));
            }
            None => {
                index.insert(image_id.clone(), images.len());
                let id = image_id.into_owned();
                images.push(AnnotatedImage { id, domain: None, references: Vec::new() });
                images.len() - 1
            }
        };
        images[position].references.push(caption.into_owned());
    }
    if images.is_empty() {
        return refuse("has no images".to_owned());
    }
    Ok(CaptionAnnotations { file: file.to_owned(), images })
}

/// Reads results: a list with one caption per image. `file` is the name for error messages.
///
/// # Errors
/// [`EvalError::Text`]
pub fn parse_results(file: &str, text: &str) -> Result<CaptionResults, EvalError> {
    let entries: Vec<CaptionEntry<'_>> = parse_list(file, text, RESULT_REMEDY)?;
    if entries.is_empty() {
        return Err(malformed(file, None, "has no results", RESULT_REMEDY));
    }
    let result = |CaptionEntry { image_id, caption }: CaptionEntry<'_>| CaptionResult {
        image_id: image_id.into_owned(),
        caption: caption.into_owned(),
    };
    let results = entries.into_iter().map(result).collect();
    Ok(CaptionResults { file: file.to_owned(), results })
}

/// Reads document frequencies for CIDEr: for each n-gram, the number of documents (images) of a
/// collection that contain it. `file` is the name for error messages.
///
/// Format: `{"num_documents": 5000, "document_frequency": {"a": 4990, "a dog": 120}}`. An n-gram is
/// one to four tokens joined by single spaces. The key `num_documents` may be named `ref_len`, and
/// `document_frequency` may be named `df`. All numbers count documents and are not logarithms.
///
/// # Errors
/// [`EvalError::Text`]
pub fn parse_document_frequency(file: &str, text: &str) -> Result<DocumentFrequency, EvalError> {
    let Object(parsed): Object<FrequencyFile> = parse(file, text, FREQUENCY_REMEDY)?;
    let documents = parsed.num_documents;
    let refuse = |reason: String| Err(malformed(file, None, reason, FREQUENCY_REMEDY));
    if !(documents.is_finite() && documents >= 1.0) {
        return refuse(format!("`num_documents` is {documents}, but must be at least 1"));
    }
    // Reports the alphabetically first n-gram, so that the message is always the same.
    let DistinctKeys(counts) = parsed.document_frequency;
    let invalid = counts
        .iter()
        .filter(|&(_, &count)| !(0.0..=documents).contains(&count))
        .min_by_key(|&(ngram, _)| ngram);
    if let Some((ngram, count)) = invalid {
        let ngram = shortened(ngram, 60);
        return refuse(format!("`{ngram}` is in {count} of {documents} documents"));
    }
    Ok(DocumentFrequency { documents, counts })
}
