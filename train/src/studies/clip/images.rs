//! Views of the embedded world's images, as encoder input.

use std::path::Path;

use ::image::RgbImage;
use engram_data::DataError;
use engram_data::image::{self, Filter, Preprocessing, Resize};
use engram_data::world::images::{WorldImage, images};
use engram_data::world::questions::Split;
use engram_data::world::speech::voices;
use engram_data::world::view_augmentation;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// The seed of the validation and test views, which are equal in every run.
const EVALUATION_SEED: u64 = 1;
/// The mean, and also the standard deviation, of each colour channel. They scale pixels to
/// [-1, 1].
const CHANNEL_MEAN_AND_STD: [f32; 3] = [0.5; 3];

/// Images of the embedded world, each with a distinct name.
pub struct ImageSet {
    images: Vec<WorldImage>,
    /// The indices of the images whose names occur in the embedded world's speech.
    pub spoken: Vec<usize>,
    size: u32,
    /// The preprocessing of views.
    pub preprocessing: Preprocessing,
}

impl ImageSet {
    /// Loads `count` images of the embedded world, evenly spaced, or all for 0. Views have `size` ×
    /// `size` pixels.
    ///
    /// # Errors
    /// [`DataError`] if the embedded files are damaged.
    pub fn new(count: usize, size: u32) -> Result<Self, DataError> {
        let mut images = images()?;
        if count > 0 {
            // One image from each of `count` equal parts of the list.
            let total = images.len();
            let part_of = |number: usize| number * count / total;
            images.retain(|image| {
                image.number == 0 || part_of(image.number) != part_of(image.number - 1)
            });
        }
        let clips = voices()?.into_iter().next().map(|voice| voice.names).unwrap_or_default();
        let is_spoken = |image: &WorldImage| clips.iter().any(|clip| clip.text == image.name);
        let spoken = (0..images.len()).filter(|index| is_spoken(&images[*index])).collect();
        let preprocessing = Preprocessing {
            resize: Some(Resize::ShortestEdge(size)),
            filter: Filter::Bicubic,
            crop: Some((size, size)),
            rescale: 1.0 / 255.0,
            mean: CHANNEL_MEAN_AND_STD,
            std: CHANNEL_MEAN_AND_STD,
        };
        Ok(Self { images, spoken, size, preprocessing })
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// The names of the images, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.images.iter().map(|image| image.name.as_str())
    }

    /// The pixels of a training view, `[3, S, S]`.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`]
    pub fn training_view(&self, index: usize, seed: u64) -> Result<Vec<f32>, DataError> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let augmentation = view_augmentation(self.size);
        self.pixels(augmentation.apply(&self.images[index].image, &mut rng)?)
    }

    /// The pixels of view `number` of an image in validation or test, `[3, S, S]`.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`]
    pub fn evaluation_view(
        &self,
        split: Split,
        index: usize,
        number: usize,
    ) -> Result<Vec<f32>, DataError> {
        let image = &self.images[index];
        self.pixels(image.view(EVALUATION_SEED, split, number, self.size)?)
    }

    /// The pixels of a view, preprocessed for the encoder.
    fn pixels(&self, view: RgbImage) -> Result<Vec<f32>, DataError> {
        let (width, height) = view.dimensions();
        let path = Path::new("a view");
        let image = image::DecodedImage::from_pixels(width, height, view.into_raw());
        let image = image.ok_or_else(|| DataError::Image {
            path: path.into(),
            reason: "it has no pixels".into(),
        })?;
        self.preprocessing.apply(&image, path)
    }

    /// The content of `preprocessor_config.json`, in the published form.
    pub fn preprocessor_config(&self) -> Value {
        json!({
            "image_processor_type": "CLIPImageProcessor",
            "do_convert_rgb": true,
            "do_resize": true,
            "size": { "shortest_edge": self.size },
            "resample": 3,
            "do_center_crop": true,
            "crop_size": { "height": self.size, "width": self.size },
            "do_rescale": true,
            "rescale_factor": 1.0 / 255.0,
            "do_normalize": true,
            "image_mean": CHANNEL_MEAN_AND_STD,
            "image_std": CHANNEL_MEAN_AND_STD,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_distinct_138_are_spoken_and_a_subset_has_its_size() -> Result<(), DataError> {
        let all_images = ImageSet::new(0, 16)?;
        let names: HashSet<String> = all_images.names().map(str::to_lowercase).collect();
        assert_eq!((names.len(), all_images.len(), all_images.spoken.len()), (1881, 1881, 138));
        let subset = ImageSet::new(40, 16)?;
        assert_eq!(subset.len(), 40);
        Ok(())
    }

    #[test]
    fn views_differ_by_split_number_and_seed() -> Result<(), DataError> {
        let images = ImageSet::new(4, 16)?;
        let validation = images.evaluation_view(Split::Validation, 1, 0)?;
        assert_eq!(validation, images.evaluation_view(Split::Validation, 1, 0)?);
        assert_eq!(validation.len(), 3 * 16 * 16);
        assert_ne!(validation, images.evaluation_view(Split::Validation, 1, 1)?);
        assert_ne!(validation, images.evaluation_view(Split::Test, 1, 0)?);
        assert_ne!(images.training_view(1, 5)?, images.training_view(1, 6)?);
        Ok(())
    }
}
