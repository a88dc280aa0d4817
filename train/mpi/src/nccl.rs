//! Tensors between the GPUs of the ranks, with NCCL.
//!
//! This is compiled, but it has not run on several GPUs yet.

mod library;

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream};
use candle_core::{CudaDevice, DType, Device, Tensor};
use engram_models::cuda::address;
use engram_train::StudyError;

use crate::gpus::{Gpu, NcclState};
use crate::transfer::InTransfer;
use library::{Comm, F32, Nccl, UniqueId};

/// The variable that turns NCCL off.
const VARIABLE: &str = "ENGRAM_NCCL";
/// The time in which NCCL connects all ranks.
pub(crate) const TIME_TO_CONNECT: Duration = Duration::from_secs(60);
/// The wait for a transfer polls without a pause for this time, then every [`PAUSE`].
const BUSY: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_micros(100);

/// NCCL before the ranks are connected.
pub(crate) struct Prepared {
    pub(crate) gpu: Gpu,
    nccl: Option<Nccl>,
    /// The address at which the ranks meet, on rank 0.
    id: Vec<u8>,
}

/// The GPU of this rank, connected with those of the other ranks.
pub(crate) struct GpuLink {
    nccl: Nccl,
    /// `None` after a failure.
    comm: Mutex<Option<RawComm>>,
    context: Arc<CudaContext>,
    /// A stream of its own: NCCL's threads cannot use the per-thread stream of candle.
    stream: Arc<CudaStream>,
}

struct RawComm(Comm);

// SAFETY: any thread may use a communicator, one at a time.
unsafe impl Send for RawComm {}

impl Prepared {
    /// Loads NCCL, unless `ENGRAM_NCCL=0` is set.
    ///
    /// # Errors
    /// If `device` is not a GPU, or its driver fails. A failure of NCCL is in [`Prepared::gpu`].
    pub(crate) fn new(device: &Device, rank: usize) -> Result<Self, StudyError> {
        let stream = cuda_device(device)?.cuda_stream();
        let (name, uuid) = (stream.context().name()?, stream.context().uuid()?);
        let uuid: Vec<String> =
            uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
        let (nccl, id, state) = match std::env::var(VARIABLE).ok() {
            value if !NcclState::is_wanted(value.as_deref()) => (None, Vec::new(), NcclState::Off),
            _ => match load(rank) {
                Ok((nccl, id)) => (Some(nccl), id, NcclState::Ready),
                Err(reason) => (None, Vec::new(), NcclState::Failed(reason)),
            },
        };
        Ok(Self { gpu: Gpu { name, uuid: uuid.concat(), nccl: state }, nccl, id })
    }

    /// The address at which the ranks meet. Empty on other ranks than 0.
    pub(crate) fn id(&self) -> Vec<u8> {
        self.id.clone()
    }

    /// Connects the GPUs of all ranks, which call it together with the address of rank 0.
    pub(crate) fn connect(
        self,
        device: &Device,
        id: &[u8],
        (rank, size): (usize, usize),
    ) -> Result<GpuLink, StudyError> {
        let nccl = self.nccl.ok_or("NCCL is not loaded")?;
        let context = Arc::clone(cuda_device(device)?.cuda_stream().context());
        context.bind_to_thread()?;
        let id: [u8; 128] = id.try_into().map_err(|_| "rank 0 sent no address for NCCL")?;
        let id = UniqueId(id.map(|byte| byte as c_char));
        let mut comm: Comm = std::ptr::null_mut();
        let (size, rank) = (i32::try_from(size)?, i32::try_from(rank)?);
        // SAFETY: the pointer is valid, and the thread uses the GPU of this rank.
        let result = unsafe { (nccl.comm_init_rank)(&raw mut comm, size, id, rank) };
        nccl.check("connecting the GPUs of the ranks", result)?;
        let stream = context.new_stream()?;
        Ok(GpuLink { nccl, comm: Mutex::new(Some(RawComm(comm))), context, stream })
    }
}

fn load(rank: usize) -> Result<(Nccl, Vec<u8>), String> {
    let nccl = Nccl::load()?;
    if rank > 0 {
        return Ok((nccl, Vec::new()));
    }
    let UniqueId(id) = nccl.unique_id()?;
    Ok((nccl, id.map(|byte| byte as u8).to_vec()))
}

impl GpuLink {
    /// Waits until the GPU has computed everything that this process has asked for.
    pub(crate) fn finish_computation(&self) -> Result<(), StudyError> {
        Ok(self.context.synchronize()?)
    }

    /// Creates the tensors for the values from each rank. `None` for no values.
    pub(crate) fn buffers(
        lengths: &[usize],
        device: &Device,
    ) -> Result<Vec<Option<Tensor>>, StudyError> {
        let buffer = |length: &usize| match *length {
            0 => Ok(None),
            length => Tensor::zeros(length, DType::F32, device).map(Some),
        };
        Ok(lengths.iter().map(buffer).collect::<Result<_, _>>()?)
    }

    /// Sends the tensor `send[r]` to each rank `r`, and fills the tensor `receive[r]` with the
    /// values of rank `r`. All ranks take part, and the GPU has finished all other work.
    ///
    /// # Errors
    /// If NCCL or the GPU fails. The link cannot be used afterwards.
    pub(crate) fn exchange(
        &self,
        send: &[Option<Tensor>],
        receive: &[Option<Tensor>],
        in_transfer: &InTransfer<'_>,
    ) -> Result<(), StudyError> {
        let tensors = send.iter().chain(receive).flatten();
        let values: usize = tensors.clone().map(Tensor::elem_count).sum();
        for tensor in tensors {
            if tensor.dtype() != DType::F32 {
                return Err(
                    format!("a tensor of {:?} between ranks, not f32", tensor.dtype()).into()
                );
            }
        }
        in_transfer.allow(send.len() * size_of::<f32>() * values);
        let mut comm = self.comm.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(RawComm(raw)) = *comm else { return Err("NCCL has failed before".into()) };
        self.context.bind_to_thread()?;
        let result = self.transfer(raw, send, receive).and_then(|()| self.wait(raw));
        if result.is_err() {
            *comm = None;
            // SAFETY: nothing uses the communicator afterwards. Its own failure changes nothing.
            unsafe { (self.nccl.comm_abort)(raw) };
        }
        result
    }

    /// Starts to send and to receive.
    fn transfer(
        &self,
        comm: Comm,
        send: &[Option<Tensor>],
        receive: &[Option<Tensor>],
    ) -> Result<(), StudyError> {
        let stream = self.stream.cu_stream().cast::<c_void>();
        let mut calls = Vec::new();
        for (rank, (send, receive)) in send.iter().zip(receive).enumerate() {
            let rank = i32::try_from(rank)?;
            if let Some(tensor) = send {
                calls.push((true, address(tensor)? as *mut c_void, tensor.elem_count(), rank));
            }
            if let Some(tensor) = receive {
                calls.push((false, address(tensor)? as *mut c_void, tensor.elem_count(), rank));
            }
        }
        // SAFETY: the addresses are those of f32 tensors with these numbers of values, which exist
        // until `wait` has returned or the communicator is aborted. Nothing else uses the tensors
        // to fill: the caller has just created them. A started group is always ended.
        unsafe {
            self.nccl.check("a group of transfers", (self.nccl.group_start)())?;
            let calls = calls.into_iter().map(|(is_sent, address, count, rank)| {
                if is_sent {
                    let result = (self.nccl.send)(address, count, F32, rank, comm, stream);
                    self.nccl.check("sending", result)
                } else {
                    let result = (self.nccl.recv)(address, count, F32, rank, comm, stream);
                    self.nccl.check("receiving", result)
                }
            });
            let result = calls.collect::<Result<Vec<()>, String>>();
            let end = self.nccl.check("starting transfers", (self.nccl.group_end)());
            result?;
            end?;
        }
        Ok(())
    }

    /// Waits until the transfers are done.
    fn wait(&self, comm: Comm) -> Result<(), StudyError> {
        let start = Instant::now();
        let end = self.stream.record_event(None)?;
        while !end.try_is_complete()? {
            let mut error = 0;
            // SAFETY: the communicator and the pointer are valid.
            let result = unsafe { (self.nccl.comm_get_async_error)(comm, &raw mut error) };
            self.nccl.check("reading the state of a transfer", result)?;
            self.nccl.check("a transfer", error)?;
            if start.elapsed() > BUSY { thread::sleep(PAUSE) } else { thread::yield_now() }
        }
        Ok(())
    }
}

fn cuda_device(device: &Device) -> Result<&CudaDevice, StudyError> {
    match device {
        Device::Cuda(device) => Ok(device),
        _ => Err("tensors between ranks need a GPU".into()),
    }
}
