//! The page and its data, for this machine alone.
//!
//! It listens on 127.0.0.1. A page of another site that the browser shows at the same time gets nothing: names that
//! lead here are refused (`Host`), and what such pages ask for (`Origin`, `Sec-Fetch-Site`); what is sent has to be JSON,
//! and pictures are found by their entry's id within one folder. The page itself may load nothing but what stands here.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Json;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Path as InPath, Query, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use engram_train::studies::reveal::predict::Answer;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use super::answers::{Asked, Asking};
use super::curves;
use super::found::Run;
use super::lazily::LazyRuns;
use super::memories::{Described, Hits, Memories, Wanted};
use super::speech::{self, HeardClip, Hearer, Said};
use crate::cli::output;

/// Bytes of the largest request: a photograph in base64.
const LARGEST_REQUEST: usize = 32 << 20;
/// Bytes of the longest reason that is told.
const LONGEST_REASON: usize = 1 << 16;
/// How long requests under way are waited for at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Where a browser says from which page a request comes.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Nothing but what comes from here, and pictures that were dropped on the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page: where each of its files stands, its type, its text.
const PAGE: [(&str, &str, &str); 11] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/palette.css", "text/css", engram_eval::html::PALETTE),
    ("/explore.css", "text/css", include_str!("page/explore.css")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("/explore.js", SCRIPT, include_str!("page/explore.js")),
    ("/page.js", SCRIPT, include_str!("page/page.js")),
    ("/chart.js", SCRIPT, include_str!("page/chart.js")),
    ("/curves.js", SCRIPT, include_str!("page/curves.js")),
    ("/memory.js", SCRIPT, include_str!("page/memory.js")),
    ("/answers.js", SCRIPT, include_str!("page/answers.js")),
    ("/speech.js", SCRIPT, include_str!("page/speech.js")),
];
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// What is explored.
pub(super) struct Explored {
    pub(super) runs: Vec<Run>,
    pub(super) memories: Memories,
    pub(super) answerers: LazyRuns<Asking>,
    pub(super) recognisers: LazyRuns<Hearer>,
}

type Shared = State<Arc<Explored>>;
type Answered<T> = Result<Json<T>, Refused>;

/// Serves the page until Ctrl-C.
pub(super) fn serve(explored: Explored, port: u16) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("no threads for the page")?;
    let served = runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.with_context(|| {
            format!("port {port} of 127.0.0.1 could not be taken; give another --port, or none")
        })?;
        let address = listener.local_addr()?.to_string();
        output::print(&format!("http://{address}/"))?;
        let stopped = async {
            let _ = tokio::signal::ctrl_c().await;
        };
        let app = app(explored, &address);
        let served = axum::serve(listener, app).with_graceful_shutdown(stopped).into_future();
        // Requests under way may be finished, but nobody waits long for them.
        let waited = async {
            let _ = tokio::signal::ctrl_c().await;
            tokio::time::sleep(LAST_ANSWERS).await;
        };
        tokio::select! {
            served = served => served?,
            () = waited => {}
        }
        Ok(())
    });
    runtime.shutdown_background();
    served
}

/// The page at an address.
fn app(explored: Explored, address: &str) -> Router {
    let mut hosts = vec![address.to_owned(), address.replace("127.0.0.1", "localhost")];
    // Browsers leave the usual port out.
    let short: Vec<String> =
        hosts.iter().filter_map(|host| host.strip_suffix(":80")).map(str::to_owned).collect();
    hosts.extend(short);
    let hosts: Arc<[String]> = hosts.into();
    let mut app = Router::new();
    for (path, kind, text) in PAGE {
        app = app.route(path, get(move || async move { ([(header::CONTENT_TYPE, kind)], text) }));
    }
    app.route("/api/runs", get(runs))
        .route("/api/runs/{run}/curves", get(run_curves))
        .route("/api/runs/{run}/questions", get(questions))
        .route("/api/runs/{run}/views/{picture}/{view}", get(view))
        .route("/api/runs/{run}/answer", post(answer))
        .route("/api/runs/{run}/names", get(names))
        .route("/api/runs/{run}/frames/{name}/{view}", get(frame))
        .route("/api/runs/{run}/sound", get(sound))
        .route("/api/runs/{run}/hear", get(hear))
        .route("/api/memories", get(memories))
        .route("/api/memories/{memory}/search", post(search))
        .route("/api/memories/{memory}/pictures/{entry}", get(picture))
        .fallback(|| async { Refused(StatusCode::NOT_FOUND, "there is no such page".to_owned()) })
        .layer(DefaultBodyLimit::max(LARGEST_REQUEST))
        .layer(from_fn_with_state(hosts, guard))
        .with_state(Arc::new(explored))
}

/// Refuses requests by another name and those of other sites' pages, and says what the page may do.
async fn guard(State(hosts): State<Arc<[String]>>, request: Request, next: Next) -> Response {
    let mut response = match refused(&hosts, &request) {
        Some(refused) => refused.into_response(),
        None => in_json(next.run(request).await).await,
    };
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Why a request is not for this page, if it is not.
fn refused(hosts: &[String], request: &Request) -> Option<Refused> {
    let text = |name| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
    let is_host = |host: &str| hosts.iter().any(|own| own == host);
    let open = format!("open http://{}/", hosts.first()?);
    if !text(header::HOST).is_some_and(is_host) {
        return Some(Refused(StatusCode::MISDIRECTED_REQUEST, open));
    }
    let is_origin = |origin: &str| origin.strip_prefix("http://").is_some_and(is_host);
    // A link on another site may lead to the page, and to nothing else.
    let is_data = request.uri().path().starts_with("/api/");
    let is_foreign = text(header::ORIGIN).is_some_and(|origin| !is_origin(origin))
        || is_data && text(SITE).is_some_and(|site| !matches!(site, "same-origin" | "none"));
    let reason = || format!("another site's page asks; {open}");
    is_foreign.then(|| Refused(StatusCode::FORBIDDEN, reason()))
}

/// What the server itself says of a request that it cannot read, as JSON as well.
async fn in_json(response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_text = kind.is_none_or(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if !(response.status().is_client_error() && is_text) {
        return response;
    }
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, LONGEST_REASON).await.unwrap_or_default();
    let reason = match body.is_empty() {
        true => head.status.to_string(),
        false => String::from_utf8_lossy(&body).into_owned(),
    };
    Refused(head.status, reason).into_response()
}

/// Why there is no answer, as JSON: `{"error": …}`.
struct Refused(StatusCode, String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Told {
            error: String,
        }
        (self.0, Json(Told { error: self.1 })).into_response()
    }
}

/// What takes a while is done where other requests do not wait for it.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> Result<T, Refused> {
    let told = |reason: String| Refused(StatusCode::UNPROCESSABLE_ENTITY, reason);
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| told(error.to_string()))?
        .map_err(|error| told(output::with_causes(&error)))
}

async fn runs(State(explored): Shared) -> Json<serde_json::Value> {
    let now: Vec<Run> = explored.runs.iter().map(Run::now).collect();
    Json(serde_json::json!(now))
}

async fn run_curves(
    State(explored): Shared,
    InPath(run): InPath<usize>,
) -> Answered<Vec<curves::Curve>> {
    let work = move || {
        let run = explored.runs.get(run).with_context(|| format!("there is no run {run}"))?;
        curves::read(&run.folder)
    };
    apart(work).await.map(Json)
}

async fn memories(State(explored): Shared) -> Answered<Vec<Described>> {
    apart(move || Ok(explored.memories.describe())).await.map(Json)
}

async fn search(
    State(explored): Shared,
    InPath(memory): InPath<usize>,
    Json(wanted): Json<Wanted>,
) -> Answered<Hits> {
    apart(move || explored.memories.search(memory, &wanted, &explored.answerers)).await.map(Json)
}

async fn picture(
    State(explored): Shared,
    InPath((memory, entry)): InPath<(usize, i64)>,
) -> Result<Response, Refused> {
    let work = move || {
        let bytes = explored.memories.picture(memory, entry, &explored.answerers)?;
        // Whatever else an entry may name is not shown.
        let format = image::guess_format(&bytes).context("the file is no picture")?;
        anyhow::Ok(([(header::CONTENT_TYPE, format.to_mime_type())], bytes))
    };
    apart(work).await.map(IntoResponse::into_response)
}

#[derive(Deserialize)]
struct Words {
    #[serde(default)]
    words: String,
}

async fn questions(
    State(explored): Shared,
    InPath(run): InPath<usize>,
    Query(Words { words }): Query<Words>,
) -> Answered<serde_json::Value> {
    let work =
        move || Ok(serde_json::to_value(explored.answerers.opened(run)?.questions(&words)?)?);
    apart(work).await.map(Json)
}

async fn view(
    State(explored): Shared,
    InPath((run, picture, view)): InPath<(usize, String, u32)>,
) -> Result<Response, Refused> {
    apart(move || explored.answerers.opened(run)?.view(&picture, view)).await.map(png)
}

async fn answer(
    State(explored): Shared,
    InPath(run): InPath<usize>,
    Json(asked): Json<Asked>,
) -> Answered<Answer> {
    apart(move || explored.answerers.opened(run)?.answer(&asked)).await.map(Json)
}

async fn names(State(explored): Shared, InPath(run): InPath<usize>) -> Answered<Said> {
    apart(move || Ok(explored.recognisers.opened(run)?.said())).await.map(Json)
}

async fn frame(
    State(explored): Shared,
    InPath((run, name, view)): InPath<(usize, usize, usize)>,
) -> Result<Response, Refused> {
    apart(move || explored.recognisers.opened(run)?.view(name, view)).await.map(png)
}

async fn sound(
    State(explored): Shared,
    InPath(run): InPath<usize>,
    Query(wanted): Query<speech::Wanted>,
) -> Result<Response, Refused> {
    let wav = apart(move || explored.recognisers.opened(run)?.sound(&wanted)).await?;
    Ok(([(header::CONTENT_TYPE, "audio/wav")], wav).into_response())
}

async fn hear(
    State(explored): Shared,
    InPath(run): InPath<usize>,
    Query(wanted): Query<speech::Wanted>,
) -> Answered<HeardClip> {
    apart(move || explored.recognisers.opened(run)?.hear(&wanted)).await.map(Json)
}

fn png(bytes: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "image/png")], bytes).into_response()
}
