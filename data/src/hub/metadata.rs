//! File metadata from the hub's response headers.

use super::names;

/// The commit of a file, the hash of its content and its size in bytes.
///
/// All three are validated: the commit and the hash become file names in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileMetadata {
    /// 40 hexadecimal digits.
    pub commit: String,
    /// 40 hexadecimal digits (the SHA-1 of git's blob) or 64 (the SHA-256 of the file).
    pub etag: String,
    /// The size in bytes; `None` if this response does not give it.
    pub size: Option<u64>,
}

impl FileMetadata {
    /// Reads the headers of a response; `header` looks them up. Returns `None` if there is no
    /// `X-Repo-Commit`, as in the redirect of a renamed model.
    ///
    /// # Errors
    /// a description of the problem with the commit, the etag or the size
    pub fn read<'a>(
        status: u16,
        header: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Option<Self>, String> {
        let Some(commit) = header("x-repo-commit") else { return Ok(None) };
        let commit = names::commit(commit).ok_or_else(|| {
            format!("a commit that does not have 40 hexadecimal digits ({})", quoted_start(commit))
        })?;
        let etag = header("x-linked-etag").or_else(|| header("etag"));
        let etag = etag.ok_or("no ETag")?;
        let etag = names::etag(etag).ok_or_else(|| {
            format!("an ETag that is not a SHA-1 or SHA-256 ({})", quoted_start(etag))
        })?;
        let size = match header("x-linked-size") {
            Some(size) => Some(number(size)?),
            None => total_size(status, header)?,
        };
        Ok(Some(Self { commit, etag, size }))
    }
}

/// Returns the size of the whole file in bytes, from a response that is not a redirect; `None` if
/// the response does not give it.
///
/// # Errors
/// a size that is not a number of bytes
pub(crate) fn total_size<'a>(
    status: u16,
    header: impl Fn(&str) -> Option<&'a str>,
) -> Result<Option<u64>, String> {
    if let Some(range) = header("content-range") {
        return match range.rsplit_once('/') {
            Some((_, "*")) => Ok(None),
            Some((_, size)) => number(size).map(Some),
            None => Err(format!("a Content-Range without a size ({})", quoted_start(range))),
        };
    }
    match header("content-length") {
        Some(length) if status == 200 => number(length).map(Some),
        _ => Ok(None),
    }
}

/// Returns the index of the first byte in the response to a range request; `None` if the response
/// does not give it.
pub fn first_byte<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Option<u64> {
    let range = header("content-range")?.trim().strip_prefix("bytes")?.trim_start();
    range.split('-').next()?.parse().ok()
}

fn number(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| text.parse().ok()).flatten();
    number.ok_or_else(|| format!("a size that is not a number of bytes ({})", quoted_start(text)))
}

/// Returns the first 80 characters of a header's value, quoted.
pub(super) fn quoted_start(value: &str) -> String {
    let start: String = value.chars().take(80).collect();
    let ellipsis = if start.len() < value.len() { "…" } else { "" };
    format!("{start:?}{ellipsis}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn read(status: u16, headers: &[(&str, &str)]) -> Result<Option<FileMetadata>, String> {
        FileMetadata::read(status, |name| {
            headers.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
        })
    }

    #[test]
    fn the_headers_of_the_linked_file_take_precedence() {
        let sha256 = "b".repeat(64);
        let metadata = read(
            302,
            &[
                ("x-repo-commit", COMMIT),
                ("etag", "\"cdn\""),
                ("x-linked-etag", &format!("\"{sha256}\"")),
                ("x-linked-size", "12"),
                ("content-length", "0"),
            ],
        );
        let expected = FileMetadata { commit: COMMIT.to_owned(), etag: sha256, size: Some(12) };
        assert_eq!(metadata, Ok(Some(expected)));
        assert_eq!(read(302, &[("etag", "x")]), Ok(None));
    }

    #[test]
    fn sizes_are_whole_numbers_of_bytes() {
        fn size(status: u16, name: &str, value: &str) -> Result<Option<u64>, String> {
            let headers = [("x-repo-commit", COMMIT), ("etag", COMMIT), (name, value)];
            read(status, &headers).map(|metadata| metadata.unwrap().size)
        }
        assert_eq!(size(206, "content-range", "bytes 0-0/12"), Ok(Some(12)));
        assert_eq!(size(416, "content-range", "bytes */0"), Ok(Some(0)));
        assert_eq!(size(206, "content-range", "bytes 0-0/*"), Ok(None));
        assert_eq!(size(200, "content-length", "12"), Ok(Some(12)));
        assert_eq!(size(302, "content-length", "12"), Ok(None));
        for invalid in ["-5", "+5", "1e3", "18446744073709551616", "", "0x10", "5 5"] {
            assert!(
                size(206, "content-range", &format!("bytes 0-0/{invalid}")).is_err(),
                "{invalid}"
            );
            assert!(size(302, "x-linked-size", invalid).is_err(), "{invalid}");
        }
        assert!(size(206, "content-range", "bytes").is_err());
    }
}
