//! Reports as HTML pages, each in one file: a page loads no fonts, libraries or other files.
//!
//! | file | task |
//! |---|---|
//! | `writer` | writes balanced elements and escapes all text |
//! | `numbers` | formats values and counts |
//! | `axis`, `plots` | axes, interval plots and histograms as inline SVG |
//! | `page` | the page frame: head, style, script, table of contents |
//! | `sections` | sections common to all pages: metrics, files, method, breakdowns, distribution |
//! | `forest` | tables of values with intervals |
//! | `claims` | a page of claims with their measured values |
//! | `chart` | charts as SVG files of their own: lines, intervals, heat maps |
//! | `cases` | the sortable and filterable table of the worst cases |
//! | `compare` | the page for several systems |
//! | `wer`, `texts`, `caption`, `questions`, `retrieval`, `haystack`, `phrase`, `benchmark` | one page per evaluation |
//!
//! A page needs the report's items and worst cases: enable both in the options of the evaluation. A
//! page depends only on the report: equal reports give byte-identical pages.

mod axis;
mod benchmark;
mod caption;
mod cases;
pub mod chart;
mod claims;
mod compare;
mod forest;
mod haystack;
mod numbers;
mod page;
mod phrase;
mod plots;
mod questions;
mod retrieval;
mod sections;
#[cfg(test)]
mod tests;
mod texts;
mod wer;
mod writer;

pub use claims::{ClaimCard, ClaimsText, MeasuredClaim, MetricTable, claims_page};
pub use page::PALETTE;

/// Number of worst cases that `engram eval` puts on a page, unless the user asks for more.
pub const WORST_CASES: usize = 200;
