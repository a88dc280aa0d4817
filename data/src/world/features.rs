//! Keys and values without a model, so that a memory of the world can be built, searched and read
//! on a fresh machine: a fixed function of words and pixels, in which nothing is learnt.
//!
//! A key is the text's hashed words beside a small layout of the picture, each of unit length,
//! times a weight. Entries without a picture have zeros there. A value is two tokens: the words of
//! the answers, and those of the whole text.

use std::collections::HashMap;

use image::RgbImage;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::World;
use super::knowledge::Entry;
use super::questions::Question;
use crate::DataError;

/// Numbers of a key that the text fills.
const TEXT_WIDTH: usize = 256;

/// Rows and columns of the picture's layout.
const GRID: u32 = 8;

/// Numbers of each of the layout's cells: three colours and whether there is anything.
const CHANNELS: usize = 4;

/// Numbers of a key that the picture fills.
const PICTURE_WIDTH: usize = (GRID * GRID) as usize * CHANNELS;

/// Numbers of a key.
pub const KEY_WIDTH: usize = TEXT_WIDTH + PICTURE_WIDTH;

/// Tokens of a value.
pub const VALUE_TOKENS: usize = 2;

/// Numbers of a value's token.
pub const VALUE_WIDTH: usize = 128;

/// The text's part of an entry's key, where it shows a picture; the picture has the rest of its length.
const ENTRY_TEXT: f32 = 0.4;

/// The text's part of a query. More than an entry's, so that an entry without a picture, of which
/// only the text can match, is found beside those that show the picture.
const QUERY_TEXT: f32 = 0.75;

/// Places that a word fills in a hashed text.
const PLACES_A_WORD: usize = 8;

/// How far a colour may be from the background's and still be the background, of 255.
const BACKGROUND_DISTANCE: f32 = 32.0;

/// Turns entries and questions of a world into keys, and entries into values.
pub struct Featuriser<'a> {
    world: &'a World,
    /// The logarithm of one over the share of entries that have the word.
    rarity: HashMap<String, f32>,
}

impl<'a> Featuriser<'a> {
    /// Counts the words of a world's entries.
    pub fn new(world: &'a World) -> Self {
        let mut counts: HashMap<String, u32> = HashMap::new();
        for entry in &world.entries {
            let mut words = words(&entry.text());
            words.sort_unstable();
            words.dedup();
            for word in words {
                *counts.entry(word).or_default() += 1;
            }
        }
        let all = world.entries.len() as f32;
        let rarity = counts.into_iter().map(|(word, count)| (word, (all / count as f32).ln()));
        Self { world, rarity: rarity.collect() }
    }

    /// The keys of entries.
    ///
    /// # Shapes   `[entries, KEY_WIDTH]`, each of unit length
    /// # Errors   those of [`World::view`]
    pub fn entry_keys(&self, entries: &[Entry]) -> Result<Vec<f32>, DataError> {
        let shown = entries.iter().filter(|entry| entry.shows_picture());
        let layouts = self.layouts(shown.map(|entry| (entry.picture, 0)).collect())?;
        let key = |entry: &Entry| {
            let shown = entry.shows_picture().then_some((entry.picture, 0));
            self.key(&entry.text(), ENTRY_TEXT, shown.and_then(|view| layouts.get(&view)))
        };
        Ok(entries.par_iter().flat_map_iter(key).collect())
    }

    /// The queries of questions, which all have a picture.
    ///
    /// # Shapes   `[questions, KEY_WIDTH]`, each of unit length
    /// # Errors   those of [`World::view`]
    pub fn queries(&self, questions: &[Question]) -> Result<Vec<f32>, DataError> {
        let view =
            |question: &Question| Some((self.world.place(&question.picture)?, question.view));
        let layouts = self.layouts(questions.iter().filter_map(view).collect())?;
        let query = |question: &Question| {
            let layout = view(question).and_then(|view| layouts.get(&view));
            self.key(&question.text, QUERY_TEXT, layout)
        };
        Ok(questions.par_iter().flat_map_iter(query).collect())
    }

    /// The values of entries: what the answers say, and what the whole text says.
    ///
    /// # Shapes   `[entries, VALUE_TOKENS, VALUE_WIDTH]`
    pub fn values(&self, entries: &[Entry]) -> Vec<f32> {
        let value = |entry: &Entry| {
            [self.answer_token(&entry.answers.join(" ")), self.text(&entry.text(), VALUE_WIDTH)]
                .concat()
        };
        entries.par_iter().flat_map_iter(value).collect()
    }

    /// The first token of a value that has an answer: a reader takes the answer whose token is nearest.
    pub fn answer_token(&self, answer: &str) -> Vec<f32> {
        self.text(answer, VALUE_WIDTH)
    }

    fn layouts(&self, mut views: Vec<(usize, u32)>) -> Result<Layouts, DataError> {
        views.sort_unstable();
        views.dedup();
        let layout = |view: (usize, u32)| Ok((view, layout(&self.world.view(view.0, view.1)?)));
        views.into_par_iter().map(layout).collect()
    }

    fn key(&self, text: &str, text_weight: f32, layout: Option<&Vec<f32>>) -> Vec<f32> {
        let mut key = self.text(text, TEXT_WIDTH);
        key.resize(KEY_WIDTH, 0.0);
        if let Some(layout) = layout {
            let (of_text, of_picture) = key.split_at_mut(TEXT_WIDTH);
            of_text.iter_mut().for_each(|value| *value *= text_weight);
            let picture_weight = (1.0 - text_weight * text_weight).sqrt();
            for (value, of_layout) in of_picture.iter_mut().zip(layout) {
                *value = picture_weight * of_layout;
            }
        }
        to_unit_length(&mut key);
        key
    }

    /// The words of a text, each at places and with signs that its hash gives, and as strong as it is rare.
    fn text(&self, text: &str, width: usize) -> Vec<f32> {
        let mut sum = vec![0.0; width];
        for word in words(text) {
            // A word of no entry can find none.
            let Some(rarity) = self.rarity.get(&word) else { continue };
            let hash = Sha256::digest(word.as_bytes());
            for bytes in hash.chunks_exact(2).take(PLACES_A_WORD) {
                let place = u16::from_le_bytes([bytes[0], bytes[1]]);
                let sign = if place & 1 == 0 { 1.0 } else { -1.0 };
                sum[usize::from(place >> 1) % width] += sign * rarity;
            }
        }
        to_unit_length(&mut sum);
        sum
    }
}

/// The layout of each view, by the picture's place and the view's number.
type Layouts = HashMap<(usize, u32), Vec<f32>>;

/// Letters and digits in lower case.
fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// What stands where before the background, less its mean, of unit length: colours from mid-grey.
fn layout(view: &RgbImage) -> Vec<f32> {
    let background = border_colour(view);
    let (width, height) = view.dimensions();
    let mut cells = vec![0.0; PICTURE_WIDTH];
    for (x, y, pixel) in view.enumerate_pixels() {
        let colour = pixel.0.map(f32::from);
        let square = |(value, behind): (f32, f32)| (value - behind).powi(2);
        let distance = colour.into_iter().zip(background).map(square).sum::<f32>().sqrt();
        let there = (distance / BACKGROUND_DISTANCE).min(1.0);
        let [red, green, blue] = colour.map(|value| there * (value / 127.5 - 1.0));
        let cell = (y * GRID / height * GRID + x * GRID / width) as usize;
        let channels = &mut cells[cell * CHANNELS..(cell + 1) * CHANNELS];
        for (sum, value) in channels.iter_mut().zip([red, green, blue, there]) {
            *sum += value;
        }
    }
    for channel in 0..CHANNELS {
        let of_channel = cells.iter().skip(channel).step_by(CHANNELS);
        let mean = of_channel.sum::<f32>() / (GRID * GRID) as f32;
        cells.iter_mut().skip(channel).step_by(CHANNELS).for_each(|value| *value -= mean);
    }
    to_unit_length(&mut cells);
    cells
}

/// The middle of each channel along the border.
fn border_colour(view: &RgbImage) -> [f32; 3] {
    let (right, lower) = (view.width() - 1, view.height() - 1);
    let at_border = |x: u32, y: u32| x == 0 || y == 0 || x == right || y == lower;
    [0, 1, 2].map(|channel| {
        let border = view.enumerate_pixels().filter(|(x, y, _)| at_border(*x, *y));
        let mut values: Vec<u8> = border.map(|(_, _, pixel)| pixel.0[channel]).collect();
        values.sort_unstable();
        f32::from(values[values.len() / 2])
    })
}

/// Leaves zeros what they are.
fn to_unit_length(numbers: &mut [f32]) {
    let length = numbers.iter().map(|value| value * value).sum::<f32>().sqrt();
    if length > 0.0 {
        numbers.iter_mut().for_each(|value| *value /= length);
    }
}
