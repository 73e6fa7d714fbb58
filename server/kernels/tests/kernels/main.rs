//! Row kernels against a scalar oracle, against hand-computed values, and against bits that must never
//! change.
#![allow(clippy::unwrap_used)] // helpers outside of `#[test]` functions

mod by_hand;
mod finite;
mod init;
mod oracle;
mod plain;
mod pytorch;
mod sequences;

use tidewater_kernels::RowKernel;
use tidewater_protocol::table::{Init, PushOp};

/// A row with its state, in buffers that begin at an odd address.
pub(crate) struct Line {
    kernel: RowKernel,
    payload: Vec<u8>,
    state: Vec<u8>,
}

impl Line {
    /// Creates a row of zeros.
    pub(crate) fn new(kernel: RowKernel) -> Self {
        let mut line = Self {
            payload: vec![0; kernel.row_bytes() + 1],
            state: vec![0xff; kernel.state_bytes() + 1],
            kernel,
        };
        let (payload, state) = (&mut line.payload[1..], &mut line.state[1..]);
        kernel.init_row(&Init::Zeros, 0, 0, payload, state);
        line
    }

    pub(crate) fn apply(&mut self, op: PushOp, values: &[u8]) {
        self.apply_by(self.kernel, op, values);
    }

    /// Applies a push at `factor` times the rate.
    pub(crate) fn apply_at(&mut self, factor: f64, op: PushOp, values: &[u8]) {
        self.apply_by(self.kernel.at_rate(factor), op, values);
    }

    fn apply_by(&mut self, kernel: RowKernel, op: PushOp, values: &[u8]) {
        let shifted: Vec<u8> = [0].iter().chain(values).copied().collect();
        kernel.apply(
            op,
            &mut self.payload[1..],
            &mut self.state[1..],
            &shifted[1..],
        );
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload[1..]
    }

    pub(crate) fn state(&self) -> &[u8] {
        &self.state[1..]
    }
}

pub(crate) fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

pub(crate) fn f64s(bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks_exact(8)
        .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

pub(crate) fn bytes32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

pub(crate) fn bytes64(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}
