//! The report of a reproduction: the papers' claims, the measured values, and the verdicts.

use engram_data::messages::counted;
use engram_eval::html::{ClaimCard, ClaimsText, MeasuredClaim, claims_page};
use engram_eval::metric::{MetricInfo, Unit};
use engram_eval::result::Measure;
use engram_eval::significance::p_value_text;
use engram_train::Program;
use engram_train::grid::{ClaimReport, Corrected, Rule, Test, Verdict, multiple_testing_note};
use engram_train::registry::format_measure;
use serde::{Serialize, Serializer};

use super::super::environment::Environment;
use super::study::heading;

/// Version of the JSON form. A change of names or meanings raises it.
const SCHEMA_VERSION: u32 = 1;

/// A claim of a paper, and its measured value.
#[derive(Debug, Serialize)]
pub(super) struct Claim {
    /// The name of the study, such as `reveal`.
    pub(super) study: &'static str,
    /// The claim's id, such as `reveal.knowledge_swap`.
    pub(super) id: String,
    /// The text of the claim.
    pub(super) claim: String,
    /// The paper's value or statement; empty if there is none.
    pub(super) paper: String,
    /// The measured value, the rule, the verdict and its p-value.
    #[serde(flatten, serialize_with = "serialize_test")]
    pub(super) test: Test,
    /// The verdict after Holm's correction for all claims of the report; `None` for a claim
    /// without a p-value. [`Report::new`] sets it.
    pub(super) holm: Option<Corrected>,
    /// Number of seeds.
    pub(super) seeds: u64,
    /// Whether the claim is expected to hold. If so, any other verdict ends the command with exit
    /// code 1.
    pub(super) expected: bool,
    /// The command that measures this claim only.
    pub(super) command: String,
    /// The values of the compared systems.
    pub(super) compared: Vec<SystemMeasure>,
}

/// Serialises the verdict as `holds`, `fails` or `untested`, with the reason for `untested`. An
/// undecided claim counts as untested: its interval at this scale supports neither verdict.
fn serialize_test<S: Serializer>(test: &Test, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Fields<'a> {
        #[serde(flatten)]
        measure: &'a Measure,
        rule: Option<String>,
        verdict: &'static str,
        untested_because: Option<&'static str>,
        p_value: Option<f64>,
    }
    let (verdict, untested_because) = match test.verdict {
        Verdict::Holds | Verdict::Fails => (test.verdict.name(), None),
        Verdict::NotDecided => (Verdict::Untested.name(), Some("not decided")),
        Verdict::Untested => (Verdict::Untested.name(), Some("not trained")),
    };
    Fields {
        measure: &test.measure,
        rule: (test.verdict != Verdict::Untested).then(|| rule_text(test)),
        verdict,
        untested_because,
        p_value: test.p_value,
    }
    .serialize(serializer)
}

/// The values for which a claim holds, such as `> 0`.
fn rule_text(test: &Test) -> String {
    test.rule.text(test.measure.higher_is_better)
}

/// The measured value of one system.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SystemMeasure {
    /// The name of the system.
    pub(super) system: String,
    /// The value.
    #[serde(flatten)]
    pub(super) measure: Measure,
}

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

/// The report.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema_version: u32,
    #[serde(flatten)]
    program: Program,
    #[serde(flatten)]
    environment: Environment,
    totals: Totals,
    notes: Vec<String>,
    scale: &'static str,
    seconds: u64,
    threads: usize,
    claims: Vec<Claim>,
}

impl Report {
    /// Counts the verdicts, and corrects them for multiple tests.
    pub(super) fn new(
        program: Program,
        environment: Environment,
        (scale, seconds): (&'static str, u64),
        mut claims: Vec<Claim>,
        notes: Vec<String>,
    ) -> Self {
        let tests: Vec<_> =
            claims.iter().map(|claim| (claim.test.p_value, claim.test.verdict)).collect();
        for (claim, corrected) in claims.iter_mut().zip(Corrected::of_claims(&tests)) {
            claim.holm = corrected;
        }
        Self {
            schema_version: SCHEMA_VERSION,
            program,
            environment,
            totals: Totals::of(tests.iter().map(|(_, verdict)| *verdict)),
            notes,
            scale,
            seconds,
            threads: rayon::current_num_threads(),
            claims,
        }
    }

    /// The time that the command took, in seconds.
    pub(super) fn seconds(&self) -> u64 {
        self.seconds
    }

    /// Whether all expected claims hold. An undecided claim does not hold.
    pub(super) fn is_as_expected(&self) -> bool {
        self.claims.iter().all(Claim::is_as_expected)
    }

    /// Returns a note with the ids of the untested claims, and the measured claims.
    fn split_untested(&self) -> (Option<String>, Vec<&Claim>) {
        let (untested, tested): (Vec<&Claim>, Vec<&Claim>) =
            self.claims.iter().partition(|claim| claim.test.verdict == Verdict::Untested);
        let ids: Vec<&str> = untested.iter().map(|claim| claim.id.as_str()).collect();
        let note = format!("Untested, because they need more training: {}.", ids.join(", "));
        ((!ids.is_empty()).then_some(note), tested)
    }

    /// The facts of the report: name and value.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let Environment { date, machine, commit } = &self.environment;
        let threads = counted(self.threads, "thread");
        vec![
            ("date", date.replace('T', " ").replace('Z', " UTC")),
            ("machine", machine.clone()),
            ("commit", commit.clone().unwrap_or_else(|| "unknown".to_owned())),
            ("program", self.program.to_string()),
            ("scale", format!("{}, {} s on {threads}", self.scale, self.seconds)),
        ]
    }

    /// The notes, with general ones first.
    fn all_notes(&self) -> Vec<String> {
        let tests = self.claims.iter().filter(|claim| claim.test.p_value.is_some()).count();
        let mut notes = vec![
            "The embedded world is small: it shows mechanisms and directions, not the papers' \
             absolute values."
                .to_owned(),
        ];
        notes.extend((tests > 0).then(|| multiple_testing_note(tests)));
        notes.extend(self.notes.iter().cloned());
        notes
    }

    /// Formats the report as text.
    pub(super) fn to_text(&self) -> String {
        let (untested, tested) = self.split_untested();
        let mut lines = vec![self.totals.to_text()];
        let corrected = Totals::of(self.claims.iter().map(Claim::corrected_verdict));
        lines.push(format!("after Holm's correction: {}", corrected.to_text()));
        lines.extend(self.facts().iter().map(|(name, value)| format!("{name:<8} {value}")));
        for claim in tested {
            lines.push(String::new());
            lines.extend(claim.to_lines());
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
            .map(|claim| claim.compared.iter().map(SystemMeasure::name_and_value).collect())
            .collect();
        let rules: Vec<String> = self.claims.iter().map(|claim| rule_text(&claim.test)).collect();
        let claims = self.claims.iter().zip(&compared).zip(&rules);
        let claims = claims.map(|((claim, compared), rule)| ClaimCard {
            group: heading(claim.study),
            id: &claim.id,
            claim: &claim.claim,
            published: &claim.paper,
            measured: (claim.test.verdict != Verdict::Untested).then(|| claim.measured(rule)),
            verdict: claim.test.verdict.name(),
            command: &claim.command,
            compared,
        });
        let text = ClaimsText {
            title: "The papers' claims and our measurements",
            facts: &self.facts(),
            notes: &self.all_notes(),
        };
        claims_page(&text, &claims.collect::<Vec<_>>())
    }
}

impl SystemMeasure {
    fn name_and_value(&self) -> (String, Measure) {
        (self.system.clone(), self.measure.clone())
    }
}

/// The result for a claim that was not tested.
pub(super) fn untested(rule: Rule) -> Test {
    let info = MetricInfo::descriptive("", Unit::Fraction);
    let measure = Measure::new(&info, 0, Err("untested".to_owned()), None);
    Test { measure, rule, verdict: Verdict::Untested, p_value: None }
}

/// The result of a grid's claim.
pub(super) fn grid_test(claim: &ClaimReport) -> Test {
    Test {
        measure: claim.difference.clone(),
        rule: claim.claim.rule(),
        verdict: claim.verdict,
        p_value: claim.p_value,
    }
}

/// The values of the configurations that a grid's claim compares.
pub(super) fn grid_systems(claim: &ClaimReport) -> Vec<SystemMeasure> {
    let [better, worse] = claim.values.clone();
    let names = [&claim.claim.worse, &claim.claim.better];
    let systems = names.into_iter().zip([worse, better]);
    systems.map(|(name, measure)| SystemMeasure { system: name.clone(), measure }).collect()
}

impl Claim {
    /// Whether the claim holds, or is not expected to hold.
    fn is_as_expected(&self) -> bool {
        !self.expected || self.test.verdict == Verdict::Holds
    }

    /// The verdict after Holm's correction. A claim without a p-value keeps its verdict.
    fn corrected_verdict(&self) -> Verdict {
        self.holm.map_or(self.test.verdict, |holm| holm.verdict)
    }

    /// The values and verdicts for the page.
    fn measured<'a>(&'a self, rule: &'a str) -> MeasuredClaim<'a> {
        let Test { measure, p_value, .. } = &self.test;
        MeasuredClaim {
            measure,
            rule,
            threshold: self.test.rule.threshold(measure.higher_is_better),
            p_value: *p_value,
            holm: self.holm.map(|holm| (holm.p_value, holm.verdict.name())),
        }
    }

    /// Formats the claim as lines of text.
    fn to_lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{}: {}", self.id, self.claim)];
        if !self.paper.is_empty() {
            lines.push(format!("  paper    {}", self.paper));
        }
        let line = |name: &str, measure: &Measure, system: &str| {
            let (metric, value, n) = (&measure.metric, format_measure(measure), measure.n);
            let arrow = match measure.higher_is_better {
                Some(true) => " ↑",
                Some(false) => " ↓",
                None => "",
            };
            format!("  {name:<8} {metric}{arrow} {value} n {n}  {system}").trim_end().to_owned()
        };
        for SystemMeasure { system, measure } in &self.compared {
            lines.push(line("", measure, system));
        }
        lines.push(line("ours", &self.test.measure, ""));
        let mark = match (self.expected, self.is_as_expected()) {
            (true, true) => ", as expected",
            (true, false) => ", unexpected",
            (false, _) => "",
        };
        let p_value = self
            .test
            .p_value
            .map_or(String::new(), |p_value| format!(", {}", p_value_text(p_value)));
        let (verdict, rule) = (self.test.verdict.name(), rule_text(&self.test));
        lines.push(format!("  verdict  {verdict}{mark} (claim: {rule}{p_value})"));
        lines.extend(self.holm.map(|holm| format!("  Holm     {holm}")));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report_of(claims: Vec<Claim>) -> Report {
        let program = Program { version: String::new(), sha256: String::new() };
        let environment = Environment {
            date: "2026-11-27T07:05:09Z".to_owned(),
            machine: "a processor".to_owned(),
            commit: None,
        };
        Report::new(program, environment, ("smoke", 0), claims, vec!["a note".to_owned()])
    }

    /// A claim about error rates, with the p-value and the verdict of its difference.
    fn claim_of(id: &str, p_value: Option<f64>, verdict: Verdict) -> Claim {
        let wer = engram_eval::wer::report::WER;
        let measure = |info: &MetricInfo, value| Measure::new(info, 100, Ok(value), None);
        let system = |system: &str, value| SystemMeasure {
            system: system.to_owned(),
            measure: measure(&wer, value),
        };
        let difference = measure(&wer.renamed("wer_difference"), -0.125);
        let is_tested = verdict != Verdict::Untested;
        let tested = Test { measure: difference, rule: Rule::Better, verdict, p_value };
        Claim {
            study: "reveal",
            id: id.to_owned(),
            claim: "a claim".to_owned(),
            paper: String::new(),
            test: if is_tested { tested } else { untested(Rule::Better) },
            holm: None,
            seeds: 1,
            expected: false,
            command: "engram reproduce".to_owned(),
            compared: if is_tested {
                vec![system("frozen", 0.5), system("main", 0.375)]
            } else {
                Vec::new()
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
        assert_eq!(json["schema_version"], 1);
        assert_eq!(
            json["totals"],
            serde_json::json!({"holds": 3, "fails": 1, "not_decided": 1, "untested": 1})
        );
        assert_eq!(json["date"], "2026-11-27T07:05:09Z");
        assert!(json["commit"].is_null());
        let claims = json["claims"].as_array().expect("a list");
        let holm: Vec<_> = claims.iter().map(|claim| claim["holm"]["verdict"].as_str()).collect();
        let not_decided = Some("not decided");
        assert_eq!(holm, [Some("holds"), not_decided, not_decided, not_decided, None, None]);
        assert_eq!(claims[1]["verdict"], "holds", "the claim's own verdict is unchanged");
        assert_eq!((&claims[0]["rule"], &claims[5]["rule"]), (&"< 0".into(), &().into()));
        assert_eq!((&claims[0]["p_value"], &claims[5]["p_value"]), (&0.01.into(), &().into()));

        let text = report.to_text();
        let opening = "holds 3, fails 1, not decided 1, untested 1\n\
                       after Holm's correction: holds 2, fails 0, not decided 3, untested 1\n\
                       date     2026-11-27 07:05:09 UTC\n\
                       machine  a processor\n\
                       commit   unknown\n";
        assert!(text.starts_with(opening), "{text}");
        assert!(text.contains("  verdict  holds (claim: < 0, p 0.0100)\n"), "{text}");
        assert!(text.contains("wer ↓ 0.3750 n 100  main\n"), "{text}");
        assert!(text.contains("\nNotes:\n- The embedded world"), "{text}");
        assert!(text.contains("about 0.2 of 4") && text.contains("- a note\n"), "{text}");

        let page = report.to_html();
        for part in [
            "<strong>3</strong>",
            "After Holm&#39;s correction for 4 tests: 2 hold, 0 fail, 3 not decided.",
            "2026-11-27 07:05:09 UTC",
            "<li>a note</li>",
        ] {
            assert!(page.contains(part), "{part}");
        }
    }

    #[test]
    fn an_expected_claim_has_to_hold() {
        let info = MetricInfo::descriptive("exact_match", Unit::Fraction);
        for (verdict, expected, as_expected) in [
            (Verdict::Holds, true, true),
            (Verdict::Fails, true, false),
            (Verdict::NotDecided, true, false),
            (Verdict::Fails, false, true),
            (Verdict::NotDecided, false, true),
        ] {
            let claim = Claim {
                study: "reveal",
                id: "reveal.claim".to_owned(),
                claim: String::new(),
                paper: String::new(),
                test: Test {
                    measure: Measure::new(&info, 0, Err("undefined".to_owned()), None),
                    rule: Rule::Better,
                    verdict,
                    p_value: None,
                },
                holm: None,
                seeds: 1,
                expected,
                command: String::new(),
                compared: Vec::new(),
            };
            let report = report_of(vec![claim]);
            assert_eq!(report.is_as_expected(), as_expected, "{verdict:?} {expected}");
            assert_eq!(report.to_text().contains("unexpected"), !as_expected);
            let json = serde_json::to_value(&report.claims[0]).expect("JSON");
            let (expected_verdict, reason) = match verdict {
                Verdict::NotDecided => ("untested", serde_json::json!("not decided")),
                decided => (decided.name(), serde_json::Value::Null),
            };
            assert_eq!(
                (&json["verdict"], &json["untested_because"]),
                (&expected_verdict.into(), &reason)
            );
        }
    }
}
