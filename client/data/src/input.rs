//! Bytes of files, decompressed as they are read.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::error::DataError;

/// Bytes of a read: large enough for a parallel file system, small compared with the resulting rows.
const READ_BYTES: usize = 256 << 10;

/// Compression of a file, found by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// The bytes are the content.
    None,
    /// gzip (RFC 1952), of one member or several.
    Gzip,
    /// Zstandard (RFC 8878), of one frame or several, with windows of at most 128 MiB.
    Zstd,
}

/// Content of a file from some offset on.
pub(crate) type Input = Box<dyn BufRead + Send>;

/// Size of a regular file. Checks the type first: opening a pipe would wait for a writer.
pub(crate) fn size(path: &Path) -> Result<u64, DataError> {
    let metadata = fs::metadata(path).map_err(|e| io_error(path, "open", e))?;
    if !metadata.is_file() {
        return Err(DataError::NotAFile {
            path: path.to_owned(),
        });
    }
    Ok(metadata.len())
}

/// Opens a regular file at an offset of its content. Bytes before the offset of a compressed one are
/// decompressed and dropped.
pub(crate) fn open(path: &Path, compression: Compression, offset: u64) -> Result<Input, DataError> {
    size(path)?;
    let mut file = File::open(path).map_err(|e| io_error(path, "open", e))?;
    let seek = match compression {
        Compression::None => offset,
        _ => 0,
    };
    file.seek(SeekFrom::Start(seek))
        .map_err(|e| io_error(path, "seek in", e))?;
    let mut input = decompressed(BufReader::with_capacity(READ_BYTES, file), compression);
    skip(&mut input, offset - seek).map_err(|e| io_error(path, "read", e))?;
    Ok(input)
}

/// Wraps a source of compressed bytes in its decompressor.
pub(crate) fn decompressed(
    source: impl BufRead + Send + 'static,
    compression: Compression,
) -> Input {
    match compression {
        Compression::None => Box::new(source),
        Compression::Gzip => Box::new(BufReader::with_capacity(
            READ_BYTES,
            MultiGzDecoder::new(source),
        )),
        Compression::Zstd => Box::new(BufReader::with_capacity(
            READ_BYTES,
            ZstdReader::new(source),
        )),
    }
}

/// Compression by the first bytes of a file.
pub(crate) fn compression_of(start: &[u8]) -> Compression {
    match start {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
        _ => Compression::None,
    }
}

/// Reads up to `bytes.len()` bytes; fewer at the end only.
pub(crate) fn read_up_to(source: &mut dyn Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match source.read(&mut bytes[read..]) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(read)
}

/// Drops `bytes` bytes, fewer at the end of the source; returns their number.
pub(crate) fn skip(source: &mut impl Read, bytes: u64) -> io::Result<u64> {
    io::copy(&mut source.take(bytes), &mut io::sink())
}

pub(crate) fn io_error(path: &Path, operation: &'static str, source: io::Error) -> DataError {
    DataError::Io {
        path: path.to_owned(),
        operation,
        source,
    }
}

/// Decompresses all frames of a Zstandard source, and verifies their checksums.
struct ZstdReader<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> ZstdReader<R> {
    fn new(source: R) -> Self {
        Self {
            source,
            decoder: FrameDecoder::new(),
            in_frame: false,
        }
    }

    /// Starts the next frame; `false` at the end of the source.
    fn start(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    if skip(&mut self.source, length.into())? < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(e) => return Err(io::Error::new(io::ErrorKind::InvalidData, e)),
            }
        }
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame {
                self.in_frame = self.start()?;
                if !self.in_frame {
                    return Ok(0);
                }
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(to);
            }
            if self.decoder.is_finished() {
                let expected = self.decoder.get_checksum_from_data();
                let found = self.decoder.get_calculated_checksum();
                if expected.is_some() && expected != found {
                    let what = "the checksum of a zstd frame does not match its content";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
                self.in_frame = false;
                continue;
            }
            self.decoder
                .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write as _};

    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    fn content(bytes: &[u8]) -> io::Result<Vec<u8>> {
        content_of(compression_of(bytes), bytes)
    }

    fn content_of(compression: Compression, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        decompressed(Cursor::new(bytes.to_vec()), compression).read_to_end(&mut all)?;
        Ok(all)
    }

    /// Members and frames follow each other, as `cat` of two files makes them; skippable frames have no content.
    #[test]
    fn concatenated_members_are_one_content() {
        let (a, b) = (vec![b'a'; 700_000], b"second".to_vec());
        let both = [a.clone(), b.clone()].concat();
        assert_eq!(content(&[gzip(&a), gzip(&b)].concat()).unwrap(), both);
        let skippable = [0x51, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 9, 9, 9];
        let frames = [&skippable[..], &zstd(&a), &skippable, &zstd(&b)].concat();
        assert_eq!(content(&frames).unwrap(), both);
        assert_eq!(content(b"plain").unwrap(), b"plain");
    }

    #[test]
    fn damaged_bytes_are_errors() {
        let text: Vec<u8> = (0..90_000u32)
            .flat_map(|n| (n % 977).to_le_bytes())
            .collect();
        for packed in [gzip(&text), zstd(&text)] {
            assert_eq!(content(&packed).unwrap(), text);
            for cut in [1, 4, 9, 500, packed.len() - 1] {
                let kept = &packed[..packed.len() - cut];
                let read = content_of(compression_of(&packed), kept);
                assert!(read.is_err(), "{cut} bytes cut");
            }
            let mut last = packed.clone();
            // The checksum of zstd is at the end, that of gzip before the size.
            let at = last.len()
                - if compression_of(&packed) == Compression::Gzip {
                    8
                } else {
                    1
                };
            last[at] ^= 1;
            assert!(content(&last).is_err());
            assert!(content(&[&packed[..], b"rest"].concat()).is_err());
        }
    }
}
