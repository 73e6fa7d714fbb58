//! Tests of the requests that a batch accepts, before any device sees it.

use super::*;

const TO: Target = Target {
    rkey: 7,
    address: 0x1000,
};
const PIECE: Sge = Sge {
    lkey: 3,
    address: 0x2000,
    bytes: 8,
};

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut chain = SendBatch::new(2, 2, 16);
    let refused = |r: Result<(), VerbsError>, word: &str| {
        let e = r.unwrap_err();
        assert!(
            matches!(e, VerbsError::SendBatch { capacity: 2, .. }),
            "{e}"
        );
        assert!(e.to_string().contains(word), "{e}");
    };
    refused(
        chain.read(1, &[PIECE; 3], TO, Flags::NONE),
        "3 elements, it takes 2",
    );
    refused(
        chain.write_inline(1, &[0; 17], TO, Flags::NONE),
        "17 inline bytes",
    );
    assert!(chain.is_empty());
    chain.signal_last(); // of nothing
    chain.read(1, &[PIECE; 2], TO, Flags::NONE).unwrap();
    chain.write_imm(2, &[1; 16], TO, 5, Flags::SIGNAL).unwrap();
    assert!(!chain.has_room());
    refused(chain.write(3, &[PIECE], TO, Flags::NONE), "3 requests");
    refused(chain.write_inline(3, &[], TO, Flags::NONE), "requests");
    refused(chain.write_imm(3, &[2; 16], TO, 6, Flags::NONE), "requests");
    refused(chain.fetch_add(3, PIECE, TO, 1, Flags::NONE), "requests");
    refused(
        chain.compare_swap(3, PIECE, TO, 0, 1, Flags::NONE),
        "requests",
    );
    assert_eq!(chain.len(), 2);
    assert_eq!(chain.inline[16..], [1; 16]);
    chain.clear();
    chain.write(4, &[], TO, Flags::NONE).unwrap();
    assert_eq!((chain.len(), chain.requests[0].num_sge), (1, 0));
}

#[test]
fn a_request_that_takes_the_place_of_another_has_none_of_its_flags() {
    let mut chain = SendBatch::new(1, 1, 8);
    let both = Flags {
        signal: true,
        fence: true,
    };
    chain.write_imm(1, &[1; 8], TO, 9, both).unwrap();
    let flags = bits::INLINE | bits::SIGNALED | bits::FENCE;
    assert_eq!(chain.requests[0].send_flags, flags);
    chain.clear();
    chain.read(2, &[PIECE], TO, Flags::NONE).unwrap();
    assert_eq!(chain.requests[0].send_flags, 0);
    assert_eq!(chain.requests[0].num_sge, 1);
    assert_eq!(chain.elements[0].lkey, 3);
    chain.signal_last();
    assert_eq!(chain.requests[0].send_flags, bits::SIGNALED);
}

#[test]
fn a_chain_of_nothing_takes_nothing() {
    let mut chain = SendBatch::new(0, 0, 0);
    assert!(chain.write_inline(1, &[], TO, Flags::NONE).is_err());
    assert_eq!(
        (chain.capacity(), chain.len(), chain.has_room()),
        (0, 0, false)
    );
}
