//! The functions of NCCL, from the library that is loaded at run time.
//!
//! Signatures: `nccl.h` of NCCL 2.30. They are the same since NCCL 2.7.

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::Library;

/// The names of the library.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// `ncclFloat32`.
pub(super) const F32: c_int = 7;
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;

/// `ncclComm_t`.
pub(super) type Comm = *mut c_void;
/// `cudaStream_t`, which is the driver's `CUstream`.
pub(super) type Stream = *mut c_void;

/// `ncclUniqueId`: the address at which ranks meet.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub(super) [c_char; 128]);

/// NCCL's functions, without their prefix.
pub(super) struct Nccl {
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    pub(super) comm_init_rank: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int,
    pub(super) comm_abort: unsafe extern "C" fn(Comm) -> c_int,
    pub(super) comm_get_async_error: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    pub(super) group_start: unsafe extern "C" fn() -> c_int,
    pub(super) group_end: unsafe extern "C" fn() -> c_int,
    pub(super) send:
        unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Comm, Stream) -> c_int,
    pub(super) recv: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int,
    /// The functions are valid as long as the library is loaded.
    _library: Library,
}

impl Nccl {
    /// Loads the library.
    ///
    /// # Errors
    /// If it is not found, or older than NCCL 2.7.
    pub(super) fn load() -> Result<Self, String> {
        let mut reason = String::new();
        for name in NAMES {
            // SAFETY: NCCL has no initialisers with requirements.
            match unsafe { Library::new(name) } {
                Ok(library) => return Self::of(library),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(format!(
            "the NCCL library was not found ({reason}); install NCCL 2.7 or later, and add the folder \
             of libnccl.so.2 to LD_LIBRARY_PATH"
        ))
    }

    fn of(library: Library) -> Result<Self, String> {
        fn function<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
            // SAFETY: the fields of `Nccl` have the signatures of `nccl.h`.
            let function = unsafe { library.get::<F>(name) };
            let missing = |error| {
                format!("the NCCL library is older than 2.7 ({error}); install NCCL 2.7 or later")
            };
            function.map(|function| *function).map_err(missing)
        }
        Ok(Self {
            get_error_string: function(&library, "ncclGetErrorString")?,
            get_unique_id: function(&library, "ncclGetUniqueId")?,
            comm_init_rank: function(&library, "ncclCommInitRank")?,
            comm_abort: function(&library, "ncclCommAbort")?,
            comm_get_async_error: function(&library, "ncclCommGetAsyncError")?,
            group_start: function(&library, "ncclGroupStart")?,
            group_end: function(&library, "ncclGroupEnd")?,
            send: function(&library, "ncclSend")?,
            recv: function(&library, "ncclRecv")?,
            _library: library,
        })
    }

    /// Creates the address at which ranks meet. One rank creates it.
    ///
    /// # Errors
    /// If NCCL fails, for example without a network.
    pub(super) fn unique_id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the pointer is valid.
        self.check("creating the address of rank 0", unsafe { (self.get_unique_id)(&raw mut id) })?;
        Ok(id)
    }

    /// Returns an error if a function has failed. `what` names the operation.
    pub(super) fn check(&self, what: &str, result: c_int) -> Result<(), String> {
        if result == SUCCESS || result == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: NCCL returns a constant text for every number.
        let reason = unsafe { CStr::from_ptr((self.get_error_string)(result)) };
        let reason = reason.to_string_lossy();
        Err(format!("NCCL failed: {what}: {reason}; NCCL_DEBUG=WARN makes NCCL print more"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_creates_an_address_without_a_gpu_and_names_its_errors() {
        let nccl = match Nccl::load() {
            Ok(nccl) => nccl,
            Err(reason) => {
                assert!(reason.contains("libnccl.so"), "{reason}");
                eprintln!("SKIPPED: {reason}");
                return;
            }
        };
        let UniqueId(id) = nccl.unique_id().expect("an address");
        assert!(id.iter().any(|byte| *byte != 0));
        assert_eq!(nccl.check("nothing", SUCCESS), Ok(()));
        assert_eq!(nccl.check("waiting", IN_PROGRESS), Ok(()));
        let error = nccl.check("a call", 4).expect_err("an error");
        assert!(error.starts_with("NCCL failed: a call: invalid argument"), "{error}");
    }
}
