//! Abbreviations that keep their period, grouped by the text that usually follows.

#![expect(
    clippy::precedence,
    reason = "`+` (then) binds closer than `|` (or), as in every pattern notation"
)]

use super::pattern::{Pattern, any_of, capitalised_words, text, words};

/// Letters separated by periods, without the last period: `u.s`, `p.m`, or a pair of countries such
/// as `Sino-U.S`.
///
/// If `allow_single_letter` is true, a single letter is also an acronym.
pub(super) fn dotted_letters(allow_single_letter: bool) -> Pattern {
    let letter = any_of("A-Za-z");
    let more_letters = any_of(".") + letter.clone();
    let more_letters =
        if allow_single_letter { more_letters.any_number() } else { more_letters.at_least_once() };
    let countries = words("Canada Sino Korean EU Japan non") + text("-U.S");
    letter + more_letters | countries | text("U.S.-") + words("U.K U.S.S.R")
}

/// Abbreviations usually followed by a lower-case word. Before a capital letter, the period also
/// ends the sentence.
pub(super) fn mid_sentence() -> Pattern {
    let months_and_days =
        words("Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thurs Fri");
    let states = words(
        "Ala Ariz Calif Colo Conn Ct Dak Fla Ga Ind Kan Kans Ky Md Mich Minn Mo Mont Neb Nev Okla \
         Penn Tenn Va Vt Wis Wisc Wyo",
    );
    // In lower case these are common words.
    let states_with_capital = capitalised_words("Az Ark Del Ill La Mass Miss Ore Pa Tex Wash");
    let companies = words("Inc Co Cos Corp Ltd Plc Rt Bancorp Bhd Assn Univ Intl Sys")
        | text("P") + text("p").optional() + text("t") + any_of("ye") + text("s").optional();
    let others = words("tel est ext sq Jr Sr Bros Ed.D Ph.D Blvd Rd Esq etc al seq Bldg");
    let stem = months_and_days | states | states_with_capital | companies | others;
    stem + text(".")
}

/// Abbreviations that are usually followed by a name, so never at the end of a sentence. The
/// pattern does not include the period.
pub(super) fn before_name() -> Pattern {
    let titles = words(
        "Mr Mrs Ms Dr Drs Prof Profs Sen Sens Rep Reps Atty Attys Lt Col Gen Messrs Gov Govs Adm \
         Rev Maj Sgt Cpl Pvt Capt St Ste Ave Pres Lieut Hon Brig Cmdr Comdr Pfc Spc Supt Supts Det \
         Mt Ft Adj Adv Asst Assoc Ens Insp Mlle Mme Msgr Sfc",
    );
    let companies = words("Invt Elec Natl Dept") | text("M") + any_of("ft") + text("g");
    let others = words("vs Alex Wm Jos Cie a.k.a cf TREAS Ph");
    titles | capitalised_words("Miss") | others | dotted_letters(true) | companies
}

/// Words that are abbreviations only if a number follows: `no. 5`, `fig. 2`.
pub(super) fn before_number() -> Pattern {
    words("ca fig figs prop no nos art bldg pp op") + text(".")
}

/// Words that usually begin a sentence if they are capitalised.
pub(super) fn sentence_openers() -> Pattern {
    capitalised_words(
        "About According Additionally After An A As At But Earlier He Her Here However If In It \
         Last Many More Mr. Ms. Now Once One Other Our She Since So Some Such That The Their Then \
         There These They This We When While What Yet You",
    )
}
