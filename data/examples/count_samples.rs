//! Prints, for each audio file, the number of samples at 16 kHz and the fraction of its power in
//! its second half, or the error: `cargo run -p engram-data --example count_samples -- FILE...`

use std::path::Path;

use engram_data::audio::read_audio;

fn main() {
    for file in std::env::args_os().skip(1) {
        let name = Path::new(&file).display();
        match read_audio(&file, 16_000) {
            Ok(samples) => {
                let power = |part: &[f32]| -> f64 {
                    part.iter().map(|sample| f64::from(*sample) * f64::from(*sample)).sum()
                };
                let fraction = power(&samples[samples.len() / 2..]) / power(&samples).max(1e-9);
                println!("{name}\t{}\t{fraction:.4}", samples.len());
            }
            Err(error) => println!("{name}\trefused\t{error}"),
        }
    }
}
