//! Tests of streaming with simulated ASR models. In some tests, the value of a sample is its index
//! in the recording, so that the simulated model knows the position of its input.

use std::convert::Infallible;

use super::*;

const OPTIONS: StreamOptions = StreamOptions { chunk_seconds: 1.0, window_seconds: 15.0 };

fn word(start: f64, end: f64, text: &str) -> Word {
    Word { start, end, text: text.to_string(), probability: 1.0 }
}

fn transcript(words: Vec<Word>) -> Transcript {
    let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
    Transcript { text: texts.join(" "), words, ..Transcript::empty(0) }
}

/// A hypothesis with one word per second.
fn hypothesis_of(text: &str) -> Transcript {
    let word = |(i, text)| word(i as f64, i as f64 + 0.8, text);
    transcript(text.split_whitespace().enumerate().map(word).collect())
}

/// Reads a recording of `count` samples in parts of `step`.
fn reader(count: usize, step: usize) -> impl FnMut(&mut Vec<f32>) -> Result<bool, Infallible> {
    let mut position = 0;
    move |samples| {
        let end = (position + step).min(count);
        samples.extend((position..end).map(|i| i as f32));
        position = end;
        Ok(position < count)
    }
}

fn texts(words: &[FinalWord]) -> Vec<&str> {
    words.iter().map(|word| word.word.text.as_str()).collect()
}

#[test]
fn words_are_final_when_two_hypotheses_agree_and_at_the_end() {
    let mut stream = Stream::new(OPTIONS, 30.0);
    let mut counts = Vec::new();
    for (hypothesis, revised) in [
        ("ask", 0),
        ("Ask knot", 0),
        ("ask not, what", 1),
        ("ask not what your", 1),
        ("task not what you count", 2),
    ] {
        stream.add(&[0.0; 16_000]);
        let pass = stream.update(hypothesis_of(hypothesis), 0.1);
        counts.push((texts(pass.new).join(" "), pass.rest.len()));
        assert_eq!(stream.revised_words, revised, "{hypothesis}");
    }
    // The new final words, and the number of words that may still change. The later of the two
    // spellings is used. A final word does not change.
    let expected = [("", 1), ("Ask", 1), ("", 2), ("not what", 1), ("", 2)];
    assert_eq!(counts, expected.map(|(text, count)| (text.to_string(), count)));
    stream.end();
    let result = stream.finish();
    assert_eq!(result.transcript.text, "Ask not what you count");
    assert_eq!((result.passes, result.transcript.seconds), (5, 5.0));
}

#[test]
fn silent_passes_do_not_count_in_the_mean_probabilities() {
    let probabilities_after = |passes: &[Transcript]| {
        let mut stream = Stream::new(OPTIONS, 30.0);
        for pass in passes {
            stream.add(&[0.0; 16_000]);
            stream.update(pass.clone(), 0.1);
        }
        let transcript = stream.finish().transcript;
        (transcript.mean_log_probability, transcript.no_speech_probability)
    };
    let decoded = |mean_log_probability, no_speech_probability| Transcript {
        mean_log_probability,
        no_speech_probability,
        ..hypothesis_of("word")
    };
    let silent = Transcript::empty(16_000);
    let passes = [decoded(-0.75, 0.125), silent.clone(), decoded(-0.25, 0.375), silent.clone()];
    assert_eq!(probabilities_after(&passes), (-0.5, 0.25));
    assert_eq!(probabilities_after(&[silent]), (0.0, 1.0));
}

#[test]
fn latencies_include_the_delay_of_late_passes() {
    let mut stream = Stream::new(OPTIONS, 30.0);
    // Passes end at 1.5, 4, 4.5 and 4.6.
    for (hypothesis, compute) in [("a", 0.5), ("a b", 2.0), ("a b c", 0.5), ("a b c d", 0.1)] {
        stream.add(&[0.0; 16_000]);
        stream.update(hypothesis_of(hypothesis), compute);
    }
    stream.end();
    let result = stream.finish();
    let is_near = |a: f64, b: f64| (a - b).abs() < 1e-9;
    // Words end at 0.8, 1.8, 2.8, 3.8.
    let expected = [(2.0, 3.2), (3.0, 2.7), (4.0, 1.8), (4.0, 0.8)];
    for (word, (final_at, latency)) in result.words.iter().zip(expected) {
        assert!(is_near(word.final_at, final_at) && is_near(word.latency, latency), "{word:?}");
    }
    assert_eq!((result.words.len(), result.late_passes), (4, 2));
    assert!(is_near(result.compute_seconds, 3.1));
}

/// The words of a recording, and their transcription with simulated errors.
struct Recording {
    words: Vec<Word>,
    seconds: f64,
}

/// A pseudorandom number for each seed.
fn random(seed: usize) -> usize {
    let mixed = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33) as usize
}

impl Recording {
    /// Words of 0.2 to 0.6 s from a vocabulary of a few dozen. Some are repeated, and some follow a
    /// pause.
    fn new(seconds: f64) -> Self {
        let (mut words, mut time, mut last) = (Vec::new(), 0.3, 0);
        for i in 0.. {
            if random(7 * i).is_multiple_of(9) {
                time += (random(7 * i + 1) % 30) as f64 / 10.0;
            }
            let length = 0.2 + (random(7 * i + 2) % 5) as f64 / 10.0;
            if time + length > seconds {
                return Self { words, seconds };
            }
            last = if random(7 * i + 3).is_multiple_of(12) { last } else { random(7 * i + 4) % 40 };
            words.push(word(time, time + length, &format!("w{last}")));
            time += length + (random(7 * i + 5) % 2) as f64 / 20.0;
        }
        unreachable!()
    }

    /// Streams the recording through an ASR model with errors that change from pass to pass. The
    /// errors affect words at the ends of the audio. Times are off by up to 60 ms. Returns the
    /// result and the number of samples of the longest pass.
    fn stream(&self, options: StreamOptions, max_seconds: f64) -> (StreamResult, usize) {
        let read = reader(seconds_to_samples(self.seconds), 5_000);
        let mut max_pass_samples = 0;
        let transcribe = |samples: &[f32]| -> Result<Transcript, Infallible> {
            max_pass_samples = max_pass_samples.max(samples.len());
            let first = samples_to_seconds(samples[0] as usize);
            let last = first + samples_to_seconds(samples.len());
            let mut hypothesis = Vec::<Word>::new();
            for (i, spoken) in self.words.iter().enumerate() {
                let pass_seed = samples.len() + samples[0] as usize;
                if spoken.end < first + 0.05 || spoken.start > last - 0.05 {
                    continue;
                }
                let is_sure = spoken.start >= first && spoken.end < last - 0.3;
                let text = if is_sure || last == self.seconds && spoken.start >= first {
                    spoken.text.clone()
                } else {
                    format!("x{i}-{pass_seed}")
                };
                let error = (random(i + pass_seed) % 120) as f64 / 1000.0 - 0.06;
                let (start, end) = (spoken.start - first + error, spoken.end - first + error);
                hypothesis.push(word(start.max(0.0), end.max(0.0), &text));
            }
            Ok(transcript(hypothesis))
        };
        let Ok(result) = run(Stream::new(options, max_seconds), read, transcribe, |_| {});
        (result, max_pass_samples)
    }
}

#[test]
fn dropping_audio_neither_loses_nor_repeats_words() {
    let recording = Recording::new(300.0);
    let spoken: Vec<&str> = recording.words.iter().map(|word| word.text.as_str()).collect();
    for (chunk_seconds, window_seconds) in
        [(0.3, 6.0), (0.5, 15.0), (1.0, 6.0), (1.0, 15.0), (2.0, 15.0), (5.0, 15.0), (3.1, 7.7)]
    {
        let options = StreamOptions { chunk_seconds, window_seconds };
        let (result, max_pass_samples) = recording.stream(options, 20.0);
        let transcribed = texts(&result.words);
        let error = transcribed.iter().zip(&spoken).position(|(text, spoken)| text != spoken);
        let neighbours =
            |i: usize| (&result.words[i.saturating_sub(3)..i + 3], &recording.words[i - 3..i + 3]);
        assert_eq!((error.map(neighbours), transcribed.len()), (None, spoken.len()), "{options:?}");
        assert!(samples_to_seconds(max_pass_samples) <= 20.0, "{options:?}: {max_pass_samples}");
        let chunks = (300.0 / chunk_seconds).ceil() as usize;
        assert!((chunks..=chunks + 1).contains(&result.passes), "{options:?}: {}", result.passes);
        // A word becomes final after two chunks and the 0.3 s in which its text may be wrong.
        let waits = result.words.iter().map(|word| word.final_at - word.word.end);
        let longest_wait = waits.fold(0.0, f64::max);
        assert!(longest_wait < 2.0 * chunk_seconds + 0.4, "{options:?}: {longest_wait}");
        let starts: Vec<f64> = result.transcript.segments.iter().map(|s| s.start).collect();
        assert!(starts.is_sorted() && starts.len() > 40, "{starts:?}");
    }
}

#[test]
fn final_words_do_not_depend_on_the_computing_time() {
    let run = |compute_seconds: fn(usize) -> f64| {
        let mut stream = Stream::new(OPTIONS, 30.0);
        for i in 0..40 {
            stream.add(&[0.0; 16_000]);
            let words = (stream.first_sample / 16_000..i + 1).map(|i| format!("w{i} "));
            let words: String = words.collect();
            stream.update(hypothesis_of(&words), compute_seconds(i));
        }
        stream.end();
        let words = stream.finish().words;
        words.into_iter().map(|word| (word.word, word.final_at)).collect::<Vec<_>>()
    };
    let words = run(|_| 0.0);
    assert_eq!(words.len(), 40);
    assert_eq!(words, run(|i| (i % 3) as f64));
}

/// If no two hypotheses agree, words still become final, and no pass exceeds the ASR model's
/// maximum of 30 seconds.
#[test]
fn without_agreement_the_window_moves_on() {
    let (mut pass, mut max_pass_samples) = (0, 0);
    let read = reader(120 * 16_000, 16_000);
    let transcribe = |samples: &[f32]| -> Result<Transcript, Infallible> {
        pass += 1;
        max_pass_samples = max_pass_samples.max(samples.len());
        let words = (0..samples.len() / 16_000).map(|i| format!("w{pass}-{i} "));
        Ok(hypothesis_of(&words.collect::<String>()))
    };
    let Ok(result) = run(Stream::new(OPTIONS, 30.0), read, transcribe, |_| {});
    assert_eq!(samples_to_seconds(max_pass_samples), 30.0);
    assert!((115..=125).contains(&result.words.len()), "{}", result.words.len());
    assert!(!result.transcript.truncated);
}

#[test]
fn a_truncated_text_confirms_no_words() {
    let mut stream = Stream::new(OPTIONS, 30.0);
    for _ in 0..3 {
        stream.add(&[0.0; 16_000]);
        let hypothesis = Transcript { truncated: true, ..hypothesis_of("you you you") };
        assert!(stream.update(hypothesis, 0.1).new.is_empty());
    }
    stream.add(&[0.0; 16_000]);
    assert_eq!(texts(stream.update(hypothesis_of("you are"), 0.1).new), ["you"]);
    stream.end();
    assert!(!stream.finish().transcript.truncated);

    let mut stream = Stream::new(OPTIONS, 30.0);
    stream.add(&[0.0; 16_000]);
    stream.update(Transcript { truncated: true, ..hypothesis_of("you you") }, 0.1);
    stream.end();
    assert!(stream.finish().transcript.truncated);
}

#[test]
fn an_hour_of_silence_is_dropped_and_the_next_word_is_transcribed() {
    let hour = 3600 * 16_000;
    let mut max_pass_samples = 0;
    let read = reader(hour + 32_000, 16_000);
    let transcribe = |samples: &[f32]| -> Result<Transcript, Infallible> {
        max_pass_samples = max_pass_samples.max(samples.len());
        let (first, end) = (samples[0] as usize, samples.len() + samples[0] as usize);
        let start = samples_to_seconds(hour) + 0.2 - samples_to_seconds(first);
        let spoken = (end > hour && first <= hour).then(|| word(start, start + 0.5, "hello"));
        let words = spoken.into_iter().collect();
        Ok(transcript(words))
    };
    let Ok(result) = run(Stream::new(OPTIONS, 30.0), read, transcribe, |_| {});
    assert_eq!(texts(&result.words), ["hello"]);
    assert!(samples_to_seconds(max_pass_samples) <= 16.0, "{max_pass_samples}");
}

/// The model ends each text after the second word. The audio of the later words has to be
/// transcribed again.
#[test]
fn audio_after_an_early_end_is_transcribed_without_repeated_words() {
    let spoken: Vec<Word> = (0..30)
        .map(|i| word(1.5 * f64::from(i) + 0.2, 1.5 * f64::from(i) + 0.8, &format!("w{i}")))
        .collect();
    let read = reader(45 * 16_000, 16_000);
    let transcribe = |samples: &[f32]| -> Result<Transcript, Infallible> {
        let first = samples_to_seconds(samples[0] as usize);
        let last = first + samples_to_seconds(samples.len());
        let hypothesis = spoken.iter().filter(|word| word.start >= first && word.end <= last);
        let shifted = |spoken: &Word| word(spoken.start - first, spoken.end - first, &spoken.text);
        Ok(transcript(hypothesis.take(2).map(shifted).collect()))
    };
    let Ok(result) = run(Stream::new(OPTIONS, 30.0), read, transcribe, |_| {});
    let transcribed = texts(&result.words);
    let spoken = spoken.iter().map(|word| word.text.as_str());
    let in_order: Vec<&str> = spoken.filter(|text| transcribed.contains(text)).collect();
    // No word appears twice or out of order, and more words than the first two appear.
    assert!(transcribed == in_order && transcribed.len() >= 8, "{transcribed:?}");
}

#[test]
fn invalid_lengths_are_refused() {
    let check = |chunk_seconds, window_seconds| {
        let result = StreamOptions { chunk_seconds, window_seconds }.check(20.0);
        result.map_err(|error| error.to_string())
    };
    assert_eq!((check(1.0, 15.0), check(5.0, 15.0), check(0.1, 0.1)), (Ok(()), Ok(()), Ok(())));
    for (chunk, window, reason) in [
        (0.09, 15.0, "0.1 to 10 s"),
        (11.0, 15.0, "0.1 to 10 s"),
        (f64::NAN, 15.0, "0.1 to 10 s"),
        (-1.0, 15.0, "0.1 to 10 s"),
        (2.0, 1.0, "2 to 18 s"),
        (6.0, 15.0, "6 to 14 s"),
        (1.0, f64::INFINITY, "1 to 19 s"),
    ] {
        let error = check(chunk, window).expect_err("an error");
        assert!(error.contains(reason), "{error}");
    }
}
