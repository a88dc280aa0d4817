//! The GPU of a rank.

use std::borrow::Cow;

/// The environment variables in which Open MPI and Slurm's `srun` store the local rank: the number
/// of a process among those on its machine. Open MPI's comes first, because inside a Slurm job
/// `mpirun` passes its own value of Slurm's variable on to all processes.
const VARIABLES: [&str; 2] = ["OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"];

/// The device of a rank.
#[derive(Debug, PartialEq)]
pub(crate) struct RankDevice<'a> {
    /// As in a recipe, such as `cuda:1`.
    pub(crate) name: Cow<'a, str>,
    /// The local rank, if the device depends on it.
    local_rank: Option<usize>,
}

/// The local rank of this process, counted from 0; `None` without a launcher.
pub(crate) fn of_this_process() -> Option<usize> {
    of(|name| std::env::var(name).ok())
}

fn of(variable: impl Fn(&str) -> Option<String>) -> Option<usize> {
    VARIABLES.iter().find_map(|name| variable(name)?.parse().ok())
}

/// The device of the rank with this local rank. `device` is the recipe's.
pub(crate) fn device(device: &str, local_rank: Option<usize>) -> RankDevice<'_> {
    match local_rank {
        Some(rank) if device == "cuda" => {
            RankDevice { name: format!("cuda:{rank}").into(), local_rank }
        }
        _ => RankDevice { name: device.into(), local_rank: None },
    }
}

impl RankDevice<'_> {
    /// The remedy if the device cannot be opened, to append to the error.
    pub(crate) fn remedy(&self) -> String {
        match self.local_rank {
            Some(rank) if rank > 0 => format!(
                "; rank {rank} of a machine uses its GPU {rank}: start at most one rank for each \
                 GPU, or set `compute.device` to \"cuda:0\" if each rank sees one GPU only, as with \
                 Slurm's --gpus-per-task"
            ),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_of_a_machine_uses_its_own_gpu_unless_the_recipe_names_one() {
        assert_eq!(device("cuda", Some(3)).name, "cuda:3");
        assert_eq!(device("cuda", None).name, "cuda");
        assert_eq!(device("cuda:1", Some(3)).name, "cuda:1");
        assert_eq!(device("cpu", Some(3)).name, "cpu");
    }

    #[test]
    fn open_mpi_comes_before_slurm() {
        let slurm = |name: &str| (name == "SLURM_LOCALID").then(|| "2".to_string());
        assert_eq!(of(slurm), Some(2));
        let both = |name: &str| Some(if name == "SLURM_LOCALID" { "0" } else { "5" }.to_string());
        assert_eq!(of(both), Some(5));
        assert_eq!(of(|_| None), None);
    }

    #[test]
    fn a_missing_gpu_of_a_rank_comes_with_a_remedy() {
        assert!(device("cuda", Some(2)).remedy().contains("rank 2 of a machine uses its GPU 2"));
        assert_eq!(device("cuda:2", Some(2)).remedy(), "");
        assert_eq!(device("cuda", Some(0)).remedy(), "");
    }
}
