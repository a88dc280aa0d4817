//! Tests of images against Pillow, with the fixtures of `tests/reference/pictures.py`, and of
//! refused files.

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use ::image::{DynamicImage, ImageBuffer, ImageFormat, Luma, Rgb};
use engram_data::DataError;
use engram_data::image::{DecodedImage, Filter, Preprocessing, Resize};
use serde::Deserialize;

use super::real_data;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pictures").join(name)
}

#[derive(Deserialize)]
struct Expected {
    resized: Vec<Resized>,
    decoded: BTreeMap<String, Decoded>,
}

#[derive(Deserialize)]
struct Resized {
    filter: String,
    width: u32,
    height: u32,
    top: usize,
}

#[derive(Deserialize)]
struct Decoded {
    size: [u32; 2],
    mean: [f64; 3],
}

fn expected() -> Expected {
    serde_json::from_slice(&fs::read(fixture("expected.json")).unwrap()).unwrap()
}

/// Returns the resized image, without other preprocessing: `[H, W, 3]`, from 0 to 255.
fn resized(image: &DecodedImage, filter: Filter, width: u32, height: u32) -> Vec<u8> {
    let resize = Some(Resize::Exact { height, width });
    let resize_only = Preprocessing { resize, filter, rescale: 1.0, ..no_preprocessing() };
    let values = resize_only.apply(image, Path::new("image")).unwrap();
    let size = values.len() / 3;
    (0..values.len()).map(|i| values[i % 3 * size + i / 3] as u8).collect()
}

fn no_preprocessing() -> Preprocessing {
    Preprocessing {
        resize: None,
        filter: Filter::Bilinear,
        crop: None,
        rescale: 1.0,
        mean: [0.0; 3],
        std: [1.0; 3],
    }
}

#[test]
fn every_format_is_decoded_as_in_pillow() {
    for (name, Decoded { size, mean }) in expected().decoded {
        let image = DecodedImage::open(fixture(&name)).unwrap();
        assert_eq!([image.width(), image.height()], size, "{name}");
        let pixels = image.pixels().chunks(3);
        let count = pixels.len() as f64;
        let mut means = [0.0; 3];
        for pixel in pixels {
            means
                .iter_mut()
                .zip(pixel)
                .for_each(|(mean, value)| *mean += f64::from(*value) / count);
        }
        // JPEG decoders differ in rounding.
        let tolerance = if name.ends_with("jpg") { 0.5 } else { 1e-3 };
        for (actual, expected) in means.iter().zip(mean) {
            assert!((actual - expected).abs() < tolerance, "{name}: {means:?} {mean:?}");
        }
    }
}

/// The values are those of `Image.open(path).convert("RGB")` in Pillow 13.
#[test]
fn images_of_16_bits_are_decoded_as_in_pillow() {
    let values = [0u16, 1, 200, 255, 256, 300, 1_000, 32_768, 65_280, 65_535];
    let grey = ImageBuffer::<Luma<u16>, _>::from_raw(10, 1, values.to_vec()).unwrap();
    let colour = values.iter().flat_map(|value| [*value; 3]).collect::<Vec<_>>();
    let colour = ImageBuffer::<Rgb<u16>, _>::from_raw(10, 1, colour).unwrap();
    for (image, expected) in [
        (DynamicImage::from(grey), [0, 1, 200, 255, 255, 255, 255, 255, 255, 255]),
        (DynamicImage::from(colour), [0, 0, 0, 0, 1, 1, 3, 128, 255, 255]),
    ] {
        let mut png = Cursor::new(Vec::new());
        image.write_to(&mut png, ImageFormat::Png).unwrap();
        let decoded = DecodedImage::from_bytes("a.png", png.get_ref()).unwrap();
        let red: Vec<u8> = decoded.pixels().iter().step_by(3).copied().collect();
        assert_eq!(red, expected);
    }
}

#[test]
fn images_are_resized_as_in_pillow() {
    let source = DecodedImage::open(fixture("source.png")).unwrap();
    let reference = DecodedImage::open(fixture("resized.png")).unwrap();
    for Resized { filter, width, height, top } in expected().resized {
        let filter_kind = if filter == "bilinear" { Filter::Bilinear } else { Filter::Bicubic };
        let actual = resized(&source, filter_kind, width, height);
        let length = 3 * width as usize;
        for (y, actual) in actual.chunks(length).enumerate() {
            let start = (top + y) * 3 * reference.width() as usize;
            let expected_pixels = &reference.pixels()[start..start + length];
            assert!(
                actual == expected_pixels,
                "{filter} {width} x {height}, row {y}: {actual:?} {expected_pixels:?}"
            );
        }
    }
}

#[test]
#[ignore = "needs ENGRAM_DATA: coco-captions"]
fn photographs_are_read_as_in_pillow() {
    #[derive(Deserialize)]
    struct Thumbnail {
        size: [u32; 2],
        pixels: String,
    }
    let thumbnails: BTreeMap<String, Thumbnail> =
        serde_json::from_slice(&fs::read(fixture("coco.json")).unwrap()).unwrap();
    for (name, Thumbnail { size, pixels }) in thumbnails {
        let path = real_data("coco-captions/images/val2017").join(&name);
        let image = DecodedImage::open(&path).unwrap();
        assert_eq!([image.width(), image.height()], size, "{name}");
        let expected_pixels: Vec<u8> = (0..pixels.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&pixels[i..i + 2], 16).unwrap())
            .collect();
        let actual = resized(&image, Filter::Bicubic, 8, 8);
        let max_difference =
            actual.iter().zip(&expected_pixels).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        println!("{name}: off by up to {max_difference} of 255");
        assert!(max_difference <= 2, "{name}: off by {max_difference}");
    }
}

#[test]
fn the_steps_run_in_order() {
    // 4 x 2 pixels whose red channel counts from 0.
    let pixels = (0..8).flat_map(|i| [10 * i, 100, 200]).collect();
    let image = DecodedImage::from_pixels(4, 2, pixels).unwrap();
    let preprocessing = Preprocessing {
        crop: Some((2, 2)),
        rescale: 0.1,
        mean: [1.0, 2.0, 3.0],
        std: [2.0, 4.0, 1.0],
        ..no_preprocessing()
    };
    let values = preprocessing.apply(&image, Path::new("image")).unwrap();
    assert_eq!(values[..4], [0.0, 0.5, 2.0, 2.5]);
    assert_eq!((values[4], values[8], values.len()), (2.0, 17.0, 12));
    // A crop beyond the image is black: one row above, none below. Of 3 extra columns, half
    // (rounded up) are on the left.
    let padded = Preprocessing { crop: Some((3, 7)), ..no_preprocessing() };
    let values = padded.apply(&image, Path::new("image")).unwrap();
    assert_eq!(values[..7], [0.0; 7]);
    assert_eq!(values[7..14], [0.0, 0.0, 0.0, 10.0, 20.0, 30.0, 0.0]);
    // The shorter edge is given; the longer edge is rounded down.
    for ((width, height), pixels) in [((61, 43), 24 * 34), ((43, 61), 24 * 34), ((48, 24), 24 * 48)]
    {
        let image =
            DecodedImage::from_pixels(width, height, vec![7; (3 * width * height) as usize]);
        let preprocessing =
            Preprocessing { resize: Some(Resize::ShortestEdge(24)), ..no_preprocessing() };
        let values = preprocessing.apply(&image.unwrap(), Path::new("image")).unwrap();
        assert_eq!(values.len(), 3 * pixels);
        assert!(values.iter().all(|value| *value == 7.0));
    }
    assert_eq!(DecodedImage::from_pixels(2, 2, vec![0; 11]), None);
    assert_eq!(DecodedImage::from_pixels(0, 2, Vec::new()), None);
}

#[test]
fn files_that_are_not_images_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.jpg");
    let error_for = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let error = DecodedImage::open(&path).unwrap_err();
        assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
        error
    };
    assert!(matches!(error_for(b""), DataError::EmptyFile { .. }));
    let error = error_for(b"<html>not found</html>").to_string();
    assert!(error.contains("is not a known image format; use a complete JPEG"), "{error}");
    for name in ["source.png", "alpha.webp", "source.gif", "source.bmp", "turned.jpg"] {
        let bytes = fs::read(fixture(name)).unwrap();
        for length in [3, 20, bytes.len() / 2, bytes.len() * 9 / 10] {
            let error = error_for(&bytes[..length]);
            assert!(matches!(error, DataError::Image { .. }), "{name} of {length} bytes: {error}");
        }
        // A changed byte may give an error, but no panic.
        for position in (0..bytes.len()).step_by(7) {
            let mut changed = bytes.clone();
            changed[position] ^= 0x55;
            fs::write(&path, &changed).unwrap();
            let _ = DecodedImage::open(&path);
        }
    }
    assert!(DecodedImage::open(folder.path()).unwrap_err().to_string().contains("is not a file"));
    assert!(matches!(DecodedImage::open("none.png").unwrap_err(), DataError::Io { .. }));
}

/// The colours of [`gif`].
const COLOURS: [[u8; 3]; 4] = [[255, 250, 245], [10, 20, 30], [200, 0, 100], [0, 90, 7]];

/// Returns a GIF whose frame `[left, top, width, height]` has the colours 0 to 3 in turn, with or
/// without a palette and a transparent colour. Its background is the colour 1.
fn gif(canvas: [u16; 2], frame: [u16; 4], palette: bool, transparent: Option<u8>) -> Vec<u8> {
    let little_endian = |numbers: &[u16]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    let (canvas, position): (Vec<u8>, Vec<u8>) = (little_endian(&canvas), little_endian(&frame));
    // Codes of 3 bits: 4 clears the table, so that they stay short, and 5 is the end.
    let pixels = (0..frame[2] * frame[3]).flat_map(|i| [4, i % 4]).chain([5]);
    let bits: Vec<u16> = pixels.flat_map(|code| [code & 1, code >> 1 & 1, code >> 2]).collect();
    let byte = |bits: &[u16]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | *bit as u8);
    let data: Vec<u8> = bits.chunks(8).map(byte).collect();
    let control = [0x21, 0xf9, 4, transparent.is_some().into(), 0, 0, transparent.unwrap_or(0), 0];
    [
        &b"GIF89a"[..],
        &canvas,
        &[if palette { 0x81 } else { 0 }, 1, 0],
        if palette { COLOURS.as_flattened() } else { &[] },
        b"\x21\xfe\x02hi\0",
        &control,
        b",",
        &position,
        &[0, 2, data.len() as u8],
        &data,
        b"\0;",
    ]
    .concat()
}

/// The expected colours outside of the frame are those of Pillow 13.
#[test]
fn the_first_frame_of_a_gif_may_be_smaller_than_the_canvas_or_beyond_it() {
    for (palette, transparent, outside) in [
        (true, None, COLOURS[0]),
        (true, Some(2), COLOURS[2]),
        (true, Some(200), [0; 3]),
        (false, None, [0; 3]),
        (false, Some(2), [2; 3]),
    ] {
        for (canvas, frame, size) in [
            ([6, 5], [2, 1, 3, 2], (6, 5)),
            ([6, 5], [0, 1, 6, 2], (6, 5)),
            ([6, 5], [4, 4, 3, 2], (7, 6)),
            ([0, 0], [0, 0, 3, 2], (3, 2)),
        ] {
            let bytes = gif(canvas, frame, palette, transparent);
            let image = DecodedImage::from_bytes("a.gif", &bytes).unwrap();
            assert_eq!((image.width(), image.height()), size);
            assert_eq!(engram_data::image::size(&bytes), Some(size));
            let [left, top, width, height] = frame.map(u32::from);
            for (i, pixel) in (0..).zip(image.pixels().as_chunks().0) {
                let (x, y) = (i % size.0, i / size.0);
                let is_inside =
                    (left..left + width).contains(&x) && (top..top + height).contains(&y);
                let expected = match is_inside.then(|| (y - top) * width + x - left) {
                    None => outside,
                    Some(i) if palette => COLOURS[i as usize % 4],
                    Some(i) => [i as u8 % 4; 3],
                };
                assert_eq!(*pixel, expected, "{palette} {transparent:?} {frame:?}: {x}, {y}");
            }
        }
    }
}

#[test]
fn the_first_frame_of_an_animated_webp_keeps_its_values() {
    let (still, path) = (fs::read(fixture("alpha.webp")).unwrap(), fixture("alpha.webp"));
    let image = DecodedImage::open(path).unwrap();
    let number = |n: u32| n.to_le_bytes();
    let sizes = [&number(image.width() - 1)[..3], &number(image.height() - 1)[..3]].concat();
    // The position, the size, the duration and the flags, which ask for blending.
    let frame = [&[0; 6], &sizes[..], &[9, 0, 0, 0], &still[12..]].concat();
    let animation = [
        &b"WEBPVP8X\x0a\0\0\0\x12\0\0\0"[..],
        &sizes,
        b"ANIM\x06\0\0\0\0\0\0\0\0\0ANMF",
        &number(frame.len() as u32),
        &frame,
    ];
    let bytes = animation.concat();
    let file = [&b"RIFF"[..], &number(bytes.len() as u32), &bytes].concat();
    assert!(DecodedImage::from_bytes("a.webp", &file).unwrap() == image);
}

#[test]
fn an_image_with_too_many_or_no_pixels_is_refused_before_decoding() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.gif");
    let mut bytes = fs::read(fixture("source.gif")).unwrap();
    bytes[6..10].fill(0xff);
    fs::write(&path, &bytes).unwrap();
    let error = DecodedImage::open(&path).unwrap_err();
    assert!(matches!(error, DataError::ImageTooLarge { width: 65535, .. }), "{error}");
    fs::write(&path, [&b"GIF89a"[..], &[0; 7], b",", &[0; 12]].concat()).unwrap();
    assert!(matches!(DecodedImage::open(&path).unwrap_err(), DataError::Image { .. }));
    // A single row of pixels, whose longer edge would become very long.
    let thin_image = DecodedImage::from_pixels(1 << 20, 1, vec![0; 3 << 20]).unwrap();
    let preprocessing =
        Preprocessing { resize: Some(Resize::ShortestEdge(224)), ..no_preprocessing() };
    let error = preprocessing.apply(&thin_image, Path::new("line.png")).unwrap_err();
    assert!(error.to_string().contains("line.png: the image has 234881024 x 224"), "{error}");
}

#[test]
fn published_configurations_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("preprocessor_config.json");
    let read = |text: &str| {
        fs::write(&path, text).unwrap();
        Preprocessing::read(&path)
    };
    let old = r#"{"crop_size": 224, "do_center_crop": true, "do_normalize": true, "do_resize": true,
        "feature_extractor_type": "CLIPFeatureExtractor", "image_mean": [0.48, 0.45, 0.40],
        "image_std": [0.26, 0.26, 0.27], "resample": 3, "size": 224}"#;
    let new = r#"{"crop_size": {"height": 224, "width": 224}, "do_center_crop": true,
        "do_convert_rgb": true, "do_normalize": true, "do_rescale": true, "do_resize": true,
        "image_mean": [0.48, 0.45, 0.40], "image_processor_type": "CLIPImageProcessor",
        "image_std": [0.26, 0.26, 0.27], "resample": 3, "rescale_factor": 0.00392156862745098,
        "size": {"shortest_edge": 224}}"#;
    let clip = read(old).unwrap();
    assert_eq!(clip, read(new).unwrap());
    assert_eq!((clip.resize, clip.filter), (Some(Resize::ShortestEdge(224)), Filter::Bicubic));
    assert_eq!((clip.output_size(), clip.rescale), (Some((224, 224)), 1.0 / 255.0));
    // transformers 5 writes the same content inside processor_config.json.
    let nested = format!(r#"{{"image_processor": {new}, "processor_class": "CLIPProcessor"}}"#);
    assert_eq!(clip, read(&nested).unwrap());
    // A null field has the default of its class.
    let null = new.replace(r#""do_center_crop": true"#, r#""do_center_crop": null"#);
    assert_eq!(clip, read(&null).unwrap());
    let square = r#"{"feature_extractor_type": "ViTFeatureExtractor", "size": 6, "resample": 2,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}"#;
    assert_eq!(read(square).unwrap().output_size(), Some((6, 6)));
    let vit = read(r#"{"do_normalize": false, "resample": 2, "size": {"height": 3, "width": 5}}"#);
    assert_eq!(vit.unwrap().output_size(), Some((3, 5)));
    for (text, reason) in [
        ("{", "is not an image processor configuration"),
        ("{}", "`size` is missing"),
        (r#"{"size": 224, "do_pad": true}"#, "`do_pad` is true"),
        (r#"{"size": 224}"#, "`resample` is missing"),
        (r#"{"size": 224, "resample": 1}"#, "`resample` is 1"),
        (r#"{"size": 0, "resample": 2}"#, "`size` has 0 pixels"),
        (r#"{"size": 5000, "resample": 2}"#, "`size` has 5000 pixels"),
        (r#"{"size": 9, "resample": 2}"#, "is missing"),
        (r#"{"size": 9, "resample": 2, "do_center_crop": true}"#, "`crop_size` is missing"),
        (r#"{"size": 9, "resample": 2, "image_mean": [0, 0, 0], "image_std": [1, 0, 1]}"#, "a 0"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("preprocessor_config.json"), "{error}");
    }
}
