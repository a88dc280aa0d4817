//! Access control: only the browser that opened the printed address gets data.
//!
//! The address contains a random token, as in Jupyter. The first response stores the token in a
//! cookie, and every data request needs it. Other users of this machine and pages of other sites
//! get no data.

use std::hint::black_box;

use anyhow::Context;
use axum::http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use rand::TryRngCore;
use rand::rngs::OsRng;

/// Length of the token in bytes.
const TOKEN_BYTES: usize = 16;
/// The name of the token parameter in the address.
const TOKEN_PARAMETER: &str = "token";
/// The header in which a browser reports the site of the requesting page.
const SITE_HEADER: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The error message for a request without a valid token.
const NO_TOKEN_MESSAGE: &str = "no valid token: open the address that `engram explore` printed \
    in its terminal; it contains ?token=";
/// The same message as a page for browsers.
const NO_TOKEN_PAGE: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Engram</title>\
    <h1>This page needs a token</h1><p>Open the address that <code>engram explore</code> printed in its terminal. \
    It ends in <code>?token=…</code>. Each start of the program makes a new token.</p></html>\n";

/// The names of this machine in a `Host` header. A page of another site has a name of that site,
/// even if the name leads to this machine, so no other name is accepted.
const OWN_NAMES: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];

/// The address of the page, and the token that grants access.
pub(super) struct Access {
    address: String,
    token: String,
    /// The cookie name. All ports of a machine share cookies, so the name contains the port.
    cookie: String,
}

/// The decision on a request.
pub(super) enum Verdict {
    Allowed,
    /// Allowed; the response sets the token as a cookie.
    AllowedWithCookie(HeaderValue),
    /// Refused, with a page that explains how to get access.
    PageRefused(&'static str),
    /// Refused, with a status and a reason.
    Refused(StatusCode, String),
}

impl Access {
    /// Creates a new token for the page at an address (`127.0.0.1:8080`).
    pub(super) fn new(address: &str) -> anyhow::Result<Self> {
        let mut bytes = [0; TOKEN_BYTES];
        OsRng.try_fill_bytes(&mut bytes).context("the system gave no random token")?;
        let token = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let port = address.rsplit(':').next().unwrap_or_default();
        Ok(Self { address: address.to_owned(), token, cookie: format!("engram-{port}") })
    }

    /// The address that opens the page, with its token.
    pub(super) fn url(&self) -> String {
        format!("http://{}/?{TOKEN_PARAMETER}={}", self.address, self.token)
    }

    /// Decides whether a request is allowed. `is_public` marks static parts of the program, such as
    /// style sheets.
    pub(super) fn verdict<B>(&self, request: &Request<B>, is_public: bool) -> Verdict {
        if let Some((status, reason)) = Self::refusal_of_foreign(request) {
            return Verdict::Refused(status, reason);
        }
        let is_page = request.uri().path() == "/";
        if self.has_token_in_address(request) {
            let cookie =
                format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie, self.token);
            return match HeaderValue::from_str(&cookie) {
                Ok(cookie) if is_page => Verdict::AllowedWithCookie(cookie),
                _ => Verdict::Allowed,
            };
        }
        if (is_public && !is_page) || self.has_cookie(request) {
            return Verdict::Allowed;
        }
        if is_page && matches!(*request.method(), Method::GET | Method::HEAD) {
            Verdict::PageRefused(NO_TOKEN_PAGE)
        } else {
            Verdict::Refused(StatusCode::FORBIDDEN, NO_TOKEN_MESSAGE.to_owned())
        }
    }

    /// The status and reason for refusing a request that uses another host name, or that comes from
    /// another site's page; `None` for other requests.
    fn refusal_of_foreign<B>(request: &Request<B>) -> Option<(StatusCode, String)> {
        let header_text =
            |name| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
        let remedy = "open the address that `engram explore` printed; behind a tunnel, with the port of \
                      the tunnel, but still with the name 127.0.0.1 or localhost";
        let Some(host) = header_text(header::HOST).filter(|host| is_own_host(host)) else {
            return Some((StatusCode::MISDIRECTED_REQUEST, remedy.to_owned()));
        };
        // A page of another program on this machine has another port or name.
        // A tunnel may encrypt the connection.
        let is_origin = |origin: &str| {
            let origin = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host))
        };
        // A link on another site may open the page, but not request data.
        let is_data = request.uri().path().starts_with("/api/");
        let is_foreign = header_text(header::ORIGIN).is_some_and(|origin| !is_origin(origin))
            || is_data
                && header_text(SITE_HEADER)
                    .is_some_and(|site| !matches!(site, "same-origin" | "none"));
        is_foreign.then(|| {
            (StatusCode::FORBIDDEN, format!("the request comes from another site's page; {remedy}"))
        })
    }

    fn has_token_in_address<B>(&self, request: &Request<B>) -> bool {
        let parameters = request.uri().query().unwrap_or_default().split('&');
        let mut values = parameters
            .filter_map(|parameter| parameter.strip_prefix(TOKEN_PARAMETER)?.strip_prefix('='));
        values.any(|value| self.equals_token(value))
    }

    fn has_cookie<B>(&self, request: &Request<B>) -> bool {
        let cookies = request.headers().get_all(header::COOKIE).into_iter();
        let mut cookies =
            cookies.filter_map(|list| list.to_str().ok()).flat_map(|list| list.split(';'));
        cookies.any(|cookie| {
            let value =
                cookie.trim().strip_prefix(&self.cookie).and_then(|after| after.strip_prefix('='));
            value.is_some_and(|value| self.equals_token(value))
        })
    }

    /// Whether a text is the token. The comparison takes constant time, so that the duration
    /// reveals nothing about the token.
    fn equals_token(&self, text: &str) -> bool {
        let (text, token) = (text.as_bytes(), self.token.as_bytes());
        let difference = text.iter().zip(token).fold(0, |bits, (a, b)| black_box(bits | (a ^ b)));
        text.len() == token.len() && black_box(difference) == 0
    }
}

/// Whether a `Host` header names this machine. The port may be that of a tunnel to this machine.
fn is_own_host(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    OWN_NAMES.iter().any(|own| name.eq_ignore_ascii_case(own))
}
