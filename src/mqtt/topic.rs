//! Topic names and filters [MQTT-4.7]: what is well formed, and which filter matches which topic.

use super::text::is_text;

/// What shared subscriptions begin with [MQTT-4.8.2-1].
const SHARE_PREFIX: &[u8] = b"$share/";

/// Whether these bytes are a topic name: text, not empty, at most 65,535 bytes, no wildcards [MQTT-4.7.3-1] [MQTT-3.3.2-2].
pub fn valid_topic(topic: &[u8]) -> bool {
    // One pass that the compiler turns into wide instructions (33 bytes: 4 ns; with a bool for `bad` 18 ns); only what is not
    // ASCII is looked at a second time.
    let (mut union, mut bad) = (0_u8, 0_u8);
    for &byte in topic {
        union |= byte;
        bad |= u8::from((byte == 0) | (byte == b'+') | (byte == b'#'));
    }
    let utf8 = union < 0x80 || core::str::from_utf8(topic).is_ok();
    bad == 0 && utf8 && !topic.is_empty() && topic.len() <= usize::from(u16::MAX)
}

/// Whether these bytes are a topic filter: text, not empty, at most 65,535 bytes, `#` only as the last level, `#` and `+` only as
/// whole levels [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1]. Shared filters are not looked into: see [`shared`].
pub fn valid_filter(filter: &[u8]) -> bool {
    if filter.is_empty() || filter.len() > usize::from(u16::MAX) || !is_text(filter) {
        return false;
    }
    let mut levels = levels(filter).peekable();
    while let Some(level) = levels.next() {
        let wild = level.iter().any(|&byte| byte == b'+' || byte == b'#');
        if wild && (level.len() != 1 || (level == b"#" && levels.peek().is_some())) {
            return false;
        }
    }
    true
}

/// Whether a filter asks for a shared subscription: it begins with `$share/`. It may still be a wrong one.
pub fn is_shared(filter: &[u8]) -> bool {
    filter.starts_with(SHARE_PREFIX)
}

/// Group and inner filter of `$share/<group>/<filter>`; `None` if it is not a well-formed shared filter: the group has at least one
/// byte, no wildcard, and a filter follows [MQTT-4.8.2-1] [MQTT-4.8.2-2].
pub fn shared(filter: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = filter.strip_prefix(SHARE_PREFIX)?;
    let (group, inner) = rest.split_at_checked(rest.iter().position(|&byte| byte == b'/')?)?;
    let inner = inner.strip_prefix(b"/")?;
    let wild = group.iter().any(|&byte| byte == b'+' || byte == b'#');
    (!group.is_empty() && !wild && valid_filter(inner)).then_some((group, inner))
}

/// The levels of a topic or filter: what stands between the slashes, possibly nothing. At least one.
pub fn levels(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/')
}

/// Number of levels; bounded by [`crate::limits::TOPIC_LEVELS_MAX`] where trees are built from them.
pub fn depth(path: &[u8]) -> usize {
    levels(path).count()
}

/// Whether the filter has a wildcard.
pub fn has_wildcard(filter: &[u8]) -> bool {
    filter.iter().any(|&byte| byte == b'+' || byte == b'#')
}

/// Whether a well-formed filter matches a topic. A wildcard in the first place never matches a topic that begins with `$`
/// [MQTT-4.7.2-1]; `a/#` matches `a` too [MQTT-4.7.1-2].
pub fn matches(filter: &[u8], topic: &[u8]) -> bool {
    if topic.first() == Some(&b'$') && matches!(filter.first(), Some(b'+' | b'#')) {
        return false;
    }
    let mut wanted = levels(filter);
    let mut given = levels(topic);
    loop {
        match (wanted.next(), given.next()) {
            (Some(b"#"), _) | (None, None) => return true,
            (Some(want), Some(level)) if want == b"+" || want == level => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_have_no_wildcards_and_are_not_empty() {
        for topic in ["a", "/", "a/b", "//", "$SYS/x", "Überlauf/7", " "] {
            assert!(valid_topic(topic.as_bytes()), "{topic:?}");
        }
        for topic in ["", "+", "#", "a/+", "a#", "a\0b", "Ü\0", "Ü+"] {
            assert!(!valid_topic(topic.as_bytes()), "{topic:?}");
        }
        assert!(!valid_topic(b"a\xff"));
        assert!(!valid_topic(b"\xed\xa0\x80"), "a surrogate");
        assert!(valid_topic(&vec![b'a'; 65_535]));
        assert!(!valid_topic(&vec![b'a'; 65_536]));
    }

    #[test]
    fn wildcards_are_whole_levels_and_hash_is_last() {
        for filter in ["#", "+", "/", "a/#", "+/+", "+/a/#", "/+", "a//b", "$share/g/#", "$SYS/#"] {
            assert!(valid_filter(filter.as_bytes()), "{filter:?}");
        }
        for filter in ["", "a#", "#/a", "a/#/b", "a+", "+a/b", "##", "++", "a/#b", "\0", "#/"] {
            assert!(!valid_filter(filter.as_bytes()), "{filter:?}");
        }
        assert!(!valid_filter(b"\xc3\x28"));
        assert!(!valid_filter(&vec![b'a'; 65_536]));
    }

    #[test]
    fn filters_match_as_the_examples_of_the_standard_say() {
        for (filter, topic) in [
            ("sport/tennis/player1/#", "sport/tennis/player1"),
            ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
            ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
            ("sport/#", "sport"),
            ("#", "a/b"),
            ("#", "/"),
            ("sport/tennis/+", "sport/tennis/player1"),
            ("sport/+", "sport/"),
            ("+/+", "/finance"),
            ("/+", "/finance"),
            ("$SYS/#", "$SYS/x"),
            ("$SYS/monitor/+", "$SYS/monitor/Clients"),
            ("a/+/c/#", "a/b/c"),
            ("a//c", "a//c"),
            ("a/+/c", "a//c"),
        ] {
            assert!(matches(filter.as_bytes(), topic.as_bytes()), "{filter} {topic}");
        }
        for (filter, topic) in [
            ("sport/tennis/+", "sport/tennis/player1/ranking"),
            ("sport/+", "sport"),
            ("+", "/finance"),
            ("#", "$SYS/x"),
            ("+/monitor/Clients", "$SYS/monitor/Clients"),
            ("a/#", "ab"),
            ("a/#", "b"),
            ("a", "a/"),
            ("a/", "a"),
            ("a/b", "a/B"),
            ("a/+", "a/b/"),
        ] {
            assert!(!matches(filter.as_bytes(), topic.as_bytes()), "{filter} {topic}");
        }
    }

    #[test]
    fn shared_filters_have_a_group_and_a_filter() {
        assert_eq!(shared(b"$share/g/a/b"), Some((b"g".as_slice(), b"a/b".as_slice())));
        assert_eq!(shared(b"$share/g//"), Some((b"g".as_slice(), b"/".as_slice())));
        assert_eq!(shared(b"$share/g/#"), Some((b"g".as_slice(), b"#".as_slice())));
        for filter in [
            "$share/g",
            "$share/g/",
            "$share//a",
            "$share/+/a",
            "$share/g#/a",
            "$share/g/a#",
            "share/g/a",
            "$share",
            "a",
        ] {
            assert_eq!(shared(filter.as_bytes()), None, "{filter}");
        }
        assert!(is_shared(b"$share/") && !is_shared(b"$share") && !is_shared(b"$shared/g/a"));
    }

    #[test]
    fn levels_are_what_stands_between_the_slashes() {
        assert_eq!(levels(b"/a//").collect::<Vec<_>>(), [b"".as_slice(), b"a", b"", b""]);
        assert_eq!((depth(b"a"), depth(b"a/b/"), depth(b"")), (1, 3, 1));
        assert!(has_wildcard(b"a/+") && has_wildcard(b"#") && !has_wildcard(b"a/b"));
    }
}
