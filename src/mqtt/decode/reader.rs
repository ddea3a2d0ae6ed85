//! Reads fields from the body of one packet. Every read is checked against the end of the packet; none copies.

use super::DecodeError;
use crate::mqtt::text::{Text, is_text};
use crate::mqtt::topic;
use bytes::Bytes;

/// Bytes that are still to be read, and the shared buffer that they are part of.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    source: &'a Bytes,
}

const SHORT: DecodeError = DecodeError::malformed("the packet ends within a field");

impl<'a> Reader<'a> {
    /// Reads `body`, which is a part of `source`.
    pub(super) fn new(body: &'a [u8], source: &'a Bytes) -> Self {
        Self { rest: body, source }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Whether the next byte is 0: an empty property section, for instance.
    pub(super) fn starts_with_zero(&self) -> bool {
        self.rest.first() == Some(&0)
    }

    /// Nothing may follow.
    pub(super) fn finish(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::malformed("bytes after the end of the packet's fields"))
        }
    }

    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        let (&byte, rest) = self.rest.split_first().ok_or(SHORT)?;
        self.rest = rest;
        Ok(byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        let (&bytes, rest) = self.rest.split_first_chunk().ok_or(SHORT)?;
        self.rest = rest;
        Ok(u16::from_be_bytes(bytes))
    }

    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        let (&bytes, rest) = self.rest.split_first_chunk().ok_or(SHORT)?;
        self.rest = rest;
        Ok(u32::from_be_bytes(bytes))
    }

    /// A u16 that must not be 0.
    pub(super) fn u16_not_zero(&mut self) -> Result<u16, DecodeError> {
        match self.u16()? {
            0 => Err(DecodeError::protocol("0 where it is not allowed")),
            value => Ok(value),
        }
    }

    /// A u32 that must not be 0.
    pub(super) fn u32_not_zero(&mut self) -> Result<u32, DecodeError> {
        match self.u32()? {
            0 => Err(DecodeError::protocol("0 where it is not allowed")),
            value => Ok(value),
        }
    }

    /// A packet identifier: not 0 [MQTT-2.2.1-3] [MQTT-2.3.1-1].
    pub(super) fn packet_id(&mut self) -> Result<u16, DecodeError> {
        match self.u16()? {
            0 => Err(DecodeError::protocol("packet identifier 0 [MQTT-2.2.1-3]")),
            id => Ok(id),
        }
    }

    /// A byte that is 0 or 1.
    pub(super) fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::protocol("a property that is neither 0 nor 1")),
        }
    }

    /// A variable byte integer, in the fewest bytes [MQTT-1.5.5].
    pub(super) fn varint(&mut self) -> Result<u32, DecodeError> {
        let mut value = 0_u32;
        for shift in [0, 7, 14, 21] {
            let byte = self.u8()?;
            value |= u32::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                let shortest = shift == 0 || byte != 0;
                return if shortest {
                    Ok(value)
                } else {
                    Err(DecodeError::malformed("not in the fewest bytes [MQTT-1.5.5]"))
                };
            }
        }
        Err(DecodeError::malformed("a variable byte integer of more than four bytes"))
    }

    /// A part of its own, of that many bytes.
    pub(super) fn part(&mut self, len: usize) -> Result<Self, DecodeError> {
        let (part, rest) = self.rest.split_at_checked(len).ok_or(SHORT)?;
        self.rest = rest;
        Ok(Self { rest: part, source: self.source })
    }

    /// A field with its length before it, not looked into.
    fn field(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = usize::from(self.u16()?);
        let (field, rest) = self.rest.split_at_checked(len).ok_or(SHORT)?;
        self.rest = rest;
        Ok(field)
    }

    /// Binary data with its length before it, not shared.
    pub(super) fn raw(&mut self) -> Result<&'a [u8], DecodeError> {
        self.field()
    }

    /// Binary data with its length before it [MQTT-1.5.6].
    pub(super) fn binary(&mut self) -> Result<Bytes, DecodeError> {
        let field = self.field()?;
        Ok(self.source.slice_ref(field))
    }

    /// Text [MQTT-1.5.4-1] [MQTT-1.5.4-2].
    pub(super) fn text(&mut self) -> Result<Text, DecodeError> {
        let field = self.field()?;
        if is_text(field) { Ok(self.share(field)) } else { Err(NOT_TEXT) }
    }

    /// A topic name. An empty one comes back as such: only PUBLISH with an alias may have it.
    #[inline]
    pub(super) fn topic(&mut self) -> Result<Text, DecodeError> {
        let field = self.field()?;
        if field.is_empty() || topic::valid_topic(field) {
            Ok(self.share(field))
        } else if is_text(field) {
            Err(DecodeError::malformed("wildcard in a topic name [MQTT-3.3.2-2]"))
        } else {
            Err(NOT_TEXT)
        }
    }

    /// A topic name that is not empty [MQTT-4.7.3-1].
    pub(super) fn topic_not_empty(&mut self) -> Result<Text, DecodeError> {
        let topic = self.topic()?;
        if topic.is_empty() { Err(DecodeError::malformed("empty topic name [MQTT-4.7.3-1]")) } else { Ok(topic) }
    }

    /// A topic filter; in MQTT 5 one that begins with `$share/` must be a shared one.
    pub(super) fn filter(&mut self, v5: bool) -> Result<Text, DecodeError> {
        let field = self.field()?;
        if !topic::valid_filter(field) {
            let message =
                if field.is_empty() { "empty topic filter [MQTT-4.7.3-1]" } else { "topic filter [MQTT-4.7.1-1]" };
            return Err(if is_text(field) { DecodeError::malformed(message) } else { NOT_TEXT });
        }
        if v5 && topic::is_shared(field) && topic::shared(field).is_none() {
            return Err(DecodeError::malformed("shared subscription without group or filter [MQTT-4.8.2-2]"));
        }
        Ok(self.share(field))
    }

    /// All that is left.
    #[inline]
    pub(super) fn take_rest(&mut self) -> Bytes {
        let rest = core::mem::take(&mut self.rest);
        self.source.slice_ref(rest)
    }

    fn share(&self, checked: &[u8]) -> Text {
        Text::from_checked(self.source.slice_ref(checked))
    }
}

const NOT_TEXT: DecodeError = DecodeError::malformed("not UTF-8, or U+0000 in it [MQTT-1.5.4-1]");
