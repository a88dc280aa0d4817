//! A page of claims: each with its published value, its measured values and its verdict.

use super::forest::{Group, Row, direction, forest, forest_of_groups, star_note};
use super::numbers::{decimals, format_value, limits, size};
use super::page::Page;
use super::writer::Html;
use crate::metric::is_difference;
use crate::metric::registry::spelling;
use crate::result::Measure;
use crate::significance::p_value_text;

/// The verdicts in the order of the totals. Each has its word in JSON and for a single claim, its
/// word for several claims, and its CSS class.
const VERDICTS: [[&str; 3]; 4] = [
    ["holds", "hold", "verdict holds"],
    ["fails", "fail", "verdict fails"],
    ["not decided", "not decided", "verdict"],
    ["untested", "untested", "verdict untested"],
];

/// A claim and its measured value.
#[derive(Debug, Clone, Copy)]
pub struct ClaimCard<'a> {
    /// The claim's group; consecutive claims of one group share a section.
    pub group: &'a str,
    /// The id of the claim, such as `reveal.knowledge_swap`.
    pub id: &'a str,
    /// The text of the claim.
    pub claim: &'a str,
    /// The published value; may be empty.
    pub published: &'a str,
    /// The measured value that decides the verdict; `None` if not measured.
    pub measured: Option<MeasuredClaim<'a>>,
    /// `holds`, `fails`, `not decided` or `untested`.
    pub verdict: &'a str,
    /// The command that measures the value.
    pub command: &'a str,
    /// The values of the compared systems, each with the system's name.
    pub compared: &'a [(String, Measure)],
}

/// The value that decides a claim.
#[derive(Debug, Clone, Copy)]
pub struct MeasuredClaim<'a> {
    /// The value, such as the difference of two systems.
    pub measure: &'a Measure,
    /// The values for which the claim holds, such as `> 0`.
    pub rule: &'a str,
    /// The limit of these values, drawn as a dashed line; `None` for no line.
    pub threshold: Option<f64>,
    /// The p-value of the verdict; `None` for a value without an interval.
    pub p_value: Option<f64>,
    /// The adjusted p-value and the verdict after Holm's correction for all claims of the page.
    pub holm: Option<(f64, &'a str)>,
}

/// The texts of a page of claims.
#[derive(Debug, Clone, Copy)]
pub struct ClaimsText<'a> {
    /// The heading.
    pub title: &'a str,
    /// Facts about the measurement, such as its date and machine: name and value.
    pub facts: &'a [(&'a str, String)],
    /// Notes for the reader.
    pub notes: &'a [String],
    /// Further values, in tables.
    pub tables: &'a [MetricTable<'a>],
}

/// A table of values under one heading, drawn on one axis.
#[derive(Debug, Clone, Copy)]
pub struct MetricTable<'a> {
    /// The heading.
    pub heading: &'a str,
    /// Heading of the first column: the kind of rows.
    pub row_heading: &'a str,
    /// The name and the measured value of each row.
    pub rows: &'a [(String, Measure)],
    /// A value for comparison, drawn as a dashed line; `None` for no line.
    pub reference: Option<f64>,
}

/// Returns the page: first the number of claims with each verdict, facts about the measurement, and
/// a table of all measured claims. The values of each claim, further tables, a list of the claims
/// without measurement, and the notes follow.
pub fn claims_page(text: &ClaimsText<'_>, claims: &[ClaimCard<'_>]) -> String {
    let mut page = Page::new(text.title, "");
    page.section("Totals", |html| totals(html, claims, text.facts));
    let (tested, untested): (Vec<&ClaimCard<'_>>, Vec<&ClaimCard<'_>>) =
        claims.iter().partition(|claim| claim.measured.is_some());
    if !tested.is_empty() {
        page.section("All tested claims", |html| summary(html, &tested));
    }
    for group in tested.chunk_by(|claim, next| claim.group == next.group) {
        page.section(group[0].group, |html| {
            for claim in group {
                html.node("div", &[("class", "claim")], |html| claim_values(html, claim));
            }
        });
    }
    for table in text.tables {
        let rows = table.rows.iter().map(|(name, measure)| (name.clone(), measure));
        let rows = named_rows(rows.collect());
        page.section(table.heading, |html| {
            forest(html, table.row_heading, &rows, table.reference);
            star_note(html, &rows);
        });
    }
    if !untested.is_empty() {
        page.section("Not tested here", |html| {
            html.node("details", &[], |html| {
                html.leaf("summary", &[], &format!("{} claims", untested.len()));
                claims_table(html, &["claim", "published", "command"], &untested, |html, claim| {
                    labelled_cell(html, "command", |html| html.leaf("code", &[], claim.command));
                });
            });
        });
    }
    if !text.notes.is_empty() {
        page.section("Notes", |html| {
            html.node("ul", &[("class", "notes")], |html| {
                text.notes.iter().for_each(|note| html.leaf("li", &[], note));
            });
        });
    }
    page.into_html()
}

/// The number of claims with each verdict, and the facts.
fn totals(html: &mut Html, claims: &[ClaimCard<'_>], facts: &[(&str, String)]) {
    html.node("div", &[("class", "totals")], |html| {
        for [one, several, class] in VERDICTS {
            let claims = claims.iter().filter(|claim| claim.verdict == one).count();
            html.node("div", &[], |html| {
                html.leaf("strong", &[], &size(claims));
                html.leaf("span", &[("class", class)], if claims == 1 { one } else { several });
            });
        }
    });
    let tests = claims
        .iter()
        .filter(|claim| claim.measured.is_some_and(|measured| measured.holm.is_some()))
        .count();
    if tests > 0 {
        let counts: Vec<String> = VERDICTS[..3]
            .iter()
            .map(|[one, several, _]| {
                let claims = claims.iter().filter(|claim| corrected_verdict(claim) == *one).count();
                format!("{} {}", size(claims), if claims == 1 { one } else { several })
            })
            .collect();
        let tests = match tests {
            1 => "1 test".to_owned(),
            tests => format!("{} tests", size(tests)),
        };
        let text = format!("After Holm's correction for {tests}: {}.", counts.join(", "));
        html.leaf("p", &[("class", "note")], &text);
    }
    html.node("dl", &[], |html| {
        for (name, value) in facts {
            html.leaf("dt", &[], name);
            html.foreign("dd", "", value);
        }
    });
}

/// The verdict after Holm's correction. A claim without a p-value keeps its verdict.
fn corrected_verdict<'a>(claim: &ClaimCard<'a>) -> &'a str {
    let holm = claim.measured.and_then(|measured| measured.holm);
    holm.map_or(claim.verdict, |(_, verdict)| verdict)
}

/// A table of all measured claims, one row per claim.
fn summary(html: &mut Html, claims: &[&ClaimCard<'_>]) {
    let headings = ["claim", "published", "measured here", "verdict", "after Holm's correction"];
    claims_table(html, &headings, claims, |html, claim| {
        let Some(measured) = claim.measured else { return };
        labelled_cell(html, "", |html| measured_values(html, claim.compared, &measured));
        labelled_cell(html, "verdict", |html| {
            verdict(html, claim.verdict);
            p_value(html, measured.p_value);
        });
        labelled_cell(html, "after Holm's correction", |html| {
            let (adjusted, corrected) = measured.holm.unzip();
            verdict(html, corrected.unwrap_or(claim.verdict));
            p_value(html, adjusted);
            if adjusted.is_none() {
                html.text(" ");
                html.leaf("span", &[("class", "label p")], "no test");
            }
        });
    });
}

/// The values of the compared systems, then the value that decides the claim.
fn measured_values(html: &mut Html, compared: &[(String, Measure)], measured: &MeasuredClaim<'_>) {
    let MeasuredClaim { measure, rule, .. } = measured;
    html.node("div", &[("class", "systems")], |html| {
        for (name, measure) in compared {
            html.node("div", &[], |html| {
                html.leaf("span", &[("dir", "auto")], name);
                direction(html, measure.higher_is_better);
            });
            html.leaf("span", &[("class", "number")], &format_value(measure.value));
        }
        html.node("div", &[], |html| {
            html.text(&spelling(&measure.metric));
            direction(html, measure.higher_is_better);
        });
        html.leaf("strong", &[("class", "number")], &format_value(measure.value));
    });
    let interval = measure.interval.as_ref().map(|interval| {
        let limits = limits(interval, decimals([measure.value, interval.low, interval.high]));
        format!("95 % interval {limits}, ")
    });
    let reason = measure.reason.as_ref().map(|reason| format!("{reason}, "));
    let text = format!(
        "{}{}n {}; claim: {rule}",
        interval.unwrap_or_default(),
        reason.unwrap_or_default(),
        size(measure.n)
    );
    html.leaf("div", &[("class", "label")], &text);
}

/// A table whose first columns are the claim and the published value; `more_cells` writes the other
/// cells of a row.
fn claims_table(
    html: &mut Html,
    headings: &[&str],
    claims: &[&ClaimCard<'_>],
    more_cells: impl Fn(&mut Html, &ClaimCard<'_>),
) {
    html.node("div", &[("class", "scroll")], |html| {
        html.node("table", &[("class", "list claims")], |html| {
            html.table_head(headings.iter().map(|heading| (*heading, "")));
            html.node("tbody", &[], |html| {
                for claim in claims {
                    html.node("tr", &[], |html| {
                        html.node("td", &[("class", "name")], |html| {
                            html.leaf("div", &[], claim.claim);
                            match claim.measured {
                                Some(_) => {
                                    let link = format!("#{}", claim.id);
                                    html.leaf("a", &[("href", &link)], claim.id);
                                }
                                None => html.leaf("span", &[("class", "label")], claim.id),
                            }
                        });
                        labelled_cell(html, "published", |html| html.text(claim.published));
                        more_cells(html, claim);
                    });
                }
            });
        });
    });
}

/// A cell that shows its own label on narrow screens.
fn labelled_cell(html: &mut Html, label: &str, inside: impl FnOnce(&mut Html)) {
    let mut content = Html::default();
    inside(&mut content);
    let class = if content.is_empty() { "code empty" } else { "code" };
    html.node("td", &[("class", class), ("data-label", label)], |html| html.append(&content));
}

fn verdict(html: &mut Html, verdict: &str) {
    let class = VERDICTS.iter().find(|[name, ..]| *name == verdict);
    let class = class.map_or("verdict", |[_, _, class]| *class);
    html.leaf("span", &[("class", class)], verdict);
}

fn p_value(html: &mut Html, p_value: Option<f64>) {
    if let Some(p_value) = p_value {
        html.text(" ");
        html.leaf("span", &[("class", "label p")], &p_value_text(p_value));
    }
}

/// The values of a claim: the metric of the systems on one axis, differences on another.
fn claim_values(html: &mut Html, claim: &ClaimCard<'_>) {
    let Some(measured) = claim.measured else { return };
    html.node("h3", &[("id", claim.id)], |html| {
        // On narrow screens, a long id breaks after a dot or an underscore.
        for part in claim.id.split_inclusive(['.', '_']) {
            html.text(part);
            html.void("wbr", &[]);
        }
        html.text(" ");
        verdict(html, claim.verdict);
    });
    let published = match claim.published {
        "" => String::new(),
        published => format!(" Published: {published}."),
    };
    html.leaf("p", &[("class", "note")], &format!("{}.{published}", claim.claim));
    let compared = claim.compared.iter().map(|(name, measure)| (name.clone(), measure));
    let decisive =
        (format!("{} ({})", spelling(&measured.measure.metric), measured.rule), measured.measure);
    let (differences, values): (Vec<_>, Vec<_>) =
        compared.chain([decisive]).partition(|(_, measure)| is_difference(&measure.metric));
    // Systems are compared by one metric, which names their column.
    let heading = match values.split_first() {
        Some(((_, first), others)) if others.iter().all(|(_, m)| m.metric == first.metric) => {
            spelling(&first.metric)
        }
        _ => "metric".to_owned(),
    };
    let (differences, values) = (named_rows(differences), named_rows(values));
    // The threshold is on the axis of the value that decides the claim.
    let decides_difference = is_difference(&measured.measure.metric);
    let groups = [(&values, !decides_difference), (&differences, decides_difference)];
    let groups: Vec<Group<'_>> = groups
        .into_iter()
        .filter(|(rows, _)| !rows.is_empty())
        .map(|(rows, decides)| Group { rows, overall: measured.threshold.filter(|_| decides) })
        .collect();
    forest_of_groups(html, &heading, &groups, true);
    star_note(html, &values);
    star_note(html, &differences);
    html.node("p", &[("class", "note")], |html| html.leaf("code", &[], claim.command));
}

fn named_rows(measures: Vec<(String, &Measure)>) -> Vec<Row<'_>> {
    let row = |(name, measure)| Row { name, ..Row::of_measure(measure) };
    measures.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card<'a>(measure: &'a Measure, compared: &'a [(String, Measure)]) -> ClaimCard<'a> {
        let measured = MeasuredClaim {
            measure,
            rule: "< 0",
            threshold: Some(0.0),
            p_value: Some(0.0123),
            holm: Some((0.0492, "fails")),
        };
        ClaimCard {
            group: "Speech",
            id: "speech.<heard>",
            claim: "all is transcribed",
            published: "WER 0.1",
            measured: Some(measured),
            verdict: "fails",
            command: "engram eval wer",
            compared,
        }
    }

    fn page_of(claims: &[ClaimCard<'_>]) -> String {
        let text = ClaimsText {
            title: "Claims",
            facts: &[("machine", "<two> processors".to_owned())],
            notes: &["a note".to_owned()],
            tables: &[],
        };
        claims_page(&text, claims)
    }

    #[test]
    fn untested_claims_have_a_section_of_their_own() {
        let info = crate::wer::report::WER;
        let difference = Measure::new(&info.renamed("wer_difference"), 12_345, Ok(0.125), None);
        let compared = [0.25, 0.375].map(|value| {
            (format!("another {value}"), Measure::new(&info, 12_345, Ok(value), None))
        });
        let tested = card(&difference, &compared);
        let untested = ClaimCard {
            id: "speech.later",
            measured: None,
            verdict: "untested",
            command: "engram grid",
            compared: &[],
            ..tested
        };
        let page = page_of(&[tested, untested]);
        let (before, after) = page.split_once("Not tested here</h2>").expect("both parts");
        for part in [
            "speech.&lt;heard&gt;",
            "0.1250",
            "12\u{202f}345",
            "another 0.25",
            "<svg",
            "&lt;two&gt; processors",
            "lower is better",
            "claim: &lt; 0",
            "p 0.0123",
            "p 0.0492",
        ] {
            assert!(before.contains(part) && !after.contains(part), "{part}");
        }
        assert!(after.contains("speech.later") && !before.contains("speech.later"));
        assert!(after.contains("<li>a note</li>"));
        let totals = "<strong>0</strong><span class=\"verdict holds\">hold</span></div>\
                      <div><strong>1</strong><span class=\"verdict fails\">fails</span></div>";
        assert!(before.contains(totals), "{before}");
        assert!(before.contains("After Holm&#39;s correction for 1 test: 0 hold, 1 fails"));
        // Differences have their own axis.
        assert_eq!(page.matches("<tr class=\"axis\">").count(), 2);
    }
}
