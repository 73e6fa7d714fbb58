//! What a coordinator publishes besides its address: a job file, and a page of metrics.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tidewater_launch::JobFile;
use tidewater_protocol::ids::ClusterId;
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_protocol::wire::hello::{Ids, NAMESPACE_DEFAULT};
use tidewater_runtime::clock::Deadline;
use tidewater_status::{MetricsPage, Report};
use tidewater_topology::hostinfo;

use super::roles::complain;

/// Longest time for the answers behind one request of the page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(8);

/// Options of `coordinator` and `serve`.
#[derive(Debug, Clone, Args)]
pub(super) struct PublishArgs {
    /// Write a job file, mode 0600: address, token and numbers. Servers, workers (TIDEWATER_JOB=FILE)
    /// and `tidewater status` need nothing else. Without a token file a new token is drawn. The file
    /// is removed at the end.
    #[arg(long, value_name = "FILE")]
    pub(super) job_file: Option<PathBuf>,
    /// Serve metrics on this loopback address: /metrics (Prometheus text) and /status (JSON); port 0
    /// takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(super) metrics: Option<SocketAddr>,
    /// Let a service listen beyond loopback, where everything but the token travels in clear text.
    #[arg(long)]
    pub(super) plaintext: bool,
}

/// A cluster that runs in this process.
pub(super) struct Published {
    /// `HOST:PORT` by which others reach the coordinator.
    pub(super) address: String,
    /// Address by which this process reaches it.
    pub(super) local: SocketAddr,
    pub(super) token: JobToken,
    pub(super) cluster: ClusterId,
    pub(super) servers: u32,
    pub(super) workers: u32,
    /// Namespace of its jobs, if it has one only.
    pub(super) namespace: Option<String>,
}

/// What is published until this value is dropped.
pub(super) struct Publication {
    file: Option<JobFile>,
    _page: Option<MetricsPage>,
}

impl Drop for Publication {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            file.remove();
        }
    }
}

impl PublishArgs {
    /// Refuses a service that listens beyond loopback without `--plaintext`; with it, warns once.
    pub(super) fn check_open(&self, listen: SocketAddr, is_service: bool) -> Result<(), ExitCode> {
        if !is_service || listen.ip().is_loopback() {
            return Ok(());
        }
        if self.plaintext {
            super::complain(format_args!(
                "the service at {listen} is open to the network, and nothing is encrypted: models, \
                 gradients and keys can be read and changed on the way"
            ));
            return Ok(());
        }
        Err(complain(
            2,
            format_args!(
                "a service at {listen} is open to the network, and nothing is encrypted; say \
                 --plaintext if the network is private, or listen on 127.0.0.1"
            ),
        ))
    }

    /// Writes the job file and starts the page.
    pub(super) fn publish(&self, cluster: Published) -> Result<Publication, ExitCode> {
        let file = self.job_file.clone().map(|path| job_file(path, &cluster));
        if let Some(file) = &file {
            file.write().map_err(|error| complain(3, error))?;
        }
        let mut publication = Publication { file, _page: None };
        publication._page = match self.metrics {
            Some(address) => {
                let (local, token) = (cluster.local.to_string(), cluster.token);
                let read = move || {
                    tidewater_status::fetch(
                        &local,
                        &token,
                        Ids::default(),
                        Deadline::after(PAGE_TIMEOUT),
                    )
                };
                Some(page(address, read)?)
            }
            None => None,
        };
        Ok(publication)
    }
}

fn job_file(path: PathBuf, cluster: &Published) -> JobFile {
    let namespace = cluster.namespace.clone();
    JobFile {
        path,
        coordinator: cluster.address.clone(),
        token: cluster.token.clone(),
        cluster: cluster.cluster,
        servers: cluster.servers,
        workers: cluster.workers,
        namespace: namespace.unwrap_or_else(|| NAMESPACE_DEFAULT.to_owned()),
        pid: std::process::id(),
        host: hostinfo::host_name(),
    }
}

/// Starts a page of metrics and prints its address on stderr.
pub(super) fn page<E: std::fmt::Display>(
    address: SocketAddr,
    read: impl Fn() -> Result<Report, E> + Send + 'static,
) -> Result<MetricsPage, ExitCode> {
    let page = MetricsPage::serve(address, read).map_err(|error| complain(3, error))?;
    super::complain(format_args!("metrics at http://{}/metrics", page.address()));
    Ok(page)
}
