//! The time of adding gradients over processes.
//!
//! Usage: `mpirun -n 2 reduction`. The gradients have the shapes of MiniLM's parameters (22.7
//! million values). Prints the median and the maximum of 20 steps on rank 0: with values other than
//! zero everywhere, and with 2,000 of the word embeddings.

use std::time::Instant;

use engram_models::gradients::Gradients;
use engram_models::params::{Init, ParameterBuilder};
use engram_train::StudyError;
use engram_train::distributed::MicroBatchSum;
use engram_train_mpi::Mpi;

const STEPS: usize = 20;

/// The shapes of the parameters of MiniLM with 6 layers.
fn shapes() -> Vec<Vec<usize>> {
    let mut shapes = vec![vec![30522, 384], vec![512, 384], vec![2, 384], vec![384], vec![384]];
    for _ in 0..6 {
        for _ in 0..4 {
            shapes.extend([vec![384, 384], vec![384]]);
        }
        shapes.extend([vec![1536, 384], vec![1536], vec![384, 1536]]);
        shapes.extend(std::iter::repeat_n(vec![384], 5));
    }
    shapes
}

fn main() -> Result<(), StudyError> {
    let mpi = Mpi::start(|rank, lost| eprintln!("rank {rank} {lost}"))?;
    let mpi = mpi.ok_or("start this program with mpirun")?;
    let ranks = mpi.ranks();
    let builder = ParameterBuilder::on_cpu(1);
    for (i, shape) in shapes().iter().enumerate() {
        builder.get(&format!("{i}"), shape, Init::Zeros)?;
    }
    let parameters = builder.finish()?;
    let mut gradients = Gradients::new(&parameters);
    let (rank, size) = (ranks.rank(), ranks.size());
    let written = vec![true; gradients.len()];
    for words in [30522, 2000] {
        let (mut spare, mut milliseconds) = (Vec::new(), Vec::new());
        for step in 0..STEPS {
            for values in gradients.values_mut() {
                values.fill((rank + step) as f32);
            }
            gradients.values_mut()[0][words * 384..].fill(0.0);
            gradients.set_written(&written);
            let mut sum = MicroBatchSum::new(size);
            sum.add(rank, &mut gradients, &mut spare)?;
            let all: Vec<_> = (0..size).map(|_| vec![written.clone()]).collect();
            let start = Instant::now();
            sum.reduce(&ranks, &all, &mut gradients, &mut spare)?;
            milliseconds.push(start.elapsed().as_secs_f64() * 1e3);
            let expected: usize = (0..size).map(|rank| rank + step).sum();
            let (embeddings, others) = gradients.values_mut().split_at(1);
            let (used, unused) = embeddings[0].split_at(words * 384);
            let mut sums = used.iter().chain(others.iter().flatten());
            assert!(sums.all(|sum| *sum == expected as f32));
            assert!(unused.iter().all(|sum| *sum == 0.0));
        }
        milliseconds.sort_by(f64::total_cmp);
        if rank == 0 {
            let values: usize = gradients.values_mut().iter().map(Vec::len).sum();
            println!(
                "{values} values, {words} word embeddings used, {size} ranks: median {:.0} ms, \
                 maximum {:.0} ms",
                milliseconds[STEPS / 2],
                milliseconds[STEPS - 1]
            );
        }
    }
    mpi.finish();
    Ok(())
}
