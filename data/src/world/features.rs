//! Keys and values without a model, so that a memory of the world can be built, searched and read
//! on a new machine. They are a fixed function of words and pixels; nothing is trained.
//!
//! A key consists of the text's hashed words and a coarse layout of the image. Each part has unit
//! length and is multiplied by a weight. Entries without an image have zeros in the image part. A
//! value has two tokens: one for the words of the answers, one for the words of the whole text.

use std::collections::HashMap;

use image::RgbImage;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::World;
use super::facts::Fact;
use super::questions::Question;
use crate::DataError;

/// Width of the text part of a key.
const TEXT_WIDTH: usize = 256;

/// Rows and columns of the image layout.
const GRID: u32 = 8;

/// Values per cell of the layout: three colour channels and coverage.
const CHANNELS: usize = 4;

/// Width of the image part of a key.
const LAYOUT_WIDTH: usize = (GRID * GRID) as usize * CHANNELS;

/// Width of a key.
pub const KEY_WIDTH: usize = TEXT_WIDTH + LAYOUT_WIDTH;

/// Tokens per value.
pub const VALUE_TOKENS: usize = 2;

/// Width of a value token.
pub const VALUE_WIDTH: usize = 128;

/// The weight of the text part in the key of an entry with an image; the image part has the
/// remaining length.
const ENTRY_TEXT_WEIGHT: f32 = 0.4;

/// The weight of the text part in a query. Entries without an image match only by text. This weight
/// exceeds [`ENTRY_TEXT_WEIGHT`], so that such entries are found beside entries that show the
/// image.
const QUERY_TEXT_WEIGHT: f32 = 0.75;

/// The number of positions that a word occupies in a hashed text.
const POSITIONS_PER_WORD: usize = 8;

/// The colour distance at which a pixel fully counts as foreground, in units of 0 to 255.
const BACKGROUND_DISTANCE: f32 = 32.0;

/// Converts the facts of a world to keys and values, and its questions to queries.
pub struct HashFeatures<'a> {
    world: &'a World,
    /// The inverse document frequency: the logarithm of 1 / (fraction of entries with the word).
    idf: HashMap<String, f32>,
}

impl<'a> HashFeatures<'a> {
    /// Prepares features for the entries of a world: computes word weights from its facts.
    pub fn new(world: &'a World) -> Self {
        let mut counts: HashMap<String, u32> = HashMap::new();
        for fact in &world.facts {
            let mut words = words(&fact.entry.text());
            words.sort_unstable();
            words.dedup();
            for word in words {
                *counts.entry(word).or_default() += 1;
            }
        }
        let num_facts = world.facts.len() as f32;
        let idf = counts.into_iter().map(|(word, count)| (word, (num_facts / count as f32).ln()));
        Self { world, idf: idf.collect() }
    }

    /// Returns the keys of facts.
    ///
    /// # Shapes   `[facts, KEY_WIDTH]`, each of unit length
    /// # Errors
    /// as [`World::view`]
    pub fn fact_keys(&self, facts: &[Fact]) -> Result<Vec<f32>, DataError> {
        let view = |fact: &Fact| fact.entry.image().map(|_| (fact.image, 0));
        let layouts = self.layouts(facts.iter().filter_map(view).collect())?;
        let key = |fact: &Fact| {
            let layout = view(fact).and_then(|view| layouts.get(&view));
            self.key(&fact.entry.text(), ENTRY_TEXT_WEIGHT, layout)
        };
        Ok(facts.par_iter().flat_map_iter(key).collect())
    }

    /// Returns the queries of questions; every question has an image.
    ///
    /// # Shapes   `[questions, KEY_WIDTH]`, each of unit length
    /// # Errors
    /// as [`World::view`]
    pub fn queries(&self, questions: &[Question]) -> Result<Vec<f32>, DataError> {
        let view = |question: &Question| {
            Some((self.world.image_index(&question.image_slug)?, question.view))
        };
        let layouts = self.layouts(questions.iter().filter_map(view).collect())?;
        let query = |question: &Question| {
            let layout = view(question).and_then(|view| layouts.get(&view));
            self.key(&question.text, QUERY_TEXT_WEIGHT, layout)
        };
        Ok(questions.par_iter().flat_map_iter(query).collect())
    }

    /// Returns the values of facts: one token for the answers, one for the whole text.
    ///
    /// # Shapes   `[facts, VALUE_TOKENS, VALUE_WIDTH]`
    pub fn values(&self, facts: &[Fact]) -> Vec<f32> {
        let value = |fact: &Fact| {
            let text = self.hash_text(&fact.entry.text(), VALUE_WIDTH);
            [self.answer_token(&fact.answers.join(" ")), text].concat()
        };
        facts.par_iter().flat_map_iter(value).collect()
    }

    /// Returns the first value token of an entry with this answer. To read an answer from a value,
    /// take the answer with the nearest token.
    pub fn answer_token(&self, answer: &str) -> Vec<f32> {
        self.hash_text(answer, VALUE_WIDTH)
    }

    /// Returns the layout of each view, given as an image index and a view number.
    fn layouts(&self, mut views: Vec<(usize, u32)>) -> Result<Layouts, DataError> {
        views.sort_unstable();
        views.dedup();
        let layout = |view: (usize, u32)| Ok((view, layout(&self.world.view(view.0, view.1)?)));
        views.into_par_iter().map(layout).collect()
    }

    /// Returns a key or query of unit length; without a layout, only the text part is nonzero.
    fn key(&self, text: &str, text_weight: f32, layout: Option<&Vec<f32>>) -> Vec<f32> {
        let mut key = self.hash_text(text, TEXT_WIDTH);
        key.resize(KEY_WIDTH, 0.0);
        if let Some(layout) = layout {
            let (text_part, image_part) = key.split_at_mut(TEXT_WIDTH);
            text_part.iter_mut().for_each(|value| *value *= text_weight);
            let image_weight = (1.0 - text_weight * text_weight).sqrt();
            for (value, cell) in image_part.iter_mut().zip(layout) {
                *value = image_weight * cell;
            }
        }
        to_unit_length(&mut key);
        key
    }

    /// Hashes the words of a text. The hash of a word gives its positions and signs, and the
    /// inverse document frequency gives its weight.
    fn hash_text(&self, text: &str, width: usize) -> Vec<f32> {
        let mut sum = vec![0.0; width];
        for word in words(text) {
            // Skip words that are in no entry.
            let Some(idf) = self.idf.get(&word) else { continue };
            let hash = Sha256::digest(word.as_bytes());
            for bytes in hash.chunks_exact(2).take(POSITIONS_PER_WORD) {
                let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
                let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
                sum[usize::from(bits >> 1) % width] += sign * idf;
            }
        }
        to_unit_length(&mut sum);
        sum
    }
}

/// The layout of each view, by image index and view number.
type Layouts = HashMap<(usize, u32), Vec<f32>>;

/// Splits a text into words of letters and digits, in lower case.
fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// Returns the layout of the foreground: each channel minus its mean, and the whole of unit length.
/// Colours are relative to mid-grey.
fn layout(view: &RgbImage) -> Vec<f32> {
    let background = border_colour(view);
    let (width, height) = view.dimensions();
    let mut cells = vec![0.0; LAYOUT_WIDTH];
    for (x, y, pixel) in view.enumerate_pixels() {
        let colour = pixel.0.map(f32::from);
        let square = |(value, background): (f32, f32)| (value - background).powi(2);
        let distance = colour.into_iter().zip(background).map(square).sum::<f32>().sqrt();
        let foreground = (distance / BACKGROUND_DISTANCE).min(1.0);
        let [red, green, blue] = colour.map(|value| foreground * (value / 127.5 - 1.0));
        let cell = (y * GRID / height * GRID + x * GRID / width) as usize;
        let channels = &mut cells[cell * CHANNELS..(cell + 1) * CHANNELS];
        for (sum, value) in channels.iter_mut().zip([red, green, blue, foreground]) {
            *sum += value;
        }
    }
    for channel in 0..CHANNELS {
        let channel_values = cells.iter().skip(channel).step_by(CHANNELS);
        let mean = channel_values.sum::<f32>() / (GRID * GRID) as f32;
        cells.iter_mut().skip(channel).step_by(CHANNELS).for_each(|value| *value -= mean);
    }
    to_unit_length(&mut cells);
    cells
}

/// Returns the median of each channel along the border.
fn border_colour(view: &RgbImage) -> [f32; 3] {
    let (right, lower) = (view.width() - 1, view.height() - 1);
    let is_at_border = |x: u32, y: u32| x == 0 || y == 0 || x == right || y == lower;
    [0, 1, 2].map(|channel| {
        let border = view.enumerate_pixels().filter(|(x, y, _)| is_at_border(*x, *y));
        let mut values: Vec<u8> = border.map(|(_, _, pixel)| pixel.0[channel]).collect();
        values.sort_unstable();
        f32::from(values[values.len() / 2])
    })
}

/// Normalises to unit length; zeros stay zeros.
fn to_unit_length(vector: &mut [f32]) {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value /= length);
    }
}
