//! Training on several processes and machines, over MPI.
//!
//! Start the processes with `mpirun -n N engram train …`. The crate is empty without its feature
//! `mpi`, which needs an MPI library to build.
//!
//! MPI cannot tell that another process was stopped, or that its machine is down. So the processes
//! also exchange heartbeats over TCP, on threads of their own. These threads also notice a call of
//! MPI or NCCL that does not end.
//!
//! With the feature `cuda`, too, gradients on GPUs are sent with NCCL, which is loaded at run time.
//! This is compiled, but it has not run on several GPUs yet.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg(feature = "mpi")]
mod collective;
#[cfg(all(feature = "mpi", any(test, feature = "cuda")))]
mod gpus;
#[cfg(all(feature = "mpi", feature = "cuda"))]
mod nccl;
#[cfg(feature = "mpi")]
mod process;
#[cfg(feature = "mpi")]
mod rendezvous;
#[cfg(feature = "mpi")]
mod transfer;
#[cfg(feature = "mpi")]
mod watchdog;

#[cfg(feature = "mpi")]
pub use process::Mpi;
#[cfg(feature = "mpi")]
pub use watchdog::Lost;
