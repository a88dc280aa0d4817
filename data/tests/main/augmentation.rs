//! Tests of image augmentation.

use engram_data::augmentation::{Augmentation, Background};
use image::{Rgb, RgbImage, Rgba, RgbaImage};
use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn view(augmentation: &Augmentation, image: &RgbaImage, seed: u64) -> RgbImage {
    augmentation.apply(image, &mut ChaCha8Rng::seed_from_u64(seed)).unwrap()
}

/// Returns an image whose pixels are all different.
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
    let output = view(&Augmentation::none(16), &image, 1);
    let is_unchanged = image.pixels().zip(output.pixels()).all(|(from, to)| from.0[..3] == to.0);
    assert!(is_unchanged);
}

#[test]
fn transparent_pixels_show_the_background() {
    let transparent = RgbaImage::from_pixel(8, 8, Rgba([255, 0, 0, 0]));
    let blue = Augmentation {
        background: Background::Fixed([0, 0, 255]),
        rotation: 90.0,
        ..Augmentation::none(4)
    };
    assert!(view(&blue, &transparent, 3).pixels().all(|pixel| *pixel == Rgb([0, 0, 255])));
    let half_transparent = RgbaImage::from_pixel(8, 8, Rgba([255, 0, 0, 128]));
    assert_eq!(view(&blue, &half_transparent, 0).get_pixel(2, 2).0, [128, 0, 127]);
}

#[test]
fn each_setting_changes_the_view() {
    let image = gradient(64, 64);
    let unaugmented = view(&Augmentation::none(64), &image, 5);
    let mut mirrored = unaugmented.clone();
    image::imageops::flip_horizontal_in_place(&mut mirrored);
    let flip = Augmentation { flip: 1.0, ..Augmentation::none(64) };
    assert_eq!(view(&flip, &image, 5), mirrored);

    let crop = Augmentation { scale: [0.25, 0.25], ..Augmentation::none(32) };
    let cropped = view(&crop, &image, 5);
    let [left, top, _] = cropped.get_pixel(0, 0).0.map(u32::from);
    for (x, y, pixel) in cropped.enumerate_pixels() {
        assert_eq!(*pixel, *unaugmented.get_pixel(left + x, top + y), "a crop of the image itself");
    }

    let mean = |view: &RgbImage| {
        view.as_raw().iter().map(|value| f64::from(*value)).sum::<f64>()
            / view.as_raw().len() as f64
    };
    let deviation = |view: &RgbImage| {
        let mean = mean(view);
        let squares = view.as_raw().iter().map(|value| (f64::from(*value) - mean).powi(2));
        (squares.sum::<f64>() / view.as_raw().len() as f64).sqrt()
    };
    let grey = RgbaImage::from_pixel(64, 64, Rgba([128, 128, 128, 255]));
    let noise = view(&Augmentation { noise: 0.1, ..Augmentation::none(64) }, &grey, 5);
    assert!((deviation(&noise) - 25.5).abs() < 1.0, "{}", deviation(&noise));
    assert!((mean(&noise) - 128.0).abs() < 1.0, "{}", mean(&noise));

    // The amounts differ between views, within the range of the settings.
    let light_grey = RgbaImage::from_pixel(64, 64, Rgba([200, 200, 200, 255]));
    let bright = Augmentation { brightness: 0.2, ..Augmentation::none(8) };
    let means: Vec<f64> = (0..50).map(|seed| mean(&view(&bright, &light_grey, seed))).collect();
    assert!(means.iter().all(|mean| (160.0..=240.0).contains(mean)), "{means:?}");
    assert!(means.iter().any(|mean| *mean < 180.0) && means.iter().any(|mean| *mean > 220.0));
    let ratios: Vec<f64> = (0..50)
        .map(|seed| {
            let contrast = Augmentation { contrast: 0.5, ..Augmentation::none(64) };
            deviation(&view(&contrast, &image, seed)) / deviation(&unaugmented)
        })
        .collect();
    assert!(ratios.iter().any(|ratio| *ratio < 0.7) && ratios.iter().any(|ratio| *ratio > 1.3));
    let with_saturation = Augmentation { saturation: 1.0, ..Augmentation::none(8) };
    let red = RgbaImage::from_pixel(8, 8, Rgba([200, 60, 60, 255]));
    let differences: Vec<i32> = (0..50)
        .map(|seed| view(&with_saturation, &red, seed).get_pixel(4, 4).0.map(i32::from))
        .map(|[red, green, _]| red - green)
        .collect();
    assert!(
        differences.iter().any(|difference| *difference < 40)
            && differences.iter().any(|difference| *difference > 200)
    );

    let dark = RgbaImage::from_pixel(64, 64, Rgba([0, 0, 0, 255]));
    let occlusion = Augmentation { occlusion: 0.5, ..Augmentation::none(64) };
    let count_grey = |seed| {
        view(&occlusion, &dark, seed).pixels().filter(|pixel| **pixel == Rgb([128; 3])).count()
    };
    let largest = (0..50).map(count_grey).max().unwrap();
    assert!((500..=32 * 32).contains(&largest), "{largest}");
}

#[test]
fn settings_out_of_range_are_refused() {
    let valid = Augmentation::inception(16);
    let assert_refused = |invalid: Augmentation, setting: &str| {
        let error = invalid.validate().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{setting} is ")), "{error}");
        assert!(invalid.apply(&gradient(4, 4), &mut ChaCha8Rng::seed_from_u64(0)).is_err());
    };
    assert_refused(Augmentation { size: 0, ..valid.clone() }, "size");
    assert_refused(Augmentation { size: 5000, ..valid.clone() }, "size");
    for scale in [[0.0, 1.0], [0.5, 0.4], [0.5, 1.5], [f32::NAN, 1.0], [0.5, f32::NAN]] {
        assert_refused(Augmentation { scale, ..valid.clone() }, "scale");
    }
    for ratio in [[0.0, 1.0], [2.0, 1.0], [1.0, f32::INFINITY], [-1.0, 1.0]] {
        assert_refused(Augmentation { ratio, ..valid.clone() }, "ratio");
    }
    assert_refused(Augmentation { flip: 1.1, ..valid.clone() }, "flip");
    assert_refused(Augmentation { rotation: 181.0, ..valid.clone() }, "rotation");
    assert_refused(Augmentation { brightness: -0.1, ..valid.clone() }, "brightness");
    assert_refused(Augmentation { contrast: 2.0, ..valid.clone() }, "contrast");
    assert_refused(Augmentation { saturation: f32::NAN, ..valid.clone() }, "saturation");
    assert_refused(Augmentation { noise: 1.5, ..valid.clone() }, "noise");
    assert_refused(Augmentation { occlusion: f32::INFINITY, ..valid.clone() }, "occlusion");
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let error = valid.apply(&RgbaImage::new(0, 7), &mut rng).unwrap_err().to_string();
    assert!(error.contains("0 by 7 pixels"), "{error}");
}
