use proptest::prelude::*;

use super::*;
use crate::ids::{
    ApplierId, DomainId, Incarnation, PartitionId, RegionKey, ServerId, SessionId, TableId,
    WorkerId,
};
use crate::limits::{
    CONTROL_BYTES_MAX, NAMESPACE_BYTES_MAX, PARTITIONS_MAX, PATH_BYTES_MAX, SERVERS_MAX,
    TEXT_BYTES_MAX, WORKERS_MAX,
};
use crate::table::{DType, DenseLayout, Effect, Init, Optimizer, Reduce, Shape, TableSpec};
use crate::wire::frame::Decoder;
use crate::wire::refusal::RefusalCode;

/// Values for messages, from a seed.
struct Gen(u64);

impl Gen {
    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Of any magnitude, so that all lengths of a varint come.
    fn any(&mut self) -> u64 {
        let shift = self.next() % 64;
        self.next() >> shift
    }

    fn under(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn name(&mut self, max: u64) -> String {
        (0..1 + self.under(max))
            .map(|_| (b'a' + self.under(26) as u8) as char)
            .collect()
    }

    fn list<T>(&mut self, max: u64, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.under(max + 1)).map(|_| item(self)).collect()
    }

    fn maybe<T>(&mut self, item: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.under(2) == 0).then(|| item(self))
    }

    fn spec(&mut self) -> TableSpec {
        let shape = match self.under(3) {
            0 => Shape::Sparse {
                dim: 1 + self.under(100) as u32,
            },
            1 => Shape::Dense {
                rows: 1 + self.under(1 << 30),
                cols: 1 + self.under(64) as u32,
                layout: DenseLayout::Rows,
            },
            _ => Shape::Dense {
                rows: 1 + self.under(1 << 30),
                cols: 1 + self.under(64) as u32,
                layout: DenseLayout::Blocks {
                    block_bytes: 4096 << self.under(7),
                    snapshot: true,
                },
            },
        };
        TableSpec {
            name: self.name(20),
            shape,
            dtype: if self.under(2) == 0 {
                DType::F32
            } else {
                DType::F64
            },
            optimizer: [
                Optimizer::None,
                Optimizer::Sgd { lr: 0.1 },
                Optimizer::Adam {
                    lr: 0.1,
                    beta1: 0.9,
                    beta2: 0.99,
                    eps: 1e-8,
                },
                Optimizer::Ftrl {
                    alpha: 0.1,
                    beta: 1.0,
                    l1: 1.0,
                    l2: 0.0,
                },
            ][self.under(4) as usize],
            init: Init::Uniform {
                low: -1.0,
                high: 1.0,
            },
            seed: self.any(),
            effect: Effect::AtClock(Reduce::Mean),
            finite_check: self.under(2) == 0,
            domain: DomainId(self.under(64) as u8),
            partitions: 1 + self.under(40) as u32,
        }
    }

    fn table(&mut self) -> TableInfo {
        let spec = self.spec();
        let placement = (0..spec.partitions).map(|_| self.owner()).collect();
        TableInfo {
            id: TableId(self.any() as u32),
            spec,
            placement,
        }
    }

    fn owner(&mut self) -> Owner {
        Owner {
            server: ServerId(self.under(1024) as u32),
            applier: self.applier(),
        }
    }

    fn applier(&mut self) -> ApplierId {
        ApplierId(self.under(64) as u16)
    }

    fn endpoints(&mut self) -> Endpoints {
        Endpoints {
            tcp: self.name(20),
            unix: self.name(20),
        }
    }

    fn members(&mut self) -> Members {
        let states = [
            WorkerState::Expected,
            WorkerState::Live,
            WorkerState::Finished,
            WorkerState::Lost,
        ];
        Members {
            epoch: self.any(),
            revision: self.any(),
            servers: self.list(4, |g| ServerMember {
                id: ServerId(g.under(1024) as u32),
                incarnation: Incarnation(g.any()),
                host: g.name(20),
                host_id: g.name(36),
                endpoints: g.endpoints(),
                appliers: g.under(65) as u16,
            }),
            workers: self.list(9, |g| WorkerMember {
                id: WorkerId(g.under(65_536) as u32),
                state: states[g.under(4) as usize],
            }),
        }
    }

    fn clocks(&mut self) -> Vec<DomainClock> {
        self.list(5, |g| DomainClock {
            domain: DomainId(g.under(64) as u8),
            clock: g.any(),
        })
    }

    fn refusal(&mut self) -> Refusal {
        let code = RefusalCode::from(self.any() as u16);
        Refusal::new(code, [self.any(), 0, self.any(), 0]).with_text(self.name(40))
    }

    fn remote(&mut self) -> Remote {
        let key = RegionKey(self.any() as u32);
        Remote {
            key,
            address: self.any() >> 1,
            len: self.any() >> 1,
        }
    }

    fn lane(&mut self) -> LaneGrant {
        LaneGrant {
            applier: self.applier(),
            nonce: self.any(),
            ring: self.remote(),
            tail: self.remote(),
            state: self.remote(),
            ticket: self.maybe(Self::remote),
        }
    }

    fn descriptors(&mut self) -> Vec<DescriptorKind> {
        self.list(6, |g| match g.under(5) {
            0 => DescriptorKind::Public,
            1 => DescriptorKind::Inbox,
            2 => DescriptorKind::Mailbox,
            3 => DescriptorKind::ApplierDoorbell(g.applier()),
            _ => DescriptorKind::ClientDoorbell,
        })
    }

    fn coordinator_requests(&mut self) -> Vec<CoordinatorRequest> {
        use CoordinatorRequest as R;
        vec![
            R::Join(Join {
                host: self.name(20),
                host_id: self.name(36),
                pid: self.any() as u32,
                incarnation: Incarnation(self.any()),
                endpoints: self.endpoints(),
                appliers: self.under(65) as u16,
            }),
            R::CreateTable(self.spec()),
            R::OpenTable {
                name: self.name(20),
            },
            R::ReleaseTable {
                id: TableId(self.any() as u32),
            },
            R::Members,
            R::Barrier {
                name: self.name(9),
                count: self.under(9) as u32,
                timeout_ms: self.any(),
            },
            R::Save { dir: self.name(99) },
            R::Load { dir: self.name(99) },
            R::Finished,
            R::Failed {
                reason: self.name(99),
            },
            R::Goodbye,
        ]
    }

    fn coordinator_answers(&mut self) -> Vec<CoordinatorAnswer> {
        use CoordinatorAnswer as A;
        vec![
            A::Done,
            A::Joined(Joined {
                rank: self.any() as u32,
                servers_expected: self.under(1025) as u32,
                workers_expected: self.under(65_537) as u32,
                clocks: self.clocks(),
                members: self.members(),
            }),
            A::Table(self.table()),
            A::Members(self.members()),
            A::Saved {
                tables: self.any() as u32,
                rows: self.any(),
                bytes: self.any(),
            },
            A::Loaded {
                tables: self.list(5, |g| g.name(9)),
                rows: self.any(),
                clocks: self.clocks(),
            },
            A::Refused(self.refusal()),
        ]
    }

    fn orders(&mut self) -> Vec<Order> {
        vec![
            Order::CreateTable {
                namespace: self.name(64),
                table: self.table(),
            },
            Order::ReleaseTable {
                id: TableId(self.any() as u32),
            },
            Order::HoldClocks {
                namespace: self.name(64),
            },
            Order::MembersChanged {
                namespace: self.name(64),
                members: self.members(),
                admitted: self.maybe(|g| (WorkerId(g.under(65_536) as u32), g.clocks())),
            },
            Order::Save {
                namespace: self.name(64),
                dir: self.name(99),
            },
            Order::Load {
                id: TableId(self.any() as u32),
                name: self.name(9),
                dir: self.name(99),
            },
            Order::Shutdown,
        ]
    }

    fn order_answers(&mut self) -> Vec<OrderAnswer> {
        vec![
            OrderAnswer::Done,
            OrderAnswer::Clocks(self.clocks()),
            OrderAnswer::Saved(SavedPart {
                file: self.name(20),
                rows: self.any(),
                bytes: self.any(),
                check: self.any(),
                clocks: self.clocks(),
            }),
            OrderAnswer::Refused(self.refusal()),
        ]
    }

    fn server_requests(&mut self) -> Vec<ServerRequest> {
        use ServerRequest as R;
        let transports = [
            Transport::Shm,
            Transport::Tcp,
            Transport::Verbs,
            Transport::Sim,
        ];
        vec![
            R::Attach(Attach {
                transport: transports[self.under(4) as usize],
                ring_bytes: (16 << 10) << self.under(11),
                thread: self.any() as u32,
                mailbox: self.maybe(Self::remote),
                descriptors: self.descriptors(),
            }),
            R::Recover {
                session: SessionId(self.any()),
                applier: self.applier(),
            },
            R::Describe {
                table: TableId(self.any() as u32),
            },
            R::Clocks {
                domain: DomainId(self.under(64) as u8),
            },
            R::ReleaseSeen {
                table: TableId(self.any() as u32),
            },
            R::Detach {
                session: SessionId(self.any()),
            },
        ]
    }

    fn server_answers(&mut self) -> Vec<ServerAnswer> {
        use ServerAnswer as A;
        vec![
            A::Done,
            A::Attached(Attached {
                session: SessionId(self.any()),
                lanes: self.list(4, Self::lane),
                public_bytes: self.any(),
                inbox_bytes: self.any(),
                descriptors: self.descriptors(),
            }),
            A::Recovered(Recovered {
                lane: self.lane(),
                applied_seq: self.any(),
                durable_seq: self.any(),
                head_bytes: self.any(),
            }),
            A::Table(TableDescriptor {
                id: TableId(self.any() as u32),
                salt: self.any(),
                header_bytes: 16,
                payload_bytes: 40,
                stride_bytes: 64,
                block_bytes: 0,
                state: self.remote(),
                partitions: self.list(5, |g| PartitionDescriptor {
                    partition: PartitionId(g.under(4096) as u32),
                    applier: g.applier(),
                    first_row: g.any() >> 1,
                    rows: g.any() >> 1,
                    payload: g.maybe(Self::remote),
                    payload_back: g.maybe(Self::remote),
                    versions: g.maybe(Self::remote),
                    snapshot: g.maybe(Self::remote),
                    extents: g.maybe(Self::remote),
                }),
            }),
            A::Clocks {
                global: self.any(),
                workers: self.list(5, |g| WorkerClock {
                    worker: WorkerId(g.under(65_536) as u32),
                    clock: g.any(),
                }),
            },
            A::Refused(self.refusal()),
        ]
    }

    fn notices(&mut self) -> Vec<Notice> {
        vec![
            Notice::MembersChanged(self.members()),
            Notice::PeerFailed(self.refusal()),
            Notice::Shutdown {
                reason: self.name(99),
            },
            Notice::TableReleased {
                id: TableId(self.any() as u32),
            },
        ]
    }
}

/// Encodes, decodes, and cuts at every byte.
fn check<M: Message + PartialEq + core::fmt::Debug>(id: u64, messages: &[M]) {
    for message in messages {
        let mut bytes = Vec::new();
        encode(id, message, &mut bytes).unwrap();
        let mut decoder = Decoder::unproven();
        decoder.trust();
        assert_eq!(decoder.push(&bytes), bytes.len());
        let frame = decoder.next_frame().unwrap().unwrap();
        let back = decode::<M>(&frame).unwrap();
        assert_eq!((back.0, &back.1), (id, message));
        for len in 0..frame.body().len() {
            assert!(
                decode_body::<M>(&frame.body()[..len]).is_err(),
                "{message:?} cut at {len}"
            );
        }
        let longer = [frame.body(), &[0]].concat();
        assert!(
            decode_body::<M>(&longer).is_err(),
            "{message:?} with a byte more"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_message_comes_back_and_no_part_of_one_is_one(seed: u64, id: u64) {
        let mut g = Gen(seed);
        check(id, &g.coordinator_requests());
        check(id, &g.coordinator_answers());
        check(id, &g.orders());
        check(id, &g.order_answers());
        check(id, &g.server_requests());
        check(id, &g.server_answers());
        check(id, &g.notices());
    }
}

/// Variants are numbered 0, 1, ... on the wire: the samples leave none out.
fn variants<M: Message>(messages: &[M]) {
    for (index, message) in messages.iter().enumerate() {
        let mut bytes = Vec::new();
        encode(0, message, &mut bytes).unwrap();
        assert_eq!(
            usize::from(bytes[frame::HEADER_BYTES + 8]),
            index,
            "{}",
            M::NAME
        );
    }
    let beyond = [&[0; 8][..], &[messages.len() as u8], &[0; 600]].concat();
    let error = decode_body::<M>(&beyond).err();
    assert_eq!(
        error,
        Some(malformed::<M>("cannot be decoded")),
        "{}: a variant more",
        M::NAME
    );
}

#[test]
fn samples_have_every_variant() {
    let mut g = Gen(1);
    variants(&g.coordinator_requests());
    variants(&g.coordinator_answers());
    variants(&g.orders());
    variants(&g.order_answers());
    variants(&g.server_requests());
    variants(&g.server_answers());
    variants(&g.notices());
}

/// Refused where it is made, and refused where it comes in from somebody who did not look.
fn refuses<M: Message + core::fmt::Debug>(message: &M) {
    let mut out = vec![9];
    assert!(encode(1, message, &mut out).is_err(), "{message:?}");
    assert_eq!(out, [9]);
    let body = [&[0; 8][..], &postcard::to_stdvec(message).unwrap()].concat();
    let error = decode_body::<M>(&body).expect_err("over its limit");
    assert_ne!(error, malformed::<M>("cannot be decoded"), "{message:?}");
}

#[test]
fn limits_hold_at_both_ends() {
    let mut g = Gen(2);
    let long = |bytes: usize| "x".repeat(bytes + 1);
    refuses(&CoordinatorRequest::OpenTable { name: long(128) });
    refuses(&CoordinatorRequest::OpenTable {
        name: String::new(),
    });
    refuses(&CoordinatorRequest::Save {
        dir: long(PATH_BYTES_MAX),
    });
    refuses(&CoordinatorRequest::Failed {
        reason: long(TEXT_BYTES_MAX),
    });
    refuses(&CoordinatorRequest::Failed {
        reason: "\u{1b}[2J".into(),
    });
    refuses(&CoordinatorRequest::Barrier {
        name: "b".into(),
        count: WORKERS_MAX + 1,
        timeout_ms: 1,
    });
    refuses(&CoordinatorRequest::CreateTable(TableSpec {
        partitions: 0,
        ..g.spec()
    }));
    let sgd = Optimizer::Sgd { lr: f64::NAN };
    refuses(&CoordinatorRequest::CreateTable(TableSpec {
        optimizer: sgd,
        ..g.spec()
    }));
    let mut members = g.members();
    let worker = WorkerMember {
        id: WorkerId(0),
        state: WorkerState::Live,
    };
    members.workers = vec![worker; WORKERS_MAX as usize + 1];
    refuses(&CoordinatorAnswer::Members(members));
    let mut table = g.table();
    table.placement.pop();
    refuses(&CoordinatorAnswer::Table(table));
    let mut table = g.table();
    table.placement[0].server = ServerId(SERVERS_MAX);
    refuses(&CoordinatorAnswer::Table(table));
    refuses(&Order::HoldClocks {
        namespace: long(NAMESPACE_BYTES_MAX),
    });
    for file in ["", "..", "a/b", "/etc/passwd"] {
        let clocks = Vec::new();
        let part = SavedPart {
            file: file.into(),
            rows: 0,
            bytes: 0,
            check: 0,
            clocks,
        };
        refuses(&OrderAnswer::Saved(part));
    }
    for ring_bytes in [0, 8192, 20_000, 32 << 20] {
        let transport = Transport::Tcp;
        let attach = Attach {
            transport,
            ring_bytes,
            thread: 0,
            mailbox: None,
            descriptors: Vec::new(),
        };
        refuses(&ServerRequest::Attach(attach));
    }
    let clocks = DomainClock {
        domain: DomainId(64),
        clock: 0,
    };
    refuses(&OrderAnswer::Clocks(vec![clocks]));
    refuses(&ServerRequest::Clocks {
        domain: DomainId(64),
    });
    let mut lane = g.lane();
    lane.tail = Remote {
        key: RegionKey(1),
        address: u64::MAX,
        len: 1,
    };
    let recovered = Recovered {
        lane,
        applied_seq: 0,
        durable_seq: 0,
        head_bytes: 0,
    };
    refuses(&ServerAnswer::Recovered(recovered));
}

#[test]
fn the_largest_of_each_list_fits_a_message() {
    let text = |bytes: usize| "x".repeat(bytes);
    let server = ServerMember {
        id: ServerId(SERVERS_MAX - 1),
        incarnation: Incarnation(u64::MAX),
        host: text(255),
        host_id: text(36),
        endpoints: Endpoints {
            tcp: text(262),
            unix: text(107),
        },
        appliers: 64,
    };
    let worker = WorkerMember {
        id: WorkerId(WORKERS_MAX - 1),
        state: WorkerState::Live,
    };
    let members = Members {
        epoch: u64::MAX,
        revision: u64::MAX,
        servers: vec![server; SERVERS_MAX as usize],
        workers: vec![worker; WORKERS_MAX as usize],
    };
    let mut out = Vec::new();
    encode(u64::MAX, &CoordinatorAnswer::Members(members), &mut out).unwrap();
    // 47-bit addresses, as processes have.
    let remote = Some(Remote {
        key: RegionKey(u32::MAX),
        address: 1 << 47,
        len: 1 << 40,
    });
    let partition = PartitionDescriptor {
        partition: PartitionId(PARTITIONS_MAX - 1),
        applier: ApplierId(63),
        first_row: 1 << 40,
        rows: 1 << 40,
        payload: remote,
        payload_back: remote,
        versions: remote,
        snapshot: remote,
        extents: remote,
    };
    let mut g = Gen(3);
    let Some(ServerAnswer::Table(table)) = g.server_answers().into_iter().nth(3) else {
        panic!("the samples are in order")
    };
    let partitions = vec![partition; PARTITIONS_MAX as usize];
    encode(
        1,
        &ServerAnswer::Table(TableDescriptor {
            partitions,
            ..table
        }),
        &mut out,
    )
    .unwrap();
    assert!(out.len() <= 2 * CONTROL_BYTES_MAX);
}

#[test]
fn a_claimed_length_reserves_nothing() {
    // Members with 2^60 servers in 20 bytes: refused for want of bytes, not of memory.
    let body = [&[0; 8][..], &[3, 0, 0], &[0xff; 8], &[0x0f]].concat();
    assert_eq!(
        decode_body::<CoordinatorAnswer>(&body),
        Err(malformed::<CoordinatorAnswer>("cannot be decoded"))
    );
}

#[test]
fn kinds_are_not_confused() {
    let mut bytes = Vec::new();
    encode(1, &CoordinatorRequest::Members, &mut bytes).unwrap();
    let mut decoder = Decoder::unproven();
    assert_eq!(decoder.push(&bytes), bytes.len());
    let frame = decoder.next_frame().unwrap().unwrap();
    assert!(matches!(
        decode::<ServerRequest>(&frame),
        Err(WireError::Kind { .. })
    ));
}
