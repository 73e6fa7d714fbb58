use super::*;
use crate::table::{GradientOptions, KeyOptions, Reduce};

fn dense(layout: DenseLayout) -> TableSpec {
    TableSpec {
        name: "w".into(),
        shape: Shape::Dense {
            rows: 10,
            cols: 8,
            layout,
        },
        dtype: DType::F32,
        optimizer: Optimizer::None,
        init: Init::Zeros,
        seed: 1,
        effect: Apply::Immediate,
        finite_check: true,
        domain: DomainId(0),
        partitions: 4,
        gradient: GradientOptions::default(),
        redo: false,
        keys: KeyOptions::default(),
        versions: 2,
        durability: Default::default(),
        partition_servers: None,
        partition_starts: None,
    }
}

fn sparse(dim: u32) -> TableSpec {
    TableSpec {
        shape: Shape::Sparse { dim },
        ..dense(DenseLayout::Rows)
    }
}

#[test]
fn names() {
    for (name, ok) in [
        ("", false),
        ("w", true),
        ("wortgewichte-\u{e4}", true),
        ("a\nb", false),
        ("a\u{7f}", false),
        (&"x".repeat(TABLE_NAME_BYTES_MAX), true),
        (&"x".repeat(TABLE_NAME_BYTES_MAX + 1), false),
    ] {
        let spec = TableSpec {
            name: name.into(),
            ..sparse(8)
        };
        assert_eq!(spec.validate().is_ok(), ok, "{name:?}");
    }
}

#[test]
fn dimensions() {
    let longest = (ROW_BYTES_MAX / 4) as u32;
    assert_eq!(sparse(longest).validate(), Ok(()));
    assert_eq!(
        sparse(longest + 1).validate(),
        Err(SpecError::RowBytes {
            bytes: ROW_BYTES_MAX + 4
        })
    );
    assert_eq!(sparse(0).validate(), Err(SpecError::Dim { dim: 0 }));
    let dim = u64::from(ROW_DIM_MAX) + 1;
    assert_eq!(
        sparse(ROW_DIM_MAX + 1).validate(),
        Err(SpecError::Dim { dim })
    );
    for (rows, ok) in [
        (0, false),
        (1, true),
        (1 << 41, true),
        (1 << 42, false),
        (u64::MAX, false),
    ] {
        let shape = Shape::Dense {
            rows,
            cols: 8,
            layout: DenseLayout::Rows,
        };
        assert_eq!(
            TableSpec { shape, ..sparse(8) }.validate().is_ok(),
            ok,
            "{rows} rows"
        );
    }
}

#[test]
fn blocks_and_snapshots() {
    for (block_bytes, ok) in [
        (0, false),
        (2048, false),
        (4096, true),
        (12_288, false),
        (1 << 18, true),
        (1 << 19, false),
    ] {
        let spec = dense(DenseLayout::Blocks {
            block_bytes,
            snapshot: false,
        });
        assert_eq!(spec.validate().is_ok(), ok, "{block_bytes}");
    }
    let spec = dense(DenseLayout::Blocks {
        block_bytes: 4096,
        snapshot: true,
    });
    assert_eq!(spec.validate(), Err(SpecError::SnapshotNeedsAtClock));
    assert_eq!(
        TableSpec {
            effect: Apply::AtTick(Reduce::Sum),
            ..spec
        }
        .validate(),
        Ok(())
    );
}

#[test]
fn optimizers() {
    let good = Optimizer::Adam {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
    };
    assert_eq!(
        TableSpec {
            optimizer: good,
            ..sparse(8)
        }
        .validate(),
        Ok(())
    );
    let on_integers = TableSpec {
        optimizer: good,
        dtype: DType::I32,
        ..sparse(8)
    };
    assert_eq!(
        on_integers.validate(),
        Err(SpecError::NeedsFloat { dtype: DType::I32 })
    );
    for bad in [
        Optimizer::Sgd { lr: f64::NAN },
        Optimizer::Sgd { lr: f64::INFINITY },
        Optimizer::Sgd { lr: -0.1 },
        Optimizer::Sgd { lr: 1e39 },
        Optimizer::Momentum {
            lr: 0.1,
            mu: 1.0,
            nesterov: false,
        },
        Optimizer::AdaGrad { lr: 0.1, eps: 0.0 },
        Optimizer::AdaGrad {
            lr: 0.1,
            eps: 1e-50,
        },
        Optimizer::Adam {
            lr: 1e-3,
            beta1: 0.9,
            beta2: f64::NAN,
            eps: 1e-8,
        },
        Optimizer::Ftrl {
            alpha: 0.0,
            beta: 1.0,
            l1: 0.0,
            l2: 0.0,
        },
        Optimizer::Ftrl {
            alpha: 0.1,
            beta: 1.0,
            l1: -1.0,
            l2: 0.0,
        },
    ] {
        let error = TableSpec {
            optimizer: bad,
            ..sparse(8)
        }
        .validate();
        assert!(matches!(error, Err(SpecError::Parameter { .. })), "{bad:?}");
    }
}

#[test]
fn initialisers() {
    let ok = |dtype, init| {
        TableSpec {
            dtype,
            init,
            ..sparse(8)
        }
        .validate()
        .is_ok()
    };
    assert!(ok(DType::I32, Init::Constant(-3.0)));
    assert!(!ok(DType::I32, Init::Constant(0.5)));
    assert!(!ok(DType::I32, Init::Constant(3e9)));
    assert!(ok(DType::I64, Init::Constant(3e9)));
    assert!(!ok(DType::I64, Init::Constant(1e300)));
    assert!(!ok(
        DType::I64,
        Init::Uniform {
            low: 0.0,
            high: 1.0
        }
    ));
    assert!(ok(
        DType::F64,
        Init::Uniform {
            low: -1.0,
            high: 1.0
        }
    ));
    assert!(!ok(
        DType::F64,
        Init::Uniform {
            low: 1.0,
            high: -1.0
        }
    ));
    assert!(!ok(DType::F32, Init::Constant(1e300)));
    assert!(!ok(
        DType::F32,
        Init::Normal {
            mean: 0.0,
            std: -1.0
        }
    ));
    assert!(!ok(
        DType::F32,
        Init::Normal {
            mean: f64::NAN,
            std: 1.0
        }
    ));
}

#[test]
fn domains_and_partitions() {
    for (domain, ok) in [(63, true), (64, false)] {
        let spec = TableSpec {
            domain: DomainId(domain),
            ..sparse(8)
        };
        assert_eq!(spec.validate().is_ok(), ok);
    }
    for (partitions, exists, asked) in [
        (0, false, true),
        (1, true, true),
        (PARTITIONS_MAX, true, true),
        (PARTITIONS_MAX + 1, false, false),
    ] {
        let spec = TableSpec {
            partitions,
            ..sparse(8)
        };
        assert_eq!(spec.validate().is_ok(), exists, "{partitions}");
        assert_eq!(spec.validate_request().is_ok(), asked, "{partitions}");
    }
}

/// A list of servers has one entry for each partition, and decides their number if that is not given.
#[test]
fn partition_servers_are_one_for_each_partition() {
    let with = |partitions, servers: &[u32]| TableSpec {
        partitions,
        partition_servers: Some(servers.iter().copied().map(ServerId).collect()),
        ..sparse(8)
    };
    assert_eq!(with(3, &[0, 0, 1]).validate(), Ok(()));
    assert_eq!(with(0, &[0, 0, 1]).validate_request(), Ok(()));
    for partitions in [0, 1, 3] {
        let empty = with(partitions, &[]);
        assert_eq!(empty.validate_request(), Err(SpecError::NoPartitionServers));
    }
    let (given, partitions) = (3, 4);
    let differs = SpecError::PartitionServers { given, partitions };
    assert_eq!(with(4, &[0, 0, 1]).validate_request(), Err(differs));
    let partitions = PARTITIONS_MAX + 1;
    let many = with(0, &vec![0; partitions as usize]);
    let too_many = SpecError::Partitions { partitions };
    assert_eq!(many.validate_request(), Err(too_many));
    let absent = |last| SpecError::PartitionServer {
        partition: PartitionId(2),
        server: ServerId(SERVERS_MAX),
        last,
    };
    let outside = with(0, &[0, 4, SERVERS_MAX]);
    assert_eq!(outside.validate_request(), Err(absent(SERVERS_MAX - 1)));
    assert_eq!(outside.check_servers(5), Err(absent(4)));
    assert_eq!(with(0, &[0, 4]).check_servers(5), Ok(()));
    assert_eq!(sparse(8).check_servers(1), Ok(()));
}

#[test]
fn options_need_a_rule_that_takes_them() {
    let none = GradientOptions::default();
    let decay = GradientOptions {
        weight_decay: 0.1,
        ..none
    };
    let first = GradientOptions {
        initial_accumulator: 0.1,
        ..none
    };
    let norm = GradientOptions {
        clip_norm: Some(1.0),
        ..none
    };
    let sgd = Optimizer::Sgd { lr: 0.1 };
    let adagrad = Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 };
    let by_row = Optimizer::RowAdaGrad { lr: 0.1, eps: 1e-8 };
    let adamw = Optimizer::AdamW {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
    };
    let blocks = dense(DenseLayout::Blocks {
        block_bytes: 4096,
        snapshot: false,
    });
    let of = |shape: &TableSpec, optimizer, gradient| {
        let spec = TableSpec {
            optimizer,
            gradient,
            ..shape.clone()
        };
        spec.validate()
    };
    let rows = sparse(8);
    for (shape, rule, options) in [
        (&rows, sgd, decay),
        (&rows, sgd, norm),
        (&rows, adagrad, first),
        (&rows, by_row, first),
        (&rows, adamw, norm),
        (&blocks, adagrad, first),
        (&blocks, sgd, decay),
    ] {
        assert_eq!(of(shape, rule, options), Ok(()), "{rule:?} {options:?}");
    }
    assert_eq!(
        of(&rows, Optimizer::None, decay),
        Err(SpecError::OptionsWithoutRule)
    );
    assert_eq!(of(&rows, adamw, decay), Err(SpecError::TwoDecays));
    assert_eq!(
        of(&rows, sgd, first),
        Err(SpecError::NoAccumulator { rule: "Sgd" })
    );
    let soft = Optimizer::ProximalAdaGrad {
        lr: 0.1,
        eps: 1e-8,
        l1: 0.1,
    };
    assert_eq!(of(&blocks, soft, first), Ok(()));
    let needs = |what| Err(SpecError::NeedsRows { what });
    assert_eq!(of(&blocks, sgd, norm), needs("clip_norm"));
    assert_eq!(of(&blocks, by_row, none), needs("RowAdaGrad"));
}

#[test]
fn staleness_is_for_pushes_that_apply_on_arrival() {
    let stale = TableSpec {
        optimizer: Optimizer::Sgd { lr: 0.1 },
        gradient: GradientOptions {
            by_staleness: true,
            ..GradientOptions::default()
        },
        ..sparse(8)
    };
    assert_eq!(stale.validate(), Ok(()));
    let ticking = TableSpec {
        effect: Apply::AtTick(Reduce::Sum),
        ..stale
    };
    assert_eq!(ticking.validate(), Err(SpecError::StalenessAtTick));
}

#[test]
fn parameters_are_in_their_ranges() {
    let of = |optimizer| {
        let spec = TableSpec {
            optimizer,
            ..sparse(8)
        };
        spec.validate()
    };
    let bad = |name, value, range| Err(SpecError::Parameter { name, value, range });
    let l1 = Optimizer::ProximalSgd { lr: 0.1, l1: -1.0 };
    assert_eq!(of(l1), bad("l1", -1.0, "finite and not below 0"));
    let rho = Optimizer::AdaDelta {
        lr: 1.0,
        rho: 1.0,
        eps: 1e-6,
    };
    assert_eq!(of(rho), bad("rho", 1.0, "in [0, 1)"));
}

#[test]
fn bounds_are_above_zero() {
    let none = GradientOptions::default();
    for bad in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e-50] {
        for options in [
            GradientOptions {
                clip_value: Some(bad),
                ..none
            },
            GradientOptions {
                clip_norm: Some(bad),
                ..none
            },
        ] {
            let spec = TableSpec {
                optimizer: Optimizer::Sgd { lr: 0.1 },
                gradient: options,
                ..sparse(8)
            };
            let refused = spec.validate();
            assert!(matches!(refused, Err(SpecError::Parameter { .. })));
        }
    }
}

/// What would be lost with a server process is refused together with a warm durability, and nothing else.
#[test]
fn warm_tables_have_state_that_outlives_a_process() {
    let warm = TableSpec {
        durability: Durability::Warm,
        ..sparse(8)
    };
    let adagrad = Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 };
    let keys = |expire_after, admit_after| TableSpec {
        keys: KeyOptions {
            expire_after,
            admit_after,
        },
        ..warm.clone()
    };
    let by_staleness = TableSpec {
        optimizer: adagrad,
        gradient: GradientOptions {
            by_staleness: true,
            ..GradientOptions::default()
        },
        ..warm.clone()
    };
    let at_tick = TableSpec {
        effect: Apply::AtTick(Reduce::Sum),
        ..warm.clone()
    };
    assert_eq!(warm.validate(), Ok(()));
    assert_eq!(at_tick.validate(), Ok(()));
    assert_eq!(keys(0, 1).validate(), Ok(()));
    for (spec, what) in [
        (by_staleness, "by_staleness"),
        (keys(3, 0), "expire_after"),
        (keys(0, 2), "admit_after"),
    ] {
        assert_eq!(spec.validate(), Err(SpecError::NotWarm { what }));
        let none = TableSpec {
            durability: Durability::None,
            ..spec
        };
        assert_eq!(none.validate(), Ok(()), "{what}");
    }
}

/// The starts of partitions ascend from 0 in a dense table, at borders of blocks, and decide the number of partitions.
#[test]
fn partition_starts_ascend_within_the_table() {
    let with = |shape, partitions, starts: &[u64]| TableSpec {
        shape,
        partitions,
        partition_starts: Some(starts.to_vec().into()),
        ..sparse(8)
    };
    let by_rows = Shape::Dense {
        rows: 100,
        cols: 8,
        layout: DenseLayout::Rows,
    };
    // 800 elements of 4 bytes: a block has 1,024.
    let by_range = |rows| Shape::Dense {
        rows,
        cols: 8,
        layout: DenseLayout::Blocks {
            block_bytes: 4096,
            snapshot: false,
        },
    };
    for right in [
        with(by_rows, 0, &[0, 1, 99]),
        with(by_rows, 2, &[0, 98]),
        with(by_range(1_000), 0, &[0, 1_024, 7_168]),
        with(by_range(1), 1, &[0]),
    ] {
        assert_eq!(right.validate_request(), Ok(()), "{right:?}");
    }
    let start = |partition, start, least, end| SpecError::PartitionStart {
        partition: PartitionId(partition),
        start,
        least,
        end,
    };
    let (given, partitions) = (2, 3);
    for (shape, partitions, starts, wrong) in [
        (by_rows, 0, &[][..], SpecError::NoPartitionStarts),
        (
            by_rows,
            partitions,
            &[0, 1],
            SpecError::PartitionStarts { given, partitions },
        ),
        (by_rows, 0, &[1, 2], start(0, 1, 0, 100)),
        (by_rows, 0, &[0, 5, 5], start(2, 5, 6, 100)),
        (by_rows, 0, &[0, 7, 5], start(2, 5, 8, 100)),
        (by_rows, 0, &[0, 100], start(1, 100, 1, 100)),
        (by_rows, 0, &[0, u64::MAX], start(1, u64::MAX, 1, 100)),
        (by_range(1_000), 0, &[0, 8_192], start(1, 8_192, 1, 8_000)),
        (
            by_range(1_000),
            0,
            &[0, 1_000],
            SpecError::PartitionInBlock {
                partition: PartitionId(1),
                start: 1_000,
                unit: 1_024,
            },
        ),
        (Shape::Sparse { dim: 8 }, 0, &[0], SpecError::StartsOfSparse),
    ] {
        let wrong_spec = with(shape, partitions, starts);
        assert_eq!(wrong_spec.validate_request(), Err(wrong), "{starts:?}");
    }
    let both = TableSpec {
        partition_servers: Some(vec![ServerId(0); 2]),
        ..with(by_rows, 0, &[0, 1, 99])
    };
    let (given, partitions) = (3, 2);
    let differs = SpecError::PartitionStarts { given, partitions };
    assert_eq!(both.validate_request(), Err(differs));
}
