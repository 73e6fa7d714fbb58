//! The layout of PaddlePaddle and ElasticDL (`pyrecordio` 0.0.6).
//!
//! A chunk has a header of five words: the magic number, the CRC-32 (IEEE) of the compressed payload, the
//! compressor, the compressed size, the number of records. The payload is, for each record, its length in a word
//! and its bytes.
//!
//! Files of `pyrecordio` 0.0.4 and before are read too. Their headers have other words behind the magic number: the
//! number of records, the CRC-32C (Castagnoli) of the compressed payload, the compressor counted from 1, the compressed
//! size; snappy is the raw format. Their fourth word is 1 to 3, which no chunk of the layout above has there: a payload of
//! records has at least 4 bytes.

use std::io::{self, Read, Write};

use tidewater_protocol::limits::{DATA_CHUNK_BYTES_MAX, DATA_RECORD_BYTES_MAX};
use tidewater_protocol::mutants::{self, Mutant};

use crate::error::FileFault;
use crate::input::read_up_to;

/// First word of each chunk.
pub const MAGIC: u32 = 0x0102_0304;
/// Size of a chunk's header, in bytes.
pub const HEADER_BYTES: usize = 20;
/// A usual bound of a chunk, in bytes.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Compression of a chunk's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressor {
    /// The payload is not compressed.
    None = 0,
    /// Framing format of snappy.
    Snappy = 1,
    /// gzip, of one member or several.
    Gzip = 2,
}

/// Which words a header has, and how its payload is checked and compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// That of PaddlePaddle, ElasticDL and `pyrecordio` 0.0.6; the only one that is written.
    Current,
    /// That of `pyrecordio` 0.0.4 and before.
    Old,
}

/// Header of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Layout of the chunk.
    pub layout: Layout,
    /// Checksum of the compressed payload: CRC-32, or CRC-32C in the old layout.
    pub checksum: u32,
    /// Compression of the payload.
    pub compressor: Compressor,
    /// Bytes of the compressed payload.
    pub compressed_bytes: u32,
    /// Number of records of the chunk.
    pub records: u32,
}

impl Compressor {
    const fn of(code: u32) -> Result<Self, FileFault> {
        match code {
            0 => Ok(Self::None),
            1 => Ok(Self::Snappy),
            2 => Ok(Self::Gzip),
            code => Err(FileFault::Compressor(code)),
        }
    }
}

impl Header {
    /// Decodes a header.
    ///
    /// # Errors
    /// Another magic number, an unknown compressor.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FileFault> {
        let (words, _) = bytes.as_chunks::<4>();
        let word = |index: usize| u32::from_le_bytes(words[index]);
        let (found, expected) = (word(0), MAGIC);
        if found != expected {
            return Err(FileFault::Magic { expected, found });
        }
        Ok(match word(3) {
            code @ 1..=3 => Self {
                layout: Layout::Old,
                checksum: word(2),
                compressor: Compressor::of(code - 1)?,
                compressed_bytes: word(4),
                records: word(1),
            },
            bytes => Self {
                layout: Layout::Current,
                checksum: word(1),
                compressor: Compressor::of(word(2))?,
                compressed_bytes: bytes,
                records: word(4),
            },
        })
    }

    fn encode(self) -> [u8; HEADER_BYTES] {
        let words = [
            MAGIC,
            self.checksum,
            self.compressor as u32,
            self.compressed_bytes,
            self.records,
        ];
        let mut bytes = [0; HEADER_BYTES];
        for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }
}

/// Records of a chunk: ranges of its payload.
#[derive(Debug, Default)]
pub struct Chunk {
    payload: Vec<u8>,
    /// End of each record; it begins 4 bytes after the end of the one before.
    ends: Vec<usize>,
}

impl Chunk {
    /// Decodes the payload of a chunk.
    ///
    /// # Errors
    /// A checksum or compression that does not match, records that do not fill the payload.
    pub fn decode(header: &Header, compressed: Vec<u8>) -> Result<Self, FileFault> {
        let found = match header.layout {
            Layout::Current => crc32fast::hash(&compressed),
            Layout::Old => crc32c::crc32c(&compressed),
        };
        let expected = header.checksum;
        if found != expected && !mutants::on(Mutant::ChunkChecksumIgnored) {
            return Err(FileFault::Checksum { expected, found });
        }
        let payload = match header.compressor {
            Compressor::None => compressed,
            Compressor::Snappy => match header.layout {
                Layout::Current => unpack(snap::read::FrameDecoder::new(&compressed[..]))?,
                Layout::Old => unpack_raw(&compressed)?,
            },
            Compressor::Gzip => unpack(flate2::bufread::MultiGzDecoder::new(&compressed[..]))?,
        };
        let mut chunk = Self {
            payload,
            ends: Vec::new(),
        };
        chunk.index(header.records)?;
        Ok(chunk)
    }

    fn index(&mut self, records: u32) -> Result<(), FileFault> {
        let bytes = self.payload.len();
        let mut end = 0;
        for _ in 0..records {
            let length = self.payload[end..].first_chunk::<4>();
            let length = length.map(|bytes| u32::from_le_bytes(*bytes) as usize);
            let next = length.and_then(|length| (end + 4).checked_add(length));
            let Some(next) = next.filter(|next| *next <= bytes) else {
                return Err(FileFault::Records {
                    records,
                    end,
                    bytes,
                });
            };
            if next - end - 4 > DATA_RECORD_BYTES_MAX {
                let limit = DATA_RECORD_BYTES_MAX;
                return Err(FileFault::TooLong { limit });
            }
            self.ends.push(next);
            end = next;
        }
        match end == bytes {
            true => Ok(()),
            false => Err(FileFault::Records {
                records,
                end,
                bytes,
            }),
        }
    }

    /// Number of records of the chunk.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the chunk has no records.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Record `index`, `None` beyond the last one.
    pub fn record(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.payload[start + 4..end])
    }
}

/// Decompresses a payload, bounded by [`DATA_CHUNK_BYTES_MAX`].
fn unpack(source: impl Read) -> Result<Vec<u8>, FileFault> {
    let limit = DATA_CHUNK_BYTES_MAX;
    let mut payload = Vec::new();
    let mut bounded = source.take(limit as u64 + 1);
    let read = bounded.read_to_end(&mut payload);
    if payload.len() > limit {
        return Err(FileFault::TooLong { limit });
    }
    read.map_err(|_| FileFault::Decompress)?;
    Ok(payload)
}

/// Decompresses a payload of raw snappy, which begins with its decompressed size. Memory grows with the bytes that are
/// there: a copy of at most 64 bytes takes two bytes or more.
fn unpack_raw(compressed: &[u8]) -> Result<Vec<u8>, FileFault> {
    let limit = DATA_CHUNK_BYTES_MAX;
    match snap::raw::decompress_len(compressed) {
        Ok(bytes) if bytes > limit => Err(FileFault::TooLong { limit }),
        Ok(bytes) if bytes <= 32 * compressed.len() => {
            let payload = snap::raw::Decoder::new().decompress_vec(compressed);
            payload.map_err(|_| FileFault::Decompress)
        }
        _ => Err(FileFault::Decompress),
    }
}

/// Reads the header of the next chunk; `None` at the end of the source.
///
/// # Errors
/// Any error of the source; in the inner result, a header that is damaged or cut.
pub fn read_header(source: &mut impl Read) -> io::Result<Option<Result<Header, FileFault>>> {
    let mut bytes = [0; HEADER_BYTES];
    Ok(match read_up_to(source, &mut bytes)? {
        0 => None,
        HEADER_BYTES => Some(Header::decode(&bytes)),
        _ => Some(Err(FileFault::Truncated)),
    })
}

/// Reads the payload of a chunk. Memory grows with the bytes that are there.
///
/// # Errors
/// Any error of the source; in the inner result, a payload that is damaged or cut.
pub fn read_payload(
    source: &mut impl Read,
    header: &Header,
) -> io::Result<Result<Chunk, FileFault>> {
    let (bytes, limit) = (header.compressed_bytes as usize, DATA_CHUNK_BYTES_MAX);
    if bytes > limit {
        return Ok(Err(FileFault::TooLong { limit }));
    }
    let mut compressed = Vec::new();
    source.take(bytes as u64).read_to_end(&mut compressed)?;
    Ok(match compressed.len() == bytes {
        true => Chunk::decode(header, compressed),
        false => Err(FileFault::Truncated),
    })
}

/// Writes records in chunks. The last one is written by [`Writer::finish`].
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    compressor: Compressor,
    chunk_bytes: usize,
    payload: Vec<u8>,
    records: u32,
}

impl<W: Write> Writer<W> {
    /// Makes a writer. `chunk_bytes` bounds the bytes of a chunk before compression, at most
    /// [`DATA_CHUNK_BYTES_MAX`] / 2. A larger record is alone in its chunk. [`CHUNK_BYTES`] is usual.
    pub fn new(out: W, compressor: Compressor, chunk_bytes: usize) -> Self {
        Self {
            out,
            compressor,
            chunk_bytes: chunk_bytes.min(DATA_CHUNK_BYTES_MAX / 2),
            payload: Vec::new(),
            records: 0,
        }
    }

    /// Appends a record.
    ///
    /// # Errors
    /// Any error of the output; a record that readers would refuse as too long.
    pub fn write(&mut self, record: &[u8]) -> io::Result<()> {
        if record.len() > DATA_RECORD_BYTES_MAX {
            let what = format!(
                "a record of {} bytes; readers accept {DATA_RECORD_BYTES_MAX}",
                record.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        if self.records > 0 && self.payload.len() + 4 + record.len() > self.chunk_bytes {
            self.flush_chunk()?;
        }
        self.payload
            .extend_from_slice(&(record.len() as u32).to_le_bytes());
        self.payload.extend_from_slice(record);
        self.records += 1;
        Ok(())
    }

    fn flush_chunk(&mut self) -> io::Result<()> {
        if self.records == 0 {
            return Ok(());
        }
        let mut packed = Vec::new();
        match self.compressor {
            Compressor::None => packed.append(&mut self.payload),
            Compressor::Snappy => {
                let mut encoder = snap::write::FrameEncoder::new(&mut packed);
                encoder.write_all(&self.payload)?;
                encoder.flush()?;
            }
            Compressor::Gzip => {
                let level = flate2::Compression::default();
                let mut encoder = flate2::write::GzEncoder::new(&mut packed, level);
                encoder.write_all(&self.payload)?;
                encoder.finish()?;
            }
        }
        let header = Header {
            layout: Layout::Current,
            checksum: crc32fast::hash(&packed),
            compressor: self.compressor,
            compressed_bytes: packed.len() as u32,
            records: self.records,
        };
        self.out.write_all(&header.encode())?;
        self.out.write_all(&packed)?;
        self.payload.clear();
        self.records = 0;
        Ok(())
    }

    /// Writes the last chunk, and returns the output.
    ///
    /// # Errors
    /// Any error of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush_chunk()?;
        self.out.flush()?;
        Ok(self.out)
    }
}
