//! Selects the job that a program joins, from its options, its environment and its launcher. The
//! language bindings connect by this.
//!
//! A program that counts its processes itself (by MPI, say) may count differently from its launcher.
//! Under another MPI's launcher, an MPI library makes each process believe to be alone. This module
//! detects that: it would be as many jobs of one as there are processes, or one without waits.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tidewater_launch::rendezvous;
use tidewater_launch::{
    Decision, Explicit, LaunchEnv, Place, RdmaDevice, RdmaTimeout, TransportChoice, detect, token,
};
use tidewater_protocol::limits::GATHER_TIMEOUT;
use tidewater_protocol::wire::control::Part;
use tidewater_runtime::clock::Deadline;

use super::{Job, JoinConfig};
use crate::error::ClientError;

/// Job options that a program gives. They override the environment.
#[derive(Debug, Clone, Default)]
pub struct JoinOptions {
    /// `HOST:PORT` of the coordinator; `None`: the job that the environment names.
    pub coordinator: Option<String>,
    /// File that holds the job's token; needed with `coordinator`.
    pub token_file: Option<PathBuf>,
    /// Namespace of the job in a service.
    pub namespace: Option<String>,
    /// RDMA device to use for lanes over verbs.
    pub rdma_device: Option<RdmaDevice>,
    /// Rank of this worker, as an MPI program knows it.
    pub rank: Option<u32>,
    /// Number of workers of the job.
    pub workers: Option<u32>,
    /// Transport of the lanes.
    pub transport: Option<TransportChoice>,
    /// Longest time until all processes are reachable; `None`: a minute.
    pub join_timeout: Option<Duration>,
}

/// Variables of an environment.
type Vars = Vec<(OsString, OsString)>;

impl JoinOptions {
    /// Selects the job: the one that the program names, the one that `TIDEWATER_*` names, or that of
    /// the processes that a launcher started with this one. No other function decides this.
    ///
    /// # Errors
    /// [`ClientError::Environment`]: a coordinator without a token file; a token file that is
    /// unreadable or not private; no job found; contradictory variables; a launcher that counts this
    /// process differently from the program. [`ClientError::Launch`]: the launched processes do not
    /// meet; names the missing ones.
    ///
    /// # Cost
    /// In a launched job it waits for all its processes.
    pub fn job(&self) -> Result<Job, ClientError> {
        self.job_from_vars(std::env::vars_os())
    }

    /// Like [`JoinOptions::job`], from the given variables.
    ///
    /// # Errors
    /// As [`JoinOptions::job`].
    pub fn job_from_vars(
        &self,
        vars: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Job, ClientError> {
        let vars: Vars = vars.into_iter().collect();
        let mut job = match &self.coordinator {
            Some(coordinator) => {
                self.is_not_one_of_many(&vars)?;
                self.named(coordinator, vars)?
            }
            None => self.found(vars)?,
        };
        if let Some(namespace) = &self.namespace {
            job.join.namespace.clone_from(namespace);
        }
        if self.rdma_device.is_some() {
            job.rdma_device.clone_from(&self.rdma_device);
        }
        job.transport = self.transport.unwrap_or(job.transport);
        job.join_timeout = self.join_timeout.unwrap_or(job.join_timeout);
        Ok(job)
    }

    /// The job of a program that names no coordinator: that of `TIDEWATER_*`, or of a launcher.
    fn found(&self, vars: Vars) -> Result<Job, ClientError> {
        match decide(vars.clone())? {
            Decision::Launched(place) if place.size > 1 => self.launched(&place),
            Decision::Launched(place) => {
                let what = format!(
                    "{} has started this process alone, and a job needs servers: {BESIDE}",
                    place.source
                );
                Err(ClientError::Environment(what))
            }
            _ => {
                self.is_not_one_of_many(&vars)?;
                self.of_environment(vars)
            }
        }
    }

    /// Joins the processes that a launcher started, as a worker.
    fn launched(&self, place: &Place) -> Result<Job, ClientError> {
        let Place {
            source, rank, size, ..
        } = place;
        if *rank == 0 {
            let what = format!(
                "this is rank 0 of {size} of {source}, which keeps the job's coordinator, and this \
                 library has none: servers come first: {BESIDE}"
            );
            return Err(ClientError::Environment(what));
        }
        let deadline = Deadline::after(self.join_timeout.unwrap_or(GATHER_TIMEOUT));
        let seat = rendezvous::register(place, Part::Worker, deadline);
        let seat = seat.map_err(|error| ClientError::Launch(error.to_string()))?;
        let (number, workers) = (seat.numbers.number, seat.numbers.workers);
        let said = (self.rank.unwrap_or(number), self.workers.unwrap_or(workers));
        if said != (number, workers) {
            let what = format!(
                "the program says that it is worker {} of {}, and as rank {rank} of {size} of {source} \
                 it is worker {number} of {workers}. {PAIRING} Else leave rank and workers to the \
                 launcher",
                said.0, said.1
            );
            return Err(ClientError::Environment(what));
        }
        Ok(Job::of_seat(&seat)?.keeping(seat))
    }

    /// Fails if a program that claims to be its job's only worker was started with others: they would
    /// all claim so. A namespace of its own makes it a job of its own.
    fn is_not_one_of_many(&self, vars: &Vars) -> Result<(), ClientError> {
        let is_child = |(name, _): &(OsString, OsString)| name == "TIDEWATER_JOB";
        if self.workers != Some(1) || self.namespace.is_some() || vars.iter().any(is_child) {
            return Ok(());
        }
        let mut theirs = vars.clone();
        theirs.retain(|(name, _)| !name.as_encoded_bytes().starts_with(b"TIDEWATER_"));
        let Ok(Decision::Launched(place)) = decide(theirs) else {
            return Ok(());
        };
        if place.size == 1 {
            return Ok(());
        }
        let Place {
            source, rank, size, ..
        } = place;
        let what = format!(
            "the program says that it is the job's only worker, and {source} says that it is rank \
             {rank} of {size}. {PAIRING} If each process is to have a job of its own, give each a \
             namespace of its own"
        );
        Err(ClientError::Environment(what))
    }

    fn named(&self, coordinator: &str, vars: Vars) -> Result<Job, ClientError> {
        let Some(file) = &self.token_file else {
            let what = "a coordinator without token_file; name the file that holds the job's token";
            return Err(ClientError::Environment(what.into()));
        };
        let token = token::read_file(file).map_err(|e| ClientError::Environment(e.to_string()))?;
        let mut join = JoinConfig::new(coordinator, token);
        join.rank = self.rank;
        join.workers = self.workers.unwrap_or_default();
        let mut job = Job::new(join, TransportChoice::Auto);
        let timeout = RdmaTimeout::from_vars(vars);
        let timeout = timeout.map_err(|e| ClientError::Environment(e.to_string()))?;
        job.rdma_timeout = timeout.unwrap_or_default();
        Ok(job)
    }

    fn of_environment(&self, mut vars: Vars) -> Result<Job, ClientError> {
        let told = [
            ("TIDEWATER_RANK", self.rank),
            ("TIDEWATER_WORKERS", self.workers),
        ];
        let told: Vars = told
            .into_iter()
            .filter_map(|(name, number)| Some((name.into(), number?.to_string().into())))
            .collect();
        vars.retain(|(name, _)| told.iter().all(|(known, _)| known != name));
        vars.extend(told);
        Job::from_vars(vars)?.ok_or_else(|| {
            let what = "the environment names no job: start the program under `tidewater run` or with \
                        servers under mpirun or srun, set TIDEWATER_COORDINATOR and what goes with it, \
                        or give coordinator and token_file";
            ClientError::Environment(what.into())
        })
    }
}

/// Ways to start servers for a launched program.
const BESIDE: &str = "start it as in `mpirun -n 2 tidewater server : -n 4 PROGRAM`, or run \
                      `tidewater serve` beside it and set TIDEWATER_COORDINATOR";

/// Explains why a program and its launcher count differently.
const PAIRING: &str = "If it takes its number from an MPI library, that one does not belong to this \
                       launcher: start it with its own MPI's mpirun (`ldd PROGRAM` shows which).";

fn decide(vars: Vars) -> Result<Decision, ClientError> {
    let around = LaunchEnv::of(vars, Explicit::default());
    let around = around.map_err(|error| {
        ClientError::Environment(format!("there is no working directory: {error}"))
    })?;
    let decision = detect(&around).decision;
    decision.map_err(|error| ClientError::Environment(error.to_string()))
}
