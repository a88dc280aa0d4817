//! Reads GIF files whose first frame covers only a part of the canvas as Pillow does.
//!
//! Reference: `GifImagePlugin.py` of Pillow 13. A frame that extends beyond the canvas enlarges it.
//! The canvas outside of the frame has the frame's transparent colour, or else the colour 0; the
//! background colour of the file is ignored. Without a palette, colours are grey levels.

use std::ops::Range;

/// The offsets of the canvas size, of the flags and of the palette.
const SIZE: usize = 6;
const FLAGS: usize = 10;
const PALETTE: usize = 13;

/// A GIF with a palette, and with a canvas that contains its first frame.
pub(super) struct Gif {
    /// The content of the file.
    pub bytes: Vec<u8>,
    columns: Range<usize>,
    rows: Range<usize>,
    /// The colour of the canvas outside of the frame.
    colour: [u8; 3],
}

impl Gif {
    /// Reads the blocks up to the first frame. Returns `None` for a damaged file and for another
    /// format.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let palette_at = |flags: u8, at: usize| {
            let length = if flags & 0x80 == 0 { 0 } else { 6 << (flags & 7) };
            bytes.get(at..at + length)
        };
        if !bytes.starts_with(b"GIF8") {
            return None;
        }
        let mut palette = palette_at(*bytes.get(FLAGS)?, PALETTE)?;
        let (mut block, mut colour) = (PALETTE + palette.len(), 0);
        while let [b'!', label, data @ ..] = bytes.get(block..)? {
            if let (0xf9, [_, flags, _, _, transparent, ..]) = (label, data)
                && flags & 1 == 1
            {
                colour = *transparent;
            }
            block += 2;
            while let length @ 1.. = usize::from(*bytes.get(block)?) {
                block += 1 + length;
            }
            block += 1;
        }
        let frame = bytes.get(block..).filter(|frame| frame.starts_with(b","))?;
        let own_palette = palette_at(*frame.get(9)?, block + 10)?;
        palette = if own_palette.is_empty() { palette } else { own_palette };
        let mut with_canvas = bytes.to_vec();
        let mut extent = |axis: usize| {
            let start = number(block + 1 + axis)?;
            let end = start.checked_add(number(block + 5 + axis)?)?;
            let size = number(SIZE + axis)?.max(end).to_le_bytes();
            with_canvas.splice(SIZE + axis..SIZE + axis + 2, size);
            Some(usize::from(start)..usize::from(end))
        };
        let (columns, rows) = (extent(0)?, extent(2)?);
        let colour = if palette.is_empty() {
            with_canvas[FLAGS] |= 0x87;
            with_canvas.splice(PALETTE..PALETTE, (0..=u8::MAX).flat_map(|grey| [grey; 3]));
            [colour; 3]
        } else {
            palette.as_chunks().0.get(usize::from(colour)).copied().unwrap_or_default()
        };
        Some(Self { bytes: with_canvas, columns, rows, colour })
    }

    /// Colours the pixels `[height, width, 3]` outside of the frame.
    pub fn fill_canvas(&self, width: u32, pixels: &mut [u8]) {
        for (y, row) in pixels.chunks_exact_mut(3 * width as usize).enumerate() {
            for (x, pixel) in row.as_chunks_mut().0.iter_mut().enumerate() {
                if !(self.rows.contains(&y) && self.columns.contains(&x)) {
                    *pixel = self.colour;
                }
            }
        }
    }
}
