//! The builder that gives a model its parameters.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{Device, Tensor, Var};

use super::embedding_table::{EmbeddingTable, ExternalTable, Initial};
use super::init::draw;
use super::{Init, Parameter, ParameterGroup, Parameters, path_matches};
use crate::compute::{Compute, to_host};
use crate::error::{ModelError, Result, bail};
use crate::kernels::QuantisedMatrix;
use crate::layers::{LinearWeight, LowRank, LowRankPattern};
use crate::weights::Weights;

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
    /// The rates of parameters.
    groups: Patterns<f64>,
    /// The low-rank branches of linear layers.
    low_rank: Patterns<LowRank>,
    /// The linear layers with quantised weights.
    quantised: Patterns<()>,
    /// The external tables.
    tables: Patterns<()>,
    /// The path of a linear layer of the model, for error messages.
    linear_layer: Option<String>,
    /// The names of all embedding tables of the model so far.
    table_names: Vec<String>,
    /// The first frozen table that a pattern of external tables matches.
    frozen_table: Option<String>,
    external: Vec<Arc<ExternalTable>>,
    seed: u64,
    compute: Compute,
}

/// Patterns of paths, each with a setting.
struct Patterns<T> {
    list: Vec<(String, T)>,
    /// For each pattern, whether it matched a path.
    is_matched: Vec<bool>,
}

impl<T: Copy> Patterns<T> {
    fn new(list: Vec<(String, T)>) -> Self {
        Self { is_matched: vec![false; list.len()], list }
    }

    /// Returns the patterns that match a path, in order.
    fn matching(&mut self, path: &str) -> Vec<(String, T)> {
        let mut found = Vec::new();
        for ((pattern, setting), is_matched) in self.list.iter().zip(&mut self.is_matched) {
            if path_matches(pattern.as_bytes(), path.as_bytes()) {
                *is_matched = true;
                found.push((pattern.clone(), *setting));
            }
        }
        found
    }

    /// Returns the first pattern that has matched no path.
    fn unmatched(&self) -> Option<String> {
        let index = self.is_matched.iter().position(|is_matched| !is_matched)?;
        Some(self.list[index].0.clone())
    }
}

/// The kind of a new parameter, which decides its learning-rate factor.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A parameter whose rate the groups set.
    Trainable,
    /// A parameter of a low-rank branch.
    Branch,
    /// A value that is never trained.
    Buffer,
    /// A weight that will be quantised, and must not be trained.
    Quantised,
}

impl ParameterBuilder {
    /// Creates a builder of parameters for this computation, drawn from `seed`.
    pub fn new(seed: u64, groups: Vec<ParameterGroup>, compute: &Compute) -> Self {
        let groups = groups.into_iter().map(|group| (group.pattern, group.rate)).collect();
        let shared = Shared {
            list: Vec::new(),
            groups: Patterns::new(groups),
            low_rank: Patterns::new(Vec::new()),
            quantised: Patterns::new(Vec::new()),
            tables: Patterns::new(Vec::new()),
            linear_layer: None,
            table_names: Vec::new(),
            frozen_table: None,
            external: Vec::new(),
            seed,
            compute: compute.clone(),
        };
        Self { shared: Arc::new(Mutex::new(shared)), source: Source::Seed, prefix: String::new() }
    }

    /// Creates a builder of frozen parameters, for models whose weights come from files.
    pub fn frozen(compute: &Compute) -> Self {
        Self::new(0, vec![ParameterGroup::all_frozen()], compute)
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
        let patterns = patterns.into_iter().map(|low_rank| (low_rank.pattern, low_rank.settings));
        self.lock().low_rank = Patterns::new(patterns.collect());
        self
    }

    /// Returns the pattern for the linear layer at this builder's path, if any.
    pub(crate) fn low_rank(&self) -> Option<LowRankPattern> {
        let mut shared = self.lock();
        shared.linear_layer.get_or_insert_with(|| self.prefix.clone());
        let (pattern, settings) = shared.low_rank.matching(&self.prefix).pop()?;
        Some(LowRankPattern { pattern, settings })
    }

    /// Quantises the weights of all linear layers whose path matches a pattern to 4 bits
    /// ([`kernels::Nf4`](crate::kernels::Nf4)). They are frozen. Call it before the model requests
    /// parameters.
    pub fn with_quantised(self, patterns: Vec<String>) -> Self {
        let patterns = patterns.into_iter().map(|pattern| (pattern, ()));
        self.lock().quantised = Patterns::new(patterns.collect());
        self
    }

    /// Makes all embedding tables whose path matches a pattern external tables
    /// ([`Parameters::external_tables`]): they are not among the parameters, and the trainer gives
    /// the model their rows. Call it before the model requests parameters.
    pub fn with_external_tables(self, patterns: Vec<String>) -> Self {
        let patterns = patterns.into_iter().map(|pattern| (pattern, ()));
        self.lock().tables = Patterns::new(patterns.collect());
        self
    }

    /// Returns the embedding table `name` of this shape, with values as of
    /// [`ParameterBuilder::get`].
    ///
    /// # Errors
    /// See [`ParameterBuilder::get`].
    pub fn embedding_table(
        &self,
        name: &str,
        shape: [usize; 2],
        init: Init,
    ) -> Result<EmbeddingTable> {
        match self.external_table(name, shape, init)? {
            Some(table) => Ok(EmbeddingTable::external(table)),
            None => Ok(EmbeddingTable::parameter(self.get(name, &shape, init)?)),
        }
    }

    /// Adds an external table, if a pattern matches it and it is trained.
    fn external_table(
        &self,
        name: &str,
        shape: [usize; 2],
        init: Init,
    ) -> Result<Option<Arc<ExternalTable>>> {
        let name = self.full_name(name);
        let mut shared = self.lock();
        shared.table_names.push(name.clone());
        let is_external = !shared.tables.matching(&name).is_empty();
        let initial = match &self.source {
            _ if !is_external => return Ok(None),
            Source::ShapesOnly => return Ok(None),
            Source::File(weights) => Initial::Loaded(Arc::clone(weights)),
            Source::Seed => Initial::Drawn { seed: shared.seed, init },
        };
        shared.check_new(&name)?;
        let rate = shared.rate_of(&name, Kind::Trainable)?;
        if rate == 0.0 {
            shared.frozen_table.get_or_insert(name);
            return Ok(None);
        }
        let trainable = shared.list.iter().filter(|parameter| parameter.is_trainable()).count();
        let place = (rate, trainable + shared.external.len());
        let table = Arc::new(ExternalTable::new(name, shape, place, initial));
        shared.external.push(Arc::clone(&table));
        Ok(Some(table))
    }

    /// Returns the weight `[D_out, D_in]` of the linear layer at this builder's path.
    ///
    /// # Errors
    /// See [`ParameterBuilder::get`]. [`ModelError::BadConfig`] if a group trains a quantised
    /// weight.
    pub(crate) fn linear_weight(
        &self,
        d_out: usize,
        d_in: usize,
        init: Init,
    ) -> Result<LinearWeight> {
        if self.lock().quantised.matching(&self.prefix).is_empty() {
            return Ok(LinearWeight::Dense(self.get("weight", &[d_out, d_in], init)?));
        }
        let weight = self.add("weight", &[d_out, d_in], init, Kind::Quantised)?;
        let matrix = QuantisedMatrix::new(&to_host(&weight)?, d_out, d_in);
        let mut shared = self.lock();
        let device = shared.compute.device.clone();
        if let Some(parameter) = shared.list.last_mut() {
            parameter.quantise(matrix.clone())?;
        }
        Ok(LinearWeight::Quantised { matrix, device })
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
    /// [`ModelError::BadFile`] from the weights.
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
        shared.check_new(&name)?;
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
        let quantised = None;
        shared.list.push(Parameter { name, tensor: tensor.clone(), rate, is_random, quantised });
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
    /// [`ModelError::UnmatchedPattern`] if a group's pattern matches no parameter,
    /// [`ModelError::NoLinearLayer`] if another pattern matches no linear layer, and
    /// [`ModelError::NoEmbeddingTable`] if a pattern of external tables matches none, most often
    /// because of a typo. [`ModelError::FrozenTable`] if such a pattern matches a frozen table.
    pub fn finish(&self) -> Result<Parameters> {
        let shared = self.lock();
        if let Some(pattern) = shared.groups.unmatched() {
            return Err(ModelError::UnmatchedPattern {
                pattern,
                count: shared.list.len(),
                example: shared.list.first().map(|p| p.name.clone()).unwrap_or_default(),
            });
        }
        let low_rank = shared.low_rank.unmatched().map(|pattern| ("low_rank", pattern));
        let quantised = || shared.quantised.unmatched().map(|pattern| ("quantised", pattern));
        if let Some((setting, pattern)) = low_rank.or_else(quantised) {
            let names = shared.list.iter().map(|parameter| parameter.name());
            let matched = names.filter_map(|name| matching_level(&pattern, name)).next();
            return Err(ModelError::NoLinearLayer {
                matched: matched.map(str::to_owned),
                example: shared.linear_layer.clone(),
                setting,
                pattern,
            });
        }
        if let Some(pattern) = shared.tables.unmatched() {
            return Err(ModelError::NoEmbeddingTable {
                pattern,
                tables: shared.table_names.clone(),
            });
        }
        if let Some(table) = shared.frozen_table.clone() {
            return Err(ModelError::FrozenTable { table });
        }
        Ok(Parameters { list: shared.list.clone(), external: shared.external.clone() })
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
    /// Returns an error if the model has requested this name already.
    fn check_new(&self, name: &str) -> Result<()> {
        if self.list.iter().any(|parameter| parameter.name == name)
            || self.external.iter().any(|table| table.name() == name)
        {
            bail!("parameter `{name}` is requested twice");
        }
        Ok(())
    }

    /// Returns the learning-rate factor of a parameter, and marks the groups that match it.
    fn rate_of(&mut self, name: &str, kind: Kind) -> Result<f64> {
        let is_frozen = match kind {
            Kind::Trainable => !self.low_rank.list.is_empty(),
            Kind::Branch => false,
            Kind::Buffer | Kind::Quantised => true,
        };
        let mut rate = if is_frozen { 0.0 } else { 1.0 };
        for (pattern, group_rate) in self.groups.matching(name) {
            if !group_rate.is_finite() || group_rate < 0.0 {
                return Err(ModelError::BadConfig {
                    what: format!("parameter group `{pattern}`"),
                    reason: format!("the rate {group_rate} is negative or not finite"),
                });
            }
            rate = group_rate;
        }
        if kind == Kind::Quantised && rate > 0.0 {
            return Err(ModelError::BadConfig {
                what: format!("quantised weight `{name}`"),
                reason: "cannot be trained; give it rate 0 in a group".into(),
            });
        }
        Ok(if kind == Kind::Buffer { 0.0 } else { rate })
    }
}

/// Returns the shortest prefix of a parameter's path, up to the whole, that matches the pattern.
fn matching_level<'a>(pattern: &str, name: &'a str) -> Option<&'a str> {
    let ends = name.match_indices('.').map(|(end, _)| end).chain([name.len()]);
    let mut levels = ends.map(|end| &name[..end]);
    levels.find(|level| path_matches(pattern.as_bytes(), level.as_bytes()))
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
}
