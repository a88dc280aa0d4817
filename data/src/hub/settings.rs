//! The hub settings, from the environment variables of Hugging Face's own tools.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How to reach the hub, and where to cache its files.
#[derive(Clone)]
pub struct HubSettings {
    /// The cache folder, which holds `models--owner--name` folders.
    pub cache: PathBuf,
    /// The URL of the hub.
    pub endpoint: String,
    /// The access token, for private and gated models; `None` sends no token. It is sent only to
    /// the endpoint.
    pub token: Option<String>,
    /// Whether to use only the cache, without network.
    pub offline: bool,
    /// Whether to show a progress bar during downloads.
    pub progress: bool,
    /// The maximum number of retries of a failed request or a broken download.
    pub retries: usize,
    /// The pause before the first retry; it doubles with each retry.
    pub retry_pause: Duration,
    /// The time limit for a response.
    pub response_timeout: Duration,
    /// A download slower than 1,000 bytes per second for this long is aborted.
    pub stall_timeout: Duration,
}

/// Whether this program is offline, whatever the environment variables say.
static STAYS_OFFLINE: AtomicBool = AtomicBool::new(false);

/// Makes [`HubSettings::from_env`] offline in this program from now on, as with `HF_HUB_OFFLINE=1`.
pub fn stay_offline() {
    STAYS_OFFLINE.store(true, Ordering::Relaxed);
}

impl HubSettings {
    /// Returns the default settings for a cache folder: the public hub, online, without a token.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            endpoint: "https://huggingface.co".to_owned(),
            token: None,
            offline: false,
            progress: true,
            retries: 4,
            retry_pause: Duration::from_millis(500),
            response_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
        }
    }

    /// Reads the settings from huggingface_hub's environment variables: `HF_HUB_CACHE` (or the
    /// older `HUGGINGFACE_HUB_CACHE`), `HF_HOME`, `XDG_CACHE_HOME`, `HF_ENDPOINT`, `HF_TOKEN` (or
    /// the older `HUGGING_FACE_HUB_TOKEN`), `HF_TOKEN_PATH`, `HF_HUB_DISABLE_IMPLICIT_TOKEN`,
    /// `HF_HUB_OFFLINE`, `TRANSFORMERS_OFFLINE`, `HF_HUB_ETAG_TIMEOUT`, `HF_HUB_DOWNLOAD_TIMEOUT`
    /// and `HF_HUB_DISABLE_PROGRESS_BARS`. Paths may contain `~` and `$VARIABLE`.
    pub fn from_env() -> Self {
        let settings = Self::from_variables(|name| std::env::var(name).ok());
        let offline = settings.offline || STAYS_OFFLINE.load(Ordering::Relaxed);
        Self { offline, ..settings }
    }

    /// Like [`from_env`](Self::from_env); `variable` looks up the variables.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let is_on = |name: &str| get(name).is_some_and(|value| is_true(&value));
        let seconds = |name: &str| {
            let seconds = get(name).and_then(|value| value.trim().parse::<u32>().ok());
            seconds
                .filter(|seconds| *seconds > 0)
                .map(|seconds| Duration::from_secs(seconds.into()))
        };
        let path = |text: &str| expand(text, &variable);

        let home = get("HF_HOME").map_or_else(
            || {
                let user_cache = get("XDG_CACHE_HOME").unwrap_or_else(|| "~/.cache".to_owned());
                path(&user_cache).join("huggingface")
            },
            |home| path(&home),
        );
        let cache = get("HF_HUB_CACHE").or_else(|| get("HUGGINGFACE_HUB_CACHE"));
        let mut settings = Self::new(cache.map_or_else(|| home.join("hub"), |cache| path(&cache)));
        if let Some(endpoint) = get("HF_ENDPOINT") {
            settings.endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        }
        if !is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            let read_token_file = || {
                let file =
                    get("HF_TOKEN_PATH").map_or_else(|| home.join("token"), |file| path(&file));
                std::fs::read_to_string(file).ok()
            };
            settings.token = get("HF_TOKEN")
                .or_else(|| get("HUGGING_FACE_HUB_TOKEN"))
                .or_else(read_token_file)
                .map(|token| token.replace(['\r', '\n'], "").trim().to_owned())
                .filter(|token| !token.is_empty());
        }
        // `TRANSFORMERS_OFFLINE` is read only if `HF_HUB_OFFLINE` is not set, so `HF_HUB_OFFLINE=0`
        // overrides it.
        let offline = get("HF_HUB_OFFLINE").or_else(|| get("TRANSFORMERS_OFFLINE"));
        settings.offline = offline.is_some_and(|value| is_true(&value));
        settings.progress = !is_on("HF_HUB_DISABLE_PROGRESS_BARS");
        settings.response_timeout =
            seconds("HF_HUB_ETAG_TIMEOUT").unwrap_or(settings.response_timeout);
        settings.stall_timeout =
            seconds("HF_HUB_DOWNLOAD_TIMEOUT").unwrap_or(settings.stall_timeout);
        settings
    }
}

impl std::fmt::Debug for HubSettings {
    /// Omits the token: settings end up in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubSettings")
            .field("cache", &self.cache)
            .field("endpoint", &without_password(&self.endpoint))
            .field("has_token", &self.token.is_some())
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

/// Removes the user name and password from a URL, for messages.
pub(super) fn without_password(address: &str) -> String {
    let Some((scheme, after_scheme)) = address.split_once("://") else { return address.to_owned() };
    let host_end = after_scheme.find('/').unwrap_or(after_scheme.len());
    match after_scheme[..host_end].rfind('@') {
        Some(index) => format!("{scheme}://{}", &after_scheme[index + 1..]),
        None => address.to_owned(),
    }
}

fn is_true(value: &str) -> bool {
    matches!(value.trim().to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE")
}

/// Replaces a leading `~/` with the user's home, then `$NAME` and `${NAME}` with variables. Unknown
/// variables stay unchanged.
fn expand(text: &str, variable: &impl Fn(&str) -> Option<String>) -> PathBuf {
    let text = match text.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            let home = variable("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
            match home.or_else(std::env::home_dir) {
                Some(home) => format!("{}{rest}", home.display().to_string().trim_end_matches('/')),
                None => text.to_owned(),
            }
        }
        _ => text.to_owned(),
    };
    let mut expanded = String::new();
    let mut remaining = text.as_str();
    while let Some((before, after)) = remaining.split_once('$') {
        expanded.push_str(before);
        let name_end = |text: &str| {
            text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())
        };
        let (name, next) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((name, next)) => (name, next),
            None => after.split_at(name_end(after)),
        };
        match variable(name).filter(|_| !name.is_empty()) {
            Some(value) => {
                expanded.push_str(&value);
                remaining = next;
            }
            None => {
                expanded.push('$');
                remaining = after;
            }
        }
    }
    expanded.push_str(remaining);
    PathBuf::from(expanded)
}
