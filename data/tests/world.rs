//! Tests of the embedded world: images, facts, sources, splits and chance.

#![allow(clippy::unwrap_used)] // Helper functions use `unwrap` too.

use std::collections::{HashMap, HashSet};

use engram_data::knowledge::Kind;
use engram_data::world::attributes::{ANSWERS, ATTRIBUTES, Source};
use engram_data::world::countries::countries;
use engram_data::world::facts::Fact;
use engram_data::world::features::HashFeatures;
use engram_data::world::haystack::{HaystackOptions, YesNoQuestion};
use engram_data::world::images::images;
use engram_data::world::questions::{Part, Split};
use engram_data::world::{IMAGES, World, WorldOptions};
use rayon::ThreadPoolBuilder;
use sha2::{Digest, Sha256};

fn world(seed: u64) -> World {
    World::new(&WorldOptions { seed, ..WorldOptions::default() }).unwrap()
}

fn small_world(seed: u64) -> World {
    World::new(&WorldOptions { seed, images: Some(200), ..WorldOptions::default() }).unwrap()
}

fn words(text: &str) -> HashSet<String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// The attribute of each made-up answer.
fn made_up_answers() -> HashMap<String, &'static str> {
    let lists = ATTRIBUTES.iter().flat_map(|attribute| {
        attribute.answers.iter().map(|answer| (answer.to_lowercase(), attribute.name))
    });
    lists.collect()
}

#[test]
fn images_are_all_twemoji_with_a_unique_name_and_look() {
    let images = images().unwrap();
    assert_eq!(images.len(), IMAGES);
    let slugs: HashSet<&str> = images.iter().map(|image| &*image.slug).collect();
    let names: HashSet<String> = images.iter().map(|image| image.name.to_lowercase()).collect();
    let pixels: HashSet<&[u8]> = images.iter().map(|image| &**image.image.as_raw()).collect();
    assert_eq!([slugs.len(), names.len(), pixels.len()], [1881; 3]);
    let plain = |slug: &str| slug.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    assert!(slugs.iter().all(|slug| plain(slug) && !slug.is_empty()));
    for (number, image) in images.iter().enumerate() {
        assert_eq!(image.number, number);
        assert_eq!(image.image.dimensions(), (72, 72), "{}", image.name);
    }
    let flags = images.iter().filter(|image| image.group == "Flags").count();
    let of_countries = images.iter().filter(|image| image.country.is_some()).count();
    assert_eq!((flags, of_countries), (263, 245));
    let find = |slug: &str| images.iter().find(|image| image.slug == slug).unwrap();
    assert_eq!(find("octopus").group, "Animals & Nature");
    assert_eq!(find("keycap-with-asterisk").emoji, "*\u{fe0f}\u{20e3}");
    for name in ["flag-of-france", "flag-of-norway", "flag-of-united-states", "family"] {
        find(name);
    }
    let switzerland = find("flag-of-switzerland");
    assert_eq!(switzerland.name, "flag of Switzerland");
    assert_eq!(switzerland.country.as_ref().unwrap().code, "CH");
}

#[test]
fn answers_occur_in_no_other_text() {
    let answers = made_up_answers();
    let made_up: Vec<_> = ATTRIBUTES.iter().filter(|attribute| attribute.made_up()).collect();
    assert_eq!(answers.len(), ANSWERS * made_up.len(), "all answers of all lists differ");
    assert!(made_up.iter().all(|attribute| attribute.answers.len() == ANSWERS));
    assert!(made_up.iter().all(|attribute| attribute.chance() == Some(0.05)));
    let mut of_sources: Vec<Source> = made_up.iter().map(|attribute| attribute.source).collect();
    of_sources.dedup();
    assert_eq!(of_sources, Source::ALL, "each source has as many");

    let not_an_answer = |text: &str| {
        let found: Vec<String> =
            words(text).into_iter().filter(|word| answers.contains_key(word)).collect();
        assert!(found.is_empty(), "{text}: {found:?}");
    };
    for image in images().unwrap() {
        not_an_answer(&image.name);
        not_an_answer(image.group);
        image.keywords.iter().for_each(|keyword| not_an_answer(&keyword.replace('_', " ")));
    }
    for country in countries() {
        let lists = country.languages.iter().chain(&country.neighbours);
        let single =
            [Some(country.name), Some(country.continent), country.capital, country.currency];
        lists.copied().chain(single.into_iter().flatten()).for_each(not_an_answer);
    }
    for question in &world(1).questions {
        not_an_answer(&question.text);
    }
}

#[test]
fn every_fact_is_stated_once_in_its_own_source() {
    let answers = made_up_answers();
    let world = world(1);
    assert_eq!((world.facts.len(), world.questions.len()), (18_056, 19_230));
    assert!(world.facts.is_sorted_by(|before, after| before.entry.id < after.entry.id));
    for fact in &world.facts {
        let attribute = fact.attribute;
        let image = &world.images[fact.image];
        let (text, entry) = (fact.entry.text(), &fact.entry);
        assert_eq!(entry.document.as_deref(), Some(&*image.slug));
        assert_eq!(entry.source, attribute.source.name());
        let stated: HashSet<String> =
            words(&text).into_iter().filter(|word| answers.contains_key(word)).collect();
        let expected: HashSet<String> = if attribute.made_up() {
            fact.answers.iter().map(|answer| answer.to_lowercase()).collect()
        } else {
            HashSet::new()
        };
        assert_eq!(stated, expected, "{text}");
        assert!(fact.answers.iter().all(|answer| text.contains(answer)), "{text}");

        let path = format!("pictures/{}.png", image.slug);
        let country = image.country.as_ref().map_or(&*image.name, |country| country.name);
        let named = text.contains(&image.name) || text.contains(country);
        let has_image = [Source::Pairs, Source::Vqa].contains(&attribute.source);
        assert_eq!(entry.image(), has_image.then_some(&*path));
        match (entry.kind(), attribute.source) {
            (Kind::Triple, Source::Kg) | (Kind::Text, Source::Passages) => assert!(named, "{text}"),
            (Kind::ImageText, Source::Pairs) => assert!(words(&text).contains("this")),
            (Kind::QuestionAnswer, Source::Vqa) => {
                assert_eq!(entry.payload["answer"], serde_json::json!(fact.answers));
            }
            (kind, source) => panic!("{text}: {kind:?} of {source:?}"),
        }
    }
}

#[test]
fn captions_and_answered_questions_are_the_same_for_all_images() {
    // Without the answer, few distinct texts remain, so no text identifies a single image.
    let world = world(1);
    let mut texts: HashMap<&str, HashMap<String, usize>> = HashMap::new();
    for fact in world.facts.iter().filter(|fact| fact.entry.image().is_some()) {
        let text = fact.entry.text().replace(&fact.answers[0], "_");
        *texts.entry(fact.attribute.name).or_default().entry(text).or_default() += 1;
    }
    assert_eq!(texts.len(), 4);
    assert!(texts.values().flat_map(HashMap::values).all(|count| *count > 400), "{texts:?}");
}

#[test]
fn answers_are_uniform() {
    for seed in [1, 2, 3] {
        let world = world(seed);
        for attribute in ATTRIBUTES.iter().filter(|attribute| attribute.made_up()) {
            let mut counts: HashMap<&str, f64> = HashMap::new();
            for fact in world.facts.iter().filter(|fact| fact.attribute == attribute) {
                *counts.entry(&fact.answers[0]).or_default() += 1.0;
            }
            assert_eq!(counts.len(), ANSWERS);
            let expected = counts.values().sum::<f64>() / ANSWERS as f64;
            let of_count = |count: &f64| (count - expected).powi(2) / expected;
            let chi_squared: f64 = counts.values().map(of_count).sum();
            // With 19 degrees of freedom, one value in 10,000 is above 50.8, and hardly any is
            // below 3.
            assert!((3.0..50.8).contains(&chi_squared), "seed {seed}: {chi_squared}");
        }
    }
}

#[test]
fn every_question_is_answered_by_its_entry() {
    let world = world(1);
    let mut ids = HashSet::new();
    for question in &world.questions {
        assert!(ids.insert(question.id));
        let fact = world.fact(question.entry).unwrap();
        let image = &world.images[world.image_index(&question.image_slug).unwrap()];
        assert_eq!(fact.image, world.image_index(&question.image_slug).unwrap());
        assert_eq!((&question.answers, &*question.attribute), (&fact.answers, fact.attribute.name));
        assert_eq!(question.source, fact.attribute.source);
        assert_eq!(question.made_up, fact.attribute.made_up());
        let country = image.country.as_ref().map_or(&*image.name, |country| country.name);
        let named = question.text.contains(&image.name) || question.text.contains(country);
        match question.source {
            Source::Kg | Source::Passages => assert!(named, "{}", question.text),
            Source::Pairs | Source::Vqa => {
                assert!(words(&question.text).contains("this"), "{}", question.text);
            }
        }
        assert!(!question.text.contains(['{', '}']) && !fact.entry.text().contains(['{', '}']));
    }
}

#[test]
fn held_out_facts_are_not_asked_in_training() {
    for seed in [1, 2] {
        let world = world(seed);
        let split_of = |slug: &str| world.splits[world.image_index(slug).unwrap()];
        let trained: HashSet<i64> = world
            .questions
            .iter()
            .filter(|question| question.split == Split::Train)
            .map(|question| question.entry)
            .collect();
        let wordings: HashMap<i64, &str> = world
            .questions
            .iter()
            .filter(|question| question.split == Split::Train)
            .map(|question| (question.entry, &*question.text))
            .collect();
        let mut counts: HashMap<(Split, Part), usize> = HashMap::new();
        for question in &world.questions {
            *counts.entry((question.split, question.part)).or_default() += 1;
            let held_out = split_of(&question.image_slug) != Split::Train;
            assert_eq!(held_out, question.part == Part::HeldOut);
            assert_eq!(trained.contains(&question.entry), question.part == Part::Seen);
            assert_eq!(question.view, if question.split == Split::Train { 1 } else { 2 });
            if held_out {
                assert_eq!(question.split, split_of(&question.image_slug));
            }
            if question.split != Split::Train && question.part == Part::Seen {
                assert_ne!(wordings[&question.entry], question.text, "another wording");
            }
        }
        let asked: HashSet<i64> = world.questions.iter().map(|question| question.entry).collect();
        assert_eq!(asked.len(), world.facts.len(), "every fact is asked");
        let facts = world.facts.len() as f64;
        for (split, part, fraction) in [
            (Split::Train, Part::Seen, 0.63),
            (Split::Validation, Part::HeldOut, 0.1),
            (Split::Test, Part::HeldOut, 0.2),
            (Split::Validation, Part::Unasked, 0.0233),
            (Split::Test, Part::Unasked, 0.0467),
            (Split::Validation, Part::Seen, 0.021),
            (Split::Test, Part::Seen, 0.042),
        ] {
            let found = counts[&(split, part)] as f64 / facts;
            assert!(
                (found - fraction).abs() < 0.1 * fraction + 0.002,
                "{split:?} {part:?}: {found}"
            );
        }
        // Each group has the same fraction of each split.
        for group in world.images.iter().map(|image| image.group).collect::<HashSet<_>>() {
            let of_group = world.images.iter().zip(&world.splits);
            let of_group = of_group.filter(|(image, _)| image.group == group);
            let splits: Vec<Split> = of_group.map(|(_, split)| *split).collect();
            let train = splits.iter().filter(|split| **split == Split::Train).count();
            let fraction = train as f64 / splits.len() as f64;
            assert!((fraction - 0.7).abs() < 0.01, "{group}: {fraction}");
        }
    }
}

#[test]
fn swapped_facts_differ_only_in_their_answers() {
    let world = world(1);
    let swap = world.swap(100, 5).unwrap();
    assert_eq!(swap.facts.len(), 100);
    for changed in &swap.facts {
        let fact = world.fact(changed.entry.id).unwrap();
        assert_ne!(fact.answers, changed.answers);
        let (old, new) = (&fact.answers[0], &changed.answers[0]);
        assert!(fact.attribute.answers.contains(&new.as_str()));
        assert_eq!(changed.entry.text(), fact.entry.text().replace(old, new));
        assert_eq!(changed.entry.document, fact.entry.document);
    }
    let ids = swap.ids();
    let expected: Vec<i64> = world.questions_about(&ids).map(|question| question.id).collect();
    let found: Vec<i64> = swap.questions.iter().map(|question| question.id).collect();
    assert_eq!(found, expected);
    assert!(swap.questions.iter().filter(|one| one.split == Split::Test).count() == 100);
    for question in &swap.questions {
        let changed = swap.facts.iter().find(|fact| fact.entry.id == question.entry).unwrap();
        assert_eq!(question.answers, changed.answers);
    }
    assert_eq!(swap, world.swap(100, 5).unwrap());
    assert_ne!(ids, world.swap(100, 6).unwrap().ids());
    assert!(world.swap(1_000_000, 5).unwrap_err().to_string().contains("swap fewer facts"));
}

#[test]
fn haystacks_contain_their_needles_and_answers_are_balanced() {
    let world = world(1);
    for (needles, distractors) in [(1, 0), (1, 10), (1, 1000), (3, 100)] {
        let options = HaystackOptions { tasks: 80, needles, distractors, seed: 9 };
        let tasks = world.haystack(&options).unwrap();
        assert_eq!(tasks.iter().filter(|task| task.answer == "yes").count(), 40);
        for task in &tasks {
            let haystack: HashSet<i64> = task.haystack.iter().copied().collect();
            assert_eq!((haystack.len(), task.needles.len()), (needles + distractors, needles));
            assert!(task.needles.iter().all(|needle| haystack.contains(needle)));
            let found: Vec<_> = task.needles.iter().map(|id| world.fact(*id).unwrap()).collect();
            let attribute = found[0].attribute;
            assert!(task.haystack.iter().all(|id| world.fact(*id).unwrap().attribute == attribute));
            let question_words = words(&task.question);
            let asked: Vec<_> =
                attribute.answers.iter().filter(|one| question_words.contains(**one)).collect();
            assert_eq!(asked.len(), 1, "{}", task.question);
            let yes = found.iter().all(|fact| fact.answers[0] == *asked[0]);
            let yes_no_question = YesNoQuestion::of(&task.question).unwrap();
            assert_eq!(yes_no_question.answer, *asked[0]);
            let question = world.questions.iter().find(|one| one.text == yes_no_question.question);
            assert_eq!(question.unwrap().attribute, attribute.name);
            assert_eq!(task.answer, if yes { "yes" } else { "no" });
            for (fact, slug) in found.iter().zip(&task.images) {
                assert_eq!(world.images[fact.image].slug, *slug);
                assert_eq!(world.splits[fact.image], Split::Test);
            }
        }
    }
    assert_eq!(YesNoQuestion::of("Does this smell of lavender-blue?"), None);
    let refused = |needles, distractors| {
        let options = HaystackOptions { tasks: 2, needles, distractors, seed: 9 };
        world.haystack(&options).unwrap_err().to_string()
    };
    assert!(refused(0, 10).contains("at least 1"));
    assert!(refused(1, 1881).contains("the world has fewer"));
    assert!(refused(200, 10).contains("share an answer"));
}

#[test]
fn bad_options_are_refused() {
    for images in [0, 39, 1882, usize::MAX] {
        let options = WorldOptions { images: Some(images), ..WorldOptions::default() };
        let error = World::new(&options).unwrap_err().to_string();
        assert!(error.contains(&images.to_string()) && error.contains("40 to 1881"), "{error}");
    }
    for images in [40, 1881] {
        let options = WorldOptions { images: Some(images), ..WorldOptions::default() };
        let world = World::new(&options).unwrap();
        assert_eq!(world.images.len(), images);
        for split in [Split::Train, Split::Validation, Split::Test] {
            assert!(world.splits.contains(&split));
        }
    }
    let world = small_world(1);
    assert!(world.view(200, 0).unwrap_err().to_string().contains("200"));
}

fn add_row(digest: &mut Sha256, row: &impl serde::Serialize) {
    digest.update(serde_json::to_vec(row).unwrap());
}

/// A hash of everything in a world.
fn fingerprint(world: &World) -> String {
    let mut digest = Sha256::new();
    world.facts.iter().for_each(|fact| add_row(&mut digest, &fact.entry));
    world.questions.iter().for_each(|question| add_row(&mut digest, question));
    let swap = world.swap(50, 3).unwrap();
    swap.facts.iter().for_each(|fact| add_row(&mut digest, &fact.entry));
    let options = HaystackOptions { tasks: 20, needles: 1, distractors: 50, seed: 3 };
    let tasks = world.haystack(&options).unwrap();
    tasks.iter().for_each(|task| add_row(&mut digest, task));
    for index in 0..world.images.len() {
        (0..3).for_each(|number| digest.update(world.view(index, number).unwrap().as_raw()));
    }
    let features = HashFeatures::new(world);
    let numbers = [
        features.fact_keys(&world.facts).unwrap(),
        features.queries(&world.questions).unwrap(),
        features.values(&world.facts),
    ];
    numbers.iter().flatten().for_each(|number| digest.update(number.to_le_bytes()));
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_world_depends_on_the_seed_but_not_on_the_number_of_threads() {
    let with_threads = |threads| {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| fingerprint(&small_world(1)))
    };
    let one = with_threads(1);
    assert_eq!(one, with_threads(2));
    // Logarithms and sines come from the system library, so other systems have other hashes.
    #[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
    assert_eq!(one, "9f99a6251260ab928f22b36166f577e5c8185e1386849bba7f50f46aaf19d82c");
    let (first, other) = (small_world(1), small_world(2));
    assert_eq!(first.images, other.images);
    assert_ne!(first.splits, other.splits);
    let ids = |world: &World| world.facts.iter().map(|fact| fact.entry.id).collect::<Vec<_>>();
    assert_eq!(ids(&first), ids(&other));
    let facts = first.facts.iter().zip(&other.facts).filter(|(one, _)| one.attribute.made_up());
    let same = facts.clone().filter(|(one, other)| one.answers == other.answers).count();
    let fraction = same as f64 / facts.count() as f64;
    assert!((0.02..0.08).contains(&fraction), "made-up facts are the same by chance: {fraction}");
    // A smaller world has the same facts as the full world.
    let whole = world(1);
    let in_whole = |fact: &Fact| whole.fact(fact.entry.id).unwrap().answers == fact.answers;
    assert!(first.facts.iter().all(in_whole));
}
