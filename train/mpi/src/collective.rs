//! Communication over MPI.

#[cfg(feature = "cuda")]
use std::sync::OnceLock;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(feature = "cuda")]
use candle_core::{Device, Tensor};
use engram_train::StudyError;
use engram_train::distributed::Collective;
#[cfg(feature = "cuda")]
use engram_train::distributed::through_host;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;

#[cfg(feature = "cuda")]
use crate::gpus::{Gpu, agree};
#[cfg(feature = "cuda")]
use crate::nccl::{GpuLink, Prepared, TIME_TO_CONNECT};
use crate::transfer::{InTransfer, Transfer};

/// Bytes per MPI call: MPI counts with 32 bits.
const CHUNK: usize = 256 << 20;
/// While a process waits for the others, it asks MPI without a pause for this time, then at
/// intervals. MPI's own waiting would keep a core busy.
const BUSY: Duration = Duration::from_millis(2);
/// The first interval and the longest one. Intervals are a tenth of the time waited.
const PAUSES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(5)];

/// All processes of an MPI program.
pub(crate) struct World {
    rank: usize,
    size: usize,
    /// MPI allows one call at a time (`Threading::Serialized`).
    calls: Mutex<()>,
    transfer: Arc<Transfer>,
    /// Set if the GPUs of the ranks are connected.
    #[cfg(feature = "cuda")]
    gpus: OnceLock<GpuLink>,
}

/// Held during MPI calls in which all processes take part.
struct Meeting<'a> {
    transfer: InTransfer<'a>,
    _calls: MutexGuard<'a, ()>,
}

impl World {
    /// The processes of this program. MPI has to be started.
    pub(crate) fn new() -> Self {
        let world = SimpleCommunicator::world();
        let (rank, size) = (world.rank() as usize, world.size() as usize);
        Self {
            rank,
            size,
            calls: Mutex::new(()),
            transfer: Arc::new(Transfer::new()),
            #[cfg(feature = "cuda")]
            gpus: OnceLock::new(),
        }
    }

    /// The running call.
    pub(crate) fn transfer(&self) -> Arc<Transfer> {
        Arc::clone(&self.transfer)
    }

    /// Waits until all processes are here.
    fn meet(&self) -> Meeting<'_> {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let in_transfer = self.transfer.begin();
        let mut request = SimpleCommunicator::world().immediate_barrier();
        drop(in_transfer);
        loop {
            // Each test is a call of its own: the other processes may compute for hours.
            let in_transfer = self.transfer.begin();
            match request.test() {
                Ok(_) => return Meeting { transfer: in_transfer, _calls: calls },
                Err(unfinished) => request = unfinished,
            }
            drop(in_transfer);
            let waited = start.elapsed();
            if waited > BUSY {
                thread::sleep((waited / 10).clamp(PAUSES[0], PAUSES[1]));
            } else {
                thread::yield_now();
            }
        }
    }
}

impl Collective for World {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn broadcast(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, StudyError> {
        let meeting = self.meet();
        let world = SimpleCommunicator::world();
        let root = world.process_at_rank(0);
        let mut length = bytes.len() as u64;
        root.broadcast_into(&mut length);
        bytes.resize(usize::try_from(length)?, 0);
        for chunk in bytes.chunks_mut(CHUNK) {
            meeting.transfer.allow(self.size * chunk.len());
            root.broadcast_into(chunk);
        }
        Ok(bytes)
    }

    fn exchange(
        &self,
        send: &[Vec<&[f32]>],
        receive: &mut [Vec<&mut [f32]>],
    ) -> Result<(), StudyError> {
        let meeting = self.meet();
        let sent = send.iter().flatten().map(|slice| slice.len());
        let received = receive.iter().flatten().map(|slice| slice.len());
        meeting.transfer.allow(self.size * 4 * sent.chain(received).sum::<usize>());
        send_and_receive(self.rank, send, receive);
        Ok(())
    }

    fn all_to_all(&self, send: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, StudyError> {
        let meeting = self.meet();
        let world = SimpleCommunicator::world();
        let lengths: Vec<u64> = send.iter().map(|bytes| bytes.len() as u64).collect();
        let mut received_lengths = vec![0u64; self.size];
        world.all_to_all_into(&lengths[..], &mut received_lengths[..]);
        let mut received = Vec::with_capacity(self.size);
        for length in received_lengths {
            received.push(vec![0u8; usize::try_from(length)?]);
        }
        let bytes: usize = send.iter().chain(&received).map(Vec::len).sum();
        meeting.transfer.allow(self.size * bytes);
        let chunks = send.iter().map(|bytes| bytes.chunks(CHUNK).collect()).collect::<Vec<_>>();
        let received_chunks = received.iter_mut().map(|bytes| bytes.chunks_mut(CHUNK).collect());
        send_and_receive(self.rank, &chunks, &mut received_chunks.collect::<Vec<_>>());
        received[self.rank] = send.into_iter().nth(self.rank).unwrap_or_default();
        Ok(received)
    }

    #[cfg(feature = "cuda")]
    fn connect_gpus(&self, device: &Device) -> Result<(), StudyError> {
        if self.gpus.get().is_some() {
            return Ok(());
        }
        let prepared = Prepared::new(device, self.rank)?;
        let gpus = self.gather(prepared.gpu.to_bytes())?.into_iter().map(Gpu::from_bytes);
        if !agree(&gpus.collect::<Result<Vec<_>, _>>()?)? {
            return Ok(());
        }
        let id = self.broadcast(prepared.id())?;
        let meeting = self.meet();
        meeting.transfer.allow_time(TIME_TO_CONNECT);
        let link = prepared.connect(device, &id, (self.rank, self.size))?;
        // Another thread of this process cannot have set it: all ranks call this together.
        let _ = self.gpus.set(link);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn exchange_tensors(
        &self,
        send: &[Option<Tensor>],
        lengths: &[usize],
        device: &Device,
    ) -> Result<Vec<Option<Tensor>>, StudyError> {
        let Some(link) = self.gpus.get() else {
            return through_host(self, send, lengths, device);
        };
        let receive = GpuLink::buffers(lengths, device)?;
        // A long computation is no failure of the transfer.
        link.finish_computation()?;
        let meeting = self.meet();
        link.exchange(send, &receive, &meeting.transfer)?;
        Ok(receive)
    }
}

/// Sends slices to each process, and receives slices from it. The slices of the `own` process are
/// ignored.
fn send_and_receive<T: Equivalence>(own: usize, send: &[Vec<&[T]>], receive: &mut [Vec<&mut [T]>]) {
    let world = SimpleCommunicator::world();
    // MPI delivers the messages of a pair of processes in the order in which they are sent.
    mpi::request::scope(|scope| {
        let mut receiving = Vec::new();
        for (rank, slices) in receive.iter_mut().enumerate().filter(|(rank, _)| *rank != own) {
            let process = world.process_at_rank(rank as i32);
            for slice in slices {
                receiving.push(process.immediate_receive_into(scope, &mut **slice));
            }
        }
        let mut sending = Vec::new();
        for (rank, slices) in send.iter().enumerate().filter(|(rank, _)| *rank != own) {
            let process = world.process_at_rank(rank as i32);
            for slice in slices {
                sending.push(process.immediate_send(scope, *slice));
            }
        }
        receiving.into_iter().for_each(|request| request.wait_without_status());
        sending.into_iter().for_each(|request| request.wait_without_status());
    });
}
