use proptest::prelude::*;

use super::*;

type Row = (f32, Vec<(u64, f32)>);

fn parse(format: Format, labels: LabelMap, line: &str) -> Result<Option<Row>, LineFault> {
    let mut parser = LineParser::new(format, labels);
    Ok(parser.parse(line.as_bytes())?.then(|| {
        let entries = parser.keys().iter().copied();
        (
            parser.label(),
            entries.zip(parser.values().iter().copied()).collect(),
        )
    }))
}

fn libsvm(line: &str) -> Result<Option<Row>, LineFault> {
    parse(Format::Libsvm, LabelMap::Raw, line)
}

fn fault(line: &str, format: Format) -> (LineProblem, usize, String) {
    let fault = parse(format, LabelMap::Binary, line).unwrap_err();
    (fault.problem, fault.column, fault.found)
}

#[test]
fn accepted_lines() {
    let row = |label, entries: &[(u64, f32)]| Ok(Some((label, entries.to_vec())));
    assert_eq!(
        libsvm("-1 3:1 11:0.5 \t "),
        row(-1.0, &[(2, 1.0), (10, 0.5)])
    );
    assert_eq!(libsvm("  +1 1:-2e-3 # 2:5"), row(1.0, &[(0, -0.002)]));
    assert_eq!(libsvm("3 qid:7 1:1"), row(3.0, &[(0, 1.0)]));
    assert_eq!(libsvm("0"), row(0.0, &[]));
    assert_eq!(libsvm("2.5 5:0"), row(2.5, &[(4, 0.0)]));
    assert_eq!(libsvm(""), Ok(None));
    assert_eq!(libsvm(" \t"), Ok(None));
    assert_eq!(libsvm("# 1 1:1"), Ok(None));
    let dummy = parse(Format::Dummy, LabelMap::Binary, "-1 0 5 16 ");
    assert_eq!(dummy, row(0.0, &[(0, 1.0), (5, 1.0), (16, 1.0)]));
    let zero = parse(Format::LibsvmZeroBased, LabelMap::Binary, "1 0:4");
    assert_eq!(zero, row(1.0, &[(0, 4.0)]));
}

#[test]
fn the_largest_keys() {
    let limit = limits::DATA_KEY_LIMIT;
    assert_eq!(
        libsvm(&format!("1 {limit}:1")).unwrap().unwrap().1,
        [(limit - 1, 1.0)]
    );
    let too_large = fault(&format!("1 {}:1", limit + 1), Format::Libsvm);
    assert_eq!(too_large.0, LineProblem::IndexTooLarge);
    let too_large = fault(&format!("1 {limit}"), Format::Dummy);
    assert_eq!(too_large.0, LineProblem::IndexTooLarge);
    // One more than 64 bits hold.
    let (problem, column, found) = fault("1 18446744073709551616:1", Format::Libsvm);
    assert_eq!(problem, LineProblem::IndexTooLarge);
    assert_eq!((column, found.as_str()), (3, "18446744073709551616"));
}

#[test]
fn unordered_features_are_sorted_with_their_values() {
    let row = libsvm("1 9:9 2:2 5:5").unwrap().unwrap();
    assert_eq!(row.1, [(1, 2.0), (4, 5.0), (8, 9.0)]);
}

#[test]
fn faults_name_the_place_the_text_and_the_rule() {
    use Format::{Dummy, Libsvm};
    let cases = [
        ("x 1:1", Libsvm, LineProblem::Label, 1, "x"),
        ("nan 1:1", Libsvm, LineProblem::Label, 1, "nan"),
        ("1:1 2:1", Libsvm, LineProblem::Label, 1, "1:1"),
        ("2 1:1", Libsvm, LineProblem::LabelNotBinary, 1, "2"),
        ("1 5", Libsvm, LineProblem::NoColon, 3, "5"),
        ("1 5 6:1", Dummy, LineProblem::Colon, 5, "6:1"),
        ("1 0:1", Libsvm, LineProblem::IndexZero, 3, "0"),
        ("1 :1", Libsvm, LineProblem::Index, 3, ""),
        ("1 -5:1", Libsvm, LineProblem::Index, 3, "-5"),
        ("1 +5", Dummy, LineProblem::Index, 3, "+5"),
        ("1 2:", Libsvm, LineProblem::Value, 5, ""),
        ("1 2:1:1", Libsvm, LineProblem::Value, 5, "1:1"),
        ("1 2:inf", Libsvm, LineProblem::Value, 5, "inf"),
        ("1 2:1e39", Libsvm, LineProblem::Value, 5, "1e39"),
        ("1 2:1 2:3", Libsvm, LineProblem::Duplicate, 7, "2:3"),
        ("1 7 2 7 3", Dummy, LineProblem::Duplicate, 7, "7"),
        ("1 qid:", Libsvm, LineProblem::Qid, 3, "qid:"),
        ("1 qid:a", Libsvm, LineProblem::Qid, 3, "qid:a"),
        ("1 2:1 qid:1", Libsvm, LineProblem::Index, 7, "qid"),
        ("1 2:\u{e9}", Libsvm, LineProblem::Value, 5, "\\xc3\\xa9"),
        ("1 2:1\r3:1", Libsvm, LineProblem::Value, 5, "1\\r3:1"),
    ];
    for (line, format, problem, column, found) in cases {
        let expected = (problem, column, found.to_owned());
        assert_eq!(fault(line, format), expected, "{line}");
    }
}

#[test]
fn limits_hold_at_their_edge() {
    let features = limits::DATA_ROW_FEATURES_MAX;
    let mut line = "1".to_owned();
    for index in 0..features {
        line.push_str(&format!(" {index}"));
    }
    let row = parse(Format::Dummy, LabelMap::Raw, &line).unwrap().unwrap();
    assert_eq!(row.1.len(), features);
    line.push_str(" 99999999");
    assert_eq!(fault(&line, Format::Dummy).0, LineProblem::TooManyFeatures);

    let mut line = "1".to_owned();
    line.push_str(&" ".repeat(limits::DATA_LINE_BYTES_MAX - 1));
    assert!(libsvm(&line).is_ok());
    line.push(' ');
    let long = libsvm(&line).unwrap_err();
    assert_eq!(long.problem, LineProblem::LineTooLong);
    assert!(long.found.len() < 64, "{}", long.found);
}

#[test]
fn labels_are_mapped() {
    let map = |labels: LabelMap| [-1.0, 0.0, 1.0, 3.0].map(|label| labels.map(label));
    assert_eq!(
        map(LabelMap::Binary),
        [Some(0.0), Some(0.0), Some(1.0), None]
    );
    assert_eq!(
        map(LabelMap::OneVsRest(3.0)),
        [Some(0.0), Some(0.0), Some(0.0), Some(1.0)]
    );
    assert_eq!(map(LabelMap::Raw)[3], Some(3.0));
    let named = |name: &str| map(name.parse().unwrap()).map(Option::unwrap);
    assert_eq!(named("above:0"), [0.0, 0.0, 1.0, 1.0]);
    assert_eq!(named("above:1"), [0.0, 0.0, 0.0, 1.0]);
    assert_eq!(named("sign:-0.5"), [-1.0, 1.0, 1.0, 1.0]);
    assert_eq!(named("sign:1"), [-1.0, -1.0, -1.0, 1.0]);
    assert_eq!(named("shift:-1"), [-2.0, -1.0, 0.0, 2.0]);
    assert_eq!(named("shift:1"), [0.0, 1.0, 2.0, 4.0]);
    assert_eq!(named("raw"), [-1.0, 0.0, 1.0, 3.0]);
    assert_eq!("binary".parse(), Ok(LabelMap::Binary));
    assert_eq!(LabelMap::Shift(f32::MAX).map(f32::MAX), None);
    assert_eq!(map(LabelMap::Above(f32::NAN)), [None; 4]);
    assert_eq!(map(LabelMap::SignAbove(f32::NAN)), [None; 4]);
    for wrong in [
        "",
        "above",
        "above:",
        "above:x",
        "above:nan",
        "shift:inf",
        "below:1",
        "Raw",
    ] {
        let error = wrong.parse::<LabelMap>().unwrap_err();
        assert!(error.to_string().contains("above:T"), "{error}");
    }
}

#[test]
fn format_names_parse_back() {
    let dense = Format::Dense(Separator::Blanks);
    let (bare, csv) = (Format::LibsvmBare, Format::Csv);
    for format in [
        Format::Libsvm,
        Format::LibsvmZeroBased,
        Format::Dummy,
        bare,
        dense,
        csv,
    ] {
        assert_eq!(format.name().parse(), Ok(format));
    }
    let by = |byte| Ok(Format::Dense(Separator::Byte(byte)));
    assert_eq!("dense:,".parse(), by(b','));
    assert_eq!("dense:tab".parse(), by(b'\t'));
    for wrong in ["dense:", "dense:ab", "dense:space", "Dense"] {
        assert!(wrong.parse::<Format>().is_err(), "{wrong}");
    }
    let unknown = "xml".parse::<Format>().unwrap_err().to_string();
    assert!(unknown.contains("`xml`") && unknown.contains("libsvm0"));
}

#[test]
fn first_feature_decides_format() {
    assert_eq!(first_feature_has_colon(b"1 2:1 3"), Some(true));
    assert_eq!(first_feature_has_colon(b"1 qid:3 2"), Some(false));
    assert_eq!(first_feature_has_colon(b"1 # 2:1"), None);
    assert_eq!(first_feature_has_colon(b""), None);
}

/// Bare LIBSVM counts from 1; dense lines have a value for each feature, and equal widths.
#[test]
fn bare_and_dense_lines() {
    let row = |label, entries: &[(u64, f32)]| Ok(Some((label, entries.to_vec())));
    let bare = |line| parse(Format::LibsvmBare, LabelMap::Raw, line);
    assert_eq!(
        bare("-1 1 6 17 "),
        row(-1.0, &[(0, 1.0), (5, 1.0), (16, 1.0)])
    );
    assert_eq!(bare("1 0").unwrap_err().problem, LineProblem::IndexZero);
    assert_eq!(bare("1 2:1").unwrap_err().problem, LineProblem::Colon);
    let blanks = Format::Dense(Separator::Blanks);
    let dense = |format, line| parse(format, LabelMap::Raw, line);
    assert_eq!(
        dense(blanks, "2  0.5\t0 -1e3 # x"),
        row(2.0, &[(0, 0.5), (2, -1000.0)])
    );
    assert_eq!(dense(blanks, " # 1"), Ok(None));
    let comma = Format::Dense(Separator::Byte(b','));
    assert_eq!(dense(comma, " 1, 0 ,7"), row(1.0, &[(1, 7.0)]));
    assert_eq!(dense(comma, "  "), Ok(None));
    let empty = dense(comma, "1,0,,7").unwrap_err();
    assert_eq!((empty.problem, empty.column), (LineProblem::Value, 5));
    assert_eq!(dense(comma, ",1").unwrap_err().problem, LineProblem::Label);

    let mut parser = LineParser::new(comma, LabelMap::Raw);
    assert!(parser.parse(b"1,2,3").unwrap());
    let problem = parser.parse(b"1,2").unwrap_err().problem;
    assert_eq!(
        problem,
        LineProblem::Width {
            values: 1,
            width: 2
        }
    );
    assert!(parser.parse(b"1,0,0").unwrap() && parser.keys().is_empty());
}

proptest! {
    #[test]
    fn any_bytes_are_a_row_or_a_fault(line in prop::collection::vec(any::<u8>(), 0..80)) {
        for format in [Format::Libsvm, Format::LibsvmZeroBased, Format::Dummy] {
            check(format, &line)?;
        }
    }

    #[test]
    fn nearly_right_lines_are_a_row_or_a_fault(line in "[-+]?[01] ([0-9]{1,3}:?[-0-9.e]{0,3}[ #]){0,8}") {
        for format in [Format::Libsvm, Format::LibsvmZeroBased, Format::Dummy] {
            check(format, line.as_bytes())?;
        }
    }

    #[test]
    fn printed_rows_parse_back(
        label in -5i32..5,
        row in prop::collection::btree_map(0..limits::DATA_KEY_LIMIT, -1e30f32..1e30, 0..20),
    ) {
        let features = row.iter().map(|(key, value)| format!(" {}:{value}", key + 1));
        let line = format!("{label}{}", features.collect::<String>());
        let (parsed, entries) = libsvm(&line).unwrap().unwrap();
        prop_assert_eq!(parsed, label as f32);
        prop_assert_eq!(entries, row.into_iter().collect::<Vec<_>>());
    }
}

fn check(format: Format, line: &[u8]) -> Result<(), TestCaseError> {
    let mut parser = LineParser::new(format, LabelMap::Raw);
    match parser.parse(line) {
        Ok(true) => {
            prop_assert!(parser.label().is_finite());
            prop_assert_eq!(parser.keys().len(), parser.values().len());
            prop_assert!(parser.keys().is_sorted_by(|a, b| a < b));
            prop_assert!(
                parser
                    .keys()
                    .iter()
                    .all(|&key| key < limits::DATA_KEY_LIMIT)
            );
            prop_assert!(parser.values().iter().all(|value| value.is_finite()));
        }
        Ok(false) => {}
        Err(fault) => {
            prop_assert!((1..=line.len() + 1).contains(&fault.column));
            prop_assert!(fault.found.len() <= 4 * LineFault::FOUND_BYTES_MAX + 3);
        }
    }
    Ok(())
}
