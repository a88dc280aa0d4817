//! Every format that the command reads, with a good example: those of `formats.txt`, and the samples
//! of the data sets.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::inputs;
use crate::program::{Engram, checkout};
use crate::report::Report;
use crate::scratch;
use crate::subjects::{Shared, table};

/// The allowed results of a command on changed bytes, besides a refusal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// The files have checksums: unchanged output.
    Same,
    /// The command checks the files: exit code 1 with the file's name, or unchanged output.
    Detected,
    /// Changed bytes may be valid: any output.
    Any,
    /// The command is always refused, because of this file or for a later reason.
    Refused,
}

/// A format: a folder with a good example, and a command that reads it.
pub struct Format {
    pub name: String,
    /// The folder with the example.
    pub example: PathBuf,
    /// Endings of the paths of the files to change; empty for all files.
    pub only: Vec<&'static str>,
    pub promise: Promise,
    /// Whether the command changes the folder itself.
    pub in_place: bool,
    /// Approximate seconds of one run.
    pub seconds: f64,
    /// The arguments, with `{}` for a copy of the folder and `{o}` for an empty folder for output.
    pub line: String,
}

const REFERENCES: &str = r#"{"images":[{"id":1},{"id":2}],"annotations":[
{"image_id":1,"id":1,"caption":"a cat on a mat"},{"image_id":2,"id":2,"caption":"a dog"}]}"#;
const CAPTIONS: &str = r#"[{"image_id":1,"caption":"a cat"},{"image_id":2,"caption":"a dog"}]"#;
const QUESTIONS: &str = r#"[{"question_id":"a","choices":["x","y"],"correct_choice_idx":0,
"direct_answers":["x","x"],"difficult_direct_answer":false}]"#;
const ANSWERS: &str = r#"{"a":{"multiple_choice":"x","direct_answer":"x"}}"#;

/// All formats that have an example.
pub fn all_formats(report: &Report, shared: &Shared) -> Result<Vec<Format>> {
    make_examples(report, shared)?;
    let mut formats = Vec::new();
    for fields in table(include_str!("../formats.txt")) {
        let [name, example, only, promise, seconds, line] = fields[..] else {
            bail!("formats.txt: {fields:?}: six fields are needed");
        };
        let example = shared.folder.join(example);
        if !example.is_dir() {
            continue;
        }
        let promise_kind = match promise {
            "same" | "in place" => Promise::Same,
            "found" => Promise::Detected,
            "any" => Promise::Any,
            "refused" => Promise::Refused,
            other => bail!("formats.txt: {other}: no such promise"),
        };
        formats.push(Format {
            name: name.to_owned(),
            example,
            only: only.split_whitespace().collect(),
            promise: promise_kind,
            in_place: promise == "in place",
            seconds: seconds.parse()?,
            line: shared.fill(line),
        });
    }
    add_data_sets(shared, &mut formats)?;
    Ok(formats)
}

/// Adds the samples of the data sets that `engram data entries` reads.
fn add_data_sets(shared: &Shared, formats: &mut Vec<Format>) -> Result<()> {
    let listing = Engram::line("data entries samples").must_run()?.stdout;
    let samples: Vec<(String, Vec<(String, String)>)> = serde_json::from_str(&listing)?;
    for (number, (name, files)) in samples.into_iter().enumerate() {
        let example = shared.folder.join(format!("formats/sample-{number}"));
        let mut line = format!("data entries {name} --out {{o}}/out.jsonl --quiet");
        for (file, content) in files {
            write_file(&example.join(&file), content.as_bytes())?;
            line = line.replace(&file, &format!("{{}}/{file}"));
        }
        let (only, promise, in_place, seconds) = (Vec::new(), Promise::Any, false, 0.02);
        formats.push(Format { name, example, only, promise, in_place, seconds, line });
    }
    Ok(())
}

/// Lists of other programs.
const LISTS: [(&str, &str); 6] = [
    ("nemo.json", r#"{"audio_filepath": "a.wav", "offset": 0.1, "duration": 0.5, "text": "a"}"#),
    ("voice.tsv", "client_id\tpath\tsentence\nc\ta.wav\ta word\n"),
    ("metadata.csv", "file_name,transcription\na.wav,a word\n"),
    ("wav.scp", "u1 a.wav\n"),
    ("run", "q1 Q0 d1 1 0.5 s\nq1 Q0 d2 2 0.25 s\n"),
    ("qrels", "q1 0 d2 1\nq1 0 d1 0\n"),
];

/// Writes the examples below `formats/` of the shared folder.
fn make_examples(report: &Report, shared: &Shared) -> Result<()> {
    let path = |name: &str| shared.folder.join("formats").join(name);
    scratch::copy(&shared.folder.join("run"), &shared.folder.join("start/run"))?;
    inputs::npy(&write_file(&path("npy/queries.npy"), b"")?, &[5, 16], 9)?;
    inputs::npy(&write_file(&path("npy-keys/keys.npy"), b"")?, &[8, 16], 9)?;
    write_file(&path("safetensors/keys.safetensors"), &inputs::safetensors(5, 16))?;
    copy_first_lines(&shared.folder.join("entries.jsonl"), 8, &path("entries/entries.jsonl"))?;
    copy_first_lines(&shared.folder.join("phrases/test.csv"), 4, &path("pairs/test.csv"))?;
    scratch::copy(&shared.folder.join("seen"), &path("manifest"))?;
    write_file(&path("wer/ref.tsv"), &fs::read(shared.folder.join("ref.tsv"))?)?;
    write_file(
        &path("csv/facts.csv"),
        b"id,source,text\n1,tools,\"a bolt, long\"\n2,parts,a pane\n",
    )?;
    write_file(&path("trn/a.trn"), b"turn the light on (a)\nplay some jazz (b)\n")?;
    write_file(&path("caption/references.json"), REFERENCES.as_bytes())?;
    write_file(&path("caption/results.json"), CAPTIONS.as_bytes())?;
    write_file(&path("aokvqa/questions.json"), QUESTIONS.as_bytes())?;
    write_file(&path("aokvqa/predictions.json"), ANSWERS.as_bytes())?;
    let container = checkout().join("data/tests/fixtures/pictures/explore_test.rcc");
    write_file(&path("rcc/explore_test.rcc"), &fs::read(container)?)?;
    let recipe = checkout().join("train/recipes/patent/world.toml");
    write_file(&path("recipe/recipe.toml"), &fs::read(recipe)?)?;
    for name in
        ["vqa/annotations", "vqa/results", "retrieval/queries", "haystack/replies", "items/ratio"]
    {
        let file = checkout().join("eval/fuzz/corpus").join(name);
        write_file(&path(name), &fs::read(file)?)?;
    }
    let seen = shared.folder.join("seen");
    write_file(&path("lists/a.wav"), &fs::read(first_file(&seen, "wav")?)?)?;
    for (list, text) in LISTS {
        write_file(&path("lists").join(list), text.as_bytes())?;
    }
    for extension in ["wav", "flac", "mp3", "ogg", "m4a", "opus", "webm", "aiff", "au", "caf"] {
        convert(
            report,
            &first_file(&seen, "wav")?,
            &path(extension).join(format!("clip.{extension}")),
        )?;
    }
    for extension in ["png", "jpg", "gif", "webp", "bmp"] {
        let image = path(extension).join(format!("image.{extension}"));
        if convert(report, &first_file(&seen.join("frames"), "png")?, &image)? {
            let entry = format!("{{\"id\":1,\"image\":\"image.{extension}\"}}\n");
            write_file(&path(extension).join("entries.jsonl"), entry.as_bytes())?;
        }
    }
    Ok(())
}

/// Writes a file and creates its folder.
fn write_file(path: &Path, bytes: &[u8]) -> Result<PathBuf> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, bytes)?;
    Ok(path.to_owned())
}

/// Copies the first lines of a file.
fn copy_first_lines(from: &Path, lines: usize, to: &Path) -> Result<()> {
    let text = fs::read_to_string(from)?;
    let first: String = text.lines().take(lines).flat_map(|line| [line, "\n"]).collect();
    write_file(to, first.as_bytes()).map(drop)
}

/// The first file of a folder with this extension.
pub fn first_file(folder: &Path, extension: &str) -> Result<PathBuf> {
    let paths = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let first = paths.filter(|path| path.extension().is_some_and(|found| found == extension)).min();
    first.ok_or_else(|| anyhow::anyhow!("{}: no .{extension} file", folder.display()))
}

/// Converts an audio or image file to the format of the new name with ffmpeg. Returns whether it
/// succeeded.
fn convert(report: &Report, from: &Path, to: &Path) -> Result<bool> {
    write_file(to, b"")?;
    if from.extension() == to.extension() {
        fs::copy(from, to)?;
        return Ok(true);
    }
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-v", "error", "-y", "-i"]).arg(from);
    if from.extension().is_some_and(|extension| extension == "wav") {
        // With two channels, because ffmpeg's AAC refuses the layout of some mono files.
        ffmpeg.args(["-t", "2", "-ac", "2"]);
    }
    let converted = ffmpeg.arg(to).status().is_ok_and(|status| status.success());
    if !converted {
        report.skip(&format!("ffmpeg could not make {}", to.display()));
        scratch::remove(to.parent().unwrap_or(to))?;
    }
    Ok(converted)
}
