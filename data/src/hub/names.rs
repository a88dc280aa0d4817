//! Validates names before they become part of a path. Every name from the hub or the user is
//! checked here.

/// Whether a path component is safe to join to a folder.
pub(super) fn is_plain_name(part: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | ' ');
    !part.is_empty() && part != "." && part != ".." && part.chars().all(is_plain)
}

/// Whether this is a valid name of a model on the hub: `name` or `owner/name`, by the rules of
/// huggingface_hub.
///
/// A double `-` is not allowed: it stands for `/` in cache folder names, so two models would share
/// one folder.
pub(super) fn is_repository(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    let is_well_formed = |part: &&str| {
        is_plain_name(part)
            && !part.contains([' ', '+'])
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
    };
    parts.len() <= 2
        && parts.iter().all(is_well_formed)
        && name.chars().count() <= 96
        && !name.contains("--")
        && !name.contains("..")
        && !name.ends_with(".git")
}

/// Parses a commit of 40 hexadecimal digits, and returns it in lower case; `None` for other texts.
pub(super) fn commit(text: &str) -> Option<String> {
    hexadecimal(text.trim(), &[40])
}

/// Parses an `ETag` header: a git SHA-1 or a SHA-256. Returns it in lower case, without quotes and
/// the prefix `W/`; `None` for other values.
pub(super) fn etag(text: &str) -> Option<String> {
    let text = text.trim();
    hexadecimal(text.strip_prefix("W/").unwrap_or(text).trim_matches('"'), &[40, 64])
}

fn hexadecimal(text: &str, lengths: &[usize]) -> Option<String> {
    let is_hexadecimal =
        lengths.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hexadecimal.then(|| text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_repository_names_are_accepted() {
        for valid in ["gpt2", "owner/name", "Foo-BAR_foo.bar123", "a/b-c_d.e"] {
            assert!(is_repository(valid), "{valid}");
        }
        let too_long = "a".repeat(97);
        for invalid in [
            "", "/", "a/", "/a", "a/b/c", "..", "a/..", "a--b/c", "a/b..c", ".a", "a.", "-a", "a-",
            "a/b.git", "a b", "a\\b", "a\0b", "a:b", &too_long,
        ] {
            assert!(!is_repository(invalid), "{invalid:?}");
        }
    }
}
