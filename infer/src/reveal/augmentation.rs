//! Image augmentation for the contrastive training of the image encoder.
//!
//! All images of a batch, of queries and entries alike, get the same rotation by quarter turns,
//! mirroring and permutation of colour channels. Within a batch, images are therefore as hard to
//! tell apart as without augmentation, and each image gives 48 training images.

use candle_core::{Device, Tensor};
use engram_models::reveal::RevealInput;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::error::Result;

/// All permutations of the colour channels; the first is the identity.
const COLOURS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// The number of orientations: 4 quarter turns, with and without mirroring.
const ORIENTATIONS: usize = 8;

/// An augmentation of images: one of 48, of which the first is the identity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchAugmentation(usize);

impl BatchAugmentation {
    /// With this probability, draws an augmentation other than the identity; otherwise returns the
    /// identity.
    pub fn draw(probability: f64, rng: &mut ChaCha8Rng) -> Self {
        if rng.random_bool(probability) {
            Self(rng.random_range(1..COLOURS.len() * ORIENTATIONS))
        } else {
            Self(0)
        }
    }

    /// Augments the images of queries or entries.
    pub fn of(self, input: RevealInput) -> Result<RevealInput> {
        let Some(pixels) = input.pixels.as_ref().filter(|_| self.0 > 0) else { return Ok(input) };
        let (shape, side) = (pixels.shape().clone(), pixels.dim(3)?);
        let mut augmented = pixels.flatten_all()?.to_vec1::<f32>()?;
        augmented.par_chunks_mut(3 * side * side).for_each(|image| self.apply(image, side));
        let pixels = Some(Tensor::from_vec(augmented, shape, &Device::Cpu)?);
        Ok(RevealInput { pixels, ..input })
    }

    /// Augments the pixels `[3, side, side]` of an image.
    fn apply(self, pixels: &mut [f32], side: usize) {
        let original = pixels.to_vec();
        let (colours, orientation) = (COLOURS[self.0 / ORIENTATIONS], self.0 % ORIENTATIONS);
        let last = side - 1;
        for (plane, channel) in pixels.chunks_exact_mut(side * side).zip(colours) {
            let source = &original[channel * side * side..][..side * side];
            for (y, row) in plane.chunks_exact_mut(side).enumerate() {
                for (x, value) in row.iter_mut().enumerate() {
                    let x = if orientation & 1 == 1 { last - x } else { x };
                    let y = if orientation & 2 == 2 { last - y } else { y };
                    let (y, x) = if orientation & 4 == 4 { (x, y) } else { (y, x) };
                    *value = source[y * side + x];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use engram_models::packed::PackedTokens;
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn each_augmentation_is_a_different_permutation_of_the_pixels() {
        let image: Vec<f32> = (0..27).map(|value| value as f32).collect();
        let augmented = |index| {
            let mut pixels = image.clone();
            BatchAugmentation(index).apply(&mut pixels, 3);
            pixels.into_iter().map(|value| value as u8).collect::<Vec<u8>>()
        };
        let distinct: HashSet<Vec<u8>> = (0..48).map(augmented).collect();
        assert_eq!(distinct.len(), 48);
        for pixels in distinct {
            assert_eq!(pixels.into_iter().collect::<HashSet<u8>>().len(), 27);
        }
        assert_eq!(augmented(0), (0..27).collect::<Vec<u8>>());
    }

    #[test]
    fn all_images_of_an_input_get_the_same_augmentation() -> Result<()> {
        let pixels = Tensor::arange(0f32, 54.0, &Device::Cpu)?.reshape((2, 3, 3, 3))?;
        let tokens = PackedTokens::new(&[[1u32], [2]]);
        let input = RevealInput { tokens, pixels: Some(pixels), image_of: vec![Some(0), None] };
        let augmented = BatchAugmentation(13).of(input)?;
        assert_eq!(augmented.image_of, [Some(0), None]);
        let pixels = augmented.pixels.map(|pixels| pixels.flatten(1, 3)?.to_vec2::<f32>());
        let images = pixels.transpose()?.unwrap_or_default();
        // The second image is the first plus 27.
        let second: Vec<f32> = images[1].iter().map(|value| value - 27.0).collect();
        assert_eq!(images[0], second);
        assert_ne!(images[0], (0..27).map(|value| value as f32).collect::<Vec<f32>>());
        Ok(())
    }

    #[test]
    fn batches_are_augmented_with_the_given_probability() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut augmented_count = |probability| {
            let drawn = (0..1000).map(|_| BatchAugmentation::draw(probability, &mut rng));
            drawn.filter(|augmentation| *augmentation != BatchAugmentation::default()).count()
        };
        assert_eq!([augmented_count(0.0), augmented_count(1.0)], [0, 1000]);
        assert!((420..580).contains(&augmented_count(0.5)));
    }
}
