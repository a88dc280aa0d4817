//! Claims on the results of commands, in `commands.toml`: each compares the results of two lists of
//! commands, or is about the results of one.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use engram_data::hub::{HubSettings, WeightsLocation};
use engram_eval::items::Items;
use engram_infer::digest;
use engram_train::grid::{
    ClaimReport, Rule, SeedItems, SystemMeasure, measure, test_difference, test_value,
};
use engram_train::{Program, TrainError};
use serde::Deserialize;

use super::forget::{FORGET, WORDING};
use super::{ENCODER, Reproduce, Results};
use crate::cli::{Invocation, output};

const CLAIMS: &str = include_str!("commands.toml");
/// The folder of all results of commands, below the folder of all runs.
const RESULTS: &str = "real";
/// The items of a system, and the program, files and commands that they come from.
const ITEMS: &str = "items.jsonl";
const ORIGIN: &str = "commands.txt";
/// How often a running command is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    claim: Vec<CommandClaim>,
    /// Commands whose results several claims use.
    shared: Vec<Shared>,
}

/// Commands whose output files are in the folder `{shared}/NAME`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shared {
    name: String,
    commands: Vec<String>,
}

/// A claim that compares two systems, or is about one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandClaim {
    id: String,
    claim: String,
    #[serde(default)]
    paper: String,
    scales: Vec<String>,
    /// Files and folders below `--data`.
    files: Vec<String>,
    /// The option whose weights the better system needs: `encoder` or `whisper`; empty for none.
    #[serde(default)]
    needs: String,
    /// The kind of group of the items.
    unit: String,
    better: System,
    worse: Option<System>,
    /// Replaces the rule "is better": the better system is worse by at most this margin.
    no_worse_by: Option<f64>,
    /// Without `worse`: the value is above this limit.
    above: Option<f64>,
    /// Without `worse`: the value is at most this limit.
    at_most: Option<f64>,
    #[serde(default)]
    expected: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct System {
    name: String,
    commands: Vec<String>,
}

impl Reproduce {
    /// The claims that these options allow.
    fn command_claims(&self) -> anyhow::Result<Claims> {
        let mut claims: Claims = toml::from_str(CLAIMS)?;
        let is_possible = |claim: &CommandClaim| {
            (self.data.is_some() || claim.files.is_empty())
                && claim.scales.iter().any(|scale| scale == self.scale.name())
                && (claim.needs != "whisper" || self.whisper.is_some())
        };
        claims.claim.retain(is_possible);
        Ok(claims)
    }

    /// The ids of these claims.
    pub(super) fn command_claim_ids(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.command_claims()?.claim.into_iter().map(|claim| claim.id).collect())
    }

    /// Tests the claims on real data. They come first, so that an invalid file is an error before
    /// hours of training.
    pub(super) fn test_commands(&self, results: &mut Results) -> anyhow::Result<()> {
        if self.includes_study(FORGET) {
            self.prepare_fact_reader(results)?;
        }
        let Claims { claim, shared } = self.command_claims()?;
        for claim in claim {
            let study = claim.id.split('.').next().unwrap_or_default();
            if !self.includes_study(study) || !self.includes_claim(&claim.id) {
                continue;
            }
            if let Some(missing) = self.paths(&claim).iter().find(|path| !path.exists()) {
                let missing = missing.display();
                results.notes.push(format!("{missing}: missing, so {} is not tested.", claim.id));
                continue;
            }
            output::note(&claim.id);
            let worse = claim.worse.as_ref();
            let worse = worse.map(|worse| self.items(&claim, worse, "worse", &shared, results));
            let worse = worse.transpose()?;
            let encoder = &self.encoder;
            let offline = HubSettings { offline: true, ..HubSettings::from_env()? };
            if claim.needs == "encoder"
                && WeightsLocation::parse(encoder)?.file("model.safetensors", &offline).is_err()
            {
                results.notes.push(format!(
                    "{encoder}: not available offline, so {} is not tested. Run `engram data fetch \
                     {encoder}`, or give --encoder.",
                    claim.id
                ));
                continue;
            }
            let better = self.items(&claim, &claim.better, "better", &shared, results)?;
            results.claims.push(self.report(claim, better, worse));
        }
        Ok(())
    }

    /// Compares the two systems of a claim.
    fn report(&self, claim: CommandClaim, better: Items, worse: Option<Items>) -> ClaimReport {
        let info = better.items[0].info();
        let seed_items = |items: &Items| -> SeedItems {
            Ok(items.items.iter().map(|item| (1, item.clone())).collect())
        };
        let system = |name: &str, items: &Items| SystemMeasure {
            system: self.filled(name, Path::new("")),
            measure: measure(&info, &claim.unit, seed_items(items)),
        };
        let limit = claim.above.map(Rule::Above).or(claim.at_most.map(Rule::AtMost));
        let rule = limit.or(claim.no_worse_by.map(Rule::NoWorseBy)).unwrap_or(Rule::Better);
        let mut compared = vec![system(&claim.better.name, &better)];
        let test = match (&claim.worse, &worse) {
            (Some(System { name, .. }), Some(worse)) => {
                compared.insert(0, system(name, worse));
                let [better, worse] = [&better, worse].map(seed_items);
                test_difference(&info, &claim.unit, better, worse, true, rule)
            }
            _ => test_value(&info, &claim.unit, seed_items(&better), rule),
        };
        let mut options: Vec<(&str, &str)> = match claim.needs.as_str() {
            "whisper" => self.whisper.iter().map(|whisper| ("whisper", &**whisper)).collect(),
            "encoder" if *self.encoder != *ENCODER => vec![("encoder", &self.encoder)],
            _ => Vec::new(),
        };
        let data = self.data.as_deref().unwrap_or(Path::new("")).display().to_string();
        if !claim.files.is_empty() {
            options.insert(0, ("data", data.as_str()));
        }
        ClaimReport {
            comparison: String::new(),
            test,
            holm: None,
            seeds: 1,
            expected: claim.expected,
            command: self.claim_command(&claim.id, self.scale, &options),
            compared,
            id: claim.id,
            claim: claim.claim,
            paper: claim.paper,
        }
    }

    fn paths(&self, claim: &CommandClaim) -> Vec<PathBuf> {
        let data = self.data.as_deref().unwrap_or(Path::new(""));
        claim.files.iter().map(|file| data.join(file)).collect()
    }

    /// Runs the commands of a system, unless this program ran them already on the same files, and
    /// reads the items.
    fn items(
        &self,
        claim: &CommandClaim,
        system: &System,
        side: &str,
        shared: &[Shared],
        results: &mut Results,
    ) -> anyhow::Result<Items> {
        let out = self.out.join(RESULTS).join(&claim.id).join(side);
        let files = files_of(self.paths(claim))?;
        let data = digest::of_files(files.iter().map(PathBuf::as_path))?;
        let mut prepared = String::new();
        for shared in shared {
            let is_used =
                |command: &String| command.contains(&format!("{{shared}}/{}/", shared.name));
            if system.commands.iter().any(is_used) {
                let out = self.out.join(RESULTS).join(&shared.name);
                prepared += &self.run_all(&shared.commands, &out, &data, results)?;
            }
        }
        self.run_all(&system.commands, &out, &format!("{data}\n{prepared}"), results)?;
        Ok(Items::read(&out.join(ITEMS))?)
    }

    /// Runs commands with the output folder `out`, unless this program ran them already on the same
    /// `data`. Returns what the results depend on.
    fn run_all(
        &self,
        commands: &[String],
        out: &Path,
        data: &str,
        results: &mut Results,
    ) -> anyhow::Result<String> {
        output::create_folder(out)?;
        let run = out.join("run");
        self.note_program(&run, results)?;
        let words = |command: &String| -> Vec<String> {
            command.split(' ').map(|word| self.filled(word, out)).collect()
        };
        let commands: Vec<Vec<String>> = commands.iter().map(words).collect();
        let origin = format!("{}\n{data}\n{commands:#?}\n", Program::running()?.sha256);
        if engram_durable::read_text(out.join(ORIGIN)).is_ok_and(|written| written == origin) {
            return Ok(origin);
        }
        for mut words in commands {
            let is_training = words[0] == "train";
            if !is_training {
                words.push("--force".to_owned());
            } else if run.join("recipe.toml").is_file() {
                words.push("--resume".to_owned());
            }
            self.run_command(words, &run)?;
        }
        output::replace_atomic(&out.join(ORIGIN), origin.as_bytes())?;
        Ok(origin)
    }

    /// A word of a command with the values of the options.
    fn filled(&self, word: &str, out: &Path) -> String {
        let data = self.data.as_deref().unwrap_or(Path::new("")).display().to_string();
        word.replace("{data}", &data)
            .replace("{wording}", WORDING)
            .replace("{reader}", &self.fact_reader().display().to_string())
            .replace("{shared}", &self.out.join(RESULTS).display().to_string())
            .replace("{encoder}", &self.encoder)
            .replace("{whisper}", self.whisper.as_deref().unwrap_or_default())
            .replace("{out}", &out.display().to_string())
    }

    /// Runs this program with other arguments. Its standard output is not shown.
    pub(super) fn run_command(&self, mut words: Vec<String>, run: &Path) -> anyhow::Result<()> {
        words.extend(["--threads".to_owned(), rayon::current_num_threads().to_string()]);
        words.extend(output::is_quiet().then(|| "--quiet".to_owned()));
        let text = format!("engram {}", words.join(" "));
        let (program, first) =
            Invocation::of_process().restart.split_first().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.args(first).args(words).stdin(Stdio::null()).stdout(Stdio::null());
        // The child gets each signal once, from this program and not also from the terminal: a
        // second signal would stop it without a checkpoint.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().with_context(|| format!("could not run `{text}`"))?;
        let status = self.wait_for(&mut child)?;
        if self.stop.is_requested() {
            return Err(TrainError::Stopped { run: PathBuf::from(run), step: 0 }.into());
        }
        anyhow::ensure!(status.success(), "`{text}` failed ({status})");
        Ok(())
    }

    /// Waits for the end of a child, and passes on a stop request.
    fn wait_for(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let mut is_asked = false;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if self.stop.is_requested() && !is_asked {
                ask_to_stop(child)?;
                is_asked = true;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// The files among `paths` and in their folders, in the order of their names.
fn files_of(paths: Vec<PathBuf>) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let entries = std::fs::read_dir(path)?.map(|entry| Ok(entry?.path()));
            let mut entries = entries.collect::<io::Result<Vec<PathBuf>>>()?;
            entries.sort();
            files.extend(files_of(entries)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

/// Asks a running child to stop. A training writes a checkpoint first.
#[cfg(unix)]
fn ask_to_stop(child: &mut Child) -> io::Result<()> {
    let id = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    // SAFETY: `kill` reads no memory of this process. The child was not waited for, so the id is
    // its own.
    match unsafe { libc::kill(id, libc::SIGTERM) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends a child: there is no signal that asks it to stop.
#[cfg(not(unix))]
fn ask_to_stop(child: &mut Child) -> io::Result<()> {
    child.kill()
}
