//! The types of path arguments. A type says what the command does with the path, and so determines
//! which checks run before the command starts.

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use clap::{Arg, ValueHint};

use super::STDIN;
use crate::cli::output::STDOUT;

macro_rules! path_types {
    ($($(#[doc = $doc:literal])+ $name:ident, $dash:expr, $hint:ident;)+) => {
        /// The type of a path argument.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Role {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Role {
            /// The role of an argument; `None` if the argument is not a path.
            pub(super) fn of(arg: &Arg) -> Option<Self> {
                let value = arg.get_value_parser().type_id();
                $(if value == TypeId::of::<$name>() {
                    return Some(Self::$name);
                })+
                (value == TypeId::of::<ModelName>()).then_some(Self::InputFolder)
            }

            /// The stream that `-` stands for, if it stands for one.
            fn dash(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => $dash,)+
                }
            }

            /// The completion in shells.
            pub(super) fn hint(self) -> ValueHint {
                match self {
                    $(Self::$name => ValueHint::$hint,)+
                }
            }
        }

        $(
            $(#[doc = $doc])+
            #[derive(Debug, Clone)]
            pub(in crate::cli) struct $name(PathBuf);

            impl From<OsString> for $name {
                fn from(value: OsString) -> Self {
                    Self(Role::$name.path(&value))
                }
            }

            impl Deref for $name {
                type Target = Path;

                fn deref(&self) -> &Path {
                    &self.0
                }
            }

            impl AsRef<Path> for $name {
                fn as_ref(&self) -> &Path {
                    self
                }
            }
        )+
    };
}

path_types! {
    /// An output file; `-` is standard output.
    OutputFile, Some(STDOUT), FilePath;
    /// An output file, or a folder for several output files; `-` is standard output.
    OutputFileOrFolder, Some(STDOUT), AnyPath;
    /// An output folder that may already contain other files.
    OutputFolder, None, DirPath;
    /// A folder that the command creates, or that an earlier call of the command created.
    NewFolder, None, DirPath;
    /// An input file that is read once from start to end; `-` is standard input.
    InputFile, Some(STDIN), AnyPath;
    /// An input file or a folder with input files, which may be read several times.
    InputPath, None, AnyPath;
    /// A recipe or a grid: an input file, or a built-in name.
    RecipeFile, None, FilePath;
    /// A run, a memory or a model: the command may read every file in the folder.
    InputFolder, None, AnyPath;
    /// The base folder of other paths, or an input of `transcribe`. The command itself checks that
    /// its output replaces no file that it reads.
    BaseFolder, None, AnyPath;
}

impl Role {
    pub(super) fn is_output(self) -> bool {
        self.is_output_file() || matches!(self, Self::OutputFolder | Self::NewFolder)
    }

    /// Whether the output may be a single file.
    pub(super) fn is_output_file(self) -> bool {
        matches!(self, Self::OutputFile | Self::OutputFileOrFolder)
    }

    /// The path that the command receives for a value.
    pub(super) fn path(self, value: &OsStr) -> PathBuf {
        self.dash().filter(|_| value == "-").map_or_else(|| value.into(), PathBuf::from)
    }
}

/// The paths of a list of arguments.
pub(in crate::cli) fn path_list(arguments: &[impl Deref<Target = Path>]) -> Vec<PathBuf> {
    arguments.iter().map(|argument| argument.to_path_buf()).collect()
}

/// A model: a folder, or `hf://owner/name`, or one with its adapter,
/// `MODEL?adapter=ADAPTER`. Its role is [`Role::InputFolder`].
#[derive(Debug, Clone)]
pub(in crate::cli) struct ModelName(String);

impl From<String> for ModelName {
    fn from(name: String) -> Self {
        Self(name)
    }
}

impl Deref for ModelName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::*;
    use crate::cli::Cli;

    /// The value names of arguments that may be paths.
    const PATH_NAMES: [&str; 8] =
        ["FILE", "FOLDER", "DIR", "PATH", "RUN", "WEIGHTS", "MODEL", "MEMORY"];

    #[test]
    fn every_path_of_the_command_line_has_a_role() {
        fn check(command: &Command) {
            for arg in command.get_arguments().filter(|arg| Role::of(arg).is_none()) {
                let value = arg.get_value_parser().type_id();
                let names = arg.get_value_names().unwrap_or_default();
                let is_text = value == TypeId::of::<String>();
                let is_path = names.iter().any(|name| PATH_NAMES.contains(&name.as_str()));
                assert!(
                    value != TypeId::of::<PathBuf>() && !(is_text && is_path),
                    "engram … {}: give {} a type of this module",
                    command.get_name(),
                    arg.get_id()
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
