//! Groups of parameters by path pattern.

/// A factor on the learning rate for the parameters that match a path pattern.
///
/// In a pattern, `*` matches any characters but `.`, and `**` matches any characters. If several
/// patterns match a name, the last one applies. Rate 0 freezes the parameter. Parameters that match
/// no pattern have rate 1.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterGroup {
    /// The path pattern, for example `encoder.layer.*.attention.**`.
    pub pattern: String,
    /// The factor on the learning rate; 0 freezes.
    pub rate: f64,
}

impl ParameterGroup {
    /// The group that freezes every parameter.
    pub fn all_frozen() -> Self {
        Self { pattern: "**".to_string(), rate: 0.0 }
    }
}

/// The rate of the last group that matches `name`; `None` if no group matches.
pub fn rate_of(groups: &[ParameterGroup], name: &str) -> Option<f64> {
    let matches = |group: &&ParameterGroup| path_matches(group.pattern.as_bytes(), name.as_bytes());
    groups.iter().rfind(matches).map(|group| group.rate)
}

/// Whether `name` matches `pattern`, in which `*` matches any characters but `.`, and `**` any
/// characters.
pub fn path_matches(pattern: &[u8], name: &[u8]) -> bool {
    // For each `j`: whether the pattern before `remaining` matches the first `j` characters of
    // `name`.
    let mut matches_prefix = vec![false; name.len() + 1];
    matches_prefix[0] = true;
    let mut remaining = pattern;
    while let Some((&first, after)) = remaining.split_first() {
        let across_levels = first == b'*' && after.first() == Some(&b'*');
        remaining = if across_levels { &after[1..] } else { after };
        if first == b'*' {
            for (j, &c) in name.iter().enumerate() {
                matches_prefix[j + 1] |= matches_prefix[j] && (across_levels || c != b'.');
            }
        } else {
            for (j, &c) in name.iter().enumerate().rev() {
                matches_prefix[j + 1] = matches_prefix[j] && c == first;
            }
            matches_prefix[0] = false;
        }
    }
    matches_prefix[name.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_match_within_or_across_levels() {
        let matches = |p: &str, n: &str| path_matches(p.as_bytes(), n.as_bytes());
        assert!(matches("encoder.**", "encoder.layer.0.weight"));
        assert!(matches("encoder.layer.*.weight", "encoder.layer.11.weight"));
        assert!(!matches("encoder.*", "encoder.layer.0"));
        assert!(matches("**.bias", "a.b.bias"));
        assert!(!matches("**.bias", "a.b.weight"));
        assert!(
            matches("a**c*", "a.b.cd")
                && !matches("a**c*", "a.b.c.d")
                && matches("", "")
                && !matches("", "a")
        );
    }

    #[test]
    fn many_stars_do_not_slow_a_pattern_down() {
        let name = "a".repeat(200);
        assert!(!path_matches("**a".repeat(60).as_bytes(), format!("{name}b").as_bytes()));
        assert!(path_matches("**a".repeat(60).as_bytes(), name.as_bytes()));
    }
}
