//! Compares BLEU, ROUGE-L and CIDEr with pycocoevalcap.

use engram_eval::caption::{CaptionOptions, evaluate, parse_annotations, parse_results};

use super::{assert_close, json, text};

const COLUMNS: [&str; 7] = ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr_D", "CIDEr"];

#[test]
#[ignore = "needs ENGRAM_DATA: metrics/captions_*"]
fn caption_scores_equal_pycocoevalcap() {
    for set in ["coco", "fakecap", "synth"] {
        let file = |kind| format!("metrics/captions_{set}.{kind}.json.gz");
        let annotations = parse_annotations("a", &text(&file("annotations"))).expect("a fixture");
        let results = parse_results("r", &text(&file("results"))).expect("a fixture");
        let computed = evaluate(&annotations, &results, &CaptionOptions::default());
        let computed = computed.expect("matching fixtures");
        let expected = json(&file("expected"));
        for (column, value) in COLUMNS.iter().zip(computed.corpus.values()) {
            assert_close(value, &expected["corpus"][*column], 1e-9, &format!("{set} {column}"));
        }
        assert!(expected["columns"].as_array().unwrap().iter().eq(&COLUMNS));
        let items = expected["items"].as_array().unwrap();
        assert_eq!(computed.images.len(), items.len());
        for (index, (image, item)) in computed.images.iter().zip(items).enumerate() {
            assert_eq!(image.id.to_string(), expected["image_ids"][index].to_string());
            for (column, value) in image.metrics.values().into_iter().enumerate() {
                let description = format!("{set} image {} {}", image.id, COLUMNS[column]);
                assert_close(value, &item[column], 1e-9, &description);
            }
        }
    }
}
