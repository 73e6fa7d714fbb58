//! Many fenced reads on one lane.

use tidewater_lanes::fabric::ReadOp;

use crate::harness::{Host, noise, row};

const READS: usize = 5_000;

/// A device that forgets a request behind a fence leaves the read to its deadline.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn no_fenced_read_is_forgotten() {
    let host = Host::new();
    let mut ends = host.connect(1);
    let want = noise(3 * 320);
    let ops = [0, 1, 2].map(|n| ReadOp {
        fence: n > 0,
        ..row(host.at(n * 320), 272, n)
    });
    for read in 0..READS {
        let (_, body) = ends
            .read(&ops)
            .unwrap_or_else(|e| panic!("read {read}: {e}"));
        for n in 0..3 {
            assert_eq!(body[n * 256..][..256], want[n * 320 + 16..][..256]);
        }
    }
}
