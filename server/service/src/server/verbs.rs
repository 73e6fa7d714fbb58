//! Lanes over RDMA verbs, as the control thread makes them: the device of each session, the
//! protection domain of each job on it, the queue pairs of each lane.
//!
//! A session is served through the device of the address at which its client came. Each job has a
//! protection domain of its own on it, so that no key of one job opens anything to another. A
//! lane's queue pairs are made here, on a separate thread (see `connects`), and handed to the
//! lane's applier as a [`ServerLane`](tidewater_lanes::fabric::ServerLane). Whatever ends the lane
//! (recovery, a break, the session's end) drops it and with it the queue pairs.
//!
//! Asynchronous events of a device, such as a port that goes down, go to the log.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Once};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use tidewater_lanes::fabric::Inbox;
use tidewater_protocol::wire::control::{Transport, VerbsConnect, VerbsTails};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_verbs::{
    Adapter, Device, DeviceEvent, Domain, EventWeight, Notifier, RetryTimeout, VerbsError,
    VerbsServerLane,
};

use super::BusyPoll;
use super::connects::Make;
use super::control::DEVICES;
use super::handle::Shared;

/// Events taken from a device in one turn, before other connections have theirs.
const TURN_EVENTS: usize = 64;

/// The RDMA devices in use.
#[derive(Debug)]
pub(super) struct Verbs {
    rails: Vec<Rail>,
    /// Belongs to the control thread.
    epoll: Arc<OwnedFd>,
}

/// One device and port: the notifiers of the appliers, and the jobs that it serves.
#[derive(Debug)]
struct Rail {
    adapter: Arc<Adapter>,
    /// One for each applier.
    notifiers: Arc<[Arc<Notifier>]>,
    /// Logs once how tails are delivered over this device.
    said: Arc<Once>,
    domains: HashMap<String, Arc<Domain>>,
}

/// Resources of the lanes of one session.
#[derive(Debug)]
pub(super) struct VerbsSession {
    domain: Arc<Domain>,
    notifiers: Arc<[Arc<Notifier>]>,
    tails: Tails,
    /// One for each applier.
    inboxes: Vec<Inbox>,
}

/// The wish for tails of a device, and the log line about them, written once for each device.
#[derive(Debug, Clone)]
struct Tails {
    wish: BusyPoll,
    device: Arc<str>,
    said: Arc<Once>,
}

impl Tails {
    /// Whether a lane with this kind of tails may be opened. Logs the kind where appliers never
    /// sleep.
    fn check(&self, tails: VerbsTails) -> Result<(), VerbsError> {
        let device = &*self.device;
        match (self.wish, tails) {
            (BusyPoll::Tails, VerbsTails::Signalled) => Err(VerbsError::NotInOrder {
                device: Arc::clone(&self.device),
            }),
            (_, VerbsTails::Polled) => {
                self.said.call_once(|| {
                    tracing::info!(
                        device,
                        "tails of pushes are polled: it places data in order"
                    );
                });
                Ok(())
            }
            (wish, VerbsTails::Signalled) => {
                if !wish.sleeps() {
                    self.said.call_once(|| {
                        tracing::info!(
                            device,
                            "tails of pushes are signalled, though appliers never sleep: it does \
                             not say that it places data in order (ibv_query_qp_data_in_order)"
                        );
                    });
                }
                Ok(())
            }
        }
    }
}

impl Verbs {
    /// No devices; one is opened for the first client on it, and `epoll` then watches it.
    pub(super) const fn new(epoll: Arc<OwnedFd>) -> Self {
        let rails = Vec::new();
        Self { rails, epoll }
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

    /// Logs the pending events of all devices.
    pub(super) fn hear(&self) {
        for rail in &self.rails {
            let device = rail.adapter.device();
            for _ in 0..TURN_EVENTS {
                match device.take_event() {
                    Ok(Some(event)) => tell(&event),
                    Ok(None) => break,
                    Err(error) => {
                        // It would wake the control thread for ever.
                        let _ = epoll::delete(&self.epoll, device.events());
                        tracing::error!(%error, "RDMA device is gone");
                        break;
                    }
                }
            }
        }
    }

    /// Prepares a session of a job: its client came to the address `local`. The first of a job
    /// costs the registration of all memory that the server exports.
    pub(super) fn attach(
        &mut self,
        shared: &Shared,
        local: IpAddr,
        namespace: &str,
    ) -> Result<VerbsSession, Refusal> {
        let patience = RetryTimeout::with_timeout(shared.config.rdma_timeout.exponent());
        let wish = shared.config.rdma_device.as_ref();
        let adapter = Adapter::for_address(local, wish.map(|w| w.as_str())).map_err(unfit)?;
        let rail = match self
            .rails
            .iter()
            .position(|r| Arc::ptr_eq(&r.adapter, &adapter))
        {
            Some(at) => &mut self.rails[at],
            None => {
                let rail = Rail::new(adapter, shared).map_err(unfit)?;
                self.watch(rail.adapter.device());
                self.rails.push(rail);
                let last = self.rails.len() - 1;
                &mut self.rails[last]
            }
        };
        Ok(VerbsSession {
            domain: rail.domain(namespace, shared, patience).map_err(unfit)?,
            notifiers: Arc::clone(&rail.notifiers),
            tails: Tails {
                wish: shared.config.busy_poll,
                device: Arc::clone(rail.adapter.device().name()),
                said: Arc::clone(&rail.said),
            },
            inboxes: Vec::new(),
        })
    }
}

impl Rail {
    fn new(adapter: Arc<Adapter>, shared: &Shared) -> Result<Self, VerbsError> {
        let crews = shared.appliers.iter();
        let notifiers = crews.map(|crew| Notifier::new(&adapter, &crew.watch, &crew.arms));
        let notifiers = notifiers.collect::<Result<Vec<_>, _>>()?.into();
        let (device, port, gid) = (adapter.device(), adapter.port(), adapter.gid());
        tracing::info!(device = &**device.name(), port, %gid, "RDMA sessions are served");
        Ok(Self {
            adapter,
            notifiers,
            said: Arc::new(Once::new()),
            domains: HashMap::new(),
        })
    }

    /// The job's domain. Domains of jobs that are over and have no lane left are dropped.
    fn domain(
        &mut self,
        namespace: &str,
        shared: &Shared,
        patience: RetryTimeout,
    ) -> Result<Arc<Domain>, VerbsError> {
        {
            let jobs = shared.catalogue();
            self.domains
                .retain(|job, domain| jobs.job(job).is_some() || Arc::strong_count(domain) > 1);
        }
        if let Some(domain) = self.domains.get(namespace) {
            return Ok(Arc::clone(domain));
        }
        let domain = Domain::new(&self.adapter, &shared.memory.exports, patience)?;
        self.domains
            .insert(namespace.to_owned(), Arc::clone(&domain));
        Ok(domain)
    }
}

impl VerbsSession {
    /// Keeps the next lane's inbox, in the order of the appliers.
    pub(super) fn keep(&mut self, inbox: &Inbox) {
        self.inboxes.push(inbox.clone());
    }

    /// Returns the closure that makes the server's end of a lane, on any thread.
    pub(super) fn accept(&self, offer: VerbsConnect, peer: String) -> Result<Make, Refusal> {
        let a = usize::from(offer.applier.0);
        let (Some(inbox), Some(notifier)) = (self.inboxes.get(a), self.notifiers.get(a)) else {
            let numbers = [a as u64, self.inboxes.len() as u64, 0, 0];
            return Err(Refusal::new(RefusalCode::UnknownApplier, numbers));
        };
        let (inbox, notifier) = (inbox.clone(), Arc::clone(notifier));
        let (domain, tails) = (Arc::clone(&self.domain), self.tails.clone());
        Ok(Box::new(move || {
            let (port, connected) =
                VerbsServerLane::accept(&domain, &notifier, &inbox, &offer, peer).map_err(unfit)?;
            tails.check(connected.tails).map_err(unfit)?;
            Ok((Box::new(port), connected))
        }))
    }
}

/// Logs one line for each event, with the remedy.
fn tell(event: &DeviceEvent) {
    match event.weight {
        EventWeight::Failure => tracing::warn!("RDMA: {event}"),
        EventWeight::Change => tracing::info!("RDMA: {event}"),
        EventWeight::Detail => tracing::debug!("RDMA: {event}"),
    }
}

/// Refuses verbs, so that the client may take another transport.
fn unfit(e: impl std::fmt::Display) -> Refusal {
    let code = Transport::Verbs as u64;
    Refusal::new(RefusalCode::BadTransport, [code, 0, 0, 0]).with_text(e)
}
