//! Evaluation of image captions in COCO and NoCaps files, with the metrics of pycocoevalcap.
//!
//! Captions are tokenized as in pycocoevalcap ([`ptb`]). The tokenizer gets all references in one
//! call and all results in another, each in the order of the annotated images, because the next
//! caption can change the tokens of a caption. The metrics are BLEU-1 to BLEU-4, ROUGE-L, CIDEr-D
//! and plain CIDEr.
//!
//! # Source   X. Chen et al., arXiv 1504.00325; salaniz/pycocoevalcap `eval.py`; NoCaps, arXiv 1812.08658

mod read;
pub mod report;

use std::collections::{BTreeMap, HashMap};

use engram_textfile::shortened;
use serde::Serialize;

pub use read::{parse_annotations, parse_document_frequency, parse_results};

use crate::error::{EvalError, malformed};
use crate::ids::{FileIds, Id, join};
use crate::metric::MetricInfo;
use crate::metric::caption::bleu::{self, BleuStatistics, bleu};
use crate::metric::caption::cider::{self, DocumentFrequency};
use crate::metric::caption::rouge_l::{self, rouge_l};
use crate::metric::caption::{CaptionCorpus, MAX_NGRAM_ORDER, Sentences};
use crate::metric::mean::mean;
use crate::tokenize::ptb::{self, has_line_end};

/// An image and its reference captions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotatedImage {
    /// The image id, unique in the data set.
    pub id: Id<'static>,
    /// The NoCaps domain: `in-domain`, `near-domain` or `out-domain`; `None` in COCO.
    pub domain: Option<String>,
    /// The reference captions, in file order.
    pub references: Vec<String>,
}

/// The annotated images of a data set, in file order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptionAnnotations {
    /// The file name, for messages.
    pub file: String,
    /// The annotated images.
    pub images: Vec<AnnotatedImage>,
}

/// A system's caption for one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptionResult {
    /// The image id.
    pub image_id: Id<'static>,
    /// The predicted caption.
    pub caption: String,
}

/// A system's captions for the images of a data set, in any order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptionResults {
    /// The file name, for messages.
    pub file: String,
    /// One caption per image.
    pub results: Vec<CaptionResult>,
}

/// Options for [`evaluate`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CaptionOptions {
    /// Whether images without a result are skipped, as in pycocoevalcap's example. CIDEr then
    /// counts document frequencies over the images with a result only. Otherwise, a missing result
    /// is an error.
    pub only_with_result: bool,
    /// External document frequencies for CIDEr-D and CIDEr; `None` counts them in the given
    /// references.
    pub document_frequency: Option<DocumentFrequency>,
    /// Whether CIDEr of a domain counts document frequencies in the images of the domain, as if the
    /// domain were evaluated alone. Otherwise it is the mean of the scores of its images. Ignored
    /// if `document_frequency` is given.
    pub own_frequencies: bool,
}

/// Number of metrics in [`CaptionMetrics`].
pub const METRICS: usize = MAX_NGRAM_ORDER + 3;

/// The metrics of one image or of a set of images.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CaptionMetrics {
    /// BLEU-1 to BLEU-4.
    pub bleu: [f64; MAX_NGRAM_ORDER],
    /// ROUGE-L.
    pub rouge_l: f64,
    /// CIDEr-D, named "CIDEr" in pycocoevalcap.
    pub cider_d: f64,
    /// Plain CIDEr.
    pub cider: f64,
}

impl CaptionMetrics {
    /// Name, version, direction and unit of each of [`values`](Self::values), in the same order.
    pub const INFO: [MetricInfo; METRICS] = [
        bleu::BLEU_1,
        bleu::BLEU_2,
        bleu::BLEU_3,
        bleu::BLEU_4,
        rouge_l::INFO,
        cider::CIDER_D_INFO,
        cider::CIDER_INFO,
    ];

    /// All metrics: BLEU-1 to BLEU-4, ROUGE-L, CIDEr-D, CIDEr.
    pub fn values(&self) -> [f64; METRICS] {
        let [bleu_1, bleu_2, bleu_3, bleu_4] = self.bleu;
        [bleu_1, bleu_2, bleu_3, bleu_4, self.rouge_l, self.cider_d, self.cider]
    }
}

/// The metrics of one image.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageScores {
    /// The image id.
    pub id: Id<'static>,
    /// The domain of the image; `None` if the annotations have none.
    pub domain: Option<String>,
    /// The image's metrics.
    pub metrics: CaptionMetrics,
    /// The n-gram counts of the image. BLEU of a set of images is computed from their sum.
    pub bleu_statistics: BleuStatistics,
}

/// The metrics over the images of one domain.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainScores {
    /// Name of the domain, as in the annotations.
    pub name: String,
    /// The indices of the domain's images.
    pub images: Vec<usize>,
    /// The domain's metrics.
    pub metrics: CaptionMetrics,
}

/// All metrics of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct CaptionScores {
    /// The metrics over all images.
    pub corpus: CaptionMetrics,
    /// The metrics by domain: in, near, out, then other domains by name; empty if the annotations
    /// have no domains.
    pub domains: Vec<DomainScores>,
    /// Warnings about the scores; empty if there are none.
    pub warnings: Vec<String>,
    /// The metrics of each image, in the order of the annotations.
    pub images: Vec<ImageScores>,
}

/// Scores the results of a system against the annotations. The scores are bit-identical for any
/// number of threads.
///
/// # Errors
/// [`EvalError::MissingPrediction`], [`EvalError::ExtraPrediction`];
/// [`EvalError::Text`] for two results for one image, and for an image without references
///
/// ```
/// use engram_eval::caption::{CaptionOptions, evaluate, parse_annotations, parse_results};
///
/// let annotations = r#"{
///     "images": [{"id": 1}, {"id": 2}],
///     "annotations": [
///         {"image_id": 1, "id": 10, "caption": "A dog runs."},
///         {"image_id": 1, "id": 11, "caption": "The dog is running"},
///         {"image_id": 2, "id": 12, "caption": "Two red buses"}
///     ]
/// }"#;
/// let results = r#"[{"image_id": 2, "caption": "two red buses"}, {"image_id": 1, "caption": "a dog sits"}]"#;
/// let annotations = parse_annotations("annotations.json", annotations)?;
/// let results = parse_results("results.json", results)?;
/// let scores = evaluate(&annotations, &results, &CaptionOptions::default())?;
/// assert!((scores.images[1].metrics.rouge_l - 1.0).abs() < 1e-12);
/// assert!(scores.corpus.cider_d > 0.0);
/// # Ok::<(), engram_eval::EvalError>(())
/// ```
pub fn evaluate(
    annotations: &CaptionAnnotations,
    results: &CaptionResults,
    options: &CaptionOptions,
) -> Result<CaptionScores, EvalError> {
    let pairs = join_results(annotations, results, options.only_with_result)?;
    let mut warnings = Vec::new();
    let corpus = tokenized_corpus(&pairs, [&annotations.file, &results.file], &mut warnings)?;
    if pairs.len() < annotations.images.len() {
        warnings.push(format!(
            "{} of {} annotated images have no result and are skipped",
            annotations.images.len() - pairs.len(),
            annotations.images.len()
        ));
    }
    let frequency = options.document_frequency.as_ref();
    if pairs.len() == 1 && frequency.is_none() {
        warnings.push(
            "CIDEr-D and CIDEr are 0: with a single image every n-gram has the weight \
             ln 1 - ln 1 = 0. Evaluate more images, or give document frequencies"
                .to_owned(),
        );
    }
    let (cider_d, cider) = cider::cider_d_and_cider(&corpus, frequency);
    let bleu = bleu(&corpus);
    let rouge_l = rouge_l(&corpus);
    let image_scores = |(position, (image, _)): (usize, &(&AnnotatedImage, &str))| ImageScores {
        id: image.id.clone(),
        domain: image.domain.clone(),
        metrics: CaptionMetrics {
            bleu: bleu.images[position],
            rouge_l: rouge_l[position],
            cider_d: cider_d[position],
            cider: cider[position],
        },
        bleu_statistics: bleu.statistics[position],
    };
    let images: Vec<ImageScores> = pairs.iter().enumerate().map(image_scores).collect();
    let metrics = CaptionMetrics {
        bleu: bleu.corpus,
        rouge_l: mean(&rouge_l),
        cider_d: mean(&cider_d),
        cider: mean(&cider),
    };
    let count_per_domain = frequency.is_none() && options.own_frequencies;
    let domains = domain_scores(&images, count_per_domain.then_some(&corpus), &mut warnings);
    Ok(CaptionScores { corpus: metrics, domains, warnings, images })
}

/// Tokenizes the reference captions and the results; `files` are the names of their files, for
/// warnings.
fn tokenized_corpus(
    pairs: &[(&AnnotatedImage, &str)],
    files: [&str; 2],
    warnings: &mut Vec<String>,
) -> Result<CaptionCorpus, EvalError> {
    let references = pairs.iter().flat_map(|(image, _)| &image.references);
    let references: Vec<&str> = references.map(String::as_str).collect();
    let captions: Vec<&str> = pairs.iter().map(|(_, caption)| *caption).collect();
    let all_captions = || references.iter().chain(&captions);
    let bytes = all_captions().map(|caption| caption.len()).sum();
    let mut sentences = Sentences::with_capacity(all_captions().count(), bytes);
    for (captions, file) in [&references, &captions].into_iter().zip(files) {
        warn_of_line_ends(captions, file, warnings);
        let end = sentences.len() + captions.len();
        ptb::tokenize_into(captions, Sentences::push, |part| sentences.append(&part));
        sentences.resize(end);
    }
    Ok(CaptionCorpus::of(sentences, pairs.iter().map(|(image, _)| image.references.len()))?)
}

/// The evaluated images, each with its predicted caption.
fn join_results<'a>(
    annotations: &'a CaptionAnnotations,
    results: &'a CaptionResults,
    only_with_result: bool,
) -> Result<Vec<(&'a AnnotatedImage, &'a str)>, EvalError> {
    let mut entries: HashMap<&Id<'_>, usize> = HashMap::with_capacity(results.results.len());
    for (entry, result) in (1..).zip(&results.results) {
        if let Some(first) = entries.insert(&result.image_id, entry) {
            let id = result.image_id.for_message();
            let reason = format!("entries {first} and {entry} are both for image {id}");
            return Err(malformed(&results.file, None, reason, "give one caption per image"));
        }
    }
    let images = annotations.images.iter().map(|image| &*image.id.0);
    let images = FileIds::without_lines(&annotations.file, images);
    let captions = results.results.iter().map(|result| &*result.image_id.0);
    let captions = FileIds::without_lines(&results.file, captions);
    let joined = join(&images, &captions, only_with_result)?;
    let pair = |(image, index): (&'a AnnotatedImage, Option<usize>)| {
        Some((image, results.results[index?].caption.as_str()))
    };
    let pairs: Vec<_> = annotations.images.iter().zip(joined).filter_map(pair).collect();
    if let Some((image, _)) = pairs.iter().find(|(image, _)| image.references.is_empty()) {
        let reason = format!("image {} has no captions", image.id.for_message());
        let remedy = "give at least one entry of `annotations` for every image";
        return Err(malformed(&annotations.file, None, reason, remedy));
    }
    Ok(pairs)
}

/// The metrics of each domain. If `corpus` is given, CIDEr counts document frequencies in the
/// images of the domain; with `None`, the scores of the images are averaged. Images without a
/// domain are ignored.
fn domain_scores(
    images: &[ImageScores],
    corpus: Option<&CaptionCorpus>,
    warnings: &mut Vec<String>,
) -> Vec<DomainScores> {
    const ORDER: [&str; 3] = ["in-domain", "near-domain", "out-domain"];
    let mut positions: BTreeMap<(usize, &str), Vec<usize>> = BTreeMap::new();
    for (position, image) in images.iter().enumerate() {
        if let Some(domain) = image.domain.as_deref() {
            let rank = ORDER.iter().position(|&name| name == domain).unwrap_or(ORDER.len());
            positions.entry((rank, domain)).or_default().push(position);
        }
    }
    let mut domains = Vec::with_capacity(positions.len());
    for ((_, name), positions) in positions {
        let values = |metric: fn(&CaptionMetrics) -> f64| {
            positions.iter().map(|&image| metric(&images[image].metrics)).collect::<Vec<_>>()
        };
        let (cider_d, cider) = if let Some(corpus) = corpus {
            if positions.len() == 1 {
                let name = shortened(name, 60);
                warnings.push(format!("CIDEr-D and CIDEr of {name} are 0: it has one image"));
            }
            cider::of_subset(corpus, &positions)
        } else {
            (values(|metrics| metrics.cider_d), values(|metrics| metrics.cider))
        };
        let bleu = positions.iter().map(|&image| images[image].bleu_statistics);
        let metrics = CaptionMetrics {
            bleu: bleu.sum::<BleuStatistics>().scores(),
            rouge_l: mean(&values(|metrics| metrics.rouge_l)),
            cider_d: mean(&cider_d),
            cider: mean(&cider),
        };
        domains.push(DomainScores { name: name.to_owned(), images: positions, metrics });
    }
    domains
}

fn warn_of_line_ends(captions: &[&str], file: &str, warnings: &mut Vec<String>) {
    let count = captions.iter().filter(|caption| has_line_end(caption)).count();
    if count > 0 {
        warnings.push(format!(
            "{file}: captions with a line end other than \\n: {count}. Each such line end splits its \
             caption in two, so later captions are scored for the wrong image, as with the \
             reference tokenizer. Remove these line ends"
        ));
    }
}
