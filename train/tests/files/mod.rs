//! A small data set in files, for tests of the REVEAL study.

use std::fs;
use std::path::Path;

use engram_train::studies::reveal::settings::RevealData;
use image::{Rgb, RgbImage};
use serde_json::{Value, json};

/// The number of images, `0.png` … in `images/`. Each has two captions and a question.
pub const NUM_IMAGES: usize = 20;

/// Writes a JSON file.
pub fn write(folder: &Path, name: &str, value: &Value) {
    fs::write(folder.join(name), value.to_string()).unwrap();
}

/// Writes the files, and returns the recipe settings for them.
pub fn data_of(folder: &Path) -> RevealData {
    fs::create_dir_all(folder.join("images")).unwrap();
    for i in 0..NUM_IMAGES {
        let colour = |x: u32, y: u32| Rgb([(i * 12) as u8, (x * 7) as u8, (y * 9) as u8]);
        let image = RgbImage::from_fn(30, 20, colour);
        image.save(folder.join(format!("images/{i}.png"))).unwrap();
    }
    let indices = 0..NUM_IMAGES;
    let images: Vec<Value> =
        indices.clone().map(|i| json!({"id": i, "file_name": format!("{i}.png")})).collect();
    let captions = indices.clone().flat_map(|i| {
        ["one", "two"]
            .map(|n| json!({"image_id": i, "id": i, "caption": format!("number {i} {n}")}))
    });
    let captions: Vec<Value> = captions.collect();
    write(folder, "captions.json", &json!({"images": images, "annotations": captions}));
    let questions: Vec<Value> = indices
        .clone()
        .map(|i| {
            json!({"question_id": format!("q{i}"), "image_id": i, "question": format!("which {i}?"),
                "choices": ["a", "b"], "correct_choice_idx": 0, "difficult_direct_answer": false,
                "direct_answers": [format!("answer {i}"), "other"]})
        })
        .collect();
    write(folder, "aokvqa.json", &json!(questions));
    let lines = indices.map(|i| {
        let line = json!({"source": "web", "image": format!("images/{i}.png"),
            "text": format!("web {i}")});
        format!("{line}\n")
    });
    let text = "{\"source\": \"web\", \"text\": \"without an image\"}\n";
    fs::write(folder.join("entries.jsonl"), lines.collect::<String>() + text).unwrap();
    let toml = r#"
        entries = ["entries.jsonl"]
        test_share = 0.3
        validation_share = 0.2
        [[captions]]
        file = "captions.json"
        image_folder = "images"
        describe = true
        source = "captions"
        [[questions]]
        aokvqa = "aokvqa.json"
        image_name = "images/%d.png"
        source = "questions"
    "#;
    RevealData { path: folder.display().to_string(), ..toml::from_str(toml).unwrap() }
}

/// One step on the captions, with two entries to read.
pub const RECIPE: &str = r#"
study = "reveal"
[data]
entries = ["entries.jsonl"]
[[data.captions]]
file = "captions.json"
image_folder = "images"
describe = true
[model]
fusion_layers = 1
value_tokens = 2
key_dim = 8
frozen_image_share = 0.5
[memory]
k = 2
[batch]
examples = 4
[optimiser]
learning_rate = 1e-30
rule = { weight_decay = 0.0 }
[log]
tensorboard = false
[gradient_check]
allow = ["**"]
[[phase]]
name = "fine-tune"
steps = 1
[check]
files = ["model.safetensors"]
"#;
