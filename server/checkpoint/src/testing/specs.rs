//! Tables of every kind and several rules.

use tidewater_protocol::ids::DomainId;
use tidewater_protocol::table::{
    Apply, DType, DenseLayout, GradientOptions, Init, KeyOptions, Optimizer, Reduce, Shape,
    TableSpec,
};

/// Makes the definition of a table with 13 partitions and a seed that no double holds.
pub fn spec(
    name: &str,
    shape: Shape,
    dtype: DType,
    optimizer: Optimizer,
    effect: Apply,
) -> TableSpec {
    TableSpec {
        name: name.into(),
        shape,
        dtype,
        optimizer,
        init: if dtype.is_float() {
            Init::Uniform {
                low: -1.0,
                high: 1.0,
            }
        } else {
            Init::Constant(7.0)
        },
        // Does not fit a double: JSON must keep it.
        seed: u64::MAX - 2,
        effect,
        finite_check: true,
        domain: DomainId(3),
        partitions: 13,
        gradient: GradientOptions::default(),
        redo: false,
        keys: KeyOptions::default(),
        versions: 2,
        durability: Default::default(),
        partition_servers: None,
        partition_starts: None,
    }
}

const ADAM: Optimizer = Optimizer::Adam {
    lr: 0.1 + 0.2,
    beta1: 0.9,
    beta2: 0.999,
    eps: 1e-8,
};
const FTRL: Optimizer = Optimizer::Ftrl {
    alpha: 0.1,
    beta: 1.0,
    l1: 1e-300,
    l2: 0.3,
};
const MOMENTUM: Optimizer = Optimizer::Momentum {
    lr: 0.1,
    mu: 0.9,
    nesterov: true,
};
const AMSGRAD: Optimizer = Optimizer::AmsGrad {
    lr: 1e-3,
    beta1: 0.9,
    beta2: 0.999,
    eps: 1e-8,
};

const ADADELTA: Optimizer = Optimizer::AdaDelta {
    lr: 1.0,
    rho: 0.9,
    eps: 1e-6,
};
const SOFT: Optimizer = Optimizer::ProximalAdaGrad {
    lr: 0.1,
    eps: 1e-8,
    l1: 0.01,
};

/// Tables of every kind and several rules.
pub fn specs() -> Vec<TableSpec> {
    let dense = |rows, cols, layout| Shape::Dense { rows, cols, layout };
    let blocks = |snapshot| DenseLayout::Blocks {
        block_bytes: 4096,
        snapshot,
    };
    let now = Apply::Immediate;
    let gradient = GradientOptions {
        weight_decay: 0.01,
        clip_value: Some(0.1 + 0.2),
        clip_norm: Some(5.0),
        initial_accumulator: 0.1,
        ..GradientOptions::default()
    };
    vec![
        spec("sparse", Shape::Sparse { dim: 3 }, DType::F32, ADAM, now),
        spec(
            "rows",
            dense(50, 5, DenseLayout::Rows),
            DType::F64,
            FTRL,
            now,
        ),
        spec(
            "few",
            dense(3, 1, DenseLayout::Rows),
            DType::I32,
            Optimizer::None,
            now,
        ),
        spec(
            "blocks",
            dense(1000, 11, blocks(false)),
            DType::F64,
            MOMENTUM,
            now,
        ),
        spec(
            "snap",
            dense(999, 7, blocks(true)),
            DType::F32,
            ADAM,
            Apply::AtTick(Reduce::Sum),
        ),
        TableSpec {
            gradient,
            redo: true,
            ..spec(
                "one a row",
                Shape::Sparse { dim: 3 },
                DType::F32,
                Optimizer::RowAdaGrad { lr: 0.1, eps: 1e-8 },
                now,
            )
        },
        spec(
            "three",
            dense(1000, 11, blocks(false)),
            DType::F32,
            AMSGRAD,
            now,
        ),
        spec(
            "steps",
            dense(1000, 11, blocks(false)),
            DType::F32,
            ADADELTA,
            now,
        ),
        spec("soft", Shape::Sparse { dim: 3 }, DType::F64, SOFT, now),
    ]
}
