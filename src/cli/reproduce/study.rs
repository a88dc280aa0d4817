//! The part of a study in the report. [`ALL`] has one line for each study.

use engram_train::registry;

use super::Reproduce;
use super::avformer::AvformerReport;
use super::patent::PatentReport;
use super::report::Claim;
use super::reveal::RevealReport;

/// The studies of the report, in its order.
pub(super) const ALL: &[&dyn StudyReport] = &[&PatentReport, &RevealReport, &AvformerReport];

/// A study in the report.
pub(super) trait StudyReport: Sync {
    /// The value of `study` in its recipes, and the prefix of its claim ids.
    fn name(&self) -> &'static str;

    /// The heading of its claims.
    fn heading(&self) -> &'static str;

    /// Ids of the claims that can be measured with these options.
    fn claim_ids(&self, reproduce: &Reproduce) -> anyhow::Result<Vec<String>>;

    /// Reads the real data files that exist, before hours of training.
    fn check_data(&self, reproduce: &Reproduce) -> anyhow::Result<()>;

    /// Trains what is missing and measures the claims. Adds notes to the report.
    fn claims(&self, reproduce: &Reproduce, notes: &mut Vec<String>) -> anyhow::Result<Vec<Claim>>;
}

/// What a study of the report trains.
pub(super) fn description(study: &dyn StudyReport) -> &'static str {
    let study = registry::find(engram_train::studies::ALL, study.name());
    study.map_or("", |study| study.description())
}

/// The heading of a study's claims.
pub(super) fn heading(name: &str) -> &'static str {
    ALL.iter().find(|study| study.name() == name).map_or("", |study| study.heading())
}
