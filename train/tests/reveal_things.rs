//! The REVEAL study on pictures of named things: corpus, views, a run, controls, refusals.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Tensor;
use engram_infer::reveal::answerer::{Answerer, Detail, recording};
use engram_infer::reveal::corpus::Corpus;
use engram_infer::reveal::feature_maps::FeatureMaps;
use engram_infer::reveal::images::{FIRST_TRAINING_VIEW, Images, squared};
use engram_models::compute::Compute;
use engram_models::mobilenet::{IMAGE_SIZE, MobileNet, WEIGHTS_FILE};
use engram_train::grid::{Grid, run_grid};
use engram_train::studies::ALL;
use engram_train::studies::reveal::corpus::load as load_corpus;
use engram_train::studies::reveal::image_recall::Searched;
use engram_train::studies::reveal::run::{TestAnswer, train_reveal};
use engram_train::studies::reveal::settings::{RevealData, Things};
use engram_train::{RunOptions, TrainError};
use image::{Rgb, RgbImage, Rgba, RgbaImage};

use crate::reveal::RECIPE;
use crate::runs::{quiet, quiet_grid, recipe, with_causes};

/// Number of things: 8 to train with, 2 for validation and 2 for the test.
const THINGS: usize = 12;

fn split_of(thing: usize) -> &'static str {
    ["train", "train", "validation", "train", "train", "test"][thing % 6]
}

/// The line of a thing: its name is `Ding` or `chose`, and a letter; the test has a long remark.
fn line(thing: usize) -> String {
    let letter = char::from(b'a' + thing as u8);
    format!(
        r#"{{"source":"pictures","document":"thing {letter}","image":"{thing}.png","names":{{"de":"Ding {letter}{letter} (ein Ding mit einer langen Bemerkung).","fr":"Chose  {letter}!"}},"sounds":[{{"file":"{thing}.ogg","language":"de"}},{{"file":"bell.ogg","language":null}}],"split":"{}"}}"#,
        split_of(thing)
    )
}

/// A folder with things, green on transparent red, and with 5 backgrounds. The first background,
/// which is for evaluation, is red, and the others are blue.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for thing in 0..THINGS as u32 {
        let is_thing = |x: u32, y: u32| x > 3 && y > 3 && !(x + y * thing).is_multiple_of(5);
        let pixel = |x, y| if is_thing(x, y) { [0, 200, 0, 255] } else { [255, 0, 0, 0] };
        let picture = RgbaImage::from_fn(16, 12, |x, y| Rgba(pixel(x, y)));
        picture.save(folder.path().join(format!("{thing}.png"))).unwrap();
    }
    fs::create_dir(folder.path().join("backgrounds")).unwrap();
    for number in 0..5 {
        let colour = if number == 0 { [255, 0, 0] } else { [0, 0, 255] };
        let background = RgbImage::from_pixel(20, 14, Rgb(colour));
        background.save(folder.path().join(format!("backgrounds/{number}.png"))).unwrap();
    }
    write_lines(folder.path(), &(0..THINGS).map(line).collect::<Vec<_>>());
    folder
}

fn write_lines(folder: &Path, lines: &[String]) {
    fs::write(folder.join("entries.jsonl"), lines.join("\n")).unwrap();
}

fn things(folder: &Path) -> Things {
    let backgrounds = vec![folder.join("backgrounds").display().to_string()];
    Things { backgrounds, reading: 30, graphics: 0, ..Things::default() }
}

fn load(folder: &Path, things: Things) -> Result<Corpus, String> {
    load_at(folder, things, 16)
}

/// Loads the things with images of `size` × `size` pixels.
fn load_at(folder: &Path, things: Things, size: usize) -> Result<Corpus, String> {
    let path = folder.display().to_string();
    let data = RevealData { path, things: Some(things), ..RevealData::default() };
    load_corpus(&data, size, squared(size)).map_err(|error| error.to_string())
}

#[test]
fn the_memory_has_all_things_and_training_asks_for_its_own_only() -> Result<(), String> {
    let folder = folder();
    let corpus = load(folder.path(), things(folder.path()))?;
    assert_eq!((corpus.stored, corpus.items.len()), (2 * THINGS, 2 * THINGS + 8 * 32 + 30));
    let texts: Vec<&str> = corpus.items.iter().map(|item| item.text.as_str()).collect();
    assert_eq!(texts[..2], ["ding aa, in German.", "chose a, in French."]);
    let recordings: Vec<_> = corpus.items.iter().map(|item| recording(&item.entry)).collect();
    assert_eq!(recordings[..3], [Some("0.ogg"), None, Some("1.ogg")]);
    let things_of = |examples: &[engram_infer::reveal::corpus::Example]| -> Vec<usize> {
        let images: HashSet<usize> = examples.iter().filter_map(|example| example.image).collect();
        (0..THINGS).filter(|image| images.contains(image)).collect()
    };
    assert_eq!(things_of(&corpus.train), [0, 1, 3, 4, 6, 7, 9, 10]);
    assert_eq!(corpus.training_images, [0, 1, 3, 4, 6, 7, 9, 10]);
    assert_eq!(things_of(&corpus.validation), [2, 8]);
    assert_eq!(things_of(&corpus.test), [5, 11]);
    for example in corpus.train.iter().chain(&corpus.test) {
        let own = &corpus.items[example.own_entry.unwrap()];
        assert!(own.text.contains(&example.answers[0]) && own.image == example.image);
    }
    assert_eq!(things_of(&corpus.naming), [0, 1, 3, 4, 6, 7, 9, 10]);
    assert!(corpus.naming.iter().all(|example| example.own_entry >= Some(corpus.stored)));
    // Exercises in reading have names of training things only, and no picture.
    for example in &corpus.reading {
        let own = &corpus.items[example.own_entry.unwrap()];
        assert!(own.text.contains(&example.answers[0]) && own.image.is_none() && !own.in_training);
        assert!(!example.answers[0].contains(['f', 'l']), "{:?}", example.answers);
    }
    assert_eq!(corpus.sources, ["names"]);
    Ok(())
}

#[test]
fn views_of_evaluation_and_training_have_different_backgrounds() -> Result<(), String> {
    let folder = folder();
    let corpus = load(folder.path(), things(folder.path()))?;
    let Images::CutOuts(cut_outs) = &corpus.images else { return Err("no cut-outs".into()) };
    let view = |thing, view| cut_outs.view(thing, view).unwrap();
    let has = |view: &RgbImage, channel: usize| view.pixels().any(|pixel| pixel.0[channel] > 250);
    for number in [1, FIRST_TRAINING_VIEW - 1, FIRST_TRAINING_VIEW, 1000] {
        let view = view(0, number);
        let (red, blue) = (has(&view, 0), has(&view, 2));
        assert_eq!((red, blue), (number < FIRST_TRAINING_VIEW, number >= FIRST_TRAINING_VIEW));
    }
    assert_eq!(corpus.training_views_of(0), u32::MAX - FIRST_TRAINING_VIEW);
    assert!(view(0, 1) == view(0, 1) && view(0, 1) != view(0, 2) && view(0, 1) != view(1, 1));
    let clean = view(0, 0);
    assert!(clean.pixels().all(|pixel| pixel.0[1] >= 190), "red beneath the transparency shows");
    Ok(())
}

#[test]
fn graphics_have_a_quarter_of_the_views() -> Result<(), String> {
    let folder = folder();
    let with_graphics = Things { graphics: 3, views: 9, ..things(folder.path()) };
    let corpus = load(folder.path(), with_graphics)?;
    assert_eq!(corpus.training_images, [0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 14]);
    assert_eq!([0, 12].map(|image| corpus.training_views_of(image)), [9, 3]);
    Ok(())
}

#[test]
fn other_pictures_are_searched_by_name_and_never_asked_about() -> Result<(), String> {
    let folder = folder();
    fs::create_dir(folder.path().join("more")).unwrap();
    fs::copy(folder.path().join("0.png"), folder.path().join("more/0.png")).unwrap();
    fs::write(folder.path().join("more/entries.jsonl"), line(0)).unwrap();
    let others = vec!["more/entries.jsonl".to_owned()];
    let corpus = load(folder.path(), Things { others, graphics: 3, ..things(folder.path()) })?;
    let named = &corpus.named_pictures;
    assert_eq!(named.len(), THINGS + 1 + 3);
    assert_eq!((named[0].name.as_str(), named[0].in_training), ("thing a", true));
    assert_eq!((named[THINGS].name.as_str(), named[THINGS].in_training), ("thing a", false));
    assert_eq!(corpus.training_images, [0, 1, 3, 4, 6, 7, 9, 10, 13, 14, 15]);
    assert!(corpus.is_graphic(named[THINGS + 1].image) && !corpus.is_graphic(THINGS));
    let pixels = |image| corpus.images.pixels(&[(image, 0)]).unwrap();
    assert!(pixels(0) == pixels(THINGS) && pixels(1) != pixels(THINGS));
    let examples = corpus.train.iter().chain(&corpus.validation).chain(&corpus.test);
    assert!(examples.filter_map(|example| example.image).all(|image| image != THINGS));
    Ok(())
}

/// Feature maps take the place of pixels: a run learns from them, records the network, and answers
/// with it; a cached map equals a new one.
#[test]
#[ignore = "needs ENGRAM_DATA: the folder with vision-mobilenet"]
fn a_run_on_feature_maps_answers_from_its_own_folder() {
    let network = PathBuf::from(std::env::var_os("ENGRAM_DATA").expect("ENGRAM_DATA"));
    let network = network.join("vision-mobilenet");
    let folder = folder();
    let model = format!("[model]\nmobilenet = {:?}\n", network.display().to_string());
    let text = recipe_of(folder.path()).replace("image_size = 16\npatch_size = 8\n", "");
    let text = text.replacen("[model]\n", &model, 1);
    let runs = tempfile::tempdir().unwrap();
    let run = runs.path().join("run");
    // The same pictures under another name: each photograph that is not in training finds itself.
    fs::copy(folder.path().join("entries.jsonl"), folder.path().join("again.jsonl")).unwrap();
    let others = ["data.things.others=[\"again.jsonl\"]"];
    let mut recipe = recipe(&text, &others).unwrap();
    let summary = train_reveal(&mut recipe, &quiet(&run)).unwrap();
    let (of_questions, by_name) = summary.found_images.split_at(4);
    assert!(of_questions.iter().all(|found| found.searched == Searched::Things));
    for answer in TestAnswer::read(&run.join("test.jsonl")).unwrap() {
        assert!(image::open(run.join(answer.view_file.unwrap())).is_ok());
    }
    assert!(of_questions.iter().all(|found| found.frozen < THINGS));
    assert_eq!(by_name.len(), 4 + THINGS);
    assert!(by_name.iter().all(|found| found.searched == Searched::Photographs));
    // Things whose numbers differ by 5 look alike, and a tie counts against the right picture.
    assert!(by_name.iter().all(|found| found.right == 1 && [2, 4].contains(&found.frozen)));

    let (image, compute) = (folder.path().join("5.png"), Compute::cpu());
    let open = || Answerer::open(&run, None, None, vec![image.clone()], &compute, None);
    let ask = || {
        open()
            .unwrap()
            .answer_one(Some("What is this in German?"), &image, &[], Detail::default())
            .unwrap()
    };
    assert!(open().unwrap().world().unwrap().is_none());
    let [answer, again] = [(); 2].map(|()| ask());
    assert!(!answer.evidence.is_empty());
    assert_eq!(answer.answer, again.answer);
    let network = Arc::new(MobileNet::read(&run.join(WEIGHTS_FILE)).unwrap());
    let corpus = load_at(folder.path(), things(folder.path()), IMAGE_SIZE).unwrap();
    let maps = FeatureMaps::new(network, 1 << 20);
    let views = [(0, 0), (3, 1), (3, FIRST_TRAINING_VIEW)];
    let [first, cached] = [(); 2].map(|()| maps.of(&corpus.images, &views).unwrap());
    assert_eq!(first.dims(), [3, 704, 7, 7]);
    let values = |maps: &Tensor| maps.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(values(&first), values(&cached));

    // A run without its network is refused.
    fs::remove_file(run.join(WEIGHTS_FILE)).unwrap();
    let error = open().err().unwrap().to_string();
    assert!(error.contains(WEIGHTS_FILE), "{error}");
}

const GRID: &str = r#"
recipe = "test.toml"
main = "main"

[[configuration]]
name = "main"
description = "the whole model"

[[configuration]]
name = "no-image"
description = "questions without image"
run_of = "main"
control = "no_image"

[[configuration]]
name = "wrong-image"
description = "questions with another image"
run_of = "main"
control = "wrong_image"

[[configuration]]
name = "permuted"
description = "values of other entries"
run_of = "main"
control = "permuted_keys"

[[configuration]]
name = "random"
description = "random values"
run_of = "main"
control = "random_values"

[[configuration]]
name = "own-entry"
description = "reading alone"
run_of = "main"
control = "own_entry"

[[claim]]
id = "things.memory"
claim = "answers come from the memory"
better = "main"
worse = "permuted"
"#;

/// The recipe of the tests with the things in a folder.
fn recipe_of(folder: &Path) -> String {
    let Things { backgrounds, .. } = things(folder);
    let data = format!(
        "[data]\npath = {:?}\nvocabulary = 120\nevaluated_questions = 4\n\n[data.things]\n\
         backgrounds = {backgrounds:?}\nreading = 30\ngraphics = 0\n",
        folder.display().to_string()
    );
    let start = RECIPE.find("[data]").unwrap();
    let end = RECIPE.find("[model]").unwrap();
    let reading = "[[phase]]\nname = \"reading\"\nsteps = 2\n\
                   feed = { examples = \"reading\", knowledge = \"own\" }\n\n[check]";
    format!("{}{data}\n{}", &RECIPE[..start], &RECIPE[end..]).replace("[check]", reading)
}

#[test]
fn a_run_has_changed_facts_and_controls() {
    let (folder, runs) = (folder(), tempfile::tempdir().unwrap());
    let text = recipe_of(folder.path());
    // A grid's recipe gets its folders with `--set`, after the check of the grid.
    let later = text.replace(&format!("backgrounds = {:?}", things(folder.path()).backgrounds), "");
    let grid = Grid::parse(GRID, Path::new("grid.toml"), &later, Path::new("test.toml"), ALL);
    assert!(later != text && grid.is_ok());
    let grid = Grid::parse(GRID, Path::new("grid.toml"), &text, Path::new("test.toml"), ALL);
    run_grid(&grid.unwrap(), &quiet_grid(runs.path(), 1), &mut |_| {}).unwrap();
    let answers = |name: &str| -> Vec<TestAnswer> {
        TestAnswer::read(&runs.path().join("seed-1").join(name).join("test.jsonl")).unwrap()
    };
    let main = answers("main");
    assert_eq!(main.len(), 4);
    assert_eq!(main[0].image_file, Some(PathBuf::from("5.png")));
    for (control, images) in [("no-image", [None; 4]), ("wrong-image", [11, 11, 5, 5].map(Some))] {
        let images = images.to_vec();
        assert_eq!(answers(control).iter().map(|answer| answer.image).collect::<Vec<_>>(), images);
    }
    // Values do not change what is found.
    let retrieved = |name: &str| -> Vec<Vec<i64>> {
        answers(name).into_iter().map(|answer| answer.retrieved).collect()
    };
    assert_eq!(retrieved("permuted"), retrieved("main"));
    assert_eq!(retrieved("random"), retrieved("main"));
    for answer in answers("own-entry") {
        assert_eq!(answer.retrieved, [answer.entry.unwrap()]);
    }
    let run = runs.path().join("seed-1/main");
    let summary = engram_train::studies::reveal::run::RevealSummary::read(&run).unwrap();
    let swap = summary.swap.unwrap();
    assert_eq!(swap.facts, 4);
    for question in &swap.questions {
        let [before, after] = &question.references;
        assert!(before != after && before[..4] == after[..4], "{before} {after}");
    }
}

#[test]
fn invalid_things_are_refused_with_a_remedy() {
    let refuse = |change: &dyn Fn(&Path) -> Things| -> String {
        let folder = folder();
        let things = change(folder.path());
        match load(folder.path(), things) {
            Ok(_) => panic!("is not refused"),
            Err(error) => error,
        }
    };
    let without = |field: &'static str| {
        refuse(&move |folder| {
            let broken = line(3).replace(&format!("\"{field}\""), "\"other\"");
            write_lines(folder, &[line(0), broken]);
            things(folder)
        })
    };
    for field in ["image", "document", "names", "split"] {
        let error = without(field);
        assert!(error.contains(&format!("entries.jsonl:2: has no `{field}`")), "{error}");
        assert!(error.contains("engram data stamps"), "{error}");
    }
    let error = refuse(&|folder| Things { languages: vec!["xx".into()], ..things(folder) });
    assert!(error.contains("no name in `xx`"), "{error}");
    let error = refuse(&|folder| {
        (1..5).for_each(|number| {
            fs::remove_file(folder.join(format!("backgrounds/{number}.png"))).unwrap()
        });
        things(folder)
    });
    assert!(error.contains("backgrounds"), "{error}");
    let error = refuse(&|folder| {
        RgbaImage::new(4, 4).save(folder.join("3.png")).unwrap();
        things(folder)
    });
    assert!(error.contains("3.png") && error.contains("no visible pixel"), "{error}");
    let error = refuse(&|folder| {
        write_lines(folder, &[line(0), line(1)]);
        things(folder)
    });
    assert!(error.contains("no example to validate with"), "{error}");
    // Other files beside the things, and no background.
    let set = |setting: &str| {
        let folder = folder();
        let options =
            RunOptions { run: folder.path().join("run"), quiet: true, ..RunOptions::default() };
        let text = recipe_of(folder.path());
        let train =
            || -> Result<_, TrainError> { train_reveal(&mut recipe(&text, &[setting])?, &options) };
        with_causes(&train().unwrap_err())
    };
    assert!(set("data.entries=[\"a.jsonl\"]").contains("pictures of things alone"));
    assert!(set("data.triplets=2").contains("pictures of things alone"));
    assert!(set("data.things.backgrounds=[]").contains("things.backgrounds"));
    let error = set("phase.reading.feed.knowledge=retrieved");
    assert!(error.contains("phase.3.feed.knowledge") && error.contains("`own`"), "{error}");
    // Exercises in reading without pictures of things.
    let of_world = ["phase.0.feed.examples=reading", "phase.0.feed.knowledge=own"];
    let folder = tempfile::tempdir().unwrap();
    let error = train_reveal(&mut recipe(RECIPE, &of_world).unwrap(), &quiet(folder.path()));
    let error = with_causes(&error.unwrap_err());
    assert!(error.contains("phase.0.feed.examples") && error.contains("data.things"), "{error}");
}
