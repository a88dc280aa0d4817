//! The images of the embedded world: Twemoji graphics, with their names and groups from Unicode.
//!
//! # Source   crate `twemoji-assets` (graphics CC-BY 4.0, Twitter, Inc and other contributors),
//! crate `emojis` (names)

use std::collections::{HashMap, HashSet};

use image::{RgbImage, RgbaImage};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use twemoji_assets::png::PngTwemojiAsset;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use super::countries::{Country, countries};
use super::questions::Split;
use super::{split_rng, view_augmentation};
use crate::DataError;

/// Selects the coloured form of a character; only some emoji contain it.
const VARIATION_SELECTOR: char = '\u{fe0f}';

/// The regional indicator of the letter A; two regional indicators form a flag.
const REGIONAL_INDICATOR_A: u32 = 0x1f1e6;

/// An image with its names, its group and, for a flag, its country.
#[derive(Debug, Clone, PartialEq)]
pub struct WorldImage {
    /// The index among all images; it does not depend on the seed.
    pub number: usize,
    /// The name in file names: `flag-of-switzerland`.
    pub slug: String,
    /// The name in questions: `flag of Switzerland`.
    pub name: String,
    /// The emoji.
    pub emoji: &'static str,
    /// The Unicode group: `Animals & Nature`.
    pub group: &'static str,
    /// The shortcodes in chat programs, without colons.
    pub keywords: Vec<&'static str>,
    /// The Unicode emoji version that introduced the emoji: `0.6`.
    pub since: String,
    /// The country of a flag; `None` for other images, and for the flag of a country that is not
    /// in the table.
    pub country: Option<Country>,
    /// The published PNG file.
    pub png: &'static [u8],
    /// The pixels, 72 x 72.
    pub image: RgbaImage,
}

impl WorldImage {
    /// Returns view `number` for a seed and split, `size` x `size` pixels. Views differ between
    /// splits.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`]
    pub fn view(
        &self,
        seed: u64,
        split: Split,
        number: usize,
        size: u32,
    ) -> Result<RgbImage, DataError> {
        let mut rng = split_rng(seed, split, &self.slug, number);
        view_augmentation(size).apply(&self.image, &mut rng)
    }
}

/// Returns all images, in Unicode order.
///
/// Skin tones are omitted. Of images with identical pixels, one is kept: Norway's flag is also the
/// flag of Svalbard.
///
/// # Errors
/// [`DataError::Image`]
pub fn images() -> Result<Vec<WorldImage>, DataError> {
    let countries = countries();
    let emojis: Vec<_> =
        emojis::iter().filter_map(|emoji| Some((emoji, asset(emoji.as_str())?))).collect();
    let decoded = emojis.par_iter().map(|(emoji, asset)| {
        let name = spoken_name(emoji.name());
        let png: &'static [u8] = asset.data.0;
        let image = image::load_from_memory_with_format(png, image::ImageFormat::Png)
            .map_err(|error| error.to_string())
            .map_err(|reason| DataError::Image { path: emoji.name().into(), reason })?;
        let version = emoji.emoji_version();
        let code = country_code(emoji.as_str());
        Ok(WorldImage {
            number: 0,
            slug: slug(&name),
            name,
            emoji: emoji.as_str(),
            group: group_name(emoji.group()),
            keywords: emoji.shortcodes().collect(),
            since: format!("{}.{}", version.major(), version.minor()),
            country: countries
                .iter()
                .find(|country| Some(country.code) == code.as_deref())
                .cloned(),
            png,
            image: image.into_rgba8(),
        })
    });
    let mut images: Vec<WorldImage> = decoded.collect::<Result<_, DataError>>()?;
    let pixel_hashes: Vec<_> = images.par_iter().map(|image| pixel_hash(&image.image)).collect();
    // Of several identical images, keep the image with the shortest name: France, not Clipperton
    // Island.
    let mut by_hash: HashMap<[u8; 32], &WorldImage> = HashMap::new();
    for (pixel_hash, image) in pixel_hashes.iter().zip(&images) {
        let shortest = by_hash.entry(*pixel_hash).or_insert(image);
        if image.name.len() < shortest.name.len() {
            *shortest = image;
        }
    }
    let slugs: HashSet<String> = by_hash.into_values().map(|image| image.slug.clone()).collect();
    images.retain(|image| slugs.contains(&image.slug));
    for (number, image) in images.iter_mut().enumerate() {
        image.number = number;
    }
    Ok(images)
}

/// Returns a hash of the visible pixels: colours multiplied by their opacity.
fn pixel_hash(image: &RgbaImage) -> [u8; 32] {
    let visible = image.pixels().flat_map(|pixel| {
        let [red, green, blue, alpha] = pixel.0.map(u16::from);
        [red * alpha / 255, green * alpha / 255, blue * alpha / 255, alpha].map(|value| value as u8)
    });
    Sha256::digest(visible.collect::<Vec<u8>>()).into()
}

/// Returns the graphic of an emoji, with or without variation selectors.
fn asset(emoji: &str) -> Option<&'static PngTwemojiAsset> {
    let without_selector: String = emoji.chars().filter(|c| *c != VARIATION_SELECTOR).collect();
    [emoji, &without_selector].into_iter().find_map(PngTwemojiAsset::from_emoji).or_else(|| {
        let with_selector = format!("{without_selector}{VARIATION_SELECTOR}");
        PngTwemojiAsset::from_emoji(&with_selector)
    })
}

/// Converts a Unicode name to spoken form, without colons.
fn spoken_name(name: &str) -> String {
    let name = name.replace('#', "hash sign").replace('*', "asterisk");
    match name.strip_prefix("flag: ") {
        Some(country) => format!("flag of {country}"),
        None => name.replace(": ", " with "),
    }
}

/// Converts a name to lower-case ASCII letters and digits, separated by hyphens.
fn slug(name: &str) -> String {
    let normalised =
        name.nfkd().filter(|c| !is_combining_mark(*c)).collect::<String>().to_lowercase();
    let words =
        normalised.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

/// Returns the country code of a flag made from two regional indicators; `None` for other emoji.
fn country_code(emoji: &str) -> Option<String> {
    let letter = |c: char| {
        let index = u32::from(c).checked_sub(REGIONAL_INDICATOR_A).filter(|index| *index < 26)?;
        char::from_u32(u32::from('A') + index)
    };
    emoji.chars().map(letter).collect::<Option<String>>().filter(|code| code.len() == 2)
}

fn group_name(group: emojis::Group) -> &'static str {
    match group {
        emojis::Group::SmileysAndEmotion => "Smileys & Emotion",
        emojis::Group::PeopleAndBody => "People & Body",
        emojis::Group::AnimalsAndNature => "Animals & Nature",
        emojis::Group::FoodAndDrink => "Food & Drink",
        emojis::Group::TravelAndPlaces => "Travel & Places",
        emojis::Group::Activities => "Activities",
        emojis::Group::Objects => "Objects",
        emojis::Group::Symbols => "Symbols",
        emojis::Group::Flags => "Flags",
    }
}
