//! Copies of whole lines between shared words and private bytes.
//!
//! Word by word such a copy takes as many instructions as there are words, four times the minimum. A later
//! load of sixteen bytes then spans two stores that are still under way. The core cannot combine them, and
//! waits until both are in the cache. So on x86-64 an assembly block moves a line in four parts. To the
//! language the block is an opaque agent, as the kernel is in `io`. Bytes may change while it copies them.
//! All protocols rely only on this: each copied byte is one that stood there. A torn copy has no matching
//! checksum.

use crate::sync::AtomicU64;
use tidewater_protocol::layout::LINE_BYTES;

/// Number of 64-bit words of a cache line: 8.
const WORDS: usize = LINE_BYTES / 8;

/// Copies one cache line from shared words to private bytes. The copy may be torn by a concurrent writer.
#[inline(always)]
pub(super) fn copy_out(from: &[AtomicU64; WORDS], to: &mut [u8; LINE_BYTES]) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: both are a line of mapped memory for as long as they are borrowed; `to` is ours alone.
    unsafe {
        copy(from.as_ptr().cast(), to.as_mut_ptr());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    for (word, bytes) in from.iter().zip(to.as_chunks_mut::<8>().0) {
        *bytes = word.load(crate::sync::Ordering::Relaxed).to_le_bytes();
    }
}

/// Copies one cache line from private bytes to shared words. A concurrent reader may see it torn.
#[inline(always)]
pub(super) fn copy_in(from: &[u8; LINE_BYTES], to: &[AtomicU64; WORDS]) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: both are a line of mapped memory for as long as they are borrowed; memory behind a reference
    // to atomics may be written through it.
    unsafe {
        copy(from.as_ptr(), to.as_ptr().cast_mut().cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    for (bytes, word) in from.as_chunks::<8>().0.iter().zip(to) {
        word.store(u64::from_le_bytes(*bytes), crate::sync::Ordering::Relaxed);
    }
}

/// Copies cache lines from shared words to private bytes, as many as both slices hold. The loop counts,
/// because where calls between crates are not all inlined, zipping iterators stays a call, and a row is a
/// few lines.
#[inline(always)]
pub(super) fn copy_all_out(from: &[[AtomicU64; WORDS]], to: &mut [[u8; LINE_BYTES]]) {
    let mut n = 0;
    while let (Some(from), Some(to)) = (from.get(n), to.get_mut(n)) {
        copy_out(from, to);
        n += 1;
    }
}

/// Copies cache lines from private bytes to shared words, as many as both slices hold. Loops as
/// [`copy_all_out`] does.
#[inline(always)]
pub(super) fn copy_all_in(from: &[[u8; LINE_BYTES]], to: &[[AtomicU64; WORDS]]) {
    let mut n = 0;
    while let (Some(from), Some(to)) = (from.get(n), to.get(n)) {
        copy_in(from, to);
        n += 1;
    }
}

/// Copies the 64 bytes of a cache line with four 16-byte moves. Other threads may read or write the
/// shared side meanwhile.
///
/// # Safety
/// A line can be read at `from` and written at `to`; they do not overlap.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8) {
    // Every x86-64 processor has the instructions, and they need no alignment.
    // SAFETY: the block reads the line at `from` and writes the line at `to`, for which the caller vouches,
    // and nothing else; no flag, no stack.
    unsafe {
        core::arch::asm!(
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            from = in(reg) from,
            to = in(reg) to,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}
