//! Tests of unusual audio files: joined, truncated, damaged, and with wrong headers. The files are
//! made from `fixtures/audio`: 4 s of speech in MP3, MP4 and Ogg, made by ffmpeg 5.1.

use std::fs;
use std::path::{Path, PathBuf};

use engram_data::audio::{AudioReader, read_audio};
use engram_data::speech::manifest::{InputClips, input_clips};
use engram_data::speech::{SpeechFormat, SpeechSource, read};

const RATE: u32 = 16_000;
/// The number of samples of the speech at [`RATE`].
const SPEECH_SAMPLES: usize = 64_000;
/// The sample rate of the files, in Hz.
const RATE_IN_FILES: u32 = 24_000;
/// The number of samples in two MP3 frames.
const TWO_FRAMES: usize = 1_152;

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/audio");
    fs::read(folder.join(name)).expect("a fixture")
}

fn decode(bytes: Vec<u8>) -> Result<Vec<f32>, String> {
    let mut samples = Vec::new();
    let mut reader =
        AudioReader::from_bytes("a.mp3", bytes, RATE).map_err(|error| error.to_string())?;
    while reader.read(&mut samples).map_err(|error| error.to_string())? {}
    Ok(samples)
}

/// Asserts that samples are equal, except near the ends of the audio: the resampler uses the
/// neighbours of a sample, which differ there.
fn assert_equal_inside(actual: &[f32], expected: &[f32]) {
    assert_eq!(actual.len(), expected.len());
    let inner = 1_000..expected.len() - 1_000;
    let pairs = actual[inner.clone()].iter().zip(&expected[inner]);
    let max_difference =
        pairs.map(|(actual, expected)| (actual - expected).abs()).fold(0.0, f32::max);
    assert!(max_difference < 1e-3, "{max_difference}");
}

fn count(bytes: Vec<u8>) -> usize {
    decode(bytes).expect("audio").len()
}

/// Returns a WAV file of 10,000 samples, with the given sizes of file and data in its headers.
fn wav(file_size: u32, data_size: u32) -> Vec<u8> {
    let mut bytes = b"RIFF".to_vec();
    bytes.extend(file_size.to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data");
    bytes.extend(data_size.to_le_bytes());
    bytes.extend((0..10_000i16).flat_map(i16::to_le_bytes));
    bytes
}

#[test]
fn a_wav_of_unknown_size_is_read_to_the_end_of_the_file() {
    let whole = decode(wav(20_036, 20_000)).expect("audio");
    assert_eq!(whole.len(), 10_000);
    for size in
        [0, 0x7fff_f000, 0x7fff_f024, 0x7fff_ffff, 0x8000_0000, 0x8000_0024, 0xffff_ffdb, u32::MAX]
    {
        for file_size in [0, size.saturating_add(36)] {
            assert_eq!(decode(wav(file_size, size)).as_ref(), Ok(&whole), "{size:#x}");
        }
    }
    let error = decode(wav(21_036, 21_000)).expect_err("an error");
    assert!(error.contains("is truncated: 10000 of 10500 samples are present"), "{error}");
    let declared = decode(wav(136, 100)).map(|samples| samples.len());
    assert_eq!(declared, Ok(50), "less than a second follows the declared samples");
    let mut with_extra_bytes = wav(136, 1_000);
    with_extra_bytes.extend([1; 40_000]);
    let error = decode(with_extra_bytes).expect_err("a wrong size");
    assert!(error.contains("59000 bytes after the 1000"), "{error}");
}

#[test]
fn all_parts_of_joined_wavs_are_read() {
    let (one, mut both) = (wav(20_036, 20_000), wav(20_036, 20_000));
    both.extend(one);
    assert_eq!(count(both), 20_000);
}

#[test]
fn an_mp3_is_trimmed_if_its_frame_count_is_correct() {
    let whole = fixture("speech.mp3");
    assert_eq!(count(whole.clone()), SPEECH_SAMPLES);
    let info = whole.windows(4).position(|part| part == b"Info").expect("an info frame");
    for frames in [0u32, 85, 168, 170, u32::MAX] {
        let mut bytes = whole.clone();
        bytes[info + 8..info + 12].copy_from_slice(&frames.to_be_bytes());
        let count = count(bytes);
        assert!((SPEECH_SAMPLES..SPEECH_SAMPLES + TWO_FRAMES).contains(&count), "{frames} {count}");
    }
}

#[test]
fn all_parts_of_joined_mp3s_are_read() {
    let whole = fixture("speech.mp3");
    let mut joined = whole.clone();
    joined.extend(&whole);
    let one = decode(whole.clone()).expect("audio");
    let both = decode(joined).expect("audio");
    assert_eq!(both.len(), 2 * SPEECH_SAMPLES);
    assert_equal_inside(&both[..SPEECH_SAMPLES], &one);
    assert_equal_inside(&both[SPEECH_SAMPLES..], &one);
    // With tags between the parts and at the end.
    let mut tagged = whole.clone();
    tagged.extend([b"TAG".as_slice(), &[0; 125]].concat());
    tagged.extend([b"ID3\x04\0\0\0\0\x01\0".as_slice(), &[7; 128]].concat());
    tagged.extend(whole);
    assert_eq!(count(tagged), 2 * SPEECH_SAMPLES);
}

#[test]
fn a_flipped_bit_in_a_frame_header_keeps_the_duration() {
    let whole = fixture("speech.mp3");
    let info = whole.windows(4).position(|part| part == b"Info").expect("an info frame");
    let first = info - 13;
    let is_header = |start: &usize| whole[*start..].starts_with(&whole[first..first + 2]);
    let header = (first + 1_000..).find(is_header).expect("a frame");
    for bit in 0..32 {
        let mut bytes = whole.clone();
        bytes[header + bit / 8] ^= 0x80 >> (bit % 8);
        let count = count(bytes);
        assert!(count.abs_diff(SPEECH_SAMPLES) <= TWO_FRAMES, "bit {bit}: {count}");
    }
}

#[test]
fn a_heavily_damaged_mp3_is_refused_or_keeps_its_duration() {
    let mut bytes = fixture("speech.mp3");
    for position in (3_000..bytes.len()).step_by(97) {
        bytes[position] ^= 0xa5;
        bytes[position - 1] ^= 0x5a;
    }
    if let Ok(samples) = decode(bytes) {
        assert!(samples.len().abs_diff(SPEECH_SAMPLES) <= TWO_FRAMES, "{}", samples.len());
    }
}

#[test]
fn an_mp4_follows_its_edit_list() {
    let whole = fixture("speech.m4a");
    let length = count(whole.clone());
    assert!((SPEECH_SAMPLES..SPEECH_SAMPLES + 1_024).contains(&length), "{length}");
    let list = whole.windows(4).position(|part| part == b"elst").expect("an edit list");
    // Start one second later.
    let mut later = whole.clone();
    later[list + 16..list + 20].copy_from_slice(&(1_024u32 + RATE_IN_FILES).to_be_bytes());
    let (later, whole_samples) =
        (decode(later).expect("audio"), decode(whole.clone()).expect("audio"));
    assert!((SPEECH_SAMPLES - RATE as usize..).contains(&later.len()), "{}", later.len());
    let expected = &whole_samples[RATE as usize..];
    assert_equal_inside(&later[..40_000], &expected[..40_000]);
    let mut fast = whole.clone();
    fast[list + 20..list + 24].copy_from_slice(&[0, 2, 0, 0]);
    assert!(decode(fast).expect_err("a speed").contains("changes the speed"));
    let truncated = decode(whole[..whole.len() / 2].to_vec());
    assert!(truncated.is_err(), "its table of contents is at its end");
}

#[test]
fn all_streams_of_a_chained_ogg_are_read() {
    let whole = fixture("speech.ogg");
    let one = count(whole.clone());
    assert_eq!(one, SPEECH_SAMPLES);
    let both = count([whole.clone(), whole].concat());
    assert!(both.abs_diff(2 * SPEECH_SAMPLES) <= 1_024, "{both}");
}

#[test]
fn all_parts_of_joined_flacs_are_read() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/audio");
    let one = read_audio(corpus.join("tiny.flac"), RATE).expect("audio").len();
    let both = read_audio(corpus.join("joined.flac"), RATE).expect("audio").len();
    assert!(both.abs_diff(2 * one) <= 2, "{both} of {one}");
}

/// Returns a FLAC with blocks of 192 samples. All samples of block `n` have the value `n`. `sizes`
/// are the sizes in the header, and `total` is its number of samples.
fn flac(sizes: [u8; 10], total: u16, blocks: std::ops::Range<u8>) -> Vec<u8> {
    let mut bytes = [b"fLaC\0\0\0\x22", &sizes[..], b"\x03\xe8\0\xf0\0\0"].concat();
    bytes.extend(total.to_be_bytes());
    // No checksum, and a seek table of an invalid length.
    bytes.extend([&[0; 16], &b"\x83\0\0\x05fault"[..]].concat());
    let checksum = |bits: u32, polynomial: u32, bytes: &[u8]| {
        bytes.iter().fold(0, |sum, byte| {
            (0..8).fold(sum ^ (u32::from(*byte) << (bits - 8)), |sum, _| {
                ((sum << 1) ^ (polynomial * (sum >> (bits - 1)))) & ((1 << bits) - 1)
            })
        })
    };
    for block in blocks {
        let mut frame = vec![0xff, 0xf8, 0x10, 0x08, block];
        frame.push(checksum(8, 0x07, &frame) as u8);
        frame.extend([0, 0, block]);
        frame.extend((checksum(16, 0x8005, &frame) as u16).to_be_bytes());
        bytes.extend(frame);
    }
    bytes
}

#[test]
fn flacs_with_unknown_or_wrong_sizes_and_parts_of_flacs_are_read() {
    let usual = [0, 192, 0, 192, 0, 0, 11, 0, 0, 11];
    let whole = decode(flac(usual, 6 * 192, 0..6)).expect("audio");
    let values = (0..6 * 192).map(|i| (i / 192) as f32 / 32_768.0);
    assert_eq!(whole, values.collect::<Vec<_>>());
    for sizes in [
        [0, 0, 0, 192, 0, 0, 11, 0, 0, 11],
        [0; 10],
        [0, 16, 0, 192, 0, 0, 0, 0, 0, 0],
        [16, 0, 0, 0, 0, 0, 255, 0, 0, 1],
    ] {
        for total in [0, 6 * 192] {
            assert_eq!(decode(flac(sizes, total, 0..6)).expect("audio"), whole, "{sizes:?}");
        }
    }
    assert_eq!(decode(flac(usual, 6 * 192, 2..6)).expect("the end"), whole[2 * 192..]);
    let error = decode(flac(usual, 6 * 192, 1..3)).expect_err("the end is missing");
    assert!(error.contains("is truncated: 384 of 1152") && error.contains("WAV"), "{error}");
    let mut damaged = flac(usual, 6 * 192, 0..6);
    let first_value = damaged.len() - 5 * 11 - 3;
    damaged[first_value] ^= 1;
    let error = decode(damaged).expect_err("the first block is damaged");
    assert!(error.contains("192 samples are missing"), "{error}");
}

/// The files have 0.1 s of a sine of 440 Hz with the amplitude 1/8, made by ffmpeg 5.1.
#[test]
fn opus_alac_aiff_au_and_caf_have_the_samples_of_the_recording() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/audio");
    for (name, tolerance, padding) in [
        ("tiny.opus", 0.03, 0),
        ("tiny.webm", 0.03, 320),
        ("opus.mp4", 0.03, 320),
        ("alac.m4a", 1e-4, 0),
        ("alac.caf", 1e-4, 0),
        ("tiny.aiff", 1e-4, 0),
        ("tiny.au", 4e-3, 0),
        ("tiny.caf", 4e-3, 0),
    ] {
        let samples = read_audio(corpus.join(name), RATE).expect("audio");
        assert!((1_600..=1_600 + padding).contains(&samples.len()), "{name}: {}", samples.len());
        for (i, sample) in samples[..1_600].iter().enumerate() {
            let expected = 0.125 * (i as f32 / RATE as f32 * 440.0 * std::f32::consts::TAU).sin();
            assert!((sample - expected).abs() < tolerance, "{name}, {i}: {sample}, {expected}");
        }
    }
}

#[test]
fn the_header_of_an_opus_stream_sets_its_start_and_its_gain() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/audio");
    let bytes = fs::read(corpus.join("opus.mp4")).expect("a file");
    let samples = decode(bytes.clone()).expect("audio");
    let header = bytes.windows(4).position(|part| part == b"dOps").expect("a header") + 4;
    let changed = |offset: usize, value: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[header + offset..][..value.len()].copy_from_slice(value);
        decode(bytes)
    };
    // 20 log10(2) dB, in units of 1/256 dB.
    let louder = changed(8, &1_541i16.to_be_bytes()).expect("audio");
    for (louder, sample) in louder.iter().zip(&samples) {
        assert!((louder - 2.0 * sample).abs() < 1e-3, "{louder} {sample}");
    }
    let error = changed(10, &[3]).expect_err("an unknown channel mapping");
    assert!(error.contains("is Opus of the channel mapping 3, which is not"), "{error}");
    assert!(error.contains("ffmpeg -i IN"), "{error}");
    assert!(changed(1, &[3]).expect_err("three channels").contains("no valid Opus header"));
}

#[test]
fn uncompressed_files_of_other_systems_are_read_like_wav() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/audio");
    let read = |name: &str| fs::read(corpus.join(name)).expect("a file");
    let sizes =
        [("tiny.aiff", b"SSND", 4..8), ("tiny.caf", b"data", 4..12), ("tiny.au", b".snd", 8..12)];
    for (name, chunk, size) in sizes {
        let whole = decode(read(name)).expect("audio");
        // A program that wrote to a pipe did not know the size.
        let mut unknown = read(name);
        let start = unknown.windows(4).position(|part| part == chunk).expect("a chunk");
        unknown[start..][size].fill(0xff);
        assert_eq!(decode(unknown).as_ref(), Ok(&whole), "{name}");
        let cut = decode(read(name)[..1_000].to_vec()).expect_err("a truncated file");
        assert!(cut.contains("is truncated: "), "{name}: {cut}");
    }
    let aiff = |compression: &[u8; 4], samples: &[u8]| {
        let mut bytes =
            b"FORM\0\0\0\0AIFCCOMM\0\0\0\x18\0\x01\0\0\0\x02\0\x10\x40\x0c\xfa".to_vec();
        bytes.extend([&[0; 7], &compression[..], &[0, 0], b"SSND"].concat());
        bytes.extend((samples.len() as u32 + 8).to_be_bytes());
        bytes.extend([&[0; 8], samples].concat());
        decode(bytes)
    };
    assert_eq!(aiff(b"NONE", &[0x40, 0, 0xc0, 0]), Ok(vec![0.5, -0.5]));
    assert_eq!(aiff(b"sowt", &[0, 0x40, 0, 0xc0]), Ok(vec![0.5, -0.5]));
    assert_eq!(aiff(b"FL32", &0.25f32.to_be_bytes()), Ok(vec![0.25]));
    let error = aiff(b"ima4", &[0; 8]).expect_err("a compression");
    assert!(error.contains("is AIFF with the compression ima4, which is not supported"), "{error}");
    let parts = [&wav(0, 20_000)[..], b"data\x04\0\0\0\0\x40\0\xc0"].concat();
    assert_eq!(decode(parts).map(|samples| samples.len()), Ok(10_002));
}

#[test]
fn other_formats_are_refused_by_name() {
    for (start, name) in [
        (&b"RIFF\0\0\0\0AVI LIST"[..], "AVI"),
        (b"OggS\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x50Speex   ", "Speex"),
    ] {
        let error = decode([start, &[0; 100]].concat()).expect_err("a refusal");
        assert!(error.contains(&format!("is {name}, which is not supported")), "{error}");
    }
}

/// Every corpus file, truncated or with flipped bits, gives audio or a one-line error, and never a
/// panic.
#[test]
fn damaged_files_give_a_one_line_error() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/audio");
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    for entry in fs::read_dir(corpus).expect("a corpus") {
        let path = entry.expect("an entry").path();
        let whole = fs::read(&path).expect("a file");
        for round in 0..300 {
            let mut bytes = whole.clone();
            match round % 2 {
                0 => bytes.truncate(random() % whole.len()),
                _ => (0..1 + random() % 4).for_each(|_| {
                    let position = random() % bytes.len();
                    bytes[position] ^= 1 << (random() % 8);
                }),
            }
            if let Err(error) = decode(bytes) {
                assert!(!error.contains('\n') && error.len() < 400, "{path:?}, {round}: {error}");
            }
        }
    }
}

fn write(path: PathBuf, bytes: &[u8]) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, bytes).expect("a file");
}

#[test]
fn files_left_by_macos_are_skipped() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("LibriSpeech/84/121123");
    let hidden = b"\0\x05\x16\x07\0\x02\0\0Mac OS X";
    write(folder.join("84-121123.trans.txt"), b"84-121123-0000 A TEXT\n");
    write(folder.join("._84-121123.trans.txt"), hidden);
    write(folder.join("84-121123-0000.flac"), b"x");
    write(folder.join("._84-121123-0000.flac"), hidden);
    let frames = root.path().join("frames");
    for name in ["0001.jpg", "._0001.jpg", "0002.jpg", "._0002.jpg", ".cache/0003.jpg"] {
        write(frames.join("84-121123-0000").join(name), b"x");
    }
    let source = SpeechSource {
        path: root.path().join("LibriSpeech"),
        audio: None,
        frames: Some(frames),
        frame_rate: None,
        skip_missing: false,
    };
    let data_set = read(SpeechFormat::LibriSpeech, &source).expect("clips");
    assert_eq!((data_set.clips.len(), data_set.clips[0].frames.len()), (1, 2));
    assert_eq!(data_set.skipped.hidden, 2 + 3);
    let InputClips { clips: found_clips, skipped, .. } = input_clips(&source.path).expect("clips");
    assert_eq!((found_clips.len(), skipped.hidden, skipped.others), (1, 2, 1));
    fs::remove_file(folder.join("84-121123-0000.flac")).expect("a file");
    let error = input_clips(&source.path).expect_err("none is left").to_string();
    assert!(error.contains("skipped 2 hidden files"), "{error}");
}
