//! What a grid came to: figures, differences on the same questions, a verdict for each claim.

use std::path::Path;

use engram_eval::html::{FigureTable, figures_page};
use engram_eval::result::Measure;
use serde::{Deserialize, Serialize};

use super::ablated::{Ablated, Column};
use super::measure::Runs;
use super::rows::GridOptions;
use super::settings::{ClaimSettings, Grid, RowSettings};
use crate::error::Result;
use crate::program::Program;

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
    /// Nothing was trained that could say.
    #[serde(rename = "untested")]
    Untested,
}

/// What is claimed of a difference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// That the first row is better.
    Better,
    /// That it is worse by no more than this, if at all.
    NoWorseBy(f64),
    /// That the rows differ by no more than this, up or down.
    Within(f64),
}

impl Verdict {
    /// Of a difference whose whole interval follows the rule, or breaks it. Where less is better, less is.
    pub fn of(difference: &Measure, rule: Rule) -> Self {
        let Some(interval) = &difference.interval else { return Self::NotDecided };
        let (low, high) = match difference.higher_is_better {
            Some(false) => (-interval.high, -interval.low),
            _ => (interval.low, interval.high),
        };
        let (holds, fails) = match rule {
            Rule::Better => (low > 0.0, high < 0.0),
            Rule::NoWorseBy(margin) => (low >= -margin, high < -margin),
            Rule::Within(margin) => {
                (low >= -margin && high <= margin, low > margin || high < -margin)
            }
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
            Self::Untested => "untested",
        }
    }
}

/// A row and its figures.
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
    /// Its figures.
    pub figures: Vec<RowFigure>,
    /// The first of them less the main row's, on the same items.
    pub less_main: Measure,
}

/// A figure of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowFigure {
    /// What it is, for programs: `recall_at_10`.
    pub key: String,
    /// The same for tables: `recall@10`.
    pub heading: String,
    /// The figure.
    #[serde(flatten)]
    pub measure: Measure,
}

impl RowReport {
    /// The figure with this key.
    pub fn figure(&self, key: &str) -> Option<&Measure> {
        self.figures.iter().find(|figure| figure.key == key).map(|figure| &figure.measure)
    }
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
    fn of(study: &dyn Ablated, row: &RowSettings, seed: u64, out: &Path) -> Result<Self> {
        let run = out.join(format!("seed-{seed}")).join(row.of.as_ref().unwrap_or(&row.name));
        let recipe_hash = study.recipe_hash(&run)?;
        Ok(Self { seed, recipe_hash, programs: Program::of_run(&run)? })
    }
}

/// A claim and its verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClaimReport {
    /// What is claimed.
    #[serde(flatten)]
    pub claim: ClaimSettings,
    /// The rows, the figure and what it is of: `main over cold-start, exact_match of held_out`.
    pub compared: String,
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
    /// The heading of the page.
    pub title: String,
    /// What the figures are about.
    pub about: String,
    /// What intervals draw, beside seeds.
    pub unit: String,
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
    /// Measures the runs of all rows.
    pub(super) fn new(grid: &Grid, options: &GridOptions, reused: Vec<String>) -> Result<Self> {
        let study = grid.study();
        let runs = Runs { study, out: &options.out, seeds: options.seeds };
        let columns = study.columns();
        let row = |row: &RowSettings| -> Result<RowReport> {
            let run = |seed| RowRun::of(study, row, seed, &options.out);
            let figure = |column: &Column| {
                let measure = runs.measure(&row.name, &column.asked)?;
                let (key, heading) = (column.key.to_owned(), column.heading.to_owned());
                Ok(RowFigure { key, heading, measure })
            };
            let first = &columns[0].asked;
            Ok(RowReport {
                runs: (1..=options.seeds).map(run).collect::<Result<_>>()?,
                command: grid.command(row, options.seeds, &options.out),
                figures: columns.iter().map(figure).collect::<Result<_>>()?,
                less_main: runs.difference([&row.name, grid.main()], [first, first])?,
                row: row.clone(),
            })
        };
        let claim = |claim: &ClaimSettings| -> Result<ClaimReport> {
            let ([better, worse], rows) = (claim.asked(study), claim.rows());
            let difference = runs.difference(rows, [&better, &worse])?;
            Ok(ClaimReport {
                compared: claim.compared(study),
                values: [runs.measure(rows[0], &better)?, runs.measure(rows[1], &worse)?],
                verdict: Verdict::of(&difference, claim.rule()),
                difference,
                claim: claim.clone(),
            })
        };
        Ok(Self {
            title: study.title().to_owned(),
            about: study.about().to_owned(),
            unit: study.unit().to_owned(),
            seeds: options.seeds,
            program: Program::running()?,
            reused,
            main: grid.main().to_owned(),
            rows: grid.rows().iter().map(row).collect::<Result<_>>()?,
            claims: grid.claims().iter().map(claim).collect::<Result<_>>()?,
        })
    }

    /// The headings of the rows' figures.
    fn headings(&self) -> Vec<&str> {
        let first = self.rows.first().map_or(&[][..], |row| &row.figures);
        first.iter().map(|figure| figure.heading.as_str()).collect()
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
        let headings = self.headings();
        let (first, others) =
            headings.split_first().map_or(("", &[][..]), |(one, all)| (*one, all));
        let mut columns = vec!["row", "what it is", first];
        let less = format!("less {}", self.main);
        columns.push(&less);
        columns.extend(others);
        let mut lines =
            vec![format!("| {} |", columns.join(" | ")), "|---".repeat(columns.len()) + "|"];
        for row in &self.rows {
            let mut cells = vec![row.row.name.clone(), row.row.in_words().replace('|', "\\|")];
            cells.extend(row.figures.iter().map(|figure| in_words(&figure.measure)));
            cells.insert(3.min(cells.len()), in_words(&row.less_main));
            lines.push(format!("| {} |", cells.join(" | ")));
        }
        lines.push(String::new());
        lines.push("| claim | compared | difference | verdict |".to_owned());
        lines.push("|---|---|---|---|".to_owned());
        for claim in &self.claims {
            let (mut difference, verdict) = (in_words(&claim.difference), claim.verdict.name());
            if let Some(reason) = &claim.difference.reason {
                difference += &format!(" ({})", reason.replace('|', "\\|"));
            }
            let (what, compared) = (&claim.claim.claim, &claim.compared);
            lines.push(format!("| {what} | {compared} | {difference} | **{verdict}** |"));
        }
        if let Some(note) = self.reused_note() {
            lines.extend([String::new(), note]);
        }
        lines.join("\n") + "\n"
    }

    /// The same as a page with plots of the intervals.
    pub fn to_html(&self) -> String {
        let rows = |figure: &dyn Fn(&RowReport) -> Option<&Measure>| -> Vec<(String, Measure)> {
            let of_row = |row: &RowReport| Some((row.row.name.clone(), figure(row)?.clone()));
            self.rows.iter().filter_map(of_row).collect()
        };
        let less = rows(&|row| Some(&row.less_main));
        let columns = self.rows.first().map_or(&[][..], |row| &row.figures);
        let by_column: Vec<(&str, Vec<(String, Measure)>)> = columns
            .iter()
            .map(|column| (column.heading.as_str(), rows(&|row| row.figure(&column.key))))
            .collect();
        let claims: Vec<(String, Measure)> = self
            .claims
            .iter()
            .map(|claim| {
                let (verdict, what) = (claim.verdict.name(), &claim.claim.claim);
                let name = format!("{verdict}: {what} ({})", claim.compared);
                (name, claim.difference.clone())
            })
            .collect();
        let main = |rows: &[(String, Measure)]| {
            rows.iter().find(|(name, _)| *name == self.main).map(|(_, measure)| measure.value)
        };
        let note = format!(
            "{} Intervals draw {}s and seeds. {}",
            self.about,
            self.unit,
            by_chance(self.claims.len())
        );
        let table = |heading, rows, note, reference| FigureTable {
            heading,
            rows_are: "row",
            note,
            rows,
            reference,
        };
        let claims =
            FigureTable { rows_are: "claim", ..table("Claims", &claims, &note, Some(0.0)) };
        let mut tables = vec![claims, table("Less the main row", &less, "", Some(0.0))];
        tables.extend(by_column.iter().map(|(heading, rows)| table(heading, rows, "", main(rows))));
        let (rows, seeds) = (self.rows.len(), self.seeds);
        let reused = self.reused_note().map_or(String::new(), |note| format!(". {note}"));
        let lead = format!("{rows} rows, {seeds} seeds{reused}");
        figures_page(&self.title, &lead, &tables)
    }
}

impl ClaimSettings {
    /// The rows, the figure and what it is of.
    fn compared(&self, study: &dyn Ablated) -> String {
        let [asked, _] = self.asked(study);
        let rule = match self.rule() {
            Rule::Better => String::new(),
            Rule::NoWorseBy(margin) => format!(", no worse by {margin}"),
            Rule::Within(margin) => format!(", within {margin}"),
        };
        format!("{} over {}, {asked}{rule}", self.better, self.worse)
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
