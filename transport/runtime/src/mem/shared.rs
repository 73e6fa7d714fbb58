//! Words that another thread, process or NIC may read or write at the same time.
//!
//! Every access is a relaxed 64-bit atomic through [`crate::sync`], or copies a whole line (see `line`).
//! The fences of the protocols provide order, and data is accepted only once its checksum matches. Code
//! outside this module never sees shared bytes, only private copies of them.
//!
//! Offsets are in bytes, relative to the window, and multiples of 8. They are the program's own (input from
//! a peer is checked when the window is made). An offset past the window is a bug and panics as slice
//! indexing does.

use super::{line, many};
use crate::sync::{AtomicU64, Ordering};
use tidewater_protocol::layout::hash::H64;
use tidewater_protocol::layout::{LINE_BYTES, Line, line_from_bytes, word_at};
use tidewater_protocol::mutants::{self, Mutant};

/// Read-only window, a borrowed range of shared memory, as 64-bit relaxed atomics. Byte offsets count
/// from its start.
#[derive(Debug, Clone, Copy)]
pub struct Words<'a>(&'a [AtomicU64]);

/// Writable window, a borrowed range of shared memory, as 64-bit relaxed atomics. Each word has one
/// writer at a time, which the type does not check. Byte offsets count from its start.
#[derive(Debug, Clone, Copy)]
pub struct WordsMut<'a>(&'a [AtomicU64]);

/// Prefetches into the cache the line in which a value begins. Does nothing on processors other than
/// x86-64. Cost: one instruction, which does not wait.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_at(core::ptr::from_ref(value).cast());
}

/// Prefetches into the cache the line at an address, which may be any address.
#[inline(always)]
pub(super) fn prefetch_at(first: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint: it faults on no address and changes no byte.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(first.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = first;
}

impl<'a> Words<'a> {
    /// Wraps a slice of atomics as a read-only window.
    pub const fn new(words: &'a [AtomicU64]) -> Self {
        Self(words)
    }

    /// Returns the length of the window in bytes.
    pub const fn len(&self) -> usize {
        self.0.len() * 8
    }

    /// Returns whether the window has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a window of `len` bytes at byte offset `at` of this one. `at` is rounded down to a
    /// multiple of 8, `len` up to whole words. Panics if the range is not inside.
    #[inline]
    pub fn slice(&self, at: usize, len: usize) -> Self {
        Self(&self.0[at / 8..at / 8 + len.div_ceil(8)])
    }

    /// Returns a window of `len` bytes at byte offset `at` of this one. `len` is rounded up to whole
    /// words. `None` if it is not inside or `at` is not a multiple of 8.
    #[inline]
    pub fn get(&self, at: usize, len: usize) -> Option<Self> {
        let (first, words) = (at / 8, len.div_ceil(8));
        if !at.is_multiple_of(8) {
            return None;
        }
        Some(Self(self.0.get(first..first.checked_add(words)?)?))
    }

    /// Prefetches all cache lines of the window. Cost: an instruction a line.
    #[inline]
    pub fn prefetch(&self) {
        for line in self.0.chunks(LINE_BYTES / 8) {
            prefetch(line);
        }
    }

    /// Loads the 64-bit word at byte offset `at`, without ordering (Relaxed). `at` is rounded down to a
    /// multiple of 8. Panics if it is outside.
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        self.0[at / 8].load(Ordering::Relaxed)
    }

    /// Loads the 64-bit word at byte offset `at` with Acquire ordering: what its writer stored before a
    /// [`WordsMut::store_release`] of this value is visible afterwards. `at` is rounded down to a
    /// multiple of 8. Panics if it is outside.
    #[inline]
    pub fn load_acquire(&self, at: usize) -> u64 {
        self.0[at / 8].load(Ordering::Acquire)
    }

    /// Loads the eight words (64 bytes) at byte offset `at`, without ordering. They may be torn by a
    /// concurrent writer. `at` is rounded down to a multiple of 8. Panics if they are not inside.
    #[inline]
    pub fn line(&self, at: usize) -> Line {
        let words = &self.0[at / 8..at / 8 + LINE_BYTES / 8];
        std::array::from_fn(|i| words[i].load(Ordering::Relaxed))
    }

    /// Copies `out.len()` bytes from byte offset `at`, a multiple of 8 (others are rounded down), to
    /// `out`, without ordering. `out` may end inside a word. The copy may be torn by a concurrent
    /// writer. Panics if the range is not inside. Cost: about a `memcpy`.
    #[inline]
    pub fn copy_out(&self, at: usize, out: &mut [u8]) {
        let words = &self.0[at / 8..at / 8 + out.len().div_ceil(8)];
        // The rest may take as many words as a line, and be a byte short of it.
        let (lines, words) = words.split_at(out.len() / LINE_BYTES * (LINE_BYTES / 8));
        let (lines, (wide, out)) = (lines.as_chunks().0, out.as_chunks_mut());
        if !many::copy_out(lines, wide) {
            line::copy_all_out(lines, wide);
        }
        if !out.is_empty() {
            copy_rest_out(words, out);
        }
    }

    /// Copies `out.len()` bytes from byte offset `at`, which need not be aligned, to `out`; otherwise as
    /// [`Self::copy_out`].
    pub fn copy_out_from(&self, at: usize, out: &mut [u8]) {
        let lead = at % 8;
        let aligned = at.next_multiple_of(8);
        let (head, rest) = out.split_at_mut((aligned - at).min(out.len()));
        if !head.is_empty() {
            let word = self.load(at - lead).to_le_bytes();
            head.copy_from_slice(&word[lead..lead + head.len()]);
        }
        if !rest.is_empty() {
            self.copy_out(aligned, rest);
        }
    }

    /// Copies `out.len()` bytes from byte offset `at`, a multiple of 8, to `out` and returns the hash of
    /// the copied bytes. `hash` is the hasher's state before them. Each word is loaded once, so the hash
    /// covers exactly the copy, also if it is torn. Panics if the range is not inside.
    #[inline]
    pub fn copy_out_hashing(&self, at: usize, out: &mut [u8], mut hash: H64) -> u64 {
        if mutants::on(Mutant::HashLastLineOnly) {
            self.copy_out(at, out);
            return hash.finish_last_line(out);
        }
        let words = &self.0[at / 8..at / 8 + out.len().div_ceil(8)];
        let (lines, rest) = words.as_chunks();
        let (wide, tail) = out.as_chunks_mut();
        let mut n = 0;
        while let (Some(line), Some(copy)) = (lines.get(n), wide.get_mut(n)) {
            line::copy_out(line, copy);
            hash.block(&line_from_bytes(copy));
            n += 1;
        }
        if tail.is_empty() {
            return hash.finish(&[]);
        }
        // The rest may take as many words as a line, and be a byte short of it.
        copy_rest_out(lines.get(n).map_or(rest, |last| last), tail);
        hash.finish_bytes(tail)
    }
}

/// Copies less than a cache line from shared words to private bytes, word by word, until `out` is full.
/// `words` must be long enough. A function of its own: most copies have no such rest.
#[inline(never)]
fn copy_rest_out(words: &[AtomicU64], out: &mut [u8]) {
    let (complete, part) = out.as_chunks_mut::<8>();
    let mut words = words.iter();
    for (chunk, word) in complete.iter_mut().zip(&mut words) {
        *chunk = word.load(Ordering::Relaxed).to_le_bytes();
    }
    if let (false, Some(word)) = (part.is_empty(), words.next()) {
        part.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes()[..part.len()]);
    }
}

/// Copies less than a cache line from private bytes to shared words, word by word. The rest of a last
/// partial word becomes zero.
#[inline(never)]
fn copy_rest_in(bytes: &[u8], words: &[AtomicU64]) {
    let (complete, part) = bytes.as_chunks::<8>();
    let mut words = words.iter();
    for (chunk, word) in complete.iter().zip(&mut words) {
        word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
    }
    if let (false, Some(word)) = (part.is_empty(), words.next()) {
        word.store(word_at(part, 0), Ordering::Relaxed);
    }
}

impl<'a> WordsMut<'a> {
    /// Wraps a slice of atomics as a writable window. The caller must be their only writer; nothing
    /// checks it.
    pub const fn new(words: &'a [AtomicU64]) -> Self {
        Self(words)
    }

    /// Returns a read-only window of the same words.
    #[inline]
    pub const fn as_read(&self) -> Words<'a> {
        Words(self.0)
    }

    /// Returns the length of the window in bytes.
    pub const fn len(&self) -> usize {
        self.0.len() * 8
    }

    /// Returns whether the window has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a writable window of `len` bytes at byte offset `at` of this one. `at` is rounded down to
    /// a multiple of 8, `len` up to whole words. Panics if the range is not inside.
    #[inline]
    pub fn slice(&self, at: usize, len: usize) -> Self {
        Self(&self.0[at / 8..at / 8 + len.div_ceil(8)])
    }

    /// Returns a writable window of `len` bytes at byte offset `at` of this one. `len` is rounded up to
    /// whole words. `None` if it is not inside or `at` is not a multiple of 8.
    #[inline]
    pub fn get(&self, at: usize, len: usize) -> Option<Self> {
        Some(Self(self.as_read().get(at, len)?.0))
    }

    /// Stores the 64-bit word at byte offset `at`, without ordering (Relaxed). `at` is rounded down to a
    /// multiple of 8. Panics if it is outside.
    #[inline]
    pub fn store(&self, at: usize, word: u64) {
        self.check_alive();
        self.0[at / 8].store(word, Ordering::Relaxed);
    }

    /// Stores the 64-bit word at byte offset `at` with Release ordering: after everything that this
    /// thread wrote before. `at` is rounded down to a multiple of 8. Panics if it is outside.
    #[inline]
    pub fn store_release(&self, at: usize, word: u64) {
        self.check_alive();
        self.0[at / 8].store(word, Ordering::Release);
    }

    /// Simulates a crash before this store if the writer has used up the words of `crash::run_for`.
    /// Builds with the feature `mutants` only; otherwise does nothing.
    #[inline(always)]
    fn check_alive(&self) {
        #[cfg(all(feature = "mutants", not(loom)))]
        if super::crash::cut(1).is_some() {
            super::crash::crash();
        }
    }

    /// Atomically adds `add` (wrapping) to the word at byte offset `at` and returns the old value
    /// (`AcqRel`). `at` is rounded down to a multiple of 8. Panics if it is outside.
    #[inline]
    pub fn fetch_add(&self, at: usize, add: u64) -> u64 {
        self.0[at / 8].fetch_add(add, Ordering::AcqRel)
    }

    /// Atomically stores `new` in the word at byte offset `at` if it equals `expect` (`AcqRel`). Returns
    /// the old value: `expect` if the store was done. `at` is rounded down to a multiple of 8. Panics if
    /// it is outside.
    #[inline]
    pub fn compare_swap(&self, at: usize, expect: u64, new: u64) -> u64 {
        let r = self.0[at / 8].compare_exchange(expect, new, Ordering::AcqRel, Ordering::Acquire);
        r.unwrap_or_else(|was| was)
    }

    /// Stores eight words (64 bytes) at byte offset `at`, in no order. A concurrent reader may see them
    /// torn. `at` is rounded down to a multiple of 8. Panics if they are not inside.
    #[inline]
    pub fn store_line(&self, at: usize, line: &Line) {
        #[cfg(all(feature = "mutants", not(loom)))]
        if let Some(words) = super::crash::cut(line.len()) {
            let first = line.iter().take(words).enumerate();
            first.for_each(|(n, word)| self.store(at + n * 8, *word));
            super::crash::crash();
        }
        let slots = &self.0[at / 8..at / 8 + line.len()];
        let mut n = 0;
        while let (Some(slot), Some(word)) = (slots.get(n), line.get(n)) {
            slot.store(*word, Ordering::Relaxed);
            n += 1;
        }
    }

    /// Copies `bytes` to byte offset `at`, a multiple of 8 (others are rounded down), without ordering.
    /// The rest of a last partial word becomes zero. Panics if the range is not inside. Cost: about a
    /// `memcpy`.
    #[inline]
    pub fn copy_in(&self, at: usize, bytes: &[u8]) {
        #[cfg(all(feature = "mutants", not(loom)))]
        if let Some(words) = super::crash::cut(bytes.len().div_ceil(8)) {
            self.copy_in(at, &bytes[..words * 8]);
            super::crash::crash();
        }
        let words = &self.0[at / 8..at / 8 + bytes.len().div_ceil(8)];
        let (lines, words) = words.split_at(bytes.len() / LINE_BYTES * (LINE_BYTES / 8));
        let (lines, (wide, bytes)) = (lines.as_chunks().0, bytes.as_chunks());
        if !many::copy_in(wide, lines) {
            line::copy_all_in(wide, lines);
        }
        if !bytes.is_empty() {
            copy_rest_in(bytes, words);
        }
    }

    /// Stores zeros in the `len` bytes at byte offset `at`, without ordering. `at` is rounded down to a
    /// multiple of 8, `len` up to whole words. Panics if the range is not inside.
    pub fn zero(&self, at: usize, len: usize) {
        #[cfg(all(feature = "mutants", not(loom)))]
        if let Some(words) = super::crash::cut(len.div_ceil(8)) {
            self.zero(at, words * 8);
            super::crash::crash();
        }
        for word in &self.0[at / 8..at / 8 + len.div_ceil(8)] {
            word.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(n: usize) -> Vec<AtomicU64> {
        (0..n as u64)
            .map(|i| AtomicU64::new(tidewater_protocol::layout::hash::mix64(i)))
            .collect()
    }

    proptest! {
        #[test]
        fn copies_agree_with_bytes(at in 0usize..20, len in prop_oneof![0usize..300, 1000usize..3000]) {
            let memory = words(512);
            let bytes: Vec<u8> =
                memory.iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
            let mut out = vec![0; len];
            Words::new(&memory).copy_out(at * 8, &mut out);
            prop_assert_eq!(&out, &bytes[at * 8..at * 8 + len]);
            for lead in 0..8.min(len) {
                let mut from = vec![0; len - lead];
                Words::new(&memory).copy_out_from(at * 8 + lead, &mut from);
                prop_assert_eq!(&from, &out[lead..]);
            }
            let mut hashed = vec![0; len];
            let h = H64::new([1, 2, 3, 4]);
            let checksum = Words::new(&memory).copy_out_hashing(at * 8, &mut hashed, h);
            prop_assert_eq!(&hashed, &out);
            prop_assert_eq!(checksum, h.finish_bytes(&out));
            let target: Vec<AtomicU64> = (0..512).map(|_| AtomicU64::new(u64::MAX)).collect();
            WordsMut::new(&target).copy_in(at * 8, &out);
            let mut back = vec![0; 512 * 8];
            WordsMut::new(&target).as_read().copy_out(0, &mut back);
            // The words outside stay as they were; the last one is filled with zeros.
            let mut whole = vec![0xff; 512 * 8];
            whole[at * 8..at * 8 + len].copy_from_slice(&out);
            whole[at * 8 + len..at * 8 + len.next_multiple_of(8)].fill(0);
            prop_assert_eq!(back, whole);
        }
    }
}
