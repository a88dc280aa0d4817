//! Rounds in which ranks read each other's data.
//!
//! Ranks compute their micro-batches at their own pace, and read different numbers of entries. So
//! they read in *rounds*. In each round, a rank may send one request to each rank. All ranks answer
//! the requests of the others and receive their replies. A rank that has finished takes part
//! without a request, until all ranks have finished. All ranks then leave the rounds together.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Ranks, failed};
use crate::error::{Result, TrainError};

/// The first byte of a message of a rank that has finished.
const FINISHED: u8 = 0;
/// The first byte of a message of a rank that has not finished. If it asks the receiver, the number
/// of a shard and a request follow.
const READS: u8 = 1;
/// The first byte of a reply. The content follows.
const ANSWERED: u8 = 0;
/// The first byte of a reply if a request failed. The reason follows.
const REFUSED: u8 = 1;

/// Data of one rank that other ranks read.
pub(super) trait Shard: Send + Sync {
    /// Answers a request of a rank. The error is the reason why it failed.
    fn answer(&self, request: &[u8]) -> Result<Vec<u8>, String>;
}

/// The state of the rounds on one rank.
#[derive(Default)]
pub(super) struct Rounds {
    /// Whether all ranks take part in rounds.
    are_open: AtomicBool,
    shards: Mutex<Shards>,
    /// Held during a round.
    turn: Mutex<()>,
}

/// The shards of this rank, by number. A data set's shards have the same number on all ranks.
#[derive(Default)]
struct Shards {
    opened: u32,
    shards: BTreeMap<u32, Weak<dyn Shard>>,
}

impl Rounds {
    fn answer(&self, number: [u8; 4], request: &[u8]) -> Result<Vec<u8>, String> {
        let number = u32::from_le_bytes(number);
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let shard = shards.shards.get(&number).and_then(Weak::upgrade);
        drop(shards);
        shard.ok_or_else(|| format!("has no shard with the number {number}"))?.answer(request)
    }

    /// The reply to a message; empty if the message has no request.
    fn reply(&self, message: &[u8]) -> Vec<u8> {
        let Some((number, request)) = message.get(1..).and_then(|rest| rest.split_first_chunk())
        else {
            return Vec::new();
        };
        match self.answer(*number, request) {
            Ok(content) => [&[ANSWERED][..], &content].concat(),
            Err(reason) => [&[REFUSED][..], reason.as_bytes()].concat(),
        }
    }
}

thread_local! {
    static IS_IN_ROUND: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as taking part in a round, until the value is dropped.
struct ThreadInRound;

impl ThreadInRound {
    fn enter() -> Result<Self> {
        if IS_IN_ROUND.replace(true) {
            return Err(failed("a read begins during another read of this thread".into()));
        }
        Ok(Self)
    }
}

impl Drop for ThreadInRound {
    fn drop(&mut self) {
        IS_IN_ROUND.set(false);
    }
}

/// Open rounds. They are closed at the end, also after an error.
pub(crate) struct OpenReads(Ranks);

impl OpenReads {
    /// Answers the other ranks until all have finished.
    pub(crate) fn close(self) -> Result<()> {
        self.0.meet()
    }
}

impl Drop for OpenReads {
    fn drop(&mut self) {
        self.0.rounds.are_open.store(false, Ordering::Relaxed);
    }
}

impl Ranks {
    /// Calls `read`, which may read the shards of all ranks. All ranks must call this function; a
    /// rank without reads passes an empty `read`. After `read`, and while it waits in a collective
    /// call, a rank answers the reads of the others. The answers use rayon, so a thread that waits
    /// for its read may run another rayon task meanwhile. If that task reads as well, this read is
    /// an error, because it would wait for itself. So read from one task at a time.
    ///
    /// # Errors
    /// The error of `read`; the other ranks then wait until this rank has ended.
    /// [`TrainError::Ranks`] if another rank has ended, and for a read during a read.
    pub fn share_reads<T, E: From<TrainError>>(
        &self,
        read: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let reads = self.open_reads();
        let result = read()?;
        reads.close()?;
        Ok(result)
    }

    /// Opens the rounds. See [`Ranks::share_reads`].
    pub(crate) fn open_reads(&self) -> OpenReads {
        self.rounds.are_open.store(self.size() > 1, Ordering::Relaxed);
        OpenReads(self.clone())
    }

    /// If the rounds are open, answers the other ranks until all ranks have finished or wait here.
    pub(super) fn meet(&self) -> Result<()> {
        if self.rounds.are_open.load(Ordering::Relaxed) {
            while self.round(None)?.is_some() {}
        }
        Ok(())
    }

    /// A number for the next shard. All ranks get the same number if they open their shards in the
    /// same order.
    pub(super) fn next_shard_number(&self) -> u32 {
        let mut shards = self.rounds.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.opened += 1;
        shards.opened
    }

    /// Lets other ranks read a shard, as long as it exists.
    pub(super) fn serve(&self, number: u32, shard: &Arc<impl Shard + 'static>) {
        let shard: Weak<dyn Shard> = Arc::downgrade(&(Arc::clone(shard) as Arc<dyn Shard>));
        let mut shards = self.rounds.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.shards.retain(|_, shard| shard.strong_count() > 0);
        shards.shards.insert(number, shard);
    }

    /// Sends a request to each rank that is asked, and returns its reply; `None` for other ranks.
    ///
    /// # Errors
    /// [`TrainError::Ranks`] if a rank has ended or cannot answer, or outside of
    /// [`Ranks::share_reads`].
    pub(super) fn ask(
        &self,
        shard: u32,
        requests: Vec<Option<Vec<u8>>>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        if !self.rounds.are_open.load(Ordering::Relaxed) {
            return Err(failed("the other ranks do not answer reads at this time".into()));
        }
        let message = |request: Option<Vec<u8>>| match request {
            None => vec![READS],
            Some(request) => [&[READS][..], &shard.to_le_bytes(), &request].concat(),
        };
        let messages = requests.into_iter().map(message).collect();
        let replies = self.round(Some(messages))?.unwrap_or_default();
        let mut contents = Vec::with_capacity(replies.len());
        for (rank, mut reply) in replies.into_iter().enumerate() {
            contents.push(match reply.first().copied() {
                None => None,
                Some(ANSWERED) => {
                    reply.remove(0);
                    Some(reply)
                }
                Some(_) => {
                    let reason = String::from_utf8_lossy(&reply[1..]);
                    return Err(failed(format!("rank {rank}: {reason}").into()));
                }
            });
        }
        Ok(contents)
    }

    /// Takes part in one round, with a message to each rank, or `None` if this rank has finished.
    /// Returns the replies of all ranks; `None` if all ranks have finished.
    fn round(&self, messages: Option<Vec<Vec<u8>>>) -> Result<Option<Vec<Vec<u8>>>> {
        let _round = ThreadInRound::enter()?;
        let _turn = self.rounds.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let messages = messages.unwrap_or_else(|| vec![vec![FINISHED]; self.size()]);
        let received = self.collective.all_to_all(messages).map_err(failed)?;
        if received.iter().all(|message| message.first() == Some(&FINISHED)) {
            return Ok(None);
        }
        let replies = received.iter().map(|message| self.rounds.reply(message)).collect();
        self.collective.all_to_all(replies).map(Some).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::ThreadInRound;

    #[test]
    fn a_thread_takes_part_in_one_round_at_a_time() {
        let round = ThreadInRound::enter().expect("the first round");
        assert!(ThreadInRound::enter().is_err());
        drop(round);
        drop(ThreadInRound::enter().expect("the next round"));
    }
}
