//! The files of a memory. Each file is written once with checksums, synced, and then never changed,
//! except for the pointer to the current generation.
//!
//! | module | responsibility |
//! |---|---|
//! | `file` | a file with a SHA-256 and a CRC-32 per MiB, checked on reading |
//! | `tensor` | tensors in a safetensors file, read in place |
//! | `pack` | all that a small change writes, in one file |
//! | [`manifest`] | the list of a generation's files |
//! | `check` | the validation of manifests |
//! | `pointer` | the pointer to the current generation |
//! | [`mapping`] | memory-mapped files, and the file that an address belongs to |

mod check;
pub(crate) mod file;
pub mod manifest;
pub mod mapping;
pub(crate) mod pack;
pub(crate) mod pointer;
pub(crate) mod tensor;
