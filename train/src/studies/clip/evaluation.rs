//! Nearest-name accuracy of views.

use candle_core::{Device, Tensor};
use engram_data::world::questions::Split;
use engram_eval::items::{Item, Statistic};
use engram_eval::metric::{MetricInfo, Unit};
use engram_eval::result::Measure;
use engram_models::clip::ClipVision;
use engram_models::kernels::{Mode, linear};
use engram_models::similarity::normalise;
use rayon::prelude::*;

use super::super::reports::{mean_by_group, rank};
use super::images::ImageSet;
use super::names::NameVectors;
use crate::Stop;
use crate::study::StudyResult;

/// Views per forward pass.
const BATCH_VIEWS: usize = 64;

/// The share of views whose nearest name is the name of their image.
pub(super) const ACCURACY: MetricInfo = MetricInfo::higher("accuracy", Unit::Fraction);

/// Whether the name of its image is nearest to each view.
#[derive(Debug, Default)]
pub struct NamePredictions {
    /// For each view, the index of its image, and whether the image's name is nearer than all others.
    among_all_names: Vec<(usize, bool)>,
    /// For each view of an image with a spoken name, the same among the spoken names.
    among_spoken_names: Vec<(usize, bool)>,
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
            let scores = scores(&images, &names.vectors)?;
            let image_indices = batch.iter().map(|(image, _)| *image);
            predictions.among_all_names.extend(
                image_indices.zip(&scores).map(|(image, row)| (image, rank(row, image) == 0)),
            );
            let Some(spoken_names) = &spoken_names else { continue };
            for ((image, _), row) in batch.iter().zip(self::scores(&images, spoken_names)?) {
                if let Ok(own) = image_set.spoken.binary_search(image) {
                    predictions.among_spoken_names.push((*image, rank(&row, own) == 0));
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
        let item = |(view, (image, is_nearest)): (usize, &(usize, bool))| {
            let statistic = Statistic::Mean { value: f64::from(u8::from(*is_nearest)) };
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

/// The similarities of each of `images` `[B, E]` to all of `names` `[N, E]`.
fn scores(images: &Tensor, names: &Tensor) -> StudyResult<Vec<Vec<f32>>> {
    let names = names.to_device(images.device())?;
    Ok(linear(images, &names, None)?.to_vec2()?)
}

/// The share of views, with the index of their image, whose name is nearest.
fn measure(predictions: &[(usize, bool)]) -> Measure {
    let correct: Vec<f64> =
        predictions.iter().map(|(_, is_nearest)| f64::from(u8::from(*is_nearest))).collect();
    let image_indices: Vec<usize> = predictions.iter().map(|(image, _)| *image).collect();
    mean_by_group(&ACCURACY, "image", &image_indices, &correct)
}
