//! Error feedback: what an encoding leaves out of a push is added to the next push of these elements
//! ([Karimireddy et al., ICML 2019](https://arxiv.org/abs/1901.09847)).
//!
//! Residuals are kept by table, operation and element, in pages: a row of a table of rows, or
//! [`RANGE_PAGE`] elements of a range table. A frame's residuals change when the frame is built, so that a
//! push that fails between two frames keeps those of the rest.

use std::collections::HashMap;

use tidewater_lanes::num::size;
use tidewater_protocol::layout::encoding::{self, PushEncoding};
use tidewater_protocol::layout::frame::FrameHeader;
use tidewater_protocol::limits::RESIDUAL_BYTES_DEFAULT;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::{DType, PushOp};

use crate::combine::Piece;
use crate::push_options::PushOptions;

/// Elements of a page of a range table.
pub const RANGE_PAGE: usize = 1024;
/// Bytes that a page counts in addition to its elements: its entry in the index.
const PAGE_BYTES: usize = 16;

/// Handle number of the table, and operation of a push. Gradients and sums have different units.
pub type PushKey = (u64, PushOp);

/// Form of the values of one push.
#[derive(Debug, Clone, Copy)]
pub struct PushForm {
    /// Table and operation of the push.
    pub key: PushKey,
    /// Type of the elements.
    pub dtype: DType,
    /// Weight and encoding as the caller gave them.
    pub options: PushOptions,
    /// Encoding of the frames: exact, whatever the options say, where residuals find no room.
    pub encoding: PushEncoding,
}

impl PushForm {
    /// Makes the form of a push with these options.
    pub fn new(key: PushKey, dtype: DType, options: PushOptions) -> Self {
        Self {
            key,
            dtype,
            options,
            encoding: options.encoding,
        }
    }

    /// Sets the flags of a frame.
    pub const fn set_flags(&self, header: &mut FrameHeader) {
        header.flags.weight = self.options.has_weight();
        header.flags.encoding = self.encoding.code();
    }
}

/// Residuals of one table and operation.
#[derive(Debug)]
struct Residuals {
    /// Elements of a page.
    page: usize,
    /// Position of a page, in pages.
    index: HashMap<u64, usize>,
    /// In the unit of value times weight.
    values: Vec<f32>,
}

/// Part of a frame with residuals: where its elements are in the frame and in `Residuals::values`.
#[derive(Debug)]
struct Kept {
    in_frame: usize,
    at: usize,
    elements: usize,
}

/// Residuals of one client, and the frame that is being built.
#[derive(Debug)]
pub struct Feedback {
    tables: HashMap<PushKey, Residuals>,
    bytes: usize,
    /// Most bytes of all residuals.
    pub bytes_max: usize,
    wanted: Vec<f64>,
    decoded: Vec<f64>,
    encoded: Vec<u8>,
    kept: Vec<Kept>,
}

impl Default for Feedback {
    fn default() -> Self {
        Self {
            tables: HashMap::new(),
            bytes: 0,
            bytes_max: RESIDUAL_BYTES_DEFAULT,
            wanted: Vec::new(),
            decoded: Vec::new(),
            encoded: Vec::new(),
            kept: Vec::new(),
        }
    }
}

impl Feedback {
    /// Makes residuals for the pages of a push. If new pages have no room, its encoding becomes
    /// [`PushEncoding::Exact`], which leaves nothing out.
    pub fn reserve(
        &mut self,
        form: &mut PushForm,
        page: usize,
        pages: impl Iterator<Item = u64> + Clone,
    ) {
        let residuals = self.tables.entry(form.key).or_insert_with(|| Residuals {
            page,
            index: HashMap::new(),
            values: Vec::new(),
        });
        let is_new = |page: &u64| !residuals.index.contains_key(page);
        let new_pages = pages.clone().filter(is_new).count();
        let bytes = new_pages.saturating_mul(page * size_of::<f32>() + PAGE_BYTES);
        if self.bytes.saturating_add(bytes) > self.bytes_max {
            form.encoding = PushEncoding::Exact;
            return;
        }
        for number in pages {
            let next = residuals.index.len();
            residuals.index.entry(number).or_insert(next);
        }
        residuals.values.resize(residuals.index.len() * page, 0.0);
        self.bytes += bytes;
    }

    /// Encodes the values of one frame with their residuals. The residuals change at
    /// [`Feedback::commit`].
    pub fn encode<'a>(
        &mut self,
        form: &PushForm,
        pieces: impl Iterator<Item = Piece<'a>>,
    ) -> &[u8] {
        let (dtype, weight) = (form.dtype, form.options.weight);
        // A push of weight 0 has no effect: it takes no residual along. Nor does one of a weight by which a
        // residual cannot be divided.
        let divides = weight >= f64::from(f32::MIN_POSITIVE);
        let residuals = self.tables.get(&form.key).filter(|_| divides);
        self.wanted.clear();
        self.kept.clear();
        for (page, offset, values) in pieces {
            let in_frame = self.wanted.len();
            widen(dtype, values, &mut self.wanted);
            let elements = self.wanted.len() - in_frame;
            let Some((residuals, at)) = residuals.and_then(|r| Some((r, *r.index.get(&page)?)))
            else {
                continue;
            };
            let at = at * residuals.page + offset;
            let kept = residuals.values.get(at..at + elements).unwrap_or_default();
            for (value, kept) in self.wanted.iter_mut().skip(in_frame).zip(kept) {
                *value += f64::from(*kept) / weight;
            }
            self.kept.push(Kept {
                in_frame,
                at,
                elements,
            });
        }
        self.decoded.clone_from(&self.wanted);
        encoding::encode(form.encoding, dtype, &mut self.decoded, &mut self.encoded);
        &self.encoded
    }

    /// Keeps what the last frame leaves out.
    pub fn commit(&mut self, form: &PushForm) {
        let Some(residuals) = self.tables.get_mut(&form.key) else {
            return;
        };
        if on(Mutant::FeedbackDropped) {
            return;
        }
        let lost = |(wanted, decoded): (&f64, &f64)| {
            encoding::saturated((wanted - decoded) * form.options.weight)
        };
        for part in &self.kept {
            let frame = part.in_frame..part.in_frame + part.elements;
            let to = residuals.values.get_mut(part.at..part.at + part.elements);
            let from = (self.wanted.get(frame.clone()), self.decoded.get(frame));
            if let (Some(to), (Some(wanted), Some(decoded))) = (to, from) {
                let lost = wanted.iter().zip(decoded).map(lost);
                to.iter_mut().zip(lost).for_each(|(to, lost)| *to = lost);
            }
        }
    }

    /// Drops the residuals of a table.
    pub fn forget(&mut self, handle: u64) {
        let gone = |key: &PushKey, _: &mut Residuals| key.0 == handle;
        for (_, residuals) in self.tables.extract_if(gone) {
            let page = residuals.page * size_of::<f32>() + PAGE_BYTES;
            self.bytes -= residuals.index.len() * page;
        }
    }

    /// Drops the residuals of all tables.
    pub fn clear(&mut self) {
        *self = Self {
            bytes_max: self.bytes_max,
            ..Self::default()
        };
    }

    /// Drops the residuals of some rows of a table.
    pub fn forget_rows(&mut self, handle: u64, keys: &[u64]) {
        let of_table = |entry: &(&PushKey, &mut Residuals)| entry.0.0 == handle;
        for (_, residuals) in self.tables.iter_mut().filter(of_table) {
            for key in keys {
                let Some(&at) = residuals.index.get(key) else {
                    continue;
                };
                let row = at * residuals.page..(at + 1) * residuals.page;
                if let Some(values) = residuals.values.get_mut(row) {
                    values.fill(0.0);
                }
            }
        }
    }
}

/// Pages that a range of a range table touches.
pub fn range_pages(first: u64, elements: usize) -> impl Iterator<Item = u64> + Clone {
    let page = RANGE_PAGE as u64;
    let end = (first + elements as u64).div_ceil(page);
    first / page..end.max(first / page)
}

/// Cuts the elements `first ..` of a range table at the ends of pages.
pub fn range_pieces(
    first: u64,
    values: &[u8],
    element_bytes: usize,
) -> impl Iterator<Item = Piece<'_>> {
    let page = RANGE_PAGE as u64;
    let (mut at, mut rest) = (first, values);
    std::iter::from_fn(move || {
        let offset = size(at % page);
        let elements = (RANGE_PAGE - offset).min(rest.len() / element_bytes);
        let (now, later) = rest.split_at_checked(elements * element_bytes)?;
        let piece = (at / page, offset, now);
        (at, rest) = (at + elements as u64, later);
        (elements > 0).then_some(piece)
    })
}

fn widen(dtype: DType, bytes: &[u8], out: &mut Vec<f64>) {
    match dtype {
        DType::F64 => out.extend(bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b))),
        _ => {
            let values = bytes.as_chunks().0.iter();
            out.extend(values.map(|b| f64::from(f32::from_le_bytes(*b))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: PushKey = (7, PushOp::Gradient);

    fn form(encoding: PushEncoding, weight: f64) -> PushForm {
        let options = PushOptions::default().weight(weight).encoding(encoding);
        PushForm::new(KEY, DType::F32, options)
    }

    /// Pushes `value` to one element of a page of its own; returns what arrives.
    fn push(feedback: &mut Feedback, wanted: PushEncoding, weight: f64, value: f32) -> f64 {
        let mut form = form(wanted, weight);
        feedback.reserve(&mut form, 1, [3].into_iter());
        let bytes = value.to_le_bytes();
        let pieces = [(3, 0, &bytes[..])].into_iter();
        feedback.encode(&form, pieces);
        let arrived = feedback.decoded[0];
        feedback.commit(&form);
        arrived
    }

    #[test]
    fn sums_differ_by_one_rounding() {
        for encoding in [PushEncoding::Bf16, PushEncoding::F16, PushEncoding::INT8] {
            let mut feedback = Feedback::default();
            let (mut pushed, mut arrived) = (0.0, 0.0);
            for step in 0..1000u16 {
                let value = (f32::from(step) * 0.7).sin() / 3.0;
                pushed += f64::from(value);
                arrived += push(&mut feedback, encoding, 1.0, value);
                assert!((pushed - arrived).abs() < 0.002, "{encoding:?}: {step}");
            }
        }
    }

    /// What a push of weight 2 leaves out is half of it in a push of weight 4.
    #[test]
    fn residuals_are_in_the_unit_of_weighted_values() {
        let mut feedback = Feedback::default();
        let third = 1.0f32 / 3.0;
        let mut sums = (0.0, 0.0);
        for weight in [2.0, 4.0, 0.5, 8.0] {
            sums.0 += weight * f64::from(third);
            sums.1 += weight * push(&mut feedback, PushEncoding::Bf16, weight, third);
            assert!(
                (sums.0 - sums.1).abs() < 0.001 * weight,
                "{weight}: {sums:?}"
            );
        }
        let before = push(&mut feedback, PushEncoding::Bf16, 0.0, third);
        let again = push(&mut feedback, PushEncoding::Bf16, 0.0, third);
        assert_eq!(
            before.to_bits(),
            again.to_bits(),
            "weight 0 takes nothing along"
        );
    }

    /// The encoding of a push to these pages.
    fn reserved(feedback: &mut Feedback, wanted: PushEncoding, pages: &[u64]) -> PushEncoding {
        let mut form = form(wanted, 1.0);
        feedback.reserve(&mut form, 1, pages.iter().copied());
        form.encoding
    }

    #[test]
    fn pages_without_room_make_a_push_exact() {
        let mut feedback = Feedback {
            bytes_max: 2 * (4 + PAGE_BYTES),
            ..Feedback::default()
        };
        let wanted = PushEncoding::F16;
        let mut reserve = |pages: &[u64]| reserved(&mut feedback, wanted, pages);
        assert_eq!(reserve(&[1, 2, 3]), PushEncoding::Exact);
        assert_eq!(reserve(&[1, 2]), wanted);
        assert_eq!(reserve(&[2, 1]), wanted);
        assert_eq!(reserve(&[2, 3]), PushEncoding::Exact);
        feedback.forget(7);
        assert_eq!(feedback.bytes, 0);
        let mut reserve = |pages: &[u64]| reserved(&mut feedback, wanted, pages);
        assert_eq!(reserve(&[3, 4]), wanted);
    }

    /// An exact push takes along what encoded ones have left out.
    #[test]
    fn exact_push_takes_residuals_along() {
        let mut feedback = Feedback::default();
        let third = 1.0f32 / 3.0;
        let arrived = push(&mut feedback, PushEncoding::Bf16, 1.0, third);
        let rest = push(&mut feedback, PushEncoding::Exact, 1.0, third);
        assert!((arrived + rest - 2.0 * f64::from(third)).abs() < 1e-7);
    }

    #[test]
    fn ranges_are_cut_at_pages() {
        let values = vec![0u8; 4 * 2500];
        let cut: Vec<_> = range_pieces(1000, &values, 4)
            .map(|(page, offset, values)| (page, offset, values.len() / 4))
            .collect();
        assert_eq!(
            cut,
            [(0, 1000, 24), (1, 0, 1024), (2, 0, 1024), (3, 0, 428)]
        );
        assert_eq!(range_pieces(5, &[], 8).count(), 0);
    }
}
