//! `engram bench refresh`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use engram_memory::refresh::{Adoption, Refresh, RefreshSteps};
use engram_memory::search::exact::Exact;
use engram_memory::search::{Filter, Index, Queries};
use engram_memory::{Batch, Memory, MemoryError, MemoryFormat, ValueDtype, ValueFormat, Writer};

use super::super::{Outcome, output};
use super::keys::ClusteredKeys;
use super::median;

/// Queries of a step.
const QUERIES: usize = 512;
/// Entries that each gets.
const K: usize = 10;
/// Tokens of a value, each as wide as a key.
const TOKENS: usize = 8;

/// How much refreshing a memory slows down what goes on meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "\
A step searches the memory with all threads, as a training step computes with all threads. A worker
encodes all entries anew on one thread of its own (each key times a matrix, several times over).
What it takes from the steps is set beside its share of the processors' time.
Examples:
  engram bench refresh
  engram bench refresh --layers 4        # next to no encoding: what copying and writing cost")]
pub struct RefreshBench {
    /// Entries
    #[arg(long, default_value_t = 20_000)]
    rows: usize,
    /// Numbers of a key, and of each of the 8 tokens of a value
    #[arg(long, default_value_t = 256)]
    width: usize,
    /// How often the encoder multiplies a key by a matrix: 64 take half a millisecond, less than real encoders do
    #[arg(long, default_value_t = 64)]
    layers: usize,
    /// Rounds, each with a refresh and, for as long, without
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// What a round has shown.
struct Round {
    /// Steps a second without a refresh, and with one.
    alone: f64,
    beside: f64,
    /// The worker's share of the processors' time.
    share: f64,
    seconds: f64,
    /// Memory that is not mapped from files, at most, above what it was before.
    grown: u64,
}

impl RefreshBench {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let folder = tempfile::tempdir().context("no temporary folder could be made")?;
        let values = ValueFormat { tokens: TOKENS, width: self.width, dtype: ValueDtype::F16 };
        let format = MemoryFormat { width: self.width, normalised: true, values: Some(values) };
        let mut keys = ClusteredKeys::new(self.width);
        let queries = keys.rows(QUERIES);
        let batches = keys.batches(self.rows, |_| Ok(())).map(|batch| {
            let batch = batch?;
            Ok(Batch { values: batch.keys.repeat(TOKENS), ..batch })
        });
        let place = folder.path().join("memory");
        let mut writer = Some(Writer::create(&place, format, self.rows, batches)?);
        let memory = Memory::open(&place)?;
        let mut rounds = Vec::new();
        let bar = output::progress_bar(self.rounds.max(1), "rounds", false);
        for _ in 0..self.rounds.max(1) {
            let free = writer.take().context("the writer did not come back")?;
            let (round, free) = self.round(&memory, free, &queries)?;
            writer = Some(free);
            rounds.push(round);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let middle = |of: fn(&Round) -> f64| median(rounds.iter().map(of).collect());
        let (alone, beside) = (middle(|round| round.alone), middle(|round| round.beside));
        let slower = middle(|round| 1.0 - round.beside / round.alone);
        output::print(&format!(
            "{} entries of {} numbers with values of {} KB, {} threads; medians of {} rounds\n\
             a refresh takes {:.1} s beside the steps\n\
             steps a second: {alone:.1} alone, {beside:.1} beside it: {:.1} % fewer\n\
             the worker's share of the processors' time: {:.1} %\n\
             memory on top, at most: {:.0} MB",
            self.rows,
            self.width,
            values.tokens * values.width * 2 / 1024,
            rayon::current_num_threads(),
            rounds.len(),
            middle(|round| round.seconds),
            100.0 * slower,
            100.0 * middle(|round| round.share),
            rounds.iter().map(|round| round.grown).max().unwrap_or(0) as f64 / 1e6,
        ))?;
        Ok(Outcome::Done)
    }

    fn round(
        &self,
        memory: &Memory,
        writer: Writer,
        queries: &[f32],
    ) -> anyhow::Result<(Round, Writer)> {
        let before = own_memory();
        let (done, busy) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
        let encode = self.encoder(Arc::clone(&done), Arc::clone(&busy));
        let start = Instant::now();
        let refresh = Refresh::start(writer, RefreshSteps { start: 0, lag: 0 }, encode);
        let (mut steps, mut grown) = (0, 0);
        while done.load(Ordering::Relaxed) < self.rows {
            step(memory, queries)?;
            steps += 1;
            grown = grown.max(own_memory().saturating_sub(before));
        }
        let seconds = start.elapsed().as_secs_f64();
        let cores = std::thread::available_parallelism()?.get() as f64;
        let share = busy.load(Ordering::Relaxed) as f64 / 1e9 / seconds / cores;
        let Adoption::Now(adopted) = refresh.adopt(0, memory)? else {
            anyhow::bail!("the refresh was to be adopted at once")
        };
        let (start, mut undisturbed) = (Instant::now(), 0);
        while start.elapsed().as_secs_f64() < seconds {
            step(memory, queries)?;
            undisturbed += 1;
        }
        let alone = f64::from(undisturbed) / start.elapsed().as_secs_f64();
        let round = Round { alone, beside: f64::from(steps) / seconds, share, seconds, grown };
        Ok((round, adopted.writer))
    }

    /// Multiplies each key by a matrix, again and again; tells how many entries are done, and the nanoseconds of
    /// processor time that the worker took so far.
    fn encoder(
        &self,
        done: Arc<AtomicUsize>,
        busy: Arc<AtomicU64>,
    ) -> impl FnMut(Batch) -> Result<Batch, MemoryError> + Send + 'static {
        let (width, layers) = (self.width, self.layers);
        let matrix: Vec<f32> = ClusteredKeys::new(width).rows(width);
        move |mut batch| {
            for key in batch.keys.chunks_mut(width) {
                for _ in 0..layers {
                    let mut next = vec![0f32; width];
                    for (number, row) in key.iter().zip(matrix.chunks(width)) {
                        next.iter_mut()
                            .zip(row)
                            .for_each(|(next, weight)| *next += number * weight);
                    }
                    let length = next.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-20);
                    key.iter_mut().zip(next).for_each(|(key, next)| *key = next / length);
                }
            }
            busy.store(processor_time().unwrap_or(0), Ordering::Relaxed);
            done.fetch_add(batch.entries.len(), Ordering::Relaxed);
            Ok(batch)
        }
    }
}

/// What goes on meanwhile: a search that all threads work at.
fn step(memory: &Memory, queries: &[f32]) -> Result<(), MemoryError> {
    let queries = Queries { keys: queries, k: K };
    Exact.search(&memory.generation(), queries, &Filter::default())?;
    Ok(())
}

/// Nanoseconds of processor time that this thread has had; `None` where the system does not tell.
fn processor_time() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Bytes of this process that are mapped from no file; 0 where the system does not tell.
fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
