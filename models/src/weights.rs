//! Reads published weights from memory-mapped safetensors files, and writes safetensors files.

mod adapter;
mod published;
mod quantised;
mod shards;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::safetensors::Load;
use candle_core::{DType, Device, Tensor};
use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::{Metadata, TensorView};

use crate::error::{ModelError, Result};
use adapter::Adapter;
pub use adapter::{ADAPTER_CONFIG, ADAPTER_WEIGHTS};
pub use shards::{INDEX_FILE, shards_of_index};

/// The weights file of a model's folder.
pub const WEIGHTS_FILE: &str = "model.safetensors";

/// A safetensors file, or the files that an index lists. Headers are checked on opening; tensors
/// are read one by one.
pub struct Weights {
    /// The file, or the index.
    path: PathBuf,
    shards: Vec<Shard>,
    /// The prefix of names in the file that the model's names lack, such as `bert.`; may be empty.
    prefix: String,
    adapter: Option<Adapter>,
}

/// The files of a model's weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsFiles {
    /// `model.safetensors`, or the index of its shards.
    pub path: PathBuf,
    /// The files [`ADAPTER_CONFIG`] and [`ADAPTER_WEIGHTS`] of a LoRA adapter for these weights.
    pub adapter: Option<[PathBuf; 2]>,
}

impl From<&Path> for WeightsFiles {
    fn from(path: &Path) -> Self {
        Self { path: path.to_path_buf(), adapter: None }
    }
}

impl WeightsFiles {
    /// Opens the weights. An adapter is merged into them when they are read.
    ///
    /// # Errors
    /// See [`Weights::open`]. [`ModelError::BadConfig`] and [`ModelError::BadFile`] for an adapter
    /// of another kind or of another model.
    pub fn open(&self) -> Result<Weights> {
        let mut weights = Weights::open(&self.path)?;
        if let Some([config, tensors]) = &self.adapter {
            weights.adapter = Some(Adapter::read(config, tensors, &weights)?);
        }
        Ok(weights)
    }
}

/// One safetensors file with its header.
struct Shard {
    path: PathBuf,
    map: Mmap,
    header: Metadata,
    /// The offset of the tensors' values in the file, in bytes.
    values_offset: usize,
}

/// The number of bytes before the header. They hold the length of the header.
const LENGTH_BYTES: usize = 8;

impl Shard {
    /// Maps the file and checks its header.
    fn open(path: &Path) -> Result<Self> {
        let io = |source| ModelError::Io { path: path.to_path_buf(), source };
        let file = engram_durable::open_file(path).map_err(io)?;
        // SAFETY: the map is only read; weights files are replaced by rename, never modified in
        // place.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let (length, header) =
            SafeTensors::read_metadata(&map).map_err(|e| damaged(path, &e.to_string()))?;
        Ok(Self { path: path.to_path_buf(), map, header, values_offset: LENGTH_BYTES + length })
    }

    /// Returns the names of the file's tensors.
    fn names(&self) -> impl Iterator<Item = String> {
        self.header.offset_keys().into_iter()
    }

    /// Returns the tensor with this name or, if there is none, with its [`original_name`].
    fn find(&self, name: &str) -> Option<TensorView<'_>> {
        let original = || self.header.info(&original_name(name)?);
        let info = self.header.info(name).or_else(original)?;
        let (start, end) = info.data_offsets;
        let values = self.map.get(self.values_offset + start..self.values_offset + end)?;
        TensorView::new(info.dtype, info.shape.clone(), values).ok()
    }
}

/// Returns the error for a safetensors file that cannot be read.
fn damaged(path: &Path, problem: &str) -> ModelError {
    let reason = format!(
        "cannot read this safetensors file ({problem}); it is truncated or damaged: download it \
         again, or copy it again"
    );
    ModelError::BadFile { path: path.to_path_buf(), reason }
}

impl Weights {
    /// Maps the file and checks its header. For a `model.safetensors.index.json`, opens all files
    /// that it lists.
    ///
    /// # Errors
    /// [`ModelError::Io`]. [`ModelError::BadFile`] if the header does not match the file.
    pub fn open(path: &Path) -> Result<Self> {
        let is_index = path.file_name().is_some_and(|name| name == INDEX_FILE);
        let shards = if is_index { shards::open(path)? } else { vec![Shard::open(path)?] };
        Ok(Self { path: path.to_path_buf(), shards, prefix: String::new(), adapter: None })
    }

    /// Opens the weights in a model's folder: `model.safetensors`, or the files of
    /// `model.safetensors.index.json`.
    ///
    /// # Errors
    /// See [`Weights::open`] and [`Weights::check_published`]. [`ModelError::BadInput`] if the
    /// folder has weights in another format; the error says how to convert them.
    pub fn open_folder(folder: &Path) -> Result<Self> {
        let (path, index) = (folder.join(WEIGHTS_FILE), folder.join(INDEX_FILE));
        let pytorch_file = folder.join("pytorch_model.bin");
        let weights = match (path.exists(), index.exists(), pytorch_file.exists()) {
            (false, true, _) => Self::open(&index),
            (false, false, true) => Err(ModelError::BadInput(format!(
                "{}: this format is not supported; convert it to model.safetensors in \
                 Python, with the class of transformers that config.json names: \
                 CLASS.from_pretrained(FOLDER).save_pretrained(NEW)",
                pytorch_file.display()
            ))),
            _ => Self::open(&path),
        }?;
        weights.check_published()?;
        Ok(weights)
    }

    /// If the file has names that begin with `prefix` (for example `bert.`), adds `prefix` to every
    /// name that [`Weights::get`] looks up. Models with a task head have such a prefix; bare
    /// encoders do not.
    pub fn with_optional_prefix(mut self, prefix: &str) -> Self {
        if self.names().any(|name| name.starts_with(prefix)) {
            self.prefix = prefix.to_string();
        }
        self
    }

    /// Reads one tensor.
    ///
    /// # Errors
    /// [`ModelError::BadFile`] if the tensor is missing, has another shape, or an unsupported data
    /// type. For a missing tensor, it has the most similar name.
    pub fn get(
        &self,
        name: &str,
        shape: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let stored_name = self.stored_name(name);
        let misfit = |path: &Path, found: &[usize]| {
            let reason = format!(
                "tensor `{stored_name}` has shape {found:?}, but the configuration needs \
                 {shape:?}; do config.json and the weights belong to the same model?"
            );
            ModelError::BadFile { path: path.to_path_buf(), reason }
        };
        if let Some(changed) = self.changed(&stored_name)? {
            return match changed.dims() == shape {
                true => Ok(changed.to_dtype(dtype)?.to_device(device)?),
                false => Err(misfit(&self.path, changed.dims())),
            };
        }
        let Some((view, path)) = self.view(&stored_name) else {
            let similar = nearest(&stored_name, self.names().collect());
            let similar = similar.map_or(String::new(), |name| {
                format!(" (the most similar name in the file is `{name}`)")
            });
            let reason = format!("tensor `{stored_name}` of shape {shape:?} is missing{similar}");
            return Err(ModelError::BadFile { path: self.path.clone(), reason });
        };
        if view.shape() != shape {
            return Err(misfit(path, view.shape()));
        }
        load(&view, path, &stored_name, dtype, device)
    }

    /// A tensor that is stored in codes, or that the adapter changes, in f32 on the CPU; `None` for
    /// another tensor.
    fn changed(&self, name: &str) -> Result<Option<Tensor>> {
        let dequantised =
            self.method(name).map(|method| self.dequantise(name, method)).transpose()?;
        let Some(change) = self.adapter.as_ref().and_then(|adapter| adapter.change(name)) else {
            return Ok(dequantised);
        };
        let stored = match (dequantised, self.view(name)) {
            (None, Some((view, path))) => Some(load(&view, path, name, DType::F32, &Device::Cpu)?),
            (dequantised, _) => dequantised,
        };
        stored.map(|stored| change.apply(&stored)).transpose()
    }

    /// The tensor with this name in the files, and its file.
    fn view(&self, name: &str) -> Option<(TensorView<'_>, &Path)> {
        self.shards.iter().find_map(|shard| Some((shard.find(name)?, shard.path.as_path())))
    }

    /// Reads all tensors into main memory, by name, as f32.
    ///
    /// # Errors
    /// [`ModelError::BadFile`] for an unsupported data type.
    pub fn read_all(&self) -> Result<BTreeMap<String, Tensor>> {
        let read = |(name, view, path): (String, TensorView<'_>, &Path)| {
            let tensor = load(&view, path, &name, DType::F32, &Device::Cpu)?;
            Ok((name, tensor))
        };
        self.views().map(read).collect()
    }

    /// All tensors in the files, with their names and files.
    fn views(&self) -> impl Iterator<Item = (String, TensorView<'_>, &Path)> {
        self.shards.iter().flat_map(|shard| {
            let view = |name: String| Some((shard.find(&name)?, name));
            shard.names().filter_map(view).map(|(view, name)| (name, view, &*shard.path))
        })
    }

    /// Whether there is a tensor with this name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.view(&self.stored_name(name)).is_some()
    }

    /// Returns the name in the file of the model's tensor `name`.
    fn stored_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The names of all tensors in the files.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.shards.iter().flat_map(Shard::names)
    }
}

/// Converts a tensor of a file.
fn load(
    view: &TensorView<'_>,
    path: &Path,
    name: &str,
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    view.load(device).and_then(|tensor| tensor.to_dtype(dtype)).map_err(|e| {
        let reason = format!("tensor `{name}` cannot be read: {e}");
        ModelError::BadFile { path: path.to_path_buf(), reason }
    })
}

/// Writes named tensors to a safetensors file, in the given order. The file is replaced atomically.
pub fn save<'a>(path: &Path, named: impl Iterator<Item = (&'a str, &'a Tensor)>) -> Result<()> {
    let io = |source| ModelError::Io { path: path.to_path_buf(), source };
    let mut tensors = Vec::new();
    for (name, tensor) in named {
        tensors.push((name, tensor.to_device(&Device::Cpu)?.contiguous()?));
    }
    let bytes = safetensors::serialize(tensors, None).map_err(|e| io(std::io::Error::other(e)))?;
    engram_durable::write_file(path, &bytes).map_err(io)
}

/// Converts a safetensors file to f16 and returns the bytes of the new file. Equal tensors give
/// equal bytes. Tensors whose names begin with `omitted_prefix` are omitted; an empty prefix
/// omits no tensor.
///
/// # Errors
/// [`ModelError::Io`]; [`ModelError::BadFile`]
pub fn to_f16(path: &Path, omitted_prefix: &str) -> Result<Vec<u8>> {
    let weights = Weights::open(path)?;
    let mut tensors = Vec::new();
    for (name, view, path) in weights.views() {
        if omitted_prefix.is_empty() || !name.starts_with(omitted_prefix) {
            let tensor = load(&view, path, &name, DType::F16, &Device::Cpu)?;
            tensors.push((name, tensor));
        }
    }
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    let io = |source| ModelError::Io { path: path.to_path_buf(), source };
    safetensors::serialize(tensors, None).map_err(|e| io(std::io::Error::other(e)))
}

/// Returns the name of the weight that a tensor belongs to, which may have codes of the weight.
fn weight_name(name: String) -> String {
    match name.strip_suffix(".qweight") {
        Some(layer) => format!("{layer}.weight"),
        None => name,
    }
}

/// Returns the name of a LayerNorm's parameter in the first BERT weights: `gamma` for `weight`,
/// `beta` for `bias`. Returns `None` for other parameters.
fn original_name(name: &str) -> Option<String> {
    let with_old_suffix = |new: &str, old: &str| Some(format!("{}{old}", name.strip_suffix(new)?));
    with_old_suffix("LayerNorm.weight", "LayerNorm.gamma")
        .or_else(|| with_old_suffix("LayerNorm.bias", "LayerNorm.beta"))
}

/// Returns the name with the fewest edits from `requested`; ties go to the first in alphabetical
/// order. Returns `None` if half of the characters or more differ.
fn nearest(requested: &str, mut names: Vec<String>) -> Option<String> {
    names.sort_unstable();
    let edits = |name: &String| strsim::damerau_levenshtein(name, requested);
    let best = names.into_iter().min_by_key(edits)?;
    (2 * edits(&best) < requested.len()).then_some(best)
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;

    use super::*;

    /// A path in a temporary folder.
    fn file() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(WEIGHTS_FILE);
        (folder, path)
    }

    #[test]
    fn saved_tensors_load_equal_and_errors_name_missing_and_misshapen_tensors() -> Result<()> {
        let (_folder, path) = file();
        let tensor = Tensor::arange(0f32, 6f32, &Device::Cpu)?.reshape((2, 3))?;
        save(&path, [("bert.dense.weight", &tensor)].into_iter())?;
        let weights = Weights::open(&path)?.with_optional_prefix("bert.");
        let loaded = weights.get("dense.weight", &[2, 3], DType::F32, &Device::Cpu)?;
        assert_eq!(loaded.to_vec2::<f32>()?, tensor.to_vec2::<f32>()?);
        let missing = weights.get("dens.weight", &[2, 3], DType::F32, &Device::Cpu);
        let text = missing.expect_err("no such tensor").to_string();
        assert!(text.contains("bert.dens.weight") && text.contains("bert.dense.weight"), "{text}");
        let misshapen = weights.get("dense.weight", &[3, 2], DType::F32, &Device::Cpu);
        let text = misshapen.expect_err("another shape").to_string();
        assert!(text.contains("[3, 2]") && text.contains("[2, 3]"), "{text}");
        Ok(())
    }

    #[test]
    fn weights_in_another_format_give_an_error_with_the_remedy() {
        let (folder, path) = file();
        let error = || Weights::open_folder(folder.path()).err().expect("an error").to_string();
        assert!(error().contains("model.safetensors: "), "{}", error());
        std::fs::write(folder.path().join("pytorch_model.bin"), "").expect("a file");
        assert!(error().contains("pytorch_model.bin") && error().contains("Python"), "{}", error());
        let tensor = Tensor::ones(3, DType::F32, &Device::Cpu).expect("a tensor");
        save(&path, [("a", &tensor)].into_iter()).expect("a file");
        assert!(Weights::open_folder(folder.path()).is_ok());
    }

    #[test]
    fn the_nearest_name_does_not_depend_on_the_order_of_the_file() {
        let names = ["layer.2.weight", "layer.1.weight", "layer.1.bias", "head.weight"];
        let nearest_of = |names: &[&str]| {
            nearest("layer.7.weight", names.iter().map(|name| (*name).to_owned()).collect())
        };
        let reversed: Vec<&str> = names.iter().rev().copied().collect();
        assert_eq!(nearest_of(&names).as_deref(), Some("layer.1.weight"));
        assert_eq!(nearest_of(&names), nearest_of(&reversed));
        assert_eq!(nearest("layer.1.query.weight", vec!["vision.patches".to_owned()]), None);
    }

    #[test]
    fn gamma_and_beta_are_read_as_weight_and_bias() -> Result<()> {
        let (_folder, path) = file();
        let tensor = Tensor::ones(3, DType::F32, &Device::Cpu)?;
        save(&path, [("a.LayerNorm.gamma", &tensor)].into_iter())?;
        let weights = Weights::open(&path)?;
        assert!(weights.get("a.LayerNorm.bias", &[3], DType::F32, &Device::Cpu).is_err());
        weights.get("a.LayerNorm.weight", &[3], DType::F32, &Device::Cpu)?;
        Ok(())
    }

    #[test]
    fn an_unsupported_dtype_is_an_error_that_names_the_tensor() {
        let (_folder, path) = file();
        let view = TensorView::new(Dtype::BOOL, vec![2], &[0, 1]).unwrap();
        std::fs::write(&path, safetensors::serialize([("mask", view)], None).unwrap()).unwrap();
        let weights = Weights::open(&path).unwrap();
        let error = weights.get("mask", &[2], DType::F32, &Device::Cpu).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("`mask`") && text.contains("BOOL"), "{text}");
    }

    #[test]
    fn a_truncated_file_is_an_error() {
        let (_folder, path) = file();
        let tensor = Tensor::zeros(100, DType::F32, &Device::Cpu).unwrap();
        save(&path, [("a", &tensor)].into_iter()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for end in [0, 7, 20, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..end]).unwrap();
            assert!(Weights::open(&path).is_err(), "truncated after {end} bytes");
        }
    }

    #[test]
    fn conversion_to_f16_rounds_values_and_omits_the_prefix() {
        let (_folder, path) = file();
        let tensor = Tensor::new(&[1f32 / 3.0, -2.0, 1e-9], &Device::Cpu).expect("a tensor");
        let named = [("b.included", &tensor), ("a.included", &tensor), ("omitted.a", &tensor)];
        save(&path, named.into_iter()).expect("saved");
        let bytes = to_f16(&path, "omitted.").expect("the f16 weights");
        std::fs::write(&path, &bytes).expect("written");
        let weights = Weights::open(&path).expect("opened");
        let loaded = weights.get("a.included", &[3], DType::F32, &Device::Cpu).expect("a tensor");
        assert_eq!(loaded.to_vec1::<f32>().expect("values"), [0.33325195, -2.0, 0.0]);
        assert!(weights.get("omitted.a", &[3], DType::F32, &Device::Cpu).is_err());
        assert_eq!(to_f16(&path, "").expect("the f16 weights again"), bytes);
        assert_eq!(weights.names().count(), 2);
    }
}
