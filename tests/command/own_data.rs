//! Commands on data of a user's own: a text file, a CSV, text pairs with scores.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::running::{Folder, command, copy, engram, errors, json, printed, refused, succeeds};
use serde_json::Value;

/// Trains a small text encoder on the embedded phrases, in the folder `encoder`.
fn train_encoder(folder: &Path) {
    // The recipe's check may fail at this size.
    let output = engram(folder, "train patent --recipe patent/world --tiny --quiet --run encoder");
    assert!(folder.join("encoder/model.safetensors").is_file(), "{output:?}");
}

#[test]
fn a_memory_is_built_from_a_text_file_or_a_table() {
    let folder = &Folder::new();
    train_encoder(folder);
    fs::write(folder.join("notes.txt"), "steel bolt\n\n  \nglass pane\nwooden door\n").unwrap();
    let table = "Nr,Body,Topic\n7,\"steel, bolt\",metal\n9,glass pane,\n";
    fs::write(folder.join("facts.csv"), table).unwrap();

    let build = "memory build --model encoder --quiet";
    let output = engram(folder, "memory build --model encoder --texts notes.txt --out notes");
    let note = errors(&output);
    assert!(note.contains("notes.txt: skipped 2 empty lines"), "{note}");
    assert!(printed(&output, "build").contains("3 entries"));
    succeeds(folder, "memory add notes --model encoder --quiet --texts notes.txt");
    let columns = "--csv facts.csv --columns id=Nr,text=Body,source=Topic";
    succeeds(folder, &format!("{build} {columns} --out facts"));
    let best_hit = |memory: &str, query: &str| {
        let report = json(folder, &["memory", "search", memory, "--text", query]);
        let hit = &report["queries"][0]["hits"][0];
        (hit["id"].as_i64().unwrap(), hit["source"].as_str().unwrap().to_owned())
    };
    assert_eq!(best_hit("notes", "glass pane"), (4, "notes.txt".to_owned()));
    assert_eq!(best_hit("facts", "steel, bolt"), (7, "metal".to_owned()));
    assert_eq!(best_hit("facts", "glass pane"), (9, "facts.csv".to_owned()));
    assert_eq!(json(folder, "memory info notes")["entries"], 6);
    fs::write(folder.join("years.csv"), "text,year\nsteel bolt,2000\n").unwrap();
    let output = engram(folder, "memory build --model encoder --csv years.csv --out years");
    let note = errors(&output);
    assert!(note.contains("years.csv: columns not read: year; --columns"), "{note}");
    // The next id after 5 is 6, which is line 1 of the second file.
    succeeds(folder, "memory update notes --model encoder --quiet --texts notes.txt");

    for (arguments, part) in [
        ("--csv facts.csv", "facts.csv:1: no column of texts; the header has: Nr, Body, Topic"),
        ("--csv facts.csv", "for example `id=ID,text=Body`; --columns names the columns"),
        ("--csv facts.csv --columns text=Title", "facts.csv:1: column `Title` is missing"),
        ("--csv facts.csv --columns id=Body,text=Body", "facts.csv:2: has the id `steel, bolt`"),
        ("--csv facts.csv --columns text=", "write the name of a column"),
        ("--texts missing.txt", "missing.txt: cannot be read"),
        ("--texts notes.txt --csv facts.csv", "cannot be used with"),
        ("--texts notes.txt --columns text", "cannot be used with"),
    ] {
        refused(folder, &format!("{build} {arguments} --out bad"), part);
        assert!(!folder.join("bad").exists(), "{arguments}");
    }
    let duplicate_ids = "id,text\n1,a\n2,b\n1,c\n";
    fs::write(folder.join("twice.csv"), duplicate_ids).unwrap();
    let message = "twice.csv:4: the id 1 exists already";
    refused(folder, &format!("{build} --csv twice.csv --out bad"), message);
}

#[test]
fn a_model_name_without_hf_is_suggested() {
    let temporary = &Folder::new();
    fs::write(temporary.join("notes.txt"), "a\n").unwrap();
    write_pairs(&temporary.join("p.csv"));
    for arguments in [
        "memory build --texts notes.txt --model owner/name --out m",
        "train similarity --csv p.csv --columns left,right,rating --model owner/name --run r",
        "data fetch owner/name",
    ] {
        let part = "owner/name: there is no such folder; check the path, or write hf://owner/name";
        refused(temporary, arguments, part);
    }
}

/// Writes 200 pairs with scores from 1 to 4: the more words two texts share, the higher.
pub fn write_pairs(path: &Path) {
    let words = ["bolt", "glass", "door", "wheel", "valve", "sensor", "blade", "panel"];
    let mut text = "left,right,rating,comment\n".to_owned();
    for pair in 0..200 {
        let (anchor, shared) = (pair / 4, pair % 4);
        let word = |index: usize| words[(anchor + index) % words.len()];
        let left = format!("{} {} {} unit{anchor}", word(0), word(1), word(2));
        let mut right: Vec<&str> = (0..shared).map(word).collect();
        right.extend((shared..3).map(|index| word(index + 4)));
        writeln!(text, "{left},{},{},\"x, y\"", right.join(" "), 1.0 + f64::from(shared as u8))
            .unwrap();
    }
    fs::write(path, text).unwrap();
}

#[test]
fn training_starts_with_the_pooling_of_the_encoder() {
    let folder = &Folder::new();
    train_encoder(folder);
    write_pairs(&folder.join("pairs.csv"));
    let modules = r#"[
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    ]"#;
    // Not a run, whose list of checksums would lack the new files.
    fs::create_dir_all(folder.join("published/1_Pooling")).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(folder.join("encoder").join(file), folder.join("published").join(file)).unwrap();
    }
    fs::write(folder.join("published/modules.json"), modules).unwrap();
    for (mode, pooling) in [("cls", "first"), ("mean", "mean"), ("max", "mean")] {
        let config = format!(r#"{{"pooling_mode": "{mode}"}}"#);
        fs::write(folder.join("published/1_Pooling/config.json"), config).unwrap();
        let train = "train similarity --csv pairs.csv --columns left,right,rating --model published \
                     --set model.max_tokens=64 --set optimiser.learning_rate=1e-12 \
                     --set phase.train.epochs=1 --json";
        let output = engram(folder, &format!("{train} --run {mode}"));
        let report: Value = serde_json::from_str(&printed(&output, train)).unwrap();
        let recipe = fs::read_to_string(folder.join(mode).join("recipe.toml")).unwrap();
        assert!(recipe.contains(&format!("pooling = \"{pooling}\"")), "{mode}: {recipe}");
        let messages = errors(&output);
        assert_eq!(messages.contains("mean pooling is used"), mode == "max", "{messages}");
        let r = |system: &str| report["comparison"][system]["value"].as_f64().unwrap();
        // At this learning rate nothing is learnt, so both systems have almost the same r. The
        // tolerance allows for rounding: the cosines of `cls` are all close to 1.
        assert_eq!((r("a") - r("b")).abs() < 0.01, mode != "max", "{mode}: {} {}", r("a"), r("b"));
    }
}

#[test]
fn pairs_of_any_columns_train_a_model() {
    let folder = &Folder::new();
    train_encoder(folder);
    write_pairs(&folder.join("pairs.csv"));
    let train = "train similarity --csv pairs.csv --columns left,right,rating --model encoder --quiet \
                 --set model.max_tokens=64";
    let report = json(folder, &format!("{train} --run s"));
    assert_eq!(report["pairs"], 200);
    let validation = report["validation_pairs"].as_u64().unwrap();
    assert!((30..=50).contains(&validation), "{validation}");
    assert_eq!(report["range"], serde_json::json!({"minimum": 1.0, "maximum": 4.0}));
    for system in ["a", "b", "difference"] {
        assert!(report["comparison"][system]["interval"].is_object(), "{report}");
    }
    let card = fs::read_to_string(folder.join("s/README.md")).unwrap();
    for part in [
        "# A model that scores the similarity of `left` and `right`\n",
        "`engram score pairs.csv --model RUN --out scores.csv`",
        "\n## Results\n",
        "| held_out | pearson | 0.",
    ] {
        assert!(card.contains(part), "{part}: {card}");
    }
    assert!(!card.contains("class titles") && !card.contains("study `patent`"), "{card}");
    // The recipe in the run's folder repeats the run.
    succeeds(folder, "train patent --recipe s/recipe.toml --quiet --run again");
    let weights = |run: &str| fs::read(folder.join(run).join("model.safetensors")).unwrap();
    assert!(weights("s") == weights("again"));

    // Predictions have the range of the file; the score column is optional.
    fs::write(
        folder.join("new.csv"),
        "RIGHT,left\nbolt glass door,bolt glass door\nvalve,panel door unit3\n",
    )
    .unwrap();
    succeeds(folder, "score new.csv --model s --out scores.csv --quiet");
    let scores = fs::read_to_string(folder.join("scores.csv")).unwrap();
    let scores: Vec<f64> = scores
        .lines()
        .skip(1)
        .map(|line| line.split(',').nth(1).unwrap().parse().unwrap())
        .collect();
    assert!(scores.len() == 2 && scores[0] != scores[1], "{scores:?}");
    assert!(scores.iter().all(|score| (-1.0..8.0).contains(score)), "{scores:?}");
    let text = succeeds(folder, &format!("{train} --run t"));
    for part in ["200 pairs: ", "Scores from 1 to 4", "untrained encoder", "The trained model"] {
        assert!(text.contains(part), "{text}");
    }

    let few = format!("{train} --validation-fraction 0.001 --set phase.train.epochs=1 --run few");
    assert!(succeeds(folder, &few).contains("The comparison is undefined"));

    refused(folder, "score pairs.csv.gz --model s --out x.csv", "pairs.csv.gz: cannot be read");
    fs::write(folder.join("other.csv"), "left,text\na,b\n").unwrap();
    let missing = "other.csv:1: column `right` is missing";
    refused(folder, "score other.csv --model s --out x.csv", missing);
    for (arguments, part) in [
        ("--columns left,right", "give three names"),
        ("--columns left,right,comment", "pairs.csv:2: comment `x, y` is not a finite number"),
        ("--columns left,right,score", "pairs.csv:1: column `score` is missing"),
        ("--columns left,right,rating --validation-fraction 1.5", "the held-out fraction is 1.5"),
    ] {
        let arguments =
            format!("train similarity --csv pairs.csv {arguments} --model encoder --run bad");
        refused(folder, &arguments, part);
        assert!(!folder.join("bad").exists(), "{arguments}");
    }
    for (arguments, part) in [
        (
            "reveal --recipe patent/world",
            "is `patent`; use a recipe of `reveal`, or train `patent`",
        ),
        ("reveal --recipe pairs.csv", "pairs.csv:1: "),
        ("reveal --recipe pairs.csv", "a recipe is a TOML file"),
        ("patent --recipe patent/world --set start.run=s", "`start` is not supported"),
        ("reveal --recipe reveal/laptop --set start.run=s", "`start.run` is a run of `patent`; "),
    ] {
        refused(folder, &format!("train {arguments} --run bad"), part);
        assert!(!folder.join("bad").exists(), "{arguments}");
    }
}

#[test]
fn images_with_captions_train_a_model() {
    let folder = &Folder::new();
    fs::create_dir(folder.join("photos")).unwrap();
    let (mut long, mut repeating) = ("file,text\n".to_owned(), "image,caption\n".to_owned());
    for i in 0..12_u8 {
        let colour = |x: u32, y: u32| image::Rgb([i * 20, x as u8, y as u8]);
        let photo = image::RgbImage::from_fn(20, 20, colour);
        photo.save(folder.join(format!("photos/{i}.png"))).unwrap();
        writeln!(long, "{i}.png,{}\n{i}.png,photo {i}", format!("number{i} ").repeat(30)).unwrap();
        writeln!(repeating, "{i}.png,{}", ["a cat", "a dog"][usize::from(i % 2)]).unwrap();
    }
    fs::write(folder.join("long.csv"), long).unwrap();
    fs::write(folder.join("photos/repeating.csv"), &repeating).unwrap();

    let train = "train reveal --images photos --tiny --captions";
    let output = engram(folder, &format!("{train} long.csv --columns file,text --run long"));
    printed(&output, train);
    let notes = errors(&output);
    assert!(notes.contains("note: 8 images to train on: with fewer than 1000"), "{notes}");
    assert!(!notes.contains("truncated"), "{notes}");
    let card = fs::read_to_string(folder.join("long/README.md")).unwrap();
    for part in ["`engram answer RUN ", "| dataset_metrics.captions.measures.cider_d | "] {
        assert!(card.contains(part), "{part}: {card}");
    }
    fs::write(folder.join("q.jsonl"), "{\"id\": 1, \"image\": \"photos/3.png\"}\n").unwrap();
    succeeds(folder, "answer long --questions q.jsonl --out answers.jsonl");

    let train_repeating = format!("{train} photos/repeating.csv --run repeating");
    let output = engram(folder, &format!("{train_repeating} --quiet"));
    assert!(!printed(&output, train).contains("images to train on"), "{output:?}");
    assert_eq!(errors(&output), "");
    let changed = format!("{train_repeating} --resume --set phase.warm-start.steps=5");
    refused(folder, &changed, "(`phase.warm-start.steps` was 4, is now 5); resume");

    let rows = repeating.replacen("0.png", "none.png", 1);
    fs::write(folder.join("missing.csv"), rows).unwrap();
    fs::write(folder.join("empty.csv"), "image,caption\n0.png, \n").unwrap();
    fs::write(folder.join("few.csv"), "image,caption\n0.png,a\n0.png,b\n").unwrap();
    for (arguments, part) in [
        ("--images photos --captions missing.csv", "missing.csv, line 2: shows photos/none.png"),
        ("--images photos --captions empty.csv", "empty.csv:2: has no caption"),
        ("--images photos --captions few.csv", "few.csv: has captions of 1 image; "),
        ("--images photos --captions long.csv", "long.csv:1: column `image` is missing"),
        ("--images photos --captions long.csv --columns file", "give two names"),
        ("--images few.csv --captions few.csv", "few.csv: is not a folder"),
        ("--images photos", "--captions <FILE>"),
        ("--images photos --captions few.csv --recipe reveal/coco", "cannot be used with"),
        ("", "--recipe <FILE>"),
    ] {
        refused(folder, &format!("train reveal {arguments} --run bad"), part);
        assert!(!folder.join("bad").exists(), "{arguments}");
    }
}

#[test]
fn quiet_and_offline_runs_print_no_note_about_the_hub() {
    let folder = &Folder::new();
    train_encoder(folder);
    fs::write(folder.join("notes.txt"), "steel bolt\n").unwrap();
    let commit = "0123456789012345678901234567890123456789";
    let model = folder.join("cache/models--owner--name");
    fs::create_dir_all(model.join("snapshots")).unwrap();
    fs::create_dir(model.join("refs")).unwrap();
    fs::write(model.join("refs/main"), commit).unwrap();
    copy(&folder.join("encoder"), &model.join("snapshots").join(commit));
    let build = "memory build --model hf://owner/name --texts notes.txt --out";
    for (out, options, offline, has_note) in
        [("a", "", "0", true), ("b", "-q", "0", false), ("c", "", "1", false)]
    {
        let mut command = command(folder, &format!("{build} {out} {options}"));
        command.env("HF_HUB_CACHE", folder.join("cache")).env("HF_HUB_OFFLINE", offline);
        let output = command.env("HF_ENDPOINT", "http://127.0.0.1:9").output().unwrap();
        printed(&output, build);
        let notes = errors(&output);
        assert_eq!(notes.contains("note: hf://owner/name"), has_note, "{out}: {notes}");
    }
}
