//! Tiny models with random weights, and entries that they encode.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The lines of a JSON Lines file.
pub fn json_lines(entries: &[Value]) -> String {
    entries.iter().map(|entry| format!("{entry}\n")).collect()
}

const RED: [u8; 3] = [220, 30, 20];
const GREEN: [u8; 3] = [20, 200, 40];

/// An image of one colour with a few dots.
fn image_of_colour(path: &Path, colour: [u8; 3]) {
    let dots =
        |x: u32, y: u32| image::Rgb(if (x + y).is_multiple_of(5) { [0, 0, 0] } else { colour });
    image::RgbImage::from_fn(20, 14, dots).save(path).unwrap();
}

/// Writes a model from the fixtures, with a tokenizer of lower-case words. `special` has the ids of
/// the special tokens.
fn model_folder(
    folder: &Path,
    name: &str,
    vocabulary: &[String],
    special: Range<usize>,
    post_processor: Value,
    mut model: Value,
) -> PathBuf {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tests/fixtures").join(name);
    let target = folder.join(name);
    fs::create_dir(&target).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture.join(file), target.join(file)).unwrap();
    }
    let ids = vocabulary.iter().zip(0..).map(|(token, id)| (token.clone(), json!(id)));
    model["vocab"] = ids.collect::<serde_json::Map<String, Value>>().into();
    let added = |id: usize| {
        json!({"id": id, "content": vocabulary[id], "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    };
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": special.map(added).collect::<Vec<_>>(),
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": post_processor, "decoder": null, "model": model
    });
    fs::write(target.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    target
}

/// Writes the CLIP model from the fixtures with a letter tokenizer and image settings.
pub fn clip_folder(folder: &Path) -> PathBuf {
    let mut vocabulary: Vec<String> = ('a'..='z').map(String::from).collect();
    vocabulary.extend((0..12).map(|i| format!("unused{i}")));
    vocabulary.extend(["<|startoftext|>", "<|endoftext|>"].map(String::from));
    let model = json!({"type": "BPE", "dropout": null, "unk_token": "<|endoftext|>",
        "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
        "byte_fallback": false, "merges": []});
    let clip = model_folder(folder, "clip", &vocabulary, 38..40, Value::Null, model);
    let processor = json!({
        "size": {"shortest_edge": 12}, "crop_size": {"height": 12, "width": 12},
        "do_center_crop": true, "resample": 3,
        "image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]
    });
    fs::write(clip.join("preprocessor_config.json"), processor.to_string()).unwrap();
    clip
}

/// Writes the BERT model from the fixtures, of width 32, with a letter tokenizer.
pub fn bert_folder(folder: &Path) -> PathBuf {
    let mut vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].map(String::from).to_vec();
    vocabulary.extend(('a'..='z').map(String::from));
    vocabulary.extend(('a'..='z').map(|letter| format!("##{letter}")));
    let ends = json!({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]});
    let model = json!({"type": "WordPiece", "unk_token": "[UNK]",
        "continuing_subword_prefix": "##", "max_input_chars_per_word": 100});
    model_folder(folder, "bert", &vocabulary, 0..4, ends, model)
}

/// Writes entries of all kinds with two images in `pictures/`.
pub fn mixed_entries(folder: &Path) {
    fs::create_dir(folder.join("pictures")).unwrap();
    image_of_colour(&folder.join("pictures/red.png"), RED);
    image_of_colour(&folder.join("pictures/green.bmp"), GREEN);
    let entries = [
        json!({"id": 10, "source": "wit", "image": "red.png"}),
        json!({"id": 11, "source": "wit", "image": "green.bmp", "text": "all green"}),
        json!({"id": 12, "text": "a long sentence about the sea and the ships upon it"}),
        json!({"id": 13, "subject": "bern", "relation": "in", "object": "europe"}),
        json!({"id": 14, "question": "who", "answer": ["me", "you"]}),
    ];
    fs::write(folder.join("entries.jsonl"), json_lines(&entries)).unwrap();
}
