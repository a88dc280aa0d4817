//! `engram memory remove`: removes a memory from PostgreSQL servers.

use clap::Args;

use super::super::Outcome;
use super::location::{self, ServerOptions};

/// Remove a memory from PostgreSQL.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs a program with the feature `postgres`. All generations of the memory are removed from all its
servers, and so is an unfinished push. `engram memory pull` makes a copy of a memory.

Example:
  engram memory remove 'postgres://ann@db.example/wiki?memory=birds' --yes")]
pub struct Remove {
    /// Address of the memory; addresses of several servers are separated by commas or spaces
    #[arg(value_name = "URL")]
    urls: String,
    /// Confirm that the memory is removed for good
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    server: ServerOptions,
}

impl Remove {
    #[cfg(feature = "postgres")]
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        use engram_data::messages::counted;
        use engram_memory_postgres::remove;

        let urls = &self.urls;
        anyhow::ensure!(
            location::addresses(urls.as_ref()).is_some(),
            "the argument must be an address such as postgres://user@host/database?memory=name; \
             remove the folder of a local memory with the tools of your system"
        );
        let server = location::memory_server(urls, self.server)?;
        let found = match server.open()? {
            Some(memory) => {
                let entries = memory.snapshot().info()?.entries;
                format!("{}, a memory of {}", server.location(), counted(entries, "entry"))
            }
            None => format!("{}, an unfinished push", server.location()),
        };
        anyhow::ensure!(self.yes, "add --yes to remove {found}");
        let is_removed = remove(urls, location::connect(self.server, false))?;
        anyhow::ensure!(is_removed, "{} has no memory; check the address", server.location());
        super::output::print(&format!("removed {found}\n"))?;
        Ok(Outcome::Done)
    }

    #[cfg(not(feature = "postgres"))]
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        // Otherwise, nothing reads these options without the feature.
        let _ = (self.urls, self.yes, self.server.insecure);
        Err(location::without_feature())
    }
}
