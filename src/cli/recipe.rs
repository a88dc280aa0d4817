//! `engram recipe`: built-in recipes, and the keys that recipes may have.

use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use engram_train::recipe::builtin::{BUILT_IN, BuiltIn};
use engram_train::recipe::reference::{RecipeSchema, markdown};
use engram_train::studies::ALL;

use super::offered::Offered;
use super::paths::RecipeFile;
use super::{Outcome, output, studies};

/// Show built-in recipes, and list all recipe keys with types, defaults and descriptions.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  engram recipe list
  engram recipe show patent/minilm > own.toml
  engram recipe reference speech
  engram recipe schema speech > speech.schema.json

Put the line `#:schema speech.schema.json` at the top of a recipe in the same folder. Editors with
Taplo (for example Even Better TOML) then complete and check its keys.")]
pub enum RecipeCommand {
    List(List),
    Show(Show),
    Reference(Reference),
    Schema(JsonSchema),
}

/// List the built-in recipes and grids, for `train STUDY --recipe NAME` and `grid NAME`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram recipe list")]
pub struct List {}

/// Print a built-in recipe or grid.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram recipe show patent/minilm > own.toml")]
pub struct Show {
    /// The name, as in `engram recipe list`
    #[arg(value_parser = PossibleValuesParser::new(names()), hide_possible_values = true)]
    name: String,
}

/// Print all recipe keys as a Markdown page.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram recipe reference reveal
  engram recipe reference > recipes.md")]
pub struct Reference {
    /// The study; all studies by default
    #[arg(value_parser = study_parser())]
    study: Option<String>,
}

/// Print a JSON Schema, for completion and checks of recipes in editors.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram recipe schema reveal > reveal.schema.json

Put the line `#:schema reveal.schema.json` at the top of a recipe in the same folder.")]
pub struct JsonSchema {
    /// The study
    #[arg(value_parser = study_parser())]
    study: String,
}

impl RecipeCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::List(List {}) => output::print(&list_text())?,
            Self::Show(Show { name }) => {
                output::print(BuiltIn::find(&name).map_or("", |recipe| recipe.text))?;
            }
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

/// The names of the built-in recipes and grids.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|recipe| recipe.name)
}

/// Parses the path or the name of a recipe.
pub fn path_parser() -> impl TypedValueParser<Value = RecipeFile> {
    Offered::new(OsStringValueParser::new().map(RecipeFile::from), names())
}

/// The built-in recipes and grids, as text.
fn list_text() -> String {
    let width = names().map(str::len).max().unwrap_or(0);
    let line = |recipe: &BuiltIn| format!("{:width$}  {}\n", recipe.name, recipe.title());
    let lines = |grids: bool| {
        BUILT_IN.iter().filter(|recipe| recipe.is_grid() == grids).map(line).collect::<String>()
    };
    format!("Recipes:\n{}\nGrids:\n{}", lines(false), lines(true))
}

/// A parser for the name of a study.
fn study_parser() -> impl TypedValueParser<Value = String> {
    let names =
        ALL.iter().map(|study| PossibleValue::new(study.name).help(studies::about(study.name)));
    PossibleValuesParser::new(names)
}

/// The schemas of one study, or of all studies if `name` is `None`.
fn schemas(name: Option<&str>) -> Vec<RecipeSchema> {
    let selected = ALL.iter().filter(|study| name.is_none_or(|name| study.name == name));
    selected.map(|study| (study.recipe_schema)()).collect()
}
