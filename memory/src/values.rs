//! The values of entries, as segments store them.
//!
//! Each number type of values has its file here, with a [`Codec`]. All other modules see a stored
//! value as bytes: its numbers, and its scales.
//!
//! | module | number type |
//! |---|---|
//! | `f16` | 16-bit floating point |
//! | `int8` | 8-bit integers with a scale per token |
//! | `int4` | 4-bit integers with a scale per 32 components |
//! | `columns` | the columns of a segment with values of any number type |

pub(crate) mod columns;
mod f16;
mod int4;
mod int8;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use crate::error::MemoryError;

/// The format of stored values: `[tokens, width]` numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueFormat {
    /// The number of tokens of a value.
    pub tokens: usize,
    /// The width of a token.
    pub width: usize,
    /// The number type.
    #[serde(rename = "number")]
    pub dtype: ValueDtype,
}

/// The number type of values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueDtype {
    /// 16-bit floating point.
    #[default]
    F16,
    /// 8-bit integers with a scale per token.
    Int8,
    /// 4-bit integers with a scale per 32 components of a token.
    Int4,
}

impl ValueDtype {
    /// All number types.
    pub const ALL: [Self; 3] = [Self::F16, Self::Int8, Self::Int4];

    pub(crate) fn codec(self) -> &'static dyn Codec {
        match self {
            Self::F16 => &f16::F16,
            Self::Int8 => &int8::Int8,
            Self::Int4 => &int4::Int4,
        }
    }

    /// The name in manifests and options, such as `int8`.
    pub fn name(self) -> &'static str {
        self.codec().name()
    }

    /// A short description, for help texts.
    pub fn description(self) -> &'static str {
        self.codec().description()
    }
}

impl fmt::Display for ValueDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ValueDtype {
    type Err = MemoryError;

    /// Returns the number type with this name.
    ///
    /// # Errors
    /// [`MemoryError::InvalidOption`]
    fn from_str(name: &str) -> Result<Self, MemoryError> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
            let expected = "f16, int8 or int4";
            MemoryError::InvalidOption { option: "a value type", found: name.to_owned(), expected }
        })
    }
}

impl ValueFormat {
    /// The size of a stored value, in bytes.
    pub fn bytes(&self) -> usize {
        let (numbers, scales) = self.row_bytes();
        numbers.saturating_add(scales)
    }

    /// The sizes of a value's numbers and of its scales, in bytes.
    fn row_bytes(&self) -> (usize, usize) {
        let bytes = |(dtype, shape): (Dtype, Vec<usize>)| {
            let numbers = shape.iter().fold(1usize, |numbers, size| numbers.saturating_mul(*size));
            numbers.saturating_mul(dtype.bitsize() / 8)
        };
        (bytes(self.numbers(1)), self.scales(1).map_or(0, bytes))
    }

    /// The type and the shape of the numbers of `rows` values.
    fn numbers(&self, rows: usize) -> (Dtype, Vec<usize>) {
        let (dtype, shape) = self.dtype.codec().numbers(self.width);
        (dtype, [&[rows, self.tokens], shape.as_slice()].concat())
    }

    /// The type and the shape of the scales of `rows` values; `None` without scales.
    fn scales(&self, rows: usize) -> Option<(Dtype, Vec<usize>)> {
        let (dtype, shape) = self.dtype.codec().scales(self.width)?;
        Some((dtype, [&[rows, self.tokens], shape.as_slice()].concat()))
    }
}

impl fmt::Display for ValueFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} {}", self.tokens, self.width, self.dtype)
    }
}

/// Stores the components of values as numbers, with scales if the number type needs them. All bytes
/// are little endian.
pub(crate) trait Codec: Sync {
    fn name(&self) -> &'static str;

    fn description(&self) -> &'static str;

    /// The largest magnitude of a component.
    fn max_abs(&self) -> f32 {
        f32::MAX
    }

    /// The reason why a value with a larger component is refused.
    fn refusal(&self) -> &'static str {
        "contains NaN or infinity"
    }

    /// The type and the shape of the numbers of a token of this width.
    fn numbers(&self, width: usize) -> (Dtype, Vec<usize>);

    /// The type and the shape of the scales of a token of this width; `None` without scales.
    fn scales(&self, width: usize) -> Option<(Dtype, Vec<usize>)>;

    /// Appends the numbers and scales of tokens of this width. The components must be finite and at
    /// most [`Codec::max_abs`].
    fn encode(&self, width: usize, components: &[f32], numbers: &mut Vec<u8>, scales: &mut Vec<u8>);

    /// Writes the components of tokens of this width to `out`.
    fn decode(&self, width: usize, numbers: &[u8], scales: &[u8], out: &mut [f32]);
}

/// A stored value: in the mapped file, or in main memory.
#[derive(Debug, Clone)]
pub struct StoredValue<'a> {
    /// `None` for a memory without values.
    format: Option<ValueFormat>,
    numbers: Cow<'a, [u8]>,
    scales: Cow<'a, [u8]>,
}

impl<'a> StoredValue<'a> {
    /// The value with these little-endian bytes: its numbers, then its scales.
    ///
    /// # Errors
    /// [`MemoryError::Count`] for a value of another size.
    pub fn from_bytes(format: ValueFormat, bytes: Cow<'a, [u8]>) -> Result<Self, MemoryError> {
        MemoryError::check_count("bytes of a value", format.bytes(), bytes.len())?;
        let (at, _) = format.row_bytes();
        let (numbers, scales) = match bytes {
            Cow::Borrowed(bytes) => {
                let (numbers, scales) = bytes.split_at(at);
                (Cow::Borrowed(numbers), Cow::Borrowed(scales))
            }
            Cow::Owned(mut bytes) => {
                let scales = bytes.split_off(at);
                (Cow::Owned(bytes), Cow::Owned(scales))
            }
        };
        Ok(Self { format: Some(format), numbers, scales })
    }

    /// The value of an entry in a memory without values.
    pub(crate) fn none() -> Self {
        Self { format: None, numbers: Cow::Borrowed(&[]), scales: Cow::Borrowed(&[]) }
    }

    /// Writes the components of the value, `tokens * width`, to `out`.
    pub fn read(&self, out: &mut [f32]) {
        if let Some(ValueFormat { width, dtype, .. }) = self.format {
            dtype.codec().decode(width, &self.numbers, &self.scales, out);
        }
    }

    /// Returns a copy in main memory.
    pub(crate) fn copied(self) -> StoredValue<'static> {
        StoredValue {
            format: self.format,
            numbers: Cow::Owned(self.numbers.into_owned()),
            scales: Cow::Owned(self.scales.into_owned()),
        }
    }

    /// Appends the bytes of the value: its numbers, then its scales.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.numbers);
        bytes.extend_from_slice(&self.scales);
    }

    /// The size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.numbers.len() + self.scales.len()
    }
}

/// Returns the largest magnitude of some components.
fn largest(components: &[f32]) -> f32 {
    components.iter().fold(0.0, |largest, component| largest.max(component.abs()))
}
