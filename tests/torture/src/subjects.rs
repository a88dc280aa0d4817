//! Commands that write: what each starts from, and its arguments.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::inputs;
use crate::program::{Engram, checkout};
use crate::scratch::{self, Scratch};

/// What a command writes, which decides what must hold after it was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A memory in `PLACE/memory`: the old generation or the new one.
    Memory,
    /// A run in `PLACE/run`: `--resume` leads to the bytes of an unbroken run.
    Run,
    /// Files: each is the old one, or the new one, or is not there.
    Files,
    /// A new folder: all of it or nothing.
    Folder,
}

/// A command that writes below one folder, its place.
pub struct Subject {
    pub name: &'static str,
    pub kind: Kind,
    /// What lies in the place before.
    start: Option<PathBuf>,
    /// Arguments, with `{}` for the place.
    line: String,
    /// Seconds of one run, roughly.
    pub seconds: f64,
}

impl Subject {
    /// Makes the place as it is before the command.
    pub fn prepare(&self, place: &Path) -> Result<()> {
        scratch::empty(place)?;
        self.start.as_deref().map_or(Ok(()), |start| scratch::copy(start, place))
    }

    pub fn command(&self, place: &Path) -> Engram {
        Engram::line(&self.line.replace("{}", &place.to_string_lossy()))
    }

    /// The command that a user gives after a stop.
    pub fn again(&self, place: &Path) -> Engram {
        let resume = if self.kind == Kind::Run { " --resume" } else { "" };
        let line = self.line.replace("{}", &place.to_string_lossy());
        Engram::line(&(line + resume))
    }
}

/// Inputs of all subjects, made by the command itself where it has a writer for them.
pub struct Shared {
    pub folder: PathBuf,
}

impl Shared {
    pub fn make(scratch: &Scratch) -> Result<Self> {
        let folder = scratch.join("shared");
        scratch::empty(&folder)?;
        let shared = Self { folder };
        let at = |name: &str| shared.folder.join(name);
        inputs::npy(&at("keys.npy"), &[300, 16], 1)?;
        inputs::npy(&at("values.npy"), &[300, 2, 8], 2)?;
        inputs::entries(&at("entries.jsonl"), 0, 300, "a")?;
        inputs::npy(&at("keys2.npy"), &[40, 16], 3)?;
        inputs::npy(&at("values2.npy"), &[40, 2, 8], 4)?;
        inputs::entries(&at("more.jsonl"), 1000, 40, "b")?;
        inputs::entries(&at("same.jsonl"), 7, 40, "a")?;
        inputs::npy(&at("queries.npy"), &[5, 16], 5)?;
        fs::write(at("web.tsv"), "http://a/1.jpg\ta cat on a mat\nhttp://a/2.jpg\ta dog\n")?;
        fs::write(at("ref.tsv"), "a\tturn the light on\nb\tplay some jazz\n")?;
        fs::write(at("hyp.tsv"), "a\tturn the light off\nb\tplay jazz\n")?;
        shared.engram("memory build --keys {s}/keys.npy --values {s}/values.npy --entries {s}/entries.jsonl --out {s}/start/memory --quiet")?;
        shared.engram("memory index {s}/start/memory --quiet")?;
        shared.engram("memory delete {s}/start/memory --ids 3,5")?;
        shared.engram("data phrases {s}/phrases")?;
        shared.engram("data audiovisual {s}/seen --count 2 --names 2")?;
        shared.engram(&format!("{PATENT} --run {{s}}/run"))?;
        let whisper = checkout().join("models/tests/fixtures/whisper/model_int8.bin");
        fs::create_dir(at("ctranslate2"))?;
        fs::copy(whisper, at("ctranslate2/model.bin"))?;
        fs::write(at("ctranslate2/config.json"), r#"{"suppress_ids": [5], "suppress_ids_begin": [6], "lang_ids": []}"#)?;
        fs::write(
            at("ctranslate2/tokenizer.json"),
            r#"{"added_tokens": [{"id": 2, "content": "<|startoftranscript|>"}, {"id": 1, "content": "<|endoftext|>"}]}"#,
        )?;
        shared.engram("predict {s}/run --input {s}/phrases/test.csv --output {s}/scores.csv --quiet")?;
        let mut images = String::new();
        for frame in fs::read_dir(at("seen/frames"))? {
            images += &format!("{{\"image\":\"{}\"}}\n", frame?.file_name().to_string_lossy());
        }
        fs::write(at("images.jsonl"), images)?;
        fs::create_dir(at("old"))?;
        for name in ["out.csv", "out.tsv", "ids.npy", "scores.npy", "items.jsonl", "out.jsonl"] {
            fs::write(at("old").join(name), "the old file\n")?;
        }
        Ok(shared)
    }

    /// Runs a line with `{s}` for the shared folder and `{r}` for the checkout.
    pub fn engram(&self, line: &str) -> Result<()> {
        Engram::line(&self.fill(line)).seconds(300).must_run().map(drop)
    }

    /// The line with the shared folder and the checkout filled in.
    pub fn fill(&self, line: &str) -> String {
        let repository = checkout().display().to_string();
        line.replace("{s}", &self.folder.display().to_string()).replace("{r}", &repository)
    }

    fn subject(&self, name: &'static str, kind: Kind, start: &str, seconds: f64, line: &str) -> Subject {
        let start = (!start.is_empty()).then(|| self.folder.join(start));
        Subject { name, kind, start, line: self.fill(line), seconds }
    }

    /// All commands that write, the quick ones first.
    pub fn subjects(&self) -> Vec<Subject> {
        use Kind::{Files, Folder, Memory, Run};
        let memory = |name, line: &str| self.subject(name, Memory, "start", 0.02, line);
        let files = |name, line: &str| self.subject(name, Files, "old", 0.1, line);
        let folder = |name, line: &str| self.subject(name, Folder, "", 0.3, line);
        let run = |name, seconds, line: String| self.subject(name, Run, "", seconds, &line);
        vec![
            self.subject("memory build", Memory, "", 0.02, "memory build --keys {s}/keys.npy --values {s}/values.npy --entries {s}/entries.jsonl --value-type int8 --out {}/memory --quiet"),
            memory("memory add", "memory add {}/memory --keys {s}/keys2.npy --values {s}/values2.npy --entries {s}/more.jsonl --quiet"),
            memory("memory update", "memory update {}/memory --keys {s}/keys2.npy --values {s}/values2.npy --entries {s}/same.jsonl --quiet"),
            memory("memory delete", "memory delete {}/memory --ids 100,200"),
            memory("memory compact", "memory compact {}/memory --quiet"),
            memory("memory index", "memory index {}/memory --quiet"),
            files("memory search", "memory search {s}/start/memory --queries {s}/queries.npy -k 3 --output {}/ids.npy --scores {}/scores.npy"),
            files("predict", "predict {s}/run --input {s}/phrases/test.csv --output {}/out.csv --quiet"),
            files("predict --recogniser", "predict --recogniser {r}/train/kept/conformer --input {s}/seen/clips.jsonl --output {}/out.tsv --quiet"),
            files("eval wer", "eval wer --ref {s}/ref.tsv --hyp {s}/hyp.tsv --resamples 5 --items {}/items.jsonl --html {}/out.html"),
            files("data entries", "data entries web {s}/web.tsv --out {}/out.jsonl --quiet"),
            folder("data phrases", "data phrases {}/phrases"),
            folder("data speech", "data speech {}/spoken --count 2"),
            folder("data audiovisual", "data audiovisual {}/seen --count 2 --names 2"),
            folder("data convert", "data convert ctranslate2 {s}/ctranslate2 --out {}/whisper"),
            folder("data world", "data world {}/world --pictures 40 --split test"),
            run("train patent", 0.8, format!("{PATENT} --run {{}}/run")),
            run("train clip", 0.9, format!("{CLIP} --run {{}}/run")),
            run("train avformer", 2.2, format!("{AVFORMER} --run {{}}/run")),
            run("train speech", 3.6, format!("{SPEECH} --run {{}}/run")),
            run("train reveal", 5.0, format!("{REVEAL} --run {{}}/run")),
        ]
    }
}

impl Shared {
    /// Commands with models whose output must not depend on threads.
    pub fn of_models(&self) -> Vec<Subject> {
        use Kind::{Files, Memory};
        vec![
            self.subject("memory build --model", Memory, "", 0.2, "memory build --model {r}/train/kept/clip --entries {s}/images.jsonl --images {s}/seen/frames --out {}/memory --quiet"),
            self.subject("memory search --index hnsw", Files, "old", 0.1, "memory search {s}/start/memory --index hnsw --queries {s}/queries.npy -k 30 --output {}/ids.npy --scores {}/scores.npy"),
            self.subject("predict --encoder", Files, "old", 0.1, "predict --encoder {s}/run --input {s}/phrases/test.csv --output {}/out.csv --quiet"),
            self.subject("eval phrase", Files, "old", 0.1, "eval phrase --gold {s}/phrases/test.csv --predictions {s}/scores.csv --items {}/items.jsonl"),
        ]
    }
}

/// A training of each study that ends in seconds and writes several checkpoints.
pub const PATENT: &str = "train patent --recipe {r}/train/recipes/patent/world.toml --tiny --quiet --set checkpoint.every_steps=4 --set phase.train.epochs=1";
pub const CLIP: &str = "train clip --recipe {r}/train/recipes/clip/tiny.toml --tiny --quiet --set checkpoint.every_steps=2 --set phase.clip.epochs=3";
pub const AVFORMER: &str = "train avformer --recipe {r}/train/recipes/avformer/tiny.toml --tiny --quiet --set checkpoint.every_steps=4 --set model.recogniser={r}/train/kept/conformer --set model.image_encoder={r}/train/kept/clip";
pub const SPEECH: &str = "train speech --recipe {r}/train/recipes/speech/tiny.toml --tiny --quiet --set checkpoint.every_steps=2 --set phase.best_rq.steps=2 --set phase.ctc.steps=3 --set data.sentences=16 --set data.evaluated=4";
pub const REVEAL: &str = "train reveal --recipe {r}/train/recipes/reveal/laptop.toml --tiny --quiet --set checkpoint.every_steps=15 --set phase.pictures.steps=2 --set phase.warm-start.steps=4 --set phase.questions.steps=4 --set data.evaluated_questions=8";
