//! Variants: recipes in one file that differ in a few settings.

use schemars::JsonSchema;
use toml::Value;

use super::Recipe;
use crate::error::Result;

/// One `[[variant]]` of a recipe: the recipe with the variant's settings applied.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Variant {
    /// The name, used in folder and file names; `None` for a recipe without variants.
    #[schemars(required, description = "The name, used in folder and file names.")]
    pub name: Option<String>,
    /// The weight in the mean score over variants; positive.
    #[schemars(default = "default_weight")]
    pub weight: f64,
    /// The variant's recipe, without variants of its own.
    #[schemars(skip)]
    pub recipe: Recipe,
}

/// The default weight of a variant.
fn default_weight() -> f64 {
    1.0
}

impl Recipe {
    /// The variants in order. A recipe without variants is its only variant.
    ///
    /// A variant is a table with a `name`, an optional `weight` (1 by default), and settings that
    /// override the recipe. `[tiny]` and the command line apply to all variants. One variant is
    /// addressed by its name (`--set variant.NAME.seed=2`).
    ///
    /// # Errors
    /// [`crate::TrainError::Recipe`] for a name that is missing, duplicate or not a folder name, a
    /// weight that is not positive, and the errors of [`Recipe::parse`].
    pub fn variants(&self) -> Result<Vec<Variant>> {
        if self.variant.is_empty() {
            return Ok(vec![Variant {
                name: None,
                weight: default_weight(),
                recipe: self.clone(),
            }]);
        }
        let mut variants: Vec<Variant> = Vec::new();
        for (index, table) in self.variant.iter().enumerate() {
            let path = format!("variant.{index}");
            let Some(Value::String(name)) = table.get("name") else {
                return Err(self.error(&path, "has no `name`"));
            };
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if name.is_empty() || !name.chars().all(is_allowed) {
                let reason = "may only have letters, digits, - and _: it becomes a folder name";
                return Err(self.error(&format!("{path}.name"), reason));
            }
            if variants.iter().any(|variant| variant.name.as_ref() == Some(name)) {
                return Err(self.error(&format!("{path}.name"), "is used by another variant"));
            }
            let weight = match table.get("weight") {
                None => default_weight(),
                Some(Value::Integer(weight)) => *weight as f64,
                Some(Value::Float(weight)) => *weight,
                Some(_) => f64::NAN,
            };
            if !(weight.is_finite() && weight > 0.0) {
                return Err(self.error(&format!("{path}.weight"), "has to be a positive number"));
            }
            let recipe = Self::of_document(self.document.variant(index)?)?;
            if recipe.has_variants() {
                return Err(self.error(&path, "cannot have variants of its own"));
            }
            variants.push(Variant { name: Some(name.clone()), weight, recipe });
        }
        Ok(variants)
    }

    /// Whether the recipe has variants. Then the variants are trained, not the recipe itself.
    pub fn has_variants(&self) -> bool {
        !self.variant.is_empty()
    }
}
