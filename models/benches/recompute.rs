//! The memory of activations and the time of a training step for each kind of recomputation: a BERT
//! encoder of 12 layers on 32 sequences of 128 tokens, f32, 2 threads.
//!
//!   cargo test --release -p engram-models --bench recompute
//!
//! The memory is the largest number of allocated bytes during forward and backward pass, minus the
//! bytes before. Parameters and their gradients are allocated before. The CPU time of all threads
//! (Linux only) depends less on other programs than the time. `WIDTH=768` sets another width; the
//! default is 384.

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use engram_models::gradients::Gradients;
use engram_models::kernels::Mode;
use engram_models::packed::PackedTokens;
use engram_models::params::ParameterBuilder;
use engram_models::recompute::Recompute;
use engram_models::text_encoder::TextEncoderConfig;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LAYERS: usize = 12;
const SEQUENCES: usize = 32;
const TOKENS: usize = 128;
/// The number of measurements.
const TURNS: usize = 5;

/// The system's allocator, which counts allocated bytes.
struct Counter;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn count(added: usize, removed: usize) {
    let before = ALLOCATED.fetch_add(added.wrapping_sub(removed), Ordering::Relaxed);
    PEAK.fetch_max(before.wrapping_add(added).wrapping_sub(removed), Ordering::Relaxed);
}

// SAFETY: every method calls the same method of the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(0, layout.size());
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counter = Counter;

/// Returns the CPU time of all threads in milliseconds, from `/proc/self/stat` (in units of 10 ms).
fn cpu_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * 10.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<()> {
    rayon::ThreadPoolBuilder::new().num_threads(2).build_global()?;
    let width: usize = std::env::var("WIDTH").map_or(Ok(384), |width| width.parse())?;
    let config = format!(
        r#"{{"model_type": "bert", "vocab_size": 1000, "hidden_size": {width},
            "num_hidden_layers": {LAYERS}, "num_attention_heads": 12,
            "intermediate_size": {}, "max_position_embeddings": {TOKENS}, "type_vocab_size": 2,
            "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1}}"#,
        4 * width
    );
    let builder = ParameterBuilder::on_cpu(1);
    let encoder = TextEncoderConfig::parse(&config, "config")?.build(&builder)?;
    let parameters = builder.finish()?;
    let mut gradients = Gradients::new(&parameters);
    let text = |sequence: usize| -> Vec<u32> {
        (0..TOKENS).map(|i| ((sequence * 131 + i * 37) % 1000) as u32).collect()
    };
    let tokens = PackedTokens::new(&(0..SEQUENCES).map(text).collect::<Vec<_>>());
    let kinds = [Recompute::None, Recompute::Selective, Recompute::Block];
    let (mut times, mut cpu_times) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    let mut peaks = [0; 3];
    let mut expected = None;
    // The kinds alternate. The first turn is warm-up.
    for turn in 0..=TURNS {
        for (i, kind) in kinds.into_iter().enumerate() {
            gradients.clear();
            let before = ALLOCATED.load(Ordering::Relaxed);
            PEAK.store(before, Ordering::Relaxed);
            let (start, cpu_start) = (Instant::now(), cpu_time());
            let states = encoder.encode(&tokens, &Mode::train(7).recompute(kind))?;
            let loss = states.sqr()?.mean_all()?;
            gradients.backward(&loss)?;
            if turn > 0 {
                times[i].push(start.elapsed().as_secs_f64() * 1e3);
                cpu_times[i].push(cpu_time() - cpu_start);
            }
            peaks[i] = PEAK.load(Ordering::Relaxed) - before;
            let norm = gradients.global_norm();
            if *expected.get_or_insert(norm) != norm {
                return Err(format!("{kind:?}: another gradient").into());
            }
        }
    }
    let (times, cpu_times) = (times.map(median), cpu_times.map(median));
    println!("{LAYERS} layers, width {width}, {SEQUENCES} x {TOKENS} tokens");
    for (i, kind) in kinds.iter().enumerate() {
        println!(
            "{kind:?}: {:.1} MB ({:.3} of none), {:.0} ms ({:.3}), CPU time {:.0} ms ({:.3})",
            peaks[i] as f64 / 1e6,
            peaks[i] as f64 / peaks[0] as f64,
            times[i],
            times[i] / times[0],
            cpu_times[i],
            cpu_times[i] / cpu_times[0]
        );
    }
    Ok(())
}
