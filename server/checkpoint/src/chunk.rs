//! The 64-byte lines of a part file of a checkpoint. The last of a line's eight words is a checksum of the
//! other seven. Encoding and decoding do no I/O and never panic.

use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::hash::{H64, line_checksum};
use tidewater_protocol::limits::{CHUNK_BYTES_MAX, PARTITIONS_MAX};

/// Format version that this program writes into part files and manifests.
pub(crate) const FORMAT_VERSION: u64 = 3;
/// Format versions that this program reads. In version 1 all elements of a block have one step count; version
/// 2 encodes that case in the same way. Version 3 adds parts that extend others, with chunks of removed rows.
pub(crate) const FORMAT_VERSIONS: std::ops::RangeInclusive<u64> = 1..=FORMAT_VERSION;
const MAGIC: u64 = u64::from_le_bytes(*b"TWPART01");
pub(crate) const CHUNK: u64 = 1;
const END: u64 = 2;
pub(crate) const REMOVED: u64 = 3;
/// Seed word of the checksums of lines and chunk payloads in a part file.
const LINE: u64 = u64::from_le_bytes(*b"partline");

/// A line of a part file in its encoded form: `LINE_BYTES` (64) bytes, eight little-endian words.
pub(crate) type Bytes = [u8; LINE_BYTES];

/// First line of a part file: format version, number of the server that wrote it, nonce of the save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) version: u64,
    pub(crate) server: u32,
    pub(crate) nonce: u64,
}

/// Header line before a chunk's payload: the table, the partition, the number of records or of removed rows, and the
/// payload's length in bytes and checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) table: u32,
    pub(crate) partition: u32,
    /// Whether the payload is the keys of removed rows.
    pub(crate) removed: bool,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) check: u64,
}

impl Chunk {
    const fn kind(&self) -> u64 {
        match self.removed {
            true => REMOVED,
            false => CHUNK,
        }
    }
}

/// Last line of a part file: the number of chunks and records in the file, and the running checksum over all
/// chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) chunks: u64,
    pub(crate) records: u64,
    /// Running checksum over all chunks, see [`fold`].
    pub(crate) running: u64,
}

/// A decoded line of a part file after the first one: the header of a chunk, or the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    Chunk(Chunk),
    End(End),
}

/// Computes the checksum of a chunk's payload, keyed with the nonce of the save, the number of the chunk's
/// line and the payload's length.
pub(crate) fn payload_check(nonce: u64, number: u64, payload: &[u8]) -> u64 {
    H64::new([nonce, number, payload.len() as u64, LINE]).finish_bytes(payload)
}

/// Returns the running checksum `running` of a part file extended by one more chunk header. The first value
/// is the nonce.
pub(crate) fn fold(running: u64, chunk: &Chunk) -> u64 {
    let place = u64::from(chunk.table) << 32 | u64::from(chunk.partition);
    let hash = H64::new([running, place, chunk.records, chunk.check]);
    match chunk.removed {
        true => hash.finish(&[chunk.bytes, REMOVED]),
        false => hash.finish(&[chunk.bytes]),
    }
}

impl Head {
    pub(crate) fn encode(self) -> Bytes {
        // The position of the version never changes.
        let what = self.version << 32 | u64::from(self.server);
        seal([MAGIC, what, self.nonce, 0, 0, 0, 0])
    }

    /// Decodes the first line of a part file. `None` if its checksum or magic does not match. Accepts any
    /// format version; the caller checks it.
    pub(crate) fn decode(bytes: &Bytes) -> Option<Self> {
        let [magic, what, nonce, rest @ ..] = open(bytes)?;
        (magic == MAGIC && rest == [0; 4]).then_some(Self {
            version: what >> 32,
            server: what as u32,
            nonce,
        })
    }
}

impl Line {
    /// Encodes line `number` of the part file of the save `nonce`. The line holds both, and its checksum.
    pub(crate) fn encode(self, number: u64, nonce: u64) -> Bytes {
        match self {
            Self::Chunk(c) => {
                let place = u64::from(c.table) << 32 | u64::from(c.partition);
                seal([c.kind(), place, c.records, c.bytes, c.check, number, nonce])
            }
            Self::End(e) => seal([END, e.chunks, e.records, 0, e.running, number, nonce]),
        }
    }

    /// Decodes line `number` of the part file of the save `nonce`. `None` if checksum, number, nonce or kind
    /// do not match, or if the sizes in a chunk header exceed the limits.
    pub(crate) fn decode(bytes: &Bytes, number: u64, nonce: u64) -> Option<Self> {
        let [kind, a, b, c, d, stored_number, stored_nonce] = open(bytes)?;
        if (stored_number, stored_nonce) != (number, nonce) {
            return None;
        }
        match kind {
            CHUNK | REMOVED => {
                let (table, partition) = ((a >> 32) as u32, a as u32);
                let chunk = Chunk {
                    table,
                    partition,
                    removed: kind == REMOVED,
                    records: b,
                    bytes: c,
                    check: d,
                };
                // A record has at least its key, a removed row has nothing else.
                let fits = c <= CHUNK_BYTES_MAX as u64 && b <= c / 8 && partition < PARTITIONS_MAX;
                let fits = fits && (!chunk.removed || b.checked_mul(8) == Some(c));
                fits.then_some(Self::Chunk(chunk))
            }
            END if c == 0 => Some(Self::End(End {
                chunks: a,
                records: b,
                running: d,
            })),
            _ => None,
        }
    }
}

/// Encodes seven words as a line: little-endian, followed by their checksum as the eighth word.
pub(crate) fn seal(words: [u64; 7]) -> Bytes {
    let mut bytes = [0; LINE_BYTES];
    let check = line_checksum(LINE, words[0], &words);
    for (at, word) in bytes
        .chunks_exact_mut(8)
        .zip(words.into_iter().chain([check]))
    {
        at.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Decodes a line into its seven words before the checksum. `None` if the checksum does not match.
pub(crate) fn open(bytes: &Bytes) -> Option<[u64; 7]> {
    let mut words = [0; 8];
    for (word, at) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*at);
    }
    let [a, b, c, d, e, f, g, check] = words;
    let words = [a, b, c, d, e, f, g];
    (line_checksum(LINE, a, &words) == check).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive_and_no_flipped_bit_does() {
        let head = Head {
            version: FORMAT_VERSION,
            server: 7,
            nonce: 9,
        };
        assert_eq!(Head::decode(&head.encode()), Some(head));
        let chunk = Chunk {
            table: 3,
            partition: 5,
            removed: false,
            records: 2,
            bytes: 64,
            check: 11,
        };
        let end = Line::End(End {
            chunks: 1,
            records: 2,
            running: fold(9, &chunk),
        });
        let removed = Chunk {
            removed: true,
            bytes: 16,
            ..chunk
        };
        assert_ne!(fold(9, &removed), fold(9, &Chunk { bytes: 16, ..chunk }));
        for line in [Line::Chunk(chunk), Line::Chunk(removed), end] {
            let bytes = line.encode(4, 9);
            assert_eq!(Line::decode(&bytes, 4, 9), Some(line));
            assert_eq!(Line::decode(&bytes, 5, 9), None);
            assert_eq!(Line::decode(&bytes, 4, 8), None);
            for bit in 0..8 * LINE_BYTES {
                let mut bad = bytes;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Line::decode(&bad, 4, 9), None, "bit {bit}");
            }
        }
        let uneven = Chunk {
            bytes: 17,
            ..removed
        };
        assert_eq!(Line::decode(&Line::Chunk(uneven).encode(4, 9), 4, 9), None);
        let long = Chunk {
            bytes: CHUNK_BYTES_MAX as u64 + 1,
            ..chunk
        };
        assert_eq!(Line::decode(&Line::Chunk(long).encode(4, 9), 4, 9), None);
        let many = Chunk {
            records: 9,
            ..chunk
        };
        assert_eq!(Line::decode(&Line::Chunk(many).encode(4, 9), 4, 9), None);
    }

    #[test]
    fn bytes_are_stable() {
        let head = Head {
            version: 1,
            server: 2,
            nonce: 3,
        }
        .encode();
        assert_eq!(
            &head[..24],
            b"TWPART01\x02\0\0\0\x01\0\0\0\x03\0\0\0\0\0\0\0"
        );
    }
}
