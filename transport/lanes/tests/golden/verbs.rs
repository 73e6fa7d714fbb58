//! Messages between the ends of a verbs lane, built with the production code.

use tidewater_protocol::ids::{ApplierId, RegionKey};
use tidewater_protocol::layout::session::MAILBOX_BYTES;
use tidewater_protocol::wire::control::{
    PairAddr, Remote, ServerAnswer, ServerRequest, VERBS_DIRECTORY_CELL_BYTES, VerbsConnect,
    VerbsConnected, VerbsEce, VerbsEnd, VerbsLink, VerbsTails, encode,
};

/// Name and bytes of each message: complete control frames, request 7.
pub(crate) fn all() -> Vec<(&'static str, Vec<u8>)> {
    let (mut asked, mut told) = (Vec::new(), Vec::new());
    encode(7, &ServerRequest::ConnectVerbs(client()), &mut asked).unwrap();
    encode(7, &ServerAnswer::VerbsConnected(server()), &mut told).unwrap();
    let mut lanes = [Vec::new(), Vec::new(), Vec::new()];
    let [ask, queued, answer] = &mut lanes;
    encode(7, &ServerRequest::ConnectLanes(vec![client()]), ask).unwrap();
    encode(7, &ServerAnswer::Queued { before: 300 }, queued).unwrap();
    encode(7, &ServerAnswer::LanesConnected(vec![server()]), answer).unwrap();
    let [ask, queued, answer] = lanes;
    vec![
        ("verbs-connect", asked),
        ("verbs-connected", told),
        ("connect-lanes", ask),
        ("lanes-queued", queued),
        ("lanes-connected", answer),
    ]
}

/// A port at an IPv4 address, as in a RoCE GID.
fn end(last: u8, first_pair: u32) -> VerbsEnd {
    let pair = |n: u32| PairAddr {
        qpn: first_pair + n,
        psn: 0x00a0_0000 + n,
    };
    VerbsEnd {
        link: VerbsLink::Ethernet,
        gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, last],
        lid: 0,
        mtu: 1024,
        reads: 16,
        reads_out: 16,
        receives: 16,
        pairs: (0..3).map(pair).collect(),
        pkey: 0xffff,
        ece: Some(VerbsEce {
            vendor: 0x15b3,
            options: 0x1000_0001,
        }),
    }
}

fn client() -> VerbsConnect {
    VerbsConnect {
        applier: ApplierId(1),
        nonce: 99,
        end: end(1, 17),
        mailbox: Remote {
            key: RegionKey(0x0203),
            address: 0,
            len: MAILBOX_BYTES as u64,
        },
        atomics: true,
    }
}

fn server() -> VerbsConnected {
    VerbsConnected {
        applier: ApplierId(1),
        end: end(2, 0x40),
        inbox: Remote {
            key: RegionKey(0x0405),
            address: 0,
            len: (1 << 20) + 4096,
        },
        directory: Remote {
            key: RegionKey(0x0607),
            address: 0,
            len: 64 * VERBS_DIRECTORY_CELL_BYTES,
        },
        directory_salt: 0x0102_0304_0506_0708,
        tails: VerbsTails::Polled,
        atomics: true,
    }
}
