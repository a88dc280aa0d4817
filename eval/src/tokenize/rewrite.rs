//! Converts matched text to tokens. Most tokens stay unchanged; some get the form of the Penn
//! Treebank.

/// The conversion of matched text to a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rewrite {
    /// No token.
    Delete,
    /// No token; the line ends here.
    LineEnd,
    /// Unchanged.
    Keep,
    /// Without this number of characters at the end, which begin the next token.
    KeepBut(usize),
    /// A fixed token.
    To(&'static str),
    /// Without soft hyphens.
    Word,
    /// Three or four hyphens become a dash.
    Hyphens,
    /// An opening quote.
    OpeningQuote,
    /// A closing or other quote, or a clitic.
    ClosingQuote,
    /// One character becomes three: `½` becomes `1/2`.
    Fraction,
    /// Currency signs, replaced by treebank symbols.
    Currency,
    /// `&amp;` becomes `&`.
    Ampersand,
    /// Spaces become no-break spaces, so that the token stays whole.
    JoinSpaces,
    /// Round brackets become their names.
    Brackets,
    /// `JoinSpaces` and `Brackets`.
    TelephoneNumber,
    /// The period stays with the abbreviation, and is also a token of its own.
    EndsSentence,
    /// Like `EndsSentence`, but a single letter is not an acronym and loses its period.
    AcronymEndsSentence,
}

impl Rewrite {
    /// Number of bytes at the end of `matched` that are scanned again for the next token.
    pub(super) fn rescanned_bytes(self, matched: &str) -> usize {
        let characters = match self {
            Self::KeepBut(characters) => characters,
            Self::EndsSentence | Self::AcronymEndsSentence => 1,
            _ => 0,
        };
        matched.chars().rev().take(characters).map(char::len_utf8).sum()
    }

    /// Appends the token in lower case; `matched` is the whole matched text.
    pub(super) fn write(self, matched: &str, output: &mut String) {
        match self {
            Self::Delete | Self::LineEnd => {}
            Self::To(token) => push_lower(token, output),
            Self::KeepBut(_) => {
                let token_length = matched.len() - self.rescanned_bytes(matched);
                push_lower(matched.get(..token_length).unwrap_or(matched), output);
            }
            Self::Word if matched.contains(SOFT_HYPHEN) => {
                let word = matched.replace(SOFT_HYPHEN, "");
                push_lower(if word.is_empty() { "-" } else { &word }, output);
            }
            Self::Hyphens if matched.len() == 3 || matched.len() == 4 => output.push_str("--"),
            Self::OpeningQuote => push_lower(&quotes(matched, "`", "``"), output),
            Self::ClosingQuote => push_lower(&quotes(matched, "'", "''"), output),
            Self::Fraction => push_lower(fraction(matched), output),
            Self::Currency => push_lower(currency(matched), output),
            Self::Ampersand => push_lower(&plain_ampersands(matched), output),
            Self::JoinSpaces => push_lower(&with_no_break_spaces(matched), output),
            Self::Brackets => push_lower(&named_brackets(matched), output),
            Self::TelephoneNumber => {
                push_lower(&named_brackets(&with_no_break_spaces(matched)), output)
            }
            Self::AcronymEndsSentence if matched.len() == 2 => {
                push_lower(matched.trim_end_matches('.'), output);
            }
            Self::Keep
            | Self::Word
            | Self::Hyphens
            | Self::EndsSentence
            | Self::AcronymEndsSentence => push_lower(matched, output),
        }
    }
}

const SOFT_HYPHEN: char = '\u{AD}';

fn push_lower(token: &str, output: &mut String) {
    if token.is_ascii() {
        output.extend(token.bytes().map(|byte| char::from(byte.to_ascii_lowercase())));
    } else {
        output.push_str(&token.to_lowercase());
    }
}

/// Converts quotes to LaTeX quotes: straight quotes become `single` and `double`, typographic
/// quotes their equivalents.
fn quotes(token: &str, single: &str, double: &str) -> String {
    let plain = token.replace("&apos;", "'").replace("&quot;", "\"");
    let mut output = String::with_capacity(plain.len() + double.len());
    for character in plain.chars() {
        match character {
            '\'' => output.push_str(single),
            '"' => output.push_str(double),
            '\u{91}' | '\u{2018}' | '\u{201B}' | '\u{2039}' => output.push('`'),
            '\u{92}' | '\u{2019}' | '\u{203A}' => output.push('\''),
            '\u{93}' | '\u{201C}' | '\u{AB}' => output.push_str("``"),
            '\u{94}' | '\u{201D}' | '\u{BB}' => output.push_str("''"),
            other => output.push(other),
        }
    }
    output
}

fn fraction(sign: &str) -> &str {
    match sign {
        "\u{BC}" => "1/4",
        "\u{BD}" => "1/2",
        "\u{BE}" => "3/4",
        "\u{2153}" => "1/3",
        "\u{2154}" => "2/3",
        other => other,
    }
}

fn currency(sign: &str) -> &str {
    match sign {
        "\u{A2}" => "cents",
        "\u{A3}" => "#",
        "\u{80}" | "\u{A4}" | "\u{20A0}" | "\u{20AC}" => "$",
        other => other,
    }
}

/// Replaces `&amp;`, in any case, by `&`.
fn plain_ampersands(token: &str) -> String {
    const ENTITY: &str = "&amp;";
    let mut output = String::with_capacity(token.len());
    let mut remaining = token;
    while let Some(c) = remaining.chars().next() {
        let is_entity =
            remaining.get(..ENTITY.len()).is_some_and(|head| head.eq_ignore_ascii_case(ENTITY));
        output.push(c);
        let length = if is_entity { ENTITY.len() } else { c.len_utf8() };
        remaining = remaining.get(length..).unwrap_or_default();
    }
    output
}

fn with_no_break_spaces(token: &str) -> String {
    token.replace(' ', "\u{A0}")
}

fn named_brackets(token: &str) -> String {
    token.replace('(', "-LRB-").replace(')', "-RRB-")
}
