//! Ordered, named, seeded parameters, and their learning-rate factors.
//!
//! candle's own `VarMap` is unordered and cannot be seeded on the CPU. Here parameters keep the
//! order in which the model requested them. The initial values of a parameter depend only on the
//! seed and the parameter's name. An additional layer does not change the initial values of other
//! layers. A *frozen* parameter is a plain tensor without a
//! gradient; gradients still flow to earlier layers.

mod group;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Storage, Tensor, TensorId, Var};
use rand::SeedableRng;
use rand::distr::{Distribution, Uniform};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use crate::compute::{Compute, to_host};
use crate::error::{ModelError, Result};
use crate::layers::LowRankPattern;
use crate::weights::Weights;
pub use group::{ParameterGroup, path_matches};

/// The initial values of a parameter that is not loaded from published weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// All zero (biases, the up-projection of an adapter).
    Zeros,
    /// All one (the scale of a norm).
    Ones,
    /// All equal to this value.
    Constant(f64),
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Uniform in `[-bound, bound]`.
    Uniform(f64),
    /// A table of sinusoidal positions with rows of this width: sines, then cosines, of frequencies
    /// from 1 down to 1 / 10,000 (`sinusoids` of openai/whisper).
    Sinusoids(usize),
}

/// One named parameter.
#[derive(Debug, Clone)]
pub struct Parameter {
    name: String,
    tensor: Tensor,
    rate: f64,
    is_random: bool,
}

/// A function that writes the values of a parameter.
type UpdateValues<'a> = &'a mut dyn FnMut(&mut [f32]);

/// All parameters of a model, in the order in which the model requested them.
#[derive(Debug, Clone, Default)]
pub struct Parameters {
    list: Vec<Parameter>,
}

/// Gives a model its parameters: loaded from published weights ([`ParameterBuilder::with_weights`])
/// or initialised from the seed. The groups set learning-rate factors; a factor of 0 freezes
/// parameters. The last group that matches a parameter applies. Without a match, the factor is 1;
/// if there are low-rank branches ([`ParameterBuilder::with_low_rank`]), it is 1 for the parameters
/// of the branches and 0 for all others.
#[derive(Clone)]
pub struct ParameterBuilder {
    shared: Arc<Mutex<Shared>>,
    source: Source,
    prefix: String,
}

/// The source of a builder's values.
#[derive(Clone)]
enum Source {
    Seed,
    File(Arc<Weights>),
    /// Shapes without values: each parameter is one zero, broadcast.
    ShapesOnly,
}

/// The state shared by a builder and the builders of its sub-modules.
struct Shared {
    list: Vec<Parameter>,
    groups: Vec<ParameterGroup>,
    /// For each group, whether it matched a parameter.
    is_matched: Vec<bool>,
    low_rank: LowRankPatterns,
    seed: u64,
    compute: Compute,
}

/// The patterns of low-rank branches, and the linear layers of the model so far.
#[derive(Default)]
struct LowRankPatterns {
    list: Vec<LowRankPattern>,
    /// For each pattern, whether it matched a linear layer.
    is_matched: Vec<bool>,
    /// The path of a linear layer, for error messages.
    example: Option<String>,
}

/// What the groups and patterns say of a new parameter.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A parameter whose rate the groups set.
    Trainable,
    /// A parameter of a low-rank branch.
    Branch,
    /// A value that is never trained.
    Buffer,
}

impl Parameter {
    /// The name: the path of the parameter in the model, as published.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value. For a trainable parameter, this is the variable whose gradient is computed.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// candle's id of the tensor; [`crate::gradients::Gradients`] finds buffers by it.
    pub fn id(&self) -> TensorId {
        self.tensor.id()
    }

    /// The factor on the learning rate; 0 if the parameter is frozen.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Whether the values are random initial values, neither loaded nor constant. It does not change
    /// when the values change.
    pub fn is_random(&self) -> bool {
        self.is_random
    }

    /// Whether training updates the parameter.
    pub fn is_trainable(&self) -> bool {
        self.rate > 0.0
    }

    /// Returns a copy of the values in row-major order, as f32.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        Ok(to_host(&self.tensor)?)
    }

    /// Calls `change`, which may write the values. Every model that shares this parameter sees the
    /// change. On the CPU in f32, `change` writes in place. Otherwise it writes to a copy, which
    /// then replaces the values.
    ///
    /// # Errors
    /// [`ModelError::Candle`] if the tensor is not contiguous, or the device fails.
    pub fn update(&self, change: UpdateValues<'_>) -> Result<()> {
        if self.is_host_f32() {
            self.tensor.inplace_op1(&Update(Mutex::new(change)))?;
            return Ok(());
        }
        let mut values = self.to_vec()?;
        change(&mut values);
        let values = Tensor::from_vec(values, self.tensor.elem_count(), self.tensor.device())?;
        let values = values.to_dtype(self.tensor.dtype())?;
        self.tensor.flatten_all()?.slice_set(&values, 0, 0)?;
        Ok(())
    }

    /// Calls `read` with the values: without a copy on the CPU in f32, else with a copy.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] if the tensor is not contiguous, [`ModelError::Candle`] if the
    /// device fails.
    pub fn read<R>(&self, read: impl FnOnce(&[f32]) -> R) -> Result<R> {
        if !self.is_host_f32() {
            return Ok(read(&self.to_vec()?));
        }
        let (storage, layout) = self.tensor.storage_and_layout();
        match (&*storage, layout.contiguous_offsets()) {
            (Storage::Cpu(CpuStorage::F32(data)), Some((start, end))) => {
                Ok(read(&data[start..end]))
            }
            _ => Err(ModelError::BadInput(format!("parameter `{}` is not contiguous", self.name))),
        }
    }

    fn is_host_f32(&self) -> bool {
        self.tensor.device().is_cpu() && self.tensor.dtype() == DType::F32
    }
}

/// The in-place update of f32 values on the CPU.
struct Update<'a>(Mutex<UpdateValues<'a>>);

impl InplaceOp1 for Update<'_> {
    fn name(&self) -> &'static str {
        "update-parameter"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        match (storage, layout.contiguous_offsets()) {
            (CpuStorage::F32(data), Some((start, end))) => {
                let mut change = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                (*change)(&mut data[start..end]);
                Ok(())
            }
            _ => candle_core::bail!("only contiguous f32 parameters can be updated in place"),
        }
    }
}

impl Parameters {
    /// All parameters, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Parameter> {
        self.list.iter()
    }

    /// The trainable parameters, in order.
    pub fn trainable(&self) -> impl Iterator<Item = &Parameter> {
        self.list.iter().filter(|p| p.is_trainable())
    }

    /// Returns the parameter with this name; `None` if there is none.
    pub fn get(&self, name: &str) -> Option<&Parameter> {
        self.list.iter().find(|p| p.name == name)
    }

    /// The number of parameters (tensors, not values).
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the number of values in all parameters, and in the trainable parameters.
    pub fn value_counts(&self) -> (usize, usize) {
        let total = self.list.iter().map(|p| p.tensor.elem_count()).sum();
        let trainable = self.trainable().map(|p| p.tensor.elem_count()).sum();
        (total, trainable)
    }

    /// Returns the SHA-256 of the names, shapes and values of the parameters that satisfy
    /// `is_included`. Equal fingerprints before and after a run prove that these parameters did
    /// not change.
    pub fn fingerprint(&self, is_included: impl Fn(&Parameter) -> bool) -> Result<String> {
        let mut hash = Sha256::new();
        for parameter in self.list.iter().filter(|p| is_included(p)) {
            hash.update(parameter.name.as_bytes());
            hash.update(format!("{:?}", parameter.tensor.dims()));
            let mut bytes = Vec::new();
            for block in parameter.to_vec()?.chunks(1 << 14) {
                bytes.clear();
                bytes.extend(block.iter().flat_map(|value| value.to_le_bytes()));
                hash.update(&bytes);
            }
        }
        Ok(format!("{:x}", hash.finalize()))
    }

    /// Sets every parameter to its value in a safetensors file.
    ///
    /// # Errors
    /// The errors of [`Weights::open`] and [`Weights::get`]; no parameter is changed then.
    pub fn load(&self, path: &Path) -> Result<()> {
        self.load_selected(path, |_| true)
    }

    /// Loads only the parameters whose names satisfy `is_selected`.
    ///
    /// # Errors
    /// See [`Parameters::load`].
    pub fn load_selected(&self, path: &Path, is_selected: impl Fn(&str) -> bool) -> Result<()> {
        let source = Weights::open(path)?;
        let selected = self.list.iter().filter(|parameter| is_selected(&parameter.name));
        let selected: Vec<&Parameter> = selected.collect();
        let mut values = Vec::with_capacity(selected.len());
        for parameter in &selected {
            let tensor =
                source.get(&parameter.name, parameter.tensor.dims(), DType::F32, &Device::Cpu)?;
            values.push(to_host(&tensor)?);
        }
        for (parameter, value) in selected.into_iter().zip(values) {
            parameter.update(&mut |data| data.copy_from_slice(&value))?;
        }
        Ok(())
    }
}

impl ParameterBuilder {
    /// Creates a builder of parameters for this computation, drawn from `seed`.
    pub fn new(seed: u64, groups: Vec<ParameterGroup>, compute: &Compute) -> Self {
        let is_matched = vec![false; groups.len()];
        let shared = Shared {
            list: Vec::new(),
            groups,
            is_matched,
            low_rank: LowRankPatterns::default(),
            seed,
            compute: compute.clone(),
        };
        Self { shared: Arc::new(Mutex::new(shared)), source: Source::Seed, prefix: String::new() }
    }

    /// Creates a builder on the CPU in f32, without groups: all parameters are trainable.
    pub fn on_cpu(seed: u64) -> Self {
        Self::new(seed, Vec::new(), &Compute::cpu())
    }

    /// Creates a builder of parameters that have shapes but no values and use no memory, to count
    /// the parameters of a model of any size.
    pub fn shapes_only() -> Self {
        Self { source: Source::ShapesOnly, ..Self::on_cpu(0) }
    }

    /// Returns this builder with values loaded from `weights` under the same names.
    pub fn with_weights(&self, weights: Arc<Weights>) -> Self {
        Self { source: Source::File(weights), ..self.clone() }
    }

    /// Adds a low-rank branch to each linear layer whose path matches a pattern; the last match
    /// applies. Parameters outside the branches are frozen, unless a group matches them. Call it
    /// before the model requests parameters.
    pub fn with_low_rank(self, patterns: Vec<LowRankPattern>) -> Self {
        let is_matched = vec![false; patterns.len()];
        self.lock().low_rank = LowRankPatterns { list: patterns, is_matched, example: None };
        self
    }

    /// Returns the pattern for the linear layer at this builder's path, if any.
    pub(crate) fn low_rank(&self) -> Option<LowRankPattern> {
        let mut shared = self.lock();
        let LowRankPatterns { list, is_matched, example } = &mut shared.low_rank;
        example.get_or_insert_with(|| self.prefix.clone());
        let mut last_match = None;
        for (pattern, is_matched) in list.iter().zip(is_matched) {
            if path_matches(pattern.pattern.as_bytes(), self.prefix.as_bytes()) {
                *is_matched = true;
                last_match = Some(pattern.clone());
            }
        }
        last_match
    }

    /// The path of this builder's module in the model.
    pub(crate) fn path(&self) -> &str {
        &self.prefix
    }

    /// The device and the dtype of the model's computation.
    pub fn compute(&self) -> Compute {
        self.lock().compute.clone()
    }

    /// Returns a builder for a sub-module: its parameter names begin with this builder's path and
    /// `level`. `pp` means "push prefix", as in candle.
    pub fn pp(&self, level: impl std::fmt::Display) -> Self {
        Self { prefix: self.full_name(&level.to_string()), ..self.clone() }
    }

    /// Returns the parameter `name` of this shape: loaded from the weights or, without weights,
    /// initialised according to `init`.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`] and [`ModelError::ShapeMismatch`] from the weights.
    /// [`ModelError::BadInput`] if a model requests a name twice. [`ModelError::BadConfig`] if the
    /// rate of a matching group is negative or not finite.
    pub fn get(&self, name: &str, shape: &[usize], init: Init) -> Result<Tensor> {
        self.add(name, shape, init, Kind::Trainable)
    }

    /// Returns a parameter of a low-rank branch: loaded if the weights have it, else initialised
    /// according to `init`.
    pub(crate) fn branch_parameter(
        &self,
        name: &str,
        shape: &[usize],
        init: Init,
    ) -> Result<Tensor> {
        match &self.source {
            Source::File(weights) if !weights.contains(&self.full_name(name)) => {
                let drawn = Self { source: Source::Seed, ..self.clone() };
                drawn.add(name, shape, init, Kind::Branch)
            }
            _ => self.add(name, shape, init, Kind::Branch),
        }
    }

    /// Like [`ParameterBuilder::get`], for values that are never trained, such as the statistics of
    /// a batch norm. They are frozen regardless of the groups.
    ///
    /// # Errors
    /// See [`ParameterBuilder::get`].
    pub fn buffer(&self, name: &str, shape: &[usize], init: Init) -> Result<Tensor> {
        self.add(name, shape, init, Kind::Buffer)
    }

    fn add(&self, name: &str, shape: &[usize], init: Init, kind: Kind) -> Result<Tensor> {
        let name = self.full_name(name);
        let mut shared = self.lock();
        if shared.list.iter().any(|p| p.name == name) {
            return Err(ModelError::BadInput(format!("parameter `{name}` is requested twice")));
        }
        let rate = shared.rate_of(&name, kind)?;
        let dtype = shared.compute.parameter_dtype(shape.len(), rate > 0.0);
        let device = &shared.compute.device;
        let value = match &self.source {
            Source::File(weights) => weights.get(&name, shape, dtype, device)?,
            Source::ShapesOnly => Tensor::zeros((), dtype, device)?.broadcast_as(shape)?,
            Source::Seed => {
                let count = shape.iter().fold(1, |n: usize, size| n.saturating_mul(*size));
                let values = draw(shared.seed, &name, count, init)?;
                Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?
            }
        };
        // Without values, a variable would allocate memory.
        let is_variable = rate > 0.0 && !matches!(self.source, Source::ShapesOnly);
        let tensor =
            if is_variable { Var::from_tensor(&value)?.as_tensor().clone() } else { value };
        let is_random = matches!(self.source, Source::Seed)
            && matches!(init, Init::Normal(_) | Init::Uniform(_));
        shared.list.push(Parameter { name, tensor: tensor.clone(), rate, is_random });
        Ok(tensor)
    }

    /// Marks parameters with these names as loaded, so that they do not count as random.
    pub fn mark_loaded(&self, names: &[String]) {
        for parameter in &mut self.lock().list {
            parameter.is_random &= !names.contains(&parameter.name);
        }
    }

    /// Returns all parameters that the model requested.
    ///
    /// # Errors
    /// [`ModelError::UnmatchedPattern`] if a group's pattern matches no parameter, and
    /// [`ModelError::UnmatchedLowRank`] if a low-rank pattern matches no linear layer, most often
    /// because of a typo.
    pub fn finish(&self) -> Result<Parameters> {
        let shared = self.lock();
        if let Some(unused) = shared.is_matched.iter().position(|is_matched| !is_matched) {
            return Err(ModelError::UnmatchedPattern {
                pattern: shared.groups[unused].pattern.clone(),
                count: shared.list.len(),
                example: shared.list.first().map(|p| p.name.clone()).unwrap_or_default(),
            });
        }
        let LowRankPatterns { list, is_matched, example } = &shared.low_rank;
        if let Some(unused) = is_matched.iter().position(|is_matched| !is_matched) {
            let pattern = list[unused].pattern.clone();
            let matched = shared.list.iter().find_map(|parameter| {
                matching_level(&pattern, parameter.name()).map(str::to_string)
            });
            let example = example.clone();
            return Err(ModelError::UnmatchedLowRank { pattern, matched, example });
        }
        Ok(Parameters { list: shared.list.clone() })
    }

    /// Returns the builder's path followed by `name`.
    fn full_name(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Returns the learning-rate factor of a parameter, and marks the groups that match it.
    fn rate_of(&mut self, name: &str, kind: Kind) -> Result<f64> {
        let is_frozen = kind == Kind::Trainable && !self.low_rank.list.is_empty();
        let mut rate = if is_frozen { 0.0 } else { 1.0 };
        for (group, is_matched) in self.groups.iter().zip(&mut self.is_matched) {
            if path_matches(group.pattern.as_bytes(), name.as_bytes()) {
                if !group.rate.is_finite() || group.rate < 0.0 {
                    return Err(ModelError::BadConfig {
                        what: format!("parameter group `{}`", group.pattern),
                        reason: format!("the rate {} is negative or not finite", group.rate),
                    });
                }
                rate = group.rate;
                *is_matched = true;
            }
        }
        Ok(if kind == Kind::Buffer { 0.0 } else { rate })
    }
}

/// Returns the first path that leads to a parameter, or the parameter itself, and matches the
/// pattern.
fn matching_level<'a>(pattern: &str, name: &'a str) -> Option<&'a str> {
    let ends = name.match_indices('.').map(|(end, _)| end).chain([name.len()]);
    let mut levels = ends.map(|end| &name[..end]);
    levels.find(|level| path_matches(pattern.as_bytes(), level.as_bytes()))
}

/// Returns `count` initial values of the parameter `name`, in row-major order.
fn draw(seed: u64, name: &str, count: usize, init: Init) -> Result<Vec<f32>> {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(name.as_bytes());
    let mut rng = ChaCha8Rng::from_seed(hash.finalize().into());
    let invalid_init = |e| ModelError::BadInput(format!("parameter `{name}`: {init:?}: {e}"));
    let mut values = Vec::new();
    // A size from a damaged configuration must not abort the program.
    values.try_reserve_exact(count.saturating_add(1)).map_err(|e| {
        ModelError::BadInput(format!("parameter `{name}` with {count} values: {e}"))
    })?;
    match init {
        Init::Zeros => values.resize(count, 0.0),
        Init::Ones => values.resize(count, 1.0),
        Init::Constant(value) => values.resize(count, value as f32),
        Init::Uniform(bound) => {
            let distribution = Uniform::new_inclusive(-bound, bound).map_err(invalid_init)?;
            values.extend((0..count).map(|_| distribution.sample(&mut rng) as f32));
        }
        Init::Sinusoids(width) => {
            let half = (width / 2).max(1);
            let step = 10_000f64.ln() / (half.max(2) - 1) as f64;
            values.extend((0..count).map(|i| {
                let (position, channel) = ((i / width.max(1)) as f64, i % width.max(1));
                let angle = position * (-step * (channel % half) as f64).exp();
                if channel < half { angle.sin() as f32 } else { angle.cos() as f32 }
            }));
        }
        Init::Normal(std) => {
            // Box-Muller: two uniform values give two independent normal values.
            let distribution = Uniform::new(f64::MIN_POSITIVE, 1.0).map_err(invalid_init)?;
            while values.len() < count {
                let radius = (-2.0 * f64::ln(distribution.sample(&mut rng))).sqrt() * std;
                let angle = std::f64::consts::TAU * distribution.sample(&mut rng);
                values.push((radius * angle.cos()) as f32);
                values.push((radius * angle.sin()) as f32);
            }
            values.truncate(count);
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_rate_is_an_error() {
        for rate in [-1.0, f64::NAN, f64::INFINITY] {
            let groups = vec![ParameterGroup { pattern: "weight".into(), rate }];
            let builder = ParameterBuilder::new(1, groups, &Compute::cpu());
            let error = builder.get("weight", &[1], Init::Ones).unwrap_err().to_string();
            assert!(error.contains("`weight`") && error.contains("rate"), "{error}");
        }
    }

    #[test]
    fn the_last_matching_group_applies_and_a_frozen_parameter_is_a_plain_tensor() -> Result<()> {
        let group = |pattern: &str, rate| ParameterGroup { pattern: pattern.into(), rate };
        let groups = vec![group("**", 0.0), group("head.**", 2.0)];
        let builder = ParameterBuilder::new(1, groups, &Compute::cpu());
        let body = builder.pp("body").get("weight", &[2, 3], Init::Normal(1.0))?;
        let head = builder.pp("head").get("weight", &[3], Init::Uniform(0.5))?;
        assert!(!body.is_variable() && head.is_variable());
        let parameters = builder.finish()?;
        let rates: Vec<_> = parameters.iter().map(|p| (p.name(), p.rate())).collect();
        assert_eq!(rates, [("body.weight", 0.0), ("head.weight", 2.0)]);
        assert_eq!(parameters.value_counts(), (9, 3));
        Ok(())
    }

    #[test]
    fn a_pattern_without_a_match_is_an_error() {
        let groups = vec![ParameterGroup { pattern: "encodr.**".into(), rate: 0.0 }];
        let builder = ParameterBuilder::new(1, groups, &Compute::cpu());
        builder.get("weight", &[1], Init::Ones).unwrap();
        let error = builder.finish().unwrap_err().to_string();
        assert!(error.contains("encodr.**") && error.contains("weight"), "{error}");
    }

    #[test]
    fn initial_values_depend_only_on_seed_and_name() -> Result<()> {
        let initial_values = |seed, with_other: bool| -> Result<Vec<f32>> {
            let builder = ParameterBuilder::on_cpu(seed);
            if with_other {
                builder.get("other", &[7], Init::Normal(1.0))?;
            }
            Ok(builder.get("weight", &[5], Init::Normal(1.0))?.to_vec1()?)
        };
        assert_eq!(initial_values(3, false)?, initial_values(3, true)?);
        assert_ne!(initial_values(3, false)?, initial_values(4, false)?);
        Ok(())
    }

    #[test]
    fn every_model_that_shares_a_parameter_sees_an_update() -> Result<()> {
        let builder = ParameterBuilder::on_cpu(0);
        let tensor = builder.get("weight", &[3], Init::Ones)?;
        let parameters = builder.finish()?;
        parameters.list[0].update(&mut |data| data[1] = 5.0)?;
        assert_eq!(tensor.to_vec1::<f32>()?, [1.0, 5.0, 1.0]);
        Ok(())
    }
}
