//! Prints, for each audio file, the number of samples at 16 kHz and the fraction of its power in
//! its second half, or the error: `cargo run -p engram-data --example count_samples -- FILE...`
//!
//! With `--write RATE` before the files, writes the samples at this rate as raw 32-bit floats to
//! FILE.f32.

use std::io::Write;
use std::path::Path;

use engram_data::audio::read_audio;

fn main() {
    let mut files: Vec<_> = std::env::args_os().skip(1).collect();
    let rate = match files.first().is_some_and(|first| first == "--write") {
        true => files.drain(..2).nth(1).and_then(|rate| rate.to_str()?.parse().ok()),
        false => None,
    };
    for file in files {
        let name = Path::new(&file).display();
        match read_audio(&file, rate.unwrap_or(16_000)) {
            Ok(samples) => {
                let power = |part: &[f32]| -> f64 {
                    part.iter().map(|sample| f64::from(*sample) * f64::from(*sample)).sum()
                };
                let fraction = power(&samples[samples.len() / 2..]) / power(&samples).max(1e-9);
                println!("{name}\t{}\t{fraction:.4}", samples.len());
                if rate.is_some() {
                    let bytes: Vec<u8> = samples.iter().flat_map(|x| x.to_le_bytes()).collect();
                    let path = format!("{name}.f32");
                    let file = std::fs::File::create(path).and_then(|mut f| f.write_all(&bytes));
                    file.expect("a file that can be written");
                }
            }
            Err(error) => println!("{name}\trefused\t{error}"),
        }
    }
}
