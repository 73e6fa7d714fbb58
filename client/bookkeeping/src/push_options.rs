//! Options of a push: its weight, and the encoding of its values.

use tidewater_protocol::layout::encoding::PushEncoding;
use tidewater_protocol::layout::frame::WEIGHT_BYTES;
use tidewater_protocol::limits::{ENCODING_BLOCK_MAX, ENCODING_BLOCK_MIN};
use tidewater_protocol::table::{Apply, PushOp, TableSpec};

/// Options of a push. The default is a push of exact values with weight 1; its frames are those of a push
/// without options.
///
/// # Example
/// ```
/// use tidewater_bookkeeping::push_options::PushOptions;
/// use tidewater_protocol::layout::encoding::PushEncoding;
///
/// let options = PushOptions::default().weight(0.25).encoding(PushEncoding::Bf16);
/// assert_eq!(options.weight, 0.25);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PushOptions {
    /// Weight of the push: 0, or a normal number above 0 of the table's element type. For gradients and sums of
    /// floating-point tables.
    ///
    /// On arrival the learning rate of a gradient is multiplied by it, and the values of a sum. Weight 0
    /// changes optimizer state only. At the tick, gradients and sums are multiplied by their weights
    /// before they are added; a mean is divided by the weights of the workers that pushed. A worker with
    /// several pushes of a row or block counts with the largest of their weights. If all weights are 0,
    /// a mean takes no step.
    pub weight: f64,
    /// Encoding of the values on their way. For gradients and sums of floating-point tables; every value
    /// must be finite.
    ///
    /// What an encoding leaves out of a push is kept by the client, in the unit of value times weight, and
    /// added to its next encoded push of these elements by the same operation: the sum of what arrives
    /// differs from the sum of what was pushed by no more than one rounding. Residuals take 4 bytes an
    /// element, up to `Client::set_residual_bytes_max`. Values
    /// beyond the range of the encoding saturate; those beyond the range of `f32` lose the excess. Refused inside a
    /// task, which may be dropped.
    pub encoding: PushEncoding,
}

impl Default for PushOptions {
    fn default() -> Self {
        Self {
            weight: 1.0,
            encoding: PushEncoding::Exact,
        }
    }
}

impl PushOptions {
    /// Sets the weight of the push.
    #[must_use]
    pub const fn weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// Sets the encoding of the values.
    #[must_use]
    pub const fn encoding(mut self, encoding: PushEncoding) -> Self {
        self.encoding = encoding;
        self
    }

    /// Whether frames carry the weight: a weight of 1 is that of a push without one.
    pub const fn has_weight(&self) -> bool {
        self.weight != 1.0
    }

    /// Whether frames carry encoded values.
    pub const fn is_encoded(&self) -> bool {
        self.encoding.code().is_some()
    }

    /// Bytes of the weight in a frame.
    pub const fn weight_bytes(&self) -> usize {
        if self.has_weight() { WEIGHT_BYTES } else { 0 }
    }

    /// Writes the weight to the end of a payload, if frames carry it. Returns the payload before it.
    pub fn fill_weight<'a>(&self, payload: &'a mut [u8]) -> &'a mut [u8] {
        let before = payload.len().saturating_sub(self.weight_bytes());
        let (before, weight) = payload.split_at_mut(before);
        if let Some(to) = weight.first_chunk_mut() {
            *to = self.weight.to_le_bytes();
        }
        before
    }

    /// Checks operation and options of a push to a table.
    ///
    /// # Errors
    /// A text that names the operation or option and what it is for.
    pub fn check(&self, spec: &TableSpec, op: PushOp) -> Result<(), String> {
        if !op.has_ticks() && spec.effect != Apply::Immediate {
            return Err(format!(
                "{op:?} takes effect on arrival, and the pushes of this table at ticks; use a table with immediate \
                 effect, or all_reduce"
            ));
        }
        if !self.has_weight() && !self.is_encoded() {
            return Ok(());
        }
        let given = match self.is_encoded() {
            true => format!("encoding {:?}", self.encoding),
            false => format!("weight {}", self.weight),
        };
        if !spec.dtype.is_float() {
            let dtype = spec.dtype;
            return Err(format!(
                "{given} is for floats, and the table holds {dtype:?}"
            ));
        }
        if !op.adds_up() {
            return Err(format!(
                "{given} is for gradients and sums; push {op:?} without it"
            ));
        }
        if !self.encoding.is_valid() {
            return Err(format!(
                "{given} needs blocks of {ENCODING_BLOCK_MIN} to {ENCODING_BLOCK_MAX} elements"
            ));
        }
        if let Some(weights) = spec.dtype.weights()
            && !spec.dtype.is_weight(self.weight)
        {
            let (weight, dtype) = (self.weight, spec.dtype);
            let (least, most) = weights.into_inner();
            return Err(format!(
                "weight {weight:?} must be finite and not below 0: 0, or a normal number of {dtype:?}, {least:e} to \
                 {most:e}"
            ));
        }
        Ok(())
    }
}
