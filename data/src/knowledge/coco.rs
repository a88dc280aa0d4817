//! Captions of COCO and of data sets in its format (NoCaps, Flickr30k). Three formats are
//! supported: the official file (`images` and `annotations`), Karpathy's `dataset_coco.json`, whose
//! images hold their captions and their split, and a CSV with the columns `image`, `caption` and
//! optionally `split`.
//!
//! REVEAL's memory has VQA questions about COCO images, but no COCO captions.

mod table;

use std::borrow::Cow;
use std::collections::HashMap;

use engram_textfile::{Input, TextError, shortened};
use serde::Deserialize;

use super::json::{Id, Item, Lists, missing_list, read_lists};
use super::{Argument, ArgumentKind, Collector, DataSet, Entry, Reason, Rule, SEPARATOR, Sample};
use crate::DataError;
pub use table::line_of_image;

/// The data set for the command and the tests.
pub const DATA_SET: DataSet = DataSet {
    name: "coco",
    about: "Convert captions of COCO or NoCaps, also from Karpathy's files or from a CSV",
    source: "coco",
    arguments: &[
        Argument::new(
            ArgumentKind::Files,
            "files",
            "FILES",
            "Caption files; a CSV has the columns image, caption and optionally split",
        )
        .rule(Rule::Required),
        Argument::new(
            ArgumentKind::Text,
            "folder",
            "NAME",
            "Folder name to put before the image file names",
        ),
        Argument::switch("join", "Join all captions of an image to one entry"),
        Argument::new(
            ArgumentKind::List,
            "split",
            "NAME",
            "Keep only these splits of a CSV or of Karpathy's file (train, restval, val, test)",
        ),
    ],
    formats: "",
    examples: &[
        "captions_train2017.json --folder train2017 --out coco.jsonl",
        "dataset_coco.json --split train,restval --join --out coco.jsonl",
        "captions.csv --out captions.jsonl",
    ],
    samples: &[
        Sample { line: "coco.json --folder images/", files: &[("coco.json", OFFICIAL_SAMPLE)] },
        Sample { line: "coco.json --join", files: &[("coco.json", OFFICIAL_SAMPLE)] },
        Sample { line: "coco.json --join --split train", files: &[("coco.json", KARPATHY_SAMPLE)] },
        Sample {
            line: "captions.csv --join --split train",
            files: &[("captions.csv", "image,caption,split\n1.jpg,a door,train\n")],
        },
    ],
    read: |request, collector| {
        let options = CocoOptions {
            source: request.source.clone(),
            folder: request.text("folder"),
            join: request.has("join"),
            splits: request.texts("split"),
            ..CocoOptions::default()
        };
        request.inputs("files").try_for_each(|input| read(input?, &options, collector))
    },
};

const OFFICIAL_SAMPLE: &str = r#"{"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": [
{"image_id": 1, "caption": "a dog"}, {"image_id": 1, "caption": "a cat"}]}"#;
const KARPATHY_SAMPLE: &str = r#"{"images": [{"cocoid": 5, "filename": "a.jpg",
"filepath": "val2014", "split": "train", "sentences": [{"raw": "a man"}, {"raw": " "}]}]}"#;

const LISTS: Lists = Lists { names: &["images", "annotations"], remedy: REMEDY };
const REMEDY: &str = "use the captions of COCO or NoCaps ({\"images\": [{\"id\", \"file_name\"}], \
                      \"annotations\": [{\"image_id\", \"caption\"}]}) or dataset_coco.json";

/// Options for reading captions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CocoOptions {
    /// The source name of the entries.
    pub source: String,
    /// The folder to prepend to image file names; `None` leaves them unchanged.
    pub folder: Option<String>,
    /// Whether all captions of an image become one entry, joined by [`SEPARATOR`].
    pub join: bool,
    /// The splits to keep, for Karpathy's file (`train`, `restval`, `val`, `test`) and for a CSV
    /// with a column `split`. An empty list keeps all splits.
    pub splits: Vec<String>,
    /// The columns of the image and of the caption in a CSV.
    pub columns: [String; 2],
}

impl Default for CocoOptions {
    fn default() -> Self {
        Self {
            source: "coco".to_owned(),
            folder: None,
            join: false,
            splits: Vec::new(),
            columns: ["image", "caption"].map(str::to_owned),
        }
    }
}

impl CocoOptions {
    /// The path of an image in its entry.
    fn image_path(&self, name: &str) -> String {
        match self.folder.as_deref().unwrap_or_default() {
            "" => name.to_owned(),
            folder => format!("{}/{name}", folder.trim_end_matches('/')),
        }
    }
}

#[derive(Deserialize)]
struct Image<'a> {
    id: Option<Id>,
    #[serde(borrow)]
    file_name: Option<Cow<'a, str>>,
    // Fields of Karpathy's file.
    cocoid: Option<Id>,
    imgid: Option<Id>,
    #[serde(borrow)]
    filename: Option<Cow<'a, str>>,
    #[serde(borrow)]
    filepath: Option<Cow<'a, str>>,
    #[serde(borrow)]
    split: Option<Cow<'a, str>>,
    #[serde(borrow)]
    sentences: Option<Vec<Sentence<'a>>>,
}

#[derive(Deserialize)]
struct Sentence<'a> {
    #[serde(borrow)]
    raw: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Annotation<'a> {
    image_id: Id,
    #[serde(borrow)]
    caption: Cow<'a, str>,
}

/// Passes each caption with its image to `collector`, or each image with all its captions. The
/// document of an entry is the image id; in a CSV, it is the image name. Entries are in the order
/// of the images, and each caption is one record of the counts.
///
/// # Errors
/// [`DataError::Malformed`], [`DataError::Text`], and the errors of the collector's sink; see
/// [`Collector::new`].
pub fn read(
    input: Input<'_>,
    options: &CocoOptions,
    collector: &mut Collector<'_>,
) -> Result<(), DataError> {
    let file = input.file().to_owned();
    if table::is_table(&file) {
        return table::read(input, options, collector);
    }
    let mut official = Official::default();
    let mut is_karpathy = false;
    let found_lists = read_lists(input, &LISTS, &mut |item| {
        if item.list == "annotations" {
            return official.add_annotation(item, collector);
        }
        let Some(image) = collector.accept(item.parse_object::<Image<'_>>())? else {
            return Ok(());
        };
        is_karpathy |= image.sentences.is_some();
        match image.sentences {
            Some(_) => read_karpathy(item, image, options, collector),
            None => official.add_image(item, image, collector),
        }
    })?;
    match LISTS.names.iter().find(|list| !found_lists.contains(list)) {
        Some(&"annotations") if is_karpathy => {}
        Some(list) => return Err(missing_list(&file, list, REMEDY)),
        None => {}
    }
    if !is_karpathy && !options.splits.is_empty() {
        let remedy = "request no split, or use Karpathy's dataset_coco.json";
        return Err(TextError::malformed(file, None, "has no splits", remedy).into());
    }
    official.emit_all(options, collector)
}

fn read_karpathy(
    item: &Item<'_>,
    image: Image<'_>,
    options: &CocoOptions,
    collector: &mut Collector<'_>,
) -> Result<(), DataError> {
    let sentences = image.sentences.unwrap_or_default();
    sentences.iter().for_each(|_| collector.count_record());
    let split = image.split.as_deref().unwrap_or_default();
    if !options.splits.is_empty() && !options.splits.iter().any(|option| option == split) {
        sentences.iter().for_each(|_| collector.skip(Reason::OtherSplit));
        return Ok(());
    }
    let checked = match (image.cocoid.or(image.imgid), image.filename) {
        (Some(id), Some(name)) => Ok((id, name)),
        _ => Err(item.error("has no `cocoid` (or `imgid`) or no `filename`")),
    };
    let Some((id, name)) = collector.accept(checked)? else { return Ok(()) };
    let name = match image.filepath.as_deref().unwrap_or_default() {
        "" => name.into_owned(),
        folder => format!("{folder}/{name}"),
    };
    let captions = sentences.into_iter().map(|sentence| sentence.raw.into_owned()).collect();
    emit_captions(&id, &name, captions, options, collector)
}

/// The content of the official file, collected until the end.
#[derive(Default)]
struct Official {
    images: Vec<(Id, String)>,
    captions: HashMap<Id, Vec<String>>,
    /// The index of each image's item in the file.
    item_indices: HashMap<Id, usize>,
}

impl Official {
    fn add_image(
        &mut self,
        item: &Item<'_>,
        image: Image<'_>,
        collector: &mut Collector<'_>,
    ) -> Result<(), DataError> {
        let checked = match (image.id, image.file_name) {
            (Some(id), Some(name)) => match self.item_indices.get(&id) {
                None => Ok((id, name.into_owned())),
                Some(first) => Err(item.error(format!(
                    "image {} is already in item {}",
                    shortened(&id.0, 60),
                    first + 1
                ))),
            },
            _ => Err(item.error("has no `id` or no `file_name`")),
        };
        if let Some((id, name)) = collector.accept(checked)? {
            self.item_indices.insert(id.clone(), item.index);
            self.images.push((id, name));
        }
        Ok(())
    }

    fn add_annotation(
        &mut self,
        item: &Item<'_>,
        collector: &mut Collector<'_>,
    ) -> Result<(), DataError> {
        collector.count_record();
        if let Some(Annotation { image_id, caption }) = collector.accept(item.parse_object())? {
            self.captions.entry(image_id).or_default().push(caption.into_owned());
        }
        Ok(())
    }

    fn emit_all(
        mut self,
        options: &CocoOptions,
        collector: &mut Collector<'_>,
    ) -> Result<(), DataError> {
        for (id, name) in self.images {
            let captions = self.captions.remove(&id).unwrap_or_default();
            emit_captions(&id, &name, captions, options, collector)?;
        }
        self.captions.into_values().flatten().for_each(|_| collector.skip(Reason::NoImage));
        Ok(())
    }
}

/// Passes the captions of an image to `collector`.
fn emit_captions(
    id: &Id,
    name: &str,
    captions: Vec<String>,
    options: &CocoOptions,
    collector: &mut Collector<'_>,
) -> Result<(), DataError> {
    if captions.is_empty() {
        collector.skip(Reason::NoText);
    }
    let mut texts = Vec::with_capacity(captions.len());
    for caption in captions {
        match caption.trim() {
            "" => collector.skip(Reason::NoText),
            caption => texts.push(caption.to_owned()),
        }
    }
    if options.join && !texts.is_empty() {
        texts = vec![texts.join(SEPARATOR)];
    }
    let image = options.image_path(name);
    texts.into_iter().try_for_each(|text| {
        collector.emit(Entry::image_text(&options.source, &image, text).of_document(&*id.0))
    })
}
