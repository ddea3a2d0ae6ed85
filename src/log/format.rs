#![doc = include_str!("FORMAT.md")]

use super::frame::{FrameHeader, FrameKind};
use crate::limits::FRAME_ALIGN;
use crate::types::{LogId, PartitionId, Seq, StreamId};

/// Version of the segment format that is written; a segment with a higher major version is refused.
pub const FORMAT_MAJOR: u16 = 1;
/// Minor version that is written.
pub const FORMAT_MINOR: u16 = 0;
/// Bytes of a frame header.
pub const FRAME_HEADER_BYTES: usize = 56;
/// First bytes of a frame.
pub const FRAME_MAGIC: u32 = 0xF0BA_7E5D;
/// Version of frames that is written.
pub const FRAME_VERSION: u8 = 1;
/// What a disk writes whole or not at all.
pub const SECTOR_BYTES: usize = 512;
/// Where frames begin in a segment: behind two copies of its header.
pub const SEGMENT_DATA_START: u64 = 2 * SECTOR_BYTES as u64;
/// Zero bytes behind the last frame.
pub const END_MARK_BYTES: usize = 8;
/// Last bytes of a sealed segment.
pub const FOOTER_MAGIC: u32 = 0xF007_F007;
const SEGMENT_MAGIC: &[u8; 8] = b"FOREBAYL";
const SEGMENT_HEADER_BYTES: usize = 88;

const _: () = assert!(FRAME_HEADER_BYTES.is_multiple_of(FRAME_ALIGN));
const _: () = assert!(END_MARK_BYTES <= FRAME_HEADER_BYTES);

/// Bytes that a frame with a body of `body` bytes takes in a segment.
pub const fn frame_bytes(body: usize) -> usize {
    (FRAME_HEADER_BYTES + body).next_multiple_of(FRAME_ALIGN)
}

/// Little-endian numbers at a fixed place; `None` if the bytes end before.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// See [`u16_at`].
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// See [`u16_at`].
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Writes `value` at `at`; the caller's buffer is long enough by construction, else nothing happens.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// A frame header as it stands in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawHeader {
    /// What the core knows of it.
    pub header: FrameHeader,
    /// Length of the body in bytes.
    pub length: u32,
    /// Highest sequence known to be synced when it was written.
    pub synced: Seq,
    /// CRC as it stands there.
    pub crc: u32,
}

impl RawHeader {
    /// Bytes of the whole frame, padding included.
    pub fn frame_bytes(&self) -> u64 {
        frame_bytes(self.length as usize) as u64
    }
}

/// Start value of a frame's checks: neither an old frame in a recycled segment nor a copy at another place checks.
fn start_value(salt: u32, place: u64) -> u32 {
    salt ^ place as u32
}

/// The header's bytes, complete, for a frame at `place` of a segment with this salt.
pub fn encode_header(
    header: &FrameHeader,
    body: &[u8],
    synced: Seq,
    salt: u32,
    place: u64,
) -> [u8; FRAME_HEADER_BYTES] {
    let mut bytes = [0u8; FRAME_HEADER_BYTES];
    put(&mut bytes, 0, &FRAME_MAGIC.to_le_bytes());
    put(&mut bytes, 4, &[FRAME_VERSION, header.kind as u8]);
    put(&mut bytes, 6, &header.flags.to_le_bytes());
    put(&mut bytes, 8, &(body.len() as u32).to_le_bytes());
    put(&mut bytes, 16, &header.seq.to_le_bytes());
    put(&mut bytes, 24, &synced.to_le_bytes());
    put(&mut bytes, 32, &header.epoch.to_le_bytes());
    put(&mut bytes, 36, &header.partition.stream.0.to_le_bytes());
    put(&mut bytes, 40, &header.partition.partition.to_le_bytes());
    put(&mut bytes, 44, &header.count.to_le_bytes());
    put(&mut bytes, 48, &header.base_offset.to_le_bytes());
    let check = crc32c::crc32c_append(start_value(salt, place), &bytes) as u16;
    put(&mut bytes, 42, &check.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(start_value(salt, place), &bytes), body);
    put(&mut bytes, 12, &crc.to_le_bytes());
    bytes
}

/// The header of a PAD at `place` that spans `span` bytes, itself included; `next` is the sequence of the frame behind it.
pub fn encode_pad(seq: Seq, epoch: u32, next: Seq, span: u64, salt: u32, place: u64) -> [u8; FRAME_HEADER_BYTES] {
    let header = FrameHeader {
        kind: FrameKind::Pad,
        flags: 0,
        seq,
        epoch,
        partition: PartitionId::default(),
        count: 0,
        base_offset: next,
    };
    let mut bytes = encode_header(&header, &[], seq, salt, place);
    put(&mut bytes, 8, &(span.saturating_sub(FRAME_HEADER_BYTES as u64) as u32).to_le_bytes());
    put(&mut bytes, 12, &[0; 4]);
    put(&mut bytes, 42, &[0; 2]);
    let check = crc32c::crc32c_append(start_value(salt, place), &bytes) as u16;
    put(&mut bytes, 42, &check.to_le_bytes());
    let crc = crc32c::crc32c_append(start_value(salt, place), &bytes);
    put(&mut bytes, 12, &crc.to_le_bytes());
    bytes
}

/// Reads a header if one stands at the front of `bytes`: magic, version, kind and header check are right for this place of a
/// segment with this salt. Says nothing about the body.
pub fn decode_header(bytes: &[u8], salt: u32, place: u64) -> Option<RawHeader> {
    let bytes: &[u8; FRAME_HEADER_BYTES] = bytes.first_chunk()?;
    if u32_at(bytes, 0)? != FRAME_MAGIC {
        return None;
    }
    let mut plain = *bytes;
    put(&mut plain, 12, &[0; 4]);
    put(&mut plain, 42, &[0; 2]);
    if crc32c::crc32c_append(start_value(salt, place), &plain) as u16 != u16_at(bytes, 42)? {
        return None;
    }
    decode_unchecked(bytes)
}

/// The header's fields as they stand there, magic, version and kind being right.
pub(crate) fn decode_unchecked(bytes: &[u8]) -> Option<RawHeader> {
    if u32_at(bytes, 0)? != FRAME_MAGIC || bytes.get(4) != Some(&FRAME_VERSION) {
        return None;
    }
    let header = FrameHeader {
        kind: FrameKind::from_number(*bytes.get(5)?)?,
        flags: u16_at(bytes, 6)?,
        seq: u64_at(bytes, 16)?,
        epoch: u32_at(bytes, 32)?,
        partition: PartitionId { stream: StreamId(u32_at(bytes, 36)?), partition: u16_at(bytes, 40)? },
        count: u32_at(bytes, 44)?,
        base_offset: u64_at(bytes, 48)?,
    };
    Some(RawHeader { header, length: u32_at(bytes, 8)?, synced: u64_at(bytes, 24)?, crc: u32_at(bytes, 12)? })
}

/// Whether the frame whose header bytes and body these are was written at `place` of a segment with this salt, undamaged. The
/// body of a PAD is not covered: give it none.
pub fn check_frame(header: &[u8], body: &[u8], salt: u32, place: u64) -> bool {
    let Some(bytes) = header.first_chunk::<FRAME_HEADER_BYTES>() else { return false };
    let mut plain = *bytes;
    put(&mut plain, 12, &[0; 4]);
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(start_value(salt, place), &plain), body);
    u32_at(bytes, 12) == Some(crc)
}

/// The first bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Of the log.
    pub log_id: LogId,
    /// Of the segment.
    pub number: u64,
    /// Start value of its frames' CRCs.
    pub salt: u32,
    /// The predecessor's, 0 if there is none.
    pub previous_salt: u32,
    /// Sequence of its first frame.
    pub first_seq: Seq,
    /// Last valid sequence of older segments; what they hold beyond it is void.
    pub previous_last: Seq,
    /// Bytes of the segment.
    pub size: u64,
    /// Number of the predecessor, 0 if there is none.
    pub previous: u64,
}

/// What stands where a segment header should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentHeaderRead {
    /// A header.
    Valid(SegmentHeader),
    /// One of a later major version.
    Newer(u16),
    /// Nothing that can be read.
    None,
}

impl SegmentHeader {
    /// Both copies, as they stand at the start of the segment.
    pub fn encode(&self) -> [u8; SEGMENT_DATA_START as usize] {
        let mut one = [0u8; SEGMENT_HEADER_BYTES];
        put(&mut one, 0, SEGMENT_MAGIC);
        put(&mut one, 8, &FORMAT_MAJOR.to_le_bytes());
        put(&mut one, 10, &FORMAT_MINOR.to_le_bytes());
        put(&mut one, 16, &self.log_id.0);
        put(&mut one, 32, &self.number.to_le_bytes());
        put(&mut one, 40, &self.salt.to_le_bytes());
        put(&mut one, 44, &self.previous_salt.to_le_bytes());
        put(&mut one, 48, &self.first_seq.to_le_bytes());
        put(&mut one, 56, &self.previous_last.to_le_bytes());
        put(&mut one, 64, &self.size.to_le_bytes());
        put(&mut one, 72, &self.previous.to_le_bytes());
        let crc = crc32c::crc32c(&one);
        put(&mut one, 12, &crc.to_le_bytes());
        let mut both = [0u8; SEGMENT_DATA_START as usize];
        put(&mut both, 0, &one);
        put(&mut both, SECTOR_BYTES, &one);
        both
    }

    /// Reads the first copy that is right, from the first [`SEGMENT_DATA_START`] bytes of a segment.
    pub fn decode(bytes: &[u8]) -> SegmentHeaderRead {
        let mut newer = None;
        for copy in bytes.chunks(SECTOR_BYTES).take(2) {
            match Self::decode_one(copy).unwrap_or(SegmentHeaderRead::None) {
                SegmentHeaderRead::Valid(header) => return SegmentHeaderRead::Valid(header),
                SegmentHeaderRead::Newer(major) => newer = Some(major),
                SegmentHeaderRead::None => {}
            }
        }
        newer.map_or(SegmentHeaderRead::None, SegmentHeaderRead::Newer)
    }

    fn decode_one(bytes: &[u8]) -> Option<SegmentHeaderRead> {
        let one: &[u8; SEGMENT_HEADER_BYTES] = bytes.first_chunk()?;
        if one.first_chunk::<8>()? != SEGMENT_MAGIC {
            return None;
        }
        let mut plain = *one;
        put(&mut plain, 12, &[0; 4]);
        if crc32c::crc32c(&plain) != u32_at(one, 12)? {
            return None;
        }
        let major = u16_at(one, 8)?;
        if major > FORMAT_MAJOR {
            return Some(SegmentHeaderRead::Newer(major));
        }
        Some(SegmentHeaderRead::Valid(Self {
            log_id: LogId(*one.get(16..)?.first_chunk()?),
            number: u64_at(one, 32)?,
            salt: u32_at(one, 40)?,
            previous_salt: u32_at(one, 44)?,
            first_seq: u64_at(one, 48)?,
            previous_last: u64_at(one, 56)?,
            size: u64_at(one, 64)?,
            previous: u64_at(one, 72)?,
        }))
    }
}

/// A well-mixed number from a seed and a counter, for salts: not secret, only different each time.
pub(crate) fn mix(seed: u64, counter: u64) -> u64 {
    let mut z = seed.wrapping_add(counter.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::frame::FLAG_LAST;

    fn header() -> FrameHeader {
        FrameHeader {
            kind: FrameKind::Batch,
            flags: FLAG_LAST,
            seq: 77,
            epoch: 3,
            partition: PartitionId { stream: StreamId(5), partition: 9 },
            count: 4,
            base_offset: 1_000_000_007,
        }
    }

    #[test]
    fn a_frame_header_reads_back() {
        let bytes = encode_header(&header(), b"hello", 76, 42, 1024);
        let raw = decode_header(&bytes, 42, 1024).unwrap();
        assert_eq!(raw.header, header());
        assert_eq!((raw.length, raw.synced), (5, 76));
        assert!(check_frame(&bytes, b"hello", 42, 1024));
    }

    #[test]
    fn a_frame_does_not_check_with_another_salt_place_or_body() {
        let bytes = encode_header(&header(), b"hello", 76, 42, 1024);
        assert!(!check_frame(&bytes, b"hello", 43, 1024));
        assert!(!check_frame(&bytes, b"hello", 42, 1032));
        assert!(!check_frame(&bytes, b"hellp", 42, 1024));
        assert!(decode_header(&bytes, 43, 1024).is_none() && decode_header(&bytes, 42, 1032).is_none());
    }

    #[test]
    fn each_changed_byte_of_a_frame_header_is_noticed() {
        let good = encode_header(&header(), b"hello", 76, 42, 1024);
        for at in 0..FRAME_HEADER_BYTES {
            for change in 1..=255u8 {
                let mut bad = good;
                bad[at] ^= change;
                assert!(!check_frame(&bad, b"hello", 42, 1024), "byte {at} ^ {change}");
                assert_eq!(decode_header(&bad, 42, 1024).is_some(), (12..16).contains(&at), "byte {at} ^ {change}");
            }
        }
    }

    #[test]
    fn a_pad_checks_whatever_it_spans() {
        let bytes = encode_pad(9, 2, 1000, 4096, 42, 2048);
        let raw = decode_header(&bytes, 42, 2048).unwrap();
        assert_eq!((raw.frame_bytes(), raw.header.seq, raw.header.base_offset), (4096, 9, 1000));
        assert!(check_frame(&bytes, &[], 42, 2048));
    }

    #[test]
    fn a_segment_header_survives_the_loss_of_either_copy() {
        let header = SegmentHeader {
            log_id: LogId([7; 16]),
            number: 12,
            salt: 0xDEAD_BEEF,
            previous_salt: 5,
            first_seq: 900,
            previous_last: 800,
            size: 1 << 20,
            previous: 11,
        };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), SegmentHeaderRead::Valid(header));
        for at in 0..bytes.len() {
            let mut bad = bytes;
            bad[at] ^= 0x10;
            assert_eq!(SegmentHeader::decode(&bad), SegmentHeaderRead::Valid(header), "byte {at}");
        }
        assert_eq!(SegmentHeader::decode(&[0; 1024]), SegmentHeaderRead::None);
    }
}
