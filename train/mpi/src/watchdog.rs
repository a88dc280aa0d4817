//! Heartbeats between ranks, and the end of a run whose rank is lost.
//!
//! Rank 0 exchanges heartbeats with every other rank. A separate thread sends and checks them, so a
//! rank in a long computation is not lost, but a stopped process is. The thread also notices an MPI
//! call that does not end, but no other deadlock. If a rank is lost, the ranks that notice it print
//! a message and exit. The launcher then ends the others.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use engram_train::StudyError;

use crate::rendezvous::Link;
use crate::transfer::{self, Transfer};

/// Interval of heartbeats.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A rank without a heartbeat for this time is lost.
const TIME_LIMIT: Duration = Duration::from_secs(15);
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// A check this late means that this process was stopped, so heartbeats may wait unread.
const LATE: Duration = Duration::from_secs(5);
/// Ranks above 1 report a lost rank 0 later than rank 1, so that one message is printed.
const DELAY_PER_RANK: Duration = Duration::from_millis(500);
/// How long a stuck rank waits for rank 0 to report it.
const DELAY_WHEN_STUCK: Duration = Duration::from_secs(5);

/// The rank lives.
const BEAT: u8 = b'b';
/// The rank has done its part.
const DONE: u8 = b'd';
/// A call of MPI or NCCL of the rank does not end.
const STUCK: u8 = b's';
/// The rank has failed. It prints its error itself.
const FAILED: u8 = b'f';

/// A rank that no longer takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// The process has ended: stopped by a signal, killed, or out of memory.
    Ended {
        /// The process and its machine.
        process: String,
    },
    /// The process sends no heartbeats.
    Silent {
        /// The process and its machine.
        process: String,
    },
    /// A call of MPI or NCCL of the process does not end.
    Stuck,
    /// The process has failed. It prints its error itself.
    Failed,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended { process } => {
                write!(
                    f,
                    "has ended without a result ({process}): stopped, killed, or out of memory"
                )
            }
            Self::Silent { process } => write!(
                f,
                "has sent no heartbeat for {} seconds ({process}): it is stopped, or its machine is \
                 down",
                TIME_LIMIT.as_secs()
            ),
            Self::Stuck => write!(
                f,
                "is stuck in a call of MPI or NCCL (time limit {} seconds, and more for large messages): \
                 a rank may be out of memory, or the network down; check the memory of all machines",
                transfer::TIME_LIMIT.as_secs()
            ),
            Self::Failed => f.write_str("has failed"),
        }
    }
}

/// The thread of the heartbeats.
pub(crate) struct Watchdog {
    /// The messages of this rank to the others.
    own: Arc<Own>,
    thread: JoinHandle<()>,
}

struct Own {
    rank: usize,
    transfer: Arc<Transfer>,
    is_done: AtomicBool,
    has_failed: AtomicBool,
}

/// The state of another rank.
struct Peer {
    link: Link,
    last_beat: Instant,
    is_done: bool,
}

impl Watchdog {
    /// Starts to exchange heartbeats. If a rank is lost, `report` gets its number, and this process
    /// exits with code 2. A failure of rank 0 is not reported, because rank 0 prints it itself.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub(crate) fn start(
        rank: usize,
        transfer: Arc<Transfer>,
        links: Vec<Link>,
        report: impl Fn(usize, &Lost) + Send + 'static,
    ) -> Result<Self, StudyError> {
        let (is_done, has_failed) = (AtomicBool::new(false), AtomicBool::new(false));
        let own = Arc::new(Own { rank, transfer, is_done, has_failed });
        let shared = Arc::clone(&own);
        let start = Instant::now();
        let peers = links.into_iter().map(|link| Peer { link, last_beat: start, is_done: false });
        let mut peers: Vec<Peer> = peers.collect();
        let thread = thread::Builder::new().name("heartbeats".into()).spawn(move || {
            let Err((lost_rank, lost)) = watch(&mut peers, &shared) else { return };
            if rank > 1 {
                thread::sleep(DELAY_PER_RANK * (rank as u32 - 1).min(10));
            }
            if lost_rank == rank && rank > 0 {
                // Rank 0 reports it, and its end ends this process.
                thread::sleep(DELAY_WHEN_STUCK);
            } else if rank == 0 || !matches!(lost, Lost::Failed | Lost::Stuck) {
                // Rank 0 prints its own error, and reports a stuck rank.
                report(lost_rank, &lost);
            }
            std::process::exit(2);
        })?;
        Ok(Self { own, thread })
    }

    /// Tells the other ranks that this one is done, and waits until all are done.
    pub(crate) fn finish(self) {
        self.own.is_done.store(true, Ordering::SeqCst);
        // The thread never panics. If it did, there would be nothing to wait for.
        let _ = self.thread.join();
    }

    /// Tells the other ranks that this one has failed.
    pub(crate) fn fail(self) {
        self.own.has_failed.store(true, Ordering::SeqCst);
        let _ = self.thread.join();
    }
}

/// Exchanges heartbeats until all ranks are done or this rank has failed. Returns the first lost
/// rank as an error.
fn watch(peers: &mut [Peer], own: &Own) -> Result<(), (usize, Lost)> {
    let mut last_sent: Option<Instant> = None;
    let mut last_check = Instant::now();
    let mut told_done = false;
    loop {
        if own.has_failed.load(Ordering::SeqCst) {
            peers.iter_mut().for_each(|peer| peer.send(FAILED));
            return Ok(());
        }
        if !told_done && own.is_done.load(Ordering::SeqCst) {
            peers.iter_mut().for_each(|peer| peer.send(DONE));
            told_done = true;
        }
        if last_sent.is_none_or(|sent| sent.elapsed() >= BEAT_INTERVAL) {
            peers.iter_mut().for_each(|peer| peer.send(BEAT));
            last_sent = Some(Instant::now());
        }
        if last_check.elapsed() > LATE {
            peers.iter_mut().for_each(|peer| peer.last_beat = Instant::now());
            own.transfer.extend();
        }
        last_check = Instant::now();
        for peer in peers.iter_mut() {
            peer.receive().map_err(|lost| (peer.link.rank, lost))?;
        }
        if own.transfer.is_late() {
            peers.iter_mut().for_each(|peer| peer.send(STUCK));
            return Err((own.rank, Lost::Stuck));
        }
        if told_done && peers.iter().all(|peer| peer.is_done) {
            return Ok(());
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

impl Peer {
    /// Sends one byte. An error shows when bytes are received.
    fn send(&mut self, byte: u8) {
        let _ = self.link.stream.write(&[byte]);
    }

    /// Reads what the rank has sent. A rank that is done may close the connection.
    fn receive(&mut self) -> Result<(), Lost> {
        let mut bytes = [0; 64];
        let process = || self.link.process.clone();
        loop {
            match self.link.stream.read(&mut bytes) {
                Ok(0) if self.is_done => return Ok(()),
                Ok(0) => return Err(Lost::Ended { process: process() }),
                Ok(count) => {
                    self.last_beat = Instant::now();
                    if bytes[..count].contains(&FAILED) {
                        return Err(Lost::Failed);
                    }
                    if bytes[..count].contains(&STUCK) {
                        return Err(Lost::Stuck);
                    }
                    self.is_done |= bytes[..count].contains(&DONE);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) if self.is_done => return Ok(()),
                Err(_) => return Err(Lost::Ended { process: process() }),
            }
        }
        if self.last_beat.elapsed() > TIME_LIMIT {
            return Err(Lost::Silent { process: process() });
        }
        Ok(())
    }
}
