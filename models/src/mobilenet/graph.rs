//! Reads the operations of a folded MobileNet from JSON and checks their shapes.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use crate::error::{ModelError, Result};

/// The largest accepted side or number of channels.
const MAX_SIDE: usize = 1 << 14;
/// The largest accepted number of values in an activation.
const MAX_VALUES: usize = 1 << 26;

/// The shape of an activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub height: usize,
    pub width: usize,
    pub channels: usize,
}

/// The input, the output and the kernel of a convolution.
#[derive(Debug, Clone)]
pub(super) struct Window {
    pub input: Shape,
    pub output: Shape,
    /// Rows and columns of the kernel.
    pub kernel: (usize, usize),
    pub stride: usize,
    /// Rows of zero padding above, and columns of zero padding to the left.
    pub padding: (usize, usize),
    /// Whether the result is clamped to the range 0 to 6.
    pub relu6: bool,
}

/// An operation. Its output is appended to the list of activations.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Convolution { input: usize, window: Window, tensor: String },
    Depthwise { input: usize, window: Window, tensor: String },
    Add { left: usize, right: usize },
    AveragePool { input: usize, channels: usize },
}

impl Step {
    /// The indices of the activations that the step reads.
    pub fn inputs(&self) -> Vec<usize> {
        match self {
            Self::Convolution { input, .. }
            | Self::Depthwise { input, .. }
            | Self::AveragePool { input, .. } => vec![*input],
            Self::Add { left, right } => vec![*left, *right],
        }
    }
}

/// The graph up to the embedding, and the classifier after it. Activation 0 is the image;
/// activation `i` is the output of step `i - 1`.
#[derive(Debug)]
pub(super) struct Graph {
    pub input: Shape,
    pub steps: Vec<Step>,
    pub embedding_width: usize,
    /// The name of the weight tensor and the number of classes; `None` without a classifier.
    pub classifier: Option<(String, usize)>,
}

/// The content of the JSON file.
#[derive(Deserialize)]
struct PublishedGraph {
    input_tensor: u64,
    input_shape: Vec<usize>,
    ops: Vec<Op>,
}

/// An operation of the JSON file.
#[derive(Deserialize)]
struct Op {
    op: String,
    inputs: Vec<u64>,
    outputs: Vec<u64>,
    out_shape: Vec<usize>,
    stride: Option<usize>,
    padding: Option<String>,
    activation: Option<String>,
    tensor: Option<String>,
    weight_shape: Option<Vec<usize>>,
}

/// Reads the graph. Errors name the file and the operation.
pub(super) fn read(path: &Path) -> Result<Graph> {
    let text = std::fs::read(path)
        .map_err(|source| ModelError::Io { path: path.to_path_buf(), source })?;
    let bad_config =
        |reason: String| ModelError::BadConfig { what: path.display().to_string(), reason };
    let published: PublishedGraph = serde_json::from_slice(&text)
        .map_err(|error| bad_config(format!("not a graph of operations: {error}")))?;
    parse(published).map_err(bad_config)
}

/// Checks the operations and their shapes. Errors name the operation.
fn parse(published: PublishedGraph) -> std::result::Result<Graph, String> {
    let input = shape_of(&published.input_shape)?;
    // Maps each tensor of the file to its index in the list of activations and its shape.
    let mut activations = HashMap::from([(published.input_tensor, (0, input))]);
    let mut graph = Graph { input, steps: Vec::new(), embedding_width: 0, classifier: None };
    for (index, op) in published.ops.iter().enumerate() {
        let with_operation = |reason: String| format!("operation {index} ({}): {reason}", op.op);
        if graph.embedding_width > 0 {
            // After the pool: the classifier, then operations that turn its output into
            // probabilities.
            if op.op == "CONV_2D" && graph.classifier.is_none() {
                let tensor =
                    op.tensor.clone().ok_or_else(|| with_operation("no `tensor`".to_owned()))?;
                let classes = shape_of(&op.out_shape).map_err(with_operation)?.channels;
                graph.classifier = Some((tensor, classes));
            } else if !matches!(op.op.as_str(), "RESHAPE" | "SOFTMAX") {
                return Err(with_operation("not supported after the average pool".to_owned()));
            }
            continue;
        }
        let (step, shape) = op.step(&activations).map_err(with_operation)?;
        if shape_of(&op.out_shape).map_err(with_operation)? != shape {
            return Err(with_operation(format!(
                "gives {shape:?}, but the file has {:?}",
                op.out_shape
            )));
        }
        if let Step::AveragePool { channels, .. } = step {
            graph.embedding_width = channels;
        }
        graph.steps.push(step);
        let &[output] = op.outputs.as_slice() else {
            return Err(with_operation("must have exactly one output".to_owned()));
        };
        activations.insert(output, (graph.steps.len(), shape));
    }
    match graph.embedding_width {
        0 => Err("the graph has no average pool, whose output is the embedding".to_owned()),
        _ => Ok(graph),
    }
}

/// Reads a shape `[1, H, W, C]`.
fn shape_of(dims: &[usize]) -> std::result::Result<Shape, String> {
    match *dims {
        [1, height, width, channels]
            if dims.iter().all(|side| (1..=MAX_SIDE).contains(side))
                && height * width * channels <= MAX_VALUES =>
        {
            Ok(Shape { height, width, channels })
        }
        _ => Err(format!("the shape {dims:?} is not an image shape [1, H, W, C]")),
    }
}

impl Op {
    /// Returns the step and the shape of its output.
    fn step(
        &self,
        activations: &HashMap<u64, (usize, Shape)>,
    ) -> std::result::Result<(Step, Shape), String> {
        let input = |index: usize| {
            let tensor = self.inputs.get(index).ok_or("has too few inputs")?;
            activations
                .get(tensor)
                .copied()
                .ok_or("reads a tensor that no earlier operation computes")
        };
        let (first, shape) = input(0)?;
        match self.op.as_str() {
            "CONV_2D" => {
                let (window, tensor) = self.window(shape, false)?;
                let output = window.output;
                Ok((Step::Convolution { input: first, window, tensor }, output))
            }
            "DEPTHWISE_CONV_2D" => {
                let (window, tensor) = self.window(shape, true)?;
                let output = window.output;
                Ok((Step::Depthwise { input: first, window, tensor }, output))
            }
            "ADD" => {
                let (second, other) = input(1)?;
                match (shape == other, self.activation.as_deref()) {
                    (true, None | Some("none")) => {
                        Ok((Step::Add { left: first, right: second }, shape))
                    }
                    (true, Some(activation)) => {
                        Err(format!("unsupported activation `{activation}`"))
                    }
                    (false, _) => Err(format!("adds {shape:?} and {other:?}")),
                }
            }
            "AVERAGE_POOL_2D" => {
                let output = Shape { height: 1, width: 1, ..shape };
                Ok((Step::AveragePool { input: first, channels: shape.channels }, output))
            }
            _ => Err("is not supported".to_owned()),
        }
    }

    /// Returns the window of a convolution of `input`, and the name of its weight tensor.
    fn window(
        &self,
        input: Shape,
        depthwise: bool,
    ) -> std::result::Result<(Window, String), String> {
        let tensor = self.tensor.clone().ok_or("no `tensor`")?;
        let &[channels, input_channels, rows, columns] =
            self.weight_shape.as_deref().ok_or("no `weight_shape`")?
        else {
            return Err(format!("weights of shape {:?}", self.weight_shape));
        };
        let fits = if depthwise {
            channels == input.channels && input_channels == 1
        } else {
            input_channels == input.channels
        };
        let sizes = [channels, rows, columns];
        if !fits || !sizes.iter().all(|size| (1..=MAX_SIDE).contains(size)) {
            return Err(format!("weights of shape {:?} for {input:?}", self.weight_shape));
        }
        let stride = self.stride.filter(|stride| (1..=MAX_SIDE).contains(stride));
        let stride = stride.ok_or("no `stride` of 1 or more")?;
        let relu6 = match self.activation.as_deref() {
            Some("relu6") => true,
            None | Some("none") => false,
            Some(other) => return Err(format!("unsupported activation `{other}`")),
        };
        // The output's size, and the number of zeros before the first row. If the padding is odd,
        // TensorFlow puts the extra zero after the last row.
        let output_and_padding = |size: usize, kernel: usize| match self.padding.as_deref() {
            Some("SAME") => {
                let output = size.div_ceil(stride);
                let zeros = ((output - 1) * stride + kernel).saturating_sub(size);
                Ok((output, zeros / 2))
            }
            Some("VALID") if size >= kernel => Ok(((size - kernel) / stride + 1, 0)),
            other => Err(format!("padding {other:?} does not fit size {size}, kernel {kernel}")),
        };
        let (height, above) = output_and_padding(input.height, rows)?;
        let (width, left) = output_and_padding(input.width, columns)?;
        let output = Shape { height, width, channels };
        let (kernel, padding) = ((rows, columns), (above, left));
        Ok((Window { input, output, kernel, stride, padding, relu6 }, tensor))
    }
}
