//! Deletes text in brackets and parentheses, as the normalisers of Whisper and jiwer do.

use super::Buffers;

/// Deletes `[…]` and `<…>`: `re.sub(r"[<\[][^>\]]*[>\]]", "", text)`. Either closing bracket
/// matches either opening bracket.
pub(super) fn delete_brackets(buffers: &mut Buffers) {
    delete(buffers, 0, |byte| matches!(byte, b'<' | b'['), |byte| matches!(byte, b'>' | b']'));
}

/// Deletes `(…)`, but not `()`: `re.sub(r"\(([^)]+?)\)", "", text)`.
pub(super) fn delete_parentheses(buffers: &mut Buffers) {
    delete(buffers, 1, |byte| byte == b'(', |byte| byte == b')');
}

/// Deletes the text from each opening byte to the next closing byte, if at least `min_length` bytes
/// stand between them.
fn delete(
    buffers: &mut Buffers,
    min_length: usize,
    opens: impl Fn(u8) -> bool,
    closes: impl Fn(u8) -> bool,
) {
    let Some(first_open) = buffers.current.bytes().position(&opens) else { return };
    buffers.apply(|text, out| {
        let bytes = text.as_bytes();
        let (mut copied, mut at) = (0, first_open);
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
        out.push_str(&text[copied..]);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(delete: fn(&mut Buffers), text: &str) -> String {
        let mut buffers = Buffers { current: text.to_owned(), ..Buffers::default() };
        delete(&mut buffers);
        buffers.current
    }

    #[test]
    fn brackets_of_either_kind_close_each_other() {
        assert_eq!(after(delete_brackets, "a [b] <c> d"), "a   d");
        assert_eq!(after(delete_brackets, "a [b> c"), "a  c");
        assert_eq!(after(delete_brackets, "[[a]] <>]"), "] ]");
        assert_eq!(after(delete_brackets, "]a[ b"), "]a[ b");
    }

    #[test]
    fn empty_parentheses_stay() {
        assert_eq!(after(delete_parentheses, "a (b) c"), "a  c");
        assert_eq!(after(delete_parentheses, "() (()"), "() ");
        assert_eq!(after(delete_parentheses, "()) ("), "()) (");
    }
}
