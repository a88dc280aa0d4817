//! A corpus from files of captions, questions and entries.
//!
//! An image and all texts about it get the same split. The memory has no entries about held-out
//! images. An example never retrieves entries of its own image, in training or in the test.

use engram_data::messages::counted;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use engram_data::DataError;
use engram_data::image::Preprocessing;
use engram_data::knowledge::vqa::VisualQuestion;
use engram_data::knowledge::{Input, coco};
use engram_data::world::questions::{Part, Split};
use engram_infer::digest;
use engram_memory::{Entry, EntryLine};

use super::components::Components;
use super::read::{CaptionedImage, ParsedEntry, ParsedFiles};
use super::sources_of;
use super::split::{ImageWithExamples, SplitSettings, draw_splits};
use crate::studies::reveal::settings::{OnBadImage, RevealData};
use crate::study::StudyResult;
use engram_infer::reveal::corpus::{Corpus, CorpusEntry, Example, MetricKind, Task};
use engram_infer::reveal::images::{ImageFiles, Images};

/// Bytes per MiB.
const MIB: u64 = 1 << 20;
/// The remedy for an image that is missing or does not decode.
const REMEDY: &str = "add the file, or set `data.on_bad_image` to \"skip\" or \"text_only\"";

/// The distinct images. Images with equal bytes have the same index.
struct ImageTable {
    /// The index of each image by its name.
    index_of: HashMap<String, usize>,
    /// By index, whether an image decodes.
    is_usable: Vec<bool>,
}

impl ImageTable {
    /// The index of an image; `None` for an unknown name.
    fn index(&self, image: &str) -> Option<usize> {
        self.index_of.get(image).copied()
    }

    /// The index of an image that decodes; `None` for other images.
    fn usable_index(&self, image: &str) -> Option<usize> {
        self.index(image).filter(|index| self.is_usable[*index])
    }
}

/// Reads the files of `[data]`.
pub(super) fn load(
    data: &RevealData,
    image_size: usize,
    preprocessing: Preprocessing,
) -> StudyResult<Corpus> {
    let mut files = ParsedFiles::read(data)?;
    let (images, table, digest) = images(data, image_size, preprocessing, &mut files)?;
    // The components come before bad images are skipped, because a missing image also connects
    // documents.
    let components = components(&table, &files);
    if data.on_bad_image != OnBadImage::Refuse {
        skip_bad_images(data, &table, &mut files);
    }
    let split_of = assign_splits(data, &table, &components, &files)?;
    let assignment = SplitAssignment { components, split_of };
    let items = items(data, &table, &assignment, &mut files)?;
    let mut corpus = Corpus {
        sources: sources_of(&items),
        stored: items.len(),
        items,
        digests: vec![("images".to_owned(), digest)],
        ..Corpus::new(Images::Files(images), image_size)
    };
    examples(data, &table, &assignment, files, &mut corpus)?;
    Ok(corpus)
}

/// Decodes all images once, and returns the SHA-256 of their files.
fn images(
    data: &RevealData,
    size: usize,
    preprocessing: Preprocessing,
    files: &mut ParsedFiles,
) -> StudyResult<(ImageFiles, ImageTable, String)> {
    let folder = Path::new(&data.path);
    let (mut index_of, mut names) = (HashMap::new(), Vec::new());
    for (image, _, _) in files.used_images(data) {
        if !index_of.contains_key(image) {
            index_of.insert(image.to_owned(), names.len());
            names.push(image.to_owned());
        }
    }
    let cached_bytes = data.image_cache_mib.saturating_mul(MIB);
    let paths = names.iter().map(PathBuf::from).collect();
    let image_files =
        ImageFiles::new(folder, paths, size, preprocessing, data.world_seed, cached_bytes);
    let check_results = image_files.check();
    let is_missing = |error: &DataError| {
        matches!(error, DataError::Io { source, .. }
            if source.kind() == std::io::ErrorKind::NotFound)
    };
    let faults = check_results.iter().filter_map(|result| result.as_ref().err());
    let (missing, total) =
        (faults.clone().filter(|fault| is_missing(fault)).count(), check_results.len());
    let broken = faults.clone().count() - missing;
    if missing + broken > 0 {
        let counts = format!("of {total} images, missing: {missing}, not decodable: {broken}");
        let first_fault = files.used_images(data).find_map(|(image, file, location)| {
            Some((check_results[*index_of.get(image)?].as_ref().err()?, file, location, image))
        });
        if let (OnBadImage::Refuse, Some((fault, file, location, image))) =
            (data.on_bad_image, first_fault)
        {
            let reason = match fault {
                DataError::Io { path, .. } if is_missing(fault) => {
                    format!("shows {}, which is missing", path.display())
                }
                fault => format!("shows an image that does not decode: {fault}"),
            };
            let (path, reason) = (folder.join(file), format!("{reason} ({counts})"));
            let settings = data.captions.iter().find(|settings| settings.file == file);
            let line = settings.and_then(|settings| {
                let input = Input::open(&path).ok()?;
                coco::line_of_image(input, &settings.coco_options(), image)
            });
            let location = line.map_or(location, |line| format!("line {line}"));
            return Err(DataError::Malformed {
                path,
                place: Some(location),
                reason,
                remedy: REMEDY,
            }
            .into());
        }
        // The note names the first broken file, not a missing one: users often leave out images.
        let first_broken = faults.clone().find(|fault| !is_missing(fault));
        let first_text =
            first_broken.map_or_else(String::new, |fault| format!(", the first: {fault}"));
        files.notes.push(format!("{counts}{first_text}"));
    }
    let mut first_index_of: HashMap<String, usize> = HashMap::new();
    let identities = names.iter().zip(&check_results).enumerate().map(|(index, (name, result))| {
        let identity = match result {
            Ok(hash) => hash.clone(),
            Err(_) => canonical(&folder.join(name)).display().to_string(),
        };
        *first_index_of.entry(identity).or_insert(index)
    });
    let first_indices: Vec<usize> = identities.collect();
    index_of.values_mut().for_each(|index| *index = first_indices[*index]);
    let is_usable = check_results.iter().map(Result::is_ok).collect();
    let hashes: Vec<String> = check_results.into_iter().map(Result::unwrap_or_default).collect();
    // Names relative to `data.path` are hashed, so that a moved data set has the same hash.
    let lines = names.iter().zip(&hashes).map(|(name, hash)| format!("{name} {hash}"));
    let lines: Vec<String> = lines.collect();
    Ok((image_files, ImageTable { index_of, is_usable }, digest::of_bytes(lines.join("\n"))))
}

/// The canonical path; for a missing file, its name in the canonical path of its folder.
fn canonical(path: &Path) -> PathBuf {
    let in_canonical_folder = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize()
        .ok()
        .or_else(in_canonical_folder)
        .unwrap_or_else(|| path.components().collect())
}

/// The connected components of documents and images.
fn components(table: &ImageTable, files: &ParsedFiles) -> Components {
    let with_index = |image| Some((image, table.index(image)?));
    let captioned = files
        .captioned_images
        .iter()
        .map(|parsed| (Some(&*parsed.document), with_index(&*parsed.image)));
    let questions = files
        .questions
        .iter()
        .map(|parsed| (Some(&*parsed.question.image_id), with_index(&*parsed.image)));
    let entries = files.entries.iter().map(|parsed| {
        (parsed.entry.document.as_deref(), parsed.entry.image().and_then(with_index))
    });
    Components::new(captioned.chain(questions).chain(entries))
}

/// The component of each document and image, and the split of each component. A component beyond
/// `data.max_images` has no split.
struct SplitAssignment {
    components: Components,
    split_of: HashMap<String, Split>,
}

impl SplitAssignment {
    /// The component of a document.
    fn component<'a>(&'a self, document: &'a str) -> &'a str {
        self.components.of(Some(document), None).unwrap_or(document)
    }

    /// Whether a component is in validation or test.
    fn is_held_out(&self, component: &str) -> bool {
        self.split_of.get(component).is_some_and(|split| *split != Split::Train)
    }
}

/// Skips and counts the captions, questions and entries without a usable image, as
/// `data.on_bad_image` says.
fn skip_bad_images(data: &RevealData, table: &ImageTable, files: &mut ParsedFiles) {
    let is_usable = |image: &str| table.usable_index(image).is_some();
    let allows_text_only = data.on_bad_image == OnBadImage::TextOnly;
    let (captioned, questions, entries) =
        (files.captioned_images.len(), files.questions.len(), files.entries.len());
    if !allows_text_only {
        files.captioned_images.retain(|parsed| is_usable(&parsed.image));
        files.questions.retain(|parsed| is_usable(&parsed.image));
    }
    files.entries.retain(|parsed| match parsed.entry.image() {
        Some(image) => {
            is_usable(image) || allows_text_only && !parsed.entry.text().trim().is_empty()
        }
        None => true,
    });
    // A caption of an unusable image can be in the memory, but not a target.
    let undescribed =
        |parsed: &&CaptionedImage| data.captions[parsed.file].describe && !is_usable(&parsed.image);
    let undescribed = files.captioned_images.iter().filter(undescribed).count();
    let without_image = files.questions.iter().filter(|parsed| !is_usable(&parsed.image)).count();
    for (kind, before, now) in [
        ("described images", captioned, files.captioned_images.len() - undescribed),
        ("questions", questions, files.questions.len()),
        ("entries", entries, files.entries.len()),
    ] {
        if now < before {
            files.notes.push(format!("{} of {before} {kind} skipped", before - now));
        }
    }
    if without_image > 0 {
        files
            .notes
            .push(format!("questions asked without their image: {without_image} of {questions}"));
    }
}

/// The split of each component with an example, or with a split given for a file.
fn assign_splits(
    data: &RevealData,
    table: &ImageTable,
    components: &Components,
    files: &ParsedFiles,
) -> StudyResult<HashMap<String, Split>> {
    let with_examples = |document, split, file| {
        let component = components.of(Some(document), None).unwrap_or(document);
        ImageWithExamples { component, document, split, file }
    };
    let captioned = files.captioned_images.iter().filter_map(|parsed| {
        let settings = &data.captions[parsed.file];
        let is_described = settings.describe && table.usable_index(&parsed.image).is_some();
        let is_split = is_described || settings.split.is_some();
        is_split.then(|| with_examples(&*parsed.document, settings.split, &*settings.file))
    });
    let questions = files.questions.iter().map(|parsed| {
        let settings = &data.questions[parsed.file];
        with_examples(&*parsed.question.image_id, settings.split, settings.name())
    });
    let settings = SplitSettings {
        folder: Path::new(&data.path),
        seed: data.world_seed,
        validation_share: data.validation_share,
        test_share: data.test_share,
        max_images: data.max_images,
    };
    Ok(draw_splits(captioned.chain(questions), &settings)?)
}

/// The memory entries: all texts except those about held-out images and those beyond
/// `data.max_images`.
fn items(
    data: &RevealData,
    table: &ImageTable,
    assignment: &SplitAssignment,
    files: &mut ParsedFiles,
) -> StudyResult<Vec<CorpusEntry>> {
    // If `data.max_images` limits the images, texts about other images are skipped too.
    let is_within_limit =
        |component: &str| data.max_images == 0 || assignment.split_of.contains_key(component);
    let captioned =
        files.captioned_images.iter().filter(|parsed| data.captions[parsed.file].describe);
    let questions = files.questions.iter().map(|parsed| &parsed.question.image_id);
    let with_examples: HashSet<String> = captioned
        .map(|parsed| &parsed.document)
        .chain(questions)
        .map(|document| assignment.component(document).to_owned())
        .collect();
    let listed_sources: BTreeSet<String> =
        files.entries.iter().map(|parsed| parsed.entry.source.clone()).collect();
    let corpus_entry = |entry: Entry| {
        let image = entry.image().and_then(|image| table.usable_index(image));
        CorpusEntry::new(entry, image, true)
    };
    let (mut items, mut next_id, mut held_out_entries, mut beyond_limit) =
        (Vec::new(), Some(0), 0, 0);
    for ParsedEntry { mut entry, .. } in std::mem::take(&mut files.entries) {
        next_id = next_id.zip(entry.id.checked_add(1)).map(|(a, b): (i64, i64)| a.max(b));
        // An entry that names only an image file belongs to that image's component.
        let index = entry.image().and_then(|image| table.index(image));
        entry.document = match assignment.components.of(entry.document.as_deref(), index) {
            Some(component) if assignment.is_held_out(component) => {
                held_out_entries += 1;
                continue;
            }
            Some(component) if with_examples.contains(component) && !is_within_limit(component) => {
                beyond_limit += 1;
                continue;
            }
            Some(component) => Some(component.to_owned()),
            // Each such entry is a document of its own. So an example that continues the entry's
            // text does not retrieve the entry itself.
            None => Some(format!("entry {}", entry.id)),
        };
        items.push(corpus_entry(entry));
    }
    items.sort_by_key(|item| item.entry.id);
    if held_out_entries > 0 {
        files
            .notes
            .push(format!("{} about held-out images skipped", counted(held_out_entries, "entry")));
    }
    if beyond_limit > 0 {
        let entries = counted(beyond_limit, "entry");
        files.notes.push(format!("{entries} about images beyond `data.max_images` skipped"));
    }
    let mut add = |entry: EntryLine, component: &str| -> StudyResult<()> {
        let reason = "`data.entries` uses the largest possible id, so no id is left for captions \
                      and questions; number entries from 0";
        let id = next_id.ok_or(reason)?;
        items.push(corpus_entry(entry.of_document(component).with_id(id)));
        next_id = id.checked_add(1);
        Ok(())
    };
    let in_memory =
        |component: &str| !assignment.is_held_out(component) && is_within_limit(component);
    for parsed in &files.captioned_images {
        let component = assignment.component(&parsed.document);
        let source = data.captions[parsed.file].source.as_ref();
        if let Some(source) = source.filter(|_| in_memory(component)) {
            let text = parsed.captions.join(" ");
            let entry = match table.usable_index(&parsed.image) {
                Some(_) => Entry::image_text(source, &parsed.image, text),
                None => Entry::passage(source, text),
            };
            add(entry, component)?;
        }
    }
    for parsed in &files.questions {
        let component = assignment.component(&parsed.question.image_id);
        let source = data.questions[parsed.file].source.as_ref();
        if let Some(source) = source.filter(|_| in_memory(component)) {
            let image = table.usable_index(&parsed.image).map(|_| parsed.image.clone());
            let VisualQuestion { text, answers, .. } = &parsed.question;
            let entry = Entry::question_answer(source, image, text, answers.clone());
            add(entry, component)?;
        }
    }
    let unknown_source = data
        .without_sources
        .iter()
        .find(|name| !items.iter().any(|item| item.entry.source == **name));
    if let Some(name) = unknown_source {
        let known = sources_of(&items).join(", ");
        let reason = format!("`data.without_sources` names `{name}`; choose from {known}");
        return Err(reason.into());
    }
    items.retain(|item| !data.without_sources.contains(&item.entry.source));
    let captions = data.captions.iter().filter_map(|file| file.source.as_ref());
    let questions = data.questions.iter().filter_map(|file| file.source.as_ref());
    let named_sources = captions.chain(questions).chain(&listed_sources);
    for name in named_sources.filter(|name| !data.without_sources.contains(name)) {
        if !items.iter().any(|item| item.entry.source == *name) {
            let remedy = "add images, or remove `source` there";
            let reason = "is an empty source: all its images are held out or skipped";
            return Err(format!("the source `{name}` {reason}; {remedy}").into());
        }
    }
    Ok(items)
}

/// The examples of all splits, and their metrics.
fn examples(
    data: &RevealData,
    table: &ImageTable,
    assignment: &SplitAssignment,
    files: ParsedFiles,
    corpus: &mut Corpus,
) -> StudyResult<()> {
    let folder = PathBuf::from(&data.path);
    let mut own_entry_of: HashMap<(&str, Option<usize>, &str), usize> = HashMap::new();
    for (index, item) in corpus.items.iter().enumerate() {
        if let Some(document) = &item.entry.document {
            let question = item.entry.payload.get("question").and_then(|text| text.as_str());
            let key = (&**document, item.image, question.unwrap_or_default());
            own_entry_of.entry(key).or_insert(index);
        }
    }
    // A component may have several images: prefer entries about the example's own image, then
    // entries without an image.
    let find_own_entry = |component: &str, image_index: Option<usize>, question: &str| {
        let keys = [(image_index, question), (image_index, ""), (None, "")];
        let find = |(image_index, question)| {
            own_entry_of.get(&(component, image_index, question)).copied()
        };
        keys.into_iter().find_map(find)
    };
    let mut examples = Vec::new();
    if data.captions.iter().any(|file| file.describe) {
        corpus.metric_kinds.push(MetricKind::Captions);
    }
    for parsed in files.captioned_images.iter().filter(|parsed| data.captions[parsed.file].describe)
    {
        let (document, image_index) = (&parsed.document, table.usable_index(&parsed.image));
        if image_index.is_some() {
            let captions = &parsed.captions;
            examples.push((Task::Describe, document, document, "", image_index, captions, 0));
        }
    }
    let first_metric_kind = corpus.metric_kinds.len();
    for file in &data.questions {
        let (metric_kind, name) = if file.aokvqa.is_empty() {
            (MetricKind::Vqa(folder.join(&file.annotations)), &file.annotations)
        } else {
            (MetricKind::Aokvqa(folder.join(&file.aokvqa)), &file.aokvqa)
        };
        let path = folder.join(name);
        let (_, hash) = digest::of_file(&path)
            .map_err(|source| DataError::Io { path: path.clone(), source })?;
        corpus.digests.push((name.clone(), hash));
        corpus.metric_kinds.push(metric_kind);
    }
    for parsed in &files.questions {
        let VisualQuestion { id, image_id, text, answers } = &parsed.question;
        let (image_index, kind) =
            (table.usable_index(&parsed.image), first_metric_kind + parsed.file);
        examples.push((Task::Answer, id, image_id, text, image_index, answers, kind));
    }
    for (task, name, document, text, image_index, answers, metric_kind) in examples {
        let component = assignment.component(document);
        let Some(split) = assignment.split_of.get(component) else { continue };
        let list = match split {
            Split::Train => &mut corpus.train,
            Split::Validation => &mut corpus.validation,
            Split::Test => &mut corpus.test,
        };
        list.push(Example {
            id: list.len() as i64,
            task,
            name: name.clone(),
            document: Some(component.to_owned()),
            metric_kind,
            text: text.to_owned(),
            image: image_index,
            group: None,
            view: 0,
            answers: answers.clone(),
            own_entry: find_own_entry(component, image_index, text),
            part: if *split == Split::Train { Part::Seen } else { Part::HeldOut },
            made_up: false,
        });
    }
    let of_items = corpus.items.iter().filter_map(|item| item.image);
    let of_examples = corpus.train.iter().filter_map(|example| example.image);
    corpus.training_images = of_items.chain(of_examples).collect();
    corpus.training_images.sort_unstable();
    corpus.training_images.dedup();
    corpus.notes = files.notes;
    Ok(())
}
