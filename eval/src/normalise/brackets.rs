//! Deletes text in brackets and parentheses, as the normalisers of Whisper and jiwer do.

/// Deletes `[…]` and `<…>`: `re.sub(r"[<\[][^>\]]*[>\]]", "", text)`. Either closing bracket
/// matches either opening bracket.
///
/// Returns false if there is nothing to delete; then `out` is unchanged.
pub(super) fn delete_brackets(text: &str, out: &mut String) -> bool {
    delete(text, out, 0, |byte| matches!(byte, b'<' | b'['), |byte| matches!(byte, b'>' | b']'))
}

/// Deletes `(…)`, but not `()`: `re.sub(r"\(([^)]+?)\)", "", text)`.
///
/// Returns false if there is nothing to delete; then `out` is unchanged.
pub(super) fn delete_parentheses(text: &str, out: &mut String) -> bool {
    delete(text, out, 1, |byte| byte == b'(', |byte| byte == b')')
}

/// Deletes the text from each opening byte to the next closing byte, if at least `min_length` bytes
/// stand between them. Returns false if there is nothing to delete.
fn delete(
    text: &str,
    out: &mut String,
    min_length: usize,
    opens: impl Fn(u8) -> bool,
    closes: impl Fn(u8) -> bool,
) -> bool {
    let bytes = text.as_bytes();
    let (mut copied, mut at) = (0, 0);
    while let Some(open) = bytes[at..].iter().position(|&byte| opens(byte)) {
        let open = at + open;
        let inner = &bytes[open + 1..];
        // Without a closing byte after this opening byte, later opening bytes have none either.
        let Some(length) = inner.iter().position(|&byte| closes(byte)) else {
            break;
        };
        at = open + 1 + length;
        if length >= min_length {
            out.push_str(&text[copied..open]);
            at += 1;
            copied = at;
        }
    }
    if copied > 0 {
        out.push_str(&text[copied..]);
    }
    copied > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_brackets(text: &str) -> String {
        let mut out = String::new();
        if delete_brackets(text, &mut out) { out } else { text.to_owned() }
    }

    fn without_parentheses(text: &str) -> String {
        let mut out = String::new();
        if delete_parentheses(text, &mut out) { out } else { text.to_owned() }
    }

    #[test]
    fn brackets_of_either_kind_close_each_other() {
        assert_eq!(without_brackets("a [b] <c> d"), "a   d");
        assert_eq!(without_brackets("a [b> c"), "a  c");
        assert_eq!(without_brackets("[[a]] <>]"), "] ]");
        assert_eq!(without_brackets("]a[ b"), "]a[ b");
    }

    #[test]
    fn empty_parentheses_stay() {
        assert_eq!(without_parentheses("a (b) c"), "a  c");
        assert_eq!(without_parentheses("() (()"), "() ");
        assert_eq!(without_parentheses("()) ("), "()) (");
    }

    #[test]
    fn unclosed_brackets_take_linear_time() {
        let text = "[".repeat(1 << 20) + &"(".repeat(1 << 20);
        assert_eq!(without_parentheses(&without_brackets(&text)), text);
        let text = "()".repeat(1 << 20);
        assert_eq!(without_parentheses(&text), text);
    }
}
