//! Sums of products of codes, compiled for several processors and selected at run time. All kernels
//! compute the same sums, so the results of a search do not depend on the processor.

use std::sync::OnceLock;

use crate::codes::{PANEL_KEYS, STEP_BYTES, STEP_COMPONENTS};

/// The number of panels in a tile.
pub(super) const TILE_PANELS: usize = 4;
/// The largest number of queries in a group.
pub(super) const MAX_GROUP: usize = 6;

/// The sums of products of a group of queries with a tile of keys, `[queries, panels, keys]`.
pub(super) type Sums = [[[i32; PANEL_KEYS]; TILE_PANELS]; MAX_GROUP];

/// The environment variable that selects a kernel: `avx512`, `avx2` or `portable`. A kernel that
/// this processor does not support, or another value, is ignored.
const VARIABLE: &str = "ENGRAM_MEMORY_KERNEL";

/// An implementation of the products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// AVX-512 with VNNI.
    Avx512,
    /// AVX2. Sums of 8 products must fit in an i16, see [`Kernel::max_group_sum`].
    Avx2,
    /// Any processor.
    Portable,
}

impl Kernel {
    /// All kernels, fastest first.
    pub(crate) const ALL: [Self; 3] = [Self::Avx512, Self::Avx2, Self::Portable];

    /// The name in the environment variable.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        }
    }

    /// Whether this processor has the kernel's instructions.
    pub(crate) fn is_supported(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
            Self::Portable => true,
        }
    }

    /// The kernel that the environment variable selects, or else the fastest.
    pub(crate) fn selected() -> Self {
        static SELECTED: OnceLock<Kernel> = OnceLock::new();
        *SELECTED.get_or_init(|| {
            let name = std::env::var(VARIABLE).unwrap_or_default();
            let mut supported = Self::ALL.into_iter().filter(|kernel| kernel.is_supported());
            let named = supported.clone().find(|kernel| kernel.name() == name);
            named.or_else(|| supported.next()).unwrap_or(Self::Portable)
        })
    }

    /// The number of queries in a group.
    pub(super) fn group(self) -> usize {
        match self {
            Self::Avx512 => MAX_GROUP,
            Self::Avx2 | Self::Portable => 3,
        }
    }

    /// The largest sum of the positive multiples of a query, and likewise of its absolute negative
    /// multiples, in the components of a [`sum_group`]; `None` if there is no limit.
    pub(super) fn max_group_sum(self) -> Option<f64> {
        (self == Self::Avx2).then_some(f64::from(i16::MAX / i16::from(u8::MAX)))
    }

    /// Computes the products of a tile of panels with a group of queries. `words` are the words of
    /// the queries, `[steps, queries]`.
    pub(super) fn sums(
        self,
        panels: [&[u8]; TILE_PANELS],
        words: &[u32],
        queries: usize,
        sums: &mut Sums,
    ) {
        let steps = words.len() / queries;
        assert!(panels.iter().all(|panel| panel.len() >= steps * STEP_BYTES));
        assert!(words.len() == steps * queries && queries <= self.group());
        assert!(self.is_supported());
        match self {
            // SAFETY: the assertions above show that the processor has the instructions, and that
            // the slices have the steps.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { x86::sums_avx512(panels, words, queries, sums) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { x86::sums_avx2(panels, words, queries, sums) },
            _ => sums_portable(panels, words, queries, sums),
        }
    }
}

/// The number of steps whose products the AVX2 kernel adds in 16 bits.
const NARROW_STEPS: usize = 4;

/// Returns the number of the 16-bit sum to which a component belongs. The AVX2 kernel adds the
/// products of two components of a step, over [`NARROW_STEPS`] steps.
pub(super) fn sum_group(component: usize) -> usize {
    let (step, position) = (component / STEP_COMPONENTS, component % STEP_COMPONENTS);
    step / NARROW_STEPS * 2 + position / 2
}

fn sums_portable(panels: [&[u8]; TILE_PANELS], words: &[u32], queries: usize, sums: &mut Sums) {
    for (query, sums) in sums.iter_mut().enumerate().take(queries) {
        for (panel, sums) in panels.iter().zip(sums) {
            *sums = [0; PANEL_KEYS];
            let steps = panel.as_chunks::<STEP_BYTES>().0.iter();
            for (step, words) in steps.zip(words.chunks_exact(queries)) {
                let query = words[query].to_le_bytes().map(|byte| i32::from(byte.cast_signed()));
                for (sum, key) in sums.iter_mut().zip(step.as_chunks::<STEP_COMPONENTS>().0) {
                    for component in 0..STEP_COMPONENTS {
                        *sum += i32::from(key[component]) * query[component];
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{NARROW_STEPS, PANEL_KEYS, STEP_BYTES, Sums, TILE_PANELS};

    /// # Safety
    /// The processor must have the instructions, and each panel a step for each of the words
    /// `[steps, queries]`.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn sums_avx512(
        panels: [&[u8]; TILE_PANELS],
        words: &[u32],
        queries: usize,
        sums: &mut Sums,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            match queries {
                1 => tile_avx512::<1>(panels, words, sums),
                2 => tile_avx512::<2>(panels, words, sums),
                3 => tile_avx512::<3>(panels, words, sums),
                4 => tile_avx512::<4>(panels, words, sums),
                5 => tile_avx512::<5>(panels, words, sums),
                _ => tile_avx512::<6>(panels, words, sums),
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn tile_avx512<const QUERIES: usize>(
        panels: [&[u8]; TILE_PANELS],
        words: &[u32],
        out: &mut Sums,
    ) {
        let mut sums = [[_mm512_setzero_si512(); TILE_PANELS]; QUERIES];
        let panels = panels.map(<[u8]>::as_ptr);
        for (step, words) in words.as_chunks::<QUERIES>().0.iter().enumerate() {
            // SAFETY: each panel has this step, and a step has 64 bytes.
            let keys = panels
                .map(|panel| unsafe { _mm512_loadu_si512(panel.add(step * STEP_BYTES).cast()) });
            for (sums, word) in sums.iter_mut().zip(words) {
                let query = _mm512_set1_epi32(word.cast_signed());
                for (sum, keys) in sums.iter_mut().zip(keys) {
                    *sum = _mm512_dpbusd_epi32(*sum, keys, query);
                }
            }
        }
        for (sums, out) in sums.iter().zip(out) {
            for (sum, out) in sums.iter().zip(out) {
                // SAFETY: `out` has 16 numbers.
                unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), *sum) };
            }
        }
    }

    /// # Safety
    /// As for [`sums_avx512`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn sums_avx2(
        panels: [&[u8]; TILE_PANELS],
        words: &[u32],
        queries: usize,
        sums: &mut Sums,
    ) {
        for (number, panel) in panels.into_iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe {
                match queries {
                    1 => panel_avx2::<1>(panel, words, number, sums),
                    2 => panel_avx2::<2>(panel, words, number, sums),
                    _ => panel_avx2::<3>(panel, words, number, sums),
                }
            }
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn panel_avx2<const QUERIES: usize>(
        panel: &[u8],
        words: &[u32],
        number: usize,
        out: &mut Sums,
    ) {
        /// The number of registers with a word of each key.
        const REGISTERS: usize = 2;
        let ones = _mm256_set1_epi16(1);
        let mut sums = [[_mm256_setzero_si256(); REGISTERS]; QUERIES];
        let mut add_products = |first: usize, words: &[[u32; QUERIES]]| {
            let mut narrow = [[_mm256_setzero_si256(); REGISTERS]; QUERIES];
            for (step, words) in words.iter().enumerate() {
                // SAFETY: the panel has this step, and a step has 64 bytes.
                let keys: [__m256i; REGISTERS] = unsafe {
                    let step = panel.as_ptr().add((first + step) * STEP_BYTES);
                    [_mm256_loadu_si256(step.cast()), _mm256_loadu_si256(step.add(32).cast())]
                };
                for (narrow, word) in narrow.iter_mut().zip(words) {
                    let query = _mm256_set1_epi32(word.cast_signed());
                    for (sum, keys) in narrow.iter_mut().zip(keys) {
                        let products = _mm256_maddubs_epi16(keys, query);
                        *sum = if step == 0 { products } else { _mm256_add_epi16(*sum, products) };
                    }
                }
            }
            for (sums, narrow) in sums.iter_mut().zip(narrow) {
                for (sum, narrow) in sums.iter_mut().zip(narrow) {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(narrow, ones));
                }
            }
        };
        let (blocks, rest) = words.as_chunks::<QUERIES>().0.as_chunks::<NARROW_STEPS>();
        for (block, words) in blocks.iter().enumerate() {
            // The constant number of steps lets the compiler unroll the loop.
            add_products(block * NARROW_STEPS, words);
        }
        add_products(blocks.len() * NARROW_STEPS, rest);
        for (sums, out) in sums.iter().zip(out) {
            for (sum, out) in sums.iter().zip(out[number].chunks_exact_mut(PANEL_KEYS / 2)) {
                // SAFETY: `out` has 8 numbers.
                unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), *sum) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kernels_compute_the_same_sums() {
        for steps in [1, 2, 3, 4, 5, 8, 33, 96] {
            let byte = |i: usize| (i * 167 + i / 7 * 31) as u8;
            let panels: Vec<Vec<u8>> = (0..TILE_PANELS)
                .map(|panel| (0..steps * STEP_BYTES).map(|i| byte(i + 1000 * panel)).collect())
                .collect();
            let panels: [&[u8]; TILE_PANELS] = std::array::from_fn(|i| panels[i].as_slice());
            for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_supported()) {
                for queries in 1..=kernel.group() {
                    // Multiples from -8 to 7, so that sums of eight products fit in an i16.
                    let multiple = |i: usize| (byte(i) % 16) as i8 - 8;
                    let word = |i: usize| {
                        u32::from_le_bytes(std::array::from_fn(|j| {
                            multiple(i * STEP_COMPONENTS + j).cast_unsigned()
                        }))
                    };
                    let words: Vec<u32> = (0..steps * queries).map(word).collect();
                    let mut sums = [[[7; PANEL_KEYS]; TILE_PANELS]; MAX_GROUP];
                    kernel.sums(panels, &words, queries, &mut sums);
                    for (query, sums) in sums.iter().enumerate().take(queries) {
                        for (panel, sums) in panels.iter().zip(sums) {
                            for (key, sum) in sums.iter().enumerate() {
                                let products = (0..steps * STEP_COMPONENTS).map(|i| {
                                    let (step, j) = (i / STEP_COMPONENTS, i % STEP_COMPONENTS);
                                    let word = step * queries + query;
                                    i32::from(multiple(word * STEP_COMPONENTS + j))
                                        * i32::from(
                                            panel[step * STEP_BYTES + key * STEP_COMPONENTS + j],
                                        )
                                });
                                assert_eq!(*sum, products.sum::<i32>(), "{kernel:?}, {steps}");
                            }
                        }
                    }
                }
            }
        }
    }
}
