//! The inner loops of the matrix product, chosen for the processor.

#[cfg(target_arch = "x86_64")]
mod x86;

/// The most rows of a tile of any instruction set.
pub(super) const MAX_ROWS: usize = 12;
/// The most columns of a panel of any instruction set.
pub(super) const MAX_WIDTH: usize = 32;

/// Adds a product to a tile of `R` rows and one panel of columns: `out = init + a b`.
pub(super) type Tile = unsafe fn(TileArguments);

/// The arguments of a [`Tile`]. All pointers are valid for the elements that the sizes name.
#[derive(Clone, Copy)]
pub(super) struct TileArguments {
    /// The number of columns of `a` and rows of `b`.
    pub depth: usize,
    /// Element `(i, p)` is at `i * a_strides.0 + p * a_strides.1`.
    pub a: *const f32,
    pub a_strides: (usize, usize),
    /// `[depth, WIDTH]`, packed.
    pub b: *const f32,
    /// Row `i` starts at `i * init_stride`.
    pub init: *const f32,
    pub init_stride: usize,
    /// Row `i` starts at `i * out_stride`. May be the same memory as `init`.
    pub out: *mut f32,
    pub out_stride: usize,
}

/// The functions for one instruction set.
pub(super) struct Kernels {
    /// The columns of a panel.
    pub width: usize,
    /// The tile of `i + 1` rows, for each number of rows.
    pub tiles: &'static [Tile],
    /// Transposes a square block: column `j` of the `width` rows at `from`, `stride` elements
    /// apart, becomes row `j` at `to`.
    pub transpose: unsafe fn(from: *const f32, stride: usize, to: *mut f32),
}

/// Returns the functions for this processor; `None` if it has neither AVX-512 nor AVX2 with FMA.
pub(super) fn kernels() -> Option<&'static Kernels> {
    all_kernels().next()
}

/// Returns the sets of functions that this processor can run, the fastest first.
pub(super) fn all_kernels() -> impl Iterator<Item = &'static Kernels> {
    #[cfg(target_arch = "x86_64")]
    let kernels = x86::kernels();
    #[cfg(not(target_arch = "x86_64"))]
    let kernels = [];
    kernels.into_iter().flatten()
}
