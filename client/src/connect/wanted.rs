//! Which job a program joins, when it says something of it and leaves the rest to its environment:
//! what the language bindings connect by.

use std::ffi::OsString;
use std::path::PathBuf;

use tidewater_transport::launch::{RdmaDevice, TransportChoice, token};

use super::{Job, JoinConfig};
use crate::error::ClientError;

/// What a program says of its job. What it says wins over the environment.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// `HOST:PORT` of the coordinator; `None`: the job that the environment names.
    pub coordinator: Option<String>,
    /// The file that holds the job's token; needed with `coordinator`.
    pub token_file: Option<PathBuf>,
    /// The job's name space in a service.
    pub namespace: Option<String>,
    /// RDMA device to use.
    pub rdma_device: Option<RdmaDevice>,
    /// This worker's rank: an MPI program's own.
    pub rank: Option<u32>,
    /// Workers of the job.
    pub workers: Option<u32>,
    /// Transport of the lanes.
    pub transport: Option<TransportChoice>,
}

impl Wanted {
    /// The job. The one place that decides which.
    ///
    /// # Errors
    /// [`ClientError::Environment`]: a coordinator without a token's file, a file that cannot be
    /// read or is not private, no job in the environment, or variables that contradict each other.
    pub fn job(&self) -> Result<Job, ClientError> {
        let mut job = match &self.coordinator {
            Some(coordinator) => self.named(coordinator)?,
            None => self.of_environment()?,
        };
        if let Some(namespace) = &self.namespace {
            job.join.namespace.clone_from(namespace);
        }
        if self.rdma_device.is_some() {
            job.rdma_device.clone_from(&self.rdma_device);
        }
        job.transport = self.transport.unwrap_or(job.transport);
        Ok(job)
    }

    fn named(&self, coordinator: &str) -> Result<Job, ClientError> {
        let Some(file) = &self.token_file else {
            let what = "a coordinator without token_file; name the file that holds the job's token";
            return Err(ClientError::Environment(what.into()));
        };
        let token = token::read_file(file).map_err(|e| ClientError::Environment(e.to_string()))?;
        let mut join = JoinConfig::new(coordinator, token);
        join.rank = self.rank;
        join.workers = self.workers.unwrap_or_default();
        Ok(Job::new(join, TransportChoice::Auto))
    }

    fn of_environment(&self) -> Result<Job, ClientError> {
        let told = [
            ("TIDEWATER_RANK", self.rank),
            ("TIDEWATER_WORKERS", self.workers),
        ];
        let told: Vec<(OsString, OsString)> = told
            .into_iter()
            .filter_map(|(name, number)| Some((name.into(), number?.to_string().into())))
            .collect();
        let mut vars: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        vars.retain(|(name, _)| told.iter().all(|(known, _)| known != name));
        vars.extend(told);
        Job::from_vars(vars)?.ok_or_else(|| {
            let what = "the environment names no job: start the program under `tidewater run`, set \
                        TIDEWATER_COORDINATOR and what goes with it, or give coordinator and \
                        token_file";
            ClientError::Environment(what.into())
        })
    }
}
