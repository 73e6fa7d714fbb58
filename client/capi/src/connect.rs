//! Which job a session joins: the one place that decides it.

use std::ffi::OsString;
use std::path::Path;

use tidewater_client::Job;
use tidewater_client::connect::JoinConfig;
use tidewater_transport::launch::{RdmaDevice, TransportChoice, token};

use crate::abi::types::tw_status;
use crate::error::Failure;

/// What the options say of the job; the rest is the environment's.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) coordinator: Option<&'a str>,
    pub(crate) token_file: Option<&'a str>,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) rdma_device: Option<&'a str>,
    pub(crate) rank: Option<u32>,
    pub(crate) workers: Option<u32>,
    pub(crate) transport: Option<TransportChoice>,
}

/// The job: of the coordinator that the options name, else of the environment. What the options
/// say wins over the environment.
pub(crate) fn job(wanted: &Wanted<'_>) -> Result<Job, Failure> {
    let mut job = match wanted.coordinator {
        Some(coordinator) => explicit(coordinator, wanted)?,
        None => from_environment(wanted)?,
    };
    if let Some(namespace) = wanted.namespace {
        namespace.clone_into(&mut job.join.namespace);
    }
    if let Some(device) = wanted.rdma_device {
        let device: RdmaDevice = device
            .parse()
            .map_err(|e| Failure::argument(format_args!("rdma_device \"{device}\": {e}")))?;
        job.rdma_device = Some(device);
    }
    if let Some(transport) = wanted.transport {
        job.transport = transport;
    }
    Ok(job)
}

fn explicit(coordinator: &str, wanted: &Wanted<'_>) -> Result<Job, Failure> {
    let Some(file) = wanted.token_file else {
        return Err(Failure::argument(
            "a coordinator without token_file; name the file that holds the job's token",
        ));
    };
    let token = token::read_file(Path::new(file))
        .map_err(|e| Failure::new(tw_status::TW_ERR_ENVIRONMENT, e))?;
    let mut join = JoinConfig::new(coordinator, token);
    join.rank = wanted.rank;
    join.workers = wanted.workers.unwrap_or_default();
    Ok(Job::new(join, TransportChoice::Auto))
}

fn from_environment(wanted: &Wanted<'_>) -> Result<Job, Failure> {
    let told = [
        ("TIDEWATER_RANK", wanted.rank),
        ("TIDEWATER_WORKERS", wanted.workers),
    ];
    let told: Vec<(OsString, OsString)> = told
        .into_iter()
        .filter_map(|(name, number)| Some((name.into(), number?.to_string().into())))
        .collect();
    let mut vars: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    vars.retain(|(name, _)| told.iter().all(|(known, _)| known != name));
    vars.extend(told);
    Job::from_vars(vars)?.ok_or_else(|| {
        let text = "the environment names no job: start the program under `tidewater run`, set \
                    TIDEWATER_COORDINATOR and what goes with it, or give coordinator and \
                    token_file in the options";
        Failure::new(tw_status::TW_ERR_ENVIRONMENT, text)
    })
}
