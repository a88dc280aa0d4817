//! The time of encoding REVEAL's memory on several processes, and the size of each shard.
//!
//! Usage: `mpirun -n 2 -x RAYON_NUM_THREADS=1 sharded_memory FOLDER [IMAGES]`, or without `mpirun`
//! for a single process. The entries show the first images of the embedded world (300 without
//! `IMAGES`). The model has the default sizes and random weights. Each process keeps its shard in
//! `FOLDER`.

use std::path::PathBuf;
use std::time::Instant;

use engram_infer::reveal::encoding::Encoding;
use engram_infer::reveal::retriever::{ENTRIES_PER_BATCH, ItemEncoder, Retriever};
use engram_memory::refresh::{Adoption, Refresh, RefreshSteps};
use engram_memory::search::{Filter, Queries};
use engram_memory::{Batch, Memory, MemoryError, Method, Store, ValueDtype};
use engram_models::compute::Compute;
use engram_models::params::ParameterBuilder;
use engram_models::reveal::Reveal;
use engram_train::distributed::Ranks;
use engram_train::distributed::sharded_memory::{ShardedMemory, shard_of};
use engram_train::recipe::BatchSettings;
use engram_train::studies::reveal::settings::{
    RevealData, RevealFeed, RevealMemory, RevealModel, RevealSettings,
};
use engram_train::studies::reveal::study::RevealStudy;
use engram_train::{Stop, StudyError};
use engram_train_mpi::Mpi;

/// The number of queries of each of the timed searches, and their number.
const QUERIES: [usize; 2] = [16, 100];

fn main() -> Result<(), StudyError> {
    let mpi = Mpi::start(|rank, lost| eprintln!("rank {rank} {lost}"))?;
    let ranks = mpi.as_ref().map_or_else(Ranks::default, Mpi::ranks);
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("give a folder for the memory")?);
    let folder = folder.join(format!("{}-of-{}", ranks.rank(), ranks.size()));
    let images = arguments.next().map_or(Ok(300), |images| images.parse())?;
    let settings = RevealSettings {
        data: RevealData { max_images: images, ..RevealData::default() },
        model: RevealModel::default(),
        memory: RevealMemory::default(),
        feeds: vec![RevealFeed::default()],
    };
    let batch = BatchSettings::default();
    let study = RevealStudy::new(settings, batch, Compute::cpu(), folder.clone(), None)?;
    let encoding = study.encoding();
    let Encoding { corpus, sequencer, config } = encoding.as_ref();
    let model = Reveal::new(config, &ParameterBuilder::on_cpu(1))?;

    let start = Instant::now();
    let items = shard_of(corpus.items.len(), ENTRIES_PER_BATCH, &ranks);
    let (dtype, stop) = (ValueDtype::default(), Stop::default());
    Retriever::build_part(&folder, &model, corpus, sequencer, dtype, (items, &stop))?;
    let memory: Box<dyn Store> = match ranks.size() {
        1 => Box::new(Memory::open(&folder)?),
        _ => Box::new(ShardedMemory::open(&folder, &ranks)?),
    };
    let build = start.elapsed();

    let start = Instant::now();
    let (change, shared) = (memory.begin()?, study.encoding());
    let refresh =
        Refresh::start(change, Vec::new(), RefreshSteps { start: 0, lag: 0 }, move |batch| {
            let Encoding { corpus, sequencer, .. } = shared.as_ref();
            let indices = batch.entries.iter().filter_map(|entry| corpus.index_of(entry.id));
            let mut encoder = ItemEncoder::new(&model, corpus, sequencer);
            let encoded = encoder.encode(&indices.collect::<Vec<_>>());
            let (keys, values) = encoded.map_err(|error| MemoryError::Rows(error.into()))?;
            Ok(Batch { keys, values, ..batch })
        });
    let adoption = refresh.adopt(0, memory.as_ref())?;
    let refresh = start.elapsed();
    assert!(matches!(adoption, Adoption::Now(_)), "the refresh is due at once");

    let snapshot = memory.snapshot();
    let [queries, searches] = QUERIES;
    let keys: Vec<f32> = (0..queries * config.key_dim).map(|i| (i as f32).sin()).collect();
    let start = Instant::now();
    ranks.share_reads(|| {
        for _ in 0..searches {
            let queries = Queries { keys: &keys, k: 10 };
            let results = snapshot.search(Method::Exact, queries, &Filter::default())?;
            let rows: Vec<_> = results.hits.iter().flatten().map(|hit| hit.row).collect();
            snapshot.keys(&rows)?;
            snapshot.values(&rows)?;
        }
        Ok::<_, StudyError>(())
    })?;
    let search = start.elapsed() / searches as u32;
    println!(
        "rank {} of {}: {} of {} entries, {:.1} MB; built in {:.1} s, refreshed in {:.1} s; search \
         and read for {queries} queries in {:.2} ms",
        ranks.rank(),
        ranks.size(),
        Memory::open(&folder)?.generation().len(),
        corpus.items.len(),
        Memory::open(&folder)?.generation().bytes() as f64 / 1e6,
        build.as_secs_f64(),
        refresh.as_secs_f64(),
        search.as_secs_f64() * 1e3
    );
    if let Some(mpi) = mpi {
        mpi.finish();
    }
    Ok(())
}
