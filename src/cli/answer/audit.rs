//! `engram answer --audit`: prompts about facts with the whole memory, after the deletion of a fact,
//! and without the memory.

use std::path::Path;

use engram_data::triplets::Triplet;
use engram_data::triplets::audit::{Database, Prompt, read};
use engram_eval::benchmark::forget::{FactNames, STATES};
use engram_infer::Stop;
use engram_infer::reveal::answerer::Answerer;
use engram_infer::reveal::answerer::deletions::{DeletionAnswers, DeletionPrompt};
use serde::Serialize;

use crate::cli::output;

/// A line of the output, in the layout that `engram eval forget` reads.
#[derive(Serialize)]
struct Line<'a> {
    database: &'a str,
    topology: &'a str,
    style: &'a str,
    fact_id: usize,
    state: &'static str,
    subject: &'a str,
    subject_aliases: &'a [String],
    relation: &'a str,
    relation_aliases: &'a [String],
    ground_truth: &'a str,
    object_aliases: &'a [String],
    prompt: &'a str,
    model_output: &'a str,
    retrieval_trace: Trace<'a>,
}

#[derive(Serialize)]
struct Trace<'a> {
    retained_candidates: Vec<Candidate<'a>>,
}

#[derive(Serialize)]
struct Candidate<'a> {
    subject: &'a str,
    relation: &'a str,
    object: &'a str,
}

/// Answers all prompts of the databases in `folder`, and returns the lines of the output with their
/// number.
pub(super) fn lines(answerer: &Answerer, folder: &Path) -> anyhow::Result<(Vec<u8>, usize)> {
    let databases = read(folder)?;
    let count =
        |database: &Database| database.files.iter().map(|file| file.prompts.len()).sum::<usize>();
    let bar = output::progress_bar(databases.iter().map(count).sum(), "prompts");
    let (mut bytes, mut lines) = (Vec::new(), 0);
    for database in &databases {
        let prompts = database.files.iter().flat_map(|file| {
            let style = file.name.strip_prefix("prompts_").unwrap_or(&file.name);
            file.prompts.iter().map(move |prompt| (style, prompt))
        });
        let prompts: Vec<(&str, &Prompt)> = prompts.collect();
        let asked = prompts.iter().map(|(_, prompt)| DeletionPrompt {
            text: prompt.prompt_text.clone(),
            deleted: facts_of(prompt, &database.facts),
        });
        let asked: Vec<DeletionPrompt> = asked.collect();
        let texts: Vec<String> = database.facts.iter().map(Triplet::text).collect();
        let memory = tempfile::tempdir()?;
        let done = |prompts: usize| bar.inc(prompts as u64);
        let answers = answerer.answer_after_deletions(
            &memory.path().join("memory"),
            &texts,
            &asked,
            &Stop::default(),
            &done,
        )?;
        for ((style, prompt), answers) in prompts.into_iter().zip(&answers) {
            for state in 0..STATES.len() {
                serde_json::to_writer(&mut bytes, &line(database, style, prompt, answers, state))?;
                bytes.push(b'\n');
                lines += 1;
            }
        }
    }
    bar.finish_and_clear();
    Ok((bytes, lines))
}

/// The indices of the facts that say what a prompt asks for.
fn facts_of(prompt: &Prompt, facts: &[Triplet]) -> Vec<usize> {
    let names = FactNames::new(
        [&prompt.subject, &prompt.relation, &prompt.gold_object],
        [&prompt.subject_aliases, &prompt.relation_aliases, &prompt.object_aliases],
    );
    let is_named = |fact: &Triplet| names.are_of([&fact.subject, &fact.relation, &fact.object]);
    (0..facts.len()).filter(|index| is_named(&facts[*index])).collect()
}

fn line<'a>(
    database: &'a Database,
    style: &'a str,
    prompt: &'a Prompt,
    answers: &'a DeletionAnswers,
    state: usize,
) -> Line<'a> {
    let candidate = |index: &usize| {
        let Triplet { subject, relation, object } = &database.facts[*index];
        Candidate { subject, relation, object }
    };
    let retained_candidates = answers.retrieved[state].iter().map(candidate).collect();
    Line {
        database: &database.name,
        topology: &database.topology,
        style,
        fact_id: prompt.fact_id,
        state: STATES[state],
        subject: &prompt.subject,
        subject_aliases: &prompt.subject_aliases,
        relation: &prompt.relation,
        relation_aliases: &prompt.relation_aliases,
        ground_truth: &prompt.gold_object,
        object_aliases: &prompt.object_aliases,
        prompt: &prompt.prompt_text,
        model_output: &answers.texts[state],
        retrieval_trace: Trace { retained_candidates },
    }
}
