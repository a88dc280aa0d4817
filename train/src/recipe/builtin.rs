//! The recipes and grids of `train/recipes`, as part of the program.

use std::borrow::Cow;
use std::io::{Error, ErrorKind};
use std::path::Path;

use engram_textfile::refuse_lfs_pointer;

use super::document::nearest;
use crate::error::{Result, TrainError};

/// A recipe or grid that is part of the program.
#[derive(Debug)]
pub struct BuiltIn {
    /// The name, for example `patent/minilm`.
    pub name: &'static str,
    /// The TOML text.
    pub text: &'static str,
}

macro_rules! built_in {
    ($($name:literal),* $(,)?) => {
        &[$(BuiltIn {
            name: $name,
            text: include_str!(concat!("../../recipes/", $name, ".toml")),
        }),*]
    };
}

/// All built-in recipes and grids, by name.
pub const BUILT_IN: &[BuiltIn] = built_in![
    "avformer/ablations",
    "avformer/scratch",
    "avformer/smoke",
    "avformer/stamps",
    "avformer/tiny",
    "clip/tiny",
    "patent/claims",
    "patent/deberta-v3-large",
    "patent/minilm",
    "patent/world",
    "reveal/ablations",
    "reveal/base",
    "reveal/claims",
    "reveal/coco",
    "reveal/laptop",
    "reveal/large",
    "reveal/okvqa",
    "reveal/scratch",
    "reveal/seeds",
    "reveal/smoke",
    "reveal/stamps",
    "reveal/stamps-claims",
    "reveal/stamps-smoke",
    "reveal/triplets",
    "speech/attention",
    "speech/tiny",
    "speech/transducer",
];

impl BuiltIn {
    /// Finds a recipe or grid by its name, with or without `.toml`; `None` for an unknown name.
    pub fn find(name: &str) -> Option<&'static Self> {
        let name = name.strip_suffix(".toml").unwrap_or(name);
        BUILT_IN.iter().find(|recipe| recipe.name == name)
    }

    /// Whether this is a grid, for `engram grid`.
    pub fn is_grid(&self) -> bool {
        self.text.contains("\n[[configuration]]\n")
    }

    /// The purpose of the recipe, in one sentence: the comment at the start of the file.
    pub fn title(&self) -> String {
        let comment = self.text.lines().map_while(|line| line.strip_prefix("# "));
        comment.collect::<Vec<_>>().join(" ")
    }
}

/// Reads a file, or a built-in recipe if no file has this path.
pub(crate) fn read(path: &Path) -> Result<Cow<'static, str>> {
    if path.exists() {
        let text = engram_durable::read_input_text(path).map_err(TrainError::io(path))?;
        refuse_lfs_pointer(path, text.as_bytes())?;
        Ok(Cow::Owned(text))
    } else {
        read_built_in(path).map(Cow::Borrowed)
    }
}

/// The text of the built-in recipe with this name.
pub(crate) fn read_built_in(name: &Path) -> Result<&'static str> {
    let text = name.to_string_lossy();
    BuiltIn::find(&text).map(|recipe| recipe.text).ok_or_else(|| {
        let names: Vec<String> = BUILT_IN.iter().map(|recipe| recipe.name.to_owned()).collect();
        let closest = nearest(&text, &names);
        let advice = closest.map_or(String::new(), |name| format!("did you mean `{name}`? "));
        let names = names.join(", ");
        let reason = format!("no such file or built-in recipe; {advice}Built in are {names}");
        TrainError::io(name)(Error::new(ErrorKind::NotFound, reason))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recipe_file_is_built_in_and_has_a_title() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes");
        let mut names = Vec::new();
        for study in std::fs::read_dir(folder).expect("the recipes").flatten() {
            for file in std::fs::read_dir(study.path()).expect("a study's recipes").flatten() {
                let (study, file) = (study.file_name(), file.file_name());
                let name = format!("{}/{}", study.to_string_lossy(), file.to_string_lossy());
                names.extend(name.strip_suffix(".toml").map(str::to_owned));
            }
        }
        names.sort_unstable();
        assert_eq!(BUILT_IN.iter().map(|recipe| recipe.name).collect::<Vec<_>>(), names);
        assert!(BUILT_IN.iter().all(|recipe| recipe.title().ends_with('.')), "each has a title");
    }

    #[test]
    fn the_error_for_an_unknown_name_has_the_closest_name_and_all_names() {
        let error = read(Path::new("patent/mini-lm")).expect_err("no recipe").to_string();
        assert!(error.contains("did you mean `patent/minilm`?"), "{error}");
        assert!(error.contains("Built in are avformer/ablations, "), "{error}");
        assert!(read(Path::new("patent/minilm.toml")).is_ok());
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&file, "version https://git-lfs.github.com/spec/v1\n").expect("a pointer");
        let error = read(file.path()).expect_err("a pointer").to_string();
        assert!(error.contains("is a Git LFS pointer"), "{error}");
    }
}
