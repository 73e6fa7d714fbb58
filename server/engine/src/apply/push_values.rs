//! The values of a push: their weight, the factor of their step, and their encoding.

use tidewater_protocol::layout::encoding;
use tidewater_protocol::layout::frame::{
    FrameFlags, FrameHeader, FrameKind, RowsPayload, WEIGHT_BYTES,
};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::{DType, PushOp};

use super::Refusal;
use super::engine::{Effect, Engine};
use super::push::{FIRST_BYTES, operation, word, wrong_length, wrong_operation};
use super::table::Table;
use crate::namespace::FrameSender;
use tidewater_kernels::{all_finite_scaled, scale};

/// Reads the weight at the end of a push's payload; 1 for a push without one.
///
/// # Panics
/// If the payload ends before it: callers check its length first.
pub(super) fn weight_of(header: &FrameHeader, payload: &[u8]) -> f64 {
    if !header.flags.weight || mutants::on(Mutant::WeightIgnored) {
        return 1.0;
    }
    let weight = f64::from_bits(word(payload, payload.len() - WEIGHT_BYTES));
    match mutants::on(Mutant::WeightUsedTwice) {
        true => weight * weight,
        false => weight,
    }
}

/// Splits the weight off the end of a push's payload. Returns the payload before the weight, and the weight; 1
/// for a push without one. Refuses a weight that is below 0, or is not finite in the table's element type, and
/// a payload that is shorter than a weight.
pub(super) fn split_weight<'a>(
    table: &Table,
    header: &FrameHeader,
    payload: &'a [u8],
) -> Result<(&'a [u8], f64), Refusal> {
    if !header.flags.weight {
        return Ok((payload, 1.0));
    }
    let (rest, weight) = payload
        .split_last_chunk::<WEIGHT_BYTES>()
        .ok_or(wrong_length(payload, WEIGHT_BYTES))?;
    if table.spec.dtype.is_weight(f64::from_le_bytes(*weight)) {
        return Ok((rest, weight_of(header, payload)));
    }
    Err(wrong_operation(header))
}

/// Check that each value of a push is finite, also multiplied by the push's weight where the table stores
/// or adds the product.
#[derive(Debug, Clone, Copy)]
pub(super) struct FiniteCheck {
    is_on: bool,
    /// Factor that values are multiplied by before they are stored or added.
    by: f64,
}

impl FiniteCheck {
    pub(super) fn of(table: &Table, op: PushOp, weight: f64) -> Self {
        // The weight of a gradient that takes effect on arrival is a factor of its rate.
        let is_product = table.at_clock() || op == PushOp::Sum;
        Self {
            is_on: table.spec.finite_check,
            by: if is_product { weight } else { 1.0 },
        }
    }

    pub(super) fn accepts(self, table: &Table, values: &[u8]) -> bool {
        match (self.is_on, self.by == 1.0) {
            (false, _) => true,
            (true, true) => table.kernel().all_finite(values),
            (true, false) => all_finite_scaled(table.spec.dtype, values, self.by),
        }
    }
}

/// Returns the values of a sum multiplied by `factor`. The product replaces the contents of `room`, scratch
/// memory. For other operations, and for factor 1, `values` are returned and `room` is not changed.
pub(super) fn scale_sum<'a>(
    dtype: DType,
    op: PushOp,
    values: &'a [u8],
    factor: f64,
    room: &'a mut Vec<u8>,
) -> &'a [u8] {
    if op != PushOp::Sum || factor == 1.0 {
        return values;
    }
    room.clear();
    room.extend_from_slice(values);
    scale(dtype, room, factor);
    room
}

impl Engine {
    /// Factor of a push that takes effect on arrival: its `weight`. On a table with `by_staleness`, the weight of
    /// a gradient is divided by the gradient's staleness in clocks, if this is above 1 and the sender is a
    /// member of the table's domain.
    pub(super) fn factor(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
        op: PushOp,
        weight: f64,
    ) -> Result<f64, Refusal> {
        let spec = &self.known(sender.namespace, header.table)?.spec;
        if !spec.gradient.by_staleness || op != PushOp::Gradient {
            return Ok(weight);
        }
        let domain = spec.domain;
        let clocks = self.clocks(sender.namespace);
        // Sessions that are no member do not tick.
        if clocks.clock(domain, sender.thread).is_none() {
            return Ok(weight);
        }
        let lag = clocks.lag(domain, header.clock);
        let lag = lag + u64::from(mutants::on(Mutant::StalenessOffByOne));
        Ok(weight / lag.max(1) as f64)
    }

    /// Decodes the values of an encoded push, then applies or holds the push as one without an encoding. The
    /// decoded values have at most 8 times the bytes of the encoded ones.
    pub(super) fn push_encoded(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Effect, Refusal> {
        let mut decoded = std::mem::take(&mut self.decoded);
        decoded.clear();
        let header = self.decode_push(sender, header, payload, &mut decoded);
        let done = header.and_then(|header| match header.kind {
            FrameKind::PushDense => self.push_range(sender, &header, &decoded),
            FrameKind::PushRows => self.push_rows(sender, &header, &decoded),
            _ => Err(wrong_operation(&header)),
        });
        self.decoded = decoded;
        done
    }

    /// Fills `out`, which must be empty, with the payload of an encoded push, its values decoded. Returns the
    /// header of the plain push. Panics if the push has no encoding.
    fn decode_push(
        &self,
        sender: FrameSender,
        header: &FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<FrameHeader, Refusal> {
        let table = self.known(sender.namespace, header.table)?;
        operation(table, header)?;
        let Some(code) = header.flags.encoding else {
            unreachable!("the push has no encoding: {header:?}");
        };
        let count = header.count as usize;
        // Before any arithmetic on `count`: an element has at least a byte.
        if count > payload.len() {
            return Err(wrong_length(payload, count));
        }
        let (values_at, elements) = match header.kind {
            FrameKind::PushDense => (FIRST_BYTES, count),
            _ => {
                let parts = RowsPayload::new(count, 0, header.flags.locs);
                (parts.values_at, count * table.spec.dim())
            }
        };
        let weight = usize::from(header.flags.weight) * WEIGHT_BYTES;
        let values = payload.len().checked_sub(values_at + weight);
        let values = values.ok_or(wrong_length(payload, values_at + weight))?;
        let (before, rest) = payload.split_at(values_at);
        let (values, after) = rest.split_at(values);
        out.extend_from_slice(before);
        encoding::decode(code, elements, table.spec.dtype, values, out)
            .map_err(|expected| wrong_length(payload, values_at + expected + weight))?;
        out.extend_from_slice(after);
        let flags = FrameFlags {
            encoding: None,
            ..header.flags
        };
        Ok(FrameHeader {
            flags,
            payload_len: out.len() as u32,
            ..*header
        })
    }
}
