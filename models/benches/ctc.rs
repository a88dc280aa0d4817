//! Benchmarks of the CTC loss against PyTorch, of the transducer loss, and of CTC beam search on
//! one thread. For the losses, a measurement covers the forward and the backward pass.
//!
//!   ENGRAM_PEER_PYTHON=python3 cargo bench -p engram-models --bench ctc
//!
//! `ENGRAM_PEER_PYTHON` names a Python with torch. Without torch, only the times of this crate are
//! printed. This crate and PyTorch use the same logits, f32 and 2 threads. They alternate, so that
//! a slow phase of the machine affects both. The output is the median time of each, and the median
//! ratio of this crate's time to PyTorch's in the same pair of measurements.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use candle_core::{Device, Tensor, Var};
use engram_models::generation::boosting::{Bonus, BoostTree, WordBoundaries};
use engram_models::speech::AlignedTargets;
use engram_models::speech::ctc::ctc_loss;
use engram_models::speech::ctc_beam::beam_search;
use engram_models::speech::transducer::transducer_loss;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const CLIPS: usize = 16;
const FRAMES: usize = 400;
const CLASSES: usize = 1024;
const LABELS: usize = 60;
/// The number of measurements.
const TURNS: usize = 31;

/// Returns random logits between -2 and 2.
fn logits(rows: usize, classes: usize) -> Result<Var> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let values: Vec<f32> = (0..rows * classes).map(|_| random.random_range(-2.0..2.0)).collect();
    Ok(Var::from_tensor(&Tensor::from_vec(values, (rows, classes), &Device::Cpu)?)?)
}

fn clips(frames: usize, clips: usize, labels: usize, classes: usize) -> AlignedTargets {
    let label = |clip, i| ((clip * 131 + i * 37) % (classes - 1) + 1) as u32;
    let targets = (0..clips).map(|clip| (0..labels).map(|i| label(clip, i)).collect()).collect();
    AlignedTargets { lengths: vec![frames; clips], targets, blank: 0 }
}

/// Returns the time of a step in milliseconds, and its mean loss.
fn time(logits: &Var, loss: impl Fn(&Tensor) -> candle_core::Result<Tensor>) -> Result<(f64, f64)> {
    let start = Instant::now();
    let loss = loss(logits.as_tensor())?.mean_all()?;
    let store = loss.backward()?;
    store.get(logits.as_tensor()).ok_or("a gradient")?;
    Ok((start.elapsed().as_secs_f64() * 1e3, loss.to_scalar::<f32>()?.into()))
}

/// The PyTorch process, `tests/reference/ctc_peer.py`. For each line, it runs a step and replies
/// with the time in milliseconds and the loss.
struct Peer {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Peer {
    fn start(file: &Path) -> Result<Option<Self>> {
        let Some(python) = std::env::var_os("ENGRAM_PEER_PYTHON") else {
            eprintln!("SKIPPED: PyTorch; name a Python with torch in ENGRAM_PEER_PYTHON");
            return Ok(None);
        };
        let mut child = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/reference/ctc_peer.py"))
            .arg(file)
            .args([CLIPS, FRAMES, CLASSES, LABELS].map(|size| size.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let requests = child.stdin.take().ok_or("a pipe")?;
        let replies = BufReader::new(child.stdout.take().ok_or("a pipe")?);
        Ok(Some(Self { child, requests, replies }))
    }

    fn step(&mut self) -> Result<(f64, f64)> {
        writeln!(self.requests, "step")?;
        self.requests.flush()?;
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        let (time, loss) = line.trim().split_once(' ').ok_or("PyTorch did not reply")?;
        Ok((time.parse()?, loss.parse()?))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<()> {
    rayon::ThreadPoolBuilder::new().num_threads(2).build_global()?;
    let x = logits(CLIPS * FRAMES, CLASSES)?;
    let ctc = clips(FRAMES, CLIPS, LABELS, CLASSES);
    let values = x.as_tensor().flatten_all()?.to_vec1::<f32>()?;
    let values = values.iter().flat_map(|value| value.to_le_bytes());
    let labels = ctc.targets.iter().flatten().flat_map(|label| label.to_le_bytes());
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), values.chain(labels).collect::<Vec<u8>>())?;
    let mut peer = Peer::start(file.path())?;
    let (mut engram_times, mut torch_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    // The first turns are warm-up.
    for turn in 0..TURNS + 3 {
        let (our_time, our_loss) = time(&x, |x| ctc_loss(x, ctc.clone()))?;
        let torch_result = peer.as_mut().map(Peer::step).transpose()?;
        if turn < 3 {
            continue;
        }
        engram_times.push(our_time);
        if let Some((their_time, their_loss)) = torch_result {
            if (our_loss - their_loss).abs() > 1e-5 * their_loss {
                return Err(format!("losses differ: {our_loss}, {their_loss}").into());
            }
            torch_times.push(their_time);
            ratios.push(our_time / their_time);
        }
    }
    println!(
        "CTC [{CLIPS}, {FRAMES}, {CLASSES}], {LABELS} labels: ours {:.2} ms, torch {:.2} ms, \
         ratio {:.3}",
        median(engram_times),
        median(torch_times),
        median(ratios)
    );
    drop(peer);

    let x = logits(4 * 100 * 21, 256)?;
    let transducer = clips(100, 4, 20, 256);
    let mut times = Vec::new();
    for _ in 0..TURNS {
        times.push(time(&x, |x| transducer_loss(x, transducer.clone()))?.0);
    }
    println!(
        "transducer, 4 clips of 100 frames and 20 labels, 256 classes: {:.2} ms",
        median(times)
    );
    search()
}

/// Measures beam search on ten seconds of 40 ms states. Every fourth state has one clearly best
/// token. 100 words of six tokens are boosted.
fn search() -> Result<()> {
    const STATES: usize = 250;
    let values = logits(STATES, CLASSES)?.as_tensor().to_vec2::<f32>()?;
    let mut rows = values;
    for (state, row) in rows.iter_mut().enumerate() {
        row[if state % 4 == 0 { state * 37 % CLASSES } else { 0 }] += 8.0;
    }
    let words: Vec<Vec<u32>> =
        (0..100).map(|word| (1..7).map(|i| (word * 97 + i * 31) % 1000 + 1).collect()).collect();
    let boundaries = WordBoundaries::default();
    let tree = BoostTree::new(&words, Bonus { begin: 1.0, next: 2.0 }, boundaries.into());
    for beams in [8, 16] {
        for (boost, what) in [(None, ""), (Some(&tree), ", 100 words")] {
            let mut times = Vec::new();
            for _ in 0..TURNS {
                let start = Instant::now();
                beam_search(&rows, 0, beams, boost)?;
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
            println!(
                "{beams} beams{what}, {STATES} states of {CLASSES} classes: {:.2} ms",
                median(times)
            );
        }
    }
    Ok(())
}
