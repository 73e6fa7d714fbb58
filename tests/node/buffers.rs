//! Registered buffers: slices like any other, on every transport.

use tidewater::{Client, ClientError, PullMode, PullOptions, Table, TableBuilder};
use tidewater_launch::TransportChoice;
use tidewater_protocol::limits::{BUFFER_BYTES_MAX, BUFFERS_MAX};
use tidewater_protocol::table::PushOp;

use tidewater_testkit::sockets::{BOTH, Rig};

/// Length in elements: more than one round of a pull.
const LEN: usize = (1 << 20) / 4 + 5_000;

fn range_of_numbers(client: &mut Client) -> (Table<f32>, Vec<f32>) {
    let spec = TableBuilder::range::<f32>("range", LEN as u64, 1);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let values: Vec<f32> = (0..LEN).map(|n| n as f32).collect();
    let ticket = client.push_range(&table, 0, &values, PushOp::Sum).unwrap();
    client.wait_applied(&ticket).unwrap();
    (table, values)
}

/// Complete buffers, and parts with arbitrary starts, in every mode.
fn pulls_are_right(rig: &Rig, transport: TransportChoice) {
    let mut client = rig.client(transport, 0);
    let (table, values) = range_of_numbers(&mut client);
    let mut buffer = client.buffer::<f32>(LEN).unwrap();
    assert!(buffer.len() == LEN && buffer.iter().all(|&v| v == 0.0));
    for mode in [PullMode::Consistent, PullMode::Hogwild, PullMode::Gather] {
        let options = PullOptions::default().mode(mode);
        for (first, at, len) in [(0, 0, LEN), (1, 0, 9_000), (4_095, 3, 2), (77, 5, LEN - 77)] {
            let (at, len) = (at, len.min(LEN - at));
            buffer.fill(-1.0);
            let out = &mut buffer[at..at + len];
            let pulled = client.pull_range(&table, first as u64, out, options);
            pulled.unwrap();
            assert!(
                buffer[at..at + len] == values[first..first + len],
                "{mode:?} {first}"
            );
            let mut around = buffer[..at].iter().chain(&buffer[at + len..]);
            assert!(
                around.all(|&v| v == -1.0),
                "{mode:?} {first}: beside its slice"
            );
        }
    }
    let spec = TableBuilder::sparse::<i64>("rows", 3);
    let table = client.create_table::<i64>(spec.spec()).unwrap();
    let keys: Vec<u64> = (0..100).collect();
    let values: Vec<i64> = (0..300).collect();
    let ticket = client.push_rows(&table, &keys, &values, PushOp::Sum);
    client.wait_applied(&ticket.unwrap()).unwrap();
    let mut rows = client.buffer::<i64>(300).unwrap();
    let options = PullOptions::default();
    client.pull_rows(&table, &keys, &mut rows, options).unwrap();
    assert_eq!(rows[..], values);
    // For another thread's client it is ordinary memory.
    let mut other = rig.client(transport, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let table = other.open_table::<i64>("rows").unwrap();
            rows.fill(0);
            other.pull_rows(&table, &keys, &mut rows, options).unwrap();
        });
    });
    drop((client, other));
    assert_eq!(rows[..], values, "it outlives its client");
}

#[test]
fn a_buffer_is_a_slice_like_any_other() {
    for transport in *BOTH {
        pulls_are_right(&Rig::start(), transport);
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_buffer_is_a_slice_like_any_other_over_verbs() {
    pulls_are_right(&Rig::start(), TransportChoice::Verbs);
}

fn limited(transport: TransportChoice) {
    let rig = Rig::start();
    let mut client = rig.client(transport, 0);
    let mut all = Vec::new();
    for _ in 0..BUFFERS_MAX {
        all.push(client.buffer::<f64>(10).unwrap());
    }
    let refused = client.buffer::<f64>(0).unwrap_err();
    assert!(
        matches!(refused, ClientError::Memory { bytes: 0, .. }),
        "{refused}"
    );
    all.pop();
    client.buffer::<f64>(0).unwrap();
    for len in [BUFFER_BYTES_MAX / 8 + 1, usize::MAX] {
        let refused = client.buffer::<f64>(len).unwrap_err();
        assert!(refused.to_string().contains("at most"), "{refused}");
    }
}

#[test]
fn buffers_are_limited() {
    limited(TransportChoice::Shm);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn buffers_are_limited_over_verbs() {
    limited(TransportChoice::Verbs);
}
