//! Cut-outs as the images of a corpus: view 0 is clean, all other views lie on photographs.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use engram_data::DataError;
use engram_data::composite::{Composite, CutOut, open_backgrounds};
use image::RgbImage;
use rand::Rng;
use rayon::prelude::*;

use super::images::{FIRST_TRAINING_VIEW, planes, view_rng};

/// Things are kept with edges of up to this many sides of a view, photographs with longer ones,
/// because a view shows a part of them.
const THING_SCALE: u32 = 1;
const BACKGROUND_SCALE: u32 = 2;
/// Every this many backgrounds, one is for evaluation.
const BACKGROUNDS_PER_TEST: usize = 5;

/// Cut-outs with photographs as backgrounds. The views of training and of evaluation (numbers below
/// [`FIRST_TRAINING_VIEW`]) have different backgrounds.
pub struct CutOuts {
    names: Vec<PathBuf>,
    things: Vec<CutOut>,
    /// The clean view of each thing, made on first use.
    clean: Vec<OnceLock<RgbImage>>,
    /// The backgrounds of training, and those of evaluation.
    backgrounds: [Vec<CutOut>; 2],
    composite: Composite,
    seed: u64,
}

impl CutOuts {
    /// Opens the things `names` in `folder`, and the backgrounds, for views of `size` × `size`
    /// pixels. `graphics` are further things, without a file. At least two backgrounds are needed.
    ///
    /// # Errors
    /// The errors of [`CutOut::open`]; `OutOfRange` with fewer than two backgrounds
    pub fn open(
        folder: &Path,
        names: Vec<PathBuf>,
        graphics: &[image::RgbaImage],
        backgrounds: &[PathBuf],
        size: usize,
        seed: u64,
    ) -> Result<Self, DataError> {
        let size = size as u32;
        let edge = THING_SCALE * size;
        let opened = names.par_iter().map(|name| CutOut::open(&folder.join(name), edge));
        let mut things: Vec<CutOut> = opened.collect::<Result<_, _>>()?;
        let graphics: Vec<Option<CutOut>> =
            graphics.par_iter().map(|image| CutOut::new(image, edge)).collect();
        things.extend(graphics.into_iter().flatten());
        if backgrounds.len() < 2 {
            let (what, wanted) =
                ("the number of backgrounds", "give a folder with at least 2 photographs");
            return Err(DataError::out_of_range(what, backgrounds.len(), wanted));
        }
        let edge = BACKGROUND_SCALE * size;
        let backgrounds = open_backgrounds(backgrounds, edge, BACKGROUNDS_PER_TEST)?;
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
        let mut rng = view_rng(self.seed, index, view);
        let backgrounds = &self.backgrounds[usize::from(view < FIRST_TRAINING_VIEW)];
        let background = &backgrounds[rng.random_range(0..backgrounds.len())];
        Ok(self.composite.view(thing, background, &mut rng))
    }

    /// The pixels `[3, S, S]` of a view, in `[-1, 1]`.
    pub(super) fn pixels(&self, index: usize, view: u32) -> Result<Vec<f32>, DataError> {
        Ok(planes(self.view(index, view)?.as_raw()))
    }
}
