//! `engram data entries`: published data sets as memory entries.

use engram_data::messages::counted;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::builder::NonEmptyStringValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Subcommand, value_parser};
use engram_data::DataError;
use engram_data::knowledge::{
    Argument, ArgumentKind, Collector, Counts, DATA_SETS, DataSet, Input, Request, Rule, Sample,
    Values,
};
use serde::Serialize;

use super::super::paths::{InputFile, OutputFile};
use super::super::{Outcome, output};

/// The name of the command that lists the samples of all data sets.
const SAMPLES: &str = "samples";

/// A parsed command.
#[derive(Debug)]
pub enum Entries {
    /// Reads a data set.
    Read { data_set: &'static DataSet, values: Values, output: Output },
    /// Lists the samples.
    Samples,
}

/// The output options of all formats.
#[derive(Debug, Args)]
pub struct Output {
    /// Output file for the entries (JSON lines)
    #[arg(long, value_name = "FILE")]
    out: OutputFile,
    /// Source name of the entries; default: the name of the format, and cc12m for web
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    source: Option<String>,
    /// Skip and count malformed lines and items, instead of stopping with an error
    #[arg(long)]
    skip_bad_lines: bool,
    /// Print the counts as JSON
    #[arg(long)]
    json: bool,
}

impl Subcommand for Entries {
    fn augment_subcommands(command: Command) -> Command {
        command.subcommands(DATA_SETS.iter().map(subcommand)).after_help(
            "\
Files may be gzipped. docs/reference/formats.md has the differences from REVEAL's code.

Examples:
  engram data entries wit wit_v1.train.all-0000*.tsv.gz --language en --out wit.jsonl
  engram data entries web cc12m.tsv --out cc12m.jsonl
  engram memory build --keys keys.npy --entries wit.jsonl --out memory",
        )
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        DATA_SETS.iter().any(|data_set| data_set.name == name)
    }
}

impl FromArgMatches for Entries {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        match matches.subcommand_name() {
            Some(SAMPLES) => Ok(Self::Samples),
            _ => Self::of_data_sets(DATA_SETS, matches),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Adds `engram data entries samples` to the command line, for the torture suite. The help, the manual
/// pages and the completions are made without it.
pub fn with_sample_listing(command: Command) -> Command {
    command.mut_subcommand("data", |data| {
        data.mut_subcommand("entries", |entries| {
            entries.subcommand(Command::new(SAMPLES).hide(true))
        })
    })
}

/// Prints a list of all samples as JSON: the arguments and the files.
fn print_samples() -> anyhow::Result<()> {
    let mut samples = Vec::new();
    for DataSet { name, samples: of_data_set, .. } in DATA_SETS {
        let sample = |sample: &Sample| (format!("{name} {}", sample.line), sample.files);
        samples.extend(of_data_set.iter().map(sample));
    }
    output::print(&serde_json::to_string(&samples)?)
}

/// The subcommand of a data set.
fn subcommand(data_set: &'static DataSet) -> Command {
    let command = Command::new(data_set.name);
    let command = command.args(data_set.arguments.iter().map(clap_argument));
    let formats = match data_set.formats {
        "" => String::new(),
        formats => format!("{formats}\n\n"),
    };
    let plural = if data_set.examples.len() == 1 { "" } else { "s" };
    let line = |example| format!("\n  engram data entries {} {example}", data_set.name);
    let lines: String = data_set.examples.iter().map(line).collect();
    Output::augment_args(command)
        .about(data_set.about)
        .after_help(format!("{formats}Example{plural}:{lines}"))
}

fn clap_argument(argument: &'static Argument) -> Arg {
    let Argument { name, kind, value_name, .. } = *argument;
    let mut arg = Arg::new(name).help(argument.help);
    if !matches!(kind, ArgumentKind::Files) {
        arg = arg.long(name);
    }
    if !matches!(kind, ArgumentKind::Switch) {
        arg = arg.value_name(value_name);
    }
    let arg = match kind {
        ArgumentKind::Files => {
            arg.action(ArgAction::Append).num_args(1..).value_parser(value_parser!(InputFile))
        }
        ArgumentKind::File => arg.action(ArgAction::Append).value_parser(value_parser!(InputFile)),
        ArgumentKind::Switch => arg.action(ArgAction::SetTrue),
        ArgumentKind::Text => arg,
        ArgumentKind::List => arg.action(ArgAction::Append).value_delimiter(','),
        ArgumentKind::Checked(check) => arg
            .action(ArgAction::Append)
            .value_parser(move |text: &str| check(text).map(|()| text.to_owned())),
        ArgumentKind::Number => arg.value_parser(value_parser!(usize)).default_value("0"),
    };
    match argument.rule {
        Rule::Optional => arg,
        Rule::Required => arg.required(true),
        Rule::RequiredUnless(other) => arg.required_unless_present(other),
        Rule::With(other) => arg.requires(other),
        Rule::Without(others) => arg.conflicts_with_all(others),
    }
}

/// The given values of an argument.
fn given_values(argument: &Argument, matches: &ArgMatches) -> Vec<OsString> {
    match argument.kind {
        ArgumentKind::Files | ArgumentKind::File => {
            let files = matches.get_many::<InputFile>(argument.name).into_iter().flatten();
            files.map(|file| file.as_os_str().to_owned()).collect()
        }
        ArgumentKind::Switch if !matches.get_flag(argument.name) => Vec::new(),
        _ => matches.get_raw(argument.name).into_iter().flatten().map(OsString::from).collect(),
    }
}

impl Entries {
    /// Finds the data set of the parsed arguments.
    fn of_data_sets(
        data_sets: &'static [DataSet],
        matches: &ArgMatches,
    ) -> Result<Self, clap::Error> {
        let selected = matches.subcommand().and_then(|(name, matches)| {
            Some((data_sets.iter().find(|data_set| data_set.name == name)?, matches))
        });
        let Some((data_set, matches)) = selected else {
            return Err(clap::Error::new(ErrorKind::MissingSubcommand));
        };
        let arguments = data_set.arguments.iter();
        let values = arguments.map(|argument| (argument.name, given_values(argument, matches)));
        let values = values.filter(|(_, values)| !values.is_empty()).collect();
        Ok(Self::Read { data_set, values, output: Output::from_arg_matches(matches)? })
    }

    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let Self::Read { data_set, values, output } = self else {
            print_samples()?;
            return Ok(Outcome::Done);
        };
        let (mut files, mut read_twice) = (Vec::new(), Vec::new());
        for Argument { name, kind, read_twice_with, .. } in data_set.arguments {
            if !matches!(kind, ArgumentKind::Files | ArgumentKind::File) {
                continue;
            }
            let given = values.get(name).into_iter().flatten().map(PathBuf::from);
            if read_twice_with.is_some_and(|switch| values.contains_key(switch)) {
                read_twice.extend(given.clone());
            }
            files.extend(given);
        }
        if let Some(pipe) = read_twice
            .iter()
            .find(|path| fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()))
        {
            let pipe = pipe.display();
            anyhow::bail!(
                "{pipe}: is a pipe or a device, but these options read it twice; save it to a \
                 file"
            );
        }
        let sizes = files.iter().chain(&read_twice).filter_map(|path| fs::metadata(path).ok());
        let bar = output::byte_progress_bar(sizes.map(|file| file.len()).sum());
        let open = |path: &Path| -> Result<Input<'static>, DataError> {
            let file = engram_durable::open_input(path);
            let file = file.map_err(|source| DataError::Io { path: path.to_owned(), source })?;
            Ok(Input::new(path, bar.wrap_read(file))?)
        };
        let source = output.source.clone().unwrap_or_else(|| data_set.source.to_owned());
        let request = Request { source, values, open: &open };
        output.write(&files, |collector| {
            let result = (data_set.read)(&request, collector);
            bar.finish_and_clear();
            result
        })?;
        Ok(Outcome::Done)
    }
}

/// The summary that `--json` prints.
#[derive(Serialize)]
struct Summary<'a> {
    out: &'a Path,
    #[serde(flatten)]
    counts: &'a Counts,
}

impl Output {
    /// Writes the entries that `read` produces, then prints the counts.
    fn write(
        &self,
        files: &[PathBuf],
        read: impl FnOnce(&mut Collector<'_>) -> Result<(), DataError>,
    ) -> anyhow::Result<()> {
        let not_written = |error| output::not_written(&self.out, error);
        let mut file = BufWriter::new(output::AtomicFile::create(&self.out).map_err(not_written)?);
        let mut write_error = None;
        let mut collector = Collector::new(|knowledge| {
            let line = serde_json::to_writer(&mut file, &knowledge).map_err(io::Error::from);
            line.and_then(|()| file.write_all(b"\n")).map_err(|error| {
                let source = error.kind().into();
                write_error = Some(error);
                DataError::Io { path: self.out.to_path_buf(), source }
            })
        })
        .skip_malformed(self.skip_bad_lines);
        let result = read(&mut collector);
        let counts = collector.counts().clone();
        drop(collector);
        if let Some(error) = write_error {
            return Err(not_written(error));
        }
        result?;
        if counts.entries == 0 {
            anyhow::bail!(
                "{}: no entries from {}, so {} is not written; check the files and the options",
                names(files),
                counts_text(&counts),
                self.out.display()
            );
        }
        let file = file.into_inner().map_err(|error| not_written(error.into_error()))?;
        file.commit().map_err(not_written)?;
        self.report(&counts)
    }

    fn report(&self, counts: &Counts) -> anyhow::Result<()> {
        let summary = Summary { out: &self.out, counts };
        let text = || {
            format!(
                "{}: {} from {}",
                self.out.display(),
                counted(counts.entries, "entry"),
                counts_text(counts)
            )
        };
        output::print_report(self.json, &summary, text)
    }
}

/// The names of the input files, each once.
fn names(files: &[PathBuf]) -> String {
    let mut names: Vec<String> = Vec::new();
    for name in files.iter().map(|path| path.display().to_string()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// The number of records read and of records skipped, with reasons.
fn counts_text(counts: &Counts) -> String {
    let mut text = counted(counts.records, "record");
    let reasons: Vec<String> =
        counts.skipped.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    if !reasons.is_empty() {
        text += &format!("; skipped: {}", reasons.join(", "));
    }
    for (note, count) in &counts.notes {
        text += &format!("; {count} {note}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use engram_data::knowledge::Entry;

    use super::*;

    /// A data set with a passage on each line.
    static OWN: [DataSet; 1] = [DataSet {
        name: "passages",
        about: "Convert passages",
        source: "own",
        arguments: &[
            Argument::new(ArgumentKind::Files, "files", "FILES", "Files of passages")
                .rule(Rule::Required),
            Argument::new(ArgumentKind::Text, "document", "NAME", "Document of the passages"),
        ],
        formats: "One passage on each line.",
        examples: &["passages.txt --out passages.jsonl"],
        samples: &[],
        read: |request, collector| {
            let document = request.text("document").unwrap_or_default();
            for input in request.inputs("files") {
                let mut text = String::new();
                input?.read_to_string(&mut text).expect("text");
                for line in text.lines() {
                    collector.count_record();
                    let entry = Entry::passage(&request.source, line);
                    collector.emit(entry.of_document(&*document))?;
                }
            }
            Ok(())
        },
    }];

    #[test]
    fn a_data_set_is_one_value() {
        let folder = tempfile::tempdir().expect("a folder");
        let [input, out] = ["a.txt", "out.jsonl"].map(|name| folder.path().join(name));
        fs::write(&input, "one\ntwo\n").expect("a file");
        let command = || Command::new("entries").subcommands(OWN.iter().map(subcommand));
        let entries = |arguments: &[&str]| {
            let matches =
                command().try_get_matches_from([&["entries", "passages"], arguments].concat());
            matches.and_then(|matches| Entries::of_data_sets(&OWN, &matches))
        };
        let [input, out] = [&input, &out].map(|path| path.to_str().expect("a path"));
        let entries_of_file =
            entries(&[input, "--document", "d", "--source", "mine", "--out", out])
                .expect("arguments");
        assert_eq!(entries_of_file.run().expect("entries"), Outcome::Done);
        assert_eq!(
            fs::read_to_string(out).expect("entries"),
            "{\"source\":\"mine\",\"document\":\"d\",\"text\":\"one\"}\n\
             {\"source\":\"mine\",\"document\":\"d\",\"text\":\"two\"}\n"
        );
        let error = entries(&["--out", out]).expect_err("a file is required").to_string();
        assert!(error.contains("<FILES>..."), "{error}");
        let help = subcommand(&OWN[0]).render_long_help().to_string();
        for part in ["Convert passages", "One passage on each line.\n\nExample:\n  engram data"] {
            assert!(help.contains(part), "{help}");
        }
    }
}
