//! MPI in one process: its start and its end.

use std::sync::Arc;

use engram_train::StudyError;
use engram_train::distributed::{Collective, Ranks};
use mpi::Threading;
use mpi::environment::Universe;

use crate::collective::World;
use crate::rendezvous;
use crate::watchdog::{Lost, Watchdog};

/// Environment variables of launchers: Open MPI's `mpirun`, and Slurm's `srun` with PMIx or PMI.
/// Each launcher sets at least one of them.
const LAUNCHERS: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"];

/// MPI in this process, from [`Mpi::start`] to [`Mpi::finish`].
///
/// If another process fails, is stopped or is unreachable, or if a call of MPI or NCCL does not
/// end, this process ends with exit code 2 and a message. Dropped before [`Mpi::finish`], it tells
/// the other processes that this one has failed.
pub struct Mpi {
    world: Arc<World>,
    watchdog: Option<Watchdog>,
    /// Ends MPI when it is dropped.
    universe: Option<Universe>,
}

impl Mpi {
    /// Starts MPI if a launcher such as `mpirun` has started this process; otherwise `None`.
    ///
    /// `report` prints the loss of another process, and how to resume.
    ///
    /// # Errors
    /// If MPI is already started, or the processes cannot reach each other over TCP.
    pub fn start(
        report: impl Fn(usize, &Lost) + Send + 'static,
    ) -> Result<Option<Self>, StudyError> {
        if LAUNCHERS.iter().all(|name| std::env::var_os(name).is_none()) {
            return Ok(None);
        }
        let (universe, threading) = mpi::initialize_with_threading(Threading::Serialized)
            .ok_or("MPI is already started in this process")?;
        if threading < Threading::Serialized {
            return Err("the MPI library supports no threads; use Open MPI 4 or later".into());
        }
        let world = Arc::new(World::new());
        let mut mpi = Self { world, watchdog: None, universe: Some(universe) };
        if mpi.world.size() > 1 {
            let links = rendezvous::connect(&*mpi.world)?;
            mpi.watchdog =
                Some(Watchdog::start(mpi.world.rank(), mpi.world.transfer(), links, report)?);
        }
        Ok(Some(mpi))
    }

    /// The ranks for training.
    pub fn ranks(&self) -> Ranks {
        Ranks::new(self.collective())
    }

    /// The communication between the processes.
    pub fn collective(&self) -> Arc<dyn Collective> {
        Arc::clone(&self.world) as Arc<dyn Collective>
    }

    /// Waits until all processes have finished, then ends MPI.
    pub fn finish(mut self) {
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.finish();
        }
        drop(self.universe.take());
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.fail();
        }
        // The other processes do not take part in the end of MPI.
        std::mem::forget(self.universe.take());
    }
}
