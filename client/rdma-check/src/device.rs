//! The RDMA device of one end: its limits, a lane to the other end, registration, the contract.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use tidewater_conformance::{Outcome, Subject, clauses};
use tidewater_lanes::fabric::{
    AccessFlags, ClientLane, INBOX_KEY, Inbox, LaneError, ReadDest, ReadOp, RegionTable,
    RegisteredRegion, RemoteAddr,
};
use tidewater_lanes::wake::OsParker;
use tidewater_launch::fabric_from_env;
use tidewater_protocol::ids::{ApplierId, RegionKey};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{INBOX_RING_AT, inbox_bytes, mailbox_bytes};
use tidewater_protocol::wire::control::{VerbsConnect, VerbsConnected};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;
use tidewater_verbs::{
    Access, ClientDomain, Domain, LaneOffer, Link, MemoryRegion, Notifier, OpenPort,
    ProtectionDomain, VerbsServerLane,
};

use crate::conn::{ClauseResult, Registered};
use crate::facts::DeviceFacts;
use crate::finding::{Finding, Verdict};

/// Bytes that a lane's client can read.
pub(crate) const DATA_BYTES: usize = 256 << 10;
/// Bytes of the longest write of a probe: many packets of any MTU.
const WRITE_BYTES: usize = 16 << 10;
const RING_BYTES: usize = 64 << 10;
/// Longest wait for one probe: the device gives up before, after seven timeouts of 67 ms.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a memory region at most.
const REGION_BYTES_MAX: u64 = 1 << 30;

/// An open device with the port and address of the connection between both ends.
#[derive(Debug)]
pub(crate) struct Device {
    open_port: Arc<OpenPort>,
    address: IpAddr,
    wish: Option<String>,
}

/// The server's end of a lane, and all that it needs. It is dropped first.
#[derive(Debug)]
pub(crate) struct ServedLane {
    lane: VerbsServerLane,
    _domain: Arc<Domain>,
    _notifier: Arc<Notifier>,
    _parker: OsParker,
}

/// The client's end of a lane that is not connected yet.
#[derive(Debug)]
pub(crate) struct Offer {
    offer: LaneOffer,
    mtu: u16,
    _domain: Arc<ClientDomain>,
    _notifier: Arc<Notifier>,
    _parker: OsParker,
}

impl DeviceFacts {
    /// Adds what the kernel's files say of the device and its port.
    fn read_files(&mut self) {
        let device = Path::new("/sys/class/infiniband").join(&self.name);
        let port = device.join("ports").join(self.port.to_string());
        // A missing file is an absent fact: not every driver has each.
        let text = |path: &Path| {
            std::fs::read_to_string(path)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        self.firmware = text(&device.join("fw_ver"));
        self.rate = text(&port.join("rate"));
        let index = self.gid_index.to_string();
        self.netdev = text(&port.join("gid_attrs/ndevs").join(index));
        let keys = std::fs::read_dir(port.join("pkeys"));
        let keys = keys.into_iter().flatten().flatten().filter_map(|entry| {
            let text = text(&entry.path());
            u16::from_str_radix(text.trim_start_matches("0x"), 16).ok()
        });
        self.pkeys = keys.filter(|key| *key != 0).collect();
        self.pkeys.sort_unstable();
        self.pkeys.dedup();
    }
}

impl Device {
    /// Opens the device that has `address`, or that `wish` names.
    pub(crate) fn open(address: IpAddr, wish: Option<&str>) -> Result<Self, String> {
        let open_port = OpenPort::for_address(address, wish).map_err(|e| e.to_string())?;
        let wish = wish.map(str::to_owned);
        Ok(Self {
            open_port,
            address,
            wish,
        })
    }

    /// Limits and settings. Cost: a lane within this host, closed again.
    pub(crate) fn facts(&self) -> DeviceFacts {
        let open_port = &self.open_port;
        let limits = open_port.device().limits();
        let mut facts = DeviceFacts {
            name: open_port.device().name().to_string(),
            port: open_port.port(),
            link: match open_port.link() {
                Link::Ethernet => "Ethernet".to_owned(),
                Link::InfiniBand => "InfiniBand".to_owned(),
            },
            gid: open_port.gid().to_string(),
            gid_index: open_port.gid_index(),
            lid: open_port.lid(),
            mtu: open_port.mtu(),
            atomics: limits.atomics,
            windows: limits.windows,
            reads: limits.reads,
            reads_out: limits.reads_out,
            read_elements: limits.read_elements,
            region_bytes: limits.region_bytes,
            regions: limits.regions,
            queue_pairs: limits.queue_pairs,
            vectors: open_port.device().completion_vectors(),
            ece: open_port.device().has_ece(),
            ..DeviceFacts::default()
        };
        facts.read_files();
        let asked = self
            .granted()
            .and_then(|(inline, _)| Ok((inline, self.is_relaxed()?)));
        match asked {
            Ok((inline, relaxed)) => {
                (facts.inline_bytes, facts.relaxed_ordering) = (inline, relaxed)
            }
            Err(error) => facts.limits_error = Some(error),
        }
        facts
    }

    /// Whether the device promises to place data in order; `None` where the library lacks the query.
    pub(crate) fn order(&self) -> Result<Option<bool>, String> {
        Ok(self.granted()?.1)
    }

    /// Inline bytes and order of a lane within this host.
    fn granted(&self) -> Result<(u32, Option<bool>), String> {
        let (offer, connect) = self.offer()?;
        let (served, _, _) = self.accept(&connect)?;
        drop(offer);
        served
            .lane
            .granted()
            .ok_or_else(|| "the lane has ended".to_owned())
    }

    fn is_relaxed(&self) -> Result<bool, String> {
        let pd = ProtectionDomain::new(self.open_port.device()).map_err(|e| e.to_string())?;
        let region = Arc::new(Region::anonymous(4096).map_err(|e| e.to_string())?);
        let access = Access::REMOTE_READ | Access::RELAXED_ORDERING;
        let region = MemoryRegion::register(&pd, &region, 0..4096, 0, access);
        Ok(region.map_err(|e| e.to_string())?.is_relaxed())
    }

    /// Answers a client's offer: the server's end, the answer, and the key of readable data.
    pub(crate) fn accept(
        &self,
        connect: &VerbsConnect,
    ) -> Result<(ServedLane, VerbsConnected, u32), String> {
        let data = Region::anonymous(DATA_BYTES).map_err(|e| e.to_string())?;
        let words = data.words_mut(0, DATA_BYTES).map_err(|e| e.to_string())?;
        words.copy_in(0, &pattern(0, DATA_BYTES));
        let exports = Arc::new(RegionTable::new(0x5c));
        let key = exports.add(RegisteredRegion {
            region: Arc::new(data),
            start: 0,
            len: DATA_BYTES as u64,
            rights: AccessFlags::Read,
            memory: 0,
        });
        let key = key.map_err(|e| e.to_string())?;
        let fabric = fabric_from_env().map_err(|e| e.to_string())?;
        let domain = Domain::new(&self.open_port, &exports, fabric).map_err(|e| e.to_string())?;
        let (parker, notifier) = self.notifier()?;
        let ring = RingGeometry::new(RING_BYTES).ok_or("a ring of an impossible size")?;
        let inbox = Region::anonymous(inbox_bytes(RING_BYTES)).map_err(|e| e.to_string())?;
        let inbox =
            Inbox::new(Arc::new(inbox), 0, ring, connect.nonce).map_err(|e| e.to_string())?;
        inbox.reset_tail(0);
        let name = "the caller".to_owned();
        let accepted = VerbsServerLane::accept(&domain, &notifier, &inbox, connect, name);
        let (lane, connected) = accepted.map_err(|e| e.to_string())?;
        let served = ServedLane {
            lane,
            _domain: domain,
            _notifier: notifier,
            _parker: parker,
        };
        Ok((served, connected, key.0))
    }

    /// The client's end of a lane, and the offer to the server.
    pub(crate) fn offer(&self) -> Result<(Offer, VerbsConnect), String> {
        let fabric = fabric_from_env().map_err(|e| e.to_string())?;
        let domain = ClientDomain::new(&self.open_port, fabric);
        let domain = domain.map_err(|e| e.to_string())?;
        let (parker, notifier) = self.notifier()?;
        let offer = LaneOffer::new(&domain, &notifier, 1, mailbox_bytes(RING_BYTES));
        let offer = offer.map_err(|e| e.to_string())?;
        let connect = offer.connect(ApplierId(0), 0x7d);
        let offer = Offer {
            offer,
            mtu: self.open_port.mtu(),
            _domain: domain,
            _notifier: notifier,
            _parker: parker,
        };
        Ok((offer, connect))
    }

    fn notifier(&self) -> Result<(OsParker, Arc<Notifier>), String> {
        let parker = OsParker::new(Duration::ZERO).map_err(|e| e.to_string())?;
        let notifier = Notifier::new(&self.open_port, parker.reactor(), parker.arms());
        Ok((parker, notifier.map_err(|e| e.to_string())?))
    }

    /// Registers and releases `bytes` bytes of present memory.
    pub(crate) fn register(&self, bytes: u64) -> Result<Registered, String> {
        let most = self.open_port.device().limits().region_bytes;
        let chunk = REGION_BYTES_MAX.min(most).max(4096) as usize & !4095;
        let pd = ProtectionDomain::new(self.open_port.device()).map_err(|e| e.to_string())?;
        let bytes = usize::try_from(bytes).map_err(|e| e.to_string())?;
        let region = Arc::new(Region::anonymous(bytes).map_err(|e| e.to_string())?);
        let began = clock::now();
        region
            .prefault(0, region.len())
            .map_err(|e| e.to_string())?;
        let pages_s = clock::now().duration_since(began).as_secs_f64();
        let began = clock::now();
        let mut registered = Vec::new();
        for start in (0..region.len()).step_by(chunk) {
            let range = start..region.len().min(start + chunk);
            let access = Access::REMOTE_READ | Access::RELAXED_ORDERING;
            let done = MemoryRegion::register(&pd, &region, range, start as u64, access);
            registered.push(done.map_err(|e| e.to_string())?);
        }
        let register_s = clock::now().duration_since(began).as_secs_f64();
        Ok(Registered {
            pages_s,
            register_s,
        })
    }

    /// Tests the lane contract with both ends on this device.
    pub(crate) fn contract(&self, rounds: u64) -> Result<Vec<ClauseResult>, String> {
        let subject = Subject::verbs(self.address, self.wish.as_deref(), Some(rounds), None);
        let subject = subject.map_err(|e| e.to_string())?;
        let result = |clause: &tidewater_conformance::Clause| {
            let (ran, why) = match clause.check(&subject) {
                Outcome::Passed => (true, None),
                Outcome::NotRun(why) => (false, Some(why.to_owned())),
                Outcome::Failed(why) => (true, Some(why)),
            };
            let clause = clause.name.to_owned();
            ClauseResult { clause, ran, why }
        };
        Ok(clauses().iter().map(result).collect())
    }
}

impl Offer {
    /// Connects to the server's end, and reads and writes: few bytes, then more than one packet.
    pub(crate) fn probe(self, connected: &VerbsConnected, key: u32) -> Finding {
        const CHECK: &str = "path";
        let fail = |found: String| Finding::new(CHECK, Verdict::Fail, found);
        let mtu = self.mtu.min(connected.end.mtu);
        let mut lane = match self.offer.open(connected, "the listener".to_owned()) {
            Ok(lane) => lane,
            Err(e) => return fail(format!("the queue pairs do not connect: {e}")),
        };
        let sizes = [8, usize::from(mtu) * 2, DATA_BYTES / 2];
        for (n, bytes) in sizes.into_iter().enumerate() {
            match (read(&mut lane, key, bytes), n) {
                (Ok(true), _) => {}
                (Ok(false), _) => {
                    return fail(format!("a READ of {bytes} bytes brought other bytes"))
                        .change("look at the firmware of both devices, and report it");
                }
                (Err(e), 0) => {
                    return fail(format!("no READ of 8 bytes completes: {e}")).change(
                        "RoCE is UDP port 4791: open it in firewalls of hosts and network, in both directions",
                    ).change("look at partition keys, VLANs and routes of both addresses: ping -I NETDEV ADDRESS");
                }
                (Err(e), _) => return black_hole("READ", bytes, mtu, &e.to_string()),
            }
        }
        if let Err(e) = write(&mut lane, WRITE_BYTES) {
            return black_hole("WRITE", WRITE_BYTES, mtu, &e);
        }
        let found =
            format!("READs of {sizes:?} bytes and a WRITE of {WRITE_BYTES} complete; MTU {mtu}");
        Finding::new(CHECK, Verdict::Pass, found).figure("mtu_bytes", f64::from(mtu))
    }
}

/// Small requests complete and long ones do not.
fn black_hole(verb: &str, bytes: usize, mtu: u16, error: &str) -> Finding {
    let found = format!(
        "MTU: READs of 8 bytes complete, a {verb} of {bytes} bytes does not, with packets of {mtu} bytes of \
         payload: the network between both ends drops large packets ({error})"
    );
    Finding::new("path", Verdict::Fail, found)
        .change(format!(
            "raise the MTU of every switch port and network device on the way to at least {} bytes, or lower \
             it at both ends: ip link set NETDEV mtu 1500",
            u32::from(mtu) + 100
        ))
        .change(format!("test with: ping -M do -s {mtu} ADDRESS"))
}

/// Reads `bytes` bytes; whether they are those of the pattern.
fn read(lane: &mut impl ClientLane, key: u32, bytes: usize) -> Result<bool, LaneError> {
    let mut body = vec![0; bytes];
    let op = ReadOp {
        from: RemoteAddr {
            key: RegionKey(key),
            addr: 4096,
        },
        len: bytes as u32,
        head_len: 0,
        head_at: 0,
        body_at: 0,
        fence: false,
    };
    let into = ReadDest {
        head: &mut [],
        body: &mut body,
    };
    lane.read(&[op], into, Deadline::after(PROBE_TIMEOUT))?;
    Ok(body == pattern(4096, bytes))
}

/// Writes `bytes` bytes into the ring, and waits until the other device has acknowledged them.
fn write(lane: &mut tidewater_verbs::VerbsClientLane, bytes: usize) -> Result<(), String> {
    let to = RemoteAddr {
        key: INBOX_KEY,
        addr: INBOX_RING_AT as u64,
    };
    let before = lane.counters().completions;
    let sent = lane
        .write(to, &vec![0x5c; bytes])
        .and_then(|()| lane.flush());
    sent.map_err(|e| e.to_string())?;
    let deadline = Deadline::after(PROBE_TIMEOUT);
    while lane.counters().completions == before {
        lane.poll().map_err(|e| e.to_string())?;
        if deadline.passed() {
            return Err(format!("no acknowledgement in {PROBE_TIMEOUT:?}"));
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Bytes of the readable data from `at` on; `at` is a multiple of 8.
fn pattern(at: usize, bytes: usize) -> Vec<u8> {
    let words = (at / 8..(at + bytes).div_ceil(8)).flat_map(|n| mix64(n as u64).to_le_bytes());
    words.take(bytes).collect()
}
