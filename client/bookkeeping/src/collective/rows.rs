//! Rows in which the values of collective calls travel, and their headers.

use tidewater_protocol::ids::{DomainId, WorkerId};
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::{
    Apply, DType, DenseLayout, GradientOptions, Init, KeyOptions, Optimizer, Shape,
    TRANSIENT_TABLES, TableSpec,
};
use tidewater_protocol::wire::control::Arrival;

use super::ReduceOp;
use super::error::CollectiveError;

/// Words of a row before its values: round, call, elements, part.
const HEADER_WORDS: usize = 4;
/// Buffers of a worker's rows, used by turns.
const BUFFERS: u64 = 2;

/// One of the two tables of the collective calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsOf {
    /// Rows of the first round of a call. One row a worker: a call of a few values is one round.
    First,
    /// Rows of the further rounds. Several short rows a worker, which fit the smallest ring.
    Further,
}

impl RowsOf {
    const fn words(self) -> usize {
        match self {
            Self::First => 64,
            Self::Further => 256,
        }
    }

    /// Rows of a worker in one round.
    const fn rows(self) -> u64 {
        match self {
            Self::First => 1,
            Self::Further => 16,
        }
    }

    /// Bytes of values in a row.
    pub const fn row_bytes(self) -> usize {
        (self.words() - HEADER_WORDS) * size_of::<i64>()
    }

    /// Bytes of values of a worker in one round.
    pub const fn round_bytes(self) -> usize {
        self.row_bytes() * self.rows() as usize
    }

    /// The definition of the table, for a job of open size if `workers` is 0. It is in clock domain 0, which
    /// every job has, and reads of it wait for no clock.
    pub fn spec(self, workers: u32) -> TableSpec {
        let (name, partitions) = match self {
            Self::First => (TRANSIENT_TABLES[0], 1),
            Self::Further => (TRANSIENT_TABLES[1], 64),
        };
        TableSpec {
            name: name.to_owned(),
            shape: match workers {
                0 => Shape::Sparse {
                    dim: self.words() as u32,
                },
                _ => Shape::Dense {
                    rows: u64::from(workers) * BUFFERS * self.rows(),
                    cols: self.words() as u32,
                    layout: DenseLayout::Rows,
                },
            },
            dtype: DType::I64,
            optimizer: Optimizer::None,
            gradient: GradientOptions::default(),
            redo: false,
            keys: KeyOptions::default(),
            versions: 2,
            durability: Default::default(),
            partition_servers: None,
            partition_starts: None,
            init: Init::Zeros,
            seed: 0,
            effect: Apply::Immediate,
            finite_check: true,
            domain: DomainId(0),
            partitions,
        }
    }

    /// Indices, or in a job of open size keys, of the rows of a worker in a round with `bytes` of values. A
    /// round without values has a row, too.
    pub fn keys(self, round: u64, workers: u32, rank: u32, bytes: usize) -> Vec<u64> {
        let buffer = match on(Mutant::CollectiveOneBuffer) {
            true => 0,
            false => round % BUFFERS,
        };
        // The round after the first one of a later worker is that of the others: it may use either buffer.
        let first = match (workers, round) {
            (0, 1) => u64::from(rank) * (BUFFERS + 1) + BUFFERS,
            (0, _) => u64::from(rank) * (BUFFERS + 1) + buffer,
            _ => buffer * u64::from(workers) + u64::from(rank),
        };
        let first = first * self.rows();
        let rows = bytes.div_ceil(self.row_bytes()).max(1) as u64;
        (first..first + rows).collect()
    }

    /// Makes the rows of `values`, each with the header, and appends them to `to`.
    pub fn pack(self, header: Header, values: &[u8], to: &mut Vec<i64>) {
        let rows = values.len().div_ceil(self.row_bytes()).max(1);
        for row in 0..rows {
            let from = (row * self.row_bytes()).min(values.len());
            let part = &values[from..values.len().min(from + self.row_bytes())];
            to.extend(header.words());
            let words = part.chunks(size_of::<i64>()).map(|bytes| {
                let mut word = [0; size_of::<i64>()];
                word[..bytes.len()].copy_from_slice(bytes);
                i64::from_le_bytes(word)
            });
            let filled = part.len().div_ceil(size_of::<i64>());
            to.extend(words);
            to.extend(std::iter::repeat_n(0, self.words() - HEADER_WORDS - filled));
        }
    }

    /// The rows of one worker: their headers.
    pub fn headers(self, rows: &[i64]) -> impl Iterator<Item = Header> + '_ {
        rows.chunks_exact(self.words()).map(Header::of)
    }

    /// Copies `bytes` of values of one worker out of its rows.
    pub fn unpack(self, rows: &[i64], bytes: usize, to: &mut Vec<u8>) {
        to.clear();
        for row in rows.chunks_exact(self.words()) {
            to.extend(
                row[HEADER_WORDS..]
                    .iter()
                    .flat_map(|word| word.to_le_bytes()),
            );
            to.truncate(bytes);
        }
    }

    /// Elements of a row.
    pub const fn dim(self) -> usize {
        self.words()
    }
}

/// Operation of a collective call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All workers give values, and all get those of all.
    Gather = 1,
    /// Code of `all_reduce` with [`ReduceOp::Sum`].
    Sum = 2,
    /// Code of `all_reduce` with [`ReduceOp::Min`].
    Min = 3,
    /// Code of `all_reduce` with [`ReduceOp::Max`].
    Max = 4,
    /// Code of the call `broadcast`.
    /// One worker gives values.
    Broadcast = 5,
    /// Code of `all_reduce` with [`ReduceOp::Product`].
    Product = 6,
    /// Code of `all_reduce` with [`ReduceOp::BitAnd`].
    BitAnd = 7,
    /// Code of `all_reduce` with [`ReduceOp::BitOr`].
    BitOr = 8,
    /// Code of `all_reduce` with [`ReduceOp::BitXor`].
    BitXor = 9,
}

impl Kind {
    /// The kind of `all_reduce` with an operation.
    pub const fn of(op: ReduceOp) -> Self {
        match op {
            ReduceOp::Sum => Self::Sum,
            ReduceOp::Min => Self::Min,
            ReduceOp::Max => Self::Max,
            ReduceOp::Product => Self::Product,
            ReduceOp::BitAnd => Self::BitAnd,
            ReduceOp::BitOr => Self::BitOr,
            ReduceOp::BitXor => Self::BitXor,
        }
    }
}

/// A collective call, without its length. All workers make the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Operation of the call.
    pub kind: Kind,
    /// Type of its elements.
    pub dtype: DType,
    /// Rank of the worker that gives values; 0 for calls in which all do.
    pub root: u32,
}

impl Call {
    /// Checks that the elements have bits, for an operation on bits.
    ///
    /// # Errors
    /// [`CollectiveError::Bits`].
    pub fn check_type(self) -> Result<(), CollectiveError> {
        if !self.is_of_bits() || !self.dtype.is_float() {
            return Ok(());
        }
        let call = Self::name(self.word());
        Err(CollectiveError::Bits { call })
    }

    /// Whether the call combines bits.
    pub const fn is_of_bits(self) -> bool {
        matches!(self.kind, Kind::BitAnd | Kind::BitOr | Kind::BitXor)
    }

    const fn word(self) -> u64 {
        self.kind as u64 | (self.dtype.code() as u64) << 8 | (self.root as u64) << 32
    }

    /// Names the call of a word of a row, which another program may have written.
    fn name(word: u64) -> String {
        let [kind, dtype, _, _, root @ ..] = word.to_le_bytes();
        let call = match kind {
            1 => "all_gather",
            2 => "all_reduce (sum)",
            3 => "all_reduce (min)",
            4 => "all_reduce (max)",
            5 => "broadcast",
            6 => "all_reduce (product)",
            7 => "all_reduce (bit_and)",
            8 => "all_reduce (bit_or)",
            9 => "all_reduce (bit_xor)",
            _ => return format!("an unknown operation ({word:#x})"),
        };
        let of = match DType::from_code(dtype) {
            Some(dtype) => format!("{call} of {dtype:?}").to_lowercase(),
            None => format!("{call} of an unknown type"),
        };
        match kind {
            5 => format!("{of} from worker {}", u32::from_le_bytes(root)),
            _ => of,
        }
    }
}

/// Header of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the round, from 1 on, over all calls of the worker.
    pub round: u64,
    call: u64,
    /// Number of elements of the whole call.
    pub elements: u64,
    /// Number of the round in its call.
    pub part: u64,
}

impl Header {
    /// Makes the header of a round, which is number `part` of its call, from 0 on.
    pub const fn new(round: u64, call: Call, elements: u64, part: u64) -> Self {
        Self {
            round,
            call: call.word(),
            elements,
            part,
        }
    }

    /// The header of the same round at a worker that gives it another number.
    pub const fn at(self, round: u64) -> Self {
        Self { round, ..self }
    }

    const fn words(self) -> [i64; HEADER_WORDS] {
        [
            self.round.cast_signed(),
            self.call.cast_signed(),
            self.elements.cast_signed(),
            self.part.cast_signed(),
        ]
    }

    fn of(row: &[i64]) -> Self {
        // A row that is too short has round 0, which no call has: it is refused as one of another round.
        let word = |n: usize| row.get(n).copied().unwrap_or_default().cast_unsigned();
        Self {
            round: word(0),
            call: word(1),
            elements: word(2),
            part: word(3),
        }
    }

    /// Whether a row with this header belongs to the same round as `other`.
    pub fn is_of_round(&self, other: &Self) -> bool {
        (self.round, self.part) == (other.round, other.part) || on(Mutant::CollectiveRoundIgnored)
    }

    /// Round and part for an error.
    pub fn position(&self) -> String {
        match self.part {
            0 => self.round.to_string(),
            part => format!("{} (part {part} of its call)", self.round),
        }
    }
}

/// Finds the first difference between the calls of the workers, in rank order.
///
/// # Errors
/// [`CollectiveError::Call`] before [`CollectiveError::Length`]; the same at every worker.
pub fn agree(headers: &[(WorkerId, Header)]) -> Result<(), CollectiveError> {
    let Some(&(first, header)) = headers.first() else {
        return Ok(());
    };
    let mut others = headers.iter();
    if let Some(&(rank, other)) = others.clone().find(|(_, h)| h.call != header.call) {
        return Err(CollectiveError::Call {
            rank,
            given: Call::name(other.call),
            expected: Call::name(header.call),
            first,
        });
    }
    match others.find(|(_, h)| h.elements != header.elements) {
        Some(&(rank, other)) => Err(CollectiveError::Length {
            rank,
            given: other.elements,
            expected: header.elements,
            first,
        }),
        None => Ok(()),
    }
}

/// The round of a call of members, from the numbers with which they have arrived: the greatest one. In the first
/// part of a call a worker that makes its first call has 1.
///
/// # Errors
/// [`CollectiveError::OutOfStep`] names the lowest rank with another number, or this worker's.
pub fn in_step(arrivals: &[Arrival], ours: Header) -> Result<u64, CollectiveError> {
    let round = arrivals.iter().map(|at| at.round).max().unwrap_or_default();
    let is_first = |number| number == 1 && ours.part == 0;
    let other = |at: &&Arrival| at.round != round && !is_first(at.round);
    let Some(at) = arrivals.iter().find(other) else {
        return Ok(round);
    };
    let ahead = arrivals.iter().find(|other| other.round == round);
    let rank = match at.round == ours.round {
        true => ahead.unwrap_or(at),
        false => at,
    };
    Err(CollectiveError::OutOfStep {
        rank: rank.rank,
        theirs: rank.round.to_string(),
        ours: ours.position(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Call = Call {
        kind: Kind::Gather,
        dtype: DType::F64,
        root: 0,
    };

    #[test]
    fn values_survive_their_rows() {
        for of in [RowsOf::First, RowsOf::Further] {
            for bytes in [0, 1, 8, 479, of.row_bytes(), of.round_bytes()] {
                let values: Vec<u8> = (0..bytes.min(of.round_bytes())).map(|n| n as u8).collect();
                let header = Header::new(7, CALL, 3, 0);
                let (mut rows, mut back) = (Vec::new(), Vec::new());
                of.pack(header, &values, &mut rows);
                let keys = of.keys(7, 4, 2, values.len());
                assert_eq!(rows.len(), keys.len() * of.dim());
                assert!(of.headers(&rows).all(|h| h == header));
                of.unpack(&rows, values.len(), &mut back);
                assert_eq!(back, values);
            }
        }
    }

    /// In two adjacent rounds no two workers have a row in common.
    #[test]
    fn rows_of_adjacent_rounds_are_distinct() {
        for of in [RowsOf::First, RowsOf::Further] {
            let all =
                |round| (0..5).flat_map(move |rank| of.keys(round, 5, rank, of.round_bytes()));
            let mut keys: Vec<u64> = all(8).chain(all(9)).collect();
            keys.sort_unstable();
            let rows = of.spec(5).shape;
            let expected: Vec<u64> = (0..keys.len() as u64).collect();
            assert_eq!(keys, expected, "{rows:?}");
            of.spec(5).validate().unwrap();
        }
    }

    #[test]
    fn differing_calls_are_named() {
        let of = |call, elements| Header::new(3, call, elements, 0);
        let other = Call {
            kind: Kind::Broadcast,
            dtype: DType::I32,
            root: 2,
        };
        let ranked = |headers: &[Header]| -> Vec<(WorkerId, Header)> {
            (0..).map(WorkerId).zip(headers.iter().copied()).collect()
        };
        assert_eq!(agree(&ranked(&[of(CALL, 4), of(CALL, 4)])), Ok(()));
        let length = agree(&ranked(&[of(CALL, 4), of(CALL, 4), of(CALL, 5)])).unwrap_err();
        assert_eq!(
            length.to_string(),
            "worker 2 gives 5 elements and worker 0 gives 4; give as many on each worker"
        );
        let call = agree(&ranked(&[of(CALL, 4), of(other, 9)]))
            .unwrap_err()
            .to_string();
        let expected =
            "worker 1 calls broadcast of i32 from worker 2 and worker 0 calls all_gather of f64";
        assert!(call.starts_with(expected), "{call}");
    }

    /// In a job of open size no two rounds that follow each other at a worker have a row in common, also those
    /// after its first one, when it takes the number of the others.
    #[test]
    fn rows_of_members_are_distinct() {
        for of in [RowsOf::First, RowsOf::Further] {
            let keys = |round, rank| of.keys(round, 0, rank, of.round_bytes());
            for (round, next) in [(1, 2), (1, 3), (1, 38), (1, 39), (38, 39)] {
                let mut all = Vec::new();
                for rank in 0..5 {
                    all.extend(keys(round, rank));
                    all.extend(keys(next, rank));
                }
                let count = all.len();
                all.sort_unstable();
                all.dedup();
                assert_eq!(all.len(), count, "{round} {next}");
            }
            of.spec(0).validate().unwrap();
        }
    }

    #[test]
    fn members_take_the_round_of_others() {
        let at = |rounds: &[u64]| -> Vec<Arrival> {
            let ranks = (0..).map(WorkerId);
            let arrivals = ranks.zip(rounds);
            arrivals
                .map(|(rank, &round)| Arrival { rank, round })
                .collect()
        };
        let ours = |round, part| Header::new(round, CALL, 3, part);
        assert_eq!(in_step(&at(&[1, 1]), ours(1, 0)), Ok(1));
        assert_eq!(in_step(&at(&[38, 1, 38]), ours(1, 0)), Ok(38));
        assert_eq!(in_step(&at(&[38, 38]), ours(38, 2)), Ok(38));
        for (rounds, ours, rank) in [
            (&[38, 37][..], ours(38, 0), 1),
            (&[38, 37], ours(37, 0), 0),
            (&[38, 1], ours(38, 1), 1),
        ] {
            let error = in_step(&at(rounds), ours).unwrap_err();
            let CollectiveError::OutOfStep { rank: other, .. } = error else {
                panic!("{error}");
            };
            assert_eq!(other, WorkerId(rank), "{rounds:?}");
        }
    }
}
