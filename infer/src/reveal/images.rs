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

use super::error::Result;

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
}

/// Images in files: view 0 is preprocessed as published, all other views are augmented.
pub struct ImageFiles {
    paths: Vec<PathBuf>,
    /// The seed of all views.
    seed: u64,
    preprocessing: Preprocessing,
    augmentation: Augmentation,
    cache: Cache<usize, Arc<Decoded>, Bytes>,
}

/// A decoded image in the cache.
struct Decoded {
    /// View 0, `[3, S, S]`.
    clean: Vec<f32>,
    /// The source of all other views.
    reduced: RgbaImage,
}

#[derive(Clone)]
struct Bytes;

impl Weighter<usize, Arc<Decoded>> for Bytes {
    fn weight(&self, _: &usize, decoded: &Arc<Decoded>) -> u64 {
        (4 * decoded.clean.len() + decoded.reduced.len()) as u64
    }
}

/// The default preprocessing: resize the whole image to `size` × `size` with the bilinear filter,
/// and scale pixels to `[-1, 1]`. The published ViT uses the same preprocessing.
pub fn squared(size: usize) -> Preprocessing {
    let edge = size as u32;
    Preprocessing {
        resize: Some(Resize::Exact { height: edge, width: edge }),
        filter: Filter::Bilinear,
        crop: None,
        rescale: 1.0 / 255.0,
        mean: [0.5; 3],
        std: [0.5; 3],
    }
}

/// The augmented views of photographs.
///
/// # Source
/// REVEAL's warm start keeps 10 to 80 % of the image area. Here, crops keep 30 to 100 %, because the
/// images are small.
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
    /// Images of `paths`, resized to `size` × `size`. The cache holds up to `cached_bytes` of
    /// decoded images.
    pub fn new(
        paths: Vec<PathBuf>,
        size: usize,
        preprocessing: Preprocessing,
        seed: u64,
        cached_bytes: u64,
    ) -> Self {
        let cache = Cache::with_weighter(paths.len().max(1), cached_bytes, Bytes);
        let augmentation = photograph_views(size as u32);
        Self { paths, seed, preprocessing, augmentation, cache }
    }

    /// Decodes every image once; returns its error, or the SHA-256 of its file.
    pub fn check(&self) -> Vec<Result<String, DataError>> {
        let checked = |index: usize| {
            self.decoded(index)?;
            let path = &self.paths[index];
            let bytes = std::fs::read(path)
                .map_err(|source| DataError::Io { path: path.clone(), source })?;
            Ok(crate::digest::of_bytes(bytes))
        };
        (0..self.paths.len()).into_par_iter().map(checked).collect()
    }

    fn path(&self, index: usize) -> Result<&Path, DataError> {
        self.paths.get(index).map(PathBuf::as_path).ok_or_else(|| DataError::OutOfRange {
            what: "the index of the image",
            value: index.to_string(),
            wanted: "use an index below the number of images",
        })
    }

    fn decoded(&self, index: usize) -> Result<Arc<Decoded>, DataError> {
        let path = self.path(index)?;
        if let Some(decoded) = self.cache.get(&index) {
            return Ok(decoded);
        }
        let image = DecodedImage::open(path)?;
        let clean = self.preprocessing.apply(&image, path)?;
        // Two threads may decode the same image; both get the same bytes.
        let decoded = Arc::new(Decoded { clean, reduced: self.reduced(&image) });
        self.cache.insert(index, Arc::clone(&decoded));
        Ok(decoded)
    }

    /// Reduces an image to a shorter edge of twice the view size, if it is larger.
    fn reduced(&self, image: &DecodedImage) -> RgbaImage {
        let rgba = image.to_rgba();
        let max_edge = 2 * self.augmentation.size;
        let shorter = image.width().min(image.height());
        if shorter <= max_edge {
            return rgba;
        }
        let scaled = |edge: u32| {
            let scaled = u64::from(edge) * u64::from(max_edge) / u64::from(shorter);
            u32::try_from(scaled).unwrap_or(edge)
        };
        let (width, height) = (scaled(image.width()), scaled(image.height()));
        imageops::resize(&rgba, width, height, FilterType::Triangle)
    }

    fn view(&self, index: usize, view: u32) -> Result<Vec<f32>, DataError> {
        let decoded = self.decoded(index)?;
        if view == 0 {
            return Ok(decoded.clean.clone());
        }
        let mut hash = Sha256::new_with_prefix(self.seed.to_le_bytes());
        hash.update((index as u64).to_le_bytes());
        hash.update(view.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(hash.finalize().into());
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
            Self::Files(files) => files.paths.len(),
        }
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The concatenated pixels `[3, S, S]` of images in `[-1, 1]`, each in its view.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`]; those of [`DecodedImage::open`]
    pub fn pixels(&self, requested: &[(usize, u32)]) -> Result<Vec<f32>, DataError> {
        let of_view = |(index, view): &(usize, u32)| -> Result<Vec<f32>, DataError> {
            let (world, clean) = match self {
                Self::Files(files) => return files.view(*index, *view),
                Self::World { world, clean } => (world, clean),
            };
            // All entries use the clean view.
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
        let views: Vec<Vec<f32>> = requested.par_iter().map(of_view).collect::<Result<_, _>>()?;
        Ok(views.concat())
    }
}

/// Converts `[H, W, 3]` bytes to `[3, H, W]` values in `[-1, 1]`.
fn planes(pixels: &[u8]) -> Vec<f32> {
    let size = pixels.len() / 3;
    let mut planes = vec![0.0; 3 * size];
    for (index, pixel) in pixels.chunks_exact(3).enumerate() {
        for (channel, byte) in pixel.iter().enumerate() {
            planes[channel * size + index] = f32::from(*byte) / 127.5 - 1.0;
        }
    }
    planes
}

/// The preprocessing of images to `size` × `size` pixels, from a published file if there is one.
///
/// # Errors
/// The file gives another image size.
pub fn preprocessing(processor: Option<&Path>, size: usize) -> Result<Preprocessing> {
    let Some(path) = processor else { return Ok(squared(size)) };
    let preprocessing = Preprocessing::read(path)?;
    let edge = u32::try_from(size).unwrap_or(u32::MAX);
    match preprocessing.output_size() {
        Some(found) if found == (edge, edge) => Ok(preprocessing),
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
        let mut files = ImageFiles::new(vec![path], 8, preprocessing, 1, 0);
        files.augmentation = Augmentation::none(8);
        let (clean, other) = (files.view(0, 0)?, files.view(0, 1)?);
        assert!(clean.iter().any(|value| *value < -0.9) && clean.iter().any(|value| *value > 0.6));
        for (clean, other) in clean.iter().zip(&other) {
            assert!((clean - other).abs() < 1e-6, "{clean} {other}");
        }
        Ok(())
    }
}
