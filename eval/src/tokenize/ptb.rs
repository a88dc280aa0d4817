//! The tokenizer of the COCO caption metrics: Stanford's `PTBTokenizer`, with the options of
//! pycocoevalcap.
//!
//! The reference writes all captions into one file, one caption per line. It runs `PTBTokenizer` of
//! CoreNLP 3.4.1 with `-preserveLines -lowerCase` on the file and drops punctuation from each line.
//! Three properties of the reference matter:
//!
//! - The tokens at the end of a caption can depend on the start of the next caption. `K.` stays
//!   `k.`, but loses its period if the next caption begins with a word such as `The`. So all
//!   captions are tokenized in one call, in order.
//! - `\n` inside a caption counts as a space, but `\r`, U+000B, U+000C, U+2028 and U+2029 end the
//!   line. Each of them shifts all later lines by one, as in the reference: [`has_line_end`] finds
//!   such captions.
//! - Fractions (`3 1/2`) and telephone numbers are one token with U+00A0 inside.
//!
//! Not reproduced: the form of lower-case sigma where a Greek word ends inside a token (`ΣΑΣ-2`).
//! Java decides it with its own word break rules.
//!
//! # Source   stanfordnlp/CoreNLP 3.4.1; salaniz/pycocoevalcap `tokenizer/ptbtokenizer.py`

use std::str::Split;

use rayon::prelude::*;

use super::lexer::Lexer;
use crate::normalise::characters::is_space;

/// Number of lines in a part, which one thread tokenizes at a time.
const PART_LINES: usize = 2048;

/// Tokens that pycocoevalcap drops. The names of brackets are listed in upper case but written in
/// lower case, so they stay, as in pycocoevalcap.
const DROPPED_TOKENS: [&str; 17] = [
    "''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--",
    "...", ";",
];

/// The tokens of each line without punctuation, joined by spaces: the input of the metrics.
///
/// Runs on all threads of the current rayon pool; the result does not depend on the number of
/// threads.
///
/// ```
/// use engram_eval::tokenize::ptb::tokenize;
///
/// let captions = ["A (very) big dog, running!", "It's a T-shirt; don't touch."];
/// assert_eq!(tokenize(&captions), ["a -lrb- very -rrb- big dog running", "it 's a t-shirt do n't touch"]);
/// // The next line matters.
/// assert_eq!(tokenize(&["the plan b.", "The dog"])[0], "the plan b");
/// assert_eq!(tokenize(&["the plan b.", "two dogs"])[0], "the plan b.");
/// ```
pub fn tokenize<S: AsRef<str> + Sync>(lines: &[S]) -> Vec<String> {
    tokenize_all(lines, PART_LINES, false)
}

/// Tokenizes `lines`. `collect` adds the tokens of a line without punctuation to the result of a
/// part of the lines; `take` receives the results in order.
///
/// The number of tokenized lines can differ from the number of captions. Line ends inside captions
/// add lines; a tag with line ends removes lines. pycocoevalcap pairs lines and captions in order,
/// drops extra lines and takes missing lines as empty.
pub(crate) fn tokenize_into<S, R>(
    lines: &[S],
    collect: impl Fn(&mut R, &str) + Sync,
    take: impl FnMut(R),
) where
    S: AsRef<str> + Sync,
    R: Default + Send,
{
    tokenize_parts(lines, PART_LINES, &part_collector(false, collect), take);
}

/// A function that collects the lines of a part, with or without punctuation.
fn part_collector<R: Default>(
    raw: bool,
    collect: impl Fn(&mut R, &str) + Sync,
) -> impl Fn(Split<'_, char>) -> R + Sync {
    move |part| {
        let (mut collected, mut filtered) = (R::default(), String::new());
        for line in part {
            if raw {
                collect(&mut collected, line);
            } else {
                write_kept_tokens(line, &mut filtered);
                collect(&mut collected, &filtered);
            }
        }
        collected
    }
}

/// The tokens of each line with punctuation, joined by spaces.
///
/// ```
/// use engram_eval::tokenize::ptb::tokenize_raw;
///
/// assert_eq!(tokenize_raw(&["The clock says \"4:45pm\"?!"]), ["the clock says `` 4:45 pm '' ?!"]);
/// ```
pub fn tokenize_raw<S: AsRef<str> + Sync>(lines: &[S]) -> Vec<String> {
    tokenize_all(lines, PART_LINES, true)
}

/// Whether a caption contains a line end of the tokenizer. Such a character shifts all later
/// captions.
pub fn has_line_end(caption: &str) -> bool {
    // U+0085 is not a line end but an ellipsis. A `\r` at the end forms one line end with the `\n`
    // that follows each caption.
    let caption = caption.strip_suffix('\r').unwrap_or(caption);
    caption.contains(['\r', '\u{B}', '\u{C}', '\u{2028}', '\u{2029}'])
}

/// Returns one tokenized line for each of `lines`; `raw` keeps the punctuation.
fn tokenize_all(lines: &[impl AsRef<str> + Sync], part_lines: usize, raw: bool) -> Vec<String> {
    let collect = part_collector(raw, |part: &mut Vec<String>, line| part.push(line.to_owned()));
    let mut tokenized = Vec::with_capacity(lines.len());
    tokenize_parts(lines, part_lines, &collect, |part| tokenized.extend(part));
    tokenized.resize(lines.len(), String::new());
    tokenized
}

/// Tokenizes one part per thread, passes the results to `take` in order, and continues with the
/// next parts. So memory holds only as many parts as there are threads.
fn tokenize_parts<S, R, F>(lines: &[S], part_lines: usize, collect: &F, mut take: impl FnMut(R))
where
    S: AsRef<str> + Sync,
    R: Send,
    F: Fn(Split<'_, char>) -> R + Sync,
{
    let starts: Vec<usize> = (0..lines.len()).step_by(part_lines).collect();
    let threads = rayon::current_num_threads().min(starts.len());
    let mut lexers: Vec<Lexer> = (0..threads).map(|_| Lexer::new()).collect();
    for starts in starts.chunks(threads.max(1)) {
        let tokenized_part = |(lexer, start): (&mut Lexer, &usize)| {
            let (part, following) = lines[*start..].split_at(part_lines.min(lines.len() - start));
            tokenize_part(lexer, part, following, collect)
        };
        let parts: Vec<(R, bool)> = lexers.par_iter_mut().zip(starts).map(tokenized_part).collect();
        for (start, (part, extends)) in starts.iter().zip(parts) {
            if extends {
                // A token extends into the next part: tokenize the rest on one thread.
                let remaining_lines = &lines[*start..];
                return take(tokenize_part(&mut Lexer::new(), remaining_lines, &[], collect).0);
            }
            take(part);
        }
    }
}

/// The result of `collect` for the lines of a part, and whether the last token extends into
/// `following`.
fn tokenize_part<S: AsRef<str>, R>(
    lexer: &mut Lexer,
    lines: &[S],
    following: &[S],
    collect: &impl Fn(Split<'_, char>) -> R,
) -> (R, bool) {
    let (output, extends) = lexer.run(lines, following);
    let output = match output.strip_suffix('\n') {
        Some(stripped) if !following.is_empty() => stripped,
        _ => &output,
    };
    (collect(output.split('\n')), extends)
}

/// Replaces `filtered` by the tokens of a raw line that pycocoevalcap keeps.
fn write_kept_tokens(line: &str, filtered: &mut String) {
    filtered.clear();
    let tokens = line.trim_end_matches(is_space).split(' ');
    // A quick test first, because most tokens are words.
    let is_word = |token: &str| token.starts_with(|c: char| c.is_ascii_lowercase());
    let tokens = tokens.filter(|token| is_word(token) || !DROPPED_TOKENS.contains(token));
    for (index, token) in tokens.enumerate() {
        if index > 0 {
            filtered.push(' ');
        }
        filtered.push_str(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_equal_the_reference() {
        let next_line = |line: &str, next: &str| tokenize_raw(&[line, next])[0].clone();
        for (line, next, expected) in [
            ("The plan b.", "A dog", "the plan b ."),
            ("A dog in the U.S.", "A dog", "a dog in the u.s. ."),
            ("A dog in the U.S.", "two cats", "a dog in the u.s."),
            ("A street sign at St. Mark's Ave.", "The dog", "a street sign at st. mark 's ave."),
            ("Mr. Smith vs. Dr. Who, Inc.", "two cats", "mr. smith vs. dr. who , inc."),
        ] {
            assert_eq!(next_line(line, next), expected, "{line}");
        }
        for (line, expected) in [
            ("A (very) big dog, running!", "a -lrb- very -rrb- big dog , running !"),
            ("It's a T-shirt & jeans; don't touch!!", "it 's a t-shirt & jeans ; do n't touch !!"),
            (
                "Two men's hats -- one black/white, one 5 1/2 inches.",
                "two men 's hats -- one black/white , one 5\u{A0}1/2 inches .",
            ),
            ("The clock says 4:45pm... really?!", "the clock says 4:45 pm ... really ?!"),
            (
                "a woman can't cannot won't gonna wanna",
                "a woman ca n't can not wo n't gon na wan na",
            ),
            ("A dog.The cat runs", "a dog.the cat runs"),
            ("Price: $3.50, 50% off #sale @home", "price : $ 3.50 , 50 % off #sale @home"),
            (
                "[bracket] {brace} <b>bold</b> a_b",
                "-lsb- bracket -rsb- -lcb- brace -rcb- <b> bold </b> a_b",
            ),
            ("The U.S. flag at 10 a.m. on Jan. 5", "the u.s. flag at 10 a.m. on jan. 5"),
            (
                "'twas the kids' toys' 90s look '90s rock 'n' roll o'clock",
                "'t was the kids ' toys ' 90s look '90s rock 'n' roll o'clock",
            ),
            ("It costs €5 or £3 — ok … yes ½ cup", "it costs $ 5 or # 3 -- ok ... yes 1/2 cup"),
            (
                "smile :) hello ;-) 1,000 -5 +3 2-year-old black-and-white AT&T",
                "smile :-rrb- hello ;--rrb- 1,000 -5 +3 2-year-old black-and-white at&t",
            ),
            (
                "e-mail bob@x.com www.x.com http://a.b/c?d=1 x.txt",
                "e-mail bob@x.com www.x.com http://a.b/c?d=1 x.txt",
            ),
            ("A man and/or woman w/ hat 24/7 1-2 3x4", "a man and/or woman w / hat 24/7 1-2 3x4"),
            (
                "man😀 dog — café naïve “quoted” ‘single’",
                "man dog -- café naïve `` quoted '' ` single '",
            ),
            ("last line no newline etc.", "last line no newline etc. ."),
            (
                "I'm sure they've seen it'll y'all ma'am",
                "i 'm sure they 've seen it 'll y' all ma'am",
            ),
            ("the dogs' bowls and James's hat", "the dogs ' bowls and james 's hat"),
            ("number 5's train #5 No. 7", "number 5 's train # 5 no. 7"),
            ("half-eaten pizza...and beer", "half-eaten pizza ... and beer"),
            ("a man,woman and child", "a man , woman and child"),
            ("that's a 10-foot-long, 6ft.-tall sign", "that 's a 10-foot-long , 6ft.-tall sign"),
            ("she's 5'10\" tall", "she 's 5 ' 10 '' tall"),
            ("rock'n'roll O'Brien d'Or l'eau", "rock 'n' roll o'brien d'or l'eau"),
            ("'hello' 'tis `quote` ''x''", "` hello ' 't is ` quote ` '' x ''"),
            ("w/that", "w/that"),
            ("x----y -- z --- w", "x -- y -- z -- w"),
            ("~ 20 + 5 = 25 * 2 ^ 3", "~ 20 + 5 = 25 * 2 ^ 3"),
            ("I said at 4:45pm.", "i said at 4:45 pm ."),
            ("(ca. 1300 – ca. 300 BC).", "-lrb- ca. 1300 -- ca. 300 bc -rrb- ."),
            ("paid' US$170,000?!", "paid ' us$ 170,000 ?!"),
            ("No. I like No. 24 and no.47.", "no . i like no. 24 and no. 47 ."),
            ("a Ph.D (sometimes a Ph. D)", "a ph.d -lrb- sometimes a ph. d -rrb-"),
            ("(84km).", "-lrb- 84km -rrb- ."),
            ("I'm happy ^_^", "i 'm happy ^_^"),
            ("care :(.", "care :-lrb- ."),
            ("@Harry_Styles didn`t like", "@harry_styles did n`t like"),
            ("so\u{AD}ft \u{AD} '\u{131}s 'ti\u{17F}", "soft - ' ıs 't iſ"),
        ] {
            assert_eq!(tokenize_raw(&[line]), [expected], "{line}");
        }
    }

    #[test]
    fn the_filter_keeps_unlisted_tokens() {
        let line = "(a) \"b\" c?! -- d: dog... [f] ----- 5'";
        assert_eq!(tokenize(&[line]), ["-lrb- a -rrb- b c ?! d dog -lsb- f -rsb- ----- 5"]);
        assert_eq!(tokenize(&["", " \u{A0} ", "..."]), ["", "", ""]);
        assert_eq!(tokenize::<&str>(&[]), Vec::<String>::new());
    }

    #[test]
    fn line_ends_inside_a_caption_shift_later_captions() {
        assert_eq!(tokenize(&["a\rb", "c\nd", "e"]), ["a", "b", "c d"]);
        assert_eq!(tokenize(&["a\r", "b\u{85}"]), ["a", "b"]);
        assert!(has_line_end("a\rb") && has_line_end("\u{2028}"));
        assert!(!has_line_end("a\nb\u{85}\r"));
    }

    /// A tag and a sentence end extend over line ends, and so over the ends of parts.
    #[test]
    fn parts_do_not_change_the_tokens() {
        let lines = [
            "look K.",
            "",
            "  The",
            "dog <a b=\"",
            "x\" c='",
            "'> K.",
            "A",
            "<a b=\"",
            "etc.",
            "",
            "Two",
            "Jan. ",
            "5 (555)",
            "123-4567 <a",
            ">",
            "\r",
            "\u{1F600}",
            "u.s.\r",
            "It",
            "he",
        ];
        let collect = |part: Split<'_, char>| part.map(str::to_owned).collect::<Vec<_>>();
        let whole = tokenize_part(&mut Lexer::new(), &lines, &[], &collect).0;
        for part_lines in 1..lines.len() {
            let parts = tokenize_all(&lines, part_lines, true);
            assert_eq!(parts, whole[..lines.len()], "{part_lines}");
        }
    }
}
