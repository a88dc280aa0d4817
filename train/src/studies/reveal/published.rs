//! Published models named in `[model]`: their sizes, weights, tokenizer and image preprocessing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_data::image::Preprocessing;
use engram_data::text_to_text::T5Tokenizer;
use engram_infer::digest;
use engram_infer::pretrained::PretrainedFolder;
use engram_infer::reveal::images::preprocessing;
use engram_models::mobilenet::{IMAGE_SIZE, MobileNet, WEIGHTS_FILE};
use engram_models::reveal::RevealConfig;
use engram_models::reveal::published::PublishedWeights;
use engram_models::t5::T5Config;
use engram_models::vit::ViTConfig;

use super::settings::RevealModel;
use crate::study::StudyResult;

/// The files of the published models.
#[derive(Default)]
pub struct Published {
    /// The T5 configuration; `None` if `model.t5` is empty.
    pub t5: Option<T5Config>,
    /// The T5 tokenizer; `None` if `model.t5` is empty.
    pub tokenizer: Option<T5Tokenizer>,
    /// The ViT configuration, without the class token; `None` if `model.vit` is empty.
    pub vit: Option<ViTConfig>,
    /// The file of the ViT's image processor; `None` if the ViT's folder has none.
    pub processor: Option<PathBuf>,
    /// The network whose feature maps replace the pixels of images; `None` if `model.mobilenet` is
    /// empty.
    pub mobilenet: Option<Arc<MobileNet>>,
    /// The file of that network.
    pub mobilenet_weights: Option<PathBuf>,
    /// The weights files.
    pub weights: PublishedWeights,
    /// The SHA-256 of each file that was read.
    pub digests: Vec<(String, String)>,
    /// Notes for the report about parts that start from random weights.
    pub notes: Vec<String>,
}

impl Published {
    /// Finds the files of `model.t5`, `model.vit` and `model.mobilenet` in a folder, in the hub's cache, or on the
    /// hub.
    ///
    /// # Errors
    /// If a file is missing, or is the configuration of another model; the error names the file.
    pub fn find(model: &RevealModel) -> StudyResult<Self> {
        let mut published = Self::default();
        if model.t5.is_empty() {
            published
                .notes
                .push("the text model starts from random weights: `model.t5` is empty".to_owned());
        } else {
            let folder = PretrainedFolder::open(&model.t5)?;
            let config_path = folder.file("config.json")?;
            let config = T5Config::read(&config_path)?;
            let tokenizer_path = folder.tokenizer()?;
            let json = engram_durable::read_text(&tokenizer_path)
                .map_err(|error| format!("{}: {error}", tokenizer_path.display()))?;
            let tokenizer = T5Tokenizer::parse(&json, &tokenizer_path)?;
            tokenizer.check_embeddings(config.vocab_size)?;
            let weights = folder.weights()?;
            published.digest("T5 sizes", &config_path)?;
            published.digest("T5 tokenizer", &tokenizer_path)?;
            published.digests.push(("T5 weights".to_owned(), weights.sha256));
            published.weights.t5 = Some(weights.files);
            (published.t5, published.tokenizer) = (Some(config), Some(tokenizer));
        }
        if !model.mobilenet.is_empty() {
            let path = PretrainedFolder::open(&model.mobilenet)?.file(WEIGHTS_FILE)?;
            published.digest("MobileNetV2 weights", &path)?;
            published.mobilenet = Some(Arc::new(MobileNet::read(&path)?));
            published.mobilenet_weights = Some(path);
        } else if model.vit.is_empty() {
            let note = "the image encoder starts from random weights: `model.vit` is empty";
            published.notes.push(note.to_owned());
        } else {
            let folder = PretrainedFolder::open(&model.vit)?;
            let config_path = folder.file("config.json")?;
            let config = ViTConfig::read(&config_path)?;
            let weights = folder.weights()?;
            published.digest("ViT sizes", &config_path)?;
            published.digests.push(("ViT weights".to_owned(), weights.sha256));
            published.weights.vit = Some(weights.files);
            published.vit = Some(ViTConfig { class_token: false, ..config });
            published.processor = folder.optional_image_processor()?.map(|(path, _)| path);
            if let Some(processor) = published.processor.clone() {
                published.digest("ViT image processor", &processor)?;
            }
        }
        Ok(published)
    }

    /// Whether no published weights are used.
    pub fn is_unused(&self) -> bool {
        self.weights == PublishedWeights::default() && self.mobilenet_weights.is_none()
    }

    /// Width and height of an image after its preprocessing, in pixels.
    pub fn image_size(&self, config: &RevealConfig) -> usize {
        self.mobilenet.as_ref().map_or(config.image.image_size, |_| IMAGE_SIZE)
    }

    /// Adds the SHA-256 of a file.
    fn digest(&mut self, name: &str, path: &Path) -> StudyResult<()> {
        let (_, hash) =
            digest::of_file(path).map_err(|error| format!("{}: {error}", path.display()))?;
        self.digests.push((name.to_owned(), hash));
        Ok(())
    }

    /// The preprocessing of images to `size` × `size` pixels.
    ///
    /// # Errors
    /// If the processor file gives another image size.
    pub fn preprocessing(&self, size: usize) -> StudyResult<Preprocessing> {
        Ok(preprocessing(self.processor.as_deref(), size)?)
    }
}
