//! A server: its two memories, its applier threads, and the control thread to which clients connect.
//!
//! ```text
//! clients --tcp/unix--> control thread: handshake, Attach, Resume, Recover, Describe, Clocks
//!                          |  commands: AddRing, AttachPort, Recover ...
//!                          v
//!                       applier 0..n: own partitions, rings and the sockets of their lanes
//!                          ^
//! coordinator client, embedded mode, tests: ServerHandle (tables, workers, epoch, shutdown)
//! ```
//! | module | holds |
//! |---|---|
//! | `config`, `error` | the configuration of a server; its errors |
//! | `threads`, `failure` | placement on the host; the applier threads; the reason why one ended |
//! | `listen`, `conn` | listening sockets; one connection |
//! | `control`, `requests` | the control thread's loop; its answers |
//! | `connects`, `recoveries` | lanes over verbs that are made; recoveries that wait for the end of a lane |
//! | `sessions` | attached client threads, and their lanes |
//! | `verbs` | resources of lanes over RDMA; `no_verbs` where it is not built in |
//! | `catalogue`, `handle` | tables; the handle for other threads |
//! | `kept` | memory that outlives the process, and what a successor finds in it |
//! | `orders` | the handle as the coordinator's orders, saves and loads use it |

mod catalogue;
mod config;
mod conn;
mod connects;
mod control;
mod error;
mod failure;
mod functions;
mod handle;
mod kept;
mod listen;
mod orders;
mod recoveries;
mod report;
mod requests;
mod sessions;
mod threads;
#[cfg(not(any(feature = "verbs", feature = "verbs-dlopen")))]
#[path = "no_verbs.rs"]
mod verbs;
#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
mod verbs;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crossbeam_channel::unbounded;
use tidewater_lanes::wake::Waker;
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::limits::{APPLIERS_MAX, SERVERS_MAX, WORKERS_MAX};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::handshake::ServerPolicy;
use tidewater_protocol::wire::hello::{Features, Ids, Role, Roles};
use tidewater_topology::Topology;
use tidewater_topology::hostinfo::host_id;

pub use config::{BusyPoll, CAPACITY_DEFAULT, ServerConfig, ServerFunctions};
pub use error::ServerError;
pub use handle::{NodeStatus, ServerHandle};
pub use kept::HeldMemory;

use catalogue::Catalogue;
use control::Control;
use error::system;
pub(crate) use failure::Failure;
use handle::Shared;
use listen::Listeners;
use tidewater_engine::store::memory::DOZE_AT;
use tidewater_engine::store::prealloc::Preallocator;
use tidewater_engine::store::{Backing, Hugepages, MemoryFiles, NoHugepages, ServerMemory};

/// A running server with its threads. Dropping it shuts it down and blocks until its threads have ended.
#[derive(Debug)]
pub struct Server {
    handle: ServerHandle,
    control: Option<JoinHandle<()>>,
    appliers: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts a server without tables in use; the server accepts connections when this returns. Cost: reserves
    /// address space, and starts one thread for each applier, a control thread and a thread that preallocates
    /// extents.
    ///
    /// # Errors
    /// [`ServerError`]; nothing is left behind.
    pub fn start(config: ServerConfig) -> Result<Self, ServerError> {
        check(&config)?;
        let host_id = host_id().map_err(system("name this host"))?;
        let (listeners, endpoints) = Listeners::open(&config)?;
        let topology = Topology::read();
        let placement = threads::place(&config, &topology)?;
        threads::check_busy_poll(&config, &placement, topology.usable())?;
        let backing = Backing::new(config.hugepages, &topology, &placement);
        let mut memory = match &config.memory {
            Some(held) => held.open(config.incarnation)?,
            None => {
                let made = ServerMemory::with(config.capacity, config.incarnation, &backing);
                let (memory, without) = made?;
                warn_of_pages(&config, without);
                memory
            }
        };
        if config.mlock {
            memory.lock()?;
        }
        let memory = Arc::new(memory);
        let preallocator = Preallocator::start().map_err(system("start a thread"))?;
        let waker = Waker::new().map_err(system("make a waker"))?;
        let (control, orders) = unbounded();
        let failure = Failure::new().map_err(system("make a waker"))?;
        let (idle, kept) = threads::prepare(&config, &memory, &placement, &preallocator)?;
        let (crews, appliers) = threads::start(idle, &memory, &placement, &failure)?;
        let shared = Arc::new(Shared {
            memory,
            preallocator,
            appliers: crews,
            failure,
            endpoints,
            host_id,
            catalogue: Mutex::new(Catalogue::keep(kept)),
            config,
        });
        // From here on a failure drops the server, which stops its appliers.
        let handle = ServerHandle {
            shared: Arc::clone(&shared),
            control,
            waker: waker.clone(),
        };
        let mut node = Self {
            handle,
            control: None,
            appliers,
        };
        let policy = policy(&shared.config);
        let mut control = Control::new(shared, policy, listeners, waker, orders)?;
        let thread = std::thread::Builder::new().name("tw-control".into());
        let thread = thread.spawn(move || control.run());
        node.control = Some(thread.map_err(system("start the control thread"))?);
        let endpoints = node.handle.endpoints();
        tracing::info!(tcp = endpoints.tcp, unix = endpoints.unix, "server listens");
        Ok(node)
    }

    /// Returns a handle on this server for other threads.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Blocks until [`ServerHandle::shutdown`] is called, then stops the appliers and blocks until every thread
    /// has ended.
    pub fn join(mut self) {
        self.wait();
    }

    fn wait(&mut self) {
        if let Some(control) = self.control.take()
            && control.join().is_err()
        {
            tracing::error!("the control thread panicked: a defect, please report it");
        }
        let appliers = std::mem::take(&mut self.appliers);
        threads::stop(&self.handle.shared.appliers, appliers);
    }
}

/// Reserves memory for a server with this configuration, which a holder then keeps across restarts.
///
/// # Errors
/// [`ServerError`] when the kernel refuses, or has not the pages that were asked for, or the configured network
/// device does not exist.
pub fn reserve(config: &ServerConfig) -> Result<HeldMemory, ServerError> {
    let topology = Topology::read();
    let placement = threads::place(config, &topology)?;
    let backing = Backing::new(config.hugepages, &topology, &placement);
    let (files, without) = MemoryFiles::reserve(config.capacity, &backing)?;
    warn_of_pages(config, without);
    Ok(HeldMemory::new(files))
}

/// Logs why the memory has ordinary pages instead of hugepages. Only the first server of a host does.
fn warn_of_pages(config: &ServerConfig, without: Option<NoHugepages>) {
    let Some(why) = without.filter(|_| config.local_rank == 0) else {
        return;
    };
    // A setting that the user did not choose is no cause for a warning.
    let chosen = config.hugepages != Hugepages::Default;
    if chosen || mutants::on(Mutant::WarnOfDefaultPages) {
        tracing::warn!("ordinary pages: {why}; or --hugepages off");
    } else {
        tracing::info!("ordinary pages: {why}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.shutdown();
        self.wait();
    }
}

/// Byte offset, in public memory, of an applier's parked flag: the word by which the applier states that it sleeps.
const fn parked_flag_at(applier: u16) -> usize {
    DOZE_AT + applier as usize * LINE_BYTES
}

/// Makes the admission policy of the control thread: identity, namespaces and roles of peers.
fn policy(config: &ServerConfig) -> ServerPolicy {
    ServerPolicy {
        token: config.token.clone(),
        features: Features::default(),
        ids: Ids {
            cluster: config.cluster,
            epoch: config.epoch,
            incarnation: config.incarnation,
        },
        role: Role::Server,
        number: config.server.0,
        namespaces: config.namespaces.clone(),
        control_roles: Roles::of(&[Role::Worker, Role::Observer, Role::Admin]),
        lane_roles: Roles::of(&[Role::Worker, Role::Observer]),
        tells_ids: false,
    }
}

fn check(config: &ServerConfig) -> Result<(), ServerError> {
    let numbers = [
        (
            "the number of appliers",
            u64::from(config.appliers),
            1,
            u64::from(APPLIERS_MAX),
            "1 to 64",
        ),
        (
            "the number of workers",
            u64::from(config.workers),
            0,
            u64::from(WORKERS_MAX),
            "at most 65536",
        ),
        (
            "the server's number",
            u64::from(config.server.0),
            0,
            u64::from(SERVERS_MAX) - 1,
            "below 1024",
        ),
        (
            "the cluster",
            config.cluster.0,
            1,
            u64::MAX,
            "a number that is not 0",
        ),
        (
            "the epoch",
            config.epoch,
            1,
            u64::MAX,
            "a number that is not 0",
        ),
        (
            "the incarnation",
            config.incarnation.0,
            1,
            u64::MAX,
            "a number that is not 0",
        ),
    ];
    for (what, value, least, most, must) in numbers {
        if !(least..=most).contains(&value) {
            return Err(ServerError::Config { what, value, must });
        }
    }
    Ok(())
}
