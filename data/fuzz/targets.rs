//! The checks that the fuzzer, the corpus replay and the property tests share. No input may cause a
//! panic; a reader accepts an input or returns a readable error.

use engram_data::DataError;
use engram_data::audio::AudioReader;
use engram_data::hub::{FileMetadata, HubSettings, WeightsLocation};
use engram_data::image::DecodedImage;
use engram_data::knowledge::coco::CocoOptions;
use engram_data::knowledge::vqa::VqaOptions;
use engram_data::knowledge::web::WebOptions;
use engram_data::knowledge::wikidata::{Labels, ObjectCounts, TripleOptions};
use engram_data::knowledge::wit::WitOptions;
use engram_data::knowledge::{
    Collector, Counts, EntryLine, Input, Reason, coco, vqa, web, wikidata, wit,
};
use engram_data::text_to_text::T5Tokenizer;
use engram_data::tokenizer::{SegmentTokenizer, TextForm};

/// The file name that every message must contain.
const FILE: &str = "input.file";

/// A target's name, which is also the name of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 11] = [
    ("aokvqa", aokvqa),
    ("audio", audio),
    ("coco", coco),
    ("edges", edges),
    ("hub", hub),
    ("image", image),
    ("labels", labels),
    ("tokenizer", tokenizer),
    ("vqa", vqa),
    ("web", web),
    ("wit", wit),
];

/// Runs the target called `name`.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|(target_name, _)| *target_name == name);
    target.expect("a known target").1(bytes);
}

type Reader<'r> = &'r dyn Fn(Input<'_>, &mut Collector<'_>) -> Result<(), DataError>;

/// Reads the input twice, with malformed rows as errors (strict) and with malformed rows skipped
/// (lenient), and checks both results.
fn check(bytes: &[u8], read: Reader<'_>) {
    let strict = read_all(bytes, false, read);
    let lenient = read_all(bytes, true, read);
    if let Some((entries, counts)) = &lenient {
        assert_eq!(entries.len() as u64, counts.entries);
        for entry in entries {
            let line = serde_json::to_string(entry).expect("entries can be written");
            assert!(!line.contains('\n'));
            let read_back: EntryLine = serde_json::from_str(&line).expect("an entry");
            assert_eq!(read_back, *entry);
        }
    }
    match (strict, lenient) {
        (Some(strict), Some(lenient)) => assert_eq!(strict, lenient),
        (Some(_), None) => {
            panic!("the strict reader accepts an input that the lenient reader refuses")
        }
        (None, Some((_, counts))) => assert!(counts.skipped.contains_key(&Reason::Malformed)),
        (None, None) => {}
    }
}

fn read_all(
    bytes: &[u8],
    skip_malformed: bool,
    read: Reader<'_>,
) -> Option<(Vec<EntryLine>, Counts)> {
    let mut entries = Vec::new();
    let mut collector = Collector::new(|entry| {
        entries.push(entry);
        Ok(())
    })
    .skip_malformed(skip_malformed);
    let input = Input::new(FILE, bytes).map_err(DataError::from);
    let result = input.and_then(|input| read(input, &mut collector));
    let counts = collector.counts().clone();
    drop(collector);
    match result {
        Ok(()) => Some((entries, counts)),
        Err(error) => {
            check_message(&error.to_string());
            None
        }
    }
}

/// Checks that an error names the file, the problem and a remedy, in one line that fits on a
/// screen.
fn check_message(error: &str) {
    assert!(error.starts_with(FILE), "{error:?} names no file");
    assert!(error.contains("; "), "{error:?} has no remedy");
    assert!(error.chars().count() < 1000, "{} bytes: {error:.700}", error.len());
    assert!(!error.contains(char::is_control), "{error:?} holds control characters");
}

fn edges(bytes: &[u8]) {
    check(bytes, &|input, collector| {
        wikidata::read_triples(input, &TripleOptions::default(), collector)
    });
    let mut counts = ObjectCounts::default();
    let mut labels = Labels::default();
    let label_lines = "Q1\tone\nP1\tis\n";
    let mut discarding = Collector::new(|_| Ok(())).skip_malformed(true);
    let input = Input::new(FILE, label_lines.as_bytes()).expect("lines");
    labels.read(input, &mut discarding).expect("labels");
    let Ok(input) = Input::new(FILE, bytes) else { return };
    if counts.read(input, &mut discarding).is_ok() {
        let options = TripleOptions {
            labels: Some(&labels),
            reverse: Some(&counts),
            ..TripleOptions::default()
        };
        check(bytes, &|input, collector| wikidata::read_triples(input, &options, collector));
    }
}

/// Checks that a `tokenizer.json` encodes texts or is refused. Panics of the `tokenizers` library
/// must become errors.
fn tokenizer(bytes: &[u8]) {
    if let Ok(json) = std::str::from_utf8(bytes)
        && let Err(error) = T5Tokenizer::parse(json, FILE.as_ref())
    {
        check_message(&error.to_string());
    }
    let tokenizer = match SegmentTokenizer::from_bytes(FILE, bytes) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return check_message(&error.to_string()),
    };
    for text in ["", "a joint of two pipes", "Caf\u{e9} \u{1f600}\u{4e2d}\0"] {
        for use_post_processor in [false, true] {
            let form =
                TextForm { max_length: 7, truncate_left: use_post_processor, use_post_processor };
            match tokenizer.encode_text(text, &form) {
                Ok(ids) => assert!(use_post_processor || ids.len() <= form.max_length),
                Err(error) => check_message(&error.to_string()),
            }
        }
    }
}

fn labels(bytes: &[u8]) {
    check(bytes, &|input, collector| wikidata::read_descriptions(input, "wikidata", collector));
    check(bytes, &|input, collector| Labels::default().read(input, collector));
}

fn wit(bytes: &[u8]) {
    for language in [None, Some("en".to_owned())] {
        let options = WitOptions { language, ..WitOptions::default() };
        check(bytes, &|input, collector| wit::read(input, &options, collector));
    }
}

fn web(bytes: &[u8]) {
    for (caption_first, min_characters) in [(false, 0), (true, 5)] {
        let options = WebOptions { caption_first, min_characters, ..WebOptions::default() };
        check(bytes, &|input, collector| web::read(input, &options, collector));
    }
}

fn coco(bytes: &[u8]) {
    for (join, splits) in [(false, vec![]), (true, vec![]), (true, vec!["train".to_owned()])] {
        let folder = Some("images/".to_owned());
        let options = CocoOptions { folder, join, splits, ..CocoOptions::default() };
        check(bytes, &|input, collector| coco::read(input, &options, collector));
        check(bytes, &|input, collector| {
            coco::read(Input::new(format!("{FILE}.csv"), input)?, &options, collector)
        });
    }
}

/// Options with and without grouping by image.
fn vqa_options() -> [VqaOptions; 2] {
    let image_name = Some("%012d.jpg".parse().expect("a pattern"));
    [VqaOptions::default(), VqaOptions { image_name, per_image: true, ..VqaOptions::default() }]
}

/// Questions and annotations, separated by a zero byte.
fn vqa(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let questions = parts.next().unwrap_or_default();
    let annotations = parts.next().unwrap_or(questions);
    for options in vqa_options() {
        check(questions, &|input, collector| {
            vqa::read(input, Some(Input::new(FILE, annotations)?), &options, collector)
        });
    }
}

fn aokvqa(bytes: &[u8]) {
    for options in vqa_options() {
        check(bytes, &|input, collector| vqa::read(input, None, &options, collector));
    }
}

/// Response headers of a hub: a status line, then one header per line. The same lines are also
/// variables and addresses.
fn hub(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let value = |name: &str, separator: char| {
        let lines = text.lines().filter_map(|line| line.split_once(separator));
        let mut values = lines.filter(|(key, _)| key.trim() == name);
        values.next().map(|(_, value)| value.trim())
    };
    let is_hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let status = text.lines().next().and_then(|line| line.trim().parse().ok()).unwrap_or(200);
    if let Ok(Some(metadata)) = FileMetadata::read(status, |name| value(name, ':')) {
        assert!(metadata.commit.len() == 40 && is_hexadecimal(&metadata.commit));
        assert!([40, 64].contains(&metadata.etag.len()) && is_hexadecimal(&metadata.etag));
    }
    // If the variables hold a token, no token file is read.
    let variable = |name: &str| value(name, '=').or((name == "HF_TOKEN").then_some("token"));
    if let Ok(settings) = HubSettings::from_variables(|name| variable(name).map(str::to_owned)) {
        assert!(settings.token.is_none_or(|token| !token.contains(['\r', '\n'])));
    }
    for line in text.lines() {
        if let Ok(WeightsLocation::Hub { repository, revision }) = WeightsLocation::parse(line) {
            for part in repository.split('/').chain(revision.split('/')) {
                assert!(!matches!(part, "" | "." | "..") && !part.contains(['\\', '\0']));
            }
        }
    }
}

/// The maximum number of samples per input byte. A FLAC frame of silence has 65,535 samples of 8
/// channels in 20 bytes, and resampling from 1,000 Hz to 16,000 Hz multiplies them by 16.
const MAX_SAMPLES_PER_BYTE: usize = 1 << 16;

fn audio(bytes: &[u8]) {
    let mut sample_count = 0;
    let mut samples = Vec::new();
    let mut read = || -> Result<(), DataError> {
        let mut reader = AudioReader::from_bytes(FILE, bytes.to_vec(), 16_000)?;
        while reader.read(&mut samples)? {
            assert!(samples.iter().all(|sample| sample.is_finite()));
            sample_count += samples.len();
            assert!(
                sample_count <= MAX_SAMPLES_PER_BYTE * bytes.len(),
                "{sample_count} samples of {} bytes",
                bytes.len()
            );
            samples.clear();
        }
        Ok(())
    };
    if let Err(error) = read() {
        check_message(&error.to_string());
    }
}

fn image(bytes: &[u8]) {
    match DecodedImage::from_bytes(FILE, bytes) {
        Ok(image) => {
            let pixels = u64::from(image.width()) * u64::from(image.height());
            assert_eq!(image.pixels().len() as u64, 3 * pixels);
        }
        Err(error) => assert!(error.to_string().starts_with(FILE), "{error}"),
    }
}
