//! Clips with faults, and invalid settings.

use engram_data::speech::manifest::read_manifest;
use engram_data::world::questions::Split;
use engram_infer::asr::sample_evenly;
use engram_train::studies::avformer::corpus::Corpus;
use engram_train::studies::avformer::settings::{AvformerData, AvformerFeed, OnError};
use image::RgbImage;
use serde_json::json;

use super::frozen::Frozen;

#[test]
fn an_unusable_clip_ends_the_run_or_is_skipped_and_counted() {
    let frozen = Frozen::new();
    frozen.write_audio("a.wav", 12_000);
    frozen.write_audio("long.wav", 16_000 * 3);
    frozen.write_audio("short.wav", 100);
    let colour = |x: u32, y: u32| image::Rgb([x as u8 * 9, y as u8 * 7, 3]);
    RgbImage::from_fn(20, 20, colour).save(frozen.path("a.png")).unwrap();
    std::fs::write(frozen.path("broken.png"), "not an image").unwrap();
    let whole = std::fs::read(frozen.path("a.wav")).unwrap();
    std::fs::write(frozen.path("cut.wav"), &whole[..whole.len() / 2]).unwrap();
    let good = |id: usize| {
        format!(
            "{{\"id\":\"{id}\",\"audio\":\"a.wav\",\"text\":\"cat {}\",\"frames\":[\"a.png\"]}}\n",
            ["one", "two"][id % 2]
        )
    };
    let good_lines: String = (0..6).map(good).collect();
    std::fs::write(frozen.path("good.jsonl"), &good_lines).unwrap();
    let [train, validation, test] = ["train", "validation", "test"]
        .map(|name| format!("data.{name}={}", frozen.path_text("good.jsonl")));
    let quick = ["data.sweep_clips=0", "data.frozen_baseline=false"];
    let set = [&train, &validation, &test, quick[0], quick[1]];
    let summary = frozen.run("files", "whisper", &set);
    let systems: Vec<&str> =
        summary.test.systems.iter().map(|metrics| metrics.system.as_str()).collect();
    assert_eq!(systems, ["no_frames", "right_frames", "wrong_frames", "zero_frames"]);
    assert!(summary.skipped.is_empty());

    let with_frames = "\"frames\":[\"a.png\"]";
    let bad = [
        ("a.wav", "\"frames\":[\"broken.png\"]", "broken.png"),
        ("a.wav", "\"frames\":[\"gone.png\"]", "gone.png"),
        ("a.wav", "\"frames\":[{\"image\":\"a.png\",\"time\":9}],\"end\":0.5", "is at 9 s"),
        ("a.wav", "\"frames\":[{\"image\":\"a.png\",\"time\":9}]", "outside the clip (0 to 0.85"),
        ("a.wav", "\"speaker\":\"s\"", "has no frames"),
        ("gone.wav", with_frames, "audio file not found"),
        ("cut.wav", with_frames, "cut.wav"),
    ];
    // Audio or text that cannot be used ends the run in any case, before training.
    let max = "data.max_seconds=2";
    let long = ["cat"; 16].join(" ");
    for (audio, text, expected) in [
        ("long.wav", "cat", "3.0 s are more than data.max_seconds = 2"),
        ("short.wav", "cat", "too short for one token"),
        ("a.wav", "CAF\u{c9}", "its text cannot be tokenized"),
        ("a.wav", &long, "positions"),
    ] {
        let line = json!({"id": "x", "audio": audio, "text": text, "frames": ["a.png"]});
        std::fs::write(frozen.path("odd.jsonl"), format!("{good_lines}{line}\n")).unwrap();
        let train = format!("data.train={}", frozen.path_text("odd.jsonl"));
        let set = [train.as_str(), &validation, &test, quick[0], quick[1], max];
        frozen.expect_refusal(&set, &["odd.jsonl", "line 7", expected]);
    }
    for (i, (audio, fields, expected)) in bad.into_iter().enumerate() {
        let line = format!("{{\"id\":\"bad\",\"audio\":\"{audio}\",\"text\":\"cat\",{fields}}}\n");
        let file = format!("bad-{i}.jsonl");
        std::fs::write(frozen.path(&file), good_lines.clone() + &line).unwrap();
        let bad = |key: &str| format!("data.{key}={}", frozen.path_text(&file));
        // The fault is found before training, in any manifest.
        for key in ["train", "validation", "test"] {
            let set = [&train, &validation, &test, quick[0], quick[1], &bad(key)];
            frozen.expect_refusal(&set, &[&file, "line 7", expected, "data.on_error"]);
            assert!(!frozen.path("refused").exists());
        }
        let skip = "data.on_error=skip";
        let [bad_train, bad_test] = ["train", "test"].map(bad);
        let set = [&bad_train, &validation, &bad_test, quick[0], quick[1], skip];
        let summary = frozen.run(&format!("skipped-{i}"), "whisper", &set);
        assert_eq!(summary.skipped.len(), 2);
        assert!(summary.skipped[0].contains(expected), "{:?}", summary.skipped);
        // Clips are also skipped if no frames are shown, so that all runs have the same clips.
        let set = [&set[..], &["phase.projection.steps=0"]].concat();
        let without_frames = frozen.run(&format!("without-frames-{i}"), "whisper", &set);
        assert_eq!(without_frames.skipped, summary.skipped);
        std::fs::write(frozen.path(&file), &line).unwrap();
        frozen
            .expect_refusal(&set, &[&file, "no clip is left (1 clip skipped)", "line 1", expected]);
    }
    let general_speech = format!("data.general_speech={}", frozen.path_text("speech.jsonl"));
    std::fs::write(frozen.path("speech.jsonl"), "{\"audio\":\"cut.wav\",\"text\":\"cat\"}\n")
        .unwrap();
    frozen.expect_refusal(&[&general_speech], &["speech.jsonl, line 1", "cut.wav"]);
}

/// For a clip with many images, validation and test show the frames that `engram transcribe` shows;
/// training draws from more.
#[test]
fn the_test_and_the_command_select_the_same_frames() {
    let frozen = Frozen::new();
    frozen.write_audio("a.wav", 12_000);
    let names: Vec<String> = (0..45).map(|i| format!("{i}.png")).collect();
    let line = |id: usize| {
        let frames = &names[id..id + 40];
        json!({"id": id.to_string(), "audio": "a.wav", "text": "cat", "frames": frames}).to_string()
    };
    std::fs::write(frozen.path("all.jsonl"), (0..6).map(line).collect::<Vec<_>>().join("\n"))
        .unwrap();
    for name in &names {
        RgbImage::new(2, 2).save(frozen.path(name)).unwrap();
    }
    let file = || frozen.path_text("all.jsonl");
    let (train, validation, test) = (file(), file(), file());
    let data = AvformerData { train, validation, test, frames: 3, ..AvformerData::default() };
    let corpus = Corpus::load(&data, 1, true).unwrap();
    let clips = read_manifest(&frozen.path("all.jsonl")).unwrap();
    for split in [Split::Validation, Split::Test] {
        for (evaluated, clip) in corpus.evaluated(split, false).unwrap().iter().zip(&clips) {
            let frames = sample_evenly(&evaluated.frames, data.frames);
            let test_frames = frames.map(|index| corpus.image(*index).unwrap().1);
            let files = clip.frame_files(0.75).unwrap();
            let command_frames = engram_infer::asr::select_frames(&files, 3);
            assert_eq!(
                test_frames.collect::<Vec<_>>(),
                command_frames.into_iter().cloned().collect::<Vec<_>>()
            );
        }
    }
    assert_eq!(corpus.training(0, &AvformerFeed::default()).unwrap().frames.len(), 32);

    // The skipped clips do not depend on the number of frames shown.
    std::fs::write(frozen.path("6.png"), "not an image").unwrap();
    let skipped = [1, 2, 3, 8].map(|frames| {
        let data = AvformerData { frames, on_error: OnError::Skip, ..data.clone() };
        let mut corpus = Corpus::load(&data, 1, true).unwrap();
        corpus.skip_broken_images(corpus.broken_images()).unwrap();
        corpus.skipped()
    });
    assert!(skipped.iter().all(|clips| *clips == skipped[0]));
    assert!((3..18).contains(&skipped[0].len()), "{:?}", skipped[0]);
}

#[test]
fn invalid_settings_are_refused_by_name() {
    let frozen = Frozen::new();
    for (set, expected) in [
        ("data.names=0", "data.names"),
        ("data.nmes=3", "nmes"),
        ("data.silence_seconds=-0.5", "data.silence_seconds"),
        ("data.state_cache_gb=-1", "data.state_cache_gb"),
        ("data.train=x.jsonl", "data.train"),
        ("data.test_snr_db=[3.0, 1.0]", "data.test_snr_db"),
        ("model.image_encoder=", "model.image_encoder"),
        ("phase.projection.feed.mismatched=1.5", "mismatched"),
        ("phase.adapters.feed.masked=0.5", "masked"),
        ("phase.adapters.feed.rehearsal=0.5", "data.rehearsal"),
        ("phase.adapters.feed.distillation=-1", "must be a finite number, 0 or above"),
        ("data.rehearsal_speeds=[1.0, 3.0]", "data.rehearsal_speeds"),
        ("data.rehearsal_speeds=[]", "data.rehearsal_speeds"),
        ("batch.tokens=7", "batch.tokens"),
        ("data.sweep_snr_db=[nan]", "data.sweep_snr_db"),
        ("data.test_noise=[]", "data.noise"),
        ("data.frames=3", "data.frames"),
        ("data.view_size=5000", "data.view_size"),
        ("data.clips=99999999999999", "--set data.clips"),
        ("data.test_clips=9223372036854775807", "--set data.test_clips"),
        ("data.views=0", "--set data.views"),
        ("data.views=1000000000", "--set data.views"),
        ("data.frames=2305843009213693952", "--set data.frames"),
        ("data.test=x.jsonl", "--set data.test"),
        ("data.test_snr_db=[-3300.0, -3300.0]", "from -100 to 100 dB"),
        ("data.sweep_snr_db=[3e38]", "from -100 to 100 dB"),
        ("phase.adapters.feed.snr_db=[-3e38, 3e38]", "--set phase.adapters.feed.snr_db"),
        ("phase.adapters.feed.share=0", "--set phase.adapters.feed.share"),
        ("model.adapters.bottleneck=0", "--set model.adapters.bottleneck"),
        ("model.projection.init_std=nan", "--set model.projection.init_std"),
    ] {
        frozen.expect_refusal(&[set], &[expected]);
        assert!(!frozen.path("refused").exists(), "{set}");
    }
}
