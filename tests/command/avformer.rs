//! AVFormer as a user runs it, without published weights: trains an image encoder, a Conformer and
//! adapters, and transcribes clips from files.

use std::fs;
use std::path::Path;

use crate::running::{Folder, json, read_json, refused, succeeds};
use serde_json::Value;

fn train_models(folder: &Path) {
    succeeds(
        folder,
        "train speech --recipe speech/tiny --tiny --quiet --run speech \
         --set phase.best_rq.steps=0 --set phase.ctc.steps=2 --set data.evaluation_sentences=4",
    );
    succeeds(
        folder,
        "train clip --recipe clip/tiny --tiny --quiet --run clip --set model.text_encoder= \
         --set phase.clip.epochs=1 --set check.metric_value=0",
    );
}

#[test]
fn clips_from_files_are_transcribed_with_images() {
    let folder = &Folder::new();
    train_models(folder);
    let train = "train avformer --recipe avformer/tiny --tiny --quiet --set model.asr_model=speech \
                 --set model.image_encoder=clip --set phase.adapters.steps=2 \
                 --set phase.projection.steps=2 --set optimiser.learning_rate=0.05";
    let error = "model.language: `language` needs a Whisper model";
    refused(folder, &format!("{train} --set model.language=en --run run"), error);
    let printed = succeeds(folder, &format!("{train} --run run"));
    for part in [
        "noisy          right_frames",
        "WER(right_frames) − WER(wrong_frames)",
        "frozen and unchanged",
    ] {
        assert!(printed.contains(part), "{printed}");
    }

    succeeds(folder, "data audiovisual --out seen --count 16 --names 8");
    succeeds(folder, "data audiovisual --out again --count 16 --names 8");
    let read = |file: &str| fs::read(folder.join(file)).unwrap();
    assert!(read("seen/clips.jsonl") == read("again/clips.jsonl"));
    for (arguments, part) in [
        ("--out seen", "already contains files"),
        ("--out new --names 0", "--names"),
        ("--out new --snr-db 3 1", "--snr-db"),
    ] {
        refused(folder, &format!("data audiovisual {arguments}"), part);
    }

    // The texts equal the texts of the run's own test.
    let transcribe = "transcribe seen/clips.jsonl --model speech --adapters run --quiet";
    succeeds(folder, &format!("{transcribe} --out hyp.tsv"));
    let transcripts = String::from_utf8(read("hyp.tsv")).unwrap();
    let run_transcripts = String::from_utf8(read("run/test/noisy.right_frames.tsv")).unwrap();
    assert_eq!(transcripts.strip_prefix("id\ttext\n").unwrap(), run_transcripts);
    // Without frames no image encoder is needed.
    fs::rename(folder.join("clip"), folder.join("elsewhere")).unwrap();
    refused(folder, &format!("{transcribe} --out x.tsv"), "clip");
    succeeds(folder, &format!("{transcribe} --frames none --out blind.tsv"));
    let without_frames = String::from_utf8(read("blind.tsv")).unwrap();
    let run_transcripts = String::from_utf8(read("run/test/noisy.no_frames.tsv")).unwrap();
    assert_eq!(without_frames.strip_prefix("id\ttext\n").unwrap(), run_transcripts);
    succeeds(folder, &format!("{transcribe} --frames none --out hyp.jsonl"));
    fs::rename(folder.join("elsewhere"), folder.join("clip")).unwrap();
    let lines = String::from_utf8(read("hyp.jsonl")).unwrap();
    let line: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(line["frames"], 0);
    refused(folder, &format!("{transcribe} --out hyp.srt"), "no subtitle times");
    // An almost untrained ASR model gives empty transcripts.
    refused(folder, &format!("{transcribe} --format manifest --out x.jsonl"), "transcripts are");
    assert!(!folder.join("x.jsonl").exists());
    refused(folder, &format!("{transcribe} --beams 3 --out x.tsv"), "--beams");
    refused(
        folder,
        "transcribe seen/clips.jsonl --model speech --adapters clip --out x.tsv",
        "engram train avformer",
    );

    // An image that does not decode, and a clip without images.
    let manifest = String::from_utf8(read("seen/clips.jsonl")).unwrap();
    let mut lines: Vec<Value> =
        manifest.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    fs::write(folder.join("seen/broken.png"), "not an image").unwrap();
    lines[1]["frames"] = serde_json::json!(["broken.png"]);
    lines[2].as_object_mut().unwrap().remove("frames");
    let lines: Vec<String> = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(folder.join("seen/mixed.jsonl"), lines.concat()).unwrap();
    fs::write(folder.join("seen/bad.jsonl"), lines[1..3].concat()).unwrap();
    let mixed = "transcribe seen/mixed.jsonl --model speech --adapters run --out mixed.tsv";
    refused(folder, &format!("{mixed} --quiet"), &["broken.png", "line 2"]);
    assert!(!folder.join("mixed.tsv").exists());
    let all_broken = mixed.replace("mixed.jsonl", "bad.jsonl");
    refused(folder, &format!("{all_broken} --quiet --on-error skip"), "(2 clips skipped)");
    assert!(!folder.join("mixed.tsv").exists());
    // Training on these clips also stops or skips them.
    let manifests =
        ["train", "validation", "test"].map(|key| format!(" --set data.{key}=seen/mixed.jsonl"));
    let train_on_files = train.to_owned() + &manifests.concat();
    refused(folder, &format!("{train_on_files} --run files"), "line 3");
    assert!(!folder.join("files").exists());
    succeeds(folder, &format!("{train_on_files} --set data.on_error=skip --run files"));
    let summary = read_json(&folder.join("files/summary.json"));
    assert_eq!(summary["skipped"].as_array().unwrap().len(), 6);
    let summary = json(folder, &format!("{mixed} --quiet --on-error skip"));
    assert_eq!((&summary["clips"], &summary["with_frames"]), (&14.into(), &14.into()));
    let skipped = summary["skipped"].to_string();
    assert!(skipped.contains("broken.png") && skipped.contains("has no frames"), "{skipped}");
    assert_eq!(fs::read_to_string(folder.join("mixed.tsv")).unwrap().lines().count(), 15);
    published_data_sets_train_adapters(folder, train);
}

/// Videos with images, in the formats of HowTo100M and VisSpeech, become manifests for a recipe.
fn published_data_sets_train_adapters(folder: &Path, train: &str) {
    let manifest = fs::read_to_string(folder.join("seen/clips.jsonl")).unwrap();
    let (mut captions, mut visspeech) = (serde_json::Map::new(), String::new());
    visspeech += "key,yt_id,start_time,end_time,annotation\n";
    fs::create_dir(folder.join("videos")).unwrap();
    for (number, line) in manifest.lines().take(8).enumerate() {
        let clip: Value = serde_json::from_str(line).unwrap();
        let video = format!("video{number}");
        let seen_file = |path: &Value| folder.join("seen").join(path.as_str().unwrap());
        fs::copy(seen_file(&clip["audio"]), folder.join(format!("videos/{video}.wav"))).unwrap();
        let images = folder.join("frames").join(&video);
        fs::create_dir_all(&images).unwrap();
        for (index, frame) in clip["frames"].as_array().unwrap().iter().enumerate() {
            fs::copy(seen_file(frame), images.join(format!("{index}.png"))).unwrap();
        }
        let text = clip["text"].as_str().unwrap();
        let times = serde_json::json!({"start": [0.1], "end": [0.6], "text": [text]});
        captions.insert(video.clone(), times);
        visspeech += &format!("{video}-100000-600000,{video},100000,600000,{text}\n");
    }
    fs::write(folder.join("howto100m.json"), Value::from(captions).to_string()).unwrap();
    fs::write(folder.join("visspeech.csv"), visspeech).unwrap();
    for (set, file) in [("howto100m", "howto100m.json"), ("visspeech", "visspeech.csv")] {
        let convert =
            format!("data clips {set} {file} --audio videos --frames frames --frame-rate 4");
        succeeds(folder, &format!("{convert} --out {set}.jsonl"));
        let manifests =
            ["train", "validation", "test"].map(|key| format!(" --set data.{key}={set}.jsonl"));
        succeeds(folder, &format!("{train}{} --run {set}", manifests.concat()));
        let summary = read_json(&folder.join(set).join("summary.json"));
        let systems = summary["systems"].as_array().unwrap().iter();
        let mut right_frames = systems
            .filter(|system| system["utterances"] == "test" && system["system"] == "right_frames");
        assert_eq!(right_frames.next().unwrap()["wer"]["n"], 8, "{set}");
    }
}
