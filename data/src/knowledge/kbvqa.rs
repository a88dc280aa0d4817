//! Knowledge of visual question answering: passages (M2KR, OK-VQA, ViQuAE), the articles of
//! Encyclopedic-VQA, and the facts of WebQA.
//!
//! Each passage, each section of an article and each fact becomes an entry. The document is the id
//! of the passage, the URL of the article, or the id of the fact, so that retrieved entries can be
//! scored by these ids.

use std::borrow::Cow;
use std::collections::HashSet;

use engram_textfile::{Input, Lines, parse_json_line};
use serde::Deserialize;

use super::json::{Id, Item, read_members};
use super::{Argument, ArgumentKind, Collector, DataSet, Entry, Reason, Request, Rule, Sample};
use crate::DataError;

/// The data set for the command and the tests.
pub const DATA_SET: DataSet = DataSet {
    name: "kbvqa",
    about: "Convert knowledge of visual questions: M2KR, OK-VQA, ViQuAE, E-VQA, WebQA",
    source: "kbvqa",
    arguments: &[
        Argument::new(
            ArgumentKind::Files,
            "files",
            "FILES",
            "Passages as JSON lines: {\"passage_id\", \"passage_content\"}, with or without \"title\"",
        )
        .rule(Rule::Required),
        Argument::switch("articles", "Read the knowledge base of Encyclopedic-VQA")
            .rule(Rule::Without(&["facts"])),
        Argument::switch("facts", "Read the facts of WebQA"),
    ],
    formats: "",
    examples: &[
        "EVQA_passages.jsonl --source m2kr --out m2kr.jsonl",
        "encyclopedic_kb_wiki.json --articles --source evqa --out evqa.jsonl",
        "WebQA_train_val.json --facts --source webqa --out webqa.jsonl",
    ],
    samples: &[
        Sample {
            line: "p.jsonl",
            files: &[("p.jsonl", "{\"passage_id\": \"a\", \"passage_content\": \"A text.\"}\n")],
        },
        Sample { line: "a.json --articles", files: &[("a.json", ARTICLES)] },
        Sample { line: "f.json --facts", files: &[("f.json", FACTS)] },
    ],
    read,
};

const ARTICLES: &str = r#"{"https://a/Oak": {"title": "Oak", "section_titles": ["Oak", "Use"],
"section_texts": ["A tree.", ""], "image_urls": ["https://a/1.jpg"], "image_section_indices": [0]}}"#;
const FACTS: &str = r#"{"d1": {"img_posFacts": [{"image_id": 3, "imgUrl": "https://a/3.jpg",
"title": "Oak", "caption": "An oak"}], "txt_posFacts": [{"snippet_id": "d1_0", "title": "Oak",
"fact": "A tree."}], "img_negFacts": [], "txt_negFacts": []}}"#;

fn read(request: &Request<'_>, collector: &mut Collector<'_>) -> Result<(), DataError> {
    let source = &request.source;
    let mut seen = HashSet::new();
    for input in request.inputs("files") {
        let input = input?;
        if request.has("articles") {
            let remedy = "use the knowledge base of Encyclopedic-VQA: {url: {\"title\", \
                          \"section_titles\", \"section_texts\"}}";
            read_members(input, remedy, &mut |item| article(item, source, collector))?;
        } else if request.has("facts") {
            let remedy = "use WebQA's file: {guid: {\"img_posFacts\", \"txt_posFacts\"}}";
            read_members(input, remedy, &mut |item| facts(item, source, &mut seen, collector))?;
        } else {
            passages(input, source, collector)?;
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Passage<'a> {
    #[serde(alias = "passage_id", alias = "kid", alias = "index")]
    id: Id,
    #[serde(borrow, default)]
    title: Cow<'a, str>,
    #[serde(borrow, alias = "passage_content", alias = "passage")]
    text: Cow<'a, str>,
}

fn passages(
    input: Input<'_>,
    source: &str,
    collector: &mut Collector<'_>,
) -> Result<(), DataError> {
    let remedy = "write one passage per line: {\"passage_id\", \"passage_content\"}";
    let file = input.file().to_owned();
    let mut lines = Lines::new(input);
    while collector.next_record(|| lines.advance())? {
        let parsed = parse_json_line::<Passage<'_>>(&file, lines.number(), lines.text(), remedy);
        let Some(Passage { id, title, text }) = collector.accept(parsed)? else { continue };
        emit(collector, source, None, &[&title, &text], id.0)?;
    }
    Ok(())
}

#[derive(Deserialize)]
struct Article<'a> {
    #[serde(borrow, default)]
    title: Cow<'a, str>,
    section_titles: Vec<Cow<'a, str>>,
    section_texts: Vec<Cow<'a, str>>,
    #[serde(default)]
    image_urls: Vec<Cow<'a, str>>,
    #[serde(default)]
    image_section_indices: Vec<usize>,
}

/// Makes an entry of each section, with the section's first image.
fn article(item: &Item<'_>, source: &str, collector: &mut Collector<'_>) -> Result<(), DataError> {
    collector.count_record();
    let parsed = item.parse_object().and_then(|article: Article<'_>| {
        let is_complete = article.section_titles.len() == article.section_texts.len()
            && article.image_urls.len() == article.image_section_indices.len();
        if is_complete { Ok(article) } else { Err(item.error("has lists of different lengths")) }
    });
    let Some(article) = collector.accept(parsed)? else { return Ok(()) };
    let url = item.key.unwrap_or_default();
    let sections = article.section_titles.iter().zip(&article.section_texts);
    for (index, (title, text)) in sections.enumerate() {
        let image = article.image_section_indices.iter().position(|section| *section == index);
        let image = image.map(|image| &*article.image_urls[image]);
        let title = if *title == article.title { "" } else { title };
        let parts: &[&str] =
            if text.trim().is_empty() { &[] } else { &[&article.title, title, text] };
        emit(collector, source, image, parts, url)?;
    }
    Ok(())
}

#[derive(Deserialize)]
struct Question<'a> {
    #[serde(borrow, rename = "img_posFacts")]
    images: Vec<Fact<'a>>,
    #[serde(borrow, rename = "img_negFacts", default)]
    other_images: Vec<Fact<'a>>,
    #[serde(borrow, rename = "txt_posFacts")]
    snippets: Vec<Fact<'a>>,
    #[serde(borrow, rename = "txt_negFacts", default)]
    other_snippets: Vec<Fact<'a>>,
}

#[derive(Deserialize)]
struct Fact<'a> {
    #[serde(alias = "image_id", alias = "snippet_id")]
    id: Id,
    #[serde(borrow, default)]
    title: Cow<'a, str>,
    #[serde(borrow, alias = "caption", alias = "fact")]
    text: Cow<'a, str>,
    #[serde(borrow, default, rename = "imgUrl")]
    image: Option<Cow<'a, str>>,
}

/// Makes an entry of each fact at its first occurrence; several questions can have one fact.
fn facts(
    item: &Item<'_>,
    source: &str,
    seen: &mut HashSet<String>,
    collector: &mut Collector<'_>,
) -> Result<(), DataError> {
    collector.count_record();
    let Some(question) = collector.accept(item.parse_object::<Question<'_>>())? else {
        return Ok(());
    };
    let Question { images, other_images, snippets, other_snippets } = question;
    for fact in [images, other_images, snippets, other_snippets].into_iter().flatten() {
        if seen.insert(fact.id.0.clone()) {
            emit(collector, source, fact.image.as_deref(), &[&fact.title, &fact.text], fact.id.0)?;
        }
    }
    Ok(())
}

/// Passes an entry on whose text has the `parts` that are not blank, or counts that it has none.
fn emit(
    collector: &mut Collector<'_>,
    source: &str,
    image: Option<&str>,
    parts: &[&str],
    document: impl Into<String>,
) -> Result<(), DataError> {
    let parts: Vec<&str> = parts.iter().map(|part| part.trim()).filter(|p| !p.is_empty()).collect();
    if parts.is_empty() {
        collector.skip(Reason::NoText);
        return Ok(());
    }
    let text = parts.join(": ");
    let entry = match image {
        Some(image) => Entry::image_text(source, image, text),
        None => Entry::passage(source, text),
    };
    collector.emit(entry.of_document(document))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn entries_have_the_ids_of_their_passages() {
        let texts = |sample: &Sample| {
            let mut entries = Vec::new();
            let mut collector = Collector::new(|entry| {
                entries.push((entry.document.clone().unwrap(), entry.text()));
                Ok(())
            });
            let open = |_: &Path| Ok(Input::new("f", sample.files[0].1.as_bytes())?);
            read(&DATA_SET.request(sample.line, &open), &mut collector).unwrap();
            drop(collector);
            entries
        };
        let pair = |id: &str, text: &str| (id.to_owned(), text.to_owned());
        for (sample, expected) in DATA_SET.samples.iter().zip([
            vec![pair("a", "A text.")],
            vec![pair("https://a/Oak", "Oak: A tree.")],
            vec![pair("3", "Oak: An oak"), pair("d1_0", "Oak: A tree.")],
        ]) {
            assert_eq!(texts(sample), expected);
        }
    }
}
