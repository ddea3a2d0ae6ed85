//! Which topic filters meet: the first stream in file order stores, so a later one may get less than its author thinks.

/// How two filters lie to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overlap {
    /// No topic matches both.
    None,
    /// Some topics match both.
    Some,
    /// Every topic that matches the later one matches the earlier one.
    Covered,
}

/// Compares two well-formed filters without `$`.
pub(super) fn overlap(earlier: &str, later: &str) -> Overlap {
    let mut covered = true;
    let mut one = earlier.split('/');
    let mut other = later.split('/');
    loop {
        match (one.next(), other.next()) {
            (Some("#"), _) => return if covered { Overlap::Covered } else { Overlap::Some },
            // "a/#" matches "a" too, so what is longer or shorter by that level meets still.
            (_, Some("#")) => return Overlap::Some,
            (None, None) => return if covered { Overlap::Covered } else { Overlap::Some },
            (Some("+"), Some(_)) => {}
            (Some(_), Some("+")) => covered = false,
            (Some(a), Some(b)) if a == b => {}
            _ => return Overlap::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Overlap::{Covered, None, Some};

    #[test]
    fn filters_meet_where_a_topic_matches_both() {
        for (earlier, later, expected) in [
            ("a/b", "a/b", Covered),
            ("a/b", "a/c", None),
            ("a/#", "a/b", Covered),
            ("a/#", "a", Covered),
            ("a/#", "a/+/c/#", Covered),
            ("a/b", "a/#", Some),
            ("a", "a/#", Some),
            ("a/b/c", "a/b", None),
            ("+/b", "a/+", Some),
            ("+/+", "a/b", Covered),
            ("+/+", "a/b/c", None),
            ("#", "anything/at/all", Covered),
            ("#", "#", Covered),
            ("+", "#", Some),
            ("a/+/#", "a", None),
            ("a/+/#", "a/b", Covered),
            ("a/b/#", "a/+/c", Some),
            ("x/#", "y/#", None),
        ] {
            assert_eq!(overlap(earlier, later), expected, "{earlier} {later}");
        }
    }
}
