use std::io::Cursor;

use proptest::prelude::*;

use super::*;
use crate::split::{LineReader, start_of};

type Row = (f32, Vec<(u64, f32)>);

fn parser(schema: &str) -> CsvParser {
    CsvParser::new(schema.parse().unwrap(), LabelMap::Raw)
}

fn parse(parser: &mut CsvParser, record: &str) -> Result<Option<Row>, LineFault> {
    Ok(parser.parse(record.as_bytes())?.then(|| {
        let entries = parser.keys().iter().copied();
        (
            parser.label(),
            entries.zip(parser.values().iter().copied()).collect(),
        )
    }))
}

#[test]
fn schemas_parse_or_say_why() {
    let schema: Schema = "header delimiter=; quote=' y:label a:number*3 *:skip"
        .parse()
        .unwrap();
    assert_eq!(
        (schema.delimiter, schema.quote, schema.header),
        (b';', Some(b'\''), true)
    );
    let names: Vec<_> = schema.columns().iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["y", "a0", "a1", "a2"]);
    for (text, part) in [
        ("", "has 0 columns of the type label"),
        ("a:label b:label", "has 2 columns of the type label"),
        ("a:label header *:label", "has 2 columns of the type label"),
        ("a:number", "has 0 columns"),
        ("y:label b:text", "`b:text` is no item"),
        ("y:label :number", "`:number` is no item"),
        ("y:label a:number*x", "is no item"),
        ("y:label a:number a:skip", "column `a` twice"),
        ("y:label *:number", "add `header`"),
        ("y:label a:number*65536", "more than 65536 columns"),
        ("y:label delimiter=ab", "is no item"),
        ("y:label delimiter=\"", "delimiter and quote differ"),
    ] {
        let error = text.parse::<Schema>().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn records_become_rows() {
    let mut rows = parser("id:skip y:label a:number b:number*2 c:category");
    let row = parse(&mut rows, "7,1, 0.5 ,0,-2,\"Oslo, N\"")
        .unwrap()
        .unwrap();
    let (key, one) = row.1[2];
    assert_eq!(
        (row.0, &row.1[..2], one),
        (1.0, &[(0, 0.5), (2, -2.0)][..], 1.0)
    );
    assert!(key & CATEGORY_BIT != 0 && key < limits::DATA_KEY_LIMIT);
    // Part of the meaning of saved models.
    assert_eq!(key, GOLDEN, "{key:#x}");
    // Empty numbers and categories have no entry.
    assert_eq!(parse(&mut rows, "7,1,,,,").unwrap().unwrap(), (1.0, vec![]));
    assert_eq!(parse(&mut rows, "").unwrap(), None);
    let quoted = parse(&mut rows, "\"\",\"1\",\"3\",,,\"say \"\"a\"\"\nb\"")
        .unwrap()
        .unwrap();
    assert_eq!(quoted.1[0], (0, 3.0));
    for (record, problem, field) in [
        ("7,x,,,,", LineProblem::Label, 2),
        ("7,,,,,", LineProblem::Label, 2),
        ("7,1,a,,,", LineProblem::Value, 3),
        ("7,1,,,nan,", LineProblem::Value, 5),
        (
            "7,1,2",
            LineProblem::FieldCount {
                fields: 3,
                columns: 6,
            },
            1,
        ),
        ("7,1,,,,\"open", LineProblem::Csv, 1),
        ("7,1,,,,a\n7,1,,,,b", LineProblem::Csv, 1),
    ] {
        let fault = parse(&mut rows, record).unwrap_err();
        assert_eq!((fault.problem, fault.column), (problem, field), "{record}");
    }
}
const GOLDEN: u64 = 0x7506_daa0_7c90_d0a1;

/// Columns that the schema names have its keys, whatever their order in the file.
#[test]
fn header_gives_columns_in_any_order() {
    let schema = "header y:label a:number b:number *:number";
    let mut rows = parser(schema);
    rows.read_header(b"x,b,\"y\", a ,z").unwrap();
    let row = parse(&mut rows, "10,2,1,3,20").unwrap().unwrap();
    assert_eq!(row, (1.0, vec![(0, 3.0), (1, 2.0), (2, 10.0), (3, 20.0)]));
    rows.read_header(b"x,b,\"y\", a ,z").unwrap();
    let differs = rows.read_header(b"b,x,y,a,z").unwrap_err();
    assert_eq!(differs.problem, LineProblem::HeaderDiffers);
    for (header, problem, found) in [
        ("y,a", LineProblem::ColumnMissing, "b"),
        ("y,a,b,a", LineProblem::ColumnTwice, "a"),
    ] {
        let fault = parser(schema).read_header(header.as_bytes()).unwrap_err();
        assert_eq!((fault.problem, fault.found.as_str()), (problem, found));
    }
    let closed = parser("header y:label").read_header(b"y,q").unwrap_err();
    assert_eq!(
        (closed.problem, closed.column),
        (LineProblem::ColumnUnknown, 2)
    );
}

/// Offsets and texts of the records that start in a range.
fn records(file: &[u8], range: std::ops::Range<u64>) -> Vec<(u64, Vec<u8>)> {
    let quoting = "y:label".parse::<Schema>().unwrap().quoting();
    let mut source = Cursor::new(file);
    source.set_position(start_of(&range, quoting));
    let source = std::io::BufReader::with_capacity(5, source);
    let mut reader = LineReader::new(source, range, 64, quoting).unwrap();
    let mut all = Vec::new();
    while reader.advance().unwrap() {
        all.push((reader.offset(), reader.text().to_vec()));
    }
    all
}

/// Without a newline at the end: behind an open quote at the end of a file it is text to one of the splitters.
fn unended(text: &[u8]) -> Vec<u8> {
    text.strip_suffix(b"\n").unwrap_or(text).to_vec()
}

proptest! {
    /// Records end where csv-core, an independent splitter, ends them; and joined parts equal the file.
    #[test]
    fn records_are_those_of_csv_core(file in "[a\",\n]{0,40}", cut in 0u64..40) {
        let file = file.as_bytes();
        let size = file.len() as u64;
        let all = records(file, 0..size);
        let cut = cut.min(size);
        prop_assert_eq!([records(file, 0..cut), records(file, cut..size)].concat(), all.clone());

        let mut reader = ReaderBuilder::new().terminator(Terminator::Any(b'\n')).build();
        let (mut input, mut expected) = (file, Vec::new());
        let (mut fields, mut ends) = ([0; 64], [0; 64]);
        loop {
            let at = file.len() - input.len();
            let (mut written, mut ended, mut result) = (0, 0, ReadRecordResult::InputEmpty);
            while result == ReadRecordResult::InputEmpty {
                let (r, n, out, count) = reader.read_record(input, &mut fields[written..], &mut ends[ended..]);
                (result, input) = (r, &input[n..]);
                written += out;
                ended += count;
            }
            if result == ReadRecordResult::End {
                break;
            }
            // csv-core passes empty lines without a word.
            let record = &file[at..file.len() - input.len()];
            let start = record.iter().position(|&b| b != b'\n').unwrap_or(0);
            let record = &record[start..];
            expected.push(((at + start) as u64, unended(record)));
        }
        let found = all.into_iter().filter(|(_, text)| !text.is_empty());
        let found: Vec<_> = found.map(|(at, text)| (at, unended(&text))).collect();
        prop_assert_eq!(found, expected);
    }
}
