//! Two connected pairs of one port, and registered memory for them.

use std::sync::Arc;
use std::time::Duration;

use tidewater_conformance::test_device;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Region;
use tidewater_topology::FabricSettings;
use tidewater_verbs::{
    Access, Completion, CompletionChannel, CompletionQueue, Init, MemoryRegion, OpenPort,
    PairOptions, Path, Peer, ProtectionDomain, QueuePair, ReadyToSend, RetryTimeout, SendBatch,
};

/// Size of a test's memory, bytes.
pub(crate) const BYTES: usize = 64 << 10;
/// Work requests in a pair's send queue.
pub(crate) const SENDS: u32 = 64;

/// The port of the tests. A host without one fails the test: such tests are ignored unless requested.
pub(crate) fn open_port() -> Arc<OpenPort> {
    test_device::open_port().expect("an RDMA device, by default with 127.0.0.1")
}

/// Registered memory of a test.
pub(crate) struct Memory {
    pub(crate) region: Arc<Region>,
    pub(crate) mr: Arc<MemoryRegion>,
}

impl Memory {
    pub(crate) fn new(pd: &Arc<ProtectionDomain>, iova: u64, access: Access) -> Self {
        let region = Arc::new(Region::anonymous(BYTES).unwrap());
        let mr = MemoryRegion::register(pd, &region, 0..BYTES, iova, access).unwrap();
        Self { region, mr }
    }

    pub(crate) fn fill(&self, at: usize, bytes: &[u8]) {
        let words = self.region.words_mut(0, BYTES).unwrap();
        words.copy_in(at, bytes);
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.region.words(0, BYTES).unwrap().copy_out(at, &mut out);
        out
    }

    pub(crate) fn word(&self, at: usize) -> u64 {
        self.region.words(0, BYTES).unwrap().load_acquire(at)
    }
}

/// One end: a pair and the queue of all its completions.
pub(crate) struct End {
    pub(crate) pair: QueuePair<ReadyToSend>,
    pub(crate) queue: Arc<CompletionQueue>,
}

impl End {
    /// Polls until `count` completions have arrived.
    pub(crate) fn completions(&self, count: usize) -> Vec<Completion> {
        let deadline = Deadline::after(Duration::from_secs(20));
        let mut got = vec![Completion::EMPTY; count];
        let mut have = 0;
        while have < count {
            have += self.queue.poll(&mut got[have..]).unwrap();
            // rxe works on the same processors.
            std::thread::yield_now();
            assert!(!deadline.passed(), "{have} of {count}: {:?}", &got[..have]);
        }
        got
    }

    /// Posts and waits for the one completion, which must be a success.
    pub(crate) fn run(&mut self, chain: &mut SendBatch) -> Completion {
        chain.signal_last();
        chain.post(&mut self.pair).unwrap();
        let done = self.completions(1)[0];
        done.check().unwrap();
        done
    }
}

/// Both ends and their shared objects.
pub(crate) struct Rig {
    pub(crate) near: End,
    pub(crate) far: End,
    pub(crate) pd: Arc<ProtectionDomain>,
    pub(crate) open_port: Arc<OpenPort>,
}

pub(crate) fn options() -> PairOptions {
    PairOptions {
        sends: SENDS,
        receives: 16,
        elements: 2,
        inline_bytes: 64,
        remote: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        retry: RetryTimeout::default(),
    }
}

/// The path of the port, without settings.
pub(crate) fn path(open_port: &Arc<OpenPort>) -> Path {
    Path::new(open_port, &FabricSettings::UNSET).unwrap()
}

pub(crate) fn peer<S>(pair: &QueuePair<S>) -> Peer {
    let open_port = pair.open_port();
    Peer {
        qpn: pair.qpn(),
        psn: pair.psn(),
        gid: open_port.gid(),
        lid: open_port.lid(),
        mtu: open_port.mtu(),
        reads: open_port.reads(),
        reads_out: open_port.reads_out(),
    }
}

/// Creates an unconnected pair, and its queue.
pub(crate) fn unconnected(
    open_port: &Arc<OpenPort>,
    pd: &Arc<ProtectionDomain>,
    options: &PairOptions,
    channel: Option<(&Arc<CompletionChannel>, usize)>,
) -> (QueuePair<Init>, Arc<CompletionQueue>) {
    unconnected_on(&path(open_port), pd, options, channel)
}

/// Creates an unconnected pair on a port with settings, and its queue.
pub(crate) fn unconnected_on(
    path: &Path,
    pd: &Arc<ProtectionDomain>,
    options: &PairOptions,
    channel: Option<(&Arc<CompletionChannel>, usize)>,
) -> (QueuePair<Init>, Arc<CompletionQueue>) {
    let queue = CompletionQueue::new(pd.device(), 128, channel).unwrap();
    let pair = QueuePair::new(pd, path, &queue, &queue, options).unwrap();
    (pair, queue)
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(&options(), None)
    }

    /// Connects both ends; `far` is the channel of the far end's queue, and the token there.
    pub(crate) fn with(
        options: &PairOptions,
        far: Option<(&Arc<CompletionChannel>, usize)>,
    ) -> Self {
        let open_port = open_port();
        let pd = ProtectionDomain::new(open_port.device()).unwrap();
        let (near, near_queue) = unconnected(&open_port, &pd, options, None);
        let (far, far_queue) = unconnected(&open_port, &pd, options, far);
        let (to_near, to_far) = (peer(&near), peer(&far));
        Self {
            near: End {
                pair: near.connect(&to_far).unwrap(),
                queue: near_queue,
            },
            far: End {
                pair: far.connect(&to_near).unwrap(),
                queue: far_queue,
            },
            pd,
            open_port,
        }
    }

    /// Registers memory of the near end, for local access only.
    pub(crate) fn local(&self) -> Memory {
        Memory::new(&self.pd, 0, Access::LOCAL_WRITE)
    }

    /// Registers memory of the far end, open to the near one.
    pub(crate) fn open(&self) -> Memory {
        let all = options().remote | Access::LOCAL_WRITE;
        Memory::new(&self.pd, 0x7000_0000_0000, all)
    }

    pub(crate) fn chain(&self) -> SendBatch {
        SendBatch::new(32, 2, 64)
    }
}

/// Returns `n` bytes that differ.
pub(crate) fn pattern(n: usize, seed: u8) -> Vec<u8> {
    (0..n).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect()
}
