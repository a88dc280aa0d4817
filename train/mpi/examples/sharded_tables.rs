//! Training of word embeddings whose tables the processes keep in parts.
//!
//! Usage: `mpirun -n 2 sharded_tables [WORDS] [STEPS]`, or without `mpirun` for a single process.
//! There are 100,000 words and 200 steps without arguments. Prints the loss during training, and for
//! each process the bytes that it keeps and sends. The loss and the checksum of the values are the
//! same for 1, 2, 4 and 8 processes.
//!
//! The task: each word of a made-up language has a partner. Words are frequent or rare, as in a
//! text. The model finds the partner of a word among those of all words of a micro-batch. Two tables
//! with 64 values for each word hold the embeddings of words and partners; a matrix maps one to the
//! other.

use std::sync::Arc;
use std::time::Instant;

use engram_models::gradients::Gradients;
use engram_models::kernels::{CrossEntropy, cross_entropy, linear};
use engram_models::params::{Init, ParameterBuilder};
use engram_train::StudyError;
use engram_train::distributed::sharded_tables::placement::{Placement, Table};
use engram_train::distributed::sharded_tables::{MicroBatchRows, ShardedTables, TableGradientSum};
use engram_train::distributed::{MicroBatchSum, Ranks};
use engram_train::optimiser::{Optimiser, RuleSet, StepSize};
use engram_train_mpi::Mpi;

const WIDTH: usize = 64;
const MICRO_BATCHES: usize = 8;
/// Words in a micro-batch.
const EXAMPLES: u64 = 256;
const LEARNING_RATE: f64 = 0.01;
const CLIP_NORM: f64 = 1.0;

/// A number in `[0, 1)` that depends on `i` (SplitMix64).
fn random(i: u64) -> f64 {
    let z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// The words of a micro-batch and their partners. The frequency of a word falls with its number, as
/// in Zipf's law.
fn examples(words: usize, step: usize, micro_batch: usize) -> [Vec<u32>; 2] {
    let first = ((step * MICRO_BATCHES + micro_batch) as u64) * EXAMPLES;
    let word = |i| ((words as f64).powf(random(first + i)) as u32 - 1).min(words as u32 - 1);
    let inputs: Vec<u32> = (0..EXAMPLES).map(word).collect();
    let partners = inputs.iter().map(|word| (word ^ 1).min(words as u32 - 1)).collect();
    [inputs, partners]
}

fn slices(ids: &[Vec<u32>; 2]) -> [&[u32]; 2] {
    ids.each_ref().map(Vec::as_slice)
}

fn main() -> Result<(), StudyError> {
    let mpi = Mpi::start(|rank, lost| eprintln!("rank {rank} {lost}"))?;
    let ranks = mpi.as_ref().map_or_else(Ranks::default, Mpi::ranks);
    let mut arguments = std::env::args().skip(1);
    let words: usize = arguments.next().map_or(Ok(100_000), |words| words.parse())?;
    let steps: usize = arguments.next().map_or(Ok(200), |steps| steps.parse())?;
    let (rank, size) = (ranks.rank(), ranks.size());
    if words < 2 {
        return Err("give at least 2 words".into());
    }
    if !MICRO_BATCHES.is_multiple_of(size) {
        return Err(format!("start 1, 2, 4 or 8 processes, not {size}").into());
    }

    let builder = ParameterBuilder::on_cpu(1);
    let matrix = builder.get("matrix", &[WIDTH, WIDTH], Init::Normal(0.1))?;
    let parameters = builder.finish()?;
    let rules = RuleSet::default();
    let mut optimiser = Optimiser::new(&rules, &parameters);
    let table = |name: &str| Table { name: name.into(), rows: words, width: WIDTH, rate: 1.0 };
    let placement = Placement { row_threshold: Some(0), ..Placement::default() };
    let tables = vec![table("words"), table("partners")];
    let mut tables = ShardedTables::new(tables, &placement, &rules, &ranks, |table, rows| {
        let values = (rows.start * WIDTH..rows.end * WIDTH).map(|i| (2 * i + table) as u64);
        Ok(values.map(|i| 0.2 * random(i) as f32 - 0.1).collect())
    })?;

    let mean_loss = |rows: &MicroBatchRows| -> Result<_, StudyError> {
        let queries = linear(&rows.of(0).embed()?, &matrix, None)?;
        let logits = linear(&queries, rows.of(1).rows(), None)?;
        let targets: Arc<[u32]> = rows.of(1).positions();
        let options = CrossEntropy { targets, ignore_index: None, label_smoothing: 0.0 };
        Ok(cross_entropy(&logits, options)?.mean_all()?)
    };
    let mut gradients = Gradients::new(&parameters);
    let mut spare = Vec::new();
    let own = rank * MICRO_BATCHES / size..(rank + 1) * MICRO_BATCHES / size;
    let start = Instant::now();
    for step in 0..=steps {
        if step % 50 == 0 || step == steps {
            // Rank 0 evaluates. The other ranks only answer.
            let ids = if rank == 0 { examples(words, steps, 0) } else { Default::default() };
            let rows = tables.lookup(&slices(&ids))?;
            if rank == 0 {
                let loss = mean_loss(&rows.select(&slices(&ids))?)?.to_scalar::<f32>()?;
                println!("step {step}: loss {loss:.6} on further words");
            }
        }
        if step == steps {
            break;
        }
        let of_micro_batches: Vec<_> =
            own.clone().map(|micro_batch| examples(words, step, micro_batch)).collect();
        let all = [0, 1].map(|table| {
            of_micro_batches.iter().flat_map(|ids| ids[table].clone()).collect::<Vec<u32>>()
        });
        let looked_up = tables.lookup(&slices(&all))?;
        gradients.clear();
        let mut sum = MicroBatchSum::new(MICRO_BATCHES);
        let mut table_sum = TableGradientSum::new(MICRO_BATCHES);
        for (micro_batch, ids) in own.clone().zip(&of_micro_batches) {
            let rows = looked_up.select(&slices(ids))?;
            sum.make_room(&mut gradients, &mut spare);
            gradients.backward(&mean_loss(&rows)?)?;
            sum.add(micro_batch, &mut gradients, &mut spare)?;
            table_sum.add(micro_batch, &rows);
        }
        // The micro-batches of a rank are one node of the tree, which has a gradient of the matrix.
        let written = vec![vec![vec![true]]; size];
        sum.reduce(&ranks, &written, &mut gradients, &mut spare)?;
        let table_gradients = tables.reduce(table_sum)?;
        let squares: Vec<(usize, f64)> =
            tables.sums_of_squares(&table_gradients)?.into_iter().enumerate().collect();
        let norm = gradients.global_norm_with(&squares);
        let mean = 1.0 / MICRO_BATCHES as f64;
        let clip = (CLIP_NORM / (norm * mean + 1e-6)).min(1.0);
        let step_size = StepSize { learning_rate: LEARNING_RATE, gradient_scale: mean * clip };
        tables.step(&table_gradients, step_size)?;
        optimiser.step(&parameters, &gradients, &[1.0], step_size)?;
    }
    let milliseconds = start.elapsed().as_secs_f64() * 1e3 / steps.max(1) as f64;
    let whole = (4 * 2 * words * WIDTH) as f64 / 1e6;
    println!(
        "rank {rank} of {size}: keeps {:.1} MB, whole tables with moments and gradients have {:.1} MB; \
         sends {:.3} MB a step, a reduction of whole tables {:.1} MB; {milliseconds:.0} ms a step",
        tables.bytes()? as f64 / 1e6,
        4.0 * whole,
        tables.bytes_sent() as f64 / 1e6 / steps.max(1) as f64,
        // To each other rank: its slice of the own sum, and the own slice of the result.
        2.0 * whole * (size - 1) as f64 / size as f64
    );
    let frequent: Vec<u32> = (0..words.min(5000) as u32).collect();
    let rows = tables.lookup(&[&frequent, &frequent])?;
    if rank == 0 {
        let values = rows.values(0).iter().chain(rows.values(1));
        let checksum = values
            .fold(0u64, |sum, value| sum.wrapping_mul(31).wrapping_add(u64::from(value.to_bits())));
        println!("checksum of the embeddings of frequent words: {checksum:016x}");
    }
    if let Some(mpi) = mpi {
        mpi.finish();
    }
    Ok(())
}
