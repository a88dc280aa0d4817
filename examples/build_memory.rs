//! Builds a memory of the embedded world: 18,056 entries from four sources. A fixed function
//! computes the keys, without a model.
//!
//! ```text
//! cargo run --release --example build_memory -- facts
//! ```

use std::error::Error;

use engram::data::world::features::{HashFeatures, KEY_WIDTH, VALUE_TOKENS, VALUE_WIDTH};
use engram::data::world::{World, WorldOptions};
use engram::memory::{Batch, MemoryError, MemoryFormat, ValueDtype, ValueFormat, Writer};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("give a folder for the new memory")?;
    let world = World::new(&WorldOptions::default())?;
    let features = HashFeatures::new(&world);
    let values = ValueFormat { tokens: VALUE_TOKENS, width: VALUE_WIDTH, dtype: ValueDtype::F16 };
    let format = MemoryFormat { width: KEY_WIDTH, normalised: true, values: Some(values) };

    // Entries are written in batches, because a memory may be larger than RAM.
    let batches = world.facts.chunks(2048).map(|facts| {
        Ok(Batch {
            entries: facts.iter().map(|fact| fact.entry.clone()).collect(),
            keys: features.fact_keys(facts).map_err(|error| MemoryError::Rows(error.into()))?,
            values: features.values(facts),
        })
    });
    let writer = Writer::create(&folder, format, world.facts.len(), batches)?;
    let manifest = writer.generation().manifest();
    println!("{folder}: generation {}, {} sources", manifest.generation, manifest.sources.len());
    Ok(())
}
