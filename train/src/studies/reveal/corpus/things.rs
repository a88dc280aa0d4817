//! A corpus of named things: the memory has the clean picture of each thing with its names, and a
//! question shows another view of the thing and asks for its name in a language.
//!
//! No training question is about a thing of validation or test; its entries are in the memory only.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use engram_data::folder;
use engram_data::messages::counted;
use engram_data::pictures::language_name;
use engram_data::world::images::images as emoji;
use engram_data::world::questions::{Part, Split};
use engram_infer::digest;
use engram_infer::reveal::corpus::{Corpus, CorpusEntry, Example, MetricKind, Task};
use engram_infer::reveal::cut_outs::CutOuts;
use engram_infer::reveal::images::{FIRST_TRAINING_VIEW, Images};
use engram_memory::rows::{EntryFile, EntryLines};
use engram_memory::{Entry, EntryLine};
use image::RgbaImage;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::studies::reveal::settings::{RevealData, Things};
use crate::study::StudyResult;

/// The source of the entries.
const SOURCE: &str = "names";
/// Fraction of things that a language must name to be used by default.
const NAMED_SHARE: f64 = 0.95;
/// The endings of background files.
const PHOTOGRAPHS: [&str; 4] = ["jpg", "jpeg", "png", "webp"];
/// The languages of a validation or test question, for each picture.
const QUESTIONS_PER_PICTURE: usize = 8;

/// A picture with its names.
struct Thing {
    document: String,
    image: PathBuf,
    /// The name in each language of the corpus; `None` without a short name.
    names: Vec<Option<String>>,
    split: Split,
}

/// Reads the pictures that `data.things` names.
pub(super) fn load(data: &RevealData, settings: &Things, size: usize) -> StudyResult<Corpus> {
    let folder = Path::new(&data.path);
    let (languages, mut things) = read(&folder.join(&settings.file), settings)?;
    if data.max_images > 0 {
        things.truncate(data.max_images);
    }
    let mut rng = ChaCha8Rng::seed_from_u64(data.world_seed);
    let mut corpus =
        Corpus::of_images(Vec::new(), size, engram_infer::reveal::images::squared(size));
    corpus.sources = vec![SOURCE.to_owned()];
    corpus.metric_kinds = vec![MetricKind::Entries];
    let mut unnamed = 0;
    for (image, thing) in things.iter().enumerate() {
        let path = thing.image.display().to_string();
        let mut questions = Vec::new();
        for (language, name) in languages.iter().zip(&thing.names) {
            let Some(name) = name else {
                unnamed += 1;
                continue;
            };
            let index = corpus.items.len();
            let entry = EntryLine::image_text(SOURCE, &path, statement(language, name));
            let entry = entry.of_document(&thing.document).with_id(index as i64);
            corpus.items.push(item(entry, Some(image), thing.split == Split::Train));
            questions.push((language, name, index));
        }
        let (examples, part, limit) = match thing.split {
            Split::Train => (&mut corpus.train, Part::Seen, usize::MAX),
            Split::Validation => (&mut corpus.validation, Part::HeldOut, QUESTIONS_PER_PICTURE),
            Split::Test => (&mut corpus.test, Part::HeldOut, QUESTIONS_PER_PICTURE),
        };
        if part == Part::HeldOut {
            questions.shuffle(&mut rng);
        }
        for (language, name, index) in questions.into_iter().take(limit) {
            let view = 1 + examples.len() as u32 % (FIRST_TRAINING_VIEW - 1);
            examples.push(Example {
                image: Some(image),
                view,
                part,
                ..question(language, name, index, examples.len())
            });
        }
    }
    corpus.stored = corpus.items.len();
    add_reading(&mut corpus, &languages, &things, settings.reading, &mut rng);
    let others = if settings.emoji {
        emoji()?.into_iter().map(|emoji| emoji.image).collect()
    } else {
        Vec::new()
    };
    corpus.training_images = training_images(&things, &others);
    let (names, backgrounds) = (
        things.iter().map(|thing| thing.image.clone()).collect::<Vec<_>>(),
        backgrounds(settings)?,
    );
    let files = names.iter().map(|name| folder.join(name)).chain(backgrounds.iter().cloned());
    let files: Vec<PathBuf> = files.collect();
    corpus.digests =
        vec![("images".to_owned(), digest::of_files(files.iter().map(PathBuf::as_path))?)];
    corpus.images = Images::CutOuts(CutOuts::open(
        folder,
        names,
        &others,
        &backgrounds,
        size,
        data.world_seed,
    )?);
    if unnamed > 0 {
        corpus.notes.push(format!(
            "{} missing or longer than {} characters",
            counted(unnamed, "name"),
            settings.max_name
        ));
    }
    Ok(corpus)
}

/// What an entry says.
fn statement(language: &str, name: &str) -> String {
    format!("In {language} this is {name}.")
}

fn item(entry: Entry, image: Option<usize>, in_training: bool) -> CorpusEntry {
    CorpusEntry { text: entry.text(), entry, image, in_training }
}

/// A question without an image.
fn question(language: &str, name: &str, own_entry: usize, id: usize) -> Example {
    Example {
        id: id as i64,
        task: Task::Answer,
        name: id.to_string(),
        document: None,
        metric_kind: 0,
        text: format!("What is this in {language}?"),
        image: None,
        view: 0,
        answers: vec![name.to_owned()],
        own_entry: Some(own_entry),
        part: Part::Seen,
        made_up: true,
    }
}

/// Adds exercises in reading: made-up names of things without a picture. Each name has the
/// beginning of one name and the end of another in the same language, both of training things.
fn add_reading(
    corpus: &mut Corpus,
    languages: &[String],
    things: &[Thing],
    count: usize,
    rng: &mut ChaCha8Rng,
) {
    let in_training = || things.iter().filter(|thing| thing.split == Split::Train);
    let names_of = |language: usize| {
        in_training().filter_map(|thing| thing.names[language].as_deref()).collect()
    };
    let names: Vec<Vec<&str>> = (0..languages.len()).map(names_of).collect();
    for id in 0..count {
        let language = rng.random_range(0..languages.len());
        let [first, second] =
            [(); 2].map(|()| names[language].choose(rng).copied().unwrap_or_default());
        let name = splice(first, second, rng);
        let index = corpus.items.len();
        let entry = EntryLine::passage(SOURCE, statement(&languages[language], &name));
        corpus.items.push(item(entry.with_id(index as i64), None, false));
        corpus.reading.push(question(&languages[language], &name, index, id));
    }
}

/// The beginning of one text and the end of another.
fn splice(first: &str, second: &str, rng: &mut ChaCha8Rng) -> String {
    let mut half = |text: &str| {
        let places: Vec<usize> = text.char_indices().map(|(place, _)| place).collect();
        places.choose(rng).copied().unwrap_or_default()
    };
    let (first_half, second_half) = (&first[..half(first)], &second[half(second)..]);
    format!("{first_half}{second_half}").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The indices of the images of training things, and of all images without a file.
fn training_images(things: &[Thing], others: &[RgbaImage]) -> Vec<usize> {
    let of_things = things.iter().enumerate().filter(|(_, thing)| thing.split == Split::Train);
    of_things.map(|(index, _)| index).chain(things.len()..things.len() + others.len()).collect()
}

/// The photographs in the folders of `data.things.backgrounds`.
fn backgrounds(settings: &Things) -> StudyResult<Vec<PathBuf>> {
    let is_photograph = |path: &Path| {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        PHOTOGRAPHS.contains(&ending.to_lowercase().as_str())
    };
    let mut photographs = Vec::new();
    for path in &settings.backgrounds {
        photographs.extend(folder::files(Path::new(path), &is_photograph)?.files);
    }
    Ok(photographs)
}

/// Reads the languages and the pictures of a file by `engram data stamps`.
fn read(path: &Path, settings: &Things) -> StudyResult<(Vec<String>, Vec<Thing>)> {
    let mut lines = EntryLines::open(&EntryFile::json(path), 0)?;
    let mut pictures = Vec::new();
    while let Some(entry) = lines.next() {
        let entry = entry?;
        let remedy = "use a file of `engram data stamps` or `engram data gcompris`";
        let missing = |lines: &EntryLines, field| lines.error(format!("has no `{field}`"), remedy);
        let field = |name: &str| entry.payload.get(name).and_then(|value| value.as_str());
        let image = entry.image().ok_or_else(|| missing(&lines, "image"))?.into();
        let document = entry.document.clone().ok_or_else(|| missing(&lines, "document"))?;
        let split = match field("split") {
            Some("train") => Split::Train,
            Some("validation") => Split::Validation,
            Some("test") => Split::Test,
            _ => return Err(missing(&lines, "split").into()),
        };
        let names = entry.payload.get("names").and_then(|names| names.as_object().cloned());
        pictures.push((document, image, split, names.ok_or_else(|| missing(&lines, "names"))?));
    }
    let mut languages = settings.languages.clone();
    if languages.is_empty() {
        let all: std::collections::BTreeSet<&String> =
            pictures.iter().flat_map(|(.., names)| names.keys()).collect();
        let is_common = |language: &&&String| {
            let count =
                pictures.iter().filter(|(.., names)| names.contains_key(**language)).count();
            count as f64 >= NAMED_SHARE * pictures.len() as f64
        };
        languages = all.iter().filter(is_common).map(|language| (*language).clone()).collect();
    }
    let known: HashSet<&String> = pictures.iter().flat_map(|(.., names)| names.keys()).collect();
    if let Some(unknown) = languages.iter().find(|language| !known.contains(language)) {
        let reason = format!(
            "{}: has no name in `{unknown}`, which `data.things.languages` lists; remove it there",
            path.display()
        );
        return Err(reason.into());
    }
    let things = pictures.into_iter().map(|(document, image, split, names)| {
        let name = |language: &String| {
            let name = short(names.get(language)?.as_str()?);
            (1..=settings.max_name).contains(&name.chars().count()).then_some(name)
        };
        Thing { document, image, split, names: languages.iter().map(name).collect() }
    });
    let things = things.collect();
    let spoken = languages.iter().map(|code| language_name(code).unwrap_or(code).to_owned());
    Ok((spoken.collect(), things))
}

/// A name without remarks in brackets and a full stop.
fn short(name: &str) -> String {
    let mut depth = 0;
    let outside = name.chars().filter(|c| {
        depth += i32::from(*c == '(') - i32::from(*c == ')');
        depth <= 0 && *c != ')'
    });
    let name: String = outside.collect();
    let words: Vec<&str> = name.split_whitespace().collect();
    words.join(" ").trim_matches(|c: char| ".!|।。 ".contains(c)).to_lowercase()
}
