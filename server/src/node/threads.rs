//! The applier threads of a server: where they run and how they wait.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use core_affinity::CoreId;
use tidewater_transport::fabric::SPIN;
use tidewater_transport::ids::WorkerId;
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
) -> Result<(Vec<Crew>, Vec<JoinHandle<()>>), NodeError> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let plan = Plan::new(config, &cores);
    let (mut crews, mut threads) = (Vec::new(), Vec::new());
    for a in 0..config.appliers {
        let started = start_one(a, config, memory, &plan);
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
    plan: &Plan,
) -> Result<(Crew, JoinHandle<()>), NodeError> {
    let mut sleeper = OsSleeper::new(plan.spin).map_err(system("make a doorbell"))?;
    sleeper.add_doze(Arc::clone(memory.public.region()), doze_at(a));
    let (watch, bell) = (sleeper.watch().clone(), sleeper.bell().clone());
    let arms = sleeper.arms().clone();
    let (handle, commands) = ApplierHandle::new(Some(bell.clone()));
    let workers = (0..config.workers).map(WorkerId);
    let mut applier = Applier::new(Arc::clone(memory), u32::from(a), workers, commands)?;
    let core = plan.cores.get(usize::from(a)).copied();
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

/// Which cores, and how long to spin.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    /// One an applier, or none at all.
    cores: Vec<CoreId>,
    spin: Duration,
}

impl Plan {
    /// `cores` are those that this process may use, in the same order in all processes here.
    fn new(config: &NodeConfig, cores: &[CoreId]) -> Self {
        let appliers = config.local_appliers.max(u32::from(config.appliers)) as usize;
        let threads = appliers + config.local_clients as usize;
        let spin = match threads.cmp(&cores.len()) {
            std::cmp::Ordering::Less => SPIN,
            // The control thread and whoever else is there need a core now and then.
            std::cmp::Ordering::Equal => SPIN / 4,
            std::cmp::Ordering::Greater => Duration::ZERO,
        };
        let first = config.local_rank as usize * usize::from(config.appliers);
        let core = |a: usize| cores.get((first + a) % cores.len().max(1)).copied();
        let cores = if appliers > cores.len() {
            Vec::new()
        } else {
            (0..usize::from(config.appliers)).filter_map(core).collect()
        };
        Self { cores, spin }
    }
}

#[cfg(test)]
mod tests {
    use tidewater_transport::ids::ClusterId;
    use tidewater_transport::wire::handshake::JobToken;

    use super::*;

    fn plan(
        local_rank: u32,
        local_appliers: u32,
        clients: u32,
        cores: usize,
    ) -> (Vec<usize>, Duration) {
        let mut config = NodeConfig::new(JobToken::new([1; 32]), ClusterId(1)).unwrap();
        (config.local_rank, config.local_appliers) = (local_rank, local_appliers);
        config.local_clients = clients;
        let cores: Vec<CoreId> = (0..cores).map(|n| CoreId { id: 10 + n }).collect();
        let plan = Plan::new(&config, &cores);
        (plan.cores.iter().map(|c| c.id).collect(), plan.spin)
    }

    #[test]
    fn servers_of_one_host_take_cores_side_by_side() {
        assert_eq!(plan(0, 4, 0, 8), (vec![10, 11], SPIN));
        assert_eq!(plan(1, 4, 0, 8), (vec![12, 13], SPIN));
        assert_eq!(plan(1, 4, 4, 8), (vec![12, 13], SPIN / 4));
    }

    #[test]
    fn where_threads_outnumber_cores_nobody_is_pinned_and_nobody_spins() {
        assert_eq!(plan(0, 4, 0, 2), (vec![], Duration::ZERO));
        assert_eq!(plan(0, 2, 1, 2), (vec![10, 11], Duration::ZERO));
        assert_eq!(plan(0, 2, 0, 0), (vec![], Duration::ZERO));
    }
}
