//! Word boosting: words and phrases that an ASR model should prefer.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use engram_data::speech::manifest::Clip;
use engram_infer::asr::{AsrModel, BoostTreeBuilder};
use engram_models::generation::boosting::BoostTree;
use engram_textfile::read_text;

use crate::cli::output;
use crate::cli::paths::InputFile;

/// Options for word boosting.
#[derive(Debug, Args)]
pub struct Boost {
    /// Boost these words (- is standard input): one word or phrase per line for all clips; or for
    /// each clip a line id<TAB>text<TAB>rare words<TAB>JSON list of words to boost (the second and
    /// third field are ignored)
    #[arg(long, value_name = "FILE")]
    boost: Option<InputFile>,
    /// Bonus for each token of a boosted word, in nats of log-probability; the first token gets
    /// half [default: 3 for Whisper models, 2 for Conformers]
    #[arg(long, value_name = "W", requires = "boost", value_parser = parse_weight)]
    boost_weight: Option<f32>,
}

/// The boosted words in a file.
#[derive(Debug)]
pub enum BoostLists {
    /// One list for all clips.
    All(Vec<String>),
    /// A list for each clip id, with its line number.
    PerClip(HashMap<String, (u64, Vec<String>)>),
}

/// The boost trees of the word lists. The tree of a clip is built when the clip is transcribed,
/// because a file may have thousands of lists.
pub struct BoostTrees<'a> {
    boost_builder: BoostTreeBuilder<'a>,
    lists: &'a BoostLists,
    /// The tree of all clips; `None` if each clip has its own list.
    shared: Option<Arc<BoostTree>>,
    file: &'a Path,
}

fn parse_weight(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(weight) if weight.is_finite() && weight >= 0.0 => Ok(weight),
        _ => Err("must be a number of at least 0".to_string()),
    }
}

impl Boost {
    /// Reads the lists and prints how many lists belong to no clip. `None` without `--boost`.
    pub fn read(&self, clips: &[Clip]) -> anyhow::Result<Option<BoostLists>> {
        let Some(file) = &self.boost else { return Ok(None) };
        let lists = parse(&file.display().to_string(), &read_text(file)?)?;
        if let BoostLists::PerClip(lists_by_clip) = &lists {
            let ids: HashSet<&str> = clips.iter().map(|clip| clip.id.as_str()).collect();
            let lists_without_clip =
                lists_by_clip.keys().filter(|id| !ids.contains(id.as_str())).count();
            let message = format!(
                "{}: clips with a list: {} of {}; lists without a clip: {lists_without_clip} of {}",
                file.display(),
                clips.iter().filter(|clip| lists_by_clip.contains_key(&clip.id)).count(),
                clips.len(),
                lists_by_clip.len()
            );
            output::note(&message);
        }
        Ok(Some(lists))
    }

    /// Prepares the trees of the lists and checks their words.
    pub fn trees<'a>(
        &'a self,
        lists: Option<&'a BoostLists>,
        asr_model: &'a AsrModel,
    ) -> anyhow::Result<Option<BoostTrees<'a>>> {
        let (Some(lists), Some(file)) = (lists, self.boost.as_deref()) else { return Ok(None) };
        let boost_builder = asr_model.boost_builder(self.boost_weight)?;
        let mut trees = BoostTrees { boost_builder, lists, shared: None, file };
        match lists {
            BoostLists::All(words) => trees.shared = Some(trees.tree(words)?),
            BoostLists::PerClip(lists_by_clip) => trees.check_words(lists_by_clip)?,
        }
        Ok(Some(trees))
    }
}

impl BoostTrees<'_> {
    /// The tree of a clip; `None` if no words are boosted in it.
    pub fn of(&self, clip: &Clip) -> anyhow::Result<Option<Arc<BoostTree>>> {
        match self.lists {
            BoostLists::All(_) => Ok(self.shared.clone()),
            BoostLists::PerClip(lists_by_clip) => {
                lists_by_clip.get(&clip.id).map(|(_, words)| self.tree(words)).transpose()
            }
        }
    }

    /// Returns an error if the tokenizer cannot encode a word. Runs before any transcription.
    fn check_words(
        &self,
        lists_by_clip: &HashMap<String, (u64, Vec<String>)>,
    ) -> anyhow::Result<()> {
        let mut lists: Vec<&(u64, Vec<String>)> = lists_by_clip.values().collect();
        lists.sort_by_key(|(line, _)| *line);
        let mut checked = HashSet::new();
        for (line, words) in lists {
            for word in words.iter().filter(|word| checked.insert(word.as_str())) {
                if let Err(error) = self.boost_builder.tree(&[word]) {
                    anyhow::bail!("{}, line {line}: {error}", self.file.display());
                }
            }
        }
        Ok(())
    }

    fn tree(&self, words: &[String]) -> anyhow::Result<Arc<BoostTree>> {
        let with_file = |error| anyhow::anyhow!("{}: {error}", self.file.display());
        self.boost_builder.tree(words).map_err(with_file)
    }
}

/// Returns an error for an empty word or a special token.
fn check_word(file: &str, line: u64, word: &str) -> anyhow::Result<()> {
    if word.trim().is_empty() {
        anyhow::bail!("{file}, line {line}: has an empty word; remove it");
    }
    if word.contains("<|") {
        anyhow::bail!("{file}, line {line}: `{word}` may be a special token; remove it");
    }
    Ok(())
}

/// Parses a file of either format. A tab in the first line means that each line is for one clip.
fn parse(file: &str, text: &str) -> anyhow::Result<BoostLists> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let mut lines = lines.peekable();
    let Some((_, first)) = lines.peek() else {
        anyhow::bail!("{file}: has no words; write one word or phrase per line");
    };
    if !first.contains('\t') {
        let mut words = Vec::new();
        for (line, word) in lines {
            if word.contains('\t') {
                anyhow::bail!("{file}, line {line}: has a tab; write one word or phrase per line");
            }
            check_word(file, line, word)?;
            words.push(word.trim().to_string());
        }
        return Ok(BoostLists::All(words));
    }
    let mut lists_by_clip = HashMap::new();
    for (line, text) in lines {
        let fields: Vec<&str> = text.split('\t').collect();
        // The third field has the rare words of the reference. Boosting only these would leak the
        // reference.
        let [id, _, _, words] = fields[..] else {
            let count = fields.len();
            anyhow::bail!(
                "{file}, line {line}: has {count} fields; write id<TAB>text<TAB>JSON list of rare \
                 words<TAB>JSON list of words to boost"
            );
        };
        let words: Vec<String> = match serde_json::from_str(words) {
            Ok(words) => words,
            Err(error) => {
                // serde_json's line number counts lines within the field.
                let message = error.to_string();
                let message = message.split(" at line ").next().unwrap_or_default();
                anyhow::bail!(
                    "{file}, line {line}: the fourth field is not a JSON list of words: {message}"
                )
            }
        };
        words.iter().try_for_each(|word| check_word(file, line, word))?;
        let id = id.trim().to_string();
        if let Some((other_line, _)) = lists_by_clip.insert(id.clone(), (line, words)) {
            anyhow::bail!("{file}, line {line}: the id `{id}` is already on line {other_line}");
        }
    }
    Ok(BoostLists::PerClip(lists_by_clip))
}
