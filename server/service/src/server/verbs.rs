//! RDMA verbs resources of lanes, managed by the control thread: the device of each session, the protection
//! domain of each job, the queue pairs of each lane.
//!
//! A session is served through the first pair of RDMA ports that connects it with its client. Each job has a
//! protection domain of its own on it, so that no key of one job opens anything to another. A
//! lane's queue pairs are made here, on a separate thread (see `connects`), and handed to the
//! lane's applier as a [`ServerLane`](tidewater_lanes::fabric::ServerLane). Whatever ends the lane
//! (recovery, a break, the session's end) drops it and with it the queue pairs.
//!
//! Asynchronous events of a device, such as a port that goes down, go to the log. A device that has failed
//! is opened again for the next lane.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Once, OnceLock};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use tidewater_lanes::fabric::{Inbox, ServerLane};
use tidewater_lanes::wake::Waker;
use tidewater_launch::RdmaDevice;
use tidewater_protocol::wire::control::{Attach, Transport, VerbsConnect, VerbsPath, VerbsPort};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::sync::{AtomicBool, Ordering};
use tidewater_topology::{GidIndex, PKey, PortCandidate, PortWish, rank_pairs};
use tidewater_verbs::{
    Device, Domain, Notifier, OpenPort, VerbsError, VerbsServerLane, rank_ports,
};

use super::connects::Make;
use super::control::DEVICES;
use super::handle::Shared;

/// The RDMA ports that are in use, and their jobs.
#[derive(Debug)]
pub(super) struct Verbs {
    served: Vec<ServedPort>,
    /// Epoll instance of the control thread.
    epoll: Arc<OwnedFd>,
    /// Wakes the control thread.
    waker: Waker,
    /// Set by a registering thread when it ends, before it wakes the control thread.
    registered: Arc<AtomicBool>,
}

/// An RDMA port in use: completion notifiers of the appliers, and protection domains of the jobs on it.
#[derive(Debug)]
struct ServedPort {
    open_port: Arc<OpenPort>,
    /// Completion notifier of each applier.
    notifiers: Arc<[Arc<Notifier>]>,
    domains: HashMap<String, Arc<JobDomain>>,
}

/// Protection domain of one job on one RDMA device, or the refusal if it could not be made; unset until a
/// separate thread has registered the server's memory. Requests for lanes wait until then.
#[derive(Debug, Default)]
struct JobDomain(OnceLock<Result<Arc<Domain>, Refusal>>);

impl JobDomain {
    /// Starts a thread that registers all exported memory of the server in a new domain. When it has ended, well
    /// or not, it sets `ended` and wakes the control thread. If no thread starts, the refusal is stored at once.
    fn start(open_port: &Arc<OpenPort>, shared: &Shared, (ended, waker): Ended<'_>) -> Arc<Self> {
        let job = Arc::new(Self::default());
        let (open_port, exports) = (Arc::clone(open_port), Arc::clone(&shared.memory.exports));
        let fabric = shared.config.fabric;
        let (made, ended, waker) = (Arc::clone(&job), Arc::clone(ended), waker.clone());
        let run = move || {
            let started = Started {
                job: made,
                ended,
                waker,
            };
            let domain = Domain::new(&open_port, &exports, fabric).map_err(unfit);
            started.job.set(domain);
        };
        let thread = std::thread::Builder::new().name("tw-domain".into());
        if let Err(e) = thread.spawn(run) {
            job.set(Err(unfit(format_args!(
                "cannot start a thread that registers memory: {e}"
            ))));
        }
        job
    }

    fn set(&self, domain: Result<Arc<Domain>, Refusal>) {
        // The first result stays: the thread's, or its end's without one.
        let _ = self.0.set(domain);
    }

    fn is_done(&self) -> bool {
        self.0.get().is_some()
    }

    fn has_failed(&self) -> bool {
        matches!(self.0.get(), Some(Err(_)))
    }

    fn domain(&self) -> Result<Arc<Domain>, Refusal> {
        let domain = self.0.get().cloned();
        domain.unwrap_or_else(|| Err(unfit("the server's memory is not registered yet")))
    }
}

/// Drop guard of the registering thread. Stores a refusal after a panic, so that no request for lanes waits
/// forever, and wakes the control thread in any case.
struct Started {
    job: Arc<JobDomain>,
    ended: Arc<AtomicBool>,
    waker: Waker,
}

/// Flag that a registering thread sets when it ends, and the waker of the control thread.
type Ended<'a> = (&'a Arc<AtomicBool>, &'a Waker);

impl Drop for Started {
    fn drop(&mut self) {
        if !self.job.is_done() {
            self.job
                .set(Err(unfit("the thread that registers memory has failed")));
        }
        // With the domain: the control thread sees both or is woken again. Pairs with `memory_was_registered`.
        self.ended.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// Verbs resources of one session: protection domain, notifiers, ring memory and path.
#[derive(Debug)]
pub(super) struct VerbsSession {
    domain: Arc<JobDomain>,
    notifiers: Arc<[Arc<Notifier>]>,
    /// Ring memory of each lane, by applier.
    inboxes: Vec<Inbox>,
    /// RDMA port of the server, kept to open it again after a failure of the device.
    port: PortCandidate,
    path: VerbsPath,
    namespace: String,
}

impl Verbs {
    /// Makes an empty set. A device is opened for its first client, and `epoll` then watches its events.
    pub(super) fn new(epoll: Arc<OwnedFd>, waker: Waker) -> Self {
        Self {
            served: Vec::new(),
            epoll,
            waker,
            registered: Arc::default(),
        }
    }

    /// Whether a registration of server memory with a device has ended, well or not, since the last call; clears the
    /// flag. The caller then checks waiting requests again.
    pub(super) fn memory_was_registered(&self) -> bool {
        self.registered.swap(false, Ordering::Acquire)
    }

    fn watch(&self, device: &Device) {
        let data = EventData::new_u64(DEVICES);
        match epoll::add(&self.epoll, device.events(), data, EventFlags::IN) {
            // Another port of the device may be served already.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => {
                tracing::warn!(device = &**device.name(), %error, "cannot watch its RDMA async events");
            }
        }
    }

    /// Logs the pending asynchronous events of all devices and drops failed devices; the next session or lane
    /// opens such a device again.
    pub(super) fn hear(&mut self) {
        for served_port in &self.served {
            let device = served_port.open_port.device();
            device.log_events();
        }
        self.drop_failed();
    }

    /// Drops failed devices from the set. Lanes over a failed device keep the device until the lanes are
    /// destroyed.
    fn drop_failed(&mut self) {
        let epoll = &self.epoll;
        self.served.retain(|served_port| {
            let device = served_port.open_port.device();
            if device.has_failed() {
                // It would wake the control thread for ever. A device with two ports is watched once, so that
                // the second call fails.
                let _ = epoll::delete(epoll, device.events());
            }
            !device.has_failed()
        });
    }

    /// Opens the device of a session again and renews the session's resources, if the device or the registration of
    /// memory has failed. Does nothing otherwise. After an error the session is unchanged.
    pub(super) fn renew(
        &mut self,
        shared: &Shared,
        session: &mut VerbsSession,
    ) -> Result<(), Refusal> {
        let is_usable = match session.domain.domain() {
            Ok(domain) => !domain.open_port().device().has_failed(),
            // Its memory is not registered yet: the request waits for it. Where it could not be, it is tried again.
            Err(_) => !session.domain.has_failed(),
        };
        if is_usable {
            return Ok(());
        }
        let open_port = OpenPort::open(&session.port).map_err(unfit)?;
        let (port, path) = (session.port.clone(), session.path);
        let mut renewed = self.session(shared, open_port, port, path, &session.namespace)?;
        renewed.inboxes = std::mem::take(&mut session.inboxes);
        *session = renewed;
        Ok(())
    }

    /// Prepares the verbs resources of a new session. `local` is the server address to which the client has
    /// connected. The first session of a job on an RDMA port (port and GID) starts a thread that registers all exported
    /// server memory.
    pub(super) fn attach(
        &mut self,
        shared: &Shared,
        local: IpAddr,
        namespace: &str,
        attach: &Attach,
    ) -> Result<VerbsSession, Refusal> {
        self.drop_failed();
        let (open_port, port, path) = select(shared, local, attach)?;
        self.session(shared, open_port, port, path, namespace)
    }

    fn session(
        &mut self,
        shared: &Shared,
        open_port: Arc<OpenPort>,
        port: PortCandidate,
        path: VerbsPath,
        namespace: &str,
    ) -> Result<VerbsSession, Refusal> {
        self.drop_failed();
        let served_port = match self
            .served
            .iter()
            .position(|r| Arc::ptr_eq(&r.open_port, &open_port))
        {
            Some(at) => &mut self.served[at],
            None => {
                let served_port = ServedPort::new(open_port, shared).map_err(unfit)?;
                self.watch(served_port.open_port.device());
                self.served.push(served_port);
                let last = self.served.len() - 1;
                &mut self.served[last]
            }
        };
        Ok(VerbsSession {
            port,
            path,
            domain: served_port.domain(namespace, shared, (&self.registered, &self.waker)),
            notifiers: Arc::clone(&served_port.notifiers),
            inboxes: Vec::new(),
            namespace: namespace.to_owned(),
        })
    }
}

impl ServedPort {
    fn new(open_port: Arc<OpenPort>, shared: &Shared) -> Result<Self, VerbsError> {
        // Each applier has its own completion vector, as far as the device has so many.
        let crews = shared.appliers.iter().enumerate();
        let notifiers =
            crews.map(|(n, crew)| Notifier::with_vector(&open_port, &crew.watch, &crew.arms, n));
        let notifiers = notifiers.collect::<Result<Vec<_>, _>>()?.into();
        let (device, port, gid) = (open_port.device(), open_port.port(), open_port.gid());
        let tails_polled = !shared.config.busy_poll.sleeps();
        let atomics = device.limits().atomics;
        tracing::info!(device = &**device.name(), port, %gid, tails_polled, atomics, "RDMA sessions are served");
        Ok(Self {
            open_port,
            notifiers,
            domains: HashMap::new(),
        })
    }

    /// Returns the job's protection domain on this port; starts to make it if there is none. Also drops
    /// domains of ended jobs without sessions, and those that failed.
    fn domain(&mut self, namespace: &str, shared: &Shared, ended: Ended<'_>) -> Arc<JobDomain> {
        let unused: Vec<_> = {
            let jobs = shared.catalogue();
            let is_unused = |job: &String, domain: &mut Arc<JobDomain>| {
                let used = jobs.job(job).is_some() || Arc::strong_count(domain) > 1;
                !used || domain.has_failed()
            };
            self.domains.extract_if(is_unused).collect()
        };
        if !unused.is_empty() {
            // Deregistration of all memory takes long. Without a thread it happens here.
            let thread = std::thread::Builder::new().name("tw-domain".into());
            if let Err(error) = thread.spawn(move || drop(unused)) {
                tracing::warn!(%error, "no thread to deregister memory");
            }
        }
        let start = || JobDomain::start(&self.open_port, shared, ended);
        let domain = self.domains.entry(namespace.to_owned());
        Arc::clone(domain.or_insert_with(start))
    }
}

/// Selects the RDMA port pair of a session: the best one that the client does not report as failed and of which
/// the server port can be opened. Refused with all reasons if there is none.
fn select(
    shared: &Shared,
    local: IpAddr,
    attach: &Attach,
) -> Result<(Arc<OpenPort>, PortCandidate, VerbsPath), Refusal> {
    let config = &shared.config;
    let ranked = rank_ports(&PortWish {
        control: Some(local),
        names: config.rdma_device.as_ref().map(RdmaDevice::names),
        pkey: config.fabric.pkey.map(PKey::get),
        gid_index: config.fabric.gid_index.map(GidIndex::get),
        local_rank: config.local_rank,
    })
    .map_err(unfit)?;
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        for warning in &ranked.warnings {
            tracing::warn!("RDMA: {warning}");
        }
    });
    let own: Vec<VerbsPort> = ranked.candidates.iter().map(PortCandidate::offer).collect();
    let mut reasons = vec![format!(
        "no pair of RDMA ports connects the client with this server, which has {}",
        ranked.summary()
    )];
    for pair in rank_pairs(&attach.ports, &own) {
        let path = VerbsPath {
            client: attach.ports[pair.client].gid,
            server: own[pair.server].gid,
        };
        if attach.failed_paths.contains(&path) {
            continue;
        }
        let port = &ranked.candidates[pair.server];
        match OpenPort::open(port) {
            Ok(open_port) => return Ok((open_port, port.clone(), path)),
            Err(e) => reasons.push(e.to_string()),
        }
    }
    if !attach.failed_paths.is_empty() {
        let failed = attach.failed_paths.len();
        reasons.push(format!("{failed} pairs have failed"));
    }
    Err(unfit(reasons.join("; ")))
}

impl VerbsSession {
    /// Whether the session's device has failed since its memory was registered; `false` while the registration
    /// runs or if the registration failed.
    pub(super) fn device_has_failed(&self) -> bool {
        let domain = self.domain.domain();
        domain.is_ok_and(|domain| domain.open_port().device().has_failed())
    }

    /// Whether registration of server memory has ended, with success or failure.
    pub(super) fn is_ready(&self) -> bool {
        self.domain.is_done()
    }

    /// The session's RDMA ports, by GID: the client's and the server's.
    pub(super) const fn path(&self) -> VerbsPath {
        self.path
    }

    /// Adds the ring memory of the next lane; the caller adds them in the order of appliers.
    pub(super) fn keep(&mut self, inbox: &Inbox) {
        self.inboxes.push(inbox.clone());
    }

    /// Returns a closure that makes the server's ends of the offered lanes; it may run on any thread. `peer`
    /// names the client in errors. Refused if an offer names an unknown applier.
    pub(super) fn accept(&self, offers: Vec<VerbsConnect>, peer: &str) -> Result<Make, Refusal> {
        let mut lanes = Vec::with_capacity(offers.len());
        for offer in offers {
            let a = usize::from(offer.applier.0);
            let (Some(inbox), Some(notifier)) = (self.inboxes.get(a), self.notifiers.get(a)) else {
                let numbers = [a as u64, self.inboxes.len() as u64, 0, 0];
                return Err(Refusal::new(RefusalCode::UnknownApplier, numbers));
            };
            lanes.push((offer, inbox.clone(), Arc::clone(notifier)));
        }
        let domain = Arc::clone(&self.domain);
        let peer = peer.to_owned();
        Ok(Box::new(move || {
            let domain = domain.domain()?;
            let lane = |(offer, inbox, notifier): (VerbsConnect, Inbox, Arc<Notifier>)| {
                let peer = peer.clone();
                let (port, connected) =
                    VerbsServerLane::accept(&domain, &notifier, &inbox, &offer, peer)
                        .map_err(unfit)?;
                Ok((Box::new(port) as Box<dyn ServerLane>, connected))
            };
            lanes.into_iter().map(lane).collect()
        }))
    }
}

/// Makes the refusal of verbs with this reason, after which the client may choose another transport.
fn unfit(e: impl std::fmt::Display) -> Refusal {
    let code = Transport::Verbs as u64;
    Refusal::new(RefusalCode::BadTransport, [code, 0, 0, 0]).with_text(e)
}
