//! `engram memory` on texts and images: models encode the keys and queries.

use std::fs;

use crate::running::{Folder, engram, errors, folder_of, hits, refused, succeeds, write_npy};
use crate::tiny_models::{clip_folder, json_lines, mixed_entries};
use serde_json::{Value, json};

#[test]
fn clip_finds_texts_and_images_in_one_memory() {
    let folder = &Folder::new();
    clip_folder(folder);
    mixed_entries(folder);
    let build = "memory build --entries entries.jsonl --model clip --images pictures --out m";
    succeeds(folder, &format!("{build} --quiet"));
    // Each entry finds itself with cosine 1.
    let finds_itself = |arguments: &[&str], id: i64| {
        let hit = &hits(folder, &[&["m", "-k", "1"], arguments].concat())[0][0];
        assert_eq!(hit.0, id, "{arguments:?}");
        assert!((hit.1 - 1.0).abs() < 1e-5, "{arguments:?}: {}", hit.1);
    };
    finds_itself(&["--image", "pictures/red.png"], 10);
    finds_itself(&["--image", "pictures/green.bmp", "--text", "All  GREEN"], 11);
    finds_itself(&["--text", "bern in europe"], 13);
    finds_itself(&["--text", "Question: who Answer: me, you", "--model", "clip"], 14);
    // The vector of an entry with text and image is the sum of both, so it lies between them.
    let text = succeeds(folder, "memory search m --image pictures/red.png");
    assert!(text.contains("wit  red.png") && text.contains("all green"), "{text}");
    let info = succeeds(folder, "memory info m");
    assert!(info.contains("models\n         12  text and images by "), "{info}");
    assert!(info.contains("SHA-256") && info.contains("sources\n"), "{info}");

    // Queries from a file: plain lines, and JSON lines with images in the file's folder.
    fs::write(folder.join("queries.txt"), "bern in europe\r\nall green\n").unwrap();
    let query_hits = hits(folder, "m -k 5 --texts queries.txt");
    assert_eq!((query_hits.len(), query_hits[0][0].0), (2, 13));
    let queries = [json!({"question": "bern in europe"}), json!({"image": "pictures/red.png"})];
    fs::write(folder.join("queries.jsonl"), json_lines(&queries)).unwrap();
    let query_hits = hits(folder, "m -k 1 --texts queries.jsonl");
    assert_eq!((query_hits[0][0].0, query_hits[1][0].0), (13, 10));

    // Edits use the same model, named or not; new ids continue the numbering.
    fs::write(folder.join("more.jsonl"), json_lines(&[json!({"text": "a new thing"})])).unwrap();
    succeeds(folder, "memory add m --entries more.jsonl --quiet");
    finds_itself(&["--text", "a new thing"], 15);
    fs::write(folder.join("new.jsonl"), json_lines(&[json!({"id": 12, "text": "xyz"})])).unwrap();
    succeeds(folder, "memory update m --entries new.jsonl --model clip --quiet");
    finds_itself(&["--text", "xyz"], 12);
    refused(folder, "memory update m --entries more.jsonl", "more.jsonl:1: has no id");
    succeeds(folder, "memory verify m");
    succeeds(folder, "memory compact m --quiet");
    finds_itself(&["--text", "xyz"], 12);

    // Different weights of the same shape are another model.
    let weights = folder.join("clip/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    for arguments in [
        "search m --text xyz",
        "search m --text xyz --model clip",
        "add m --entries more.jsonl --model clip",
        "add m --entries more.jsonl",
    ] {
        let parts = ["m: its keys come from", "give that model"];
        refused(folder, &format!("memory {arguments}"), &parts);
    }
}

#[test]
fn keys_do_not_depend_on_the_number_of_threads() {
    let folder = &Folder::new();
    clip_folder(folder);
    mixed_entries(folder);
    let keys = |threads: &str| {
        let build = "memory build --entries entries.jsonl --model clip --images pictures";
        let options = format!("--batch 2 --quiet --threads {threads} --out {threads}");
        succeeds(folder, &format!("{build} {options}"));
        fs::read(folder.join(threads).join("gen-000001/keys.safetensors")).unwrap()
    };
    assert!(keys("1") == keys("3"));
}

#[test]
fn entries_that_cannot_be_encoded_are_refused_with_line_and_remedy() {
    let folder = &Folder::new();
    clip_folder(folder);
    mixed_entries(folder);
    let write =
        |entries: &[Value]| fs::write(folder.join("bad.jsonl"), json_lines(entries)).unwrap();
    let build = "memory build --entries bad.jsonl --model clip --images pictures --out m";
    let fine = json!({"text": "fine"});
    for (bad, parts) in [
        (json!({"id": 7}), &["bad.jsonl:2: the entry 7 has no text", "--skip-unencodable"][..]),
        (json!({"id": 7, "text": " "}), &["bad.jsonl:2: the entry 7 has no text"]),
        (json!({"id": 7, "image": "http://a.b/c.jpg"}), &["bad.jsonl:2", "URL", "--images"]),
        (json!({"id": 7, "image": "none.jpg"}), &["bad.jsonl:2", "pictures/none.jpg", "--images"]),
        (json!({"id": 7, "image": 5}), &["bad.jsonl:2: the image of the entry 7 is 5"]),
        (
            json!({"id": 7, "image": "../entries.jsonl"}),
            &["bad.jsonl:2: the entry 7", "not a known image format"],
        ),
        (json!([7]), &["bad.jsonl:2: is not an entry"]),
        (json!({"id": -1, "text": "a"}), &["has the id -1"]),
        (json!({"id": 0, "text": "a"}), &["the id 0 exists already"]),
    ] {
        write(&[fine.clone(), bad]);
        refused(folder, build, parts);
        assert!(!folder.join("m/CURRENT").exists());
    }
    write(&[]);
    refused(folder, build, "bad.jsonl: has no entry to encode");
    write(&[json!({"id": 3}), fine.clone(), json!({"image": "red.png"})]);
    let output = engram(folder, &format!("{build} --skip-unencodable"));
    assert!(output.status.success());
    let message = errors(&output);
    assert!(message.contains("bad.jsonl: skipped 1 entry without a text or image"), "{message}");

    // Options that exclude each other, and invalid models.
    refused(folder, &format!("{build} --keys k.npy"), "cannot be used with");
    refused(folder, &format!("{build} --values v.npy"), "cannot be used with");
    fs::write(folder.join("empty.txt"), "one\n\nthree\n").unwrap();
    fs::write(folder.join("q.jsonl"), "{\"id\": 3}\n").unwrap();
    let build_new = "build --entries entries.jsonl --out n --model";
    for (arguments, part) in [
        ("build --model clip --out n", "--entries"),
        ("build --entries bad.jsonl --out n", "--keys"),
        ("search m", "--queries"),
        ("search m --queries q.npy --text a", "cannot be used with"),
        ("search m --image none.png", "none.png"),
        ("search m --texts empty.txt", "empty.txt:2: the line is empty"),
        ("search m --texts q.jsonl", "q.jsonl:1: has no text and no image"),
        (&format!("{build_new} pictures"), "pictures: no file \"config.json\""),
        (&format!("{build_new} clip --image-model clip"), "clip: an image model needs a text-only"),
    ] {
        refused(folder, &format!("memory {arguments}"), part);
    }
    refused(folder, &["memory", "search", "m", "--text", " "], "--text is empty");
    let build_new = &format!("memory {build_new} clip");
    let config = fs::read_to_string(folder.join("clip/config.json")).unwrap();
    let other_end_token = config.replace("\"eos_token_id\": 39", "\"eos_token_id\": 7");
    fs::write(folder.join("clip/config.json"), other_end_token).unwrap();
    refused(folder, build_new, "config.json: has the end-of-text token 7");
    fs::write(folder.join("clip/config.json"), config).unwrap();
    fs::write(folder.join("clip/preprocessor_config.json"), r#"{"size": 9, "resample": 2}"#)
        .unwrap();
    refused(folder, build_new, "preprocessor_config.json: `image_std`");
    fs::write(folder.join("clip/model.safetensors"), "none").unwrap();
    fs::remove_file(folder.join("clip/preprocessor_config.json")).unwrap();
    refused(folder, build_new, "preprocessor_config.json");
}

#[test]
fn files_that_are_not_what_they_seem_are_refused_by_name() {
    let folder = &Folder::new();
    clip_folder(folder);
    mixed_entries(folder);
    let build = "memory build --entries entries.jsonl --model clip --images pictures --out m";
    let refused_with = |file: &str, content: &str, parts: &[&str]| {
        let former = fs::read(folder.join(file)).unwrap();
        fs::write(folder.join(file), content).unwrap();
        refused(folder, build, parts);
        fs::write(folder.join(file), former).unwrap();
    };
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:b\nsize 6219\n";
    let model = ["clip/config.json", "clip/tokenizer.json", "clip/model.safetensors"];
    for file in model.into_iter().chain(["pictures/red.png", "entries.jsonl"]) {
        refused_with(file, pointer, &[&format!("{file}: is a Git LFS pointer"), "git lfs pull"]);
    }
    let config = fs::read_to_string(folder.join("clip/config.json")).unwrap();
    let quantised = r#"{"quantization_config": {"quant_method": "hqq"},"#;
    let parts = ["clip/config.json", "`quantization_config`", "with hqq", "dequantise"];
    refused_with("clip/config.json", &config.replacen('{', quantised, 1), &parts);
    fs::write(folder.join("clip/adapter_config.json"), "{}").unwrap();
    let parts = ["clip/adapter_config.json: is a PEFT adapter", "?adapter=clip'; give that name"];
    refused(folder, build, &parts);
    fs::remove_file(folder.join("clip/config.json")).unwrap();
    refused(folder, build, &parts);
    refused(folder, "transcribe pictures/red.png --model clip --out t.jsonl", &parts);
}

#[test]
fn an_entry_with_a_damaged_image_can_be_skipped() {
    let folder = &Folder::new();
    clip_folder(folder);
    mixed_entries(folder);
    fs::write(folder.join("pictures/red.png"), "damaged").unwrap();
    let build = "memory build --entries entries.jsonl --model clip --images pictures --out m";
    let parts = ["entries.jsonl:1: the entry 10", "not a known image", "--skip-unencodable"];
    refused(folder, build, &parts);
    let output = engram(folder, &format!("{build} --skip-unencodable"));
    let message = errors(&output);
    assert!(output.status.success(), "{message}");
    assert!(message.contains("skipped the entry 10: pictures/red.png"), "{message}");
    assert!(message.contains("entries.jsonl: skipped 1 entry"), "{message}");
    assert!(succeeds(folder, "memory info m").contains("4 entries"));
    fs::remove_file(folder.join("pictures/red.png")).unwrap();
    let build = build.replace("--out m", "--out missing");
    let output = engram(folder, &format!("{build} --skip-unencodable"));
    let message = errors(&output);
    assert!(output.status.success(), "{message}");
    assert!(message.contains("skipped the entry 10: entries.jsonl:1: the image of"), "{message}");
}

#[test]
#[ignore = "needs ENGRAM_MINILM: the folder of all-MiniLM-L6-v2"]
fn minilm_finds_the_entry_of_a_paraphrase() {
    let minilm = folder_of("ENGRAM_MINILM").display().to_string();
    let folder = &Folder::new();
    let entries = [
        json!({"id": 1, "subject": "Bern", "relation": "capital of", "object": "Switzerland"}),
        json!({"id": 2, "text": "Photosynthesis turns light into chemical energy in plants."}),
        json!({"id": 3, "question": "Who painted the Mona Lisa?", "answer": "Leonardo da Vinci"}),
        json!({"id": 4, "text": "A bicycle has two wheels, one behind the other."}),
        json!({"id": 5, "image": "a.jpg"}),
    ];
    fs::write(folder.join("entries.jsonl"), json_lines(&entries)).unwrap();
    let build = format!("memory build --entries entries.jsonl --model {minilm} --out m --quiet");
    let parts = ["entries.jsonl:5: the entry 5 has only an image", "CLIP", "--skip-unencodable"];
    refused(folder, &build, &parts);
    succeeds(folder, &format!("{build} --skip-unencodable"));
    for (question, id) in [
        ("which town governs the Swiss", 1),
        ("how do leaves make food from the sun", 2),
        ("artist of the famous smiling portrait in the Louvre", 3),
        ("vehicle that is pedalled", 4),
    ] {
        assert_eq!(hits(folder, &["m", "-k", "1", "--text", question])[0][0].0, id, "{question}");
    }
    refused(
        folder,
        "memory search m --image a.jpg",
        &["--image: the query has an image", "only text"],
    );

    // The cosines equal those from `engram score`.
    let texts = [entries[1]["text"].as_str().unwrap(), entries[3]["text"].as_str().unwrap()];
    let query = "a green machine on wheels";
    let csv = format!(
        "id,anchor,target,context\na,{query},{},A01\nb,{query},\"{}\",A01\n",
        texts[0], texts[1]
    );
    fs::write(folder.join("pairs.csv"), csv).unwrap();
    succeeds(folder, &format!("score pairs.csv --model {minilm} --out o.csv"));
    let scores = fs::read_to_string(folder.join("o.csv")).unwrap();
    let scores: Vec<f64> = scores
        .lines()
        .skip(1)
        .map(|line| line.split_once(',').unwrap().1.parse().unwrap())
        .collect();
    let query_hits = &hits(folder, &["m", "-k", "4", "--text", query])[0];
    for (id, expected) in [2, 4].into_iter().zip(scores) {
        let score = query_hits.iter().find(|hit| hit.0 == id).unwrap().1;
        assert!((score - expected).abs() < 2e-6, "{id}: {score} {expected}");
    }
}

#[test]
#[ignore = "needs ENGRAM_DATA: vision-mobilenet and coco-captions; and ENGRAM_MINILM"]
fn mobilenet_embeddings_have_the_neighbours_of_the_stored_features() {
    let data = folder_of("ENGRAM_DATA");
    let (model, coco) = (data.join("vision-mobilenet"), data.join("coco-captions"));
    let stored =
        engram::models::weights::Weights::open(&coco.join("mobilenet_v2_features.safetensors"))
            .unwrap();
    let cpu = candle_core::Device::Cpu;
    let get = |name: &str, shape: &[usize], dtype| stored.get(name, shape, dtype, &cpu).unwrap();
    let features =
        get("embedding", &[239, 1280], candle_core::DType::F32).to_vec2::<f32>().unwrap();
    let ids = get("image_id", &[239], candle_core::DType::I64).to_vec1::<i64>().unwrap();
    let train = get("is_train", &[239], candle_core::DType::U8).to_vec1::<u8>().unwrap();
    let folder = &Folder::new();
    let entry = |i: usize| {
        let part = if train[i] == 1 { "train2017" } else { "val2017" };
        json!({"id": i, "image": format!("{part}/{:012}.jpg", ids[i])})
    };
    let mut entries: Vec<Value> = (0..239).map(entry).collect();
    let images = coco.join("images");
    let (model, images) = (model.display(), images.display());
    let build = format!("memory build --entries e.jsonl --model {model} --images {images} --quiet");
    fs::write(folder.join("e.jsonl"), json_lines(&entries)).unwrap();
    succeeds(folder, &format!("{build} --out m"));

    // A second memory has the stored features as keys. Both are searched with the stored features.
    write_npy(folder, "features.npy", &features.concat(), 1280);
    succeeds(folder, "memory build --keys features.npy --out stored --quiet");
    // Queries have unit length, so scores are cosines.
    let unit_length = |row: &Vec<f32>| -> Vec<f32> {
        let length = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        row.iter().map(|v| (f64::from(*v) / length) as f32).collect()
    };
    let queries: Vec<f32> = features.iter().flat_map(unit_length).collect();
    write_npy(folder, "queries.npy", &queries, 1280);
    let model_hits = hits(folder, "m -k 4 --queries queries.npy");
    let stored_hits = hits(folder, "stored -k 4 --queries queries.npy");
    let mut worst = 1.0f64;
    for (row, (model_hits, stored_hits)) in model_hits.iter().zip(&stored_hits).enumerate() {
        assert_eq!(model_hits[0].0, row as i64, "a photograph is not its own nearest");
        worst = worst.min(model_hits[0].1);
        // If the nearest neighbour differs, the two neighbours have almost equal scores.
        let score =
            stored_hits.iter().find(|hit| hit.0 == model_hits[1].0).map_or(0.0, |hit| hit.1);
        assert!(stored_hits[1].1 - score < 2e-3, "{row}: {model_hits:?} {stored_hits:?}");
    }
    assert!(worst > 0.9999, "{worst}");

    // This model encodes only images. A text encoder beside it encodes the texts.
    entries.truncate(2);
    entries.push(json!({"id": 2, "text": "words"}));
    fs::write(folder.join("e.jsonl"), json_lines(&entries)).unwrap();
    let parts = ["e.jsonl:3: the entry 2 has no image", "CLIP", "--skip-unencodable"];
    refused(folder, &format!("{build} --out n"), &parts);
    refused(folder, "memory search m --text dog", &["--text: the query has a text", "only images"]);
    let minilm = folder_of("ENGRAM_MINILM");
    let build = format!("memory build --entries e.jsonl --model {} --quiet", minilm.display());
    let options = format!("--image-model {model} --images {images} --out both");
    succeeds(folder, &format!("{build} {options}"));
    assert_eq!(hits(folder, &["both", "-k", "1", "--text", "a word"])[0][0].0, 2);
    let query_image = format!("{images}/{}", entries[1]["image"].as_str().unwrap());
    let hit = &hits(folder, &["both", "-k", "1", "--image", &query_image])[0][0];
    assert!(hit.0 == 1 && (hit.1 - 1.0).abs() < 1e-5, "{hit:?}");
}
