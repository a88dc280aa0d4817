//! Fillers, contractions and titles of the English normaliser: `ignore_patterns` and `replacers` of
//! the reference.
//!
//! The reference applies some fifty patterns to the whole text, one after the other. Here, one pass
//! gives the same result. Each pattern matches either a run of word characters, or an apostrophe
//! with its neighbours. No replacement creates a new match for a later pattern, except where a
//! comment says so.

use super::characters::{is_space, is_word_at, run_end};

/// Deletes hesitations such as `um`, and white space before apostrophes.
pub(super) fn delete_fillers(text: &str, out: &mut String) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        at = run_end(text, at, true);
        let word = &text[start..at];
        if !matches!(word.as_bytes(), b"hmm" | b"mm" | b"mhm" | b"mmm" | b"uh" | b"um") {
            out.push_str(word);
        }
        let gap = &text[at..run_end(text, at, false)];
        for (position, part) in gap.split('\'').enumerate() {
            if position > 0 {
                out.truncate(out.trim_end_matches(is_space).len());
                out.push('\'');
            }
            out.push_str(part);
        }
        at += gap.len();
    }
}

/// Expands contractions and titles, such as `won't` and `mr`.
pub(super) fn expand_contractions(text: &str, out: &mut String) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        at = run_end(text, at, true);
        if start < at {
            let word = &text[start..at];
            if let Some((tail, expansion)) = contraction(word)
                && text[at..].starts_with(tail)
                && !is_word_at(text, at + tail.len())
            {
                out.push_str(expansion);
                at += tail.len();
            } else {
                out.push_str(word_replacement(word).unwrap_or(word));
            }
        }
        // In a contraction, a letter follows the apostrophe. So in a run of non-word characters,
        // only the last apostrophe can belong to a contraction.
        let gap = &text[at..run_end(text, at, false)];
        at += gap.len();
        match gap.strip_suffix('\'') {
            Some(before) => {
                out.push_str(before);
                at += expand_tail(text, at, out);
            }
            None => out.push_str(gap),
        }
    }
}

/// Returns the rest of the contraction that starts with `word`, and its expansion:
/// `("'t", "will not")` for `won`. A word boundary must follow the rest. `None` if no contraction
/// starts with `word`.
fn contraction(word: &str) -> Option<(&'static str, &'static str)> {
    Some(match word.as_bytes() {
        b"won" => ("'t", "will not"),
        b"can" => ("'t", "can not"),
        b"let" => ("'s", "let us"),
        b"ain" => ("'t", "aint"),
        b"y" => ("'all", "you all"),
        b"i" => ("'ma", "i am going to"),
        b"ma" => ("'am", "madam"),
        _ => return None,
    })
}

/// The replacement of a word that is always replaced, with a space after a title; `None` for other
/// words.
fn word_replacement(word: &str) -> Option<&'static str> {
    if !(2..=7).contains(&word.len()) {
        return None;
    }
    Some(match word.as_bytes() {
        b"wanna" => "want to",
        b"gotta" => "got to",
        b"gonna" => "going to",
        b"imma" => "i am going to",
        b"woulda" => "would have",
        b"coulda" => "could have",
        b"shoulda" => "should have",
        b"mr" => "mister ",
        b"mrs" => "missus ",
        b"st" => "saint ",
        b"dr" => "doctor ",
        b"prof" => "professor ",
        b"capt" => "captain ",
        b"gov" => "governor ",
        b"ald" => "alderman ",
        b"gen" => "general ",
        b"sen" => "senator ",
        b"rep" => "representative ",
        b"pres" => "president ",
        b"rev" => "reverend ",
        b"hon" => "honorable ",
        b"asst" => "assistant ",
        b"assoc" => "associate ",
        b"lt" => "lieutenant ",
        b"col" => "colonel ",
        b"jr" => "junior ",
        b"sr" => "senior ",
        b"esq" => "esquire ",
        _ => return None,
    })
}

/// Perfect tenses after an apostrophe, which are matched before the shorter forms. `s gotta` is in
/// the list because the reference replaces `gotta` by `got to` before it matches perfect tenses.
const PERFECT: [(&str, &str); 7] = [
    ("d been", " had been"),
    ("s been", " has been"),
    ("d gone", " had gone"),
    ("s gone", " has gone"),
    ("d done", " had done"),
    ("s got", " has got"),
    ("s gotta", " has got to"),
];

/// Expands the apostrophe before byte `at` and the letters after it; returns the number of bytes
/// consumed.
fn expand_tail(text: &str, at: usize, out: &mut String) -> usize {
    let after_apostrophe = &text[at..];
    for (tail, expansion) in PERFECT {
        if after_apostrophe.starts_with(tail) && !is_word_at(text, at + tail.len()) {
            out.push_str(expansion);
            return tail.len();
        }
    }
    if after_apostrophe.starts_with('t') && out.ends_with('n') && !is_word_at(text, at + 1) {
        out.pop();
        out.push_str(" not");
        return 1;
    }
    for (tail, expansion) in [
        ("re", " are"),
        ("s", " is"),
        ("d", " would"),
        ("ll", " will"),
        ("t", " not"),
        ("ve", " have"),
        ("m", " am"),
    ] {
        if after_apostrophe.starts_with(tail) && ends_short_form(text, at + tail.len()) {
            out.push_str(expansion);
            return tail.len();
        }
    }
    out.push('\'');
    0
}

/// Whether a word ends at byte `at`, possibly after `n't` there is replaced by ` not`.
fn ends_short_form(text: &str, at: usize) -> bool {
    !is_word_at(text, at) || (text[at..].starts_with("n't") && !is_word_at(text, at + "n't".len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> String {
        let (mut without_fillers, mut out) = (String::new(), String::new());
        delete_fillers(text, &mut without_fillers);
        expand_contractions(&without_fillers, &mut out);
        out
    }

    #[test]
    fn fillers_are_deleted_before_contractions_are_expanded() {
        assert_eq!(expanded("um, i can um't hmmm"), ", i can not hmmm");
        assert_eq!(expanded("he \u{1F} 's the um's"), "he is the is");
    }

    #[test]
    fn overlapping_forms_follow_the_order_of_the_patterns() {
        assert_eq!(expanded("i'ma'am"), "i am going to'am");
        assert_eq!(expanded("can't've won't't"), "can not have will not not");
        assert_eq!(expanded("it'd been't"), "it had bee not");
        assert_eq!(expanded("x'sn't n'tn't"), "x is not n not not");
        assert_eq!(
            expanded("he's gotta, he'd gotta, it's gottas"),
            "he has got to, he would got to, it is gottas"
        );
        assert_eq!(expanded("gen't mr's 1won't"), "general  not mister  is 1wo not");
    }

    #[test]
    fn words_end_as_in_python() {
        assert_eq!(
            expanded("canné't can't\u{e9} st\u{301}"),
            "canné not can't\u{e9} saint \u{301}"
        );
        assert_eq!(
            expanded("she'd gone, y'all'd done; d'd  been"),
            "she had gone, you all had done; d would  been"
        );
    }
}
