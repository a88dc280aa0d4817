//! Numbers and headers with extreme sizes: time and memory must stay limited.

use std::fs;
use std::io::Write;

use anyhow::Result;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::inputs;
use crate::program::Engram;
use crate::report::Report;
use crate::scratch::Scratch;
use crate::subjects::Shared;

/// Limits for each command.
const MAX_SECONDS: u64 = 20;
const MAX_MEGABYTES: u64 = 1000;

/// Shapes of arrays, as Python tuples.
const SHAPES: [&str; 10] = [
    "(1000000000000000000, 16)",
    "(16, 1000000000000000000)",
    "(4294967296, 4294967296)",
    "(-1, 16)",
    "(0, 16)",
    "(5, 0)",
    "(99999999999999999999999, 16)",
    "()",
    "(5,)",
    "(1, 1, 1, 1, 1, 1, 1, 80)",
];

/// Commands with an extreme number `{k}`.
const WITH_NUMBER: [&str; 4] = [
    "memory search {s}/start/memory --queries {s}/queries.npy -k {k} --out {s}/k.npy --force",
    "memory search {s}/start/memory --queries {s}/queries.npy -k {k} --index graph",
    "memory search {s}/start/memory --queries {s}/queries.npy -k 3 --ef-search {k} --index graph",
    "eval retrieval --queries {r}/eval/fuzz/corpus/retrieval/queries -k {k} --resamples 5",
];

/// Commands that read the array `shape{k}.npy`.
const WITH_ARRAY: [&str; 3] = [
    "memory build --keys {s}/shape{k}.npy --out {s}/memory{k} --quiet",
    "memory search {s}/start/memory --queries {s}/shape{k}.npy -k 3",
    "memory search {s}/start/memory --queries {s}/queries.npy --gates {s}/shape{k}.npy -k 3",
];

/// Commands that read the weights `header{k}.safetensors`, the audio `header{k}.wav`, and the image of
/// `bomb{k}.jsonl`.
const WITH_WEIGHTS: &str =
    "memory build --keys {s}/header{k}.safetensors --out {s}/memory-header{k} --quiet";
const WITH_AUDIO: &str = "transcribe {s}/header{k}.wav --model {r}/train/bundled/conformer --out \
                          {s}/out.tsv --quiet --force";
const WITH_IMAGE: &str = "memory build --model {r}/train/bundled/clip --entries {s}/bomb{k}.jsonl \
                          --out {s}/memory-bomb{k} --quiet";

/// Other commands.
const COMMANDS: [&str; 15] = [
    "eval wer --ref {s}/long-ref.tsv --hyp {s}/long-hyp.tsv --unit char --resamples 5",
    "eval wer --ref {s}/long-ref.tsv --hyp {s}/long-hyp.tsv --unit word --resamples 5",
    "eval wer --ref {s}/bomb.tsv.gz --hyp {s}/hyp.tsv --resamples 5",
    "eval caption --ref {s}/deep.json --hyp {s}/deep.json",
    "eval vqa --ref {s}/deep.json --hyp {s}/deep.json",
    "eval retrieval --queries {s}/deep.json -k 1",
    "data entries coco {s}/deep.json --out {s}/out.jsonl --quiet",
    "memory build --keys {s}/keys.npy --entries {s}/deep.json --out {s}/memory-deep --quiet",
    "score {s}/deep.json --model {s}/run --out {s}/out.csv --quiet",
    "memory build --model {s}/run --entries {s}/entries.jsonl --batch 18446744073709551615 \
        --out {s}/batch --quiet",
    "eval wer --ref {s}/ref.tsv --hyp {s}/hyp.tsv --resamples 18446744073709551615",
    "eval wer --ref {s}/ref.tsv --hyp {s}/hyp.tsv --align 18446744073709551615 --resamples 5",
    "data speech --out {s}/spoken --count 18446744073709551615",
    "data audiovisual --out {s}/seen-much --count 18446744073709551615 --names 2",
    "--threads 1024 memory info {s}/start/memory",
];

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("sizes")?;
    let shared = Shared::make(&scratch)?;
    let path = |name: &str| shared.folder.join(name);
    let mut lines: Vec<String> = COMMANDS.map(str::to_owned).to_vec();
    let mut add = |line: &str, k: &dyn std::fmt::Display| {
        lines.push(line.replace("{k}", &k.to_string()));
    };
    for k in ["1000000", "4294967296", "18446744073709551615", "0"] {
        WITH_NUMBER.iter().for_each(|line| add(line, &k));
    }
    let zeros = |shape: &str| [inputs::npy_header(shape), vec![0; 320]].concat();
    let mut arrays: Vec<Vec<u8>> = SHAPES.map(zeros).to_vec();
    let long = b"{'descr': '<f4', ".repeat(10);
    arrays.push([&b"\x93NUMPY\x02\x00\xff\xff\xff\xff"[..], &long].concat());
    arrays.push(inputs::npy_header(&"(".repeat(30_000)));
    for (number, bytes) in arrays.iter().enumerate() {
        fs::write(path(&format!("shape{number}.npy")), bytes)?;
        WITH_ARRAY.iter().for_each(|line| add(line, &number));
    }
    for (number, length) in [u64::MAX, 1 << 62, 1 << 40, 0].into_iter().enumerate() {
        let bytes = [&length.to_le_bytes()[..], b"{}"].concat();
        fs::write(path(&format!("header{number}.safetensors")), bytes)?;
        add(WITH_WEIGHTS, &number);
    }
    const MAX: u32 = u32::MAX;
    let fields =
        [(4, MAX), (40, MAX), (40, 0), (24, MAX), (24, 0), (22, MAX), (32, MAX), (16, MAX)];
    for (number, (offset, value)) in fields.into_iter().enumerate() {
        let mut wav = inputs::wav(8000, 1);
        wav[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        fs::write(path(&format!("header{number}.wav")), wav)?;
        add(WITH_AUDIO, &number);
    }
    let sizes = [(30_000, 30_000), (u32::MAX >> 1, 1), (9_400, 9_400), (0, 1)];
    for (number, (width, height)) in sizes.into_iter().enumerate() {
        let png = inputs::png(width.min(1 << 20), height, height.min(200))?;
        fs::write(path(&format!("bomb{number}.png")), png)?;
        let entry = format!("{{\"image\":\"bomb{number}.png\"}}\n");
        fs::write(path(&format!("bomb{number}.jsonl")), entry)?;
        add(WITH_IMAGE, &number);
    }
    let text = "the quick brown fox jumps over ".repeat(13_000);
    let other_text = text.replace("quick", "slow").replace('o', "e");
    fs::write(path("long-ref.tsv"), format!("a\t{text}\n"))?;
    fs::write(path("long-hyp.tsv"), format!("a\t{other_text}\n"))?;
    let mut bomb = GzEncoder::new(fs::File::create(path("bomb.tsv.gz"))?, Compression::fast());
    for _ in 0..report.size(300, 4000) {
        bomb.write_all(&[b'a'; 1 << 20])?;
    }
    bomb.finish()?;
    fs::write(path("deep.json"), "[".repeat(1_000_000))?;
    for line in lines {
        let ended = Engram::line(&shared.fill(&line)).seconds(MAX_SECONDS).run()?;
        report.count_case();
        if !report.check_result(&ended, &line) {
            continue;
        }
        if ended.megabytes > MAX_MEGABYTES {
            report.hang("too much memory", format!("{line}: {ended}"));
        }
        let is_one_line = ended.code != Some(2)
            || ended.stderr.lines().filter(|line| !line.starts_with("warning: ")).count() == 1;
        // The error for an invalid option has several lines, with the usage from clap.
        if !matches!(ended.code, Some(0..=2))
            || !(is_one_line || ended.stderr.contains("For more information"))
        {
            report.loss("no one-line error", format!("{line}: {ended}"));
        }
    }
    Ok(())
}
