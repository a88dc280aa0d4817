//! The hub settings, from the environment variables of Hugging Face's own tools.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::DataError;

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
    ///
    /// # Errors
    /// `OutOfRange` for a path that begins with the home of a named user, `~name`
    pub fn from_env() -> Result<Self, DataError> {
        let settings = Self::from_variables(|name| std::env::var(name).ok())?;
        let offline = settings.offline || STAYS_OFFLINE.load(Ordering::Relaxed);
        Ok(Self { offline, ..settings })
    }

    /// Like [`from_env`](Self::from_env); `variable` looks up the variables.
    ///
    /// # Errors
    /// as [`from_env`](Self::from_env)
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, DataError> {
        let get = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let is_on = |name: &str| get(name).is_some_and(|value| is_true(&value));
        let seconds = |name: &str| {
            let seconds = get(name).and_then(|value| value.trim().parse::<u32>().ok());
            seconds
                .filter(|seconds| *seconds > 0)
                .map(|seconds| Duration::from_secs(seconds.into()))
        };
        let path = |name| get(name).map(|text| expand(name, &text, &variable)).transpose();

        let home = match path("HF_HOME")? {
            Some(home) => home,
            None => match path("XDG_CACHE_HOME")? {
                Some(user_cache) => user_cache,
                None => expand("XDG_CACHE_HOME", "~/.cache", &variable)?,
            }
            .join("huggingface"),
        };
        let cache = match path("HF_HUB_CACHE")? {
            Some(cache) => Some(cache),
            None => path("HUGGINGFACE_HUB_CACHE")?,
        };
        let mut settings = Self::new(cache.unwrap_or_else(|| home.join("hub")));
        if let Some(endpoint) = get("HF_ENDPOINT") {
            settings.endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        }
        if !is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            let token_file = path("HF_TOKEN_PATH")?.unwrap_or_else(|| home.join("token"));
            let read_token_file = || engram_durable::read_text(token_file).ok();
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
        Ok(settings)
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
/// variables stay unchanged. `name` is the variable that holds the text.
///
/// Another user's home, `~name`, is an error: it would become a folder of this name in the current
/// folder.
fn expand(
    name: &'static str,
    text: &str,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<PathBuf, DataError> {
    let text = match text.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            let home = variable("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
            match home.or_else(std::env::home_dir) {
                Some(home) => format!("{}{rest}", home.display().to_string().trim_end_matches('/')),
                None => text.to_owned(),
            }
        }
        Some(_) => {
            let wanted = "write the user's home folder in full";
            return Err(DataError::OutOfRange { what: name, value: text.to_owned(), wanted });
        }
        None => text.to_owned(),
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
    Ok(PathBuf::from(expanded))
}
