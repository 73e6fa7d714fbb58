//! Sample messages with fields of all magnitudes, from a seed: for tests and for the corpus. (long: one of each.)

use super::*;
use crate::ids::{
    ApplierId, DomainId, Incarnation, PartitionId, RegionKey, ServerId, SessionId, TableId,
    WorkerId,
};
use crate::layout::LINE_BYTES;
use crate::layout::session::MAILBOX_BYTES;
use crate::placement::{Owner, Placement};
use crate::table::{
    Apply, DType, DenseLayout, GradientOptions, Init, KeyOptions, Optimizer, PartitionStarts,
    Reduce, Shape, TableSpec,
};
use crate::wire::refusal::RefusalCode;

mod tasks;

pub(super) use tasks::{queue_spec, task, task_answers, task_requests};

/// Generator of message values from a seed.
pub(in crate::wire) struct Gen(pub(in crate::wire) u64);

impl Gen {
    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random number of random magnitude, so that all lengths of a varint occur.
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

    fn shape(&mut self) -> Shape {
        match self.under(3) {
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
        }
    }

    /// Starts of a table's partitions, or none.
    fn partition_starts(&mut self, shape: Shape, partitions: u32) -> Option<PartitionStarts> {
        match shape {
            Shape::Dense {
                rows,
                layout: DenseLayout::Rows,
                ..
            } if rows >= u64::from(partitions) => self.maybe(|_| {
                let each = rows / u64::from(partitions);
                let starts = (0..u64::from(partitions)).map(|p| p * each);
                starts.collect::<Vec<_>>().into()
            }),
            _ => None,
        }
    }

    pub(super) fn spec(&mut self) -> TableSpec {
        let partitions = 1 + self.under(40) as u32;
        let partition_servers = self.maybe(|me| {
            let server = |_| ServerId(me.under(1024) as u32);
            (0..partitions).map(server).collect()
        });
        let shape = self.shape();
        let partition_starts = self.partition_starts(shape, partitions);
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
            effect: Apply::AtTick(Reduce::Mean),
            finite_check: self.under(2) == 0,
            domain: DomainId(self.under(64) as u8),
            partitions,
            gradient: GradientOptions::default(),
            redo: true,
            keys: KeyOptions::default(),
            versions: 2,
            durability: Default::default(),
            partition_servers,
            partition_starts,
        }
    }

    pub(super) fn table(&mut self) -> TableInfo {
        let spec = self.spec();
        let mut placement = Placement((0..spec.partitions).map(|_| self.owner()).collect());
        let listed = spec.partition_servers.iter().flatten();
        for (owner, &server) in placement.0.iter_mut().zip(listed) {
            owner.server = server;
        }
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

    pub(super) fn members(&mut self) -> Members {
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

    pub(super) fn lane(&mut self) -> LaneGrant {
        LaneGrant {
            applier: self.applier(),
            nonce: self.any(),
            ticket: self.remote(),
            status: self.line(),
        }
    }

    /// Returns a random aligned cache line of registered memory.
    fn line(&mut self) -> Remote {
        let remote = self.remote();
        Remote {
            address: remote.address & !(LINE_BYTES as u64 - 1),
            len: LINE_BYTES as u64,
            ..remote
        }
    }

    fn shm(&mut self) -> ShmAttach {
        ShmAttach {
            key_check: self.any() as u8,
            public_bytes: self.any(),
            counters_bytes: self.any(),
            ring_bytes: self.any(),
            mailbox_bytes: self.any(),
            parked_flag_at: self.list(4, Self::any),
        }
    }

    fn verbs_end(&mut self) -> VerbsEnd {
        let link = [VerbsLink::Ethernet, VerbsLink::InfiniBand][self.under(2) as usize];
        let first = self.under(1 << 23) as u32;
        let pair = |n| PairAddr {
            qpn: first + n,
            psn: self.under(1 << 24) as u32,
        };
        VerbsEnd {
            pairs: (0..2 + first % 4).map(pair).collect(),
            link,
            gid: [1 + self.under(255) as u8; 16],
            lid: match link {
                VerbsLink::Ethernet => 0,
                VerbsLink::InfiniBand => 1 + self.under(0xbfff) as u16,
            },
            mtu: 256 << self.under(5),
            reads: 1 + self.under(255) as u8,
            reads_out: 1 + self.under(255) as u8,
            receives: 8 + self.under(1000) as u16,
            pkey: 0x8000 | (1 + self.under(0x7fff) as u16),
            ece: [
                None,
                Some(VerbsEce {
                    vendor: 0x15b3,
                    options: 1 + first,
                }),
            ][self.under(2) as usize],
        }
    }

    pub(super) fn verbs_connect(&mut self) -> VerbsConnect {
        let len = MAILBOX_BYTES as u64;
        VerbsConnect {
            applier: self.applier(),
            nonce: self.any(),
            end: self.verbs_end(),
            mailbox: Remote {
                len,
                ..self.remote()
            },
            atomics: self.under(2) == 1,
        }
    }

    pub(super) fn verbs_port(&mut self) -> VerbsPort {
        VerbsPort {
            link: match self.under(2) {
                0 => VerbsLink::Ethernet,
                _ => VerbsLink::InfiniBand,
            },
            gid: self.gid(),
            subnet_bits: self.under(129) as u8,
            sm_lid: self.any() as u16,
            pkey: self.any() as u16,
            rate_mbps: self.any() as u32,
            tier: self.any() as u8,
            position: self.any() as u8,
        }
    }

    fn verbs_path(&mut self) -> VerbsPath {
        VerbsPath {
            client: self.gid(),
            server: self.gid(),
        }
    }

    /// Returns the bytes of a random GID, which are not all zero.
    fn gid(&mut self) -> [u8; 16] {
        let mut gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let low = self.any();
        for (byte, at) in gid[8..].iter_mut().zip((0..8).rev()) {
            *byte = (low >> (8 * at)) as u8;
        }
        gid
    }

    pub(super) fn verbs_connected(&mut self) -> VerbsConnected {
        let len = VERBS_DIRECTORY_CELL_BYTES * (1 + self.under(1 << 15));
        VerbsConnected {
            applier: self.applier(),
            end: self.verbs_end(),
            inbox: self.remote(),
            directory: Remote {
                len,
                ..self.remote()
            },
            directory_salt: self.any(),
            tails: match self.under(2) {
                0 => VerbsTails::Signalled,
                _ => VerbsTails::Polled,
            },
            atomics: self.under(2) == 1,
        }
    }

    fn part(&mut self) -> ApplierPart {
        ApplierPart {
            applier: self.applier(),
            salt: self.any(),
            extents: self.maybe(Self::remote),
            partitions: self.list(5, |g| PartitionDescriptor {
                partition: PartitionId(g.under(4096) as u32),
                first: g.any() >> 1,
                count: g.any() >> 1,
                payload: g.remote(),
                payload_back: g.maybe(Self::remote),
                versions: g.maybe(Self::remote),
                snapshot: g.maybe(Self::remote),
            }),
        }
    }

    pub(in crate::wire) fn coordinator_requests(&mut self) -> Vec<CoordinatorRequest> {
        use CoordinatorRequest as R;
        let mut requests = vec![
            R::Join(Join {
                host: self.name(20),
                host_id: self.name(36),
                pid: self.any() as u32,
                incarnation: Incarnation(self.any()),
                endpoints: self.endpoints(),
                appliers: self.under(65) as u16,
                // Not drawn: the samples after this one stay as they were recorded.
                workers: 300,
                restarts: 2,
                kept: Some(vec![TableId(3), TableId(4)]),
                returns: true,
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
            R::Save {
                dir: self.name(99),
                clocks: self.clocks(),
            },
            R::Load { dir: self.name(99) },
            R::Finished,
            R::Failed {
                reason: self.name(99),
            },
            R::Goodbye,
            // These are not drawn either.
            R::Register(Register {
                rank: 5,
                size: 6,
                part: Part::Worker,
                host: "node7".into(),
                host_id: "0e1c29ab-boot".into(),
                pid: 4_711,
                local_size: 3,
                timeout_ms: 60_000,
            }),
            R::LoadFunction {
                name: "scale".into(),
                module: ModuleBytes(b"\0asm\x01\0\0\0".to_vec()),
            },
            R::Status {
                server: Some(ServerId(3)),
            },
            R::Leaving {
                clocks: self.clocks(),
            },
            R::Slow {
                workers: self.list(5, |g| SlowMember {
                    worker: WorkerId(g.under(65_536) as u32),
                    step_us: g.any(),
                    median_us: g.any(),
                }),
            },
        ];
        requests.extend(fixed_requests());
        requests
    }

    pub(in crate::wire) fn coordinator_answers(&mut self) -> Vec<CoordinatorAnswer> {
        use CoordinatorAnswer as A;
        vec![
            A::Done,
            A::Joined(Joined {
                rank: self.any() as u32,
                servers_expected: self.under(1025) as u32,
                workers_expected: self.under(65_537) as u32,
                clocks: self.clocks(),
                members: self.members(),
                checkpoints: true,
                resumed: self.maybe(|g| Resumed {
                    number: g.any(),
                    clocks: g.clocks(),
                    seen: g.clocks(),
                    lost_ms: g.maybe(Self::any),
                    skipped: g.any() as u32,
                }),
                ends: Some(vec![DomainClock {
                    domain: DomainId(0),
                    clock: 17,
                }]),
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
            A::Roster(Roster {
                number: 3,
                servers: 2,
                workers: 4,
                local_number: 1,
                local_servers: 1,
                local_workers: 2,
                server: 1,
                local_server: 1,
            }),
            A::Cluster(Box::new(cluster_status())),
            A::Server(Box::new(server_status())),
            A::Tasks(Box::new(TaskAnswer::Task(task()))),
            A::Number(ServerId(7)),
            A::Arrivals(vec![Arrival {
                rank: WorkerId(3),
                round: 7,
            }]),
        ]
    }

    pub(in crate::wire) fn orders(&mut self) -> Vec<Command> {
        vec![
            Command::CreateTable {
                namespace: self.name(64),
                table: self.table(),
            },
            Command::ReleaseTable {
                id: TableId(self.any() as u32),
            },
            Command::HoldClocks {
                namespace: self.name(64),
            },
            Command::MembersChanged {
                namespace: self.name(64),
                members: self.members(),
                admitted: self.maybe(|g| (WorkerId(g.under(65_536) as u32), g.clocks())),
            },
            Command::Save {
                namespace: self.name(64),
                dir: self.name(99),
                clocks: self.clocks(),
                checkpoint: self.maybe(|g| CheckpointMark {
                    number: g.any(),
                    extends: g.maybe(Self::any),
                    notes: true,
                }),
            },
            Command::Load {
                id: TableId(self.any() as u32),
                name: self.name(9),
                dir: self.name(99),
            },
            Command::Shutdown,
            Command::LoadFunction {
                namespace: "job".into(),
                name: "scale".into(),
                module: ModuleBytes(b"\0asm\x01\0\0\0".to_vec()),
            },
            Command::Status,
            Command::FinishTask {
                namespace: "job".into(),
                worker: WorkerId(3),
                thread: 1,
                delivery: 77,
            },
            Command::CancelSave {
                namespace: self.name(64),
            },
            Command::ReadClocks {
                namespace: self.name(64),
            },
            Command::LoseWorker {
                namespace: self.name(64),
                worker: WorkerId(self.under(65_536) as u32),
            },
            Command::EndWorker {
                namespace: self.name(64),
                worker: WorkerId(self.under(65_536) as u32),
                clocks: self.thread_clocks(),
            },
            Command::AdoptTable {
                namespace: "job".into(),
                // From a copy: the samples after it stay as they were recorded.
                table: Self(self.0).table(),
            },
        ]
    }

    fn thread_clocks(&mut self) -> Vec<ThreadClock> {
        self.list(5, |g| ThreadClock {
            thread: g.any() as u32 % 256,
            domain: DomainId(g.under(64) as u8),
            clock: g.any(),
        })
    }

    pub(in crate::wire) fn order_answers(&mut self) -> Vec<CommandReply> {
        vec![
            CommandReply::Done,
            CommandReply::Clocks(self.clocks()),
            CommandReply::Saved(SavedPart {
                file: self.name(20),
                rows: self.any(),
                bytes: self.any(),
                check: self.any(),
                clocks: self.clocks(),
                settings: vec![TableSetting {
                    table: TableId(self.any() as u32),
                    optimizer: Optimizer::Sgd { lr: 0.5 },
                }],
                cut_ms: self.any(),
            }),
            CommandReply::Refused(self.refusal()),
            CommandReply::Status(Box::new(server_status())),
            CommandReply::ThreadClocks(self.thread_clocks()),
        ]
    }

    pub(in crate::wire) fn server_requests(&mut self) -> Vec<ServerRequest> {
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
                thread: self.any() as u32 % 256,
                workers: self.under(1 << 16) as u32,
                reason: "one host".into(),
                // From a copy: the samples after it stay as they were recorded.
                ports: Self(self.0).list(3, Self::verbs_port),
                failed_paths: Self(self.0).list(2, Self::verbs_path),
            }),
            R::Resume {
                session: SessionId(self.any()),
            },
            R::Recover {
                applier: self.applier(),
            },
            R::Describe {
                table: TableId(self.any() as u32),
            },
            R::Clocks {
                domain: DomainId(self.under(64) as u8),
            },
            R::Detach,
            // From a copy: the samples after it stay as they were recorded.
            R::ConnectVerbs(Self(self.0).verbs_connect()),
            R::ConnectLanes(Self(self.0).in_order(Self::verbs_connect, |lane| &mut lane.applier)),
            R::Reattach {
                session: SessionId(77),
                attach: Attach {
                    transport: Transport::Tcp,
                    ring_bytes: 1 << 20,
                    thread: 1,
                    workers: 2,
                    reason: "it was asked for".into(),
                    ports: Vec::new(),
                    failed_paths: Vec::new(),
                },
            },
        ]
    }

    /// Returns a list of up to four lanes that `make` creates, in ascending order of their appliers.
    fn in_order<T>(
        &mut self,
        make: impl Fn(&mut Self) -> T,
        applier: impl Fn(&mut T) -> &mut ApplierId,
    ) -> Vec<T> {
        let mut lane = |n: u64| {
            let mut lane = make(self);
            *applier(&mut lane) = ApplierId(n as u16);
            lane
        };
        (0..4).map(&mut lane).collect()
    }

    pub(in crate::wire) fn server_answers(&mut self) -> Vec<ServerAnswer> {
        use ServerAnswer as A;
        vec![
            A::Done,
            A::Attached(Attached {
                session: SessionId(self.any()),
                lanes: self.list(4, Self::lane),
                shm: self.maybe(Self::shm),
                path: Self(self.0).maybe(Self::verbs_path),
            }),
            A::Recovered(Recovered {
                lane: self.lane(),
                shm: self.maybe(Self::shm),
                applied_seq: self.any(),
                durable_seq: self.any(),
                head_bytes: self.any(),
                rejected: self.any(),
            }),
            A::Table(TableDescriptor {
                id: TableId(self.any() as u32),
                header_bytes: 16,
                payload_bytes: 40,
                stride_bytes: 64,
                block_bytes: 0,
                parts: self.list(3, Self::part),
            }),
            A::Clocks {
                global: self.any(),
                workers: self.list(5, |g| {
                    let rank = g.under(65_536) as u32;
                    WorkerClock {
                        worker: WorkerId(rank),
                        thread: rank % 3,
                        clock: g.any(),
                        step_us: g.any(),
                    }
                }),
            },
            A::Refused(self.refusal()),
            A::VerbsConnected(Self(self.0).verbs_connected()),
            A::LanesConnected(
                Self(self.0).in_order(Self::verbs_connected, |lane| &mut lane.applier),
            ),
            A::Queued {
                before: Self(self.0).any() as u32,
            },
        ]
    }

    pub(in crate::wire) fn notices(&mut self) -> Vec<Notice> {
        vec![
            Notice::MembersChanged(self.members()),
            Notice::PeerFailed(self.refusal()),
            Notice::Shutdown {
                reason: self.name(99),
            },
            Notice::TableReleased {
                id: TableId(self.any() as u32),
            },
            Notice::StopJob {
                reason: "maintenance".into(),
            },
            Notice::ServerEnded(server_end()),
            Notice::ServerRestarted(ServerRestart {
                end: server_end(),
                successor: Incarnation(78),
            }),
            Notice::ServerResumed {
                restart: ServerRestart {
                    end: server_end(),
                    successor: Incarnation(79),
                },
                members: Self(self.0).members(),
            },
        ]
    }
}

/// Returns the report on a server that a signal ended.
fn server_end() -> ServerEnd {
    ServerEnd {
        server: ServerId(1),
        incarnation: Incarnation(77),
        host: "node7".into(),
        pid: 4_712,
        how: "was killed by signal 9 (SIGKILL)".into(),
    }
}

/// Returns the status of a cluster with one server that has joined, and one job.
fn cluster_status() -> ClusterStatus {
    ClusterStatus {
        version: "0.1.0".into(),
        servers_expected: 2,
        members: Members {
            epoch: 1,
            revision: 5,
            ..Members::default()
        },
        jobs: vec![JobStatus {
            namespace: "default".into(),
            workers_expected: 2,
            workers: vec![WorkerMember {
                id: WorkerId(1),
                state: WorkerState::Live,
            }],
            workers_left_out: 1,
            tables: 3,
            at_barriers: 1,
            saving: "/models/a".into(),
            failed: String::new(),
            queues: vec![QueueSummary {
                name: "train".into(),
                counters: QueueCounters {
                    tasks: 9,
                    finished: 4,
                    ..QueueCounters::default()
                },
                is_over: false,
            }],
            queues_left_out: 1,
        }],
        stopping: String::new(),
        absent: vec![AbsentServer {
            server: ServerId(1),
            host: "node8".into(),
            why: "it has not joined".into(),
        }],
    }
}

/// Returns the status of a server with one applier and one session.
fn server_status() -> ServerStatus {
    ServerStatus {
        version: "0.1.0".into(),
        public_bytes: 4_096,
        public_capacity: 64 << 30,
        private_bytes: 8_192,
        private_capacity: 64 << 30,
        connections: 2,
        appliers: vec![ApplierStatus {
            applier: ApplierId(0),
            answered: true,
            frames: 1_000,
            held_bytes: 300,
            saves: 1,
            late_frames: 4,
        }],
        sessions: vec![SessionStatus {
            namespace: "default".into(),
            worker: WorkerId(1),
            thread: 0,
            transport: Transport::Tcp,
            reason: "it was asked for".into(),
            connected: true,
            cuts: 1,
            recoveries: 2,
            refused: 3,
        }],
        sessions_left_out: 0,
        clocks: vec![ClockStatus {
            namespace: "default".into(),
            domain: DomainId(0),
            worker: WorkerId(1),
            thread: 0,
            clock: 41,
        }],
        clocks_left_out: 0,
    }
}

/// Returns the requests to the coordinator that are the same for each seed.
fn fixed_requests() -> [CoordinatorRequest; 7] {
    use CoordinatorRequest as R;
    [
        R::Tasks(TaskRequest::Open {
            spec: queue_spec(),
            shards: Some(vec![task().shard]),
        }),
        R::StopJob {
            reason: "maintenance".into(),
        },
        R::WaitJob,
        R::Number,
        R::ServerEnded {
            end: server_end(),
            restarts: true,
        },
        R::Rejoin,
        R::MemberBarrier(MemberBarrier {
            name: "epoch".into(),
            clocks: vec![DomainClock {
                domain: DomainId(0),
                clock: 50,
            }],
            round: 7,
            of: vec![WorkerId(0), WorkerId(3)],
            timeout_ms: 30_000,
        }),
    ]
}
