//! The images of a corpus, from the embedded world or from files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use engram_data::DataError;
use engram_data::augmentation::{Augmentation, channels_first};
use engram_data::image::{DecodedImage, Filter, Preprocessing, Resize};
use engram_data::world::World;
use image::RgbaImage;
use image::imageops::{self, FilterType};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::cut_outs::CutOuts;
use crate::error::Result;

/// The first view number of training; evaluation questions use lower numbers.
pub const FIRST_TRAINING_VIEW: u32 = 16;

/// The image processor's file, in the folder of a model or a run.
pub const PROCESSOR: &str = "preprocessor_config.json";

/// The source of images.
pub enum Images {
    /// The embedded world's images, rendered in any view.
    World {
        /// The world.
        world: Box<World>,
        /// The bytes of each image's clean view, cached on first use.
        clean: Vec<OnceLock<Vec<u8>>>,
    },
    /// Image files.
    Files(ImageFiles),
    /// Cut-outs.
    CutOuts(CutOuts),
}

/// Images in files: view 0 is only preprocessed, all other views are augmented.
pub struct ImageFiles {
    /// The paths in `folder`.
    names: Vec<PathBuf>,
    folder: PathBuf,
    /// The seed of the augmented views.
    seed: u64,
    preprocessing: Preprocessing,
    augmentation: Augmentation,
    cache: Cache<usize, Arc<Decoded>, ByteWeighter>,
}

/// A decoded image in the cache.
struct Decoded {
    /// View 0, `[3, S, S]` for images of `S` × `S` pixels.
    clean: Vec<f32>,
    /// The image from which the augmented views are made.
    reduced: RgbaImage,
}

/// Weighs a decoded image by its size in bytes.
#[derive(Clone)]
struct ByteWeighter;

impl Weighter<usize, Arc<Decoded>> for ByteWeighter {
    fn weight(&self, _: &usize, decoded: &Arc<Decoded>) -> u64 {
        (4 * decoded.clean.len() + decoded.reduced.len()) as u64
    }
}

/// The default preprocessing: resize the whole image to `size` × `size` with the bilinear filter,
/// and scale pixels to `[-1, 1]`. The published ViT uses the same preprocessing.
pub fn squared(size: usize) -> Preprocessing {
    let side = size as u32;
    Preprocessing {
        resize: Some(Resize::Exact { height: side, width: side }),
        filter: Filter::Bilinear,
        crop: None,
        rescale: 1.0 / 255.0,
        mean: [0.5; 3],
        std: [0.5; 3],
    }
}

/// The augmented views of photographs.
///
/// # Source   REVEAL's warm start crops 10 to 80 % of the area of an image. Here, crops keep 30 to
/// 100 %, because the images are small.
fn photograph_views(size: u32) -> Augmentation {
    Augmentation {
        scale: [0.3, 1.0],
        flip: 0.5,
        brightness: 0.2,
        contrast: 0.2,
        saturation: 0.2,
        ..Augmentation::inception(size)
    }
}

impl ImageFiles {
    /// Creates the images with these paths in `folder`, resized to `size` × `size`. The cache holds
    /// up to `cached_bytes` of decoded images; 0 for no cache.
    pub fn new(
        folder: &Path,
        names: Vec<PathBuf>,
        size: usize,
        preprocessing: Preprocessing,
        seed: u64,
        cached_bytes: u64,
    ) -> Self {
        let cache = Cache::with_weighter(names.len().max(1), cached_bytes, ByteWeighter);
        let augmentation = photograph_views(size as u32);
        Self { names, folder: folder.to_path_buf(), seed, preprocessing, augmentation, cache }
    }

    /// Decodes every image. Returns the SHA-256 of each file, or the error.
    pub fn check(&self) -> Vec<Result<String, DataError>> {
        let sha256 = |index: usize| {
            self.decoded(index)?;
            let path = self.path(index)?;
            let bytes = engram_durable::read_file(&path)
                .map_err(|source| DataError::Io { path, source })?;
            Ok(crate::digest::of_bytes(bytes))
        };
        (0..self.names.len()).into_par_iter().map(sha256).collect()
    }

    /// The path of an image in the folder of the images; `None` for an unknown image.
    pub fn name(&self, index: usize) -> Option<&Path> {
        self.names.get(index).map(PathBuf::as_path)
    }

    fn path(&self, index: usize) -> Result<PathBuf, DataError> {
        let path = self.name(index).map(|name| self.folder.join(name));
        path.ok_or_else(|| DataError::OutOfRange {
            what: "the index of the image",
            value: index.to_string(),
            wanted: "use an index below the number of images",
        })
    }

    /// Returns an image from the cache, or decodes it.
    fn decoded(&self, index: usize) -> Result<Arc<Decoded>, DataError> {
        let path = self.path(index)?;
        if let Some(decoded) = self.cache.get(&index) {
            return Ok(decoded);
        }
        let image = DecodedImage::open(&path)?;
        let clean = self.preprocessing.apply(&image, &path)?;
        // Two threads may decode the same image; both get the same bytes.
        let decoded = Arc::new(Decoded { clean, reduced: self.reduced(&image) });
        self.cache.insert(index, Arc::clone(&decoded));
        Ok(decoded)
    }

    /// Shrinks an image so that its shorter side is twice the size of a view. Smaller images are
    /// unchanged.
    fn reduced(&self, image: &DecodedImage) -> RgbaImage {
        let rgba = image.to_rgba();
        let max_side = 2 * self.augmentation.size;
        let shorter = image.width().min(image.height());
        if shorter <= max_side {
            return rgba;
        }
        let scaled = |side: u32| {
            let scaled = u64::from(side) * u64::from(max_side) / u64::from(shorter);
            u32::try_from(scaled).unwrap_or(side)
        };
        let (width, height) = (scaled(image.width()), scaled(image.height()));
        imageops::resize(&rgba, width, height, FilterType::Triangle)
    }

    /// The pixels `[3, S, S]` of an image in a view.
    fn view(&self, index: usize, view: u32) -> Result<Vec<f32>, DataError> {
        let decoded = self.decoded(index)?;
        if view == 0 {
            return Ok(decoded.clean.clone());
        }
        let mut rng = view_rng(self.seed, index, view);
        let augmented = self.augmentation.apply(&decoded.reduced, &mut rng)?;
        let Preprocessing { rescale, mean, std, .. } = self.preprocessing;
        Ok(channels_first(&augmented, rescale, mean, std))
    }
}

impl Images {
    /// The images of the embedded world.
    pub fn of_world(world: World) -> Self {
        let clean = world.images.iter().map(|_| OnceLock::new()).collect();
        Self::World { world: Box::new(world), clean }
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        match self {
            Self::World { clean, .. } => clean.len(),
            Self::Files(files) => files.names.len(),
            Self::CutOuts(things) => things.len(),
        }
    }

    /// The path of an image in the folder of the data; `None` for an image without a file.
    pub fn name(&self, index: usize) -> Option<&Path> {
        match self {
            Self::World { .. } => None,
            Self::Files(files) => files.name(index),
            Self::CutOuts(things) => things.name(index),
        }
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The concatenated pixels of images, each `[3, S, S]`. Values are in `[-1, 1]`, except for
    /// files, whose preprocessing determines their range. `requested` holds the index and
    /// view of each image.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`] for an index without an image, and the errors of
    /// [`DecodedImage::open`].
    pub fn pixels(&self, requested: &[(usize, u32)]) -> Result<Vec<f32>, DataError> {
        let pixels = |(index, view): &(usize, u32)| -> Result<Vec<f32>, DataError> {
            let (world, clean) = match self {
                Self::Files(files) => return files.view(*index, *view),
                Self::CutOuts(things) => return things.pixels(*index, *view),
                Self::World { world, clean } => (world, clean),
            };
            // All entries use the clean view, so it is cached.
            match clean.get(*index).filter(|_| *view == 0) {
                None => Ok(planes(world.view(*index, *view)?.as_raw())),
                Some(cell) => match cell.get() {
                    Some(pixels) => Ok(planes(pixels)),
                    None => {
                        let pixels = world.view(*index, 0)?.into_raw();
                        Ok(planes(cell.get_or_init(|| pixels)))
                    }
                },
            }
        };
        let views: Vec<Vec<f32>> = requested.par_iter().map(pixels).collect::<Result<_, _>>()?;
        Ok(views.concat())
    }
}

/// The random generator of a view of an image.
pub(super) fn view_rng(seed: u64, index: usize, view: u32) -> ChaCha8Rng {
    let mut hash = Sha256::new_with_prefix(seed.to_le_bytes());
    hash.update((index as u64).to_le_bytes());
    hash.update(view.to_le_bytes());
    ChaCha8Rng::from_seed(hash.finalize().into())
}

/// Converts `[H, W, 3]` bytes to `[3, H, W]` values in `[-1, 1]`.
pub(super) fn planes(pixels: &[u8]) -> Vec<f32> {
    let size = pixels.len() / 3;
    let mut planes = vec![0.0; 3 * size];
    for (index, pixel) in pixels.chunks_exact(3).enumerate() {
        for (channel, byte) in pixel.iter().enumerate() {
            planes[channel * size + index] = f32::from(*byte) / 127.5 - 1.0;
        }
    }
    planes
}

/// The preprocessing of images to `size` × `size` pixels, from the file `processor`; [`squared`]
/// for `None`.
///
/// # Errors
/// The file gives another image size.
pub fn preprocessing(processor: Option<&Path>, size: usize) -> Result<Preprocessing> {
    let Some(path) = processor else { return Ok(squared(size)) };
    let preprocessing = Preprocessing::read(path)?;
    let side = u32::try_from(size).unwrap_or(u32::MAX);
    match preprocessing.output_size() {
        Some(output_size) if output_size == (side, side) => Ok(preprocessing),
        _ => Err(format!(
            "{}: does not give images of {size} x {size} pixels, which config.json requires; use \
             both files from one model",
            path.display()
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn augmented_views_have_the_scale_of_view_0() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("a.png");
        let colour = |x: u32, y: u32| image::Rgb([x as u8 * 30, y as u8 * 30, 9]);
        image::RgbImage::from_fn(8, 8, colour).save(&path)?;
        let (mean, std) = ([1.0; 3], [1.0; 3]);
        let preprocessing = Preprocessing { rescale: 1.0 / 127.5, mean, std, ..squared(8) };
        let mut files = ImageFiles::new(Path::new(""), vec![path], 8, preprocessing, 1, 0);
        files.augmentation = Augmentation::none(8);
        let (clean, augmented) = (files.view(0, 0)?, files.view(0, 1)?);
        assert!(clean.iter().any(|value| *value < -0.9) && clean.iter().any(|value| *value > 0.6));
        for (clean, augmented) in clean.iter().zip(&augmented) {
            assert!((clean - augmented).abs() < 1e-6, "{clean} {augmented}");
        }
        Ok(())
    }
}
