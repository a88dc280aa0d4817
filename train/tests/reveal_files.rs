//! The REVEAL study on files: held-out data stay out, and faults in files are reported.

use std::collections::HashSet;
use std::fs;

use engram_data::world::questions::Split;
use engram_infer::reveal::corpus::{Corpus, MetricKind, Task};
use engram_infer::reveal::images::squared;
use engram_train::Stop;
use engram_train::studies::reveal::corpus::{continuations, load as load_corpus, training_texts};
use engram_train::studies::reveal::run::train_reveal;
use engram_train::studies::reveal::settings::{CaptionFile, OnBadImage, RevealData};
use image::{Rgb, RgbImage};
use serde_json::{Value, json};

use crate::files::{NUM_IMAGES, RECIPE, data_of, write};
use crate::runs::{self, quiet, with_causes};

/// Loads a corpus of 8 × 8 images.
fn load(data: &RevealData) -> Result<Corpus, String> {
    assert_eq!(data.first_invalid_key(), None);
    load_corpus(data, 8, squared(8)).map_err(|error| error.to_string())
}

#[test]
fn a_csv_of_captions_is_read_by_split() {
    let folder = tempfile::tempdir().unwrap();
    let mut data = data_of(folder.path());
    let split = |image: usize| ["train", "train", "val", "test"][image % 4];
    let row = |image: usize| format!("{image}.png,number {image},{}\n", split(image));
    let rows: String = (0..NUM_IMAGES).map(row).collect();
    fs::write(folder.path().join("captions.csv"), format!("image,caption,split\n{rows}")).unwrap();
    let parts = [("train", Split::Train), ("val", Split::Validation), ("test", Split::Test)];
    let file = |(only, split): (&str, Split)| CaptionFile {
        file: "captions.csv".to_owned(),
        image_folder: "images".to_owned(),
        only: vec![only.to_owned()],
        split: Some(split),
        describe: true,
        source: Some("captions".to_owned()),
        columns: None,
    };
    (data.captions, data.questions, data.entries) = (parts.map(file).into(), vec![], vec![]);
    let corpus = load(&data).unwrap();
    let counts = [&corpus.train, &corpus.validation, &corpus.test].map(Vec::len);
    let expected =
        ["train", "val", "test"].map(|part| (0..NUM_IMAGES).filter(|i| split(*i) == part).count());
    assert_eq!(counts, expected);
    assert_eq!(corpus.sources, ["captions"]);
}

#[test]
fn no_text_about_a_held_out_image_is_in_the_memory_or_in_training() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_of(folder.path());
    let corpus = load(&data).unwrap();
    assert_eq!(corpus.sources, ["web", "captions", "questions"]);
    let count = |list: &[_]| list.len();
    // A description and a question for each image of a split.
    let counts = [count(&corpus.train), count(&corpus.validation), count(&corpus.test)];
    assert_eq!(counts, [20, 8, 12]);
    let documents_of = |list: &[engram_infer::reveal::corpus::Example]| -> HashSet<String> {
        list.iter().filter_map(|example| example.document.clone()).collect()
    };
    let (train, validation, test) =
        (documents_of(&corpus.train), documents_of(&corpus.validation), documents_of(&corpus.test));
    assert!(train.is_disjoint(&test) && train.is_disjoint(&validation));
    assert!(test.is_disjoint(&validation));
    let held_out: HashSet<&String> = validation.union(&test).collect();
    assert_eq!(corpus.items.len(), 3 * 10 + 1);
    for item in &corpus.items {
        let image = item.entry.payload.get("image").and_then(Value::as_str);
        let number = image.map(|path| path.replace("images/", "").replace(".png", ""));
        for document in [number, item.entry.document.clone()].iter().flatten() {
            assert!(!held_out.contains(document), "{:?}", item.entry);
        }
        assert_eq!(image.is_some(), item.image.is_some());
        // An entry belongs to its image, and the image's example does not retrieve it.
        let own = format!("entry {}", item.entry.id);
        assert_eq!(image.is_none(), item.entry.document == Some(own), "{:?}", item.entry);
    }
    assert!(continuations(&corpus).iter().all(|example| example.document.is_some()));
    let texts = training_texts(&corpus).join("\n");
    for document in &held_out {
        assert!(!texts.contains(&format!("number {document} ")), "{document}");
        assert!(!texts.lines().any(|line| line == format!("answer {document}")), "{document}");
    }
    assert!(texts.contains("answer "));
    assert_eq!(corpus.training_images.len(), 10);
    for example in corpus.train.iter().filter(|example| example.task == Task::Answer) {
        let own = &corpus.items[example.own_entry.unwrap()].entry;
        assert_eq!(
            own.text(),
            format!("Question: {} Answer: {}", example.text, example.answers.join(", "))
        );
    }
    assert!(matches!(corpus.metric_kinds[..], [MetricKind::Captions, MetricKind::Aokvqa(_)]));
    // The same files and seed give the same splits; another seed gives other splits.
    assert_eq!(documents_of(&load(&data).unwrap().test), test);
    assert_ne!(documents_of(&load(&RevealData { world_seed: 2, ..data }).unwrap().test), test);
}

#[test]
fn views_depend_on_their_number_and_not_on_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_of(folder.path());
    let corpus = load(&data).unwrap();
    let uncached = load(&RevealData { image_cache_mib: 0, ..data }).unwrap();
    let requested = [(0, 0), (0, 20), (0, 21), (3, 20)];
    let views = corpus.images.pixels(&requested).unwrap();
    assert_eq!(views, uncached.images.pixels(&requested).unwrap());
    assert_eq!(views, corpus.images.pixels(&requested).unwrap());
    let views: Vec<&[f32]> = views.chunks(3 * 8 * 8).collect();
    assert_eq!(views.len(), 4);
    for (i, view) in views.iter().enumerate() {
        assert!(views[i + 1..].iter().all(|other| view != other), "view {i}");
        assert!(view.iter().all(|value| (-1.0..=1.0).contains(value)));
    }
}

#[test]
fn missing_and_broken_images_are_named_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut data = data_of(folder.path());
    data.captions.clear();
    data.entries.clear();
    fs::write(folder.path().join("images/3.png"), b"\x89PNG\r\n\x1a\n broken").unwrap();
    fs::remove_file(folder.path().join("images/5.png")).unwrap();
    // A question whose image does not decode is an error.
    let message = load(&data).err().unwrap();
    for part in ["aokvqa.json, question q3", "3.png", "missing: 1, not decodable: 1", "text_only"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // A question whose image is missing is an error.
    fs::copy(folder.path().join("images/4.png"), folder.path().join("images/3.png")).unwrap();
    let message = load(&data).err().unwrap();
    assert!(message.contains("question q5") && message.contains("5.png, which is"), "{message}");

    data.on_bad_image = OnBadImage::Skip;
    let corpus = load(&data).unwrap();
    assert_eq!(corpus.train.len() + corpus.validation.len() + corpus.test.len(), NUM_IMAGES - 1);
    assert!(corpus.notes.iter().any(|note| note.contains("1 of 20 questions skipped")));
    data.on_bad_image = OnBadImage::TextOnly;
    let corpus = load(&data).unwrap();
    let all = corpus.train.iter().chain(&corpus.validation).chain(&corpus.test);
    assert_eq!(all.clone().count(), NUM_IMAGES);
    assert_eq!(all.filter(|example| example.image.is_none()).count(), 1);
    assert!(corpus.notes.iter().any(|note| note.contains("without their image: 1 of 20")));

    // An image named only by its captions is never described, and gets no split.
    let data = RevealData { on_bad_image: OnBadImage::TextOnly, ..data_of(folder.path()) };
    let data = RevealData { questions: Vec::new(), ..data };
    fs::remove_file(folder.path().join("images/5.png")).unwrap();
    let corpus = load(&data).unwrap();
    let counts = [&corpus.train, &corpus.validation, &corpus.test].map(Vec::len);
    assert_eq!(counts, [9, 4, 6]);
    let note = "1 of 20 described images skipped";
    assert!(corpus.notes.iter().any(|existing| existing == note), "{:?}", corpus.notes);
}

/// The documents of the examples in each split.
fn documents(corpus: &Corpus) -> [HashSet<String>; 3] {
    [&corpus.train, &corpus.validation, &corpus.test]
        .map(|list| list.iter().filter_map(|example| example.document.clone()).collect())
}

#[test]
fn captions_without_descriptions_follow_the_split_of_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut data = data_of(folder.path());
    data.captions[0].describe = false;
    data.captions[0].split = Some(Split::Test);
    // The questions are about other images than the captions.
    let questions: Vec<Value> = (0..10)
        .map(|i| {
            json!({"question_id": format!("q{i}"), "image_id": 100 + i, "question": "what?",
            "choices": ["a", "b"], "correct_choice_idx": 0, "difficult_direct_answer": false,
            "direct_answers": ["a"]})
        })
        .collect();
    write(folder.path(), "aokvqa.json", &json!(questions));
    for i in 0..10 {
        let image = RgbImage::from_pixel(9, 9, Rgb([i * 20, 255 - i, 7]));
        image.save(folder.path().join(format!("images/{}.png", 100 + i))).unwrap();
    }
    data.captions[0].source = None;
    let corpus = load(&data).unwrap();
    // Of the web entries, only the text without an image is left.
    let web = corpus.items.iter().filter(|item| item.entry.source == "web");
    assert_eq!(web.map(|item| item.text.as_str()).collect::<Vec<_>>(), ["without an image"]);
    data.captions[0].split = None;
    let corpus = load(&data).unwrap();
    assert_eq!(corpus.items.iter().filter(|item| item.entry.source == "web").count(), 21);
}

#[test]
fn copies_of_an_image_get_one_split() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut data = data_of(path);
    data.captions[0].source = None;
    // Each even image is a copy of the next odd one.
    for i in (0..NUM_IMAGES).step_by(2) {
        let name = |i: usize| path.join(format!("images/{i}.png"));
        fs::copy(name(i + 1), name(i)).unwrap();
    }
    let corpus = load(&data).unwrap();
    let names = |list: &[engram_infer::reveal::corpus::Example]| -> HashSet<usize> {
        let names = list.iter().map(|example| example.name.trim_start_matches('q').parse());
        names.map(Result::unwrap).collect()
    };
    let lists = [&corpus.train, &corpus.validation, &corpus.test].map(|list| names(list));
    assert_eq!(lists.each_ref().map(HashSet::len), [10, 4, 6]);
    for list in &lists {
        assert!(list.iter().all(|name| list.contains(&(name ^ 1))), "{lists:?}");
    }
    let [train, validation, test] = documents(&corpus);
    assert!(train.is_disjoint(&test) && train.is_disjoint(&validation));
    // Entries about an image and its copy have one document. The document's examples do not
    // retrieve these entries.
    let own = corpus.train.iter().filter(|example| example.task == Task::Answer);
    for example in own {
        let item = &corpus.items[example.own_entry.unwrap()];
        assert_eq!(item.entry.document, example.document);
        assert_eq!(item.image, example.image);
    }
    assert_eq!(corpus.training_images.len(), 5);

    // Other paths to a file, as entries may have them.
    let mut data = data_of(path);
    data.captions.clear();
    let absolute = path.canonicalize().unwrap().join("images");
    let lines = (0..NUM_IMAGES).flat_map(|i| {
        [format!("./images/{i}.png"), format!("{}/{i}.png", absolute.display())].map(|image| {
            let line = json!({"source": "web", "image": image, "text": format!("web {i}")});
            format!("{line}\n")
        })
    });
    fs::write(path.join("entries.jsonl"), lines.collect::<String>()).unwrap();
    for missing in [false, true] {
        if missing {
            // Missing images are identified by their paths.
            fs::remove_file(path.join("images/0.png")).unwrap();
            data.on_bad_image = OnBadImage::TextOnly;
        }
        let corpus = load(&data).unwrap();
        let web = corpus.items.iter().filter(|item| item.entry.source == "web");
        let [train, ..] = documents(&corpus);
        assert_eq!(web.clone().count(), 2 * train.len());
        assert!(web.clone().all(|item| train.contains(item.entry.document.as_ref().unwrap())));
    }
    // Two files must not give copies of an image different splits.
    let questions = json!([{"question_id": "q1", "image_id": 1, "question": "what?",
        "choices": ["a", "b"], "correct_choice_idx": 0, "difficult_direct_answer": false,
        "direct_answers": ["a"]}]);
    let mut data = data_of(path);
    fs::copy(path.join("images/1.png"), path.join("images/0.png")).unwrap();
    write(path, "aokvqa.json", &questions);
    let caption = json!({"images": [{"id": 0, "file_name": "0.png"}],
        "annotations": [{"id": 0, "image_id": 0, "caption": "nought"}]});
    write(path, "captions.json", &caption);
    (data.captions[0].split, data.questions[0].split) = (Some(Split::Train), Some(Split::Test));
    let message = load(&data).err().unwrap();
    assert!(message.contains("image 1: has the split test, but captions.json gives"), "{message}");
    assert!(message.contains(&format!("{}", path.join("aokvqa.json").display())), "{message}");
}

#[test]
fn missing_ids_are_filled_in_and_ids_do_not_overflow() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_of(folder.path());
    let write = |lines: &str| fs::write(folder.path().join("entries.jsonl"), lines).unwrap();
    write("{\"id\": 0, \"text\": \"a\"}\n{\"text\": \"b\"}\n{\"id\": 9, \"text\": \"c\"}\n");
    let ids: Vec<i64> = load(&data).unwrap().items.iter().map(|item| item.entry.id).collect();
    assert_eq!(ids[..4], [0, 1, 9, 10]);
    write("{\"id\": 9223372036854775807, \"text\": \"a\"}\n");
    assert!(load(&data).err().unwrap().contains("the largest possible id"));
    write("{\"id\": 9223372036854775807, \"text\": \"a\"}\n{\"text\": \"b\"}\n");
    assert!(load(&data).err().unwrap().contains("entries.jsonl:2: has no id"));
}

#[test]
fn training_retrieves_no_entry_of_the_examples_document() {
    use engram_infer::reveal::retriever::Retriever;
    use engram_memory::ValueDtype;
    use engram_models::compute::Compute;
    use engram_models::kernels::Mode;
    use engram_models::params::ParameterBuilder;
    use engram_models::reveal::Reveal;
    use engram_train::studies::reveal::losses::{BatchTargets, losses};
    use engram_train::studies::reveal::settings::{
        RevealFeed, RevealMemory, RevealModel, RevealSettings,
    };
    use engram_train::studies::reveal::study::RevealStudy;
    let folder = tempfile::tempdir().unwrap();
    let data = data_of(folder.path());
    let num_items = load(&data).unwrap().items.len();
    let batch = runs::recipe::<&str>(RECIPE, &[]).unwrap().batch.clone();
    // Retrieval returns every entry that is not excluded.
    let memory = RevealMemory { k: num_items, reencoded_fraction: 0.0, ..RevealMemory::default() };
    let model = RevealModel { image_size: 8, ..RevealModel::default() };
    let feed = RevealFeed::default();
    let run = folder.path().join("run");
    let settings = RevealSettings { data, model, memory, feeds: vec![feed.clone()] };
    let study = RevealStudy::new(settings, batch, Compute::cpu(), run.clone(), None).unwrap();
    let encoding = study.encoding();
    let (corpus, sequencer) = (&encoding.corpus, &encoding.sequencer);
    let model = Reveal::new(&encoding.config, &ParameterBuilder::on_cpu(1)).unwrap();
    let retriever =
        Retriever::build(&run, &model, corpus, sequencer, ValueDtype::Int4, &Stop::default())
            .unwrap();
    let first = &corpus.train[0];
    let second = corpus.train.iter().find(|example| example.document != first.document).unwrap();
    let examples = [first, second];
    let texts = examples.map(|example| sequencer.query_of(example).unwrap());
    let views = examples.map(|example| example.image.map(|image| (image, 0)));
    let input = sequencer.input(corpus, &texts, &views).unwrap();
    let targets = examples.map(|_| sequencer.target(&[5]));
    let documents = examples.map(|example| example.document.as_deref());
    let batch_targets = BatchTargets {
        targets: &targets,
        own_entries: &[None; 2],
        reads_own_entry: &[false; 2],
        is_absent: &[false; 2],
        excluded_documents: &documents,
    };
    let forward = study.forward(&model, Some(&retriever));
    let losses = losses(&forward, &input, batch_targets, &feed, &Mode::evaluate()).unwrap();
    let distinct_fraction =
        losses.parts.iter().find(|(name, _)| name == "distinct_retrieved").unwrap().1;
    let of_examples =
        corpus.items.iter().filter(|item| documents.contains(&item.entry.document.as_deref()));
    // Each entry is retrieved twice, and entries about the examples' own images once.
    assert_eq!(distinct_fraction, num_items as f64 / (2 * num_items - of_examples.count()) as f64);
    assert!(distinct_fraction > 0.5);
}

#[test]
fn invalid_references_are_refused_before_training() {
    let folder = tempfile::tempdir().unwrap();
    data_of(folder.path());
    let path = folder.path().join("aokvqa.json");
    let mut questions: Vec<Value> =
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    questions.iter_mut().for_each(|question| question["correct_choice_idx"] = 7.into());
    write(folder.path(), "aokvqa.json", &json!(questions));
    let recipe = RECIPE.replace(
        "[model]",
        "[[data.questions]]\naokvqa = \"aokvqa.json\"\n\
        image_name = \"images/%d.png\"\n[model]\nimage_size = 8",
    );
    let set = vec![format!("data.path={:?}", folder.path())];
    let mut recipe = runs::recipe(&recipe, &set).unwrap();
    let run = folder.path().join("run");
    let message = with_causes(&train_reveal(&mut recipe, &quiet(&run)).unwrap_err());
    assert!(message.contains("aokvqa.json") && message.contains("choice"), "{message}");
    assert!(!run.join("metrics.jsonl").exists() && !run.join("checkpoints").exists());
}

#[test]
fn invalid_entries_and_empty_sources_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_of(folder.path());
    for (line, parts) in [
        (r#"{"image": "images/99.png"}"#, ["line 2", "99.png, which is missing"]),
        (r#"{"source": "", "text": "x"}"#, [":2", "empty source"]),
        (r#"{"source": "web"}"#, [":2", "has neither text nor image"]),
        (r#"{"id": 7, "text": "x"}"#, ["line 2", "has the id 7 of line 1"]),
        ("no json", [":2", "is not an entry"]),
    ] {
        fs::write(
            folder.path().join("entries.jsonl"),
            format!("{{\"id\": 7, \"source\": \"web\", \"text\": \"a\"}}\n{line}\n"),
        )
        .unwrap();
        let message = load(&data).err().unwrap();
        for part in ["entries.jsonl", parts[0], parts[1]] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
    // A source without entries is an error.
    fs::write(folder.path().join("entries.jsonl"), "\n").unwrap();
    let message = load(&data).err().unwrap();
    assert!(message.contains("entries.jsonl: is an empty source"), "{message}");
    let mut changed = data_of(folder.path());
    changed.without_sources = vec!["wikidata".into()];
    let message = load(&changed).err().unwrap();
    assert!(message.contains("`wikidata`; choose from web, captions, questions"), "{message}");
    // A source is also empty if all its images are held out.
    changed.without_sources.clear();
    changed.questions[0].split = Some(Split::Test);
    let message = load(&changed).err().unwrap();
    assert!(message.contains("the source `captions` is an empty source"), "{message}");
}

#[test]
fn an_image_with_two_splits_or_two_caption_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut data = data_of(folder.path());
    data.captions[0].split = Some(Split::Train);
    data.questions[0].split = Some(Split::Test);
    let message = load(&data).err().unwrap();
    assert!(
        message.contains("aokvqa.json, image ") && message.contains("captions.json gives it"),
        "{message}"
    );
    data.questions.clear();
    data.captions[0].split = None;
    data.captions.push(data.captions[0].clone());
    let message = load(&data).err().unwrap();
    assert!(message.contains("image 0") && message.contains("already"), "{message}");
    data.captions.iter_mut().for_each(|file| file.describe = false);
    assert_eq!(data.first_invalid_key().unwrap().0, "captions");
}
