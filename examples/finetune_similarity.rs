//! Trains a phrase similarity model on the embedded phrases and scores held-out pairs.
//!
//! ```text
//! cargo run --release --example finetune_similarity -- runs/phrases
//! ```

use engram_models::compute::Compute;
use std::error::Error;
use std::path::Path;

use engram::data::world::phrases::phrase_world;
use engram::eval::metric::pearson::pearson;
use engram::infer::similarity::run::SimilarityRun;
use engram::train::studies::patent::run::train_patent;
use engram::train::{Recipe, RecipeOptions, RunOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let run = std::env::args().nth(1).ok_or("give a folder for the new run")?;
    // The repository's recipe with 10 epochs instead of 40.
    let set = ["phase.train.epochs=10", "check.metric_value=0.6", "check.tolerance=0.4"];
    let options = RecipeOptions { tiny: false, set: set.map(str::to_owned).to_vec() };
    let mut recipe = Recipe::load(Path::new("train/recipes/patent/world.toml"), &options)?;
    let options = RunOptions { run: run.clone().into(), resume: true, ..RunOptions::default() };
    train_patent(&mut recipe, &options)?;

    // The recipe uses the same seed, so its training pairs do not include these test pairs.
    let pairs = phrase_world(1).test;
    let scores = SimilarityRun::open(Path::new(&run), &Compute::cpu())?.predict(&pairs, &|_| ())?;
    for (pair, score) in pairs.iter().zip(&scores).step_by(pairs.len() / 5) {
        let gold = pair.score.unwrap_or(f32::NAN);
        println!("{score:.2} ({gold:.2})  {} / {} [{}]", pair.anchor, pair.target, pair.context);
    }
    let gold: Vec<f64> = pairs.iter().map(|pair| pair.score.map_or(f64::NAN, f64::from)).collect();
    println!("Pearson's r {:.3}, {} pairs", pearson(&scores, &gold)?, pairs.len());
    Ok(())
}
