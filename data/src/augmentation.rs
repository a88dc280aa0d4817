//! Seeded image augmentation, for training and for the images of the embedded world.
//!
//! The steps are, in this order: crop, rotate, resize, flip, colour jitter, noise and occlusion.
//! [`Augmentation::none`] switches off all steps except resizing. Pixels outside the image, and
//! transparent pixels, get the background colour.
//!
//! Resizing uses the `image` crate. `fast_image_resize` is faster on photographs, but its
//! arithmetic depends on the processor. A seed must give the same bytes on all processors.
//!
//! ```
//! use engram_data::augmentation::Augmentation;
//! use image::RgbaImage;
//! use rand::SeedableRng;
//! use rand_chacha::ChaCha8Rng;
//!
//! let image = RgbaImage::from_pixel(72, 72, image::Rgba([200, 30, 30, 255]));
//! let augmentation = Augmentation { flip: 0.5, noise: 0.05, ..Augmentation::inception(32) };
//! let view = augmentation.apply(&image, &mut ChaCha8Rng::seed_from_u64(7))?;
//! assert_eq!(view.dimensions(), (32, 32));
//! # Ok::<(), engram_data::DataError>(())
//! ```

use image::imageops::{self, FilterType};
use image::{Rgb, RgbImage, RgbaImage};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::DataError;

/// The maximum side of the output, in pixels.
const MAX_SIDE: u32 = 4096;

/// The number of random crops to try before the centre crop is used.
const CROP_ATTEMPTS: usize = 10;

/// Luminance weights of red, green and blue (ITU-R BT.601).
const LUMINANCE: [f32; 3] = [0.299, 0.587, 0.114];

/// The background colour of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Background {
    /// One colour for all outputs.
    Fixed([u8; 3]),
    /// A random colour for each output.
    Random,
}

/// Augmentation settings. The amounts are drawn anew for each output image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Augmentation {
    /// Width and height of the output, in pixels.
    pub size: u32,
    /// The background colour.
    pub background: Background,
    /// Minimum and maximum fraction of the image area in the crop.
    pub scale: [f32; 2],
    /// Minimum and maximum aspect ratio (width / height) of the crop.
    pub ratio: [f32; 2],
    /// Probability of a horizontal flip; use 0 for images with letters or flags.
    pub flip: f64,
    /// Maximum rotation to either side, in degrees.
    pub rotation: f32,
    /// Maximum change of brightness: the factor is drawn from 1 ± this value.
    pub brightness: f32,
    /// Maximum change of contrast: the factor is drawn from 1 ± this value.
    pub contrast: f32,
    /// Maximum change of saturation: the factor is drawn from 1 ± this value.
    pub saturation: f32,
    /// Standard deviation of Gaussian noise, for pixel values from 0 (black) to 1 (white).
    pub noise: f32,
    /// Maximum width and height of a grey rectangle over the output, as a fraction of its side.
    pub occlusion: f32,
}

impl Augmentation {
    /// Returns the settings without augmentation: the largest square in the centre of the image,
    /// resized, on grey.
    pub fn none(size: u32) -> Self {
        Self {
            size,
            background: Background::Fixed([128; 3]),
            scale: [1.0, 1.0],
            ratio: [1.0, 1.0],
            flip: 0.0,
            rotation: 0.0,
            brightness: 0.0,
            contrast: 0.0,
            saturation: 0.0,
            noise: 0.0,
            occlusion: 0.0,
        }
    }

    /// Returns the settings of ImageNet training: a random crop, without other augmentation.
    ///
    /// # Source   Szegedy et al., "Going deeper with convolutions", §6: 8–100 % of the area, 3/4 to
    /// 4/3
    pub fn inception(size: u32) -> Self {
        Self { scale: [0.08, 1.0], ratio: [0.75, 4.0 / 3.0], ..Self::none(size) }
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`]
    pub fn validate(&self) -> Result<(), DataError> {
        let refuse =
            |what, value: String, wanted| Err(DataError::out_of_range(what, value, wanted));
        if !(1..=MAX_SIDE).contains(&self.size) {
            return refuse("size", self.size.to_string(), "use 1 to 4096 pixels");
        }
        let [min, max] = self.scale;
        if !(min > 0.0 && min <= max && max <= 1.0) {
            let wanted = "use two fractions above 0 and up to 1, the smaller first";
            return refuse("scale", format!("{:?}", self.scale), wanted);
        }
        let [min, max] = self.ratio;
        if !(min >= 0.01 && min <= max && max <= 100.0) {
            let wanted = "use two ratios from 0.01 to 100, the smaller first";
            return refuse("ratio", format!("{:?}", self.ratio), wanted);
        }
        if !(0.0..=180.0).contains(&self.rotation) {
            return refuse("rotation", self.rotation.to_string(), "use 0 to 180 degrees");
        }
        if !(0.0..=1.0).contains(&self.flip) {
            return refuse("flip", self.flip.to_string(), "use a probability from 0 to 1");
        }
        let fractions = [
            ("brightness", self.brightness),
            ("contrast", self.contrast),
            ("saturation", self.saturation),
            ("noise", self.noise),
            ("occlusion", self.occlusion),
        ];
        match fractions.into_iter().find(|(_, fraction)| !(0.0..=1.0).contains(fraction)) {
            Some((what, fraction)) => {
                refuse(what, fraction.to_string(), "use a fraction from 0 to 1")
            }
            None => Ok(()),
        }
    }

    /// Augments an image. The same random state gives the same bytes.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`], also for an image without pixels
    pub fn apply(&self, image: &RgbaImage, rng: &mut ChaCha8Rng) -> Result<RgbImage, DataError> {
        self.validate()?;
        let (width, height) = image.dimensions();
        if width == 0 || height == 0 {
            let value = format!("{width} by {height} pixels");
            let wanted = "an image needs at least 1 pixel; is its file complete?";
            return Err(DataError::out_of_range("the image", value, wanted));
        }
        let background = match self.background {
            Background::Fixed(colour) => colour,
            Background::Random => rng.random(),
        };
        let crop = self.draw_crop(width, height, rng);
        let flip = rng.random_bool(self.flip);
        let mut view = crop.extract(image, background);
        if view.dimensions() != (self.size, self.size) {
            view = imageops::resize(&view, self.size, self.size, FilterType::Triangle);
        }
        if flip {
            imageops::flip_horizontal_in_place(&mut view);
        }
        self.change_colours(&mut view, rng);
        self.occlude(&mut view, rng);
        Ok(view)
    }

    /// Draws a crop within the ranges of the settings.
    ///
    /// # Source   torchvision `RandomResizedCrop.get_params`
    fn draw_crop(&self, width: u32, height: u32, rng: &mut ChaCha8Rng) -> Crop {
        let angle = self.rotation * rng.random_range(-1.0..=1.0);
        let image_area = width as f32 * height as f32;
        let [min_log_ratio, max_log_ratio] = self.ratio.map(f32::ln);
        for _ in 0..CROP_ATTEMPTS {
            let area = image_area * rng.random_range(self.scale[0]..=self.scale[1]);
            let ratio = rng.random_range(min_log_ratio..=max_log_ratio).exp();
            let crop_width = (area * ratio).sqrt().round() as u32;
            let crop_height = (area / ratio).sqrt().round() as u32;
            if (1..=width).contains(&crop_width) && (1..=height).contains(&crop_height) {
                let left = rng.random_range(0..=width - crop_width);
                let top = rng.random_range(0..=height - crop_height);
                return Crop { left, top, width: crop_width, height: crop_height, angle };
            }
        }
        // The largest crop with an allowed aspect ratio, in the centre.
        let (full_width, full_height) = (width as f32, height as f32);
        let ratio = (full_width / full_height).clamp(self.ratio[0], self.ratio[1]);
        let crop_width = full_width.min(full_height * ratio).round().max(1.0) as u32;
        let crop_height = full_height.min(full_width / ratio).round().max(1.0) as u32;
        let (left, top) = ((width - crop_width) / 2, (height - crop_height) / 2);
        Crop { left, top, width: crop_width, height: crop_height, angle }
    }

    /// Changes brightness, contrast and saturation, and adds noise.
    ///
    /// # Source   torchvision `ColorJitter`, in the order brightness, contrast, saturation
    fn change_colours(&self, view: &mut RgbImage, rng: &mut ChaCha8Rng) {
        let [brightness, contrast, saturation] = [self.brightness, self.contrast, self.saturation]
            .map(|change| 1.0 + change * rng.random_range(-1.0..=1.0));
        let has_jitter = self.brightness > 0.0 || self.contrast > 0.0 || self.saturation > 0.0;
        if !has_jitter && self.noise == 0.0 {
            return;
        }
        let luminance_sum: f32 = view.pixels().map(|pixel| luminance(pixel.0.map(f32::from))).sum();
        let mean_grey = brightness * luminance_sum / (view.width() as f32 * view.height() as f32);
        let mut noise = Normal::new(rng);
        for pixel in view.pixels_mut() {
            let colour = pixel
                .0
                .map(|value| mean_grey + contrast * (brightness * f32::from(value) - mean_grey));
            let pixel_grey = luminance(colour);
            for (value, channel) in pixel.0.iter_mut().zip(colour) {
                let mut changed = pixel_grey + saturation * (channel - pixel_grey);
                if self.noise > 0.0 {
                    changed += 255.0 * self.noise * noise.draw();
                }
                *value = changed.round().clamp(0.0, 255.0) as u8;
            }
        }
    }

    /// Fills a random rectangle with grey.
    fn occlude(&self, view: &mut RgbImage, rng: &mut ChaCha8Rng) {
        let side = |rng: &mut ChaCha8Rng| {
            let fraction = self.occlusion * rng.random_range(0.0..=1.0);
            (fraction * self.size as f32) as u32
        };
        let (width, height) = (side(rng), side(rng));
        let left = rng.random_range(0..=self.size - width);
        let top = rng.random_range(0..=self.size - height);
        for y in top..top + height {
            for x in left..left + width {
                view.put_pixel(x, y, Rgb([128; 3]));
            }
        }
    }
}

/// A crop of an image: a rectangle, rotated around its centre by `angle` degrees.
struct Crop {
    left: u32,
    top: u32,
    width: u32,
    height: u32,
    angle: f32,
}

impl Crop {
    /// Returns the pixels of the crop, in its size.
    fn extract(&self, image: &RgbaImage, background: [u8; 3]) -> RgbImage {
        if self.angle == 0.0 {
            return RgbImage::from_fn(self.width, self.height, |x, y| {
                let position = (i64::from(self.left + x), i64::from(self.top + y));
                Rgb(colour_at(image, position, background).map(|value| value.round() as u8))
            });
        }
        let (sin, cos) = self.angle.to_radians().sin_cos();
        let (half_width, half_height) = (self.width as f32 / 2.0, self.height as f32 / 2.0);
        let centre = (self.left as f32 + half_width, self.top as f32 + half_height);
        RgbImage::from_fn(self.width, self.height, |x, y| {
            // Pixel centres are at half-integer coordinates.
            let (right, down) = (x as f32 + 0.5 - half_width, y as f32 + 0.5 - half_height);
            let source_x = centre.0 + right * cos - down * sin - 0.5;
            let source_y = centre.1 + right * sin + down * cos - 0.5;
            Rgb(interpolate(image, source_x, source_y, background))
        })
    }
}

/// Interpolates bilinearly between four pixels.
fn interpolate(image: &RgbaImage, x: f32, y: f32, background: [u8; 3]) -> [u8; 3] {
    let (left, top) = (x.floor(), y.floor());
    let (right_weight, lower_weight) = (x - left, y - top);
    let mut sum = [0.0; 3];
    for (dy, vertical) in [(0, 1.0 - lower_weight), (1, lower_weight)] {
        for (dx, horizontal) in [(0, 1.0 - right_weight), (1, right_weight)] {
            let position = (left as i64 + dx, top as i64 + dy);
            let colour = colour_at(image, position, background);
            for (sum, value) in sum.iter_mut().zip(colour) {
                *sum += vertical * horizontal * value;
            }
        }
    }
    sum.map(|value| value.round() as u8)
}

/// Returns the image colour over the background; outside of the image, the background alone.
fn colour_at(image: &RgbaImage, (x, y): (i64, i64), background: [u8; 3]) -> [f32; 3] {
    let behind = background.map(f32::from);
    let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else { return behind };
    let Some(pixel) = image.get_pixel_checked(x, y) else { return behind };
    let [red, green, blue, alpha] = pixel.0.map(f32::from);
    let opacity = alpha / 255.0;
    let [behind_red, behind_green, behind_blue] = behind.map(|value| (1.0 - opacity) * value);
    [opacity * red + behind_red, opacity * green + behind_green, opacity * blue + behind_blue]
}

fn luminance(colour: [f32; 3]) -> f32 {
    colour.iter().zip(LUMINANCE).map(|(value, weight)| value * weight).sum()
}

/// A generator of normally distributed numbers (Box-Muller).
pub struct Normal<'a> {
    rng: &'a mut ChaCha8Rng,
    /// The second number of the last pair; `None` if it has been returned.
    second: Option<f32>,
}

impl<'a> Normal<'a> {
    /// Draws from `rng`.
    pub fn new(rng: &'a mut ChaCha8Rng) -> Self {
        Self { rng, second: None }
    }

    /// Returns the next number.
    pub fn draw(&mut self) -> f32 {
        if let Some(second) = self.second.take() {
            return second;
        }
        // The value is in (0, 1], so the logarithm is finite.
        let radius = (-2.0 * (1.0 - self.rng.random::<f32>()).ln()).sqrt();
        let (sin, cos) = (std::f32::consts::TAU * self.rng.random::<f32>()).sin_cos();
        self.second = Some(radius * sin);
        radius * cos
    }
}

/// Converts an image to model input: `(value * rescale - mean) / std`.
///
/// # Shapes   `[3, H, W]`, in row-major order
///
/// ```
/// use engram_data::augmentation::channels_first;
///
/// let view = image::RgbImage::from_pixel(2, 1, image::Rgb([0, 255, 0]));
/// let values = channels_first(&view, 1.0 / 255.0, [0.5; 3], [0.5; 3]);
/// assert_eq!(values, [-1.0, -1.0, 1.0, 1.0, -1.0, -1.0]);
/// ```
pub fn channels_first(view: &RgbImage, rescale: f32, mean: [f32; 3], std: [f32; 3]) -> Vec<f32> {
    let channels = mean.into_iter().zip(std).enumerate();
    let normalise = |value: u8, mean, std| (f32::from(value) * rescale - mean) / std;
    channels
        .flat_map(|(channel, (mean, std))| {
            view.pixels().map(move |pixel| normalise(pixel.0[channel], mean, std))
        })
        .collect()
}
