//! One target for all decoders: the first byte is the decoder's position in the registry.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidewater_transport::tcp::op;
use tidewater_transport::wire::decoders::DECODERS;

fuzz_target!(|input: &[u8]| {
    let Some((&index, bytes)) = input.split_first() else { return };
    let index = usize::from(index) % (DECODERS.len() + op::DECODERS.len());
    let Some((_, decode)) = DECODERS.iter().chain(op::DECODERS).nth(index) else {
        return;
    };
    decode(bytes);
});
