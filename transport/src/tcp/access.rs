//! What a port does with the memory that one request names, after the checks that a NIC would make.

use super::op::{ENTRY_BYTES, Entry, Refusal, Refused, RequestKind};
use crate::fabric::{ExportView, INBOX_KEY, Inbox, Rights};
use crate::ids::RegionKey;
use crate::mem::WordsMut;

/// A shorter read is copied behind its header: cheaper than a place in the kernel's gather list.
pub(super) const COPIED_READ_BYTES: usize = 2 << 10;

/// Asks for the memory of a short read of a checked list, so that reads do not wait for it one after
/// the other.
#[inline]
pub(super) fn ask_for(exports: &mut ExportView, raw: &[u8; ENTRY_BYTES]) {
    let entry = Entry::from_bytes(raw);
    let (at, len) = (entry.addr as usize, entry.len as usize);
    if len <= COPIED_READ_BYTES
        && let Ok(export) = exports.check(entry.key, entry.addr, len as u64, Rights::Read)
        && let Ok(words) = export.region.words(at, len)
    {
        words.prefetch();
    }
}

/// Where in the inbox a write goes.
pub(super) fn check_write(
    exports: &mut ExportView,
    inbox: &Inbox,
    key: RegionKey,
    addr: u64,
    len: u32,
) -> Result<usize, Refused> {
    let end = addr.checked_add(u64::from(len));
    let why = if key != INBOX_KEY {
        let known = exports.check(key, addr, u64::from(len), Rights::Write);
        known.err().unwrap_or("no right to do that there")
    } else if end.is_none_or(|end| end > inbox.window().len() as u64) {
        "outside the region"
    } else if !addr.is_multiple_of(8) {
        "misaligned"
    } else {
        return Ok(addr as usize);
    };
    Err(Refused {
        kind: RequestKind::Write,
        why: Refusal::of(why),
        key,
        addr,
        len: u64::from(len),
    })
}

/// Does an atomic on a counter.
pub(super) fn count(
    exports: &mut ExportView,
    kind: RequestKind,
    key: RegionKey,
    addr: u64,
    on: impl FnOnce(WordsMut<'_>) -> u64,
) -> Result<u64, Refused> {
    let checked = exports.check(key, addr, 8, Rights::Atomic);
    let word = checked.and_then(|export| {
        let word = export.region.words_mut(addr as usize, 8);
        word.map_err(|_| "no right to do that there")
    });
    word.map(on).map_err(|why| Refused {
        kind,
        why: Refusal::of(why),
        key,
        addr,
        len: 8,
    })
}
