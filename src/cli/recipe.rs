//! `engram recipe`: the keys that recipes may have.

use clap::{Args, Subcommand, ValueEnum};
use engram_train::recipe::reference::{RecipeSchema, markdown};
use engram_train::studies::recipe_schemas;

use super::train::Study;
use super::{Outcome, output};

/// List all recipe keys with types, defaults and descriptions.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  engram recipe reference speech
  engram recipe schema speech > speech.schema.json

Put the line `#:schema speech.schema.json` at the top of a recipe in the same folder. Editors with
Taplo (for example Even Better TOML) then complete and check its keys.")]
pub enum RecipeCommand {
    Reference(Reference),
    Schema(JsonSchema),
}

/// Print all recipe keys as Markdown, as in docs/recipes.md.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram recipe reference reveal
  engram recipe reference > docs/recipes.md")]
pub struct Reference {
    /// The study; default: all studies
    study: Option<Study>,
}

/// Print a JSON Schema, with which editors complete and check recipes.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram recipe schema reveal > reveal.schema.json

Put the line `#:schema reveal.schema.json` at the top of a recipe in the same folder.")]
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

/// The schemas of one study, or of all studies if `study` is `None`.
fn schemas(study: Option<Study>) -> Vec<RecipeSchema> {
    let name = study.and_then(|study| study.to_possible_value());
    let is_selected =
        |schema: &RecipeSchema| name.as_ref().is_none_or(|name| name.get_name() == schema.study());
    recipe_schemas().into_iter().filter(is_selected).collect()
}
