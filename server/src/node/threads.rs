//! The applier threads of a server: where they run and how they wait.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use core_affinity::CoreId;
use tidewater_transport::fabric::SPIN;
use tidewater_transport::ids::WorkerId;
use tidewater_transport::topo::{NoSuchNic, Placement, Room, Topology, Wish, format_list};
use tidewater_transport::wake::OsSleeper;

use super::error::system;
use super::handle::Crew;
use super::{NodeConfig, NodeError, doze_at};
use crate::apply::applier::Applier;
use crate::apply::command::ApplierHandle;
use crate::store::ServerMemory;

/// Starts one thread an applier.
pub(super) fn start(
    config: &NodeConfig,
    memory: &Arc<ServerMemory>,
    placement: &Placement,
) -> Result<(Vec<Crew>, Vec<JoinHandle<()>>), NodeError> {
    let (mut crews, mut threads) = (Vec::new(), Vec::new());
    for a in 0..config.appliers {
        let started = start_one(a, config, memory, placement);
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

/// Stops appliers and waits for them.
pub(super) fn stop(crews: &[Crew], threads: Vec<JoinHandle<()>>) {
    for crew in crews {
        // One that has ended needs no order.
        let _ = crew.handle.send(crate::apply::command::Command::Stop);
    }
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("an applier panicked: a defect of the server, please report it");
        }
    }
}

fn start_one(
    a: u16,
    config: &NodeConfig,
    memory: &Arc<ServerMemory>,
    placement: &Placement,
) -> Result<(Crew, JoinHandle<()>), NodeError> {
    let mut sleeper = OsSleeper::new(spin(placement.room)).map_err(system("make a doorbell"))?;
    sleeper.add_doze(Arc::clone(memory.public.region()), doze_at(a));
    let (watch, bell) = (sleeper.watch().clone(), sleeper.bell().clone());
    let arms = sleeper.arms().clone();
    let (handle, commands) = ApplierHandle::new(Some(bell.clone()));
    let workers = (0..config.workers).map(WorkerId);
    let mut applier = Applier::new(Arc::clone(memory), u32::from(a), workers, commands)?;
    let core = placement.cpus.get(usize::from(a));
    let core = core.map(|&cpu| CoreId { id: cpu as usize });
    let thread = std::thread::Builder::new().name(format!("tw-applier-{a}"));
    let run = move || {
        if let Some(core) = core
            && !core_affinity::set_for_current(core)
        {
            tracing::warn!(
                applier = a,
                core = core.id,
                "cannot pin the applier; it goes unpinned"
            );
        }
        applier.run(&mut sleeper);
    };
    let thread = thread
        .spawn(run)
        .map_err(system("start an applier's thread"))?;
    let crew = Crew {
        handle,
        watch,
        arms,
        bell,
    };
    Ok((crew, thread))
}

/// Where the server goes on this machine.
pub(super) fn place(config: &NodeConfig, topology: &Topology) -> Result<Placement, NoSuchNic> {
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

/// The address by which clients come, if that is known.
fn listens(config: &NodeConfig) -> Option<IpAddr> {
    let told = config.advertise.as_ref().and_then(|host| host.parse().ok());
    told.or_else(|| config.tcp.map(|address| address.ip()))
}

/// How long an applier spins before it sleeps.
fn spin(room: Room) -> Duration {
    match room {
        Room::Ample => SPIN,
        // The control thread and whoever else is there need a core now and then.
        Room::Full => SPIN / 4,
        Room::Crowded => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tidewater_transport::ids::ClusterId;
    use tidewater_transport::wire::handshake::JobToken;

    use super::*;

    fn config() -> NodeConfig {
        NodeConfig::new(JobToken::new([1; 32]), ClusterId(1)).unwrap()
    }

    #[test]
    fn where_threads_outnumber_cores_nobody_spins() {
        assert_eq!(spin(Room::Ample), SPIN);
        assert_eq!(spin(Room::Full), SPIN / 4);
        assert_eq!(spin(Room::Crowded), Duration::ZERO);
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
        config.nic = Some("no-such-card".into());
        let error = place(&config, &topology).unwrap_err();
        assert!(error.to_string().contains("no-such-card"), "{error}");
    }
}
