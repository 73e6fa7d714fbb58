//! Faults of a cluster of processes that the run starts itself, and what must follow.

use std::time::Duration;

use super::cluster::{COORDINATOR_LOG, FaultCluster, LIMIT, server_log, worker_log};
use super::faults::{Fault, Setup};
use super::host::{FullDisk, Host, stop_for, time_until};
use super::ledger::{Counts, now_ns};
use super::worker::CALL_LIMIT;
use super::{FaultTargets, Outcome};
use crate::error::BenchError;

/// Time by which a cluster that cannot go on has ended every worker with an error: their deadline, and time for a
/// busy machine.
const ENDS_WITHIN: Duration = CALL_LIMIT.saturating_mul(2);

/// Inflicts a fault, and waits until the cluster has recovered or all workers have ended. A fault that these
/// clusters cannot have does nothing, with an empty outcome.
///
/// # Errors
/// Errors of the environment of the test. What the cluster did wrong is in the outcome.
pub(super) fn inflict(
    setup: Setup,
    fault: Fault,
    cluster: &mut FaultCluster,
    host: &Host,
    of: FaultTargets,
) -> Result<Outcome, BenchError> {
    let FaultTargets {
        server,
        worker,
        time,
    } = of;
    match (setup, fault) {
        (Setup::Plain, Fault::ServerKilled) | (_, Fault::HolderKilled) => {
            must_fail(cluster, server, None)
        }
        (Setup::Warm, Fault::ServerKilled) => warm_server_killed(cluster, server, None),
        (Setup::Warm, Fault::WorkerAndServerKilled) => {
            warm_server_killed(cluster, server, Some(worker))
        }
        (_, Fault::WorkerAndServerKilled) => must_fail(cluster, server, Some(worker)),
        (_, Fault::ServerKilled) => server_killed(cluster, server),
        (_, Fault::WorkerKilled) => worker_killed(cluster, worker),
        (_, Fault::CoordinatorRestarted) => coordinator_restarted(cluster, time),
        (_, Fault::JournalDiskFull) => journal_disk_full(cluster),
        (_, Fault::DiskFull) => disk_full(cluster),
        (_, Fault::CoordinatorStopped) => {
            let pid = cluster.coordinator_pid();
            let subject = format!("coordinator, {time:?}");
            passes(cluster, subject, true, || stop_for(pid, time))
        }
        (_, Fault::WorkerStopped) => {
            let pid = cluster.worker_pid(worker);
            let subject = format!("worker {worker}, {time:?}");
            passes(cluster, subject, false, || stop_for(pid, time))
        }
        (_, Fault::ServerStopped) => {
            let pid = cluster.server_pid(server)?;
            let subject = format!("server {server}, {time:?}");
            passes(cluster, subject, false, || stop_for(pid, time))
        }
        (_, Fault::Partition) => {
            let subject = format!("all processes, {time:?}");
            passes(cluster, subject, false, || host.partition(time))
        }
        (_, Fault::LossAndDelay) => {
            let subject = format!("all processes, {time:?}, {}", host.shape());
            passes(cluster, subject, false, || host.lose_and_delay(time))
        }
        (_, Fault::CoordinatorKilled | Fault::ClockJump | Fault::EndOfRun) => {
            Ok(Outcome::default())
        }
    }
}

/// A fault that passes; `inflict` blocks while it lasts. Afterwards every worker must have an
/// acknowledgement, and a call to the coordinator must return. With `data` all workers but the first, which
/// makes the calls, must also have one while the fault lasts.
fn passes(
    cluster: &FaultCluster,
    subject: String,
    data: bool,
    inflict: impl FnOnce() -> Result<(), BenchError>,
) -> Result<Outcome, BenchError> {
    let before = cluster.counts()?;
    inflict()?;
    let during = cluster.counts()?;
    let since = now_ns();
    let recovered = cluster.until_all_acked(since, LIMIT)?;
    let called = cluster.until_called(since, LIMIT)?;
    let mut stands = before.iter().zip(&during).skip(1);
    let broken = if data && stands.any(|(before, during)| before.acked >= during.acked) {
        Some("a worker had no acknowledgement while it lasted".to_owned())
    } else if recovered.is_none() {
        Some(format!("a worker has no acknowledgement within {LIMIT:?}"))
    } else if called.is_none() {
        Some(format!(
            "no call to the coordinator returns within {LIMIT:?}"
        ))
    } else {
        None
    };
    Ok(Outcome {
        subject,
        recovered: recovered.max(called),
        broken,
        ..Outcome::default()
    })
}

/// Kills a worker, and waits until the coordinator logs its loss. Returns the time that this took; `None`:
/// [`LIMIT`] has passed.
fn worker_lost(cluster: &mut FaultCluster, worker: u32) -> Result<Option<Duration>, BenchError> {
    let text = format!("lost {worker}\"");
    let before = cluster.logged(COORDINATOR_LOG, &text);
    let since = now_ns();
    cluster.kill_worker(worker)?;
    time_until(since, LIMIT, || {
        Ok(cluster.logged(COORDINATOR_LOG, &text) > before)
    })
}

/// Kills a worker; the others must go on, and a successor takes its rank.
fn worker_killed(cluster: &mut FaultCluster, worker: u32) -> Result<Outcome, BenchError> {
    let since = now_ns();
    let detected = worker_lost(cluster, worker)?;
    let others = cluster.until_counts(since, LIMIT, |counts| {
        let others = (0..).zip(counts).filter(|(rank, _)| *rank != worker);
        others
            .into_iter()
            .all(|(_, counts)| counts.acked_at > since)
    })?;
    cluster.replace_worker(worker)?;
    let replaced = Duration::from_nanos(now_ns() - since);
    Ok(Outcome {
        subject: format!("worker {worker}"),
        detected,
        recovered: Some(replaced),
        broken: match others.and(detected) {
            None => Some(format!(
                "another worker has no acknowledgement within {LIMIT:?}"
            )),
            Some(_) => None,
        },
        ..Outcome::default()
    })
}

/// Kills the server of a holder: each worker must have an error that names the server, and begin again. All
/// pushes acknowledged before count as lost.
fn server_killed(cluster: &mut FaultCluster, server: u32) -> Result<Outcome, BenchError> {
    let before = cluster.counts()?;
    let lost = cluster.acked()?;
    let pid = cluster.server_pid(server)?.as_raw_nonzero();
    let name = format!("server {server} (pid {pid} ");
    let since = now_ns();
    cluster.kill_server(server)?;
    let have_begun = |counts: &[Counts], pushed: bool| {
        let mut pairs = before.iter().zip(counts);
        pairs.all(|(before, now)| now.restarts > before.restarts && (!pushed || now.acked > 0))
    };
    let detected = cluster.until_counts(since, LIMIT, |counts| have_begun(counts, false))?;
    cluster.forget_ended();
    let again = cluster.until_counts(since, LIMIT, |counts| have_begun(counts, true))?;
    let mut ranks = 0..before.len() as u32;
    let unnamed = ranks.find(|rank| cluster.logged(&worker_log(*rank), &name) == 0);
    Ok(Outcome {
        subject: format!("server {server}"),
        detected,
        recovered: again,
        lost: Some(lost),
        broken: match (detected, again, unnamed) {
            (None, ..) => Some(format!("a worker has no error within {LIMIT:?}")),
            (_, None, _) => Some(format!("a worker does not push again within {LIMIT:?}")),
            (.., Some(rank)) => Some(format!("the error of worker {rank} does not name {name:?}")),
            _ => None,
        },
        ..Outcome::default()
    })
}

/// Kills the server of a holder at level warm: its successor has the tables, and no worker may have an error.
/// With `worker`, kills that worker first, and starts another one with its rank afterwards.
fn warm_server_killed(
    cluster: &mut FaultCluster,
    server: u32,
    worker: Option<u32>,
) -> Result<Outcome, BenchError> {
    let before = cluster.counts()?;
    let detected = worker.map(|worker| worker_lost(cluster, worker));
    let detected = detected.transpose()?.flatten();
    cluster.kill_server(server)?;
    let since = now_ns();
    let living = |rank: u32| Some(rank) != worker;
    let recovered = cluster.until_counts(since, LIMIT, |counts| {
        let mut living = (0..).zip(counts).filter(|(rank, _)| living(*rank));
        living.all(|(_, counts)| counts.acked_at > since)
    })?;
    let called = cluster.until_called(since, LIMIT)?;
    let again = (0..).zip(before.iter().zip(cluster.counts()?));
    let mut again = again.filter(|(_, (before, now))| now.restarts > before.restarts);
    let broken = match (again.next(), recovered, called) {
        (Some((rank, _)), ..) => Some(format!("worker {rank} began again")),
        (_, None, _) => Some(format!("a worker has no acknowledgement within {LIMIT:?}")),
        (.., None) => Some(format!(
            "no call to the coordinator returns within {LIMIT:?}"
        )),
        _ => None,
    };
    if let (Some(worker), None) = (worker, &broken) {
        cluster.replace_worker(worker)?;
    }
    Ok(Outcome {
        subject: match worker {
            None => format!("server {server}"),
            Some(worker) => format!("worker {worker} and server {server}"),
        },
        detected,
        recovered: recovered.max(called),
        broken,
        ..Outcome::default()
    })
}

/// Kills what the cluster cannot do without: each living worker must end with an error that names the server.
/// Without `worker` this is the server or its holder. Otherwise it is first that worker and then the process
/// that serves: a job without a worker does not begin again.
fn must_fail(
    cluster: &mut FaultCluster,
    server: u32,
    worker: Option<u32>,
) -> Result<Outcome, BenchError> {
    let workers = cluster.counts()?.len() as u32;
    let name = format!("server {server}");
    let since = now_ns();
    match worker {
        None => cluster.kill_holder(server)?,
        Some(worker) => {
            worker_lost(cluster, worker)?;
            cluster.kill_server(server)?;
        }
    }
    let ends = cluster.workers_end(ENDS_WITHIN)?;
    let took = Duration::from_nanos(now_ns() - since);
    let mut broken = None;
    let living = (0..workers)
        .zip(ends)
        .filter(|(rank, _)| worker != Some(*rank));
    for (rank, status) in living {
        let is_error = status.is_some_and(|status| status.code().is_some_and(|code| code != 0));
        if !is_error || cluster.logged(&worker_log(rank), &name) == 0 {
            broken = Some(format!(
                "worker {rank} does not end with an error that names {name} within {ENDS_WITHIN:?}: {status:?}"
            ));
        }
    }
    Ok(Outcome {
        subject: match worker {
            None => format!("{name} ({})", server_log(server)),
            Some(worker) => format!("worker {worker} and {name}"),
        },
        recovered: Some(took),
        broken,
        ended: true,
        ..Outcome::default()
    })
}

/// Fills the file system of the saves: saves must be refused, and pushes go on. When there is room again, a
/// save must succeed.
fn disk_full(cluster: &FaultCluster) -> Result<Outcome, BenchError> {
    let before = cluster.counts()?;
    let since = now_ns();
    let disk = FullDisk::fill(&cluster.saves())?;
    let refused = |counts: &[Counts]| {
        let pair = counts.first().zip(before.first());
        pair.is_some_and(|(now, before)| now.refused > before.refused)
    };
    let detected = cluster.until_counts(since, LIMIT, refused)?;
    let during = cluster.until_all_acked(now_ns(), LIMIT)?;
    disk.free()?;
    let freed = now_ns();
    let manifest = cluster.saves().join("model/manifest.json");
    let saved = time_until(freed, LIMIT, || {
        Ok(std::fs::metadata(&manifest).is_ok_and(|file| file.is_file()))
    })?;
    let mut outcome = passes(cluster, "saves of worker 0".into(), false, || Ok(()))?;
    outcome.detected = detected;
    outcome.recovered = saved.max(outcome.recovered);
    if detected.is_none() {
        outcome.broken = Some(format!("no save is refused within {LIMIT:?}"));
    } else if during.is_none() {
        outcome.broken = Some("a worker had no acknowledgement while it lasted".into());
    } else if saved.is_none() {
        outcome.broken = Some(format!("no save succeeds within {LIMIT:?}"));
    }
    Ok(outcome)
}

fn coordinator_restarted(
    cluster: &mut FaultCluster,
    time: Duration,
) -> Result<Outcome, BenchError> {
    cluster.kill_coordinator()?;
    without_coordinator(cluster, time, format!("coordinator, gone for {time:?}"))
}

/// Goes on without a coordinator, which has ended, for `time`, then starts it again and waits until the
/// cluster has recovered. The outcome is broken if a worker other than the first has no acknowledgement in
/// `time`, or the cluster does not recover.
fn without_coordinator(
    cluster: &mut FaultCluster,
    time: Duration,
    subject: String,
) -> Result<Outcome, BenchError> {
    let before = cluster.counts()?;
    std::thread::sleep(time);
    let during = cluster.counts()?;
    cluster.restart_coordinator()?;
    let outcome = passes(cluster, subject, false, || Ok(()))?;
    let mut stands = before.iter().zip(&during).skip(1);
    let broken = stands.any(|(before, during)| before.acked >= during.acked);
    Ok(Outcome {
        broken: match broken {
            true => Some("a worker had no acknowledgement without the coordinator".into()),
            false => outcome.broken,
        },
        ..outcome
    })
}

/// Fills the file system of the journal: the coordinator ends with an error that names the journal, and
/// resumes when there is room.
fn journal_disk_full(cluster: &mut FaultCluster) -> Result<Outcome, BenchError> {
    let text = "state of the coordinator: cannot";
    let before = cluster.logged(COORDINATOR_LOG, text);
    let since = now_ns();
    let disk = FullDisk::fill(&cluster.dir.join("state"))?;
    let ended = cluster.coordinator_ends(LIMIT)?;
    let detected = Some(Duration::from_nanos(now_ns() - since));
    disk.free()?;
    let named = cluster.logged(COORDINATOR_LOG, text) > before;
    if ended.and_then(|status| status.code()) != Some(3) || !named {
        return Ok(Outcome {
            subject: "coordinator".into(),
            broken: Some(format!(
                "the coordinator does not end with an error that names its journal: {ended:?}"
            )),
            ..Outcome::default()
        });
    }
    let time = Duration::from_millis(100);
    let outcome = without_coordinator(cluster, time, "coordinator".into())?;
    Ok(Outcome {
        detected,
        ..outcome
    })
}
