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
            "Passages as JSON lines: {\"passage_id\", \"passage_content\"}",
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
"title": "Oak", "caption": "An oak"}],
"txt_posFacts": [{"snippet_id": "d1_0", "fact": "A tree."}]}}"#;

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

/// A passage, or a fact of WebQA.
#[derive(Deserialize)]
struct Passage<'a> {
    #[serde(alias = "passage_id", alias = "kid", alias = "index")]
    #[serde(alias = "image_id", alias = "snippet_id")]
    id: Id,
    #[serde(borrow, default)]
    title: Cow<'a, str>,
    #[serde(borrow, alias = "passage_content", alias = "passage")]
    #[serde(alias = "caption", alias = "fact")]
    text: Cow<'a, str>,
    #[serde(borrow, default, rename = "imgUrl")]
    image: Option<Cow<'a, str>>,
}

impl Passage<'_> {
    fn emit(self, source: &str, collector: &mut Collector<'_>) -> Result<(), DataError> {
        let parts = [&*self.title, &*self.text].map(str::trim);
        let text = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
        if parts[1].is_empty() {
            collector.skip(Reason::NoText);
            return Ok(());
        }
        let entry = match self.image {
            Some(image) => Entry::image_text(source, image, text),
            None => Entry::passage(source, text),
        };
        collector.emit(entry.of_document(self.id.0))
    }
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
        if let Some(passage) = collector.accept(parsed)? {
            passage.emit(source, collector)?;
        }
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
    let Some(article) = collector.accept(item.parse_object::<Article<'_>>())? else {
        return Ok(());
    };
    let Article { title, section_titles, section_texts, image_urls, image_section_indices } =
        article;
    for (index, (section, text)) in section_titles.iter().zip(section_texts).enumerate() {
        let image = image_section_indices.iter().position(|section| *section == index);
        let title =
            if *section == title { title.clone() } else { format!("{title}: {section}").into() };
        let image = image.and_then(|image| image_urls.get(image).cloned());
        let id = Id(item.key.unwrap_or_default().to_owned());
        Passage { id, title, text, image }.emit(source, collector)?;
    }
    Ok(())
}

#[derive(Deserialize)]
struct Question<'a> {
    #[serde(borrow, rename = "img_posFacts")]
    images: Vec<Passage<'a>>,
    #[serde(borrow, rename = "img_negFacts", default)]
    other_images: Vec<Passage<'a>>,
    #[serde(borrow, rename = "txt_posFacts")]
    snippets: Vec<Passage<'a>>,
    #[serde(borrow, rename = "txt_negFacts", default)]
    other_snippets: Vec<Passage<'a>>,
}

/// Makes an entry of each fact at its first occurrence; several questions can have one fact.
fn facts(
    item: &Item<'_>,
    source: &str,
    seen: &mut HashSet<Id>,
    collector: &mut Collector<'_>,
) -> Result<(), DataError> {
    collector.count_record();
    let Some(question) = collector.accept(item.parse_object::<Question<'_>>())? else {
        return Ok(());
    };
    let Question { images, other_images, snippets, other_snippets } = question;
    for fact in [images, other_images, snippets, other_snippets].into_iter().flatten() {
        if seen.insert(fact.id.clone()) {
            fact.emit(source, collector)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_ids_of_their_passages() {
        let mut entries = Vec::new();
        for sample in DATA_SET.samples {
            let mut collector = Collector::new(|entry| {
                entries.push(format!("{} {}", entry.document.clone().unwrap(), entry.text()));
                Ok(())
            });
            let open: super::super::Open<'_> =
                &|path| Ok(Input::new(path, sample.files[0].1.as_bytes())?);
            read(&DATA_SET.request(sample.line, open), &mut collector).unwrap();
        }
        let expected = ["a A text.", "https://a/Oak Oak: A tree.", "3 Oak: An oak", "d1_0 A tree."];
        assert_eq!(entries, expected);
    }
}
