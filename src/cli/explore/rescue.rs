//! AVFormer runs: a test clip in which images of the spoken name correct a word.
//!
//! Clips that the run's own test stored in `test/rescued.jsonl` are tried first. A run without this
//! file tries the first clips of its test.

use std::path::Path;
use std::time::{Duration, Instant};

use engram_data::world::audiovisual::NoiseSettings;
use engram_data::world::questions::Split;
use serde::{Deserialize, Serialize};

use super::speech::{AvformerRun, ClipRequest, ClipTranscripts};

/// Maximum number of clips tried, and the maximum time.
const MAX_TRIED: usize = 40;
const MAX_SEARCH: Duration = Duration::from_secs(20);

/// The result of the search for a clip.
#[derive(Clone, Serialize)]
pub(super) struct RescueSearch {
    /// A clip with a rescued word; `None` if none was found.
    clip: Option<ClipRequest>,
    /// Number of clips tried.
    tried: usize,
}

/// A line of `test/rescued.jsonl`.
#[derive(Deserialize)]
struct RescuedClip {
    /// The id of the clip, such as `alto-00012`; it ends in the number of the clip.
    id: String,
    rescued: Vec<String>,
}

/// Finds a clip in which images of the spoken name rescue a word. Prefers a clip whose transcript
/// is correct with these images only: the frozen ASR model and the adapters with images of another
/// name are wrong.
pub(super) fn find(run: &AvformerRun) -> anyhow::Result<RescueSearch> {
    let (start, mut best) = (Instant::now(), 0);
    let mut search = RescueSearch { clip: None, tried: 0 };
    let stored = stored_clips(&run.folder);
    let clips = stored.unwrap_or_else(|| (0..run.data.test_clips).collect());
    for number in clips.into_iter().take(MAX_TRIED) {
        if start.elapsed() > MAX_SEARCH {
            break;
        }
        search.tried += 1;
        let clip = clip_of_test(run, number);
        let ClipTranscripts { transcripts, rescued, .. } = run.transcribe(&clip)?;
        let [frozen, _, with, other] = &transcripts[..] else { break };
        if rescued.is_empty() {
            continue;
        }
        let conditions = [true, with.errors == 0, frozen.errors > 0, other.errors > 0];
        let rank = conditions.iter().take_while(|condition| **condition).count();
        if rank > best {
            (best, search.clip) = (rank, Some(clip));
        }
        if best == conditions.len() {
            break;
        }
    }
    Ok(search)
}

/// The numbers of the clips with rescued words in `test/rescued.jsonl`; `None` if the run does not
/// have this file.
fn stored_clips(run: &Path) -> Option<Vec<usize>> {
    let text = engram_durable::read_text(run.join("test/rescued.jsonl")).ok()?;
    let clips = text.lines().filter_map(|line| serde_json::from_str::<RescuedClip>(line).ok());
    let rescued = clips.filter(|clip| !clip.rescued.is_empty());
    Some(rescued.filter_map(|clip| clip.id.rsplit('-').next()?.parse().ok()).collect())
}

/// A clip of the run's test, with its signal-to-noise ratio rounded to whole dB.
fn clip_of_test(run: &AvformerRun, number: usize) -> ClipRequest {
    let (noise, snr_db) = (run.data.test_noise.clone(), run.data.test_snr_db);
    let settings = NoiseSettings { noise, snr_db, masked: 0.0 };
    let snr_db = run.world.clip(Split::Test, number, &settings).snr_db;
    let num_names = run.world.names().len();
    let name = number % num_names;
    ClipRequest {
        name,
        take: number / num_names,
        noise: run.data.test_noise.first().copied(),
        snr_db: snr_db.unwrap_or_default().round(),
        other: (name + 1) % num_names,
    }
}
