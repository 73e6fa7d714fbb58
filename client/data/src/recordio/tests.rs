//! Golden bytes of both layouts, made by public implementations, and what damage leads to.

use proptest::prelude::*;

use super::chunked::{self, Chunk, Compressor, Writer};
use super::dmlc;
use crate::error::FileFault;

/// Written by `mxnet.recordio.MXRecordIO` of mxnet 1.9.1, which reads them back: the records of [`records`].
#[rustfmt::skip]
const DMLC: &[u8] = &[
    // magic number, flag 0 and length 5, "1 1:1", padding
    0x0a, 0x23, 0xd7, 0xce, 5, 0, 0, 0x00, b'1', b' ', b'1', b':', b'1', 0, 0, 0,
    // length 0
    0x0a, 0x23, 0xd7, 0xce, 0, 0, 0, 0x00,
    // the magic number alone: flags 1 and 3, without bytes
    0x0a, 0x23, 0xd7, 0xce, 0, 0, 0, 0x20, 0x0a, 0x23, 0xd7, 0xce, 0, 0, 0, 0x60,
    // "ab", the magic number, "cd": not aligned, so that the record is one part
    0x0a, 0x23, 0xd7, 0xce, 8, 0, 0, 0x00, b'a', b'b', 0x0a, 0x23, 0xd7, 0xce, b'c', b'd',
    // "wxyz", the magic number twice, "q": parts of 4, 0 and 1 bytes, with the flags 1, 2, 3
    0x0a, 0x23, 0xd7, 0xce, 4, 0, 0, 0x20, b'w', b'x', b'y', b'z', 0x0a, 0x23, 0xd7, 0xce, 0, 0, 0, 0x40,
    0x0a, 0x23, 0xd7, 0xce, 1, 0, 0, 0x60, b'q', 0, 0, 0,
];

/// Records of [`DMLC`], with their offsets.
fn records() -> Vec<(u64, Vec<u8>)> {
    let magic = dmlc::MAGIC.to_le_bytes();
    vec![
        (0, b"1 1:1".to_vec()),
        (16, vec![]),
        (24, magic.to_vec()),
        (40, [b"ab", &magic[..], b"cd"].concat()),
        (56, [b"wxyz", &magic[..], &magic, b"q"].concat()),
    ]
}

/// Records that start in a range.
fn dmlc_records(file: &[u8], first: u64, end: u64) -> Result<Vec<(u64, Vec<u8>)>, dmlc::ReadError> {
    let mut reader = dmlc::Reader::new(&file[first as usize..], first, end)?;
    let mut all = Vec::new();
    while reader.advance()? {
        all.push((reader.offset(), reader.record().to_vec()));
    }
    Ok(all)
}

#[test]
fn dmlc_golden_bytes_are_read_and_written() {
    let size = DMLC.len() as u64;
    assert_eq!(dmlc_records(DMLC, 0, size).unwrap(), records());
    let mut written = Vec::new();
    for (_, record) in records() {
        dmlc::write_record(&mut written, &record).unwrap();
    }
    assert_eq!(written, DMLC);
}

#[test]
fn dmlc_damage_is_an_error() {
    let size = DMLC.len() as u64;
    let fault = |file: &[u8]| match dmlc_records(file, 0, file.len() as u64) {
        Err(dmlc::ReadError::Damaged { offset, fault }) => Some((offset, fault)),
        _ => None,
    };
    // A cut within a record, whatever its place, is seen; one between records is not.
    let starts: Vec<u64> = records().iter().map(|(at, _)| *at).collect();
    for cut in 1..size {
        let found = fault(&DMLC[..cut as usize]);
        if starts.contains(&cut) {
            assert_eq!(found, None, "{cut}");
        } else {
            assert!(
                matches!(found, Some((_, FileFault::Truncated))),
                "{cut}: {found:?}"
            );
        }
    }
    let flipped = |at: usize, to: u8| {
        let mut file = DMLC.to_vec();
        file[at] = to;
        fault(&file)
    };
    assert!(matches!(
        flipped(16, 0),
        Some((16, FileFault::Magic { .. }))
    ));
    assert_eq!(flipped(23, 0x60), Some((16, FileFault::Part(3))));
    assert_eq!(flipped(39, 0x00), Some((32, FileFault::Part(0))));
    let limit = tidewater_protocol::limits::DATA_RECORD_BYTES_MAX;
    assert_eq!(flipped(23, 0x1f), Some((16, FileFault::TooLong { limit })));
}

/// Written by `recordio.Writer` of pyrecordio 0.0.6 with the records "1 1:1", "" and "abc". It reads what
/// [`Writer`] makes of them without compression and with snappy.
#[rustfmt::skip]
const CHUNKED: &[u8] = &[
    // magic number, CRC-32 of the 70 bytes of the payload, compressor 1 (snappy), 70 bytes, 3 records
    0x04, 0x03, 0x02, 0x01, 0xff, 0x12, 0xe1, 0x5c, 1, 0, 0, 0, 70, 0, 0, 0, 3, 0, 0, 0,
    // identifier of a snappy stream
    0xff, 6, 0, 0, b's', b'N', b'a', b'P', b'p', b'Y',
    // chunks of the stream: type 1 (not compressed), size of 3 bytes, masked CRC-32C, bytes. Each is a length or a
    // record; an empty record has none.
    0x01, 8, 0, 0, 0xd9, 0xc6, 0x9c, 0x43, 5, 0, 0, 0,
    0x01, 9, 0, 0, 0xd1, 0x50, 0xa5, 0x6e, b'1', b' ', b'1', b':', b'1',
    0x01, 8, 0, 0, 0xa6, 0x7b, 0x11, 0x3a, 0, 0, 0, 0,
    0x01, 8, 0, 0, 0x63, 0x3f, 0x7f, 0x28, 3, 0, 0, 0,
    0x01, 7, 0, 0, 0x6e, 0x57, 0xf1, 0x21, b'a', b'b', b'c',
];

fn chunk(file: &[u8]) -> Result<Vec<Vec<u8>>, FileFault> {
    let mut source = file;
    let mut all = Vec::new();
    while let Some(header) = chunked::read_header(&mut source).unwrap() {
        let chunk: Chunk = chunked::read_payload(&mut source, &header?).unwrap()?;
        all.extend((0..chunk.len()).map(|index| chunk.record(index).unwrap().to_vec()));
        assert_eq!(chunk.record(chunk.len()), None);
    }
    Ok(all)
}

fn written(records: &[Vec<u8>], compressor: Compressor, chunk_bytes: usize) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), compressor, chunk_bytes);
    for record in records {
        writer.write(record).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn chunked_golden_bytes_are_read() {
    let records = [b"1 1:1".to_vec(), vec![], b"abc".to_vec()];
    assert_eq!(chunk(CHUNKED).unwrap(), records);
    for compressor in [Compressor::None, Compressor::Snappy, Compressor::Gzip] {
        assert_eq!(
            chunk(&written(&records, compressor, 1 << 20)).unwrap(),
            records
        );
        // 9 and 4 bytes fill the first chunk.
        let two = written(&records, compressor, 13);
        assert_eq!(chunk(&two).unwrap(), records);
        assert_eq!(
            two.windows(4)
                .filter(|w| **w == chunked::MAGIC.to_le_bytes())
                .count(),
            2
        );
    }
    assert_eq!(chunk(b"").unwrap(), Vec::<Vec<u8>>::new());
}

/// Written by `pyrecordio` 0.0.4 with chunks of 7 bytes of records: "1 1:1", "" and ff 00 in the first chunk, six times
/// "abc" in the second. Each chunk is its header, a line below, and its payload.
const OLD: [(&str, &str); 6] = [
    // magic number, 3 records, CRC-32C, compressor 1 (none), 19 bytes; a length before each record
    (
        "04030201030000008b6476760100000013000000",
        "050000003120313a310000000002000000ff00",
    ),
    (
        "0403020101000000ac8ec1c80100000016000000",
        "12000000616263616263616263616263616263616263",
    ),
    // compressor 2: raw snappy; its first byte is the size of the records with their lengths
    (
        "0403020103000000440d36980200000015000000",
        "1348050000003120313a310000000002000000ff00",
    ),
    (
        "0403020101000000c08a69e90200000018000000",
        "165412000000616263616263616263616263616263616263",
    ),
    // compressor 3: gzip
    (
        "0403020103000000b5e9a65d0300000024000000",
        "1f8b0800c88c0a6b02ff63656060305430b43204d20c4c40fc9f01005e64434f13000000",
    ),
    (
        "04030201010000003b4fd066030000001c000000",
        "1f8b0800c88c0a6b02ff13626060484c4a464300683db39416000000",
    ),
];

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks_exact(2).map(pair).collect()
}

#[test]
fn old_golden_bytes_are_read() {
    let records = [
        b"1 1:1".to_vec(),
        vec![],
        vec![0xff, 0x00],
        b"abcabcabcabcabcabc".to_vec(),
    ];
    for chunks in OLD.chunks_exact(2) {
        let both = chunks
            .iter()
            .map(|(header, payload)| bytes_of(header).into_iter().chain(bytes_of(payload)));
        let both: Vec<Vec<u8>> = both.map(Iterator::collect).collect();
        let (border, file) = (both[0].len(), both.concat());
        assert_eq!(chunk(&file).unwrap(), records);
        for at in 0..file.len() {
            for bit in 0..8 {
                let mut damaged = file.clone();
                damaged[at] ^= 1 << bit;
                assert!(chunk(&damaged).is_err(), "byte {at}, bit {bit}");
            }
        }
        for cut in 1..file.len() {
            // A cut between two chunks leaves a file of one.
            let found = chunk(&file[..cut]).ok();
            assert_eq!(
                found,
                (cut == border).then(|| records[..3].to_vec()),
                "{cut}"
            );
        }
    }
}

/// A chunk as `pyrecordio` 0.0.4 writes it.
fn old(records: &[Vec<u8>], compressor: u32) -> Vec<u8> {
    use std::io::Write as _;
    let lengths = |record: &Vec<u8>| [&(record.len() as u32).to_le_bytes(), &record[..]].concat();
    let plain: Vec<u8> = records.iter().flat_map(lengths).collect();
    let packed = match compressor {
        1 => plain,
        2 => snap::raw::Encoder::new().compress_vec(&plain).unwrap(),
        _ => {
            let level = flate2::Compression::default();
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(&plain).unwrap();
            encoder.finish().unwrap()
        }
    };
    let words = [
        chunked::MAGIC,
        records.len() as u32,
        crc32c::crc32c(&packed),
        compressor,
        packed.len() as u32,
    ];
    let header = words.into_iter().flat_map(u32::to_le_bytes);
    header.chain(packed).collect()
}

/// A chunk that claims more records than its bytes can hold takes no memory for them.
#[test]
fn old_snappy_claims_are_checked() {
    // The decompressed size of 2^26 as a varint, and nothing behind it.
    let packed = [0x80, 0x80, 0x80, 0x20];
    let words = [
        chunked::MAGIC,
        1,
        crc32c::crc32c(&packed),
        2,
        packed.len() as u32,
    ];
    let header = words.into_iter().flat_map(u32::to_le_bytes);
    let file: Vec<u8> = header.chain(packed).collect();
    assert_eq!(chunk(&file), Err(FileFault::Decompress));
}

/// No file of one layout is taken for one of the other, whatever its records: 1,000 random ones of each.
#[test]
fn layouts_are_told_apart() {
    let mut state = 7u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..1_000 {
        let count = 1 + random(5);
        let records: Vec<Vec<u8>> = (0..count)
            .map(|_| (0..random(40)).map(|_| random(4) as u8).collect())
            .collect();
        let kind = random(3) as u32;
        let file = old(&records, kind + 1);
        let header = chunked::read_header(&mut &file[..]).unwrap().unwrap();
        assert_eq!(header.unwrap().layout, chunked::Layout::Old);
        assert_eq!(chunk(&file).unwrap(), records);
        let compressor = [Compressor::None, Compressor::Snappy, Compressor::Gzip][kind as usize];
        let file = written(&records, compressor, 1 << 20);
        let header = chunked::read_header(&mut &file[..]).unwrap().unwrap();
        assert_eq!(header.unwrap().layout, chunked::Layout::Current);
        assert_eq!(chunk(&file).unwrap(), records);
    }
}

/// No flipped bit of a file goes unseen: a checksum, or a rule of the header, finds it.
#[test]
fn chunked_damage_is_an_error() {
    let records = [b"1 1:1".to_vec(), vec![], b"abc".to_vec()];
    for compressor in [Compressor::None, Compressor::Snappy, Compressor::Gzip] {
        let file = written(&records, compressor, 1 << 20);
        for at in 0..file.len() {
            for bit in 0..8 {
                let mut damaged = file.clone();
                damaged[at] ^= 1 << bit;
                assert!(
                    chunk(&damaged).is_err(),
                    "{compressor:?}: byte {at}, bit {bit}"
                );
            }
        }
        for cut in 1..file.len() {
            assert!(chunk(&file[..cut]).is_err(), "{compressor:?}: {cut}");
        }
    }
    let mut file = written(&records, Compressor::None, 1 << 20);
    file[8] = 3;
    assert_eq!(chunk(&file), Err(FileFault::Compressor(3)));
}

proptest! {
    #[test]
    fn records_come_back(
        records in prop::collection::vec(prop::collection::vec(prop::sample::select(vec![0x0a, 0x23, 0xd7, 0xce, 0u8]), 0..24), 0..12),
        cuts in (0u64..400, 0u64..400),
        chunk_bytes in 1usize..60,
    ) {
        for compressor in [Compressor::None, Compressor::Snappy, Compressor::Gzip] {
            prop_assert_eq!(chunk(&written(&records, compressor, chunk_bytes)).unwrap(), records.clone());
        }
        let mut file = Vec::new();
        for record in &records {
            dmlc::write_record(&mut file, record).unwrap();
        }
        let size = file.len() as u64;
        let (a, b) = (cuts.0.min(cuts.1).min(size), cuts.0.max(cuts.1).min(size));
        let parts = [(0, a), (a, b), (b, size)].map(|(first, end)| {
            let part = dmlc_records(&file, first, end).unwrap();
            assert!(part.iter().all(|(at, _)| (first..end).contains(at)));
            part
        });
        let joined: Vec<Vec<u8>> = parts.concat().into_iter().map(|(_, record)| record).collect();
        prop_assert_eq!(joined, records);
    }
}
