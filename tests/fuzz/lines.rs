//! Any bytes as a line of a training file.

use tidewater_protocol::limits::DATA_KEY_LIMIT;
use tidewater_train::data::{Format, LabelMap, LineParser};

use crate::fuzzing::mutate;

const SEEDS: &[&[u8]] = &[
    b"+1 1:0.5 7:-2e-3 123:1",
    b"-1 qid:3 2:1 1:2 # comment",
    b"0 3 17 65535",
    b"1 4294967295:1 18446744073709551615:2",
    b"2.5 1:nan 2:inf 3:1e400",
    b"  \t1   5:1\t9:+.5  \r",
    b"",
];

#[test]
fn any_line_is_a_row_or_a_fault() {
    let corpus: Vec<Vec<u8>> = SEEDS.iter().map(|s| s.to_vec()).collect();
    let labels = [LabelMap::Binary, LabelMap::OneVsRest(2.0), LabelMap::Raw];
    let formats = [Format::Libsvm, Format::LibsvmZeroBased, Format::Dummy];
    let mut parsers: Vec<LineParser> = formats
        .iter()
        .flat_map(|format| labels.map(|map| LineParser::new(*format, map)))
        .collect();
    let (mut rows, mut faults) = (0u64, 0u64);
    crate::run("lines", crate::execs(), |random| {
        let mut line = corpus[random.under(corpus.len())].clone();
        for _ in 0..random.under(5) {
            mutate(&mut line, &corpus, random);
        }
        let n = random.under(parsers.len());
        let parser = &mut parsers[n];
        match parser.parse(&line) {
            Ok(true) => {
                rows += 1;
                let (keys, values) = (parser.keys(), parser.values());
                assert_eq!(keys.len(), values.len());
                assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
                assert!(keys.iter().all(|&k| k < DATA_KEY_LIMIT), "{keys:?}");
                assert!(values.iter().all(|v| v.is_finite()), "{values:?}");
                assert!(parser.label().is_finite());
            }
            Ok(false) => {}
            Err(fault) => {
                faults += 1;
                assert!(
                    fault.column >= 1 && fault.column <= line.len() + 1,
                    "{fault:?}"
                );
                assert!(fault.to_string().len() < 1000);
            }
        }
    });
    println!("lines: {rows} rows, {faults} faults");
    assert!(rows > crate::execs() / 50 && faults > crate::execs() / 4);
}
