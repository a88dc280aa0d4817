//! `engram completions` and `engram man`: shell completions and manual pages.

use engram_data::messages::counted;
use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Outcome, output, paths, recipe};

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

/// Write one manual page for each command.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram man --out ~/.local/share/man/man1 && man engram-train")]
pub struct ManPages {
    /// Output folder; created if missing
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

impl ManPages {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        let mut command = super::command().disable_help_subcommand(true);
        command.build();
        let folder = self.out.display();
        output::create_folder(&self.out)?;
        let pages = pages(&command)?;
        pages.iter().try_for_each(|(name, _)| paths::check_may_write(&self.out.join(name)))?;
        for (name, page) in &pages {
            output::write_atomic(&self.out.join(name), page.as_bytes())?;
        }
        output::print(&format!("{folder}: {}", counted(pages.len(), "page")))?;
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
