//! The date, the machine and the commit, for reports.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engram_train::Program;
use serde::Serialize;

/// When and where a report was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Environment {
    /// The date and time in UTC (RFC 3339).
    pub(super) date: String,
    /// The processor, the number of logical processors and the platform.
    pub(super) machine: String,
    /// The commit that was checked out in the program's clone when the program was built; `None` if
    /// unknown. It does not show uncommitted changes: the hash of the program does.
    pub(super) commit: Option<String>,
}

impl Environment {
    /// The environment of the running program.
    pub(super) fn current() -> Self {
        Self {
            date: rfc_3339(seconds_since_epoch(SystemTime::now())),
            machine: machine(),
            commit: commit(Path::new(env!("CARGO_MANIFEST_DIR"))),
        }
    }
}

fn seconds_since_epoch(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// Formats a time as `2026-11-27T07:05:09Z`. The algorithm counts days from March, so that a leap
/// day ends the year.
///
/// # Source   H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`
fn rfc_3339(seconds: u64) -> String {
    let (days, seconds) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}Z")
}

/// The processor, the number of logical processors and the platform.
pub(super) fn machine() -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let platform = format!(
        "{}, {} {}",
        engram_data::messages::counted(processors, "processor"),
        std::env::consts::ARCH,
        std::env::consts::OS
    );
    let cpu = read_start("/proc/cpuinfo".as_ref()).unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    match model {
        Some((_, model)) => format!("{}, {platform}", model.trim()),
        None => platform,
    }
}

/// The commit that was checked out in `clone` when the running program was built. The log of the
/// clone's HEAD has a line for each commit that was checked out, with the time.
fn commit(clone: &Path) -> Option<String> {
    let program = Program::file().ok()?;
    let built = seconds_since_epoch(fs::metadata(program).ok()?.modified().ok()?);
    let log = read_start(&git_folder(clone)?.join("logs/HEAD"))?;
    commit_at(&log, built)
}

/// The folder of a clone's HEAD. In a worktree, `.git` is a file with the path.
fn git_folder(clone: &Path) -> Option<PathBuf> {
    let git = clone.join(".git");
    if git.is_dir() {
        return Some(git);
    }
    Some(clone.join(read_start(&git)?.strip_prefix("gitdir: ")?.trim_end()))
}

/// The last commit in a log of HEAD up to a time. A line is `OLD NEW NAME <EMAIL> SECONDS ZONE`, a
/// tab, and a message.
fn commit_at(log: &str, time: u64) -> Option<String> {
    let entry = |line: &str| {
        let (entry, _) = line.split_once('\t').unwrap_or((line, ""));
        let commit = entry.split(' ').nth(1).filter(|commit| commit.len() >= 40)?;
        let (_, seconds_and_zone) = entry.rsplit_once("> ")?;
        let (seconds, _) = seconds_and_zone.split_once(' ')?;
        Some((commit.to_owned(), seconds.parse::<u64>().ok()?))
    };
    let (commit, _) = log.lines().filter_map(entry).rfind(|(_, seconds)| *seconds <= time)?;
    Some(commit)
}

/// The text of a file, up to 64 MiB; `None` if it cannot be read.
fn read_start(path: &Path) -> Option<String> {
    let mut text = Vec::new();
    engram_durable::open_file(path).ok()?.take(64 << 20).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `date --utc --date @SECONDS +%FT%TZ`
    #[test]
    fn dates_are_as_in_coreutils() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_795_763_109, "2026-11-27T07:05:09Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc_3339(seconds), date);
        }
    }

    #[test]
    fn the_commit_is_the_one_checked_out_at_the_time_of_the_build() {
        let [first, second] = ["1", "2"].map(|digit| digit.repeat(40));
        let log = format!(
            "{} {first} A B <a@b.c> 100 +0000\tclone: from > 5\n\
             {first} {second} A B <a@b.c> 200 +0200\tcommit: x\n",
            "0".repeat(40)
        );
        assert_eq!(commit_at(&log, 99), None);
        assert_eq!(commit_at(&log, 150), Some(first));
        assert_eq!(commit_at(&log, 200), Some(second));
        assert_eq!(commit_at("no log", 200), None);

        let folder = tempfile::tempdir().expect("a folder");
        let git = folder.path().join(".git");
        assert_eq!(git_folder(folder.path()), None);
        fs::create_dir(&git).expect("a folder");
        assert_eq!(git_folder(folder.path()), Some(git));
    }
}
