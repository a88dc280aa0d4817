//! Converts an image to the input values of a model.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::resample::resample;
use super::{DecodedImage, MAX_PIXELS};
use crate::DataError;

/// Pillow's resampling filter of the same name. If the image becomes smaller, the filter becomes
/// wider by the same factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Filter {
    /// Linear interpolation.
    Bilinear,
    /// Cubic interpolation (Catmull-Rom).
    Bicubic,
}

/// The target size of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Resize {
    /// The number of pixels of the shorter edge; the aspect ratio stays the same.
    ShortestEdge(u32),
    /// An exact height and width, whatever the aspect ratio.
    Exact {
        /// Height in pixels.
        height: u32,
        /// Width in pixels.
        width: u32,
    },
}

/// Image preprocessing in this order: resize, centre crop, rescale, subtract the mean, divide by
/// the standard deviation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Preprocessing {
    /// The target size; `None` keeps the size.
    pub resize: Option<Resize>,
    /// The resampling filter.
    pub filter: Filter,
    /// Height and width of the centre crop, in pixels; a smaller image is padded with black. `None`
    /// keeps the whole image.
    pub crop: Option<(u32, u32)>,
    /// The factor by which pixel values (0 to 255) are multiplied.
    pub rescale: f32,
    /// The mean of red, green and blue.
    pub mean: [f32; 3],
    /// The standard deviation of red, green and blue.
    pub std: [f32; 3],
}

impl Preprocessing {
    /// Returns the preprocessing of MobileNetV2: 224 x 224 pixels with the bilinear filter, values
    /// from -1 to 1.
    pub fn mobilenet() -> Self {
        Self {
            resize: Some(Resize::Exact { height: 224, width: 224 }),
            filter: Filter::Bilinear,
            crop: None,
            rescale: 1.0 / 128.0,
            mean: [1.0; 3],
            std: [1.0; 3],
        }
    }

    /// Reads a published `preprocessor_config.json`, or the `image_processor` of a
    /// `processor_config.json` (written by transformers 5).
    ///
    /// # Errors
    /// `Io`; `Malformed` for an invalid file or an unsupported setting
    pub fn read(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let missing = || config_error(path, "has no `image_processor`".to_owned());
        Self::read_optional(path)?.ok_or_else(missing)
    }

    /// Like [`read`](Self::read), but returns `None` for a `processor_config.json` without an
    /// `image_processor`.
    ///
    /// # Errors
    /// as [`read`](Self::read)
    pub fn read_optional(path: &Path) -> Result<Option<Self>, DataError> {
        let text = engram_durable::read_file(path)
            .map_err(|source| DataError::Io { path: path.into(), source })?;
        let config_error = |reason| config_error(path, reason);
        let not_a_processor =
            |error| config_error(format!("is not an image processor configuration: {error}"));
        let config: serde_json::Value = serde_json::from_slice(&text).map_err(not_a_processor)?;
        let nested = config.get("image_processor").filter(|nested| !nested.is_null());
        if nested.is_none() && path.file_name().is_some_and(|name| name == "processor_config.json")
        {
            return Ok(None);
        }
        let processor =
            ProcessorConfig::deserialize(nested.unwrap_or(&config)).map_err(not_a_processor)?;
        processor.preprocessing().map(Some).map_err(config_error)
    }

    /// Returns the output height and width; `None` if they depend on the image.
    pub fn output_size(&self) -> Option<(u32, u32)> {
        match (self.crop, self.resize) {
            (Some(size), _) => Some(size),
            (None, Some(Resize::Exact { height, width })) => Some((height, width)),
            _ => None,
        }
    }

    /// Converts an image to model input, `[3, H, W]`: red, green, blue. Error messages name `path`.
    ///
    /// # Errors
    /// `ImageTooLarge` if an image is so thin that resizing gives more than
    /// [`MAX_PIXELS`]
    pub fn apply(&self, image: &DecodedImage, path: &Path) -> Result<Vec<f32>, DataError> {
        let resized;
        let image = match self.resize {
            None => image,
            Some(resize) => {
                let (height, width) = resize.output_size(image);
                if u64::from(width) * u64::from(height) > MAX_PIXELS {
                    let (path, max) = (path.into(), MAX_PIXELS);
                    return Err(DataError::ImageTooLarge { path, width, height, max });
                }
                // As in Pillow, an image that already has the target size stays unchanged.
                if (height, width) == (image.height, image.width) {
                    image
                } else {
                    resized = resample(image, height, width, self.filter);
                    &resized
                }
            }
        };
        let (height, width) = self.crop.unwrap_or((image.height, image.width));
        let (rows, columns) = (height as usize, width as usize);
        // The position of the crop in the image; negative if the image is smaller.
        let top = (i64::from(image.height) - i64::from(height)).div_euclid(2);
        let left = (i64::from(image.width) - i64::from(width)).div_euclid(2);
        let mut values = Vec::with_capacity(3 * rows * columns);
        for channel in 0..3 {
            let value = |pixel: u8| {
                (f32::from(pixel) * self.rescale - self.mean[channel]) / self.std[channel]
            };
            let value_of_pixel: Vec<f32> = (0..=u8::MAX).map(value).collect();
            for y in (top..).take(rows) {
                let row = image.row(y);
                values.extend((left..).take(columns).map(|x| {
                    let index = usize::try_from(x).ok().map(|x| 3 * x + channel);
                    let pixel = index.and_then(|index| row.get(index)).copied().unwrap_or(0);
                    value_of_pixel[usize::from(pixel)]
                }));
            }
        }
        Ok(values)
    }
}

impl Resize {
    /// Returns the new height and width of an image.
    fn output_size(self, image: &DecodedImage) -> (u32, u32) {
        match self {
            Self::Exact { height, width } => (height, width),
            Self::ShortestEdge(edge) => {
                let (shorter, longer) =
                    (image.height.min(image.width), image.height.max(image.width));
                let scaled = u64::from(edge) * u64::from(longer) / u64::from(shorter);
                let scaled = u32::try_from(scaled).unwrap_or(u32::MAX);
                if image.height <= image.width { (edge, scaled) } else { (scaled, edge) }
            }
        }
    }
}

impl DecodedImage {
    /// Returns the pixels of a row; empty outside of the image.
    fn row(&self, y: i64) -> &[u8] {
        let width = 3 * self.width as usize;
        let start = usize::try_from(y).ok().map(|y| y * width);
        start.and_then(|start| self.pixels.get(start..start + width)).unwrap_or(&[])
    }
}

/// The fields of a published image processor. A missing or null field has its default; a needed
/// field without a default is an error.
#[derive(Deserialize)]
struct ProcessorConfig {
    image_processor_type: Option<String>,
    feature_extractor_type: Option<String>,
    do_resize: Option<bool>,
    size: Option<Size>,
    resample: Option<u32>,
    do_center_crop: Option<bool>,
    crop_size: Option<Size>,
    do_rescale: Option<bool>,
    rescale_factor: Option<f64>,
    do_normalize: Option<bool>,
    image_mean: Option<[f32; 3]>,
    image_std: Option<[f32; 3]>,
    do_pad: Option<bool>,
}

/// A size in the formats of different transformers versions.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Size {
    Edge(u32),
    Shortest { shortest_edge: u32 },
    Both { height: u32, width: u32 },
}

/// The default rescale factor.
const DEFAULT_RESCALE: f64 = 1.0 / 255.0;

/// The maximum edge in a configuration, in pixels. A longer edge is a mistake.
const MAX_EDGE: u32 = 4096;

impl ProcessorConfig {
    /// Checks the settings and converts them.
    fn preprocessing(self) -> Result<Preprocessing, String> {
        let check_edge = |name: &str, edge: u32| match edge {
            1..=MAX_EDGE => Ok(edge),
            _ => Err(format!("`{name}` has {edge} pixels, not 1 to {MAX_EDGE}")),
        };
        let missing = |name: &str| format!("`{name}` is missing");
        if self.do_pad == Some(true) {
            return Err("`do_pad` is true, but padding is not implemented".to_owned());
        }
        let class = self.image_processor_type.or(self.feature_extractor_type);
        let is_class = |kind: &str| class.as_ref().is_some_and(|class| class.starts_with(kind));
        let (is_clip, is_vit) = (is_class("CLIP"), is_class("ViT"));
        let resize = match (self.do_resize.unwrap_or(true), self.size) {
            (false, _) => None,
            (true, None) => return Err(missing("size")),
            // A single number is the shorter edge in CLIP, and both edges in ViT.
            (true, Some(Size::Edge(edge))) if is_vit => {
                let edge = check_edge("size", edge)?;
                Some(Resize::Exact { height: edge, width: edge })
            }
            (true, Some(Size::Edge(edge) | Size::Shortest { shortest_edge: edge })) => {
                Some(Resize::ShortestEdge(check_edge("size", edge)?))
            }
            (true, Some(Size::Both { height, width })) => Some(Resize::Exact {
                height: check_edge("size", height)?,
                width: check_edge("size", width)?,
            }),
        };
        let crop = match (self.do_center_crop.unwrap_or(is_clip), self.crop_size) {
            (false, _) => None,
            (true, Some(Size::Edge(edge))) => {
                let edge = check_edge("crop_size", edge)?;
                Some((edge, edge))
            }
            (true, Some(Size::Both { height, width })) => {
                Some((check_edge("crop_size", height)?, check_edge("crop_size", width)?))
            }
            (true, _) => return Err(missing("crop_size")),
        };
        let filter = match self.resample {
            Some(2) => Filter::Bilinear,
            Some(3) => Filter::Bicubic,
            None if resize.is_none() => Filter::Bilinear,
            None => return Err(missing("resample")),
            Some(other) => {
                return Err(format!("`resample` is {other}, not 2 (bilinear) or 3 (bicubic)"));
            }
        };
        let statistics = |name: &str, values: Option<[f32; 3]>, default: f32| match (
            self.do_normalize.unwrap_or(true),
            values,
        ) {
            (false, _) => Ok([default; 3]),
            (true, Some(values)) if values.iter().all(|value| value.is_finite()) => Ok(values),
            (true, Some(values)) => Err(format!("`{name}` is {values:?}")),
            (true, None) => Err(missing(name)),
        };
        let std = statistics("image_std", self.image_std, 1.0)?;
        if std.contains(&0.0) {
            return Err("`image_std` has a 0".to_owned());
        }
        let rescale = if self.do_rescale.unwrap_or(true) {
            self.rescale_factor.unwrap_or(DEFAULT_RESCALE) as f32
        } else {
            1.0
        };
        Ok(Preprocessing {
            resize,
            filter,
            crop,
            rescale,
            mean: statistics("image_mean", self.image_mean, 0.0)?,
            std,
        })
    }
}

fn config_error(path: &Path, reason: String) -> DataError {
    let remedy = "use the preprocessor_config.json from the model's folder";
    DataError::of_file(path, reason, remedy)
}
