//! The cluster that is measured.
#[path = "rig.rs"]
#[allow(clippy::all, clippy::unwrap_used, missing_docs, clippy::missing_panics_doc)]
mod rig;
use crate::args::Options;
use crate::error::BenchError;
use tidewater_client::{Client, Sync};
/// Bed
pub struct Bed(rig::Cluster);
impl Bed {
    /// Start
    pub fn start(options: &Options) -> Result<Self, BenchError> {
        Ok(Self(rig::Cluster::start(options.transport.kind(), options.servers, options.appliers, 1)))
    }
    /// Client
    pub fn client(&self) -> Result<Client, BenchError> { Ok(self.0.client(0, Sync::Asp)) }
    /// Ring
    pub fn ring_bytes(&self) -> usize { rig::RING_BYTES }
}
