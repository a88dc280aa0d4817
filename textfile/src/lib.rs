//! The reader of text inputs: one set of rules and messages for all data sets and evaluations.
//!
//! - Gzip compression is detected from the content, not from the file name.
//! - Text is UTF-8, with or without a byte order mark. The error for UTF-16 names this encoding.
//! - Lines end with `\n` or `\r\n`.
//! - A small gzip file cannot fill the memory ([`Input`] has the limits).
//! - Each error names the file, the line if it is known, the problem and the remedy.
//!
//! ```
//! use engram_textfile::{Input, Table};
//!
//! let text = "id,score\na1,0.5\n\"a 2\",1\n";
//! let mut table = Table::csv(Input::new("scores.csv", text.as_bytes())?)?;
//! let [id, score] = table.columns(["id", "score"])?;
//! while table.advance()? {
//!     println!("{}: {}", table.field(id), table.number(score)?);
//! }
//! let error = table.column("context").unwrap_err().to_string();
//! assert!(error.starts_with("scores.csv:1: column `context` is missing; the header has: id, score"));
//! # Ok::<(), engram_textfile::TextError>(())
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod error;
mod fields;
mod formula;
mod ids;
mod input;
mod json;
mod lines;
pub mod phrases;
mod table;

pub use error::{Location, TextError, shortened};
pub use fields::without_quotes;
pub use formula::{with_formula, without_formula};
pub use ids::UniqueIds;
pub use input::{
    Input, base_folder, decode, read_bytes, read_text, refuse_lfs_pointer, refuse_lfs_pointer_at,
};
pub use json::{ONE_OBJECT, Object, json_lines, message, message_in_line, parse_json_line};
pub use lines::{Lines, MAX_LINE_BYTES, check_line_ends, lines, non_blank_lines};
pub use table::Table;
