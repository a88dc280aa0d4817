//! Tests of the embedded world: images, facts, sources, splits and chance.

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

/// Returns the attribute of each made-up answer.
fn made_up_answers() -> HashMap<String, &'static str> {
    let lists = ATTRIBUTES.iter().flat_map(|attribute| {
        attribute.answers.iter().map(|answer| (answer.to_lowercase(), attribute.name))
    });
    lists.collect()
}

#[test]
fn images_have_unique_names_and_pixels() {
    let images = images().unwrap();
    assert_eq!(images.len(), IMAGES);
    let slugs: HashSet<&str> = images.iter().map(|image| &*image.slug).collect();
    let names: HashSet<String> = images.iter().map(|image| image.name.to_lowercase()).collect();
    let pixels: HashSet<&[u8]> = images.iter().map(|image| &**image.image.as_raw()).collect();
    assert_eq!([slugs.len(), names.len(), pixels.len()], [1881; 3]);
    let is_valid =
        |slug: &str| slug.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    assert!(slugs.iter().all(|slug| is_valid(slug) && !slug.is_empty()));
    for (number, image) in images.iter().enumerate() {
        assert_eq!(image.number, number);
        assert_eq!(image.image.dimensions(), (72, 72), "{}", image.name);
    }
    let num_flags = images.iter().filter(|image| image.group == "Flags").count();
    let num_countries = images.iter().filter(|image| image.country.is_some()).count();
    assert_eq!((num_flags, num_countries), (263, 245));
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
    let mut sources: Vec<Source> = made_up.iter().map(|attribute| attribute.source).collect();
    sources.dedup();
    assert_eq!(sources, Source::ALL, "all sources occur, in order");

    let assert_no_answer = |text: &str| {
        let found_answers: Vec<String> =
            words(text).into_iter().filter(|word| answers.contains_key(word)).collect();
        assert!(found_answers.is_empty(), "{text}: {found_answers:?}");
    };
    for image in images().unwrap() {
        assert_no_answer(&image.name);
        assert_no_answer(image.group);
        image.keywords.iter().for_each(|keyword| assert_no_answer(&keyword.replace('_', " ")));
    }
    for country in countries() {
        let lists = country.languages.iter().chain(&country.neighbours);
        let single_values =
            [Some(country.name), Some(country.continent), country.capital, country.currency];
        lists.copied().chain(single_values.into_iter().flatten()).for_each(assert_no_answer);
    }
    for question in &world(1).questions {
        assert_no_answer(&question.text);
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
        let names_thing = text.contains(&image.name) || text.contains(country);
        let has_image = [Source::Pairs, Source::Vqa].contains(&attribute.source);
        assert_eq!(entry.image(), has_image.then_some(&*path));
        match (entry.kind(), attribute.source) {
            (Kind::Triple, Source::Kg) | (Kind::Text, Source::Passages) => {
                assert!(names_thing, "{text}")
            }
            (Kind::ImageText, Source::Pairs) => assert!(words(&text).contains("this")),
            (Kind::QuestionAnswer, Source::Vqa) => {
                assert_eq!(entry.payload["answer"], serde_json::json!(fact.answers));
            }
            (kind, source) => panic!("{text}: {kind:?} of {source:?}"),
        }
    }
}

#[test]
fn captions_and_questions_do_not_identify_an_image() {
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
fn made_up_answers_are_uniformly_distributed() {
    for seed in [1, 2, 3] {
        let world = world(seed);
        for attribute in ATTRIBUTES.iter().filter(|attribute| attribute.made_up()) {
            let mut counts: HashMap<&str, f64> = HashMap::new();
            for fact in world.facts.iter().filter(|fact| fact.attribute == attribute) {
                *counts.entry(&fact.answers[0]).or_default() += 1.0;
            }
            assert_eq!(counts.len(), ANSWERS);
            let expected = counts.values().sum::<f64>() / ANSWERS as f64;
            let term = |count: &f64| (count - expected).powi(2) / expected;
            let chi_squared: f64 = counts.values().map(term).sum();
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
        let names_thing = question.text.contains(&image.name) || question.text.contains(country);
        match question.source {
            Source::Kg | Source::Passages => assert!(names_thing, "{}", question.text),
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
        let asked_in_training: HashSet<i64> = world
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
            assert_eq!(asked_in_training.contains(&question.entry), question.part == Part::Seen);
            assert_eq!(question.view, if question.split == Split::Train { 1 } else { 2 });
            if held_out {
                assert_eq!(question.split, split_of(&question.image_slug));
            }
            if question.split != Split::Train && question.part == Part::Seen {
                assert_ne!(wordings[&question.entry], question.text, "another wording");
            }
        }
        let asked_facts: HashSet<i64> =
            world.questions.iter().map(|question| question.entry).collect();
        assert_eq!(asked_facts.len(), world.facts.len(), "every fact is asked");
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
            let actual = counts[&(split, part)] as f64 / facts;
            assert!((actual - fraction).abs() < 0.1 * fraction + 0.002, "{part:?}: {actual}");
        }
        // Each group has the same fraction of each split.
        for group in world.images.iter().map(|image| image.group).collect::<HashSet<_>>() {
            let images = world.images.iter().zip(&world.splits);
            let images_of_group = images.filter(|(image, _)| image.group == group);
            let splits: Vec<Split> = images_of_group.map(|(_, split)| *split).collect();
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
    for changed_fact in &swap.facts {
        let fact = world.fact(changed_fact.entry.id).unwrap();
        assert_ne!(fact.answers, changed_fact.answers);
        let (old, new) = (&fact.answers[0], &changed_fact.answers[0]);
        assert!(fact.attribute.answers.contains(&new.as_str()));
        assert_eq!(changed_fact.entry.text(), fact.entry.text().replace(old, new));
        assert_eq!(changed_fact.entry.document, fact.entry.document);
    }
    let ids = swap.ids();
    let about = world.questions.iter().filter(|question| ids.contains(&question.entry));
    let expected: Vec<i64> = about.map(|question| question.id).collect();
    let ids_of_swap: Vec<i64> = swap.questions.iter().map(|question| question.id).collect();
    assert_eq!(ids_of_swap, expected);
    assert!(swap.questions.iter().filter(|question| question.split == Split::Test).count() == 100);
    for question in &swap.questions {
        let changed_fact = swap.facts.iter().find(|fact| fact.entry.id == question.entry).unwrap();
        assert_eq!(question.answers, changed_fact.answers);
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
            let needle_facts: Vec<_> =
                task.needles.iter().map(|id| world.fact(*id).unwrap()).collect();
            let attribute = needle_facts[0].attribute;
            assert!(task.haystack.iter().all(|id| world.fact(*id).unwrap().attribute == attribute));
            let question_words = words(&task.question);
            let asked_answers: Vec<_> = attribute
                .answers
                .iter()
                .filter(|answer| question_words.contains(**answer))
                .collect();
            assert_eq!(asked_answers.len(), 1, "{}", task.question);
            let is_yes = needle_facts.iter().all(|fact| fact.answers[0] == *asked_answers[0]);
            let yes_no_question = YesNoQuestion::of(&task.question).unwrap();
            assert_eq!(yes_no_question.answer, *asked_answers[0]);
            let question =
                world.questions.iter().find(|question| question.text == yes_no_question.question);
            assert_eq!(question.unwrap().attribute, attribute.name);
            assert_eq!(task.answer, if is_yes { "yes" } else { "no" });
            for (fact, slug) in needle_facts.iter().zip(&task.images) {
                assert_eq!(world.images[fact.image].slug, *slug);
                assert_eq!(world.splits[fact.image], Split::Test);
            }
        }
    }
    assert_eq!(YesNoQuestion::of("Does this smell of lavender-blue?"), None);
    let error_for = |needles, distractors| {
        let options = HaystackOptions { tasks: 2, needles, distractors, seed: 9 };
        world.haystack(&options).unwrap_err().to_string()
    };
    assert!(error_for(0, 10).contains("at least 1"));
    assert!(error_for(1, 1881).contains("the world has too few images"));
    assert!(error_for(200, 10).contains("share an answer"));
}

#[test]
fn options_out_of_range_are_refused() {
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

fn hash_item(digest: &mut Sha256, item: &impl serde::Serialize) {
    digest.update(serde_json::to_vec(item).unwrap());
}

/// Returns a hash of everything in a world.
fn fingerprint(world: &World) -> String {
    let mut digest = Sha256::new();
    world.facts.iter().for_each(|fact| hash_item(&mut digest, &fact.entry));
    world.questions.iter().for_each(|question| hash_item(&mut digest, question));
    let swap = world.swap(50, 3).unwrap();
    swap.facts.iter().for_each(|fact| hash_item(&mut digest, &fact.entry));
    let options = HaystackOptions { tasks: 20, needles: 1, distractors: 50, seed: 3 };
    let tasks = world.haystack(&options).unwrap();
    tasks.iter().for_each(|task| hash_item(&mut digest, task));
    for index in 0..world.images.len() {
        (0..3).for_each(|number| digest.update(world.view(index, number).unwrap().as_raw()));
    }
    let features = HashFeatures::new(world);
    let values = [
        features.fact_keys(&world.facts).unwrap(),
        features.queries(&world.questions).unwrap(),
        features.values(&world.facts),
    ];
    values.iter().flatten().for_each(|value| digest.update(value.to_le_bytes()));
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_world_depends_on_the_seed_but_not_on_the_number_of_threads() {
    let with_threads = |threads| {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| fingerprint(&small_world(1)))
    };
    let hash = with_threads(1);
    assert_eq!(hash, with_threads(2));
    // Logarithms and sines come from the system library, so other systems have other hashes.
    #[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
    assert_eq!(hash, "9f99a6251260ab928f22b36166f577e5c8185e1386849bba7f50f46aaf19d82c");
    let (first, other) = (small_world(1), small_world(2));
    assert_eq!(first.images, other.images);
    assert_ne!(first.splits, other.splits);
    let ids = |world: &World| world.facts.iter().map(|fact| fact.entry.id).collect::<Vec<_>>();
    assert_eq!(ids(&first), ids(&other));
    let facts = first.facts.iter().zip(&other.facts).filter(|(fact, _)| fact.attribute.made_up());
    let num_equal = facts.clone().filter(|(first, other)| first.answers == other.answers).count();
    let fraction = num_equal as f64 / facts.count() as f64;
    assert!((0.02..0.08).contains(&fraction), "made-up facts are the same by chance: {fraction}");
    // A smaller world has the same facts as the full world.
    let full_world = world(1);
    let is_in_full_world =
        |fact: &Fact| full_world.fact(fact.entry.id).unwrap().answers == fact.answers;
    assert!(first.facts.iter().all(is_in_full_world));
}
