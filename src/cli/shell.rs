//! `engram completions` and `engram man`: shell completions and manual pages.

use engram_data::messages::counted;
use std::fmt::Write as _;

use clap::Args;
use clap_complete::Shell;
use clap_mangen::Man;

use super::paths::{self, OutputFolder};
use super::{Outcome, output, recipe};

/// Print a script that completes commands and options in a shell.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram completions bash > ~/.local/share/bash-completion/completions/engram
  engram completions zsh > ~/.zfunc/_engram
  engram completions fish > ~/.config/fish/completions/engram.fish")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut super::command(), "engram", &mut script);
        output::print(&with_recipe_files(&String::from_utf8(script)?, self.shell))?;
        Ok(Outcome::Done)
    }
}

/// Completes files next to the names of built-in recipes. A script offers either.
fn with_recipe_files(script: &str, shell: Shell) -> String {
    let names = recipe::names().collect::<Vec<_>>().join(" ");
    match shell {
        Shell::Bash => script
            .replace(&format!("compgen -W \"{names}\""), &format!("compgen -f -W \"{names}\"")),
        Shell::Zsh => script.replace(
            &format!(":({names})"),
            &format!(
                ":{{_alternative \"recipes\\:recipe\\:({names})\" \"files\\:file\\:_files\"}}"
            ),
        ),
        _ => script.to_owned(),
    }
}

/// Write one manual page for each command, or print all help texts as Markdown.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram man --out ~/.local/share/man/man1 && man engram-train
  engram man --markdown > commands.md")]
pub struct ManPages {
    /// Output folder; created if missing
    #[arg(long, value_name = "FOLDER", required_unless_present = "markdown")]
    out: Option<OutputFolder>,
    /// Print the help of all commands as one Markdown page
    #[arg(long, conflicts_with = "out")]
    markdown: bool,
}

impl ManPages {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        let mut command = super::command().disable_help_subcommand(true);
        command.build();
        let Some(folder) = self.out else {
            output::print(&markdown(&command))?;
            return Ok(Outcome::Done);
        };
        output::create_folder(&folder)?;
        let pages = pages(&command)?;
        pages.iter().try_for_each(|(name, _)| paths::check_may_write(&folder.join(name)))?;
        for (name, page) in &pages {
            output::write_atomic(&folder.join(name), page.as_bytes())?;
        }
        output::print(&format!("{}: {}", folder.display(), counted(pages.len(), "page")))?;
        Ok(Outcome::Done)
    }
}

/// The pages of a command and its subcommands: file name and text.
fn pages(command: &clap::Command) -> anyhow::Result<Vec<(String, String)>> {
    let page = Man::new(command.clone());
    let mut roff = Vec::new();
    page.render(&mut roff)?;
    // Examples and tables follow the options; `.nf` keeps their line breaks.
    let roff = String::from_utf8(roff)?.replace(".SH EXTRA\n", ".SH EXAMPLES\n.nf\n");
    let mut all_pages = vec![(page.get_filename(), roff)];
    for subcommand in command.get_subcommands() {
        all_pages.extend(pages(subcommand)?);
    }
    Ok(all_pages)
}

/// The help of a command and its subcommands as a Markdown page. The options of all commands are
/// only in the section of `engram`.
fn markdown(command: &clap::Command) -> String {
    let mut page = String::from(
        "# Commands\n\nThe help of every command, as `engram COMMAND --help` prints it. The global \
         options of [`engram`](#engram) hold for all commands.\n",
    );
    write_sections(&mut page, command.clone());
    page
}

/// Writes the sections of a command and its subcommands.
fn write_sections(page: &mut String, mut command: clap::Command) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    command = command.term_width(100);
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(page, "\n## {name}\n\n```text\n{}\n```\n", help.join("\n").trim_end());
    for subcommand in command.get_subcommands().cloned() {
        let is_global = |arg: &clap::Arg| arg.is_global_set() || arg.get_id() == "help";
        write_sections(
            page,
            subcommand.mut_args(|arg| {
                let hidden = is_global(&arg);
                arg.hide(hidden)
            }),
        );
    }
}

#[cfg(test)]
mod tests {

    #[test]
    fn the_help_of_each_command_has_examples() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(|help| help.to_string()).unwrap_or_default();
            assert!(help.contains("Example"), "engram … {}", command.get_name());
            command.get_subcommands().for_each(check);
        }
        let mut command = crate::cli::command().disable_help_subcommand(true);
        command.build();
        check(&command);
    }
}
