//! Nearest-name accuracy of views.

use candle_core::{D, Device, Tensor};
use engram_data::world::questions::Split;
use engram_eval::items::{Item, Statistic};
use engram_eval::metric::{MetricInfo, Unit};
use engram_eval::result::Measure;
use engram_models::clip::ClipVision;
use engram_models::kernels::{Mode, linear};
use engram_models::similarity::normalise;
use rayon::prelude::*;

use super::super::reports::mean_by_group;
use super::images::ImageSet;
use super::names::NameVectors;
use crate::Stop;
use crate::study::StudyResult;

/// Views per forward pass.
const BATCH_VIEWS: usize = 64;

/// The share of views whose nearest name is the name of their image.
pub(super) const ACCURACY: MetricInfo = MetricInfo::higher("accuracy", Unit::Fraction);

/// The nearest name of each view.
#[derive(Debug, Default)]
pub struct NamePredictions {
    /// For each view, the index of its image and of the nearest name.
    among_all_names: Vec<(usize, usize)>,
    /// For each view of an image with a spoken name, the index of its image and of the nearest
    /// spoken name.
    among_spoken_names: Vec<(usize, usize)>,
}

impl NamePredictions {
    /// Predicts the names of `views` views of each image in a split.
    ///
    /// # Errors
    /// Errors of the model; [`Stopped`](crate::Stopped)
    pub fn of(
        vision: &ClipVision,
        image_set: &ImageSet,
        names: &NameVectors,
        split: Split,
        views: usize,
        stop: &Stop,
    ) -> StudyResult<Self> {
        let spoken_indices: Vec<u32> = image_set.spoken.iter().map(|index| *index as u32).collect();
        let spoken_names = if spoken_indices.is_empty() {
            None
        } else {
            let rows = Tensor::new(spoken_indices.as_slice(), &Device::Cpu)?;
            Some(names.vectors.index_select(&rows, 0)?)
        };
        let views_of_images: Vec<(usize, usize)> = (0..image_set.len())
            .flat_map(|image| (0..views).map(move |view| (image, view)))
            .collect();
        let mut predictions = Self::default();
        for batch in views_of_images.chunks(BATCH_VIEWS) {
            stop.check()?;
            let pixels = batch
                .par_iter()
                .map(|(image, view)| image_set.evaluation_view(split, *image, *view));
            let pixels = pixels.collect::<Result<Vec<_>, _>>()?;
            let images = embed(vision, &pixels, &Mode::inference())?;
            let nearest = nearest(&images, &names.vectors)?;
            let image_indices = batch.iter().map(|(image, _)| *image);
            predictions
                .among_all_names
                .extend(image_indices.zip(nearest.into_iter().map(|name| name as usize)));
            let Some(spoken_names) = &spoken_names else { continue };
            let nearest = self::nearest(&images, spoken_names)?;
            for ((image, _), name) in batch.iter().zip(nearest) {
                if image_set.spoken.binary_search(image).is_ok() {
                    predictions.among_spoken_names.push((*image, image_set.spoken[name as usize]));
                }
            }
        }
        Ok(predictions)
    }

    /// The share of views whose nearest name is the name of their image. Intervals resample whole
    /// images.
    pub fn accuracy(&self) -> Measure {
        measure(&self.among_all_names)
    }

    /// The result of each view, for comparisons.
    pub(super) fn items(&self) -> Vec<Item> {
        let item = |(view, (image, name)): (usize, &(usize, usize))| {
            let statistic = Statistic::Mean { value: f64::from(u8::from(image == name)) };
            Item::new(&ACCURACY, "", &view.to_string(), Some(&image.to_string()), statistic)
        };
        self.among_all_names.iter().enumerate().map(item).collect()
    }

    /// The accuracy among spoken names; `None` if no name is spoken.
    pub fn spoken_accuracy(&self) -> Option<Measure> {
        (!self.among_spoken_names.is_empty()).then(|| measure(&self.among_spoken_names))
    }
}

/// Encodes the pixels of `B` images as unit vectors, `[B, E]`.
///
/// # Errors
/// Errors of the model.
pub fn embed(vision: &ClipVision, pixels: &[Vec<f32>], mode: &Mode) -> StudyResult<Tensor> {
    let size = vision.config.image_size;
    let pixels = Tensor::from_vec(pixels.concat(), (pixels.len(), 3, size, size), &Device::Cpu)?;
    Ok(normalise(&vision.forward(&pixels, mode)?.embeddings)?)
}

/// The index into `names` `[N, E]` of the nearest name to each of `images` `[B, E]`.
fn nearest(images: &Tensor, names: &Tensor) -> StudyResult<Vec<u32>> {
    let names = names.to_device(images.device())?;
    Ok(linear(images, &names, None)?.argmax(D::Minus1)?.to_vec1()?)
}

/// The accuracy of pairs of image and predicted name.
fn measure(predictions: &[(usize, usize)]) -> Measure {
    let correct: Vec<f64> =
        predictions.iter().map(|(image, name)| f64::from(u8::from(image == name))).collect();
    let image_indices: Vec<usize> = predictions.iter().map(|(image, _)| *image).collect();
    mean_by_group(&ACCURACY, "image", &image_indices, &correct)
}
