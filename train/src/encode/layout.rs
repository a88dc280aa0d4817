//! What the folder of a text encoder says of itself: the modules of sentence-transformers, their settings and prompts.

use engram_models::similarity::sentence_transformer::modules::{self, Module, ModuleKind};
use engram_models::similarity::sentence_transformer::{
    DenseConfig, PoolingConfig, Prompts, SentenceModule, TransformerSettings,
};

use crate::error::{Result, TrainError};
use crate::published::PublishedFolder;

const MODULES: &str = "modules.json";
const PROMPTS: &str = "config_sentence_transformers.json";
const POOLING: &str = "1_Pooling/config.json";

/// A model's folder with its modules.
pub(super) struct Layout {
    folder: PublishedFolder,
    /// The modules in order; the first is the Transformer.
    modules: Vec<Module>,
    /// The name of `modules.json` in messages, where there is one.
    modules_json: Option<String>,
    /// What `config_sentence_transformers.json` says.
    pub(super) prompts: Prompts,
}

impl Layout {
    /// Reads `modules.json` and `config_sentence_transformers.json`. A folder without them is a Transformer whose
    /// states are averaged.
    ///
    /// # Errors
    /// [`TrainError::Model`] for what is not implemented; [`TrainError::Encoder`] for a folder of sentence-transformers
    /// without its `modules.json`.
    pub(super) fn read(folder: PublishedFolder) -> Result<Self> {
        let prompts = match folder.optional_text(PROMPTS)? {
            Some((text, name)) => Prompts::parse(&text, &name)?,
            None => Prompts::default(),
        };
        let Some((text, name)) = folder.optional_text(MODULES)? else {
            let modules = modules::default_modules();
            let layout = Self { folder, modules, modules_json: None, prompts };
            layout.check_plain()?;
            return Ok(layout);
        };
        let modules = modules::parse(&text, &name)?;
        Ok(Self { folder, modules, modules_json: Some(name), prompts })
    }

    /// Fails where files of sentence-transformers ask for more than the mean of the states, and `modules.json`, by which
    /// sentence-transformers finds them, is missing.
    fn check_plain(&self) -> Result<()> {
        let is_plain = match self.folder.optional_text(POOLING)? {
            None => true,
            Some((text, name)) => PoolingConfig::parse(&text, &name)? == PoolingConfig::default(),
        };
        let settings = self.settings(false)?;
        let file = match (is_plain, settings == TransformerSettings::default()) {
            (false, _) => POOLING,
            (true, false) => TransformerSettings::FILES[0],
            (true, true) if self.prompts.has_prompts() => PROMPTS,
            (true, true) => return Ok(()),
        };
        let reason = format!(
            "is missing, and without it sentence-transformers does not read {file}; fetch {MODULES} from the same \
             model, or remove {file} to take the mean of the states"
        );
        Err(TrainError::Encoder { name: self.folder.name_of(MODULES), reason })
    }

    /// The folder of the Transformer.
    pub(super) fn transformer(&self) -> PublishedFolder {
        self.folder.within(&self.modules[0].path)
    }

    /// Whether `modules.json` exists.
    pub(super) fn has_modules(&self) -> bool {
        self.modules_json.is_some()
    }

    /// The settings of the Transformer; `is_clip` says that it is CLIP.
    ///
    /// # Errors
    /// [`TrainError::Model`] for a setting that is not implemented.
    pub(super) fn settings(&self, is_clip: bool) -> Result<TransformerSettings> {
        let transformer = self.transformer();
        for file in TransformerSettings::FILES {
            if let Some((text, name)) = transformer.optional_text(file)? {
                let is_legacy = self.modules[0].kind == ModuleKind::Clip;
                let settings = TransformerSettings::parse(&text, &name, is_clip)?;
                let has_modalities = text.contains("modality_config");
                if is_clip && self.has_modules() && !is_legacy && !has_modalities {
                    return Err(
                        self.refuse("its Transformer is CLIP, but has no `modality_config`")
                    );
                }
                return Ok(settings);
            }
            // On the hub only the usual name is asked for, unless the model has modules.
            if !self.has_modules() {
                break;
            }
        }
        Ok(TransformerSettings::default())
    }

    /// The modules after the Transformer, with their weights. Beside them: what names their files and hashes, for the
    /// model's identity; empty where they only average and normalise.
    ///
    /// # Errors
    /// Files that are missing; modules and settings that are not implemented.
    pub(super) fn modules(&self) -> Result<(Vec<SentenceModule>, String)> {
        if !self.has_modules() {
            let mean = SentenceModule::pooling(PoolingConfig::default(), MODULES);
            return Ok((vec![mean], String::new()));
        }
        let name = self.modules_json.as_deref().unwrap_or(MODULES);
        let (mut built, mut identity) = (Vec::new(), String::new());
        for module in &self.modules[1..] {
            let folder = self.folder.within(&module.path);
            let config = || -> Result<(String, String)> {
                let path = folder.file("config.json")?;
                let text = std::fs::read_to_string(&path).map_err(TrainError::io(&path))?;
                Ok((text, path.display().to_string()))
            };
            built.push(match module.kind {
                ModuleKind::Pooling => {
                    let (text, name) = config()?;
                    let pooling = PoolingConfig::parse(&text, &name)?;
                    if pooling != PoolingConfig::default() {
                        identity.push_str(&format!("{pooling:?}\n"));
                    }
                    SentenceModule::pooling(pooling, &name)
                }
                ModuleKind::Dense => {
                    let ((text, name), weights) = (config()?, folder.weights()?);
                    let dense = DenseConfig::parse(&text, &name)?;
                    identity.push_str(&format!("{dense:?} {}\n", weights.sha256));
                    SentenceModule::dense(dense, &weights.path, &name)?
                }
                ModuleKind::LayerNorm => {
                    let ((text, name), weights) = (config()?, folder.weights()?);
                    identity.push_str(&format!("LayerNorm {}\n", weights.sha256));
                    SentenceModule::layer_norm(&text, &weights.path, &name)?
                }
                ModuleKind::Normalize if module.path.is_empty() => {
                    SentenceModule::normalize(None, name)?
                }
                ModuleKind::Normalize => match folder.optional_text("config.json")? {
                    Some((text, name)) => SentenceModule::normalize(Some(&text), &name)?,
                    None => SentenceModule::normalize(None, name)?,
                },
                ModuleKind::Dropout => continue,
                // `modules::parse` has checked that there is one alone.
                ModuleKind::Transformer | ModuleKind::Clip => continue,
            });
        }
        Ok((built, identity))
    }

    /// Fails for modules that change the vectors of CLIP by more than their length.
    ///
    /// # Errors
    /// [`TrainError::Encoder`] with the file and the module.
    pub(super) fn check_clip(&self) -> Result<()> {
        for module in &self.modules[1..] {
            if !matches!(module.kind, ModuleKind::Normalize | ModuleKind::Dropout) {
                let reason = format!("the module {:?} after CLIP is not implemented", module.kind);
                return Err(self.refuse(&reason));
            }
        }
        match self.prompts.truncate_dim {
            Some(_) => Err(self.refuse("`truncate_dim` is not implemented for CLIP")),
            None => Ok(()),
        }
    }

    fn refuse(&self, reason: &str) -> TrainError {
        let name = self.modules_json.clone().unwrap_or_else(|| self.folder.name_of(MODULES));
        TrainError::Encoder { name, reason: reason.to_owned() }
    }
}
