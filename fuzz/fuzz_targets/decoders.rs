//! One target for all decoders: the first byte is the decoder's position in the registries. Those of expressions
//! are numbered down from 255, those of training data from the last of them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidewater_data::decoders::DECODERS as DATA;
use tidewater_expression::decoders::DECODERS as EXPRESSION;
use tidewater_lanes::tcp;
use tidewater_protocol::{layout, wire};
use tidewater_checkpoint as checkpoint;

fuzz_target!(|input: &[u8]| {
    let Some((&index, bytes)) = input.split_first() else {
        return;
    };
    let mut last = EXPRESSION.iter().chain(DATA);
    if let Some((_, decode)) = last.nth(usize::from(u8::MAX - index)) {
        return decode(bytes);
    }
    // In the order in which transport/lanes/tests/fuzz.rs and server/service/tests/fuzz/files.rs number the seeds.
    let mut all = wire::decoders::DECODERS
        .iter()
        .chain(tcp::op::DECODERS)
        .chain(layout::decoders::DECODERS)
        .chain(checkpoint::decoders::DECODERS);
    let index = usize::from(index) % all.clone().count();
    let Some((_, decode)) = all.nth(index) else {
        return;
    };
    decode(bytes);
});
