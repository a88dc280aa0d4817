//! What a grid came to: figures, differences on the same questions, a verdict for each claim.

use std::collections::BTreeMap;
use std::path::Path;

use engram_data::world::questions::Part;
use engram_eval::html::{FigureTable, figures_page};
use engram_eval::result::Measure;
use serde::{Deserialize, Serialize};

use super::measure::{Asked, RowAnswers};
use super::rows::GridOptions;
use super::settings::{ClaimSettings, Figure, Grid, RowSettings};
use crate::error::Result;
use crate::program::Program;
use crate::studies::reveal::run::RevealSummary;

/// The part of the test questions that rows are shown by.
const SHOWN: Part = Part::HeldOut;

/// What a claim came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The whole interval of the difference says so.
    #[serde(rename = "holds")]
    Holds,
    /// The whole interval says the opposite.
    #[serde(rename = "fails")]
    Fails,
    /// It says neither.
    #[serde(rename = "not decided")]
    NotDecided,
}

impl Verdict {
    /// Of a difference that is to be above 0, or within so much of it.
    pub fn of(difference: &Measure, within: Option<f64>) -> Self {
        let Some(interval) = &difference.interval else { return Self::NotDecided };
        let (low, high) = (interval.low, interval.high);
        let (holds, fails) = match within {
            None => (low > 0.0, high < 0.0),
            Some(within) => (low >= -within && high <= within, low > within || high < -within),
        };
        match (holds, fails) {
            (true, _) => Self::Holds,
            (_, true) => Self::Fails,
            _ => Self::NotDecided,
        }
    }

    /// As it is written in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "fails",
            Self::NotDecided => "not decided",
        }
    }
}

/// A row and its figures: held-out questions about facts that are nowhere but in the memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowReport {
    /// What it is.
    #[serde(flatten)]
    pub row: RowSettings,
    /// The command for it alone, beside the main row; `None` where no command line says the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// What it was measured on, by seed.
    pub runs: Vec<RowRun>,
    /// The share of answers that are right.
    pub exact_match: Measure,
    /// The share of questions whose entry is found first.
    pub recall_at_1: Measure,
    /// The share of questions whose entry is among the first ten found; undefined where fewer are read.
    pub recall_at_10: Measure,
    /// Its exact match less the main row's, on the same questions.
    pub less_main: Measure,
}

/// The run of a row with one seed; that of the row whose run it asks, where it trains nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowRun {
    /// The seed.
    pub seed: u64,
    /// The recipe's hash.
    pub recipe_hash: String,
    /// The programs that trained it, one after the other.
    pub programs: Vec<Program>,
}

impl RowRun {
    fn of(row: &RowSettings, seed: u64, out: &Path) -> Result<Self> {
        let run = out.join(format!("seed-{seed}")).join(row.of.as_ref().unwrap_or(&row.name));
        let recipe_hash = RevealSummary::read(&run)?.recipe_hash;
        Ok(Self { seed, recipe_hash, programs: Program::of_run(&run)? })
    }
}

/// A claim and its verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClaimReport {
    /// What is claimed.
    #[serde(flatten)]
    pub claim: ClaimSettings,
    /// The figures of the better and the worse row.
    pub values: [Measure; 2],
    /// Their difference on the same questions.
    pub difference: Measure,
    /// Whether it holds.
    pub verdict: Verdict,
}

/// What a grid came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GridReport {
    /// How many seeds.
    pub seeds: u64,
    /// The program that asked and measured.
    pub program: Program,
    /// Runs that another program trained, and that were taken as they are.
    pub reused: Vec<String>,
    /// The row that the others are compared with.
    pub main: String,
    /// The rows.
    pub rows: Vec<RowReport>,
    /// The claims.
    pub claims: Vec<ClaimReport>,
}

impl GridReport {
    /// Measures the answers of all rows.
    pub(super) fn new(
        grid: &Grid,
        options: &GridOptions,
        answers: &BTreeMap<&str, RowAnswers>,
        reused: Vec<String>,
    ) -> Result<Self> {
        let nothing = RowAnswers::new();
        let of = |name: &str| answers.get(name).unwrap_or(&nothing);
        let row = |row: &RowSettings| -> Result<RowReport> {
            let own = of(&row.name);
            let asked = |figure| Asked { figure, part: SHOWN, source: None };
            let runs = (1..=options.seeds).map(|seed| RowRun::of(row, seed, &options.out));
            Ok(RowReport {
                runs: runs.collect::<Result<_>>()?,
                command: grid.command(row, options.seeds, &options.out),
                exact_match: asked(Figure::ExactMatch).measure(own),
                recall_at_1: asked(Figure::RecallAt1).measure(own),
                recall_at_10: asked(Figure::RecallAt10).measure(own),
                less_main: asked(Figure::ExactMatch).difference(own, of(grid.main()))?,
                row: row.clone(),
            })
        };
        let claim = |claim: &ClaimSettings| -> Result<ClaimReport> {
            let ClaimSettings { figure, part, source, .. } = claim;
            let asked = Asked { figure: *figure, part: *part, source: source.as_deref() };
            let (better, worse) = (of(&claim.better), of(&claim.worse));
            let difference = asked.difference(better, worse)?;
            Ok(ClaimReport {
                values: [better, worse].map(|answers| asked.measure(answers)),
                verdict: Verdict::of(&difference, claim.within),
                difference,
                claim: claim.clone(),
            })
        };
        Ok(Self {
            seeds: options.seeds,
            program: Program::running()?,
            reused,
            main: grid.main().to_owned(),
            rows: grid.rows().iter().map(row).collect::<Result<_>>()?,
            claims: grid.claims().iter().map(claim).collect::<Result<_>>()?,
        })
    }

    /// The claim with this id.
    pub fn claim(&self, id: &str) -> Option<&ClaimReport> {
        self.claims.iter().find(|claim| claim.claim.id == id)
    }

    /// Which runs are not this program's; `None` where all are.
    pub fn reused_note(&self) -> Option<String> {
        let runs = self.reused.join("; ");
        (!runs.is_empty())
            .then(|| format!("Trained by another program than measured them: {runs}."))
    }

    /// Two tables in Markdown: the rows, and the claims with their verdicts.
    pub fn to_markdown(&self) -> String {
        let main = &self.main;
        let mut lines = vec![
            format!("| row | what it is | exact match | less {main} | recall@1 | recall@10 |"),
            "|---|---|---|---|---|---|".to_owned(),
        ];
        for row in &self.rows {
            let figures = [&row.exact_match, &row.less_main, &row.recall_at_1, &row.recall_at_10];
            let [exact, less, first, among] = figures.map(in_words);
            let (name, about) = (&row.row.name, row.row.in_words().replace('|', "\\|"));
            lines.push(format!("| {name} | {about} | {exact} | {less} | {first} | {among} |"));
        }
        lines.push(String::new());
        lines.push("| claim | compared | difference | verdict |".to_owned());
        lines.push("|---|---|---|---|".to_owned());
        for claim in &self.claims {
            let (difference, verdict) = (in_words(&claim.difference), claim.verdict.name());
            let (what, compared) = (&claim.claim.claim, claim.compared());
            lines.push(format!("| {what} | {compared} | {difference} | **{verdict}** |"));
        }
        if let Some(note) = self.reused_note() {
            lines.extend([String::new(), note]);
        }
        lines.join("\n") + "\n"
    }

    /// The same as a page with plots of the intervals.
    pub fn to_html(&self) -> String {
        let rows = |figure: fn(&RowReport) -> &Measure| -> Vec<(String, Measure)> {
            let of_row = |row: &RowReport| (row.row.name.clone(), figure(row).clone());
            self.rows.iter().map(of_row).collect()
        };
        let exact = rows(|row| &row.exact_match);
        let recall = rows(|row| &row.recall_at_10);
        let less = rows(|row| &row.less_main);
        let claims: Vec<(String, Measure)> = self
            .claims
            .iter()
            .map(|claim| {
                let (verdict, what) = (claim.verdict.name(), &claim.claim.claim);
                let name = format!("{verdict}: {what} ({})", claim.compared());
                (name, claim.difference.clone())
            })
            .collect();
        let main = |rows: &[(String, Measure)]| {
            rows.iter().find(|(name, _)| *name == self.main).map(|(_, measure)| measure.value)
        };
        let note = format!(
            "Held-out questions about facts that are nowhere but in the memory. Intervals draw \
             pictures and seeds. {}",
            by_chance(self.claims.len())
        );
        let table = |heading, rows, note, reference| FigureTable {
            heading,
            rows_are: "row",
            note,
            rows,
            reference,
        };
        let tables = [
            FigureTable { rows_are: "claim", ..table("Claims", &claims, &note, Some(0.0)) },
            table("Exact match", &exact, "", main(&exact)),
            table("Less the main row", &less, "", Some(0.0)),
            table("Recall@10", &recall, "", main(&recall)),
        ];
        let (rows, seeds) = (self.rows.len(), self.seeds);
        let reused = self.reused_note().map_or(String::new(), |note| format!(". {note}"));
        let lead = format!("{rows} rows, {seeds} seeds{reused}");
        figures_page("REVEAL, ablations", &lead, &tables)
    }
}

impl ClaimReport {
    /// The rows, the figure and the questions: `main over cold-start, exact_match of held_out`.
    pub fn compared(&self) -> String {
        let ClaimSettings { better, worse, part, source, within, .. } = &self.claim;
        let figure = self.difference.metric.trim_end_matches("_difference");
        let source = source.as_ref().map_or(String::new(), |source| format!(", {source}"));
        let within = within.map_or(String::new(), |within| format!(", within {within}"));
        let part = part.name();
        format!("{better} over {worse}, {figure} of {part}{source}{within}")
    }
}

impl RowSettings {
    /// What it changes, for a table.
    fn in_words(&self) -> String {
        if let Some(about) = &self.about {
            return about.clone();
        }
        let mut words: Vec<String> = self.set.iter().map(|set| format!("`{set}`")).collect();
        words.extend(self.of.as_ref().map(|of| format!("`{of}`, asked again")));
        words.extend(self.k.map(|k| format!("k = {k}")));
        words.extend(self.without_sources.iter().map(|source| format!("without {source}")));
        words.join(", ")
    }
}

/// What to make of several verdicts.
fn by_chance(claims: usize) -> String {
    format!(
        "Each verdict is by its own 95 % interval, uncorrected: of {claims} claims with nothing \
         behind them about {:.1} would be decided by chance.",
        claims as f64 / 20.0
    )
}

/// `0.705 [0.679, 0.732]`, or a dash for what is undefined.
pub(super) fn in_words(measure: &Measure) -> String {
    match &measure.interval {
        Some(interval) => {
            format!("{:.3} [{:.3}, {:.3}]", measure.value, interval.low, interval.high)
        }
        None if measure.value.is_nan() => "–".to_owned(),
        None => format!("{:.3}", measure.value),
    }
}
