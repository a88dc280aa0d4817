//! The sum of gradients over ranks has the bits of the sum on one rank. This holds in buffers (also
//! if most values are zero, so that ranks exchange only some blocks) and in tensors, as on GPUs.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use engram_models::gradients::Gradients;
use engram_models::params::{Init, ParameterBuilder, Parameters};
use engram_train::distributed::{Collective, MicroBatchSum, Ranks};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::threads::{Threads, on_ranks, on_ranks_with_gpus};

const MICRO_BATCHES: usize = 6;
/// A table of word embeddings, whose last block is not full; a small table; a large matrix without
/// zeros; a table that no micro-batch uses.
const SHAPES: [&[usize]; 4] = [&[20_001, 53], &[100, 7], &[1100, 1000], &[1 << 20]];

/// How ranks keep and send gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kept {
    /// In buffers, like those of parameters on the CPU.
    Buffers,
    /// As tensors, like those of parameters on a GPU. They go through the host's memory.
    TensorsThroughHost,
    /// As tensors that are sent as they are.
    Tensors,
}

/// Parameters with [`SHAPES`].
fn parameters() -> Parameters {
    let builder = ParameterBuilder::on_cpu(1);
    for (i, shape) in SHAPES.iter().enumerate() {
        builder.get(&i.to_string(), shape, Init::Zeros).expect("a parameter");
    }
    builder.finish().expect("parameters")
}

fn write(micro_batch: usize, gradients: &mut Gradients) {
    let mut buffers = SHAPES.map(|shape| vec![0.0; shape.iter().product()]);
    let written = fill(micro_batch, &mut buffers);
    let mut in_buffers = written;
    for (parameter, values) in buffers.into_iter().enumerate() {
        if gradients.place_on_gpu(parameter).is_some() {
            in_buffers[parameter] = false;
            if written[parameter] {
                let tensor = Tensor::from_vec(values, SHAPES[parameter], &Device::Cpu);
                gradients.set_on_gpu(parameter, tensor.expect("a gradient"));
            }
        } else if written[parameter] {
            // Buffers without a gradient keep their values.
            gradients.values_mut()[parameter] = values;
        }
    }
    gradients.set_written(&in_buffers);
}

/// Fills buffers with the gradients of a micro-batch. Returns which parameters have one.
fn fill(micro_batch: usize, buffers: &mut [Vec<f32>]) -> [bool; 4] {
    let mut rng = ChaCha8Rng::seed_from_u64(micro_batch as u64);
    let written = [micro_batch != 2, micro_batch.is_multiple_of(2), true, false];
    for (parameter, values) in buffers.iter_mut().enumerate() {
        if !written[parameter] {
            continue;
        }
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
    written
}

/// The flags of all ranks.
fn gather(collective: &Threads, flags: &[Vec<bool>]) -> Vec<Vec<Vec<bool>>> {
    let bytes = serde_json::to_vec(flags).expect("JSON");
    let all = collective.gather(bytes).expect("all ranks").into_iter();
    all.map(|bytes| serde_json::from_slice(&bytes).expect("JSON")).collect()
}

/// The bits of the sum on each rank, of the parameters that have a gradient.
fn sums(size: usize, kept: Kept) -> Vec<Vec<Option<Vec<u32>>>> {
    let each = |rank: usize, ranks: Ranks, all_written: &dyn Fn(Vec<Vec<bool>>) -> _| {
        let parameters = parameters();
        let mut gradients = match kept {
            Kept::Buffers => Gradients::new(&parameters),
            Kept::TensorsThroughHost | Kept::Tensors => Gradients::as_tensors(&parameters),
        };
        let (mut sum, mut spare) = (MicroBatchSum::new(MICRO_BATCHES), Vec::new());
        // The first ranks have one more.
        let start = |rank: usize| rank * (MICRO_BATCHES / size) + rank.min(MICRO_BATCHES % size);
        for micro_batch in start(rank)..start(rank + 1) {
            sum.make_room(&mut gradients, &mut spare);
            write(micro_batch, &mut gradients);
            sum.add(micro_batch, &mut gradients, &mut spare).expect("a sum");
        }
        let written: Vec<Vec<Vec<bool>>> = all_written(sum.written(&gradients));
        sum.reduce(&ranks, &written, &mut gradients, &mut spare).expect("a reduction");
        // The spare buffers can be used again.
        for set in &spare {
            let is_whole = |(values, shape): (&Vec<f32>, &[usize])| {
                kept != Kept::Buffers || values.len() == shape.iter().product::<usize>()
            };
            assert!(set.values().iter().zip(SHAPES).all(is_whole));
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
        (0..SHAPES.len()).map(|parameter| gradients.get(parameter).map(bits)).collect()
    };
    if size == 1 {
        return vec![each(0, Ranks::default(), &|written| vec![written])];
    }
    let on_each = |collective: Arc<Threads>| {
        let ranks = Ranks::new(collective.clone());
        each(collective.rank(), ranks, &|written| gather(&collective, &written))
    };
    match kept {
        Kept::Tensors => on_ranks_with_gpus(size, on_each),
        Kept::Buffers | Kept::TensorsThroughHost => on_ranks(size, on_each),
    }
}

#[test]
fn sums_over_ranks_have_the_bits_of_one_rank() {
    let expected = sums(1, Kept::Buffers).remove(0);
    assert!(expected[0].is_some() && expected[3].is_none());
    for kept in [Kept::Buffers, Kept::TensorsThroughHost, Kept::Tensors] {
        for size in [1, 2, 3, 4, 6] {
            for (rank, found) in sums(size, kept).into_iter().enumerate() {
                for (parameter, (expected, found)) in expected.iter().zip(&found).enumerate() {
                    let what = format!("{kept:?}, {size} ranks, rank {rank}");
                    assert!(expected == found, "{what}, parameter {parameter}");
                }
            }
        }
    }
}
