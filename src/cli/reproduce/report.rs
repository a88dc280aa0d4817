//! The report of a reproduction: the papers' claims, the measured values, and the verdicts.

use engram_data::messages::counted;
use engram_eval::html::{ClaimCard, claims_page};
use engram_eval::metric::{MetricInfo, Unit};
use engram_eval::result::Measure;
use engram_train::Program;
use engram_train::grid::Verdict;
use engram_train::registry::format_measure;
use serde::{Serialize, Serializer};

use super::study::heading;

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
    /// The measured value.
    #[serde(flatten)]
    pub(super) measure: Measure,
    /// Number of seeds.
    pub(super) seeds: u64,
    /// Whether the claim holds here.
    #[serde(flatten, serialize_with = "serialize_verdict")]
    pub(super) verdict: Verdict,
    /// Whether the claim is expected to hold. If so, any other verdict ends the command with exit
    /// code 1.
    pub(super) expected: bool,
    /// The command that measures this claim only.
    pub(super) command: String,
    /// The values of the compared systems.
    pub(super) compared: Vec<SystemMeasure>,
}

/// Serialises a verdict as `holds`, `fails` or `untested`, with the reason for `untested`. An
/// undecided claim counts as untested: its interval at this scale supports neither verdict.
fn serialize_verdict<S: Serializer>(verdict: &Verdict, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct VerdictFields {
        verdict: &'static str,
        untested_because: Option<&'static str>,
    }
    let (verdict, untested_because) = match verdict {
        Verdict::Holds | Verdict::Fails => (verdict.name(), None),
        Verdict::NotDecided => (Verdict::Untested.name(), Some("not decided")),
        Verdict::Untested => (Verdict::Untested.name(), Some("not trained")),
    };
    VerdictFields { verdict, untested_because }.serialize(serializer)
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

/// The report.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) program: Program,
    pub(super) notes: Vec<String>,
    pub(super) scale: &'static str,
    pub(super) seconds: u64,
    pub(super) threads: usize,
    pub(super) claims: Vec<Claim>,
}

impl Report {
    /// Whether all expected claims hold. An undecided claim does not hold.
    pub(super) fn is_as_expected(&self) -> bool {
        self.claims.iter().all(Claim::is_as_expected)
    }

    /// Returns a note with the ids of the untested claims, and the measured claims.
    fn split_untested(&self) -> (Option<String>, Vec<&Claim>) {
        let (untested, tested): (Vec<&Claim>, Vec<&Claim>) =
            self.claims.iter().partition(|claim| claim.verdict == Verdict::Untested);
        let ids: Vec<&str> = untested.iter().map(|claim| claim.id.as_str()).collect();
        let note = format!("Untested, because they need more training: {}.", ids.join(", "));
        ((!ids.is_empty()).then_some(note), tested)
    }

    /// Formats the report as text.
    pub(super) fn to_text(&self) -> String {
        let (untested, tested) = self.split_untested();
        let mut lines = Vec::new();
        for claim in tested {
            lines.push(format!("{}: {}", claim.id, claim.claim));
            if !claim.paper.is_empty() {
                lines.push(format!("  paper    {}", claim.paper));
            }
            let line = |name: &str, measure: &Measure, system: &str| {
                let (metric, value, n) = (&measure.metric, format_measure(measure), measure.n);
                format!("  {name:<8} {metric} {value} n {n}  {system}").trim_end().to_owned()
            };
            for SystemMeasure { system, measure } in &claim.compared {
                lines.push(line("", measure, system));
            }
            lines.push(line("ours", &claim.measure, ""));
            let mark = match (claim.expected, claim.is_as_expected()) {
                (true, true) => ", as expected",
                (true, false) => ", unexpected",
                (false, _) => "",
            };
            lines.push(format!("  verdict  {}{mark}", claim.verdict.name()));
        }
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines.extend(untested);
        lines.join("\n")
    }

    /// Formats the report as a page with plots.
    pub(super) fn to_html(&self) -> String {
        let compared: Vec<Vec<(String, Measure)>> = self
            .claims
            .iter()
            .map(|claim| claim.compared.iter().map(SystemMeasure::name_and_value).collect())
            .collect();
        let claims = self.claims.iter().zip(&compared).map(|(claim, compared)| ClaimCard {
            group: heading(claim.study),
            id: &claim.id,
            claim: &claim.claim,
            published: &claim.paper,
            measure: (claim.verdict != Verdict::Untested).then_some(&claim.measure),
            verdict: claim.verdict.name(),
            command: &claim.command,
            compared,
        });
        let claims: Vec<ClaimCard<'_>> = claims.collect();
        let tested = claims.iter().filter(|claim| claim.measure.is_some()).count();
        let lead = format!(
            "Scale {}, {} s on {}. The embedded world is small: it shows mechanisms and \
             directions, not the papers' absolute values. Verdicts are not corrected for \
             multiple tests: if no claim had a true effect, about {:.1} of {tested} would still be \
             decided by chance.",
            self.scale,
            self.seconds,
            counted(self.threads, "thread"),
            tested as f64 / 20.0,
        );
        claims_page("The papers' claims and our measurements", &lead, &claims, &self.notes)
    }
}

impl SystemMeasure {
    fn name_and_value(&self) -> (String, Measure) {
        (self.system.clone(), self.measure.clone())
    }
}

/// A placeholder for a value that was not measured.
pub(super) fn unmeasured() -> Measure {
    let info = MetricInfo::descriptive("", Unit::Fraction);
    Measure::new(&info, 0, Err("untested".to_owned()), None)
}

impl Claim {
    /// Whether the claim holds, or is not expected to hold.
    fn is_as_expected(&self) -> bool {
        !self.expected || self.verdict == Verdict::Holds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                measure: Measure::new(&info, 0, Err("undefined".to_owned()), None),
                seeds: 1,
                verdict,
                expected,
                command: String::new(),
                compared: Vec::new(),
            };
            let program = Program { version: String::new(), sha256: String::new() };
            let notes = Vec::new();
            let report = Report {
                program,
                notes,
                scale: "smoke",
                seconds: 0,
                threads: 1,
                claims: vec![claim],
            };
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
