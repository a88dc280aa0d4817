//! Claims on real data. They need `--data`, and published weights that are available offline.

use std::path::Path;

use engram_data::audio::read_audio;
use engram_data::hub::{HubSettings, WeightsLocation};
use engram_data::patent::{Labels, read_pairs};
use engram_eval::bootstrap::BootstrapOptions;
use engram_eval::caption::report::{ReportOptions, report};
use engram_eval::caption::{read_annotations, read_results};
use engram_eval::compare::{compare_items, difference_p_value};
use engram_eval::items::{Item, Items};
use engram_eval::normalise::Normaliser;
use engram_eval::result::Measure;
use engram_eval::wer::read::{TextFormat, Utterance, join, parse_texts};
use engram_eval::wer::report::{WerOptions, evaluate};
use engram_infer::asr::{AsrModel, TranscribeOptions};
use engram_infer::encode::PromptChoice;
use engram_infer::similarity::run::SimilarityRun;
use engram_infer::similarity::zero_shot::{encoder_cosines, word_overlap};
use engram_models::compute::Compute;
use engram_textfile::read_text;
use engram_train::grid::{Rule, Test, shell_quote};
use engram_train::studies::patent::run::train_patent;
use engram_train::studies::reveal::run::train_reveal;
use engram_train::{Recipe, RecipeOptions};

use super::correlation::System;
use super::inputs::RealData;
use super::report::{Claim, SystemMeasure};
use super::{ENCODER, Reproduce, Scale};

/// The built-in recipes.
const PHRASES_RECIPE: &str = "patent/minilm";
const CAPTIONS_RECIPE: &str = "reveal/coco";

/// Real phrases with ratings.
pub(super) const PHRASES: RealData = RealData { folder: "patent", files: &["validation.csv"] };
/// Additional files for fine-tuning.
const TUNING_FILES: RealData =
    RealData { folder: "patent", files: &["train.csv", "ipc_class_titles.tsv"] };
/// Real utterances, and the transcripts of faster-whisper.
pub(super) const SPEECH: RealData =
    RealData { folder: "speech", files: &["utterances.tsv", "tiny_en.hyp.tsv"] };
/// Photographs with captions.
pub(super) const CAPTIONS: RealData = RealData {
    folder: "coco-captions",
    files: &["captions_val2017.json", "captions_train2017_mini.json"],
};

/// Ids of the claims.
pub(super) const ZERO_SHOT: &str = "patent.real_zero_shot";
pub(super) const TUNED: &str = "patent.real_finetuned_over_zero_shot";
pub(super) const WHISPER: &str = "avformer.real_whisper";
pub(super) const CAPTIONED: &str = "reveal.real_captions";

/// The sample rate of the speech data, in Hz.
const SAMPLE_RATE: u32 = 16_000;
/// Clips per batch of the ASR model.
const CLIPS_PER_BATCH: usize = 8;
/// Largest increase of the word error rate that still counts as no worse.
const MAX_WER_INCREASE: f64 = 0.005;

impl Reproduce {
    /// Real phrases with real ratings: a published encoder without fine-tuning and, at full scale,
    /// fine-tuned.
    pub(super) fn real_phrases(&self, notes: &mut Vec<String>) -> anyhow::Result<Vec<Claim>> {
        if !self.includes_claim(ZERO_SHOT) && !self.includes_claim(TUNED) {
            return Ok(Vec::new());
        }
        let Some(folder) = self.real_data(PHRASES, notes) else { return Ok(Vec::new()) };
        let encoder = &self.encoder;
        let offline = HubSettings { offline: true, ..HubSettings::from_env() };
        if WeightsLocation::parse(encoder)?.file("model.safetensors", &offline).is_err() {
            notes.push(format!(
                "{encoder}: not available offline, so no real phrases are scored. Run \
                 `engram data fetch {encoder}`, or give --encoder."
            ));
            return Ok(Vec::new());
        }
        self.note("real phrases");
        let pairs = read_pairs(folder.join("validation.csv"), Labels::Required)?;
        let words = System::new("word overlap (Jaccard), no training", vec![word_overlap(&pairs)]);
        let cosines =
            encoder_cosines(encoder, &PromptChoice::Default, &Compute::cpu(), &pairs, &|_| {})?;
        let cosines = System::new(&format!("{encoder}, cosine"), vec![cosines]);
        let compare = |id: &str, claim: &str, paper: &str, better: &System, worse: &System| {
            anyhow::Ok(Claim {
                study: "patent",
                id: id.to_owned(),
                claim: claim.to_owned(),
                paper: paper.to_owned(),
                test: better.beats(worse, &pairs)?,
                holm: None,
                seeds: 1,
                expected: true,
                command: self.real_command(id),
                compared: vec![worse.measured(&pairs)?, better.measured(&pairs)?],
            })
        };
        let mut claims = vec![compare(
            ZERO_SHOT,
            "a published sentence encoder beats word overlap (validation pairs of the competition)",
            "word2vec 0.44, Sentence-BERT 0.60 (Pearson, test pairs)",
            &cosines,
            &words,
        )?];
        if self.scale == Scale::Full
            && self.includes_claim(TUNED)
            && self.real_data(TUNING_FILES, notes).is_some()
        {
            let run = self.out.join("patent-real");
            let set = [
                format!("data.dir={}", toml_string(&folder)),
                format!("model.weights={}", toml_string(Path::new(&**encoder))),
            ];
            let options = RecipeOptions { tiny: false, set: set.into() };
            let mut recipe = Recipe::built_in(PHRASES_RECIPE, &options)?;
            if self.is_unfinished(&run, notes)? {
                train_patent(&mut recipe, &self.run_options(&run))?;
            }
            let tuned = SimilarityRun::open(&run, &Compute::cpu())?.predict(&pairs, &|_| {})?;
            let tuned = System::new("fine-tuned on the training pairs", vec![tuned]);
            claims.push(compare(
                TUNED,
                "fine-tuning improves the encoder (validation pairs of the competition)",
                "Sentence-BERT 0.60, the best single model of the competition 0.87 (Pearson)",
                &tuned,
                &cosines,
            )?);
        }
        Ok(claims)
    }

    /// Real speech: our Whisper transcripts compared with the transcripts of faster-whisper.
    pub(super) fn real_speech(&self, notes: &mut Vec<String>) -> anyhow::Result<Vec<Claim>> {
        let Some(whisper) = self.whisper.as_ref().filter(|_| self.includes_claim(WHISPER)) else {
            return Ok(Vec::new());
        };
        let Some(folder) = self.real_data(SPEECH, notes) else { return Ok(Vec::new()) };
        self.note("real speech");
        let read = |name: &str| {
            let path = folder.join(name);
            Ok::<_, anyhow::Error>((path.display().to_string(), read_text(&path)?))
        };
        let [(references_file, references), (baseline_file, baseline)] =
            [read(SPEECH.files[0])?, read(SPEECH.files[1])?];
        let references = parse_texts(&references_file, &references, TextFormat::Tsv)?;
        let baseline = parse_texts(&baseline_file, &baseline, TextFormat::Tsv)?;
        let asr_model = AsrModel::open(whisper, &Compute::cpu())?;
        let mut own_transcripts = Vec::with_capacity(references.len());
        for batch in references.chunks(CLIPS_PER_BATCH) {
            let audio = batch.iter().map(|utterance| {
                let id = utterance.id.as_deref().unwrap_or_default();
                read_audio(folder.join("wav16k").join(format!("{id}.wav")), SAMPLE_RATE)
            });
            let audio = audio.collect::<Result<Vec<_>, _>>()?;
            let audio: Vec<&[f32]> = audio.iter().map(Vec::as_slice).collect();
            let transcripts = asr_model.transcribe(&audio, &[], &TranscribeOptions::default())?;
            own_transcripts.extend(batch.iter().zip(transcripts).map(|(utterance, transcript)| {
                Utterance { text: transcript.text.into(), ..utterance.clone() }
            }));
        }
        let score = |name: &str, transcripts: Vec<Utterance<'_>>| {
            let pairs = join(&references_file, references.clone(), name, transcripts)?;
            let options = WerOptions {
                normaliser: Normaliser::WhisperEnglish,
                items: true,
                ..WerOptions::default()
            };
            let report = evaluate(&pairs, &options)?;
            anyhow::Ok((report.evaluation.primary, system_items(name, report.items)))
        };
        let (baseline_wer, baseline_items) = score("faster-whisper with tiny.en", baseline)?;
        let (own_wer, own_items) = score(&format!("{whisper} here"), own_transcripts)?;
        let compared =
            vec![named_measure(&baseline_items, baseline_wer), named_measure(&own_items, own_wer)];
        let test = test_of_items(&own_items, &baseline_items, Rule::NoWorseBy(MAX_WER_INCREASE))?;
        Ok(vec![Claim {
            study: "avformer",
            id: WHISPER.to_owned(),
            claim: "our Whisper transcribes real utterances as well as faster-whisper (normaliser \
                    whisper-en)"
                .to_owned(),
            paper: String::new(),
            test,
            holm: None,
            seeds: 1,
            expected: true,
            command: self.real_command(WHISPER),
            compared,
        }])
    }

    /// Photographs, captioned with and without captions of other images in the memory.
    pub(super) fn real_captions(&self, notes: &mut Vec<String>) -> anyhow::Result<Vec<Claim>> {
        if self.is_smoke() || !self.includes_claim(CAPTIONED) {
            return Ok(Vec::new());
        }
        let Some(folder) = self.real_data(CAPTIONS, notes) else { return Ok(Vec::new()) };
        let train_and_evaluate = |name: &str, run: &str, set: &[&str], notes: &mut Vec<String>| {
            self.note(&format!("photographs: {name}"));
            let run = self.out.join(run);
            let data = format!("data.path={}", toml_string(&folder));
            let set = set.iter().map(|set| (*set).to_owned()).chain([data]).collect();
            let options = RecipeOptions { tiny: false, set };
            let mut recipe = Recipe::built_in(CAPTIONS_RECIPE, &options)?;
            if self.is_unfinished(&run, notes)? {
                train_reveal(&mut recipe, &self.run_options(&run))?;
            }
            let file = |kind: &str| run.join("test").join(format!("captions-{kind}.json"));
            let options = ReportOptions { items: true, ..ReportOptions::default() };
            let (annotations, results) =
                (read_annotations(&file("references"))?, read_results(&file("results"))?);
            let report = report(annotations, results, &options)?;
            anyhow::Ok((report.evaluation.primary, system_items(name, report.items)))
        };
        let no_memory = ["memory.k=0", "gradient_check.allow=[\"**\"]"];
        let (with_memory_cider, with_memory) =
            train_and_evaluate("with a memory of other captions", "reveal-coco", &[], notes)?;
        let (without_memory_cider, without_memory) =
            train_and_evaluate("without a memory", "reveal-coco-without", &no_memory, notes)?;
        let compared = vec![
            named_measure(&without_memory, without_memory_cider),
            named_measure(&with_memory, with_memory_cider),
        ];
        let test = test_of_items(&with_memory, &without_memory, Rule::Better)?;
        Ok(vec![Claim {
            study: "reveal",
            id: CAPTIONED.to_owned(),
            claim:
                "photographs are captioned better with a memory of other captions (CIDEr-D, random \
                    initial weights)"
                    .to_owned(),
            paper: "1.454 (CIDEr on COCO, its largest model)".to_owned(),
            test,
            holm: None,
            seeds: 1,
            expected: false,
            command: self.real_command(CAPTIONED),
            compared,
        }])
    }

    /// The command that measures one claim on real data.
    fn real_command(&self, id: &str) -> String {
        let data = self.data.as_deref().unwrap_or(Path::new("")).display().to_string();
        let options = match (&self.whisper, id.split('.').next()) {
            (Some(whisper), Some("avformer")) => format!(" --whisper {}", shell_quote(whisper)),
            (_, Some("patent")) if *self.encoder != *ENCODER => {
                format!(" --encoder {}", shell_quote(&self.encoder))
            }
            _ => String::new(),
        };
        let (scale, data) = (self.scale_name(), shell_quote(&data));
        format!("engram reproduce --claim {id} --scale {scale} --data {data}{options}")
    }
}

/// Tests a rule on the metric of one system minus the metric of another, paired by item.
fn test_of_items(a: &Items, b: &Items, rule: Rule) -> anyhow::Result<Test> {
    let difference = compare_items(a, b, &BootstrapOptions::default())?.difference;
    // The comparison succeeded, so its items can be joined again.
    Ok(Test::new(difference, rule, |difference, threshold| {
        difference_p_value(a, b, difference, threshold).ok().flatten()
    }))
}

fn system_items(name: &str, items: Vec<Item>) -> Items {
    Items { file: name.to_owned(), items }
}

fn named_measure(system: &Items, measure: Measure) -> SystemMeasure {
    SystemMeasure { system: system.file.clone(), measure }
}

/// A JSON string is also a TOML string.
fn toml_string(path: &Path) -> String {
    serde_json::Value::from(path.display().to_string()).to_string()
}
