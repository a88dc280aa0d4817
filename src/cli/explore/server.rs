//! The page and its data, for this machine alone.
//!
//! It listens on 127.0.0.1. A page of another site that the browser shows at the same time gets nothing: names that
//! lead here are refused (`Host`), what is sent has to be JSON, which no other site may send, and pictures are found by
//! their entry's id within one folder. The page itself may load nothing but what stands here.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use axum::Json;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Path as InPath, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use tokio::net::TcpListener;

use super::curves;
use super::found::Run;
use super::memories::{Described, Memories, Wanted};
use crate::cli::output;

/// Bytes of the largest request: a photograph in base64.
const LARGEST_REQUEST: usize = 32 << 20;
/// Nothing but what comes from here, and pictures that were dropped on the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What is explored.
pub(super) struct Explored {
    pub(super) runs: Vec<Run>,
    pub(super) memories: Memories,
}

type Shared = State<Arc<Explored>>;
type Answered<T> = Result<Json<T>, Refused>;

/// Serves the page until Ctrl-C.
pub(super) fn serve(explored: Explored, port: u16) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.context("no threads for the page")?.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.with_context(|| {
            format!("port {port} of 127.0.0.1 could not be taken; give another --port, or none")
        })?;
        let address = listener.local_addr()?.to_string();
        output::print(&format!("http://{address}/"))?;
        let stopped = async {
            let _ = tokio::signal::ctrl_c().await;
        };
        let app = app(explored, &address);
        axum::serve(listener, app).with_graceful_shutdown(stopped).await?;
        Ok(())
    })
}

/// The page at an address.
fn app(explored: Explored, address: &str) -> Router {
    let hosts: Arc<[String]> =
        [address.to_owned(), address.replace("127.0.0.1", "localhost")].into();
    let file = |kind: &'static str, text: &'static str| {
        get(move || async move { ([(header::CONTENT_TYPE, kind)], text) })
    };
    Router::new()
        .route("/", file("text/html; charset=utf-8", include_str!("page/index.html")))
        .route("/explore.js", file("text/javascript", include_str!("page/explore.js")))
        .route("/chart.js", file("text/javascript", include_str!("page/chart.js")))
        .route("/explore.css", file("text/css", include_str!("page/explore.css")))
        .route("/icon.svg", file("image/svg+xml", include_str!("page/icon.svg")))
        .route("/api/runs", get(runs))
        .route("/api/runs/{run}/curves", get(run_curves))
        .route("/api/memories", get(memories))
        .route("/api/memories/{memory}/search", post(search))
        .route("/api/memories/{memory}/pictures/{entry}", get(picture))
        .fallback(|| async { Refused(StatusCode::NOT_FOUND, "there is no such page".to_owned()) })
        .layer(DefaultBodyLimit::max(LARGEST_REQUEST))
        .layer(from_fn_with_state(hosts, guard))
        .with_state(Arc::new(explored))
}

/// Refuses requests by another name, and says what the page may do.
async fn guard(State(hosts): State<Arc<[String]>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let is_ours = host.is_some_and(|host| hosts.iter().any(|own| own == host));
    let mut response = match is_ours {
        true => next.run(request).await,
        false => {
            Refused(StatusCode::MISDIRECTED_REQUEST, format!("open http://{}/", hosts[0]))
                .into_response()
        }
    };
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
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
    done.map_err(|error| told(error.to_string()))?.map_err(|error| told(format!("{error:#}")))
}

async fn runs(State(explored): Shared) -> Json<serde_json::Value> {
    Json(serde_json::json!(explored.runs))
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
    apart(move || explored.memories.describe()).await.map(Json)
}

async fn search(
    State(explored): Shared,
    InPath(memory): InPath<usize>,
    Json(wanted): Json<Wanted>,
) -> Answered<super::memories::Hits> {
    apart(move || explored.memories.search(memory, &wanted)).await.map(Json)
}

async fn picture(
    State(explored): Shared,
    InPath((memory, entry)): InPath<(usize, i64)>,
) -> Result<Response, Refused> {
    let work = move || {
        let file = explored.memories.picture(memory, entry)?;
        let bytes = std::fs::read(&file).context("the picture could not be read")?;
        anyhow::Ok((kind_of(&file, &bytes)?, bytes))
    };
    let (kind, bytes) = apart(work).await?;
    Ok(([(header::CONTENT_TYPE, kind)], bytes).into_response())
}

/// The type of a picture; an error for any other file.
fn kind_of(file: &Path, bytes: &[u8]) -> anyhow::Result<&'static str> {
    let format = image::guess_format(bytes).ok();
    let format = format.with_context(|| format!("{}: is no picture", file.display()))?;
    Ok(format.to_mime_type())
}
