use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::recordio::chunked::{Compressor, Writer};
use crate::{BadRecords, Dataset, Format, LabelMap, LineProblem, ReadOptions, read, read_part};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

fn dmlc_file(lines: &[String]) -> Vec<u8> {
    let mut file = Vec::new();
    for line in lines {
        dmlc::write_record(&mut file, line.as_bytes()).unwrap();
    }
    file
}

fn chunked_file(lines: &[String], chunk_bytes: usize) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), Compressor::Snappy, chunk_bytes);
    for line in lines {
        writer.write(line.as_bytes()).unwrap();
    }
    writer.finish().unwrap()
}

fn put(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn raw() -> ReadOptions {
    ReadOptions {
        labels: LabelMap::Raw,
        ..ReadOptions::default()
    }
}

fn lines(count: usize) -> Vec<String> {
    let line = |n| format!("{n} {}:{}.5 {}:1", n % 7 + 1, n % 3, n + 10);
    (0..count).map(line).collect()
}

/// Joins the parts of a path.
fn joined(path: &Path, parts: u32, options: &ReadOptions) -> Dataset {
    let mut all = Dataset::new();
    for part in 0..parts {
        for row in read_part(path, part, parts, options).unwrap().iter() {
            all.push(row.label, row.keys, row.values).unwrap();
        }
    }
    all
}

/// Every container, compression and number of parts has the rows of the plain text file.
#[test]
fn all_containers_have_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let lines = lines(100);
    let text = lines.join("\n") + "\n";
    let plain = read(&put(&folder, "plain", &text), &raw()).unwrap();
    assert_eq!(plain.rows(), 100);
    let dmlc = dmlc_file(&lines);
    let chunked = chunked_file(&lines, 90);
    let files = [
        ("gz", gzip(text.as_bytes())),
        ("zst", zstd(text.as_bytes())),
        ("dmlc.zst", zstd(&dmlc)),
        ("dmlc", dmlc),
        ("chunked.gz", gzip(&chunked)),
        ("chunked", chunked),
    ];
    for (name, bytes) in files {
        let path = put(&folder, name, bytes);
        for parts in [1, 2, 7, 130] {
            assert!(
                joined(&path, parts, &raw()) == plain,
                "{name}, {parts} parts"
            );
        }
    }
    // The same parts as the plain file, not only the same rows.
    for part in 0..3 {
        let of = |name| read_part(&folder.path().join(name), part, 3, &raw()).unwrap();
        assert_eq!(of("gz"), of("plain"));
        assert_eq!(of("zst"), of("plain"));
    }
}

/// Files of a directory or pattern are in the order of their names, and are divided as one file is.
#[test]
fn directories_and_patterns_are_one_source() {
    let folder = tempfile::tempdir().unwrap();
    let all = lines(60);
    let (a, rest) = all.split_at(11);
    let (b, c) = rest.split_at(30);
    put(&folder, "part-2.gz", gzip((c.join("\n") + "\n").as_bytes()));
    put(&folder, "part-0", a.join("\r\n"));
    put(&folder, "part-1", b.join("\n"));
    put(&folder, "_SUCCESS", "");
    put(&folder, ".hidden", "x");
    put(&folder, "other", "x");
    fs::create_dir(folder.path().join("part-dir")).unwrap();
    let all = read(&put(&folder, ".whole", all.join("\n")), &raw()).unwrap();
    let pattern = folder.path().join("part-[0-9]*");
    for parts in [1, 2, 5, 70] {
        assert!(joined(&pattern, parts, &raw()) == all, "{parts} parts");
    }
    fs::remove_file(folder.path().join("other")).unwrap();
    assert!(read(folder.path(), &raw()).unwrap() == all);

    let none = read(&folder.path().join("q*"), &raw()).unwrap_err();
    assert!(matches!(none, DataError::NoFiles { .. }), "{none}");
    let wrong = read(&folder.path().join("[q"), &raw()).unwrap_err();
    assert!(matches!(wrong, DataError::Pattern { .. }), "{wrong}");
}

#[test]
fn malformed_records_name_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = lines(40);
    lines[33] = "1 0:1".into();
    let text = lines.join("\n");
    let offset = lines[..33].iter().map(|line| line.len() + 1).sum::<usize>();
    for (name, bytes) in [
        ("text", text.clone().into_bytes()),
        ("gz", gzip(text.as_bytes())),
    ] {
        let path = put(&folder, name, bytes);
        let faults: Vec<String> = (0..3)
            .filter_map(|part| read_part(&path, part, 3, &raw()).err())
            .map(|e| e.to_string())
            .collect();
        let place = format!("{}:34:3: found `0`", path.display());
        assert_eq!(faults.len(), 1);
        assert!(faults[0].starts_with(&place), "{faults:?}");
        assert!(
            faults[0].ends_with(&format!("(byte {offset})")),
            "{faults:?}"
        );
    }
    let path = put(&folder, "chunked", chunked_file(&lines, 1 << 20));
    let fault = read(&path, &raw()).unwrap_err();
    assert!(
        matches!(
            fault,
            DataError::Record {
                record: 33,
                offset: 0,
                ..
            }
        ),
        "{fault}"
    );
    let path = put(&folder, "dmlc", dmlc_file(&lines));
    let fault = read(&path, &raw()).unwrap_err();
    assert!(
        matches!(fault, DataError::Record { record: 33, .. }),
        "{fault}"
    );
}

#[test]
fn skipped_records_are_counted_up_to_the_ratio() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = lines(50);
    lines[7] = "x".into();
    // Longer than a line may be: the line behind it is read.
    lines[20] = "1 1:1 #".to_owned() + &"7".repeat(limits::DATA_LINE_BYTES_MAX);
    let path = put(&folder, "text", lines.join("\n"));
    let with = |ratio| ReadOptions {
        bad_records: BadRecords::Skip { ratio },
        ..raw()
    };
    let data = read(&path, &with(0.04)).unwrap();
    assert_eq!((data.rows(), data.skipped()), (48, 2));
    let labels: Vec<f32> = (0..50)
        .filter(|n| *n != 7 && *n != 20)
        .map(|n| n as f32)
        .collect();
    assert_eq!(data.labels(), labels);
    let error = read(&path, &with(0.0399)).unwrap_err();
    assert!(
        matches!(
            error,
            DataError::TooManyBad {
                bad: 2,
                records: 50,
                ..
            }
        ),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.starts_with("2 of 50 records are malformed, more than the ratio 0.0399"),
        "{text}"
    );
    assert!(text.contains("text:8:1: found `x`"), "{text}");
    assert!(read(&path, &raw()).is_err());
    // Damage between records is never skipped.
    let mut bytes = chunked_file(&lines[..5], 1 << 20);
    bytes[25] ^= 1;
    let error = read(&put(&folder, "chunked", bytes), &with(1.0)).unwrap_err();
    let is_checksum = matches!(
        &error,
        DataError::Damaged {
            offset: 0,
            fault: FileFault::Checksum { .. },
            ..
        }
    );
    assert!(is_checksum, "{error}");
}

/// A shard of a file that shrank or vanished after it was listed is an error with its name.
#[test]
fn shards_that_shrank_or_vanished_are_errors() {
    let lines = lines(30);
    let text = lines.join("\n");
    let halves: [(&str, Vec<u8>, Vec<u8>); 4] = [
        ("text", text.clone().into(), text[..90].into()),
        ("gz", gzip(text.as_bytes()), gzip(&text.as_bytes()[..90])),
        ("dmlc", dmlc_file(&lines), dmlc_file(&lines[..9])),
        (
            "chunked",
            chunked_file(&lines, 50),
            chunked_file(&lines[..9], 50),
        ),
    ];
    for (name, before, after) in halves {
        let folder = tempfile::tempdir().unwrap();
        let path = put(&folder, name, before);
        let source = FileSource::new(&path, None).unwrap();
        for shard in source
            .part(1, 2)
            .unwrap()
            .into_iter()
            .chain(source.shards().to_vec())
        {
            fs::write(&path, &after).unwrap();
            let drained = |shard: &Shard| -> Result<(), DataError> {
                let mut records = source.open(shard)?;
                while records.advance()? {}
                Ok(())
            };
            let shrunk = drained(&shard).unwrap_err();
            let text = shrunk.to_string();
            let of_kind = matches!(shrunk, DataError::Shrunk { .. });
            assert!(of_kind && text.contains(name), "{shard:?}: {text}");
            fs::remove_file(&path).unwrap();
            let gone = drained(&shard).unwrap_err().to_string();
            assert!(
                gone.contains(name) && gone.contains("cannot open"),
                "{gone}"
            );
        }
        let mut other = source.shards()[0].clone();
        other.end += 1;
        let refused = source.open(&other).err().unwrap();
        assert!(
            matches!(refused, DataError::NoSuchShard { .. }),
            "{refused}"
        );
    }
}

/// CSV with quotes: newlines within them do not cut a record, whatever the parts.
#[test]
fn csv_files_are_divided_by_records() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = "text,x,y\r\n".to_owned();
    for n in 0..40 {
        text.push_str(&format!("\"line\n{n},\"\"7\"\"\n\",{},{n}\r\n", n % 5));
    }
    put(&folder, "a.csv", &text);
    put(&folder, "b.csv.gz", gzip(text.as_bytes()));
    let options = ReadOptions {
        schema: Some("header y:label text:category x:number".parse().unwrap()),
        ..raw()
    };
    let pattern = folder.path().join("*.csv*");
    let all = read(&pattern, &options).unwrap();
    assert_eq!(all.rows(), 80);
    assert_eq!(all.row(3).unwrap(), all.row(43).unwrap());
    assert_eq!(
        (all.labels()[3], all.row(3).unwrap().values),
        (3.0, &[3.0, 1.0][..])
    );
    for parts in [2, 3, 50] {
        assert!(joined(&pattern, parts, &options) == all, "{parts} parts");
    }
    let other = put(&folder, "c.csv", "x,text,y\n1,a,0\n");
    let error = read(&pattern, &options).unwrap_err().to_string();
    assert!(
        error.contains(&format!("{}:1:", other.display())),
        "{error}"
    );
    for (format, schema) in [
        (Some(Format::Csv), None),
        (Some(Format::Dummy), options.schema.clone()),
    ] {
        let options = ReadOptions {
            format,
            schema,
            ..raw()
        };
        assert!(matches!(
            read(&pattern, &options),
            Err(DataError::Schema { .. })
        ));
    }
}

#[test]
fn records_of_memory_are_a_source() {
    let records = ["1 2:1", "x", "0 1:1"].map(|line| line.as_bytes().to_vec());
    let source = Arc::new(MemorySource::new("queue", records.to_vec()));
    let shards = source.part(0, 2).unwrap();
    assert_eq!((shards[0].first, shards[0].end), (0, 1));
    let mut rows = crate::RowReader::new(source.clone(), source.shards().to_vec(), &raw()).unwrap();
    assert!(rows.advance().unwrap() && rows.row().keys == [1]);
    let fault = rows.advance().unwrap_err();
    assert!(
        fault
            .to_string()
            .starts_with("queue: record 1 at byte 0, column 1: found `x`"),
        "{fault}"
    );
    let labelled =
        matches!(fault, DataError::Record { fault, .. } if fault.problem == LineProblem::Label);
    assert!(labelled);
}

proptest! {
    /// Parts of any sizes are all of the source, each once.
    #[test]
    fn parts_cover_the_source(sizes in prop::collection::vec(0u64..50, 1..6), parts in 1u32..40) {
        let shards: Vec<Shard> = sizes.iter().enumerate().map(|(at, size)| Shard {
            path: Path::new(&at.to_string()).into(),
            first: 0,
            end: *size,
            unit: Unit::Records,
        }).collect();
        let source = Fixed(shards);
        let mut seen = Vec::new();
        for part in 0..parts {
            let of_part = source.part(part, parts).unwrap();
            let size: u64 = of_part.iter().map(Shard::size).sum();
            let even = sizes.iter().sum::<u64>() / u64::from(parts);
            prop_assert!(size == even || size == even + 1);
            for shard in of_part {
                seen.extend((shard.first..shard.end).map(|n| (shard.path.clone(), n)));
            }
        }
        let all: Vec<_> = source.0.iter().flat_map(|s| (0..s.end).map(|n| (s.path.clone(), n))).collect();
        prop_assert_eq!(seen, all);
    }
}

#[derive(Debug)]
struct Fixed(Vec<Shard>);

impl DataSource for Fixed {
    fn shards(&self) -> &[Shard] {
        &self.0
    }

    fn open(&self, shard: &Shard) -> Result<Box<dyn Records>, DataError> {
        Err(no_such_shard(shard))
    }
}
