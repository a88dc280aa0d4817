//! Limits the memory of concurrent requests to less than 500 MB in total, excluding the models.
//!
//! A request that needs more than the free memory waits; after a timeout it is refused with the
//! advice to retry.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use hyper::body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Maximum request size in bytes: an image in base64.
pub(super) const MAX_REQUEST_BYTES: usize = 32 << 20;
/// Maximum size of a displayed image, in bytes.
pub(super) const MAX_IMAGE_BYTES: usize = 32 << 20;
/// Maximum size in bytes of a request body that never waits.
const MAX_FREE_BODY_BYTES: usize = 1 << 16;
/// Maximum total bytes of request bodies. With parsed and decoded copies, they take up to three
/// times as much.
const MAX_TOTAL_BODY_BYTES: usize = MAX_REQUEST_BYTES;
/// Maximum total bytes of images being sent.
const MAX_TOTAL_IMAGE_BYTES: usize = 32 << 20;
/// Maximum number of concurrent searches and model runs.
const MAX_CONCURRENT_WORK: usize = 4;
/// Timeout for receiving a request body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which the body of a refused request is read and discarded.
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// Timeout for waiting until the budget has room.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);
/// The unit of the memory budget.
const KIBIBYTE: usize = 1 << 10;
/// Chunk size for sending an image, in bytes.
const CHUNK_BYTES: usize = 1 << 16;

/// The remaining budget.
#[derive(Clone)]
pub(super) struct Budget {
    /// Request bodies, in KiB.
    bodies: Arc<Semaphore>,
    /// Images being sent, in KiB.
    images: Arc<Semaphore>,
    /// Images being decoded.
    decoding: Arc<Semaphore>,
    /// Searches and model runs.
    work: Arc<Semaphore>,
}

/// A share of the budget, held until it is dropped.
#[derive(Clone, Default)]
pub(super) struct Share {
    _permits: Option<Arc<OwnedSemaphorePermit>>,
}

/// The status and reason of a refused request.
pub(super) type Refusal = (StatusCode, String);

impl Budget {
    pub(super) fn new() -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self {
            bodies: semaphore(MAX_TOTAL_BODY_BYTES / KIBIBYTE),
            images: semaphore(MAX_TOTAL_IMAGE_BYTES / KIBIBYTE),
            decoding: semaphore(1),
            work: semaphore(MAX_CONCURRENT_WORK),
        }
    }

    /// Reads the body of a request and acquires its share.
    pub(super) async fn body(&self, body: Body) -> Result<(Bytes, Share), Refusal> {
        let share = match self.share_of(body.size_hint().upper()).await {
            Ok(share) => share,
            Err(refusal) => {
                drain(body).await;
                return Err(refusal);
            }
        };
        let received = timeout(BODY_TIMEOUT, axum::body::to_bytes(body, MAX_REQUEST_BYTES)).await;
        let received = received.map_err(|_| {
            let seconds = BODY_TIMEOUT.as_secs();
            let reason = format!("the body of the request was not received within {seconds} s");
            (StatusCode::REQUEST_TIMEOUT, reason)
        })?;
        received.map(|bytes| (bytes, share)).map_err(|error| {
            (StatusCode::BAD_REQUEST, format!("{error}; send at most {MAX_REQUEST_BYTES} bytes"))
        })
    }

    /// Acquires memory for a body of the announced length; without a length, for the maximum size.
    /// A small body gets an empty share.
    async fn share_of(&self, announced: Option<u64>) -> Result<Share, Refusal> {
        let size = announced.unwrap_or(MAX_REQUEST_BYTES as u64);
        match usize::try_from(size).ok().filter(|size| *size <= MAX_REQUEST_BYTES) {
            Some(size) if size <= MAX_FREE_BODY_BYTES => Ok(Share::default()),
            Some(size) => acquire(&self.bodies, size.div_ceil(KIBIBYTE)).await,
            None => {
                let max_mib = MAX_REQUEST_BYTES >> 20;
                let reason =
                    format!("the request is larger than {max_mib} MiB; send a smaller image");
                Err((StatusCode::PAYLOAD_TOO_LARGE, reason))
            }
        }
    }

    /// Acquires the permit to decode an image; one at a time.
    pub(super) async fn decoding(&self) -> Result<Share, Refusal> {
        acquire(&self.decoding, 1).await
    }

    /// Acquires a permit to search or to run a model.
    pub(super) async fn work(&self) -> Result<Share, Refusal> {
        acquire(&self.work, 1).await
    }

    /// Acquires memory for an image to be sent.
    pub(super) async fn image(&self, bytes: usize) -> Result<Share, Refusal> {
        acquire(&self.images, bytes.div_ceil(KIBIBYTE)).await
    }
}

/// Reads and discards a body for a short time: a browser that is still sending would miss the
/// response.
async fn drain(mut body: Body) {
    let read_all = async {
        while let Some(Ok(_)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {}
    };
    let _ = timeout(DRAIN_TIME, read_all).await;
}

/// Acquires permits; refuses the request if they are not free within [`WAIT_TIMEOUT`].
async fn acquire(semaphore: &Arc<Semaphore>, permits: usize) -> Result<Share, Refusal> {
    let permits = u32::try_from(permits).unwrap_or(u32::MAX);
    let acquired = timeout(WAIT_TIMEOUT, Arc::clone(semaphore).acquire_many_owned(permits)).await;
    match acquired {
        Ok(Ok(permits)) => Ok(Share { _permits: Some(Arc::new(permits)) }),
        _ => {
            let reason = "too many large requests at a time; try again in a moment";
            Err((StatusCode::SERVICE_UNAVAILABLE, reason.to_owned()))
        }
    }
}

/// A response body with its share of the budget.
///
/// It is sent in chunks, so that the share is held until nearly all bytes are sent.
pub(super) struct BudgetedBody {
    bytes: Bytes,
    _share: Share,
}

impl BudgetedBody {
    pub(super) fn body(bytes: Vec<u8>, share: Share) -> Body {
        Body::new(Self { bytes: bytes.into(), _share: share })
    }
}

impl HttpBody for BudgetedBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let length = self.bytes.len().min(CHUNK_BYTES);
        let next = (length > 0).then(|| self.bytes.split_to(length));
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}
