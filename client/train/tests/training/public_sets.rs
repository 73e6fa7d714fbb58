//! Results of the readers on the public sets.

use std::collections::BTreeMap;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use tidewater_train::data::recordio::dmlc;
use tidewater_train::data::{
    DataError, Dataset, Format, LabelMap, LineProblem, ReadOptions, detect_format, read, read_part,
};

use super::public_file;

/// Share of rows in which each key occurs.
fn frequencies(data: &Dataset) -> BTreeMap<u64, f64> {
    let mut shares = BTreeMap::new();
    for key in data.iter().flat_map(|row| row.keys) {
        *shares.entry(*key).or_default() += 1.0 / data.rows() as f64;
    }
    shares
}

/// Sum over all keys of the difference of two sets' frequencies, with the second one's keys moved up.
fn distance(a: &Dataset, b: &Dataset, up: u64) -> f64 {
    let (a, b) = (frequencies(a), frequencies(b));
    let share = |shares: &BTreeMap<u64, f64>, key: u64| shares.get(&key).copied().unwrap_or(0.0);
    let below = |key: u64| key.checked_sub(up).map_or(0.0, |key| share(&b, key));
    (0..200)
        .map(|key| (share(&a, key) - below(key)).abs())
        .sum()
}

fn positives(data: &Dataset) -> usize {
    data.labels().iter().filter(|&&label| label == 1.0).count()
}

#[test]
fn a9a_training_and_test_parts_number_features_alike() {
    let (Some(train), Some(test)) = (
        public_file("a9a.train.libsvm"),
        public_file("a9a.test.dummy"),
    ) else {
        return;
    };
    assert_eq!(detect_format(&train).unwrap(), Format::Libsvm);
    assert_eq!(detect_format(&test).unwrap(), Format::Dummy);
    let options = ReadOptions::default();
    let (train, test) = (
        read(&train, &options).unwrap(),
        read(&test, &options).unwrap(),
    );
    assert_eq!((train.rows(), positives(&train)), (32_561, 7_841));
    assert_eq!((test.rows(), positives(&test)), (16_281, 3_846));
    assert_eq!((train.max_key(), test.max_key()), (Some(122), Some(121)));
    // LIBSVM index i is dummy index i - 1. If it were i, the keys of the test part would be too small
    // by one. Moved up, they fit as badly as unrelated columns do.
    let (agreed, moved) = (distance(&train, &test, 0), distance(&train, &test, 1));
    assert!(agreed < 0.2 && moved > 10.0, "{agreed} {moved}");
}

#[test]
fn a9a_splits_into_any_number_of_parts() {
    let Some(path) = public_file("a9a.train.libsvm") else {
        return;
    };
    let options = ReadOptions::default();
    let all_rows = read(&path, &options).unwrap();
    for parts in [2, 4, 7] {
        let mut joined = Dataset::new();
        for part in 0..parts {
            let rows = read_part(&path, part, parts, &options).unwrap();
            assert!(rows.rows().abs_diff(all_rows.rows() / parts as usize) < 100);
            for row in rows.iter() {
                joined.push(row.label, row.keys, row.values).unwrap();
            }
        }
        assert!(joined == all_rows, "{parts} parts differ from the whole");
    }
}

#[test]
fn dna_has_three_classes_and_trailing_blanks() {
    let Some(path) = public_file("dna.train.libsvm") else {
        return;
    };
    let with = |labels| ReadOptions {
        labels,
        ..ReadOptions::default()
    };
    let raw = read(&path, &with(LabelMap::Raw)).unwrap();
    let of_class = |class| raw.labels().iter().filter(|&&label| label == class).count();
    assert_eq!([1.0, 2.0, 3.0].map(of_class), [464, 485, 1_051]);
    assert_eq!(raw.max_key(), Some(179));
    let one = read(&path, &with(LabelMap::OneVsRest(2.0))).unwrap();
    assert_eq!(positives(&one), 485);
    let refused = read(&path, &with(LabelMap::Binary)).unwrap_err();
    assert!(matches!(
        refused,
        DataError::Line { line: 1, fault, .. } if fault.problem == LineProblem::LabelNotBinary
    ));
}

#[test]
fn agaricus_has_its_rows() {
    for (name, rows, positive) in [
        ("agaricus.train.libsvm", 6_513, 3_140),
        ("agaricus.test.libsvm", 1_611, 776),
    ] {
        let Some(path) = public_file(name) else {
            return;
        };
        let data = read(&path, &ReadOptions::default()).unwrap();
        assert_eq!((data.rows(), positives(&data)), (rows, positive));
        assert_eq!(data.entries(), rows * 22);
    }
}

/// a9a as CSV, in gzip and as RecordIO has the rows of the LIBSVM file, to the bit.
#[test]
fn a9a_has_the_same_rows_in_every_form() {
    let Some(path) = public_file("a9a.train.libsvm") else {
        return;
    };
    let text = std::fs::read(&path).unwrap();
    let all_rows = read(&path, &ReadOptions::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&text).unwrap();
    let gzip = put("a9a.gz", &gzip.finish().unwrap());
    let mut records = Vec::new();
    for line in text.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
        dmlc::write_record(&mut records, line).unwrap();
    }
    let records = put("a9a.rec", &records);
    for path in [&gzip, &records] {
        assert!(read(path, &ReadOptions::default()).unwrap() == all_rows);
    }
    // Compressed, the parts of workers are the same too.
    let part = |path| read_part(path, 1, 3, &ReadOptions::default()).unwrap();
    assert!(part(&gzip) == part(&path));

    let mut csv = String::from("\"label\"");
    (0..123).for_each(|key| csv.push_str(&format!(",x{key}")));
    for row in all_rows.iter() {
        csv.push_str(if row.label == 1.0 { "\n+1" } else { "\n-1" });
        for key in 0..123 {
            csv.push_str(if row.keys.contains(&key) { ",1" } else { ",0" });
        }
    }
    let options = ReadOptions {
        schema: Some("header label:label *:number".parse().unwrap()),
        ..ReadOptions::default()
    };
    // A CSV file has a width, lines of LIBSVM have none.
    let columns = read(&put("a9a.csv", csv.as_bytes()), &options).unwrap();
    assert!(columns.iter().eq(all_rows.iter()));
}
