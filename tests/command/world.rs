//! `engram data world` as a user runs it: `engram memory` and `engram eval` read the written files.

use std::collections::HashMap;
use std::fs;

use crate::running::{Folder, json, read_files, read_json_lines as json_lines, refused, succeeds};
use serde_json::Value;

#[test]
fn a_memory_of_the_world_is_searched_and_updated() {
    let folder = &Folder::new();
    fs::create_dir(folder.join("w")).unwrap();
    succeeds(folder, "data world --out w --images 120 --size 32 --split test");
    let build = "memory build --keys w/keys.npy --values w/values.npy --entries w/entries.jsonl";
    succeeds(folder, &format!("{build} --out m"));

    let questions = json_lines(&folder.join("w/questions.jsonl"));
    assert!(questions.iter().all(|question| question["split"] == "test"));
    let entries: HashMap<i64, Value> = json_lines(&folder.join("w/entries.jsonl"))
        .into_iter()
        .map(|entry| (entry["id"].as_i64().unwrap(), entry))
        .collect();
    for question in &questions {
        let entry = &entries[&question["entry"].as_i64().unwrap()];
        assert!(entry.to_string().contains(question["answers"][0].as_str().unwrap()));
        let slug = question["image_slug"].as_str().unwrap();
        let view = folder.join(format!("w/views/{slug}-{}.png", question["view"]));
        assert_eq!(image::open(view).unwrap().into_rgb8().dimensions(), (32, 32));
    }
    for image in entries.values().filter_map(|entry| entry["image"].as_str()) {
        assert!(folder.join("w").join(image).is_file(), "{image}");
    }

    succeeds(folder, "memory search m --queries w/queries.npy -k 10 --out ids.npy");
    let bytes = fs::read(folder.join("ids.npy")).unwrap();
    let ids = bytes[bytes.len() - 80 * questions.len()..].chunks(8);
    let ids: Vec<i64> = ids.map(|id| i64::from_le_bytes(id.try_into().unwrap())).collect();
    let ranked = questions.iter().zip(ids.chunks(10));
    let retrieved =
        ranked.filter(|(question, ids)| ids.contains(&question["entry"].as_i64().unwrap())).count();
    assert!(retrieved as f64 > 0.8 * questions.len() as f64, "{retrieved} of {}", questions.len());

    let swapped = json_lines(&folder.join("w/swap.jsonl"));
    assert_eq!(swapped.len(), 100);
    assert!(swapped.iter().all(|entry| entries[&entry["id"].as_i64().unwrap()] != *entry));
    let update = "memory update m --keys w/swap_keys.npy --values w/swap_values.npy";
    succeeds(folder, &format!("{update} --entries w/swap.jsonl"));
    succeeds(folder, "memory verify m");

    let tasks = fs::read_to_string(folder.join("w/haystack.jsonl")).unwrap();
    assert_eq!(tasks.lines().count(), 200, "1 in 10, 1 in 100");
    let replies = tasks.replace("}\n", ",\"response\":\"yes\"}\n");
    fs::write(folder.join("replies.jsonl"), replies).unwrap();
    let report = json(folder, "eval haystack --hyp replies.jsonl");
    assert_eq!(report["detail"]["accuracy_plain"], 0.5);
}

#[test]
fn the_folder_has_the_same_bytes_for_any_number_of_threads() {
    let folder = &Folder::new();
    succeeds(folder, "data world --out one/w --images 60 --views 3 --threads 1");
    succeeds(folder, "data world --out two --images 60 --views 3 --threads 2");
    let single_thread = read_files(&folder.join("one/w"));
    assert_eq!(single_thread, read_files(&folder.join("two")));
    assert_eq!(single_thread.iter().filter(|(name, _)| name.starts_with("views/")).count(), 180);
    assert_eq!(fs::read_dir(folder).unwrap().count(), 2, "nothing is left beside them");

    for (arguments, part) in [
        ("--out two", "two: already contains files; give a new folder"),
        ("--out two/README.md", "give a new folder"),
        ("--out ..", "does not end in a folder name"),
        ("--out three --images 3", "use 40 to 1881"),
        ("--out three --size 0", "size is 0"),
        ("--out three --views 1", "1 is not in 2..=1000"),
    ] {
        refused(folder, &format!("data world {arguments}"), part);
    }
    assert!(!folder.join("three").exists());
}

#[test]
fn the_examples_of_the_help_work() {
    let folder = &Folder::new();
    let help = succeeds(folder, "memory --help").replace("\\\n", "");
    let (_, examples) = help.split_once("(no download needed):\n").unwrap();
    let examples: Vec<&str> = examples.lines().take_while(|line| !line.is_empty()).collect();
    assert!(examples.len() > 8, "{help}");
    for example in examples {
        let arguments = example.trim().strip_prefix("engram ").unwrap();
        // A smaller world, because the graph over the whole world takes a minute.
        let smaller =
            arguments.replace("data world --out world", "data world --out world --images 60");
        succeeds(folder, &smaller);
    }
}
