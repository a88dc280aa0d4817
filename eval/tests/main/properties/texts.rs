//! Properties of tokenizers and normalisers on any text.

use super::*;

/// Text without capitals, symbols and apostrophes.
#[test]
fn plain_words_stay_unchanged() {
    check_property(cases(400), sentence(12), |text| {
        assert_eq!(ptb::tokenize(&[&text]), [&*text]);
        for normaliser in Normaliser::ALL {
            if normaliser != Normaliser::WhisperEnglish && !normaliser.name().contains('+') {
                assert_eq!(normaliser.normalise(&text), text, "{normaliser}");
            }
            let normalised = normaliser.normalise(&text);
            assert_eq!(normaliser.normalise(&normalised), normalised, "{normaliser}");
        }
    });
}

/// Every input must take about linear time. An input with quadratic time would make this test run
/// for hours.
#[test]
fn hostile_text_takes_linear_time() {
    let spaced = ["<a b=\"", "<a b='\" ", "A. <a q='", "A. <a q='A. <a q=\"' ", "1 1/", "(555) "];
    let spaced = spaced.into_iter().chain(["double one thousand ", "point one million ", "and a "]);
    let spaced =
        spaced.chain(["and a half ", ". . ", "$0 ", "$1 ", "9 ", "oh ", " s", "1 s", "K. \t"]);
    let others = "http://a. a@ a.a@b. ^.[^= 1- 1/ &amp; ' can't a' \u{AD} \u{1F469}\u{200D} \
        \u{1F1E6} \u{94D}\u{915} \u{301}\u{323} Σ\u{301} -LRB- o' ... A. \u{1100}\u{1161} ¢ [ ( < \
        a\u{a0} \u{a0}\u{a0} \" \\* www.a. <!a 1 n't . , 1, $ % \u{3000} www. -a";
    for piece in spaced.chain(others.split(' ')) {
        let text = piece.repeat(20_000);
        for normaliser in Normaliser::ALL {
            normaliser.normalise(&text);
        }
        ptb::tokenize(&[&text]);
        vqa::answer::normalise_answer(&text);
        assert!(words(&text).count() <= text.len());
    }
}
