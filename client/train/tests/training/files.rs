//! Reading of files that the tests write: parts, faults and their line numbers.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;
use tidewater_protocol::limits;
use tidewater_train::data::{
    DataError, Dataset, Format, LabelMap, LineProblem, ReadOptions, detect_format, read, read_part,
};

fn file(text: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.txt");
    fs::write(&path, text).unwrap();
    (folder, path)
}

fn raw() -> ReadOptions {
    ReadOptions {
        labels: LabelMap::Raw,
        ..ReadOptions::default()
    }
}

fn entries(data: &Dataset) -> Vec<(f32, Vec<u64>)> {
    data.iter().map(|r| (r.label, r.keys.to_vec())).collect()
}

/// Line number and problem of the fault found by worker `part` of `parts`.
fn fault(text: &str, part: u32, parts: u32) -> Option<(u64, LineProblem)> {
    let (_folder, path) = file(text);
    match read_part(&path, part, parts, &ReadOptions::default()) {
        Ok(_) => None,
        Err(DataError::Line { line, fault, .. }) => Some((line, fault.problem)),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn awkward_but_valid_text() {
    let text = "# made by hand\r\n\r\n1 2:1 4:0.5  \r\n \t\n-1\t1:1 # note\n0";
    let (_folder, path) = file(text);
    let data = read(&path, &ReadOptions::default()).unwrap();
    assert_eq!(
        entries(&data),
        [(1.0, vec![1, 3]), (0.0, vec![0]), (0.0, vec![])]
    );
    assert_eq!(data.row(0).unwrap().values, [1.0, 0.5]);
}

#[test]
fn empty_files_have_no_rows() {
    for text in ["", "\n", "\r\n\r\n", "# nothing"] {
        let (_folder, path) = file(text);
        assert_eq!(read(&path, &raw()).unwrap().rows(), 0, "{text:?}");
        assert_eq!(read_part(&path, 6, 7, &raw()).unwrap().rows(), 0);
    }
}

#[test]
fn format_detected_from_first_lines() {
    let cases = [
        ("1 5:1\n", Format::Libsvm),
        ("1\n\n# 1:1\n-1 0 7\n", Format::Dummy),
        ("1 qid:4 5:1\n", Format::Libsvm),
        ("1\n0\n", Format::Libsvm),
    ];
    for (text, format) in cases {
        let (_folder, path) = file(text);
        assert_eq!(detect_format(&path).unwrap(), format, "{text:?}");
    }
    // The start of the file decides, even for a worker with a part that has labels only.
    let (_folder, path) = file("1 0 7\n1\n1\n1\n");
    let last = read_part(&path, 3, 4, &raw()).unwrap();
    assert!(last.rows() > 0);
    let asked = ReadOptions {
        format: Some(Format::Libsvm),
        ..raw()
    };
    let refused = read(&path, &asked).unwrap_err().to_string();
    assert!(refused.contains("format dummy"), "{refused}");
}

#[test]
fn bad_line_names_file_line_column() {
    let (_folder, path) = file("1 2:1\n\n# comment\r\n-1 3:1 4:x\n1 1:1\n");
    let error = read(&path, &ReadOptions::default()).unwrap_err();
    let expected = format!(
        "{}:4:10: found `x`: expected a finite number (at most 3.4e38) as the feature's value (byte 18)",
        path.display()
    );
    assert_eq!(error.to_string(), expected);
}

#[test]
fn every_worker_counts_lines_from_the_start() {
    let mut lines = vec!["1 2:1"; 40];
    lines[33] = "1 0:1";
    let text = lines.join("\n");
    for parts in [1, 2, 3, 7, 40] {
        let found: Vec<_> = (0..parts).filter_map(|w| fault(&text, w, parts)).collect();
        assert_eq!(found, [(34, LineProblem::IndexZero)], "{parts} parts");
    }
}

#[test]
fn a_line_without_end_is_refused_and_not_kept() {
    let mut text = b"1 1:1\n".to_vec();
    text.resize(limits::DATA_LINE_BYTES_MAX * 2, b'7');
    let (_folder, path) = file(&text);
    let error = read(&path, &raw()).unwrap_err();
    assert!(error.to_string().len() < 300);
    assert!(matches!(
        error,
        DataError::Line { line: 2, fault, .. } if fault.problem == LineProblem::LineTooLong
    ));
    // The worker of the second half owns no line, and detects that without keeping it.
    assert_eq!(read_part(&path, 1, 2, &raw()).unwrap().rows(), 0);
}

#[test]
fn path_without_file_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = read(&folder.path().join("none"), &raw()).unwrap_err();
    assert!(matches!(missing, DataError::Io { .. }));
    assert!(missing.to_string().contains("cannot open"), "{missing}");
    let device = read(std::path::Path::new("/dev/null"), &raw()).unwrap_err();
    assert!(matches!(device, DataError::NotAFile { .. }));
    let empty = read(folder.path(), &raw()).unwrap_err();
    assert!(matches!(empty, DataError::NoFiles { .. }));
    let (_folder, path) = file("1\n");
    for (part, parts) in [(0, 0), (4, 4)] {
        let error = read_part(&path, part, parts, &raw()).unwrap_err();
        assert!(matches!(error, DataError::NoSuchPart { .. }));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn joined_parts_equal_file(
        rows in prop::collection::vec((0u8..2, prop::collection::btree_set(1u64..99, 0..4)), 0..15),
        blanks in prop::collection::vec(0u8..6, 15),
        crlf: bool,
        last_newline: bool,
        workers in 1u32..20,
    ) {
        let mut text = String::new();
        for ((label, keys), &blank) in rows.iter().zip(&blanks) {
            let end = if crlf { "\r\n" } else { "\n" };
            text.push_str(&label.to_string());
            for key in keys {
                text.push_str(&format!(" {key}:1"));
            }
            text.push_str(end);
            text.push_str(["", "", "", end, " \t\n", "#\n"][usize::from(blank)]);
        }
        if !last_newline {
            text.truncate(text.trim_end_matches(['\r', '\n']).len());
        }
        let (_folder, path) = file(&text);
        let expected: Vec<_> = rows
            .iter()
            .map(|(label, keys)| (f32::from(*label), keys.iter().map(|k| k - 1).collect()))
            .collect();
        let parts: Vec<Vec<(f32, Vec<u64>)>> = (0..workers)
            .map(|w| entries(&read_part(&path, w, workers, &ReadOptions::default()).unwrap()))
            .collect();
        prop_assert_eq!(parts.concat(), expected);
    }
}
