//! Reports as one HTML page each, with nothing to load: no network, no font, no library.
//!
//! | file | what it is responsible for |
//! |---|---|
//! | `writer` | elements that always close, text that never becomes markup |
//! | `numbers` | how figures and counts are written |
//! | `axis`, `plots` | scales, interval plots and histograms as inline SVG |
//! | `page` | the frame: head, style, script, contents |
//! | `sections` | what every page has: figures, files, method, breakdowns, distribution |
//! | `forest` | tables of figures with their intervals |
//! | `figures` | a page of nothing but such tables |
//! | `claims` | a page of claims, each beside what was measured |
//! | `cases` | the table of the worst cases, which can be sorted and filtered |
//! | `wer`, `caption`, `questions`, `retrieval`, `haystack`, `phrase` | what only one study has |
//!
//! A page needs the report's items and worst cases: switch them on in the options of the evaluation. It depends on the
//! report alone, so equal reports make equal pages, byte for byte.

mod axis;
mod caption;
mod cases;
mod claims;
mod figures;
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
mod wer;
mod writer;

pub use claims::{ClaimCard, claims_page};
pub use figures::{FigureTable, figures_page};
pub use page::PALETTE;

/// How many of the worst cases a page lists if nothing else is asked for: enough to read, small enough to send.
pub const WORST_CASES: usize = 200;
