//! Benchmarks MiniLM against PyTorch: a training step, a forward pass, batches of the
//! patent study, peak memory.
//!
//!   tests/fetch_weights.sh
//!   ENGRAM_DATA=DATA ENGRAM_PEER_PYTHON=python3 \
//!       cargo bench -p engram-train --bench minilm
//!
//! `ENGRAM_PEER_PYTHON` names a Python with torch and transformers. Without it, only Engram's times
//! are printed. Engram and PyTorch run the same weights on the same examples, in f32 with 2
//! threads. They take turns, so that a change in the machine's speed affects both. The output is
//! the median time of each, and the median over the turns of Engram's time divided by PyTorch's
//! time.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use engram_data::groups::{Grouping, grouped_rows};
use engram_data::hub::{HubSettings, WeightsLocation};
use engram_data::patent::{Labels, read_pairs};
use engram_data::titles::ClassTitles;
use engram_data::tokenizer::SegmentTokenizer;
use engram_models::compute::Compute;
use engram_models::gradients::Gradients;
use engram_models::kernels::Mode;
use engram_models::packed::PackedTokens;
use engram_models::params::{ParameterBuilder, Parameters};
use engram_models::similarity::{CrossEncoder, CrossEncoderConfig, PairLoss, Pooling, ScoredSpans};
use engram_models::text_encoder::{TextEncoder, TextEncoderConfig};
use engram_train::optimiser::{Optimiser, RuleSet, StepSize};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Token sequences and gold scores.
struct Batch {
    sequences: Vec<Vec<u32>>,
    gold: Vec<f32>,
}

/// The model in Engram, with its optimiser.
struct EngramModel {
    encoder: TextEncoder,
    model: CrossEncoder,
    parameters: Parameters,
    gradients: Gradients,
    optimiser: Optimiser,
    rate_factors: Vec<f64>,
    steps: u64,
}

impl EngramModel {
    /// Loads the published weights in `folder`.
    fn new(folder: &std::path::Path) -> Result<Self> {
        let mut config = TextEncoderConfig::read(&folder.join("config.json"))?;
        config.set_dropout(0.1, 0.1);
        let builder = ParameterBuilder::new(1, Vec::new(), &Compute::cpu());
        let weights = config.open_weights(&folder.join("model.safetensors").as_path().into())?;
        let encoder = config.build(&builder.with_weights(weights))?;
        let head = CrossEncoderConfig {
            pooling: Pooling::Mean,
            compare_anchor: false,
            head_dropout: 0.0,
            score_bias: true,
        };
        let model = CrossEncoder::new(head, encoder.clone(), &builder)?;
        let parameters = builder.finish()?;
        let gradients = Gradients::new(&parameters);
        let optimiser = Optimiser::new(&RuleSet::default(), &parameters);
        let rate_factors = vec![1.0; gradients.len()];
        Ok(Self { encoder, model, parameters, gradients, optimiser, rate_factors, steps: 0 })
    }

    /// Trains one step (forward, backward, clipping, AdamW) and returns the loss.
    fn step(&mut self, batch: &Batch) -> Result<f32> {
        self.steps += 1;
        let tokens = PackedTokens::new(&batch.sequences);
        let spans = ScoredSpans {
            targets: tokens.sequences().clone(),
            anchors: tokens.sequences().clone(),
        };
        let scores = self.model.score(&tokens, &spans, &Mode::train(self.steps))?;
        let loss = PairLoss::Bce.loss(&scores, &batch.gold)?;
        self.gradients.clear();
        self.gradients.backward(&loss)?;
        let norm = self.gradients.global_norm();
        let size = StepSize { learning_rate: 1e-5, gradient_scale: 1.0 / norm.max(1.0) };
        self.optimiser.step(&self.parameters, &self.gradients, &self.rate_factors, size)?;
        Ok(loss.to_scalar()?)
    }

    /// Encodes a batch without gradients.
    fn forward(&self, batch: &Batch) -> Result<()> {
        self.encoder.encode(&PackedTokens::new(&batch.sequences), &Mode::inference())?;
        Ok(())
    }
}

/// A PyTorch process. It answers each request with a number: milliseconds, or MB of memory.
struct Peer {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts PyTorch; `None` if `ENGRAM_PEER_PYTHON` names no Python with the needed packages.
    fn start(folder: &std::path::Path, batches: &std::path::Path) -> Option<Self> {
        let Some(python) = std::env::var_os("ENGRAM_PEER_PYTHON") else {
            eprintln!("SKIPPED: PyTorch; name a Python with torch in ENGRAM_PEER_PYTHON");
            return None;
        };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/minilm_torch.py");
        let mut child = Command::new(python)
            .arg(script)
            .args([folder, batches])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let (requests, answers) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut peer = Self { child, requests, answers };
        match peer.answer() {
            Some(_) => Some(peer),
            None => {
                eprintln!("SKIPPED: PyTorch did not start; needs torch and transformers");
                None
            }
        }
    }

    /// Sends a request and reads the answer; `None` if PyTorch failed.
    fn query(&mut self, request: &str) -> Option<f64> {
        writeln!(self.requests, "{request}").ok()?;
        self.requests.flush().ok()?;
        self.answer()
    }

    /// Reads a number; `None` if PyTorch failed.
    fn answer(&mut self) -> Option<f64> {
        let mut line = String::new();
        self.answers.read_line(&mut line).ok()?;
        line.trim().parse().ok()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs Engram and PyTorch in turns and prints a line.
fn compare(
    name: &str,
    turns: usize,
    mut engram: impl FnMut() -> Result<()>,
    mut torch: impl FnMut() -> Option<f64>,
) -> Result<()> {
    let (mut engram_times, mut torch_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..=turns {
        let start = Instant::now();
        engram()?;
        let engram_time = start.elapsed().as_secs_f64() * 1e3;
        let torch_time = torch();
        // The first turn is a warm-up.
        if turn > 0 {
            engram_times.push(engram_time);
            if let Some(torch_time) = torch_time {
                torch_times.push(torch_time);
                ratios.push(engram_time / torch_time);
            }
        }
    }
    let torch_result = if torch_times.is_empty() {
        "not run".to_string()
    } else {
        format!("{:8.1} ms   ratio {:.2}", median(torch_times), median(ratios))
    };
    println!("{name:<44} ours {:8.1} ms   torch {torch_result}", median(engram_times));
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// 32 sequences of 32 tokens.
fn equal_length_batch() -> Batch {
    let token = |i: u32, j: u32| (i * 977 + j * 131) % 29_000 + 500;
    Batch {
        sequences: (0..32).map(|i| (0..32).map(|j| token(i, j)).collect()).collect(),
        gold: (0..32).map(|i| (i % 5) as f32 / 4.0).collect(),
    }
}

/// 960 phrase pairs, each with 8 other targets of its group, in batches of 64.
fn study_batches(folder: &std::path::Path) -> Result<Vec<Batch>> {
    let Some(data) = std::env::var_os("ENGRAM_DATA").map(PathBuf::from) else {
        eprintln!("SKIPPED: the study's batches; set ENGRAM_DATA to the real data");
        return Ok(Vec::new());
    };
    let rows = read_pairs(data.join("patent/train.csv"), Labels::Required)?;
    let titles = ClassTitles::read(data.join("patent/ipc_class_titles.tsv"))?;
    let tokenizer = SegmentTokenizer::from_file(folder.join("tokenizer.json"))?;
    let groups = grouped_rows(&rows, Grouping::Context);
    let mut group_of_row = vec![0; rows.len()];
    for (index, group) in groups.iter().enumerate() {
        group.iter().for_each(|&row| group_of_row[row] = index);
    }
    let special = tokenizer.special();
    let mut batches = Vec::new();
    // Rows spread over the file, so that lengths vary as in a shuffled epoch.
    let selected: Vec<usize> = (0..960).map(|i| i * 7919 % rows.len()).collect();
    for chunk in selected.chunks(64) {
        let mut batch = Batch { sequences: Vec::new(), gold: Vec::new() };
        for &index in chunk {
            let row = &rows[index];
            let title = titles.title(&row.context).unwrap_or_default().to_lowercase();
            let title: String = title.chars().take(100).collect();
            let group = groups[group_of_row[index]].iter().map(|&i| rows[i].target.as_str());
            let mut others: Vec<&str> = Vec::new();
            for other in group.filter(|other| *other != row.target) {
                if others.len() < 8 && !others.contains(&other) {
                    others.push(other);
                }
            }
            let mut ids = vec![special.cls];
            for piece in [&row.anchor, &row.target, &title, &others.join("; ")] {
                ids.extend(&*tokenizer.encode_segment(piece)?);
                ids.push(special.sep);
            }
            ids.truncate(128);
            batch.sequences.push(ids);
            batch.gold.push(row.score.unwrap_or(0.0));
        }
        batches.push(batch);
    }
    Ok(batches)
}

/// The largest resident memory of this process so far, in MiB.
fn peak_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes / 1024.0)
}

fn main() -> Result<()> {
    rayon::ThreadPoolBuilder::new().num_threads(2).build_global()?;
    // Runs on a thread of the pool, as `engram train` does.
    let result = rayon::scope(|_| run().map_err(|error| error.to_string()));
    result.map_err(Into::into)
}

/// Measures and prints all lines.
fn run() -> Result<()> {
    // Keeps freed pages (`mi_option_purge_delay` −1), as the `engram` command does.
    // SAFETY: `mi_option_set` only stores a number, and 15 is the index of an option.
    unsafe { libmimalloc_sys::mi_option_set(15, -1) };
    let location = WeightsLocation::parse("hf://sentence-transformers/all-MiniLM-L6-v2")?;
    let config = location.file("config.json", &HubSettings::from_env()?)?;
    let folder = config.parent().ok_or("config.json is not in a folder")?;
    let mut engram = EngramModel::new(folder)?;
    let equal_length = equal_length_batch();
    for _ in 0..3 {
        engram.step(&equal_length)?;
    }
    let engram_peak = peak_memory();

    let batches = study_batches(folder)?;
    let as_json = |batch: &Batch| serde_json::json!([batch.sequences, batch.gold]);
    let batches_json: Vec<_> = batches.iter().map(as_json).collect();
    let file = tempfile::NamedTempFile::new()?;
    serde_json::to_writer(
        file.as_file(),
        &serde_json::json!([as_json(&equal_length), batches_json]),
    )?;
    let mut peer = Peer::start(folder, file.path());
    let mut query = |request: &str| peer.as_mut().and_then(|peer| peer.query(request));

    let torch_peak = query("memory");
    compare(
        "training step, 32 x 32 tokens",
        15,
        || engram.step(&equal_length).map(drop),
        || query("step"),
    )?;
    compare(
        "forward pass, 32 x 32 tokens",
        15,
        || engram.forward(&equal_length),
        || query("forward"),
    )?;
    if !batches.is_empty() {
        let epoch = || batches.iter().try_for_each(|batch| engram.step(batch).map(drop));
        compare("15 batches of 64 phrase pairs", 3, epoch, || query("epoch"))?;
    }
    let megabytes = |peak: Option<f64>| peak.map_or("unknown".into(), |mb| format!("{mb:.0} MB"));
    println!(
        "peak memory of the step: ours {}, torch {}",
        megabytes(engram_peak),
        megabytes(torch_peak)
    );
    Ok(())
}
