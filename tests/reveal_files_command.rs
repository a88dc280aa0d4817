//! REVEAL on files as a user runs it: the scores of a run equal the scores from `engram eval`, and
//! a memory of another model or tokenizer is refused.
#![allow(clippy::unwrap_used)]

mod running;

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use image::{Rgb, RgbImage};
use running::{engram, refusal, refused, succeeds};
use serde_json::{Value, json};

const NUM_IMAGES: usize = 30;

/// Writes a small COCO with VQA and A-OKVQA questions.
fn write_data(folder: &Path) {
    fs::create_dir_all(folder.join("pictures")).unwrap();
    let write = |name: &str, value: Value| fs::write(folder.join(name), value.to_string()).unwrap();
    let colours = ["red", "green", "blue"];
    let all = 0..NUM_IMAGES;
    for i in all.clone() {
        let mut pixel = [30; 3];
        pixel[i % 3] = 200;
        let colour = |x: u32, y: u32| Rgb(if (x + y) as usize % 30 == i { [0; 3] } else { pixel });
        RgbImage::from_fn(40, 30, colour).save(folder.join(format!("pictures/{i}.jpg"))).unwrap();
    }
    let images: Vec<Value> =
        all.clone().map(|i| json!({"id": i, "file_name": format!("{i}.jpg")})).collect();
    let captions = all.clone().flat_map(|i| {
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
    write("questions.json", json!({"questions": all.clone().map(vqa).collect::<Vec<_>>()}));
    write("annotations.json", json!({"annotations": all.clone().map(answers).collect::<Vec<_>>()}));
    let aokvqa = |i: usize| {
        json!({"question_id": format!("q{i}"), "image_id": i, "question": "Which colour?",
            "choices": colours, "correct_choice_idx": i % 3, "difficult_direct_answer": i.is_multiple_of(7),
            "direct_answers": [colours[i % 3], "dark", colours[i % 3]]})
    };
    write("aokvqa.json", all.map(aokvqa).collect::<Vec<_>>().into());
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

fn json_of(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn a_run_on_files_has_the_scores_of_eval_and_refuses_other_memories() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    write_data(&at.join("data"));
    fs::write(at.join("recipe.toml"), RECIPE).unwrap();
    let printed = succeeds(at, "train reveal --recipe recipe.toml --run run --quiet");
    assert!(
        printed.contains("test examples of captions: 12") && printed.contains("note: "),
        "{printed}"
    );
    let summary = json_of(&at.join("run/summary.json"));
    let scores = summary["dataset_metrics"].as_array().unwrap();
    for (score, command) in scores.iter().zip([
        "eval caption --ref run/test/captions-references.json \
         --hyp run/test/captions-results.json",
        "eval vqa --ref run/test/vqa-annotations.json --hyp run/test/vqa-results.json",
        "eval aokvqa --ref run/test/aokvqa-questions.json \
         --hyp run/test/aokvqa-predictions.json",
    ]) {
        let evaluated: Value =
            serde_json::from_str(&succeeds(at, &format!("{command} --json"))).unwrap();
        let measures = score["measures"].as_array().unwrap();
        for field in ["metric", "value", "n", "ci95"] {
            assert_eq!(measures[0][field], evaluated[field], "{command}: {field}");
        }
        assert!(measures[0]["value"].as_f64().unwrap() > 0.0, "{command}: {evaluated}");
        let others = evaluated["secondary"].as_array().unwrap();
        assert_eq!(&measures[1..], &others[..], "{command}");
    }
    assert_eq!(scores.len(), 3);
    // The annotations of the data set give the same score.
    let all = "eval caption --ref data/captions.json --with-result \
                 --hyp run/test/captions-results.json --json";
    let all: Value = serde_json::from_str(&succeeds(at, all)).unwrap();
    let value = |one: &Value| one["value"].as_f64().unwrap();
    assert!((value(&all) - value(&scores[0]["measures"][0])).abs() < 1e-9, "{all}");

    // Entries retrieved in the test belong to training images only.
    let tested: Vec<Value> = fs::read_to_string(at.join("run/test.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(tested.len(), 36);
    let memory = engram_memory::Memory::open(at.join("run/memory")).unwrap().generation();
    let document = |id: &Value| {
        let row = memory.row_of(id.as_i64().unwrap()).unwrap().unwrap();
        memory.entry(row).unwrap().document.unwrap()
    };
    // `image` is the index of an image, which is also its document name.
    let held_out: HashSet<String> = tested.iter().map(|one| one["image"].to_string()).collect();
    assert_eq!(held_out.len(), 12);
    for one in &tested {
        let read = one["retrieved"].as_array().unwrap();
        assert_eq!(read.len(), 3);
        assert!(read.iter().all(|id| !held_out.contains(&document(id))), "{one}");
    }

    let question =
        json!({"id": 1, "question": "What colour is it?", "image": "data/pictures/0.jpg"});
    fs::write(at.join("ask.jsonl"), format!("{question}\n")).unwrap();
    let answer = "answer run --questions ask.jsonl --quiet --out";
    succeeds(at, &format!("{answer} answers.jsonl"));
    // An image without a question gets a caption, as in the test.
    let captioned = tested.iter().find(|one| one["question"] == "").unwrap();
    let image_file = format!("data/pictures/{}.jpg", captioned["name"].as_str().unwrap());
    fs::write(at.join("alone.jsonl"), json!({"id": 1, "image": image_file}).to_string()).unwrap();
    succeeds(at, "answer run --questions alone.jsonl --quiet --out described.jsonl");
    let described = json_of(&at.join("described.jsonl"));
    assert!(described.get("question").is_none(), "{described}");
    assert_eq!(described["answer"], captioned["answer"]);
    // A copy of its memory, and memories of another seed, another tokenizer and an unknown model.
    let copied = |name: &str| {
        copy(&at.join("run/memory"), &at.join(name));
        at.join(name)
    };
    copied("copy");
    succeeds(at, &format!("{answer} again.jsonl --memory copy"));
    assert_eq!(
        fs::read(at.join("answers.jsonl")).unwrap(),
        fs::read(at.join("again.jsonl")).unwrap()
    );
    let made_by = json_of(&at.join("run/memory/made-by.json"));
    for (field, part) in [
        ("weights_sha256", "another model"),
        ("tokenizer_sha256", "another tokenizer"),
        ("inputs_sha256", "another image preprocessing"),
    ] {
        let other = copied(field);
        let mut changed = made_by.clone();
        changed[field] = "0".repeat(64).into();
        fs::write(other.join("made-by.json"), changed.to_string()).unwrap();
        refused(at, &format!("{answer} x.jsonl --memory {field}"), part);
        refused(at, &format!("{answer} x.jsonl --memory {field}"), "use the memory of this run");
    }
    // A memory of an older version, without the hash of the inputs, is accepted.
    let older = copied("older");
    let mut changed = made_by.clone();
    changed.as_object_mut().unwrap().remove("inputs_sha256");
    fs::write(older.join("made-by.json"), changed.to_string()).unwrap();
    succeeds(at, &format!("{answer} older.jsonl --memory older"));
    fs::remove_file(copied("nobody").join("made-by.json")).unwrap();
    refused(at, &format!("{answer} x.jsonl --memory nobody"), "has no made-by.json");
    // A memory without the folder of its generation is refused.
    fs::remove_dir_all(copied("gone").join("gen-000001")).unwrap();
    refused(at, &format!("{answer} x.jsonl --memory gone"), "gen-000001 is missing");
    // An image that does not decode is an error.
    fs::write(at.join("data/pictures/0.jpg"), "not an image").unwrap();
    refused(at, &format!("{answer} x.jsonl"), "0.jpg: is not a known image format");
    refused(at, "train reveal --recipe recipe.toml --run other --quiet", "0.jpg");
    assert!(!at.join("x.jsonl").exists());
}

#[test]
fn missing_images_are_skipped_in_every_phase() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    write_data(&at.join("data"));
    fs::remove_file(at.join("data/pictures/7.jpg")).unwrap();
    let recipe = RECIPE.replace("steps = 20", "steps = 2").replace("steps = 60", "steps = 2");
    let recipe = recipe.replace("every_epochs = 0", "every_epochs = 1");
    let phase = "[[phase]]\nname = \"images\"\nsteps = 2\n\
                    feed = { examples = \"images\", contrastive = 1 }\n\n[[phase]]";
    fs::write(at.join("recipe.toml"), recipe.replacen("[[phase]]", phase, 1)).unwrap();
    let train = "train reveal --recipe recipe.toml --quiet --run";
    refused(at, &format!("{train} run"), "7.jpg, which is missing");
    for bad in ["skip", "text_only"] {
        let set = format!("data.on_bad_image=\"{bad}\"");
        let printed = succeeds(at, &format!("{train} {bad} --set {set}"));
        let counted = "1 of 30 described images skipped";
        assert!(printed.contains("missing: 1,") && printed.contains(counted), "{printed}");
    }
}

#[test]
fn invalid_settings_for_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    write_data(&at.join("data"));
    fs::write(at.join("recipe.toml"), RECIPE).unwrap();
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
        refused(at, &format!("{train} {set}"), part);
        let _ = fs::remove_dir_all(at.join("run"));
    }
    // A recipe without any source has no entries for a memory.
    let sourceless = RECIPE.lines().filter(|line| !line.starts_with("source = "));
    fs::write(at.join("recipe.toml"), sourceless.collect::<Vec<_>>().join("\n")).unwrap();
    let output = engram(at, "train reveal --recipe recipe.toml --quiet --run run");
    refusal(&output, "no source", &["memory.k", "no entries for a memory", "set `memory.k` to 0"]);
}
