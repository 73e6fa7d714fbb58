//! A cluster inside the calling process, for a program that runs without a separate server.
//!
//! Coordinator and servers are threads of this process and behave as in processes of their own. Clients
//! reach them over shared memory. Threads of the program are the workers.

use tidewater_service::embedded::{Cluster, ClusterConfig};

use tidewater_launch::TransportChoice;

use crate::clock::SyncMode;
use crate::connect::{Job, JoinConfig};
use crate::error::ClientError;
use crate::session::Client;

/// An embedded cluster. Dropping it ends it; drop its clients first.
#[derive(Debug)]
pub struct Embedded {
    cluster: Cluster,
}

impl Embedded {
    /// Starts servers and a coordinator for `workers` workers.
    ///
    /// # Errors
    /// [`ClientError::Environment`] when threads, memory or sockets cannot be created.
    pub fn start(servers: u32, workers: u32) -> Result<Self, ClientError> {
        Self::with(&ClusterConfig {
            servers,
            workers,
            ..ClusterConfig::default()
        })
    }

    /// Starts the cluster that `config` describes.
    ///
    /// # Errors
    /// As [`Embedded::start`], and when the configured transport is verbs.
    pub fn with(config: &ClusterConfig) -> Result<Self, ClientError> {
        if config.transport == TransportChoice::Verbs {
            return Err(ClientError::Environment(
                "a cluster inside the process needs no NIC to be reached, and is not reached by \
                 one; use --transport auto, shm or tcp, or start the servers as processes of \
                 their own (tidewater run)"
                    .into(),
            ));
        }
        let cluster = Cluster::start(config);
        let cluster = cluster.map_err(|e| ClientError::Environment(e.to_string()))?;
        Ok(Self { cluster })
    }

    /// Connects a client of worker `rank` for the calling thread.
    ///
    /// # Errors
    /// As [`Job::connect`].
    pub fn client(&self, rank: u32, sync: SyncMode) -> Result<Client, ClientError> {
        let environment = self.cluster.environment();
        let mut join = JoinConfig::new(&environment.coordinator, environment.token.clone());
        join.rank = Some(rank);
        Job::new(join, environment.transport).sync(sync).connect()
    }
}
