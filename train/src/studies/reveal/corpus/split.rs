//! The split of images into training, validation and test. An image and all examples about it get
//! one split.

use std::collections::HashMap;
use std::path::Path;

use engram_data::DataError;
use engram_data::world::questions::Split;
use sha2::{Digest, Sha256};

/// An image with examples in a file.
pub(super) struct ImageWithExamples<'a> {
    /// Its component, which gets one split.
    pub(super) component: &'a str,
    /// The id of the image.
    pub(super) document: &'a str,
    /// The split that the recipe gives all images of the file; `None` to draw it.
    pub(super) split: Option<Split>,
    /// The file.
    pub(super) file: &'a str,
}

/// The settings of the split.
pub(super) struct Draw<'a> {
    /// The folder of the files.
    pub(super) folder: &'a Path,
    pub(super) seed: u64,
    pub(super) validation_share: f64,
    pub(super) test_share: f64,
    /// The number of components to keep, with or without a given split; 0 for all.
    pub(super) max_images: usize,
}

/// Computes the split of each component; dropped components have none.
///
/// # Errors
/// [`DataError::Malformed`] for an image with different splits in two files.
pub(super) fn splits<'a>(
    images: impl Iterator<Item = ImageWithExamples<'a>>,
    draw: &Draw<'_>,
) -> Result<HashMap<String, Split>, DataError> {
    let mut given: HashMap<&str, (Option<Split>, &str, &str)> = HashMap::new();
    for ImageWithExamples { component, document, split, file } in images {
        let first = given.entry(component).or_insert((split, file, document));
        match (first.0, split) {
            (Some(before), Some(now)) if before != now => {
                return Err(DataError::Malformed {
                    path: draw.folder.join(file),
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
        let mut hash = Sha256::new_with_prefix(draw.seed.to_le_bytes());
        hash.update(component.as_bytes());
        <[u8; 32]>::from(hash.finalize())
    };
    let mut order: Vec<(&str, Option<Split>)> =
        given.into_iter().map(|(component, (split, ..))| (component, split)).collect();
    order.sort_by_cached_key(|(component, _)| (hash_of(component), component.to_string()));
    if draw.max_images > 0 {
        order.truncate(draw.max_images);
    }
    let free = order.iter().filter(|(_, split)| split.is_none()).count();
    let count = |share: f64| (free as f64 * share).round() as usize;
    let (test, validation) = (count(draw.test_share), count(draw.validation_share));
    let mut drawn = 0;
    let split_of = |(component, split): (&str, Option<Split>)| {
        let split = split.unwrap_or_else(|| {
            drawn += 1;
            match drawn {
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

    fn images_of<'a>(
        documents: &'a [String],
        split: Option<Split>,
        file: &'a str,
    ) -> impl Iterator<Item = ImageWithExamples<'a>> {
        let one = move |document| ImageWithExamples { component: document, document, split, file };
        documents.iter().map(move |document| one(document.as_str()))
    }

    fn draw(seed: u64) -> Draw<'static> {
        Draw {
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
        let drawn = splits(images_of(&documents, None, "a"), &draw(1))?;
        let count = |split| drawn.values().filter(|own| **own == split).count();
        assert_eq!([Split::Train, Split::Validation, Split::Test].map(count), [30, 5, 15]);
        let reversed: Vec<String> = documents.iter().rev().cloned().collect();
        assert_eq!(drawn, splits(images_of(&reversed, None, "a"), &draw(1))?);
        assert_ne!(drawn, splits(images_of(&documents, None, "a"), &draw(2))?);
        Ok(())
    }

    #[test]
    fn a_given_split_is_kept_and_two_files_must_agree() -> Result<(), DataError> {
        let documents: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        let with = |other| {
            let first = images_of(&documents, None, "a");
            splits(first.chain(images_of(&documents[..4], other, "b")), &draw(1))
        };
        let drawn = with(Some(Split::Test))?;
        assert!(documents[..4].iter().all(|document| drawn[document] == Split::Test));
        // Four images have the given split `test`. Two of the six others are drawn for the test.
        assert_eq!(drawn.values().filter(|split| **split == Split::Test).count(), 6);
        let clash = images_of(&documents[..1], Some(Split::Train), "a");
        let clash = clash.chain(images_of(&documents[..1], Some(Split::Test), "b"));
        let error = splits(clash, &draw(1)).unwrap_err().to_string();
        assert!(
            error.contains("image 0") && error.contains("a gives it the split train"),
            "{error}"
        );
        assert!(error.contains(&*Path::new("of/data/b").to_string_lossy()), "{error}");
        Ok(())
    }
}
