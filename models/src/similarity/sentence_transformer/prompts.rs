//! `config_sentence_transformers.json`: prompts that precede a text, and settings of the vectors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::parse_json;
use crate::config::{bad_field, require};
use crate::error::Result;

/// The choice of the prompt that precedes texts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PromptChoice {
    /// The `default_prompt_name`, as in `encode` of sentence-transformers.
    #[default]
    Default,
    /// The prompt `query`, as in `encode_query`.
    Query,
    /// The prompt `document` for entries of a memory, as in `encode_document`.
    Document,
    /// The prompt with this name. An empty name means no prompt.
    Named(String),
    /// This text, as `prompt` of `encode`.
    Text(String),
}

impl PromptChoice {
    /// The choices that do not name a prompt.
    pub const ROLES: [Self; 3] = [Self::Default, Self::Query, Self::Document];
}

/// The content of `config_sentence_transformers.json`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Prompts {
    prompts: BTreeMap<String, String>,
    default_name: Option<String>,
    /// The number of leading components that each vector keeps; `None` keeps all.
    pub truncate_dim: Option<usize>,
    /// The similarity that the model was trained for; `None` for the cosine.
    pub other_similarity: Option<String>,
}

impl Prompts {
    /// Parses the file; `name` names it in errors.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) if the text is not valid, the model
    /// is not a sentence encoder, `truncate_dim` is 0, or the default prompt does not exist.
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct ConfigFile {
            model_type: Option<String>,
            prompts: Option<BTreeMap<String, Option<String>>>,
            default_prompt_name: Option<String>,
            truncate_dim: Option<usize>,
            similarity_fn_name: Option<String>,
        }
        let expected = "a configuration of sentence-transformers";
        let file: ConfigFile = parse_json(text, name, expected)?;
        if let Some(other) = file.model_type.filter(|kind| kind != "SentenceTransformer") {
            let reason = format!("`model_type` is {other}; only SentenceTransformer is supported");
            return Err(bad_field(name, reason));
        }
        require(file.truncate_dim != Some(0), name, || "`truncate_dim` is 0; give at least 1")?;
        let prompt_texts = file.prompts.unwrap_or_default().into_iter();
        let prompts: BTreeMap<String, String> =
            prompt_texts.map(|(name, prompt)| (name, prompt.unwrap_or_default())).collect();
        let is_known = |name: &String| {
            prompts.contains_key(name) || ["query", "document"].contains(&name.as_str())
        };
        if let Some(missing) = file.default_prompt_name.as_ref().filter(|name| !is_known(name)) {
            let reason = format!(
                "the prompt {missing:?} of `default_prompt_name` is missing; available prompts: {}",
                name_list(&prompts)
            );
            return Err(bad_field(name, reason));
        }
        let similarity = file.similarity_fn_name;
        Ok(Self {
            prompts,
            default_name: file.default_prompt_name,
            truncate_dim: file.truncate_dim,
            other_similarity: similarity.filter(|name| name != "cosine"),
        })
    }

    /// Whether any prompt is not empty.
    pub fn has_prompts(&self) -> bool {
        self.prompts.values().any(|prompt| !prompt.is_empty())
    }

    /// Returns the text of a prompt. For `Default`, `Query` and `Document` it is empty if the model
    /// has no such prompt. `model` names the model in errors.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) if the model has no prompt with the
    /// name of [`PromptChoice::Named`].
    pub fn text<'a>(&'a self, choice: &'a PromptChoice, model: &str) -> Result<&'a str> {
        let prompt_text = |name: &str| self.prompts.get(name).map(String::as_str);
        match choice {
            PromptChoice::Default => {
                Ok(self.default_name.as_deref().and_then(prompt_text).unwrap_or_default())
            }
            PromptChoice::Query => Ok(prompt_text("query").unwrap_or_default()),
            PromptChoice::Document => Ok(prompt_text("document").unwrap_or_default()),
            PromptChoice::Named(name) if name.is_empty() => Ok(""),
            PromptChoice::Text(text) => Ok(text),
            PromptChoice::Named(name) => prompt_text(name).ok_or_else(|| {
                let names = name_list(&self.prompts);
                bad_field(model, format!("has no prompt {name:?}; available prompts: {names}"))
            }),
        }
    }

    /// The name and text of each prompt, and the name of the default prompt, if there is one.
    pub fn all(&self) -> (&BTreeMap<String, String>, Option<&str>) {
        (&self.prompts, self.default_name.as_deref())
    }

    /// Returns the prompt name `passage` or `corpus` if the model has such a prompt and no
    /// `document` prompt, and `None` otherwise. `encode_document` of sentence-transformers ignores
    /// such a prompt.
    pub fn ignored_prompt(&self) -> Option<&str> {
        let is_set = |name: &&str| self.prompts.get(*name).is_some_and(|prompt| !prompt.is_empty());
        if is_set(&"document") { None } else { ["passage", "corpus"].into_iter().find(is_set) }
    }
}

/// Returns the names of the prompts, for an error.
fn name_list(prompts: &BTreeMap<String, String>) -> String {
    if prompts.is_empty() {
        "none".to_owned()
    } else {
        prompts.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_selected_by_role_and_name_and_invalid_files_are_errors() -> Result<()> {
        let text = r#"{"prompts": {"query": "q: ", "passage": "p: ", "other": null},
                       "default_prompt_name": "passage", "similarity_fn_name": "dot"}"#;
        let prompts = Prompts::parse(text, "c.json")?;
        assert_eq!(prompts.text(&PromptChoice::Query, "m")?, "q: ");
        assert_eq!(prompts.text(&PromptChoice::Document, "m")?, "");
        assert_eq!(prompts.text(&PromptChoice::Default, "m")?, "p: ");
        assert_eq!(prompts.text(&PromptChoice::Named("passage".into()), "m")?, "p: ");
        assert_eq!(prompts.text(&PromptChoice::Named(String::new()), "m")?, "");
        assert_eq!(prompts.text(&PromptChoice::Text("t: ".into()), "m")?, "t: ");
        let error =
            prompts.text(&PromptChoice::Named("x".into()), "m").expect_err("none").to_string();
        assert!(error.contains("other, passage, query"), "{error}");
        assert_eq!(prompts.ignored_prompt(), Some("passage"));
        assert_eq!(prompts.other_similarity.as_deref(), Some("dot"));
        assert!(Prompts::parse(r#"{"default_prompt_name": "x"}"#, "c.json").is_err());
        assert!(Prompts::parse(r#"{"model_type": "SparseEncoder"}"#, "c.json").is_err());
        Ok(())
    }
}
