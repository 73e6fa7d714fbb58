//! One worker's step: pull, gradient, push, tick.

use std::collections::VecDeque;
use std::time::Instant;

use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock;

use super::error::TrainError;
use super::latency::{Kind, Latencies};
use super::model::{BatchLoss, LogisticConfig, LogisticStep};
use crate::data::Batch;
use tidewater::error::ClientError;
use tidewater::pull::PullOptions;
use tidewater::push::Ticket;
use tidewater::session::Client;
use tidewater::table::Table;

/// Most pushes under way. Enough that a step does not wait for the one before it; few enough that the
/// weights of an asynchronous run miss only the last few own gradients.
const PUSHES_IN_FLIGHT_MAX: usize = 4;

/// State of a worker. It keeps its buffers: steps of the usual size allocate nothing.
#[derive(Debug)]
pub(crate) struct Worker {
    step: LogisticStep,
    weights: Vec<f32>,
    pushes: VecDeque<(Ticket, Instant)>,
    pub(crate) latencies: Latencies,
}

impl Worker {
    pub(crate) fn new(model: LogisticConfig) -> Self {
        Self {
            step: LogisticStep::new(model),
            weights: Vec::new(),
            pushes: VecDeque::with_capacity(PUSHES_IN_FLIGHT_MAX),
            latencies: Latencies::new(),
        }
    }

    /// Takes a step with a batch, and sets the worker's position after it if there is one. An empty batch
    /// only ticks, so that the others continue.
    pub(crate) fn step(
        &mut self,
        client: &mut Client,
        table: &Table<f32>,
        batch: &Batch<'_>,
        position: Option<&[u8]>,
    ) -> Result<BatchLoss, TrainError> {
        let mut loss = BatchLoss::default();
        if !batch.is_empty() {
            let keys = self.step.prepare(batch);
            self.weights.resize(keys.len(), 0.0);
            let began = clock::now();
            client.pull_rows(table, keys, &mut self.weights, PullOptions::default())?;
            self.latencies.record(Kind::Pull, clock::now() - began);
            loss = self.step.compute(batch, &self.weights)?;
            self.push(client, table)?;
        }
        if let Some(position) = position {
            client.set_position(position)?;
        }
        client.tick()?;
        Ok(loss)
    }

    fn push(&mut self, client: &mut Client, table: &Table<f32>) -> Result<(), ClientError> {
        self.collect(client, PUSHES_IN_FLIGHT_MAX - 1)?;
        let began = clock::now();
        let (keys, gradient) = (self.step.keys(), self.step.gradient());
        let ticket = client.push_rows(table, keys, gradient, PushOp::Gradient)?;
        self.latencies.record(Kind::Push, clock::now() - began);
        self.pushes.push_back((ticket, began));
        Ok(())
    }

    /// Waits until everything pushed is applied.
    pub(crate) fn settle(&mut self, client: &mut Client) -> Result<(), ClientError> {
        self.collect(client, 0)
    }

    /// Collects applied pushes, and waits for the oldest while more than `most` are under way.
    fn collect(&mut self, client: &mut Client, most: usize) -> Result<(), ClientError> {
        while let Some((ticket, began)) = self.pushes.front() {
            if !client.try_applied(ticket)? {
                if self.pushes.len() <= most {
                    break;
                }
                client.wait_applied(ticket)?;
            }
            self.latencies.record(Kind::Applied, clock::now() - *began);
            self.pushes.pop_front();
        }
        Ok(())
    }
}
