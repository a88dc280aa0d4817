//! `engram explore`: its opening examples, marks of right answers, and images of a run's own data.

use std::fs;
use std::path::Path;

use crate::explorer::{Explorer, copy_reveal};
use crate::running::{Folder, copy, succeeds, write_npy};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engram_infer::digest;
use serde_json::{Value, json};

fn bundled(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("train/bundled").join(name)
}

/// Writes the checksums of a run again, after a change of its files.
fn write_checksums_again(run: &Path) {
    let list = run.join("run.sha256");
    let lines = fs::read_to_string(&list).unwrap();
    let names = lines.lines().map(|line| line.split_once("  ").unwrap().1);
    let line = |name| format!("{}  {name}\n", digest::of_bytes(fs::read(run.join(name)).unwrap()));
    fs::write(list, names.map(line).collect::<String>()).unwrap();
}

/// The opening question is answered correctly from its entry, and not without the entry. The
/// missing memory is built first.
#[test]
fn the_opening_question_has_a_right_answer_with_its_entry() {
    let folder = &Folder::new();
    let run = folder.join("runs/reveal");
    copy(&bundled("reveal"), &run);
    let memory = run.join("memory");
    if memory.exists() {
        fs::remove_dir_all(&memory).unwrap();
    }
    let explorer = Explorer::open(folder, &["runs"]);
    assert!(memory.join("CURRENT").is_file());
    let question = explorer.get("/api/runs/0/example").json()["question"].clone();
    let (id, entry) = (&question["id"], question["entry"].as_i64().unwrap());
    let image = explorer.get(&format!("/api/runs/0/questions/{id}/image"));
    assert!(image.status == 200 && image.headers.contains("image/png"), "{}", image.headers);
    let image = STANDARD.encode(&image.bytes);
    let ask = |test_question: &Value, without: &[i64]| {
        let request = json!({"question": question["text"], "image": image,
            "without": without, "test_question": test_question});
        explorer.post("/api/runs/0/answer", &request.to_string())
    };
    let answer = ask(id, &[]).json();
    assert_eq!(answer["correct"], true, "{answer}");
    assert!(answer["evidence"].as_array().unwrap().iter().any(|hit| hit["id"] == entry));
    assert_eq!(ask(id, &[entry]).json()["correct"], false);
    // A user's own question is not marked.
    assert_eq!(ask(&Value::Null, &[]).json()["correct"], Value::Null);
    ask(&json!(-5), &[]).is_refused(422, "there is no test question -5");
}

/// Images correct a word in the opening clip: with the stored test results, and without them.
#[test]
fn the_opening_clip_has_a_rescued_word() {
    let folder = &Folder::new();
    for model in ["clip", "conformer", "avformer"] {
        copy(&bundled(model), &folder.join(model));
    }
    // The number of the clip of the search for `run`.
    let opening_clip = || {
        let explorer = Explorer::open(folder, &["avformer"]);
        let search = explorer.get("/api/runs/0/rescue").json();
        let clip = &search["clip"];
        let transcripts = explorer
            .get(&format!(
                "/api/runs/0/transcribe?name={}&take={}&noise={}&snr_db={}&other={}",
                clip["name"],
                clip["take"],
                clip["noise"].as_str().unwrap(),
                clip["snr_db"],
                clip["other"]
            ))
            .json();
        let [_, without, with, _] = &transcripts["transcripts"].as_array().unwrap()[..] else {
            panic!("{transcripts}")
        };
        let errors = |transcript: &Value| transcript["errors"].as_u64().unwrap();
        assert!(errors(without) > errors(with), "{transcripts}");
        assert!(!transcripts["rescued"].as_array().unwrap().is_empty(), "{transcripts}");
        let names = explorer.get("/api/runs/0/names").json()["names"].as_array().unwrap().len();
        let [name, take] = ["name", "take"].map(|field| clip[field].as_u64().unwrap() as usize);
        (take * names + name, search["tried"].as_u64().unwrap())
    };
    let test = folder.join("avformer/test");
    if test.exists() {
        fs::remove_dir_all(&test).unwrap();
    }
    let (number, tried) = opening_clip();
    assert!(tried >= 1, "{tried}");
    fs::create_dir(&test).unwrap();
    let line = json!({"id": format!("voice-{number:05}"), "rescued": ["word"], "lost": []});
    fs::write(test.join("rescued.jsonl"), format!("{line}\n")).unwrap();
    assert_eq!(opening_clip(), (number, 1));
    // Without a rescued word, there is no clip.
    fs::write(test.join("rescued.jsonl"), "").unwrap();
    let explorer = Explorer::open(folder, &["avformer"]);
    assert_eq!(explorer.get("/api/runs/0/rescue").json(), json!({"clip": null, "tried": 0}));
}

/// A run on files shows the images of its data folder, and no file outside of it.
#[test]
fn images_of_a_run_are_only_those_in_its_data_folder() {
    let folder = &Folder::new();
    copy_reveal(&folder.join("run"));
    fs::create_dir_all(folder.join("data/photographs")).unwrap();
    let save = |file: &str| image::RgbImage::new(8, 8).save(folder.join(file)).unwrap();
    save("secret.png");
    save("data/photographs/1.png");
    fs::write(folder.join("data/notes.png"), "not an image").unwrap();
    let recipe = fs::read_to_string(folder.join("run/recipe.toml")).unwrap();
    assert!(recipe.contains("path = \"\"\n") && recipe.contains("entries = []\n"), "{recipe}");
    let recipe = recipe
        .replace("path = \"\"\n", "path = \"data\"\n")
        .replace("entries = []\n", "entries = [\"entries.jsonl\"]\n");
    fs::write(folder.join("run/recipe.toml"), recipe).unwrap();
    write_checksums_again(&folder.join("run"));
    let secret = folder.join("secret.png").display().to_string();
    let mut paths = vec![
        "photographs/1.png",
        "../secret.png",
        "photographs/../../secret.png",
        &secret,
        "photographs",
        "gone.png",
        "notes.png",
    ];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("../secret.png", folder.join("data/link.png")).unwrap();
        paths.push("link.png");
    }
    let test_answer = |(id, path): (usize, &&str)| {
        let line = json!({"id": id, "name": "1", "question": "What is it?", "part": "held_out",
            "image": id, "image_file": path, "made_up": false, "answer": "", "correct": false,
            "references": ["square"], "source": null, "entry": null, "retrieved": []});
        format!("{line}\n")
    };
    let lines: String = paths.iter().enumerate().map(test_answer).collect();
    fs::write(folder.join("run/test.jsonl"), lines).unwrap();
    // The memory of another run, whose entries have these images.
    let entry = |path: &&str| format!("{}\n", json!({"source": "kg", "text": "x", "image": path}));
    fs::write(folder.join("entries.jsonl"), paths.iter().map(entry).collect::<String>()).unwrap();
    write_npy(folder, "keys.npy", &vec![1.0; paths.len()], 1);
    fs::create_dir(folder.join("unfinished")).unwrap();
    fs::copy(folder.join("run/recipe.toml"), folder.join("unfinished/recipe.toml")).unwrap();
    succeeds(
        folder,
        "memory build --keys keys.npy --entries entries.jsonl --out unfinished/memory --quiet",
    );

    let explorer = Explorer::open(folder, &["run", "unfinished"]);
    let questions = explorer.get("/api/runs/0/questions").json();
    assert_eq!(questions["found"], paths.len(), "{questions}");
    assert_eq!(questions["questions"][0]["image"], "photographs/1.png");
    // All stored answers are wrong, so there is no example.
    assert_eq!(explorer.get("/api/runs/0/example").json(), json!({"question": null, "tried": 0}));
    let memories = explorer.get("/api/memories").json();
    let memories = memories.as_array().unwrap();
    let memory = memories.iter().position(|memory| memory["run"] == 1).unwrap();
    for (index, path) in paths.iter().enumerate() {
        for address in [
            format!("/api/runs/0/questions/{index}/image"),
            format!("/api/memories/{memory}/images/{index}"),
        ] {
            let response = explorer.get(&address);
            if index == 0 {
                assert_eq!(response.status, 200, "{path}: {}", response.body);
                assert_eq!(response.bytes, fs::read(folder.join("data").join(path)).unwrap());
            } else {
                let reason = response.body.contains("is not in")
                    || *path == "notes.png" && response.body.contains("is not an image");
                assert!(response.status == 422 && reason, "{path}: {}", response.body);
            }
        }
    }
    for question in ["..%2f..%2fsecret.png", "0%2f..%2f..", "-1", "99"] {
        let response = explorer.get(&format!("/api/runs/0/questions/{question}/image"));
        assert!((400..500).contains(&response.status), "{question}: {}", response.status);
    }
    drop(explorer);
    // Started in another folder, and with data that were moved.
    let is_found = |start: &Path, arguments: &[&str]| {
        Explorer::open(start, arguments).get("/api/runs/0/questions/0/image").status == 200
    };
    assert!(is_found(&folder.join("run"), &["../run"]));
    fs::rename(folder.join("data"), folder.join("moved")).unwrap();
    assert!(!is_found(folder, &["run"]) && is_found(folder, &["run", "--images", "moved"]));
}
