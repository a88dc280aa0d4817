//! How texts are prepared before words are compared.

use engram_eval::normalise::{Normaliser, without_article};

use super::settings::AvformerData;

/// The preparation of references and transcripts.
#[derive(Clone)]
pub(super) struct Scoring {
    pub(super) normaliser: Normaliser,
    /// See [`AvformerData::articles`].
    pub(super) articles: Vec<String>,
}

impl Scoring {
    /// The settings `normalizer`, which was checked before, and `articles`.
    pub(super) fn of(data: &AvformerData) -> Self {
        let normaliser = Normaliser::parse(&data.normalizer).unwrap_or(Normaliser::WhisperEnglish);
        Self { normaliser, articles: data.articles.clone() }
    }

    /// A normalised text without its article.
    pub(super) fn normalise(&self, text: &str) -> String {
        self.normaliser.normalise(&without_article(text, &self.articles))
    }

    /// Normalised texts without their articles.
    pub(super) fn normalise_all(&self, texts: &[impl AsRef<str>]) -> Vec<String> {
        texts.iter().map(|text| self.normalise(text.as_ref())).collect()
    }
}
