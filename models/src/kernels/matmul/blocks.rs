//! The matrix product in blocks that fit the caches: packing, and the work of each thread.

use std::cell::Cell;
use std::ops::Range;

use rayon::prelude::*;

use super::Matrix;
use super::tiles::{Kernels, MAX_ROWS, MAX_WIDTH, Tile, TileArguments};

/// The most elements of the packed right matrix.
const PACKED_ELEMENTS: usize = 1 << 20;
/// The most rows of the packed right matrix.
const PACKED_DEPTH: usize = 2048;
/// The rows of a panel that stay in the L1 cache.
const DEPTH: usize = 384;
/// The rows of a block of the output.
const BLOCK_ROWS: usize = 48;
/// Blocks for each thread, for an even division of work.
const BLOCKS_PER_THREAD: usize = 8;
/// The elements that one task packs.
const ELEMENTS_OF_A_TASK: usize = 1 << 15;

thread_local! {
    static PACKED_PANELS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    static PACKED_ROWS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// A right matrix whose product goes to its own columns of the output.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub b: Matrix<'a>,
    /// The values to which the product is added.
    pub start: Start<'a>,
    /// The first column in the output.
    pub column: usize,
}

/// The values to which a product is added.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    Zeros,
    /// The same row, `[columns]`, for all rows of the output.
    Row(&'a [f32]),
    /// The values in the output.
    Output,
}

/// The products of `a` with several matrices, `out = start + alpha a b`.
pub(super) struct Products<'a> {
    pub alpha: f32,
    /// Has at least one row and one column.
    pub a: Matrix<'a>,
    pub parts: &'a [Part<'a>],
    /// Valid for writes of all parts' columns of each row, and for reads where the start is the
    /// output. No other reference to these elements exists.
    pub out: *mut f32,
    pub out_stride: usize,
    /// Called with ranges of the output's elements when their values are final, while they are in
    /// the cache.
    pub finish: Option<&'a (dyn Fn(Range<usize>) + Sync)>,
    pub kernels: &'static Kernels,
}

/// Consecutive columns of a part.
struct Panel<'a> {
    part: &'a Part<'a>,
    first: usize,
    columns: usize,
}

/// A range of the summed dimension: columns of `a`, and rows of the parts' matrices.
#[derive(Clone, Copy)]
struct Depth {
    first: usize,
    count: usize,
}

/// The division of the output into blocks of rows and panels. No block is empty.
#[derive(Clone, Copy)]
struct Blocks {
    rows: usize,
    panels: usize,
    /// The rows and panels of a block.
    block: [usize; 2],
}

impl Blocks {
    /// Divides `rows` rows and `panels` panels, at least one of each.
    fn new(rows: usize, panels: usize, tile_rows: usize, threads: usize) -> Self {
        let wanted = threads * BLOCKS_PER_THREAD;
        let block_rows = rows.div_ceil(wanted).next_multiple_of(tile_rows).min(BLOCK_ROWS);
        let column_blocks = wanted.div_ceil(rows.div_ceil(block_rows)).min(panels);
        Self { rows, panels, block: [block_rows, panels.div_ceil(column_blocks)] }
    }

    fn row_blocks(&self) -> usize {
        self.rows.div_ceil(self.block[0])
    }

    fn count(&self) -> usize {
        self.row_blocks() * self.panels.div_ceil(self.block[1])
    }

    /// The rows and panels of a block.
    fn ranges(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let range =
            |block: usize, size: usize, end: usize| block * size..end.min((block + 1) * size);
        let (row, panel) = (index % self.row_blocks(), index / self.row_blocks());
        (range(row, self.block[0], self.rows), range(panel, self.block[1], self.panels))
    }
}

/// A pointer that threads share. Each writes to its own elements.
#[derive(Clone, Copy)]
pub(super) struct Shared<T>(pub T);
// SAFETY: the elements that threads write do not overlap.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    pub fn get(&self) -> T {
        self.0
    }
}

impl<'a> Products<'a> {
    /// Computes the products, on all threads if `parallel`.
    pub fn run(&self, parallel: bool) {
        let width = self.kernels.width;
        let panels: Vec<Panel<'_>> =
            self.parts.iter().flat_map(|part| panels(part, width)).collect();
        let depth = self.a.columns.min(PACKED_DEPTH);
        let group = (PACKED_ELEMENTS / (width * depth)).max(1);
        let mut packed = PACKED_PANELS.take();
        packed.reserve(group.min(panels.len()) * width * (depth + 1));
        for panels in panels.chunks(group) {
            for first in (0..self.a.columns).step_by(depth) {
                let depth = Depth { first, count: depth.min(self.a.columns - first) };
                self.run_group(panels, depth, packed.as_mut_ptr(), parallel);
            }
        }
        PACKED_PANELS.set(packed);
    }

    /// Adds the products of some panels and rows of the parts. `packed` holds for each panel the
    /// start, then its rows.
    fn run_group(&self, panels: &[Panel<'a>], depth: Depth, packed: *mut f32, parallel: bool) {
        let size = self.kernels.width * (depth.count + 1);
        let packed = Shared(packed);
        let shared = Shared(self);
        // SAFETY: each panel has its own elements of the buffer.
        let pack = |(index, panel): (usize, &Panel<'a>)| unsafe {
            shared.get().pack_panel(panel, depth, packed.get().add(index * size));
        };
        let threads = if parallel { rayon::current_num_threads() } else { 1 };
        let tile_rows = self.kernels.tiles.len();
        let blocks = Blocks::new(self.a.rows, panels.len(), tile_rows, threads);
        let block = |index: usize| {
            let (rows, columns) = blocks.ranges(index);
            // SAFETY: the panels are packed, and each block has its own rows and columns.
            unsafe {
                let packed = packed.get().add(columns.start * size);
                shared.get().run_block(&panels[columns], depth, packed, rows.start, rows.len());
            }
        };
        if parallel {
            let min_length = (ELEMENTS_OF_A_TASK / size).max(1);
            panels.par_iter().enumerate().with_min_len(min_length).for_each(pack);
            (0..blocks.count()).into_par_iter().for_each(block);
        } else {
            panels.iter().enumerate().for_each(pack);
            (0..blocks.count()).for_each(block);
        }
    }

    /// Packs a panel: its start as the first row, then its rows times `alpha`.
    ///
    /// # Safety
    /// `to` is valid for writes of `depth.count + 1` rows.
    unsafe fn pack_panel(&self, panel: &Panel<'_>, depth: Depth, to: *mut f32) {
        let (b, width) = (panel.part.b, self.kernels.width);
        // SAFETY: the panel's columns and the depth's rows are inside the matrix.
        unsafe {
            let start = std::slice::from_raw_parts_mut(to, width);
            start.fill(0.0);
            if let Start::Row(row) = panel.part.start {
                start[..panel.columns].copy_from_slice(&row[panel.first..][..panel.columns]);
            }
            let to = to.add(width);
            let from =
                b.data.as_ptr().add(depth.first * b.row_stride + panel.first * b.column_stride);
            let is_full = panel.columns == width;
            let mut row = 0;
            if is_full && b.column_stride == 1 {
                for row in 0..depth.count {
                    let from = from.add(row * b.row_stride);
                    std::ptr::copy_nonoverlapping(from, to.add(row * width), width);
                }
                row = depth.count;
            } else if is_full && b.row_stride == 1 {
                while row + width <= depth.count {
                    (self.kernels.transpose)(from.add(row), b.column_stride, to.add(row * width));
                    row += width;
                }
            }
            for row in row..depth.count {
                for column in 0..width {
                    *to.add(row * width + column) = if column < panel.columns {
                        *from.add(row * b.row_stride + column * b.column_stride)
                    } else {
                        0.0
                    };
                }
            }
            if self.alpha != 1.0 {
                let values = std::slice::from_raw_parts_mut(to, width * depth.count);
                values.iter_mut().for_each(|value| *value *= self.alpha);
            }
        }
    }

    /// Adds the products of `count` rows with the packed panels.
    ///
    /// # Safety
    /// `packed` holds the panels. No other thread uses these rows and columns of the output.
    unsafe fn run_block(
        &self,
        panels: &[Panel<'_>],
        depth: Depth,
        packed: *const f32,
        first_row: usize,
        count: usize,
    ) {
        let (width, tile_rows) = (self.kernels.width, self.kernels.tiles.len());
        let size = width * (depth.count + 1);
        let mut rows = PACKED_ROWS.take();
        for first in (0..depth.count).step_by(DEPTH) {
            let part = Depth { first: depth.first + first, count: DEPTH.min(depth.count - first) };
            // SAFETY: the rows and columns are inside `a`, the panels are packed, and the tiles are
            // inside the output.
            unsafe {
                let mut a = self.a.data.as_ptr();
                a = a.add(first_row * self.a.row_stride + part.first * self.a.column_stride);
                let mut strides = (self.a.row_stride, self.a.column_stride);
                let mut tile_step = tile_rows * self.a.row_stride;
                if self.a.column_stride != 1 {
                    rows.reserve(count * part.count);
                    pack_rows(a, strides, count, part.count, tile_rows, rows.as_mut_ptr());
                    a = rows.as_ptr();
                    strides = (1, 0);
                    tile_step = tile_rows * part.count;
                }
                for (index, panel) in panels.iter().enumerate() {
                    let panel_start = packed.add(index * size);
                    let b = panel_start.add(width * (1 + first));
                    let from_output = part.first > 0 || matches!(panel.part.start, Start::Output);
                    for tile in (0..count).step_by(tile_rows) {
                        let tile_count = tile_rows.min(count - tile);
                        let out = (first_row + tile) * self.out_stride;
                        let out = self.out.add(out + panel.part.column + panel.first);
                        let (init, init_stride) = if from_output {
                            (out.cast_const(), self.out_stride)
                        } else {
                            (panel_start, 0)
                        };
                        // Packed rows of a tile are interleaved.
                        let strides = if strides.1 == 0 { (1, tile_count) } else { strides };
                        let arguments = TileArguments {
                            depth: part.count,
                            a: a.add(tile / tile_rows * tile_step),
                            a_strides: strides,
                            b,
                            init,
                            init_stride,
                            out,
                            out_stride: self.out_stride,
                        };
                        let kernel = self.kernels.tiles[tile_count - 1];
                        if panel.columns == width {
                            kernel(arguments);
                        } else {
                            run_narrow(kernel, arguments, tile_count, panel.columns);
                        }
                    }
                }
            }
        }
        PACKED_ROWS.set(rows);
        let is_final = depth.first + depth.count == self.a.columns;
        if let (Some(finish), Some(start), Some(end), true) =
            (self.finish, panels.first(), panels.last(), is_final)
        {
            let start = start.part.column + start.first;
            let end = end.part.column + end.first + end.columns;
            for row in first_row..first_row + count {
                finish(row * self.out_stride + start..row * self.out_stride + end);
            }
        }
    }
}

/// Returns the panels of a part.
fn panels<'a>(part: &'a Part<'a>, width: usize) -> impl Iterator<Item = Panel<'a>> {
    let columns = part.b.columns;
    let panel = move |first| Panel { part, first, columns: width.min(columns - first) };
    (0..columns).step_by(width).map(panel)
}

/// Copies rows so that the rows of each tile are interleaved: `[tiles, columns, rows of the tile]`.
///
/// # Safety
/// `from` is valid for the rows and columns, and `to` for as many elements.
unsafe fn pack_rows(
    from: *const f32,
    (row_stride, column_stride): (usize, usize),
    rows: usize,
    columns: usize,
    tile_rows: usize,
    mut to: *mut f32,
) {
    for first in (0..rows).step_by(tile_rows) {
        let count = tile_rows.min(rows - first);
        for column in 0..columns {
            // SAFETY: the caller's pointers are valid for these elements.
            unsafe {
                let from = from.add(first * row_stride + column * column_stride);
                match (count, row_stride) {
                    // Copies of a constant length are single instructions.
                    (6, 1) => std::ptr::copy_nonoverlapping(from, to, 6),
                    (12, 1) => std::ptr::copy_nonoverlapping(from, to, 12),
                    _ => {
                        for row in 0..count {
                            *to.add(row) = *from.add(row * row_stride);
                        }
                    }
                }
                to = to.add(count);
            }
        }
    }
}

/// Runs a tile of fewer than all columns of a panel, by way of a buffer.
///
/// # Safety
/// As for the tile, for `columns` columns.
unsafe fn run_narrow(kernel: Tile, arguments: TileArguments, rows: usize, columns: usize) {
    let mut buffer = [0.0f32; MAX_ROWS * MAX_WIDTH];
    let stride = MAX_WIDTH;
    // SAFETY: the buffer has room for the largest tile, and the caller's pointers are valid for
    // `columns` columns.
    unsafe {
        for row in 0..rows {
            let init = arguments.init.add(row * arguments.init_stride);
            std::ptr::copy_nonoverlapping(init, buffer.as_mut_ptr().add(row * stride), columns);
        }
        let pointer = buffer.as_mut_ptr();
        let (init, out) = (pointer.cast_const(), pointer);
        kernel(TileArguments { init, init_stride: stride, out, out_stride: stride, ..arguments });
        for row in 0..rows {
            let out = arguments.out.add(row * arguments.out_stride);
            std::ptr::copy_nonoverlapping(pointer.add(row * stride), out, columns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_divide_the_output_and_are_never_empty() {
        for rows in (1..400).step_by(7) {
            for panels in 1..40 {
                for (tile_rows, threads) in [(6, 1), (12, 1), (12, 2), (12, 8), (12, 64)] {
                    let blocks = Blocks::new(rows, panels, tile_rows, threads);
                    let mut covered = vec![0; rows * panels];
                    for index in 0..blocks.count() {
                        let (block_rows, block_panels) = blocks.ranges(index);
                        assert!(!block_rows.is_empty() && !block_panels.is_empty());
                        for row in block_rows {
                            let first = row * panels;
                            let columns = first + block_panels.start..first + block_panels.end;
                            covered[columns].iter_mut().for_each(|count| *count += 1);
                        }
                    }
                    assert!(covered.iter().all(|count| *count == 1), "{rows} x {panels}");
                }
            }
        }
    }
}
