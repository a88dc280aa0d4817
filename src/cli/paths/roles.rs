//! The role of each path on the command line: output or input.

/// The role of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// An output file; `-` is standard output.
    OutputFile,
    /// An output file, or an output folder for several files.
    OutputFileOrFolder,
    /// An output folder that may already contain other files.
    OutputFolder,
    /// A folder that the command creates, or that an earlier call of the command created.
    NewFolder,
    /// An input file, or a folder with data; `-` is standard input for inputs that are read once.
    Input,
    /// A recipe or a grid: an input file, or a built-in name.
    Recipe,
    /// A run, a memory or a model: the command may read every file in the folder.
    InputModel,
    /// The base folder of other paths, or an input of `transcribe`. The command itself checks that
    /// its output replaces no file that it reads.
    BaseFolder,
}

impl Role {
    pub(super) fn is_output(self) -> bool {
        use Role::{NewFolder, OutputFile, OutputFileOrFolder, OutputFolder};
        matches!(self, OutputFile | OutputFileOrFolder | OutputFolder | NewFolder)
    }

    /// Whether the output may be a single file.
    pub(super) fn is_output_file(self) -> bool {
        matches!(self, Self::OutputFile | Self::OutputFileOrFolder)
    }
}

/// The role of a command's argument. `command` is a name such as `data entries wit`. Returns `None`
/// if the argument is not a path.
pub(super) fn role(command: &str, argument: &str) -> Option<Role> {
    let mut words = command.split(' ');
    let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    Some(match (first, second, argument) {
        ("eval", _, "items" | "html")
        | ("memory", "search", "out" | "scores")
        | ("data", "entries" | "clips", "out")
        | ("answer" | "score", _, "out") => Role::OutputFile,
        ("transcribe", _, "out") => Role::OutputFileOrFolder,
        ("man", _, "out") => Role::OutputFolder,
        ("train", _, "run")
        | ("grid", _, "out")
        | ("reproduce", _, "out" | "export_bundled")
        | ("memory", "build" | "reencode" | "pull", "out")
        | ("data", "convert", "out")
        | ("data", "phrases" | "bundled" | "world" | "speech" | "audiovisual", "out") => {
            Role::NewFolder
        }

        ("transcribe", _, "model" | "adapters" | "image_encoder")
        | ("answer", _, "run" | "memory")
        | ("score", _, "model")
        | ("memory", _, "folder" | "model" | "image_model")
        | ("train", "similarity", "model")
        | ("data", "convert", "folder")
        | ("reproduce", _, "whisper" | "encoder")
        | ("explore", _, "folders") => Role::InputModel,

        ("transcribe", _, "inputs")
        | ("memory" | "explore", _, "images")
        | ("data", "clips", "audio" | "frames")
        | ("data", "entries", "folder")
        | ("reproduce", _, "data") => Role::BaseFolder,

        ("train", _, "recipe") | ("grid", _, "file") => Role::Recipe,

        ("train", "similarity", "csv")
        | ("transcribe", _, "boost")
        | ("answer", _, "questions" | "haystack")
        | ("score", _, "pairs")
        | ("memory", _, "queries" | "gates" | "exclude" | "image" | "texts")
        | ("memory", _, "keys" | "values" | "entries" | "csv")
        | ("data", "clips", "path")
        | (
            "data",
            "entries",
            "triples" | "labels" | "files" | "questions" | "annotations" | "aokvqa",
        )
        | ("eval", "compare", "a" | "b")
        | ("eval", _, "reference" | "hyp" | "pairs" | "table" | "rare_words" | "biasing")
        | ("eval", _, "baseline" | "queries" | "df" | "questions") => Role::Input,
        _ => return None,
    })
}

/// Whether a command reads an input once from start to end, so that it may come from standard
/// input.
pub(super) fn reads_once(command: &str, argument: &str) -> bool {
    match command {
        "score" => true,
        "answer" => matches!(argument, "questions" | "haystack"),
        "transcribe" => argument == "boost",
        "data clips" => argument == "path",
        "memory search" => matches!(argument, "texts" | "exclude"),
        _ => command.starts_with("eval ") || command.starts_with("data entries "),
    }
}

/// The full name of a subcommand.
pub(super) fn full_name(parent: &str, subcommand: &str) -> String {
    if parent.is_empty() { subcommand.to_owned() } else { format!("{parent} {subcommand}") }
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;
    use std::path::PathBuf;

    use clap::{Arg, Command, CommandFactory};

    use super::*;
    use crate::cli::Cli;

    /// Value names of arguments that take a path or a Hugging Face name as text.
    const PATH_VALUE_NAMES: [&str; 8] =
        ["FILE", "FOLDER", "DIR", "PATH", "RUN", "WEIGHTS", "MODEL", "MEMORY"];

    /// Whether an argument is parsed as a path.
    fn is_path(arg: &Arg) -> bool {
        arg.get_value_parser().type_id() == TypeId::of::<PathBuf>()
    }

    /// Adds the path arguments without a role to `found`.
    fn collect_paths_without_role(command: &Command, name: &str, found: &mut Vec<String>) {
        for arg in command.get_arguments() {
            let names = arg.get_value_names().unwrap_or_default();
            let has_path_value_name =
                names.iter().any(|name| PATH_VALUE_NAMES.contains(&name.as_str()));
            let takes_text = arg.get_value_parser().type_id() == TypeId::of::<String>();
            if (is_path(arg) || (takes_text && has_path_value_name))
                && role(name, arg.get_id().as_str()).is_none()
            {
                found.push(format!("engram {name}: {}", arg.get_id()));
            }
        }
        for subcommand in command.get_subcommands() {
            collect_paths_without_role(subcommand, &full_name(name, subcommand.get_name()), found);
        }
    }

    #[test]
    fn every_path_of_the_command_line_has_a_role() {
        let mut found = Vec::new();
        collect_paths_without_role(&Cli::command(), "", &mut found);
        assert!(found.is_empty(), "add these to `role`, as outputs or inputs: {found:#?}");
    }
}
