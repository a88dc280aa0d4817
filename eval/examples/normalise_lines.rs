//! Normalises JSON strings, one per line, from standard input. Prints the speed to standard error.
//!
//! `cargo run --release -p engram-eval --example normalise_lines -- whisper-en < texts.jsonl > normalised.jsonl`

use std::error::Error;
use std::io::{BufWriter, Read, Write, stdin, stdout};
use std::time::Instant;

use engram_eval::normalise::{Buffers, Normaliser};

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "whisper-en".to_owned());
    let normaliser = Normaliser::parse(&name)?;
    let mut input = String::new();
    stdin().read_to_string(&mut input)?;
    let texts: Vec<String> =
        input.split_terminator('\n').map(serde_json::from_str).collect::<Result<_, _>>()?;

    let start = Instant::now();
    let (mut buffers, mut normalised, mut ends) = (Buffers::default(), String::new(), Vec::new());
    for text in &texts {
        normaliser.normalise_into(text, &mut buffers, &mut normalised);
        ends.push(normalised.len());
    }
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("{name}: {} strings, {:.0} per second", texts.len(), texts.len() as f64 / seconds);

    let mut out = BufWriter::new(stdout().lock());
    let mut begin = 0;
    for end in ends {
        writeln!(out, "{}", serde_json::to_string(&normalised[begin..end])?)?;
        begin = end;
    }
    out.flush()?;
    Ok(())
}
