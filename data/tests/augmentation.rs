//! Tests of augmentation, for any image and any setting.

#![allow(clippy::unwrap_used)] // Helper functions use `unwrap` too.

use engram_data::augmentation::{Augmentation, Background};
use image::{Rgb, RgbImage, Rgba, RgbaImage};
use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn view(augmentation: &Augmentation, image: &RgbaImage, seed: u64) -> RgbImage {
    augmentation.apply(image, &mut ChaCha8Rng::seed_from_u64(seed)).unwrap()
}

/// An image whose pixels are all different.
fn gradient(width: u32, height: u32) -> RgbaImage {
    RgbaImage::from_fn(width, height, |x, y| Rgba([x as u8, y as u8, (x + y) as u8, 255]))
}

prop_compose! {
    fn any_augmentation()(
        (size, flip, rotation) in (1..40u32, 0.0..=1.0f64, 0.0..=180.0f32),
        scale in [0.001..=1.0f32, 0.001..=1.0f32],
        ratio in [0.01..=100.0f32, 0.01..=100.0f32],
        fractions in [0.0..=1.0f32, 0.0..=1.0, 0.0..=1.0, 0.0..=1.0, 0.0..=1.0],
        background in prop_oneof![
            Just(Background::Random), any::<[u8; 3]>().prop_map(Background::Fixed)
        ],
    ) -> Augmentation {
        let ordered = |[first, second]: [f32; 2]| [first.min(second), first.max(second)];
        let [brightness, contrast, saturation, noise, occlusion] = fractions;
        Augmentation {
            size, background, scale: ordered(scale), ratio: ordered(ratio), flip, rotation,
            brightness, contrast, saturation, noise, occlusion,
        }
    }
}

proptest! {
    #[test]
    fn a_seed_gives_one_view_of_the_requested_size(
        augmentation in any_augmentation(),
        (width, height) in (1..60u32, 1..60u32),
        seed: u64,
    ) {
        let image = gradient(width, height);
        let first = view(&augmentation, &image, seed);
        prop_assert_eq!(first.dimensions(), (augmentation.size, augmentation.size));
        prop_assert_eq!(first, view(&augmentation, &image, seed));
    }
}

#[test]
fn neutral_settings_leave_the_image_unchanged() {
    let image = gradient(16, 16);
    let same = view(&Augmentation::none(16), &image, 1);
    let alike = image.pixels().zip(same.pixels()).all(|(from, to)| from.0[..3] == to.0);
    assert!(alike);
}

#[test]
fn transparent_pixels_show_the_background() {
    let clear = RgbaImage::from_pixel(8, 8, Rgba([255, 0, 0, 0]));
    let blue = Augmentation {
        background: Background::Fixed([0, 0, 255]),
        rotation: 90.0,
        ..Augmentation::none(4)
    };
    assert!(view(&blue, &clear, 3).pixels().all(|pixel| *pixel == Rgb([0, 0, 255])));
    let half = RgbaImage::from_pixel(8, 8, Rgba([255, 0, 0, 128]));
    assert_eq!(view(&blue, &half, 0).get_pixel(2, 2).0, [128, 0, 127]);
}

#[test]
fn each_setting_has_its_effect() {
    let image = gradient(64, 64);
    let plain = view(&Augmentation::none(64), &image, 5);
    let mut mirrored = plain.clone();
    image::imageops::flip_horizontal_in_place(&mut mirrored);
    let flip = Augmentation { flip: 1.0, ..Augmentation::none(64) };
    assert_eq!(view(&flip, &image, 5), mirrored);

    let crop = Augmentation { scale: [0.25, 0.25], ..Augmentation::none(32) };
    let cropped = view(&crop, &image, 5);
    let [left, top, _] = cropped.get_pixel(0, 0).0.map(u32::from);
    for (x, y, pixel) in cropped.enumerate_pixels() {
        assert_eq!(*pixel, *plain.get_pixel(left + x, top + y), "a crop of the image itself");
    }

    let mean = |view: &RgbImage| {
        view.as_raw().iter().map(|value| f64::from(*value)).sum::<f64>()
            / view.as_raw().len() as f64
    };
    let spread = |view: &RgbImage| {
        let mean = mean(view);
        let squares = view.as_raw().iter().map(|value| (f64::from(*value) - mean).powi(2));
        (squares.sum::<f64>() / view.as_raw().len() as f64).sqrt()
    };
    let grey = RgbaImage::from_pixel(64, 64, Rgba([128, 128, 128, 255]));
    let noise = view(&Augmentation { noise: 0.1, ..Augmentation::none(64) }, &grey, 5);
    assert!((spread(&noise) - 25.5).abs() < 1.0, "{}", spread(&noise));
    assert!((mean(&noise) - 128.0).abs() < 1.0, "{}", mean(&noise));

    // The amounts differ between views, within the range of the settings.
    let white = RgbaImage::from_pixel(64, 64, Rgba([200, 200, 200, 255]));
    let bright = Augmentation { brightness: 0.2, ..Augmentation::none(8) };
    let means: Vec<f64> = (0..50).map(|seed| mean(&view(&bright, &white, seed))).collect();
    assert!(means.iter().all(|mean| (160.0..=240.0).contains(mean)), "{means:?}");
    assert!(means.iter().any(|mean| *mean < 180.0) && means.iter().any(|mean| *mean > 220.0));
    let spreads: Vec<f64> = (0..50)
        .map(|seed| {
            let contrast = Augmentation { contrast: 0.5, ..Augmentation::none(64) };
            spread(&view(&contrast, &image, seed)) / spread(&plain)
        })
        .collect();
    assert!(spreads.iter().any(|spread| *spread < 0.7) && spreads.iter().any(|one| *one > 1.3));
    let with_saturation = Augmentation { saturation: 1.0, ..Augmentation::none(8) };
    let red = RgbaImage::from_pixel(8, 8, Rgba([200, 60, 60, 255]));
    let distances: Vec<i32> = (0..50)
        .map(|seed| view(&with_saturation, &red, seed).get_pixel(4, 4).0.map(i32::from))
        .map(|[red, green, _]| red - green)
        .collect();
    assert!(distances.iter().any(|one| *one < 40) && distances.iter().any(|one| *one > 200));

    let dark = RgbaImage::from_pixel(64, 64, Rgba([0, 0, 0, 255]));
    let cover = Augmentation { occlusion: 0.5, ..Augmentation::none(64) };
    let covered =
        |seed| view(&cover, &dark, seed).pixels().filter(|pixel| **pixel == Rgb([128; 3])).count();
    let largest = (0..50).map(covered).max().unwrap();
    assert!((500..=32 * 32).contains(&largest), "{largest}");
}

#[test]
fn settings_out_of_range_are_refused() {
    let good = Augmentation::inception(16);
    let refused = |bad: Augmentation, what: &str| {
        let error = bad.validate().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{what} is ")), "{error}");
        assert!(bad.apply(&gradient(4, 4), &mut ChaCha8Rng::seed_from_u64(0)).is_err());
    };
    refused(Augmentation { size: 0, ..good.clone() }, "size");
    refused(Augmentation { size: 5000, ..good.clone() }, "size");
    for scale in [[0.0, 1.0], [0.5, 0.4], [0.5, 1.5], [f32::NAN, 1.0], [0.5, f32::NAN]] {
        refused(Augmentation { scale, ..good.clone() }, "scale");
    }
    for ratio in [[0.0, 1.0], [2.0, 1.0], [1.0, f32::INFINITY], [-1.0, 1.0]] {
        refused(Augmentation { ratio, ..good.clone() }, "ratio");
    }
    refused(Augmentation { flip: 1.1, ..good.clone() }, "flip");
    refused(Augmentation { rotation: 181.0, ..good.clone() }, "rotation");
    refused(Augmentation { brightness: -0.1, ..good.clone() }, "brightness");
    refused(Augmentation { contrast: 2.0, ..good.clone() }, "contrast");
    refused(Augmentation { saturation: f32::NAN, ..good.clone() }, "saturation");
    refused(Augmentation { noise: 1.5, ..good.clone() }, "noise");
    refused(Augmentation { occlusion: f32::INFINITY, ..good.clone() }, "occlusion");
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let error = good.apply(&RgbaImage::new(0, 7), &mut rng).unwrap_err().to_string();
    assert!(error.contains("0 by 7 pixels"), "{error}");
}
