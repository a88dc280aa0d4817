//! `engram data convert ctranslate2` and `engram transcribe`, as a user runs them.
//!
//! The ignored tests read the CTranslate2 folder of the published tiny.en from `ENGRAM_WHISPER`,
//! and real speech from `ENGRAM_DATA`.

use std::fs;
use std::ops::Deref;
use std::path::Path;

use crate::running::{
    Folder, engram, engram_reading, errors, folder_of, json, printed, read_json, read_json_lines,
    refusal, refused, succeeds,
};
use engram_data::speech::manifest::read_manifest;
use serde_json::Value;

/// A folder with the converted published model, and the folder of real speech.
struct Published {
    folder: Folder,
    speech: String,
}

impl Published {
    fn new() -> Self {
        let folder = Folder::new();
        let weights = folder_of("ENGRAM_WHISPER").display().to_string();
        succeeds(&folder, &format!("data convert ctranslate2 {weights} --out model"));
        let speech = folder_of("ENGRAM_DATA").join("speech").display().to_string();
        Self { folder, speech }
    }

    /// The path of a recording.
    fn recording(&self, name: &str) -> String {
        format!("{}/wav16k/{name}.wav", self.speech)
    }

    /// The samples of the recording `jfk`, four times.
    fn long_recording(&self) -> impl ExactSizeIterator<Item = f64> {
        let bytes = fs::read(self.recording("jfk")).unwrap()[44..].repeat(4);
        let sample = |pair: &[u8]| f64::from(i16::from_le_bytes([pair[0], pair[1]])) / 32_768.0;
        bytes.chunks_exact(2).map(sample).collect::<Vec<_>>().into_iter()
    }
}

impl Deref for Published {
    type Target = Folder;

    fn deref(&self) -> &Folder {
        &self.folder
    }
}

/// Writes a WAV file of 16-bit samples at 16 kHz.
fn write_wav(path: &Path, samples: impl ExactSizeIterator<Item = f64>) {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 16_000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(path, spec).unwrap();
    samples.for_each(|sample| writer.write_sample((sample * 32_767.0) as i16).unwrap());
    writer.finalize().unwrap();
}

#[test]
fn invalid_models_and_audio_are_refused() {
    let folder = &Folder::new();
    fs::create_dir(folder.join("model")).unwrap();
    let convert = "data convert ctranslate2 model --out";
    refused(folder, &format!("{convert} out"), "model.bin");
    fs::write(folder.join("model/model.bin"), 7u32.to_le_bytes()).unwrap();
    refused(folder, &format!("{convert} out"), "version 7");
    assert!(!folder.join("out").exists());
    refused(folder, &format!("{convert} model"), "already contains files");

    write_wav(&folder.join("a.wav"), [0.0; 160].into_iter());
    refused(folder, "data convert ctranslate2 a.wav --out out", "a.wav: is a file");
    for (arguments, part) in [
        ("a.wav", "engram data convert ctranslate2"),
        ("", "<AUDIO>..."),
        ("a.wav --stream=0", "number of seconds above 0"),
        ("a.wav --stream=-1", "number of seconds above 0"),
        ("a.wav --stream=nan", "number of seconds above 0"),
        ("a.wav --stream=soon", "number of seconds above 0"),
        ("a.wav --stream-window 9", "--stream"),
        ("a.wav --max-line-length 40", "needs --format srt or vtt"),
        ("-", "give --stream SECONDS"),
    ] {
        refused(folder, &format!("transcribe {arguments} --model model --out a.tsv"), part);
    }
}

/// A file whose name a table or JSON cannot hold, and a pipe, are named and can be skipped.
#[cfg(target_os = "linux")]
#[test]
fn unusable_files_of_a_folder_are_named_or_skipped() {
    use std::os::unix::ffi::OsStrExt;
    let folder = &Folder::new();
    fs::create_dir(folder.join("clips")).unwrap();
    write_wav(&folder.join("clips/good.wav"), [0.0; 16_000].into_iter());
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/train/bundled/conformer");
    let transcribe = format!("transcribe clips --model {model} --out t.tsv --force");
    for (name, part) in [
        (&b"b\xff.wav"[..], "is not UTF-8; rename the file"),
        (b"c\td\ne.wav", "control character; rename the file"),
        (b"pipe.wav", "this is a pipe, a socket or a device"),
    ] {
        let path = folder.join("clips").join(std::ffi::OsStr::from_bytes(name));
        match name {
            b"pipe.wav" => {
                let made = std::process::Command::new("mkfifo").arg(&path).status();
                assert!(made.unwrap().success());
            }
            _ => write_wav(&path, [0.0; 16_000].into_iter()),
        }
        refused(folder, &transcribe, &[part, "--on-error skip"]);
        let summary = json(folder, &format!("{transcribe} --on-error skip"));
        assert_eq!(summary["skipped"].as_array().unwrap().len(), 1, "{summary}");
        assert_eq!(fs::read_to_string(folder.join("t.tsv")).unwrap().lines().count(), 2);
        fs::remove_file(path).unwrap();
    }
    refused(folder, "train patent --recipe /dev/zero --run r", "this is a pipe, a socket");
}

/// A converted model has checksums, so a flipped bit of any of its files is an error.
#[test]
fn a_damaged_converted_model_is_refused() {
    let folder = &Folder::new();
    fs::create_dir(folder.join("model")).unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tests/fixtures/whisper");
    fs::copy(fixtures.join("model_int8.bin"), folder.join("model/model.bin")).unwrap();
    fs::write(folder.join("model/config.json"), r#"{"suppress_ids": [5], "lang_ids": []}"#)
        .unwrap();
    let tokens = r#"{"added_tokens": [{"id": 2, "content": "<|startoftranscript|>"},
        {"id": 1, "content": "<|endoftext|>"}]}"#;
    fs::write(folder.join("model/tokenizer.json"), tokens).unwrap();
    write_wav(&folder.join("a.wav"), [0.0; 160].into_iter());
    succeeds(folder, "data convert ctranslate2 model --out out");
    for name in ["model.safetensors", "config.json", "generation_config.json", "tokenizer.json"] {
        let path = folder.join("out").join(name);
        let intact = fs::read(&path).unwrap();
        let mut damaged = intact.clone();
        damaged[intact.len() / 2] ^= 1;
        fs::write(&path, damaged).unwrap();
        let expected = format!("{name} does not match its SHA-256");
        refused(folder, "transcribe a.wav --model out --out a.tsv", &expected);
        fs::write(&path, intact).unwrap();
    }
}

/// Almost all transcripts equal the transcripts of faster-whisper 1.2.1 with the same weights, in
/// any batch.
#[test]
#[ignore = "needs ENGRAM_WHISPER and ENGRAM_DATA: speech"]
fn real_speech_gives_the_texts_of_the_reference() {
    let folder = &Published::new();
    let transcribe = |options: &str| {
        succeeds(folder, &format!("transcribe --model model --quiet {options}"));
    };
    let speech = &folder.speech;
    let expected = fs::read_to_string(format!("{speech}/tiny_en.hyp.tsv")).unwrap();
    transcribe(&format!("{speech}/wav16k --out texts.tsv"));
    let actual = fs::read_to_string(folder.join("texts.tsv")).unwrap();
    assert_eq!(actual.lines().next(), Some("id\ttext"));
    let equal_lines =
        expected.lines().skip(1).filter(|line| actual.lines().any(|other| other == *line));
    let equal = equal_lines.count();
    assert!(equal >= 55, "{equal} of 57");

    // The transcripts become the texts of unlabelled clips.
    let file = folder.recording("jfk");
    transcribe(&format!("{file} --out labelled.jsonl --format manifest"));
    let [clip] = &read_manifest(&folder.join("labelled.jsonl")).unwrap()[..] else {
        panic!("one clip")
    };
    assert!(clip.audio.is_file() && clip.text.as_ref().unwrap().contains("country"));

    transcribe(&format!("{file} --out jfk.tsv"));
    let single = fs::read_to_string(folder.join("jfk.tsv")).unwrap();
    assert!(actual.contains(single.lines().nth(1).unwrap()), "{single}");
}

#[test]
#[ignore = "needs ENGRAM_WHISPER and ENGRAM_DATA: speech"]
fn silence_noise_and_tones_give_no_words() {
    let folder = &Published::new();
    fs::create_dir(folder.join("quiet")).unwrap();
    let write = |name: &str, sample: fn(usize) -> f64| {
        write_wav(&folder.join("quiet").join(name), (0..64_000).map(sample));
    };
    fn noise(i: usize) -> f64 {
        let hash = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
        let hash = (hash ^ (hash >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (hash >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    }
    fn tone(i: usize, hertz: f64) -> f64 {
        (i as f64 * hertz / 16_000.0 * std::f64::consts::TAU).sin()
    }
    write("silence.wav", |_| 0.0);
    // These two signals are not constant, so the model transcribes them.
    write("clicks.wav", |i| if i % 8_000 == 0 { 0.8 } else { 0.0 });
    write("waves.wav", |i| (0.06 + 0.05 * (i as f64 / 9_000.0).sin()) * noise(i));
    write("sine.wav", |i| 0.3 * tone(i, 440.0));
    write("high.wav", |i| 0.3 * tone(i, 3_000.0));
    write("hum.wav", |i| 0.2 * tone(i, 50.0));
    write("noise.wav", |i| 0.1 * noise(i));
    for padding in ["zeros", "silence", "short"] {
        let transcribe = format!("transcribe --model model --quiet --force --padding {padding}");
        succeeds(folder, &format!("{transcribe} quiet --out quiet.txt"));
        let texts = fs::read_to_string(folder.join("quiet.txt")).unwrap();
        assert_eq!(texts, "\n".repeat(7), "{padding}");
        // One of the real noise recordings contains a spoken sentence.
        succeeds(folder, &format!("{transcribe} {}/noise16k --out noise.tsv", folder.speech));
        let texts = fs::read_to_string(folder.join("noise.tsv")).unwrap();
        let (spoken, silent): (Vec<&str>, Vec<&str>) =
            texts.lines().skip(1).partition(|line| line.starts_with("jackhammer\t"));
        assert!(spoken.iter().all(|line| line.contains("smell of old")), "{texts}");
        assert!(silent.len() == 5 && silent.iter().all(|line| line.ends_with('\t')), "{texts}");
    }
}

/// Audio that is longer than the model's 30 seconds gives the text of all windows, with increasing
/// times.
#[test]
#[ignore = "needs ENGRAM_WHISPER and ENGRAM_DATA: speech"]
fn a_long_recording_is_transcribed_window_by_window() {
    let folder = &Published::new();
    write_wav(&folder.join("long.wav"), folder.long_recording());
    succeeds(folder, "transcribe long.wav --model model --out long.srt");
    let subtitles = fs::read_to_string(folder.join("long.srt")).unwrap();
    assert_eq!(subtitles.to_lowercase().matches("fellow americans").count(), 4, "{subtitles}");
    assert!(subtitles.starts_with("1\n00:00:00,"), "{subtitles}");
    let times = subtitles.lines().filter_map(|line| line.split_once(" --> "));
    let ends: Vec<&str> = times.map(|(_, end)| end).collect();
    assert!(ends.is_sorted() && ends.last().is_some_and(|end| *end > "00:00:35"), "{subtitles}");
}

/// Timed words equal the words of the text, in order and within the clip. The text is the same as
/// without times. The anchors come from faster-whisper (`tests/reference/word_times_peer.py`).
#[test]
#[ignore = "needs ENGRAM_WHISPER and ENGRAM_DATA: speech"]
fn words_have_their_times() {
    let folder = &Published::new();
    fs::create_dir(folder.join("some")).unwrap();
    for name in ["jfk", "libri-2033-164914-0002"] {
        let copy = folder.join(format!("some/{name}.wav"));
        fs::copy(folder.recording(name), copy).unwrap();
    }
    write_wav(&folder.join("some/silence.wav"), [0.0; 16_000].into_iter());
    write_wav(&folder.join("some/long.wav"), folder.long_recording());
    let run = |options: &str| {
        let transcribe = "transcribe some --model model --force --out words.jsonl";
        succeeds(folder, &format!("{transcribe} {options}"));
        read_json_lines(&folder.join("words.jsonl"))
    };
    for options in ["", "--timestamps", "--padding short"] {
        let (plain, timed) = (run(options), run(&format!("{options} --word-times")));
        assert_eq!((plain.len(), timed.len()), (4, 4));
        for (plain, timed) in plain.into_iter().zip(timed) {
            let words = timed["words"].as_array().cloned().unwrap_or_default();
            let (mut without_words, mut plain) = (timed.clone(), plain);
            for report in [&mut without_words, &mut plain] {
                report
                    .as_object_mut()
                    .unwrap()
                    .retain(|key, _| key != "words" && key != "segments");
            }
            assert_eq!(without_words, plain, "{options}");
            // Segments have the times of their words.
            for (segment, word, time) in [
                (timed["segments"].get(0), words.first(), "start"),
                (timed["segments"].as_array().and_then(|all| all.last()), words.last(), "end"),
            ] {
                assert!(segment.is_none_or(|segment| segment[time] == word.unwrap()[time]));
            }
            let texts: Vec<&str> = words.iter().filter_map(|word| word["text"].as_str()).collect();
            let letters = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(letters(&texts.concat()), letters(timed["text"].as_str().unwrap()));
            let mut previous_end = 0.0;
            for word in &words {
                let time = |name: &str| word[name].as_f64().unwrap();
                let (start, end) = (time("start"), time("end"));
                assert!(previous_end <= start + 1e-9 && start <= end + 1e-9, "{words:?}");
                assert!((0.0..=1.0).contains(&time("probability")), "{word}");
                previous_end = end;
            }
            assert!(previous_end <= timed["seconds"].as_f64().unwrap() + 1e-9, "{words:?}");
            let anchors: &[(&str, f64, f64)] = match timed["id"].as_str() {
                Some("silence") => &[],
                Some("jfk") => &[("Americans", 1.8, 2.3), ("country", 10.2, 10.5)],
                Some("long") => &[("fellow", 1.5, 1.8), ("country", 43.2, 43.5)],
                _ => continue,
            };
            assert_eq!(words.is_empty(), anchors.is_empty());
            for (text, start, end) in anchors {
                let is_anchor = |word: &Value| {
                    let is_near =
                        |name: &str, time: f64| (word[name].as_f64().unwrap() - time).abs() < 0.15;
                    word["text"].as_str().unwrap().trim_matches([',', '.', ' ']) == *text
                        && is_near("start", *start)
                        && is_near("end", *end)
                };
                assert!(words.iter().any(is_anchor), "{options}: {text} at {start}: {words:?}");
            }
        }
    }
    // Alignment heads that the model does not have.
    let generation = folder.join("model/generation_config.json");
    fs::write(generation, "{\"alignment_heads\": [[3, 6]]}").unwrap();
    fs::remove_file(folder.join("model/run.sha256")).unwrap();
    let transcribe = "transcribe some --model model --out new.jsonl";
    refused(folder, transcribe, "run.sha256 is missing");
    let config = folder.join("model/config.json");
    let text = fs::read_to_string(&config).unwrap().replace("engram_checksums", "other");
    fs::write(config, text).unwrap();
    refused(folder, transcribe, &["generation_config.json", "[3, 6]"]);
}

#[test]
#[ignore = "needs ENGRAM_WHISPER and ENGRAM_DATA: speech"]
fn a_clip_that_cannot_be_read_stops_the_command_or_is_skipped() {
    let folder = &Published::new();
    fs::copy(folder.recording("cards-001"), folder.join("good.wav")).unwrap();
    fs::write(folder.join("bad.wav"), b"not audio").unwrap();
    let lines = "{\"audio\": \"good.wav\"}\n{\"audio\": \"bad.wav\"}\n{\"audio\": \"none.wav\"}\n";
    fs::write(folder.join("clips.jsonl"), lines).unwrap();
    let transcribe = "transcribe clips.jsonl --model model --out some.jsonl";
    refused(folder, transcribe, &["clips.jsonl, line 2", "--on-error skip"]);
    assert!(!folder.join("some.jsonl").exists());
    let summary = json(folder, &format!("{transcribe} --on-error skip"));
    let skipped = summary["skipped"].as_array().unwrap();
    assert_eq!((&summary["clips"], skipped.len()), (&1.into(), 2));
    assert!(skipped[1].as_str().unwrap().contains("none.wav"), "{summary}");
    let line = fs::read_to_string(folder.join("some.jsonl")).unwrap();
    assert!(line.contains("\"id\":\"good\"") && line.contains("of clubs"), "{line}");
}

#[test]
fn invalid_word_lists_are_refused() {
    let folder = &Folder::new();
    write_wav(&folder.join("a.wav"), [0.0; 160].into_iter());
    let transcribe = "transcribe a.wav --model none --out a.tsv --boost words";
    refused(folder, transcribe, "words");
    for (content, part) in [
        (&b"anon\na\tb\n"[..], "words, line 2: has a tab"),
        (b"caf\xe9\n", "UTF-8"),
        (b" \n", "words: has no words"),
        (b"a\n<|b|>\n", "words, line 2: `<|b|>`"),
        (b"a\tx\t[]\n", "words, line 1: has 3 fields"),
        (b"a\tx\t[]\t[]\nb\tx\t[]\t{}\n", "words, line 2: the fourth field"),
        (b"a\tx\t[]\t[\" \"]\n", "words, line 1: has an empty word"),
        (b"a\tx\t[]\t[]\na\tx\t[]\t[]\n", "the id `a` is already on line 1"),
        (b"rigor mortis \n\nanon\r\n", "none"),
    ] {
        fs::write(folder.join("words"), content).unwrap();
        refused(folder, transcribe, part);
    }
    refused(folder, &format!("{transcribe} --boost-weight=-1"), "at least 0");
    assert!(!folder.join("a.tsv").exists());
}

#[test]
#[ignore = "needs ENGRAM_WHISPER and ENGRAM_DATA: speech"]
fn boosted_words_are_transcribed_in_the_clips_that_have_them() {
    let folder = &Published::new();
    fs::create_dir(folder.join("two")).unwrap();
    for name in ["libri-2033-164914-0002", "libri-2033-164914-0003"] {
        fs::copy(folder.recording(name), folder.join(format!("two/{name}.wav"))).unwrap();
    }
    let transcribe = "transcribe two --model model --force --out texts.jsonl";
    let run = |words: &str, options: &str| {
        fs::write(folder.join("words"), words).unwrap();
        let output = engram(folder, &format!("{transcribe} --boost words {options}"));
        printed(&output, options);
        (read_json_lines(&folder.join("texts.jsonl")), errors(&output))
    };
    let contains_eunuch =
        |line: &Value| line["text"].as_str().unwrap().to_lowercase().contains("eunuch");
    succeeds(folder, transcribe);
    let unboosted = read_json_lines(&folder.join("texts.jsonl"));
    assert!(unboosted.len() == 2 && !unboosted.iter().any(contains_eunuch), "{unboosted:?}");
    let words_to_boost = "abnegated\nrigor mortis\neunuch\n";
    for options in ["", "--beams 3", "--batch 1", "--timestamps"] {
        let (boosted, _) = run(words_to_boost, &format!("{options} --boost-weight 4"));
        assert!(boosted.iter().all(contains_eunuch), "{options}: {boosted:?}");
        // The reported log-probability is the model's own, without the boost, so it stays negative.
        assert!(boosted.iter().all(|line| line["mean_log_probability"].as_f64() < Some(0.0)));
    }
    assert_eq!(run(words_to_boost, "--boost-weight 0").0, unboosted);

    // A table: the fourth field has the words to boost in the clip with the id.
    let table = "libri-2033-164914-0003\tx\t[]\t[\"abnegated\", \"eunuch\"]\n\
                 other\tx\t[]\t[\"anon\"]\n";
    let (boosted, note) = run(table, "");
    // Only texts are compared: the last bit of a probability may depend on the batch's other clips.
    assert_eq!(boosted[0]["text"], unboosted[0]["text"]);
    assert!(contains_eunuch(&boosted[1]), "{boosted:?}");
    assert!(note.contains("clips with a list: 1 of 2; lists without a clip: 1 of 2"), "{note}");
    let rare_words = "libri-2033-164914-0003\tthe eunuch\t[\"eunuch\"]\t[\"abnegated\"]\n";
    assert_eq!(run(rare_words, "").0, unboosted);
}

/// A stream gives almost the text of the whole clip, and each word has the time when it was final.
/// A file and standard input give the same text.
#[test]
#[ignore = "needs ENGRAM_WHISPER and ENGRAM_DATA: speech"]
fn streamed_audio_gets_final_words_one_by_one() {
    let folder = &Published::new();
    let file = folder.recording("jfk");
    let transcribe = "transcribe --model model --force --out stream.jsonl --stream 2";
    let summary = json(folder, &format!("{transcribe} {file}"));
    let line = read_json(&folder.join("stream.jsonl"));
    let whole_text = line["text"].as_str().unwrap().to_string();
    assert!(whole_text.to_lowercase().contains("what you can do for your country"), "{whole_text}");
    let words = line["words"].as_array().unwrap();
    assert_eq!(words.len(), whole_text.split_whitespace().count());
    let number = |word: &Value, field: &str| word[field].as_f64().unwrap();
    for word in words {
        // A word is final at the end of a chunk, and not before the word starts.
        let final_at = number(word, "final_at");
        assert!(final_at % 2.0 == 0.0 || final_at == 11.0, "{word}");
        assert!(final_at > number(word, "start"), "{word}");
        assert!(number(word, "latency") > final_at - number(word, "end"), "{word}");
    }
    let early = words.iter().filter(|word| number(word, "final_at") < 11.0).count();
    assert!(2 * early > words.len(), "{early} of {}", words.len());
    let streaming = &summary["streaming"];
    assert_eq!(streaming["passes"], 6);
    assert_eq!(streaming["latency"]["count"], words.len());
    let median = |latency: &str| number(&streaming[latency], "p50");
    assert!(median("latency") > median("latency_without_compute"));

    let stdin = format!("{transcribe} -");
    let live = printed(&engram_reading(folder, &stdin, &fs::read(&file).unwrap()[44..]), &stdin);
    assert_eq!(live.split_whitespace().collect::<Vec<_>>().join(" "), whole_text);
    let line = read_json(&folder.join("stream.jsonl"));
    assert_eq!((&line["id"], &line["text"]), (&"stdin".into(), &whole_text.into()));
    refusal(&engram_reading(folder, &stdin, ""), &stdin, "has no samples");

    // A clip that cannot be decoded is skipped; subtitles are built from the words.
    fs::create_dir(folder.join("mixed")).unwrap();
    fs::copy(&file, folder.join("mixed/good.wav")).unwrap();
    fs::write(folder.join("mixed/bad.wav"), b"not audio").unwrap();
    fs::create_dir(folder.join("subtitles")).unwrap();
    let transcribe = "transcribe mixed --model model --stream 5 --out subtitles --format vtt";
    refused(folder, transcribe, "--on-error skip");
    succeeds(folder, &format!("{transcribe} --on-error skip"));
    let vtt = fs::read_to_string(folder.join("subtitles/good.vtt")).unwrap();
    assert!(vtt.starts_with("WEBVTT\n\n00:00:0") && vtt.contains("country"), "{vtt}");
    refused(folder, &format!("{transcribe} --force --stream-window 29"), "5 to 25 s");
}
