//! Video frames of a clip: images with or without times, or a folder of images.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::manifest::Clip;
use crate::DataError;
use crate::folder::{self, SkippedFiles};

/// The maximum time from the end of the audio to a frame, in seconds.
const MAX_DELAY: f64 = 0.1;

/// A frame of a clip in a manifest: `"1.png"`, or `{"image": "1.png", "time": 2.5}`. A folder
/// stands for the JPEG and PNG files in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "FrameJson", into = "FrameJson")]
pub struct Frame {
    /// The image file, or a folder.
    pub image: PathBuf,
    /// The time in seconds from the start of the recording, like the clip's `start` and `end`;
    /// `None` if it is unknown.
    pub time: Option<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a frame is a path, or {\"image\": path, \"time\": seconds}")]
enum FrameJson {
    Image(PathBuf),
    Timed(Timed),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Timed {
    image: PathBuf,
    time: f64,
}

impl From<FrameJson> for Frame {
    fn from(json: FrameJson) -> Self {
        match json {
            FrameJson::Image(image) => Self { image, time: None },
            FrameJson::Timed(Timed { image, time }) => Self { image, time: Some(time) },
        }
    }
}

impl From<Frame> for FrameJson {
    fn from(Frame { image, time }: Frame) -> Self {
        match time {
            None => Self::Image(image),
            Some(time) => Self::Timed(Timed { image, time }),
        }
    }
}

impl From<PathBuf> for Frame {
    fn from(image: PathBuf) -> Self {
        Self { image, time: None }
    }
}

impl Clip {
    /// Returns the image files of the clip. Images with times come first, in time order, then the
    /// others in the manifest's order. The files are not opened. `seconds` is the duration of the
    /// clip's audio, which may differ from the manifest's.
    ///
    /// # Errors
    /// `Frames` for a clip without images, and for an image outside the clip's time;
    /// `Io` for a folder that cannot be read
    pub fn frame_files(&self, seconds: f64) -> Result<Vec<PathBuf>, DataError> {
        let frames_error = |reason: String| DataError::Frames { clip: self.id.clone(), reason };
        let audio_end = self.start + seconds + MAX_DELAY;
        let end = self.end.map_or(audio_end, |end| end.min(audio_end));
        let mut frames: Vec<&Frame> = self.frames.iter().collect();
        for frame in &frames {
            if let Some(time) = frame.time.filter(|time| !(self.start..=end).contains(time)) {
                let (image, start) = (frame.image.display(), self.start);
                return Err(frames_error(format!(
                    "{image} is at {time} s, outside the clip ({start} to {end:.2} s); \
                     correct its time, or remove the frame"
                )));
            }
        }
        let time = |frame: &&Frame| frame.time.unwrap_or(f64::INFINITY);
        frames.sort_by(|a, b| time(a).total_cmp(&time(b)));
        let mut files = Vec::with_capacity(frames.len());
        for frame in frames {
            if frame.image.is_dir() {
                files.extend(numbered_images(&frame.image)?.0.into_iter().map(|(_, file)| file))
            } else {
                files.push(frame.image.clone())
            }
        }
        if files.is_empty() {
            Err(frames_error("has no frames; add frames, or remove the clip".to_string()))
        } else {
            Ok(files)
        }
    }
}

/// Images with the numbers in their names.
pub(super) type NumberedImages = Vec<(Option<f64>, PathBuf)>;

/// Returns the images of a folder and the counts of the skipped files. Images are
/// sorted by their names without the number at the end, then by this number (`2.5.jpg` before
/// `12.5.jpg`).
pub(super) fn numbered_images(folder: &Path) -> Result<(NumberedImages, SkippedFiles), DataError> {
    let is_image = |path: &Path| {
        let has_extension =
            |name: &&str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(name));
        ["jpg", "jpeg", "png"].iter().any(has_extension)
    };
    let listing = folder::files(folder, &is_image)?;
    let mut keyed: Vec<(String, Option<f64>, PathBuf)> =
        listing.files.into_iter().map(image_key).collect();
    let number = |key: Option<f64>| key.unwrap_or(0.0);
    keyed.sort_by(|a, b| {
        a.0.cmp(&b.0).then(number(a.1).total_cmp(&number(b.1))).then_with(|| a.2.cmp(&b.2))
    });
    let numbered = keyed.into_iter().map(|(_, number, path)| (number, path)).collect();
    Ok((numbered, listing.skipped))
}

/// Returns the path without its last number, the number and the path.
fn image_key(path: PathBuf) -> (String, Option<f64>, PathBuf) {
    let stem = path.with_extension("").to_string_lossy().into_owned();
    let prefix = stem.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    match stem[prefix.len()..].parse() {
        Ok(number) => (prefix.to_owned(), Some(number), path),
        Err(_) => (stem, None, path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clip(line: &str) -> Clip {
        serde_json::from_str(line).expect("a clip")
    }

    #[test]
    fn frames_are_sorted_by_time_and_checked() {
        let line = r#"{"id":"a","audio":"a.wav","start":1.0,"end":4.0,"frames":["z.png",{"image":"y.png","time":3.5},{"image":"x.png","time":1.0}]}"#;
        let clip_with_frames = clip(line);
        assert_eq!(serde_json::to_string(&clip_with_frames).expect("a line"), line);
        let names = ["x.png", "y.png", "z.png"].map(PathBuf::from);
        assert_eq!(clip_with_frames.frame_files(3.0).expect("in time"), names);
        assert!(serde_json::from_str::<Frame>(r#"{"image":"x","tme":1}"#).is_err());
        let error_for = |line: &str, seconds: f64| {
            clip(line).frame_files(seconds).expect_err("an error").to_string()
        };
        let late = error_for(&line.replace("3.5", "4.5"), 9.0);
        assert!(late.contains("y.png is at 4.5 s, outside the clip (1 to 4.00 s)"), "{late}");
        // The audio may end before the manifest's end, or the manifest may have no end.
        for line in [line, &line.replace(r#""end":4.0,"#, "")] {
            let late = error_for(line, 2.0);
            assert!(late.contains("is at 3.5 s, outside the clip (1 to 3.10 s)"), "{late}");
        }
        let error = error_for(r#"{"id":"b","audio":"a.wav"}"#, 1.0);
        assert!(error.contains("clip `b`: has no frames"), "{error}");
    }

    #[test]
    fn a_folder_stands_for_its_images() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["f12.5.jpg", "f2.5.JPG", "f3.png", "f1.txt"] {
            std::fs::write(folder.path().join(name), b"x").expect("a file");
        }
        let frames = vec![folder.path().to_path_buf().into()];
        let clip = Clip { id: "a".into(), frames, ..Clip::default() };
        let names: Vec<String> = clip
            .frame_files(1.0)
            .expect("images")
            .iter()
            .map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["f2.5.JPG", "f3.png", "f12.5.jpg"]);
    }
}
