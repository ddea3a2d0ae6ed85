//! The hash by which Kafka's default partitioner places a key, so that a record keeps its partition upstream.

const SEED: u32 = 0x9747_b28c;
const M: u32 = 0x5bd1_e995;
const R: u32 = 24;

/// Austin Appleby's MurmurHash2, 32 bits, with the seed and the byte order of Kafka's Java client.
pub fn murmur2(data: &[u8]) -> i32 {
    // Java's length is an int; keys are far shorter than its range.
    let mut h = SEED ^ (data.len() as u32);
    let (words, tail) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> R;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !tail.is_empty() {
        let rest = tail.iter().rev().fold(0u32, |rest, byte| (rest << 8) | u32::from(*byte));
        h = (h ^ rest).wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^= h >> 15;
    h.cast_signed()
}

/// The partition of a key among `partitions`: the hash without its sign bit, modulo their number. 0 when there is at most one.
pub fn partition(key: &[u8], partitions: u16) -> u16 {
    if partitions <= 1 {
        return 0;
    }
    let positive = murmur2(key).cast_unsigned() & 0x7fff_ffff;
    // The remainder is below a u16.
    (positive % u32::from(partitions)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_kafkas_own_test_vectors() {
        for (key, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()), hash, "{key}");
        }
    }

    #[test]
    fn a_partition_is_the_positive_hash_modulo_their_number() {
        assert_eq!(i64::from(partition(b"abc", 7)), 479_470_107 % 7);
        assert_eq!(i64::from(partition(b"21", 7)), (-973_932_308_i64 & 0x7fff_ffff) % 7);
        assert_eq!(partition(b"anything", 1), 0);
        assert_eq!(partition(b"anything", 0), 0);
    }

    #[test]
    fn keys_spread_over_all_partitions() {
        let mut seen = [0u32; 8];
        (0..8_000).for_each(|n| seen[usize::from(partition(format!("sensors/{n}").as_bytes(), 8))] += 1);
        assert!(seen.iter().all(|count| (700..1_300).contains(count)), "{seen:?}");
    }
}
