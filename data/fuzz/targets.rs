//! The checks that the fuzzer, the corpus replay and the property tests share. No input may cause a
//! panic; a reader accepts an input or returns a readable error.

use std::io::Cursor;
use std::path::Path;

use engram_data::DataError;
use engram_data::audio::AudioReader;
use engram_data::hub::{FileMetadata, HubSettings, WeightsLocation};
use engram_data::image::DecodedImage;
use engram_data::knowledge::{
    Collector, Counts, DATA_SETS, DataSet, EntryLine, Input, Reason, Sample,
};
use engram_data::text_to_text::T5Tokenizer;
use engram_data::tokenizer::{SegmentTokenizer, TextForm};

/// The file name that every message must contain.
const FILE: &str = "input.file";

/// A target's name, which is also the name of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 5] = [
    ("audio", audio),
    ("hub", hub),
    ("image", image),
    ("knowledge", knowledge),
    ("tokenizer", tokenizer),
];

/// Runs the target called `name`.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|(target_name, _)| *target_name == name);
    target.expect("a known target").1(bytes);
}

/// Reads the bytes as files of every data set. A zero byte separates the files; the remaining files
/// are as in the sample.
fn knowledge(bytes: &[u8]) {
    for data_set in DATA_SETS {
        for sample in data_set.samples {
            let mut parts = bytes.splitn(sample.files.len(), |byte| *byte == 0);
            let contents = sample.files.iter().map(|(_, content)| content.as_bytes());
            let contents: Vec<_> = contents.map(|own| parts.next().unwrap_or(own)).collect();
            check_sample(data_set, sample, &contents);
        }
    }
}

/// Reads a sample with these contents of its files twice, with malformed records as errors (strict)
/// and with malformed records skipped (lenient), and checks both results. Returns the entries of the
/// strict reading.
pub fn check_sample(
    data_set: &DataSet,
    sample: &Sample,
    contents: &[&[u8]],
) -> Option<Vec<EntryLine>> {
    let strict = read_sample(data_set, sample, contents, false);
    let lenient = read_sample(data_set, sample, contents, true);
    if let Some((entries, counts)) = &lenient {
        assert_eq!(entries.len() as u64, counts.entries);
        for entry in entries {
            let line = serde_json::to_string(entry).expect("entries can be written");
            assert!(!line.contains('\n'));
            let read_back: EntryLine = serde_json::from_str(&line).expect("an entry");
            assert_eq!(read_back, *entry);
        }
    }
    match (&strict, lenient) {
        (Some(strict), Some(lenient)) => assert_eq!(*strict, lenient),
        (Some(_), None) => {
            panic!("the strict reader accepts an input that the lenient reader refuses")
        }
        (None, Some((_, counts))) => assert!(counts.skipped.contains_key(&Reason::Malformed)),
        (None, None) => {}
    }
    strict.map(|(entries, _)| entries)
}

fn read_sample(
    data_set: &DataSet,
    sample: &Sample,
    contents: &[&[u8]],
    skip_malformed: bool,
) -> Option<(Vec<EntryLine>, Counts)> {
    let open = |path: &Path| -> Result<Input<'static>, DataError> {
        let index = sample.files.iter().position(|(name, _)| path == Path::new(name));
        let content = contents[index.expect("a file of the sample")].to_vec();
        Ok(Input::new(format!("{FILE}.{}", path.display()), Cursor::new(content))?)
    };
    let request = data_set.request(sample.line, &open);
    let mut entries = Vec::new();
    let mut collector = Collector::new(|entry| {
        entries.push(entry);
        Ok(())
    })
    .skip_malformed(skip_malformed);
    let result = (data_set.read)(&request, &mut collector);
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
                Ok((ids, _)) => assert!(use_post_processor || ids.len() <= form.max_length),
                Err(error) => check_message(&error.to_string()),
            }
        }
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
