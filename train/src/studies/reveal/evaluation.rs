//! Answers to questions, and what they come to.

use engram_models::kernels::Mode;
use engram_models::packed::PackedTokens;

use super::corpus::{Corpus, Example};
use super::forward::{Forward, Read};
use crate::study::{Evaluation, StudyResult};

/// Questions that are answered at a time.
const ASKED_AT_A_TIME: usize = 64;

/// What a model answered.
pub struct Answers {
    /// The answer to each question.
    pub texts: Vec<String>,
    /// The ids of the entries that it read, the best first.
    pub read: Vec<Vec<i64>>,
}

impl Answers {
    /// Asks a model.
    pub fn of(forward: &Forward<'_>, asked: &[&Example]) -> StudyResult<Self> {
        let mut answers = Self { texts: Vec::new(), read: Vec::new() };
        for asked in asked.chunks(ASKED_AT_A_TIME) {
            answers.ask(forward, asked)?;
        }
        Ok(answers)
    }

    fn ask(&mut self, forward: &Forward<'_>, asked: &[&Example]) -> StudyResult<()> {
        let mode = Mode::predict();
        let sequencer = forward.sequencer;
        let texts: Vec<Vec<u32>> = asked
            .iter()
            .map(|example| sequencer.question(&example.text))
            .collect::<Result<_, _>>()?;
        let views: Vec<_> = asked
            .iter()
            .map(|example| example.picture.map(|picture| (picture, example.view)))
            .collect();
        let base =
            forward.model.encode(&sequencer.input(forward.corpus, &texts, &views)?, &mode)?;
        let queries = forward.model.query(&base, &mode)?;
        let stored = Forward { reencoded: 0, ..*forward };
        let reading = stored.retrieve(&queries)?;
        let fused = stored.fuse(&base, &queries, &reading, &[], &mode)?;
        let tokens = sequencer.tokens();
        let mut sequences: Vec<Vec<u32>> = vec![vec![tokens.begin]; asked.len()];
        let mut ended = vec![false; asked.len()];
        for _ in 0..12 {
            let packed = PackedTokens::new(&sequences);
            let logits = forward.model.decode(&packed, &fused.states, &mode)?;
            let best = logits.argmax(1)?.to_vec1::<u32>()?;
            let mut row = 0;
            for (sequence, ended) in sequences.iter_mut().zip(&mut ended) {
                row += sequence.len();
                if !*ended {
                    *ended = best[row - 1] == tokens.end;
                }
                sequence.push(if *ended { tokens.pad } else { best[row - 1] });
            }
            if ended.iter().all(|ended| *ended) {
                break;
            }
        }
        for sequence in sequences {
            self.texts.push(tokens.decode(&sequence)?.trim().to_owned());
        }
        for read in &reading {
            let ids = read.iter().filter_map(|(read, _)| match read {
                Read::Fresh(place) => Some(forward.corpus.items[*place].entry.id),
                Read::Stored(row) => {
                    let generation = forward.retriever?.generation();
                    generation.entry(*row).ok().map(|entry| entry.id)
                }
            });
            self.read.push(ids.collect());
        }
        Ok(())
    }

    /// Exact match and recall, by what training has seen of a question.
    pub fn evaluation(&self, corpus: &Corpus, asked: &[&Example]) -> StudyResult<Evaluation> {
        let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
        let mut add = |name: String, i: usize| match groups.iter_mut().find(|(n, _)| *n == name) {
            Some((_, of_group)) => of_group.push(i),
            None => groups.push((name, vec![i])),
        };
        for (i, example) in asked.iter().enumerate().filter(|(_, example)| example.made_up) {
            add(String::new(), i);
            add(format!("/{}", example.part.name()), i);
            if let Some(own) = example.own {
                add(format!("/{}", corpus.items[own].entry.source), i);
            }
        }
        groups.sort_by(|a, b| a.0.cmp(&b.0));
        let (mut metrics, mut counts) = (Vec::new(), Vec::new());
        for (name, of_group) in &groups {
            let mean = |measure: &dyn Fn(usize) -> bool| {
                of_group.iter().filter(|i| measure(**i)).count() as f64 / of_group.len() as f64
            };
            let right = |i: usize| {
                let said = self.texts[i].to_lowercase();
                asked[i].answers.iter().any(|answer| answer.to_lowercase() == said)
            };
            let found = |i: usize, k: usize| {
                let own = asked[i].own.map(|own| corpus.items[own].entry.id);
                self.read[i].iter().take(k).any(|id| Some(*id) == own)
            };
            metrics.push((format!("exact_match{name}"), mean(&right)));
            metrics.push((format!("recall_at_1{name}"), mean(&|i| found(i, 1))));
            metrics.push((format!("recall_at_10{name}"), mean(&|i| found(i, 10))));
            counts.push((format!("questions{name}"), of_group.len() as u64));
        }
        Ok(Evaluation { metrics, counts })
    }
}
