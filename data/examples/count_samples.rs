//! Prints the number of samples at 16 kHz of each audio file, and the root mean square of their second half,
//! or why the file is refused: `cargo run -p engram-data --example count_samples -- FILE...`

use std::path::Path;

use engram_data::audio::read_audio;

fn main() {
    for file in std::env::args_os().skip(1) {
        let name = Path::new(&file).display();
        match read_audio(&file, 16_000) {
            Ok(samples) => {
                let half = &samples[samples.len() / 2..];
                let power = half.iter().map(|s| f64::from(*s) * f64::from(*s)).sum::<f64>();
                let level = (power / half.len().max(1) as f64).sqrt();
                println!("{name}\t{}\t{level:.4}", samples.len());
            }
            Err(error) => println!("{name}\trefused\t{error}"),
        }
    }
}
