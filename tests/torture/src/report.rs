//! Counts the losses of an attack and prints the first of each kind.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Mutex;
use std::time::Instant;

use serde_json::{Value, json};

use crate::program::{CommandResult, Fault};

/// Maximum number of printed losses of one kind; further losses are only counted.
const MAX_PRINTED: u64 = 3;

/// The report of one attack; its methods may be called from several threads.
pub struct Report {
    pub attack: &'static str,
    pub seed: u64,
    pub long: bool,
    start: Instant,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    cases: u64,
    losses: u64,
    panics: u64,
    hangs: u64,
    kinds: BTreeMap<String, u64>,
    skipped: Vec<String>,
    seconds: f64,
}

impl Report {
    pub fn new(attack: &'static str, seed: u64, long: bool) -> Self {
        Self { attack, seed, long, start: Instant::now(), counts: Mutex::default() }
    }

    /// The size for the short or the long form.
    pub fn size(&self, short: usize, long: usize) -> usize {
        if self.long { long } else { short }
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Counts a case.
    pub fn count_case(&self) {
        self.counts().cases += 1;
    }

    /// Reports that data were lost, torn, leaked, left over or wrong.
    pub fn loss(&self, kind: &str, case: impl Display) {
        self.counts().losses += 1;
        self.print("LOSS", kind, &case);
    }

    /// Reports a panic, an abort, a hang or too much memory. Returns true if there was none.
    pub fn check_result(&self, ended: &CommandResult, case: impl Display) -> bool {
        let Some(fault) = ended.fault() else { return true };
        match fault {
            Fault::Panic => self.counts().panics += 1,
            Fault::Hang => self.counts().hangs += 1,
        }
        let word = if fault == Fault::Panic { "PANIC" } else { "HANG" };
        self.print(word, "a command ended badly", &format!("{case}: {ended}"));
        false
    }

    /// Reports a hang, or a command that uses too much memory.
    pub fn hang(&self, kind: &str, case: impl Display) {
        self.counts().hangs += 1;
        self.print("HANG", kind, &case);
    }

    /// Reports that a part of the attack cannot run on this machine.
    pub fn skip(&self, reason: &str) {
        eprintln!("SKIPPED {}: {reason}", self.attack);
        self.counts().skipped.push(reason.to_owned());
    }

    fn print(&self, word: &str, kind: &str, case: &dyn Display) {
        let mut counts = self.counts();
        let count = counts.kinds.entry(format!("{word} {kind}")).or_default();
        *count += 1;
        if *count <= MAX_PRINTED {
            eprintln!("{word} {}: {kind}: {case}", self.attack);
        }
    }

    /// Records the duration and prints the count of each kind.
    pub fn finish(&self) {
        let mut counts = self.counts();
        counts.seconds = self.start.elapsed().as_secs_f64();
        for (kind, count) in &counts.kinds {
            eprintln!("{count:6} times {kind}");
        }
    }

    /// Whether there were no losses, panics and hangs.
    pub fn passed(&self) -> bool {
        let counts = self.counts();
        counts.losses + counts.panics + counts.hangs == 0
    }

    /// The row of the final table.
    pub fn line(&self) -> String {
        let counts = self.counts();
        let skipped = if counts.skipped.is_empty() { "" } else { "  (partly SKIPPED)" };
        format!(
            "{:10} {:>8} {:>7} {:>7} {:>6} {:>8.0} {:>6}{skipped}",
            self.attack,
            counts.cases,
            counts.losses,
            counts.panics,
            counts.hangs,
            counts.seconds,
            self.seed
        )
    }

    pub fn json(&self) -> Value {
        let counts = self.counts();
        json!({
            "attack": self.attack, "cases": counts.cases, "losses": counts.losses,
            "panics": counts.panics, "hangs": counts.hangs, "seconds": counts.seconds,
            "seed": self.seed, "kinds": counts.kinds, "skipped": counts.skipped,
        })
    }
}
