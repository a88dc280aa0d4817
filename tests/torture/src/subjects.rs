//! Writing commands (`subjects.txt`), and the inputs that all attacks share.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::program::{Engram, checkout};
use crate::scratch::{self, Scratch};
use crate::{formats, inputs};

/// Commands that take at least this time are attacked only in the long form.
const SLOW_SECONDS: f64 = 10.0;

/// The kind of a command's output, which determines the requirements after a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A memory in `WORKDIR/memory`: the old or the new generation.
    Memory,
    /// A run in `WORKDIR/run`: `--resume` gives the bytes of an uninterrupted run.
    Run,
    /// Several runs and a report: the same command again gives the bytes of an uninterrupted
    /// command.
    Runs,
    /// Files: each is old, new or absent.
    Files,
    /// A new folder: complete or absent.
    Folder,
}

/// A command that writes to one folder, its workdir.
pub struct Subject {
    pub name: &'static str,
    pub kind: Kind,
    /// The folder that is copied to the workdir before the command.
    start: Option<PathBuf>,
    /// Arguments, with `{}` for the workdir.
    pub line: String,
    /// Approximate seconds of one run.
    pub seconds: f64,
}

impl Subject {
    /// Creates the state of the workdir before the command.
    pub fn prepare(&self, workdir: &Path) -> Result<()> {
        scratch::empty(workdir)?;
        self.start.as_deref().map_or(Ok(()), |start| scratch::copy(start, workdir))
    }

    pub fn command(&self, workdir: &Path) -> Engram {
        self.engram(&self.line, workdir)
    }

    /// The command that a user gives after a stop.
    pub fn repeat_command(&self, workdir: &Path) -> Engram {
        let resume = if self.kind == Kind::Run { " --resume" } else { "" };
        self.engram(&format!("{}{resume}", self.line), workdir)
    }

    /// Replaces the workdir in a line. The recipes of several runs contain paths to each other;
    /// relative paths make the recipes equal in every workdir.
    fn engram(&self, line: &str, workdir: &Path) -> Engram {
        let command = match self.kind {
            Kind::Runs => Engram::line(&line.replace("{}", ".")).within(workdir),
            _ => Engram::line(&line.replace("{}", &workdir.to_string_lossy())),
        };
        command.seconds((self.seconds * 12.0).max(60.0) as u64)
    }

    /// Whether an error names a path in the workdir.
    pub fn path_is_named(&self, workdir: &Path, error: &str) -> bool {
        error.contains(&*workdir.to_string_lossy())
            || self.kind == Kind::Runs && error.contains("./")
    }
}

/// The fields of each line of a table, without comments.
pub fn table(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split('|').map(str::trim).collect())
}

/// The inputs of all subjects. The command itself writes them if it can.
pub struct Shared {
    pub folder: PathBuf,
}

impl Shared {
    pub fn make(scratch: &Scratch) -> Result<Self> {
        let folder = scratch.join("shared");
        scratch::empty(&folder)?;
        let shared = Self { folder };
        let path = |name: &str| shared.folder.join(name);
        inputs::npy(&path("keys.npy"), &[300, 16], 1)?;
        inputs::npy(&path("values.npy"), &[300, 2, 8], 2)?;
        inputs::entries(&path("entries.jsonl"), 0, 300, "a")?;
        inputs::npy(&path("keys2.npy"), &[40, 16], 3)?;
        inputs::npy(&path("values2.npy"), &[40, 2, 8], 4)?;
        inputs::entries(&path("more.jsonl"), 1000, 40, "b")?;
        inputs::entries(&path("same.jsonl"), 7, 40, "a")?;
        inputs::npy(&path("queries.npy"), &[5, 16], 5)?;
        fs::write(path("web.tsv"), "http://a/1.jpg\ta cat on a mat\nhttp://a/2.jpg\ta dog\n")?;
        fs::write(path("lines.txt"), "a cat on a mat\na dog\n")?;
        fs::write(path("ref.tsv"), "a\tturn the light on\nb\tplay some jazz\n")?;
        fs::write(path("hyp.tsv"), "a\tturn the light off\nb\tplay jazz\n")?;
        let arrays = "--keys {s}/keys.npy --values {s}/values.npy --entries {s}/entries.jsonl";
        shared.engram(&format!("memory build {arrays} --out {{s}}/start/memory --quiet"))?;
        shared.engram("memory index {s}/start/memory --quiet")?;
        shared.engram("memory delete {s}/start/memory --ids 3,5")?;
        shared.engram("data phrases --out {s}/phrases")?;
        shared.engram("data audiovisual --out {s}/seen --count 2 --names 2")?;
        shared.engram(&shared.line("train patent")?.replace("{}", "{s}"))?;
        let pairs = "{s}/phrases/test.csv --model {s}/run --out {s}/scores.csv";
        shared.engram(&format!("score {pairs} --quiet"))?;
        let (mut images, mut names) = (String::new(), "file,name,voice_name\n".to_owned());
        fs::create_dir(path("names"))?;
        for frame in fs::read_dir(path("seen/frames"))? {
            let (frame, name) = frame.map(|frame| (frame.path(), frame.file_name()))?;
            fs::copy(frame, path("names").join(&name))?;
            let name = name.to_string_lossy();
            images += &format!("{{\"image\":\"{name}\"}}\n");
            names += &format!("{name},picture {name},voice.wav\n");
        }
        fs::write(path("images.jsonl"), images)?;
        fs::write(path("names/names.csv"), names)?;
        fs::copy(formats::first_file(&path("seen"), "wav")?, path("names/voice.wav"))?;
        inputs::ctranslate2(&path("ctranslate2"))?;
        fs::create_dir(path("siglip"))?;
        for file in fs::read_dir(checkout().join("frozen/tests/fixtures/siglip"))? {
            let file = file?;
            fs::copy(file.path(), path("siglip").join(file.file_name()))?;
        }
        fs::create_dir(path("old"))?;
        for name in ["out.csv", "out.tsv", "ids.npy", "scores.npy", "items.jsonl", "out.jsonl"] {
            fs::write(path("old").join(name), "the old file\n")?;
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

    /// All writing commands; the slow commands only in the long form.
    pub fn subjects(&self, long: bool) -> Result<Vec<Subject>> {
        let subjects = table(include_str!("../subjects.txt")).map(|fields| self.subject(&fields));
        let mut subjects = subjects.collect::<Result<Vec<Subject>>>()?;
        subjects.retain(|subject| long || subject.seconds < SLOW_SECONDS);
        Ok(subjects)
    }

    /// The arguments of a subject by its name, with `{}` for the workdir.
    pub fn line(&self, name: &str) -> Result<String> {
        let mut subjects = self.subjects(true)?.into_iter();
        let subject = subjects.find(|subject| subject.name == name);
        subject.map(|subject| subject.line).with_context(|| format!("subjects.txt: no {name}"))
    }

    fn subject(&self, fields: &[&'static str]) -> Result<Subject> {
        let [name, kind, start, seconds, line] = fields else {
            bail!("subjects.txt: {fields:?}: five fields are needed");
        };
        let kind = match *kind {
            "memory" => Kind::Memory,
            "run" => Kind::Run,
            "runs" => Kind::Runs,
            "files" => Kind::Files,
            "folder" => Kind::Folder,
            other => bail!("subjects.txt: {other}: no such kind"),
        };
        let start = (!start.is_empty()).then(|| self.folder.join(start));
        Ok(Subject { name, kind, start, line: self.fill(line), seconds: seconds.parse()? })
    }
}
