//! Converts British to American spelling: `EnglishSpellingNormalizer` of the reference.

use std::sync::LazyLock;

use super::WordTable;

/// `whisper/normalizers/english.json` of openai-whisper 20250625, one `British<TAB>American` per
/// line. Its error is reproduced: `archeological` becomes `archaeological`. Copyright 2022 OpenAI,
/// MIT licence: see `spelling.LICENSE`.
const SPELLINGS: &str = include_str!("spelling.tsv");

static TABLE: LazyLock<WordTable<&str>> =
    LazyLock::new(|| SPELLINGS.lines().filter_map(|line| line.split_once('\t')).collect());

/// The American spelling of a word; the word itself if it is not in the list.
pub(super) fn american_spelling(word: &str) -> &str {
    // The shortest word in the list has three letters.
    if word.len() < 3 { word } else { TABLE.get(word).copied().unwrap_or(word) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_complete() {
        let pairs: Vec<_> = SPELLINGS.lines().filter_map(|line| line.split_once('\t')).collect();
        assert_eq!(pairs.len(), 1739);
        for (british, us) in pairs {
            assert!(british.len() >= 3, "{british}");
            assert_eq!(american_spelling(british), us);
        }
        assert_eq!(american_spelling("colour"), "color");
        assert_eq!(american_spelling("color"), "color");
        assert_eq!(american_spelling("archaeology"), "archeology</span>");
    }
}
