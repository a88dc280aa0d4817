//! Serves the page and its data to the browser that opened the printed address.
//!
//! The server listens on 127.0.0.1, and `access` decides which requests get data. Request bodies
//! must be JSON. The page may load nothing from other servers. `routes` has the handlers.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Context;
use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use tokio::net::TcpListener;

use super::access::{Access, Verdict};
use super::answers::RevealRun;
use super::budget::{Budget, Share};
use super::connections;
use super::discover::Run;
use super::lazy::LazyRuns;
use super::memories::Memories;
use super::routes;
use super::speech::AvformerRun;
use crate::cli::output;

/// Maximum length of an error message, in bytes.
const MAX_REASON_BYTES: usize = 1 << 16;
/// Content security policy: only resources from this server, and images dropped on the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The files of the page: path, content type, text.
const PAGE: [(&str, &str, &str); 12] = [
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
    ("/terms.js", SCRIPT, include_str!("page/terms.js")),
];
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The data that the page shows.
pub(super) struct Explored {
    pub(super) runs: Vec<Run>,
    pub(super) memories: Memories,
    pub(super) answerers: LazyRuns<RevealRun>,
    pub(super) asr_models: LazyRuns<AvformerRun>,
    pub(super) budget: Budget,
}

impl Explored {
    /// Acquires the permit to decode an image, if the request has one.
    pub(super) async fn decoding(&self, has_image: bool) -> Result<Share, ErrorResponse> {
        if has_image { Ok(self.budget.decoding().await?) } else { Ok(Share::default()) }
    }
}

/// Serves the page until Ctrl-C.
pub(super) fn serve(explored: Explored, port: u16) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("cannot start the threads of the server")?;
    let served = runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.with_context(|| {
            format!("port {port} of 127.0.0.1 is not available; give another --port, or none")
        })?;
        let access = Access::new(&listener.local_addr()?.to_string())?;
        output::print(&access.url())?;
        let stopped = async {
            let _ = tokio::signal::ctrl_c().await;
        };
        connections::serve(listener, router(explored, access), stopped).await;
        Ok(())
    });
    runtime.shutdown_background();
    served
}

/// Builds the router, with access control.
fn router(explored: Explored, access: Access) -> Router {
    let gate = Gate { access: Arc::new(access), budget: explored.budget.clone() };
    let mut app = Router::new();
    for (path, kind, text) in PAGE {
        app = app.route(path, get(move || async move { ([(header::CONTENT_TYPE, kind)], text) }));
    }
    app.route("/api/runs", get(routes::runs))
        .route("/api/runs/{run}/curves", get(routes::run_curves))
        .route("/api/runs/{run}/questions", get(routes::questions))
        .route("/api/runs/{run}/questions/{question}/image", get(routes::question_image))
        .route("/api/runs/{run}/example", get(routes::example))
        .route("/api/runs/{run}/answer", post(routes::answer))
        .route("/api/runs/{run}/names", get(routes::names))
        .route("/api/runs/{run}/frames/{name}/{view}", get(routes::frame))
        .route("/api/runs/{run}/rescue", get(routes::rescue))
        .route("/api/runs/{run}/audio", get(routes::audio))
        .route("/api/runs/{run}/transcribe", get(routes::transcribe))
        .route("/api/memories", get(routes::memories))
        .route("/api/memories/{memory}/search", post(routes::search))
        .route("/api/memories/{memory}/images/{entry}", get(routes::entry_image))
        .route("/api/memories/{memory}/recordings/{entry}", get(routes::entry_recording))
        .fallback(|| async {
            ErrorResponse(StatusCode::NOT_FOUND, "there is no such page".to_owned())
        })
        // `guard` has already read the body, within its own limit.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(gate, guard))
        .with_state(Arc::new(explored))
}

/// Access control and memory limits for every request.
#[derive(Clone)]
struct Gate {
    access: Arc<Access>,
    budget: Budget,
}

/// Refuses requests without access, reads bodies within their limits, and adds security headers.
async fn guard(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_public = PAGE.iter().any(|(page_path, ..)| *page_path == path);
    let mut cookie = None;
    let mut response = match gate.access.verdict(&request, is_public) {
        Verdict::Allowed => gate.handle(request, next).await,
        Verdict::AllowedWithCookie(token) => {
            cookie = Some(token);
            gate.handle(request, next).await
        }
        Verdict::PageRefused(page) => {
            (StatusCode::FORBIDDEN, [(header::CONTENT_TYPE, PAGE[0].1)], page).into_response()
        }
        Verdict::Refused(status, reason) => ErrorResponse(status, reason).into_response(),
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
    if let Some(cookie) = cookie {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

impl Gate {
    /// Reads the body within its limits and handles the request.
    async fn handle(&self, request: Request, next: Next) -> Response {
        let (mut head, body) = request.into_parts();
        // The body of a request other than POST is not read.
        if head.method != Method::POST {
            return with_json_errors(next.run(Request::from_parts(head, Body::empty())).await)
                .await;
        }
        match self.budget.body(body).await {
            Ok((bytes, share)) => {
                head.extensions.insert(share);
                with_json_errors(next.run(Request::from_parts(head, Body::from(bytes))).await).await
            }
            Err((status, reason)) => {
                let close = [(header::CONNECTION, HeaderValue::from_static("close"))];
                (close, ErrorResponse(status, reason)).into_response()
            }
        }
    }
}

/// Converts plain-text error responses of the framework to JSON.
async fn with_json_errors(response: Response) -> Response {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    let is_text = content_type.is_none_or(|value| value.as_bytes().starts_with(b"text/plain"));
    if !(response.status().is_client_error() && is_text) {
        return response;
    }
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, MAX_REASON_BYTES).await.unwrap_or_default();
    let reason = if body.is_empty() {
        head.status.to_string()
    } else {
        String::from_utf8_lossy(&body).into_owned()
    };
    ErrorResponse(head.status, reason).into_response()
}

/// An error response, as JSON: `{"error": …}`.
pub(super) struct ErrorResponse(pub(super) StatusCode, pub(super) String);

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct ErrorBody {
            error: String,
        }
        (self.0, Json(ErrorBody { error: self.1 })).into_response()
    }
}

impl From<(StatusCode, String)> for ErrorResponse {
    fn from((status, reason): (StatusCode, String)) -> Self {
        Self(status, reason)
    }
}
