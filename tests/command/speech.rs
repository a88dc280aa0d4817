//! `engram data convert ctranslate2` and `engram transcribe`, as a user runs them.
//!
//! Tests with the published tiny.en read its CTranslate2 folder from `ENGRAM_WHISPER` and real
//! speech from `ENGRAM_DATA`. Without these variables they print SKIPPED.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use engram_data::speech::manifest::read_manifest;

fn engram(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_engram")).args(arguments).output().expect("the command")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that must fail. Returns its message.
fn refusal(arguments: &[&str]) -> String {
    let output = engram(arguments);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    text(&output.stderr)
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The converted published model, and the folder of real speech.
struct Published {
    work: tempfile::TempDir,
    speech: PathBuf,
}

impl Published {
    fn model(&self) -> String {
        path_text(&self.work.path().join("model")).to_string()
    }

    fn output(&self, name: &str) -> String {
        path_text(&self.work.path().join(name)).to_string()
    }
}

fn published() -> Option<Published> {
    let variable = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from);
        if path.is_none() {
            eprintln!("SKIPPED: {name} is not set");
        }
        path
    };
    let (weights, speech) = (variable("ENGRAM_WHISPER")?, variable("ENGRAM_DATA")?.join("speech"));
    if !speech.is_dir() {
        eprintln!("SKIPPED: {} is not there", speech.display());
        return None;
    }
    let published = Published { work: tempfile::tempdir().expect("a folder"), speech };
    let model = published.model();
    let output = engram(&["data", "convert", "ctranslate2", path_text(&weights), "--out", &model]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    Some(published)
}

/// Writes a WAV file of 16-bit samples at 16 kHz.
fn write_wav(path: &Path, samples: impl ExactSizeIterator<Item = f64>) {
    let size = 2 * samples.len() as u32;
    let mut bytes = Vec::new();
    bytes.extend(b"RIFF");
    bytes.extend((36 + size).to_le_bytes());
    bytes.extend(b"WAVEfmt ");
    bytes.extend(16u32.to_le_bytes());
    bytes.extend([1u16, 1].map(u16::to_le_bytes).concat());
    bytes.extend([16_000u32, 32_000].map(u32::to_le_bytes).concat());
    bytes.extend([2u16, 16].map(u16::to_le_bytes).concat());
    bytes.extend(b"data");
    bytes.extend(size.to_le_bytes());
    samples.for_each(|sample| bytes.extend(((sample * 32_767.0) as i16).to_le_bytes()));
    fs::write(path, bytes).expect("a file");
}

#[test]
fn invalid_models_and_audio_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, out) = (folder.path().join("model"), folder.path().join("out"));
    fs::create_dir(&model).expect("a folder");
    let convert = ["data", "convert", "ctranslate2", path_text(&model), "--out", path_text(&out)];
    assert!(refusal(&convert).contains("model.bin"));
    fs::write(model.join("model.bin"), 7u32.to_le_bytes()).expect("a file");
    assert!(refusal(&convert).contains("version 7"));
    assert!(!out.exists());
    let into_itself =
        ["data", "convert", "ctranslate2", path_text(&model), "--out", path_text(&model)];
    assert!(refusal(&into_itself).contains("already contains files"));

    let audio_file = folder.path().join("a.wav");
    write_wav(&audio_file, [0.0; 160].into_iter());
    let output = folder.path().join("a.tsv");
    let transcribe = ["transcribe", path_text(&audio_file), "--model", path_text(&model)];
    let transcribe = [&transcribe[..], &["--out", path_text(&output)]].concat();
    assert!(refusal(&transcribe).contains("engram data convert ctranslate2"));
    let nothing = ["transcribe", "--model", path_text(&model), "--out", path_text(&output)];
    assert!(refusal(&nothing).contains("<AUDIO>..."));
    for seconds in ["0", "-1", "nan", "soon"] {
        let chunk = format!("--stream={seconds}");
        let error = refusal(&[&transcribe[..], &[&chunk]].concat());
        assert!(error.contains("number of seconds above 0"), "{error}");
    }
    assert!(refusal(&[&transcribe[..], &["--stream-window", "9"]].concat()).contains("--stream"));
    let stdin = ["transcribe", "-", "--model", path_text(&model), "--out", path_text(&output)];
    assert!(refusal(&stdin).contains("give --stream SECONDS"));
}

/// Almost all transcripts equal the transcripts of faster-whisper 1.2.1 with the same weights, in
/// any batch.
#[test]
fn real_speech_gives_the_texts_of_the_reference() {
    let Some(published) = published() else { return };
    let (model, speech) = (published.model(), published.speech.join("wav16k"));
    let expected = fs::read_to_string(published.speech.join("tiny_en.hyp.tsv")).expect("texts");
    let output = published.output("texts.tsv");
    let transcribe = ["transcribe", path_text(&speech), "--model", &model, "--quiet", "--out"];
    let command_output = engram(&[&transcribe[..], &[&output]].concat());
    assert!(command_output.status.success(), "{}", text(&command_output.stderr));
    let actual = fs::read_to_string(&output).expect("texts");
    assert_eq!(actual.lines().next(), Some("id\ttext"));
    let equal_lines =
        expected.lines().skip(1).filter(|line| actual.lines().any(|other| other == *line));
    let equal = equal_lines.count();
    println!("{equal} of 57 texts equal the reference");
    assert!(equal >= 55, "{equal} of 57");

    // The transcripts become the texts of unlabelled clips.
    let labelled = published.output("labelled.jsonl");
    let file = speech.join("jfk.wav");
    let transcribe = ["transcribe", path_text(&file), "--model", &model, "--quiet", "--out"];
    let command_output = engram(&[&transcribe[..], &[&labelled, "--format", "manifest"]].concat());
    assert!(command_output.status.success(), "{}", text(&command_output.stderr));
    let [clip] = &read_manifest(Path::new(&labelled)).expect("a manifest")[..] else {
        panic!("one clip")
    };
    assert!(
        clip.audio.is_file() && clip.text.as_ref().is_some_and(|text| text.contains("country"))
    );

    let single = published.output("jfk.tsv");
    assert!(engram(&[&transcribe[..], &[&single]].concat()).status.success());
    let single = fs::read_to_string(&single).expect("a text");
    let words = |line: Option<&str>| {
        line.and_then(|line| line.split_once('\t')).map(|(_, text)| text.to_string())
    };
    assert_eq!(
        words(single.lines().nth(1)),
        words(actual.lines().find(|line| line.starts_with("jfk\t")))
    );
}

#[test]
fn silence_noise_and_tones_give_no_words() {
    let Some(published) = published() else { return };
    let folder = published.work.path().join("quiet");
    fs::create_dir(&folder).expect("a folder");
    let write = |name: &str, sample: fn(usize) -> f64| {
        write_wav(&folder.join(name), (0..64_000).map(sample));
    };
    write("silence.wav", |_| 0.0);
    // These two signals are not constant, so the model transcribes them.
    write("clicks.wav", |i| if i % 8_000 == 0 { 0.8 } else { 0.0 });
    write("waves.wav", |i| {
        let hash = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
        let hash = (hash ^ (hash >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let amplitude = 0.06 + 0.05 * (i as f64 / 9_000.0).sin();
        amplitude * ((hash >> 40) as f64 / (1u64 << 23) as f64 - 1.0)
    });
    write("sine.wav", |i| 0.3 * (i as f64 * 440.0 / 16_000.0 * std::f64::consts::TAU).sin());
    write("high.wav", |i| 0.3 * (i as f64 * 3_000.0 / 16_000.0 * std::f64::consts::TAU).sin());
    write("hum.wav", |i| 0.2 * (i as f64 * 50.0 / 16_000.0 * std::f64::consts::TAU).sin());
    write("noise.wav", |i| {
        let hash = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
        let hash = (hash ^ (hash >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        0.1 * ((hash >> 40) as f64 / (1u64 << 23) as f64 - 1.0)
    });
    let model = published.model();
    for padding in ["zeros", "silence", "short"] {
        let output = published.output(&format!("{padding}.txt"));
        let transcribe = ["transcribe", path_text(&folder), "--model", &model, "--quiet"];
        let options = ["--padding", padding, "--out", output.as_str()];
        let command_output = engram(&[&transcribe[..], &options].concat());
        assert!(command_output.status.success(), "{}", text(&command_output.stderr));
        assert_eq!(fs::read_to_string(&output).expect("texts"), "\n".repeat(7), "{padding}");
        // One of the real noise recordings contains a spoken sentence.
        let noise = published.speech.join("noise16k");
        let transcribe = ["transcribe", path_text(&noise), "--model", &model, "--quiet"];
        let output = published.output("noise.tsv");
        let options = ["--padding", padding, "--force", "--out", output.as_str()];
        assert!(engram(&[&transcribe[..], &options].concat()).status.success());
        let texts = fs::read_to_string(&output).expect("texts");
        let (spoken, silent): (Vec<&str>, Vec<&str>) =
            texts.lines().skip(1).partition(|line| line.starts_with("jackhammer\t"));
        assert!(spoken.iter().all(|line| line.contains("smell of old")), "{texts}");
        assert!(silent.len() == 5 && silent.iter().all(|line| line.ends_with('\t')), "{texts}");
    }
}

/// Audio that is longer than the model's 30 seconds gives the text of all windows, with increasing
/// times.
#[test]
fn a_long_recording_is_transcribed_window_by_window() {
    let Some(published) = published() else { return };
    let bytes = fs::read(published.speech.join("wav16k/jfk.wav")).expect("audio");
    let samples: Vec<f64> = bytes[44..]
        .chunks_exact(2)
        .map(|pair| f64::from(i16::from_le_bytes([pair[0], pair[1]])) / 32_768.0)
        .collect();
    let long = published.work.path().join("long.wav");
    let repeated: Vec<f64> = samples.iter().copied().cycle().take(4 * samples.len()).collect();
    write_wav(&long, repeated.into_iter());
    let (model, output) = (published.model(), published.output("long.srt"));
    let transcribe = ["transcribe", path_text(&long), "--model", &model, "--out", &output];
    let command_output = engram(&transcribe);
    assert!(command_output.status.success(), "{}", text(&command_output.stderr));
    let subtitles = fs::read_to_string(&output).expect("subtitles");
    let words = subtitles.to_lowercase();
    assert_eq!(words.matches("fellow americans").count(), 4, "{subtitles}");
    assert!(subtitles.starts_with("1\n00:00:00,"), "{subtitles}");
    let ends: Vec<&str> = subtitles
        .lines()
        .filter_map(|line| line.split_once(" --> "))
        .map(|times| times.1)
        .collect();
    assert!(ends.is_sorted() && ends.last().is_some_and(|end| *end > "00:00:35"), "{subtitles}");
}

/// Timed words equal the words of the text, in order and within the clip. The text is the same as
/// without times. The anchors come from faster-whisper (`tests/reference/word_times_peer.py`).
#[test]
fn words_have_their_times() {
    let Some(published) = published() else { return };
    let (folder, model) = (published.work.path().join("some"), published.model());
    fs::create_dir(&folder).expect("a folder");
    let jfk = published.speech.join("wav16k/jfk.wav");
    fs::copy(&jfk, folder.join("jfk.wav")).expect("a file");
    let other_file = "libri-2033-164914-0002.wav";
    fs::copy(published.speech.join("wav16k").join(other_file), folder.join(other_file))
        .expect("a file");
    write_wav(&folder.join("silence.wav"), [0.0; 16_000].into_iter());
    let bytes = fs::read(&jfk).expect("audio");
    let pairs = bytes[44..].chunks_exact(2);
    let samples: Vec<f64> =
        pairs.map(|pair| f64::from(i16::from_le_bytes([pair[0], pair[1]])) / 32_768.0).collect();
    let repeated: Vec<f64> = samples.iter().copied().cycle().take(4 * samples.len()).collect();
    write_wav(&folder.join("long.wav"), repeated.into_iter());
    let output = published.output("words.jsonl");
    let run = |options: &[&str]| -> Vec<serde_json::Value> {
        let transcribe = ["transcribe", path_text(&folder), "--model", &model];
        let command_output =
            engram(&[&transcribe[..], &["--force", "--out", &output], options].concat());
        assert!(command_output.status.success(), "{}", text(&command_output.stderr));
        let lines = fs::read_to_string(&output).expect("texts");
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    for options in [&[][..], &["--timestamps"], &["--padding", "short"]] {
        let plain = run(options);
        let timed = run(&[options, &["--word-times"]].concat());
        assert_eq!((plain.len(), timed.len()), (4, 4));
        for (plain, timed) in plain.into_iter().zip(timed) {
            let words = timed["words"].as_array().cloned().unwrap_or_default();
            let mut without_words = timed.clone();
            without_words.as_object_mut().expect("an object").remove("words");
            assert_eq!(without_words, plain, "{options:?}");
            let texts: Vec<&str> = words.iter().filter_map(|word| word["text"].as_str()).collect();
            let letters = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(letters(&texts.concat()), letters(timed["text"].as_str().expect("a text")));
            let mut previous_end = 0.0;
            for word in &words {
                let time = |name: &str| word[name].as_f64().expect("a number");
                let (start, end) = (time("start"), time("end"));
                assert!(previous_end <= start + 1e-9 && start <= end + 1e-9, "{words:?}");
                assert!((0.0..=1.0).contains(&time("probability")), "{word}");
                previous_end = time("end");
            }
            assert!(
                previous_end <= timed["seconds"].as_f64().expect("a number") + 1e-9,
                "{words:?}"
            );
            let anchors: &[(&str, f64, f64)] = match timed["id"].as_str() {
                Some("silence") => &[],
                Some("jfk") => &[("Americans", 1.8, 2.3), ("country", 10.2, 10.5)],
                Some("long") => &[("fellow", 1.5, 1.8), ("country", 43.2, 43.5)],
                _ => continue,
            };
            assert_eq!(words.is_empty(), anchors.is_empty());
            for (text, start, end) in anchors {
                let exists = words.iter().any(|word| {
                    let is_near = |name: &str, time: f64| {
                        word[name].as_f64().is_some_and(|seconds| (seconds - time).abs() < 0.15)
                    };
                    let has_text = word["text"]
                        .as_str()
                        .is_some_and(|word_text| word_text.trim_matches([',', '.']) == *text);
                    has_text && is_near("start", *start) && is_near("end", *end)
                });
                assert!(exists, "{options:?}: {text} at {start}: {words:?}");
            }
        }
    }
    // Alignment heads that the model does not have.
    let generation = published.work.path().join("model/generation_config.json");
    fs::write(&generation, "{\"alignment_heads\": [[3, 6]]}").expect("a file");
    let transcribe =
        ["transcribe", path_text(&jfk), "--model", &model, "--force", "--out", &output];
    let error = refusal(&transcribe);
    assert!(error.contains("generation_config.json") && error.contains("[3, 6]"), "{error}");
}

#[test]
fn a_clip_that_cannot_be_read_stops_the_command_or_is_skipped() {
    let Some(published) = published() else { return };
    let folder = published.work.path();
    fs::copy(published.speech.join("wav16k/cards-001.wav"), folder.join("good.wav"))
        .expect("a file");
    fs::write(folder.join("bad.wav"), b"not audio").expect("a file");
    let manifest = folder.join("clips.jsonl");
    let lines = "{\"audio\": \"good.wav\"}\n{\"audio\": \"bad.wav\"}\n{\"audio\": \"none.wav\"}\n";
    fs::write(&manifest, lines).expect("a manifest");
    let (model, output) = (published.model(), published.output("some.jsonl"));
    let transcribe = ["transcribe", path_text(&manifest), "--model", &model, "--out", &output];
    let error = refusal(&transcribe);
    assert!(error.contains("clips.jsonl, line 2") && error.contains("--on-error skip"), "{error}");
    assert!(!Path::new(&output).exists());
    let command_output = engram(&[&transcribe[..], &["--on-error", "skip", "--json"]].concat());
    assert!(command_output.status.success(), "{}", text(&command_output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&command_output.stdout).expect("JSON");
    assert_eq!(
        (&summary["clips"], summary["skipped"].as_array().map(Vec::len)),
        (&1.into(), Some(2))
    );
    assert!(text(&command_output.stderr).contains("none.wav"));
    let line = fs::read_to_string(&output).expect("a text");
    assert!(line.contains("\"id\":\"good\"") && line.contains("of clubs"), "{line}");
}

#[test]
fn invalid_word_lists_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (audio_file, words) = (folder.path().join("a.wav"), folder.path().join("words"));
    write_wav(&audio_file, [0.0; 160].into_iter());
    let output = folder.path().join("a.tsv");
    let transcribe = ["transcribe", path_text(&audio_file), "--model", "none"];
    let transcribe =
        [&transcribe[..], &["--out", path_text(&output), "--boost", path_text(&words)]].concat();
    assert!(refusal(&transcribe).contains("words"));
    for (content, part) in [
        ("\n", "words: has no words"),
        ("anon\na\tb\n", "words, line 2: has a tab"),
        ("a\tb\t[]\n", "words, line 1: has 3 fields"),
        ("a\tb\t[]\t[\"c\"]\nd\te\t[]\t[1]\n", "words, line 2: the fourth field"),
        ("a\tb\t[]\t[]\na\tb\t[]\t[]\n", "words, line 2: the id `a` is already on line 1"),
    ] {
        fs::write(&words, content).expect("a file");
        let error = refusal(&transcribe);
        assert!(error.contains(part), "{error}");
    }
    fs::write(&words, b"caf\xe9\n").expect("a file");
    assert!(refusal(&transcribe).contains("UTF-8"));
    assert!(refusal(&[&transcribe[..], &["--boost-weight=-1"]].concat()).contains("at least 0"));
    assert!(!output.exists());
}

#[test]
fn boosted_words_are_transcribed_in_the_clips_that_have_them() {
    let Some(published) = published() else { return };
    let (folder, words) = (published.work.path().join("two"), published.output("words"));
    fs::create_dir(&folder).expect("a folder");
    for name in ["libri-2033-164914-0002.wav", "libri-2033-164914-0003.wav"] {
        fs::copy(published.speech.join("wav16k").join(name), folder.join(name)).expect("a file");
    }
    let (model, output) = (published.model(), published.output("texts.jsonl"));
    let run = |list: Option<&str>, options: &[&str]| -> (Vec<serde_json::Value>, String) {
        let transcribe =
            ["transcribe", path_text(&folder), "--model", &model, "--force", "--out", &output];
        let boost = ["--boost", words.as_str()];
        if let Some(list) = list {
            fs::write(&words, list).expect("a file");
        }
        let boost = if list.is_some() { &boost[..] } else { &[] };
        let command_output = engram(&[&transcribe[..], boost, options].concat());
        assert!(command_output.status.success(), "{}", text(&command_output.stderr));
        let lines = fs::read_to_string(&output).expect("texts");
        let lines = lines.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        (lines.collect(), text(&command_output.stderr))
    };
    let contains_eunuch = |line: &serde_json::Value| {
        line["text"].as_str().expect("a text").to_lowercase().contains("eunuch")
    };
    let (unboosted, _) = run(None, &[]);
    assert!(unboosted.len() == 2 && !unboosted.iter().any(contains_eunuch), "{unboosted:?}");
    let words_to_boost = "abnegated\nrigor mortis\neunuch\n";
    for options in [&[][..], &["--beams", "3"], &["--batch", "1"], &["--timestamps"]] {
        let (boosted, _) = run(Some(words_to_boost), &[options, &["--boost-weight", "4"]].concat());
        assert!(boosted.iter().all(contains_eunuch), "{options:?}: {boosted:?}");
        // The reported log-probability is the model's own, without the boost, so it stays negative.
        assert!(boosted.iter().all(|line| line["mean_log_probability"].as_f64() < Some(0.0)));
    }
    assert_eq!(run(Some(words_to_boost), &["--boost-weight", "0"]).0, unboosted);

    // A table: the fourth field has the words to boost in the clip with the id.
    let table = "libri-2033-164914-0003\tx\t[]\t[\"abnegated\", \"eunuch\"]\n\
                 other\tx\t[]\t[\"anon\"]\n";
    let (boosted, note) = run(Some(table), &[]);
    // Only texts are compared: the last bit of a probability may depend on the batch's other clips.
    assert_eq!(boosted[0]["text"], unboosted[0]["text"]);
    assert!(contains_eunuch(&boosted[1]), "{boosted:?}");
    assert!(note.contains("clips with a list: 1 of 2; lists without a clip: 1 of 2"), "{note}");
    let rare_words = "libri-2033-164914-0003\tthe eunuch\t[\"eunuch\"]\t[\"abnegated\"]\n";
    assert_eq!(run(Some(rare_words), &[]).0, unboosted);
}

/// A stream gives almost the text of the whole clip, and each word has the time when it was final.
/// A file and standard input give the same text.
#[test]
fn streamed_audio_gets_final_words_one_by_one() {
    let Some(published) = published() else { return };
    let (model, file) = (published.model(), published.speech.join("wav16k/jfk.wav"));
    let output = published.output("stream.jsonl");
    let transcribe =
        ["transcribe", "--model", &model, "--force", "--out", &output, "--stream", "2"];
    let command_output = engram(&[&transcribe[..], &[path_text(&file), "--json"]].concat());
    assert!(command_output.status.success(), "{}", text(&command_output.stderr));
    let line: serde_json::Value =
        serde_json::from_slice(&fs::read(&output).expect("a text")).expect("JSON");
    let whole_text = line["text"].as_str().expect("a text").to_string();
    assert!(whole_text.to_lowercase().contains("what you can do for your country"), "{whole_text}");
    let words = line["words"].as_array().expect("words");
    assert_eq!(words.len(), whole_text.split_whitespace().count());
    let number = |word: &serde_json::Value, field: &str| word[field].as_f64().expect("a number");
    for word in words {
        // A word is final at the end of a chunk, and not before the word starts.
        let final_at = number(word, "final_at");
        assert!(final_at % 2.0 == 0.0 || final_at == 11.0, "{word}");
        assert!(final_at > number(word, "start"), "{word}");
        assert!(number(word, "latency") > final_at - number(word, "end"), "{word}");
    }
    let early = words.iter().filter(|word| number(word, "final_at") < 11.0).count();
    assert!(2 * early > words.len(), "{early} of {}", words.len());
    let summary: serde_json::Value = serde_json::from_slice(&command_output.stdout).expect("JSON");
    let streaming = &summary["streaming"];
    assert_eq!(
        (&streaming["passes"], &streaming["latency"]["count"]),
        (&6.into(), &words.len().into())
    );
    assert!(
        number(&streaming["latency"], "p50") > number(&streaming["latency_without_compute"], "p50")
    );

    let mut live = Command::new(env!("CARGO_BIN_EXE_engram"))
        .args([&transcribe[..], &["-"]].concat())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the command");
    let bytes = fs::read(&file).expect("audio");
    let mut stdin = live.stdin.take().expect("standard input");
    std::io::Write::write_all(&mut stdin, &bytes[44..]).expect("it reads");
    drop(stdin);
    let live_output = live.wait_with_output().expect("an end");
    assert!(live_output.status.success(), "{}", text(&live_output.stderr));
    assert_eq!(
        text(&live_output.stdout).split_whitespace().collect::<Vec<_>>().join(" "),
        whole_text
    );
    let from_stdin: serde_json::Value =
        serde_json::from_slice(&fs::read(&output).expect("a text")).expect("JSON");
    assert_eq!(
        (from_stdin["id"].as_str(), from_stdin["text"].as_str()),
        (Some("stdin"), Some(whole_text.as_str()))
    );

    // Commands in tests have an empty standard input.
    assert!(refusal(&[&transcribe[..], &["-"]].concat()).contains("has no samples"));

    // A clip that cannot be decoded is skipped; subtitles are built from the words.
    let folder = published.work.path().join("mixed");
    fs::create_dir(&folder).expect("a folder");
    fs::copy(&file, folder.join("good.wav")).expect("a file");
    fs::write(folder.join("bad.wav"), b"not audio").expect("a file");
    let transcribe = ["transcribe", path_text(&folder), "--model", &model, "--stream", "5"];
    let subtitles = published.work.path().join("subtitles");
    fs::create_dir(&subtitles).expect("a folder");
    let options = ["--out", path_text(&subtitles), "--format", "vtt"];
    assert!(refusal(&[&transcribe[..], &options].concat()).contains("--on-error skip"));
    let command_output = engram(&[&transcribe[..], &options, &["--on-error", "skip"]].concat());
    assert!(command_output.status.success(), "{}", text(&command_output.stderr));
    let vtt = fs::read_to_string(subtitles.join("good.vtt")).expect("subtitles");
    assert!(vtt.starts_with("WEBVTT\n\n00:00:0") && vtt.contains("country"), "{vtt}");
    let error = refusal(
        &[&transcribe[..], &["--force", "--out", &output, "--stream-window", "29"]].concat(),
    );
    assert!(error.contains("5 to 25 s"), "{error}");
}
