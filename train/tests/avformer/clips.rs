//! Clips that cannot be seen, settings that cannot be.

use image::RgbImage;
use serde_json::json;

use crate::frozen::Frozen;

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
        ("data.silence=-0.5", "data.silence"),
        ("data.states_gb=-1", "data.states_gb"),
        ("data.train=x.jsonl", "data.train"),
        ("data.test_snr_db=[3.0, 1.0]", "data.test_snr_db"),
        ("model.image_encoder=", "model.image_encoder"),
        ("phase.projection.feed.mismatched=1.5", "mismatched"),
        ("phase.adapters.feed.blanked=0.5", "blanked"),
        ("phase.adapters.feed.rehearsal=0.5", "data.rehearsal"),
        ("phase.adapters.feed.distillation=-1", "no weight"),
        ("data.rehearsal_speeds=[1.0, 3.0]", "data.rehearsal_speeds"),
        ("data.rehearsal_speeds=[]", "data.rehearsal_speeds"),
        ("batch.tokens=7", "batch.tokens"),
        ("data.sweep_snr_db=[nan]", "data.sweep_snr_db"),
        ("data.test_noise=[]", "data.noise"),
        ("data.frames=3", "data.frames"),
        ("data.view_size=5000", "data.view_size"),
    ] {
        frozen.refused(&[set], &[wanted]);
    }
}
