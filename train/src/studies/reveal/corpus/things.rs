//! A corpus of named things: the memory has the clean picture of each thing with its names, and a
//! question shows another view of the thing and asks for its name in a language.
//!
//! No training question is about a thing of validation or test; its entries are in the memory only.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use engram_data::composite::photographs;
use engram_data::messages::counted;
use engram_data::pictures::language_name;
use engram_data::world::images::images as emoji;
use engram_data::world::questions::{Part, Split};
use engram_infer::digest;
use engram_infer::reveal::corpus::{Corpus, CorpusEntry, Example, MetricKind, NamedPicture};
use engram_infer::reveal::cut_outs::CutOuts;
use engram_infer::reveal::images::{FIRST_TRAINING_VIEW, Images, squared};
use engram_memory::EntryLine;
use engram_memory::rows::{EntryFile, EntryLines};
use image::RgbaImage;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::studies::reveal::settings::{RevealData, Things};
use crate::study::StudyResult;

/// The source of the entries.
pub const SOURCE: &str = "names";
/// Fraction of things that a language must name to be used by default.
const NAMED_SHARE: f64 = 0.95;
/// The number of validation or test questions about a picture, each in another language.
const QUESTIONS_PER_PICTURE: usize = 8;
/// The number of made-up names of a training thing, and of a graphic.
const NAMES_PER_THING: usize = 32;
const NAMES_PER_GRAPHIC: usize = 8;

/// A picture with its names.
struct Thing {
    document: String,
    image: PathBuf,
    /// The name in each language of the corpus; `None` without a short name.
    names: Vec<Option<String>>,
    /// A recording of the name in each language, if there is one.
    recordings: Vec<Option<PathBuf>>,
    split: Split,
}

/// Reads the pictures that `data.things` names.
pub(super) fn load(data: &RevealData, settings: &Things, size: usize) -> StudyResult<Corpus> {
    let folder = Path::new(&data.path);
    let (languages, mut things) = read(&folder.join(&settings.file), settings)?;
    let mut others = Vec::new();
    for file in &settings.others {
        let path = folder.join(file);
        let of_file = pictures(&path)?.into_iter();
        others.extend(of_file.map(|picture| Picture {
            image: path.parent().unwrap_or(folder).join(picture.image),
            ..picture
        }));
    }
    if data.max_images > 0 {
        things.truncate(data.max_images);
    }
    let mut corpus = Corpus::of_images(Vec::new(), size, squared(size));
    if settings.views > 0 {
        corpus.training_views = settings.views;
    }
    corpus.sources = vec![SOURCE.to_owned()];
    corpus.metric_kinds = vec![MetricKind::Entries];
    let mut rng = ChaCha8Rng::seed_from_u64(data.world_seed);
    add_names(&mut corpus, &languages, &things, &mut rng);
    add_images(&mut corpus, &things, &others, settings, folder, (size, data.world_seed))?;
    let speller = Speller::new(&languages, &things);
    add_naming(&mut corpus, &speller, &mut rng);
    add_reading(&mut corpus, &speller, settings.reading, &mut rng);
    let unnamed =
        things.iter().flat_map(|thing| &thing.names).filter(|name| name.is_none()).count();
    if unnamed > 0 {
        let (names, longest) = (counted(unnamed, "name"), settings.max_name);
        corpus.notes.push(format!("{names} missing or longer than {longest} characters"));
    }
    Ok(corpus)
}

/// Adds the entries and the questions about things.
fn add_names(corpus: &mut Corpus, languages: &[String], things: &[Thing], rng: &mut ChaCha8Rng) {
    let mut first_image_of: HashMap<&str, usize> = HashMap::new();
    for (image, thing) in things.iter().enumerate() {
        let group = Some(*first_image_of.entry(&thing.document).or_insert(image));
        let path = thing.image.display().to_string();
        let in_training = thing.split == Split::Train;
        let mut questions = Vec::new();
        let named = languages.iter().zip(&thing.names).zip(&thing.recordings);
        for ((language, name), recording) in named {
            let Some(name) = name else { continue };
            let index = corpus.items.len();
            let entry = EntryLine::image_text(SOURCE, &path, statement(language, name));
            let mut entry = entry.of_document(&thing.document).with_id(index as i64);
            if let Some(file) = recording {
                entry.payload.insert("recording".to_owned(), file.display().to_string().into());
            }
            corpus.items.push(CorpusEntry::new(entry, Some(image), in_training));
            questions.push((language, name, index));
        }
        let examples = match thing.split {
            Split::Train => &mut corpus.train,
            Split::Validation => &mut corpus.validation,
            Split::Test => &mut corpus.test,
        };
        if !in_training {
            questions.shuffle(rng);
            questions.truncate(QUESTIONS_PER_PICTURE);
        }
        for (language, name, index) in questions {
            examples.push(Example {
                image: Some(image),
                group,
                // Training draws a view of its own each time.
                view: 1 + examples.len() as u32 % (FIRST_TRAINING_VIEW - 1),
                part: if in_training { Part::Seen } else { Part::HeldOut },
                ..question(language, name, index, examples.len())
            });
        }
    }
    corpus.stored = corpus.items.len();
}

/// Opens the pictures, the graphics of the embedded world and the backgrounds.
fn add_images(
    corpus: &mut Corpus,
    things: &[Thing],
    others: &[Picture],
    settings: &Things,
    folder: &Path,
    (size, seed): (usize, u64),
) -> StudyResult<()> {
    let mut graphics = if settings.graphics > 0 { emoji()? } else { Vec::new() };
    graphics.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    graphics.truncate(settings.graphics);
    let in_training = |thing: &Thing| thing.split == Split::Train;
    let named = things.iter().map(|thing| (&thing.document, in_training(thing)));
    let named = named.chain(others.iter().map(|other| (&other.document, false)));
    let named = named.chain(graphics.iter().map(|emoji| (&emoji.name, true)));
    let named = named.enumerate().map(|(image, (name, in_training))| NamedPicture {
        image,
        name: name.to_lowercase(),
        in_training,
    });
    let named: Vec<NamedPicture> = named.collect();
    let graphics: Vec<RgbaImage> = graphics.into_iter().map(|emoji| emoji.image).collect();
    let images = things.iter().map(|thing| &thing.image);
    let names: Vec<PathBuf> =
        images.chain(others.iter().map(|other| &other.image)).cloned().collect();
    let mut backgrounds = Vec::new();
    for photographs_folder in &settings.backgrounds {
        backgrounds.extend(photographs(Path::new(photographs_folder))?);
    }
    // A grid checks its recipe before it knows the folders.
    if backgrounds.is_empty() {
        let folders = settings.backgrounds.join(", ");
        let reason = format!("`data.things.backgrounds`: no photographs in [{folders}]");
        return Err(format!("{reason}; give folders of photographs").into());
    }
    let files = names.iter().map(|name| folder.join(name)).chain(backgrounds.iter().cloned());
    let files: Vec<PathBuf> = files.collect();
    let cut_outs = CutOuts::open(folder, names, &graphics, &backgrounds, size, seed)?;
    let of_named = named.iter().filter(|picture| picture.in_training).map(|picture| picture.image);
    corpus.training_images = of_named.collect();
    if !others.is_empty() {
        corpus.named_pictures = named;
    }
    let digest = digest::of_files(files.iter().map(PathBuf::as_path))?;
    corpus.digests = vec![("images".to_owned(), digest)];
    corpus.images = Images::CutOuts(cut_outs);
    Ok(())
}

/// What an entry says. The name comes first, so that a model that reads entries has to copy their
/// beginning.
fn statement(language: &str, name: &str) -> String {
    format!("{name}, in {language}.")
}

/// A question without an image.
fn question(language: &str, name: &str, own_entry: usize, id: usize) -> Example {
    Example {
        answers: vec![name.to_owned()],
        own_entry: Some(own_entry),
        ..Example::of_text(id, format!("What is this in {language}?"))
    }
}

/// Makes up names: each has the beginning of one name and the end of another in the same language,
/// both of training things.
struct Speller<'a> {
    languages: &'a [String],
    /// The names of training things in each language.
    names: Vec<Vec<&'a str>>,
}

impl<'a> Speller<'a> {
    fn new(languages: &'a [String], things: &'a [Thing]) -> Self {
        let in_training = || things.iter().filter(|thing| thing.split == Split::Train);
        let names_of = |language: usize| {
            in_training().filter_map(|thing| thing.names[language].as_deref()).collect()
        };
        Self { languages, names: (0..languages.len()).map(names_of).collect() }
    }

    /// A language and a name.
    fn draw(&self, rng: &mut ChaCha8Rng) -> (&'a str, String) {
        let language = rng.random_range(0..self.languages.len());
        let names = &self.names[language];
        let [first, second] = [(); 2].map(|()| names.choose(rng).copied().unwrap_or_default());
        (&self.languages[language], splice(first, second, rng))
    }
}

/// Adds exercises in reading with training pictures: made-up names for things and graphics. Their
/// entries are not in the memory.
fn add_naming(corpus: &mut Corpus, speller: &Speller<'_>, rng: &mut ChaCha8Rng) {
    for image in corpus.training_images.clone() {
        let names = if corpus.is_graphic(image) { NAMES_PER_GRAPHIC } else { NAMES_PER_THING };
        for _ in 0..names {
            let (language, name) = speller.draw(rng);
            let (index, id) = (corpus.items.len(), corpus.naming.len());
            let entry = EntryLine::passage(SOURCE, statement(language, &name));
            corpus.items.push(CorpusEntry::new(entry.with_id(index as i64), Some(image), true));
            let image = Some(image);
            corpus.naming.push(Example { image, ..question(language, &name, index, id) });
        }
    }
}

/// Adds exercises in reading: made-up names of things without a picture.
fn add_reading(corpus: &mut Corpus, speller: &Speller<'_>, count: usize, rng: &mut ChaCha8Rng) {
    for id in 0..count {
        let (language, name) = speller.draw(rng);
        let index = corpus.items.len();
        let entry = EntryLine::passage(SOURCE, statement(language, &name));
        corpus.items.push(CorpusEntry::new(entry.with_id(index as i64), None, false));
        corpus.reading.push(question(language, &name, index, id));
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

/// A line of a file by `engram data stamps`.
struct Picture {
    document: String,
    image: PathBuf,
    split: Split,
    names: Map<String, Value>,
    sounds: Vec<Sound>,
}

/// A sound of a thing; a spoken name if it has a language.
#[derive(Deserialize)]
struct Sound {
    file: PathBuf,
    language: Option<String>,
}

/// Reads the pictures of a file by `engram data stamps`.
fn pictures(path: &Path) -> StudyResult<Vec<Picture>> {
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
        let names = names.ok_or_else(|| missing(&lines, "names"))?;
        let sounds = entry.payload.get("sounds").map(Vec::<Sound>::deserialize);
        let sounds = sounds.transpose().map_err(|_| missing(&lines, "sounds"))?.unwrap_or_default();
        pictures.push(Picture { document, image, split, names, sounds });
    }
    Ok(pictures)
}

/// Reads the languages and the things of a file by `engram data stamps`.
fn read(path: &Path, settings: &Things) -> StudyResult<(Vec<String>, Vec<Thing>)> {
    let pictures = pictures(path)?;
    let mut count_of: BTreeMap<&str, usize> = BTreeMap::new();
    for language in pictures.iter().flat_map(|picture| picture.names.keys()) {
        *count_of.entry(language).or_default() += 1;
    }
    let mut languages = settings.languages.clone();
    if let Some(unknown) = languages.iter().find(|code| !count_of.contains_key(code.as_str())) {
        let path = path.display();
        let remedy = "which `data.things.languages` lists; remove it there";
        return Err(format!("{path}: has no name in `{unknown}`, {remedy}").into());
    }
    if languages.is_empty() {
        let is_common = |count: usize| count as f64 >= NAMED_SHARE * pictures.len() as f64;
        count_of.retain(|_, count| is_common(*count));
        languages = count_of.into_keys().map(str::to_owned).collect();
    }
    let things = pictures.into_iter().map(|Picture { document, image, split, names, sounds }| {
        let name = |language: &String| {
            let name = short(names.get(language)?.as_str()?);
            (1..=settings.max_name).contains(&name.chars().count()).then_some(name)
        };
        let recording = |language: &String| {
            let is_it = |sound: &&Sound| sound.language.as_ref() == Some(language);
            sounds.iter().find(is_it).map(|sound| sound.file.clone())
        };
        let recordings = languages.iter().map(recording).collect();
        Thing { document, image, split, names: languages.iter().map(name).collect(), recordings }
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
