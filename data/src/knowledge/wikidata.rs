//! Wikidata and other knowledge graphs: edges as triples, and labels with descriptions as passages.
//!
//! Edges are either REVEAL's released array `[[subject, relation, object], …]` or lines
//! `subject<TAB>relation<TAB>object` (Wikidata5M, FB15k-237). Labels are either an object `{id:
//! label}` or `{id: {"label": …, "description": …}}`, or lines `id<TAB>label[<TAB>alias …]`
//! (Wikidata5M).
//!
//! # Source   `data/wikidata/data_util.py` of REVEAL's released code (google-research/scenic,
//! `projects/knowledge_visual_language`, commit 0cce82d): edges from an entity to itself are
//! skipped. Reverse edges append `_R` to the relation; they are not made if a relation and an
//! object occur together at least 10,000 times. The released code does not define how an edge
//! becomes text.
//! Unlike in that code, an edge that occurs twice in the file gives two entries.

use std::borrow::Cow;
use std::collections::HashMap;

use engram_textfile::{Input, Lines, TextError, shortened};
use serde::Deserialize;

use super::json::{Item, Lists, WHOLE, read_lists, read_members};
use super::{
    Argument, ArgumentKind, Collector, DataSet, Entry, Note, Reason, Request, Rule, Sample,
};
use crate::DataError;

/// The data set for the command and the tests.
pub const DATA_SET: DataSet = DataSet {
    name: "wikidata",
    about: "Convert triples and entity descriptions of Wikidata or another knowledge graph",
    source: "wikidata",
    arguments: &[
        Argument::new(ArgumentKind::Files, "triples", "TRIPLES", "Files of triples")
            .read_twice_with("reverse"),
        Argument::file("labels", "File of labels of entities, relations or both (repeatable)")
            .read_twice_with("descriptions"),
        Argument::switch(
            "keep-ids",
            "Use the id of an entity without a label, instead of stopping with an error",
        )
        .rule(Rule::With("labels")),
        Argument::switch(
            "reverse",
            "Also add the reverse of each triple, with `_R` after its relation, unless 10,000 or \
             more triples have the same relation and object",
        ),
        Argument::switch(
            "descriptions",
            "Also add a passage `label: description` for each label with a description",
        )
        .rule(Rule::With("labels")),
    ],
    formats: "\
Triples: [[subject, relation, object], ...] as in REVEAL, or lines
`subject TAB relation TAB object`.
Labels: {id: label}, {id: {\"label\": ..., \"description\": ...}}, or lines
`id TAB label [TAB alias ...]`.",
    examples: &[
        "wikidata5m_transductive_train.txt --labels wikidata5m_entity.txt \\
      --labels wikidata5m_relation.txt --reverse --out wikidata.jsonl",
        "--labels entity2wikidata.json --descriptions --out passages.jsonl",
    ],
    samples: &[
        Sample { line: "triples.txt", files: &[("triples.txt", "Q1\tP1\tQ2\nQ1\tP1\tQ1\n")] },
        Sample {
            line: "triples.json --labels labels.json --reverse --descriptions",
            files: &[("triples.json", r#"[["Q1", "P1", "Q2"]]"#), ("labels.json", LABEL_SAMPLE)],
        },
        Sample {
            line: "--labels labels.json --descriptions",
            files: &[("labels.json", LABEL_SAMPLE)],
        },
    ],
    read: read_files,
};

const LABEL_SAMPLE: &str = r#"{"Q1": {"label": "Ada", "description": "writer"}, "Q2": "person",
"P1": {"label": "is"}}"#;

/// Edges with a relation and object at least this frequent get no reverse edge
/// (`MAX_REL_PER_ENTITY`).
const TOO_FREQUENT: u64 = 10_000;

const EDGE_REMEDY: &str = "use edges as [[subject, relation, object], …] or as lines \
                           `subject<TAB>relation<TAB>object`, none of the three empty";
const LABEL_REMEDY: &str = "use labels as {id: label}, as {id: {\"label\": …, \
                            \"description\": …}} or as lines `id<TAB>label`";

const UNLABELLED_REMEDY: &str = "add its label, keep ids in place of labels, or skip malformed \
                                 lines";

/// Passes each label with a description to `collector`, as a passage `label: description`. The
/// document of an entry is the id.
fn read_descriptions(
    input: Input<'_>,
    source: &str,
    collector: &mut Collector<'_>,
) -> Result<(), DataError> {
    read_labels(input, collector, &mut |id, label, collector| {
        let Some(description) = label.description else {
            collector.skip(Reason::NoDescription);
            return Ok(());
        };
        if label.label.is_none() {
            collector.note(Note::EntityWithoutLabel);
        }
        let text = format!("{}: {description}", label.label.as_ref().unwrap_or(&id));
        collector.emit(Entry::passage(source, text).of_document(id))
    })
}

/// How edges become triples.
struct Triples<'r> {
    /// The source name of the entries.
    source: &'r str,
    /// The labels that replace ids; `None` writes ids.
    labels: Option<HashMap<String, String>>,
    /// Whether to write the id of an entity without a label, and count it as a note. Otherwise its
    /// edge is malformed. Without `labels`, it has no effect.
    keep_ids: bool,
    /// The counts of each relation with each object in all files, to make a reverse edge after each
    /// edge; `None` makes no reverse edges.
    object_counts: Option<HashMap<String, u64>>,
}

/// Passes each edge to `collector`, as a triple. The document of an entry is the subject's id.
fn read_triples(
    input: Input<'_>,
    options: &Triples<'_>,
    collector: &mut Collector<'_>,
) -> Result<(), DataError> {
    let problem = |edge: &Edge<'_>| options.unlabelled_entity(edge);
    read_edges(input, &problem, collector, &mut |edge, collector| {
        if edge.subject == edge.object {
            collector.skip(Reason::SelfLoop);
            return Ok(());
        }
        let subject = options.label(&edge.subject, Note::EntityWithoutLabel, collector);
        let relation = options.label(&edge.relation, Note::RelationWithoutLabel, collector);
        let object = options.label(&edge.object, Note::EntityWithoutLabel, collector);
        let counts = options.object_counts.as_ref();
        let reverse = match counts.map(|counts| counts.get(&edge.relation_and_object())) {
            None => None,
            Some(Some(&count)) if count >= TOO_FREQUENT => {
                collector.note(Note::TooFrequentToReverse);
                None
            }
            Some(_) => {
                Some(Entry::triple(options.source, &object, format!("{relation}_R"), &subject))
            }
        };
        let triple = Entry::triple(options.source, subject, relation, object);
        collector.emit(triple.of_document(&*edge.subject))?;
        reverse.map_or(Ok(()), |triple| collector.emit(triple.of_document(&*edge.object)))
    })
}

impl Triples<'_> {
    /// Returns the error message for an edge with an unlabelled entity; `None` if the edge is
    /// valid.
    fn unlabelled_entity(&self, edge: &Edge<'_>) -> Option<String> {
        let labels =
            self.labels.as_ref().filter(|_| !self.keep_ids && edge.subject != edge.object)?;
        let mut ids = [("subject", &edge.subject), ("object", &edge.object)].into_iter();
        let (role, id) = ids.find(|(_, id)| !labels.contains_key(&***id))?;
        Some(format!("the {role} {} has no label", shortened(id, 60)))
    }

    /// Returns the label of an id, or the id if it has no label or no labels are used. Counts
    /// `if_missing` for an id without a label.
    fn label(&self, id: &str, if_missing: Note, collector: &mut Collector<'_>) -> String {
        let label = self.labels.as_ref().and_then(|labels| labels.get(id));
        if label.is_none() && self.labels.is_some() {
            collector.note(if_missing);
        }
        label.map_or(id, String::as_str).to_owned()
    }
}

fn read_files(request: &Request<'_>, collector: &mut Collector<'_>) -> Result<(), DataError> {
    if !request.has("triples") && !request.has("descriptions") {
        let reason = "no triples and no --descriptions".to_owned();
        let remedy = "give files of triples, or --labels with --descriptions";
        return Err(DataError::Arguments { reason, remedy });
    }
    let mut labels = HashMap::new();
    for input in request.inputs("labels") {
        read_labels(input?, &mut collector.discarding(), &mut |id, label, _| {
            if let Some(label) = label.label {
                // If an id has several labels, the first is used.
                labels.entry(id.into_owned()).or_insert_with(|| label.into_owned());
            }
            Ok(())
        })?;
    }
    if request.has("descriptions") {
        for input in request.inputs("labels") {
            read_descriptions(input?, &request.source, collector)?;
        }
    }
    let mut object_counts = HashMap::new();
    if request.has("reverse") {
        for input in request.inputs("triples") {
            read_edges(input?, &|_| None, &mut collector.discarding(), &mut |edge, _| {
                if edge.subject != edge.object {
                    *object_counts.entry(edge.relation_and_object()).or_default() += 1;
                }
                Ok(())
            })?;
        }
    }
    let options = Triples {
        source: &request.source,
        labels: request.has("labels").then_some(labels),
        keep_ids: request.has("keep-ids"),
        object_counts: request.has("reverse").then_some(object_counts),
    };
    request.inputs("triples").try_for_each(|input| read_triples(input?, &options, collector))
}

#[derive(Deserialize)]
struct Edge<'a> {
    #[serde(borrow)]
    subject: Cow<'a, str>,
    #[serde(borrow)]
    relation: Cow<'a, str>,
    #[serde(borrow)]
    object: Cow<'a, str>,
}

impl Edge<'_> {
    /// Returns the relation and the object, separated by a tab. Ids from lines cannot contain a
    /// tab, and valid ids in JSON do not.
    fn relation_and_object(&self) -> String {
        format!("{}\t{}", self.relation, self.object)
    }
}

type EachEdge<'e> = &'e mut dyn FnMut(&Edge<'_>, &mut Collector<'_>) -> Result<(), DataError>;

/// Reads edges. An edge for which `problem` returns a message is malformed.
fn read_edges(
    mut input: Input<'_>,
    problem: &dyn Fn(&Edge<'_>) -> Option<String>,
    collector: &mut Collector<'_>,
    each: EachEdge<'_>,
) -> Result<(), DataError> {
    if matches!(input.first_byte()?, b'[' | b'{') {
        let lists = Lists { names: &[WHOLE], remedy: EDGE_REMEDY };
        return read_lists(input, &lists, &mut |item| {
            collector.count_record();
            let checked = edge_of_item(item).and_then(|edge| match problem(&edge) {
                None => Ok(edge),
                Some(reason) => Err(match item.error(reason) {
                    DataError::Malformed { path, place, reason, .. } => {
                        DataError::Malformed { path, place, reason, remedy: UNLABELLED_REMEDY }
                    }
                    other => other,
                }),
            });
            match collector.accept(checked)? {
                Some(edge) => each(&edge, collector),
                None => Ok(()),
            }
        })
        .map(drop);
    }
    let mut lines = Lines::new(input);
    while collector.next_record(|| lines.advance())? {
        let checked = edge_of_line(&lines).and_then(|edge| match problem(&edge) {
            None => Ok(edge),
            Some(reason) => Err(lines.error(reason, UNLABELLED_REMEDY)),
        });
        if let Some(edge) = collector.accept(checked)? {
            each(&edge, collector)?;
        }
    }
    Ok(())
}

fn edge_of_item<'a>(item: &Item<'a>) -> Result<Edge<'a>, DataError> {
    if !item.begins_with('[') {
        return Err(item.error("not a list of 3 ids"));
    }
    let edge: Edge<'a> = item.parse()?;
    if [&edge.subject, &edge.relation, &edge.object].iter().any(|id| id.trim().is_empty()) {
        return Err(item.error("an empty id"));
    }
    Ok(edge)
}

fn edge_of_line<'a>(lines: &'a Lines<'_>) -> Result<Edge<'a>, TextError> {
    let mut fields = lines.text().split('\t').map(str::trim);
    match (fields.next(), fields.next(), fields.next(), fields.next()) {
        (Some(subject), Some(relation), Some(object), None)
            if ![subject, relation, object].contains(&"") =>
        {
            let [subject, relation, object] = [subject, relation, object].map(Cow::Borrowed);
            Ok(Edge { subject, relation, object })
        }
        _ => {
            let count = lines.text().split('\t').filter(|field| !field.trim().is_empty()).count();
            Err(lines.error(format!("expected 3 tab-separated ids, found {count}"), EDGE_REMEDY))
        }
    }
}

/// The label and description of an id; `None` for blank text.
struct Label<'a> {
    label: Option<Cow<'a, str>>,
    description: Option<Cow<'a, str>>,
}

type EachLabel<'e> =
    &'e mut dyn FnMut(Cow<'_, str>, Label<'_>, &mut Collector<'_>) -> Result<(), DataError>;

fn read_labels(
    mut input: Input<'_>,
    collector: &mut Collector<'_>,
    each: EachLabel<'_>,
) -> Result<(), DataError> {
    if matches!(input.first_byte()?, b'[' | b'{') {
        return read_members(input, LABEL_REMEDY, &mut |item| {
            collector.count_record();
            match collector.accept(label_of_item(item))? {
                Some((id, label)) => each(Cow::Borrowed(id), label, collector),
                None => Ok(()),
            }
        });
    }
    let mut lines = Lines::new(input);
    while collector.next_record(|| lines.advance())? {
        if let Some((id, label)) = collector.accept(label_of_line(&lines))? {
            each(Cow::Borrowed(id), label, collector)?;
        }
    }
    Ok(())
}

fn label_of_item<'a>(item: &Item<'a>) -> Result<(&'a str, Label<'a>), DataError> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

    #[derive(Deserialize)]
    struct Described<'a> {
        #[serde(borrow)]
        label: Option<Text<'a>>,
        #[serde(borrow)]
        description: Option<Text<'a>>,
    }

    let Some(id) = item.key.map(str::trim).filter(|id| !id.is_empty()) else {
        return Err(item.error("an empty id"));
    };
    let (label, description) = if item.begins_with('"') {
        (Some(item.parse()?), None)
    } else {
        let Described { label, description } = item.parse_object()?;
        (label, description)
    };
    let non_blank =
        |text: Option<Text<'a>>| text.map(|text| trimmed(text.0)).filter(|text| !text.is_empty());
    Ok((id, Label { label: non_blank(label), description: non_blank(description) }))
}

fn label_of_line<'a>(lines: &'a Lines<'_>) -> Result<(&'a str, Label<'a>), TextError> {
    match lines.text().split_once('\t') {
        Some((id, labels)) if !id.trim().is_empty() => {
            let label = labels.split('\t').next().map(str::trim).filter(|label| !label.is_empty());
            Ok((id.trim(), Label { label: label.map(Cow::Borrowed), description: None }))
        }
        _ => Err(lines.error("expected an id, a tab and a label", LABEL_REMEDY)),
    }
}

fn trimmed(text: Cow<'_, str>) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.trim()),
        Cow::Owned(text) => Cow::Owned(text.trim().to_owned()),
    }
}
