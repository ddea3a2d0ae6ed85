//! UTF-8 text that shares the bytes it was read from.

use bytes::Bytes;
use core::fmt;

/// Whether these bytes are UTF-8 without U+0000 [MQTT-1.5.4-1] [MQTT-1.5.4-2]. One pass over ASCII, which nearly all of it is.
pub(super) fn is_text(bytes: &[u8]) -> bool {
    // Two bytes of state, not a bool: so the compiler uses wide instructions.
    let (mut union, mut nul) = (0_u8, 0_u8);
    for &byte in bytes {
        union |= byte;
        nul |= u8::from(byte == 0);
    }
    nul == 0 && (union < 0x80 || core::str::from_utf8(bytes).is_ok())
}

/// Valid UTF-8 without U+0000 [MQTT-1.5.4-1] [MQTT-1.5.4-2], as shared bytes.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text(Bytes);

impl Text {
    /// Checks and takes the bytes; `None` if they are not UTF-8 or hold U+0000.
    pub fn new(bytes: Bytes) -> Option<Self> {
        is_text(&bytes).then_some(Self(bytes))
    }

    /// Takes bytes that the codec has checked already: as a topic, for instance. Never call it with anything else.
    pub(super) fn from_checked(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// From a constant of ours.
    pub const fn from_static(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }

    /// The bytes, which are UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The shared bytes themselves.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// As a string slice. Checks again (no unsafe here); use [`Text::as_bytes`] on hot paths.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A copy that does not hold on to the buffer that it was read from.
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }
}

impl From<&str> for Text {
    /// U+0000 is dropped; the rest is kept.
    fn from(text: &str) -> Self {
        if text.contains('\0') {
            return Self(Bytes::from(text.replace('\0', "")));
        }
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        if text.contains('\0') { Self::from(text.as_str()) } else { Self(Bytes::from(text)) }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_utf8_without_nul() {
        for bytes in [b"".as_slice(), b"a", "Größe 7 ☂ 🌧".as_bytes(), "\u{feff}bom".as_bytes(), b"\x01\x7f"] {
            assert!(Text::new(Bytes::copy_from_slice(bytes)).is_some(), "{bytes:?}");
        }
        for bytes in [
            b"\0".as_slice(),
            b"a\0b",
            "Ü\0".as_bytes(),
            b"\xff",
            b"\xc3\x28",
            b"\xed\xa0\x80",
            b"\xc0\x80",
            b"\xf4\x90\x80\x80",
        ] {
            assert!(Text::new(Bytes::copy_from_slice(bytes)).is_none(), "{bytes:?}");
        }
    }

    #[test]
    fn text_of_ours_never_holds_nul() {
        assert_eq!(Text::from("a\0b").as_str(), "ab");
        assert_eq!(Text::from(String::from("a\0b")).as_str(), "ab");
        assert_eq!(Text::from("ä").detached(), Text::from_static("ä"));
    }
}
