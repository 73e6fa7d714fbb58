//! The applier threads of a server: start, stop, placement on cores, and how they wait.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use core_affinity::CoreId;
use tidewater_lanes::fabric::SPIN;
use tidewater_lanes::wake::OsParker;
use tidewater_protocol::ids::WorkerId;
use tidewater_protocol::layout::session::ALIVE_AFTER_DOZE;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::liveness::Liveness;
use tidewater_topology::{NoSuchNic, Placement, Room, Topology, Wish, format_list};

use super::error::system;
use super::failure::Failure;
use super::handle::{ApplierControl, in_parallel};
use super::kept::{HeldMemory, Kept, inbox_of};
use super::{ServerConfig, ServerError, parked_flag_at};
use crate::panics::panic_text;
use tidewater_engine::apply::applier::Applier;
use tidewater_engine::apply::command::ApplierHandle;
use tidewater_engine::store::prealloc::Preallocator;
use tidewater_engine::store::{ResumeError, ServerMemory};

/// A prepared applier before its thread starts.
pub(super) struct Idle {
    applier: Applier,
    parker: OsParker,
    handle: ApplierHandle,
}

/// Prepares all appliers, new or resumed from the previous process's memory, before the first one runs. Also
/// returns what that memory holds, empty without one.
pub(super) fn prepare(
    config: &ServerConfig,
    memory: &Arc<ServerMemory>,
    placement: &Placement,
    preallocator: &Preallocator,
) -> Result<(Vec<Idle>, Kept), ServerError> {
    let resumes = config.memory.as_ref().is_some_and(HeldMemory::resumes);
    let prepare = |a| {
        prepare_one(
            a,
            config,
            memory,
            placement,
            resumes.then_some(preallocator),
        )
    };
    let idle: Vec<_> = match resumes {
        // It reads all rows.
        true => in_parallel(config.appliers, prepare),
        false => (0..config.appliers).map(prepare).collect(),
    };
    let mut idle = idle.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut kept = Kept::default();
    for (a, idle) in (0..).zip(&mut idle).filter(|_| resumes) {
        kept.add(a, &mut idle.applier);
    }
    Ok((idle, kept))
}

fn prepare_one(
    a: u16,
    config: &ServerConfig,
    memory: &Arc<ServerMemory>,
    placement: &Placement,
    resume: Option<&Preallocator>,
) -> Result<Idle, ServerError> {
    let parker = match config.busy_poll.sleeps() {
        true => OsParker::new(spin(placement.room)).map(OsParker::patient),
        false => OsParker::awake(),
    };
    let mut parker = parker.map_err(system("make a waker"))?;
    parker.add_parked_flag(Arc::clone(memory.public.region()), parked_flag_at(a));
    let (handle, commands) = ApplierHandle::new(Some(parker.waker().clone()));
    let workers = (0..config.workers).map(WorkerId);
    let (shared, number) = (Arc::clone(memory), u32::from(a));
    let mut applier = match resume {
        Some(preallocator) => resumed(a, || {
            Applier::resume(shared, number, workers, commands, preallocator, inbox_of)
        })?,
        None => Applier::new(shared, number, workers, commands)?,
    };
    applier.engine().set_pending_bytes(config.pending_bytes);
    applier.engine().add_functions(&config.functions.all);
    Ok(Idle {
        applier,
        parker,
        handle,
    })
}

/// Makes applier `a` from the previous process's memory. A panic there is an error like refused memory: the server ends,
/// and its holder starts the next one with new memory.
fn resumed<T>(a: u16, resume: impl FnOnce() -> Result<T, ResumeError>) -> Result<T, ServerError> {
    let made =
        catch_unwind(AssertUnwindSafe(resume)).map_err(|panic| ServerError::ResumePanicked {
            applier: a,
            message: panic_text(&*panic).to_owned(),
        })?;
    Ok(made?)
}

/// Starts a thread for each prepared applier. If one cannot start, stops those before it.
pub(super) fn start(
    idle: Vec<Idle>,
    memory: &Arc<ServerMemory>,
    placement: &Placement,
    failure: &Failure,
) -> Result<(Vec<ApplierControl>, Vec<JoinHandle<()>>), ServerError> {
    let (mut crews, mut threads) = (Vec::new(), Vec::new());
    for (a, idle) in (0..).zip(idle) {
        let started = start_one(a, idle, memory, placement, failure);
        match started {
            Ok((crew, thread)) => {
                crews.push(crew);
                threads.push(thread);
            }
            Err(e) => {
                stop(&crews, threads);
                return Err(e);
            }
        }
    }
    Ok((crews, threads))
}

/// Orders the appliers to stop and blocks until their threads have ended.
pub(super) fn stop(crews: &[ApplierControl], threads: Vec<JoinHandle<()>>) {
    for crew in crews {
        // An applier that has ended needs no command.
        let _ = crew
            .handle
            .send(tidewater_engine::apply::command::Command::Stop);
    }
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("an applier panicked: a defect of the server, please report it");
        }
    }
}

fn start_one(
    a: u16,
    idle: Idle,
    memory: &Arc<ServerMemory>,
    placement: &Placement,
    failure: &Failure,
) -> Result<(ApplierControl, JoinHandle<()>), ServerError> {
    let Idle {
        mut applier,
        mut parker,
        handle,
    } = idle;
    let (watch, waker) = (parker.reactor().clone(), parker.waker().clone());
    let arms = parker.arms().clone();
    let core = placement.cpus.get(usize::from(a));
    let core = core.map(|&cpu| CoreId { id: cpu as usize });
    let thread = std::thread::Builder::new().name(format!("tw-applier-{a}"));
    let failure = failure.clone();
    let public = Arc::clone(memory.public.region());
    let run = move || {
        let alive = Liveness::hold(&public, parked_flag_at(a) + ALIVE_AFTER_DOZE);
        if let Err(error) = &alive {
            tracing::warn!(
                applier = a,
                %error,
                "clients over shared memory do not notice in a pull that this server was killed"
            );
        }
        if let Some(core) = core
            && !core_affinity::set_for_current(core)
        {
            tracing::warn!(
                applier = a,
                core = core.id,
                "cannot pin the applier; it goes unpinned"
            );
        }
        let ended = catch_unwind(AssertUnwindSafe(|| applier.run(&mut parker)));
        let why = match &ended {
            Ok(()) => applier.failure().map(str::to_owned),
            Err(_) if mutants::on(Mutant::PanicUnnoticed) => None,
            Err(panic) => Some(format!(
                "panicked: {}; this is a defect of the server, please report it",
                panic_text(&**panic)
            )),
        };
        // Set before the commands that wait for this applier are dropped: their errors quote it.
        if let Some(why) = why {
            failure.set(format!("applier {a}: {why}"));
        }
        drop(applier);
        drop(alive);
    };
    let thread = thread
        .spawn(run)
        .map_err(system("start an applier's thread"))?;
    let crew = ApplierControl {
        handle,
        watch,
        arms,
        waker,
    };
    Ok((crew, thread))
}

/// Chooses the cores and the NUMA node of the server on its host.
pub(super) fn place(config: &ServerConfig, topology: &Topology) -> Result<Placement, NoSuchNic> {
    let wish = Wish {
        appliers: config.appliers,
        local_rank: config.local_rank,
        local_appliers: config.local_appliers,
        local_clients: config.local_clients,
    };
    let near = topology.near(config.nic.as_deref(), listens(config))?;
    let placement = topology.place(wish, &near);
    tracing::info!(
        cpus = format_list(&placement.cpus),
        cpus_why = %placement.cpus_why,
        node = placement.node,
        node_why = %placement.node_why,
        nic = near.device,
        nic_why = %near.why,
        "placement"
    );
    Ok(placement)
}

/// Checks that appliers that busy-poll do not outnumber the cores. Fails if they do, since some appliers would
/// wait for time slices. Only logs a warning if they leave no core to other threads.
pub(super) fn check_busy_poll(
    config: &ServerConfig,
    placement: &Placement,
    cores: usize,
) -> Result<(), ServerError> {
    if config.busy_poll.sleeps() {
        return Ok(());
    }
    let appliers = config.local_appliers.max(u32::from(config.appliers));
    if appliers as usize > cores {
        return Err(ServerError::BusyPoll { appliers, cores });
    }
    if placement.room != Room::Ample && config.local_rank == 0 {
        let clients = config.local_clients;
        tracing::warn!(
            appliers,
            clients,
            cores,
            "appliers that never sleep (--busy-poll) leave no core of this host to others: clients, \
             coordinator and control threads wait for time slices; give it fewer appliers or more \
             cores"
        );
    }
    Ok(())
}

/// IP address at which clients reach the server: the advertised one, or the one listened on if none is
/// advertised or it is a host name; `None` if neither is known.
fn listens(config: &ServerConfig) -> Option<IpAddr> {
    let advertised = config.advertise.as_ref().and_then(|host| host.parse().ok());
    advertised.or_else(|| config.tcp.map(|address| address.ip()))
}

/// Time for which an idle applier spins before it parks: `SPIN`, a quarter of it if no core is spare, zero if
/// threads outnumber the cores.
fn spin(room: Room) -> Duration {
    match room {
        Room::Ample => SPIN,
        // The control thread and other processes need a core now and then.
        Room::Full => SPIN / 4,
        Room::Crowded => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tidewater_protocol::ids::ClusterId;
    use tidewater_protocol::wire::handshake::JobToken;

    use super::super::BusyPoll;
    use super::*;

    #[test]
    fn panic_on_resume_refuses_the_memory() {
        let refused = resumed::<()>(3, || panic!("index {} of 2", 5));
        let refused = refused.unwrap_err();
        assert!(
            matches!(&refused, ServerError::ResumePanicked { applier: 3, message } if message == "index 5 of 2"),
            "{refused}"
        );
        assert_eq!(resumed(0, || Ok(7)).unwrap(), 7);
    }

    fn config() -> ServerConfig {
        ServerConfig::new(JobToken::new([1; 32]), ClusterId(1)).unwrap()
    }

    #[test]
    fn where_threads_outnumber_cores_nobody_spins() {
        assert_eq!(spin(Room::Ample), SPIN);
        assert_eq!(spin(Room::Full), SPIN / 4);
        assert_eq!(spin(Room::Crowded), Duration::ZERO);
    }

    #[test]
    fn appliers_that_never_sleep_need_a_core_each() {
        let topology = Topology::read();
        let mut config = config();
        (config.appliers, config.local_appliers) = (2, 6);
        let placement = place(&config, &topology).unwrap();
        check_busy_poll(&config, &placement, 4).unwrap();
        config.busy_poll = BusyPoll::On;
        check_busy_poll(&config, &placement, 6).unwrap();
        let error = check_busy_poll(&config, &placement, 5).unwrap_err();
        let said = error.to_string();
        for part in ["6 appliers", "5 cores", "--appliers", "--busy-poll"] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn the_card_is_that_of_the_address_that_clients_are_told() {
        let mut config = config();
        assert_eq!(listens(&config), "127.0.0.1".parse().ok());
        config.tcp = Some(SocketAddr::from(([10, 0, 0, 1], 0)));
        assert_eq!(listens(&config), "10.0.0.1".parse().ok());
        config.advertise = Some("10.0.0.2".into());
        assert_eq!(listens(&config), "10.0.0.2".parse().ok());
        config.advertise = Some("node-7.cluster".into());
        assert_eq!(listens(&config), "10.0.0.1".parse().ok());
    }

    #[test]
    fn the_configuration_is_placed_on_the_machine() {
        let topology = Topology::read();
        let mut config = config();
        config.local_appliers = u32::MAX;
        let placement = place(&config, &topology).unwrap();
        assert_eq!((placement.cpus.len(), placement.room), (0, Room::Crowded));
        (config.appliers, config.local_appliers) = (1, 1);
        let placement = place(&config, &topology).unwrap();
        let [cpu] = placement.cpus[..] else {
            panic!("{placement:?}")
        };
        assert!(topology.allowed().any(|ours| ours.id == cpu));
        config.nic = Some("no-such-nic".into());
        let error = place(&config, &topology).unwrap_err();
        assert!(error.to_string().contains("no-such-nic"), "{error}");
    }
}
