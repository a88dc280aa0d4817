//! Ranks that are threads of one process.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use candle_core::{Device, Tensor};
use engram_train::StudyError;
use engram_train::distributed::{Collective, through_host};

/// One message between two ranks: bytes, the slices of an exchange, or a tensor.
enum Message {
    Bytes(Vec<u8>),
    Slices(Vec<Vec<f32>>),
    Tensor(Option<Tensor>),
}

/// One rank, with a channel to and from every rank.
pub struct Threads {
    rank: usize,
    send: Vec<Mutex<Sender<Message>>>,
    receive: Vec<Mutex<Receiver<Message>>>,
    /// Whether tensors are sent as they are, as between GPUs.
    sends_tensors: bool,
}

/// Calls `work` on each rank, on a thread of its own. Returns the results by rank.
pub fn on_ranks<T: Send>(size: usize, work: impl Fn(Arc<Threads>) -> T + Sync) -> Vec<T> {
    on_threads(Threads::new(size, false), work)
}

/// Does the same with ranks that send tensors as they are, as between GPUs.
pub fn on_ranks_with_gpus<T: Send>(size: usize, work: impl Fn(Arc<Threads>) -> T + Sync) -> Vec<T> {
    on_threads(Threads::new(size, true), work)
}

fn on_threads<T: Send>(ranks: Vec<Threads>, work: impl Fn(Arc<Threads>) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let ranks = ranks.into_iter();
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || work(Arc::new(rank)))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

impl Threads {
    /// All ranks, for one thread each.
    fn new(size: usize, sends_tensors: bool) -> Vec<Self> {
        let without_channels =
            |rank| Self { rank, send: Vec::new(), receive: Vec::new(), sends_tensors };
        let mut ranks: Vec<Self> = (0..size).map(without_channels).collect();
        for to in 0..size {
            for from in 0..size {
                let (sender, receiver) = channel();
                ranks[from].send.push(Mutex::new(sender));
                ranks[to].receive.push(Mutex::new(receiver));
            }
        }
        ranks
    }

    fn send(&self, rank: usize, message: Message) -> Result<(), StudyError> {
        let sender = self.send[rank].lock().map_err(|_| "a thread panicked")?;
        sender.send(message).map_err(|_| format!("rank {rank} has ended").into())
    }

    fn receive(&self, rank: usize) -> Result<Message, StudyError> {
        let receiver = self.receive[rank].lock().map_err(|_| "a thread panicked")?;
        receiver.recv().map_err(|_| format!("rank {rank} has ended").into())
    }

    fn receive_bytes(&self, rank: usize) -> Result<Vec<u8>, StudyError> {
        match self.receive(rank)? {
            Message::Bytes(bytes) => Ok(bytes),
            _ => Err(format!("rank {rank} is at another operation").into()),
        }
    }
}

impl Collective for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.send.len()
    }

    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>, StudyError> {
        if self.rank > 0 {
            return self.receive_bytes(0);
        }
        for rank in 1..self.size() {
            self.send(rank, Message::Bytes(bytes.clone()))?;
        }
        Ok(bytes)
    }

    fn exchange(
        &self,
        send: &[Vec<&[f32]>],
        receive: &mut [Vec<&mut [f32]>],
    ) -> Result<(), StudyError> {
        let others = || (0..self.size()).filter(|rank| *rank != self.rank);
        for rank in others() {
            let slices = send[rank].iter().map(|slice| slice.to_vec()).collect();
            self.send(rank, Message::Slices(slices))?;
        }
        for rank in others() {
            let Message::Slices(slices) = self.receive(rank)? else {
                return Err(format!("rank {rank} is at another operation").into());
            };
            assert_eq!(slices.len(), receive[rank].len());
            for (target, slice) in receive[rank].iter_mut().zip(&slices) {
                target.copy_from_slice(slice);
            }
        }
        Ok(())
    }

    fn all_to_all(&self, send: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, StudyError> {
        for (rank, bytes) in send.into_iter().enumerate() {
            self.send(rank, Message::Bytes(bytes))?;
        }
        (0..self.size()).map(|rank| self.receive_bytes(rank)).collect()
    }

    fn exchange_tensors(
        &self,
        send: &[Option<Tensor>],
        lengths: &[usize],
        device: &Device,
    ) -> Result<Vec<Option<Tensor>>, StudyError> {
        if !self.sends_tensors {
            return through_host(self, send, lengths, device);
        }
        for (rank, tensor) in send.iter().enumerate() {
            self.send(rank, Message::Tensor(tensor.clone()))?;
        }
        let receive = |(rank, length): (usize, &usize)| {
            let Message::Tensor(tensor) = self.receive(rank)? else {
                return Err(format!("rank {rank} is at another operation").into());
            };
            assert_eq!(tensor.as_ref().map_or(0, Tensor::elem_count), *length);
            Ok(tensor)
        };
        lengths.iter().enumerate().map(receive).collect()
    }
}
