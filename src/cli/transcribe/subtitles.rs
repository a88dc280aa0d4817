//! Subtitle files.

use engram_infer::asr::{Segment, Word, words_of_segments};

use super::transcripts::Format;

/// The text on one line.
pub(super) fn one_line(text: &str) -> String {
    wrapped(text, usize::MAX)
}

/// The text in lines of at most `max_length` characters. Only a longer word exceeds a line.
fn wrapped(text: &str, max_length: usize) -> String {
    let (mut lines, mut length) = (String::new(), 0);
    for word in text.split_whitespace() {
        let word_length = word.chars().count();
        if !lines.is_empty() && length + 1 + word_length > max_length {
            lines.push('\n');
            length = 0;
        } else if !lines.is_empty() {
            lines.push(' ');
            length += 1;
        }
        lines += word;
        length += word_length;
    }
    lines
}

/// The content of a subtitle file with lines of at most `max_length` characters. If there are
/// `words`, each word is underlined in its time, which needs one subtitle per word.
pub(super) fn subtitles(
    format: Format,
    segments: &[Segment],
    words: &[Word],
    max_length: usize,
) -> String {
    let mut file = if format == Format::Vtt { "WEBVTT\n\n".to_string() } else { String::new() };
    let (mut number, mut previous_end) = (0, 0);
    let mut add = |start: f64, end: f64, text: &str| {
        let milliseconds = |time: f64| (time * 1000.0).round() as u64;
        // Players skip a subtitle without length.
        let start = milliseconds(start).max(previous_end);
        previous_end = milliseconds(end).max(start + 1);
        number += 1;
        if format == Format::Srt {
            file += &format!("{number}\n");
        }
        let (start, end) = (format_time(start, format), format_time(previous_end, format));
        file += &format!("{start} --> {end}\n{text}\n\n");
    };
    for (segment, words) in segments.iter().zip(words_of_segments(segments, words)) {
        let text = wrapped(&segment.text, max_length);
        let (mut start, mut position) = (segment.start, 0);
        for (word, next) in words.iter().zip(words.iter().skip(1).map(Some).chain([None])) {
            let spoken = wrapped(&word.text, max_length);
            let Some(found) = text[position..].find(&spoken) else { continue };
            let (before, from) = text.split_at(position + found);
            let (spoken, after) = from.split_at(spoken.len());
            position = text.len() - after.len();
            let [before, spoken, after] = [before, spoken, after].map(|part| escaped(format, part));
            // The last subtitle lasts until the end of the segment.
            let end = next.map_or(segment.end, |next| next.start);
            add(start, end, &format!("{before}<u>{spoken}</u>{after}"));
            start = end;
        }
        if start < segment.end || position == 0 {
            add(start, segment.end, &escaped(format, &text));
        }
    }
    file
}

/// The text with the escapes of the format. SubRip has none, so a text `-->`, which would be parsed
/// as a time range, becomes `->` there.
fn escaped(format: Format, text: &str) -> String {
    match format {
        Format::Vtt => text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"),
        _ => text.replace("-->", "->"),
    }
}

/// Formats a time in milliseconds as `00:01:02,345`; WebVTT has a point instead of the comma.
fn format_time(total: u64, format: Format) -> String {
    let (seconds, milliseconds) = (total / 1000, total % 1000);
    let separator = if format == Format::Srt { ',' } else { '.' };
    format!(
        "{:02}:{:02}:{:02}{separator}{milliseconds:03}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(start: f64, end: f64, text: &str) -> Segment {
        Segment { start, end, text: text.into() }
    }

    #[test]
    fn subtitles_follow_their_formats() {
        let segments = [segment(0.0, 1.5, "a --> <b> &amp;"), segment(3725.25, 3725.25, "c\nd")];
        let srt = subtitles(Format::Srt, &segments, &[], usize::MAX);
        let expected = "1\n00:00:00,000 --> 00:00:01,500\na -> <b> &amp;\n\n\
                        2\n01:02:05,250 --> 01:02:05,251\nc d\n\n";
        assert_eq!(srt, expected);
        let vtt = subtitles(Format::Vtt, &segments, &[], usize::MAX);
        let start = "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\na --&gt; &lt;b&gt; &amp;amp;\n\n";
        assert!(vtt.starts_with(start), "{vtt}");
    }

    #[test]
    fn words_are_underlined_in_their_times_and_lines_have_a_maximum_length() {
        let word =
            |start, end, text: &str| Word { start, end, text: text.into(), probability: 1.0 };
        let segments = [segment(0.0, 2.0, "so <u it"), segment(2.0, 3.0, "extraordinary day")];
        let words = [word(0.1, 0.4, "so"), word(0.6, 0.9, "<u"), word(0.9, 1.8, "it")];
        let vtt = subtitles(Format::Vtt, &segments, &words, 5);
        let cues: Vec<&str> = vtt.trim_end().split("\n\n").skip(1).collect();
        assert_eq!(
            cues,
            [
                "00:00:00.000 --> 00:00:00.600\n<u>so</u> &lt;u\nit",
                "00:00:00.600 --> 00:00:00.900\nso <u>&lt;u</u>\nit",
                "00:00:00.900 --> 00:00:02.000\nso &lt;u\n<u>it</u>",
                "00:00:02.000 --> 00:00:03.000\nextraordinary\nday",
            ]
        );
    }
}
