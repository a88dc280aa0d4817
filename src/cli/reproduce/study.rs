//! The interface of a study for the report of `engram reproduce`. A new study adds a line to
//! [`ALL`].

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

    /// The ids of the claims that can be measured with these options.
    fn claim_ids(&self, reproduce: &Reproduce) -> anyhow::Result<Vec<String>>;

    /// Checks the real data files that exist, so that an invalid file is an error before hours of
    /// training.
    fn check_data(&self, reproduce: &Reproduce) -> anyhow::Result<()>;

    /// Trains the runs that are missing, and measures the claims. Adds notes for the report to
    /// `notes`.
    fn claims(&self, reproduce: &Reproduce, notes: &mut Vec<String>) -> anyhow::Result<Vec<Claim>>;
}

/// The description of a study from the table of all studies.
pub(super) fn description(study: &dyn StudyReport) -> &'static str {
    let study = registry::find(engram_train::studies::ALL, study.name());
    study.map_or("", |study| study.description())
}

/// The heading of a study's claims, by the study's name.
pub(super) fn heading(name: &str) -> &'static str {
    ALL.iter().find(|study| study.name() == name).map_or("", |study| study.heading())
}
