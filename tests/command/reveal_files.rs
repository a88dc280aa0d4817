//! REVEAL on files as a user runs it: the scores of a run equal the scores from `engram eval`, and
//! a memory of another model or tokenizer is refused.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use crate::running::{Folder, copy, json, read_json, read_json_lines, refused, succeeds};
use image::{Rgb, RgbImage};
use serde_json::{Value, json};

const NUM_IMAGES: usize = 30;

/// Writes a small COCO with VQA and A-OKVQA questions.
fn write_data(folder: &Path) {
    fs::create_dir_all(folder.join("pictures")).unwrap();
    let write = |name: &str, value: Value| fs::write(folder.join(name), value.to_string()).unwrap();
    let colours = ["red", "green", "blue"];
    let indices = 0..NUM_IMAGES;
    for i in indices.clone() {
        let mut pixel = [30; 3];
        pixel[i % 3] = 200;
        let colour = |x: u32, y: u32| Rgb(if (x + y) as usize % 30 == i { [0; 3] } else { pixel });
        RgbImage::from_fn(40, 30, colour).save(folder.join(format!("pictures/{i}.jpg"))).unwrap();
    }
    let images: Vec<Value> =
        indices.clone().map(|i| json!({"id": i, "file_name": format!("{i}.jpg")})).collect();
    let captions = indices.clone().flat_map(|i| {
        let colour = colours[i % 3];
        [format!("A {colour} picture."), format!("a wall that is {colour}")]
            .map(|caption| json!({"image_id": i, "id": i, "caption": caption}))
    });
    let captions: Vec<Value> = captions.collect();
    write("captions.json", json!({"images": images, "annotations": captions}));
    let vqa = |i: usize| json!({"question_id": i, "image_id": i, "question": "What colour is it?"});
    let answers = |i: usize| {
        let answers =
            [colours[i % 3], colours[i % 3], "dark"].map(|answer| json!({"answer": answer}));
        json!({"question_id": i, "question_type": "what", "answer_type": "other", "answers": answers})
    };
    write("questions.json", json!({"questions": indices.clone().map(vqa).collect::<Vec<_>>()}));
    write(
        "annotations.json",
        json!({"annotations": indices.clone().map(answers).collect::<Vec<_>>()}),
    );
    let aokvqa = |i: usize| {
        json!({"question_id": format!("q{i}"), "image_id": i, "question": "Which colour?",
            "choices": colours, "correct_choice_idx": i % 3, "difficult_direct_answer": i.is_multiple_of(7),
            "direct_answers": [colours[i % 3], "dark", colours[i % 3]]})
    };
    write("aokvqa.json", indices.map(aokvqa).collect::<Vec<_>>().into());
}

const RECIPE: &str = r#"
study = "reveal"
seed = 1

[data]
path = "data"
vocabulary = 120
validation_share = 0.2
test_share = 0.4
max_answer_tokens = 6

[[data.captions]]
file = "captions.json"
image_folder = "pictures"
describe = true
source = "captions"

[[data.questions]]
questions = "questions.json"
annotations = "annotations.json"
image_name = "pictures/%d.jpg"
source = "questions"

[[data.questions]]
aokvqa = "aokvqa.json"
image_name = "pictures/%d.jpg"

[model]
d_model = 16
num_heads = 2
d_kv = 8
d_ff = 32
fusion_layers = 1
decoder_layers = 1
image_size = 16
patch_size = 8
image_width = 16
image_heads = 2
image_ff = 16
image_layers = 1
value_tokens = 2
key_dim = 8

[memory]
k = 3
reencoded_fraction = 0.4
refresh_every = 20
refresh_lag = 4

[batch]
examples = 8

[optimiser]
learning_rate = 1e-2

[evaluation]
every_epochs = 0
keep_best = false

[log]
tensorboard = false

[gradient_check]
allow = ["**"]

[[phase]]
name = "warm-start"
steps = 20
feed = { examples = "entries", knowledge = "own", contrastive = 0.5 }

[[phase]]
name = "fine-tune"
steps = 60
feed = { examples = "questions", knowledge = "retrieved", contrastive = 0.2 }

[check]
files = ["model.safetensors"]
"#;

#[test]
fn a_run_on_files_has_the_scores_of_eval_and_refuses_other_memories() {
    let folder = &Folder::new();
    write_data(&folder.join("data"));
    fs::write(folder.join("recipe.toml"), RECIPE).unwrap();
    let printed = succeeds(folder, "train reveal --recipe recipe.toml --run run --quiet");
    assert!(
        printed.contains("test examples of captions: 12") && printed.contains("note: "),
        "{printed}"
    );
    let summary = read_json(&folder.join("run/summary.json"));
    let scores = summary["dataset_metrics"].as_array().unwrap();
    for (score, command) in scores.iter().zip([
        "eval caption --ref run/test/captions-references.json \
         --hyp run/test/captions-results.json",
        "eval vqa --ref run/test/vqa-annotations.json --hyp run/test/vqa-results.json",
        "eval aokvqa --ref run/test/aokvqa-questions.json \
         --hyp run/test/aokvqa-predictions.json",
    ]) {
        let evaluated = json(folder, command);
        let measures = score["measures"].as_array().unwrap();
        for field in ["metric", "value", "n", "ci95"] {
            assert_eq!(measures[0][field], evaluated[field], "{command}: {field}");
        }
        assert!(measures[0]["value"].as_f64().unwrap() > 0.0, "{command}: {evaluated}");
        let secondary = evaluated["secondary"].as_array().unwrap();
        assert_eq!(&measures[1..], &secondary[..], "{command}");
    }
    assert_eq!(scores.len(), 3);
    // The annotations of the data set give the same score.
    let command = "eval caption --ref data/captions.json --with-result \
                 --hyp run/test/captions-results.json";
    let report = json(folder, command);
    let value = |measure: &Value| measure["value"].as_f64().unwrap();
    assert!((value(&report) - value(&scores[0]["measures"][0])).abs() < 1e-9, "{report}");

    // Entries retrieved in the test belong to training images only.
    let tested = read_json_lines(&folder.join("run/test.jsonl"));
    assert_eq!(tested.len(), 36);
    let memory = engram_memory::Memory::open(folder.join("run/memory")).unwrap().generation();
    let document = |id: &Value| {
        let row = memory.row_of(id.as_i64().unwrap()).unwrap().unwrap();
        memory.entry(row).unwrap().document.unwrap()
    };
    // `image` is the index of an image, which is also its document name.
    let held_out: HashSet<String> =
        tested.iter().map(|example| example["image"].to_string()).collect();
    assert_eq!(held_out.len(), 12);
    for example in &tested {
        assert_eq!(example["image_file"], format!("pictures/{}.jpg", example["image"]));
        let retrieved = example["retrieved"].as_array().unwrap();
        assert_eq!(retrieved.len(), 3);
        assert!(retrieved.iter().all(|id| !held_out.contains(&document(id))), "{example}");
    }

    let question =
        json!({"id": 1, "question": "What colour is it?", "image": "data/pictures/0.jpg"});
    fs::write(folder.join("ask.jsonl"), format!("{question}\n")).unwrap();
    let answer = "answer run --questions ask.jsonl --quiet --out";
    succeeds(folder, &format!("{answer} answers.jsonl"));
    // An image without a question gets a caption, as in the test.
    let captioned = tested.iter().find(|example| example["question"] == "").unwrap();
    let image_file = format!("data/pictures/{}.jpg", captioned["name"].as_str().unwrap());
    fs::write(folder.join("alone.jsonl"), json!({"id": 1, "image": image_file}).to_string())
        .unwrap();
    succeeds(folder, "answer run --questions alone.jsonl --quiet --out described.jsonl");
    let described = read_json(&folder.join("described.jsonl"));
    assert!(described.get("question").is_none(), "{described}");
    assert_eq!(described["answer"], captioned["answer"]);
    // A copy of its memory, and memories of another seed, another tokenizer and an unknown model.
    let copy_memory = |name: &str| {
        copy(&folder.join("run/memory"), &folder.join(name));
        folder.join(name)
    };
    copy_memory("copy");
    succeeds(folder, &format!("{answer} again.jsonl --memory copy"));
    let read = |file: &str| fs::read(folder.join(file)).unwrap();
    assert!(read("answers.jsonl") == read("again.jsonl"));
    let made_by = read_json(&folder.join("run/memory/made-by.json"));
    for (field, part) in [
        ("weights_sha256", "another model"),
        ("tokenizer_sha256", "another tokenizer"),
        ("inputs_sha256", "another image preprocessing"),
    ] {
        let other_memory = copy_memory(field);
        let mut changed = made_by.clone();
        changed[field] = "0".repeat(64).into();
        fs::write(other_memory.join("made-by.json"), changed.to_string()).unwrap();
        let parts = [part, "use the memory of this run"];
        refused(folder, &format!("{answer} x.jsonl --memory {field}"), &parts);
    }
    fs::remove_file(copy_memory("nobody").join("made-by.json")).unwrap();
    refused(folder, &format!("{answer} x.jsonl --memory nobody"), "has neither made-by.json");
    // A memory without the folder of its generation is refused.
    fs::remove_dir_all(copy_memory("gone").join("gen-000001")).unwrap();
    refused(folder, &format!("{answer} x.jsonl --memory gone"), "gen-000001 is missing");
    // An image that does not decode is an error.
    fs::write(folder.join("data/pictures/0.jpg"), "not an image").unwrap();
    refused(folder, &format!("{answer} x.jsonl"), "0.jpg: is not a known image format");
    refused(folder, "train reveal --recipe recipe.toml --run other --quiet", "0.jpg");
    assert!(!folder.join("x.jsonl").exists());
}

#[test]
fn missing_images_are_skipped_in_every_phase() {
    let folder = &Folder::new();
    write_data(&folder.join("data"));
    fs::remove_file(folder.join("data/pictures/7.jpg")).unwrap();
    let recipe = RECIPE.replace("steps = 20", "steps = 2").replace("steps = 60", "steps = 2");
    let recipe = recipe.replace("every_epochs = 0", "every_epochs = 1");
    let phase = "[[phase]]\nname = \"images\"\nsteps = 2\n\
                    feed = { examples = \"images\", contrastive = 1 }\n\n[[phase]]";
    fs::write(folder.join("recipe.toml"), recipe.replacen("[[phase]]", phase, 1)).unwrap();
    let train = "train reveal --recipe recipe.toml --quiet --run";
    refused(folder, &format!("{train} run"), "7.jpg, which is missing");
    for policy in ["skip", "text_only"] {
        let set = format!("data.on_bad_image=\"{policy}\"");
        let printed = succeeds(folder, &format!("{train} {policy} --set {set}"));
        let note = "1 of 30 described images skipped";
        assert!(printed.contains("missing: 1,") && printed.contains(note), "{printed}");
    }
}

#[test]
fn invalid_settings_for_files_are_refused() {
    let folder = &Folder::new();
    write_data(&folder.join("data"));
    fs::write(folder.join("recipe.toml"), RECIPE).unwrap();
    for (set, part) in [
        ("data.path=nowhere", "nowhere/captions.json: cannot be read: No such file"),
        ("data.test_share=1.5", "data.test_share"),
        ("data.validation_share=0.7", "data.test_share"),
        ("data.test_share=0", "have no example to test with"),
        ("data.on_bad_image=\"ignore\"", "on_bad_image"),
        ("data.colour=1", "colour"),
        ("model.frozen_image_share=2", "model.frozen_image_share"),
        ("model.size=\"base\"", "model.size"),
        ("model.t5=\"nowhere\"", "model.d_model"),
        ("model.vit=\"nowhere\"", "model.image_size"),
    ] {
        let train = "train reveal --recipe recipe.toml --quiet --run run --set";
        refused(folder, &format!("{train} {set}"), part);
        let _ = fs::remove_dir_all(folder.join("run"));
    }
    // A recipe without any source has no entries for a memory.
    let sourceless = RECIPE.lines().filter(|line| !line.starts_with("source = "));
    fs::write(folder.join("recipe.toml"), sourceless.collect::<Vec<_>>().join("\n")).unwrap();
    let parts = ["memory.k", "no entries for a memory", "set `memory.k` to 0"];
    refused(folder, "train reveal --recipe recipe.toml --quiet --run run", &parts);
}
