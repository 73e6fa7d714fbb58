//! Contests of every transport: clocks, many workers, dense steps, costs in the steady state.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tidewater::{Client, SyncMode};

use super::comparison::{Baseline, Comparison, Metric, Ours};
use super::{functions, many_workers, steady_state, train};
use crate::bsp::Ticks;
use crate::cluster::child::pin;
use crate::cluster::{Cluster, ClusterConfig};
use crate::error::BenchError;
use crate::options::{Transport, Wire};

/// Number of sessions of one thread with measured clocks.
const SESSIONS: u32 = 8;

/// Runs all contests.
///
/// # Errors
/// The error of the first call that fails.
pub(super) fn contests(comparison: &mut Comparison<'_>) -> Result<(), BenchError> {
    let name = name(comparison.args.transport);
    if comparison.args.transport.wire() != Some(Wire::Socket) {
        clock_of_a_thread(comparison, &format!("{name}.clock"), None, None)?;
    }
    many_workers::contests(comparison, name)?;
    steady_state::contests(comparison, name)?;
    if comparison.args.transport.wire() == Some(Wire::Memory) {
        functions::contests(comparison, name)?;
        train::contest(comparison)?;
    }
    Ok(())
}

/// Name of the transport in names of contests.
fn name(transport: Transport) -> &'static str {
    match transport.wire() {
        Some(Wire::Memory) => "shm",
        Some(Wire::Socket) => "tcp",
        None => "verbs",
    }
}

/// Measures the time from the tick of the last of several sessions of one thread until this session sees the
/// minimum that the tick moves. The server is pinned to `core`, if given.
///
/// # Errors
/// The error of the first call that fails.
pub(super) fn clock_of_a_thread(
    comparison: &mut Comparison<'_>,
    id: &str,
    core: Option<usize>,
    baseline: Option<Baseline<'_>>,
) -> Result<(), BenchError> {
    if !comparison.wants(&[id]) {
        return Ok(());
    }
    let mut cluster = Cluster::start(ClusterConfig {
        workers: SESSIONS,
        pin: core,
        ..ClusterConfig::single(comparison.args.transport)
    })?;
    let clients = (0..SESSIONS).map(|rank| cluster.client(rank, SyncMode::Bsp));
    let mut clients: Vec<Client> = clients.collect::<Result<_, _>>()?;
    let mut work = Ticks::new(&mut clients)?;
    let what = "the last of 8 sessions' CLOCK frame until it sees the minimum";
    comparison.head_to_head(
        id,
        what,
        Ours::new(&mut work, Metric::P50Us, &mut cluster),
        baseline,
    )?;
    for client in &mut clients {
        client.finish()?;
    }
    Ok(())
}

/// Keeps this thread on one core until it is dropped. Threads and processes that this thread starts meanwhile
/// inherit the core, and keep it.
#[derive(Debug)]
pub(super) struct OneCore {
    before: CpuSet,
    core: usize,
}

impl OneCore {
    /// Moves this thread to the last core that it may use, because interrupts prefer the first.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn enter() -> Result<Self, BenchError> {
        let before = sched_getaffinity(None);
        let before = before.map_err(|e| BenchError::system("look at this thread's cores", e))?;
        let last = (0..CpuSet::MAX_CPU).rev().find(|&core| before.is_set(core));
        let core = last.unwrap_or(0);
        pin(None, core)?;
        Ok(Self { before, core })
    }

    pub(super) const fn core(&self) -> usize {
        self.core
    }

    /// Moves all current threads of a cluster's servers to the first core that this thread could use before.
    /// Threads that share a core would have to yield it in each call. Returns false, and moves nothing, if
    /// there is only one core.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn keep_off(&self, cluster: &Cluster) -> Result<bool, BenchError> {
        let first = (0..CpuSet::MAX_CPU).find(|&core| self.before.is_set(core));
        let Some(there) = first.filter(|&core| core != self.core) else {
            return Ok(false);
        };
        for server in cluster.pids() {
            let tasks = format!("/proc/{}/task", server.as_raw_nonzero());
            let failed = |e| BenchError::system(format!("list {tasks}"), e);
            for task in std::fs::read_dir(&tasks).map_err(failed)? {
                let name = task.map_err(failed)?.file_name();
                let number = name.to_str().and_then(|n| n.parse().ok());
                if let Some(thread) = number.and_then(Pid::from_raw) {
                    pin(Some(thread), there)?;
                }
            }
        }
        Ok(true)
    }
}

impl Drop for OneCore {
    fn drop(&mut self) {
        // Restores the cores that were allowed before.
        let _ = sched_setaffinity(None, &self.before);
    }
}
