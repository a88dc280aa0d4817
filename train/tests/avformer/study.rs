//! Both phases, a crashed run, and the finished run as adapters.

use engram_models::compute::Compute;
use std::collections::BTreeMap;
use std::path::PathBuf;

use candle_core::Device;
use engram_data::world::questions::Split;
use engram_infer::asr::{
    AdaptedAsrModel, AdaptedClip, AsrModel, AvformerRunConfig, TranscribeOptions, sample_evenly,
};
use engram_train::studies::avformer::corpus::Corpus;
use engram_train::studies::avformer::settings::AvformerData;
use engram_train::studies::avformer::study::AvformerStudy;
use engram_train::{RunOptions, train, write_checksums};
use image::RgbImage;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::frozen::{Frozen, lines, tensor, train_image_encoder, write_whisper};
use crate::runs::{assert_same_bytes, crash_at_checkpoint, resumed};

/// Both phases with all ASR models: each phase trains its own parameters, and the frozen models do
/// not change.
#[test]
fn phases_train_their_parameters_and_the_test_measures_all_systems() {
    let frozen = Frozen::new();
    for asr_model in ["whisper", "conformer", "transducer", "attention"] {
        let before = std::fs::read(frozen.path(asr_model).join("model.safetensors")).unwrap();
        let run = format!("{asr_model}-run");
        let summary = frozen.run(&run, asr_model, &[]);
        assert_eq!((summary.steps, &summary.check_failures), (10, &Vec::new()));
        assert_eq!(summary.frozen[0], summary.frozen[1]);
        let after = std::fs::read(frozen.path(asr_model).join("model.safetensors")).unwrap();
        assert_eq!(before, after);
        let run = frozen.path(&run);
        assert!(tensor(&run, "projection.weight").iter().any(|value| *value != 0.0));
        let systems: Vec<(&str, &str)> = summary
            .test
            .systems
            .iter()
            .map(|metrics| (metrics.utterances.as_str(), metrics.system.as_str()))
            .collect();
        let noisy = ["frozen", "no_frames", "right_frames", "wrong_frames", "zero_frames"]
            .map(|system| ("noisy", system));
        let clean =
            ["frozen", "no_frames", "right_frames", "wrong_frames"].map(|system| ("clean", system));
        assert_eq!(systems, [&noisy[..], &clean[..]].concat());
        for (utterances, system) in systems {
            let texts = lines(run.join(format!("test/{utterances}.{system}.tsv")));
            let items = lines(run.join(format!("test/{utterances}.{system}.items.jsonl")));
            assert_eq!((texts.len(), items.len()), (6, 6));
        }
        assert_eq!(summary.test.sweep.len(), 2);
        for swept in ["clean.no_frames", "0dB.right_frames", "0dB.wrong_frames"] {
            let items = lines(run.join(format!("test/sweep.{swept}.items.jsonl")));
            assert_eq!(items.len(), 3);
        }
        assert!(summary.test.shown_name_inserted.is_some() && summary.test.rescued.is_some());

        // The first phase trains the adapters and leaves the projection unchanged.
        let first = frozen.run(
            &format!("{asr_model}-first"),
            asr_model,
            &["phase.projection.steps=0", "data.frozen_baseline=false", "data.sweep_clips=0"],
        );
        let first_run = frozen.path(&format!("{asr_model}-first"));
        let name = "adapters.1.up.weight";
        let name = if asr_model == "whisper" { name } else { "adapters.0.up.weight" };
        assert_eq!(tensor(&run, name), tensor(&first_run, name));
        assert!(tensor(&first_run, name).iter().any(|value| *value != 0.0));
        assert!(tensor(&first_run, "projection.weight").iter().all(|value| *value == 0.0));
        let names: Vec<&str> =
            first.test.systems.iter().map(|metrics| metrics.system.as_str()).collect();
        assert_eq!(names, ["no_frames", "no_frames"]);
        assert!(first.parameters[0] < summary.parameters[0]);
    }
}

#[test]
fn a_crashed_run_ends_with_the_same_bytes_on_any_number_of_threads() {
    let frozen = Frozen::new();
    let cache = format!("data.cache={}", frozen.path_text("cache"));
    let set = ["data.sweep_clips=0", "model.projection_bias_init=mean", &cache];
    frozen.run("whole", "whisper", &set);
    // Later runs read the cached embeddings and texts. Damaged files are replaced.
    let cache_files = std::fs::read_dir(frozen.path("cache")).unwrap();
    let cache_files: Vec<PathBuf> = cache_files.map(|file| file.unwrap().path()).collect();
    assert_eq!(cache_files.len(), 2);
    let bytes: Vec<Vec<u8>> = cache_files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    for (file, bytes) in cache_files.iter().zip(&bytes) {
        std::fs::write(file, &bytes[..100]).unwrap();
    }
    for (step, threads) in [(5, 1), (8, 4)] {
        let run = format!("crashed-{step}");
        let train = |options| frozen.try_run(&run, "whisper", &set, options);
        crash_at_checkpoint(&frozen.path(&run), step, train);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| train(resumed()).unwrap());
        let files = ["model.safetensors", "test/noisy.right_frames.tsv", "summary.json"];
        assert_same_bytes(&frozen.path("whole"), &frozen.path(&run), &files);
    }
    for (file, bytes) in cache_files.iter().zip(&bytes) {
        assert!(std::fs::read(file).unwrap() == *bytes, "{}", file.display());
    }
    // Cached texts are not transcribed again. The file has a hash, the JSON's length, and JSON.
    let is_texts = |file: &&PathBuf| file.extension().is_some_and(|end| end == "texts");
    let texts = cache_files.iter().find(is_texts).unwrap();
    let content = std::fs::read(texts).unwrap();
    let mut batches: BTreeMap<String, Vec<String>> =
        serde_json::from_slice(&content[40..]).unwrap();
    batches.values_mut().flatten().for_each(|text| *text = "of the file".to_owned());
    let json = serde_json::to_vec(&batches).unwrap();
    let content = [&(json.len() as u64).to_le_bytes()[..], &json].concat();
    std::fs::write(texts, [&Sha256::digest(&content)[..], &content].concat()).unwrap();
    frozen.run("again", "whisper", &set);
    let texts = std::fs::read_to_string(frozen.path("again/test/noisy.frozen.tsv")).unwrap();
    assert!(texts.lines().all(|line| line.ends_with("\tof the file")), "{texts}");
    assert!(tensor(&frozen.path("whole"), "projection.bias").iter().any(|value| *value != 0.0));
}

/// Alternating phases each train their own parameters, from the values of the previous phase.
#[test]
fn alternating_phases_train_only_their_own_parameters() {
    let frozen = Frozen::new();
    let phase = |number: usize| {
        let (frames, frozen_part) = (number > 0, ["projection", "adapters"][number % 2]);
        format!(
            "{{ name = \"p{number}\", steps = 3, feed = {{ frames = {frames} }}, \
             group = [{{ match = \"{frozen_part}.**\", rate = 0.0 }}] }}"
        )
    };
    let runs = [2, 3, 4].map(|count| {
        let phases: Vec<String> = (0..count).map(phase).collect();
        let phases = format!("phase=[{}]", phases.join(", "));
        let run = format!("{count}-phases");
        let quick = ["data.sweep_clips=0", "data.frozen_baseline=false", &phases];
        assert_eq!(frozen.run(&run, "whisper", &quick).steps, 3 * count as u64);
        ["adapters.1.up.weight", "projection.weight"].map(|name| tensor(&frozen.path(&run), name))
    });
    let [[adapters_2, projection_2], [adapters_3, projection_3], [adapters_4, projection_4]] = runs;
    assert!(projection_2 == projection_3 && adapters_3 == adapters_4);
    assert!(adapters_2 != adapters_3 && projection_3 != projection_4);
}

/// Images are encoded once, before the first step. Image encoder and image files are not needed
/// later, even if audio is embedded in each step.
#[test]
fn no_image_is_encoded_during_training() {
    let frozen = Frozen::new();
    frozen.write_audio("a.wav", 12_000);
    let clips: String = (0..6_u8)
        .map(|i| {
            let name = format!("{i}.png");
            let colour = image::Rgb([40 * i, 255 - 40 * i, 90]);
            RgbImage::from_pixel(16, 16, colour).save(frozen.path(&name)).unwrap();
            let line = json!({"id": name, "audio": "a.wav", "text": "cat", "frames": [name]});
            format!("{line}\n")
        })
        .collect();
    std::fs::write(frozen.path("clips.jsonl"), clips).unwrap();
    for state_cache_gb in ["8", "0"] {
        let mut set = ["train", "validation", "test"]
            .map(|key| format!("data.{key}={}", frozen.path_text("clips.jsonl")))
            .to_vec();
        set.push(format!("data.state_cache_gb={state_cache_gb}"));
        let mut recipe = frozen.recipe("whisper", &set).unwrap();
        let (data, model) = (recipe.data().unwrap(), recipe.model().unwrap());
        let (feeds, batch) = (recipe.feed().unwrap(), recipe.batch.clone());
        let mut study =
            AvformerStudy::new(data, model, feeds, batch, &Compute::cpu(), true).unwrap();
        let hidden = frozen.path("hidden");
        std::fs::create_dir(&hidden).unwrap();
        let names: Vec<String> =
            (0..6).map(|i| format!("{i}.png")).chain(["clip".into()]).collect();
        for name in &names {
            std::fs::rename(frozen.path(name), hidden.join(name)).unwrap();
        }
        let run = frozen.path(&format!("run-{state_cache_gb}"));
        let options = RunOptions { run: run.clone(), quiet: true, ..RunOptions::default() };
        let trained = train(&mut study, &recipe, &options).unwrap();
        assert!(trained.steps == 10);
        assert!(tensor(&run, "projection.weight").iter().any(|value| *value != 0.0));
        let avformer = study.load(&trained.weights).unwrap();
        let tested = study.test(&avformer, &run).unwrap();
        assert!(tested.systems.iter().any(|metrics| metrics.system == "right_frames"));
        for name in &names {
            std::fs::rename(hidden.join(name), frozen.path(name)).unwrap();
        }
        std::fs::remove_dir(&hidden).unwrap();
    }
}

/// Clips that do not fit into memory are embedded in each step, with the same result.
#[test]
fn uncached_clips_give_the_same_parameters() {
    let frozen = Frozen::new();
    let quick = ["data.sweep_clips=0", "data.frozen_baseline=false"];
    frozen.run("cached", "whisper", &quick);
    frozen.run("uncached", "whisper", &[quick[0], quick[1], "data.state_cache_gb=0"]);
    for name in ["adapters.1.up.weight", "projection.weight"] {
        let [cached, uncached] = ["cached", "uncached"].map(|run| tensor(&frozen.path(run), name));
        for (cached, uncached) in cached.iter().zip(&uncached) {
            assert!((cached - uncached).abs() < 1e-4 * cached.abs().max(1e-2), "{name}: {cached}");
        }
    }
}

/// A finished run as adapters transcribes files as in its test. Without adapters the transcripts
/// are the ASR model's own.
#[test]
fn adapters_are_switched_on_and_off_by_name() {
    let frozen = Frozen::new();
    frozen.run("run", "whisper", &["data.sweep_clips=0", "data.silence_seconds=0.25"]);
    let data = AvformerData {
        names: 3,
        clips: 12,
        test_clips: 6,
        views: 2,
        view_size: 16,
        frames: 2,
        ..AvformerData::default()
    };
    let corpus = Corpus::load(&data, 1, true).unwrap();
    let clips = corpus.evaluated(Split::Test, false).unwrap();
    let write_image = |index: &usize| {
        let path = frozen.path(&format!("{index}.png"));
        let (image, _) = corpus.image(*index).unwrap();
        let image = RgbImage::from_raw(image.width(), image.height(), image.pixels().to_vec());
        image.unwrap().save(&path).unwrap();
        path
    };
    let whisper = || AsrModel::open(&frozen.path_text("whisper"), &Compute::cpu()).unwrap();
    let mut adapted = AdaptedAsrModel::new(whisper());
    adapted.add("names", &frozen.path("run"), None).unwrap();
    assert_eq!(adapted.frames(), 0);
    let transcribe = |adapted: &AdaptedAsrModel| -> Vec<String> {
        let clip = |clip: &engram_train::studies::avformer::corpus::ClipWithFrames| {
            let images: Vec<PathBuf> = sample_evenly(&clip.frames, 2).map(write_image).collect();
            let embeddings = adapted.embed_images(&images).unwrap();
            AdaptedClip { samples: clip.samples.clone(), embeddings }
        };
        adapted.transcribe(&clips.iter().map(clip).collect::<Vec<_>>()).unwrap()
    };
    let samples: Vec<&[f32]> = clips.iter().map(|clip| clip.samples.as_slice()).collect();
    let unadapted = whisper().transcribe(&samples, &[], &TranscribeOptions::default()).unwrap();
    let unadapted: Vec<String> = unadapted.into_iter().map(|transcript| transcript.text).collect();
    assert_eq!(transcribe(&adapted), unadapted);
    adapted.activate(Some("names")).unwrap();
    assert_eq!(adapted.frames(), 2);
    let with_frames = transcribe(&adapted);
    let expected: Vec<String> = lines(frozen.path("run/test/noisy.right_frames.tsv"))
        .iter()
        .map(|line| line.split_once('\t').unwrap().1.to_string())
        .collect();
    let one_line = |text: &String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(with_frames.iter().map(one_line).collect::<Vec<_>>(), expected);
    assert_ne!(with_frames, unadapted);
    adapted.activate(None).unwrap();
    assert_eq!(transcribe(&adapted), unadapted);

    let message = adapted.activate(Some("other")).unwrap_err().to_string();
    assert!(message.contains("no adapters `other`; the names are names"), "{message}");
    let expect_refusal = |asr_model: AsrModel, encoder: Option<&str>, expected: &str| {
        let mut adapted = AdaptedAsrModel::new(asr_model);
        let message = adapted.add("x", &frozen.path("run"), encoder).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    };
    write_whisper(&frozen.path("other"), 8);
    expect_refusal(
        AsrModel::open(&frozen.path_text("other"), &Compute::cpu()).unwrap(),
        None,
        "trained for the ASR model",
    );
    train_image_encoder(&frozen.path("other-clip"), 2);
    expect_refusal(whisper(), Some(&frozen.path_text("other-clip")), "trained for the image");
    expect_refusal(whisper(), Some(&frozen.path_text("no-clip")), "no-clip");
    expect_refusal(whisper(), Some(&frozen.path_text("no-clip")), "give its location");
    let message = adapted.add("y", &frozen.path("clip"), None).unwrap_err().to_string();
    assert!(message.contains("config.json") && message.contains("train avformer"), "{message}");
}

#[test]
fn a_run_with_an_invalid_or_changed_file_is_refused() {
    let frozen = Frozen::new();
    frozen.run("run", "whisper", &["data.sweep_clips=0", "data.frozen_baseline=false"]);
    let run = frozen.path("run");
    let asr_model = AsrModel::open(&frozen.path_text("whisper"), &Compute::cpu()).unwrap();
    let mut adapted = AdaptedAsrModel::new(asr_model);
    let mut add = || adapted.add("x", &run, None).map_err(|error| error.to_string());
    add().unwrap();
    let config = std::fs::read(run.join("config.json")).unwrap();
    for (pointer, value, expected) in [
        ("/image_encoder_sha256", json!(""), "do not match"),
        ("/frames", json!(1_000_000_000_000_000_000_u64), "`frames` is"),
        ("/silence_seconds", json!(-5.0), "`silence_seconds` is"),
        ("/silence_seconds", json!(1e308), "`silence_seconds` is"),
        ("/avformer", json!({}), "has missing fields"),
        ("/avformer/adapters/bottleneck", json!(0), "bottleneck"),
        ("/avformer/projection/init_std", json!(-1.0), "init_std"),
    ] {
        let mut edited: Value = serde_json::from_slice(&config).unwrap();
        *edited.pointer_mut(pointer).unwrap() = value;
        std::fs::write(run.join("config.json"), edited.to_string()).unwrap();
        write_checksums(&run).unwrap();
        let message = add().unwrap_err();
        assert!(message.contains("config.json") && message.contains(expected), "{message}");
    }
    let mut edited: Value = serde_json::from_slice(&config).unwrap();
    edited["image_encoder_inputs_sha256"] = json!("0".repeat(64));
    std::fs::write(run.join("config.json"), edited.to_string()).unwrap();
    write_checksums(&run).unwrap();
    assert!(add().unwrap_err().contains("another configuration or image preprocessing"));
    std::fs::write(run.join("config.json"), &config).unwrap();
    let weights = run.join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&weights, &Device::Cpu).unwrap();
    let bias = tensors.get_mut("projection.bias").unwrap();
    *bias = (&*bias * f64::NAN).unwrap();
    candle_core::safetensors::save(&tensors, &weights).unwrap();
    write_checksums(&run).unwrap();
    let message = add().unwrap_err();
    assert!(message.contains("model.safetensors: `projection.bias` has values"), "{message}");
}

/// A run without frames needs no image encoder, and ignores frames in use.
#[test]
fn adapters_without_frames_ignore_images() {
    let frozen = Frozen::new();
    let alone = ["phase.projection.steps=0", "data.sweep_clips=0", "data.frozen_baseline=false"];
    let set = [alone[0], alone[1], alone[2], "model.image_encoder="];
    let summary = frozen.run("alone", "whisper", &set);
    let config = AvformerRunConfig::read(&frozen.path("alone")).unwrap();
    assert_eq!((config.frames, config.image_encoder_sha256.as_str()), (0, ""));
    let mut adapted = AdaptedAsrModel::new(
        AsrModel::open(&frozen.path_text("whisper"), &Compute::cpu()).unwrap(),
    );
    adapted.add("alone", &frozen.path("alone"), None).unwrap();
    adapted.activate(Some("alone")).unwrap();
    assert_eq!(adapted.frames(), 0);
    assert!(adapted.embed_images(&[frozen.path("no.png")]).unwrap().is_empty());
    assert!(summary.parameters[0] > 0);

    // Embeddings of another width are refused.
    frozen.run("run", "whisper", &["data.sweep_clips=0", "data.frozen_baseline=false"]);
    adapted.add("with-frames", &frozen.path("run"), None).unwrap();
    adapted.activate(Some("with-frames")).unwrap();
    let clip = AdaptedClip { samples: vec![0.1; 8_000], embeddings: vec![0.0; 7] };
    let message = adapted.transcribe(&[clip]).unwrap_err().to_string();
    assert!(message.contains("not embeddings of up to 2 images"), "{message}");
    // A run does not start from a run with another ASR model.
    write_whisper(&frozen.path("other"), 8);
    let start = format!("start.run={}", frozen.path_text("run"));
    let message = frozen.try_run("on", "other", &[&start], RunOptions::default()).unwrap_err();
    assert!(message.to_string().contains("trained with another ASR model"), "{message}");
    train_image_encoder(&frozen.path("other-clip"), 2);
    let other = format!("model.image_encoder={}", frozen.path_text("other-clip"));
    let message = frozen.try_run("on", "whisper", &[&start, &other], RunOptions::default());
    let message = message.unwrap_err().to_string();
    assert!(message.contains("trained with another image encoder"), "{message}");
}

/// The clips of `data.rehearsal` and `data.general_speech` come from manifests.
#[test]
fn rehearsal_trains_and_a_larger_distillation_weight_keeps_states_closer() {
    let frozen = Frozen::new();
    frozen.write_audio("r.wav", 9_000);
    let line = "{\"audio\":\"r.wav\",\"text\":\"said before\"}\n";
    std::fs::write(frozen.path("rehearsal.jsonl"), line).unwrap();
    let manifest = frozen.path_text("rehearsal.jsonl");
    let [rehearsal, general_speech] =
        ["rehearsal", "general_speech"].map(|key| format!("data.{key}={manifest}"));
    let set = [
        rehearsal.as_str(),
        general_speech.as_str(),
        "data.sweep_clips=0",
        "phase.adapters.feed.rehearsal=0.5",
        "phase.adapters.feed.share=0.5",
        "phase.projection.feed.rehearsal=0.5",
    ];
    let summary = frozen.run("run", "whisper", &set);
    let general_speech =
        summary.test.systems.iter().filter(|metrics| metrics.utterances == "general_speech");
    let general_speech: Vec<&str> = general_speech.map(|metrics| metrics.system.as_str()).collect();
    assert_eq!(general_speech, ["frozen", "no_frames"]);

    // A larger weight of the state distance keeps adapters closer.
    let distance = |weight: &str| {
        let run = format!("distance-{weight}");
        let weight = format!("phase.adapters.feed.distillation={weight}");
        let speeds = "data.rehearsal_speeds=[0.8, 1.0, 1.25]";
        let more = [speeds, &weight, "data.frozen_baseline=false", "phase.projection.steps=0"];
        frozen.run(&run, "whisper", &[&set[..], &more].concat());
        let lines = lines(frozen.path(&run).join("metrics.jsonl"));
        let distance_of_line = |line: &String| {
            let line: Value = serde_json::from_str(line).unwrap();
            line["loss/state_distance"].as_f64()
        };
        lines.iter().rev().find_map(distance_of_line).unwrap()
    };
    let long = ["data.max_seconds=0.6", "data.rehearsal_speeds=[0.5]", "data.names=1"];
    frozen
        .expect_refusal(&[&set[..], &long].concat(), &["data.rehearsal_speeds", "leaves no clip"]);
    let [far, near] = ["1e-6", "100"].map(distance);
    assert!(0.0 < near && near < far, "{near} {far}");
}
