//! Checks the paths on the command line: no output may overwrite an input, and only `--force`
//! overwrites another file.
//!
//! The check runs before the command starts, so a wrong path is refused before anything is read,
//! computed or written. `-` means standard output or standard input.

mod arguments;
mod same;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{bail, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command};
use engram_data::messages::without_secrets;
use engram_infer::pretrained::WITH_ADAPTER;
use tracing::debug;

use super::memory::location::addresses;
use super::output::{self, STDOUT};
use super::recipe;
use arguments::Role;
pub(super) use arguments::{
    BaseFolder, InputFile, InputFolder, InputPath, ModelName, NewFolder, OutputFile,
    OutputFileOrFolder, OutputFolder, RecipeFile, path_list,
};
use same::{containing_run_or_memory, is_device, is_same_file, resolved};

/// The path of standard input; `-` on the command line.
pub(super) const STDIN: &str = "/dev/stdin";

/// The name of the flag that allows a command to overwrite files.
const FORCE: &str = "force";
/// Whether that flag is given.
static MAY_OVERWRITE: AtomicBool = AtomicBool::new(false);

/// A path and the argument that it came from.
#[derive(Debug)]
struct PathArgument {
    /// The flag (`--out`), or the name of a positional argument.
    argument: String,
    path: PathBuf,
    role: Role,
}

impl PathArgument {
    /// Whether the command reads standard input. `engram transcribe` reads `-` itself.
    fn is_stdin(&self) -> bool {
        let is_dash = self.path.as_os_str() == "-";
        self.path == Path::new(STDIN) || (is_dash && self.role == Role::BaseFolder)
    }
}

/// Completes the path arguments of a command and its subcommands.
///
/// - Completions offer files, folders and built-in recipes.
/// - A command that writes files has `--force`.
pub(super) fn with_paths(command: Command) -> Command {
    let writes_files = command
        .get_arguments()
        .filter_map(Role::of)
        .any(|role| role.is_output_file() || role == Role::OutputFolder);
    let command = command.mut_args(|arg| match Role::of(&arg) {
        Some(Role::RecipeFile) => {
            arg.value_parser(recipe::path_parser()).hide_possible_values(true)
        }
        Some(role) => arg.value_hint(role.hint()),
        None => arg,
    });
    let command = if writes_files { command.arg(force_flag()) } else { command };
    command.mut_subcommands(with_paths)
}

fn force_flag() -> Arg {
    Arg::new(FORCE).long(FORCE).action(ArgAction::SetTrue).help("Overwrite existing files")
}

/// Checks all output paths.
///
/// # Errors
/// If an output cannot be created, or would replace an input, another output, or a file of a run or
/// a memory; without `--force`, if it already exists.
pub(super) fn check(command: &Command, matches: &ArgMatches) -> anyhow::Result<()> {
    let arguments = path_arguments(command, matches);
    for PathArgument { argument, path, role } in &arguments {
        // The address stays out of the messages, because it may have a password.
        match scheme(path) {
            Some(scheme) if *role != Role::InputFolder => {
                bail!("{argument} takes a path on this machine, not an address ({scheme}://…)")
            }
            None if is_like_address(path) => bail!(
                "{argument}: this looks like an address or a setting; give it without other \
                 characters, or write ./ before the name of a file"
            ),
            _ => {}
        }
        let verb = if role.is_output() { "writes" } else { "reads" };
        if addresses(path).is_some() {
            // An address with a password is refused later, and must not be logged.
            continue;
        }
        // `hf://owner/name` and the name of a recipe stay as given.
        let path = if role.is_output() || path.exists() { resolved(path) } else { path.clone() };
        debug!(%argument, path = %path.display(), "{verb}");
    }
    let outputs: Vec<&PathArgument> =
        arguments.iter().filter(|argument| argument.role.is_output()).collect();
    for output in &outputs {
        check_output(output)?;
        if is_stdout(&output.path) {
            output::reserve_stdout();
        }
        for input in arguments.iter().filter(|argument| !argument.role.is_output()) {
            check_input(output, input)?;
        }
    }
    for (number, output) in outputs.iter().enumerate() {
        for other in &outputs[..number] {
            check_distinct(other, output)?;
        }
    }
    let from_stdin: Vec<&PathArgument> =
        arguments.iter().filter(|argument| argument.is_stdin()).collect();
    if let [first, second, ..] = &from_stdin[..] {
        let (first, second) = (&first.argument, &second.argument);
        bail!("{first} and {second} both read standard input; give one of them a file");
    }
    let mut files = outputs.iter().filter(|output| output.role.is_output_file());
    files.try_for_each(|output| check_may_write(&output.path))
}

/// Whether `--force` is given.
pub(super) fn may_overwrite() -> bool {
    MAY_OVERWRITE.load(Ordering::Relaxed)
}

/// Returns an error if a file exists at an output path, unless `--force` is given.
pub(super) fn check_may_write(path: &Path) -> anyhow::Result<()> {
    ensure!(
        may_overwrite() || is_stdout(path) || !path.is_file(),
        "{}: already exists; give another name, or --force to overwrite it",
        path.display()
    );
    Ok(())
}

/// Returns an error if `output` would replace one of the `referenced` files, which an input file
/// names.
pub(super) fn check_not_overwritten<'a>(
    output: &Path,
    referenced: impl IntoIterator<Item = &'a Path>,
) -> anyhow::Result<()> {
    if output == Path::new(STDOUT) || is_device(output) {
        return Ok(());
    }
    let target = resolved(output);
    let exists = target.exists();
    for file in referenced {
        let input = resolved(file);
        // The frames of a clip may be a folder.
        let is_same =
            target == input || exists && (target.starts_with(&input) || is_same_file(output, file));
        ensure!(!is_same, would_replace(output, "the output", file));
    }
    Ok(())
}

/// All paths on the command line.
fn path_arguments(command: &Command, matches: &ArgMatches) -> Vec<PathArgument> {
    let (mut command, mut matches) = (command, matches);
    let mut arguments = Vec::new();
    loop {
        for arg in command.get_arguments() {
            let Some(role) = Role::of(arg) else { continue };
            let values = matches.try_get_raw(arg.get_id().as_str()).ok().flatten();
            for value in values.into_iter().flatten() {
                let mut add = |value: &OsStr| {
                    let (argument, path) = (argument_name(arg), role.path(value));
                    arguments.push(PathArgument { argument, path, role });
                };
                let text = value.to_str().filter(|_| role == Role::InputFolder);
                match text.and_then(|text| text.split_once(WITH_ADAPTER)) {
                    Some((model, adapter)) => {
                        [model, adapter].into_iter().for_each(|part| add(OsStr::new(part)))
                    }
                    None => add(value),
                }
            }
        }
        if let Ok(Some(force)) = matches.try_get_one::<bool>(FORCE) {
            MAY_OVERWRITE.store(*force, Ordering::Relaxed);
        }
        let Some((subcommand_name, subcommand_matches)) = matches.subcommand() else {
            return arguments;
        };
        let Some(subcommand) = command.find_subcommand(subcommand_name) else { return arguments };
        (command, matches) = (subcommand, subcommand_matches);
    }
}

/// The flag of an argument; the upper-case name of a positional argument.
fn argument_name(arg: &Arg) -> String {
    match arg.get_long() {
        Some(long) => format!("--{long}"),
        None => arg.get_id().as_str().to_uppercase(),
    }
}

/// The scheme of an address, such as `s3`; `None` for a path.
fn scheme(path: &Path) -> Option<&str> {
    let (scheme, _) = path.to_str()?.split_once("://")?;
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    (!scheme.is_empty() && scheme.bytes().all(is_letter)).then_some(scheme)
}

/// Whether a path that exists nowhere is probably an address or a setting, also with other characters
/// before it: it may have a password, and a folder of that name would show it.
fn is_like_address(path: &Path) -> bool {
    let Some(text) = path.to_str().filter(|_| !path.exists()) else { return false };
    if text.starts_with(['/', '.']) {
        return false;
    }
    let mut parameters = text.split_whitespace().filter_map(|word| word.split_once('='));
    let is_of_server = |(name, _): (&str, &str)| ["host", "hostaddr", "dbname"].contains(&name);
    let login = text.split_once('@').map_or("", |(login, _)| login);
    text.contains("://")
        || without_secrets(text) != text
        || login.contains(':') && !cfg!(windows)
        || parameters.any(is_of_server)
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new(STDOUT)
}

/// Returns an error if an output cannot be created at its path, or is inside a run or a memory.
fn check_output(output: &PathArgument) -> anyhow::Result<()> {
    let PathArgument { argument, path, role } = output;
    let display = path.display();
    if matches!(role, Role::OutputFolder | Role::NewFolder) {
        ensure!(
            path.as_os_str() != "-",
            "-: means standard output, but {argument} needs a folder; for a folder named -, write ./-"
        );
    } else if !is_stdout(path) {
        let is_file = *role == Role::OutputFile;
        let ends_in_slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        ensure!(
            !(is_file && (path.is_dir() || ends_in_slash)),
            "{display}: is a folder; name a file for {argument}"
        );
        ensure!(
            !path.as_os_str().is_empty(),
            "{argument} is empty; name a file, or - for standard output"
        );
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // Missing folders are created together with the output.
        let is_missing = |folder: &&Path| !folder.is_dir() && !folder.as_os_str().is_empty();
        let can_be_created =
            |folder: &Path| folder.file_name().is_some() && folder.symlink_metadata().is_err();
        ensure!(
            folder.ancestors().take_while(is_missing).all(can_be_created),
            "{}: is not a folder and cannot be created; give another path for {argument}",
            folder.display()
        );
    }
    if is_device(path) {
        return Ok(());
    }
    // A new folder itself is checked by the command that creates it.
    let target = resolved(path);
    if let Some((kind, folder)) = containing_run_or_memory(&target, *role == Role::OutputFolder) {
        bail!(
            "{display}: {argument} would write into the {kind} {}; give another path",
            folder.display()
        );
    }
    Ok(())
}

/// Returns an error if an output would replace an input.
fn check_input(output: &PathArgument, input: &PathArgument) -> anyhow::Result<()> {
    if is_device(&output.path) || input.path == Path::new(STDIN) {
        return Ok(());
    }
    let (target, source) = (resolved(&output.path), resolved(&input.path));
    let is_below = target != source && target.starts_with(&source);
    let replaces = match (input.role, source.is_dir()) {
        (_, false) => is_same_file(&output.path, &input.path),
        // For an output folder that is also an input, the command refuses a folder with files.
        (_, true) if target == source => output.role == Role::OutputFile,
        (Role::InputFolder, true) => is_below,
        (Role::InputFile | Role::InputPath, true) => is_below && target.is_file(),
        (_, true) => false,
    };
    ensure!(!replaces, would_replace(&output.path, &output.argument, &input.path));
    Ok(())
}

/// The error text for an output that would replace an input.
fn would_replace(output: &Path, argument: &str, input: &Path) -> String {
    let (output, input) = (output.display(), input.display());
    format!("{output}: {argument} would overwrite the input {input}; give another path")
}

/// Returns an error if two outputs are the same file, or one is inside the other.
fn check_distinct(output: &PathArgument, other: &PathArgument) -> anyhow::Result<()> {
    let both_stdout = is_stdout(&output.path) && is_stdout(&other.path);
    if !both_stdout && (is_device(&output.path) || is_device(&other.path)) {
        return Ok(());
    }
    let [target, other_target] = [&output.path, &other.path].map(|path| resolved(path));
    let overlap = both_stdout
        || target.starts_with(&other_target)
        || other_target.starts_with(&target)
        || is_same_file(&output.path, &other.path);
    let path = other.path.display();
    let (argument, other_argument) = (&output.argument, &other.argument);
    ensure!(
        !overlap,
        "{path}: {argument} and {other_argument} both write there; give one of them another path"
    );
    Ok(())
}
