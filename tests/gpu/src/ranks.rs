//! Ranks with a GPU each: tensors and sums of gradients between them, and a small training.
//! `mpirun` starts them.

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use candle_core::{Device, Tensor};
use engram_models::compute::{Compute, to_host};
use engram_models::gradients::Gradients;
use engram_models::params::{Init, ParameterBuilder, Parameters};
use engram_train::distributed::{BUCKET, Collective, MicroBatchSum, Ranks};
use engram_train::recipe::{Recipe, RecipeOptions};
use engram_train::studies::ALL;
use engram_train::{RunOptions, StudyError, TrainError, registry};
use engram_train_mpi::Mpi;

/// The shapes of the parameters: more values than two buckets have.
const SHAPES: [&[usize]; 4] = [&[30_522, 384], &[1_001, 1_000], &[384], &[3, 5, 7]];
/// The number of measured sums.
const STEPS: usize = 10;
/// Settings of the training over the recipe's `[tiny]` sizes.
const SETTINGS: [&str; 5] = [
    "batch.examples=16",
    "batch.accumulate=4",
    "ema.decay=0.9",
    "phase.0.epochs=4",
    "log.every_steps=1",
];

/// Checks the ranks that `mpirun` has started, and trains into `folder`, which is the same for any
/// number of ranks.
pub fn check(device: &str, folder: &Path) -> Result<()> {
    ensure!(SHAPES.map(length).iter().sum::<usize>() > BUCKET, "one bucket");
    let mpi = Mpi::start(|rank, lost| eprintln!("rank {rank} {lost}")).map_err(failed)?;
    let mpi = mpi.context("start this program with mpirun")?;
    let (ranks, collective) = (mpi.ranks(), mpi.collective());
    let (rank, size) = (ranks.rank(), ranks.size());
    let mut settings = SETTINGS.map(String::from).to_vec();
    settings.push(format!("compute.device={device:?}"));
    let options = RecipeOptions { tiny: true, set: settings };
    let mut recipe = Recipe::built_in("patent/world", &options)?;
    let compute = recipe.compute()?;
    if !compute.device.is_cpu() {
        collective.connect_gpus(&compute.device).map_err(failed)?;
    }
    exchange(&*collective, &compute.device)?;
    let milliseconds = compare_sums(&ranks, &*collective, &compute)?;
    if rank == 0 {
        let values: usize = SHAPES.map(length).iter().sum();
        println!(
            "ranks {size}: sums of {values} values have the bits of one rank, {milliseconds:.1} ms"
        );
    }
    let run =
        if rank == 0 { folder.to_path_buf() } else { folder.with_extension(rank.to_string()) };
    let study = registry::find(ALL, "patent").context("the study is not registered")?;
    let options = RunOptions { run, quiet: true, ranks, ..RunOptions::default() };
    match (study.train)(&mut recipe, &options) {
        Ok(_) | Err(TrainError::OtherRank { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    mpi.finish();
    Ok(())
}

/// Sends vectors of different lengths between all ranks, and from each rank to itself.
fn exchange(collective: &dyn Collective, device: &Device) -> Result<()> {
    let (own, size) = (collective.rank(), collective.size());
    let length = |from: usize, to: usize| 1_000 + 10 * from + to;
    let values = |from: usize, to: usize| -> Vec<f32> {
        (0..length(from, to)).map(|i| (100_000 * from + 10_000 * to + i) as f32).collect()
    };
    let send = (0..size).map(|to| Tensor::new(values(own, to), device).map(Some));
    let send = send.collect::<candle_core::Result<Vec<_>>>()?;
    let lengths: Vec<usize> = (0..size).map(|from| length(from, own)).collect();
    let received = collective.exchange_tensors(&send, &lengths, device).map_err(failed)?;
    for (from, tensor) in received.iter().enumerate() {
        let tensor = tensor.as_ref().with_context(|| format!("nothing from rank {from}"))?;
        ensure!(to_host(tensor)? == values(from, own), "other values from rank {from}");
    }
    Ok(())
}

/// Compares the sum over ranks with the sum on one rank. Returns the median time in milliseconds.
fn compare_sums(ranks: &Ranks, collective: &dyn Collective, compute: &Compute) -> Result<f64> {
    let (rank, size) = (ranks.rank(), ranks.size());
    // The ranks have two or three micro-batches each.
    let count = 2 * size + usize::from(size > 1);
    let own = 2 * rank + rank.min(1)..2 * rank + 2 + usize::from(size > 1);
    let builder = ParameterBuilder::new(1, Vec::new(), compute);
    for (i, shape) in SHAPES.iter().enumerate() {
        builder.get(&i.to_string(), shape, Init::Zeros)?;
    }
    let parameters = builder.finish()?;
    let gather = |written: Vec<Vec<bool>>| -> Result<Vec<Vec<Vec<bool>>>> {
        let all = collective.gather(serde_json::to_vec(&written)?).map_err(failed)?;
        Ok(all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>()?)
    };
    let (expected, _) = sum(&parameters, count, 0..count, &Ranks::default(), |own| Ok(vec![own]))?;
    let mut milliseconds = Vec::new();
    for _ in 0..STEPS {
        let (found, time) = sum(&parameters, count, own.clone(), ranks, gather)?;
        for (parameter, (found, expected)) in found.iter().zip(&expected).enumerate() {
            ensure!(found == expected, "rank {rank}: other bits of parameter {parameter}");
        }
        milliseconds.push(time);
    }
    milliseconds.sort_by(f64::total_cmp);
    Ok(milliseconds[STEPS / 2])
}

/// The bits of the sums of gradients, and the time of the sum over ranks in milliseconds.
fn sum(
    parameters: &Parameters,
    count: usize,
    own: Range<usize>,
    ranks: &Ranks,
    gather: impl Fn(Vec<Vec<bool>>) -> Result<Vec<Vec<Vec<bool>>>>,
) -> Result<(Vec<Option<Vec<u32>>>, f64)> {
    let mut gradients = Gradients::as_tensors(parameters);
    let (mut sum, mut spare) = (MicroBatchSum::new(count), Vec::new());
    for micro_batch in own {
        sum.make_room(&mut gradients, &mut spare);
        for (i, parameter) in parameters.trainable().enumerate() {
            // A micro-batch without a gradient for one of the parameters.
            if i != micro_batch {
                let value = |k: usize| ((k * (2 * micro_batch + 1) + i) as f32).sin();
                let values = Tensor::from_iter((0..length(SHAPES[i])).map(value), &Device::Cpu)?;
                let gradient = values.reshape(SHAPES[i])?.to_device(parameter.tensor().device())?;
                gradients.set_on_gpu(i, gradient);
            }
        }
        sum.add(micro_batch, &mut gradients, &mut spare)?;
    }
    let written = gather(sum.written(&gradients))?;
    let start = Instant::now();
    sum.reduce(ranks, &written, &mut gradients, &mut spare)?;
    // Waits for the GPU.
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    let last = SHAPES.len() - 1;
    let _ = gradients.get(last);
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    Ok(((0..SHAPES.len()).map(|i| gradients.get(i).map(bits)).collect(), milliseconds))
}

fn length(shape: &[usize]) -> usize {
    shape.iter().product()
}

fn failed(error: StudyError) -> anyhow::Error {
    anyhow!("{error}")
}
