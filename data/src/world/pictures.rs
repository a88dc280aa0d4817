//! The pictures of the embedded world: Twemoji's graphics with their names and groups in Unicode.
//!
//! # Source   crate `twemoji-assets` (graphics CC-BY 4.0, Twitter, Inc and other contributors), crate `emojis` (names)

use std::collections::{HashMap, HashSet};

use image::{RgbImage, RgbaImage};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use twemoji_assets::png::PngTwemojiAsset;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use super::countries::{Country, countries};
use super::questions::Split;
use super::{of_split, view_augmentation};
use crate::DataError;

/// Asks for the coloured form of a character; it is part of some names and not of others.
const VARIATION_SELECTOR: char = '\u{fe0f}';

/// What turns a letter into half of a flag.
const REGIONAL_INDICATOR_A: u32 = 0x1f1e6;

/// A picture and what is known of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// Its place among all pictures, which does not change with the seed.
    pub number: usize,
    /// Its name in file names: `flag-of-switzerland`.
    pub slug: String,
    /// Its name in questions: `flag of Switzerland`.
    pub name: String,
    /// The emoji itself.
    pub emoji: &'static str,
    /// Unicode's group: `Animals & Nature`.
    pub group: &'static str,
    /// What chat programs call it, without the colons.
    pub keywords: Vec<&'static str>,
    /// The emoji version that brought it: `0.6`.
    pub since: String,
    /// The country whose flag it is.
    pub country: Option<Country>,
    /// The file, as it is published.
    pub png: &'static [u8],
    /// The pixels, 72 by 72.
    pub image: RgbaImage,
}

impl Picture {
    /// View `number` of a split of a seed, of `size` pixels each way: those of the splits differ.
    ///
    /// # Errors   [`DataError::OutOfRange`]
    pub fn view(
        &self,
        seed_and_split: (u64, Split),
        number: usize,
        size: u32,
    ) -> Result<RgbImage, DataError> {
        let mut rng = of_split(seed_and_split, &self.slug, number);
        view_augmentation(size).apply(&self.image, &mut rng)
    }
}

/// All pictures, in Unicode's order.
///
/// Skin tones are left out, and so are pictures that look exactly like another one: Norway's flag
/// flies over Svalbard too.
///
/// # Errors   [`DataError::Picture`]
pub fn pictures() -> Result<Vec<Picture>, DataError> {
    let countries = countries();
    let emojis: Vec<_> =
        emojis::iter().filter_map(|emoji| Some((emoji, asset(emoji.as_str())?))).collect();
    let described = emojis.par_iter().map(|(emoji, asset)| {
        let name = spoken(emoji.name());
        let png: &'static [u8] = asset.data.0;
        let image = image::load_from_memory_with_format(png, image::ImageFormat::Png)
            .map_err(|error| error.to_string())
            .map_err(|reason| DataError::Picture { path: emoji.name().into(), reason })?;
        let version = emoji.emoji_version();
        let code = country_code(emoji.as_str());
        Ok(Picture {
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
    let mut pictures: Vec<Picture> = described.collect::<Result<_, DataError>>()?;
    let looks: Vec<_> = pictures.par_iter().map(|picture| look(&picture.image)).collect();
    // Of several that look the same, the one that has the shortest name: France, not Clipperton Island.
    let mut kept: HashMap<[u8; 32], &Picture> = HashMap::new();
    for (look, picture) in looks.iter().zip(&pictures) {
        let of_look = kept.entry(*look).or_insert(picture);
        if picture.name.len() < of_look.name.len() {
            *of_look = picture;
        }
    }
    let slugs: HashSet<String> = kept.into_values().map(|picture| picture.slug.clone()).collect();
    pictures.retain(|picture| slugs.contains(&picture.slug));
    for (number, picture) in pictures.iter_mut().enumerate() {
        picture.number = number;
    }
    Ok(pictures)
}

/// What is seen of a picture: colours as strong as they cover.
fn look(image: &RgbaImage) -> [u8; 32] {
    let seen = image.pixels().flat_map(|pixel| {
        let [red, green, blue, alpha] = pixel.0.map(u16::from);
        [red * alpha / 255, green * alpha / 255, blue * alpha / 255, alpha].map(|value| value as u8)
    });
    Sha256::digest(seen.collect::<Vec<u8>>()).into()
}

/// The graphic of an emoji, written with variation selectors or without.
fn asset(emoji: &str) -> Option<&'static PngTwemojiAsset> {
    let bare: String = emoji.chars().filter(|c| *c != VARIATION_SELECTOR).collect();
    [emoji, &bare].into_iter().find_map(PngTwemojiAsset::from_emoji).or_else(|| {
        let selected = format!("{bare}{VARIATION_SELECTOR}");
        PngTwemojiAsset::from_emoji(&selected)
    })
}

/// Unicode's name without colons, as one says it.
fn spoken(name: &str) -> String {
    let name = name.replace('#', "hash sign").replace('*', "asterisk");
    match name.strip_prefix("flag: ") {
        Some(of) => format!("flag of {of}"),
        None => name.replace(": ", " with "),
    }
}

/// A name in letters and digits of ASCII with hyphens between.
fn slug(name: &str) -> String {
    let plain = name.nfkd().filter(|c| !is_combining_mark(*c)).collect::<String>().to_lowercase();
    let words = plain.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

/// The country code that a flag of two regional indicators spells.
fn country_code(emoji: &str) -> Option<String> {
    let letter = |c: char| {
        let place = u32::from(c).checked_sub(REGIONAL_INDICATOR_A).filter(|place| *place < 26)?;
        char::from_u32(u32::from('A') + place)
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
