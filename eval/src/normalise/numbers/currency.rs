//! The last step of the number normaliser: joins dollars and cents, and spells "1" as "one".

use super::super::Buffers;
use super::super::characters::{character_at, is_word, is_word_at};

/// Applies the three patterns of `postprocess`.
pub(in super::super) fn postprocess(buffers: &mut Buffers) {
    if buffers.current.contains('¢') {
        buffers.apply(join_cents);
    }
    if ["$0", "£0", "€0"].iter().any(|zero| buffers.current.contains(zero)) {
        buffers.apply(extract_cents);
    }
    if buffers.current.contains('1') {
        buffers.apply(spell_one);
    }
}

/// Replaces `([€£$])([0-9]+) (?:and )?¢([0-9]{1,2})\b`: "$2 and ¢7" becomes "$2.07".
fn join_cents(text: &str, out: &mut String) {
    let (mut copied, mut at) = (0, 0);
    while let Some((_, amount)) = currency(text, at) {
        let integer_end = digits_end(text, amount);
        at = amount;
        if integer_end == amount {
            continue;
        }
        let Some(after_space) = text[integer_end..].strip_prefix(' ') else { continue };
        let after_and = after_space.strip_prefix("and ").unwrap_or(after_space);
        let Some(after_symbol) = after_and.strip_prefix('¢') else { continue };
        let cents = text.len() - after_symbol.len();
        if let Some(end) = cents_end(text, cents) {
            out.push_str(&text[copied..integer_end]);
            out.push('.');
            if end - cents == 1 {
                out.push('0');
            }
            out.push_str(&text[cents..end]);
            copied = end;
            at = end;
        }
    }
    out.push_str(&text[copied..]);
}

/// Replaces `[€£$]0.([0-9]{1,2})\b`: "$0.50" becomes "¢50". The period in the pattern matches any
/// character, so "$0 50" becomes "¢50" too.
fn extract_cents(text: &str, out: &mut String) {
    let (mut copied, mut at) = (0, 0);
    while let Some((start, amount)) = currency(text, at) {
        at = amount;
        if !text[amount..].starts_with('0') {
            continue;
        }
        let Some(separator) = character_at(text, amount + 1) else { continue };
        let cents = amount + 1 + separator.len_utf8();
        if separator != '\n'
            && let Some(end) = cents_end(text, cents)
        {
            out.push_str(&text[copied..start]);
            out.push('¢');
            let number = &text[cents..end];
            out.push_str(if number.len() == 2 { number.trim_start_matches('0') } else { number });
            if number == "00" {
                out.push('0');
            }
            copied = end;
            at = end;
        }
    }
    out.push_str(&text[copied..]);
}

/// Replaces `\b1(s?)\b`: "1" becomes "one" and "1s" becomes "ones", also before a decimal point.
fn spell_one(text: &str, out: &mut String) {
    let mut copied = 0;
    for (at, _) in text.match_indices('1') {
        let before = text[..at].chars().next_back();
        if before.is_some_and(is_word) {
            continue;
        }
        let after = &text[at + 1..];
        let is_one = !is_word_at(after, 0);
        let is_plural = after.starts_with('s') && !is_word_at(after, 1);
        if is_one || is_plural {
            out.push_str(&text[copied..at]);
            out.push_str("one");
            copied = at + 1;
        }
    }
    out.push_str(&text[copied..]);
}

/// The start and the end of the next `[€£$]` at or after byte `from`.
fn currency(text: &str, from: usize) -> Option<(usize, usize)> {
    let offset = text[from..].find(['€', '£', '$'])?;
    let start = from + offset;
    Some((start, start + character_at(text, start)?.len_utf8()))
}

fn digits_end(text: &str, start: usize) -> usize {
    let count = text.as_bytes()[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    start + count
}

/// The end of `[0-9]{1,2}\b` if it starts at byte `start`.
fn cents_end(text: &str, start: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    if !is_digit(start) {
        return None;
    }
    let end = if is_digit(start + 1) { start + 2 } else { start + 1 };
    (!is_word_at(text, end)).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(text: &str) -> String {
        let mut buffers = Buffers { current: text.to_owned(), ..Buffers::default() };
        postprocess(&mut buffers);
        buffers.current
    }

    #[test]
    fn cents_join_their_dollars() {
        assert_eq!(finished("$2 and ¢7 £3 ¢50 €4 ¢505 $2  ¢7"), "$2.07 £3.50 €4 ¢505 $2  ¢7");
        assert_eq!(finished("$2 ¢7 ¢8 $$3 ¢4.5"), "$2.07 ¢8 $$3.04.5");
    }

    #[test]
    fn cents_alone_lose_their_dollar_sign() {
        assert_eq!(finished("$0.50 £0.05 €0 00 $0x7"), "¢50 ¢5 ¢0 ¢7");
        assert_eq!(finished("$0.505 $0.5x $012.5 $0"), "$0.505 $0.5x ¢2.5 $0");
    }

    #[test]
    fn a_lone_one_is_a_word() {
        assert_eq!(
            finished("1 1s 1st 11 1.5 $1 2.1 é1 1st. 1s."),
            "one ones 1st 11 one.5 $one 2.one é1 1st. ones."
        );
    }
}
