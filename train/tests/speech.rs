//! The speech study on the embedded world and on files: both phases, a crashed run, and invalid
//! texts.

use std::path::Path;

use candle_core::{Device, Tensor};
use engram_data::world::speech::{SAMPLE_RATE, voices};
use engram_infer::InferError;
use engram_infer::asr::{AsrModel, Padding, StreamOptions, TranscribeOptions};
use engram_models::compute::Compute;
use engram_models::weights::Weights;
use engram_train::studies::speech::run::{SpeechSummary, train_speech};
use engram_train::{RunOptions, TrainError, write_checksums};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::runs::{assert_same_bytes, crash_at_checkpoint, recipe, resumed, with_causes};

const RECIPE: &str = r#"
study = "speech"
seed = 1

[data]
sentences = 16
evaluation_sentences = 3
speeds = [0.9, 1.0]
noise_only = 0.2

[model]
layers = 1

[model.best_rq]
num_codes = 64
mask_probability = 0.02
mask_length = 20

[batch]
examples = 4

[optimiser]
learning_rate = 2e-3

[evaluation]
every_epochs = 0
keep_best = false

[checkpoint]
every_steps = 3

[log]
every_steps = 1
tensorboard = false

[[phase]]
name = "best_rq"
steps = 4
feed = { objective = "best_rq" }
group = [{ match = "ctc_head.**", rate = 0.0 }]

[[phase]]
name = "ctc"
steps = 6
feed = { objective = "ctc" }
group = [{ match = "best_rq.**", rate = 0.0 }]

[check]
files = ["model.safetensors"]
"#;

fn try_run(
    folder: &Path,
    set: &[String],
    options: RunOptions,
) -> Result<SpeechSummary, TrainError> {
    let mut recipe = recipe(RECIPE, set)?;
    train_speech(&mut recipe, &RunOptions { run: folder.into(), quiet: true, ..options })
}

/// The lines of a run's `metrics.jsonl`.
fn metrics(run: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_run_that_crashes_in_either_phase_resumes_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let summary = try_run(&whole, &[], RunOptions::default()).unwrap();
    assert_eq!(summary.check_failures, Vec::<String>::new());
    assert_eq!((summary.steps, summary.wer.map(|wer| wer.n)), (10, Some(3)));
    assert!(summary.names.is_some_and(|errors| errors.names > 0.0));
    for step in [3, 10] {
        let crashed = folder.path().join(format!("crashed-{step}"));
        crash_at_checkpoint(&crashed, step, |options| try_run(&crashed, &[], options));
        try_run(&crashed, &[], resumed()).unwrap();
        let files = ["model.safetensors", "hyp.tsv", "config.json", "tokenizer.json"];
        assert_same_bytes(&whole, &crashed, &files);
        assert_eq!(metrics(&whole), metrics(&crashed));
    }
}

/// Replaces a run's CTC head by a head that predicts all letters. After a few steps of training, a
/// head predicts none.
fn write_all_letters(run: &Path) {
    let path = run.join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let mut bias = tensors["ctc_head.bias"].to_vec1::<f32>().unwrap();
    *bias.last_mut().unwrap() = -100.0;
    let bias = Tensor::new(bias.as_slice(), &Device::Cpu).unwrap();
    tensors.insert("ctc_head.bias".into(), bias);
    let weight: Vec<f32> = (0..29 * 144).map(|i| (i as f32 * 12.9898).sin() * 43.7 % 1.0).collect();
    let weight = Tensor::from_vec(weight, (29, 144, 1), &Device::Cpu).unwrap();
    tensors.insert("ctc_head.weight".into(), weight);
    std::fs::remove_file(&path).unwrap();
    candle_core::safetensors::save(&tensors, &path).unwrap();
    write_checksums(run).unwrap();
}

#[test]
fn each_phase_trains_its_parameters_and_the_run_is_an_asr_model() {
    let folder = tempfile::tempdir().unwrap();
    let (both, first) = (folder.path().join("both"), folder.path().join("first"));
    try_run(&both, &[], RunOptions::default()).unwrap();
    try_run(&first, &["phase.ctc.steps=0".into()], RunOptions::default()).unwrap();
    let open = |run: &Path| Weights::open(&run.join("model.safetensors")).unwrap();
    let (both_weights, first_weights) = (open(&both), open(&first));
    let tensor = |weights: &Weights, name: &str, shape: &[usize]| -> Vec<f32> {
        let tensor = weights.get(name, shape, candle_core::DType::F32, &Device::Cpu).unwrap();
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    };
    for (name, shape, is_trained) in [
        ("best_rq.projection", &[16, 320][..], false),
        ("best_rq.codebook", &[64, 16], false),
        ("best_rq.head.weight", &[64, 144], false),
        ("ctc_head.weight", &[29, 144, 1], true),
        ("encoder.layers.0.conv.depthwise_conv.weight", &[144, 1, 15], true),
    ] {
        let same = tensor(&both_weights, name, shape) == tensor(&first_weights, name, shape);
        assert_eq!(same, !is_trained, "{name} in the second phase");
    }
    let accuracy = |line: &Value| line["masked_accuracy"].as_f64();
    assert!(metrics(&first).iter().any(|line| accuracy(line).is_some()));

    // The run opens like any ASR model.
    write_all_letters(&both);
    let asr_model = AsrModel::open(both.to_str().unwrap(), &Compute::cpu()).unwrap();
    let voice = voices().unwrap().pop().unwrap();
    let samples = voice.sentence(&mut ChaCha8Rng::seed_from_u64(3)).samples;
    let options = TranscribeOptions { timestamps: true, ..TranscribeOptions::default() };
    let single = asr_model.transcribe(&[&samples], &[], &options).unwrap();
    let clips: [&[f32]; 4] = [&[0.0; 9], &samples, &[0.0; 16_000], &samples];
    let batch = asr_model.transcribe(&clips, &[], &options).unwrap();
    assert!(single[0].text.len() > 5, "{:?}", single[0].text);
    for transcript in [&batch[1], &batch[3]] {
        assert_eq!(
            (&transcript.text, &transcript.segments),
            (&single[0].text, &single[0].segments)
        );
        let likelihoods = [transcript.mean_log_probability, single[0].mean_log_probability];
        assert!((likelihoods[0] - likelihoods[1]).abs() < 1e-4, "{likelihoods:?}");
    }
    assert_eq!((batch[0].text.as_str(), batch[2].text.as_str()), ("", ""));

    // Boosted words for one of two clips, with any number of beams.
    for num_beams in [1, 4] {
        let options = TranscribeOptions { num_beams, ..options.clone() };
        asr_model.check(&options).unwrap();
        let without = asr_model.transcribe(&[&samples], &[], &options).unwrap().remove(0).text;
        assert!(num_beams > 1 || without == single[0].text);
        let tree = asr_model.boost_builder(Some(50.0)).unwrap().tree(&["Zebra", "zoo"]).unwrap();
        assert!(!without.contains("zebra"), "{without}");
        let boosts = [Some(tree), None];
        let boosted = asr_model.transcribe(&[&samples, &samples], &boosts, &options).unwrap();
        assert!(boosted[0].text.contains("zebra"), "{num_beams} beams: {}", boosted[0].text);
        assert_eq!(boosted[1].text, without);
        let log_probability = boosted[0].mean_log_probability;
        assert!(log_probability < boosted[1].mean_log_probability && log_probability.is_finite());
    }
    let error =
        asr_model.boost_builder(None).unwrap().tree(&["zoo", "café"]).unwrap_err().to_string();
    assert!(error.contains("'é' of \"café\""), "{error}");
    let silence = TranscribeOptions { padding: Padding::Silence, ..options };
    assert!(asr_model.check(&silence).unwrap_err().to_string().contains("`padding`"));
}

/// Writes clips of a voice and their manifest, and returns the manifest's path. `edit_line` can
/// change each line.
fn manifest(folder: &Path, edit_line: impl Fn(usize, &mut Value)) -> String {
    let voice = voices().unwrap().remove(0);
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: SAMPLE_RATE,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut text = String::new();
    for (i, clip) in voice.names.iter().take(6).enumerate() {
        let file = format!("{i}.wav");
        let mut writer = hound::WavWriter::create(folder.join(&file), spec).unwrap();
        clip.samples.iter().for_each(|s| writer.write_sample((s * 32_000.0) as i16).unwrap());
        writer.finalize().unwrap();
        let mut fields = serde_json::json!({ "audio": file, "text": clip.text });
        edit_line(i, &mut fields);
        text += &format!("{fields}\n");
    }
    let path = folder.join("clips.jsonl");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

/// The settings for a manifest as training, validation and test data.
fn settings_for(path: &str) -> Vec<String> {
    ["train", "validation", "test"].map(|part| format!("data.{part}={path}")).to_vec()
}

#[test]
fn clips_from_files_are_trained_on_and_too_short_clips_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = manifest(folder.path(), |i, line| {
        if i == 1 {
            line["text"] = "a".repeat(200).into();
        }
    });
    let mut set = settings_for(&path);
    let more = ["batch.examples=3", "phase.best_rq.steps=1", "data.noise_only=0"];
    set.extend(more.map(String::from));
    let run = folder.path().join("run");
    let summary = try_run(&run, &set, RunOptions::default()).unwrap();
    assert_eq!((summary.wer.map(|wer| wer.n), summary.names), (Some(6), None));
    let fractions: Vec<f64> =
        metrics(&run).iter().filter_map(|line| line["loss/too_short"].as_f64()).collect();
    // One clip is too short for its text: a third of one of the two batches in each epoch.
    assert_eq!(
        (fractions.len(), fractions.iter().filter(|fraction| **fraction > 0.3).count()),
        (6, 3)
    );
    // A batch of only clips that are too short does not stop training.
    set.extend(["batch.examples=1".into(), "phase.ctc.steps=12".into()]);
    let run = folder.path().join("one-by-one");
    try_run(&run, &set, RunOptions::default()).unwrap();
    assert!(metrics(&run).iter().all(|line| line["loss"].as_f64().is_none_or(f64::is_finite)));
}

#[test]
fn invalid_texts_clips_and_settings_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let error = |line: &dyn Fn(usize, &mut Value), more: &str| {
        let mut set = settings_for(&manifest(folder.path(), line));
        if !more.is_empty() {
            set.push(more.into());
        }
        let run = folder.path().join("run");
        with_causes(&try_run(&run, &set, RunOptions::default()).unwrap_err())
    };
    let with = |clip: usize, key: &'static str, value: Value| {
        move |i: usize, line: &mut Value| {
            if i == clip {
                line[key] = value.clone();
            }
        }
    };
    let found = error(&with(2, "text", "café".into()), "");
    assert!(found.contains("line 3") && found.contains("'é'"), "{found}");
    let found = error(&with(4, "text", Value::Null), "");
    assert!(found.contains("line 5") && found.contains("text"), "{found}");
    assert!(error(&with(0, "audio", "nowhere.wav".into()), "").contains("nowhere.wav"));
    for (set, expected) in [
        ("data.test=", "test"),
        ("data.speeds=[3.0]", "speeds"),
        ("data.noise_only=2", "noise_only"),
        ("data.max_seconds=0.2", "line"),
        ("batch.tokens=100", "tokens"),
        ("evaluation.early_stop=2", "early_stop"),
        ("model.best_rq.num_codes=0", "num_codes"),
        ("data.spec_augment.max_time_fraction=2.0", "max_time_fraction"),
    ] {
        let found = error(&|_, _| {}, set);
        assert!(found.contains(expected), "{found}");
    }
}

/// A run on audio alone, and a run that starts from it with another seed: it keeps the quantiser.
#[test]
fn a_run_on_audio_alone_initialises_another_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = manifest(folder.path(), |_, line| {
        line.as_object_mut().unwrap().remove("text");
    });
    let mut set = settings_for(&path);
    set.extend(["batch.examples=3".into(), "phase.ctc.steps=0".into()]);
    let first = folder.path().join("first");
    let summary = try_run(&first, &set, RunOptions::default()).unwrap();
    assert!(summary.wer.is_none());
    let evaluation = metrics(&first).into_iter().find(|line| line["kind"] == "evaluation").unwrap();
    assert!(evaluation["masked_accuracy"].is_f64() && evaluation.get("wer").is_none());

    let start = format!("start.run={}", first.display());
    let second = folder.path().join("second");
    let set = [start.clone(), "seed=2".into(), "phase.best_rq.steps=1".into()];
    try_run(&second, &set, RunOptions::default()).unwrap();
    let codebook = |run: &Path| {
        let tensors = candle_core::safetensors::load(run.join("model.safetensors"), &Device::Cpu);
        tensors.unwrap()["best_rq.codebook"].flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    assert!(codebook(&first) == codebook(&second));

    std::fs::write(first.join("tokenizer.json"), "{}").unwrap();
    let damaged =
        try_run(&folder.path().join("third"), std::slice::from_ref(&start), RunOptions::default());
    let Err(TrainError::Infer(error)) = damaged else { panic!("{damaged:?}") };
    assert!(matches!(*error, InferError::BadChecksum { .. }), "{error}");
    write_checksums(&first).unwrap();
    let error = try_run(&folder.path().join("third"), &[start], RunOptions::default());
    assert!(error.unwrap_err().to_string().contains("tokens"));
}

/// Texts are compared as the tokenizer decodes them.
#[test]
fn capitals_in_the_references_are_not_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = manifest(folder.path(), |_, line| {
        line["text"] = line["text"].as_str().unwrap().to_uppercase().into();
    });
    let run = folder.path().join("run");
    let mut set = settings_for(&path);
    set.push("batch.examples=3".into());
    try_run(&run, &set, RunOptions::default()).unwrap();
    let references = std::fs::read_to_string(run.join("ref.tsv")).unwrap();
    assert!(references.starts_with("0\tabacus\n"), "{references}");
}

/// A model that predicts all letters, and a recording of at least this number of seconds.
fn letters_model(folder: &Path, seconds: usize) -> (AsrModel, Vec<f32>) {
    let run = folder.join("run");
    try_run(&run, &["phase.best_rq.steps=0".into()], RunOptions::default()).unwrap();
    write_all_letters(&run);
    let voice = voices().unwrap().remove(0);
    let (mut rng, mut samples) = (ChaCha8Rng::seed_from_u64(1), Vec::new());
    while samples.len() < seconds * SAMPLE_RATE as usize {
        samples.extend(voice.sentence(&mut rng).samples);
    }
    (AsrModel::open(run.to_str().unwrap(), &Compute::cpu()).unwrap(), samples)
}

/// A recording of several windows has the concatenated text of its parts.
#[test]
fn a_long_recording_is_transcribed_completely() {
    let folder = tempfile::tempdir().unwrap();
    let (asr_model, samples) = letters_model(folder.path(), 63);
    let words = asr_model.boost_builder(Some(50.0)).unwrap().tree(&["zebra"]).unwrap();
    let boosted =
        TranscribeOptions { boost: Some(words), word_times: true, ..TranscribeOptions::default() };
    for length in [5, 21, 40, 41, 63] {
        let length = length * SAMPLE_RATE as usize;
        let mut blocks = samples[..length].chunks(7_777);
        let mut progress = Vec::new();
        let read = |buffer: &mut Vec<f32>| -> Result<bool, TrainError> {
            buffer.extend_from_slice(blocks.next().unwrap_or_default());
            Ok(blocks.len() > 0)
        };
        let options = TranscribeOptions::default();
        let long =
            asr_model.transcribe_long(&options, read, |_, done| progress.push(done)).unwrap();
        let whole = asr_model.transcribe(&[&samples[..length]], &[], &options).unwrap().remove(0);
        assert_eq!(long.seconds, whole.seconds);
        assert_eq!(progress.last(), Some(&long.seconds));
        // Words are returned only on request.
        assert!(long.words.is_empty() && whole.words.is_empty());
        let letters = |text: &str| text.chars().filter(|c| *c != ' ').count() as f64;
        let (found, expected) = (letters(&long.text), letters(&whole.text));
        assert!(
            expected > 5.0 && (found - expected).abs() < 0.2 * expected + 2.0,
            "{length}: {found}, {expected}"
        );
        let starts: Vec<f64> = long.segments.iter().map(|segment| segment.start).collect();
        assert!(starts.is_sorted() && long.segments.iter().all(|s| s.start < s.end));
    }
    // Boosted words apply in each window.
    let mut unread = Some(&samples[..41 * SAMPLE_RATE as usize]);
    let read = |buffer: &mut Vec<f32>| -> Result<bool, TrainError> {
        buffer.extend_from_slice(unread.take().unwrap_or_default());
        Ok(false)
    };
    let transcript = asr_model.transcribe_long(&boosted, read, |_, _| {}).unwrap();
    for window in [0.0..20.0, 20.0..41.0] {
        let mut words = transcript.words.iter().filter(|word| window.contains(&word.start));
        assert!(words.any(|word| word.text.contains("zebra")), "{window:?}: {}", transcript.text);
    }
}

/// With one chunk the text equals the whole clip's. With many chunks it is the same each time and
/// complete.
#[test]
fn a_stream_is_transcribed_completely() {
    let folder = tempfile::tempdir().unwrap();
    let (asr_model, samples) = letters_model(folder.path(), 45);
    let options = TranscribeOptions { word_times: true, ..TranscribeOptions::default() };
    let stream = |samples: &[f32], chunk_seconds: f64, window_seconds: f64| {
        let mut blocks = samples.chunks(7_777);
        let (mut progress, mut count) = (Vec::new(), 0);
        let read = |buffer: &mut Vec<f32>| -> Result<bool, TrainError> {
            buffer.extend_from_slice(blocks.next().unwrap_or_default());
            Ok(blocks.len() > 0)
        };
        let chunks = StreamOptions { chunk_seconds, window_seconds };
        let result = asr_model.transcribe_stream(&options, chunks, read, |pass| {
            progress.push(pass.received_seconds);
            count += pass.new.len();
        });
        result.map(|result| (result, progress, count))
    };
    let short = &samples[..8 * SAMPLE_RATE as usize];
    let whole = asr_model.transcribe(&[short], &[], &options).unwrap().remove(0);
    let (result, progress, _) = stream(short, 8.0, 8.0).unwrap();
    // One pass, and the end of the stream, which makes all words final.
    assert_eq!((result.passes, progress), (1, vec![8.0, 8.0]));
    let words: Vec<_> = result.words.iter().map(|word| word.word.clone()).collect();
    assert!(words == whole.words && !words.is_empty());

    let length = samples.len() as f64 / f64::from(SAMPLE_RATE);
    let (result, progress, count) = stream(&samples, 2.0, 10.0).unwrap();
    assert_eq!((result.passes + 1, progress.last()), (progress.len(), Some(&length)));
    assert!(count == result.words.len() && result.transcript.seconds == length);
    assert!(result.words.last().is_some_and(|last| last.word.end > length - 5.0));
    let (repeated, ..) = stream(&samples, 2.0, 10.0).unwrap();
    assert_eq!(repeated.transcript, result.transcript);
    let error = stream(&samples, 2.0, 19.0).map(drop).unwrap_err().to_string();
    assert!(error.contains("2 to 18 s"), "{error}");
}

/// Settings for a run with another decoder and without BEST-RQ.
fn with_decoder(decoder: &str, objective: &str) -> Vec<String> {
    vec![
        "phase.best_rq.steps=0".into(),
        "phase.best_rq.group=[]".into(),
        format!("model.decoder={decoder}"),
        format!("phase.ctc.feed.objective=\"{objective}\""),
    ]
}

const DECODERS: [(&str, &str, &str); 3] = [
    ("{ kind = \"transducer\", width = 16, joint_width = 16 }", "transducer", "joint.head.weight"),
    (
        "{ kind = \"transducer\", prediction = \"stateless\", width = 16, joint_width = 16 }",
        "transducer",
        "decoder.conv.weight",
    ),
    ("{ kind = \"attention\", layers = 1 }", "attention", "decoder.layers.0.fc1.weight"),
];

/// A run with any decoder resumes to the same bytes, and opens as an ASR model that transcribes
/// clips, long recordings and streams.
#[test]
fn runs_with_other_decoders_are_asr_models() {
    let folder = tempfile::tempdir().unwrap();
    let voice = voices().unwrap().pop().unwrap();
    let samples = voice.sentence(&mut ChaCha8Rng::seed_from_u64(3)).samples;
    for (i, (decoder, objective, parameter)) in DECODERS.into_iter().enumerate() {
        let set = with_decoder(decoder, objective);
        let whole = folder.path().join(format!("whole-{i}"));
        let summary = try_run(&whole, &set, RunOptions::default()).unwrap();
        assert_eq!((summary.steps, summary.wer.map(|wer| wer.n)), (6, Some(3)));
        let crashed = folder.path().join(format!("crashed-{i}"));
        crash_at_checkpoint(&crashed, 3, |options| try_run(&crashed, &set, options));
        try_run(&crashed, &set, resumed()).unwrap();
        assert_same_bytes(&whole, &crashed, &["model.safetensors", "hyp.tsv", "config.json"]);
        let tensors = candle_core::safetensors::load(whole.join("model.safetensors"), &Device::Cpu);
        assert!(tensors.unwrap().contains_key(parameter), "{parameter}");

        let asr_model = AsrModel::open(whole.to_str().unwrap(), &Compute::cpu()).unwrap();
        for num_beams in [1, 3] {
            let options =
                TranscribeOptions { num_beams, word_times: true, ..TranscribeOptions::default() };
            let clips: [&[f32]; 3] = [&samples, &[0.0; 16_000], &samples];
            let texts = asr_model.transcribe(&clips, &[], &options).unwrap();
            assert_eq!((&texts[0].text, texts[1].text.as_str()), (&texts[2].text, ""));
            assert!(texts[0].mean_log_probability.is_finite());
        }
        let options = TranscribeOptions::default();
        let read = |unread: &mut Option<Vec<f32>>, buffer: &mut Vec<f32>| {
            buffer.extend(unread.take().unwrap_or_default());
            Ok::<bool, TrainError>(false)
        };
        let recording = samples.repeat(1 + 25 * SAMPLE_RATE as usize / samples.len());
        let mut unread = Some(recording.clone());
        let long =
            asr_model.transcribe_long(&options, |buffer| read(&mut unread, buffer), |_, _| {});
        assert!(long.unwrap().seconds > 25.0);
        let chunks = StreamOptions { chunk_seconds: 4.0, window_seconds: 8.0 };
        let mut unread = Some(recording);
        let stream = asr_model.transcribe_stream(
            &options,
            chunks,
            |buffer| read(&mut unread, buffer),
            |_| {},
        );
        assert!(stream.unwrap().transcript.seconds > 25.0);
    }
}

#[test]
fn an_objective_of_another_decoder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (set, message) in [
        (with_decoder(DECODERS[0].0, "ctc"), "set it to \"transducer\""),
        (with_decoder("{ kind = \"ctc\" }", "attention"), "set it to \"ctc\""),
        (with_decoder("{ kind = \"ctc\", width = 3 }", "ctc"), "width"),
        (with_decoder("{ kind = \"transducer\", width = 0 }", "transducer"), "decoder_hidden_size"),
        (with_decoder("{ kind = \"rnn\" }", "ctc"), "rnn"),
    ] {
        let error = try_run(&folder.path().join("run"), &set, RunOptions::default());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
