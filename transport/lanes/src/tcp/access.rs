//! Access to the memory that one request names, after the checks that a NIC would make.

use super::op::{ENTRY_BYTES, Entry, Refused, RequestKind};
use crate::fabric::{AccessDenied, AccessFlags, INBOX_KEY, Inbox, ReadChecks, RegionTableView};
use crate::num::size;
use tidewater_protocol::ids::RegionKey;
use tidewater_runtime::mem::{Words, WordsMut};

/// Greatest length in bytes of a short read, which the server lane copies into its answer. The kernel
/// sends longer ones from registered memory, as entries of its gather list, which cost more than a short
/// copy.
pub(super) const COPIED_READ_BYTES: usize = 2 << 10;

/// Least cost of a short read, in bytes of the budget that bounds one poll: it stands for the cache
/// misses of its row.
const SHORT_READ_BYTES: usize = 256;
/// Number of short reads that are prefetched together before they are copied. They are few enough that
/// the core can have all their cache misses under way at a time.
const READS_TOGETHER: usize = 16;

#[inline]
fn words_of<'a>(checks: &mut ReadChecks<'a>, entry: &Entry) -> Result<Words<'a>, AccessDenied> {
    let export = checks.check(entry.key, entry.addr, entry.len.into())?;
    let words = export.region.words(size(entry.addr), entry.len as usize);
    words.map_err(|_| AccessDenied::Outside)
}

/// Totals of consecutive short reads (at most `COPIED_READ_BYTES` each) that are copied together into an
/// answer: number of reads, bytes, cost.
#[derive(Default)]
pub(super) struct Run {
    pub(super) reads: usize,
    pub(super) bytes: usize,
    /// Cost in bytes of a poll's budget: at least [`SHORT_READ_BYTES`] a read.
    pub(super) cost: usize,
}

/// Counts the short reads at the front of a request's list that can be copied together, and adds up their
/// bytes and costs. Stops at the first long read, at a fenced read behind others, or when the cost
/// reaches `most` bytes.
pub(super) fn short_run(list: &[[u8; ENTRY_BYTES]], most: usize) -> Run {
    let mut run = Run::default();
    for entry in list.iter().map(Entry::from_bytes) {
        let len = entry.len as usize;
        let waits = entry.fence && run.reads > 0;
        if len > COPIED_READ_BYTES || waits || run.cost >= most {
            break;
        }
        run.reads += 1;
        run.bytes += len;
        run.cost += len.max(SHORT_READ_BYTES);
    }
    run
}

/// Checks the reads of a run, which `short_run` counted, and copies their data to `out`, one behind the
/// other. Data may be torn by a concurrent writer. After an error `out` is partly filled.
pub(super) fn copy_run(
    checks: &mut ReadChecks<'_>,
    run: &[[u8; ENTRY_BYTES]],
    mut out: &mut [u8],
) -> Result<(), AccessDenied> {
    let mut group = [(Words::new(&[]), 0); READS_TOGETHER];
    for raw in run.chunks(READS_TOGETHER) {
        for (read, raw) in group.iter_mut().zip(raw) {
            let entry = Entry::from_bytes(raw);
            *read = (words_of(checks, &entry)?, entry.len as usize);
        }
        let reads = || group.iter().take(raw.len());
        // Only prefetches in this loop, so that their misses overlap.
        reads().for_each(|(words, _)| words.prefetch());
        for (words, len) in reads() {
            let split = out.split_at_mut_checked(*len);
            let (here, rest) = split.ok_or(AccessDenied::Outside)?;
            words.copy_out(0, here);
            out = rest;
        }
    }
    Ok(())
}

/// Checks a client's write of `len` bytes to `addr` and returns its byte offset in the inbox; stores
/// nothing. Only writes with [`INBOX_KEY`] inside the inbox, at a multiple of 8, are allowed.
pub(super) fn check_write(
    exports: &mut RegionTableView,
    inbox: &Inbox,
    key: RegionKey,
    addr: u64,
    len: u32,
) -> Result<usize, Refused> {
    let end = addr.checked_add(u64::from(len));
    let why = if key != INBOX_KEY {
        let known = exports.check(key, addr, u64::from(len), AccessFlags::Write);
        known.err().unwrap_or(AccessDenied::NoRight)
    } else if end.is_none_or(|end| end > inbox.window().len() as u64) {
        AccessDenied::Outside
    } else if !addr.is_multiple_of(8) {
        AccessDenied::Misaligned
    } else {
        return Ok(size(addr));
    };
    Err(Refused {
        kind: RequestKind::Write,
        why,
        key,
        addr,
        len: u64::from(len),
    })
}

/// Checks a client's atomic and performs it by calling `on` with the counter's 64-bit word. Returns the
/// value of `on`: the old value of the counter. `kind` is for the refusal.
pub(super) fn count(
    exports: &mut RegionTableView,
    kind: RequestKind,
    key: RegionKey,
    addr: u64,
    on: impl FnOnce(WordsMut<'_>) -> u64,
) -> Result<u64, Refused> {
    let checked = exports.check(key, addr, 8, AccessFlags::Atomic);
    let word = checked.and_then(|export| {
        let word = export.region.words_mut(size(addr), 8);
        word.map_err(|_| AccessDenied::NoRight)
    });
    word.map(on).map_err(|why| Refused {
        kind,
        why,
        key,
        addr,
        len: 8,
    })
}
