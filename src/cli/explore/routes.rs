//! Handlers of the requests for data. Slow work runs on separate threads, within the budget.
//!
//! A request names an image by the id of its entry or of its test question, never by a path.

use std::io::Read;
use std::sync::Arc;

use anyhow::Context;
use axum::Json;
use axum::extract::{Extension, Path as InPath, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::answers::{Example, MarkedAnswer, QuestionRequest};
use super::budget::{BudgetedBody, MAX_IMAGE_BYTES, Share};
use super::curves;
use super::discover::Run;
use super::images::ShownImage;
use super::memories::{MemoryDescription, SearchRequest, SearchResponse};
use super::rescue::RescueSearch;
use super::server::{ErrorResponse, Explored};
use super::speech::{ClipRequest, ClipTranscripts, SpokenNames};
use crate::cli::output;

type SharedState = State<Arc<Explored>>;
type JsonResult<T> = Result<Json<T>, ErrorResponse>;

/// Runs slow work on a separate thread, so that it does not block other requests. The work
/// continues and keeps its share of the budget even if the browser disconnects.
async fn run_blocking<T: Send + 'static>(
    explored: Arc<Explored>,
    shares: impl Send + 'static,
    work: impl FnOnce(&Explored) -> anyhow::Result<T> + Send + 'static,
) -> Result<T, ErrorResponse> {
    let unprocessable = |reason: String| ErrorResponse(StatusCode::UNPROCESSABLE_ENTITY, reason);
    let permit = explored.budget.work().await?;
    let task = tokio::task::spawn_blocking(move || {
        let _shares = (permit, shares);
        work(&explored)
    });
    task.await
        .map_err(|error| unprocessable(error.to_string()))?
        .map_err(|error| unprocessable(output::with_causes(&error)))
}

/// Responds with the result of slow work, as JSON.
async fn json<T: Send + 'static>(
    explored: Arc<Explored>,
    shares: impl Send + 'static,
    work: impl FnOnce(&Explored) -> anyhow::Result<T> + Send + 'static,
) -> JsonResult<T> {
    run_blocking(explored, shares, work).await.map(Json)
}

pub(super) async fn runs(State(explored): SharedState) -> Json<serde_json::Value> {
    let current: Vec<Run> = explored.runs.iter().map(Run::current_state).collect();
    Json(serde_json::json!(current))
}

pub(super) async fn run_curves(
    State(explored): SharedState,
    InPath(run): InPath<usize>,
) -> JsonResult<curves::Curves> {
    let work = move |explored: &Explored| {
        let run = explored.runs.get(run).with_context(|| format!("there is no run {run}"))?;
        curves::read(&run.folder)
    };
    json(explored, (), work).await
}

pub(super) async fn memories(State(explored): SharedState) -> JsonResult<Vec<MemoryDescription>> {
    json(explored, (), |explored| Ok(explored.memories.describe())).await
}

pub(super) async fn search(
    State(explored): SharedState,
    InPath(memory): InPath<usize>,
    Extension(share): Extension<Share>,
    Json(request): Json<SearchRequest>,
) -> JsonResult<SearchResponse> {
    let shares = (share, explored.decoding(!request.image.is_empty()).await?);
    let work =
        move |explored: &Explored| explored.memories.search(memory, &request, &explored.answerers);
    json(explored, shares, work).await
}

pub(super) async fn entry_image(
    State(explored): SharedState,
    InPath((memory, entry)): InPath<(usize, i64)>,
) -> Result<Response, ErrorResponse> {
    image(explored, move |explored| explored.memories.image(memory, entry, &explored.answerers))
        .await
}

pub(super) async fn entry_recording(
    State(explored): SharedState,
    InPath((memory, entry)): InPath<(usize, i64)>,
) -> Result<Response, ErrorResponse> {
    run_blocking(explored, (), move |explored| explored.memories.recording(memory, entry))
        .await
        .map(audio_wav)
}

pub(super) async fn question_image(
    State(explored): SharedState,
    InPath((run, question)): InPath<(usize, i64)>,
) -> Result<Response, ErrorResponse> {
    image(explored, move |explored| explored.answerers.opened(run)?.question_image(question)).await
}

/// Responds with an image: rendered, or an image file.
async fn image(
    explored: Arc<Explored>,
    find: impl FnOnce(&Explored) -> anyhow::Result<ShownImage> + Send + 'static,
) -> Result<Response, ErrorResponse> {
    let file = match run_blocking(Arc::clone(&explored), (), find).await? {
        ShownImage::Rendered(bytes) => return Ok(png(bytes)),
        ShownImage::File(file) => file,
    };
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    let size = usize::try_from(size).ok().filter(|size| *size <= MAX_IMAGE_BYTES);
    let too_large = || {
        let reason = format!("the image is larger than {} MiB", MAX_IMAGE_BYTES >> 20);
        ErrorResponse(StatusCode::UNPROCESSABLE_ENTITY, reason)
    };
    let share = explored.budget.image(size.ok_or_else(too_large)?).await?;
    let read = move |_: &Explored| {
        let mut bytes = Vec::new();
        engram_durable::open_file(&file)?.take(MAX_IMAGE_BYTES as u64).read_to_end(&mut bytes)?;
        // Only images are served, even if an entry names another file.
        let format = image::guess_format(&bytes).context("the file is not an image")?;
        anyhow::Ok((format.to_mime_type(), bytes))
    };
    let (kind, bytes) = run_blocking(explored, share.clone(), read).await?;
    Ok(([(header::CONTENT_TYPE, kind)], BudgetedBody::body(bytes, share)).into_response())
}

/// Words that the listed questions contain.
#[derive(Deserialize)]
pub(super) struct QuestionFilter {
    #[serde(default)]
    words: String,
}

pub(super) async fn questions(
    State(explored): SharedState,
    InPath(run): InPath<usize>,
    Query(QuestionFilter { words }): Query<QuestionFilter>,
) -> JsonResult<serde_json::Value> {
    let work = move |explored: &Explored| {
        Ok(serde_json::to_value(explored.answerers.opened(run)?.questions(&words)?)?)
    };
    json(explored, (), work).await
}

pub(super) async fn example(
    State(explored): SharedState,
    InPath(run): InPath<usize>,
) -> JsonResult<Example> {
    json(explored, (), move |explored| Ok(explored.answerers.opened(run)?.example()?.clone())).await
}

pub(super) async fn answer(
    State(explored): SharedState,
    InPath(run): InPath<usize>,
    Extension(share): Extension<Share>,
    Json(question): Json<QuestionRequest>,
) -> JsonResult<MarkedAnswer> {
    let shares = (share, explored.decoding(true).await?);
    json(explored, shares, move |explored| explored.answerers.opened(run)?.answer(&question)).await
}

pub(super) async fn names(
    State(explored): SharedState,
    InPath(run): InPath<usize>,
) -> JsonResult<SpokenNames> {
    json(explored, (), move |explored| Ok(explored.asr_models.opened(run)?.names())).await
}

pub(super) async fn rescue(
    State(explored): SharedState,
    InPath(run): InPath<usize>,
) -> JsonResult<RescueSearch> {
    json(explored, (), move |explored| Ok(explored.asr_models.opened(run)?.rescue()?.clone())).await
}

pub(super) async fn frame(
    State(explored): SharedState,
    InPath((run, name, view)): InPath<(usize, usize, usize)>,
) -> Result<Response, ErrorResponse> {
    run_blocking(explored, (), move |explored| explored.asr_models.opened(run)?.view(name, view))
        .await
        .map(png)
}

pub(super) async fn audio(
    State(explored): SharedState,
    InPath(run): InPath<usize>,
    Query(request): Query<ClipRequest>,
) -> Result<Response, ErrorResponse> {
    let wav = run_blocking(explored, (), move |explored| {
        explored.asr_models.opened(run)?.audio(&request)
    })
    .await?;
    Ok(audio_wav(wav))
}

pub(super) async fn transcribe(
    State(explored): SharedState,
    InPath(run): InPath<usize>,
    Query(request): Query<ClipRequest>,
) -> JsonResult<ClipTranscripts> {
    json(explored, (), move |explored| explored.asr_models.opened(run)?.transcribe(&request)).await
}

fn audio_wav(bytes: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "audio/wav")], bytes).into_response()
}

fn png(bytes: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "image/png")], bytes).into_response()
}
