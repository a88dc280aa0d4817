//! `engram explore`: a local web page for runs and memories.
//!
//! | file | task |
//! |---|---|
//! | `discover` | finds the runs and memories below the given folders |
//! | `curves` | reads the metrics of a run by step |
//! | `images` | image files inside the folder of the images |
//! | `memories` | searches a memory by text, by an image or by one of its entries |
//! | `answers` | REVEAL runs: answers and their retrieved entries |
//! | `questions` | REVEAL runs: test questions and their images |
//! | `speech` | AVFormer runs: noisy clips, transcribed with and without images |
//! | `rescue` | AVFormer runs: a clip in which the images correct a word |
//! | `lazy` | opens models on first use |
//! | `uploads` | text and images that the page sends |
//! | `access` | access control by the token of the printed address |
//! | `budget` | limits the memory of concurrent requests |
//! | `connections` | limits the number of connections and their idle time |
//! | `server` | serves the page and its data |
//! | `routes` | handlers of the requests for data |
//! | `page/` | HTML, CSS and JavaScript of the page |

mod access;
mod answers;
mod budget;
mod connections;
mod curves;
mod discover;
mod images;
mod lazy;
mod memories;
mod questions;
mod rescue;
mod routes;
mod server;
mod speech;
mod uploads;

use engram_data::messages::counted;
use std::path::{Path, PathBuf};

use clap::Args;
use engram_data::hub::stay_offline;

use super::memory::location::{self, ServerOptions};
use super::paths::{BaseFolder, InputFolder, path_list};
use super::{Outcome, output};
use budget::Budget;
use discover::{RunsAndMemories, find, restore_memories};
use lazy::LazyRuns;
use memories::Memories;
use server::{Explored, serve};

/// Explore runs and memories on a local web page.
///
/// Open the printed address in your browser. Its token grants access to your browser only.
///
/// The page has four tabs. Answers: REVEAL's answers, with entries to switch off. Speech: spoken
/// names in noise, and AVFormer's transcripts with different images. Memory: search by text, image
/// or entry. Curves: metrics of several runs, also while they are running. A missing memory of a
/// REVEAL run is built again first. The command changes no other file, and needs no network. Stop
/// it with Ctrl-C.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram data bundled --out bundled && engram explore bundled
  engram explore runs
  engram explore runs/r1 runs/ablations --port 8080
  engram explore memory --images photographs
  engram explore runs/r1 'postgres://ann@db.example/wiki?memory=birds'

If the browser is on another machine, forward the port to it there, and open the printed address:
  ssh -L 8080:127.0.0.1:8080 SERVER")]
pub struct Explore {
    /// Folders of runs or memories, or folders that contain runs or memories; addresses of memories
    /// on servers
    #[arg(required = true, value_name = "FOLDER")]
    folders: Vec<InputFolder>,
    #[command(flatten)]
    server: ServerOptions,
    /// Base folder for the image paths of entries and of a run's test questions (default: the folder
    /// of the run's data, or the folder that contains the memory; none for a memory on servers)
    #[arg(long, value_name = "FOLDER")]
    images: Option<BaseFolder>,
    /// Port on 127.0.0.1 (default: a free port)
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,
}

impl Explore {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        if let Some(images) = self.images.as_ref().filter(|images| !images.is_dir()) {
            anyhow::bail!(
                "{}: is not a folder; --images is the base folder for image paths",
                images.display()
            );
        }
        stay_offline();
        let is_address = |location: &PathBuf| location::addresses(location).is_some();
        let (addresses, folders): (Vec<_>, Vec<_>) =
            path_list(&self.folders).into_iter().partition(is_address);
        restore_memories(&folders);
        let RunsAndMemories { mut runs, memories } = find(&folders)?;
        if let Some(images) = &self.images {
            let folders = runs.iter_mut().filter_map(|run| run.data_folder.as_mut());
            folders.for_each(|folder| *folder = images.to_path_buf());
        }
        let mut memories = Memories::open(memories, &runs, self.images.as_deref());
        anyhow::ensure!(
            !addresses.is_empty() || !self.server.insecure,
            "--insecure is for memories on PostgreSQL; leave it out"
        );
        for address in addresses {
            match location::open(&address, self.server, false) {
                Ok(memory) => memories.add(memory, self.images.as_deref().map(Path::to_path_buf)),
                Err(error) => output::warn(&format!("skipped: {}", output::with_causes(&error))),
            }
        }
        if runs.is_empty() && memories.len() == 0 {
            anyhow::bail!("no readable run or memory was found");
        }
        let counts = [counted(runs.len(), "run"), counted(memories.len(), "memory")];
        output::note(&counts.join(", "));
        let (answerers, asr_models) = (LazyRuns::of(&runs), LazyRuns::of(&runs));
        let budget = Budget::new();
        serve(Explored { runs, memories, answerers, asr_models, budget }, self.port)?;
        Ok(Outcome::Done)
    }
}
