//! Subtitle files.

use engram_infer::asr::Segment;

use super::transcripts::Format;

/// The text on one line.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The content of a subtitle file.
pub(super) fn subtitles(format: Format, segments: &[Segment]) -> String {
    let mut text = if format == Format::Vtt { "WEBVTT\n\n".to_string() } else { String::new() };
    for (number, segment) in (1..).zip(segments) {
        if format == Format::Srt {
            text += &format!("{number}\n");
        }
        let (start, end) = (format_time(segment.start, format), format_time(segment.end, format));
        // `-->` in a text would be parsed as a time range.
        let text_line = one_line(&segment.text).replace("-->", "->");
        text += &format!("{start} --> {end}\n{text_line}\n\n");
    }
    text
}

/// Formats a time in seconds as `00:01:02,345`; WebVTT has a point instead of the comma.
fn format_time(time: f64, format: Format) -> String {
    let total = (time * 1000.0).round() as u64;
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

    #[test]
    fn subtitles_follow_their_formats() {
        let segment = |start, end, text: &str| Segment { start, end, text: text.into() };
        let segments = [segment(0.0, 1.5, "a --> b"), segment(3725.25, 3726.0, "c\nd")];
        let srt = subtitles(Format::Srt, &segments);
        let expected =
            "1\n00:00:00,000 --> 00:00:01,500\na -> b\n\n2\n01:02:05,250 --> 01:02:06,000\nc d\n\n";
        assert_eq!(srt, expected);
        assert!(
            subtitles(Format::Vtt, &segments)
                .starts_with("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\n")
        );
    }
}
