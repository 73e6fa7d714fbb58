//! Rows against the kernel alone, for all sizes.

use tidewater_protocol::ids::{DomainId, Incarnation};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::row::verify_row;
use tidewater_protocol::table::{
    Apply, DType, GradientOptions, Init, KeyOptions, Optimizer, Shape,
};

use super::*;
use crate::store::memory::{BlockKind, BlockOwner};

const ROWS: usize = 40;
const PUSHES: usize = 3 * FIND_AHEAD + 5;

fn spec(dim: u32, optimizer: Optimizer, redo: bool) -> Arc<TableSpec> {
    Arc::new(TableSpec {
        name: "t".into(),
        shape: Shape::Sparse { dim },
        dtype: DType::F32,
        optimizer,
        init: Init::Constant(0.25),
        seed: 1,
        effect: Apply::Immediate,
        finite_check: true,
        domain: DomainId(0),
        partitions: 1,
        gradient: GradientOptions::default(),
        redo,
        keys: KeyOptions::default(),
        versions: 2,
        durability: Default::default(),
        partition_servers: None,
        partition_starts: None,
    })
}

fn places(memory: &ServerMemory, layout: RowLayout, state_bytes: usize) -> Vec<RowPlace> {
    let owner = BlockOwner {
        kind: BlockKind::Extent,
        table: 1,
        applier: 0,
        part: 1,
    };
    let stride = state_bytes.next_multiple_of(8);
    let rows = memory.public.alloc(ROWS * layout.stride, owner).unwrap();
    let state = memory.private.alloc(ROWS * stride, owner).unwrap();
    let place = |n: usize| RowPlace {
        row_at: rows.at + n * layout.stride,
        state_at: state.at + n * stride,
        key: 100 + n as u64,
        salt: 7,
    };
    (0..ROWS).map(place).collect()
}

/// A frame with repeated rows, of every size with copies of its own and of some without. Each row
/// has the kernel's result and a checksum that matches. The redo record names the last row, or nothing
/// where the table has none.
fn is_what_the_kernel_makes_of_it(dim: u32, optimizer: Optimizer, redo_on: bool) {
    let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(3)).unwrap());
    let spec = spec(dim, optimizer, redo_on);
    let mut writer = RowWriter::new(Arc::clone(&memory), spec).unwrap();
    let kernel = *writer.kernel();
    let lengths = (kernel.row_bytes(), kernel.state_bytes());
    let redo = Redo::new(Arc::clone(&memory), 0, lengths.0, lengths.1).unwrap();
    let places = places(&memory, writer.layout(), lengths.1);
    let mut model = Vec::new();
    for place in &places {
        writer.create(&redo, Progress::default(), *place).unwrap();
        let (mut payload, mut state) = (vec![0; lengths.0], vec![0; lengths.1]);
        kernel.init_row(
            &Init::Constant(0.25),
            1,
            place.key,
            &mut payload,
            &mut state,
        );
        model.push((1, payload, state));
    }
    let chosen: Vec<usize> = (0..PUSHES)
        .map(|n| mix64(n as u64) as usize % ROWS)
        .collect();
    let values: Vec<u8> = (0..PUSHES * dim as usize)
        .flat_map(|n| (n as f32 * 0.5 - 300.0).to_le_bytes())
        .collect();
    for (row, values) in chosen.iter().zip(values.chunks_exact(lengths.0)) {
        let (pushes, payload, state) = &mut model[*row];
        *pushes += 1;
        kernel.apply(PushOp::Gradient, payload, state, values);
    }
    let pushed: Vec<RowPlace> = chosen.iter().map(|&row| places[row]).collect();
    let first = Progress { lsn: 9, row: 0 };
    let op = PushOp::Gradient;
    writer
        .apply_all(&redo, first, &pushed, op, &values)
        .unwrap();
    let row = PUSHES as u32 - 1;
    let last = redo_on.then_some(Progress { lsn: 9, row });
    assert_eq!(redo.finish().unwrap(), last, "dim {dim}");
    for (place, (pushes, payload, state)) in places.iter().zip(&model) {
        let public = memory.public.region();
        let slot = public.words(place.row_at, writer.layout().stride).unwrap();
        let mut bytes = vec![0xff; writer.layout().stride];
        slot.copy_out(0, &mut bytes);
        let (head, rest) = bytes.split_first_chunk().unwrap();
        let ver = verify_row(place.salt, place.key, head, &rest[..lengths.0]);
        assert_eq!(ver.map(RowVersion::counter), Some(*pushes), "dim {dim}");
        assert_eq!(&rest[..lengths.0], payload, "dim {dim}");
        assert!(rest[lengths.0..].iter().all(|b| *b == 0), "dim {dim}");
        let mut now = vec![0xff; lengths.1];
        writer.read_state(*place, &mut now).unwrap();
        assert_eq!(&now, state, "dim {dim}");
    }
}

#[test]
fn rows_of_every_size_are_what_the_kernel_makes_of_them() {
    let adam = Optimizer::Adam {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
    };
    let adadelta = Optimizer::AdaDelta {
        lr: 1.0,
        rho: 0.9,
        eps: 1e-6,
    };
    let proximal = Optimizer::ProximalSgd { lr: 0.5, l1: 0.1 };
    for redo in [false, true] {
        for dim in [1, 2, 3, 8, 15, 16, 17, 32, 33, 64, 100] {
            is_what_the_kernel_makes_of_it(dim, Optimizer::Sgd { lr: 0.5 }, redo);
            is_what_the_kernel_makes_of_it(dim, Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 }, redo);
            is_what_the_kernel_makes_of_it(dim, adam, redo);
            is_what_the_kernel_makes_of_it(dim, adadelta, redo);
            is_what_the_kernel_makes_of_it(dim, proximal, redo);
        }
    }
}

#[test]
fn a_place_outside_is_refused_and_those_before_it_are_applied() {
    let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(3)).unwrap());
    let spec = spec(16, Optimizer::Sgd { lr: 1.0 }, false);
    let mut writer = RowWriter::new(Arc::clone(&memory), spec).unwrap();
    let redo = Redo::new(Arc::clone(&memory), 0, 64, 0).unwrap();
    let good = places(&memory, writer.layout(), 0)[0];
    writer.create(&redo, Progress::default(), good).unwrap();
    for row_at in [
        memory.public.region().len() - 64,
        good.row_at + 4,
        usize::MAX - 7,
    ] {
        let places = [good, RowPlace { row_at, ..good }, good];
        let before = writer.version(good).unwrap();
        let (first, op) = (Progress::default(), PushOp::Gradient);
        let e = writer.apply_all(&redo, first, &places, op, &[0; 192]);
        assert!(matches!(e, Err(StoreError::Mem(_))), "{e:?}");
        assert_eq!(writer.version(good).unwrap(), before.next());
    }
}
