//! Reads annotations, results and document frequencies from JSON files, which may be gzipped.

use std::collections::HashMap;
use std::path::Path;

use engram_textfile::{Object, message, read_bytes, shortened};
use serde::Deserialize;

use super::{AnnotatedImage, CaptionAnnotations, CaptionResult, CaptionResults, ImageId};
use crate::error::{EvalError, Location};
use crate::json::cursor::{Cursor, PART_BYTES, Parts, parse_list};
use crate::json::{DistinctKeys, Text, objects};
use crate::metric::caption::cider::DocumentFrequency;

const ANNOTATION_REMEDY: &str = "expected {\"images\": [{\"id\": 1}, …], \"annotations\": [{\"image_id\": 1, \"caption\": \"a dog\"}, …]}";
const RESULT_REMEDY: &str = "expected [{\"image_id\": 1, \"caption\": \"a dog\"}, …]";
const FREQUENCY_REMEDY: &str =
    "expected {\"num_documents\": 5000, \"document_frequency\": {\"a dog\": 120, …}}";

/// Reads annotations of COCO, or of NoCaps, which gives each image a `domain`.
///
/// # Errors
/// [`EvalError::Text`]; as [`parse_annotations`]
pub fn read_annotations(path: &Path) -> Result<CaptionAnnotations, EvalError> {
    parse_annotations(&path.display().to_string(), &read_bytes(path)?)
}

/// Reads results: a list with one caption per image.
///
/// # Errors
/// [`EvalError::Text`]; as [`parse_results`]
pub fn read_results(path: &Path) -> Result<CaptionResults, EvalError> {
    parse_results(&path.display().to_string(), &read_bytes(path)?)
}

/// Reads document frequencies for CIDEr: for each n-gram, the number of documents (images) of a
/// collection that contain it.
///
/// Format: `{"num_documents": 5000, "document_frequency": {"a": 4990, "a dog": 120}}`. An n-gram is
/// one to four tokens joined by single spaces. The key `num_documents` may be named `ref_len`, and
/// `document_frequency` may be named `df`. All numbers count documents and are not logarithms.
///
/// # Errors
/// [`EvalError::Text`]; as [`parse_document_frequency`]
pub fn read_document_frequency(path: &Path) -> Result<DocumentFrequency, EvalError> {
    parse_document_frequency(&path.display().to_string(), &read_bytes(path)?)
}

/// The fields of an annotation file that are read.
#[derive(Deserialize)]
struct AnnotationFile<'a> {
    images: Option<Vec<Object<ImageEntry>>>,
    #[serde(borrow, deserialize_with = "objects")]
    annotations: Vec<CaptionEntry<'a>>,
}

#[derive(Deserialize)]
struct ImageEntry {
    id: Option<ImageId>,
    domain: Option<String>,
}

#[derive(Deserialize)]
struct CaptionEntry<'a> {
    image_id: Option<ImageId>,
    #[serde(borrow)]
    caption: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct FrequencyFile {
    #[serde(alias = "ref_len")]
    num_documents: f64,
    #[serde(alias = "df")]
    document_frequency: DistinctKeys<f64>,
}

/// Like [`read_annotations`], but from uncompressed bytes; `file` is the name for error messages.
///
/// The images keep the order of the list `images`. If the file has no such list, they are in the
/// order of their first captions. (The order matters: see [`caption`](super).)
///
/// # Errors
/// [`EvalError::Malformed`]
pub fn parse_annotations(file: &str, bytes: &[u8]) -> Result<CaptionAnnotations, EvalError> {
    let (image_entries, caption_entries) = match parse_lists(bytes, PART_BYTES) {
        Some(lists) => lists,
        None => {
            let Object(parsed): Object<AnnotationFile<'_>> = parse(file, bytes, ANNOTATION_REMEDY)?;
            let unwrapped = |Object(image)| image;
            let images = parsed.images.map(|list| vec![list.into_iter().map(unwrapped).collect()]);
            (images, vec![parsed.annotations])
        }
    };
    let malformed = |reason| malformed(file, reason, ANNOTATION_REMEDY);
    let mut images: Vec<AnnotatedImage> = Vec::new();
    let mut index = HashMap::new();
    let has_image_list = image_entries.is_some();
    for (entry, image) in image_entries.into_iter().flatten().flatten().enumerate() {
        let entry = entry + 1;
        let Some(id) = image.id else {
            return Err(malformed(format!("entry {entry} of `images` has no `id`")));
        };
        if let Some(first_index) = index.insert(id.clone(), images.len()) {
            let reason = format!(
                "entry {entry} of `images` has the same id {} as entry {}",
                id.for_message(),
                first_index + 1
            );
            return Err(malformed(reason));
        }
        images.push(AnnotatedImage { id, domain: image.domain, references: Vec::new() });
    }
    for (entry, annotation) in caption_entries.into_iter().flatten().enumerate() {
        let entry_name = || format!("entry {} of `annotations`", entry + 1);
        let (id, caption) = id_and_caption(annotation, entry_name).map_err(malformed)?;
        let position = match index.get(&id) {
            Some(&position) => position,
            None if has_image_list => {
                let (id, entry_name) = (id.for_message(), entry_name());
                return Err(malformed(format!("{entry_name} is for image {id}, not in `images`")));
            }
            None => {
                index.insert(id.clone(), images.len());
                images.push(AnnotatedImage { id, domain: None, references: Vec::new() });
                images.len() - 1
            }
        };
        images[position].references.push(caption);
    }
    if images.is_empty() {
        return Err(malformed("has no images".to_owned()));
    }
    Ok(CaptionAnnotations { file: file.to_owned(), images })
}

/// Like [`read_results`], but from uncompressed bytes; `file` is the name for error messages.
///
/// # Errors
/// [`EvalError::Malformed`]
pub fn parse_results(file: &str, bytes: &[u8]) -> Result<CaptionResults, EvalError> {
    let entries = match text(bytes).and_then(|text| parse_list(text, PART_BYTES)) {
        Some(entries) => entries,
        None => {
            let entries: Vec<Object<CaptionEntry<'_>>> = parse(file, bytes, RESULT_REMEDY)?;
            entries.into_iter().map(|Object(entry)| entry).collect()
        }
    };
    let result = |(entry, result): (usize, CaptionEntry<'_>)| {
        let (image_id, caption) = id_and_caption(result, || format!("entry {}", entry + 1))
            .map_err(|reason| malformed(file, reason, RESULT_REMEDY))?;
        Ok::<_, EvalError>(CaptionResult { image_id, caption })
    };
    let results = entries.into_iter().enumerate().map(result).collect::<Result<Vec<_>, _>>()?;
    if results.is_empty() {
        return Err(malformed(file, "has no results".to_owned(), RESULT_REMEDY));
    }
    Ok(CaptionResults { file: file.to_owned(), results })
}

/// Like [`read_document_frequency`], but from uncompressed bytes; `file` is the name for error
/// messages.
///
/// # Errors
/// [`EvalError::Malformed`]
pub fn parse_document_frequency(file: &str, bytes: &[u8]) -> Result<DocumentFrequency, EvalError> {
    let Object(parsed): Object<FrequencyFile> = parse(file, bytes, FREQUENCY_REMEDY)?;
    let documents = parsed.num_documents;
    let refuse = |reason| Err(malformed(file, reason, FREQUENCY_REMEDY));
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

/// Reads both lists of an annotation file in parallel. `None` asks the caller to parse the file
/// serially, for example to get the error.
fn parse_lists(bytes: &[u8], part_bytes: usize) -> Option<Lists<'_>> {
    let mut cursor = Cursor::new(text(bytes)?, part_bytes);
    let (mut images, mut annotations) = (None, None);
    cursor.parse_object(|key, cursor| {
        let is_first = match key {
            "images" => images.replace(cursor.parse_parts()?).is_none(),
            "annotations" => annotations.replace(cursor.parse_parts()?).is_none(),
            _ => return cursor.skip_value(),
        };
        is_first.then_some(())
    })?;
    cursor.expect_end()?;
    Some((images, annotations?))
}

/// The list `images`, or `None` if the file has none, and the captions.
type Lists<'a> = (Option<Parts<ImageEntry>>, Parts<CaptionEntry<'a>>);

/// Returns the id and the caption of an entry; `entry_name` names the entry in messages.
fn id_and_caption(
    entry: CaptionEntry<'_>,
    entry_name: impl Fn() -> String,
) -> Result<(ImageId, String), String> {
    match (entry.image_id, entry.caption) {
        (Some(image_id), Some(Text(caption))) => Ok((image_id, caption.into_owned())),
        (None, _) => Err(format!("{} has no `image_id`", entry_name())),
        (Some(id), None) => {
            Err(format!("{} (image {}) has no `caption`", entry_name(), id.for_message()))
        }
    }
}

/// The text of a file without its byte order mark; `None` if the file is not UTF-8.
fn text(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(without_byte_order_mark(bytes)).ok()
}

fn without_byte_order_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes)
}

fn parse<'a, T: Deserialize<'a>>(
    file: &str,
    bytes: &'a [u8],
    remedy: &'static str,
) -> Result<T, EvalError> {
    serde_json::from_slice(without_byte_order_mark(bytes)).map_err(|error| EvalError::Malformed {
        location: Location::new(file, (error.line() > 0).then_some(error.line() as u64)),
        reason: message(&error),
        remedy,
    })
}

fn malformed(file: &str, reason: String, remedy: &'static str) -> EvalError {
    EvalError::Malformed { location: Location::new(file, None), reason, remedy }
}
