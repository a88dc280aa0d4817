//! The test: the same utterances with the frozen ASR model and with the adapted model. The adapted
//! model is tested as several systems:
//!
//! | system | visual input |
//! |---|---|
//! | `right_frames` | the clip's own frames |
//! | `wrong_frames` | the frames of another clip |
//! | `zero_frames` | zero embeddings instead of the frames' embeddings |
//! | `no_frames` | no visual tokens |
//!
//! Frames *rescue* a word that is right with the clip's own frames and wrong without frames. They
//! *lose* a word that is right without frames and wrong with the clip's own frames.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use engram_data::messages::counted;
use engram_data::world::questions::Split;
use engram_eval::compare::{Comparison, compare_items};
use engram_eval::items::{Item, Items, Statistic, json_lines};
use engram_eval::metric::{MetricInfo, Unit};
use engram_eval::result::Measure;
use engram_eval::wer::align;
use engram_eval::wer::alignment::Edit;
use engram_eval::wer::counts::EditCounts;
use engram_eval::wer::report::{Labels, WerOptions, WerReport};
use engram_eval::wer::tokens::TokenUnit;
use engram_models::avformer::Avformer;
use serde::{Deserialize, Serialize};

use super::super::reports::{mean_by_group, word_errors, write_texts};
use super::corpus::ClipWithFrames;
use super::frozen_texts::FrozenTexts;
use super::scoring::Scoring;
use super::study::AvformerStudy;
use super::transcription::{VisualInput, clip_with_other_topic};
use crate::Stop;
use crate::checkpoint::{create_folder_in, write_file};
use crate::study::StudyResult;

/// The share of clips whose transcript contains a name that is shown but not spoken.
pub(super) const SHOWN_NAME_IN_TEXT: MetricInfo =
    MetricInfo::lower("shown_name_in_text", Unit::Fraction);
/// The share of the decoder's cross-attention that goes to the visual tokens, per clip.
const ATTENTION_TO_FRAMES: MetricInfo =
    MetricInfo::descriptive("attention_to_frames", Unit::Fraction);
/// The maximum number of rescued words in the summary.
const MAX_RESCUED: usize = 10;
/// The folder of references, hypotheses and items.
pub const TEST: &str = "test";
/// The file with one item per clean clip: whether the transcript contains the name that the wrong
/// frames show.
pub const SHOWN_NAME_ITEMS: &str = "clean.shown_name_in_text.items.jsonl";

/// The word error rate of one system on one set of utterances.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SystemMetrics {
    /// The utterances: `noisy`, `clean`, `test`, `general_speech`.
    pub utterances: String,
    /// The system: `frozen`, `right_frames`, `wrong_frames`, `zero_frames` or `no_frames`.
    pub system: String,
    /// The word error rate, with its interval.
    pub wer: Measure,
    /// The numbers of substitutions, deletions, insertions and hits.
    pub counts: EditCounts,
}

/// The difference between two systems on the same utterances.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Difference {
    /// The utterances.
    pub utterances: String,
    /// The systems `a` and `b` of WER(a) − WER(b); below 0, `a` has fewer errors.
    pub systems: [String; 2],
    /// The comparison, as from `engram eval compare`.
    pub comparison: Comparison,
}

/// The word error rates at one signal-to-noise ratio.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MetricsAtRatio {
    /// The ratio in dB; `None` for clips without noise.
    pub snr_db: Option<f32>,
    /// The word error rate without frames.
    pub no_frames: Measure,
    /// The word error rate with the right frames.
    pub right_frames: Measure,
    /// The word error rate with the frames of another clip.
    pub wrong_frames: Measure,
}

/// All results of the test.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TestMetrics {
    /// Each system on each set of utterances.
    pub systems: Vec<SystemMetrics>,
    /// Paired comparisons.
    pub differences: Vec<Difference>,
    /// The share of clean clips whose transcript with wrong frames contains the name shown; `None`
    /// if this was not tested.
    pub shown_name_inserted: Option<Measure>,
    /// The numbers of rescued and of lost words; `None` if this was not tested.
    pub rescued: Option<[usize; 2]>,
    /// The most often rescued words, in descending order; `test/rescued.jsonl` has all of them.
    pub rescued_words: Vec<RescuedWord>,
    /// The share of the decoder's cross-attention that goes to the visual tokens of the right
    /// frames: first in clips with rescued words, then in other clips. `None` for a decoder without
    /// cross-attention, and if this was not tested.
    pub attention_to_frames: Option<[Measure; 2]>,
    /// The error rates by signal-to-noise ratio; empty if they were not measured.
    pub sweep: Vec<MetricsAtRatio>,
}

/// A clip in which the right frames rescue or lose words.
#[derive(Serialize)]
struct RescuedClip<'a> {
    id: &'a str,
    reference: &'a str,
    hypothesis_without_frames: &'a str,
    hypothesis_with_frames: &'a str,
    /// Words that the frames rescue.
    rescued: Vec<&'a str>,
    /// Words that the frames lose.
    lost: Vec<&'a str>,
    /// The rescued and lost words with their counterparts in both hypotheses.
    aligned: Vec<AlignedWord>,
}

/// A reference word and the words aligned with it in two hypotheses; `None` is a deletion.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AlignedWord {
    /// The reference word.
    pub reference: String,
    /// The aligned word of the transcript without frames.
    pub hypothesis_without_frames: Option<String>,
    /// The aligned word of the transcript with the right frames.
    pub hypothesis_with_frames: Option<String>,
}

/// The number of clips in which the right frames rescue a word.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RescuedWord {
    /// The word.
    #[serde(flatten)]
    pub word: AlignedWord,
    /// The number of clips.
    pub clips: usize,
}

impl fmt::Display for RescuedWord {
    /// Formats a rescued word, as `chicken, transcribed as kitchen without frames: 3 clips`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reference = &self.word.reference;
        match self.word.hypothesis_without_frames.as_deref() {
            Some(word) => write!(f, "{reference}, transcribed as {word} without frames: ")?,
            None => write!(f, "{reference}, missing without frames: ")?,
        }
        f.write_str(&counted(self.clips, "clip"))
    }
}

/// A running test of a finished run.
struct Test<'a> {
    study: &'a AvformerStudy,
    avformer: &'a Avformer,
    /// The transcripts of the unmodified ASR model; `None` if it is not tested.
    frozen: Option<FrozenTexts>,
    /// The folder of texts and items.
    folder: PathBuf,
    metrics: TestMetrics,
}

/// A set of utterances and the hypotheses of all systems.
struct Hypotheses<'a> {
    /// The name of the set.
    utterances: &'a str,
    clips: &'a [ClipWithFrames],
    scoring: Scoring,
    /// Normalised hypotheses by system.
    texts: Vec<(&'a str, Vec<String>)>,
    /// The items of each system; `file` is the system's name.
    items: Vec<Items>,
}

impl AvformerStudy {
    /// Measures a finished run, and writes texts and items into its folder.
    ///
    /// # Errors
    /// Errors of the models and of writing.
    pub fn test(&self, avformer: &Avformer, run: &Path) -> StudyResult<TestMetrics> {
        let folder = create_folder_in(run, TEST)?;
        let data = &self.data;
        let frozen = data.frozen_baseline.then(|| FrozenTexts::open(&data.cache, &self.asr_model));
        let (frozen, metrics) = (frozen.transpose()?, TestMetrics::default());
        let mut test = Test { study: self, avformer, frozen, folder, metrics };
        let main_set = if data.is_world() { "noisy" } else { "test" };
        let main_clips = self.corpus.evaluated(Split::Test, false)?;
        let inputs = self.tested_inputs(&main_clips, true);
        let hypotheses = test.measure(main_set, &main_clips, &inputs)?;
        if let (Some(without_frames), Some(with_frames)) =
            (hypotheses.texts_of("no_frames"), hypotheses.texts_of("right_frames"))
        {
            let scoring = &hypotheses.scoring;
            let texts = [without_frames, with_frames].map(Vec::as_slice);
            let rescued = write_rescued(&test.folder, &main_clips, texts, scoring)?;
            let shares = self.attention_to_frames(avformer, &main_clips)?;
            test.metrics.attention_to_frames = shares.map(|shares| {
                [true, false].map(|has_rescued| {
                    let is_in_set =
                        |(clip, _): &(usize, f64)| rescued.clips.contains(clip) == has_rescued;
                    let set = shares.iter().copied().enumerate().filter(is_in_set);
                    let (clips, shares): (Vec<usize>, Vec<f64>) = set.unzip();
                    let clips = clips.iter().map(|clip| &main_clips[*clip]);
                    mean_by_topic(&ATTENTION_TO_FRAMES, clips, &shares)
                })
            });
            test.metrics.rescued = Some(rescued.counts);
            test.metrics.rescued_words = rescued.words;
        }
        if data.is_world() {
            let clean = self.corpus.evaluated(Split::Test, true)?;
            let inputs = self.tested_inputs(&clean, false);
            let hypotheses = test.measure("clean", &clean, &inputs)?;
            if let Some(texts) = hypotheses.texts_of("wrong_frames") {
                let file = test.folder.join(SHOWN_NAME_ITEMS);
                let inserted = self.shown_name_inserted(&clean, texts, &file)?;
                test.metrics.shown_name_inserted = Some(inserted);
            }
        }
        let general_speech = self.corpus.general_speech()?;
        if !general_speech.is_empty() {
            test.measure("general_speech", &general_speech, &[VisualInput::Nothing])?;
        }
        test.metrics.sweep = self.sweep(avformer, &test.folder)?;
        Ok(test.metrics)
    }

    /// The inputs of `data.test_frames` that can be tested. `Wrong` needs, for each clip, a clip
    /// with another topic.
    fn tested_inputs(&self, clips: &[ClipWithFrames], with_zero: bool) -> Vec<VisualInput> {
        if !self.uses_frames() {
            return vec![VisualInput::Nothing];
        }
        let has_others =
            (0..clips.len()).all(|index| clip_with_other_topic(clips, index).is_some());
        let is_tested = |input: &&VisualInput| match input {
            VisualInput::Nothing | VisualInput::Right => true,
            VisualInput::Zero => with_zero,
            VisualInput::Wrong => has_others,
        };
        self.data.test_frames.iter().filter(is_tested).copied().collect()
    }

    /// The share of clips whose transcript with the frames of another clip contains the name that
    /// these frames show. Writes one item per clip.
    fn shown_name_inserted(
        &self,
        clips: &[ClipWithFrames],
        texts: &[String],
        file: &Path,
    ) -> StudyResult<Measure> {
        let scoring = Scoring::of(&self.data);
        let names = scoring.normalise_all(&self.corpus.names());
        let value = |(index, text): (usize, &String)| {
            let shown_name = clip_with_other_topic(clips, index).and_then(|clip| clip.name);
            let reference = scoring.normalise(&clips[index].text);
            f64::from(u8::from(
                shown_name.is_some_and(|name| is_inserted(text, &reference, &names[name])),
            ))
        };
        let values: Vec<f64> = texts.iter().enumerate().map(value).collect();
        let topics: Vec<String> = clips.iter().map(ClipWithFrames::topic).collect();
        let normaliser = scoring.normaliser.name_and_version();
        let item = |((clip, topic), value): ((&ClipWithFrames, &String), &f64)| {
            let statistic = Statistic::Mean { value: *value };
            Item::new(&SHOWN_NAME_IN_TEXT, &normaliser, &clip.id, Some(topic), statistic)
        };
        let items: Vec<Item> = clips.iter().zip(&topics).zip(&values).map(item).collect();
        write_file(file, json_lines(&items).as_bytes())?;
        Ok(mean_by_topic(&SHOWN_NAME_IN_TEXT, clips, &values))
    }

    /// Measures the first test utterances at several signal-to-noise ratios. Writes a file of items
    /// for each ratio and system.
    fn sweep(&self, avformer: &Avformer, folder: &Path) -> StudyResult<Vec<MetricsAtRatio>> {
        let (mut metrics, scoring) = (Vec::new(), Scoring::of(&self.data));
        let ratios = self.data.sweep_snr_db.iter().map(|ratio| Some(*ratio));
        for snr_db in std::iter::once(None).chain(ratios).filter(|_| self.uses_frames()) {
            let clips = self.corpus.sweep_clips(snr_db);
            if clips.is_empty() {
                continue;
            }
            let inputs = [VisualInput::Nothing, VisualInput::Right, VisualInput::Wrong];
            let ratio = snr_db.map_or("clean".to_string(), |ratio| format!("{ratio}dB"));
            let mut progress = self.progress(&format!("test, {ratio}"), clips.len());
            let transcripts =
                self.transcribe(avformer, &clips, &inputs, &mut progress, &Stop::default())?;
            let mut measures = Vec::with_capacity(inputs.len());
            for (input, texts) in inputs.iter().zip(transcripts) {
                let report = report(&clips, &texts, &scoring)?;
                let file = items_file(&format!("sweep.{ratio}"), system_name(*input));
                write_file(&folder.join(file), json_lines(&report.items).as_bytes())?;
                measures.push(report.evaluation.primary);
            }
            if let Ok([no_frames, right_frames, wrong_frames]) = <[Measure; 3]>::try_from(measures)
            {
                metrics.push(MetricsAtRatio { snr_db, no_frames, right_frames, wrong_frames });
            }
        }
        Ok(metrics)
    }
}

impl Test<'_> {
    /// Measures the frozen model, if it is tested, and the adapted model with each input on a set
    /// of utterances. Writes texts and items, and adds the results to the metrics.
    fn measure<'c>(
        &mut self,
        utterances: &'c str,
        clips: &'c [ClipWithFrames],
        inputs: &[VisualInput],
    ) -> StudyResult<Hypotheses<'c>> {
        let Self { study, avformer, frozen, folder, metrics } = self;
        let scoring = Scoring::of(&study.data);
        let (texts, items) = (Vec::new(), Vec::new());
        let mut hypotheses = Hypotheses { utterances, clips, scoring, texts, items };
        let references = clips.iter().map(|clip| (clip.id.as_str(), clip.text.as_str()));
        write_texts(&folder.join(format!("{utterances}.ref.tsv")), references)?;
        if let Some(frozen) = frozen {
            let samples: Vec<&[f32]> = clips.iter().map(|clip| clip.samples.as_slice()).collect();
            let mut progress = study.progress(&format!("frozen, {utterances}"), clips.len());
            let count = |done| progress.count(done as u64);
            let texts = frozen.of(&study.asr_model, &samples, count)?;
            metrics.systems.push(hypotheses.add("frozen", texts, folder)?);
        }
        let mut progress = study.progress(&format!("test, {utterances}"), clips.len());
        let transcripts =
            study.transcribe(avformer, clips, inputs, &mut progress, &Stop::default())?;
        for (input, texts) in inputs.iter().zip(transcripts) {
            metrics.systems.push(hypotheses.add(system_name(*input), texts, folder)?);
        }
        let pairs = [
            ["no_frames", "frozen"],
            ["right_frames", "no_frames"],
            ["right_frames", "wrong_frames"],
            ["right_frames", "zero_frames"],
            ["wrong_frames", "no_frames"],
        ];
        for [a, b] in pairs {
            metrics.differences.extend(hypotheses.difference([a, b])?);
        }
        Ok(hypotheses)
    }
}

impl<'a> Hypotheses<'a> {
    /// The normalised hypotheses of a system; `None` if it was not measured.
    fn texts_of(&self, system: &str) -> Option<&Vec<String>> {
        self.texts.iter().find(|(name, _)| *name == system).map(|(_, texts)| texts)
    }

    /// Adds the hypotheses of a system and measures its error rate. Writes texts and items into
    /// `folder`.
    fn add(
        &mut self,
        system: &'a str,
        texts: Vec<String>,
        folder: &Path,
    ) -> StudyResult<SystemMetrics> {
        let name = format!("{}.{system}", self.utterances);
        let ids = self.clips.iter().map(|clip| clip.id.as_str());
        let lines = ids.zip(texts.iter().map(String::as_str));
        write_texts(&folder.join(format!("{name}.tsv")), lines)?;
        let report = report(self.clips, &texts, &self.scoring)?;
        let items = folder.join(items_file(self.utterances, system));
        write_file(&items, json_lines(&report.items).as_bytes())?;
        self.items.push(Items { file: system.to_string(), items: report.items });
        self.texts.push((system, self.scoring.normalise_all(&texts)));
        let (utterances, system) = (self.utterances.to_string(), system.to_string());
        let (wer, counts) = (report.evaluation.primary, report.counts);
        Ok(SystemMetrics { utterances, system, wer, counts })
    }

    /// The difference between two systems; `None` unless both were measured.
    fn difference(&self, systems: [&str; 2]) -> StudyResult<Option<Difference>> {
        let items = |system: &str| self.items.iter().find(|items| items.file == system);
        let (Some(a), Some(b)) = (items(systems[0]), items(systems[1])) else { return Ok(None) };
        Ok(Some(Difference {
            utterances: self.utterances.to_string(),
            systems: systems.map(str::to_string),
            comparison: compare_items(a, b, &Default::default())?,
        }))
    }
}

/// The word error rate of hypotheses. Clips with the same topic are resampled together.
fn report(clips: &[ClipWithFrames], texts: &[String], scoring: &Scoring) -> StudyResult<WerReport> {
    let of_pair = clips.iter().map(ClipWithFrames::topic).collect();
    let cluster = Some(Labels { name: "name".to_string(), of_pair });
    let Scoring { normaliser, articles } = scoring.clone();
    let options =
        WerOptions { items: true, normaliser, articles, cluster, ..WerOptions::default() };
    word_errors(clips.iter().map(|clip| (clip.id.as_str(), clip.text.as_str())), texts, &options)
}

/// The mean of one value per clip. Clips with the same topic are resampled together.
fn mean_by_topic<'a>(
    info: &MetricInfo,
    clips: impl IntoIterator<Item = &'a ClipWithFrames>,
    values: &[f64],
) -> Measure {
    let topics: Vec<String> = clips.into_iter().map(ClipWithFrames::topic).collect();
    mean_by_group(info, "name", &topics, values)
}

/// The file name of a system's items.
pub(super) fn items_file(utterances: &str, system: &str) -> String {
    format!("{utterances}.{system}.items.jsonl")
}

/// Whether a transcript contains a name that its reference does not contain.
fn is_inserted(text: &str, reference: &str, name: &str) -> bool {
    let has_name = |text: &str| format!(" {text} ").contains(&format!(" {name} "));
    has_name(text) && !has_name(reference)
}

/// The system name of the adapted model with this visual input.
pub(super) fn system_name(input: VisualInput) -> &'static str {
    match input {
        VisualInput::Right => "right_frames",
        VisualInput::Wrong => "wrong_frames",
        VisualInput::Zero => "zero_frames",
        VisualInput::Nothing => "no_frames",
    }
}

/// The words that frames rescue.
struct Rescued {
    /// The numbers of rescued and of lost words.
    counts: [usize; 2],
    /// The most often rescued words.
    words: Vec<RescuedWord>,
    /// The indices of the clips with rescued words.
    clips: BTreeSet<usize>,
}

/// Writes the clips with rescued or lost words to `rescued.jsonl`.
fn write_rescued(
    folder: &Path,
    clips: &[ClipWithFrames],
    [without_frames, with_frames]: [&[String]; 2],
    scoring: &Scoring,
) -> StudyResult<Rescued> {
    let (mut lines, mut counts) = (String::new(), [0; 2]);
    let mut clips_with_rescued = BTreeSet::new();
    let mut clips_by_word: BTreeMap<AlignedWord, usize> = BTreeMap::new();
    let hypotheses = without_frames.iter().zip(with_frames);
    for (index, (clip, (without, with))) in clips.iter().zip(hypotheses).enumerate() {
        let reference = scoring.normalise(&clip.text);
        let (mut rescued, mut lost, mut aligned) = (Vec::new(), Vec::new(), Vec::new());
        let pairs =
            aligned_words(&reference, without).into_iter().zip(aligned_words(&reference, with));
        for (word, (word_without, word_with)) in reference.split_whitespace().zip(pairs) {
            let aligned_word = AlignedWord {
                reference: word.to_string(),
                hypothesis_without_frames: word_without.map(str::to_string),
                hypothesis_with_frames: word_with.map(str::to_string),
            };
            match (word_without == Some(word), word_with == Some(word)) {
                (false, true) => {
                    *clips_by_word.entry(aligned_word.clone()).or_default() += 1;
                    rescued.push(word);
                }
                (true, false) => lost.push(word),
                _ => continue,
            }
            aligned.push(aligned_word);
        }
        clips_with_rescued.extend((!rescued.is_empty()).then_some(index));
        counts[0] += rescued.len();
        counts[1] += lost.len();
        if !aligned.is_empty() {
            let line = RescuedClip {
                id: &clip.id,
                reference: &reference,
                hypothesis_without_frames: without,
                hypothesis_with_frames: with,
                rescued,
                lost,
                aligned,
            };
            lines += &serde_json::to_string(&line)?;
            lines.push('\n');
        }
    }
    write_file(&folder.join("rescued.jsonl"), lines.as_bytes())?;
    let mut words: Vec<RescuedWord> =
        clips_by_word.into_iter().map(|(word, clips)| RescuedWord { word, clips }).collect();
    words.sort_by_key(|word| Reverse(word.clips));
    words.truncate(MAX_RESCUED);
    Ok(Rescued { counts, words, clips: clips_with_rescued })
}

/// The hypothesis word aligned with each reference word; `None` for a deletion.
fn aligned_words<'a>(reference: &str, hypothesis: &'a str) -> Vec<Option<&'a str>> {
    let mut words = hypothesis.split_whitespace();
    let mut aligned = Vec::new();
    for edit in align(TokenUnit::Word, reference, hypothesis) {
        let word = if edit == Edit::Deletion { None } else { words.next() };
        if edit != Edit::Insertion {
            aligned.push(word);
        }
    }
    aligned
}

#[cfg(test)]
mod tests {
    use super::super::settings::AvformerData;
    use super::*;

    #[test]
    fn only_a_name_that_was_not_spoken_is_inserted() {
        for (text, reference, expected) in [
            ("look at the red fox", "look at the owl", true),
            ("red fox", "owl", true),
            ("red foxes", "owl", false),
            ("a red fox", "the red fox", false),
            ("owl", "red fox", false),
        ] {
            assert_eq!(is_inserted(text, reference, "red fox"), expected, "{text}, {reference}");
        }
    }

    #[test]
    fn rescued_and_lost_words_are_counted_and_written() {
        assert_eq!(aligned_words("a red fox", "red box"), [None, Some("red"), Some("box")]);
        assert_eq!(aligned_words("fox", "the red fox"), [Some("fox")]);
        let folder = tempfile::tempdir().expect("a folder");
        let clip = |text: &str| ClipWithFrames { text: text.into(), ..ClipWithFrames::default() };
        let clips = [clip("a red fox"), clip("Bear!"), clip("owl")];
        let texts = |texts: [&str; 3]| texts.map(str::to_string);
        let without_frames = texts(["a red box", "bear", "owl"]);
        let with_frames = texts(["a fox", "bear", "owl"]);
        let scoring = Scoring::of(&AvformerData::default());
        let texts = [&without_frames, &with_frames].map(<[String; 3]>::as_slice);
        let result = write_rescued(folder.path(), &clips, texts, &scoring);
        let rescued = result.expect("written");
        assert_eq!((rescued.counts, rescued.clips), ([1, 1], BTreeSet::from([0])));
        let [RescuedWord { word, clips: 1 }] = rescued.words.as_slice() else {
            panic!("{:?}", rescued.words)
        };
        let aligned = [
            Some(word.reference.as_str()),
            word.hypothesis_without_frames.as_deref(),
            word.hypothesis_with_frames.as_deref(),
        ];
        assert_eq!(aligned, [Some("fox"), Some("box"), Some("fox")]);
        let lines = std::fs::read_to_string(folder.path().join("rescued.jsonl")).expect("lines");
        assert_eq!(lines.lines().count(), 1);
        assert!(lines.contains(r#""rescued":["fox"],"lost":["red"],"aligned":["#), "{lines}");
        let lost_word = [
            r#"{"reference":"red","hypothesis_without_frames":"red","#,
            r#""hypothesis_with_frames":null}"#,
        ]
        .concat();
        assert!(lines.contains(&lost_word), "{lines}");
    }
}
