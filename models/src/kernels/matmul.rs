//! The matrix product shared by all fused kernels.
//!
//! On x86 processors with FMA, products of many rows run in [`blocks`]. There, an element is one
//! chain of fused additions, so its bits depend neither on the threads nor on the processor. Other
//! products run in the crate `gemm`.

mod blocks;
mod tiles;

use std::ops::Range;

use gemm::{Parallelism, gemm};

use blocks::{Part, Products, Shared, Start};

/// A view of a matrix: element `(i, j)` is at index `i * row_stride + j * column_stride`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub data: &'a [f32],
    pub rows: usize,
    pub columns: usize,
    pub row_stride: usize,
    pub column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Creates a row-major matrix.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// Creates a row-major matrix with rows `row_stride` apart.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        Self { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// Returns the transpose, without a copy.
    pub fn t(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    /// Returns the length of the shortest slice that holds all elements.
    fn extent(&self) -> usize {
        match (self.rows, self.columns) {
            (0, _) | (_, 0) => 0,
            (m, n) => (m - 1) * self.row_stride + (n - 1) * self.column_stride + 1,
        }
    }
}

/// Products with at most this many multiplications run on the calling thread.
const MAX_SEQUENTIAL_MULTIPLICATIONS: usize = 1 << 20;

/// Products with fewer rows are not worth a packed copy of the right matrix.
const MIN_ROWS: usize = 16;
/// Products with fewer columns fill too little of a panel.
const MIN_COLUMNS: usize = 16;

/// Computes `out = alpha * a b + beta * out`, where `beta` is 0 or 1, and `out` is row-major with
/// rows `out_stride` apart.
///
/// If `beta` is 0, `out` is not read. Work is divided over rows and columns, never over the summed
/// dimension, so the result is the same for any number of threads.
///
/// # Panics
/// If a matrix extends beyond its slice, or the dimensions do not match.
pub(crate) fn matmul(
    alpha: f32,
    a: Matrix<'_>,
    b: Matrix<'_>,
    beta: f32,
    out: &mut [f32],
    out_stride: usize,
) {
    product((alpha, a, b), beta, (out, out_stride), is_parallel(a.rows, b.columns, a.columns));
}

/// Runs [`matmul`] on the calling thread, for products that already run in parallel.
///
/// # Panics
/// The same as for [`matmul`].
pub(crate) fn matmul_on_this_thread(
    a: Matrix<'_>,
    b: Matrix<'_>,
    beta: f32,
    out: &mut [f32],
    out_stride: usize,
) {
    product((1.0, a, b), beta, (out, out_stride), false);
}

/// A right matrix of [`products`].
#[derive(Clone, Copy)]
pub(crate) struct Factor<'a> {
    pub matrix: Matrix<'a>,
    /// `[columns]`; added to each row of the product.
    pub bias: Option<&'a [f32]>,
}

/// Returns the products of `a` with several matrices side by side, each plus its bias:
/// `[rows, Σ columns]`.
///
/// # Panics
/// If a matrix extends beyond its slice, or the dimensions do not match.
pub(crate) fn products(a: Matrix<'_>, factors: &[Factor<'_>]) -> Vec<f32> {
    let width: usize = factors.iter().map(|factor| factor.matrix.columns).sum();
    let mut out = Vec::with_capacity(a.rows * width);
    write_products((a, factors), &mut out, None);
    out
}

/// Returns the product of `a` with a matrix plus its bias, `[rows, columns]`, and the values that
/// `f` computes from its elements.
///
/// # Panics
/// The same as for [`products`].
pub(crate) fn product_and_values(
    a: Matrix<'_>,
    factor: Factor<'_>,
    f: impl Fn(&[f32], &mut [f32]) + Sync,
) -> (Vec<f32>, Vec<f32>) {
    let count = a.rows * factor.matrix.columns;
    let mut out: Vec<f32> = Vec::with_capacity(count);
    let mut values: Vec<f32> = Vec::with_capacity(count);
    let (from, to) = (Shared(out.as_mut_ptr().cast_const()), Shared(values.as_mut_ptr()));
    let finish = |range: Range<usize>| {
        // SAFETY: the elements of a range are final and inside both vectors, and ranges do not
        // overlap.
        unsafe {
            let from = std::slice::from_raw_parts(from.get().add(range.start), range.len());
            let to = to.get().add(range.start);
            to.write_bytes(0, range.len());
            f(from, std::slice::from_raw_parts_mut(to, range.len()));
        }
    };
    write_products((a, &[factor]), &mut out, Some(&finish));
    // SAFETY: the ranges cover all elements.
    unsafe { values.set_len(count) };
    (out, values)
}

/// Writes [`products`] to an empty vector that has the capacity. Calls `finish` with ranges of
/// elements that are final; together they cover all.
fn write_products(
    (a, factors): (Matrix<'_>, &[Factor<'_>]),
    out: &mut Vec<f32>,
    finish: Option<&(dyn Fn(Range<usize>) + Sync)>,
) {
    let (mut parts, mut column) = (Vec::new(), 0);
    for Factor { matrix, bias } in factors {
        check(a, *matrix);
        let fits = bias.is_none_or(|bias| bias.len() == matrix.columns);
        assert!(fits, "matmul: a bias does not fit");
        parts.push(Part { b: *matrix, start: bias.map_or(Start::Zeros, Start::Row), column });
        column += matrix.columns;
    }
    let (width, count) = (column, a.rows * column);
    assert!(out.is_empty() && out.capacity() >= count);
    if let Some(kernels) = tiles::kernels()
        && is_worth_packing(a, width)
    {
        let parallel = is_parallel(a.rows, width, a.columns);
        let (pointer, out_stride) = (out.as_mut_ptr(), width);
        Products { alpha: 1.0, a, parts: &parts, out: pointer, out_stride, finish, kernels }
            .run(parallel);
        // SAFETY: the parts cover all columns of each row, and `run` writes every element.
        unsafe { out.set_len(count) };
        return;
    }
    for _ in 0..a.rows {
        for Factor { matrix, bias } in factors {
            match bias {
                Some(bias) => out.extend_from_slice(bias),
                None => out.resize(out.len() + matrix.columns, 0.0),
            }
        }
    }
    for Part { b, column, .. } in parts {
        matmul(1.0, a, b, 1.0, &mut out[column..], width);
    }
    if let Some(finish) = finish {
        finish(0..count);
    }
}

/// Whether a product is large enough for several threads.
fn is_parallel(m: usize, n: usize, k: usize) -> bool {
    rayon::current_num_threads() > 1 && m * n * k > MAX_SEQUENTIAL_MULTIPLICATIONS
}

/// Whether a product of `a` with `columns` columns is large enough for a packed copy of the right
/// matrix.
fn is_worth_packing(a: Matrix<'_>, columns: usize) -> bool {
    a.rows >= MIN_ROWS && columns >= MIN_COLUMNS && a.columns > 0
}

/// Checks that the matrices are inside their slices and fit.
fn check(a: Matrix<'_>, b: Matrix<'_>) {
    assert_eq!(a.columns, b.rows, "matmul: the inner dimensions differ");
    assert!(
        a.extent() <= a.data.len() && b.extent() <= b.data.len(),
        "matmul: a matrix extends beyond its slice"
    );
}

fn product(
    (alpha, a, b): (f32, Matrix<'_>, Matrix<'_>),
    beta: f32,
    (out, out_stride): (&mut [f32], usize),
    parallel: bool,
) {
    check(a, b);
    debug_assert!(beta == 0.0 || beta == 1.0, "matmul: beta is {beta}");
    let (m, n, k) = (a.rows, b.columns, a.columns);
    let out_extent = if m == 0 || n == 0 { 0 } else { (m - 1) * out_stride + n };
    assert!(out_extent <= out.len(), "matmul: the output extends beyond its slice");
    let out = out.as_mut_ptr();
    if let Some(kernels) = tiles::kernels()
        && is_worth_packing(a, n)
    {
        let start = if beta == 0.0 { Start::Zeros } else { Start::Output };
        let parts = [Part { b, start, column: 0 }];
        Products { alpha, a, parts: &parts, out, out_stride, finish: None, kernels }.run(parallel);
        return;
    }
    let threads = rayon::current_num_threads();
    let parallelism = if parallel { Parallelism::Rayon(threads) } else { Parallelism::None };
    // SAFETY: every element reached by the strides is inside its slice (asserted above). `out` is
    // borrowed mutably, so it overlaps neither input.
    unsafe {
        gemm(
            m,
            n,
            k,
            out,
            1,
            out_stride as isize,
            beta != 0.0,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            beta,
            alpha,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_values(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    #[test]
    fn products_with_strides_and_transposes_equal_a_triple_loop() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (33, 17, 65), (128, 96, 40)] {
            let (a, b) = (random_values(m * (k + 3), 1), random_values(n * (k + 2), 2));
            let start = random_values(m * (n + 1), 3);
            let mut out = start.clone();
            let left = Matrix::strided(&a, m, k, k + 3);
            let right = Matrix::strided(&b, n, k, k + 2).t();
            matmul(0.5, left, right, 1.0, &mut out, n + 1);
            for i in 0..m {
                for j in 0..n {
                    let dot: f32 = (0..k).map(|l| a[i * (k + 3) + l] * b[j * (k + 2) + l]).sum();
                    let expected = 0.5 * dot + start[i * (n + 1) + j];
                    let actual = out[i * (n + 1) + j];
                    assert!(
                        (actual - expected).abs() < 1e-4,
                        "{m}x{n}x{k} at {i},{j}: {actual} {expected}"
                    );
                }
            }
        }
    }

    /// The products of the same matrices with each set of kernels that this processor has.
    fn with_each_kernel(
        a: Matrix<'_>,
        parts: &[Part<'_>],
        (start, stride): (&[f32], usize),
    ) -> Vec<Vec<f32>> {
        let run = |kernels| {
            let mut out = start.to_vec();
            let (pointer, finish) = (out.as_mut_ptr(), None);
            let products = Products {
                alpha: 0.5,
                a,
                parts,
                out: pointer,
                out_stride: stride,
                finish,
                kernels,
            };
            products.run(true);
            out
        };
        tiles::all_kernels().map(run).collect()
    }

    #[test]
    fn all_instruction_sets_compute_the_same_bits() {
        // Narrow panels, rows after the last tile, more depth than is packed at once.
        for (m, widths, k) in
            [(17, vec![5, 40], 19), (50, vec![64, 1, 31], 400), (20, vec![33], 2100)]
        {
            let width: usize = widths.iter().sum();
            let (a, bias) = (random_values(m * k, 1), random_values(width, 2));
            let weights: Vec<_> =
                widths.iter().map(|width| random_values(width * k, *width as u32)).collect();
            let start = random_values(m * width, 3);
            let (mut parts, mut column) = (Vec::new(), 0);
            for (index, (width, weights)) in widths.iter().zip(&weights).enumerate() {
                // The first part is added to the output, the others to a bias.
                let bias = &bias[column..column + width];
                let start = if index == 0 { Start::Output } else { Start::Row(bias) };
                parts.push(Part { b: Matrix::new(weights, *width, k).t(), start, column });
                column += width;
            }
            let results = with_each_kernel(Matrix::new(&a, m, k), &parts, (&start, width));
            for part in &parts {
                for (i, j) in (0..m).flat_map(|i| (0..part.b.columns).map(move |j| (i, j))) {
                    let product: f64 = (0..k)
                        .map(|p| f64::from(a[i * k + p]) * f64::from(part.b.data[j * k + p]))
                        .sum();
                    let index = i * width + part.column + j;
                    let added = match part.start {
                        Start::Row(row) => row[j],
                        _ => start[index],
                    };
                    let expected = f64::from(added) + 0.5 * product;
                    for result in &results {
                        assert!((f64::from(result[index]) - expected).abs() < 1e-4, "{i},{j}");
                    }
                }
            }
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }

    #[test]
    fn products_with_biases_equal_single_products() {
        // Few rows are computed in another way than many.
        for rows in [3, 40] {
            let (a, k) = (random_values(rows * 24, 1), 24);
            let (b, c) = (random_values(20 * k, 2), random_values(7 * k, 3));
            let bias = random_values(20, 4);
            let x = Matrix::new(&a, rows, k);
            let (b, c) = (Matrix::new(&b, 20, k).t(), Matrix::new(&c, 7, k).t());
            let factor = Factor { matrix: b, bias: Some(&bias) };
            let both = products(x, &[factor, Factor { matrix: c, bias: None }]);
            let (sums, doubled) = product_and_values(x, factor, |from, to| {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = 2.0 * from);
            });
            for (i, row) in both.chunks(27).enumerate() {
                assert_eq!(row[..20], sums[i * 20..][..20]);
                let dot = |m: Matrix<'_>, j: usize| -> f32 {
                    (0..k).map(|p| a[i * k + p] * m.data[j * k + p]).sum()
                };
                assert!((0..20).all(|j| (row[j] - bias[j] - dot(b, j)).abs() < 1e-4));
                assert!((0..7).all(|j| (row[20 + j] - dot(c, j)).abs() < 1e-4));
            }
            assert!(sums.iter().zip(&doubled).all(|(sum, doubled)| *doubled == 2.0 * sum));
        }
    }

    #[test]
    fn the_product_is_bit_identical_for_any_number_of_threads() {
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut bits = Vec::new();
                for (m, n, k) in
                    [(200, 384, 384), (1024, 384, 1536), (384, 1536, 333), (64, 8, 4096)]
                {
                    let (a, b) = (random_values(m * k, 4), random_values(n * k, 5));
                    for transposed in [false, true] {
                        let mut out = vec![0.0; m * n];
                        let left = if transposed {
                            Matrix::new(&a, k, m).t()
                        } else {
                            Matrix::new(&a, m, k)
                        };
                        matmul(1.0, left, Matrix::new(&b, n, k).t(), 0.0, &mut out, n);
                        bits.extend(out.iter().map(|v| v.to_bits()));
                    }
                }
                bits
            })
        };
        let sequential = run(1);
        for threads in [2, 3, 4] {
            assert!(sequential == run(threads), "{threads} threads");
        }
    }
}
