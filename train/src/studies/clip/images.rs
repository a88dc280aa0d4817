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
const EVALUATED_SEED: u64 = 1;
/// Mean and standard deviation per colour channel: pixels range from -1 to 1.
const HALF: [f32; 3] = [0.5; 3];

/// The training images, each with a distinct name.
pub struct ImageSet {
    pictures: Vec<WorldImage>,
    spoken: Vec<usize>,
    size: u32,
    preprocessing: Preprocessing,
}

impl ImageSet {
    /// Loads `count` images of the embedded world, evenly spaced, or all for 0. Views have `size` ×
    /// `size` pixels.
    ///
    /// # Errors
    /// [`DataError`] if the embedded files are damaged.
    pub fn new(count: usize, size: u32) -> Result<Self, DataError> {
        let mut pictures = images()?;
        if count > 0 {
            // One image from each of `count` equal stretches.
            let all = pictures.len();
            let stretch = |number: usize| number * count / all;
            pictures
                .retain(|one| one.number == 0 || stretch(one.number) != stretch(one.number - 1));
        }
        let said = voices()?.into_iter().next().map(|voice| voice.names).unwrap_or_default();
        let is_said = |picture: &WorldImage| said.iter().any(|clip| clip.text == picture.name);
        let spoken = (0..pictures.len()).filter(|place| is_said(&pictures[*place])).collect();
        let preprocessing = Preprocessing {
            resize: Some(Resize::ShortestEdge(size)),
            filter: Filter::Bicubic,
            crop: Some((size, size)),
            rescale: 1.0 / 255.0,
            mean: HALF,
            std: HALF,
        };
        Ok(Self { pictures, spoken, size, preprocessing })
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.pictures.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.pictures.is_empty()
    }

    /// The names of the images, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.pictures.iter().map(|picture| picture.name.as_str())
    }

    /// The indices of the images whose names the embedded world's voices say.
    pub fn spoken(&self) -> &[usize] {
        &self.spoken
    }

    /// The pixels of a training view, `[3, S, S]`.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`]
    pub fn training(&self, picture: usize, seed: u64) -> Result<Vec<f32>, DataError> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let augmentation = view_augmentation(self.size);
        self.pixels(augmentation.apply(&self.pictures[picture].image, &mut rng)?)
    }

    /// The pixels of view `number` of an image in validation or test, `[3, S, S]`.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`]
    pub fn evaluated(
        &self,
        split: Split,
        picture: usize,
        number: usize,
    ) -> Result<Vec<f32>, DataError> {
        let picture = &self.pictures[picture];
        self.pixels(picture.view((EVALUATED_SEED, split), number, self.size)?)
    }

    fn pixels(&self, view: RgbImage) -> Result<Vec<f32>, DataError> {
        let (width, height) = view.dimensions();
        let path = Path::new("a view");
        let picture = image::DecodedImage::from_pixels(width, height, view.into_raw());
        let picture = picture.ok_or_else(|| DataError::Image {
            path: path.into(),
            reason: "it has no pixels".into(),
        })?;
        self.preprocessing.apply(&picture, path)
    }

    /// The content of `preprocessor_config.json`, in the published form.
    pub fn processor(&self) -> Value {
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
            "image_mean": HALF,
            "image_std": HALF,
        })
    }

    /// The preprocessing of views.
    pub fn preprocessing(&self) -> &Preprocessing {
        &self.preprocessing
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_picture_has_a_name_of_its_own_and_138_are_spoken() -> Result<(), DataError> {
        let all = ImageSet::new(0, 16)?;
        let names: HashSet<String> = all.names().map(str::to_lowercase).collect();
        assert_eq!((names.len(), all.len(), all.spoken().len()), (1881, 1881, 138));
        let few = ImageSet::new(40, 16)?;
        assert_eq!(few.len(), 40);
        Ok(())
    }

    #[test]
    fn views_differ_by_split_number_and_seed() -> Result<(), DataError> {
        let shown = ImageSet::new(4, 16)?;
        let validation = shown.evaluated(Split::Validation, 1, 0)?;
        assert_eq!(validation, shown.evaluated(Split::Validation, 1, 0)?);
        assert_eq!(validation.len(), 3 * 16 * 16);
        assert_ne!(validation, shown.evaluated(Split::Validation, 1, 1)?);
        assert_ne!(validation, shown.evaluated(Split::Test, 1, 0)?);
        assert_ne!(shown.training(1, 5)?, shown.training(1, 6)?);
        Ok(())
    }
}
