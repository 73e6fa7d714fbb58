//! Lanes over RDMA verbs, as the control thread makes them: which adapter serves whom, the
//! protection domain of each job on it, the queue pairs of each lane.
//!
//! A session is served through the adapter of the address at which its client came. Each job has a
//! protection domain of its own on it, so that no key of one job opens anything to another. A lane's
//! queue pairs are made here, on a thread beside (see `connects`), and handed to the lane's applier as
//! its port; whatever ends the lane (recovery, a break, the session's end) drops the port and with it
//! the queue pairs.
//!
//! What a device tells by itself, such as that a port is down, goes to the log.

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

/// Events that are taken from a device before others have their turn.
const TURN_EVENTS: usize = 64;

/// The adapters in use.
#[derive(Debug)]
pub(super) struct Verbs {
    rails: Vec<Rail>,
    /// The control thread's.
    epoll: Arc<OwnedFd>,
}

/// One adapter: how its events reach each applier, and the jobs that it serves.
#[derive(Debug)]
struct Rail {
    adapter: Arc<Adapter>,
    /// By applier.
    notifiers: Arc<[Arc<Notifier>]>,
    /// How tails come over it has been said.
    said: Arc<Once>,
    domains: HashMap<String, Arc<Domain>>,
}

/// What the lanes of one session stand on.
#[derive(Debug)]
pub(super) struct VerbsSession {
    domain: Arc<Domain>,
    notifiers: Arc<[Arc<Notifier>]>,
    tails: Tails,
    /// By applier.
    inboxes: Vec<Inbox>,
}

/// What clients are to be told of tails, and who says it once for each adapter.
#[derive(Debug, Clone)]
struct Tails {
    wish: BusyPoll,
    device: Arc<str>,
    said: Arc<Once>,
}

impl Tails {
    /// Whether a lane whose tails come so may be opened. Says it where appliers never sleep.
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
    /// None are, until somebody comes; then their devices are watched by `epoll`.
    pub(super) const fn new(epoll: Arc<OwnedFd>) -> Self {
        let rails = Vec::new();
        Self { rails, epoll }
    }

    fn watch(&self, device: &Device) {
        let data = EventData::new_u64(DEVICES);
        match epoll::add(&self.epoll, device.events(), data, EventFlags::IN) {
            // One of several ports of the device may be served already.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => {
                tracing::warn!(device = &**device.name(), %error, "cannot watch its RDMA async events");
            }
        }
    }

    /// Logs what devices have to tell.
    pub(super) fn hear(&self) {
        for rail in &self.rails {
            let device = rail.adapter.device();
            for _ in 0..TURN_EVENTS {
                match device.take_event() {
                    Ok(Some(event)) => tell(&event),
                    Ok(None) => break,
                    Err(error) => {
                        // It would wake us for ever.
                        let _ = epoll::delete(&self.epoll, device.events());
                        tracing::error!(%error, "RDMA device is gone");
                        break;
                    }
                }
            }
        }
    }

    /// Prepares a session of a job whose client came to the address `local`. The first of a job
    /// costs the registration of everything that the server exports.
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

    /// The job's domain. Those of jobs that are over, and of which no lane is left, go.
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
    /// The next lane's inbox, in the order of the appliers.
    pub(super) fn keep(&mut self, inbox: &Inbox) {
        self.inboxes.push(inbox.clone());
    }

    /// What makes the server's end of a lane, on any thread.
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

/// One line for each event, with what to do.
fn tell(event: &DeviceEvent) {
    match event.weight {
        EventWeight::Failure => tracing::warn!("RDMA: {event}"),
        EventWeight::Change => tracing::info!("RDMA: {event}"),
        EventWeight::Detail => tracing::debug!("RDMA: {event}"),
    }
}

/// What a client is told: it may take another transport.
fn unfit(e: impl std::fmt::Display) -> Refusal {
    let code = Transport::Verbs as u64;
    Refusal::new(RefusalCode::BadTransport, [code, 0, 0, 0]).with_text(e)
}
