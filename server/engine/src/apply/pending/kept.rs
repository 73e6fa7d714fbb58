//! Held pushes that outlive their process: each page names its stream, each frame has its header before its payload.
//!
//! ```text
//! page    u64 magic | u64 namespace | u64 iteration | u32 rank, thread | u32 domain, u32 number of the page |
//!         u64 checksum | 0 | u64 bytes in use        then frames
//! frame   its header, 64 bytes | payload, to a multiple of 64
//! ```
//! The bytes in use are stored last, in one word: a frame is held from that store on, and a page without any is in
//! no stream. A frame that its ring has not counted is sent again, so a successor takes it off.
//!
//! Streams stay here after they were added to the sums, until their iteration is closed: a successor makes the sums
//! again. The journal says which iterations are closed.

use std::collections::{BTreeMap, BTreeSet};

use tidewater_protocol::ids::{DomainId, WorkerId, WorkerThread};
use tidewater_protocol::layout::frame::FrameHeader;
use tidewater_protocol::layout::hash::line_checksum;
use tidewater_protocol::layout::{LINE_BYTES, pack, unpack};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::mem::WordsMut;
use tidewater_runtime::sync::{Ordering, fence};

use super::{Budget, Held, PAGE_BYTES, Pending, Stream, StreamKey, cost};
use crate::namespace::{DomainKey, NamespaceId};
use crate::store::ResumeError;
use crate::store::memory::{Block, BlockOwner};

const PAGE: u64 = u64::from_le_bytes(*b"held-pge");
/// Byte offset in a page of the word with its bytes in use.
const USED_AT: usize = 56;

impl Pending {
    /// Bytes of a header before each frame's payload, and before the first frame of a page: 64 where pages
    /// outlive the process, otherwise 0.
    pub(super) const fn kept_before(&self) -> usize {
        if self.is_kept { LINE_BYTES } else { 0 }
    }

    /// Writes the header of an empty page. `name` is the key of the stream that the page belongs to, and the
    /// page's number in it. `None` for pushes of tasks: after a crash the page is in no stream. No effect
    /// where pages end with the process.
    pub(super) fn begin_page(&self, page: &Block, name: Option<(&StreamKey, usize)>) {
        if !self.is_kept {
            return;
        }
        self.void_page(page);
        let Some((key, number)) = name else {
            return;
        };
        let words = [
            PAGE,
            key.namespace.0,
            key.iteration,
            pack(key.thread.rank.0, key.thread.thread),
            pack(key.domain.0.into(), number as u32),
        ];
        let checksum = line_checksum(PAGE, page.at as u64, &words);
        let [a, b, c, d, e] = words;
        self.words(page.at)
            .store_line(0, &[a, b, c, d, e, checksum, 0, 0]);
        fence(Ordering::Release);
    }

    /// Writes the header of a frame at byte offset `at` of private memory, in front of its payload, and then
    /// counts the frame: `used` bytes of its page are in use. Release fences order the stores, so that a
    /// successor finds complete frames only.
    pub(super) fn keep_frame(&self, page: &Block, at: usize, used: usize, header: &FrameHeader) {
        self.words(at).store_line(0, &header.to_line());
        fence(Ordering::Release);
        if !mutants::on(Mutant::HeldPushNotKept) {
            self.words(page.at).store(USED_AT, used as u64);
        }
        fence(Ordering::Release);
    }

    /// Marks a page as in no stream: its bytes in use become 0. No effect where pages end with the process.
    pub(super) fn void_page(&self, page: &Block) {
        if self.is_kept {
            self.words(page.at).store(USED_AT, 0);
            fence(Ordering::Release);
        }
    }

    fn words(&self, at: usize) -> WordsMut<'_> {
        match self.memory.private.region().words_mut(at, LINE_BYTES) {
            Ok(words) => words,
            Err(e) => unreachable!("a page of the held pushes is outside the memory: {e}"),
        }
    }

    /// Keeps the streams that were added to the sums of an open iteration: after a crash the sums are lost,
    /// and a successor adds the streams again. Their bytes no longer count in a budget.
    pub(in crate::apply) fn keep_folded(
        &mut self,
        DomainKey { namespace, domain }: DomainKey,
        iteration: u64,
        mut streams: Vec<Stream>,
    ) {
        for stream in &mut streams {
            self.set_budget(stream, Budget::Folded);
        }
        let of_iteration = self.folded.entry((namespace, domain, iteration));
        of_iteration.or_default().extend(streams);
        self.changed();
    }

    /// Returns the streams that were added to the sums of an iteration and are kept for a process that takes
    /// over after a crash, in the order in which they were added. Empty if there are none.
    pub(in crate::apply) fn folded(
        &self,
        DomainKey { namespace, domain }: DomainKey,
        iteration: u64,
    ) -> &[Stream] {
        let found = self.folded.get(&(namespace, domain, iteration));
        found.map_or(&[], Vec::as_slice)
    }

    /// Frees the kept streams of an iteration that is closed. No effect if there are none.
    pub(in crate::apply) fn free_folded(
        &mut self,
        DomainKey { namespace, domain }: DomainKey,
        iteration: u64,
    ) {
        if let Some(streams) = self.folded.remove(&(namespace, domain, iteration)) {
            self.free(streams);
        }
    }

    /// Finds the streams that a dead process held, in the pages of the server's memory. Drops streams that
    /// are not `open`, frames of tables that are not `known`, and frames that their ring has not counted.
    /// `applied` has the number of the last counted frame of each session; all frames of other sessions count.
    /// A page with a damaged header becomes spare.
    ///
    /// # Errors
    /// [`ResumeError`] when a frame in a page is damaged, or two pages of a stream have one number.
    pub(in crate::apply) fn resume(
        &mut self,
        applied: &BTreeMap<u64, u64>,
        open: impl Fn(&StreamKey) -> bool,
        known: impl Fn(u32) -> bool,
    ) -> Result<(), ResumeError> {
        let mut found: BTreeMap<StreamKey, BTreeMap<u32, Block>> = BTreeMap::new();
        for (block, words) in self.memory.private.directory()? {
            if BlockOwner::of_words(words) != Some(self.owner) {
                continue;
            }
            match self.name_of(&block).filter(|(key, _)| open(key)) {
                Some((key, number)) => {
                    let other = found.entry(key).or_default().insert(number, block);
                    if other.is_some() {
                        let what = format!("two pages of held pushes are page {number} of {key:?}");
                        return Err(ResumeError::Damaged { what });
                    }
                }
                None => {
                    self.void_page(&block);
                    self.spare.entry(block.len).or_default().push(block);
                }
            }
        }
        for (key, pages) in found {
            let mut stream = Stream::default();
            for page in pages.into_values() {
                self.read_page(&mut stream, key.thread, page, applied)?;
            }
            stream.frames.retain(|held| known(held.header.table));
            let payload = |held: &Held| cost(held.header.payload_len as usize);
            stream.bytes = stream.frames.iter().map(payload).sum();
            (self.bytes, self.early) = (self.bytes + stream.bytes, self.early + stream.bytes);
            match stream.frames.is_empty() {
                true => self.free(vec![stream]),
                false => {
                    self.streams.insert(key, stream);
                }
            }
        }
        // Else a reserve would be made for each process.
        let [.., largest] = PAGE_BYTES;
        self.reserved = self.spare.get(&largest).map_or(0, Vec::len);
        Ok(())
    }

    /// Returns the held frames of all streams of ticks that are not in the sums yet: sorted by job, domain,
    /// iteration and thread, then in the order in which they were pushed.
    pub(in crate::apply) fn all_frames(&self) -> Vec<Held> {
        self.streams
            .values()
            .flat_map(Stream::frames)
            .copied()
            .collect()
    }

    /// Returns the clock domains that have held streams, each once.
    pub(in crate::apply) fn domains(&self) -> BTreeSet<DomainKey> {
        let keys = self.streams.keys();
        keys.map(|key| DomainKey::new(key.namespace, key.domain))
            .collect()
    }

    /// Number of the applier that holds these frames.
    pub(in crate::apply) const fn applier(&self) -> u32 {
        self.owner.applier
    }

    /// Reads the key of a page's stream, and the number of the page in the stream. `None` for a page without
    /// frames or with a damaged header.
    fn name_of(&self, page: &Block) -> Option<(StreamKey, u32)> {
        let line = self.words(page.at).as_read().line(0);
        let used = usize::try_from(line[7]).ok()?;
        let is_named =
            line[0] == PAGE && line_checksum(PAGE, page.at as u64, &line[..5]) == line[5];
        if !is_named || used <= LINE_BYTES || used > page.len {
            return None;
        }
        let (rank, thread) = unpack(line[3]);
        let (domain, number) = unpack(line[4]);
        let key = StreamKey {
            namespace: NamespaceId(line[1]),
            domain: DomainId(u8::try_from(domain).ok()?),
            iteration: line[2],
            thread: WorkerThread {
                rank: WorkerId(rank),
                thread,
            },
        };
        Some((key, number))
    }

    /// Appends a page and its frames to a stream. Ends at a frame that its ring has not counted as applied, and
    /// takes this frame off the page: its client sends the frame again.
    fn read_page(
        &self,
        stream: &mut Stream,
        thread: WorkerThread,
        page: Block,
        applied: &BTreeMap<u64, u64>,
    ) -> Result<(), ResumeError> {
        let used = self.words(page.at).as_read().load(USED_AT) as usize;
        let damaged = |at: usize| ResumeError::Damaged {
            what: format!("byte {at} of a page of held pushes of {thread}"),
        };
        let mut at = LINE_BYTES;
        while at < used {
            let room = used
                .checked_sub(at + LINE_BYTES)
                .ok_or_else(|| damaged(at))?;
            let line = self.words(page.at + at).as_read().line(0);
            let header = FrameHeader::from_line(&line).map_err(|_| damaged(at))?;
            let len = (header.payload_len as usize).next_multiple_of(64);
            if len > room {
                return Err(damaged(at));
            }
            let counted = applied
                .get(&header.session)
                .is_none_or(|&seq| header.seq <= seq);
            if !counted && !mutants::on(Mutant::HeldPushCountedTwice) {
                // It is the last one of all: the process died before its ring counted it.
                self.words(page.at).store(USED_AT, at as u64);
                fence(Ordering::Release);
                break;
            }
            let at_payload = page.at + at + LINE_BYTES;
            stream.frames.push(Held {
                thread,
                header,
                at: at_payload,
            });
            at += LINE_BYTES + len;
        }
        stream.pages.push(page);
        stream.used = at;
        Ok(())
    }
}
