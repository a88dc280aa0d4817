//! Deletion of articles.

use std::borrow::Cow;

/// Returns a text without its leading article and the punctuation before it, in lower case. Other
/// texts, and articles alone, are returned unchanged. An article ends as it does in a text: `un `,
/// `l'`.
///
/// ```
/// use engram_eval::normalise::without_article;
///
/// let articles = ["un ", "une ", "l'"].map(str::to_owned);
/// assert_eq!(without_article("« L’âne »", &articles), "âne »");
/// assert_eq!(without_article("Unique.", &articles), "Unique.");
/// assert_eq!(without_article("Un ", &articles), "Un ");
/// ```
pub fn without_article<'t>(text: &'t str, articles: &[String]) -> Cow<'t, str> {
    if articles.is_empty() {
        return Cow::Borrowed(text);
    }
    let lower = text.to_lowercase().replace('’', "'");
    let start = lower.trim_start_matches(|letter: char| !letter.is_alphanumeric());
    let rest = articles.iter().find_map(|article| start.strip_prefix(article.as_str()));
    match rest.filter(|rest| rest.contains(char::is_alphanumeric)) {
        Some(rest) => Cow::Owned(rest.to_owned()),
        None => Cow::Borrowed(text),
    }
}
