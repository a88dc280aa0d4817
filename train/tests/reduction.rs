//! The sum of gradients over ranks has the bits of the sum on one rank, also if most values are
//! zero, so that ranks exchange only some blocks.

mod threads;

use engram_models::gradients::Gradients;
use engram_models::params::{Init, ParameterBuilder};
use engram_train::distributed::{Collective, MicroBatchSum, Ranks};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use threads::{Threads, on_ranks};

const MICRO_BATCHES: usize = 6;
/// A table of word embeddings, whose last block is not full; a small table; a large matrix without
/// zeros; a table that no micro-batch uses.
const SHAPES: [&[usize]; 4] = [&[20_001, 53], &[100, 7], &[1100, 1000], &[1 << 20]];

/// Buffers for parameters with [`SHAPES`].
fn gradients() -> Gradients {
    let builder = ParameterBuilder::on_cpu(1);
    for (i, shape) in SHAPES.iter().enumerate() {
        builder.get(&i.to_string(), shape, Init::Zeros).expect("a parameter");
    }
    Gradients::new(&builder.finish().expect("parameters"))
}

/// Writes the gradients of a micro-batch. Buffers without a gradient keep what they had.
fn write(micro_batch: usize, gradients: &mut Gradients) {
    let mut rng = ChaCha8Rng::seed_from_u64(micro_batch as u64);
    let written = [micro_batch != 2, micro_batch.is_multiple_of(2), true, false];
    for (parameter, values) in gradients.values_mut().iter_mut().enumerate() {
        if !written[parameter] {
            continue;
        }
        values.fill(0.0);
        match parameter {
            0 | 1 => {
                let width = SHAPES[parameter][1];
                let rows = values.len() / width;
                for _ in 0..50 {
                    let row = rng.random_range(0..rows) * width;
                    values[row..row + width].fill_with(|| rng.random_range(-1.0..1.0));
                }
                // The last row, a negative zero, and values that cancel each other.
                *values.last_mut().expect("a value") = 0.1 * micro_batch as f32;
                values[width] = -0.0;
                values[width + 64] = if micro_batch.is_multiple_of(2) { 1.0 } else { -1.0 };
            }
            _ => values.fill_with(|| rng.random_range(-1.0..1.0)),
        }
    }
    gradients.set_written(&written);
}

/// The flags of all ranks.
fn gather(collective: &Threads, flags: &[Vec<bool>]) -> Vec<Vec<Vec<bool>>> {
    let bytes = serde_json::to_vec(flags).expect("JSON");
    let all = collective.gather(bytes).expect("all ranks").into_iter();
    all.map(|bytes| serde_json::from_slice(&bytes).expect("JSON")).collect()
}

/// The bits of the sum on each rank, of the parameters that have a gradient.
fn sums(size: usize) -> Vec<Vec<Option<Vec<u32>>>> {
    let each = |rank: usize, ranks: Ranks, all_written: &dyn Fn(Vec<Vec<bool>>) -> _| {
        let mut gradients = gradients();
        let (mut sum, mut spare) = (MicroBatchSum::new(MICRO_BATCHES), Vec::new());
        let share = MICRO_BATCHES / size;
        for micro_batch in rank * share..(rank + 1) * share {
            sum.make_room(&mut gradients, &mut spare);
            write(micro_batch, &mut gradients);
            sum.add(micro_batch, &mut gradients, &mut spare).expect("a sum");
        }
        let written: Vec<Vec<Vec<bool>>> = all_written(sum.written(&gradients));
        sum.reduce(&ranks, &written, &mut gradients, &mut spare).expect("a reduction");
        // The spare buffers can be used again.
        for set in &spare {
            assert!(
                set.values()
                    .iter()
                    .zip(SHAPES)
                    .all(|(values, shape)| { values.len() == shape.iter().product::<usize>() })
            );
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
        (0..SHAPES.len()).map(|parameter| gradients.get(parameter).map(bits)).collect()
    };
    if size == 1 {
        return vec![each(0, Ranks::default(), &|written| vec![written])];
    }
    on_ranks(size, |collective| {
        let ranks = Ranks::new(collective.clone());
        each(collective.rank(), ranks, &|written| gather(&collective, &written))
    })
}

#[test]
fn sums_over_ranks_have_the_bits_of_one_rank() {
    let expected = sums(1).remove(0);
    assert!(expected[0].is_some() && expected[3].is_none());
    for size in [2, 3, 6] {
        for (rank, found) in sums(size).into_iter().enumerate() {
            for (parameter, (expected, found)) in expected.iter().zip(&found).enumerate() {
                assert!(expected == found, "{size} ranks, rank {rank}, parameter {parameter}");
            }
        }
    }
}
