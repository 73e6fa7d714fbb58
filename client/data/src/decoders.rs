//! Decoders of foreign bytes, for fuzzing: each accepts any bytes without a panic.
//!
//! Errors are results like others here: what is tested is that there is an answer.

use std::io::Cursor;
use std::sync::Arc;

use crate::error::DataError;
use crate::input::{Compression, decompressed, skip};
use crate::line::{Format, LabelMap, Separator};
use crate::read::{BadRecords, ReadOptions, RowReader};
use crate::recordio::{chunked, dmlc};
use crate::source::{DataSource as _, MemorySource};
use crate::{FileFault, Schema};

/// A decoder: its name, and a function that runs it.
pub type Decoder = (&'static str, fn(&[u8]));

/// All decoders of this crate.
pub const DECODERS: &[Decoder] = &[
    ("dense", |bytes| {
        rows(bytes, Format::Dense(Separator::Blanks), None)
    }),
    ("dense-comma", |bytes| {
        rows(bytes, Format::Dense(Separator::Byte(b',')), None)
    }),
    ("libsvm-bare", |bytes| rows(bytes, Format::LibsvmBare, None)),
    ("csv", |bytes| {
        rows(
            bytes,
            Format::Csv,
            Some("y:label a:number*2 c:category s:skip"),
        )
    }),
    ("csv-header", |bytes| {
        rows(
            bytes,
            Format::Csv,
            Some("header y:label a:category *:number"),
        )
    }),
    ("schema", |bytes| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            let _ = text.parse::<Schema>();
        }
    }),
    ("gzip", |bytes| unpack(bytes, Compression::Gzip)),
    ("zstd", |bytes| unpack(bytes, Compression::Zstd)),
    ("recordio-dmlc", |bytes| {
        for first in [0, 5] {
            let rest = bytes.get(first..).unwrap_or_default();
            let end = bytes.len() as u64;
            if let Ok(mut reader) = dmlc::Reader::new(rest, first as u64, end) {
                while matches!(reader.advance(), Ok(true)) {}
            }
        }
    }),
    ("recordio-chunked", |bytes| {
        let mut source = bytes;
        while let Ok(Some(header)) = chunked::read_header(&mut source) {
            let chunk = header.and_then(|header| {
                chunked::read_payload(&mut source, &header).unwrap_or(Err(FileFault::Truncated))
            });
            let Ok(chunk) = chunk else { return };
            for index in 0..=chunk.len() {
                let _ = chunk.record(index);
            }
        }
    }),
];

/// Lines of the bytes as rows, malformed ones left out.
fn rows(bytes: &[u8], format: Format, schema: Option<&str>) {
    let lines = bytes.split(|&b| b == b'\n').map(<[u8]>::to_vec).collect();
    let source = Arc::new(MemorySource::new("fuzz", lines));
    let options = ReadOptions {
        format: Some(format),
        labels: LabelMap::Raw,
        schema: schema.and_then(|text| text.parse().ok()),
        bad_records: BadRecords::Skip { ratio: 1.0 },
    };
    let shards = source.shards().to_vec();
    let read = || -> Result<(), DataError> {
        let mut rows = RowReader::new(source, shards, &options)?;
        while rows.advance()? {
            let row = rows.row();
            assert!(row.keys.is_sorted_by(|a, b| a < b), "{row:?}");
            assert!(row.keys.len() == row.values.len(), "{row:?}");
            assert!(row.values.iter().all(|v| v.is_finite()) && row.label.is_finite());
        }
        Ok(())
    };
    let _ = read();
}

/// The first bytes of the content: a few compressed ones may stand for very many.
fn unpack(bytes: &[u8], compression: Compression) {
    let mut content = decompressed(Cursor::new(bytes.to_vec()), compression);
    let _ = skip(&mut content, 1 << 20);
}
