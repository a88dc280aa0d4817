//! The split of images into training, validation and test. An image and all examples about it get
//! one split.

use std::collections::HashMap;
use std::path::Path;

use engram_data::DataError;
use engram_data::world::questions::Split;
use sha2::{Digest, Sha256};

/// An image with examples in a file.
pub(super) struct ImageWithExamples<'a> {
    /// The component of the image, which gets one split.
    pub(super) component: &'a str,
    /// The id of the image.
    pub(super) document: &'a str,
    /// The split that the recipe gives all images of the file; `None` to draw it.
    pub(super) split: Option<Split>,
    pub(super) file: &'a str,
}

/// The settings of the split.
pub(super) struct SplitSettings<'a> {
    /// The folder of the files.
    pub(super) folder: &'a Path,
    /// The seed that draws the splits.
    pub(super) seed: u64,
    /// The fraction of the components without a given split to draw for validation.
    pub(super) validation_share: f64,
    /// The fraction of the components without a given split to draw for the test.
    pub(super) test_share: f64,
    /// The number of components to keep, with or without a given split; 0 for all.
    pub(super) max_images: usize,
}

/// The split of each component. Components beyond `max_images` have none.
///
/// # Errors
/// [`DataError::Malformed`] for an image with different splits in two files.
pub(super) fn draw_splits<'a>(
    images: impl Iterator<Item = ImageWithExamples<'a>>,
    settings: &SplitSettings<'_>,
) -> Result<HashMap<String, Split>, DataError> {
    let mut given_splits: HashMap<&str, (Option<Split>, &str, &str)> = HashMap::new();
    for ImageWithExamples { component, document, split, file } in images {
        let first = given_splits.entry(component).or_insert((split, file, document));
        match (first.0, split) {
            (Some(before), Some(now)) if before != now => {
                return Err(DataError::Malformed {
                    path: settings.folder.join(file),
                    place: Some(format!("image {document}")),
                    reason: format!(
                        "has the split {}, but {} gives {} the split {}",
                        now.name(),
                        first.1,
                        if first.2 == document {
                            "it".to_owned()
                        } else {
                            format!("image {}, which must have the same split,", first.2)
                        },
                        before.name()
                    ),
                    remedy: "use one split for all files about an image, or remove `split`",
                });
            }
            (None, Some(_)) => *first = (split, file, document),
            _ => {}
        }
    }
    let hash_of = |component: &str| {
        let mut hash = Sha256::new_with_prefix(settings.seed.to_le_bytes());
        hash.update(component.as_bytes());
        <[u8; 32]>::from(hash.finalize())
    };
    let mut order: Vec<(&str, Option<Split>)> =
        given_splits.into_iter().map(|(component, (split, ..))| (component, split)).collect();
    order.sort_by_cached_key(|(component, _)| (hash_of(component), component.to_string()));
    if settings.max_images > 0 {
        order.truncate(settings.max_images);
    }
    let num_undrawn = order.iter().filter(|(_, split)| split.is_none()).count();
    let count = |share: f64| (num_undrawn as f64 * share).round() as usize;
    let (test, validation) = (count(settings.test_share), count(settings.validation_share));
    let mut num_drawn = 0;
    let split_of = |(component, split): (&str, Option<Split>)| {
        let split = split.unwrap_or_else(|| {
            num_drawn += 1;
            match num_drawn {
                n if n <= test => Split::Test,
                n if n <= test + validation => Split::Validation,
                _ => Split::Train,
            }
        });
        (component.to_owned(), split)
    };
    Ok(order.into_iter().map(split_of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images_of(documents: &[String]) -> impl Iterator<Item = ImageWithExamples<'_>> {
        documents.iter().map(|document| ImageWithExamples {
            component: document,
            document,
            split: None,
            file: "a",
        })
    }

    fn settings(seed: u64) -> SplitSettings<'static> {
        SplitSettings {
            folder: Path::new("of/data"),
            seed,
            validation_share: 0.1,
            test_share: 0.3,
            max_images: 0,
        }
    }

    #[test]
    fn shares_are_exact_and_depend_only_on_the_seed() -> Result<(), DataError> {
        let documents: Vec<String> = (0..50).map(|number| number.to_string()).collect();
        let split_of = draw_splits(images_of(&documents), &settings(1))?;
        let count = |split| split_of.values().filter(|drawn| **drawn == split).count();
        assert_eq!([Split::Train, Split::Validation, Split::Test].map(count), [30, 5, 15]);
        let reversed: Vec<String> = documents.iter().rev().cloned().collect();
        assert_eq!(split_of, draw_splits(images_of(&reversed), &settings(1))?);
        assert_ne!(split_of, draw_splits(images_of(&documents), &settings(2))?);
        Ok(())
    }
}
