use super::*;

pub(crate) fn hello() -> Hello {
    Hello {
        features: Features {
            offered: 0x11,
            required: 0x01,
        },
        ids: Ids {
            cluster: ClusterId(0x0102_0304_0506_0708),
            epoch: 9,
            incarnation: Incarnation(0xa0a1_a2a3_a4a5_a6a7),
        },
        namespace: "job-7".into(),
        role: Role::Worker,
        rank: 3,
        purpose: Purpose::Lane {
            session: SessionId(0x1122),
            applier: ApplierId(2),
            nonce: 0x3344,
        },
        random: [0xcc; 32],
    }
}

#[test]
fn hello_has_its_golden_bytes() {
    let mut out = Vec::new();
    hello().encode(&mut out).unwrap();
    let mut golden = Vec::new();
    golden.extend_from_slice(b"\x01\0\0\0\0\0\0\0");
    golden.extend_from_slice(b"\x11\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0");
    golden.extend_from_slice(b"\x08\x07\x06\x05\x04\x03\x02\x01\x09\0\0\0\0\0\0\0");
    golden.extend_from_slice(b"\xa7\xa6\xa5\xa4\xa3\xa2\xa1\xa0\x03\0\0\0\x01\x02\x05\0");
    golden.extend_from_slice(b"\x22\x11\0\0\0\0\0\0\x44\x33\0\0\0\0\0\0");
    golden.extend_from_slice(b"\x02\0\0\0\0\0\0\0");
    golden.extend_from_slice(&[0xcc; 32]);
    golden.extend_from_slice(b"job-7");
    golden.resize(HELLO_BYTES, 0);
    assert_eq!(out, golden);
    assert_eq!(Hello::decode(&out), Ok(hello()));
}

#[test]
fn every_length_and_every_reserved_byte_is_checked() {
    let mut hello_bytes = Vec::new();
    hello().encode(&mut hello_bytes).unwrap();
    let welcome = Welcome {
        features: Features::default(),
        ids: hello().ids,
        role: Role::Server,
        number: 1,
        mac: [5; 32],
    };
    let mut welcome_bytes = Vec::new();
    welcome.encode_authenticated(&mut welcome_bytes);
    assert_eq!(welcome_bytes.len(), Welcome::AUTHENTICATED_BYTES);
    welcome_bytes.extend_from_slice(&welcome.mac);
    assert_eq!(Welcome::decode(&welcome_bytes), Ok(welcome));
    for len in 0..hello_bytes.len() {
        assert!(Hello::decode(&hello_bytes[..len]).is_err());
        assert!(Challenge::decode(&hello_bytes[..len]).is_err() || len == CHALLENGE_BYTES);
        assert!(Welcome::decode(&hello_bytes[..len]).is_err());
    }
    for at in (4..8).chain(74..80).chain(117..176) {
        let mut bad = hello_bytes.clone();
        bad[at] = 1;
        assert!(Hello::decode(&bad).is_err(), "hello byte {at}");
    }
    for at in 45..48 {
        let mut bad = welcome_bytes.clone();
        bad[at] = 1;
        assert!(Welcome::decode(&bad).is_err(), "welcome byte {at}");
    }
}

#[test]
fn a_control_hello_names_no_lane() {
    let mut out = Vec::new();
    Hello {
        purpose: Purpose::Control,
        ..hello()
    }
    .encode(&mut out)
    .unwrap();
    for at in 56..74 {
        let mut bad = out.clone();
        bad[at] = 1;
        assert!(Hello::decode(&bad).is_err(), "byte {at}");
    }
}

#[test]
fn namespaces_are_checked_at_both_ends() {
    for name in ["", "a\nb", &"x".repeat(NAMESPACE_BYTES_MAX + 1)] {
        let hello = Hello {
            namespace: name.into(),
            ..hello()
        };
        assert!(hello.encode(&mut Vec::new()).is_err(), "{name:?}");
    }
    let mut out = Vec::new();
    let longest = Hello {
        namespace: "x".repeat(NAMESPACE_BYTES_MAX),
        ..hello()
    };
    longest.encode(&mut out).unwrap();
    assert_eq!(Hello::decode(&out), Ok(longest));
    out[54] = 65;
    assert!(Hello::decode(&out).is_err());
    (out[54], out[112]) = (64, 0xff);
    assert!(Hello::decode(&out).is_err());
}

#[test]
fn refusals_have_a_prefix_that_any_version_reads() {
    let refusal = Refusal::new(RefusalCode::Version, [7, 1, 0, 0]).with_text("old");
    let mut out = Vec::new();
    Refused {
        version: 7,
        refusal: refusal.clone(),
    }
    .encode(&mut out);
    assert_eq!(out[..8], *b"\x07\0\0\0\x02\0\x03\0");
    assert_eq!(
        out[8..40],
        *b"\x07\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
    );
    assert_eq!(out[40..], *b"old");
    assert_eq!(
        Refused::decode(&out),
        Ok(Refused {
            version: 7,
            refusal
        })
    );
    for len in 0..out.len() {
        assert!(Refused::decode(&out[..len]).is_err());
    }
}
