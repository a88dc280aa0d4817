//! Attacks the `engram` command from outside. Reports lost or corrupted data, panics and hangs; see
//! README.md.

mod corrupt;
mod faults;
mod formats;
mod inputs;
mod invariants;
mod odd_files;
mod power;
mod preload;
mod program;
mod random;
mod report;
mod scratch;
mod signals;
mod simulate;
mod sizes;
mod subjects;
mod sweep;
mod threads;
mod tokenizers;
mod writers;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use report::Report;

type Attack = fn(&Report) -> Result<()>;

/// All attacks with their names on the command line.
const ATTACKS: [(&str, Attack); 9] = [
    ("faults", faults::attack),
    ("power", power::attack),
    ("corrupt", corrupt::attack),
    ("writers", writers::attack),
    ("threads", threads::attack),
    ("signals", signals::attack),
    ("sweep", sweep::attack),
    ("sizes", sizes::attack),
    ("files", odd_files::attack),
];

struct Options {
    attacks: Vec<(&'static str, Attack)>,
    long: bool,
    seed: u64,
    json: Option<String>,
}

const USAGE: &str = "usage: engram-torture [ATTACK...] [--long] [--seed N] [--json FILE]";

fn options() -> Result<Options> {
    let mut options = Options { attacks: Vec::new(), long: false, seed: 1, json: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--long" => options.long = true,
            "--seed" => {
                let number = arguments.next().context("--seed needs a number")?;
                options.seed = number.parse().context("--seed needs a number")?;
            }
            "--json" => options.json = Some(arguments.next().context("--json needs a file")?),
            name => match ATTACKS.iter().find(|(attack_name, _)| *attack_name == name) {
                Some(attack) => options.attacks.push(*attack),
                None => {
                    let names: Vec<&str> = ATTACKS.iter().map(|(name, _)| *name).collect();
                    bail!("{name}: no such attack. {USAGE}\nattacks: {}", names.join(", "))
                }
            },
        }
    }
    if options.attacks.is_empty() {
        options.attacks = ATTACKS.to_vec();
    }
    Ok(options)
}

fn run() -> Result<bool> {
    let options = options()?;
    program::lower_limits();
    let path = program::path();
    anyhow::ensure!(
        path.is_file(),
        "{}: does not exist; set ENGRAM_BIN to the command",
        path.display()
    );
    let mut reports = Vec::new();
    let mut has_aborted = false;
    for (name, attack) in options.attacks {
        eprintln!("== {name}");
        let report = Report::new(name, options.seed, options.long);
        if let Err(error) = attack(&report) {
            eprintln!("{name} was aborted: {error:#}");
            has_aborted = true;
        }
        report.finish();
        reports.push(report);
    }
    println!("attack        cases  losses  panics  hangs  seconds   seed");
    for report in &reports {
        println!("{}", report.line());
    }
    if let Some(file) = options.json {
        let values: Vec<Value> = reports.iter().map(Report::json).collect();
        std::fs::write(&file, serde_json::to_string_pretty(&values)?).with_context(|| file)?;
    }
    Ok(!has_aborted && reports.iter().all(Report::passed))
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
