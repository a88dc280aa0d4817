//! Files of a memory: written once, synced, with checksums, and never changed again.
//!
//! | file | what it is responsible for |
//! |---|---|
//! | `file` | a file with a SHA-256 and a CRC-32 for each MiB; checked when it is read |
//! | `tensor` | one tensor in a safetensors file, written row by row, read in place |
//! | [`manifest`] | the list of a generation's files |
//! | `check` | what a manifest must be, whoever wrote it |
//! | `pointer` | the pointer to the current generation |
//! | [`mapping`] | files in a memory map; which file an address belongs to |

mod check;
pub(crate) mod file;
pub mod manifest;
pub mod mapping;
pub(crate) mod pointer;
pub(crate) mod tensor;
