//! `engram recipe`: the keys that recipes may have.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use engram_train::recipe::reference::{RecipeSchema, markdown};
use engram_train::studies::ALL;

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
    #[arg(value_parser = study())]
    study: Option<String>,
}

/// Print a JSON Schema, with which editors complete and check recipes.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram recipe schema reveal > reveal.schema.json

Put the line `#:schema reveal.schema.json` at the top of a recipe in the same folder.")]
pub struct JsonSchema {
    /// The study
    #[arg(value_parser = study())]
    study: String,
}

impl RecipeCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Reference(Reference { study }) => {
                output::print(&markdown(&schemas(study.as_deref())))?
            }
            Self::Schema(JsonSchema { study }) => {
                for schema in schemas(Some(&study)) {
                    output::print_json(&schema.json_schema())?;
                }
            }
        }
        Ok(Outcome::Done)
    }
}

/// Parses the name of a study.
fn study() -> impl TypedValueParser<Value = String> {
    let names = ALL.iter().map(|study| PossibleValue::new(study.name()).help(study.description()));
    PossibleValuesParser::new(names)
}

/// The schemas of one study, or of all studies if `name` is `None`.
fn schemas(name: Option<&str>) -> Vec<RecipeSchema> {
    let selected = ALL.iter().filter(|study| name.is_none_or(|name| study.name() == name));
    selected.map(|study| study.recipe_schema()).collect()
}
