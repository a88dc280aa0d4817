//! REVEAL on the embedded world.

use std::path::Path;

use engram_eval::caption::read_annotations;
use engram_eval::haystack::PLAIN;
use engram_eval::metric::{MetricInfo, Unit};
use engram_infer::reveal::is_correct;
use engram_train::grid::{ClaimReport, Grid, GridReport, Rule, Test};
use engram_train::studies::ALL;
use engram_train::studies::reveal::evaluation::FinishedRun;
use engram_train::studies::reveal::needle::NeedleMetrics;
use engram_train::studies::reveal::run::RevealSummary;

use super::report::{Claim, SystemMeasure, grid_systems, grid_test, untested};
use super::study::StudyReport;
use super::values::Values;
use super::{Reproduce, bundled, real};

/// The built-in grid of scales laptop and full.
const GRID: &str = "reveal/ablations";
/// The built-in grid of scale smoke, which starts from bundled models in the repository.
const SMOKE_GRID: &str = "reveal/smoke";
/// The built-in grid of [`FROM_SCRATCH`].
const SCRATCH_GRID: &str = "reveal/scratch";

/// Configurations that are trained at the recipe's scale; with `--claim`, only those it needs.
const CONFIGURATIONS: [&str; 3] = ["main", "main-eval-k-0", "frozen-retriever"];
/// Claims expected to hold at any scale.
const EXPECTED: [&str; 7] = [
    "reveal.memory_over_none",
    KNOWLEDGE_SWAP,
    ATTRIBUTION,
    RECALL,
    NEEDLE,
    "reveal.end_to_end_over_frozen_retriever",
    FROM_SCRATCH,
];
/// The claim that only scale smoke tests.
const FROM_SCRATCH: &str = "reveal.learns_from_scratch";

const SMOKE_NOTE: &str = "REVEAL: the bundled models are evaluated again (trained by `engram \
    reproduce --study reveal --scale laptop`, seed 1); reveal.learns_from_scratch trains a small \
    model from random weights.";

/// Number of answers per seed whose entries are deleted one by one.
const ANSWERS_WITH_DELETION: usize = 200;
/// Threshold for recall@10.
const MIN_RECALL: f64 = 0.5;

/// Claims measured on the main runs.
const MAIN_RUN_CLAIMS: [&str; 4] = [KNOWLEDGE_SWAP, RECALL, ATTRIBUTION, NEEDLE];
const KNOWLEDGE_SWAP: &str = "reveal.knowledge_swap";
const RECALL: &str = "reveal.recall_at_10";
const ATTRIBUTION: &str = "reveal.attribution_beats_random";
const NEEDLE: &str = "reveal.needle";

/// The study in the report.
pub(super) struct RevealReport;

impl StudyReport for RevealReport {
    fn name(&self) -> &'static str {
        "reveal"
    }

    fn heading(&self) -> &'static str {
        "REVEAL: answers from a memory"
    }

    fn claim_ids(&self, reproduce: &Reproduce) -> anyhow::Result<Vec<String>> {
        reproduce.reveal_ids()
    }

    fn check_data(&self, reproduce: &Reproduce) -> anyhow::Result<()> {
        if !reproduce.is_smoke()
            && let Some(folder) = reproduce.real_data(real::CAPTIONS, &mut Vec::new())
        {
            for file in real::CAPTIONS.files {
                read_annotations(&folder.join(file))?;
            }
        }
        Ok(())
    }

    fn claims(&self, reproduce: &Reproduce, notes: &mut Vec<String>) -> anyhow::Result<Vec<Claim>> {
        let mut claims = reproduce.reveal(notes)?;
        claims.extend(reproduce.real_captions(notes)?);
        Ok(claims)
    }
}

impl Reproduce {
    /// Ids of the claims that can be measured with the given options.
    fn reveal_ids(&self) -> anyhow::Result<Vec<String>> {
        let mut ids = MAIN_RUN_CLAIMS.map(str::to_owned).to_vec();
        ids.extend(full_grid()?.claims().iter().map(|claim| claim.id.clone()));
        ids.extend(self.is_smoke().then(|| FROM_SCRATCH.to_owned()));
        ids.extend((self.data.is_some() && !self.is_smoke()).then(|| real::CAPTIONED.to_owned()));
        Ok(ids)
    }

    /// Measures the study's claims.
    fn reveal(&self, notes: &mut Vec<String>) -> anyhow::Result<Vec<Claim>> {
        let grid = full_grid()?;
        let main_grid = if self.is_smoke() {
            self.bundled_grid(SMOKE_GRID)?
        } else {
            grid.clone().at_recipe_scale().select(&CONFIGURATIONS)
        };
        let is_in_main_grid = |id: &str| main_grid.claims().iter().any(|claim| claim.id == id);
        let further_ids = grid.claims().iter().filter(|claim| !is_in_main_grid(&claim.id));
        let further_ids: Vec<&str> = further_ids.map(|claim| claim.id.as_str()).collect();
        let main_grid = if self.claims.is_empty() {
            main_grid
        } else {
            main_grid.select_for_claims(&self.claims)
        };
        let mut claims = Vec::new();
        if MAIN_RUN_CLAIMS.iter().any(|id| self.includes_claim(id))
            || main_grid.claims().iter().any(|claim| self.includes_claim(&claim.id))
        {
            if self.is_smoke() {
                for model in [&bundled::REVEAL, &bundled::FROZEN_RETRIEVER] {
                    bundled::unpack(model, &self.out.join(bundled::FOLDER))?;
                }
            }
            let out = self.out.join(if self.is_smoke() { "reveal-smoke" } else { "reveal-laptop" });
            let report = self.train_grid(&main_grid, &out)?;
            notes.extend(report.reused_note());
            if self.is_smoke() {
                notes.push(SMOKE_NOTE.to_owned());
            } else {
                let runs = out.join("seed-1");
                for (model, run) in [
                    (&bundled::REVEAL, runs.join(&report.main)),
                    (&bundled::FROZEN_RETRIEVER, runs.join("frozen-retriever")),
                ] {
                    if run.is_dir() {
                        self.compare_with_bundled(model, &run, notes)?;
                    }
                }
            }
            claims.extend(self.reveal_main_run_claims(&main_grid, &report, &out)?);
            claims.extend(report.claims.iter().map(|claim| self.reveal_grid_claim(claim)));
        }
        if self.is_smoke() && self.includes_claim(FROM_SCRATCH) {
            let grid = Grid::built_in(SCRATCH_GRID, ALL)?;
            let out = self.out.join("reveal-scratch");
            let report = self.train_grid(&grid, &out)?;
            notes.extend(report.reused_note());
            claims.extend(report.claims.iter().map(|claim| self.reveal_grid_claim(claim)));
        }
        let selects_further_claims =
            !self.claims.is_empty() && further_ids.iter().any(|id| self.includes_claim(id));
        if self.ablations || selects_further_claims {
            let grid = if selects_further_claims {
                grid.clone().select_for_claims(&self.claims)
            } else {
                grid.clone()
            };
            let report = self.train_grid(&grid, &self.out.join("reveal-ablations"))?;
            notes.extend(report.reused_note());
            for claim in &report.claims {
                if claims.iter().all(|measured| measured.id != claim.claim.id) {
                    claims.push(self.reveal_grid_claim(claim));
                }
            }
        }
        for claim in grid.claims() {
            if claims.iter().all(|measured| measured.id != claim.id) {
                claims.push(Claim {
                    study: "reveal",
                    id: claim.id.clone(),
                    claim: claim.claim.clone(),
                    paper: claim.paper.clone(),
                    test: untested(claim.rule()),
                    holm: None,
                    seeds: self.seeds,
                    expected: false,
                    command: self.claim_command(&claim.id, ""),
                    compared: Vec::new(),
                });
            }
        }
        Ok(claims)
    }

    fn reveal_grid_claim(&self, claim: &ClaimReport) -> Claim {
        Claim {
            study: "reveal",
            id: claim.claim.id.clone(),
            claim: format!("{} ({})", claim.claim.claim, claim.compared),
            paper: claim.claim.paper.clone(),
            test: grid_test(claim),
            holm: None,
            seeds: self.seeds,
            expected: EXPECTED.contains(&claim.claim.id.as_str()),
            command: self.claim_command(&claim.claim.id, ""),
            compared: grid_systems(claim),
        }
    }

    /// Measures [`MAIN_RUN_CLAIMS`].
    fn reveal_main_run_claims(
        &self,
        grid: &Grid,
        report: &GridReport,
        out: &Path,
    ) -> anyhow::Result<Vec<Claim>> {
        // The old answer before the change; the new and the old answer after it; the old or new
        // answer after deletion.
        let [mut old_before, mut new_after, mut old_after, mut any_deleted] =
            [(); 4].map(|()| Values::default());
        // Areas under deletion curves, by the order of deletion.
        let [mut random, mut gradient, mut leave_one_out] = [(); 3].map(|()| Values::default());
        let mut replies_by_size = Vec::new();
        for seed in 1..=self.seeds {
            let run = out.join(format!("seed-{seed}")).join(&report.main);
            let summary = RevealSummary::read(&run)?;
            for question in summary.swap.iter().flat_map(|swap| &swap.questions) {
                let references = &question.references;
                let [old, new] =
                    [0, 1].map(|i| is_correct(&question.answers[1], &references[i..=i]));
                let image = question.image.map_or(-1, |image| image as i64);
                new_after.add_outcome(seed, image, new);
                old_after.add_outcome(seed, image, old);
                let is_old = is_correct(&question.answers[0], &references[..1]);
                old_before.add_outcome(seed, image, is_old);
                any_deleted.add_outcome(seed, image, is_correct(&question.answers[2], references));
            }
            add_replies(&mut replies_by_size, seed, &summary.needles);
            for areas in FinishedRun::open(&run)?.deletion_areas(ANSWERS_WITH_DELETION, seed)? {
                let image = areas.image.map_or(-1, |image| image as i64);
                random.add(seed, image, areas.random);
                gradient.add(seed, image, areas.gradient);
                leave_one_out.add(seed, image, areas.exact);
            }
        }
        let model = if self.is_smoke() { " (bundled model)" } else { "" };
        let new_claim = |id: &str, claim: String, paper: &str, test: Test, compared| Claim {
            study: "reveal",
            id: id.to_owned(),
            claim: format!("{claim}{model}"),
            paper: paper.to_owned(),
            test,
            holm: None,
            seeds: self.seeds,
            expected: EXPECTED.contains(&id),
            command: self.claim_command(id, ""),
            compared,
        };
        let system = |system: &str, measure| SystemMeasure { system: system.to_owned(), measure };
        let share = |name: &str, values: &Values, info: MetricInfo| {
            system(name, values.measure(&info, "image"))
        };
        let (lower, higher) = (MetricInfo::lower, MetricInfo::higher);
        let compared = vec![
            share("old answer, before the change", &old_before, higher("before", Unit::Fraction)),
            share("old answer, after the change", &old_after, lower("stay", Unit::Fraction)),
            share("new answer, after the change", &new_after, higher("follow", Unit::Fraction)),
            share(
                "old or new answer, after deleting the entries",
                &any_deleted,
                lower("deleted", Unit::Fraction),
            ),
        ];
        let mut claims = vec![new_claim(
            KNOWLEDGE_SWAP,
            "answers follow facts that change only in the memory: the new answer is more frequent \
             than the old one"
                .to_owned(),
            "",
            new_after.minus(&old_after).test(
                &higher("follow_minus_stay", Unit::Fraction),
                "image",
                Rule::Better,
            ),
            compared,
        )];
        let rule = Rule::Above(MIN_RECALL);
        if let Some(test) = grid.test_column(&report.main, "recall_at_10", rule, out, self.seeds)? {
            let claim = "the right entry is among the ten retrieved entries for most questions";
            claims.push(new_claim(RECALL, claim.to_owned(), "", test, Vec::new()));
        }
        // Leave-one-out attribution orders entries by the quantity that deletion measures, so it is
        // an upper bound and not the claim.
        let area = lower("area_under_deletion_curve", Unit::Points);
        let of_order = |name: &str, areas: &Values| system(name, areas.measure(&area, "image"));
        let upper_bound = random
            .minus(&leave_one_out)
            .measure(&higher("random_minus_leave_one_out", Unit::Points), "image");
        claims.push(new_claim(
            ATTRIBUTION,
            "an answer's log-probability falls faster if entries are deleted in the order of \
             gradient attribution than in random order (nats)"
                .to_owned(),
            "named as future work",
            random.minus(&gradient).test(
                &higher("random_minus_gradient", Unit::Points),
                "image",
                Rule::Better,
            ),
            vec![
                of_order("random order", &random),
                of_order("order of gradient attribution", &gradient),
                of_order("leave-one-out order", &leave_one_out),
                system("random − leave-one-out order (upper bound)", upper_bound),
            ],
        ));
        // Uses the single-needle haystack with the most images.
        let single_needle = replies_by_size.iter().filter(|((needles, _), _)| *needles == 1);
        if let Some(((_, others), values)) = single_needle.max_by_key(|((_, others), _)| *others) {
            let test = values.test(&PLAIN, "task", Rule::Above(0.5));
            let compared = replies_by_size.iter().filter(|(size, _)| *size != (1, *others));
            let compared = compared.map(|((needles, others), values)| {
                let size = format!("{needles} among {others}");
                system(&size, values.measure(&PLAIN, "task"))
            });
            let claim =
                format!("an image is found among {others} others: accuracy above chance (0.5)");
            claims.push(new_claim(NEEDLE, claim, "", test, compared.collect()));
        }
        Ok(claims)
    }
}

/// The built-in grid, with all configurations and claims.
fn full_grid() -> anyhow::Result<Grid> {
    Ok(Grid::built_in(GRID, ALL)?)
}

/// Replies, grouped by the numbers of needles and of other images.
type RepliesBySize = Vec<((usize, usize), Values)>;

/// Adds the replies of a seed by task; all seeds have the same tasks.
fn add_replies(replies_by_size: &mut RepliesBySize, seed: u64, metrics: &[NeedleMetrics]) {
    for haystack in metrics {
        let size = (haystack.needles, haystack.others);
        let index = replies_by_size
            .iter()
            .position(|(existing, _)| *existing == size)
            .unwrap_or(replies_by_size.len());
        if index == replies_by_size.len() {
            replies_by_size.push((size, Values::default()));
        }
        for task in &haystack.tasks {
            replies_by_size[index].1.add_outcome(seed, &task.id, task.correct);
        }
    }
}

#[cfg(test)]
mod tests {
    use engram_eval::result::Measure;
    use engram_train::studies::reveal::needle::NeedleOutcome;

    use super::*;

    #[test]
    fn replies_of_two_seeds_are_paired_by_their_tasks() {
        // Ten tasks: one seed is correct on the first half, the other on the second half.
        let metrics = |correct: std::ops::Range<usize>| {
            let outcome = |task: usize| NeedleOutcome {
                id: format!("1-in-10-{task}"),
                needles: vec![task as i64],
                correct: correct.contains(&task),
            };
            let accuracy = Measure::new(&PLAIN, 10, Ok(0.5), None);
            [NeedleMetrics {
                needles: 1,
                others: 10,
                accuracy,
                tasks: (0..10).map(outcome).collect(),
            }]
        };
        let mut replies_by_size = RepliesBySize::new();
        add_replies(&mut replies_by_size, 1, &metrics(0..5));
        add_replies(&mut replies_by_size, 2, &metrics(5..10));
        let [((1, 10), values)] = replies_by_size.as_slice() else { panic!("one size") };
        assert_eq!(values.units()[..10], values.units()[10..]);
        assert_eq!(values.values()[..5], [1.0; 5]);
        assert_eq!(values.values()[10..15], [0.0; 5]);
        let measured = values.measure(&PLAIN, "task");
        assert_eq!((measured.value, measured.n), (0.5, 20));
        let interval = measured.interval.unwrap();
        assert_eq!(interval.method, "percentile bootstrap by task and seed");
    }
}
