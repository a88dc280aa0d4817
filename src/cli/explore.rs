//! `engram explore`: runs and memories on a page for the browser of this machine.
//!
//! | file | what it is responsible for |
//! |---|---|
//! | `found` | which of the folders are runs and which are memories |
//! | `curves` | what a run has by step |
//! | `memories` | searching a memory in words, by a picture or by one of its entries |
//! | `answers` | runs of REVEAL: answers, and the entries that they come from |
//! | `speech` | runs of AVFormer: clips in noise, heard with and without pictures |
//! | `lazily` | models that are opened when they are first needed |
//! | `uploads` | pictures that the page sends |
//! | `access` | who may ask: the token of the printed address |
//! | `budget` | how much memory requests take at a time |
//! | `connections` | how many there are, and how long each may do nothing |
//! | `server` | the page and its data |
//! | `page/` | HTML, CSS and JavaScript, as the browser gets them |

mod access;
mod answers;
mod budget;
mod connections;
mod curves;
mod found;
mod lazily;
mod memories;
mod server;
mod speech;
mod uploads;

use std::path::PathBuf;

use clap::Args;
use engram_data::hub::stay_offline;

use super::{Outcome, output};
use budget::Budget;
use found::{Found, find};
use lazily::LazyRuns;
use memories::Memories;
use server::{Explored, serve};

/// Look into runs and memories: a page for the browser of this machine.
///
/// Open the address that is printed: its token lets your browser in, and nobody else.
///
/// Curves of runs side by side, those under way among them; memories, searched by words, by a picture or by an
/// entry; REVEAL's answers, with entries to switch off; names in noise as AVFormer hears them with other pictures.
/// Nothing is changed, and nothing is asked of other machines. Stop it with Ctrl-C.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram explore train/kept
  engram explore runs
  engram explore runs/r1 runs/ablations --port 8080
  engram explore memory --images pictures")]
pub struct Explore {
    /// Runs, memories, or folders with some of them
    #[arg(required = true, value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// Where the paths of entries' pictures begin; without it, beside each memory
    #[arg(long, value_name = "FOLDER")]
    images: Option<PathBuf>,
    /// The port on 127.0.0.1; one that is free without it
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,
}

impl Explore {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        if let Some(images) = self.images.as_ref().filter(|images| !images.is_dir()) {
            anyhow::bail!(
                "{}: is no folder; --images is where pictures' paths begin",
                images.display()
            );
        }
        stay_offline();
        let Found { runs, memories } = find(&self.folders)?;
        let memories = Memories::open(memories, self.images.as_deref());
        if runs.is_empty() && memories.len() == 0 {
            anyhow::bail!("nothing is left to look into");
        }
        output::note(&format!("{} runs, {} memories", runs.len(), memories.len()), false);
        let (answerers, recognisers) = (LazyRuns::of(&runs), LazyRuns::of(&runs));
        let budget = Budget::new();
        serve(Explored { runs, memories, answerers, recognisers, budget }, self.port)?;
        Ok(Outcome::Done)
    }
}
