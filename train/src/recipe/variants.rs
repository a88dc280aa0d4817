//! Variants: recipes that differ from one another in a few settings, in one file.

use schemars::JsonSchema;
use toml::Value;

use super::Recipe;
use crate::error::Result;

/// One of a recipe's `[[variant]]`s: the recipe with the variant's settings put over its own.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Variant {
    /// Its name, which folders and files take; `None` for a recipe without variants.
    #[schemars(required, description = "Its name, which folders and files take.")]
    pub name: Option<String>,
    /// What its scores count in a mean over variants; positive.
    #[schemars(default = "usual_weight")]
    pub weight: f64,
    /// The recipe, which has no variants of its own.
    #[schemars(skip)]
    pub recipe: Recipe,
}

/// What a variant counts that says nothing of it.
fn usual_weight() -> f64 {
    1.0
}

impl Recipe {
    /// The variants in their order; a recipe without any is its only one.
    ///
    /// A variant is a table with a `name`, perhaps a `weight` (1 without it), and settings to put
    /// over the recipe's. What `[tiny]` or the command line says is said of all variants; they are
    /// reached by name (`--set variant.NAME.seed=2`).
    ///
    /// # Errors
    /// [`crate::TrainError::Recipe`] for a name that is missing, doubled or no folder name, a
    /// weight that is not positive, and what [`Recipe::parse`] refuses.
    pub fn variants(&self) -> Result<Vec<Variant>> {
        if self.body.variant.is_empty() {
            return Ok(vec![Variant { name: None, weight: usual_weight(), recipe: self.clone() }]);
        }
        let mut variants: Vec<Variant> = Vec::new();
        for (index, table) in self.body.variant.iter().enumerate() {
            let path = format!("variant.{index}");
            let Some(Value::String(name)) = table.get("name") else {
                return Err(self.error(&path, "has no `name`"));
            };
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if name.is_empty() || !name.chars().all(plain) {
                let reason = "has to be of letters, digits, - and _: a folder is named after it";
                return Err(self.error(&format!("{path}.name"), reason));
            }
            if variants.iter().any(|variant| variant.name.as_ref() == Some(name)) {
                return Err(self.error(&format!("{path}.name"), "is that of another variant"));
            }
            let weight = match table.get("weight") {
                None => usual_weight(),
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

    /// Whether the recipe has variants, each of which is to be trained instead of itself.
    pub fn has_variants(&self) -> bool {
        !self.body.variant.is_empty()
    }
}
