//! Pushes held back until their rank's turn in the iteration that they belong to.
//!
//! An applier takes frames of tables with `AtTick` out of the ring into private memory, a
//! [`Stream`] for each thread and iteration. They count as applied, and take effect exactly once, at
//! the tick. Ranks are folded into the iteration's sums in ascending order, each when all its threads
//! have ticked, thread after thread: so a lost rank leaves nothing of an iteration that it did not end.
//! The rank that has its turn is *staged*: the frames of its threads are always admitted. Frames of all
//! others are *early* and share a budget.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, Range};
use std::sync::Arc;

use tidewater_protocol::ids::{DomainId, WorkerId, WorkerThread};
use tidewater_protocol::layout::frame::FrameHeader;
use tidewater_protocol::limits::PENDING_BYTES_DEFAULT;
use tidewater_protocol::mutants::{self, Mutant};

use super::Refusal;
use crate::namespace::{DomainKey, NamespaceId};
use crate::store::StoreError;
use crate::store::memory::{Block, BlockKind, BlockOwner, ServerMemory};
use tidewater_protocol::layout::reject::RejectReason;

mod kept;
mod tasks;

pub(super) use tasks::{OPEN_TASK, TaskKey};

/// Sizes in bytes of the first, the second and every further page of a stream (the held frames of one thread
/// and iteration). For a larger frame the page has the next power of two.
const PAGE_BYTES: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];
/// Bytes that a held frame counts in addition to its payload: its entry in the list, and as much again
/// while it moves to a larger list. Frames without a payload are bounded, too.
const HELD_BYTES: usize = 2 * size_of::<Held>();

/// Frame that was taken out of its ring and waits for its tick or task. Its payload stays in a page of
/// private memory, at byte offset `at`.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// Worker thread that pushed the frame.
    pub thread: WorkerThread,
    /// Header of the frame.
    pub header: FrameHeader,
    at: usize,
}

/// Key of a stream: the pushes of one worker thread in one iteration of a job's clock domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamKey {
    /// Job that the domain belongs to.
    pub namespace: NamespaceId,
    /// Clock domain in the job.
    pub domain: DomainId,
    /// Number of the iteration.
    pub iteration: u64,
    /// Worker thread that pushed the frames.
    pub thread: WorkerThread,
}

/// Held frames of one thread and iteration, in the order in which they were pushed, and the memory pages
/// with their payloads.
#[derive(Debug, Default)]
pub struct Stream {
    frames: Vec<Held>,
    pages: Vec<Block>,
    /// Used bytes of the last page of the stream.
    used: usize,
    /// Bytes that the frames count in the budget, with their list entries and unused ends of pages.
    bytes: usize,
    budget: Budget,
    /// Number of the first frames that stay if the worker is lost: of finished tasks, or of a worker of the rank
    /// that has finished.
    kept: usize,
}

/// Memory budget that the bytes of a stream are charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Budget {
    /// Charged to the budget of ranks that are early.
    #[default]
    Early,
    /// Charged to no budget: the rank of the stream has its turn.
    Staged,
    /// Charged to the budget of tasks that are not finished.
    Task,
    /// Charged to no budget: the stream is in the sums. It is kept until the iteration is closed, for a
    /// process that takes over after a crash.
    Folded,
}

/// Held frames of one applier, their pages and their budgets in bytes.
#[derive(Debug)]
pub struct Pending {
    memory: Arc<ServerMemory>,
    owner: BlockOwner,
    streams: BTreeMap<StreamKey, Stream>,
    /// Free pages, by size in bytes.
    spare: HashMap<usize, Vec<Block>>,
    /// Number of largest pages reserved for staged streams.
    reserved: usize,
    /// Number of largest pages that staged streams have.
    staged_pages: usize,
    /// Bytes charged to the budget of early ranks.
    early: usize,
    /// Bytes charged to the budget of tasks.
    in_tasks: usize,
    /// Limit in bytes of each of the two budgets.
    limit: usize,
    /// Streams of pushes of tasks that are not finished.
    tasks: BTreeMap<TaskKey, Stream>,
    /// Bytes that all held frames count together, in a budget or not.
    bytes: usize,
    changes: u64,
    /// Whether the pages outlive the process, see module `kept`.
    is_kept: bool,
    /// Streams that are in the sums of open iterations, in the order in which they were added.
    folded: BTreeMap<(NamespaceId, DomainId, u64), Vec<Stream>>,
}

impl Pending {
    /// Creates an empty set of held frames with the default budget. If the memory outlives the process, a
    /// successor finds the frames.
    pub fn new(memory: Arc<ServerMemory>, applier: u32) -> Self {
        let is_kept = memory.is_held();
        Self::of_kind(memory, applier, BlockKind::Held, is_kept)
    }

    /// Creates an empty set with the default budget, for frames that end with the process: a successor frees
    /// their pages.
    pub(super) fn of_process(memory: Arc<ServerMemory>, applier: u32) -> Self {
        Self::of_kind(memory, applier, BlockKind::Pending, false)
    }

    fn of_kind(memory: Arc<ServerMemory>, applier: u32, kind: BlockKind, is_kept: bool) -> Self {
        let owner = BlockOwner {
            kind,
            table: 0,
            applier,
            part: 0,
        };
        Self {
            is_kept,
            folded: BTreeMap::new(),
            memory,
            owner,
            streams: BTreeMap::new(),
            spare: HashMap::new(),
            reserved: 0,
            staged_pages: 0,
            early: 0,
            in_tasks: 0,
            limit: PENDING_BYTES_DEFAULT,
            tasks: BTreeMap::new(),
            bytes: 0,
            changes: 0,
        }
    }

    /// Sets the limit of two budgets to `bytes` each: for early ranks, and for tasks.
    pub const fn set_limit(&mut self, bytes: usize) {
        self.limit = bytes;
    }

    /// Bytes that all held frames count, in a budget or not: payloads, list entries and unused ends of pages.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counter of the events after which a frame that waits in its ring may be admitted.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Counts an event after which frames that wait in their rings may be admitted: their appliers offer them
    /// again.
    pub const fn changed(&mut self) {
        self.changes += 1;
    }

    /// Checks that the budget for early ranks has room for a payload of `payload_len` bytes. A rank is early
    /// while the ranks below it have not ended the iteration. Reserves nothing.
    ///
    /// # Errors
    /// [`RejectReason::PendingFull`], with the bytes that the ranks that are early now need, this payload
    /// included.
    pub fn room(&self, payload_len: usize) -> Result<(), Refusal> {
        self.room_beyond(self.early, payload_len)
    }

    fn room_beyond(&self, used: usize, payload_len: usize) -> Result<(), Refusal> {
        let needed = used + cost(payload_len);
        if needed > self.limit && !mutants::on(Mutant::UnboundedHeldPushes) {
            return Err(RejectReason::PendingFull {
                needed: needed as u64,
                limit: self.limit as u64,
            });
        }
        Ok(())
    }

    /// Reserves largest pages with at least `bytes` bytes in total, for the frames of the one rank that has
    /// its turn in an iteration (staged). Pages reserved by earlier calls count.
    ///
    /// # Errors
    /// [`RejectReason::NoMemory`]; pages reserved before the one that failed stay reserved.
    pub fn reserve(&mut self, bytes: usize) -> Result<(), Refusal> {
        let [.., size] = PAGE_BYTES;
        let pages = bytes.div_ceil(size);
        while self.reserved < pages {
            let block = self.memory.private.alloc_untouched(size, self.owner);
            let block = block.map_err(|_| self.no_memory())?;
            self.spare.entry(size).or_default().push(block);
            self.reserved += 1;
        }
        Ok(())
    }

    /// Copies a frame out of its ring into the stream of its thread and iteration. `staged` says whether its
    /// rank has its turn: the complete stream then leaves the budget of early ranks. For other frames the
    /// caller has checked this budget with [`Self::room`].
    ///
    /// # Errors
    /// [`RejectReason::NoMemory`]; nothing was taken.
    pub fn hold(
        &mut self,
        key: StreamKey,
        staged: bool,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        // A thread's first frame of an iteration begins its stream.
        let mut stream = self.streams.remove(&key).unwrap_or_default();
        if staged {
            self.stage_stream(&mut stream);
        }
        let result = self.hold_in(&mut stream, key.thread, Some(&key), header, payload);
        if !stream.frames.is_empty() {
            self.streams.insert(key, stream);
        }
        result
    }

    fn hold_in(
        &mut self,
        stream: &mut Stream,
        thread: WorkerThread,
        key: Option<&StreamKey>,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let before = self.kept_before();
        let len = before + payload.len().next_multiple_of(64);
        let room = stream.pages.last().map_or(0, |p| p.len - stream.used);
        let mut bytes = cost(payload.len());
        if room < len || stream.pages.is_empty() {
            let page = self
                .page_for(stream, before + len)
                .map_err(|_| self.no_memory())?;
            let [.., largest] = PAGE_BYTES;
            self.staged_pages += usize::from(stream.is_staged() && page.len == largest);
            self.begin_page(&page, key.map(|key| (key, stream.pages.len())));
            stream.pages.push(page);
            stream.used = before;
            // The rest of the previous page stays empty.
            bytes += room;
        }
        let Some(page) = stream.pages.last() else {
            unreachable!("a stream that holds a frame has a page");
        };
        let at = page.at + stream.used + before;
        match self.memory.private.region().words_mut(at, payload.len()) {
            Ok(words) => words.copy_in(0, payload),
            Err(e) => unreachable!("a page of the held pushes is outside the memory: {e}"),
        }
        stream.used += len;
        if self.is_kept && key.is_some() {
            self.keep_frame(page, at - before, stream.used, &header);
        }
        stream.bytes += bytes;
        self.bytes += bytes;
        match stream.budget {
            Budget::Early => self.early += bytes,
            Budget::Task => self.in_tasks += bytes,
            Budget::Staged | Budget::Folded => {}
        }
        stream.frames.push(Held { thread, header, at });
        Ok(())
    }

    fn no_memory(&self) -> Refusal {
        let (used, capacity) = self.memory.private.usage();
        RejectReason::NoMemory {
            used: used as u64,
            capacity: capacity as u64,
        }
    }

    /// Returns a page with room for `len` bytes, a spare one if possible. Streams that are not staged leave
    /// the reserved pages alone.
    fn page_for(&mut self, stream: &Stream, len: usize) -> Result<Block, StoreError> {
        let [.., largest] = PAGE_BYTES;
        let of_stream = PAGE_BYTES.get(stream.pages.len()).copied();
        let size = of_stream.unwrap_or(largest).max(len.next_power_of_two());
        let kept = match size == largest && !stream.is_staged() {
            true => self.reserved.saturating_sub(self.staged_pages),
            false => 0,
        };
        let spare = self.spare.entry(size).or_default();
        if spare.len() > kept
            && let Some(page) = spare.pop()
        {
            return Ok(page);
        }
        let fresh = self.memory.private.alloc_used(size, self.owner);
        match (fresh, stream.is_staged()) {
            (Err(_), true) if size < largest => {
                // The reserve is of the largest pages.
                let spare = self.spare.entry(largest).or_default();
                let page = spare.pop();
                page.map_or_else(|| self.memory.private.alloc_used(size, self.owner), Ok)
            }
            (fresh, _) => fresh,
        }
    }

    /// Stages a rank, which has its turn in an iteration since the ranks below it have ended it: the held
    /// frames of its threads leave the budget for early ranks.
    pub fn stage(&mut self, job: DomainKey, iteration: u64, rank: WorkerId) {
        for (key, mut stream) in self.take_rank(job, iteration, rank) {
            self.stage_stream(&mut stream);
            self.streams.insert(key, stream);
        }
    }

    /// Removes the streams of a rank's threads in an iteration and returns them.
    fn take_rank(
        &mut self,
        DomainKey { namespace, domain }: DomainKey,
        iteration: u64,
        rank: WorkerId,
    ) -> Vec<(StreamKey, Stream)> {
        let key = |thread| StreamKey {
            namespace,
            domain,
            iteration,
            thread,
        };
        let threads = key(WorkerThread::first(rank))..=key(WorkerThread::last(rank));
        self.streams.extract_if(threads, |_, _| true).collect()
    }

    fn stage_stream(&mut self, stream: &mut Stream) {
        self.set_budget(stream, Budget::Staged);
    }

    /// Charges the bytes of a stream to another budget.
    fn set_budget(&mut self, stream: &mut Stream, budget: Budget) {
        self.uncount(stream, stream.bytes);
        match stream.budget {
            Budget::Staged => self.staged_pages -= largest_pages(&stream.pages),
            Budget::Early | Budget::Task | Budget::Folded => {}
        }
        match budget {
            Budget::Early => self.early += stream.bytes,
            Budget::Task => self.in_tasks += stream.bytes,
            Budget::Folded => {}
            Budget::Staged => self.staged_pages += largest_pages(&stream.pages),
        }
        stream.budget = budget;
    }

    /// Subtracts `bytes` bytes of a stream from the budget that the stream is charged to, if any.
    const fn uncount(&mut self, stream: &Stream, bytes: usize) {
        match stream.budget {
            Budget::Early => self.early -= bytes,
            Budget::Task => self.in_tasks -= bytes,
            Budget::Staged | Budget::Folded => {}
        }
    }

    /// Removes the streams of an iteration of a job's domain and returns them in the order of reduction: by
    /// rank and thread. With `end`, only streams of ranks below it. Their payloads stay in memory until the
    /// caller passes the streams to [`Pending::free`].
    pub fn take(
        &mut self,
        DomainKey { namespace, domain }: DomainKey,
        iteration: u64,
        end: Option<WorkerId>,
    ) -> Vec<Stream> {
        let key = |thread| StreamKey {
            namespace,
            domain,
            iteration,
            thread,
        };
        let first = Bound::Included(key(WorkerThread::first(WorkerId(0))));
        let end = match end {
            Some(end) => Bound::Excluded(key(WorkerThread::first(end))),
            None => Bound::Included(key(WorkerThread::last(WorkerId(u32::MAX)))),
        };
        let taken = self.streams.extract_if((first, end), |_, _| true);
        taken.map(|(_, stream)| stream).collect()
    }

    /// Iterates over the held streams of a job's domain, by iteration, rank and thread; then over those of
    /// tasks for its ticks.
    pub fn streams_of(
        &self,
        DomainKey { namespace, domain }: DomainKey,
    ) -> impl Iterator<Item = &Stream> {
        let of_domain =
            move |(key, _): &(&StreamKey, _)| (key.namespace, key.domain) == (namespace, domain);
        let of_task = move |(key, _): &(&TaskKey, _)| {
            (key.namespace, key.domain) == (namespace, Some(domain))
        };
        let in_tasks = self.tasks.iter().filter(of_task);
        self.streams
            .iter()
            .filter(of_domain)
            .map(|(_, stream)| stream)
            .chain(in_tasks.map(|(_, stream)| stream))
    }

    /// Replaces `out` by the payload of a held frame.
    pub fn payload(&self, held: &Held, out: &mut Vec<u8>) {
        self.payload_part(held, 0..held.header.payload_len as usize, out);
    }

    /// Replaces `out` by the byte range `bytes` of a held frame's payload.
    ///
    /// # Panics
    /// If the payload is shorter.
    pub fn payload_part(&self, held: &Held, bytes: Range<usize>, out: &mut Vec<u8>) {
        out.resize(bytes.len(), 0);
        let at = held.at + bytes.start;
        // Windows begin at whole words, elements of 4 bytes need not.
        let lead = at % 8;
        let words = self
            .memory
            .private
            .region()
            .words(at - lead, lead + out.len());
        let len = held.header.payload_len as usize;
        assert!(bytes.end <= len, "bytes {bytes:?} of a held push of {len}");
        match words {
            Ok(words) => words.copy_out_from(lead, out),
            Err(e) => unreachable!("a held push is outside the memory: {e}"),
        }
    }

    /// Frees streams that took effect or are dropped. Their pages become spare, and frames that wait in their
    /// rings are offered again.
    pub fn free(&mut self, streams: Vec<Stream>) {
        for stream in streams {
            self.bytes -= stream.bytes;
            self.uncount(&stream, stream.bytes);
            if stream.is_staged() {
                self.staged_pages -= largest_pages(&stream.pages);
            }
            for page in stream.pages {
                self.void_page(&page);
                self.spare.entry(page.len).or_default().push(page);
            }
        }
        self.changes += 1;
    }

    /// Drops the held pushes of a lost rank in a domain, of `iteration`, which the rank will not end, and of later
    /// iterations, which a faster thread of the rank has begun. Pushes of finished tasks stay, and those that
    /// [`Self::keep_rank`] has marked.
    pub fn forget_rank(
        &mut self,
        DomainKey { namespace, domain }: DomainKey,
        iteration: u64,
        rank: WorkerId,
    ) {
        let lost = |key: &StreamKey, _: &mut Stream| {
            (key.namespace, key.domain, key.thread.rank) == (namespace, domain, rank)
                && key.iteration >= iteration
        };
        let gone = self.streams.extract_if(.., lost);
        let (finished, gone): (Vec<_>, Vec<_>) = gone
            .partition(|(_, stream)| stream.kept > 0 && !mutants::on(Mutant::FinishedTaskDropped));
        for (key, mut stream) in finished {
            self.keep_finished(&mut stream);
            self.streams.insert(key, stream);
        }
        self.free(gone.into_iter().map(|(_, stream)| stream).collect());
    }

    /// Marks the held pushes of a worker that finishes, in all domains: they take effect even if a later worker of
    /// the rank is lost in the same iteration.
    pub fn keep_rank(&mut self, namespace: NamespaceId, rank: WorkerId) {
        for (key, stream) in &mut self.streams {
            if (key.namespace, key.thread.rank) == (namespace, rank) {
                stream.kept = stream.frames.len();
            }
        }
    }

    /// Drops all frames that are held for a job that is over.
    pub fn forget_namespace(&mut self, namespace: NamespaceId) {
        let over = |key: &StreamKey, _: &mut Stream| key.namespace == namespace;
        let gone = self.streams.extract_if(.., over).map(|(_, stream)| stream);
        let of_task = |key: &TaskKey, _: &mut Stream| key.namespace == namespace;
        let in_tasks = self.tasks.extract_if(.., of_task);
        let of_job = |key: &(NamespaceId, DomainId, u64), _: &mut Vec<Stream>| key.0 == namespace;
        let folded = self
            .folded
            .extract_if(.., of_job)
            .flat_map(|(_, streams)| streams);
        let gone = gone
            .chain(in_tasks.map(|(_, stream)| stream))
            .chain(folded)
            .collect();
        self.free(gone);
    }

    /// Drops all frames that are held for a released table. Their pages stay with their streams.
    pub fn forget_table(&mut self, table: u32) {
        let mut streams = std::mem::take(&mut self.streams);
        let mut in_tasks = std::mem::take(&mut self.tasks);
        let mut folded = std::mem::take(&mut self.folded);
        let all = streams.values_mut().chain(in_tasks.values_mut());
        for stream in all.chain(folded.values_mut().flatten()) {
            let mut gone = 0;
            let mut at = 0;
            let kept = stream.kept;
            stream.frames.retain(|h| {
                let stays = h.header.table != table;
                gone += usize::from(!stays) * cost(h.header.payload_len as usize);
                stream.kept -= usize::from(!stays && at < kept);
                at += 1;
                stays
            });
            stream.bytes -= gone;
            self.bytes -= gone;
            self.uncount(stream, gone);
        }
        (self.streams, self.tasks, self.folded) = (streams, in_tasks, folded);
        self.changes += 1;
    }
}

impl Stream {
    /// Returns the held frames of the stream, in the order in which they were pushed.
    pub fn frames(&self) -> &[Held] {
        &self.frames
    }

    fn is_staged(&self) -> bool {
        self.budget == Budget::Staged
    }
}

/// Bytes that a held frame with a payload of `payload_len` bytes counts in a budget.
const fn cost(payload_len: usize) -> usize {
    payload_len.next_multiple_of(64) + HELD_BYTES
}

fn largest_pages(pages: &[Block]) -> usize {
    let [.., largest] = PAGE_BYTES;
    pages.iter().filter(|page| page.len == largest).count()
}
