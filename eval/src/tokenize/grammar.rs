//! The rules of the Penn Treebank tokenizer. The rule with the longest match applies; of equally
//! long matches, the earlier rule.
//!
//! Literal text ignores case, but character sets are case-sensitive. Several rules depend on this.

#![expect(
    clippy::precedence,
    reason = "`+` (then) binds closer than `|` (or), as in every pattern notation"
)]

use super::abbreviations::{
    before_name, before_number, dotted_letters, mid_sentence, sentence_openers,
};
use super::characters::{
    alphanumeric, apostrophe, digit, inner_apostrophe, letter, newline, space, space_or_newline,
    upper_case, word_letter,
};
use super::pattern::{Pattern, any_of, none_of, text, words};
use super::rewrite::Rewrite;

/// A rule for one kind of token.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    /// The pattern of the token.
    pub(super) pattern: Pattern,
    /// The trailing context: it must follow the token and counts in the length of the match, but is
    /// not part of the token. `None` for no condition.
    pub(super) context: Option<Pattern>,
    /// The conversion of the matched text.
    pub(super) rewrite: Rewrite,
}

/// The rules under construction.
struct Rules(Vec<Rule>);

impl Rules {
    fn add(&mut self, pattern: Pattern, rewrite: Rewrite) {
        self.0.push(Rule { pattern, context: None, rewrite });
    }

    /// Adds a rule for `pattern` followed by `context`.
    fn add_before(&mut self, pattern: Pattern, context: Pattern, rewrite: Rewrite) {
        self.0.push(Rule { pattern, context: Some(context), rewrite });
    }
}

/// All rules.
pub(super) fn rules() -> Vec<Rule> {
    let mut rules = Rules(Vec::new());
    add_contractions_and_markup(&mut rules);
    add_words(&mut rules);
    add_addresses(&mut rules);
    add_numbers(&mut rules);
    add_abbreviations(&mut rules);
    add_brackets_and_marks(&mut rules);
    add_compounds(&mut rules);
    add_quotes_and_symbols(&mut rules);
    add_spaces(&mut rules);
    rules.0
}

/// Adds the rules for `cannot`, `gonna`, tags, dashes and entities.
fn add_contractions_and_markup(rules: &mut Rules) {
    rules.add(words("c++ c# f#"), Rewrite::Keep);
    rules.add(words("cannot 'twas"), Rewrite::KeepBut(3));
    rules.add(words("'tis gonna gotta lemme gimme wanna"), Rewrite::KeepBut(2));
    rules.add(tag(), Rewrite::JoinSpaces);
    rules.add(
        text("&") + words("MD mdash ndash") + text(";") | any_of("\u{96}\u{97}\u{2013}-\u{2015}"),
        Rewrite::To("--"),
    );
    rules.add(text("&amp;"), Rewrite::Ampersand);
    let entity = words("HT TL UR LR QC QL QR odq cdq") | text("#") + any_of("0-9").at_least_once();
    rules.add(text("&") + entity + text(";"), Rewrite::Keep);
}

/// A tag, a comment or a declaration; a quoted value may contain line ends.
fn tag() -> Pattern {
    let name = || any_of("A-Za-z") + any_of("A-Za-z0-9_:.\u{2D}").any_number();
    let quoted = text("'") + none_of("'").any_number() + text("'")
        | text("\"") + none_of("\"").any_number() + text("\"");
    let spaces = || any_of(" ").any_number();
    let attribute = name() | name() + spaces() + text("=") + spaces() + quoted;
    let attributes = (any_of(" ").at_least_once() + attribute).any_number();
    let opening = name() + attributes + spaces() + text("/").optional();
    let closing = text("/") + name();
    let declaration = any_of("!?") + any_of("-A-Za-z") + none_of(">\r\n").any_number();
    text("<") + (declaration | opening | closing) + spaces() + text(">")
}

/// A word, including parts joined by `.`, `!` or `?` without a space.
fn word() -> Pattern {
    let part = || word_letter() + (word_letter() | digit()).any_number();
    part() + (any_of(".!?") + part()).any_number()
}

/// `'s`, `'m`, `'d`, `'re`, `'ve`, `'ll`.
fn clitic() -> Pattern {
    apostrophe() + (any_of("msdMSD") | words("re ve ll"))
}

/// `n't`
fn negation() -> Pattern {
    text("n") + inner_apostrophe() + text("t")
}

/// Adds the rules for plain words and words with an apostrophe.
fn add_words(rules: &mut Rules) {
    let soft_hyphens = || any_of("\u{AD}").any_number();
    // `can't` becomes `ca n't`: the stem does not end in `n`.
    let negated = any_of("A-Za-z\u{AD}").any_number() + any_of("A-MO-Za-mo-z") + soft_hyphens();
    rules.add_before(word(), clitic(), Rewrite::Word);
    rules.add_before(negated, negation(), Rewrite::Word);
    rules.add(word(), Rewrite::Word);

    let ends_in_apostrophe = any_of("lLdDjJ") | words("Dunkin somethin ol");
    let begins_with_apostrophe = words("em till til cause")
        | any_of("2-9") + text("0s")
        | text("n") + apostrophe().optional();
    let one_letter = any_of("A-HJ-XZn") + inner_apostrophe() + letter() + letter();
    let two_vowels =
        letter().at_least_once() + any_of("aeiouyAEIOUY") + inner_apostrophe() + any_of("aeiouA-Z");
    let with_inner_apostrophe =
        words("nor'easter c'mon e'er s'mores ev'ry li'l nat'l cont'd cont'd.")
            | text("O") + inner_apostrophe() + text("o");
    rules.add(
        ends_in_apostrophe + apostrophe()
            | apostrophe() + begins_with_apostrophe
            | (one_letter | two_vowels) + letter().any_number()
            | with_inner_apostrophe,
        Rewrite::Keep,
    );
    rules.add_before(text("y") + apostrophe(), letter(), Rewrite::Keep);
}

/// Adds the rules for web and mail addresses, social media names and tags, then for the clitics.
fn add_addresses(rules: &mut Rules) {
    let url_start = none_of(" \t\n\u{C}\r\"<>|(){}").at_least_once();
    let url_end = none_of(" \t\n\u{C}\r\"<>|.!?(){},-");
    let scheme = text("http") + text("s").optional() + text("://");
    rules.add(scheme + url_start + url_end.clone(), Rewrite::Keep);

    let www = text("www.")
        + (none_of(" \t\n\u{C}\r\"<>|.!?(){},").at_least_once() + text(".")).at_least_once()
        + any_of("a-zA-Z").times(2, 4);
    // `,-_` is a range in the reference, so these host names have no digits and no capital letters.
    let host = (none_of(" \t\n\u{C}\r\"`'<>|.!?(){},-_$").at_least_once() + text("."))
        .at_least_once()
        + words("com net org edu");
    let path = text("/") + none_of(" \t\n\u{C}\r\"<>|()").at_least_once() + url_end;
    rules.add((www | host) + path.optional(), Rewrite::Keep);

    let mailbox = any_of("a-zA-Z0-9") + none_of(" \t\n\u{C}\r\"<>|()\u{A0}{}").any_number();
    let domain = (none_of(" \t\n\u{C}\r\"<>|(){}.\u{A0}").at_least_once() + text(".")).any_number()
        + none_of(" \t\n\u{C}\r\"<>|(){}.\u{A0}").at_least_once();
    rules.add(
        words("&lt; <").optional() + mailbox + text("@") + domain + words("&gt; >").optional(),
        Rewrite::Keep,
    );

    let name = text("@") + any_of("a-zA-Z_") + any_of("a-zA-Z_0-9").any_number();
    rules.add(name | text("#") + word_letter().at_least_once(), Rewrite::Keep);

    rules.add_before(clitic(), none_of("A-Za-z"), Rewrite::ClosingQuote);
    rules.add_before(negation(), none_of("A-Za-z"), Rewrite::ClosingQuote);
}

/// Adds the rules for dates, numbers, fractions, currency amounts and words with slashes.
fn add_numbers(rules: &mut Rules) {
    let one_or_two_digits = || digit().times(1, 2);
    let dash = || any_of("-/");
    rules.add(
        one_or_two_digits() + dash() + one_or_two_digits() + dash() + digit().times(2, 4),
        Rewrite::Keep,
    );
    rules.add(any_of("-+").optional() + number(), Rewrite::Word);

    let superscripts = any_of("\u{2070}\u{B9}\u{B2}\u{B3}\u{2074}-\u{2079}").at_least_once();
    let subscripts = any_of("\u{2080}-\u{2089}").at_least_once();
    let sign = any_of("\u{207A}\u{207B}\u{208A}\u{208B}");
    rules.add(sign.optional() + (superscripts | subscripts), Rewrite::Keep);

    let part = || digit().times(1, 4);
    let slash = text("\\").optional() + text("/") | any_of("\u{2044}");
    let integer_part = part() + any_of("- \u{A0}");
    rules.add(integer_part.optional() + part() + slash.clone() + part(), Rewrite::JoinSpaces);
    rules.add(any_of("\u{BC}-\u{BE}\u{2153}-\u{215E}"), Rewrite::Fraction);

    let ampersand = || words("& &amp;");
    rules.add(
        text("-") + words("RRB LRB RCB LCB RSB LSB") + text("-")
            | words("C.D.s pro- anti-")
            | text("S") + ampersand() + words("P-500 Ls")
            | text("Cap") + apostrophe() + text("n")
            | text("c") + apostrophe() + text("est"),
        Rewrite::Ampersand,
    );

    let piece = || {
        let hyphenated = text("-") + any_of("A-Za-z").at_least_once();
        any_of("A-Za-z0-9").at_least_once() + hyphenated.times(0, 2)
    };
    let slash = text("\\").optional() + text("/");
    rules.add(piece() + (slash + piece()).times(1, 2), Rewrite::Keep);
    rules.add(any_of("A-Z").any_number() + text("$") | text("#"), Rewrite::Keep);
    rules.add(
        any_of(
            "\u{A2}-\u{A5}\u{80}\u{20A0}\u{20AC}\u{60B}\u{E3F}\u{20A4}\u{FFE0}\u{FFE1}\u{FFE5}\u{FFE6}",
        ),
        Rewrite::Currency,
    );
}

/// Digits, optionally in groups: `1,000`, `3.5`, `4:45`, `.5`.
fn number() -> Pattern {
    let group = any_of(".:,\u{AD}\u{66B}\u{66C}") + digit().at_least_once();
    digit().at_least_once() | digit().any_number() + group.at_least_once()
}

/// Adds the rules for acronyms and abbreviations, by the text that follows.
fn add_abbreviations(rules: &mut Rules) {
    let sentence = space_or_newline().at_least_once() + (sentence_openers() | tag());
    rules.add_before(
        dotted_letters(true) + text("."),
        sentence + space_or_newline(),
        Rewrite::AcronymEndsSentence,
    );
    rules.add_before(before_number(), space_or_newline().optional() + digit(), Rewrite::Keep);
    rules.add_before(
        (text("pt") + any_of("eyEY") | text("co")) + text("."),
        space() + words("ltd lim"),
        Rewrite::Keep,
    );
    let sentence_end = space_or_newline() + (space_or_newline() | upper_case() | tag());
    rules.add_before(mid_sentence(), sentence_end, Rewrite::EndsSentence);
    let any_unit = || none_of("");
    rules.add_before(mid_sentence(), any_unit() + any_unit(), Rewrite::Keep);
    // Rules for the end of the text, where fewer than two characters follow.
    rules.add(mid_sentence(), Rewrite::EndsSentence);
    rules.add(before_name() + text("."), Rewrite::Keep);
    rules.add_before(before_name(), space(), Rewrite::Keep);
    rules.add_before(dotted_letters(true), space_or_newline(), Rewrite::Keep);
    let two_digits = any_of("0-9") + any_of("0-9");
    rules.add_before(apostrophe() + two_digits, space_or_newline(), Rewrite::Keep);

    let name = (word_letter() | digit()).at_least_once();
    let extension = words(
        "bat bmp c class cgi cpp dll doc docx exe gif gz h htm html jar java jpeg jpg mov mp3 pdf \
         php pl png ppt ps py sql tar txt wav x xml zip",
    );
    rules.add_before(
        name.clone() + (text(".") + name).any_number() + text(".") + extension,
        space_or_newline() | any_of(".?!,"),
        Rewrite::Keep,
    );
    rules.add_before(word() + text("."), clause_mark(), Rewrite::Word);
}

/// `,`, `;`, `:` and the ideographic comma.
fn clause_mark() -> Pattern {
    any_of(",;:\u{3001}")
}

/// Adds the rules for telephone numbers, double quotes, smileys, brackets, hyphens, dots and other
/// marks.
fn add_brackets_and_marks(rules: &mut Rules) {
    rules.add(telephone_number(), Rewrite::TelephoneNumber);
    let double_quote = || text("\"") | text("&quot;");
    rules.add_before(double_quote(), any_of("A-Za-z0-9$"), Rewrite::OpeningQuote);
    rules.add(double_quote(), Rewrite::ClosingQuote);
    rules.add(any_of("\u{7F}"), Rewrite::Delete);
    rules.add(words("< &lt;"), Rewrite::To("<"));
    rules.add(words("> &gt;"), Rewrite::To(">"));

    let eyes = any_of("<>").optional() + any_of(":;=");
    let smiley = eyes + any_of("-o*'").optional() + any_of("()DPdpO\\{@|[]");
    rules.add_before(smiley, none_of("A-Za-z0-9"), Rewrite::Brackets);
    let eye = || any_of("-^x=~<>'");
    rules.add(
        any_of("^x=~<>") + text(".[^x=") + none_of("<").any_number() + text("<>]")
            | eye() + text("_") + eye()
            | text("(") + eye() + any_of("_.").optional() + eye() + text(")")
            | text("(") + any_of("^x=~<>'") + text("-") + any_of("^x=~<>'`") + text(")"),
        Rewrite::Brackets,
    );
    for (bracket, name) in [
        ("{", "-LCB-"),
        ("}", "-RCB-"),
        ("[", "-LSB-"),
        ("]", "-RSB-"),
        ("(", "-LRB-"),
        (")", "-RRB-"),
    ] {
        rules.add(text(bracket), Rewrite::To(name));
    }
    rules.add(text("-").at_least_once(), Rewrite::Hyphens);
    rules.add(ellipsis(), Rewrite::To("..."));
    rules.add(
        any_of("@").at_least_once() | any_of("#").at_least_once() | any_of("_").at_least_once(),
        Rewrite::Keep,
    );
    rules.add(any_of("*").at_least_once() | text("\\*").times(1, 3), Rewrite::Keep);
    rules.add(clause_mark(), Rewrite::Keep);
    rules.add(any_of("?!").at_least_once(), Rewrite::Keep);
    rules.add(
        any_of(".\u{A1}\u{BF}\u{37E}\u{589}\u{61F}\u{6D4}\u{700}-\u{702}\u{7FA}\u{3002}"),
        Rewrite::Keep,
    );
    rules.add(text("="), Rewrite::Keep);
    rules.add(text("/"), Rewrite::Keep);
}

/// `555-1234`, `(555) 123-4567`, `+44 20 1234 5678`, `555.123.4567`.
fn telephone_number() -> Pattern {
    let digits = |min, max| any_of("0-9").times(min, max);
    let gap = || any_of("- \u{A0}");
    let plus = || (text("+") + text("+").optional()).optional();
    let bracketed = text("(") + digits(2, 3) + text(")") + any_of(" \u{A0}").optional();
    let prefixed = plus() + (digits(2, 4) + gap()).optional() + digits(2, 4) + gap();
    let spaced = (bracketed | prefixed) + digits(3, 4) + gap().optional() + digits(3, 5);
    let country = (plus() + digits(2, 4) + text(".")).optional();
    let dotted = country + digits(2, 4) + text(".") + digits(3, 4) + text(".") + digits(3, 5);
    spaced | dotted
}

/// Three to five dots, optionally with spaces.
fn ellipsis() -> Pattern {
    text(".").times(3, 5)
        | (text(".") + any_of(" \u{A0}")).times(2, 4) + text(".")
        | any_of("\u{85}\u{2026}")
}

/// Adds the rules for words with hyphens, words with digits and company names.
fn add_compounds(rules: &mut Rules) {
    let acronym = dotted_letters(false) + text(".");
    let part = any_of("A-Za-z0-9\u{AD}").at_least_once();
    let hyphenated = || {
        any_of("A-Za-z0-9")
            + any_of("A-Za-z0-9.,\u{AD}").any_number()
            + (text("-") + (part.clone() | acronym.clone())).at_least_once()
    };
    rules.add(hyphenated(), Rewrite::Word);
    rules.add_before(hyphenated() + text("."), clause_mark(), Rewrite::Word);

    let prefix = any_of("dDoOlL") + inner_apostrophe() + alphanumeric();
    let part = prefix.optional() + (alphanumeric().at_least_once());
    let hyphen = any_of("-_\u{58A}\u{2010}\u{2011}");
    let compound = part.clone() + (hyphen + part).any_number();
    rules.add_before(compound.clone() + text("."), clause_mark(), Rewrite::Keep);
    rules.add(compound, Rewrite::Keep);

    let capitals = || any_of("A-Z").at_least_once();
    let company = capitals() + ((any_of("+&") | text("&amp;")) + capitals()).at_least_once();
    rules.add_before(company.clone() + text("."), clause_mark(), Rewrite::Ampersand);
    rules.add(company, Rewrite::Ampersand);
}

/// Adds the rules for single quotes and symbols.
fn add_quotes_and_symbols(rules: &mut Rules) {
    rules.add_before(text("'"), any_of("A-Za-z") + none_of(" \t\n\r\u{A0}"), Rewrite::OpeningQuote);
    rules.add(clitic() | negation(), Rewrite::ClosingQuote);
    let typographic_quotes = any_of(
        "`\u{2018}\u{2019}\u{201A}\u{201B}\u{201C}\u{201D}\u{91}\u{92}\u{93}\u{94}\u{201E}\u{201F}\
         \u{2039}\u{203A}\u{AB}\u{BB}",
    );
    rules.add(apostrophe() | text("''") | typographic_quotes.times(1, 2), Rewrite::ClosingQuote);
    rules.add(words("<< >>"), Rewrite::Keep);
    rules.add(
        any_of(
            "+%&~^|\\\u{A6}\u{A7}\u{A8}\u{A9}\u{AC}\u{AE}\u{AF}\u{B0}-\u{B3}\u{B4}-\u{BA}\u{D7}\u{F7}\
             \u{387}\u{5BE}\u{5C0}\u{5C3}\u{5C6}\u{5F3}\u{5F4}\u{600}-\u{603}\u{606}-\u{60A}\u{60C}\
             \u{614}\u{61B}\u{61E}\u{66A}\u{66D}\u{703}-\u{70D}\u{7F6}\u{7F7}\u{7F8}\u{964}\u{965}\
             \u{E4F}\u{1FBD}\u{2016}\u{2017}\u{2020}-\u{2023}\u{2030}-\u{2038}\u{203B}\
             \u{203E}-\u{2042}\u{2044}\u{207A}-\u{207F}\u{208A}-\u{208E}\u{2100}-\u{214F}\
             \u{2190}-\u{21FF}\u{2200}-\u{2BFF}\u{3012}\u{30FB}\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF20}\
             \u{FF3B}-\u{FF40}\u{FF5B}-\u{FF65}",
        ),
        Rewrite::Keep,
    );
}

/// Adds the rules for white space, line ends and all other characters.
fn add_spaces(rules: &mut Rules) {
    rules.add(
        space().at_least_once() | any_of("\0\u{200B}\u{200E}\u{200F}\u{FEFF}"),
        Rewrite::Delete,
    );
    rules.add(newline(), Rewrite::LineEnd);
    rules.add(text("&nbsp;"), Rewrite::Delete);
    rules.add(none_of(""), Rewrite::Delete);
}
