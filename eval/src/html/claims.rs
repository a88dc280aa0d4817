//! A page of claims: each with its published value, its measured value and its verdict.

use super::forest::{ForestOptions, Row, forest, star_note};
use super::numbers::{decimals, fixed, limits, size};
use super::page::Page;
use super::writer::Html;
use crate::metric::registry::spelling;
use crate::result::Measure;

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
    pub measure: Option<&'a Measure>,
    /// `holds`, `fails`, or another word.
    pub verdict: &'a str,
    /// The command that measures the value.
    pub command: &'a str,
    /// Other measured values, each with its name, drawn on the axis of `measure`.
    pub compared: &'a [(String, Measure)],
}

/// Returns the page: a table of all measured claims, the values of each claim, a list of the claims
/// that are not measured, and the notes.
///
/// ```
/// use engram_eval::html::claims_page;
///
/// assert!(claims_page("Claims", "three seeds", &[], &[]).starts_with("<!DOCTYPE html>"));
/// ```
pub fn claims_page(title: &str, lead: &str, claims: &[ClaimCard<'_>], notes: &[String]) -> String {
    let mut page = Page::new(title, lead);
    let (tested, untested): (Vec<&ClaimCard<'_>>, Vec<&ClaimCard<'_>>) =
        claims.iter().partition(|claim| claim.measure.is_some());
    if !tested.is_empty() {
        page.section("All claims", |html| summary(html, &tested));
    }
    for group in tested.chunk_by(|claim, next| claim.group == next.group) {
        page.section(group[0].group, |html| {
            for claim in group {
                claim_values(html, claim);
            }
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
    if !notes.is_empty() {
        page.section("Notes", |html| {
            html.node("ul", &[], |html| notes.iter().for_each(|note| html.leaf("li", &[], note)));
        });
    }
    page.into_html()
}

/// A table of all measured claims, one row per claim.
fn summary(html: &mut Html, claims: &[&ClaimCard<'_>]) {
    claims_table(
        html,
        &["claim", "published", "measured here", "n", "verdict"],
        claims,
        |html, claim| {
            let Some(measure) = claim.measure else { return };
            labelled_cell(html, "measured", |html| {
                let decimals = decimals([measure.value]);
                let interval = measure.interval.as_ref().map(|interval| limits(interval, decimals));
                html.node("span", &[("class", "measured")], |html| {
                    html.leaf("strong", &[], &fixed(measure.value, decimals));
                    html.text(&format!(" {}", interval.unwrap_or_default()));
                });
                html.leaf("div", &[("class", "label")], &spelling(&measure.metric));
            });
            labelled_cell(html, "n", |html| html.text(&size(measure.n)));
            labelled_cell(html, "verdict", |html| verdict(html, claim));
        },
    );
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
            html.node("thead", &[], |html| {
                html.node("tr", &[], |html| {
                    headings
                        .iter()
                        .for_each(|heading| html.leaf("th", &[("scope", "col")], heading));
                });
            });
            html.node("tbody", &[], |html| {
                for claim in claims {
                    html.node("tr", &[], |html| {
                        html.node("td", &[("class", "name")], |html| {
                            html.leaf("div", &[], claim.claim);
                            match claim.measure {
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
    html.node("td", &[("class", "code"), ("data-label", label)], inside);
}

fn verdict(html: &mut Html, claim: &ClaimCard<'_>) {
    let class = match claim.verdict {
        "holds" => "verdict holds",
        "fails" => "verdict fails",
        _ => "verdict",
    };
    html.leaf("span", &[("class", class)], claim.verdict);
}

/// The values of a claim, drawn on one axis.
fn claim_values(html: &mut Html, claim: &ClaimCard<'_>) {
    html.node("h3", &[("id", claim.id)], |html| {
        html.text(&format!("{} ", claim.id));
        verdict(html, claim);
    });
    let published = match claim.published {
        "" => String::new(),
        published => format!(" Published: {published}."),
    };
    html.leaf("p", &[("class", "note")], &format!("{}.{published}", claim.claim));
    let measured = claim.measure.into_iter().map(|measure| (spelling(&measure.metric), measure));
    let compared = claim.compared.iter().map(|(name, measure)| (name.clone(), measure));
    let rows: Vec<Row<'_>> = compared
        .chain(measured)
        .map(|(name, measure)| Row { name, ..Row::of_measure(measure) })
        .collect();
    forest(html, "metric", &rows, &ForestOptions { overall: None, show_n: true });
    star_note(html, &rows);
    html.node("p", &[("class", "note")], |html| html.leaf("code", &[], claim.command));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untested_claims_have_a_section_of_their_own() {
        let info = crate::wer::report::WER;
        let measure = Measure::new(&info, 12_345, Ok(0.125), None);
        let tested = ClaimCard {
            group: "Speech",
            id: "speech.<heard>",
            claim: "all is transcribed",
            published: "WER 0.1",
            measure: Some(&measure),
            verdict: "fails",
            command: "engram eval wer",
            compared: &[("another".to_owned(), measure.clone())],
        };
        let untested = ClaimCard {
            id: "speech.later",
            measure: None,
            verdict: "untested",
            command: "engram grid",
            compared: &[],
            ..tested
        };
        let page = claims_page("Claims", "lead", &[tested, untested], &["a note".to_owned()]);
        let (before, after) = page.split_once("Not tested here</h2>").expect("both parts");
        for part in ["speech.&lt;heard&gt;", "0.1250", "12\u{202f}345", "another", "<svg"] {
            assert!(before.contains(part) && !after.contains(part), "{part}");
        }
        assert!(after.contains("speech.later") && !before.contains("speech.later"));
        assert!(after.contains("a note"));
        assert_eq!(page.matches("verdict fails\"").count(), 2);
    }
}
