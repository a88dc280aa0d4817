//! AVFormer's study on frozen recognisers of random weights: both phases, a run that is stopped, the
//! finished run as adapters, clips that cannot be seen.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::Device;
use engram_data::speech::tokens::SpeechTokeniser;
use engram_data::world::questions::Split;
use engram_models::conformer::{ConformerConfig, ConformerCtc};
use engram_models::params::{ParameterBuilder, Parameters};
use engram_models::whisper::{Whisper, WhisperConfig};
use engram_train::recognise::{
    AdaptedClip, AdaptedRecogniser, AddedTo, Listener, RecogniseOptions, evenly,
};
use engram_train::studies::avformer::corpus::Corpus;
use engram_train::studies::avformer::run::{AvformerSummary, train_avformer};
use engram_train::studies::avformer::settings::AvformerData;
use engram_train::studies::clip::run::train_clip;
use engram_train::studies::speech::model::ctc_config;
use engram_train::{Recipe, RecipeOptions, RunOptions, TrainError};
use image::RgbImage;
use serde_json::{Value, json};

const RECIPE: &str = r#"
study = "avformer"
seed = 1

[data]
names = 3
clips = 12
validation_clips = 3
test_clips = 6
views = 2
view_size = 16
frames = 2
sweep_snr_db = [0.0]
sweep_clips = 3

[model]
adapters = { bottleneck = 4 }

[batch]
examples = 4

[optimiser]
learning_rate = 1e-2

[evaluation]
every_epochs = 0
keep_best = false

[checkpoint]
every_steps = 3

[log]
every_steps = 1
tensorboard = false

[gradient_check]
allow = ["adapters.*.norm.*", "adapters.*.down.*"]

[[phase]]
name = "adapters"
steps = 5
feed = { pictures = false }
group = [{ match = "projection.**", rate = 0.0 }]

[[phase]]
name = "projection"
steps = 5
feed = { pictures = true, blanked = 0.5, mismatched = 0.2 }
group = [{ match = "adapters.**", rate = 0.0 }]

[check]
files = ["model.safetensors"]
"#;

const CLIP_RECIPE: &str = r#"
study = "clip"
seed = 1
[data]
pictures = 20
test_views = 1
[model]
image_size = 16
patch_size = 8
hidden_size = 16
intermediate_size = 16
num_hidden_layers = 1
num_attention_heads = 2
[batch]
examples = 20
[log]
tensorboard = false
[[phase]]
name = "clip"
epochs = 1
[check]
files = ["model.safetensors"]
"#;

/// Frozen models in a folder of their own.
struct Frozen {
    folder: tempfile::TempDir,
}

impl Frozen {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = RecipeOptions::default();
        let mut recipe = Recipe::parse(CLIP_RECIPE, Path::new("clip.toml"), &options).unwrap();
        let run = RunOptions { run: folder.path().join("clip"), quiet: true, ..Default::default() };
        train_clip(&mut recipe, &run).unwrap().unwrap();
        whisper(&folder.path().join("whisper"), 7);
        conformer(&folder.path().join("conformer"));
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A sound that changes.
    fn write_sound(&self, name: &str, samples: usize) {
        let spec = hound::WavSpec {
            channels: 1,
            sample_rate: 16_000,
            bits_per_sample: 16,
            sample_format: hound::SampleFormat::Int,
        };
        let mut file = hound::WavWriter::create(self.path(name), spec).unwrap();
        for i in 0..samples {
            file.write_sample(((i as f32 * 0.2).sin() * (i % 4_000) as f32) as i16).unwrap();
        }
        file.finalize().unwrap();
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn try_run(
        &self,
        run: &str,
        recogniser: &str,
        set: &[&str],
        options: RunOptions,
    ) -> Result<Option<AvformerSummary>, TrainError> {
        let mut all = vec![
            format!("model.recogniser={}", self.text(recogniser)),
            format!("model.image_encoder={}", self.text("clip")),
        ];
        all.extend(set.iter().map(|one| (*one).to_owned()));
        let options_of_recipe = RecipeOptions { tiny: false, set: all };
        let mut recipe = Recipe::parse(RECIPE, Path::new("test.toml"), &options_of_recipe)?;
        train_avformer(&mut recipe, &RunOptions { run: self.path(run), quiet: true, ..options })
    }

    fn run(&self, run: &str, recogniser: &str, set: &[&str]) -> AvformerSummary {
        self.try_run(run, recogniser, set, RunOptions::default()).unwrap().unwrap()
    }

    fn refused(&self, set: &[&str], wanted: &[&str]) {
        let error = self.try_run("refused", "whisper", set, RunOptions::default()).unwrap_err();
        let mut told = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            told += &format!(": {error}");
            source = error.source();
        }
        for wanted in wanted {
            assert!(told.contains(wanted), "{told}");
        }
    }
}

fn write_model(folder: &Path, config: &Value, tokenizer: &str, parameters: &Parameters) {
    std::fs::create_dir(folder).unwrap();
    let tensors: HashMap<String, _> = parameters
        .iter()
        .map(|one| (one.name().to_string(), one.tensor().contiguous().unwrap()))
        .collect();
    candle_core::safetensors::save(&tensors, folder.join("model.safetensors")).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
}

/// A small Whisper model that writes letters.
fn whisper(folder: &Path, seed: u64) {
    let letters: Value =
        serde_json::from_str(&SpeechTokeniser::letters().unwrap().json().unwrap()).unwrap();
    let mut tokenizer = letters;
    let special = |(id, name): (u32, &str)| {
        json!({"id": id, "content": name, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false})
    };
    let names = [(28, "<|endoftext|>"), (29, "<|startoftranscript|>"), (30, "<|notimestamps|>")];
    tokenizer["added_tokens"] = names.map(special).to_vec().into();
    for (id, name) in names {
        tokenizer["model"]["vocab"][name] = id.into();
    }
    let config = json!({
        "model_type": "whisper", "vocab_size": 34, "num_mel_bins": 80, "d_model": 16,
        "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24,
        "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 24,
        "decoder_start_token_id": 29, "eos_token_id": 28, "max_source_positions": 1500,
        "max_target_positions": 60, "init_std": 0.5,
    });
    let path = folder.with_extension("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let builder = ParameterBuilder::on_cpu(seed);
    Whisper::new(&WhisperConfig::read(&path).unwrap(), &builder).unwrap();
    write_model(folder, &config, &tokenizer.to_string(), &builder.finish().unwrap());
}

/// A small Conformer.
fn conformer(folder: &Path) {
    let encoder = ConformerConfig { num_hidden_layers: 1, ..ConformerConfig::tiny() };
    let tokeniser = SpeechTokeniser::letters().unwrap();
    let config = ctc_config(&encoder, tokeniser.vocabulary_size());
    let builder = ParameterBuilder::on_cpu(3);
    ConformerCtc::new(&config, &builder).unwrap();
    let mut json = serde_json::to_value(&config).unwrap();
    json["model_type"] = "parakeet_ctc".into();
    write_model(folder, &json, &tokeniser.json().unwrap(), &builder.finish().unwrap());
}

fn lines(path: PathBuf) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_string).collect()
}

fn tensor(run: &Path, name: &str) -> Vec<f32> {
    let file = run.join("model.safetensors");
    let tensors = candle_core::safetensors::load(file, &Device::Cpu).unwrap();
    tensors[name].flatten_all().unwrap().to_vec1().unwrap()
}

/// Both phases of both recognisers: each moves its own parameters, and nothing of the frozen models.
#[test]
fn phases_move_what_is_theirs_and_the_test_hears_all_systems() {
    let frozen = Frozen::new();
    for recogniser in ["whisper", "conformer"] {
        let before = std::fs::read(frozen.path(recogniser).join("model.safetensors")).unwrap();
        let run = format!("{recogniser}-run");
        let summary = frozen.run(&run, recogniser, &[]);
        assert_eq!((summary.steps, &summary.check_failures), (10, &Vec::new()));
        assert_eq!(summary.frozen[0], summary.frozen[1]);
        let after = std::fs::read(frozen.path(recogniser).join("model.safetensors")).unwrap();
        assert_eq!(before, after);
        let run = frozen.path(&run);
        assert!(tensor(&run, "projection.weight").iter().any(|value| *value != 0.0));
        let systems: Vec<(&str, &str)> = summary
            .test
            .systems
            .iter()
            .map(|one| (one.utterances.as_str(), one.system.as_str()))
            .collect();
        let noisy = ["frozen", "nothing", "right", "wrong", "zero"].map(|one| ("noisy", one));
        let clean = ["frozen", "nothing", "right", "wrong"].map(|one| ("clean", one));
        assert_eq!(systems, [&noisy[..], &clean[..]].concat());
        for (utterances, system) in systems {
            let texts = lines(run.join(format!("test/{utterances}.{system}.tsv")));
            let items = lines(run.join(format!("test/{utterances}.{system}.items.jsonl")));
            assert_eq!((texts.len(), items.len()), (6, 6));
        }
        assert_eq!(summary.test.sweep.len(), 2);
        assert!(summary.test.put_in.is_some() && summary.test.rescued.is_some());

        // The adapters are those of the first phase; the projection has not moved in it.
        let first = frozen.run(
            &format!("{recogniser}-first"),
            recogniser,
            &["phase.projection.steps=0", "data.frozen_baseline=false", "data.sweep_clips=0"],
        );
        let first_run = frozen.path(&format!("{recogniser}-first"));
        let name = "adapters.1.up.weight";
        let name = if recogniser == "whisper" { name } else { "adapters.0.up.weight" };
        assert_eq!(tensor(&run, name), tensor(&first_run, name));
        assert!(tensor(&first_run, name).iter().any(|value| *value != 0.0));
        assert!(tensor(&first_run, "projection.weight").iter().all(|value| *value == 0.0));
        let names: Vec<&str> = first.test.systems.iter().map(|one| one.system.as_str()).collect();
        assert_eq!(names, ["nothing", "nothing"]);
        assert!(first.parameters[0] < summary.parameters[0]);
    }
}

#[test]
fn a_run_that_was_stopped_ends_with_the_same_bytes() {
    let frozen = Frozen::new();
    let kept = format!("data.embeddings={}", frozen.text("embeddings"));
    let quick = ["data.sweep_clips=0", "data.frozen_baseline=false", "model.first_token=mean"];
    let set = [quick[0], quick[1], quick[2], &kept];
    frozen.run("whole", "whisper", &set);
    // The runs that follow read its embeddings; a damaged file is made anew.
    let stored = std::fs::read_dir(frozen.path("embeddings")).unwrap().next().unwrap().unwrap();
    let bytes = std::fs::read(stored.path()).unwrap();
    std::fs::write(stored.path(), &bytes[..100]).unwrap();
    for stop in [4, 7] {
        let run = format!("stopped-{stop}");
        let options = RunOptions { stop_after_steps: Some(stop), ..RunOptions::default() };
        assert!(frozen.try_run(&run, "whisper", &set, options).unwrap().is_none());
        let options = RunOptions { resume: true, ..RunOptions::default() };
        frozen.try_run(&run, "whisper", &set, options).unwrap().unwrap();
        for file in ["model.safetensors", "test/noisy.right.tsv", "summary.json"] {
            let [whole, resumed] =
                ["whole", &run].map(|run| std::fs::read(frozen.path(run).join(file)).unwrap());
            assert!(whole == resumed, "{file}");
        }
    }
    assert_eq!(std::fs::read(stored.path()).unwrap(), bytes);
    assert!(tensor(&frozen.path("whole"), "projection.bias").iter().any(|value| *value != 0.0));
}

/// A finished run as adapters: the texts that its test has, from the files of sound and pictures; off
/// again, the recogniser's own.
#[test]
fn adapters_are_switched_on_and_off_by_name() {
    let frozen = Frozen::new();
    frozen.run("run", "whisper", &["data.sweep_clips=0"]);
    let data = AvformerData {
        names: 3,
        clips: 12,
        test_clips: 6,
        views: 2,
        view_size: 16,
        frames: 2,
        ..AvformerData::default()
    };
    let corpus = Corpus::load(&data, 1).unwrap();
    let clips = corpus.evaluated(Split::Test, false).unwrap();
    let picture = |place: &usize| {
        let path = frozen.path(&format!("{place}.png"));
        let (seen, _) = corpus.picture(*place).unwrap();
        let image = RgbImage::from_raw(seen.width(), seen.height(), seen.pixels().to_vec());
        image.unwrap().save(&path).unwrap();
        path
    };
    let whisper = || Listener::open(&frozen.text("whisper")).unwrap();
    let mut adapted = AdaptedRecogniser::new(whisper());
    adapted.add("names", &frozen.path("run"), None).unwrap();
    assert_eq!(adapted.frames(), 0);
    let heard = |adapted: &AdaptedRecogniser| -> Vec<String> {
        let clip = |clip: &engram_train::studies::avformer::corpus::SeenClip| {
            let pictures: Vec<PathBuf> = evenly(&clip.frames, 2).map(picture).collect();
            let embeddings = adapted.see(&pictures).unwrap();
            AdaptedClip { samples: clip.samples.clone(), embeddings }
        };
        adapted.transcribe(&clips.iter().map(clip).collect::<Vec<_>>()).unwrap()
    };
    let samples: Vec<&[f32]> = clips.iter().map(|clip| clip.samples.as_slice()).collect();
    let own = whisper().transcribe(&samples, &[], &RecogniseOptions::default()).unwrap();
    let own: Vec<String> = own.into_iter().map(|transcript| transcript.text).collect();
    assert_eq!(heard(&adapted), own);
    adapted.switch(Some("names")).unwrap();
    assert_eq!(adapted.frames(), 2);
    let seen = heard(&adapted);
    let expected: Vec<String> = lines(frozen.path("run/test/noisy.right.tsv"))
        .iter()
        .map(|line| line.split_once('\t').unwrap().1.to_string())
        .collect();
    let one_line = |text: &String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(seen.iter().map(one_line).collect::<Vec<_>>(), expected);
    assert_ne!(seen, own);
    adapted.switch(None).unwrap();
    assert_eq!(heard(&adapted), own);

    let told = adapted.switch(Some("other")).unwrap_err().to_string();
    assert!(told.contains("no adapters `other`; there are: names"), "{told}");
    let refused = |listener: Listener, encoder: Option<&str>, wanted: &str| {
        let mut adapted = AdaptedRecogniser::new(listener);
        let told = adapted.add("x", &frozen.path("run"), encoder).unwrap_err().to_string();
        assert!(told.contains(wanted), "{told}");
    };
    whisper_of_another_seed(&frozen);
    refused(Listener::open(&frozen.text("other")).unwrap(), None, "trained for the recogniser");
    refused(whisper(), Some(&frozen.text("other-clip")), "other-clip");
    let none = adapted.add("y", &frozen.path("clip"), None).unwrap_err().to_string();
    assert!(none.contains("config.json") && none.contains("engram train avformer"), "{none}");
}

/// A run without frames needs no image encoder, and sees nothing as adapters either.
#[test]
fn adapters_alone_see_nothing() {
    let frozen = Frozen::new();
    let alone = ["phase.projection.steps=0", "data.sweep_clips=0", "data.frozen_baseline=false"];
    let set = [alone[0], alone[1], alone[2], "model.image_encoder="];
    let summary = frozen.run("alone", "whisper", &set);
    let all = AddedTo::read(&frozen.path("alone")).unwrap();
    assert_eq!((all.frames, all.image_encoder_sha256.as_str()), (0, ""));
    let mut adapted = AdaptedRecogniser::new(Listener::open(&frozen.text("whisper")).unwrap());
    adapted.add("alone", &frozen.path("alone"), None).unwrap();
    adapted.switch(Some("alone")).unwrap();
    assert_eq!(adapted.frames(), 0);
    assert!(adapted.see(&[frozen.path("no.png")]).unwrap().is_empty());
    assert!(summary.parameters[0] > 0);

    // Embeddings of another width are refused.
    frozen.run("run", "whisper", &["data.sweep_clips=0", "data.frozen_baseline=false"]);
    adapted.add("seeing", &frozen.path("run"), None).unwrap();
    adapted.switch(Some("seeing")).unwrap();
    let clip = AdaptedClip { samples: vec![0.1; 8_000], embeddings: vec![0.0; 7] };
    let told = adapted.transcribe(&[clip]).unwrap_err().to_string();
    assert!(told.contains("no embeddings of up to 2 pictures"), "{told}");
    // Nor does a run start from one of another recogniser.
    whisper_of_another_seed(&frozen);
    let start = format!("start.run={}", frozen.text("run"));
    let told = frozen.try_run("on", "other", &[&start], RunOptions::default()).unwrap_err();
    assert!(told.to_string().contains("trained for another recogniser"), "{told}");
}

/// Speech that is rehearsed and speech that is measured come from manifests.
#[test]
fn clean_speech_is_rehearsed() {
    let frozen = Frozen::new();
    frozen.write_sound("r.wav", 9_000);
    let line = "{\"audio\":\"r.wav\",\"text\":\"said before\"}\n";
    std::fs::write(frozen.path("rehearsal.jsonl"), line).unwrap();
    let manifest = frozen.text("rehearsal.jsonl");
    let [rehearsal, kept] = ["rehearsal", "kept"].map(|key| format!("data.{key}={manifest}"));
    let set = [
        rehearsal.as_str(),
        &kept,
        "data.sweep_clips=0",
        "phase.adapters.feed.rehearsal=0.5",
        "phase.adapters.feed.share=0.5",
        "phase.projection.feed.rehearsal=0.5",
    ];
    let summary = frozen.run("run", "whisper", &set);
    let kept = summary.test.systems.iter().filter(|one| one.utterances == "kept");
    let kept: Vec<&str> = kept.map(|one| one.system.as_str()).collect();
    assert_eq!(kept, ["frozen", "nothing"]);
}

fn whisper_of_another_seed(frozen: &Frozen) {
    whisper(&frozen.path("other"), 8);
}

/// Clips of manifests learn too; one that cannot be seen ends the run, or is left out and counted.
#[test]
fn clips_that_cannot_be_seen_are_named() {
    let frozen = Frozen::new();
    frozen.write_sound("a.wav", 12_000);
    frozen.write_sound("long.wav", 16_000 * 3);
    frozen.write_sound("short.wav", 100);
    let picture = |x: u32, y: u32| image::Rgb([x as u8 * 9, y as u8 * 7, 3]);
    RgbImage::from_fn(20, 20, picture).save(frozen.path("a.png")).unwrap();
    std::fs::write(frozen.path("broken.png"), "no picture").unwrap();
    let good = |id: usize| {
        format!(
            "{{\"id\":\"{id}\",\"audio\":\"a.wav\",\"text\":\"cat {}\",\"frames\":[\"a.png\"]}}\n",
            ["one", "two"][id % 2]
        )
    };
    let all: String = (0..6).map(good).collect();
    std::fs::write(frozen.path("good.jsonl"), &all).unwrap();
    let [train, validation, test] = ["train", "validation", "test"]
        .map(|name| format!("data.{name}={}", frozen.text("good.jsonl")));
    let quick = ["data.sweep_clips=0", "data.frozen_baseline=false"];
    let set = [&train, &validation, &test, quick[0], quick[1]];
    let summary = frozen.run("files", "whisper", &set);
    let systems: Vec<&str> = summary.test.systems.iter().map(|one| one.system.as_str()).collect();
    assert_eq!(systems, ["nothing", "right", "wrong", "zero"]);
    assert!(summary.left_out.is_empty());

    let bad = [
        ("\"frames\":[\"broken.png\"]", "broken.png"),
        ("\"frames\":[\"gone.png\"]", "gone.png"),
        (
            "\"frames\":[{\"image\":\"a.png\",\"time\":9}],\"end\":0.5",
            "seen at 9 s, outside the clip",
        ),
        ("\"speaker\":\"s\"", "has no frames"),
    ];
    // What cannot be heard or written ends it in any case, before anything is trained.
    let max = "data.max_seconds=2";
    let long = ["cat"; 16].join(" ");
    for (audio, text, wanted) in [
        ("long.wav", "cat", "3.0 s are more than data.max_seconds = 2"),
        ("short.wav", "cat", "less than a token"),
        ("gone.wav", "cat", "no such sound file"),
        ("a.wav", "CAF\u{c9}", "is not in the vocabulary"),
        ("a.wav", &long, "positions"),
    ] {
        let line = json!({"id": "x", "audio": audio, "text": text, "frames": ["a.png"]});
        std::fs::write(frozen.path("odd.jsonl"), format!("{all}{line}\n")).unwrap();
        let train = format!("data.train={}", frozen.text("odd.jsonl"));
        let set = [train.as_str(), &validation, &test, quick[0], quick[1], max];
        frozen.refused(&set, &["odd.jsonl", "line 7", wanted]);
    }
    for (i, (fields, wanted)) in bad.into_iter().enumerate() {
        let line = format!("{{\"id\":\"bad\",\"audio\":\"a.wav\",\"text\":\"cat\",{fields}}}\n");
        let file = format!("bad-{i}.jsonl");
        std::fs::write(frozen.path(&file), all.clone() + &line).unwrap();
        let train = format!("data.train={}", frozen.text(&file));
        let set = [&train, &validation, &test, quick[0], quick[1]];
        frozen.refused(&set, &[&file, "line 7", wanted, "data.on_error"]);
        let skip = "data.on_error=skip";
        let set = [&train, &validation, &test, quick[0], quick[1], skip];
        let summary = frozen.run(&format!("skipped-{i}"), "whisper", &set);
        assert_eq!(summary.left_out.len(), 1);
        assert!(summary.left_out[0].contains(wanted), "{:?}", summary.left_out);
    }
}

#[test]
fn settings_that_cannot_be_are_named() {
    let frozen = Frozen::new();
    for (set, wanted) in [
        ("data.names=0", "data.names"),
        ("data.nmes=3", "nmes"),
        ("data.train=x.jsonl", "data.train"),
        ("data.test_snr_db=[3.0, 1.0]", "data.test_snr_db"),
        ("model.image_encoder=", "model.image_encoder"),
        ("phase.projection.feed.mismatched=1.5", "mismatched"),
        ("phase.adapters.feed.blanked=0.5", "blanked"),
        ("phase.adapters.feed.rehearsal=0.5", "data.rehearsal"),
        ("batch.tokens=7", "batch.tokens"),
        ("data.sweep_snr_db=[nan]", "data.sweep_snr_db"),
        ("data.test_noise=[]", "data.noise"),
        ("data.frames=3", "data.frames"),
        ("data.view_size=5000", "data.view_size"),
    ] {
        frozen.refused(&[set], &[wanted]);
    }
}
