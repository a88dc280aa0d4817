//! Settings of the study: `[data]`, `[model]`, `[memory]` and the feed of a phase.

mod files;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use engram_infer::reveal::sequences::Prompts;
use engram_memory::ValueDtype;

use super::super::checks::{
    Invalid, at_least_zero, below_one, first, fraction, invalid_if, positive,
};
use crate::recipe::{is_default, table};

pub use files::{CaptionFile, OnBadImage, QuestionFile, Things};

/// The study's part of a recipe.
#[derive(Debug, Clone)]
pub struct RevealSettings {
    /// `[data]`
    pub data: RevealData,
    /// `[model]`
    pub model: RevealModel,
    /// `[memory]`
    pub memory: RevealMemory,
    /// The feed of each phase.
    pub feeds: Vec<RevealFeed>,
}

table! {
    /// `[data]`: entries, images and questions.
    pub struct RevealData {
        /// The seed of the embedded world; with files, the seed of the split and of augmented
        /// views.
        pub world_seed: u64 = 1,
        /// Maximum number of images of the embedded world, or of images with examples in files; 0
        /// for all. In files, equal images and images of the same document count as one.
        pub max_images: usize = 0,
        /// Folder of the files; empty for the embedded world.
        pub path: String = String::new(),
        /// Caption files.
        pub captions: Vec<CaptionFile> = Vec::new(),
        /// Question files.
        pub questions: Vec<QuestionFile> = Vec::new(),
        /// Files of further entries, in `path`, as written by `engram data entries`; their images
        /// are in `path` too.
        pub entries: Vec<String> = Vec::new(),
        /// Pictures of named things, instead of other files.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub things: Option<Things> = None,
        /// Number of made-up databases of facts to train on, instead of files; `world_seed` is their
        /// seed.
        #[serde(skip_serializing_if = "is_default")]
        pub triplets: usize = 0,
        /// Fraction of images drawn for validation, among images without a given split; counted as
        /// for `max_images`.
        pub validation_share: f64 = 0.1,
        /// Fraction of images drawn for the test, among images without a given split; counted as
        /// for `max_images`.
        pub test_share: f64 = 0.2,
        /// What to do with images that are missing or do not decode.
        pub on_bad_image: OnBadImage = OnBadImage::Refuse,
        /// MiB of main memory for decoded images, and again for feature maps of `model.mobilenet`; 0
        /// for no cache.
        pub image_cache_mib: u64 = 1024,
        /// Sources whose entries are excluded from the memory.
        pub without_sources: Vec<String> = Vec::new(),
        /// Vocabulary size of a tokenizer built from the training texts. Without effect with
        /// `[start]`, whose run has a tokenizer, and with `model.t5`.
        pub vocabulary: usize = 3000,
        /// Prompts before the texts of queries and entries.
        pub prompts: Prompts = Prompts::default(),
        /// Maximum number of tokens of an entry.
        pub max_entry_tokens: usize = 48,
        /// Maximum number of tokens of a query.
        pub max_query_tokens: usize = 32,
        /// Maximum number of tokens of an answer.
        pub max_answer_tokens: usize = 12,
        /// Maximum number of validation questions in an evaluation; 0 for all.
        pub evaluated_questions: usize = 512,
    }
}

/// The source of the model's sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// The sizes in the recipe.
    #[default]
    Own,
    /// REVEAL-base: T5 base and ViT-B/16.
    Base,
    /// REVEAL-large: T5 large and ViT-L/16.
    Large,
}

table! {
    /// `[model]`: the sizes of the model, and its initial weights.
    ///
    /// A published `size` fixes the keys from `d_model` to `score_ceiling`, except `gate`.
    /// Published weights fix the keys that their configuration has. Giving a fixed key another
    /// value is an error.
    pub struct RevealModel {
        /// The source of the sizes.
        pub size: Size = Size::Own,
        /// A T5 v1.1 to start from, with its tokenizer: a folder, or `hf://owner/name`; empty for
        /// random weights.
        pub t5: String = String::new(),
        /// A ViT to start from: a folder, or `hf://owner/name`; empty for random weights.
        pub vit: String = String::new(),
        /// A MobileNetV2 whose feature maps (7 × 7 cells) replace the pixels of images: a folder, or
        /// `hf://owner/name`; empty for pixels. It stays frozen; the image encoder above it is
        /// trained.
        pub mobilenet: String = String::new(),
        /// Fraction of the image encoder's blocks before a stop-gradient.
        pub frozen_image_share: f64 = 0.0,
        /// Fraction of the text encoder's layers below the fusion before a stop-gradient.
        pub frozen_text_share: f64 = 0.0,
        /// Width `D` of texts, values and the decoder.
        pub d_model: usize = 128,
        /// Number of T5's attention heads.
        pub num_heads: usize = 4,
        /// Width of an attention head.
        pub d_kv: usize = 32,
        /// Width of T5's feed-forward layers.
        pub d_ff: usize = 256,
        /// Number of text encoder layers below the fusion.
        pub text_layers: usize = 1,
        /// Number of fusion layers.
        pub fusion_layers: usize = 2,
        /// Number of layers in the query head, the key head and the Perceiver.
        pub head_layers: usize = 1,
        /// Number of decoder layers.
        pub decoder_layers: usize = 2,
        /// Edge of an image, in pixels.
        pub image_size: usize = 48,
        /// Edge of a patch, in pixels.
        pub patch_size: usize = 8,
        /// Channels of stride-2 convolutions whose output for each patch is added to the patch
        /// embedding; empty for none.
        pub stem_channels: Vec<usize> = Vec::new(),
        /// Width of the image encoder.
        pub image_width: usize = 128,
        /// Number of attention heads of the image encoder.
        pub image_heads: usize = 4,
        /// Width of the image encoder's feed-forward layers.
        pub image_ff: usize = 256,
        /// Number of image encoder blocks.
        pub image_layers: usize = 3,
        /// Whether the key head begins as a copy of the query head, so that equal inputs have equal
        /// queries and keys at the start. Otherwise both begin with random weights of their own.
        pub equal_heads: bool = false,
        /// Number of tokens per value.
        pub value_tokens: usize = 8,
        /// Number of learned positions of an entry's tokens and of an answer's, which a model needs to
        /// copy words that training never shows; 0 for none, as published.
        pub positions: usize = 0,
        /// Width of queries and keys.
        pub key_dim: usize = 128,
        /// Whether a learned gate weighs the sources for each query.
        pub gate: bool = true,
        /// Upper limit of the learned factor on retrieval scores; 5 as published.
        pub score_ceiling: f64 = 5.0,
        /// Whether the retrieved entries compete with a learned score of finding no entry, so that the
        /// model learns to answer "unknown" if the memory has no answer.
        #[serde(skip_serializing_if = "is_default")]
        pub no_entry: bool = false,
        /// Factor on patch tokens and value tokens; 4 as published.
        pub token_scale: f64 = 4.0,
        /// Dropout of T5's layers.
        pub dropout: f64 = 0.0,
    }
}

table! {
    /// `[memory]`: retrieval and refresh.
    pub struct RevealMemory {
        /// Number of entries to retrieve per query; 0 for a model without memory.
        pub k: usize = 10,
        /// Fraction of the retrieved entries, from the top, to re-encode with the current weights.
        pub reencoded_fraction: f64 = 0.2,
        /// Steps between refreshes of the memory; 0 for no refresh.
        pub refresh_every: u64 = 500,
        /// Steps between the start and the adoption of a refresh, during which training continues.
        pub refresh_lag: u64 = 0,
        /// Number type of the values in the memory. `int8` and `int4` need less space and round
        /// more.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(schema_with = "value_types")]
        pub value_type: ValueDtype = ValueDtype::F16,
        /// Address of an object store for the values of the memory, such as `s3://bucket/run`, or a
        /// folder; by default, the values are in the run's folder. The keys are always there. Each
        /// run needs an address of its own. Each refresh stores another copy of all values; `engram
        /// memory sweep --keep 2` removes old ones. Needs a program with the feature `objects`, and
        /// a single rank.
        #[serde(skip_serializing_if = "is_default")]
        pub values: Option<String> = None,
        /// Address of the memory on PostgreSQL, such as `postgres://ann@db.example/wiki?memory=r1`,
        /// or addresses of several servers, separated by commas; by default, the memory is in the
        /// run's folder. Other programs can search it there while the run trains and refreshes it.
        /// A finished run has a copy in its folder, too, so that it needs no server. Each run needs
        /// an address of its own. Needs a program with the feature `postgres`, and a single rank.
        #[serde(skip_serializing_if = "is_default")]
        pub server: Option<String> = None,
    }
}

/// The schema of the names of number types.
fn value_types(_: &mut SchemaGenerator) -> Schema {
    let names = ValueDtype::ALL.map(ValueDtype::name);
    json_schema!({ "type": "string", "enum": names, "default": ValueDtype::default().name() })
}

/// The examples of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Examples {
    /// Training images alone: another view of each must match its view in the memory. Nothing is
    /// generated. This phase replaces the published image encoder's own pre-training.
    Images,
    /// Entries about training images: the beginning of a text, to be continued.
    Entries,
    /// Training questions with their answers.
    Questions,
    /// Exercises in reading, for pictures of things: questions about made-up names, without images.
    Reading,
    /// The same with pictures: made-up names for training things and graphics.
    Naming,
}

impl Examples {
    /// Whether the examples are about made-up names, whose entries are not in the memory.
    pub fn are_made_up(self) -> bool {
        matches!(self, Self::Reading | Self::Naming)
    }
}

/// The entries that an example reads in addition to its query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Knowledge {
    /// No entries.
    None,
    /// The own entry of the example, which contains its answer, and the own entry of another
    /// example as a negative: the pseudo ground truth of the warm start.
    Own,
    /// The own entries of the batch's examples with the highest scores, among them the own entry of
    /// the example: hard negatives without a memory.
    Batch,
    /// Retrieved entries.
    Retrieved,
}

impl Knowledge {
    /// Whether only own entries are read, so that each example must have one.
    pub fn is_of_own_entries(self) -> bool {
        matches!(self, Self::Own | Self::Batch)
    }
}

table! {
    /// `[phase.feed]`: the training examples of a phase.
    pub struct RevealFeed {
        /// The kind of examples.
        pub examples: Examples = Examples::Questions,
        /// The entries that the examples read in addition to their queries.
        pub knowledge: Knowledge = Knowledge::Retrieved,
        /// The weight of the contrastive loss. The generation loss has the weight `1 −
        /// contrastive`.
        pub contrastive: f64 = 0.0,
        /// The temperature of the contrastive loss.
        pub temperature: f64 = 0.2,
        /// The weight of the decorrelation loss of value tokens.
        pub decorrelation: f64 = 1e-2,
        /// The weight of the alignment loss between value and query tokens.
        pub alignment: f64 = 1e-4,
        /// The label smoothing of the generation loss.
        pub label_smoothing: f32 = 0.01,
        /// Batch size of this phase; by default `batch.examples`.
        pub batch: Option<usize> = None,
        /// Number of consecutive examples of the data to put into one batch; 1 to shuffle single
        /// examples. Consecutive examples are often about the same image or similar images, and
        /// these are the hardest negatives.
        pub neighbours: usize = 1,
        /// Fraction of batches whose images are all rotated, mirrored or colour-permuted in the
        /// same way. Not allowed in a phase that reads the memory: the memory has the original
        /// images.
        pub augment: f64 = 0.0,
        /// Probability that an example reads its own entry, which contains its answer, instead of
        /// its re-encoded entries.
        pub own_knowledge: f64 = 0.0,
        /// Number of entries that an example reads with `knowledge = "batch"`.
        #[serde(skip_serializing_if = "is_default")]
        pub candidates: usize = 0,
        /// Probability that an example reads all but its own entry with `knowledge = "batch"`. Its
        /// answer is then "unknown".
        #[serde(skip_serializing_if = "is_default")]
        pub absent: f64 = 0.0,
    }
}

impl RevealFeed {
    /// Whether the memory is read.
    pub fn retrieves(&self) -> bool {
        self.knowledge == Knowledge::Retrieved && self.examples != Examples::Images
    }

    /// The first invalid key, with the reason.
    pub fn first_invalid_key(&self) -> Invalid {
        first([
            fraction("contrastive", self.contrastive),
            fraction("augment", self.augment),
            fraction("own_knowledge", self.own_knowledge),
            invalid_if(
                self.augment > 0.0 && self.retrieves(),
                "augment",
                "is above 0, but the memory has the original images; must be 0",
            ),
            invalid_if(
                self.examples.are_made_up() && !self.knowledge.is_of_own_entries(),
                "knowledge",
                "must be `own` or `batch`: the entries of exercises in reading are not in the memory",
            ),
            fraction("absent", self.absent),
            invalid_if(
                (self.candidates > 0) != (self.knowledge == Knowledge::Batch),
                "candidates",
                "must be above 0 with `knowledge = \"batch\"`, and 0 otherwise",
            ),
            invalid_if(
                self.absent > 0.0 && self.knowledge != Knowledge::Batch,
                "absent",
                "is above 0; this needs `knowledge = \"batch\"`",
            ),
            at_least_zero("decorrelation", self.decorrelation),
            at_least_zero("alignment", self.alignment),
            positive("temperature", self.temperature),
            below_one("label_smoothing", self.label_smoothing.into()),
            invalid_if(
                self.batch.is_some_and(|batch| batch < 2),
                "batch",
                "is below 2: each example needs another as its negative",
            ),
        ])
    }
}

impl RevealModel {
    /// The first invalid key, with the reason.
    pub fn first_invalid_key(&self) -> Invalid {
        let size = |key, size| invalid_if(size == 0, key, "is 0; must be at least 1");
        first([
            fraction("frozen_image_share", self.frozen_image_share),
            fraction("frozen_text_share", self.frozen_text_share),
            size("d_model", self.d_model),
            size("num_heads", self.num_heads),
            size("d_kv", self.d_kv),
            size("d_ff", self.d_ff),
            size("image_size", self.image_size),
            size("patch_size", self.patch_size),
            size("image_width", self.image_width),
            size("image_heads", self.image_heads),
            size("image_ff", self.image_ff),
            size("value_tokens", self.value_tokens),
            size("key_dim", self.key_dim),
            size("head_layers", self.head_layers),
            invalid_if(
                self.stem_channels.contains(&0),
                "stem_channels",
                "has a 0; each must be at least 1",
            ),
            positive("score_ceiling", self.score_ceiling),
            self.fixed_key(),
        ])
    }

    /// The first key with a value of its own that published weights or a published size fix.
    fn fixed_key(&self) -> Invalid {
        let defaults = Self::default();
        macro_rules! given {
            ($weights:literal, $is_used:expr, $($key:ident),*) => {
                $(if $is_used && self.$key != defaults.$key {
                    let weights = $weights;
                    let reason =
                        format!("has no effect with `{weights}`, which has its own value; remove it");
                    return Some((stringify!($key), reason));
                })*
            };
        }
        let has_t5 = !self.t5.is_empty();
        given!("model.t5", has_t5, d_model, num_heads, d_kv, d_ff, text_layers, decoder_layers);
        let has_vit = !self.vit.is_empty();
        given!("model.vit", has_vit, image_size, patch_size, stem_channels, image_width);
        let has_maps = !self.mobilenet.is_empty();
        given!("model.mobilenet", has_maps, vit, image_size, patch_size, stem_channels);
        given!("model.vit", has_vit, image_heads, image_ff, image_layers);
        // A published size overrides the keys that are not in this list, so they must have their
        // default values.
        let with_free_keys = Self {
            size: Size::Own,
            t5: self.t5.clone(),
            vit: self.vit.clone(),
            mobilenet: self.mobilenet.clone(),
            frozen_image_share: self.frozen_image_share,
            frozen_text_share: self.frozen_text_share,
            equal_heads: self.equal_heads,
            gate: self.gate,
            token_scale: self.token_scale,
            dropout: self.dropout,
            ..Self::default()
        };
        let with_own_size = Self { size: Size::Own, ..self.clone() };
        invalid_if(
            self.size != Size::Own && with_own_size != with_free_keys,
            "size",
            "is a published size, but another key sets a value of its own; remove those keys, or \
             use `size = \"own\"`",
        )
    }
}

impl RevealMemory {
    /// The first invalid key, with the reason.
    pub fn first_invalid_key(&self) -> Invalid {
        let (lag, every) = (self.refresh_lag, self.refresh_every);
        let reason = format!(
            "is {lag}; must be below `refresh_every` = {every}, so that each refresh is adopted \
             before the next one starts"
        );
        first([
            fraction("reencoded_fraction", self.reencoded_fraction),
            invalid_if(every > 0 && lag >= every, "refresh_lag", reason),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_or_unused_sizes_are_refused() {
        let default_model = RevealModel::default;
        let invalid_key = |model: RevealModel| model.first_invalid_key().map(|(key, _)| key);
        let t5 = RevealModel { t5: "x".into(), ..default_model() };
        let vit = RevealModel { vit: "x".into(), ..default_model() };
        assert_eq!(invalid_key(RevealModel { d_ff: 7, ..t5.clone() }), Some("d_ff"));
        assert_eq!(invalid_key(RevealModel { d_ff: 7, ..vit.clone() }), None);
        assert_eq!(invalid_key(RevealModel { image_layers: 7, ..vit }), Some("image_layers"));
        assert_eq!(invalid_key(RevealModel { image_layers: 7, ..t5.clone() }), None);
        assert_eq!(
            invalid_key(RevealModel { value_tokens: 0, ..default_model() }),
            Some("value_tokens")
        );
        assert_eq!(
            invalid_key(RevealModel { head_layers: 0, ..default_model() }),
            Some("head_layers")
        );
        assert_eq!(
            invalid_key(RevealModel { score_ceiling: f64::NAN, ..default_model() }),
            Some("score_ceiling")
        );
        // The fusion and the memory have their own sizes.
        assert_eq!(invalid_key(RevealModel { fusion_layers: 1, key_dim: 8, ..t5 }), None);
    }

    #[test]
    fn feeds_that_do_not_fit_the_memory_are_refused() {
        let retrieved = RevealFeed { augment: 0.5, ..RevealFeed::default() };
        let own_entries = RevealFeed { knowledge: Knowledge::Own, ..retrieved.clone() };
        let images = RevealFeed { examples: Examples::Images, ..retrieved.clone() };
        let reading = RevealFeed { examples: Examples::Reading, augment: 0.0, ..retrieved.clone() };
        assert_eq!(reading.first_invalid_key().map(|(key, _)| key), Some("knowledge"));
        assert_eq!(retrieved.first_invalid_key().map(|(key, _)| key), Some("augment"));
        assert!(own_entries.first_invalid_key().is_none() && images.first_invalid_key().is_none());
    }
}
