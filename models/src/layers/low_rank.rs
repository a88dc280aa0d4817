//! Low-rank branches of linear layers (LoRA, arXiv 2106.09685): `x Wᵀ + b + (α / R) x Aᵀ Bᵀ`, where
//! only `A` `[R, D_in]` and `B` `[D_out, R]` are trained.
//!
//! Reference: `peft`, `tuners/lora/layer.py`, with its parameter names. `B` starts at zero, so a
//! new branch does not change the output.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};

use crate::compute::to_host;
use crate::error::{ModelError, Result};
use crate::kernels::{LowRankParameters, Matrix, Mode, matmul};
use crate::params::{Init, ParameterBuilder, path_matches};

/// The names of `A` and `B` below a layer's path.
const DOWN: &str = "lora_A";
const UP: &str = "lora_B";

/// The settings of a low-rank branch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LowRank {
    /// The rank `R`: at least 1, and at most the smaller width of the layer.
    pub rank: usize,
    /// The branch is scaled by `alpha / rank`.
    pub alpha: f64,
    /// Dropout probability of the branch's input. Layers before and after the blocks (subsampling,
    /// the visual projection, gates) have no such dropout.
    pub dropout: f64,
}

/// Low-rank branches for the linear layers whose path matches a pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct LowRankPattern {
    /// The pattern of layer paths, such as `encoder.layer.*.attention.self.query`: `*` matches
    /// within one level, `**` across levels.
    pub pattern: String,
    /// The settings of the branches.
    pub settings: LowRank,
}

impl LowRank {
    /// Checks that each value is valid for some layer. The error names the value and says what is
    /// valid.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if self.rank == 0 {
            return Err(("rank", "has to be at least 1"));
        }
        if !(self.alpha > 0.0 && (self.scale() as f32).is_normal()) {
            return Err(("alpha", "has to be positive, and alpha / rank within the range of f32"));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(("dropout", "has to lie in [0, 1)"));
        }
        Ok(())
    }

    /// The factor on the branch.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }
}

/// Whether this is the name of a parameter of a low-rank branch.
pub fn is_branch(parameter: &str) -> bool {
    branch_of(parameter).is_some()
}

/// Returns the name of the weight to which a parameter of a low-rank branch is added; `None` for
/// other names.
pub fn branch_weight(parameter: &str) -> Option<String> {
    branch_of(parameter).map(|(layer, _)| format!("{layer}.weight"))
}

/// Returns the name of the `B` that belongs to an `A` of a low-rank branch; `None` for other names.
/// The gradient of `A` is zero while `B` is zero.
pub fn up_projection(parameter: &str) -> Option<String> {
    let (layer, _) = branch_of(parameter).filter(|(_, matrix)| *matrix == DOWN)?;
    Some(format!("{layer}.{UP}.weight"))
}

/// The low-rank branch of a layer.
#[derive(Debug, Clone)]
pub(crate) struct Branch {
    /// `A` `[R, D_in]`.
    down: Tensor,
    /// `B` `[D_out, R]`.
    up: Tensor,
    settings: LowRank,
}

impl Branch {
    /// Creates the branch of the linear layer at the builder's path, if a pattern matches the path.
    /// The parameters are drawn if the builder's weights lack them: `A` uniform as in `peft`, `B`
    /// zero.
    pub(crate) fn new(
        d_in: usize,
        d_out: usize,
        builder: &ParameterBuilder,
    ) -> Result<Option<Self>> {
        let Some(LowRankPattern { pattern, settings }) = builder.low_rank() else {
            return Ok(None);
        };
        let rank = settings.rank;
        let invalid = match settings.check() {
            Err((value, reason)) => Some((value, reason.to_owned())),
            Ok(()) if rank > d_in.min(d_out) => Some((
                "rank",
                format!("{rank} exceeds a width of the layer: {d_in} inputs, {d_out} outputs"),
            )),
            Ok(()) => None,
        };
        if let Some((value, reason)) = invalid {
            let layer = builder.path().to_owned();
            return Err(ModelError::BadLowRank { pattern, layer, value, reason });
        }
        let bound = (d_in as f64).powf(-0.5);
        let get = |name: &str, shape: [usize; 2], init| {
            builder.pp(name).branch_parameter("weight", &shape, init)
        };
        Ok(Some(Self {
            down: get(DOWN, [settings.rank, d_in], Init::Uniform(bound))?,
            up: get(UP, [d_out, settings.rank], Init::Zeros)?,
            settings,
        }))
    }

    pub(crate) fn parameters(&self, mode: &Mode) -> LowRankParameters<'_> {
        let LowRank { dropout, .. } = self.settings;
        LowRankParameters {
            down: &self.down,
            up: &self.up,
            scale: self.settings.scale() as f32,
            dropout: if dropout > 0.0 { mode.dropout(dropout) } else { None },
        }
    }
}

/// Adds every low-rank branch among `parameters` to the weight of its layer, `W + (α / R) B A`, and
/// removes the branch. The other parameters do not change.
///
/// # Errors
/// [`ModelError::BadInput`] if a branch has no layer, no `B`, no pattern, or another shape.
pub fn merge(
    parameters: BTreeMap<String, Tensor>,
    patterns: &[LowRankPattern],
) -> Result<BTreeMap<String, Tensor>> {
    let (branches, mut merged): (BTreeMap<_, _>, BTreeMap<_, _>) =
        parameters.into_iter().partition(|(name, _)| branch_of(name).is_some());
    for (name, down) in &branches {
        let Some((layer, DOWN)) = branch_of(name) else { continue };
        let invalid =
            |what: &str| ModelError::BadInput(format!("low-rank branch `{name}`: {what}"));
        let matches =
            |pattern: &&LowRankPattern| path_matches(pattern.pattern.as_bytes(), layer.as_bytes());
        let settings = patterns.iter().rev().find(matches);
        let settings = settings.ok_or_else(|| invalid("no pattern matches its layer"))?.settings;
        let up = branches.get(&format!("{layer}.{UP}.weight"));
        let up = up.ok_or_else(|| invalid("the other matrix is missing"))?;
        let weight = merged.get_mut(&format!("{layer}.weight"));
        let weight = weight.ok_or_else(|| invalid("the layer has no weight"))?;
        *weight = add_product(settings.scale(), up, down, weight)?
            .ok_or_else(|| invalid("the shapes do not fit the layer"))?;
    }
    Ok(merged)
}

/// Returns `W + s B A`; `None` if the shapes do not fit.
pub(crate) fn add_product(
    scale: f64,
    up: &Tensor,
    down: &Tensor,
    weight: &Tensor,
) -> Result<Option<Tensor>> {
    let (&[d_out, up_rank], &[rank, d_in]) = (up.dims(), down.dims()) else { return Ok(None) };
    if up_rank != rank || weight.dims() != [d_out, d_in] {
        return Ok(None);
    }
    let [down, up, mut sum] = [to_host(down)?, to_host(up)?, to_host(weight)?];
    let (up, down) = (Matrix::new(&up, d_out, rank), Matrix::new(&down, rank, d_in));
    matmul(scale as f32, up, down, 1.0, &mut sum, d_in);
    Ok(Some(Tensor::from_vec(sum, (d_out, d_in), &Device::Cpu)?))
}

/// Returns the path of the layer and the name of the matrix, if this is a parameter of a branch.
fn branch_of(parameter: &str) -> Option<(&str, &str)> {
    let (layer, matrix) = parameter.strip_suffix(".weight")?.rsplit_once('.')?;
    [DOWN, UP].contains(&matrix).then_some((layer, matrix))
}
