//! The parsed files of a recipe's `[data]`, before they become a corpus.

use std::collections::HashMap;
use std::path::Path;

use engram_data::DataError;
use engram_data::knowledge::coco;
use engram_data::knowledge::vqa::{self, ImageName, VisualQuestion};
use engram_data::knowledge::{Collector, Counts, EntryLine, Input};
use engram_memory::rows::{EntryFile, EntryLines};
use engram_memory::{Entry, Kind};

use crate::studies::reveal::settings::RevealData;
use crate::study::StudyResult;

pub(super) struct CaptionedImage {
    /// The id of the image.
    pub(super) document: String,
    /// The image's file, relative to `data.path`.
    pub(super) image: String,
    pub(super) captions: Vec<String>,
    /// The index of the file in the recipe's list.
    pub(super) file: usize,
}

/// A question about an image.
pub(super) struct ParsedQuestion {
    pub(super) question: VisualQuestion,
    /// The image's file, relative to `data.path`.
    pub(super) image: String,
    /// The index of the file in the recipe's list.
    pub(super) file: usize,
}

/// An entry from a file, with its line.
pub(super) struct ParsedEntry {
    pub(super) entry: Entry,
    /// The index of the file in the recipe's list.
    pub(super) file: usize,
    pub(super) line: u64,
}

/// The content of the recipe's files.
#[derive(Default)]
pub(super) struct ParsedFiles {
    pub(super) captioned_images: Vec<CaptionedImage>,
    pub(super) questions: Vec<ParsedQuestion>,
    pub(super) entries: Vec<ParsedEntry>,
    /// Notes for the report, such as counts of skipped rows.
    pub(super) notes: Vec<String>,
}

impl ParsedFiles {
    /// Reads all files.
    pub(super) fn read(data: &RevealData) -> StudyResult<Self> {
        let mut files = Self::default();
        files.captions(data)?;
        files.questions(data)?;
        files.entries(data)?;
        Ok(files)
    }

    /// Reads captions. All captions of an image that the model is to describe must be in one file.
    fn captions(&mut self, data: &RevealData) -> StudyResult<()> {
        let folder = Path::new(&data.path);
        for (file, settings) in data.captions.iter().enumerate() {
            let options = settings.coco_options();
            let captioned_images = &mut self.captioned_images;
            let mut collector = Collector::new(|entry: EntryLine| {
                let (image, text) = (entry.image().map(str::to_owned), entry.text());
                if let (Some(document), Some(image)) = (entry.document, image) {
                    match captioned_images.last_mut().filter(|last: &&mut CaptionedImage| {
                        last.file == file && last.document == document
                    }) {
                        Some(last) => last.captions.push(text),
                        None => {
                            let captions = vec![text];
                            captioned_images.push(CaptionedImage {
                                document,
                                image,
                                captions,
                                file,
                            });
                        }
                    }
                }
                Ok(())
            });
            coco::read(Input::open(folder.join(&settings.file))?, &options, &mut collector)?;
            let counts = collector.counts().clone();
            drop(collector);
            self.add_skip_notes(&settings.file, &counts);
        }
        let mut described_in: HashMap<&str, &str> = HashMap::new();
        for parsed in &self.captioned_images {
            let settings = &data.captions[parsed.file];
            if !settings.describe {
                continue;
            }
            if let Some(first) = described_in.insert(&parsed.document, &settings.file) {
                return Err(DataError::Malformed {
                    path: folder.join(&settings.file),
                    place: Some(format!("image {}", parsed.document)),
                    reason: format!("already has captions in {first}, which also sets `describe`"),
                    remedy: "put all captions of an image into one file",
                }
                .into());
            }
        }
        Ok(())
    }

    /// Reads questions with their answers.
    fn questions(&mut self, data: &RevealData) -> StudyResult<()> {
        let folder = Path::new(&data.path);
        for (file, settings) in data.questions.iter().enumerate() {
            let image_name: ImageName = settings.image_name.parse()?;
            let mut questions = Vec::new();
            let mut collector = Collector::new(|_| Ok(()));
            let mut add_question = |question| questions.push(question);
            let open = |file: &str| Input::open(folder.join(file));
            let (input, annotations) = match settings.aokvqa.as_str() {
                "" => (open(&settings.questions)?, Some(open(&settings.annotations)?)),
                aokvqa => (open(aokvqa)?, None),
            };
            vqa::read_questions(input, annotations, &mut collector, &mut add_question)?;
            let counts = collector.counts().clone();
            self.add_skip_notes(settings.name(), &counts);
            for question in questions {
                let Some(image) = image_name.of(&question.image_id) else {
                    let reason =
                        format!("has the image {}, which is not a number", question.image_id);
                    return Err(DataError::Malformed {
                        path: folder.join(settings.name()),
                        place: Some(format!("question {}", question.id)),
                        reason,
                        remedy: "use %s in `image_name` for other ids",
                    }
                    .into());
                };
                self.questions.push(ParsedQuestion { question, image, file });
            }
        }
        Ok(())
    }

    /// Reads entries. Entries without an id get one.
    fn entries(&mut self, data: &RevealData) -> StudyResult<()> {
        let folder = Path::new(&data.path);
        let mut next_id = 0;
        for (file, name) in data.entries.iter().enumerate() {
            let path = folder.join(name);
            let mut lines = EntryLines::open(&EntryFile::json(&path), next_id)?;
            let num_before = self.entries.len();
            while let Some(entry) = lines.next() {
                let entry = entry?;
                if entry.image().is_none() && entry.text().trim().is_empty() {
                    let remedy = "add a text or an `image`, or remove the line";
                    return Err(lines.error("has neither text nor image", remedy).into());
                }
                let empty_field = ["subject", "relation", "object"].into_iter().find(|field| {
                    let text = entry.payload.get(*field).and_then(|text| text.as_str());
                    entry.kind() == Kind::Triple && text.is_some_and(|text| text.trim().is_empty())
                });
                if let Some(field) = empty_field {
                    let reason = format!("is a triple with an empty {field}");
                    return Err(lines.error(reason, "fill it in, or remove the line").into());
                }
                next_id = next_id.max(entry.id.saturating_add(1));
                self.entries.push(ParsedEntry { entry, file, line: lines.line() });
            }
            if self.entries.len() == num_before {
                let remedy = "remove the file from `data.entries`, or write it again with \
                              `engram data entries`";
                return Err(format!(
                    "{}: is an empty source: it has no entries; {remedy}",
                    path.display()
                )
                .into());
            }
        }
        let mut lines_of: HashMap<i64, (usize, u64)> = HashMap::new();
        for ParsedEntry { entry, file, line } in &self.entries {
            if let Some((first, first_line)) = lines_of.insert(entry.id, (*file, *line)) {
                let (name, first) = (&data.entries[*file], &data.entries[first]);
                return Err(DataError::Malformed {
                    path: folder.join(name),
                    place: Some(format!("line {line}")),
                    reason: format!("has the id {} of line {first_line} of {first}", entry.id),
                    remedy: "use unique ids, or no ids",
                }
                .into());
            }
        }
        Ok(())
    }

    /// Adds a note for each reason why rows of a file were skipped.
    fn add_skip_notes(&mut self, file: &str, counts: &Counts) {
        for (reason, count) in &counts.skipped {
            self.notes.push(format!("{file}: {count} skipped: {reason}"));
        }
    }

    /// All images that the files name. For messages, each has the file that names it and the
    /// location in that file.
    pub(super) fn used_images<'a>(
        &'a self,
        data: &'a RevealData,
    ) -> impl Iterator<Item = (&'a str, &'a str, String)> {
        let captioned = self.captioned_images.iter().map(|parsed| {
            let file = &*data.captions[parsed.file].file;
            (&*parsed.image, file, format!("image {}", parsed.document))
        });
        let questions = self.questions.iter().map(|parsed| {
            let location = format!("question {}", parsed.question.id);
            (&*parsed.image, data.questions[parsed.file].name(), location)
        });
        let entries = self.entries.iter().filter_map(|parsed| {
            let location = format!("line {}", parsed.line);
            Some((parsed.entry.image()?, &*data.entries[parsed.file], location))
        });
        captioned.chain(questions).chain(entries)
    }
}
