//! Published weights: memory-mapped safetensors in, safetensors out.

use std::io::Write;
use std::path::{Path, PathBuf};

use atomic_write_file::AtomicWriteFile;
use candle_core::safetensors::Load;
use candle_core::{DType, Device, Tensor};
use memmap2::Mmap;
use safetensors::SafeTensors;

use crate::error::{ModelError, Result};

/// A safetensors file, checked when opened and read tensor by tensor.
pub struct Weights {
    path: PathBuf,
    map: Mmap,
    /// A level that the file's names have and the model's lack, such as `bert.`.
    prefix: String,
}

impl Weights {
    /// Maps the file and checks its header.
    ///
    /// # Errors
    /// [`ModelError::Io`]; [`ModelError::BadWeights`] if the header does not fit the file.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| ModelError::Io { path: path.to_path_buf(), source };
        let file = std::fs::File::open(path).map_err(io)?;
        // SAFETY: the map is only read; weights files are replaced by rename, never rewritten.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let weights = Self { path: path.to_path_buf(), map, prefix: String::new() };
        weights.tensors()?;
        Ok(weights)
    }

    /// Looks names up under `prefix` (for example `bert.`) if the file has such names: weights of
    /// a model with a head carry the level, those of the bare encoder do not.
    pub fn with_optional_prefix(mut self, prefix: &str) -> Result<Self> {
        if self.tensors()?.names().iter().any(|name| name.starts_with(prefix)) {
            self.prefix = prefix.to_string();
        }
        Ok(self)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file has this tensor.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors().is_ok_and(|tensors| tensors.tensor(&self.stored(name)).is_ok())
    }

    /// Reads one tensor.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`] names the nearest one; [`ModelError::MisshapenTensor`].
    pub fn get(
        &self,
        name: &str,
        shape: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let tensors = self.tensors()?;
        let stored = self.stored(name);
        let found = tensors.tensor(&stored).or_else(|e| match original_name(&stored) {
            Some(original) => tensors.tensor(&original),
            None => Err(e),
        });
        let view = found.map_err(|_| ModelError::MissingTensor {
            path: self.path.clone(),
            name: stored.clone(),
            wanted: shape.to_vec(),
            nearest: nearest(&stored, &tensors.names()),
        })?;
        if view.shape() != shape {
            return Err(ModelError::MisshapenTensor {
                path: self.path.clone(),
                name: stored,
                wanted: shape.to_vec(),
                found: view.shape().to_vec(),
            });
        }
        Ok(view.load(device)?.to_dtype(dtype)?)
    }

    fn stored(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn tensors(&self) -> Result<SafeTensors<'_>> {
        SafeTensors::deserialize(&self.map)
            .map_err(|e| ModelError::BadWeights { path: self.path.clone(), reason: e.to_string() })
    }
}

/// Writes named tensors as safetensors, in the given order: beside, synced, renamed, so that the
/// file is never seen half-written.
pub fn save<'a>(path: &Path, named: impl Iterator<Item = (&'a str, &'a Tensor)>) -> Result<()> {
    let io = |source| ModelError::Io { path: path.to_path_buf(), source };
    let mut tensors = Vec::new();
    for (name, tensor) in named {
        tensors.push((name, tensor.to_device(&Device::Cpu)?.contiguous()?));
    }
    let bytes = safetensors::serialize(tensors, None)
        .map_err(|e| ModelError::BadWeights { path: path.to_path_buf(), reason: e.to_string() })?;
    let mut file = AtomicWriteFile::open(path).map_err(io)?;
    file.write_all(&bytes).map_err(io)?;
    file.commit().map_err(io)
}

/// The first BERT weights call the parameters of a norm `gamma` and `beta`.
fn original_name(name: &str) -> Option<String> {
    let renamed = |new: &str, old: &str| Some(format!("{}{old}", name.strip_suffix(new)?));
    renamed("LayerNorm.weight", "LayerNorm.gamma")
        .or_else(|| renamed("LayerNorm.bias", "LayerNorm.beta"))
}

/// The name that shares the most trailing levels with the wanted one.
fn nearest(wanted: &str, names: &[&str]) -> Option<String> {
    let shared = |name: &str| {
        let levels = wanted.rsplit('.').zip(name.rsplit('.'));
        levels.take_while(|(a, b)| a == b).count()
    };
    let best = names.iter().map(|name| (shared(name), *name)).max_by_key(|(n, _)| *n)?;
    (best.0 > 0).then(|| best.1.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_survives_the_round_trip_and_names_what_it_lacks() -> Result<()> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("w.safetensors");
        let tensor = Tensor::arange(0f32, 6f32, &Device::Cpu)?.reshape((2, 3))?;
        save(&path, [("bert.dense.weight", &tensor)].into_iter())?;
        let weights = Weights::open(&path)?.with_optional_prefix("bert.")?;
        let back = weights.get("dense.weight", &[2, 3], DType::F32, &Device::Cpu)?;
        assert_eq!(back.to_vec2::<f32>()?, tensor.to_vec2::<f32>()?);
        let missing = weights.get("dens.weight", &[2, 3], DType::F32, &Device::Cpu);
        let text = missing.expect_err("no such tensor").to_string();
        assert!(text.contains("bert.dens.weight") && text.contains("bert.dense.weight"), "{text}");
        let misshapen = weights.get("dense.weight", &[3, 2], DType::F32, &Device::Cpu);
        let text = misshapen.expect_err("another shape").to_string();
        assert!(text.contains("[3, 2]") && text.contains("[2, 3]"), "{text}");
        Ok(())
    }

    #[test]
    fn a_cut_file_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("w.safetensors");
        let tensor = Tensor::zeros(100, DType::F32, &Device::Cpu).unwrap();
        save(&path, [("a", &tensor)].into_iter()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for cut in [0, 7, 20, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            assert!(Weights::open(&path).is_err(), "cut at {cut}");
        }
    }
}
