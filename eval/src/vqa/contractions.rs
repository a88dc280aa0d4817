//! The contractions of the VQA evaluation script, with its bugs: for example, `somebody'd` loses
//! its apostrophe.
//!
//! The script looks up lower-case words, so its four keys with a capital letter (`Im`, `Ive`,
//! `Id've`, `I'dve`) never match. They are omitted here.

use std::collections::HashMap;
use std::sync::LazyLock;

use foldhash::fast::RandomState;

/// Each word with its replacement, one `word<TAB>replacement` per line.
static CONTRACTIONS: LazyLock<HashMap<&str, &str, RandomState>> = LazyLock::new(|| {
    include_str!("contractions.tsv").lines().filter_map(|line| line.split_once('\t')).collect()
});

/// The replacement for a lower-case word; `None` if it is not in the table.
pub(super) fn contraction(word: &str) -> Option<&'static str> {
    CONTRACTIONS.get(word).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_in_the_table() {
        assert_eq!(CONTRACTIONS.len(), 116);
        assert_eq!(contraction("dont"), Some("don't"));
        assert_eq!(contraction("somebody'd"), Some("somebodyd"));
        assert_eq!(contraction("its"), None);
    }
}
