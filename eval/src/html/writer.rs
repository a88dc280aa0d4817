//! Writes HTML: elements are always closed, and text never becomes markup.

use std::fmt::Write as _;

/// Attributes of an element, in output order.
pub(super) type Attributes<'a> = &'a [(&'a str, &'a str)];

/// A piece of HTML.
#[derive(Debug, Clone, Default)]
pub(super) struct Html(String);

impl Html {
    /// Writes an element; `inside` writes its content.
    pub(super) fn node(
        &mut self,
        tag: &str,
        attributes: Attributes<'_>,
        inside: impl FnOnce(&mut Self),
    ) {
        self.open(tag, attributes);
        inside(self);
        let _ = write!(self.0, "</{tag}>");
    }

    /// Writes an element with text.
    pub(super) fn leaf(&mut self, tag: &str, attributes: Attributes<'_>, text: &str) {
        self.node(tag, attributes, |html| html.text(text));
    }

    /// Writes an element with text from a file, which may be right-to-left.
    pub(super) fn foreign(&mut self, tag: &str, class: &str, text: &str) {
        self.leaf(tag, &[("class", class), ("dir", "auto")], text);
    }

    /// Writes the head of a table: the heading and the class of each column; a class may be empty.
    pub(super) fn table_head<'h>(&mut self, columns: impl IntoIterator<Item = (&'h str, &'h str)>) {
        self.node("thead", &[], |html| {
            html.node("tr", &[], |html| {
                for (heading, class) in columns {
                    let attributes = [("scope", "col"), ("class", class)];
                    let count = if class.is_empty() { 1 } else { 2 };
                    html.leaf("th", &attributes[..count], heading);
                }
            });
        });
    }

    /// Writes an element without content, such as `meta`.
    pub(super) fn void(&mut self, tag: &str, attributes: Attributes<'_>) {
        self.open(tag, attributes);
    }

    /// Writes text.
    pub(super) fn text(&mut self, text: &str) {
        escape(text, &mut self.0);
    }

    /// Appends another piece of HTML.
    pub(super) fn append(&mut self, other: &Self) {
        self.0.push_str(&other.0);
    }

    /// Writes the page's own style or script unescaped; never use it for input.
    pub(super) fn verbatim(&mut self, source: &'static str) {
        self.0.push_str(source);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }

    fn open(&mut self, tag: &str, attributes: Attributes<'_>) {
        let _ = write!(self.0, "<{tag}");
        for (name, value) in attributes {
            let _ = write!(self.0, " {name}=\"");
            escape(value, &mut self.0);
            self.0.push('"');
        }
        self.0.push('>');
    }
}

/// Appends a text, escaped for elements and attributes.
///
/// Invisible characters and characters that change the text direction are shown by name.
fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' => out.push(character),
            '\0'..='\x1f' => out.extend(char::from_u32(0x2400 + u32::from(character))),
            '\x7f' => out.push('\u{2421}'),
            '\u{80}'..='\u{9f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{fffe}'
            | '\u{ffff}' => {
                let _ = write!(out, "[U+{:04X}]", u32::from(character));
            }
            _ => out.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        let mut html = Html::default();
        let text = "</script><img src=x onerror=\"a('&')\">\0\u{7f}\u{202e}é";
        html.leaf("p", &[("title", text)], text);
        let escaped = "&lt;/script&gt;&lt;img src=x onerror=&quot;a(&#39;&amp;&#39;)&quot;&gt;\
                     \u{2400}\u{2421}[U+202E]é";
        assert_eq!(html.into_string(), format!("<p title=\"{escaped}\">{escaped}</p>"));
    }
}
