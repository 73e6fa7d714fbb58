//! Copies of whole lines between shared words and private bytes.
//!
//! Word by word such a copy is as many instructions as there are words, four times what it takes, and
//! who then loads sixteen bytes at once finds them in two stores that are still under way: the core
//! cannot put them together, and waits until both are in the cache. So on x86-64 a line is moved in
//! four parts, by an assembly block: to the language an opaque agent, as the kernel is in `io`. Bytes
//! may change while it copies them. No protocol stands on more than that each byte is one that stood
//! there; what is torn does not prove itself.

use crate::sync::AtomicU64;
use tidewater_protocol::layout::LINE_BYTES;

/// Words of a line.
const WORDS: usize = LINE_BYTES / 8;

/// Copies a line out.
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

/// Copies a line in.
#[inline(always)]
pub(super) fn copy_in(from: &[u8; LINE_BYTES], to: &[AtomicU64; WORDS]) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: both are a line of mapped memory for as long as they are borrowed; what is behind a
    // reference to atomics may be written through it.
    unsafe {
        copy(from.as_ptr(), to.as_ptr().cast_mut().cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    for (bytes, word) in from.as_chunks::<8>().0.iter().zip(to) {
        word.store(u64::from_le_bytes(*bytes), crate::sync::Ordering::Relaxed);
    }
}

/// Copies as many lines out as both hold. Counted, not zipped: where calls between crates are not all
/// inlined, making a pair of iterators stays one, and a row is a few lines.
#[inline(always)]
pub(super) fn copy_all_out(from: &[[AtomicU64; WORDS]], to: &mut [[u8; LINE_BYTES]]) {
    let mut n = 0;
    while let (Some(from), Some(to)) = (from.get(n), to.get_mut(n)) {
        copy_out(from, to);
        n += 1;
    }
}

/// Copies as many lines in as both hold; as [`copy_all_out`].
#[inline(always)]
pub(super) fn copy_all_in(from: &[[u8; LINE_BYTES]], to: &[[AtomicU64; WORDS]]) {
    let mut n = 0;
    while let (Some(from), Some(to)) = (from.get(n), to.get(n)) {
        copy_in(from, to);
        n += 1;
    }
}

/// Copies a line; either end may be shared with who reads or writes it at the same time.
///
/// # Safety
/// A line can be read at `from` and written at `to`; they do not overlap.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8) {
    // The instructions are of every x86-64 processor and want no alignment.
    // SAFETY: the block reads the line at `from` and writes the line at `to`, which the caller vouches
    // for, and nothing else; no flag, no stack.
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
