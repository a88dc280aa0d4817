//! How the command shows a study: help, results, plots and the explorer's tabs.
//!
//! A study can also be trained without a view: the command then prints its summary as JSON. To add
//! a view, implement [`StudyView`] in a file of `studies/` and add a line to [`VIEWS`].

mod avformer;
mod clip;
mod patent;
mod plot;
mod reveal;
mod speech;

use engram_train::registry::format_measure;
use serde_json::Value;

pub(super) use self::plot::LinePlot;

/// The output of the command for a study.
pub(super) trait StudyView: Sync {
    /// The name of the study.
    fn study(&self) -> &'static str;

    /// The trained task or model, in one phrase for help texts.
    fn about(&self) -> &'static str;

    /// Command lines that train the study, for help texts.
    fn examples(&self) -> &'static [&'static str];

    /// The results of a finished run as a text table, from its `summary.json`.
    fn text(&self, summary: &Value) -> serde_json::Result<String>;

    /// The plots for the run folder, from `summary.json`.
    fn plots(&self, _: &Value) -> serde_json::Result<Vec<LinePlot>> {
        Ok(Vec::new())
    }

    /// The tabs of the explorer that can show the study's finished runs.
    fn explorer_tabs(&self) -> &'static [ExplorerTab] {
        &[]
    }
}

/// The views of the studies.
const VIEWS: [&dyn StudyView; 5] =
    [&patent::View, &reveal::View, &speech::View, &avformer::View, &clip::View];

/// The view of a study; `None` if it has none.
pub(super) fn view(study: &str) -> Option<&'static dyn StudyView> {
    VIEWS.into_iter().find(|view| view.study() == study)
}

/// The trained task or model of a study, in one phrase; its name if it has no view.
pub(super) fn about(study: &'static str) -> &'static str {
    view(study).map_or(study, |view| view.about())
}

/// The tabs of the explorer that can show the finished runs of a study.
pub(super) fn explorer_tabs(study: &str) -> &'static [ExplorerTab] {
    view(study).map_or(&[], |view| view.explorer_tabs())
}

/// A tab of the explorer that shows finished runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExplorerTab {
    /// Answers to questions about images, with evidence.
    Answers,
    /// Transcripts of clips with image frames, and without.
    Avformer,
}

impl ExplorerTab {
    /// The tab's name in the explorer's page and requests.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Answers => "answers",
            Self::Avformer => "speech",
        }
    }
}

/// The last lines of a text table: the size of the run (such as a number of steps), the seed, the
/// start of the recipe's hash, and the failures of `[check]`.
fn footer(size: &str, seed: u64, recipe_hash: &str, failures: &[String]) -> Vec<String> {
    let hash = recipe_hash.get(..12).unwrap_or(recipe_hash);
    let mut lines = vec![format!("{size}; seed {seed}; recipe {hash}")];
    lines.extend(failures.iter().map(|failure| format!("check failed: {failure}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use engram_train::studies::ALL;

    #[test]
    fn each_study_of_the_toolkit_has_a_view() {
        let studies = ALL.iter().map(|study| study.name);
        assert_eq!(studies.collect::<Vec<_>>(), VIEWS.map(|view| view.study()));
    }
}
