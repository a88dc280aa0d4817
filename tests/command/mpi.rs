//! Training on several processes with a real `mpirun`: `ENGRAM_MPI` is a virtual environment with
//! Open MPI, which `tests/mpi/build.sh` makes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::equal_runs::reproducible_files;
use crate::running::{Folder, command, errors, folder_of, send_signal, until, until_logged};

/// Settings of a study's tiny recipe, with 4 micro-batches a step.
struct Study {
    name: &'static str,
    recipe: &'static str,
    set: &'static [&'static str],
}

const PATENT: Study = Study {
    name: "patent",
    recipe: "patent/world",
    set: &[
        "batch.examples=16",
        "batch.accumulate=4",
        "checkpoint.every_steps=8",
        "checkpoint.keep=2",
        "ema.decay=0.9",
        "phase.0.epochs=4",
        "log.every_steps=1",
    ],
};

/// A memory that is refreshed several times. The last step of an epoch has fewer micro-batches.
const REVEAL: Study = Study {
    name: "reveal",
    recipe: "reveal/laptop",
    set: &[
        "batch.examples=8",
        "batch.accumulate=4",
        "batch.negatives=step",
        "checkpoint.every_steps=4",
        "memory.refresh_every=6",
        "memory.refresh_lag=3",
        "phase.images.steps=3",
        "phase.warm-start.steps=3",
        "phase.questions.steps=3",
        "phase.fine-tune.steps=14",
        "log.every_steps=1",
        "check.loss_at_most=100.0",
    ],
};

impl Study {
    /// The arguments of a training command.
    fn arguments(&self, run: &Path, options: &[&str]) -> Vec<String> {
        let (name, recipe, run) = (self.name, self.recipe, run.display());
        let train =
            format!("train {name} --recipe {recipe} --tiny --quiet --threads 1 --run {run}");
        let mut arguments: Vec<String> = train.split(' ').map(str::to_owned).collect();
        for set in self.set {
            arguments.extend(["--set".to_owned(), (*set).to_owned()]);
        }
        arguments.extend(options.iter().map(|option| (*option).to_owned()));
        arguments
    }

    /// A training command on one process, without `mpirun`.
    fn alone(&self, run: &Path, options: &[&str]) -> Command {
        let mut command = command(Path::new("."), "");
        // `mpirun` sets this by itself.
        command.env("LD_LIBRARY_PATH", folder_of("ENGRAM_MPI").join("lib"));
        command.args(self.arguments(run, options));
        command
    }

    /// A training command on several processes.
    fn on_ranks(&self, ranks: usize, run: &Path, options: &[&str]) -> Command {
        let mut command = Command::new(folder_of("ENGRAM_MPI").join("bin/mpirun"));
        command.args(["-n", &ranks.to_string(), "--oversubscribe", "--allow-run-as-root"]);
        command.arg(env!("CARGO_BIN_EXE_engram")).args(self.arguments(run, options));
        command
    }
}

/// Runs a command, which must end with exit code 0.
#[track_caller]
fn succeeds(mut command: Command) {
    let output = command.output().expect("a command");
    assert!(output.status.success(), "{command:?}: {}", errors(&output));
}

#[track_caller]
fn assert_equal_runs(reference: &Path, run: &Path) {
    assert_equal_files(reference, run, |_| true);
}

/// Compares all files that do not contain the recipe.
#[track_caller]
fn assert_equal_results(reference: &Path, run: &Path) {
    let with_recipe = ["recipe.toml", "summary.json", "run.sha256"].map(Path::new);
    assert_equal_files(reference, run, |name| !with_recipe.contains(&name));
}

#[track_caller]
fn assert_equal_files(reference: &Path, run: &Path, is_included: impl Fn(&Path) -> bool) {
    // The finished run's memory is built again from its weights, with another generation number.
    let files = |run: &Path| {
        let mut files = reproducible_files(run, |folder| !folder.starts_with("memory"));
        files.retain(|(name, _)| is_included(name));
        files
    };
    let (expected, found) = (files(reference), files(run));
    let names = |files: &[(PathBuf, Vec<u8>)]| -> Vec<PathBuf> {
        files.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(&expected), names(&found), "{}", run.display());
    assert!(expected.iter().any(|(name, _)| name.ends_with("model.safetensors")));
    for ((name, expected), (_, found)) in expected.iter().zip(&found) {
        assert!(expected == found, "{}: {} differs", run.display(), name.display());
    }
}

/// The process of a rank of the run in this folder.
fn process_of(rank: usize, run: &Path) -> Option<u32> {
    let variable = format!("OMPI_COMM_WORLD_RANK={rank}");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.find(|id| {
        let read = |file: &str| fs::read(format!("/proc/{id}/{file}")).unwrap_or_default();
        let has = |file: &str, part: &str| {
            read(file).split(|byte| *byte == 0).any(|p| p == part.as_bytes())
        };
        has("environ", &variable) && has("cmdline", &run.display().to_string())
    })
}

/// Starts a command and waits until its run has this number of log lines.
fn start(mut command: Command, run: &Path, lines: usize) -> Child {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process");
    until_logged(run, lines);
    child
}

/// Waits for the end, for at most 30 seconds.
fn ends_in_time(child: Child) -> Output {
    let (id, start) = (child.id(), Instant::now());
    let waiting = thread::spawn(move || child.wait_with_output().expect("an end"));
    while !waiting.is_finished() {
        if start.elapsed() > Duration::from_secs(30) {
            send_signal(id, "-KILL");
            panic!("the run did not end within 30 seconds");
        }
        thread::sleep(Duration::from_millis(20));
    }
    waiting.join().expect("no panic")
}

/// Waits for a failure. Returns standard error.
#[track_caller]
fn fails_in_time(child: Child) -> String {
    let output = ends_in_time(child);
    let error = errors(&output);
    assert!(!output.status.success(), "{error}");
    error
}

#[track_caller]
fn assert_says_how_to_resume(error: &str) {
    assert!(error.contains("mpirun -n 2 ") && error.contains(" --resume"), "{error}");
}

#[test]
#[ignore = "needs ENGRAM_MPI: an environment with Open MPI"]
fn one_two_and_four_processes_write_the_same_bytes() {
    for (study, sizes) in [(PATENT, &[1, 2, 4][..]), (REVEAL, &[2, 4])] {
        let folder = &Folder::new();
        let reference = folder.join("alone");
        succeeds(study.alone(&reference, &[]));
        for &ranks in sizes {
            let run = folder.join(ranks.to_string());
            succeeds(study.on_ranks(ranks, &run, &[]));
            assert_equal_runs(&reference, &run);
        }
    }
}

/// Embedding tables that the processes keep in parts: checkpoints, weights, metrics and scores have
/// the bytes of a run with whole tables. A killed run continues on another number of processes.
#[test]
#[ignore = "needs ENGRAM_MPI: an environment with Open MPI"]
fn embedding_tables_in_parts_give_the_bytes_of_whole_tables() {
    let folder = &Folder::new();
    let whole = folder.join("whole");
    succeeds(PATENT.alone(&whole, &[]));
    let in_parts = |set: &'static str| {
        ["--set", r#"embedding_tables.match=["**_embeddings.weight"]"#, "--set", set]
    };
    let by_row = in_parts("embedding_tables.row_threshold=0");
    let by_column = in_parts("embedding_tables.column_threshold=3000");
    for (ranks, options) in [(2, by_row), (4, by_column)] {
        let run = folder.join(ranks.to_string());
        succeeds(PATENT.on_ranks(ranks, &run, &options));
        assert_equal_results(&whole, &run);
    }
    let run = folder.join("killed");
    let child = start(PATENT.on_ranks(2, &run, &by_row), &run, 14);
    send_signal(process_of(1, &run).expect("a process"), "-KILL");
    assert!(!ends_in_time(child).status.success());
    succeeds(PATENT.on_ranks(3, &run, &[&by_row[..], &["--resume"]].concat()));
    assert_equal_results(&whole, &run);
}

#[test]
#[ignore = "needs ENGRAM_MPI: an environment with Open MPI"]
fn a_killed_run_says_how_to_continue_and_does_on_another_number_of_processes() {
    for (study, killed, ranks) in [(PATENT, 0, 4), (REVEAL, 1, 1)] {
        let folder = &Folder::new();
        let reference = folder.join("alone");
        succeeds(study.alone(&reference, &[]));
        let run = folder.join(format!("killed-{killed}"));
        let child = start(study.on_ranks(2, &run, &[]), &run, 14);
        send_signal(process_of(killed, &run).expect("a process"), "-KILL");
        let error = fails_in_time(child);
        let message = format!("rank {killed} has ended without a result");
        assert!(error.contains(&message), "{error}");
        assert_says_how_to_resume(&error);
        if ranks == 1 {
            succeeds(study.alone(&run, &["--resume"]));
        } else {
            succeeds(study.on_ranks(ranks, &run, &["--resume"]));
        }
        assert_equal_runs(&reference, &run);
    }
}

#[test]
#[ignore = "needs ENGRAM_MPI: an environment with Open MPI"]
fn a_stopped_process_ends_the_run_with_a_message() {
    let folder = &Folder::new();
    for stopped in [0, 1] {
        let run = folder.join(stopped.to_string());
        let child = start(PATENT.on_ranks(2, &run, &[]), &run, 10);
        let process = process_of(stopped, &run).expect("a process");
        send_signal(process, "-STOP");
        let error = fails_in_time(child);
        let message = format!("rank {stopped} has sent no heartbeat for 15 seconds");
        assert!(error.contains(&message), "{error}");
        assert_says_how_to_resume(&error);
        // The launcher ends the stopped process after its own end.
        let process = PathBuf::from(format!("/proc/{process}"));
        until("the stopped process ends", || !process.exists());
    }
}

/// A process that gets no more memory ends the run.
#[test]
#[ignore = "needs ENGRAM_MPI: an environment with Open MPI"]
fn a_process_without_memory_ends_the_run_and_it_continues() {
    let folder = &Folder::new();
    let reference = folder.join("alone");
    succeeds(REVEAL.alone(&reference, &[]));
    let run = folder.join("run");
    let child = start(REVEAL.on_ranks(2, &run, &[]), &run, 1);
    let process = process_of(1, &run).expect("a process").to_string();
    // The process keeps its address space, but gets no more: the first refresh of the memory fails.
    let limited = Command::new("prlimit").args(["--pid", &process, "--as=1"]).status().unwrap();
    assert!(limited.success());
    let error = fails_in_time(child);
    // If a library of MPI ends the process, the launcher may end the others before their message.
    if !error.contains("Exit code") {
        assert!(error.contains("a rank is out of memory"), "{error}");
        assert_says_how_to_resume(&error);
    }
    succeeds(REVEAL.on_ranks(2, &run, &["--resume"]));
    assert_equal_runs(&reference, &run);
}

/// `mpirun` kills all processes soon after Ctrl-C, but passes SIGUSR1 on.
#[test]
#[ignore = "needs ENGRAM_MPI: an environment with Open MPI"]
fn signals_to_mpirun_stop_the_run_and_it_continues() {
    let folder = &Folder::new();
    let reference = folder.join("alone");
    succeeds(PATENT.alone(&reference, &[]));
    for signal in ["-INT", "-USR1"] {
        let run = folder.join(signal);
        let child = start(PATENT.on_ranks(2, &run, &[]), &run, 10);
        send_signal(child.id(), signal);
        let error = fails_in_time(child);
        if signal == "-USR1" {
            // The last step is saved: by this checkpoint, or by a regular one just before.
            let pointer = fs::read_to_string(run.join("checkpoints/LATEST")).unwrap();
            let log = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
            let steps = log.lines().filter(|line| line.contains(r#""kind":"train""#));
            let step = format!("{:08}", steps.count());
            assert!(pointer.trim_end().ends_with(&step), "{pointer}, step {step}: {error}");
            assert!(error.contains("stopped; the newest checkpoint is in"), "{error}");
            assert_says_how_to_resume(&error);
        }
        succeeds(PATENT.on_ranks(3, &run, &["--resume"]));
        assert_equal_runs(&reference, &run);
    }
}

#[test]
#[ignore = "needs ENGRAM_MPI: an environment with Open MPI"]
fn more_processes_than_micro_batches_are_an_error() {
    let folder = &Folder::new();
    let run = folder.join("run");
    let mut command = PATENT.on_ranks(3, &run, &["--set", "batch.accumulate=2"]);
    let output = command.output().unwrap();
    let error = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("batch.accumulate"), "{error}");
    assert_eq!(error.matches("but 3 ranks share the micro-batches").count(), 1, "{error}");
    assert!(!run.exists());
}

#[test]
#[ignore = "needs ENGRAM_MPI: an environment with Open MPI"]
fn processes_with_different_recipes_are_an_error() {
    let folder = &Folder::new();
    let run = folder.join("run");
    let mut command = PATENT.on_ranks(1, &run, &[]);
    command.args([":", "-n", "1", env!("CARGO_BIN_EXE_engram")]);
    command.args(PATENT.arguments(&run, &["--set", "seed=2"]));
    let output = command.output().unwrap();
    let error = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert_eq!(error.matches("rank 1 has another recipe").count(), 1, "{error}");
}
