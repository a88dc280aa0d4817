//! The REVEAL study on files: what is held out stays out, and what is wrong with a file is said.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use engram_data::text_to_text::TextToText;
use engram_models::weights::Weights;
use engram_train::studies::reveal::corpus::pictures::squared;
use engram_train::studies::reveal::corpus::{Corpus, Judge, Task};
use engram_train::studies::reveal::run::{RevealSummary, train_reveal};
use engram_train::studies::reveal::settings::{BadPictures, RevealData};
use engram_train::{Recipe, RecipeOptions, RunOptions};
use image::{Rgb, RgbImage};
use serde_json::{Value, json};

/// Pictures `0.png` … in `pictures/`, two captions of each, and a question about each.
const PICTURES: usize = 20;

fn write(folder: &Path, name: &str, value: &Value) {
    fs::write(folder.join(name), value.to_string()).unwrap();
}

fn data_of(folder: &Path) -> RevealData {
    fs::create_dir_all(folder.join("pictures")).unwrap();
    for i in 0..PICTURES {
        let colour = |x: u32, y: u32| Rgb([(i * 12) as u8, (x * 7) as u8, (y * 9) as u8]);
        let picture = RgbImage::from_fn(30, 20, colour);
        picture.save(folder.join(format!("pictures/{i}.png"))).unwrap();
    }
    let all = 0..PICTURES;
    let images: Vec<Value> =
        all.clone().map(|i| json!({"id": i, "file_name": format!("{i}.png")})).collect();
    let captions = all.clone().flat_map(|i| {
        ["one", "two"]
            .map(|n| json!({"image_id": i, "id": i, "caption": format!("number {i} {n}")}))
    });
    let captions: Vec<Value> = captions.collect();
    write(folder, "captions.json", &json!({"images": images, "annotations": captions}));
    let questions: Vec<Value> = all
        .clone()
        .map(|i| {
            json!({"question_id": format!("q{i}"), "image_id": i, "question": format!("which {i}?"),
                "choices": ["a", "b"], "correct_choice_idx": 0, "difficult_direct_answer": false,
                "direct_answers": [format!("answer {i}"), "other"]})
        })
        .collect();
    write(folder, "aokvqa.json", &json!(questions));
    let lines = all.map(|i| {
        let line = json!({"source": "web", "image": format!("pictures/{i}.png"),
            "text": format!("web {i}")});
        format!("{line}\n")
    });
    let text = "{\"source\": \"web\", \"text\": \"of no picture\"}\n";
    fs::write(folder.join("entries.jsonl"), lines.collect::<String>() + text).unwrap();
    let toml = r#"
        entries = ["entries.jsonl"]
        test_share = 0.3
        validation_share = 0.2
        [[captions]]
        file = "captions.json"
        pictures = "pictures"
        asked = true
        source = "captions"
        [[questions]]
        aokvqa = "aokvqa.json"
        image_name = "pictures/%d.png"
        source = "questions"
    "#;
    RevealData { path: folder.display().to_string(), ..toml::from_str(toml).unwrap() }
}

fn load(data: &RevealData) -> Result<Corpus, String> {
    assert_eq!(data.conflict(), None);
    Corpus::load(data, 8, squared(8)).map_err(|error| error.to_string())
}

#[test]
fn nothing_said_of_a_held_out_picture_is_in_the_memory_or_in_training() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_of(folder.path());
    let corpus = load(&data).unwrap();
    assert_eq!(corpus.sources, ["web", "captions", "questions"]);
    let count = |list: &[_]| list.len();
    // A description and a question for each picture of a split.
    let counts = [count(&corpus.train), count(&corpus.validation), count(&corpus.test)];
    assert_eq!(counts, [20, 8, 12]);
    let of = |list: &[engram_train::studies::reveal::corpus::Example]| -> HashSet<String> {
        list.iter().filter_map(|example| example.document.clone()).collect()
    };
    let (train, validation, test) = (of(&corpus.train), of(&corpus.validation), of(&corpus.test));
    assert!(train.is_disjoint(&test) && train.is_disjoint(&validation));
    assert!(test.is_disjoint(&validation));
    let held_out: HashSet<&String> = validation.union(&test).collect();
    assert_eq!(corpus.items.len(), 3 * 10 + 1);
    for item in &corpus.items {
        let picture = item.entry.payload.get("image").and_then(Value::as_str);
        let number = picture.map(|path| path.replace("pictures/", "").replace(".png", ""));
        for known in [number, item.entry.document.clone()].iter().flatten() {
            assert!(!held_out.contains(known), "{:?}", item.entry);
        }
        assert_eq!(picture.is_some(), item.picture.is_some());
        // What shows a picture belongs to it, and its example does not retrieve it.
        let own = format!("entry {}", item.entry.id);
        assert_eq!(picture.is_none(), item.entry.document == Some(own), "{:?}", item.entry);
    }
    assert!(corpus.continuations().iter().all(|example| example.document.is_some()));
    let texts = corpus.training_texts().join("\n");
    for document in &held_out {
        assert!(!texts.contains(&format!("number {document} ")), "{document}");
        assert!(!texts.lines().any(|line| line == format!("answer {document}")), "{document}");
    }
    assert!(texts.contains("answer "));
    assert_eq!(corpus.training_pictures.len(), 10);
    for example in corpus.train.iter().filter(|example| example.task == Task::Answer) {
        let own = &corpus.items[example.own.unwrap()].entry;
        assert_eq!(
            own.text(),
            format!("Question: {} Answer: {}", example.text, example.answers.join(", "))
        );
    }
    assert!(matches!(corpus.judges[..], [Judge::Captions, Judge::Aokvqa(_)]));
    // The same files and seed give the same splits, another seed others.
    assert_eq!(of(&load(&data).unwrap().test), test);
    assert_ne!(of(&load(&RevealData { world_seed: 2, ..data }).unwrap().test), test);
}

#[test]
fn views_are_drawn_by_their_number_whatever_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_of(folder.path());
    let corpus = load(&data).unwrap();
    let small = load(&RevealData { cached_pictures_mib: 0, ..data }).unwrap();
    let wanted = [(0, 0), (0, 20), (0, 21), (3, 20)];
    let views = corpus.pictures.pixels(&wanted).unwrap();
    assert_eq!(views, small.pictures.pixels(&wanted).unwrap());
    assert_eq!(views, corpus.pictures.pixels(&wanted).unwrap());
    let views: Vec<&[f32]> = views.chunks(3 * 8 * 8).collect();
    assert_eq!(views.len(), 4);
    for (i, one) in views.iter().enumerate() {
        assert!(views[i + 1..].iter().all(|other| one != other), "view {i}");
        assert!(one.iter().all(|value| (-1.0..=1.0).contains(value)));
    }
}

#[test]
fn a_picture_that_is_missing_or_broken_is_named_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut data = data_of(folder.path());
    data.captions.clear();
    data.entries.clear();
    fs::write(folder.path().join("pictures/3.png"), b"\x89PNG\r\n\x1a\n broken").unwrap();
    fs::remove_file(folder.path().join("pictures/5.png")).unwrap();
    // A question whose picture does not decode.
    let told = load(&data).err().unwrap();
    for part in
        ["aokvqa.json, question q3", "3.png", "1 are missing, 1 do not decode", "text_alone"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    // A question without its picture.
    fs::copy(folder.path().join("pictures/4.png"), folder.path().join("pictures/3.png")).unwrap();
    let told = load(&data).err().unwrap();
    assert!(told.contains("question q5") && told.contains("5.png, which is not there"), "{told}");

    data.bad_pictures = BadPictures::LeaveOut;
    let corpus = load(&data).unwrap();
    assert_eq!(corpus.train.len() + corpus.validation.len() + corpus.test.len(), PICTURES - 1);
    assert!(corpus.notes.iter().any(|note| note.contains("1 of 20 questions left out")));
    data.bad_pictures = BadPictures::TextAlone;
    let corpus = load(&data).unwrap();
    let all = corpus.train.iter().chain(&corpus.validation).chain(&corpus.test);
    assert_eq!(all.clone().count(), PICTURES);
    assert_eq!(all.filter(|example| example.picture.is_none()).count(), 1);
    assert!(corpus.notes.iter().any(|note| note.contains("1 of 20 questions asked without")));

    // A picture that nothing but its captions names is described nowhere, and no split is drawn for it.
    let data = RevealData { bad_pictures: BadPictures::TextAlone, ..data_of(folder.path()) };
    let data = RevealData { questions: Vec::new(), ..data };
    fs::remove_file(folder.path().join("pictures/5.png")).unwrap();
    let corpus = load(&data).unwrap();
    let counts = [&corpus.train, &corpus.validation, &corpus.test].map(Vec::len);
    assert_eq!(counts, [9, 4, 6]);
    let note = "1 of 20 described pictures left out";
    assert!(corpus.notes.iter().any(|told| told == note), "{:?}", corpus.notes);
}

/// The documents of the examples of each split.
fn documents(corpus: &Corpus) -> [HashSet<String>; 3] {
    [&corpus.train, &corpus.validation, &corpus.test]
        .map(|list| list.iter().filter_map(|example| example.document.clone()).collect())
}

#[test]
fn captions_that_are_not_asked_for_keep_to_the_split_of_their_file() {
    use engram_data::world::questions::Split;
    let folder = tempfile::tempdir().unwrap();
    let mut data = data_of(folder.path());
    data.captions[0].asked = false;
    data.captions[0].split = Some(Split::Test);
    data.without_sources = vec!["captions".into()];
    // Other questions, about pictures of their own.
    let questions: Vec<Value> = (0..10)
        .map(|i| {
            json!({"question_id": format!("q{i}"), "image_id": 100 + i, "question": "what?",
            "choices": ["a", "b"], "correct_choice_idx": 0, "difficult_direct_answer": false,
            "direct_answers": ["a"]})
        })
        .collect();
    write(folder.path(), "aokvqa.json", &json!(questions));
    for i in 0..10 {
        let picture = RgbImage::from_pixel(9, 9, Rgb([i * 20, 255 - i, 7]));
        picture.save(folder.path().join(format!("pictures/{}.png", 100 + i))).unwrap();
    }
    data.without_sources.clear();
    data.captions[0].source = None;
    let corpus = load(&data).unwrap();
    // Of all that is on the web only the text of no picture is left.
    let web = corpus.items.iter().filter(|item| item.entry.source == "web");
    assert_eq!(web.map(|item| item.text.as_str()).collect::<Vec<_>>(), ["of no picture"]);
    data.captions[0].split = None;
    let corpus = load(&data).unwrap();
    assert_eq!(corpus.items.iter().filter(|item| item.entry.source == "web").count(), 21);
}

#[test]
fn a_copy_of_a_picture_is_on_its_side() {
    use engram_data::world::questions::Split;
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let mut data = data_of(at);
    data.captions[0].source = None;
    // Each even picture is a copy of the odd one behind it.
    for i in (0..PICTURES).step_by(2) {
        let name = |i: usize| at.join(format!("pictures/{i}.png"));
        fs::copy(name(i + 1), name(i)).unwrap();
    }
    let corpus = load(&data).unwrap();
    let names = |list: &[engram_train::studies::reveal::corpus::Example]| -> HashSet<usize> {
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
    // What is said of either is one document, which no example retrieves of itself.
    let own = corpus.train.iter().filter(|example| example.task == Task::Answer);
    for example in own {
        let item = &corpus.items[example.own.unwrap()];
        assert_eq!(item.entry.document, example.document);
        assert_eq!(item.picture, example.picture);
    }
    assert_eq!(corpus.training_pictures.len(), 5);

    // Other names of a file, as entries may have them.
    let mut data = data_of(at);
    data.captions.clear();
    let absolute = at.canonicalize().unwrap().join("pictures");
    let lines = (0..PICTURES).flat_map(|i| {
        [format!("./pictures/{i}.png"), format!("{}/{i}.png", absolute.display())].map(|image| {
            let line = json!({"source": "web", "image": image, "text": format!("web {i}")});
            format!("{line}\n")
        })
    });
    fs::write(at.join("entries.jsonl"), lines.collect::<String>()).unwrap();
    for missing in [false, true] {
        if missing {
            // Pictures that are not there are known by their paths.
            fs::remove_file(at.join("pictures/0.png")).unwrap();
            data.bad_pictures = BadPictures::TextAlone;
        }
        let corpus = load(&data).unwrap();
        let web = corpus.items.iter().filter(|item| item.entry.source == "web");
        let [train, ..] = documents(&corpus);
        assert_eq!(web.clone().count(), 2 * train.len());
        assert!(web.clone().all(|item| train.contains(item.entry.document.as_ref().unwrap())));
    }
    // Two files must not give a picture's copies different splits.
    fs::copy(at.join("pictures/1.png"), at.join("pictures/0.png")).unwrap();
    let questions = json!([{"question_id": "q1", "image_id": 1, "question": "what?",
        "choices": ["a", "b"], "correct_choice_idx": 0, "difficult_direct_answer": false,
        "direct_answers": ["a"]}]);
    write(at, "aokvqa.json", &questions);
    let mut data = data_of(at);
    fs::copy(at.join("pictures/1.png"), at.join("pictures/0.png")).unwrap();
    write(at, "aokvqa.json", &questions);
    let caption = json!({"images": [{"id": 0, "file_name": "0.png"}],
        "annotations": [{"id": 0, "image_id": 0, "caption": "nought"}]});
    write(at, "captions.json", &caption);
    (data.captions[0].split, data.questions[0].split) = (Some(Split::Train), Some(Split::Test));
    let told = load(&data).err().unwrap();
    assert!(told.contains("image 1: is for test, but captions.json has image 0"), "{told}");
    assert!(told.contains(&format!("{}", at.join("aokvqa.json").display())), "{told}");
}

#[test]
fn ids_of_entries_do_not_run_over() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_of(folder.path());
    let write = |lines: &str| fs::write(folder.path().join("entries.jsonl"), lines).unwrap();
    write("{\"id\": 0, \"text\": \"a\"}\n{\"text\": \"b\"}\n{\"id\": 9, \"text\": \"c\"}\n");
    let ids: Vec<i64> = load(&data).unwrap().items.iter().map(|item| item.entry.id).collect();
    assert_eq!(ids[..4], [0, 1, 9, 10]);
    write("{\"id\": 9223372036854775807, \"text\": \"a\"}\n");
    assert!(load(&data).err().unwrap().contains("the largest id that there is"));
    write("{\"id\": 9223372036854775807, \"text\": \"a\"}\n{\"text\": \"b\"}\n");
    assert!(load(&data).err().unwrap().contains("entries.jsonl:2: has no id"));
}

#[test]
fn training_reads_nothing_of_an_examples_own_document() {
    use engram_models::kernels::Mode;
    use engram_models::params::ParameterBuilder;
    use engram_models::reveal::Reveal;
    use engram_train::studies::reveal::forward::Known;
    use engram_train::studies::reveal::retriever::Retriever;
    use engram_train::studies::reveal::settings::{RevealFeed, RevealMemory, RevealModel};
    use engram_train::studies::reveal::study::RevealStudy;
    let folder = tempfile::tempdir().unwrap();
    let data = data_of(folder.path());
    let all = load(&data).unwrap().items.len();
    let recipe = Recipe::parse(RECIPE, Path::new("recipe.toml"), &RecipeOptions::default());
    let batch = recipe.unwrap().batch().clone();
    // Whatever it may read, it does.
    let memory = RevealMemory { k: all, reencoded: 0.0, ..RevealMemory::default() };
    let settings = (data, RevealModel { image_size: 8, ..RevealModel::default() }, memory);
    let feed = RevealFeed::default();
    let run = folder.path().join("run");
    let study = RevealStudy::new(settings, vec![feed.clone()], batch, 1, run.clone()).unwrap();
    let encoding = study.encoding();
    let (corpus, sequencer) = (&encoding.corpus, &encoding.sequencer);
    let model = Reveal::new(&encoding.config, &ParameterBuilder::on_cpu(1)).unwrap();
    let (retriever, _writer) = Retriever::build(&run, &model, corpus, sequencer).unwrap();
    let first = &corpus.train[0];
    let second = corpus.train.iter().find(|one| one.document != first.document).unwrap();
    let asked = [first, second];
    let texts = asked.map(|example| sequencer.asked(example).unwrap());
    let views = asked.map(|example| example.picture.map(|picture| (picture, 0)));
    let input = sequencer.input(corpus, &texts, &views).unwrap();
    let targets = asked.map(|_| sequencer.target(&[5]));
    let documents = asked.map(|example| example.document.as_deref());
    let known =
        Known { targets: &targets, own: &[None; 2], replaced: &[false; 2], documents: &documents };
    let forward = study.forward(&model, Some(&retriever));
    let losses = forward.losses(&input, known, &feed, &Mode::evaluate()).unwrap();
    let found = losses.parts.iter().find(|(name, _)| name == "distinct_retrieved").unwrap().1;
    let own =
        corpus.items.iter().filter(|item| documents.contains(&item.entry.document.as_deref()));
    // Both together read each entry twice, but what is about their own pictures once.
    assert_eq!(found, all as f64 / (2 * all - own.count()) as f64);
    assert!(found > 0.5);
}

#[test]
fn what_the_evaluation_would_refuse_is_refused_before_the_training() {
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
        image_name = \"pictures/%d.png\"\n[model]\nimage_size = 8",
    );
    let set = vec![format!("data.path={:?}", folder.path())];
    let options = RecipeOptions { set, ..RecipeOptions::default() };
    let mut recipe = Recipe::parse(&recipe, Path::new("recipe.toml"), &options).unwrap();
    let run = folder.path().join("run");
    let options = RunOptions { run: run.clone(), quiet: true, ..RunOptions::default() };
    let told = train_reveal(&mut recipe, &options).unwrap_err();
    let told = format!("{told}: {:?}", std::error::Error::source(&told).map(ToString::to_string));
    assert!(told.contains("aokvqa.json") && told.contains("choice"), "{told}");
    assert!(!run.join("loss.jsonl").exists() && !run.join("checkpoints").exists());
}

#[test]
fn faults_of_entries_are_told_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_of(folder.path());
    for (line, parts) in [
        (r#"{"image": "pictures/99.png"}"#, ["line 2", "99.png, which is not there"]),
        (r#"{"source": "", "text": "x"}"#, [":2", "empty source"]),
        (r#"{"source": "web"}"#, [":2", "says nothing"]),
        (r#"{"id": 7, "text": "x"}"#, ["line 2", "has the id 7 of line 1"]),
        ("no json", [":2", "is no entry"]),
    ] {
        fs::write(
            folder.path().join("entries.jsonl"),
            format!("{{\"id\": 7, \"source\": \"web\", \"text\": \"a\"}}\n{line}\n"),
        )
        .unwrap();
        let told = load(&data).err().unwrap();
        for part in ["entries.jsonl", parts[0], parts[1]] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
    // A source that has nothing.
    fs::write(folder.path().join("entries.jsonl"), "\n").unwrap();
    let told = load(&data).err().unwrap();
    assert!(told.contains("entries.jsonl: is an empty source"), "{told}");
    let mut other = data_of(folder.path());
    other.without_sources = vec!["wikidata".into()];
    let told = load(&other).err().unwrap();
    assert!(told.contains("`wikidata`; the sources are web, captions, questions"), "{told}");
    // All pictures of a source are held out.
    other.without_sources.clear();
    other.questions[0].split = Some(engram_data::world::questions::Split::Test);
    let told = load(&other).err().unwrap();
    assert!(told.contains("the source `captions` is an empty source"), "{told}");
}

#[test]
fn a_picture_on_two_sides_is_refused() {
    use engram_data::world::questions::Split;
    let folder = tempfile::tempdir().unwrap();
    let mut data = data_of(folder.path());
    data.captions[0].split = Some(Split::Train);
    data.questions[0].split = Some(Split::Test);
    let told = load(&data).err().unwrap();
    assert!(
        told.contains("aokvqa.json, image ") && told.contains("captions.json has it"),
        "{told}"
    );
    data.questions.clear();
    data.captions[0].split = None;
    data.captions.push(data.captions[0].clone());
    let told = load(&data).err().unwrap();
    assert!(told.contains("image 0") && told.contains("already"), "{told}");
    data.captions.iter_mut().for_each(|file| file.asked = false);
    assert_eq!(data.conflict().unwrap().0, "captions");
}

#[test]
fn the_recipes_of_published_sizes_are_those_sizes() {
    use engram_models::params::ParameterBuilder;
    use engram_models::reveal::{Reveal, RevealConfig};
    use engram_train::studies::reveal::published::Published;
    use engram_train::studies::reveal::settings::{RevealFeed, RevealMemory, RevealModel};
    use engram_train::studies::reveal::sizes::config_of;
    let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/reveal");
    for (name, published) in [("base", RevealConfig::base(1)), ("large", RevealConfig::large(1))] {
        let options = RecipeOptions::default();
        let mut recipe = Recipe::load(&recipes.join(format!("{name}.toml")), &options).unwrap();
        let model: RevealModel = recipe.model().unwrap();
        let (data, memory): (RevealData, RevealMemory) =
            (recipe.data().unwrap(), recipe.memory().unwrap());
        assert_eq!((model.conflict(), data.conflict(), memory.conflict()), (None, None, None));
        for feed in recipe.feed::<RevealFeed>().unwrap() {
            assert_eq!(feed.conflict(), None);
        }
        let config = config_of(&model, &Published::default());
        assert_eq!(config, published, "{name}");
        // Each pattern of each phase names parameters that there are.
        for phase in recipe.phases() {
            let builder = ParameterBuilder::of_shapes();
            Reveal::new(&config, &builder).unwrap();
            let parameters = builder.finish().unwrap();
            for group in recipe.groups(phase) {
                let named = |name: &str| {
                    engram_models::params::path_matches(group.pattern.as_bytes(), name.as_bytes())
                };
                let any = parameters.iter().any(|one| named(one.name()));
                assert!(any, "{name}, {}: {}", phase.name, group.pattern);
            }
        }
    }
}

/// Folders of a tiny T5 and a tiny ViT as they are published.
fn published_folders(folder: &Path) {
    use engram_models::params::ParameterBuilder;
    use engram_models::t5::{T5, T5Config};
    use engram_models::vit::{ViT, ViTConfig};
    let tokens = TextToText::train((0..9).map(|i| format!("number {i} one two")), 60).unwrap();
    let t5 = T5Config {
        vocab_size: tokens.vocabulary() + 5,
        d_model: 8,
        d_kv: 4,
        d_ff: 12,
        num_layers: 3,
        num_decoder_layers: Some(1),
        num_heads: 2,
        ..T5Config::small()
    };
    let vit = ViTConfig {
        hidden_size: 8,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 12,
        image_size: 8,
        patch_size: 4,
        ..ViTConfig::base_16()
    };
    let builders = [ParameterBuilder::on_cpu(1), ParameterBuilder::on_cpu(2)];
    T5::new(&t5, &builders[0]).unwrap();
    ViT::new(&vit, &builders[1]).unwrap();
    let configs = [serde_json::to_value(&t5).unwrap(), serde_json::to_value(&vit).unwrap()];
    for ((kind, mut config), builder) in ["t5", "vit"].into_iter().zip(configs).zip(&builders) {
        let own = folder.join(kind);
        fs::create_dir(&own).unwrap();
        config["model_type"] = kind.into();
        // Published files do not say it.
        config.as_object_mut().unwrap().remove("class_token");
        write(&own, "config.json", &config);
        let parameters = builder.finish().unwrap();
        let named = parameters.iter().map(|one| (one.name(), one.tensor()));
        engram_models::weights::save(&own.join("model.safetensors"), named).unwrap();
    }
    fs::write(folder.join("t5/tokenizer.json"), tokens.json().unwrap()).unwrap();
    let processor = json!({"size": {"height": 8, "width": 8}, "resample": 2,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]});
    write(&folder.join("vit"), "preprocessor_config.json", &processor);
}

const RECIPE: &str = r#"
study = "reveal"
[data]
entries = ["entries.jsonl"]
[[data.captions]]
file = "captions.json"
pictures = "pictures"
asked = true
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
weight_decay = 0.0
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

/// A run by the recipe above with a T5 and a ViT.
fn train_from(folder: &Path, t5: &str, vit: &str) -> Result<RevealSummary, String> {
    let set = [("data.path", ""), ("model.t5", t5), ("model.vit", vit)];
    let set = set.iter().map(|(key, name)| match name.starts_with("hf:") {
        true => format!("{key}={name:?}"),
        false => format!("{key}={:?}", folder.join(name)),
    });
    let options = RecipeOptions { set: set.collect(), ..RecipeOptions::default() };
    let mut recipe = Recipe::parse(RECIPE, Path::new("recipe.toml"), &options).unwrap();
    let run = folder.join("run");
    let options = RunOptions { run, quiet: true, ..RunOptions::default() };
    train_reveal(&mut recipe, &options).map(Option::unwrap).map_err(|error| error.to_string())
}

#[test]
fn a_run_starts_from_folders_of_published_weights() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    data_of(at);
    published_folders(at);
    let summary = train_from(at, "t5", "vit").unwrap();
    assert_eq!(summary.steps, 1);
    // None says that anything starts afresh.
    assert_eq!(summary.notes, ["6 entries about held-out pictures left out"]);
    let run = at.join("run");
    let read = |path: &Path| fs::read(path).unwrap();
    let processor = "preprocessor_config.json";
    assert_eq!(read(&run.join(processor)), read(&at.join("vit").join(processor)));
    // The step is too short to move anything that is not 0.
    let weights = Weights::open(&run.join("model.safetensors")).unwrap();
    let of = |weights: &Weights, name: &str, shape: &[usize]| {
        let tensor = weights.get(name, shape, candle_core::DType::F32, &candle_core::Device::Cpu);
        tensor.unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    let (t5, vit) = (at.join("t5/model.safetensors"), at.join("vit/model.safetensors"));
    let (t5, vit) = (Weights::open(&t5).unwrap(), Weights::open(&vit).unwrap());
    let name = "encoder.block.2.layer.0.SelfAttention.q.weight";
    assert_eq!(of(&weights, name, &[8, 8]), of(&t5, name, &[8, 8]));
    let name = "encoder.layer.1.intermediate.dense.weight";
    let ours = format!("image_encoder.{name}");
    assert_eq!(of(&weights, &ours, &[12, 8]), of(&vit, name, &[12, 8]));
    let model: Value = serde_json::from_slice(&read(&run.join("model.json"))).unwrap();
    assert_eq!(model["frozen_image_layers"], 1);
    let tokenizer = |path: &Path| -> Value { serde_json::from_slice(&read(path)).unwrap() };
    assert_eq!(
        tokenizer(&run.join("tokenizer.json"))["model"],
        tokenizer(&at.join("t5/tokenizer.json"))["model"]
    );

    // What is not there, or of another kind, is told with its file.
    fs::remove_dir_all(&run).unwrap();
    for (t5, vit, named) in [
        ("vit", "vit", "vit/config.json"),
        ("t5", "t5", "t5/config.json"),
        ("nowhere", "vit", "nowhere"),
        ("hf://a/b/c", "vit", "names no model"),
    ] {
        let told = train_from(at, t5, vit).unwrap_err();
        assert!(told.contains(named), "{t5}, {vit}: {told}");
    }
    fs::remove_file(at.join("t5/tokenizer.json")).unwrap();
    let told = train_from(at, "t5", "vit").unwrap_err();
    assert!(told.contains("tokenizer.json"), "{told}");
}
