//! Searches the memory from `build_memory` with test questions, deletes the best entries, and
//! searches again.
//!
//! ```text
//! cargo run --release --example search_memory -- facts
//! ```

use std::error::Error;

use engram::data::world::features::HashFeatures;
use engram::data::world::questions::{Question, Split};
use engram::data::world::{World, WorldOptions};
use engram::memory::search::{Filter, Queries};
use engram::memory::{Generation, Memory, Method, Snapshot, Writer};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("give the folder of the memory")?;
    let world = World::new(&WorldOptions::default())?;
    let test_questions = world.questions.iter().filter(|question| question.split == Split::Test);
    let questions: Vec<Question> = test_questions.step_by(1000).take(3).cloned().collect();
    let keys = HashFeatures::new(&world).queries(&questions)?;

    let memory = Memory::open(&folder)?;
    let best_ids = print_results(&memory.generation(), &questions, &keys)?;

    // An edit creates a new generation. Readers keep the old generation until they reload.
    Writer::open(&folder)?.delete(&best_ids)?;
    memory.reload()?;
    println!("\nwithout entries {best_ids:?}:");
    print_results(&memory.generation(), &questions, &keys)?;
    Ok(())
}

/// Prints the two best entries for each question. Returns the id of each best entry.
fn print_results(
    generation: &Generation,
    questions: &[Question],
    keys: &[f32],
) -> Result<Vec<i64>, Box<dyn Error>> {
    let results = generation.search(Method::Exact, Queries { keys, k: 2 }, &Filter::default())?;
    for (question, hits) in questions.iter().zip(&results.hits) {
        println!(
            "\n{} ({}; {})",
            question.text,
            question.image_slug,
            question.answers.join(" or ")
        );
        for hit in hits {
            let entry = generation.entry(hit.row)?;
            println!("  {:.3}  {:>6}  {:<9} {}", hit.score, hit.id, entry.source, entry.text());
        }
    }
    Ok(results.hits.iter().filter_map(|hits| Some(hits.first()?.id)).collect())
}
