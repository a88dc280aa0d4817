//! `engram train reveal` and `engram answer` on a small world.

use std::collections::BTreeMap;
use std::fs;

use crate::running::{
    Folder, engram, engram_reading, errors, json, printed, read_json_lines as lines, refused,
    succeeds,
};
use serde_json::Value;

#[test]
fn a_small_run_answers_with_evidence_and_refuses_invalid_inputs() {
    let folder = &Folder::new();
    succeeds(folder, "data world --out world --images 60");
    let train = "train reveal --recipe reveal/laptop --tiny --run run --quiet";
    let report = succeeds(folder, train);
    assert!(report.contains("held_out") && report.contains("facts changed"), "{report}");

    // The number of threads does not change the results.
    let single = train.replace("--run run", "--run single --threads 1");
    assert_eq!(succeeds(folder, &single), report);
    for file in ["model.safetensors", "metrics.jsonl", "test.jsonl", "summary.json"] {
        let read = |run: &str| fs::read(folder.join(run).join(file)).unwrap();
        assert!(read("single") == read("run"), "{file} differs with one thread");
    }

    let questions = fs::read_to_string(folder.join("world/questions.jsonl")).unwrap();
    let few: String = questions.lines().take(5).map(|line| format!("{line}\n")).collect();
    fs::write(folder.join("world/few.jsonl"), few).unwrap();
    let answer = "answer run --questions world/few.jsonl --quiet --out";
    let report = succeeds(folder, &format!("{answer} answers.jsonl -k 3 --evidence shapley"));
    for part in ["LDS", "fusion weight"] {
        assert!(report.contains(part), "{report}");
    }
    let answers = lines(&folder.join("answers.jsonl"));
    assert_eq!(answers.len(), 5);
    for answer in &answers {
        let evidence = answer["evidence"].as_array().unwrap();
        let priors: f64 = evidence.iter().map(|entry| entry["prior"].as_f64().unwrap()).sum();
        assert!((priors - evidence.len() as f64).abs() < 1e-3, "{priors}");
        let tokens = answer["tokens"].as_array().unwrap().len();
        for entry in evidence {
            assert_eq!(entry["attribution"].as_array().unwrap().len(), tokens);
            assert_eq!(entry["gradient_attribution"].as_array().unwrap().len(), tokens);
            assert_eq!(entry["shapley"].as_array().unwrap().len(), tokens);
            assert!(entry["gate"].as_f64().unwrap() <= 1.0 && entry["text"].is_string());
        }
        let credit = |method: &str| {
            let mut methods = answer["credit"].as_array().unwrap().iter();
            methods.find(|quality| quality["method"] == method).unwrap()
        };
        let sums = |values: &str| {
            let tokens = |entry: &Value| entry[values].as_array().unwrap().clone();
            let sum = |entry| tokens(entry).iter().map(|token| token.as_f64().unwrap()).sum();
            evidence.iter().map(sum).collect::<Vec<f64>>()
        };
        // The Shapley values share what the answer loses without all three entries.
        let shares: f64 = sums("shapley").iter().sum();
        let drop = &credit("shapley")["drop"];
        assert!((drop[1].as_f64().unwrap() - shares).abs() < 1e-3, "{drop} {shares}");
        // Without the entry of the largest attribution, the answer loses that attribution.
        let largest = sums("attribution").into_iter().fold(f64::NEG_INFINITY, f64::max);
        let drop = &credit("leave-one-out")["drop"];
        assert!((drop[0].as_f64().unwrap() - largest).abs() < 1e-3, "{drop} {largest}");
    }

    // With a control, the same entries are found, and something else is read.
    succeeds(folder, &format!("{answer} permuted.jsonl -k 3 --control permuted-keys"));
    let ids = |answer: &Value| -> Vec<Value> {
        answer["evidence"].as_array().unwrap().iter().map(|entry| entry["id"].clone()).collect()
    };
    let permuted = lines(&folder.join("permuted.jsonl"));
    let values = |answer: &Value| answer["log_probability"].clone();
    for (changed, answer) in permuted.iter().zip(&answers) {
        assert_eq!(ids(changed), ids(answer));
        assert_ne!(values(changed), values(answer));
    }
    succeeds(folder, &format!("{answer} donors.jsonl -k 3 --control donor-entries"));
    let donors = lines(&folder.join("donors.jsonl"));
    let other = |index: usize| ids(&answers[(index + 2) % 5]);
    assert!(donors.iter().enumerate().all(|(index, answer)| ids(answer) == other(index)));
    refused(folder, &format!("{answer} y.jsonl -k 0 --control fixed-gate"), "no memory is read");

    let prompts = folder.join("facts/prompts/base");
    fs::create_dir_all(prompts).unwrap();
    fs::write(folder.join("facts/base.json"), r#"{"triplets": []}"#).unwrap();
    let not_on_facts = "the run was not trained on facts alone; train one with";
    refused(folder, "answer run --audit facts --out results.jsonl", not_on_facts);

    // The haystack tasks use their own entries and are scored.
    let reply = "answer run --haystack world/haystack.jsonl --quiet --out";
    succeeds(folder, &format!("{reply} replies.jsonl"));
    let (tasks, replies) =
        (lines(&folder.join("world/haystack.jsonl")), lines(&folder.join("replies.jsonl")));
    assert_eq!(replies.len(), tasks.len());
    for (task, reply) in tasks.iter().zip(&replies) {
        assert_eq!(task["answer"], reply["answer"]);
        let haystack = task["haystack"].as_array().unwrap();
        for ids in reply["retrieved"].as_array().unwrap() {
            let ids = ids.as_array().unwrap();
            assert!(ids.len() == 10 && ids.iter().all(|id| haystack.contains(id)));
        }
    }
    let report = json(folder, "eval haystack --hyp replies.jsonl");
    assert_eq!(report["detail"]["compliance"], 1.0);
    assert_eq!(report["n"], tasks.len());
    // The run also replies to tasks without gold answers.
    let text = fs::read_to_string(folder.join("world/haystack.jsonl")).unwrap();
    let unlabelled = text.replace("\"answer\":\"no\",", "").replace("\"answer\":\"yes\",", "");
    let unlabelled = unlabelled.replace("\"needles\"", "\"others\"");
    assert!(!unlabelled.contains("answer\":"), "{unlabelled}");
    fs::write(folder.join("world/unlabelled.jsonl"), unlabelled).unwrap();
    succeeds(folder, "answer run --haystack world/unlabelled.jsonl --quiet --out unlabelled.jsonl");
    // Replies that the input already has are replaced.
    fs::copy(folder.join("unlabelled.jsonl"), folder.join("world/again.jsonl")).unwrap();
    succeeds(folder, "answer run --haystack world/again.jsonl --quiet --out again.jsonl");
    let read = |file: &str| fs::read(folder.join(file)).unwrap();
    assert!(read("again.jsonl") == read("unlabelled.jsonl"));
    for (reply, other) in replies.iter().zip(lines(&folder.join("unlabelled.jsonl"))) {
        assert_eq!(
            (&reply["response"], &reply["answers"]),
            (&other["response"], &other["answers"])
        );
    }
    for (old, new, part) in [
        ("smell of", "taste of", "unlabelled.jsonl:1: the question is not"),
        ("\"view\":2", "\"view\":9", "image not found"),
        ("\"haystack\":[", "\"haystack\":[1000000,", ":1: no entry has the id 1000000"),
        ("\"haystack\":[", "\"haystack\":[],\"was\":[", ":1: has no entries in `haystack`"),
        ("\"haystack\":[", "\"haystack\":[7,7,", "unlabelled.jsonl:1: the entry 7 occurs twice"),
        ("\"seed\":1", "\"seed\":7", "unlabelled.jsonl:1: is about the world of seed 7"),
        ("\"1-in-10-1\"", "\"1-in-10-0\"", "jsonl:2: the id `1-in-10-0` is already used"),
    ] {
        fs::write(folder.join("world/unlabelled.jsonl"), text.replace(old, new)).unwrap();
        refused(folder, "answer run --haystack world/unlabelled.jsonl --quiet --out x.jsonl", part);
    }

    // Without a memory no entry is retrieved.
    succeeds(folder, &format!("{answer} alone.jsonl -k 0"));
    let without_memory = lines(&folder.join("alone.jsonl"));
    assert!(without_memory.iter().all(|answer| answer["evidence"].as_array().unwrap().is_empty()));

    for (line, part) in [
        (r#"{"id": 1, "question": "What?"}"#, "image"),
        (r#"{"id": 1, "question": "What?", "image": "none.png"}"#, "none.png"),
        ("no json", "a line is"),
        (r#"{"id": 1, "Question": "What?", "image": "v.png"}"#, "did you mean `question`?"),
        (r#"{"id": 1, "question": " ", "image": "v.png"}"#, "has an empty question"),
        (r#"{"id": null, "question": "What?", "image": "v.png"}"#, "has no id"),
    ] {
        fs::write(folder.join("bad.jsonl"), format!("\u{feff}{line}\n")).unwrap();
        let answer = "answer run --questions bad.jsonl --out x.jsonl";
        refused(folder, answer, &["bad.jsonl:1", part]);
        assert!(!folder.join("x.jsonl").exists());
    }
    fs::write(folder.join("bad.jsonl"), "\n").unwrap();
    let bad = "answer run --questions bad.jsonl --out x.jsonl";
    refused(folder, bad, "bad.jsonl: has no questions");
    fs::write(folder.join("bad.jsonl"), b"\n\xff\n").unwrap();
    refused(folder, bad, "bad.jsonl:2: is not UTF-8");

    // Image paths in questions from standard input start from the current folder.
    let few = fs::read(folder.join("world/few.jsonl")).unwrap();
    let piped = "answer ../run --questions - --quiet --out ../piped.jsonl";
    printed(&engram_reading(&folder.join("world"), piped, few), piped);
    let piped = lines(&folder.join("piped.jsonl"));
    assert_eq!(piped.len(), answers.len());
    assert!(piped.iter().zip(&answers).all(|(piped, answer)| piped["answer"] == answer["answer"]));

    // No input is overwritten.
    let few = fs::read(folder.join("world/few.jsonl")).unwrap();
    for output in
        ["world/few.jsonl", "world/../world/few.jsonl", "run/model.safetensors", "run/new"]
    {
        let part = if output.starts_with("run") {
            "write into the run"
        } else {
            "would overwrite the input"
        };
        refused(folder, &format!("{answer} {output}"), part);
    }
    refused(folder, &format!("{answer} world"), "is a folder");
    assert_eq!(fs::read(folder.join("world/few.jsonl")).unwrap(), few);
    let part = "--evidence needs retrieved entries";
    refused(folder, &format!("{answer} x.jsonl -k 0 --evidence"), part);
    let part = "give -k 10 or less";
    refused(folder, &format!("{answer} x.jsonl -k 11 --evidence shapley"), part);

    // Truncated questions give a note.
    let line = few.split(|byte| *byte == b'\n').next().unwrap();
    let mut long: Value = serde_json::from_slice(line).unwrap();
    long["text"] = "what is it ".repeat(30).into();
    fs::write(folder.join("world/long.jsonl"), long.to_string()).unwrap();
    let output = engram(folder, "answer run --questions world/long.jsonl --out long.jsonl --quiet");
    assert!(errors(&output).contains("1 question, the first"));

    // The run's memory is replaced by the memory of another model.
    let made_by = folder.join("run/memory/made-by.json");
    let text = fs::read_to_string(&made_by).unwrap();
    let hash = text.split('"').find(|word| word.len() == 64).unwrap();
    fs::write(&made_by, text.replace(hash, &"0".repeat(64))).unwrap();
    refused(folder, &format!("{answer} x.jsonl"), "was built with another");
    fs::write(&made_by, text).unwrap();
    succeeds(folder, &format!("{answer} x.jsonl"));

    refused(folder, &format!("{answer} y.jsonl --memory nowhere"), "nowhere: no such folder");

    // A run without its memory builds the memory again.
    fs::remove_dir_all(folder.join("run/memory")).unwrap();
    let loud = answer.replace(" --quiet", "");
    let output = engram(folder, &format!("{loud} anew.jsonl"));
    assert!(errors(&output).contains("is built again"));
    assert!(read("anew.jsonl") == read("x.jsonl"));

    // Damaged weights are refused.
    let weights = folder.join("run/model.safetensors");
    let original = fs::read(&weights).unwrap();
    let mut damaged = original.clone();
    let length = damaged.len();
    damaged[length - 4000..].fill(0xff);
    fs::write(&weights, damaged).unwrap();
    refused(folder, &format!("{answer} y.jsonl"), "model.safetensors does not match its SHA-256");
    fs::write(&weights, original).unwrap();

    // Options without effect are refused; the error for an image that does not decode has the line.
    let text = fs::read_to_string(folder.join("world/few.jsonl")).unwrap();
    let image = text.lines().nth(1).unwrap().split("views/").nth(1).unwrap();
    let image = folder.join("world/views").join(image.split('"').next().unwrap());
    let original = fs::read(&image).unwrap();
    fs::write(&image, &original[..40]).unwrap();
    refused(folder, &format!("{answer} y.jsonl"), "few.jsonl, line ");
    fs::write(&image, original).unwrap();
    // A memory without a record of its model is not replaced silently.
    fs::rename(&made_by, folder.join("made-by.json")).unwrap();
    refused(folder, &format!("{answer} y.jsonl"), "remove it to build it again");
    fs::rename(folder.join("made-by.json"), &made_by).unwrap();

    // An unfinished run is refused.
    fs::create_dir(folder.join("stopped")).unwrap();
    fs::copy(folder.join("run/recipe.toml"), folder.join("stopped/recipe.toml")).unwrap();
    let stopped = "answer stopped --questions world/few.jsonl --out z.jsonl";
    refused(folder, stopped, "is an unfinished REVEAL run");

    // A memory with keys and values of other widths is refused.
    let world = "--keys world/keys.npy --values world/values.npy --entries world/entries.jsonl";
    succeeds(folder, &format!("memory build {world} --out other"));
    refused(folder, &format!("{answer} z.jsonl --memory other"), "use the memory of this run");
}

#[test]
fn deleted_facts_are_not_retrieved_and_come_back() {
    let folder = &Folder::new();
    succeeds(folder, "train reveal --recipe reveal/triplets --tiny --run run --quiet");
    let prompts = folder.join("databases/towns/prompts/alias");
    fs::create_dir_all(&prompts).unwrap();
    let triplets =
        r#"[["Oslo", "River", "Aker"], ["Oslo", "Stream", "Aker"], ["Rome", "River", "Tiber"]]"#;
    let database = format!(r#"{{"triplets": {triplets}}}"#);
    fs::write(folder.join("databases/towns/alias.json"), &database).unwrap();
    let line = |fact: usize, subject: &str, relation: [&str; 2], object: &str| {
        format!(
            "{{\"fact_id\": {fact}, \"subject\": \"{subject}\", \"relation\": \"{}\", \
             \"relation_aliases\": [\"{}\"], \"gold_object\": \"{object}\", \
             \"prompt_text\": \"{subject} lies on\"}}\n",
            relation[0], relation[1]
        )
    };
    let (river, stream) = (["River", "Stream"], ["Stream", "River"]);
    let text = line(0, "Oslo", river, "Aker")
        + &line(1, "Oslo", stream, "Aker")
        + &line(2, "Rome", river, "Tiber");
    fs::write(prompts.join("prompts_continuations.jsonl"), &text).unwrap();
    succeeds(folder, "answer run --audit databases --out results.jsonl --quiet");
    let results = lines(&folder.join("results.jsonl"));
    assert_eq!(results.len(), 9);
    for result in &results {
        let retrieved = result["retrieval_trace"]["retained_candidates"].as_array().unwrap();
        let subjects: Vec<&str> =
            retrieved.iter().map(|e| e["subject"].as_str().unwrap()).collect();
        let about = result["subject"].as_str().unwrap();
        let own = subjects.iter().filter(|subject| **subject == about).count();
        let whole = if about == "Oslo" { 2 } else { 1 };
        // Both entries of a fact are deleted, and the next fact finds them again.
        match result["state"].as_str().unwrap() {
            "FULL" => assert_eq!((own, subjects.len()), (whole, 3), "{result}"),
            "DEL-ON" => assert_eq!((own, subjects.len()), (0, 3 - whole), "{result}"),
            _ => assert!(subjects.is_empty(), "{result}"),
        }
    }
    let report = json(folder, "eval forget --hyp results.jsonl");
    assert_eq!(report["n"], 3);
    let groups = report["breakdowns"].as_array().unwrap();
    assert!(groups.is_empty(), "{groups:?}");

    let rephrase = "answer run --audit databases --out rephrased.jsonl --rephrase";
    refused(folder, &format!("{rephrase} Quiz:{{}}"), "has no prompts_direct_questions.jsonl");
    fs::write(prompts.join("prompts_direct_questions.jsonl"), &text).unwrap();
    refused(folder, &format!("{rephrase} Quiz"), "has no {} for the question");
    succeeds(folder, &format!("{rephrase} Quiz:{{}}"));
    let rephrased = lines(&folder.join("rephrased.jsonl"));
    assert_eq!(rephrased.len(), 9);
    for (result, before) in rephrased.iter().zip(&results) {
        assert_eq!(result["style"], "rephrased");
        assert_eq!(result["prompt"], format!("Quiz:{}", before["prompt"].as_str().unwrap()));
    }
    fs::remove_file(prompts.join("prompts_direct_questions.jsonl")).unwrap();

    // With random values, the same entries are found.
    succeeds(folder, "answer run --audit databases --out random.jsonl --control random-values");
    for (result, before) in lines(&folder.join("random.jsonl")).iter().zip(&results) {
        assert_eq!(result["retrieval_trace"], before["retrieval_trace"]);
    }
    let control = "answer run --audit databases --out r.jsonl --control fixed-gate";
    refused(folder, control, "the model has no gate, so the control has no effect");

    refused(folder, "answer run --audit run --out r.jsonl", "has no database with prompts");
    refused(
        folder,
        "answer run --audit databases --out r.jsonl -k 0",
        "--audit needs retrieved entries",
    );
    fs::write(prompts.join("prompts_continuations.jsonl"), text.replace("Tiber", "Po")).unwrap();
    let wrong = "prompts_continuations.jsonl:3: fact 2 of";
    refused(folder, "answer run --audit databases --out r.jsonl", wrong);
    assert!(!folder.join("r.jsonl").exists());
}

#[test]
fn facts_are_changed_while_the_memory_is_used() {
    let folder = &Folder::new();
    succeeds(folder, "train reveal --recipe reveal/triplets --tiny --run run --quiet");
    succeeds(folder, "answer run --edits 130 --out edits.jsonl --quiet");
    succeeds(folder, "answer run --edits 130 --out again.jsonl --quiet --threads 1");
    let results = lines(&folder.join("edits.jsonl"));
    assert!(results == lines(&folder.join("again.jsonl")));
    let mut prompts = BTreeMap::new();
    for result in &results {
        let of = |key: &str| result[key].as_str().unwrap();
        *prompts.entry((of("topology"), of("style"))).or_insert(0) += 1;
        let entries = result["retrieval_trace"]["retained_candidates"].as_array().unwrap();
        assert_eq!(entries.len(), if of("state") == "DEL-OFF" { 0 } else { 5 });
        // A fact that is gone, or has another name, is not found any more.
        let says =
            |entry: &Value| ["subject", "relation"].iter().all(|part| entry[part] == result[part]);
        if of("state") == "DEL-ON" || of("style") == "deleted" {
            assert!(!entries.iter().any(says), "{result}");
        }
    }
    for after in ["after 0 changes", "after 10 changes", "after 100 changes", "after 130 changes"] {
        assert_eq!(prompts[&(after, "unchanged")], 3 * 100);
    }
    for change in ["added", "updated", "renamed", "deleted"] {
        assert!((30..150).contains(&prompts[&("after 130 changes", change)]), "{prompts:?}");
    }
    let report = json(folder, "eval forget --hyp edits.jsonl");
    assert_eq!(report["breakdowns"][0]["name"], "topology");
}

#[test]
fn a_grid_of_two_configurations_writes_its_reports() {
    let folder = &Folder::new();
    let small_settings = "--set data.max_images=60 --set data.vocabulary=600 --set model.d_model=32 \
                 --set model.d_kv=8 --set model.d_ff=64 --set model.image_width=32 \
                 --set phase.images.steps=2 --set phase.warm-start.steps=2 \
                 --set phase.questions.steps=2 --set phase.fine-tune.steps=2";
    let grid = "grid reveal/ablations";
    let run =
        format!("{grid} --configurations main-eval-k-0 {small_settings} --out g --quiet --json");
    let printed = succeeds(folder, &run);
    let report: Value = serde_json::from_str(&printed).unwrap();
    let names = report["grid"]["configurations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|configuration| configuration["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["main", "main-eval-k-0"]);
    assert_eq!(report["claims"][0]["id"], "reveal.memory_over_none");
    assert_eq!(report["claims"].as_array().unwrap().len(), 1);
    assert_eq!(fs::read_to_string(folder.join("g/grid.json")).unwrap(), printed.trim_end());
    assert!(fs::read_to_string(folder.join("g/grid.html")).unwrap().contains("<svg"));
    // A second call uses the finished runs.
    let modified_time =
        || fs::metadata(folder.join("g/seed-1/main/model.safetensors")).unwrap().modified();
    let before = modified_time().unwrap();
    let repeated: Value = serde_json::from_str(&succeeds(folder, &run)).unwrap();
    assert_eq!([&repeated["claims"], &repeated["grid"]], [&report["claims"], &report["grid"]]);
    assert_eq!(modified_time().unwrap(), before, "the main configuration was trained again");
    let command = report["claims"][0]["command"].as_str().unwrap();
    let options =
        " --configurations main,main-eval-k-0 --seeds 1 --out g --set data.max_images=60 ";
    assert!(command.contains(options), "{command}");
    let program = &report["grid"]["configurations"][0]["runs"][0]["programs"][0];
    assert_eq!(program["sha256"], report["sha256"]);

    refused(
        folder,
        &format!("{grid} --configurations nothing --out g"),
        "has no configuration `nothing`; it has main",
    );
    refused(folder, &format!("{grid} --set memory.kk=3 --out g"), "unknown key `kk`");
    refused(folder, &format!("{grid} --set seed=3 --out g"), "the seeds of a grid are 1");
    fs::create_dir(folder.join("notes")).unwrap();
    fs::write(folder.join("notes/notes.txt"), "").unwrap();
    refused(folder, &format!("{grid} --out notes"), "has other files than");
    refused(folder, "grid nowhere.toml --out g", "nowhere.toml");
}
