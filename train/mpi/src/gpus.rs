//! The agreement of all ranks, before their GPUs communicate, on whether to use NCCL.

use engram_train::StudyError;

/// How to train without NCCL.
const WITHOUT_NCCL: &str = "or set ENGRAM_NCCL=0 on all ranks (mpirun -x ENGRAM_NCCL=0), which sends \
                            gradients over MPI, through the memory of the hosts";

/// The GPU of a rank.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gpu {
    /// Its model, such as `NVIDIA H200`.
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) nccl: NcclState,
}

/// Whether a rank can use NCCL.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NcclState {
    Ready,
    /// The user does not want it.
    Off,
    /// The reason why it cannot be used.
    Failed(String),
}

impl NcclState {
    /// Whether the user wants NCCL: the value of `ENGRAM_NCCL` is not 0.
    pub(crate) fn is_wanted(value: Option<&str>) -> bool {
        value != Some("0")
    }
}

impl Gpu {
    /// The message to other ranks.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let state = match &self.nccl {
            NcclState::Ready => "ready",
            NcclState::Off => "off",
            NcclState::Failed(reason) => reason,
        };
        format!("{}\n{}\n{state}", self.name, self.uuid).into_bytes()
    }

    /// Reads the message of a rank.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Result<Self, StudyError> {
        let text = String::from_utf8(bytes)?;
        let mut lines = text.splitn(3, '\n');
        let mut next = || lines.next().ok_or("a rank sent no description of its GPU");
        let (name, uuid) = (next()?.to_string(), next()?.to_string());
        let nccl = match next()? {
            "ready" => NcclState::Ready,
            "off" => NcclState::Off,
            reason => NcclState::Failed(reason.to_string()),
        };
        Ok(Self { name, uuid, nccl })
    }
}

/// Returns whether the ranks use NCCL. `gpus` has the GPU of each rank, in rank order.
///
/// # Errors
/// If the GPUs differ in their model, if two ranks use the same one with NCCL, or if a rank cannot
/// use NCCL.
pub(crate) fn agree(gpus: &[Gpu]) -> Result<bool, String> {
    let Some(first) = gpus.first() else { return Ok(false) };
    for (rank, gpu) in gpus.iter().enumerate() {
        if gpu.name != first.name {
            return Err(format!(
                "rank {rank} has the GPU {}, but rank 0 has {}; their results would differ: start all \
                 ranks on GPUs of one model",
                gpu.name, first.name
            ));
        }
        if let NcclState::Failed(reason) = &gpu.nccl {
            return Err(format!("rank {rank}: {reason}, {WITHOUT_NCCL}"));
        }
    }
    let off = gpus.iter().filter(|gpu| gpu.nccl == NcclState::Off).count();
    if off == gpus.len() {
        return Ok(false);
    }
    if off > 0 {
        return Err(format!(
            "{off} of {} ranks have ENGRAM_NCCL=0; set it on all or none",
            gpus.len()
        ));
    }
    for (rank, gpu) in gpus.iter().enumerate() {
        if let Some(other) = gpus[..rank].iter().position(|other| other.uuid == gpu.uuid) {
            return Err(format!(
                "ranks {other} and {rank} use the same GPU, which NCCL does not allow; set \
                 `compute.device` to \"cuda\" and start at most one rank per GPU, {WITHOUT_NCCL}"
            ));
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(number: usize) -> Gpu {
        let (name, uuid) = ("NVIDIA H200".to_string(), format!("uuid {number}"));
        Gpu { name, uuid, nccl: NcclState::Ready }
    }

    #[test]
    fn a_message_is_read_back() {
        for nccl in [NcclState::Ready, NcclState::Off, NcclState::Failed("no\nlibrary".into())] {
            let sent = Gpu { nccl, ..gpu(1) };
            assert_eq!(Gpu::from_bytes(sent.to_bytes()).expect("a message"), sent);
        }
        assert!(Gpu::from_bytes(b"name".to_vec()).is_err());
    }

    #[test]
    fn all_ranks_use_nccl_or_none_does() {
        assert_eq!(agree(&[gpu(0), gpu(1)]), Ok(true));
        let off = |number| Gpu { nccl: NcclState::Off, ..gpu(number) };
        // Without NCCL, ranks can share a GPU.
        assert_eq!(agree(&[off(0), off(0)]), Ok(false));
        let error = agree(&[gpu(0), off(1)]).expect_err("an error");
        assert!(error.contains("1 of 2 ranks have ENGRAM_NCCL=0"), "{error}");
        assert!(NcclState::is_wanted(None) && NcclState::is_wanted(Some("1")));
        assert!(!NcclState::is_wanted(Some("0")));
    }

    #[test]
    fn gpus_that_cannot_work_together_are_refused_with_a_remedy() {
        let error = |gpus: &[Gpu]| agree(gpus).expect_err("an error");
        let shared = error(&[gpu(0), gpu(1), gpu(1)]);
        assert!(shared.contains("ranks 1 and 2 use the same GPU"), "{shared}");
        assert!(shared.contains("`compute.device` to \"cuda\""), "{shared}");
        let other = error(&[gpu(0), Gpu { name: "NVIDIA A100".into(), ..gpu(1) }]);
        assert!(other.contains("rank 1 has the GPU NVIDIA A100"), "{other}");
        let failed = Gpu { nccl: NcclState::Failed("not found; install it".into()), ..gpu(1) };
        let missing = error(&[gpu(0), failed]);
        assert!(missing.contains("rank 1: not found; install it, or set ENGRAM_NCCL"), "{missing}");
    }
}
