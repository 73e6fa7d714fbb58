//! Asynchronous pulls of ranges: the reads of windows travel while the program goes on.
//!
//! Each lane gets one list of reads into memory of the pull, of a bounded size. When the pull is finished, they are
//! copied to the caller's memory and judged as those of a pull that waits: version words are read before the payload
//! and, behind a fence, after it. Windows that do not fit, and blocks that a writer disturbed, are read then.

use tidewater_bookkeeping::in_flight::lane_bytes;
use tidewater_lanes::fabric::ReadBatch;
use tidewater_protocol::mutants::{Mutant, on};

use super::PullOptions;
use super::batched_ranges::Window;
use super::blocks::{BlockPull, RangePart};
use super::lane_reads::{CallDest, LaneReads};
use crate::error::ClientError;
use crate::ids::HandleId;
use crate::lanes::Lanes;

/// State of one asynchronous pull of a range.
#[derive(Debug, Default)]
pub(super) struct AsyncRange {
    pub(super) number: u64,
    /// Handle of the pull's table.
    pub(super) handle: Option<HandleId>,
    pub(super) first: u64,
    pub(super) bytes: usize,
    pub(super) options: PullOptions,
    /// Whether no reads are posted, by its mode or since the table has snapshots: all of it is pulled at the
    /// finish.
    pub(super) is_unposted: bool,
    /// Windows with posted reads.
    round: Vec<Window>,
    /// Windows that are read at the end: those that were not posted, then those that did not arrive complete.
    rest: Vec<RangePart>,
    unposted: usize,
    head: Vec<u8>,
    /// The posted reads, by lane.
    reads: Vec<LaneReads>,
}

impl AsyncRange {
    /// Posts the reads of `windows` (each up to 16 blocks, sorted by lane), up to a bound of bytes on each lane, and
    /// does not wait. Windows beyond the bound are read by `finish`.
    pub(super) fn post(
        &mut self,
        pull: &mut BlockPull<'_>,
        windows: &[RangePart],
    ) -> Result<(), ClientError> {
        self.reads.resize_with(pull.lanes.len(), LaneReads::default);
        self.reads.iter_mut().for_each(LaneReads::restart);
        self.round.clear();
        self.rest.clear();
        let by_lane = || windows.chunk_by(|a, b| a.part.lane == b.part.lane);
        let most = lane_bytes(by_lane().count());
        for of_lane in by_lane() {
            let mut bytes = 0;
            for part in of_lane {
                bytes += pull.bytes(part);
                match bytes <= most {
                    true => self.round.push(Window::of(*part)),
                    false => self.rest.push(*part),
                }
            }
        }
        self.unposted = self.rest.len();
        let head = pull.list_reads(&mut self.round, self.first, &mut self.reads)?;
        self.head.resize(head, 0);
        for (lane, reads) in self.reads.iter_mut().enumerate() {
            if !reads.ops.is_empty() {
                reads.post(pull.lanes, lane, self.number, usize::MAX)?;
            }
        }
        Ok(())
    }

    /// Stores a completed read batch of a lane for `finish`; drops it if it is not the one that this pull posted
    /// there.
    pub(super) fn take(&mut self, lane: usize, batch: ReadBatch) {
        if let Some(reads) = self.reads.get_mut(lane) {
            reads.take_arrived(batch);
        }
    }

    /// Number of batches of reads that were posted and have not arrived.
    pub(super) fn under_way(&self) -> usize {
        self.reads
            .iter()
            .filter(|reads| reads.is_under_way())
            .count()
    }

    /// Whether all posted reads have arrived, or were lost with a replaced lane. Does not wait.
    pub(super) fn is_ready(&self, lanes: &mut Lanes) -> bool {
        let mut reads = self.reads.iter().enumerate();
        reads.all(|(lane, reads)| reads.has_arrived(lanes, lane))
    }

    /// Blocks until the posted reads have arrived, validates the blocks, and reads the windows that are missing or
    /// torn. The range is then complete in `out`. After an error that leaves the pull under way, the caller must call
    /// `leave_to_end`.
    pub(super) fn finish(
        &mut self,
        pull: &mut BlockPull<'_>,
        out: &mut [u8],
    ) -> Result<(), ClientError> {
        let mut dest = CallDest {
            head: &mut self.head,
            body: out,
            row_bytes: None,
        };
        for (lane, reads) in self.reads.iter_mut().enumerate() {
            reads.collect(pull.lanes, lane, &mut dest, pull.deadline)?;
        }
        pull.judge_round(&self.round, self.first, &mut self.head, out, &mut self.rest);
        if on(Mutant::LaterRangeUnjudged) {
            self.rest.truncate(self.unposted);
        }
        if self.rest.is_empty() {
            return Ok(());
        }
        pull.read_again(&self.rest, self.first, out)
    }

    /// Moves all windows to those that are read at the end: the call has failed, and the next one may bring another
    /// buffer. Reads under way go to memory that nothing reads.
    pub(super) fn leave_to_end(&mut self) {
        self.rest.truncate(self.unposted);
        if !on(Mutant::LateRangeKeepsBuffer) {
            self.rest
                .extend(self.round.iter().map(|window| window.part));
        }
        self.unposted = self.rest.len();
        self.round.clear();
        self.reads.iter_mut().for_each(LaneReads::restart);
    }
}
