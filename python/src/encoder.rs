//! Encoders of texts and images.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use engram::data::image::DecodedImage;
use engram::infer::encode::{Item, Prepared, PromptChoice};
use engram::models::compute::{Compute, Precision};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::errors::{DataError, raised};
use crate::process::detached;

/// The number of texts or images that are encoded at once.
const BATCH: usize = 64;

/// A frozen encoder of texts, images or both.
#[pyclass(frozen, module = "engram._engram")]
pub(crate) struct Encoder {
    encoder: RwLock<engram::infer::encode::Encoder>,
}

/// The file of an image, or its bytes.
#[derive(FromPyObject)]
pub(crate) enum Image {
    Bytes(Vec<u8>),
    File(PathBuf),
}

/// The prompt of a name, or a text before each text.
fn prompt_choice(name: Option<&str>, text: Option<String>) -> PromptChoice {
    match (text, name) {
        (Some(text), _) => PromptChoice::Text(text),
        (None, None) => PromptChoice::Default,
        (None, Some("query")) => PromptChoice::Query,
        (None, Some("document")) => PromptChoice::Document,
        (None, Some(name)) => PromptChoice::Named(name.to_owned()),
    }
}

/// Opens a device, `cpu`, `cuda` or `cuda:N`.
pub(crate) fn compute(device: &str) -> PyResult<Compute> {
    Compute::open(device, Precision::F32).map_err(raised)
}

#[pymethods]
impl Encoder {
    #[new]
    fn new(
        py: Python<'_>,
        model: String,
        device: &str,
        prompt_name: Option<&str>,
        prompt: Option<String>,
    ) -> PyResult<Self> {
        crate::warn_in_python();
        let (compute, choice) = (compute(device)?, prompt_choice(prompt_name, prompt));
        let open = || engram::infer::encode::Encoder::with_prompt(&model, &choice, &compute);
        Ok(Self { encoder: RwLock::new(detached(py, open).map_err(raised)?) })
    }

    /// The width of a vector.
    #[getter]
    fn width(&self) -> usize {
        self.read().width()
    }

    /// The greatest number of tokens of a text; `None` without a limit.
    #[getter]
    fn max_length(&self) -> Option<usize> {
        self.read().max_length()
    }

    /// Sets the greatest number of tokens of a text.
    #[setter]
    fn set_max_length(&self, py: Python<'_>, length: usize) -> PyResult<()> {
        detached(py, || {
            let mut encoder = self.encoder.write().unwrap_or_else(PoisonError::into_inner);
            encoder.set_max_length(length).map_err(raised)
        })
    }

    /// The prompts of the model, the name of its default prompt, and its similarity function, as
    /// JSON.
    #[getter]
    fn prompts(&self) -> PyResult<String> {
        serde_json::to_string(self.read().prompts()).map_err(raised)
    }

    /// Encodes texts, images, or pairs of both, as rows `[inputs, width]`. `progress` gets the number
    /// of encoded inputs. With `unit_length`, each row has length 1.
    fn encode<'py>(
        &self,
        py: Python<'py>,
        texts: Option<Vec<String>>,
        images: Option<Vec<Image>>,
        unit_length: bool,
        progress: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let count = texts.as_ref().map_or(images.as_ref().map_or(0, Vec::len), Vec::len);
        if let (Some(texts), Some(images)) = (&texts, &images)
            && texts.len() != images.len()
        {
            let text = format!("{} texts, but {} images", texts.len(), images.len());
            return Err(PyTypeError::new_err(text));
        }
        // Texts of about equal length are encoded at once.
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|row| texts.as_ref().map_or(0, |texts| texts[*row].len()));
        let width = self.width();
        let mut vectors = vec![0f32; count * width];
        for (done, rows) in order.chunks(BATCH).enumerate() {
            let encoded = detached(py, || {
                let encoder = &*self.read();
                let item = |row: &usize| {
                    let text = texts.as_ref().map(|texts| texts[*row].as_str());
                    prepare(encoder, text, images.as_ref().map(|images| &images[*row]), *row)
                };
                let prepared: PyResult<Vec<Prepared>> = rows.par_iter().map(item).collect();
                let prepared = prepared?;
                let inputs: Vec<&Prepared> = prepared.iter().collect();
                let encoded =
                    if unit_length { encoder.encode(&inputs) } else { encoder.embed(&inputs) };
                encoded.map_err(raised)
            })?;
            for (row, vector) in rows.iter().zip(encoded.chunks(width)) {
                vectors[row * width..][..width].copy_from_slice(vector);
            }
            py.check_signals()?;
            if let Some(progress) = &progress {
                progress.call1(((done * BATCH + rows.len()),))?;
            }
        }
        PyArray1::from_vec(py, vectors).reshape([count, width])
    }
}

impl Encoder {
    fn read(&self) -> RwLockReadGuard<'_, engram::infer::encode::Encoder> {
        self.encoder.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts a text, an image or both to tokens and pixels; `row` names the input in errors.
fn prepare(
    encoder: &engram::infer::encode::Encoder,
    text: Option<&str>,
    image: Option<&Image>,
    row: usize,
) -> PyResult<Prepared> {
    let located = |error: engram::infer::InferError| match text {
        Some(_) => raised(anyhow::Error::from(error).context(format!("input {row}"))),
        None => raised(error),
    };
    match image {
        Some(Image::Bytes(bytes)) => {
            if text.is_some() {
                let text = "a text with an image needs the file of the image, not its bytes";
                return Err(DataError::new_err(text));
            }
            let name = format!("image {row}");
            let image = DecodedImage::from_bytes(&name, bytes).map_err(raised)?;
            encoder.prepare_image(&image, Path::new(&name)).map_err(located)
        }
        Some(Image::File(file)) => {
            encoder.prepare(Item { text, image: Some(file) }).map_err(located)
        }
        None => encoder.prepare(Item { text, image: None }).map_err(located),
    }
}
