//! Compares BLEU, ROUGE-L and CIDEr with pycocoevalcap. `ENGRAM_DATA` names the folder that
//! contains the fixtures in `metrics/`, which are not in this repository.

use std::path::{Path, PathBuf};

use engram_eval::caption::{
    CaptionOptions, CaptionScores, evaluate, read_annotations, read_results,
};
use engram_textfile::read_bytes;
use serde_json::Value;

const TOLERANCE: f64 = 1e-9;
const COLUMNS: [&str; 7] = ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr_D", "CIDEr"];

/// The folder of the fixtures. Without it, the test prints a note and is skipped.
fn fixtures(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("ENGRAM_DATA").map(|data| PathBuf::from(data).join("metrics"));
    if folder.is_none() {
        eprintln!("SKIPPED: {test}: set ENGRAM_DATA to the folder that contains `metrics`");
    }
    folder
}

fn scores(folder: &Path, set: &str) -> CaptionScores {
    let path = |kind| folder.join(format!("captions_{set}.{kind}.json.gz"));
    let annotations = read_annotations(&path("annotations")).expect("a fixture");
    let results = read_results(&path("results")).expect("a fixture");
    evaluate(&annotations, &results, &CaptionOptions::default()).expect("matching fixtures")
}

fn assert_close(computed: f64, reference: &Value, description: &str) {
    let reference = reference.as_f64().expect("a number in the fixture");
    let is_close = (computed - reference).abs() <= TOLERANCE * reference.abs();
    assert!(
        is_close || computed == reference,
        "{description}: {computed}, the reference has {reference}"
    );
}

#[test]
fn scores_equal_pycocoevalcap() {
    let Some(folder) = fixtures("scores_equal_pycocoevalcap") else { return };
    for set in ["coco", "fakecap", "synth"] {
        let computed = scores(&folder, set);
        let bytes = read_bytes(folder.join(format!("captions_{set}.expected.json.gz"))).unwrap();
        let expected: Value = serde_json::from_slice(&bytes).unwrap();
        for (column, value) in COLUMNS.iter().zip(computed.corpus.values()) {
            assert_close(value, &expected["corpus"][*column], &format!("{set} {column}"));
        }
        let columns = expected["columns"].as_array().unwrap();
        assert!(columns.iter().eq(&COLUMNS));
        let items = expected["items"].as_array().unwrap();
        assert_eq!(computed.images.len(), items.len());
        for (index, (image, item)) in computed.images.iter().zip(items).enumerate() {
            assert_eq!(image.id.to_string(), expected["image_ids"][index].to_string());
            for (column, value) in image.metrics.values().into_iter().enumerate() {
                let description = format!("{set} image {} {}", image.id, COLUMNS[column]);
                assert_close(value, &item[column], &description);
            }
        }
        println!("{set}: {} values are equal", (items.len() + 1) * COLUMNS.len());
    }
}

#[test]
fn scores_are_bit_identical_for_any_number_of_threads() {
    let Some(folder) = fixtures("scores_are_bit_identical_for_any_number_of_threads") else {
        return;
    };
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| scores(&folder, "synth"))
    };
    assert_eq!(run(1), run(3));
}
