//! `engram data world`: the embedded world as files for `engram memory` and `engram eval`.

use engram_data::messages::counted;
use std::collections::BTreeMap;
use std::path::Path;

use clap::Args;
use engram_data::world::features::{HashFeatures, KEY_WIDTH, VALUE_TOKENS, VALUE_WIDTH};
use engram_data::world::questions::{EVALUATION_VIEW, Part, Question, Split};
use engram_data::world::{World as EmbeddedWorld, WorldOptions, view_augmentation};
use engram_memory::vectors::{npy_bytes, npy_bytes_of_rows};
use rayon::prelude::*;
use serde::Serialize;

use super::super::output;
use super::super::paths::NewFolder;
use super::SplitName;

/// The largest number of changed facts in `swap.jsonl`.
const MAX_SWAPPED_FACTS: usize = 100;

/// Write the embedded world: images, memory entries from four sources, questions, keys and values.
///
/// A fixed function of words and pixels computes the keys and values, without a model.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram data world --out world
  engram memory build --keys world/keys.npy --values world/values.npy \\
      --entries world/entries.jsonl --out memory
  engram memory search memory --queries world/queries.npy -k 10
  engram memory update memory --keys world/swap_keys.npy --values world/swap_values.npy \\
      --entries world/swap.jsonl

README.md in the folder describes the files, docs/explanation/world.md the data.")]
pub struct World {
    /// Output folder
    #[arg(long, value_name = "FOLDER")]
    out: NewFolder,
    /// Random seed of facts, wordings, splits and views
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of images; default: all
    #[arg(long)]
    images: Option<usize>,
    /// Number of augmented views per image; questions use the first two
    #[arg(long, default_value_t = EVALUATION_VIEW,
        value_parser = clap::value_parser!(u32).range(i64::from(EVALUATION_VIEW)..=1000))]
    views: u32,
    /// Width and height of a view in pixels
    #[arg(long, default_value_t = 48)]
    size: u32,
    /// Write only this split's questions to questions.jsonl, and their queries to queries.npy
    /// [default: all splits]
    #[arg(long)]
    split: Option<SplitName>,
}

impl World {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let folder = &self.out;
        output::check_new_folder(folder)?;
        let options = WorldOptions {
            seed: self.seed,
            images: self.images,
            view: view_augmentation(self.size),
        };
        let world = EmbeddedWorld::new(&options)?;
        output::write_folder(folder, |staging| self.write(&world, staging))?;
        let questions = self.questions(&world);
        output::print(&format!(
            "{}: {}, {}, {}",
            folder.display(),
            counted(world.images.len(), "image"),
            counted(world.facts.len(), "entry"),
            counted(questions.len(), "question"),
        ))?;
        let mut counts: BTreeMap<(Split, Part), usize> = BTreeMap::new();
        for question in &questions {
            *counts.entry((question.split, question.part)).or_default() += 1;
        }
        for ((split, part), count) in counts {
            output::print(&format!("{:<12}{:<10}{count:>6}", split.name(), part.name()))?;
        }
        Ok(())
    }

    fn questions(&self, world: &EmbeddedWorld) -> Vec<Question> {
        let selected = self.split.map(Split::from);
        let questions = world.questions.iter();
        questions
            .filter(|question| selected.is_none_or(|split| question.split == split))
            .cloned()
            .collect()
    }

    fn write(&self, world: &EmbeddedWorld, folder: &Path) -> anyhow::Result<()> {
        let write_file = |name: &str, bytes: &[u8]| output::write_new(&folder.join(name), bytes);
        output::create_folder(&folder.join("pictures"))?;
        output::create_folder(&folder.join("views"))?;
        world.images.par_iter().enumerate().try_for_each(|(index, image)| {
            write_file(&format!("pictures/{}.png", image.slug), image.png)?;
            (1..=self.views).try_for_each(|number| {
                let mut png = std::io::Cursor::new(Vec::new());
                world.view(index, number)?.write_to(&mut png, image::ImageFormat::Png)?;
                write_file(&format!("views/{}-{number}.png", image.slug), png.get_ref())
            })
        })?;

        let features = HashFeatures::new(world);
        let keys = |facts| anyhow::Ok(npy_bytes(&features.fact_keys(facts)?, KEY_WIDTH)?);
        let values =
            |facts| npy_bytes_of_rows(&features.values(facts), &[VALUE_TOKENS, VALUE_WIDTH]);
        write_file("entries.jsonl", &json_lines(world.facts.iter().map(|fact| &fact.entry))?)?;
        write_file("keys.npy", &keys(&world.facts)?)?;
        write_file("values.npy", &values(&world.facts)?)?;

        let questions = self.questions(world);
        write_file("questions.jsonl", &json_lines(questions.iter().map(QuestionWithImage::of))?)?;
        write_file("queries.npy", &npy_bytes(&features.queries(&questions)?, KEY_WIDTH)?)?;

        let swappable = |question: &&Question| question.made_up && question.split == Split::Test;
        let swap_count = world.questions.iter().filter(swappable).count().min(MAX_SWAPPED_FACTS);
        let swap = world.swap(swap_count, self.seed)?;
        write_file("swap.jsonl", &json_lines(swap.facts.iter().map(|fact| &fact.entry))?)?;
        write_file("swap_keys.npy", &keys(&swap.facts)?)?;
        write_file("swap_values.npy", &values(&swap.facts)?)?;
        write_file(
            "swap_questions.jsonl",
            &json_lines(swap.questions.iter().map(QuestionWithImage::of))?,
        )?;

        write_file("haystack.jsonl", &json_lines(&world.haystacks(self.seed)?)?)?;
        write_file("README.md", include_str!("world_readme.md").as_bytes())
    }
}

/// A question and the image file of its view.
#[derive(Serialize)]
struct QuestionWithImage<'a> {
    #[serde(flatten)]
    question: &'a Question,
    image: String,
}

impl<'a> QuestionWithImage<'a> {
    fn of(question: &'a Question) -> Self {
        let image = format!("views/{}-{}.png", question.image_slug, question.view);
        Self { question, image }
    }
}

/// Serialises items as JSON lines.
pub(super) fn json_lines(items: impl IntoIterator<Item: Serialize>) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for item in items {
        serde_json::to_writer(&mut bytes, &item)?;
        bytes.push(b'\n');
    }
    Ok(bytes)
}
