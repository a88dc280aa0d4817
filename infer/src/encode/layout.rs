//! The layout of a model folder: the modules of sentence-transformers, their settings and prompts.

use engram_models::similarity::Pooling;
use engram_models::similarity::sentence_transformer::modules::{self, Module, ModuleKind};
use engram_models::similarity::sentence_transformer::{
    DenseConfig, PoolingConfig, PoolingMode, Prompts, SentenceModule, TransformerSettings,
};

use crate::error::{InferError, Result};
use crate::pretrained::PretrainedFolder;

const MODULES: &str = "modules.json";
const PROMPTS: &str = "config_sentence_transformers.json";
const POOLING: &str = "1_Pooling/config.json";

/// A model folder with its modules.
pub(super) struct Layout {
    folder: PretrainedFolder,
    /// The modules in order; the first is the Transformer.
    modules: Vec<Module>,
    /// The name of `modules.json` in messages; `None` if the file does not exist.
    modules_json: Option<String>,
    /// The contents of `config_sentence_transformers.json`.
    pub(super) prompts: Prompts,
}

impl Layout {
    /// Reads `modules.json` and `config_sentence_transformers.json`. A folder without
    /// `modules.json` is a Transformer with mean pooling.
    ///
    /// # Errors
    /// [`InferError::Model`] for unsupported settings; [`InferError::Encoder`] for a
    /// sentence-transformers folder without its `modules.json`.
    pub(super) fn read(folder: PretrainedFolder) -> Result<Self> {
        let prompts = match folder.optional_text(PROMPTS)? {
            Some((text, name)) => Prompts::parse(&text, &name)?,
            None => Prompts::default(),
        };
        let Some((text, name)) = folder.optional_text(MODULES)? else {
            let modules = modules::default_modules();
            let layout = Self { folder, modules, modules_json: None, prompts };
            layout.check_mean_pooling()?;
            return Ok(Self { prompts: Prompts::default(), ..layout });
        };
        let modules = modules::parse(&text, &name)?;
        Ok(Self { folder, modules, modules_json: Some(name), prompts })
    }

    /// For a folder without `modules.json`: returns an error if other settings files require more
    /// than mean pooling. sentence-transformers would ignore these files.
    fn check_mean_pooling(&self) -> Result<()> {
        let is_mean_pooling = match self.folder.optional_text(POOLING)? {
            None => true,
            Some((text, name)) => PoolingConfig::parse(&text, &name)? == PoolingConfig::default(),
        };
        let settings = self.settings(false)?;
        let file = match (is_mean_pooling, settings == TransformerSettings::default()) {
            (false, _) => POOLING,
            (true, false) => TransformerSettings::FILES[0],
            (true, true) if self.prompts.has_prompts() => PROMPTS,
            (true, true) => return Ok(()),
        };
        let reason = format!(
            "is missing, and without it sentence-transformers does not read {file}; \
             download {MODULES} of the same model, or remove {file} to use mean pooling"
        );
        Err(InferError::Encoder { name: self.folder.name_of(MODULES), reason })
    }

    /// The names of the modules, with the modes of Pooling, also of the mean pooling that a folder
    /// without `modules.json` has.
    ///
    /// # Errors
    /// The errors of [`modules`](Self::modules).
    pub(super) fn names(&self) -> Result<String> {
        let mut names = Vec::new();
        for module in &self.modules {
            names.push(match module.kind {
                ModuleKind::Pooling => format!("Pooling {:?}", self.pooling(module)?.modes),
                kind => format!("{kind:?}"),
            });
        }
        if !self.has_modules() {
            names.push("Pooling [Mean]".to_owned());
        }
        Ok(names.join(", "))
    }

    /// The configuration of a Pooling module.
    fn pooling(&self, module: &Module) -> Result<PoolingConfig> {
        let (text, name) = self.folder.within(&module.path).text("config.json")?;
        Ok(PoolingConfig::parse(&text, &name)?)
    }

    /// The folder of the Transformer module.
    pub(super) fn transformer(&self) -> PretrainedFolder {
        self.folder.within(&self.modules[0].path)
    }

    /// Whether `modules.json` exists.
    pub(super) fn has_modules(&self) -> bool {
        self.modules_json.is_some()
    }

    /// The settings of the Transformer module. `is_clip` is true for CLIP and SigLIP.
    ///
    /// # Errors
    /// [`InferError::Model`] for an unsupported setting; [`InferError::Encoder`] for a model
    /// with images that sentence-transformers would load as a text encoder.
    pub(super) fn settings(&self, is_clip: bool) -> Result<TransformerSettings> {
        let settings = self.settings_file()?;
        let has_modality_config =
            settings.as_ref().is_some_and(|(text, _)| text.contains("modality_config"));
        let needs_modality_config =
            is_clip && self.has_modules() && self.modules[0].kind == ModuleKind::Transformer;
        if needs_modality_config && !has_modality_config {
            let file = TransformerSettings::FILES[0];
            return Err(self.unsupported(&format!(
                "the Transformer module encodes images, but {file} has no `modality_config`, so \
                 sentence-transformers would load a text encoder; download {file} of the same model"
            )));
        }
        match settings {
            Some((text, name)) => Ok(TransformerSettings::parse(&text, &name, is_clip)?),
            None => Ok(TransformerSettings::default()),
        }
    }

    /// The text and name of the first settings file that exists. Without `modules.json`, only the
    /// first file name is tried.
    fn settings_file(&self) -> Result<Option<(String, String)>> {
        let file_count = if self.has_modules() { TransformerSettings::FILES.len() } else { 1 };
        for file in &TransformerSettings::FILES[..file_count] {
            if let Some(settings) = self.transformer().optional_text(file)? {
                return Ok(Some(settings));
            }
        }
        Ok(None)
    }

    /// The modules after the Transformer, with their weights. Also returns a text with their
    /// configurations and hashes for the model's identity; empty for plain mean pooling.
    ///
    /// # Errors
    /// [`InferError::Data`] and [`InferError::Io`] for missing files; [`InferError::Model`] for
    /// unsupported modules and settings.
    pub(super) fn modules(&self) -> Result<(Vec<SentenceModule>, String)> {
        if !self.has_modules() {
            let mean = SentenceModule::pooling(PoolingConfig::default(), MODULES);
            return Ok((vec![mean], String::new()));
        }
        let name = self.modules_json.as_deref().unwrap_or(MODULES);
        let (mut modules, mut identity) = (Vec::new(), String::new());
        for module in &self.modules[1..] {
            let folder = self.folder.within(&module.path);
            modules.push(match module.kind {
                ModuleKind::Pooling => {
                    let (text, name) = folder.text("config.json")?;
                    let pooling = PoolingConfig::parse(&text, &name)?;
                    if pooling != PoolingConfig::default() {
                        identity.push_str(&format!("{pooling:?}\n"));
                    }
                    SentenceModule::pooling(pooling, &name)
                }
                ModuleKind::Dense => {
                    let ((text, name), weights) = (folder.text("config.json")?, folder.weights()?);
                    let dense = DenseConfig::parse(&text, &name)?;
                    identity.push_str(&format!("{dense:?} {}\n", weights.sha256));
                    SentenceModule::dense(dense, &weights.files.path, &name)?
                }
                ModuleKind::LayerNorm => {
                    let ((text, name), weights) = (folder.text("config.json")?, folder.weights()?);
                    identity.push_str(&format!("LayerNorm {}\n", weights.sha256));
                    SentenceModule::layer_norm(&text, &weights.files.path, &name)?
                }
                ModuleKind::Normalize if module.path.is_empty() => {
                    SentenceModule::normalize(None, name)?
                }
                ModuleKind::Normalize => match folder.optional_text("config.json")? {
                    Some((text, name)) => SentenceModule::normalize(Some(&text), &name)?,
                    None => SentenceModule::normalize(None, name)?,
                },
                ModuleKind::Dropout => continue,
                // `modules::parse` has checked that only the first module has this kind.
                ModuleKind::Transformer | ModuleKind::Clip => continue,
            });
        }
        Ok((modules, identity))
    }

    /// The pooling of the sentence encoder, for training a bi-encoder; `None` if bi-encoders do not
    /// support it.
    ///
    /// # Errors
    /// [`InferError::Data`] and [`InferError::Io`] for a missing file; [`InferError::Model`] for an
    /// unknown mode.
    pub(super) fn trainable_pooling(&self) -> Result<Option<Pooling>> {
        let is_pooling = |module: &&Module| module.kind == ModuleKind::Pooling;
        let Some(module) = self.modules.iter().find(is_pooling).filter(|_| self.has_modules())
        else {
            return Ok(Some(Pooling::Mean));
        };
        Ok(match self.pooling(module)?.modes.as_slice() {
            [PoolingMode::Mean] => Some(Pooling::Mean),
            [PoolingMode::Cls] => Some(Pooling::First),
            _ => None,
        })
    }

    /// For an encoder of images: returns an error if a module after it does more than normalise
    /// vectors to unit length, or if `truncate_dim` is set.
    ///
    /// # Errors
    /// [`InferError::Encoder`] with the file and the module.
    pub(super) fn check_image_encoder(&self) -> Result<()> {
        for module in &self.modules[1..] {
            if !matches!(module.kind, ModuleKind::Normalize | ModuleKind::Dropout) {
                return Err(self.unsupported(&format!(
                    "the module {:?} after an encoder of images is not supported; use another model",
                    module.kind
                )));
            }
        }
        match self.prompts.truncate_dim {
            Some(_) => Err(self.unsupported(
                "`truncate_dim` is not supported for encoders of images; use another model",
            )),
            None => Ok(()),
        }
    }

    fn unsupported(&self, reason: &str) -> InferError {
        let name = self.modules_json.clone().unwrap_or_else(|| self.folder.name_of(MODULES));
        InferError::Encoder { name, reason: reason.to_owned() }
    }
}
