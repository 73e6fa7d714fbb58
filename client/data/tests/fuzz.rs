//! Fuzzes the decoders of training data: each file is read or refused.
//!
//! Executions: `TIDEWATER_FUZZ_EXECS` (default 20,000). Each is a function of `TIDEWATER_SEED` (default 1) and its number.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test's helpers")]

#[path = "../../../transport/lanes/tests/support/fuzzing.rs"]
#[allow(dead_code, reason = "shared by all fuzzers")]
mod fuzzing;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fuzzing::{Random, mutate, number};
use tidewater_data::decoders::DECODERS;
use tidewater_data::recordio::chunked::{Compressor, Writer};
use tidewater_data::recordio::dmlc;

/// Files of all decoders. gzip and Zstandard have blocks that are stored.
fn files() -> Vec<Vec<u8>> {
    let texts: [&[u8]; 8] = [
        b"1 0.5 0 2\n0 1 1 1\n",
        b"1,0.5,0,2\n-1,,1,nan\n",
        b"1,2,\"a,\"\"b\nc\",x,7\n0,,,,\n",
        b"a,y,q,z\nx,1,,3\n",
        b"header y:label a:number*3 c:category *:skip delimiter=tab quote=none",
        b"1 1 5 9\n",
        // Header, a stored block with "hi", CRC-32, size.
        b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x01\x02\0\xfd\xffhi\xac\x2a\x93\xd8\x02\0\0\0",
        // A frame of 2 bytes in one raw block, and a skippable frame.
        b"\x28\xb5\x2f\xfd\x20\x02\x11\0\0hi\x50\x2a\x4d\x18\x01\0\0\0x",
    ];
    let mut files: Vec<Vec<u8>> = texts.map(<[u8]>::to_vec).to_vec();
    let records: [&[u8]; 4] = [b"1 1:1", b"", b"ab\x0a\x23\xd7\xce", b"\x0a\x23\xd7\xce"];
    let mut file = Vec::new();
    for record in records {
        dmlc::write_record(&mut file, record).unwrap();
    }
    files.push(file);
    for compressor in [Compressor::None, Compressor::Snappy, Compressor::Gzip] {
        let mut writer = Writer::new(Vec::new(), compressor, 8);
        for record in records {
            writer.write(record).unwrap();
        }
        files.push(writer.finish().unwrap());
    }
    files
}

#[test]
fn any_file_is_read_or_refused() {
    let (seed, execs) = (
        number("TIDEWATER_SEED", 1),
        number("TIDEWATER_FUZZ_EXECS", 20_000),
    );
    let corpus = files();
    for exec in 0..execs {
        let mut random = Random::of(seed, "training data", exec);
        let mut file = corpus[random.under(corpus.len())].clone();
        for _ in 0..random.under(4) {
            mutate(&mut file, &corpus, &mut random);
        }
        let (name, decode) = DECODERS[random.under(DECODERS.len())];
        assert!(
            catch_unwind(AssertUnwindSafe(|| decode(&file))).is_ok(),
            "{name} failed at execution {exec}; repeat with TIDEWATER_SEED={seed} TIDEWATER_FUZZ_EXECS={}",
            exec + 1
        );
    }
    println!("training data: {execs} executions");
}
