//! Implements the coordinator's orders and the access for saves and loads on [`ServerHandle`].

use std::os::fd::BorrowedFd;

use tidewater_protocol::ids::{ApplierId, TableId, WorkerId, WorkerThread};
use tidewater_protocol::wire::control::{DomainClock, ServerStatus, TableInfo, ThreadClock};
use tidewater_protocol::wire::refusal::Refusal;

use super::ServerHandle;
use crate::coordinator_client::Orders;
use tidewater_checkpoint::Appliers;
use tidewater_engine::apply::engine::Engine;

impl Appliers for ServerHandle {
    fn count(&self) -> u16 {
        self.appliers()
    }

    fn run(&self, applier: ApplierId, f: Box<dyn FnOnce(&mut Engine) + Send>) -> bool {
        self.with_engine(applier, f).is_ok()
    }

    fn wake(&self, applier: ApplierId) {
        if let Some(applier) = self.shared.appliers.get(usize::from(applier.0)) {
            applier.waker.wake();
        }
    }

    fn save_bytes(&self) -> usize {
        self.shared.config.save_bytes
    }

    fn release_clocks(&self, namespace: &str) -> Result<(), Refusal> {
        Self::admit(self, namespace, None).map_err(|error| error.refusal())
    }
}

impl Orders for ServerHandle {
    fn appliers(&self) -> Box<dyn Appliers + Send> {
        Box::new(self.clone())
    }

    fn create_table(&self, namespace: &str, table: &TableInfo) -> Result<(), Refusal> {
        Self::create_table(self, namespace, table).map_err(|error| error.refusal())
    }

    fn adopt_table(&self, namespace: &str, table: &TableInfo) -> Result<(), Refusal> {
        Self::adopt_table(self, namespace, table).map_err(|error| error.refusal())
    }

    fn release_table(&self, id: TableId) -> Result<(), Refusal> {
        Self::release_table(self, id).map_err(|error| error.refusal())
    }

    fn load_function(&self, namespace: &str, name: &str, module: &[u8]) -> Result<(), Refusal> {
        Self::load_function(self, namespace, name, module).map_err(|error| error.refusal())
    }

    fn remove_worker(&self, namespace: &str, worker: WorkerId) -> Result<(), Refusal> {
        Self::remove_worker(self, namespace, worker).map_err(|error| error.refusal())
    }

    fn finish_task(
        &self,
        namespace: &str,
        thread: WorkerThread,
        delivery: u64,
    ) -> Result<(), Refusal> {
        Self::finish_task(self, namespace, thread, delivery).map_err(|error| error.refusal())
    }

    fn hold_clocks(&self, namespace: &str) -> Result<Vec<DomainClock>, Refusal> {
        Self::hold_clocks(self, namespace).map_err(|error| error.refusal())
    }

    fn lose_worker(&self, namespace: &str, worker: WorkerId) -> Result<Vec<ThreadClock>, Refusal> {
        Self::lose_worker(self, namespace, worker).map_err(|error| error.refusal())
    }

    fn end_worker(
        &self,
        namespace: &str,
        worker: WorkerId,
        clocks: &[ThreadClock],
    ) -> Result<(), Refusal> {
        Self::end_worker(self, namespace, worker, clocks).map_err(|error| error.refusal())
    }

    fn read_clocks(&self, namespace: &str) -> Result<Vec<DomainClock>, Refusal> {
        Self::read_clocks(self, namespace).map_err(|error| error.refusal())
    }

    fn admit(
        &self,
        namespace: &str,
        admitted: Option<(WorkerId, Vec<DomainClock>)>,
    ) -> Result<(), Refusal> {
        Self::admit(self, namespace, admitted).map_err(|error| error.refusal())
    }

    fn end_job(&self, namespace: &str) -> Result<(), Refusal> {
        Self::end_job(self, namespace).map_err(|error| error.refusal())
    }

    fn failure(&self) -> Option<&str> {
        Self::failure(self)
    }

    fn failure_descriptor(&self) -> BorrowedFd<'_> {
        Self::failure_descriptor(self)
    }

    fn set_epoch(&self, epoch: u64) {
        Self::set_epoch(self, epoch);
    }

    fn reporter(&self) -> Box<dyn FnOnce() -> ServerStatus + Send> {
        let server = self.clone();
        Box::new(move || server.report())
    }
}
