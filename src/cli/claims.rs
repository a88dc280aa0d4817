//! The report of `engram grid` and `engram reproduce`: claims with their verdicts, and the
//! configurations of a grid.

use engram_data::messages::counted;
use engram_eval::html::{ClaimCard, ClaimsText, MeasuredClaim, MetricTable, claims_page};
use engram_eval::result::Measure;
use engram_eval::significance::p_value_text;
use engram_train::Program;
use engram_train::grid::{
    ClaimReport, ConfigurationReport, Corrected, GridReport, SystemMeasure, Verdict,
    multiple_testing_note,
};
use engram_train::registry::format_measure;
use serde::Serialize;

use super::environment::Environment;
use super::studies;

/// Version of the JSON form. A change of names or meanings raises it.
const SCHEMA_VERSION: u32 = 2;

/// The number of claims with each verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Totals {
    holds: usize,
    fails: usize,
    not_decided: usize,
    untested: usize,
}

impl Totals {
    fn of(verdicts: impl Iterator<Item = Verdict> + Clone) -> Self {
        let count = |verdict| verdicts.clone().filter(|other| *other == verdict).count();
        Self {
            holds: count(Verdict::Holds),
            fails: count(Verdict::Fails),
            not_decided: count(Verdict::NotDecided),
            untested: count(Verdict::Untested),
        }
    }

    fn to_text(self) -> String {
        let Self { holds, fails, not_decided, untested } = self;
        format!("holds {holds}, fails {fails}, not decided {not_decided}, untested {untested}")
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema_version: u32,
    #[serde(flatten)]
    program: Program,
    #[serde(flatten)]
    environment: Environment,
    title: String,
    totals: Totals,
    notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scale: Option<&'static str>,
    seconds: u64,
    threads: usize,
    claims: Vec<ClaimReport>,
    /// The configurations of a grid.
    #[serde(skip_serializing_if = "Option::is_none")]
    grid: Option<GridTable>,
}

/// The configurations of a grid, for tables.
#[derive(Debug, Serialize)]
pub(super) struct GridTable {
    /// The configuration that the others are compared with.
    main: String,
    configurations: Vec<ConfigurationReport>,
}

impl Report {
    /// Counts the verdicts, and corrects them for multiple tests.
    pub(super) fn new(
        title: &str,
        mut claims: Vec<ClaimReport>,
        notes: Vec<String>,
        seconds: u64,
    ) -> anyhow::Result<Self> {
        Corrected::correct(&mut claims);
        Ok(Self {
            schema_version: SCHEMA_VERSION,
            program: Program::running()?,
            environment: Environment::current(),
            title: title.to_owned(),
            totals: Totals::of(claims.iter().map(|claim| claim.test.verdict)),
            notes,
            scale: None,
            seconds,
            threads: rayon::current_num_threads(),
            claims,
            grid: None,
        })
    }

    /// The report of a grid.
    pub(super) fn of_grid(report: GridReport, seconds: u64) -> anyhow::Result<Self> {
        let mut notes = vec![format!(
            "{} Intervals resample {}s and seeds.",
            report.description, report.resampling_unit
        )];
        notes.extend(report.notes());
        let GridReport { title, claims, main, configurations, .. } = report;
        let grid = Some(GridTable { main, configurations });
        Ok(Self { grid, ..Self::new(&title, claims, notes, seconds)? })
    }

    /// Adds the scale of a reproduction.
    pub(super) fn at_scale(self, scale: &'static str) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// The time that the command took, in seconds.
    pub(super) fn seconds(&self) -> u64 {
        self.seconds
    }

    /// Whether all expected claims hold. An undecided claim does not hold.
    pub(super) fn is_as_expected(&self) -> bool {
        self.claims.iter().all(ClaimReport::is_as_expected)
    }

    /// Returns a note with the ids of the untested claims, and the measured claims.
    fn split_untested(&self) -> (Option<String>, Vec<&ClaimReport>) {
        let (untested, tested): (Vec<&ClaimReport>, Vec<&ClaimReport>) =
            self.claims.iter().partition(|claim| claim.test.verdict == Verdict::Untested);
        let ids: Vec<&str> = untested.iter().map(|claim| claim.id.as_str()).collect();
        let note = format!("Untested, because they need more training: {}.", ids.join(", "));
        ((!ids.is_empty()).then_some(note), tested)
    }

    /// The facts of the report: name and value.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let Environment { date, machine, commit } = &self.environment;
        let scale = self.scale.map(|scale| format!("{scale}, ")).unwrap_or_default();
        let threads = counted(self.threads, "thread");
        vec![
            ("date", date.replace('T', " ").replace('Z', " UTC")),
            ("machine", machine.clone()),
            ("commit", commit.clone().unwrap_or_else(|| "unknown".to_owned())),
            ("program", self.program.to_string()),
            ("scale", format!("{scale}{} s on {threads}", self.seconds)),
        ]
    }

    /// The notes, with general ones first.
    fn all_notes(&self) -> Vec<String> {
        let tests = self.claims.iter().filter(|claim| claim.test.p_value.is_some()).count();
        let is_of_world = self.scale.is_some();
        let world = "The embedded world is small: it shows mechanisms and directions, not the \
                     papers' absolute values.";
        let mut notes: Vec<String> = is_of_world.then(|| world.to_owned()).into_iter().collect();
        notes.extend((tests > 0).then(|| multiple_testing_note(tests)));
        notes.extend(self.notes.iter().cloned());
        notes
    }

    /// Formats the report as text.
    pub(super) fn to_text(&self) -> String {
        let (untested, tested) = self.split_untested();
        let mut lines = vec![self.totals.to_text()];
        let corrected = Totals::of(self.claims.iter().map(ClaimReport::corrected_verdict));
        lines.push(format!("after Holm's correction: {}", corrected.to_text()));
        lines.extend(self.facts().iter().map(|(name, value)| format!("{name:<8} {value}")));
        for claim in tested {
            lines.push(String::new());
            lines.extend(claim_lines(claim));
        }
        if let Some(grid) = &self.grid {
            lines.push(String::new());
            lines.extend(grid.to_lines());
        }
        lines.extend([String::new(), "Notes:".to_owned()]);
        lines.extend(self.all_notes().into_iter().chain(untested).map(|note| format!("- {note}")));
        lines.join("\n")
    }

    /// Formats the report as a page with plots.
    pub(super) fn to_html(&self) -> String {
        let compared: Vec<Vec<(String, Measure)>> = self
            .claims
            .iter()
            .map(|claim| {
                let system = |value: &SystemMeasure| (value.system.clone(), value.measure.clone());
                claim.compared.iter().map(system).collect()
            })
            .collect();
        let texts: Vec<[String; 2]> = self
            .claims
            .iter()
            .map(|claim| [claim.test.rule_text(), with_comparison(claim)])
            .collect();
        let claims = self.claims.iter().zip(&compared).zip(&texts);
        let claims = claims.map(|((claim, compared), [rule, text])| ClaimCard {
            group: self.group(&claim.id),
            id: &claim.id,
            claim: text,
            published: &claim.paper,
            measured: (claim.test.verdict != Verdict::Untested).then(|| measured(claim, rule)),
            verdict: claim.test.verdict.name(),
            command: &claim.command,
            compared,
        });
        let columns = self.grid.as_ref().map(GridTable::columns).unwrap_or_default();
        let tables: Vec<MetricTable<'_>> = columns
            .iter()
            .map(|column| MetricTable {
                heading: &column.heading,
                row_heading: "configuration",
                rows: &column.values,
                reference: column.reference,
            })
            .collect();
        let text = ClaimsText {
            title: &self.title,
            facts: &self.facts(),
            notes: &self.all_notes(),
            tables: &tables,
        };
        claims_page(&text, &claims.collect::<Vec<_>>())
    }

    /// The heading over a claim: its study, by the first part of its id.
    fn group(&self, id: &str) -> &str {
        let view = id.split('.').next().and_then(studies::view);
        view.map_or(self.title.as_str(), |view| view.about())
    }
}

/// The values of all configurations under one heading.
struct GridColumn {
    heading: String,
    /// The name of each configuration, and its value.
    values: Vec<(String, Measure)>,
    /// The value of the main configuration.
    reference: Option<f64>,
}

impl GridTable {
    /// The differences from the main configuration, and each metric.
    fn columns(&self) -> Vec<GridColumn> {
        let values = |value: &dyn Fn(&ConfigurationReport) -> Measure| -> Vec<(String, Measure)> {
            let named = |one: &ConfigurationReport| (one.settings.name.clone(), value(one));
            self.configurations.iter().map(named).collect()
        };
        let differences = values(&|one| one.difference_from_main.clone());
        let heading = "Difference from the main configuration".to_owned();
        let mut columns = vec![GridColumn { heading, values: differences, reference: Some(0.0) }];
        let metrics = self.configurations.first().map_or(&[][..], |first| &first.metrics);
        for (index, metric) in metrics.iter().enumerate() {
            let values = values(&|one| one.metrics[index].measure.clone());
            let main = values.iter().find(|(name, _)| *name == self.main);
            let reference = main.map(|(_, measure)| measure.value);
            columns.push(GridColumn { heading: metric.heading.clone(), values, reference });
        }
        columns
    }

    /// A Markdown table of the configurations.
    fn to_lines(&self) -> Vec<String> {
        let metrics = self.configurations.first().map_or(&[][..], |first| &first.metrics);
        let mut headings = vec!["configuration".to_owned(), "description".to_owned()];
        headings.extend(metrics.iter().map(|metric| metric.heading.clone()));
        headings.push(format!("minus {}", self.main));
        let row = |one: &ConfigurationReport| {
            let description = one.settings.settings_text().replace('|', "\\|");
            let values = one.metrics.iter().map(|metric| &metric.measure);
            let values = values.chain([&one.difference_from_main]).map(value_text);
            let cells = [one.settings.name.clone(), description].into_iter().chain(values);
            format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
        };
        let columns = headings.len();
        [format!("| {} |", headings.join(" | ")), "|---".repeat(columns) + "|"]
            .into_iter()
            .chain(self.configurations.iter().map(row))
            .collect()
    }
}

/// A value with its interval; a dash for an undefined one.
fn value_text(measure: &Measure) -> String {
    if measure.value.is_nan() { "–".to_owned() } else { format_measure(measure) }
}

/// The claim in words, with the compared systems.
fn with_comparison(claim: &ClaimReport) -> String {
    let ClaimReport { claim, comparison, .. } = claim;
    if comparison.is_empty() { claim.clone() } else { format!("{claim} ({comparison})") }
}

/// The values and verdicts for the page.
fn measured<'a>(claim: &'a ClaimReport, rule: &'a str) -> MeasuredClaim<'a> {
    let measure = &claim.test.measure;
    MeasuredClaim {
        measure,
        rule,
        threshold: claim.test.rule.threshold(measure.higher_is_better),
        p_value: claim.test.p_value,
        holm: claim.holm.map(|holm| (holm.p_value, holm.verdict.name())),
    }
}

/// Formats a claim as lines of text.
fn claim_lines(claim: &ClaimReport) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", claim.id, with_comparison(claim))];
    if !claim.paper.is_empty() {
        lines.push(format!("  paper    {}", claim.paper));
    }
    let line = |name: &str, measure: &Measure, system: &str| {
        let (metric, value, n) = (&measure.metric, value_text(measure), measure.n);
        let arrow = match measure.higher_is_better {
            Some(true) => " ↑",
            Some(false) => " ↓",
            None => "",
        };
        let reason = measure.reason.as_ref().map(|reason| format!(" ({reason})"));
        let text = format!("  {name:<8} {metric}{arrow} {value} n {n}  {system}");
        text.trim_end().to_owned() + &reason.unwrap_or_default()
    };
    let compared = claim.compared.iter();
    lines.extend(compared.map(|SystemMeasure { system, measure }| line("", measure, system)));
    lines.push(line("ours", &claim.test.measure, ""));
    let mark = match (claim.expected, claim.is_as_expected()) {
        (true, true) => ", as expected",
        (true, false) => ", unexpected",
        (false, _) => "",
    };
    let p_value = claim.test.p_value.map(|p_value| format!(", {}", p_value_text(p_value)));
    let (verdict, rule) = (claim.test.verdict.name(), claim.test.rule_text());
    let p_value = p_value.unwrap_or_default();
    lines.push(format!("  verdict  {verdict}{mark} (claim: {rule}{p_value})"));
    lines.extend(claim.holm.map(|holm| format!("  Holm     {holm}")));
    lines
}

#[cfg(test)]
mod tests {
    use engram_eval::metric::MetricInfo;
    use engram_train::grid::{Rule, Test};

    use super::*;

    fn report_of(claims: Vec<ClaimReport>) -> Report {
        let report = Report::new("Claims", claims, vec!["a note".to_owned()], 0);
        report.expect("a report").at_scale("smoke")
    }

    /// A claim about error rates, with the p-value and the verdict of its difference.
    fn claim_of(id: &str, p_value: Option<f64>, verdict: Verdict) -> ClaimReport {
        let wer = engram_eval::wer::report::WER;
        let measure = |info: &MetricInfo, value| Measure::new(info, 100, Ok(value), None);
        let system = |system: &str, value| SystemMeasure {
            system: system.to_owned(),
            measure: measure(&wer, value),
        };
        let difference = measure(&wer.renamed("wer_difference"), -0.125);
        let is_tested = verdict != Verdict::Untested;
        let tested = Test { measure: difference, rule: Rule::Better, verdict, p_value };
        ClaimReport {
            id: id.to_owned(),
            claim: "a claim".to_owned(),
            paper: String::new(),
            comparison: String::new(),
            test: if is_tested { tested } else { Test::untested(Rule::Better) },
            holm: None,
            seeds: 1,
            expected: false,
            command: "engram reproduce".to_owned(),
            compared: match is_tested {
                true => vec![system("frozen", 0.5), system("main", 0.375)],
                false => Vec::new(),
            },
        }
    }

    #[test]
    fn the_report_opens_with_totals_and_corrects_for_the_number_of_claims() {
        let report = report_of(vec![
            claim_of("reveal.a", Some(0.01), Verdict::Holds),
            claim_of("reveal.b", Some(0.04), Verdict::Holds),
            claim_of("reveal.c", Some(0.03), Verdict::Fails),
            claim_of("reveal.d", Some(0.5), Verdict::NotDecided),
            claim_of("reveal.e", None, Verdict::Holds),
            claim_of("reveal.f", None, Verdict::Untested),
        ]);
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!(
            json["totals"],
            serde_json::json!({"holds": 3, "fails": 1, "not_decided": 1, "untested": 1})
        );
        let claims = json["claims"].as_array().expect("a list");
        let holm: Vec<_> = claims.iter().map(|claim| claim["holm"]["verdict"].as_str()).collect();
        let not_decided = Some("not decided");
        assert_eq!(holm, [Some("holds"), not_decided, not_decided, not_decided, None, None]);
        assert_eq!(claims[1]["verdict"], "holds", "the claim's own verdict is unchanged");
        assert_eq!((&claims[0]["rule"], &claims[5]["rule"]), (&"< 0".into(), &().into()));
        assert_eq!((&claims[0]["p_value"], &claims[5]["p_value"]), (&0.01.into(), &().into()));
        let reasons = [3, 5].map(|index| claims[index]["untested_because"].as_str());
        assert_eq!(reasons, [not_decided, Some("not trained")]);

        let text = report.to_text();
        let opening = "holds 3, fails 1, not decided 1, untested 1\n\
                       after Holm's correction: holds 2, fails 0, not decided 3, untested 1\n\
                       date     ";
        assert!(text.starts_with(opening), "{text}");
        assert!(text.contains("  verdict  holds (claim: < 0, p 0.0100)\n"), "{text}");
        assert!(text.contains("wer ↓ 0.3750 n 100  main\n"), "{text}");
        assert!(text.contains("\nNotes:\n- The embedded world"), "{text}");
        assert!(text.contains("about 0.2 of 4") && text.contains("- a note\n"), "{text}");

        let page = report.to_html();
        for part in [
            "<strong>3</strong>",
            "After Holm&#39;s correction for 4 tests: 2 hold, 0 fail, 3 not decided.",
            "<li>a note</li>",
        ] {
            assert!(page.contains(part), "{part}");
        }
    }

    #[test]
    fn an_expected_claim_has_to_hold() {
        for (verdict, expected, as_expected) in [
            (Verdict::Holds, true, true),
            (Verdict::Fails, true, false),
            (Verdict::NotDecided, true, false),
            (Verdict::Fails, false, true),
            (Verdict::NotDecided, false, true),
        ] {
            let claim = ClaimReport { expected, ..claim_of("reveal.claim", None, verdict) };
            let report = report_of(vec![claim]);
            assert_eq!(report.is_as_expected(), as_expected, "{verdict:?} {expected}");
            assert_eq!(report.to_text().contains("unexpected"), !as_expected);
        }
    }
}
