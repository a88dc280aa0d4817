//! `engram recipe`: what recipes may say.

use clap::{Args, Subcommand, ValueEnum};
use engram_train::recipe::reference::{RecipeSchema, markdown};
use engram_train::studies::recipe_schemas;

use super::train::Study;
use super::{Outcome, output};

/// List all keys of recipes, with types, defaults and what they are.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  engram recipe reference speech
  engram recipe schema speech > speech.schema.json
With `#:schema speech.schema.json` as the first line of a recipe beside it, editors that know Taplo
(Even Better TOML among them) complete its keys and check it.")]
pub enum RecipeCommand {
    Reference(Reference),
    Schema(JsonSchema),
}

/// Print all keys as Markdown: docs/recipes.md.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram recipe reference reveal
  engram recipe reference > docs/recipes.md")]
pub struct Reference {
    /// The study; all of them without it
    study: Option<Study>,
}

/// Print a JSON Schema, by which editors complete and check recipes.
#[derive(Debug, Args)]
#[command(after_help = "\
Example, for a recipe in the same folder whose first line is `#:schema reveal.schema.json`:
  engram recipe schema reveal > reveal.schema.json")]
pub struct JsonSchema {
    /// The study
    study: Study,
}

impl RecipeCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Reference(Reference { study }) => output::print(&markdown(&schemas(study)))?,
            Self::Schema(JsonSchema { study }) => {
                for schema in schemas(Some(study)) {
                    output::print_json(&schema.json_schema())?;
                }
            }
        }
        Ok(Outcome::Done)
    }
}

/// The schemas of a study, or of all.
fn schemas(study: Option<Study>) -> Vec<RecipeSchema> {
    let name = study.and_then(|study| study.to_possible_value());
    let is_wanted =
        |schema: &RecipeSchema| name.as_ref().is_none_or(|name| name.get_name() == schema.study());
    recipe_schemas().into_iter().filter(is_wanted).collect()
}
