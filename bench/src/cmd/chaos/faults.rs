//! Kinds of faults and of clusters: what each fault promises, and the order in which they come.

use serde::{Serialize, Serializer};

use super::Seed;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    WorkerKilled,
    WorkerStopped,
    ServerKilled,
    ServerStopped,
    WorkerAndServerKilled,
    HolderKilled,
    CoordinatorKilled,
    CoordinatorRestarted,
    CoordinatorStopped,
    Partition,
    LossAndDelay,
    DiskFull,
    JournalDiskFull,
    ClockJump,
    /// No fault: what the end of a cluster must be.
    EndOfRun,
}

/// A kind of cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setup {
    /// Coordinator, servers with holders and workers, each a process started by itself.
    Held,
    /// Like `Held`, with tables at level warm, and with a journal of the coordinator if it can have one.
    Warm,
    /// A job of `tidewater run` with checkpoints and restarts.
    Checkpoints,
    /// Coordinator, with a journal if it can have one, servers without holders and workers.
    Plain,
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Fault {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::WorkerKilled => "worker killed",
            Self::WorkerStopped => "worker stopped",
            Self::ServerKilled => "server killed",
            Self::ServerStopped => "server stopped",
            Self::WorkerAndServerKilled => "worker and server killed",
            Self::HolderKilled => "holder killed",
            Self::CoordinatorKilled => "coordinator killed",
            Self::CoordinatorRestarted => "coordinator restarted",
            Self::CoordinatorStopped => "coordinator stopped",
            Self::Partition => "partition",
            Self::LossAndDelay => "loss and delay",
            Self::DiskFull => "disk full",
            Self::JournalDiskFull => "journal disk full",
            Self::ClockJump => "clock jump",
            Self::EndOfRun => "end of the cluster",
        }
    }
}

impl Setup {
    pub(super) const ALL: [Self; 4] = [Self::Held, Self::Checkpoints, Self::Plain, Self::Warm];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Held => "held servers",
            Self::Warm => "warm servers",
            Self::Checkpoints => "checkpoints",
            Self::Plain => "plain",
        }
    }

    /// Durability level of its tables.
    pub(super) const fn level(self) -> &'static str {
        match self {
            Self::Held | Self::Plain => "none",
            Self::Checkpoints => "checkpoint",
            Self::Warm => "warm",
        }
    }

    /// Whether its servers have holders: parent processes that start a successor of a killed server.
    pub(super) const fn has_holders(self) -> bool {
        matches!(self, Self::Held | Self::Warm)
    }

    /// Whether its coordinator has a journal, if the program offers one, so that it can be started again.
    pub(super) const fn has_journal(self) -> bool {
        matches!(self, Self::Plain | Self::Warm)
    }

    /// The faults that a cluster of this kind can have, those that it does not survive included.
    pub(super) const fn faults(self) -> &'static [Fault] {
        match self {
            Self::Held => &[
                Fault::WorkerKilled,
                Fault::WorkerStopped,
                Fault::ServerKilled,
                Fault::ServerStopped,
                Fault::WorkerAndServerKilled,
                Fault::CoordinatorStopped,
                Fault::Partition,
                Fault::LossAndDelay,
                Fault::DiskFull,
                Fault::ClockJump,
                Fault::HolderKilled,
            ],
            Self::Warm => &[
                Fault::ServerKilled,
                Fault::WorkerAndServerKilled,
                Fault::CoordinatorRestarted,
                Fault::WorkerKilled,
                Fault::WorkerStopped,
                Fault::ServerStopped,
                Fault::CoordinatorStopped,
                Fault::Partition,
                Fault::LossAndDelay,
                Fault::HolderKilled,
            ],
            Self::Checkpoints => &[
                Fault::WorkerKilled,
                Fault::WorkerStopped,
                Fault::ServerKilled,
                Fault::ServerStopped,
                Fault::WorkerAndServerKilled,
                Fault::CoordinatorKilled,
                Fault::CoordinatorStopped,
                Fault::Partition,
                Fault::LossAndDelay,
                Fault::DiskFull,
            ],
            Self::Plain => &[
                Fault::CoordinatorRestarted,
                Fault::CoordinatorStopped,
                Fault::JournalDiskFull,
                Fault::WorkerKilled,
                Fault::ServerKilled,
            ],
        }
    }

    /// Whether a cluster of this kind ends by this fault.
    pub(super) fn ends_by(self, fault: Fault) -> bool {
        match self {
            Self::Held => matches!(fault, Fault::HolderKilled | Fault::WorkerAndServerKilled),
            Self::Warm => fault == Fault::HolderKilled,
            Self::Checkpoints => false,
            Self::Plain => fault == Fault::ServerKilled,
        }
    }

    /// What the processes of the cluster promise for a fault.
    pub(super) const fn promise(self, fault: Fault) -> &'static str {
        match (self, fault) {
            (_, Fault::EndOfRun) => "all processes end without an error",
            (Self::Checkpoints, Fault::DiskFull) => {
                "training goes on; the failed checkpoint is reported; the next one follows when there is room"
            }
            (
                Self::Checkpoints,
                Fault::WorkerKilled
                | Fault::ServerKilled
                | Fault::WorkerAndServerKilled
                | Fault::CoordinatorKilled,
            ) => {
                "all start again from a checkpoint as new as the newest complete one; rows and positions are of \
                 its step; the loss is reported"
            }
            (Self::Held, Fault::ServerKilled) => {
                "each worker has an error that names the server, and begins again without tables; nothing lost or \
                 doubled in the new ones"
            }
            (Self::Warm, Fault::ServerKilled) => {
                "no worker has an error; a successor goes on with the memory; nothing lost or doubled"
            }
            (Self::Warm, Fault::WorkerAndServerKilled) => {
                "the others have no error; successors go on with the memory and the rank; nothing lost or doubled"
            }
            (Self::Held | Self::Warm, Fault::HolderKilled)
            | (Self::Held, Fault::WorkerAndServerKilled)
            | (Self::Plain, Fault::ServerKilled) => {
                "must fail: each worker ends with an error that names the server, within its deadline"
            }
            (Self::Held, Fault::DiskFull) => {
                "saves are refused with the cause, pushes go on; saves succeed when there is room"
            }
            (_, Fault::CoordinatorRestarted | Fault::JournalDiskFull) => {
                "pushes go on meanwhile; calls wait for its return; nothing lost or doubled"
            }
            (Self::Held | Self::Plain | Self::Warm, Fault::CoordinatorStopped) => {
                "pushes go on meanwhile; nothing lost or doubled"
            }
            (_, Fault::WorkerKilled) => {
                "the others go on; a successor takes its rank; nothing lost or doubled"
            }
            _ => "all go on afterwards; nothing lost or doubled",
        }
    }
}

/// Returns all `possible` faults, to be popped from the end. Those that end the cluster stand first, so that
/// they are popped last; the others are in an order of the seed.
pub(super) fn shuffled(setup: Setup, possible: &[Fault], seed: &mut Seed) -> Vec<Fault> {
    let (mut order, mut last): (Vec<Fault>, Vec<Fault>) = (Vec::new(), Vec::new());
    for &fault in possible {
        match setup.ends_by(fault) {
            true => last.push(fault),
            false => order.push(fault),
        }
    }
    for at in (1..order.len()).rev() {
        order.swap(at, seed.below(at as u64 + 1) as usize);
    }
    last.append(&mut order);
    last
}
