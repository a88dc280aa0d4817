//! Cut-outs as the images of a corpus: view 0 is clean, all other views lie on photographs.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use engram_data::DataError;
use engram_data::composite::{Composite, CutOut};
use engram_data::image::DecodedImage;
use image::imageops::{self, FilterType};
use image::{DynamicImage, RgbImage};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::images::{FIRST_TRAINING_VIEW, planes};

/// Things and photographs are kept with edges of up to this many sides of a view.
const STORED_SCALE: u32 = 2;
/// Every this many backgrounds, one is for evaluation.
const BACKGROUNDS_PER_TEST: usize = 5;

/// Cut-outs with photographs as backgrounds. The views of training and of evaluation (numbers below
/// [`FIRST_TRAINING_VIEW`]) have different backgrounds.
pub struct CutOuts {
    names: Vec<PathBuf>,
    things: Vec<CutOut>,
    /// The clean view of each thing, made on first use.
    clean: Vec<OnceLock<RgbImage>>,
    /// The backgrounds of evaluation, and those of training.
    backgrounds: [Vec<RgbImage>; 2],
    composite: Composite,
    seed: u64,
}

impl CutOuts {
    /// Opens the things `names` in `folder`, and the backgrounds, for views of `size` × `size`
    /// pixels. `others` are further things, without a file. At least two backgrounds are needed.
    ///
    /// # Errors
    /// The errors of [`DecodedImage::open`]; `OutOfRange` with fewer than two backgrounds
    pub fn open(
        folder: &Path,
        names: Vec<PathBuf>,
        others: &[image::RgbaImage],
        backgrounds: &[PathBuf],
        size: usize,
        seed: u64,
    ) -> Result<Self, DataError> {
        let size = size as u32;
        let edge = STORED_SCALE * size;
        let opened = names.par_iter().map(|name| CutOut::open(&folder.join(name), edge));
        let mut things: Vec<CutOut> = opened.collect::<Result<_, _>>()?;
        things.extend(
            others.par_iter().filter_map(|image| CutOut::new(image, edge)).collect::<Vec<_>>(),
        );
        let opened = backgrounds.par_iter().map(|path| photograph(path, edge));
        let photographs: Vec<RgbImage> = opened.collect::<Result<_, _>>()?;
        if photographs.len() < 2 {
            let wanted = "give a folder with at least 2 photographs";
            return Err(DataError::out_of_range(
                "the number of backgrounds",
                photographs.len(),
                wanted,
            ));
        }
        let mut backgrounds = [Vec::new(), Vec::new()];
        for (index, photograph) in photographs.into_iter().enumerate() {
            backgrounds[usize::from(index % BACKGROUNDS_PER_TEST > 0)].push(photograph);
        }
        let clean = things.iter().map(|_| OnceLock::new()).collect();
        Ok(Self { names, things, clean, backgrounds, composite: Composite::new(size), seed })
    }

    /// The number of things.
    pub(super) fn len(&self) -> usize {
        self.things.len()
    }

    /// The file of a thing, in the folder; `None` for a thing without a file.
    pub fn name(&self, index: usize) -> Option<&Path> {
        self.names.get(index).map(PathBuf::as_path)
    }

    /// The view of a thing as an image.
    ///
    /// # Errors
    /// `OutOfRange` for an unknown thing
    pub fn view(&self, index: usize, view: u32) -> Result<RgbImage, DataError> {
        let (Some(thing), Some(clean)) = (self.things.get(index), self.clean.get(index)) else {
            let wanted = "use an index below the number of things";
            return Err(DataError::out_of_range("the index of the thing", index, wanted));
        };
        if view == 0 {
            return Ok(clean.get_or_init(|| self.composite.clean(thing)).clone());
        }
        let hash = Sha256::new_with_prefix(self.seed.to_le_bytes());
        let hash = hash.chain_update((index as u64).to_le_bytes()).chain_update(view.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(hash.finalize().into());
        let backgrounds = &self.backgrounds[usize::from(view >= FIRST_TRAINING_VIEW)];
        let background = &backgrounds[rng.random_range(0..backgrounds.len())];
        Ok(self.composite.view(thing, background, &mut rng))
    }

    /// The pixels `[3, S, S]` of a view, in `[-1, 1]`.
    pub(super) fn pixels(&self, index: usize, view: u32) -> Result<Vec<f32>, DataError> {
        Ok(planes(self.view(index, view)?.as_raw()))
    }
}

/// Opens a photograph, and shrinks it to a shorter edge of at most `edge` pixels.
fn photograph(path: &Path, edge: u32) -> Result<RgbImage, DataError> {
    let image = DecodedImage::open(path)?;
    let (width, height) = (image.width(), image.height());
    let image = DynamicImage::ImageRgba8(image.to_rgba()).into_rgb8();
    let shorter = width.min(height);
    if shorter <= edge {
        return Ok(image);
    }
    let scaled = |side: u32| (u64::from(side) * u64::from(edge) / u64::from(shorter)) as u32;
    Ok(imageops::resize(&image, scaled(width), scaled(height), FilterType::Triangle))
}
