//! Table descriptions of a hostile cluster: an adopted one is read without overflow, any other is a
//! typed error.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidewater::{Client, ClientError, PullMode, PullOptions, SyncMode, Table};
use tidewater_protocol::ids::{ApplierId, DomainId, PartitionId, RegionKey, ServerId, TableId};
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::placement::{Owner, Placement};
use tidewater_protocol::table::{
    Apply, DType, DenseLayout, GradientOptions, Init, KeyOptions, Optimizer, PushOp, Reduce, Shape,
    TableSpec,
};
use tidewater_protocol::wire::control::{
    ApplierPart, PartitionDescriptor, Remote, TableDescriptor, TableInfo,
};

use crate::fuzzing::{EDGES, Random};
use crate::hostile::{RING_BYTES, Script, client};

const EXTENT_BYTES: u64 = 1 << 20;
pub(crate) const SALT: u64 = 0x5a17;

pub(crate) fn spec(shape: Shape, effect: Apply) -> TableSpec {
    TableSpec {
        name: "t".into(),
        shape,
        dtype: DType::F32,
        optimizer: Optimizer::Sgd { lr: 0.1 },
        init: Init::Zeros,
        seed: 0,
        effect,
        finite_check: true,
        domain: DomainId(0),
        partitions: 3,
        gradient: GradientOptions::default(),
        redo: false,
        keys: KeyOptions::default(),
        versions: 2,
        durability: Default::default(),
        partition_servers: None,
        partition_starts: None,
    }
}

/// One table of each kind, each complete on the only applier.
pub(crate) fn shapes() -> [(Shape, Apply); 4] {
    let blocks = |snapshot| DenseLayout::Blocks {
        block_bytes: 4096,
        snapshot,
    };
    let dense = |layout| Shape::Dense {
        rows: 900,
        cols: 4,
        layout,
    };
    [
        (Shape::Sparse { dim: 4 }, Apply::Immediate),
        (dense(DenseLayout::Rows), Apply::Immediate),
        (dense(blocks(false)), Apply::Immediate),
        (dense(blocks(true)), Apply::AtTick(Reduce::Sum)),
    ]
}

fn remote(address: u64, len: u64) -> Remote {
    Remote {
        key: RegionKey(7),
        address,
        len,
    }
}

/// Description of a table by an honest cluster.
pub(crate) fn honest(spec: TableSpec) -> (TableInfo, TableDescriptor) {
    let owner = Owner {
        server: ServerId(0),
        applier: ApplierId(0),
    };
    let sparse = matches!(spec.shape, Shape::Sparse { .. });
    let partition = |p: u32| PartitionDescriptor {
        partition: PartitionId(p),
        first: 0,
        count: 300,
        payload: remote(u64::from(p) << 20, EXTENT_BYTES),
        payload_back: Some(remote(1 << 30, EXTENT_BYTES)),
        versions: Some(remote(2 << 30, 4096)),
        snapshot: Some(remote(3 << 30, 64)),
    };
    let part = ApplierPart {
        applier: ApplierId(0),
        salt: SALT,
        extents: sparse.then(|| remote(1 << 20, 64 * 100)),
        partitions: if sparse {
            Vec::new()
        } else {
            (0..spec.partitions).map(partition).collect()
        },
    };
    let descriptor = TableDescriptor {
        id: TableId(1),
        header_bytes: 16,
        payload_bytes: 16,
        stride_bytes: 32,
        block_bytes: 0,
        parts: vec![part],
    };
    let placement = Placement(vec![owner; spec.partitions as usize]);
    (
        TableInfo {
            id: TableId(1),
            spec,
            placement,
        },
        descriptor,
    )
}

fn any(random: &mut Random) -> u64 {
    match random.under(3) {
        0 => random.under(8) as u64,
        1 => EDGES[random.under(EDGES.len())],
        _ => random.next() >> random.under(64),
    }
}

fn distort(random: &mut Random, info: &mut TableInfo, told: &mut TableDescriptor) {
    let n = any(random);
    match random.under(10) {
        0 => info.spec.partitions = n as u32,
        1 => match &mut info.spec.shape {
            Shape::Sparse { dim } => *dim = n as u32,
            Shape::Dense { rows, .. } => *rows = n,
        },
        2 => match &mut info.spec.shape {
            Shape::Dense {
                layout: DenseLayout::Blocks { block_bytes, .. },
                ..
            } => {
                *block_bytes = n as u32;
            }
            Shape::Dense { cols, .. } | Shape::Sparse { dim: cols } => *cols = n as u32,
        },
        3 => info.placement.0.truncate(n as usize % 8),
        4 => {
            if let Some(owner) = info.placement.0.first_mut() {
                *owner = Owner {
                    server: ServerId(n as u32),
                    applier: ApplierId(any(random) as u16),
                };
            }
        }
        5 => info.spec.domain = DomainId(n as u8),
        _ => part(random, n, told),
    }
}

fn part(random: &mut Random, n: u64, told: &mut TableDescriptor) {
    let Some(part) = told.parts.first_mut() else {
        return;
    };
    if random.under(6) == 0 {
        part.applier = ApplierId(n as u16);
        return;
    }
    let known = part.partitions.len();
    let mut places: Vec<&mut Remote> = Vec::new();
    if let Some(p) = part.partitions.get_mut(random.under(known)) {
        if random.under(6) == 0 {
            p.partition = PartitionId(n as u32);
        }
        places.push(&mut p.payload);
        let others = [&mut p.payload_back, &mut p.versions, &mut p.snapshot];
        places.extend(others.into_iter().flatten());
    }
    places.extend(part.extents.as_mut());
    let at = random.under(places.len());
    if let Some(place) = places.get_mut(at) {
        match random.under(3) {
            0 => place.address = n,
            1 => place.address = u64::MAX - n % 10_000,
            _ => place.len = n,
        }
    }
}

/// Makes every call of a table; returns the number of successes. Their results are ignored here.
pub(crate) fn use_table(client: &mut Client, table: &Table<f32>, random: &mut Random) -> u32 {
    let modes = [
        PullMode::Consistent,
        PullMode::Hogwild,
        PullMode::Snapshot,
        PullMode::Gather,
    ];
    let options = PullOptions {
        mode: modes[random.under(4)],
        timeout: Duration::from_micros(300),
        ..PullOptions::default()
    };
    let keys: Vec<u64> = (0..1 + random.under(6)).map(|_| any(random)).collect();
    // A width that a definition allows is at most 65,536 elements.
    let mut rows = vec![0.0; keys.len() * table.dim()];
    let first = any(random);
    let mut range = vec![0.0; random.under(3000)];
    let mut good = 0;
    match random.under(6) {
        0 => good += u32::from(client.pull_rows(table, &keys, &mut rows, options).is_ok()),
        1 => good += u32::from(client.pull_range(table, first, &mut range, options).is_ok()),
        2 => {
            let pushed = client.push_rows(table, &keys, &rows, PushOp::Gradient);
            good += u32::from(pushed.and_then(|t| client.wait_applied(&t)).is_ok());
        }
        3 => {
            let pushed = client.push_range(table, first, &range, PushOp::Gradient);
            good += u32::from(pushed.and_then(|t| client.wait_applied(&t)).is_ok());
        }
        4 => {
            if let Ok(pull) = client.start_pull_rows(table, &keys, options) {
                match client.finish_pull(pull, &mut rows) {
                    Ok(()) => good += 1,
                    Err(_) => client.cancel_pull(pull).unwrap(),
                }
            }
        }
        _ => good += u32::from(client.tick_domain(DomainId(first as u8)).is_ok()),
    }
    good
}

/// A fresh script with an honest table description.
pub(crate) fn script(random: &mut Random) -> Script {
    let shapes = shapes();
    let (shape, effect) = shapes[random.under(shapes.len())];
    let (info, descriptor) = honest(spec(shape, effect));
    Script {
        random: Random::of(random.next(), "script", 0),
        info: Some(info),
        descriptor: Some(descriptor),
        ring_bytes: RING_BYTES,
        poll: |_, _, _| {},
        read: |random, _, head, body| {
            for byte in head.iter_mut().chain(body) {
                *byte = random.next() as u8;
            }
        },
        breaks: 0,
        state: StateLine::default(),
    }
}

#[test]
fn any_description_is_adopted_whole_or_refused() {
    let (mut adopted, mut refused) = (0u64, 0u64);
    let execs = crate::execs() / 20;
    crate::run("tables", execs, |random| {
        let mut script = script(random);
        let (mut info, mut told) = (
            script.info.take().unwrap(),
            script.descriptor.take().unwrap(),
        );
        for _ in 0..1 + random.under(2) {
            distort(random, &mut info, &mut told);
        }
        if random.under(16) == 0 {
            script.ring_bytes = any(random) as usize;
        }
        script.info = Some(info);
        script.descriptor = Some(told);
        let mut client = match client(&Arc::new(Mutex::new(script)), SyncMode::Asp) {
            Ok(client) => client,
            Err(ClientError::Protocol { .. }) => return refused += 1,
            Err(e) => panic!("{e}"),
        };
        match client.open_table::<f32>("t") {
            Ok(table) => {
                adopted += 1;
                use_table(&mut client, &table, random);
            }
            Err(ClientError::Protocol { .. }) => refused += 1,
            Err(e) => panic!("{e}"),
        }
    });
    println!("tables: {adopted} adopted, {refused} refused");
    assert!(adopted > execs / 50 && refused > execs / 5);
}
