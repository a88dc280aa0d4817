//! Images as model inputs: decoded, resized, cropped and normalised.
//!
//! The reference is Pillow with the steps of `transformers`' image processors:
//! `Image.open(path).convert("RGB")`, which ignores the EXIF orientation and drops transparency,
//! and `Image.resize`. Only the first frame of an image is read.

mod gif;
mod preprocessing;
mod resample;

use std::fs;
use std::io::Cursor;
use std::path::Path;

use ::image::{
    DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, RgbaImage,
};

use engram_textfile::refuse_lfs_pointer;

use crate::DataError;
use crate::guard::guarded;
use gif::Gif;
pub use preprocessing::{Filter, Preprocessing, Resize};

/// The maximum number of pixels of an image. Above this limit, Pillow warns of a decompression
/// bomb.
pub const MAX_PIXELS: u64 = 89_478_485;
/// The maximum file size, in bytes.
const MAX_BYTES: u64 = 1 << 29;
/// The maximum memory of a decoder, in bytes.
const MAX_MEMORY: u64 = 1 << 30;
/// The maximum memory for metadata, in bytes. For example, a PNG compresses its colour profile.
const MAX_METADATA_BYTES: u64 = 1 << 26;

/// A decoded RGB image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedImage {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

impl DecodedImage {
    /// Decodes a JPEG, PNG, WebP, GIF or BMP file, whatever its extension.
    ///
    /// # Errors
    /// `Io`; `EmptyFile`; `Image` for other formats, for a truncated file and for an image without
    /// pixels; `ImageTooLarge` for more than [`MAX_PIXELS`]
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        Self::from_bytes(path, &read(path)?)
    }

    /// Like [`DecodedImage::open`], for a file in memory; error messages name `name`.
    ///
    /// # Errors
    /// as [`DecodedImage::open`]
    pub fn from_bytes(name: impl AsRef<Path>, bytes: &[u8]) -> Result<Self, DataError> {
        let name = name.as_ref();
        guarded_decode(name, || {
            let gif = Gif::read(bytes);
            let image = decode(name, gif.as_ref().map_or(bytes, |gif| &gif.bytes))?;
            let (width, height) = (image.width(), image.height());
            let mut pixels = to_rgb8(image);
            if let Some(gif) = &gif {
                gif.fill_canvas(width, &mut pixels);
            }
            Ok(Self { width, height, pixels })
        })
    }

    /// Creates an image from pixels, `[height, width, 3]` in the order red, green, blue. Returns
    /// `None` if there are no pixels, or if their number does not match the width and height.
    pub fn from_pixels(width: u32, height: u32, pixels: Vec<u8>) -> Option<Self> {
        let expected = u64::from(width) * u64::from(height) * 3;
        (expected > 0 && expected == pixels.len() as u64).then_some(Self { width, height, pixels })
    }

    /// Converts the image to an opaque `image::RgbaImage`.
    pub fn to_rgba(&self) -> RgbaImage {
        let pixels = self.pixels.chunks_exact(3);
        let opaque = pixels.flat_map(|pixel| [pixel[0], pixel[1], pixel[2], 255]).collect();
        RgbaImage::from_raw(self.width, self.height, opaque).unwrap_or_default()
    }

    /// Returns the width, in pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Returns the height, in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns the pixels `[height, width, 3]`: red, green and blue from 0 to 255.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }
}

/// Decodes an image like [`DecodedImage::open`], with its transparency.
///
/// # Errors
/// as [`DecodedImage::open`]
pub fn open_with_opacity(path: &Path) -> Result<RgbaImage, DataError> {
    let bytes = read(path)?;
    guarded_decode(path, || Ok(decode(path, &bytes)?.into_rgba8()))
}

/// Reads an image file.
fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    let io = |source| DataError::Io { path: path.into(), source };
    let image_error = |reason: String| DataError::Image { path: path.into(), reason };
    let metadata = fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        return Err(image_error("is not a file".to_owned()));
    }
    if metadata.len() > MAX_BYTES {
        return Err(image_error(format!("has {} bytes, more than {MAX_BYTES}", metadata.len())));
    }
    engram_durable::read_file(path).map_err(io)
}

/// Runs a decoder; if it panics, the image is damaged.
fn guarded_decode<T>(
    path: &Path,
    decode: impl FnOnce() -> Result<T, DataError>,
) -> Result<T, DataError> {
    guarded(decode).unwrap_or_else(|_| {
        let reason = "is damaged: the decoder panicked".to_owned();
        Err(DataError::Image { path: path.into(), reason })
    })
}

fn decode(path: &Path, bytes: &[u8]) -> Result<DynamicImage, DataError> {
    let io = |source| DataError::Io { path: path.into(), source };
    let image_error = |reason: String| DataError::Image { path: path.into(), reason };
    if bytes.is_empty() {
        return Err(DataError::EmptyFile { path: path.into() });
    }
    refuse_lfs_pointer(path, bytes)?;
    let unblended = unblended(bytes);
    let bytes = unblended.as_deref().unwrap_or(bytes);
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(io)?;
    let Some(format) = reader.format() else {
        return Err(image_error("is not a known image format".to_owned()));
    };
    // The decoder's message may have several lines.
    let decoder_error = |error: ImageError| {
        let reason = error.to_string();
        let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        image_error(format!("cannot be decoded ({reason})"))
    };
    reader.limits(memory_limit(MAX_METADATA_BYTES));
    let mut decoder = reader.into_decoder().map_err(decoder_error)?;
    let (width, height) = decoder.dimensions();
    if width == 0 || height == 0 {
        return Err(image_error(format!("has {width} x {height} pixels")));
    }
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(DataError::ImageTooLarge { path: path.into(), width, height, max: MAX_PIXELS });
    }
    // The decoder would fill missing pixels with grey.
    if format == ImageFormat::Jpeg && !jpeg_has_end(bytes) {
        return Err(image_error("is a truncated JPEG".to_owned()));
    }
    decoder.set_limits(memory_limit(MAX_MEMORY)).map_err(decoder_error)?;
    DynamicImage::from_decoder(decoder).map_err(decoder_error)
}

/// Returns the pixels as Pillow converts them: of 16 bits, it keeps the upper 8, but in grey images
/// without transparency, values above 255 become 255.
fn to_rgb8(image: DynamicImage) -> Vec<u8> {
    let is_grey = matches!(image, DynamicImage::ImageLuma16(_));
    let narrow = |value: u16| if is_grey { value.min(255) as u8 } else { (value >> 8) as u8 };
    match image {
        DynamicImage::ImageLuma16(_)
        | DynamicImage::ImageLumaA16(_)
        | DynamicImage::ImageRgb16(_)
        | DynamicImage::ImageRgba16(_) => {
            image.into_rgb16().into_raw().into_iter().map(narrow).collect()
        }
        image => image.into_rgb8().into_raw(),
    }
}

/// Returns the width and height of an image from its file header, without decoding it. Returns
/// `None` if the bytes are not an image that [`DecodedImage::open`] supports.
pub fn size(bytes: &[u8]) -> Option<(u32, u32)> {
    let gif = Gif::read(bytes);
    let bytes = gif.as_ref().map_or(bytes, |gif| &gif.bytes);
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().ok()?;
    reader.limits(memory_limit(MAX_METADATA_BYTES));
    Some(reader.into_decoder().ok()?.dimensions())
}

/// Returns an animated WebP whose first frame is copied to the canvas. The decoder would blend it
/// with the empty canvas, and so round its values. Returns `None` for other files.
fn unblended(bytes: &[u8]) -> Option<Vec<u8>> {
    const FLAGS: usize = 8 + 15;
    const DO_NOT_BLEND: u8 = 2;
    let mut chunk = if bytes.starts_with(b"RIFF") { 12 } else { return None };
    while bytes.get(chunk..)?.first_chunk()? != b"ANMF" {
        let size = u32::from_le_bytes(*bytes.get(chunk + 4..)?.first_chunk()?) as usize;
        chunk += 8 + size + size % 2;
    }
    let mut bytes = bytes.to_vec();
    *bytes.get_mut(chunk + FLAGS)? |= DO_NOT_BLEND;
    Some(bytes)
}

fn memory_limit(bytes: u64) -> Limits {
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(bytes);
    limits
}

/// Whether a JPEG has an end marker after its first scan begins. (An embedded preview, before the
/// scan, has its own end marker.)
fn jpeg_has_end(bytes: &[u8]) -> bool {
    const START_OF_SCAN: u8 = 0xda;
    let mut position = 2;
    while let Some(&[0xff, marker, high, low]) = bytes.get(position..position + 4) {
        if marker == 0xff {
            // Fill bytes between segments.
            position += 1;
            continue;
        }
        position += 2 + usize::from(u16::from_be_bytes([high, low]));
        if marker == START_OF_SCAN {
            return bytes
                .get(position..)
                .is_some_and(|scan| scan.windows(2).any(|pair| pair == [0xff, 0xd9]));
        }
    }
    false
}
