use proptest::prelude::*;

use super::samples::{Gen, queue_spec, task, task_answers, task_requests};
use super::*;
use crate::ids::{
    ApplierId, DomainId, Incarnation, PartitionId, RegionKey, ServerId, SessionId, WorkerId,
};
use crate::limits::{
    CONTROL_BYTES_MAX, FUNCTION_MODULE_BYTES_MAX, LAUNCHED_MAX, NAMESPACE_BYTES_MAX,
    PARTITIONS_MAX, PATH_BYTES_MAX, SERVERS_MAX, STATUS_TEXT_BYTES_MAX, TEXT_BYTES_MAX,
    VERBS_FAILED_PATHS_MAX, VERBS_PAIRS_MAX, VERBS_PORTS_MAX, VERBS_RECEIVES_MAX,
    VERBS_RECEIVES_MIN, VERBS_REGIONS_MAX, WORKER_THREADS_MAX, WORKERS_MAX,
};
use crate::table::{Optimizer, TableSpec};
use crate::wire::frame::Decoder;

/// Encodes, decodes, and truncates at every byte.
fn check<M: Message + PartialEq + core::fmt::Debug>(id: u64, messages: &[M]) {
    for message in messages {
        let mut bytes = Vec::new();
        encode(id, message, &mut bytes).unwrap();
        let mut decoder = Decoder::unauthenticated();
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

/// Refused by the sender, and refused by the receiver if the sender did not check.
fn refuses<M: Message + core::fmt::Debug>(message: &M) {
    let mut out = vec![9];
    assert!(encode(1, message, &mut out).is_err(), "{message:?}");
    assert_eq!(out, [9]);
    let body = [&[0; 8][..], &postcard::to_stdvec(message).unwrap()].concat();
    let error = decode_body::<M>(&body).expect_err("over its limit");
    assert_ne!(error, malformed::<M>("cannot be decoded"), "{message:?}");
}

#[test]
fn text_limits_hold_at_both_ends() {
    let long = |bytes: usize| "x".repeat(bytes + 1);
    refuses(&CoordinatorRequest::OpenTable { name: long(128) });
    refuses(&CoordinatorRequest::OpenTable {
        name: String::new(),
    });
    refuses(&CoordinatorRequest::Save {
        dir: long(PATH_BYTES_MAX),
        clocks: Vec::new(),
    });
    refuses(&CoordinatorRequest::Failed {
        reason: long(TEXT_BYTES_MAX),
    });
    refuses(&CoordinatorRequest::Failed {
        reason: "\u{1b}[2J".into(),
    });
    refuses(&Command::HoldClocks {
        namespace: long(NAMESPACE_BYTES_MAX),
    });
    for file in ["", "..", "a/b", "/etc/passwd"] {
        let clocks = Vec::new();
        let part = SavedPart {
            file: file.into(),
            rows: 0,
            bytes: 0,
            check: 0,
            cut_ms: 0,
            clocks,
            settings: Vec::new(),
        };
        refuses(&CommandReply::Saved(part));
    }
}

#[test]
fn a_process_of_a_launch_that_cannot_be_is_refused_at_both_ends() {
    let mut g = Gen(2);
    let register = g
        .coordinator_requests()
        .into_iter()
        .find_map(|sample| match sample {
            CoordinatorRequest::Register(register) => Some(register),
            _ => None,
        });
    let register = register.unwrap();
    for wrong in [
        Register {
            rank: LAUNCHED_MAX,
            ..register.clone()
        },
        Register {
            size: LAUNCHED_MAX + 1,
            ..register.clone()
        },
        Register {
            host: "\u{7}".into(),
            ..register
        },
    ] {
        refuses(&CoordinatorRequest::Register(wrong));
    }
}

#[test]
fn number_limits_hold_at_both_ends() {
    let mut g = Gen(2);
    refuses(&CoordinatorRequest::Barrier {
        name: "b".into(),
        count: WORKERS_MAX + 1,
        timeout_ms: 1,
    });
    refuses(&CoordinatorRequest::CreateTable(TableSpec {
        partitions: PARTITIONS_MAX + 1,
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
    table.placement.0.pop();
    refuses(&CoordinatorAnswer::Table(table));
    let mut table = g.table();
    table.placement.0[0].server = ServerId(SERVERS_MAX);
    refuses(&CoordinatorAnswer::Table(table));
    let clocks = DomainClock {
        domain: DomainId(64),
        clock: 0,
    };
    refuses(&CommandReply::Clocks(vec![clocks]));
    refuses(&ServerRequest::Clocks {
        domain: DomainId(64),
    });
    let remote = |address, len| Remote {
        key: RegionKey(1),
        address,
        len,
    };
    let mut lane = g.lane();
    lane.ticket = remote(u64::MAX, 1);
    refuses_lane(lane);
}

/// A table with a partition on another server than its definition says is refused by the side that sends it and by
/// the one that receives it.
#[test]
fn placement_agrees_with_listed_servers() {
    let mut g = Gen(3);
    let mut table = g.table();
    let owners = table.placement.0.iter();
    table.spec.partition_servers = Some(owners.map(|owner| owner.server).collect());
    CoordinatorAnswer::Table(table.clone()).validate().unwrap();
    let owner = table.placement.0.last_mut().unwrap();
    owner.server = ServerId((owner.server.0 + 1) % SERVERS_MAX);
    refuses(&CoordinatorAnswer::Table(table.clone()));
    let namespace = "job".to_owned();
    refuses(&Command::CreateTable { namespace, table });
}

#[test]
fn numbers_of_an_attachment_are_bounded_at_both_ends() {
    let valid = Attach {
        transport: Transport::Tcp,
        ring_bytes: 64 << 10,
        thread: 0,
        workers: 0,
        reason: String::new(),
        ports: Vec::new(),
        failed_paths: Vec::new(),
    };
    for ring_bytes in [0, 8192, 20_000, 32 << 20] {
        refuses(&ServerRequest::Attach(Attach {
            ring_bytes,
            ..valid.clone()
        }));
    }
    refuses(&ServerRequest::Attach(Attach {
        workers: WORKERS_MAX + 1,
        ..valid.clone()
    }));
    refuses(&ServerRequest::Attach(Attach {
        thread: WORKER_THREADS_MAX,
        ..valid.clone()
    }));
    refuses(&ServerRequest::Attach(Attach {
        reason: "x".repeat(STATUS_TEXT_BYTES_MAX + 1),
        ..valid
    }));
}

#[test]
fn impossible_ports_of_a_session_are_refused_at_both_ends() {
    let mut g = Gen(6);
    let port = g.verbs_port();
    let path = VerbsPath {
        client: port.gid,
        server: port.gid,
    };
    let attach = |ports: Vec<VerbsPort>, failed_paths: Vec<VerbsPath>| {
        ServerRequest::Attach(Attach {
            transport: Transport::Verbs,
            ring_bytes: 64 << 10,
            thread: 0,
            workers: 0,
            reason: String::new(),
            ports,
            failed_paths,
        })
    };
    let most = attach(
        vec![port; VERBS_PORTS_MAX],
        vec![path; VERBS_FAILED_PATHS_MAX],
    );
    assert!(most.validate().is_ok());
    refuses(&attach(vec![port; VERBS_PORTS_MAX + 1], Vec::new()));
    refuses(&attach(Vec::new(), vec![path; VERBS_FAILED_PATHS_MAX + 1]));
    let gid = [0; 16];
    refuses(&attach(vec![VerbsPort { gid, ..port }], Vec::new()));
    let long = VerbsPort {
        subnet_bits: 129,
        ..port
    };
    refuses(&attach(vec![long], Vec::new()));
    let half = VerbsPath {
        server: gid,
        ..path
    };
    refuses(&attach(vec![port], vec![half]));
    refuses(&ServerAnswer::Attached(Attached {
        session: SessionId(1),
        lanes: Vec::new(),
        shm: None,
        path: Some(half),
    }));
}

#[test]
fn too_long_modules_are_refused_at_both_ends() {
    let module = ModuleBytes(vec![0; FUNCTION_MODULE_BYTES_MAX + 1]);
    refuses(&CoordinatorRequest::LoadFunction {
        name: "f".into(),
        module: module.clone(),
    });
    refuses(&Command::LoadFunction {
        namespace: "job".into(),
        name: "f".into(),
        module,
    });
}

#[test]
fn public_state_line_is_one_whole_line() {
    let mut g = Gen(2);
    // Beyond the end of all addresses, off the grid, and of other lengths.
    let wrong = [
        (u64::MAX - 63, 64),
        (8, 64),
        (4160, 0),
        (4160, 8),
        (4160, 128),
        (4160, u64::MAX),
    ];
    for (address, len) in wrong {
        let mut lane = g.lane();
        lane.status = Remote {
            key: RegionKey(1),
            address,
            len,
        };
        refuses_lane(lane);
    }
}

/// Both answers that grant a lane refuse it.
fn refuses_lane(lane: LaneGrant) {
    refuses(&ServerAnswer::Attached(Attached {
        session: SessionId(1),
        lanes: vec![lane],
        shm: None,
        path: None,
    }));
    refuses(&ServerAnswer::Recovered(Recovered {
        lane,
        shm: None,
        applied_seq: 0,
        durable_seq: 0,
        head_bytes: 0,
        rejected: 0,
    }));
}

#[test]
fn what_no_device_has_is_refused_at_both_ends() {
    let mut g = Gen(4);
    let (client, server) = (g.verbs_connect(), g.verbs_connected());
    let refuses_end = |change: &dyn Fn(&mut VerbsEnd)| {
        let (mut client, mut server) = (client.clone(), server.clone());
        change(&mut client.end);
        change(&mut server.end);
        refuses(&ServerRequest::ConnectVerbs(client));
        refuses(&ServerAnswer::VerbsConnected(server));
    };
    refuses_end(&|end| (end.link, end.lid, end.gid) = (VerbsLink::Ethernet, 0, [0; 16]));
    refuses_end(&|end| (end.link, end.lid) = (VerbsLink::Ethernet, 1));
    refuses_end(&|end| (end.link, end.lid) = (VerbsLink::InfiniBand, 0));
    refuses_end(&|end| (end.link, end.lid) = (VerbsLink::InfiniBand, 0xc000));
    refuses_end(&|end| end.mtu = 1500);
    refuses_end(&|end| end.receives = VERBS_RECEIVES_MIN - 1);
    refuses_end(&|end| end.receives = VERBS_RECEIVES_MAX + 1);
    refuses_end(&|end| end.pkey = 0x8000);
    refuses_end(&|end| end.pairs.truncate(1));
    refuses_end(&|end| end.pairs[1].qpn = end.pairs[0].qpn);
    refuses_end(&|end| end.pairs[1].qpn = 1 << 24);
    refuses_end(&|end| end.pairs[0].psn = 1 << 24);
    refuses_end(&|end| {
        let pair = |qpn| PairAddr { qpn, psn: 0 };
        end.pairs = (0..=VERBS_PAIRS_MAX as u32).map(pair).collect();
    });
    let mut other = client.clone();
    other.end.reads_out = 0;
    refuses(&ServerRequest::ConnectVerbs(other));
    let mut other = client;
    other.mailbox.len += 1;
    refuses(&ServerRequest::ConnectVerbs(other));
    let mut other = server.clone();
    other.end.reads = 0;
    refuses(&ServerAnswer::VerbsConnected(other));
    for cells in [0, VERBS_REGIONS_MAX as u64 + 1] {
        let mut other = server.clone();
        other.directory.len = cells * VERBS_DIRECTORY_CELL_BYTES;
        refuses(&ServerAnswer::VerbsConnected(other));
    }
    let mut other = server;
    other.directory.len -= 8;
    refuses(&ServerAnswer::VerbsConnected(other));
}

#[test]
fn lists_of_lanes_out_of_order_are_refused() {
    let mut g = Gen(5);
    let (client, server) = (g.verbs_connect(), g.verbs_connected());
    for appliers in [&[][..], &[1, 0], &[2, 2], &[0, crate::limits::APPLIERS_MAX]] {
        let asked = |&a: &u16| VerbsConnect {
            applier: ApplierId(a),
            ..client.clone()
        };
        let made = |&a: &u16| VerbsConnected {
            applier: ApplierId(a),
            ..server.clone()
        };
        refuses(&ServerRequest::ConnectLanes(
            appliers.iter().map(asked).collect(),
        ));
        refuses(&ServerAnswer::LanesConnected(
            appliers.iter().map(made).collect(),
        ));
    }
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
    let remote = Remote {
        key: RegionKey(u32::MAX),
        address: 1 << 47,
        len: 1 << 40,
    };
    let partition = PartitionDescriptor {
        partition: PartitionId(PARTITIONS_MAX - 1),
        first: 1 << 40,
        count: 1 << 40,
        payload: remote,
        payload_back: Some(remote),
        versions: Some(remote),
        snapshot: Some(remote),
    };
    let part = ApplierPart {
        applier: ApplierId(63),
        salt: u64::MAX,
        extents: Some(remote),
        partitions: vec![partition; PARTITIONS_MAX as usize],
    };
    let mut g = Gen(3);
    let Some(ServerAnswer::Table(table)) = g.server_answers().into_iter().nth(3) else {
        panic!("the samples are in order")
    };
    let parts = vec![part];
    encode(
        1,
        &ServerAnswer::Table(TableDescriptor { parts, ..table }),
        &mut out,
    )
    .unwrap();
    assert!(out.len() <= 2 * CONTROL_BYTES_MAX);
}

#[test]
fn a_claimed_length_reserves_nothing() {
    // Members with 2^60 servers in 20 bytes: refused because of missing bytes, not of memory.
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
    let mut decoder = Decoder::unauthenticated();
    assert_eq!(decoder.push(&bytes), bytes.len());
    let frame = decoder.next_frame().unwrap().unwrap();
    assert!(matches!(
        decode::<ServerRequest>(&frame),
        Err(WireError::Kind { .. })
    ));
}

/// Requests and answers about tasks come back, each variant of them.
#[test]
fn task_messages_come_back() {
    let requests: Vec<_> = task_requests()
        .into_iter()
        .map(CoordinatorRequest::Tasks)
        .collect();
    check(7, &requests);
    // A queue over a number of records, in an order of single ones.
    let mut spec = queue_spec();
    (spec.records, spec.record_seed) = (Some(1_000), Some(7));
    let open = TaskRequest::Open { spec, shards: None };
    check(7, &[CoordinatorRequest::Tasks(open)]);
    let answers = task_answers().into_iter();
    let answers: Vec<_> = answers
        .map(|answer| CoordinatorAnswer::Tasks(Box::new(answer)))
        .collect();
    check(8, &answers);
}

/// Definitions of queues that no coordinator can carry out are refused before they are sent.
#[test]
fn task_queues_out_of_limits_refused() {
    let check = |change: &dyn Fn(&mut QueueSpec, &mut TaskShard)| {
        let (mut spec, mut shard) = (queue_spec(), task().shard);
        change(&mut spec, &mut shard);
        let shards = Some(vec![shard]);
        CoordinatorRequest::Tasks(TaskRequest::Open { spec, shards }).validate()
    };
    assert!(check(&|_, _| ()).is_ok());
    assert!(check(&|spec, _| spec.name.clear()).is_err());
    assert!(check(&|spec, _| spec.task_size = 0).is_err());
    assert!(check(&|spec, _| spec.failures_max = 0).is_err());
    assert!(check(&|spec, _| spec.losses_max = 0).is_err());
    assert!(check(&|spec, _| spec.kind = TaskKind::Save).is_err());
    assert!(check(&|spec, _| spec.finals.push(TaskKind::Train)).is_err());
    assert!(check(&|spec, _| spec.finals = vec![TaskKind::End; 9]).is_err());
    assert!(check(&|_, shard| shard.end = 0).is_err());
    assert!(check(&|_, shard| shard.path = "a\nb".into()).is_err());
    let counted = |records, end: u64, seed| {
        check(&|spec: &mut QueueSpec, shard: &mut TaskShard| {
            (spec.records, spec.record_seed) = (records, seed);
            (shard.first, shard.end, shard.unit) = (0, end, TaskUnit::Records);
        })
    };
    assert!(counted(Some(9), 9, Some(1)).is_ok());
    assert!(counted(Some(9), 9, None).is_ok());
    assert!(counted(Some(9), 10, Some(1)).is_err());
    assert!(counted(None, 9, Some(1)).is_err());
    let shards = Some(vec![task().shard; 8_193]);
    let spec = queue_spec();
    let many = CoordinatorRequest::Tasks(TaskRequest::Open { spec, shards });
    assert!(many.validate().is_err());
}
