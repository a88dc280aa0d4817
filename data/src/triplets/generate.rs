//! Made-up databases of facts. All names are invented, so a model that learns to look up such facts
//! does not learn real ones. Most relations are made of random words, so that it learns to compare
//! the words of a prompt with those of an entry.

use std::collections::HashSet;

use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;

use super::{Style, Triplet};
use crate::world::words::WORDS;

/// The share of questions with random words before and after them, so that a model learns to find the
/// question in a prompt of any form.
const FRAMED: f64 = 0.4;

/// A fact with a prompt that asks for its object.
#[derive(Debug, Clone)]
pub struct PromptedFact {
    /// The fact.
    pub triplet: Triplet,
    /// The prompt, in a random style.
    pub prompt: String,
}

/// The kind of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Person,
    Place,
    Group,
    Words,
    Year,
    Code,
    Ending,
}

impl Kind {
    /// The kinds of objects of a made-up relation.
    const OBJECTS: [Self; 10] = [
        Self::Person,
        Self::Person,
        Self::Place,
        Self::Place,
        Self::Group,
        Self::Words,
        Self::Words,
        Self::Year,
        Self::Code,
        Self::Ending,
    ];

    /// The kind with this name in the table of relations.
    fn of(name: &str) -> Self {
        match name {
            "person" => Self::Person,
            "place" => Self::Place,
            "group" => Self::Group,
            "year" => Self::Year,
            "code" => Self::Code,
            "ending" => Self::Ending,
            _ => Self::Words,
        }
    }
}

/// A relation with its wordings; `{s}` is the subject and `{p}` its possessive.
struct Relation {
    name: String,
    question: String,
    sentence: String,
    kind: Kind,
}

/// Draws a database: some relations of some subjects, each fact with a prompt.
pub fn database(rng: &mut ChaCha8Rng) -> Vec<PromptedFact> {
    let kinds = [Kind::Person, Kind::Person, Kind::Place, Kind::Place, Kind::Group, Kind::Words];
    let kind = *kinds.choose(rng).unwrap_or(&Kind::Person);
    let subjects = subjects(kind, rng);
    let mut relations: Vec<Relation> = Vec::new();
    for _ in 0..rng.random_range(3..9) {
        let last = relations.last().map(|relation| relation.name.clone());
        let relation = match rng.random_range(0..10) {
            0..3 => known_relation(rng),
            // Relations that share their last word are easily confused.
            3..5 => relation_like(last.as_deref(), rng),
            _ => made_up_relation(rng),
        };
        if relations.iter().all(|other| other.name != relation.name) {
            relations.push(relation);
        }
    }
    let mut facts = Vec::new();
    for relation in &relations {
        // Often several subjects have the same object.
        let different = [2, 4, subjects.len()].choose(rng).copied().unwrap_or(2);
        let objects: Vec<String> = (0..different).map(|_| name(relation.kind, rng)).collect();
        for subject in &subjects {
            let object = objects.choose(rng).cloned().unwrap_or_default();
            let possessive = format!("{subject}'{}", if subject.ends_with('s') { "" } else { "s" });
            let [question, sentence] = [&relation.question, &relation.sentence]
                .map(|text| text.replace("{s}", subject).replace("{p}", &possessive));
            let style = Style::ALL.choose(rng).copied().unwrap_or(Style::Direct);
            let mut prompt = style.prompt(subject, &question, &sentence);
            if prompt.ends_with('?') && rng.random_bool(FRAMED) {
                prompt = format!("{} {prompt} {}", words(rng), words(rng)).trim().to_owned();
            }
            let [subject, relation] = [subject, &relation.name].map(String::clone);
            facts.push(PromptedFact { triplet: Triplet { subject, relation, object }, prompt });
        }
    }
    facts.shuffle(rng);
    facts
}

/// Different names of one kind; some share words, some are names of parts of others.
fn subjects(kind: Kind, rng: &mut ChaCha8Rng) -> Vec<String> {
    let mut subjects: Vec<String> = (0..rng.random_range(6..20)).map(|_| name(kind, rng)).collect();
    for _ in 0..subjects.len() / 3 {
        let draw = |rng: &mut ChaCha8Rng| subjects.choose(rng).cloned().unwrap_or_default();
        let [first, second] = [draw(rng), draw(rng)];
        let mut words: Vec<&str> = first.split(' ').collect();
        let new = word(1..4, rng);
        let other = second.split(' ').next().filter(|_| rng.random_bool(0.5)).unwrap_or(&new);
        let place = rng.random_range(0..words.len());
        words[place] = other;
        subjects.push(words.join(" "));
    }
    if rng.random_bool(0.3) {
        let part = capitalised(noun(rng));
        let parts = subjects.iter().take(6).map(|subject| format!("{part} of {subject}"));
        let parts: Vec<String> = parts.collect();
        subjects.extend(parts);
    }
    let mut seen = HashSet::new();
    subjects.retain(|subject| seen.insert(subject.clone()));
    subjects
}

fn known_relation(rng: &mut ChaCha8Rng) -> Relation {
    let lines: Vec<&str> = include_str!("relations.tsv").lines().collect();
    let line = lines.choose(rng).copied().unwrap_or_default();
    let mut cells = line.split('\t').map(str::to_owned);
    let mut cell = || cells.next().unwrap_or_default();
    let (name, question, sentence) = (cell(), cell(), cell());
    Relation { name, question, sentence, kind: Kind::of(&cell()) }
}

/// A relation with the last word of another one.
fn relation_like(other: Option<&str>, rng: &mut ChaCha8Rng) -> Relation {
    let last = other.and_then(|name| name.split(' ').next_back()).unwrap_or("Name").to_owned();
    let (first, kind) = (noun(rng), object_kind(rng));
    let words = format!("{first} {}", last.to_lowercase());
    Relation {
        name: format!("{} {last}", capitalised(first)),
        question: format!("What is the {words} of {{s}}?"),
        sentence: format!("The {words} of {{s}} is"),
        kind,
    }
}

/// A relation of random words.
fn made_up_relation(rng: &mut ChaCha8Rng) -> Relation {
    let ([a, b, c], kind) = ([noun(rng), noun(rng), noun(rng)], object_kind(rng));
    let (year, person) = (name(Kind::Year, rng), name(Kind::Person, rng));
    let [big_a, big_b, big_c] = [a, b, c].map(capitalised);
    let relation = |name: String, question: String, sentence: String, kind| Relation {
        name,
        question,
        sentence,
        kind,
    };
    match rng.random_range(0..13) {
        0 => relation(
            big_a,
            format!("What is the {a} of {{s}}?"),
            format!("The {a} of {{s}} is"),
            kind,
        ),
        1 => relation(
            format!("{big_a} {big_b}"),
            format!("What is the {a} {b} of {{s}}?"),
            format!("The {a} {b} of {{s}} is"),
            kind,
        ),
        2 => relation(
            format!("{big_a} {big_b}"),
            format!("What is {{p}} {a} {b}?"),
            format!("{{p}} {a} {b} is"),
            kind,
        ),
        3 => relation(
            big_a,
            format!("What {a} does {{s}} {b}?"),
            format!("The {a} used in {{s}} is"),
            kind,
        ),
        4 => relation(
            format!("{big_a} In"),
            format!("In what year did {{s}} {a}?"),
            format!("{{s}} {a}ed in"),
            Kind::Year,
        ),
        5 => relation(
            format!("{big_a} {big_b}ed"),
            format!("Which {a} did {{s}} {b}?"),
            format!("{{s}} {b}ed the {a}"),
            kind,
        ),
        6 => relation(
            format!("{big_a}ed By"),
            format!("Who {a}ed the {{s}}?"),
            format!("The {{s}} was {a}ed by"),
            Kind::Person,
        ),
        7 => relation(
            format!("{big_a} {big_b}"),
            format!("What {a} {b} is most associated with {{s}}?"),
            format!("The {a} {b} most associated with {{s}} is"),
            kind,
        ),
        8 => relation(
            format!("{big_a}s In"),
            format!("Where does the {b} of {{s}} {a}?"),
            format!("The {b} of {{s}} {a}s in"),
            Kind::Place,
        ),
        9 => relation(
            format!("{big_a} {big_b}ing in {year}"),
            format!("Who was the {a} of {{s}} who {b}ed in {year}?"),
            format!("The {a} of {{s}} who {b}ed in {year} was"),
            Kind::Person,
        ),
        10 => relation(
            format!("{big_a} after {person}"),
            format!("Who became the {a} of {{s}} after {person}?"),
            format!("The {a} of {{s}} after {person} was"),
            Kind::Person,
        ),
        11 => relation(
            format!("{big_a} {big_b}ed In"),
            format!("What {a} is {{s}} {b}ed in?"),
            format!("The {a} {{s}} is {b}ed in is"),
            kind,
        ),
        _ => relation(
            format!("{big_b} {big_c} {big_a}"),
            format!("What {a} is {{s}} best {b} {c} for?"),
            format!("The {a} {{s}} is best {b} {c} for is"),
            kind,
        ),
    }
}

/// Up to four random words, of which some are English ones, and a punctuation mark; often nothing.
fn words(rng: &mut ChaCha8Rng) -> String {
    let mut text = String::new();
    for _ in 0..rng.random_range(0..5) {
        let word = if rng.random_bool(0.5) { noun(rng).to_owned() } else { word(1..3, rng) };
        text += if text.is_empty() { "" } else { " " };
        text += &if text.is_empty() { capitalised(&word) } else { word.to_lowercase() };
    }
    let marks = [".", "!", ":", ",", ""];
    if text.is_empty() { text } else { text + marks.choose(rng).copied().unwrap_or_default() }
}

fn object_kind(rng: &mut ChaCha8Rng) -> Kind {
    Kind::OBJECTS.choose(rng).copied().unwrap_or(Kind::Words)
}

/// A made-up name.
fn name(kind: Kind, rng: &mut ChaCha8Rng) -> String {
    match kind {
        Kind::Person => match rng.random_range(0..10) {
            0 => format!("{} {}. {}", word(1..4, rng), letter(b'A', rng), word(1..4, rng)),
            1 => format!("{} {}-{}", word(1..4, rng), word(1..3, rng), word(1..3, rng)),
            2 => {
                let particle = ["de", "van", "bin", "von"].choose(rng).copied().unwrap_or("de");
                format!("{} {particle} {}", word(1..3, rng), word(1..4, rng))
            }
            3 => word(1..4, rng),
            _ => format!("{} {}", word(1..4, rng), word(1..4, rng)),
        },
        Kind::Place => match rng.random_range(0..10) {
            0..3 => {
                let sides = ["North", "South", "East", "West", "New", "Upper", "Saint", "Great"];
                format!("{} {}", sides.choose(rng).copied().unwrap_or("New"), word(1..4, rng))
            }
            3 => format!("{} {}", word(1..4, rng), word(1..4, rng)),
            4 => format!("{} and {}", word(1..4, rng), word(1..4, rng)),
            5 => format!("{}, {}.{}.", word(1..4, rng), letter(b'A', rng), letter(b'A', rng)),
            _ => word(1..5, rng),
        },
        Kind::Group => match rng.random_range(0..4) {
            0 => format!("{} {}", word(1..4, rng), capitalised(noun(rng))),
            1 => format!("{} of {}", capitalised(noun(rng)), word(1..4, rng)),
            2 => format!("{} {} {}", word(1..4, rng), word(1..3, rng), capitalised(noun(rng))),
            _ => format!("{} {}", capitalised(noun(rng)), capitalised(noun(rng))),
        },
        Kind::Words => {
            let words = (0..rng.random_range(1..4)).map(|_| capitalised(noun(rng)));
            words.collect::<Vec<_>>().join(" ")
        }
        Kind::Year => rng.random_range(1700..2031).to_string(),
        Kind::Code => (0..rng.random_range(2..4)).map(|_| letter(b'A', rng)).collect(),
        Kind::Ending => {
            let letters: String = (0..rng.random_range(2..4)).map(|_| letter(b'a', rng)).collect();
            format!(".{letters}")
        }
    }
}

/// One of the 26 letters from `first` on.
fn letter(first: u8, rng: &mut ChaCha8Rng) -> char {
    char::from(first + rng.random_range(0..26))
}

/// A made-up word of some syllables, with a capital letter.
fn word(syllables: std::ops::Range<usize>, rng: &mut ChaCha8Rng) -> String {
    const STARTS: &str = "b c d f g h j k l m n p r s t v w x z br ch cl cr dr fr gr kh kr ll ph pl pr sh \
                          sk sl st th tr tz - - - -";
    // Letters of other languages are rare, but each is in the tokenizer's vocabulary.
    const VOWELS: &str = "a e i o u a e i o u a e i o u y ai au ea ee ia ie io oa ou é ö ü á ã ä å æ è ê ë í î ï ó \
                          ô õ ø ú ñ ç č ć š ş ž ğ ł ń ı ř ý";
    const ENDS: &str = "- - - - n r s l k m t nd ng x ck rt sh";
    let mut word = String::new();
    for _ in 0..rng.random_range(syllables) {
        for parts in [STARTS, VOWELS, ENDS] {
            let parts: Vec<&str> = parts.split(' ').filter(|part| !part.is_empty()).collect();
            word += parts.choose(rng).filter(|part| **part != "-").unwrap_or(&"");
        }
    }
    capitalised(&word)
}

/// An English word in lower case.
fn noun(rng: &mut ChaCha8Rng) -> &'static str {
    let families = &WORDS.families;
    let Some(family) = families.choose(rng) else { return "thing" };
    let things = family.things.as_flattened().iter();
    let words = things.chain(&family.kind).chain(&family.related).flat_map(|name| name.split(' '));
    words.collect::<Vec<_>>().choose(rng).copied().unwrap_or("thing")
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn a_database_has_each_fact_once_and_prompts_name_its_subject() {
        for seed in 0..200 {
            let facts = database(&mut ChaCha8Rng::seed_from_u64(seed));
            let mut seen = HashSet::new();
            for PromptedFact { triplet, prompt } in &facts {
                assert!(seen.insert((&triplet.subject, &triplet.relation)), "{triplet:?}");
                assert!(prompt.contains(&triplet.subject) && !prompt.contains('{'), "{prompt}");
                assert!(!triplet.object.is_empty() && triplet.text().starts_with(&triplet.object));
            }
            assert!(facts.len() >= 18, "{}", facts.len());
            // Some facts have the same object, so that only the right entry tells the answer.
            let objects: HashSet<&str> = facts.iter().map(|fact| &*fact.triplet.object).collect();
            assert!(objects.len() < facts.len());
        }
    }

    #[test]
    fn equal_seeds_give_equal_databases() {
        let prompts = |seed| -> Vec<String> {
            let facts = database(&mut ChaCha8Rng::seed_from_u64(seed));
            facts.into_iter().map(|fact| fact.prompt).collect()
        };
        assert_eq!(prompts(1), prompts(1));
        assert_ne!(prompts(1), prompts(2));
    }
}
