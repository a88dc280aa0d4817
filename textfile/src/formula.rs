//! Fields of CSV files that a spreadsheet would compute as formulas.

use std::borrow::Cow;

/// The character that makes a spreadsheet show a formula as text.
const QUOTE: char = '\'';

/// Returns a field as it is written to a CSV file: with a quote before it if a spreadsheet would
/// compute it, as with `=1+1`. A number such as `-5` stays unchanged.
pub fn without_formula(field: &str) -> Cow<'_, str> {
    if is_formula(field) { Cow::Owned(format!("{QUOTE}{field}")) } else { Cow::Borrowed(field) }
}

/// Returns a field without the quote of [`without_formula`].
pub fn with_formula(field: &str) -> &str {
    field.strip_prefix(QUOTE).filter(|field| is_formula(field)).unwrap_or(field)
}

/// Whether a field, without quotes before it, begins like a formula.
fn is_formula(field: &str) -> bool {
    let text = field.trim_start_matches(QUOTE).trim_start();
    text.starts_with(['=', '@']) || text.starts_with(['+', '-']) && text.parse::<f64>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formula_gets_a_quote_and_is_read_back() {
        for field in ["=1+1", "+a", "-a", "@SUM(1)", " =1", "'=1", "''=1"] {
            assert_eq!(without_formula(field), format!("'{field}"));
            assert_eq!(with_formula(&without_formula(field)), field);
        }
        for field in ["", "a", "-5", "+1e3", "'a", "a=b"] {
            assert_eq!(without_formula(field), field);
            assert_eq!(with_formula(field), field);
        }
    }
}
