//! Words that another thread, process or NIC may read or write at the same time.
//!
//! Every access is a relaxed 64-bit atomic through [`crate::sync`]; order comes from the fences of
//! the protocols, and what is read is believed only once it has proved itself. Code outside this
//! module never sees shared bytes, only private copies of them.
//!
//! Offsets are in bytes, relative to the window, and multiples of 8. They are the program's own
//! (checked when the window was made from what a peer said); an offset past the window is a bug
//! and panics as slice indexing does.

use crate::layout::hash::H64;
use crate::layout::{LINE_BYTES, Line};
use crate::sync::{AtomicU64, Ordering};

/// A window of shared words that may be read.
#[derive(Debug, Clone, Copy)]
pub struct Words<'a>(&'a [AtomicU64]);

/// A window of shared words that may be read and written; each word has one writer.
#[derive(Debug, Clone, Copy)]
pub struct WordsMut<'a>(&'a [AtomicU64]);

/// Asks for the line in which a value begins, so that it is on its way when it is loaded. Does
/// nothing where there is no such instruction. Cost: one that waits for nothing.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint: it faults on no address and changes no byte.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = value;
}

impl<'a> Words<'a> {
    /// Over atomics.
    pub const fn new(words: &'a [AtomicU64]) -> Self {
        Self(words)
    }

    /// Bytes of the window.
    pub const fn len(&self) -> usize {
        self.0.len() * 8
    }

    /// Whether the window is empty.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A window inside this one; `len` is rounded up to whole words.
    #[inline]
    pub fn slice(&self, at: usize, len: usize) -> Self {
        Self(&self.0[at / 8..at / 8 + len.div_ceil(8)])
    }

    /// A window inside this one, of whole words from a multiple of 8 on, if it is inside.
    #[inline]
    pub fn get(&self, at: usize, len: usize) -> Option<Self> {
        let (first, words) = (at / 8, len.div_ceil(8));
        if !at.is_multiple_of(8) {
            return None;
        }
        Some(Self(self.0.get(first..first.checked_add(words)?)?))
    }

    /// Asks for the lines of the window, as [`prefetch`]. Cost: an instruction a line.
    #[inline]
    pub fn prefetch(&self) {
        for line in self.0.chunks(LINE_BYTES / 8) {
            prefetch(line);
        }
    }

    /// One word.
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        self.0[at / 8].load(Ordering::Relaxed)
    }

    /// One word; what was written before it was released is visible afterwards.
    #[inline]
    pub fn load_acquire(&self, at: usize) -> u64 {
        self.0[at / 8].load(Ordering::Acquire)
    }

    /// Eight words, possibly torn.
    #[inline]
    pub fn line(&self, at: usize) -> Line {
        let words = &self.0[at / 8..at / 8 + LINE_BYTES / 8];
        std::array::from_fn(|i| words[i].load(Ordering::Relaxed))
    }

    /// Copies bytes out; `out` may end inside a word. Cost: about a `memcpy`.
    #[inline]
    pub fn copy_out(&self, at: usize, out: &mut [u8]) {
        let words = &self.0[at / 8..at / 8 + out.len().div_ceil(8)];
        let mut chunks = out.chunks_exact_mut(8);
        for (chunk, word) in (&mut chunks).zip(words) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let tail = chunks.into_remainder();
        if let (false, Some(word)) = (tail.is_empty(), words.last()) {
            tail.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes()[..tail.len()]);
        }
    }

    /// Copies bytes out and hashes what was copied, in one pass.
    #[inline]
    pub fn copy_out_hashing(&self, at: usize, out: &mut [u8], mut hash: H64) -> u64 {
        let words = &self.0[at / 8..at / 8 + out.len().div_ceil(8)];
        let whole = out.len() / LINE_BYTES * LINE_BYTES;
        let mut chunks = out.chunks_exact_mut(LINE_BYTES);
        let mut blocks = words.chunks_exact(8);
        for (chunk, block) in (&mut chunks).zip(&mut blocks) {
            let line: Line = std::array::from_fn(|i| block[i].load(Ordering::Relaxed));
            hash.block(&line);
            for (bytes, word) in chunk.chunks_exact_mut(8).zip(line) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        let tail = chunks.into_remainder();
        if tail.is_empty() {
            return hash.finish(&[]);
        }
        self.copy_out(at + whole, tail);
        hash.finish_bytes(tail)
    }
}

impl<'a> WordsMut<'a> {
    /// Over atomics that the caller alone writes.
    pub const fn new(words: &'a [AtomicU64]) -> Self {
        Self(words)
    }

    /// The same window for reading.
    #[inline]
    pub const fn as_read(&self) -> Words<'a> {
        Words(self.0)
    }

    /// Bytes of the window.
    pub const fn len(&self) -> usize {
        self.0.len() * 8
    }

    /// Whether the window is empty.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A window inside this one; `len` is rounded up to whole words.
    #[inline]
    pub fn slice(&self, at: usize, len: usize) -> Self {
        Self(&self.0[at / 8..at / 8 + len.div_ceil(8)])
    }

    /// Stores one word.
    #[inline]
    pub fn store(&self, at: usize, word: u64) {
        self.0[at / 8].store(word, Ordering::Relaxed);
    }

    /// Stores one word after everything written before it.
    #[inline]
    pub fn store_release(&self, at: usize, word: u64) {
        self.0[at / 8].store(word, Ordering::Release);
    }

    /// Adds to one word atomically (wrapping) and returns what it was.
    #[inline]
    pub fn fetch_add(&self, at: usize, add: u64) -> u64 {
        self.0[at / 8].fetch_add(add, Ordering::AcqRel)
    }

    /// Stores `new` if the word is `expect`; returns what it was.
    #[inline]
    pub fn compare_swap(&self, at: usize, expect: u64, new: u64) -> u64 {
        let r = self.0[at / 8].compare_exchange(expect, new, Ordering::AcqRel, Ordering::Acquire);
        r.unwrap_or_else(|was| was)
    }

    /// Stores eight words, in no order.
    #[inline]
    pub fn store_line(&self, at: usize, line: &Line) {
        for (slot, word) in self.0[at / 8..at / 8 + LINE_BYTES / 8].iter().zip(line) {
            slot.store(*word, Ordering::Relaxed);
        }
    }

    /// Copies bytes in; the rest of a last partial word becomes zero. Cost: about a `memcpy`.
    #[inline]
    pub fn copy_in(&self, at: usize, bytes: &[u8]) {
        let words = &self.0[at / 8..at / 8 + bytes.len().div_ceil(8)];
        let mut chunks = bytes.chunks_exact(8);
        for (chunk, word) in (&mut chunks).zip(words) {
            let mut raw = [0; 8];
            raw.copy_from_slice(chunk);
            word.store(u64::from_le_bytes(raw), Ordering::Relaxed);
        }
        let tail = chunks.remainder();
        if let (false, Some(word)) = (tail.is_empty(), words.last()) {
            let mut raw = [0; 8];
            raw[..tail.len()].copy_from_slice(tail);
            word.store(u64::from_le_bytes(raw), Ordering::Relaxed);
        }
    }

    /// Stores zeros.
    pub fn zero(&self, at: usize, len: usize) {
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
            .map(|i| AtomicU64::new(crate::layout::hash::mix64(i)))
            .collect()
    }

    proptest! {
        #[test]
        fn copies_agree_with_bytes(at in 0usize..20, len in 0usize..300) {
            let memory = words(64);
            let bytes: Vec<u8> =
                memory.iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
            let mut out = vec![0; len];
            Words::new(&memory).copy_out(at * 8, &mut out);
            prop_assert_eq!(&out, &bytes[at * 8..at * 8 + len]);
            let mut hashed = vec![0; len];
            let h = H64::new([1, 2, 3, 4]);
            let chk = Words::new(&memory).copy_out_hashing(at * 8, &mut hashed, h);
            prop_assert_eq!(&hashed, &out);
            prop_assert_eq!(chk, h.finish_bytes(&out));
            let target = words(64);
            WordsMut::new(&target).copy_in(at * 8, &out);
            let mut back = vec![0; len];
            WordsMut::new(&target).as_read().copy_out(at * 8, &mut back);
            prop_assert_eq!(back, out);
        }
    }
}
