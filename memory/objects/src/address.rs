//! The address of an object store, and how to connect to it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use engram_memory::MemoryError;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreScheme, RetryConfig};
use url::Url;

use crate::failure::{printable, remote};

/// The forms of an address, for messages.
const ADDRESSES: &str = "a folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix";

/// Settings of a connection.
#[derive(Clone)]
pub struct Connect {
    /// Options of the store by the names of `object_store`, such as `("aws_region", "eu-west-1")`.
    /// They override the environment, from which the store reads the same names in capitals:
    /// `AWS_ACCESS_KEY_ID`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_KEY`.
    pub options: Vec<(String, String)>,
    /// The time limit of one attempt of a request, without the time to transfer its bytes.
    pub request_limit: Duration,
    /// The slowest accepted transfer, in bytes per second. The time of a transfer at this speed is
    /// added to the limit of a request.
    pub slowest_transfer: u64,
    /// How long a failed request is repeated, if the error may be temporary.
    pub patience: Duration,
    /// The maximum number of requests at the same time.
    pub parallel: usize,
}

impl Default for Connect {
    fn default() -> Self {
        Self {
            options: Vec::new(),
            request_limit: Duration::from_secs(10),
            slowest_transfer: 1 << 20,
            patience: Duration::from_secs(30),
            parallel: 32,
        }
    }
}

impl fmt::Debug for Connect {
    /// Omits the values of the options, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.options.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Connect")
            .field("options", &names)
            .field("request_limit", &self.request_limit)
            .field("slowest_transfer", &self.slowest_transfer)
            .field("patience", &self.patience)
            .field("parallel", &self.parallel)
            .finish()
    }
}

/// An object store, and the prefix of the names of our objects.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) prefix: Path,
    /// The address, for messages.
    pub(crate) location: String,
    /// The folder's file system; `None` for another store.
    pub(crate) local: Option<LocalFileSystem>,
}

/// Opens the store of an address. Sends no request.
pub(crate) fn open(address: &str, connect: &Connect) -> Result<Opened, MemoryError> {
    let Some((scheme, _)) = address.split_once("://") else {
        return folder(PathBuf::from(address));
    };
    let invalid =
        |reason: String| MemoryError::invalid("the address of an object store", reason, ADDRESSES);
    // The address may contain a password, so it is not part of the message.
    let url = Url::parse(address).map_err(|error| invalid(format!("not valid: {error}")))?;
    if url.password().is_some() {
        return Err(invalid("an address with a password".to_owned()));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(invalid("an address with `?` or `#`".to_owned()));
    }
    if scheme == "file" {
        let path = url.to_file_path();
        return folder(path.map_err(|()| invalid(format!("{address}, not a local path")))?);
    }
    let (kind, prefix) =
        ObjectStoreScheme::parse(&url).map_err(|error| invalid(error.to_string()))?;
    let failed = |error: object_store::Error| {
        let remedy = "set the store's options, for example AWS_REGION and AWS_ENDPOINT";
        remote(address, printable(&error), remedy)
    };
    // This fails if the program has installed another provider of cryptography, which also works.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // This crate has its own retries and time limits.
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    macro_rules! store {
        ($builder:expr) => {{
            let mut builder = $builder.with_url(address);
            for (key, value) in options(connect) {
                builder = builder.with_config(parse(key)?, value);
            }
            Arc::new(builder.with_retry(retry).build().map_err(failed)?)
        }};
    }
    let store: Arc<dyn ObjectStore> = match kind {
        ObjectStoreScheme::AmazonS3 => {
            // Some servers cannot delete several objects by one request.
            store!(AmazonS3Builder::from_env().with_disable_bulk_delete(true))
        }
        ObjectStoreScheme::GoogleCloudStorage => store!(GoogleCloudStorageBuilder::from_env()),
        ObjectStoreScheme::MicrosoftAzure => store!(MicrosoftAzureBuilder::from_env()),
        _ => return Err(invalid(format!("{scheme}://"))),
    };
    let location = address.trim_end_matches('/').to_owned();
    Ok(Opened { store, prefix, location, local: None })
}

/// Returns the options. The first one disables the client's time limit, unless an option sets it.
fn options(connect: &Connect) -> impl Iterator<Item = (&str, &str)> {
    let given = connect.options.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    [("timeout", "1 day")].into_iter().chain(given)
}

fn parse<K: FromStr>(key: &str) -> Result<K, MemoryError> {
    key.to_ascii_lowercase().parse().map_err(|_| {
        MemoryError::invalid(
            "an option of the object store",
            key,
            "an option of this kind of store, such as aws_region for S3",
        )
    })
}

fn folder(path: PathBuf) -> Result<Opened, MemoryError> {
    let location = path.display().to_string();
    let absolute = std::path::absolute(&path)
        .map_err(|source| MemoryError::Read { file: path.clone(), source })?;
    let prefix = Path::from_absolute_path(absolute)
        .map_err(|error| remote(&location, printable(&error), "give the path of a folder"))?;
    let store = LocalFileSystem::new().with_fsync(true);
    Ok(Opened { store: Arc::new(store.clone()), prefix, location, local: Some(store) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_all_stores_open_without_a_request() {
        let option = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let azure =
            [option("azure_storage_account_name", "a"), option("azure_skip_signature", "1")];
        for (address, options) in [
            ("s3://bucket/some/facts/", vec![option("AWS_REGION", "eu-west-1")]),
            ("gs://bucket/some/facts", vec![option("google_skip_signature", "true")]),
            ("az://container/some/facts", azure.to_vec()),
        ] {
            let opened = open(address, &Connect { options, ..Connect::default() }).unwrap();
            assert_eq!(opened.prefix.as_ref(), "some/facts", "{address}");
            assert_eq!(opened.location, address.trim_end_matches('/'));
            let connect =
                Connect { options: vec![option("aws_regoin", "x")], ..Connect::default() };
            let error = open(address, &connect).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("an option of the object store is aws_regoin"), "{error}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let options = vec![("aws_secret_access_key".to_owned(), "SECRET".to_owned())];
        let text = format!("{:?}", Connect { options, ..Connect::default() });
        assert!(text.contains("aws_secret_access_key") && !text.contains("SECRET"), "{text}");
    }
}
