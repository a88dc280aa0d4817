//! The matrix product shared by all fused kernels.

use gemm::{Parallelism, gemm};

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

/// Computes `out = alpha * a b + beta * out`, where `out` is row-major with rows `out_stride`
/// apart.
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
    let threads = rayon::current_num_threads();
    let parallel = threads > 1 && a.rows * b.columns * a.columns > MAX_SEQUENTIAL_MULTIPLICATIONS;
    let parallelism = if parallel { Parallelism::Rayon(threads) } else { Parallelism::None };
    product((alpha, a, b), beta, (out, out_stride), parallelism);
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
    product((1.0, a, b), beta, (out, out_stride), Parallelism::None);
}

fn product(
    (alpha, a, b): (f32, Matrix<'_>, Matrix<'_>),
    beta: f32,
    (out, out_stride): (&mut [f32], usize),
    parallelism: Parallelism,
) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert_eq!(k, b.rows, "matmul: the inner dimensions differ");
    let out_extent = if m == 0 || n == 0 { 0 } else { (m - 1) * out_stride + n };
    assert!(
        a.extent() <= a.data.len() && b.extent() <= b.data.len() && out_extent <= out.len(),
        "matmul: a matrix extends beyond its slice"
    );
    // SAFETY: every element reached by the strides is inside its slice (asserted above). `out` is
    // borrowed mutably, so it overlaps neither input.
    unsafe {
        gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
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
            matmul(0.5, left, right, 2.0, &mut out, n + 1);
            for i in 0..m {
                for j in 0..n {
                    let dot: f32 = (0..k).map(|l| a[i * (k + 3) + l] * b[j * (k + 2) + l]).sum();
                    let expected = 0.5 * dot + 2.0 * start[i * (n + 1) + j];
                    let actual = out[i * (n + 1) + j];
                    assert!(
                        (actual - expected).abs() < 1e-4,
                        "{m}x{n}x{k} at {i},{j}: {actual} {expected}"
                    );
                }
            }
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
