//! Where a packet's layout goes: into a count of its bytes, or into bytes.

use super::EncodeError;
use crate::limits::FIELD_BYTES_MAX;
use crate::mqtt::text::Text;
use crate::mqtt::wire::varint_len;

/// Takes the fields of a packet in order.
pub(super) trait Sink {
    fn u8(&mut self, value: u8);
    fn u16(&mut self, value: u16);
    fn u32(&mut self, value: u32);
    fn varint(&mut self, value: usize);
    fn bytes(&mut self, bytes: &[u8]);
    /// A field with two bytes of length before it.
    fn field(&mut self, field: &[u8]);
    /// A part with its length as a variable byte integer before it.
    fn section<P: Layout>(&mut self, part: &P);
    /// The packet must not be sent, because.
    fn refuse(&mut self, why: &'static str);

    fn text(&mut self, text: &Text) {
        self.field(text.as_bytes());
    }
}

/// Something that knows its own layout.
pub(super) trait Layout {
    fn put<S: Sink>(&self, sink: &mut S);
}

/// Counts, and remembers the first fault.
#[derive(Default)]
pub(super) struct Counter {
    pub bytes: usize,
    pub fault: Option<EncodeError>,
}

impl Counter {
    #[inline]
    pub(super) fn of(layout: &impl Layout) -> Self {
        let mut counter = Self::default();
        layout.put(&mut counter);
        counter
    }
}

impl Sink for Counter {
    #[inline]
    fn u8(&mut self, _: u8) {
        self.bytes += 1;
    }

    #[inline]
    fn u16(&mut self, _: u16) {
        self.bytes += 2;
    }

    #[inline]
    fn u32(&mut self, _: u32) {
        self.bytes += 4;
    }

    #[inline]
    fn varint(&mut self, value: usize) {
        self.bytes += varint_len(value);
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
    }

    #[inline]
    fn field(&mut self, field: &[u8]) {
        if field.len() > FIELD_BYTES_MAX {
            self.fault = self.fault.or(Some(EncodeError::TooLarge));
        }
        self.bytes += 2 + field.len();
    }

    #[inline]
    fn section<P: Layout>(&mut self, part: &P) {
        let before = self.bytes;
        part.put(self);
        self.bytes += varint_len(self.bytes - before);
    }

    fn refuse(&mut self, why: &'static str) {
        self.fault = self.fault.or(Some(EncodeError::Forbidden(why)));
    }
}

/// Writes what was counted and judged before.
impl Sink for Vec<u8> {
    #[inline]
    fn u8(&mut self, value: u8) {
        self.push(value);
    }

    #[inline]
    fn u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    #[inline]
    fn u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    #[inline]
    fn varint(&mut self, value: usize) {
        let mut rest = value;
        loop {
            let low = (rest & 0x7F) as u8;
            rest >>= 7;
            if rest == 0 {
                return self.push(low);
            }
            self.push(low | 0x80);
        }
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    #[inline]
    fn field(&mut self, field: &[u8]) {
        // Fits: the counter has refused longer ones.
        self.u16(field.len() as u16);
        self.extend_from_slice(field);
    }

    #[inline]
    fn section<P: Layout>(&mut self, part: &P) {
        self.varint(Counter::of(part).bytes);
        part.put(self);
    }

    fn refuse(&mut self, _: &'static str) {}
}
