//! Cut-outs (pictures with a transparent background) pasted on photographs: other views of a thing,
//! drawn by a seed.
//!
//! Resizing uses the `image` crate, so that a seed gives the same bytes on all processors.

use std::path::{Path, PathBuf};

use image::imageops::{self, FilterType};
use image::{Rgb, RgbImage, Rgba, RgbaImage};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::image::open_with_opacity;
use crate::{DataError, folder};

/// The plain colour behind a clean cut-out.
const PLAIN: [u8; 3] = [255; 3];
/// The side of a clean cut-out's longer edge, as a fraction of the output's side.
const CLEAN_SCALE: f32 = 0.95;
/// The endings of photographs.
const PHOTOGRAPHS: [&str; 4] = ["jpg", "jpeg", "png", "webp"];

/// A cut-out, cropped to its visible part, or a whole photograph. Its colours are multiplied by
/// their opacity, so that colours beneath the transparency never show.
#[derive(Debug, Clone, PartialEq)]
pub struct CutOut(RgbaImage);

/// How views are drawn. The amounts are drawn anew for each view.
#[derive(Debug, Clone, PartialEq)]
pub struct Composite {
    /// Width and height of a view, in pixels.
    pub size: u32,
    /// Minimum and maximum length of the thing's longer edge, as a fraction of `size`.
    pub scale: [f32; 2],
    /// Maximum rotation to either side, in degrees.
    pub rotation: f32,
    /// Probability of a horizontal flip.
    pub flip: f64,
    /// Minimum and maximum factor on the thing's colours.
    pub light: [f32; 2],
    /// Minimum length of the part of the background that a view shows, as a fraction of the
    /// background's shorter edge.
    pub background: f32,
}

impl Composite {
    /// Returns the settings of the study on photographs.
    pub fn new(size: u32) -> Self {
        Self {
            size,
            scale: [0.5, 0.9],
            rotation: 20.0,
            flip: 0.5,
            light: [0.7, 1.3],
            background: 0.5,
        }
    }

    /// Returns a view: the thing at a random place on a random part of the background. The same
    /// random state gives the same bytes. Pixels are interpolated, not averaged, so thing and
    /// background should not be much larger than the view.
    pub fn view(&self, thing: &CutOut, background: &CutOut, rng: &mut ChaCha8Rng) -> RgbImage {
        let [width, height] = [background.0.width() as f32, background.0.height() as f32];
        let part = rng.random_range(self.background..=1.0) * width.min(height);
        let [left, top] = [width, height].map(|side| rng.random_range(0.0..=side - part));
        let size = self.size as f32;
        let scale = rng.random_range(self.scale[0]..=self.scale[1]);
        let angle = (self.rotation * rng.random_range(-1.0..=1.0)).to_radians();
        let light = rng.random_range(self.light[0]..=self.light[1]);
        let flip = rng.random_bool(self.flip);
        let room = size * (1.0 - scale) / 2.0;
        let offset = [(); 2].map(|()| room * rng.random_range(-1.0..=1.0));
        // Pixel centres are at half-integer coordinates.
        let place = |start: f32, pixel: u32, side: f32| {
            (start + (pixel as f32 + 0.5) * part / size - 0.5).clamp(0.0, side - 1.0)
        };
        let mut view = RgbImage::from_fn(self.size, self.size, |x, y| {
            let (x, y) = (place(left, x, width), place(top, y, height));
            let [red, green, blue, _] = interpolate(&background.0, x, y);
            Rgb([red, green, blue].map(|value| value.round() as u8))
        });
        paste(&mut view, thing, Placement { scale, offset, angle, light, flip });
        view
    }

    /// Returns the clean view: the whole thing, in the middle, on white.
    pub fn clean(&self, thing: &CutOut) -> RgbImage {
        let mut view = RgbImage::from_pixel(self.size, self.size, Rgb(PLAIN));
        let thing = CutOut(thing.resized(CLEAN_SCALE * self.size as f32));
        let (scale, offset) = (CLEAN_SCALE, [0.0; 2]);
        paste(&mut view, &thing, Placement { scale, offset, angle: 0.0, light: 1.0, flip: false });
        view
    }
}

impl CutOut {
    /// Opens an image, keeps its transparency, and shrinks it to edges of at most `max_edge`
    /// pixels.
    ///
    /// # Errors
    /// The errors of [`open_with_opacity`]; `Image` without a visible pixel
    pub fn open(path: &Path, max_edge: u32) -> Result<Self, DataError> {
        let invisible =
            || DataError::Image { path: path.into(), reason: "has no visible pixel".to_owned() };
        Self::new(&open_with_opacity(path)?, max_edge).ok_or_else(invisible)
    }

    /// Crops an image to its visible part, and shrinks it to edges of at most `max_edge` pixels.
    /// `None` without a visible pixel.
    pub fn new(image: &RgbaImage, max_edge: u32) -> Option<Self> {
        let mut visible = image.enumerate_pixels().filter(|(.., pixel)| pixel.0[3] > 0);
        let (x, y, _) = visible.next()?;
        let wider = |[left, top, right, bottom]: [u32; 4], (x, y, _): (u32, u32, &Rgba<u8>)| {
            [left.min(x), top.min(y), right.max(x), bottom.max(y)]
        };
        let [left, top, right, bottom] = visible.fold([x, y, x, y], wider);
        let (width, height) = (right - left + 1, bottom - top + 1);
        let mut image = imageops::crop_imm(image, left, top, width, height).to_image();
        for Rgba([colours @ .., alpha]) in image.pixels_mut() {
            let opacity = u16::from(*alpha);
            colours.iter_mut().for_each(|value| *value = (u16::from(*value) * opacity / 255) as u8);
        }
        let thing = Self(image);
        let is_large = width.max(height) > max_edge;
        Some(if is_large { Self(thing.resized(max_edge as f32)) } else { thing })
    }

    /// The cut-out with a longer edge of this many pixels.
    fn resized(&self, longer: f32) -> RgbaImage {
        let (width, height) = self.0.dimensions();
        let factor = longer / width.max(height) as f32;
        let side = |side: u32| (side as f32 * factor).round().max(1.0) as u32;
        imageops::resize(&self.0, side(width), side(height), FilterType::Triangle)
    }
}

/// The photographs (JPEG, PNG and WebP) of a folder and its subfolders, sorted by path.
///
/// # Errors
/// The errors of [`folder::files`]
pub fn photographs(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let is_photograph = |path: &Path| {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        PHOTOGRAPHS.contains(&ending.to_lowercase().as_str())
    };
    Ok(folder::files(folder, &is_photograph)?.files)
}

/// Opens photographs as backgrounds, shrunk to edges of at most `max_edge` pixels: those of
/// training, and those of evaluation. Of each `per_test` photographs, the first is for evaluation.
///
/// # Errors
/// The errors of [`CutOut::open`]
pub fn open_backgrounds(
    photographs: &[PathBuf],
    max_edge: u32,
    per_test: usize,
) -> Result<[Vec<CutOut>; 2], DataError> {
    let opened = photographs.par_iter().map(|path| CutOut::open(path, max_edge));
    let opened: Vec<CutOut> = opened.collect::<Result<_, _>>()?;
    let (mut training, mut evaluation) = (Vec::new(), Vec::new());
    for (index, photograph) in opened.into_iter().enumerate() {
        let is_test = index.is_multiple_of(per_test);
        if is_test { &mut evaluation } else { &mut training }.push(photograph);
    }
    Ok([training, evaluation])
}

/// Where and how a thing lies on a view.
struct Placement {
    /// The length of the thing's longer edge, as a fraction of the view's side.
    scale: f32,
    /// The distance of the thing's centre from the view's centre, in pixels.
    offset: [f32; 2],
    /// The rotation, in radians.
    angle: f32,
    light: f32,
    flip: bool,
}

/// Pastes a thing on a view.
fn paste(view: &mut RgbImage, CutOut(thing): &CutOut, placement: Placement) {
    let Placement { scale, offset, angle, light, flip } = placement;
    // The number of the thing's pixels for each pixel of the view.
    let step = thing.width().max(thing.height()) as f32 / (scale * view.width() as f32);
    let (sin, cos) = (angle.sin() * step, angle.cos() * step);
    let side = if flip { -1.0 } else { 1.0 };
    let half = |side: u32| side as f32 / 2.0;
    let centre = [half(view.width()) + offset[0], half(view.height()) + offset[1]];
    for (x, y, pixel) in view.enumerate_pixels_mut() {
        // Pixel centres are at half-integer coordinates.
        let (dx, dy) = (x as f32 + 0.5 - centre[0], y as f32 + 0.5 - centre[1]);
        let source_x = side * (dx * cos + dy * sin) + half(thing.width()) - 0.5;
        let source_y = dy * cos - dx * sin + half(thing.height()) - 0.5;
        let [colours @ .., alpha] = interpolate(thing, source_x, source_y);
        let behind = 1.0 - alpha / 255.0;
        for (value, colour) in pixel.0.iter_mut().zip(colours) {
            *value = (behind * f32::from(*value) + light * colour).round().min(255.0) as u8;
        }
    }
}

/// Interpolates bilinearly between four pixels; outside of the thing, all values are 0.
fn interpolate(thing: &RgbaImage, x: f32, y: f32) -> [f32; 4] {
    let (left, top) = (x.floor(), y.floor());
    let mut sum = [0.0; 4];
    for (row, vertical) in [(top, 1.0 - (y - top)), (top + 1.0, y - top)] {
        for (column, horizontal) in [(left, 1.0 - (x - left)), (left + 1.0, x - left)] {
            // A negative number becomes a large one, outside of the thing.
            let position = (column as i64 as u32, row as i64 as u32);
            let Some(pixel) = thing.get_pixel_checked(position.0, position.1) else { continue };
            for (sum, value) in sum.iter_mut().zip(pixel.0) {
                *sum += vertical * horizontal * f32::from(value);
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// A red square of 8 × 8 pixels within a transparent green one of 16 × 16.
    fn square() -> RgbaImage {
        RgbaImage::from_fn(16, 16, |x, y| {
            let is_red = (4..12).contains(&x) && (4..12).contains(&y);
            if is_red { Rgba([200, 0, 0, 255]) } else { Rgba([0, 255, 0, 0]) }
        })
    }

    #[test]
    fn hidden_colours_never_show_and_the_thing_keeps_its_size() -> Result<(), &'static str> {
        let thing = CutOut::new(&square(), 100).ok_or("invisible")?;
        assert_eq!(thing.0.dimensions(), (8, 8));
        let background = RgbaImage::from_pixel(30, 20, Rgba([0, 0, 255, 255]));
        let background = CutOut::new(&background, 100).ok_or("invisible")?;
        let composite = Composite { scale: [0.5; 2], light: [1.0; 2], ..Composite::new(32) };
        let view = composite.view(&thing, &background, &mut ChaCha8Rng::seed_from_u64(3));
        assert!(view.pixels().all(|pixel| pixel.0[1] == 0), "green is hidden");
        let red: f32 = view.pixels().map(|pixel| f32::from(pixel.0[0])).sum();
        assert!((red / 200.0 - 256.0).abs() < 8.0, "16 x 16 pixels are red: {}", red / 200.0);
        let again = composite.view(&thing, &background, &mut ChaCha8Rng::seed_from_u64(3));
        let other = composite.view(&thing, &background, &mut ChaCha8Rng::seed_from_u64(4));
        assert!(view == again && view != other);
        let clean = composite.clean(&thing);
        assert_eq!(clean.get_pixel(16, 16).0, [200, 0, 0]);
        assert!(clean.get_pixel(0, 0).0.into_iter().all(|value| value > 240), "white");
        Ok(())
    }

    #[test]
    fn an_invisible_image_is_no_cut_out() {
        assert_eq!(CutOut::new(&RgbaImage::new(4, 4), 8), None);
        assert_eq!(CutOut::new(&RgbaImage::new(0, 0), 8), None);
    }
}
