//! Liveness of a server's applier, as the kernel reports it: a robust futex in public memory.
//!
//! Over shared memory a client reads without the server, so none of its operations fails when the server is
//! killed. Each applier therefore holds a robust futex (`set_robust_list(2)`): a word that contains the
//! thread's id while it runs. The kernel sets [`OWNER_DIED`] in it when the thread ends, also by SIGKILL.
//! Clients load that word when they check whether their lane is closed. A stopped thread (SIGSTOP) holds
//! its futex, so its memory stays readable.
//!
//! The word is 0 before its applier runs, and where the kernel refuses robust lists. Then a client learns
//! of the end from its control connections only.

use std::io;
use std::marker::PhantomData;

use crate::mem::{MemError, Region, Words};
use crate::sync::Arc;
use tidewater_protocol::mutants::{self, Mutant};

/// Bit of a liveness word that marks its thread as ended: the kernel's `FUTEX_OWNER_DIED`.
pub const OWNER_DIED: u64 = 0x4000_0000;

/// Bytes of the shared memory that holds a thread's robust list: the head, `{first, offset, pending}`,
/// then the one entry. Private memory would not do: a process killed by the out-of-memory killer may have
/// lost it before the kernel walks the list.
const LIST_BYTES: usize = 4096;
/// Bytes of the robust list's head, a size that `set_robust_list(2)` requires.
const HEAD_BYTES: usize = 24;
/// Index of the 64-bit word in the list's memory that is the list's one entry.
const ENTRY: usize = 8;

/// Reason why [`Liveness::hold`] cannot publish that a thread runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LivenessError {
    /// The word is not inside the memory, or there is no memory for the list.
    #[error(transparent)]
    Memory(#[from] MemError),
    /// The kernel or a sandbox refuses robust lists.
    #[error("{call}: {source}")]
    Os {
        /// Name of the system call.
        call: &'static str,
        /// Error of the kernel.
        #[source]
        source: io::Error,
    },
}

/// Robust futex (`set_robust_list(2)`) by which other processes see that the thread that made it runs.
/// When the value is dropped, also by a panic, or the thread is killed, [`OWNER_DIED`] is set in its
/// word.
///
/// # Invariants
/// `list` and `region` stay mapped while the kernel has the list registered: dropping restores the
/// thread's former list, then unmaps them.
#[derive(Debug)]
pub struct Liveness {
    region: Arc<Region>,
    at: usize,
    /// Kept for the kernel, which reads it when the thread ends.
    _list: Option<Region>,
    /// The C library's list, which is restored afterwards.
    former: (usize, usize),
    /// The list belongs to this thread: no other thread can take it back.
    _of_this_thread: PhantomData<*mut ()>,
}

impl Liveness {
    /// Publishes that the calling thread runs: stores its thread id in the word at byte offset `at`, a
    /// multiple of 8, of `region`, as a robust futex. While the value lives the thread must not lock
    /// robust mutexes of the C library, because it has given up that list. Cost: a page and three system
    /// calls, once.
    ///
    /// # Errors
    /// [`LivenessError`] if the word is outside the region, there is no memory, or the kernel refuses
    /// robust lists. Nothing is then published: the word is unchanged or 0, and the thread keeps its
    /// former list.
    pub fn hold(region: &Arc<Region>, at: usize) -> Result<Self, LivenessError> {
        let word = region.words_mut(at, 8)?;
        let mut held = Self {
            region: Arc::clone(region),
            at,
            _list: None,
            former: (0, 0),
            _of_this_thread: PhantomData,
        };
        if mutants::on(Mutant::LivenessNotHeld) {
            return Ok(held);
        }
        let (list, _) = Region::memfd("tidewater-robust", LIST_BYTES)?;
        let words = list.words_mut(0, LIST_BYTES)?;
        let first = list.base().addr();
        let entry = first + ENTRY * 8;
        let futex = region.base().addr() + at;
        words.store(0, entry as u64);
        words.store(8, futex.wrapping_sub(entry) as u64);
        words.store(16, 0);
        words.store(ENTRY * 8, first as u64);
        held.former = former()?;
        // Before the list: the kernel marks only a word that contains the id of the thread that ends.
        word.store(
            0,
            u64::from(rustix::thread::gettid().as_raw_nonzero().get() as u32),
        );
        if let Err(error) = set_list((first, HEAD_BYTES)) {
            word.store(0, 0);
            held.former = (0, 0);
            return Err(error);
        }
        held._list = Some(list);
        Ok(held)
    }
}

impl Drop for Liveness {
    fn drop(&mut self) {
        if self._list.is_none() {
            return;
        }
        if let Err(error) = set_list(self.former) {
            // The kernel took this list by the same call. Its memory stays, so that the kernel never reads
            // unmapped memory.
            tracing::error!(%error, "cannot give the thread its former robust list");
            std::mem::forget(self._list.take());
        }
        if let Ok(word) = self.region.words_mut(self.at, 8) {
            word.store(0, OWNER_DIED);
        }
    }
}

/// Returns the calling thread's registered robust list: the address and the length in bytes of its head.
fn former() -> Result<(usize, usize), LivenessError> {
    let mut list = (0_usize, 0_usize);
    // SAFETY: the kernel writes the two words that the pointers lead to, which live on this frame; 0 names
    // the calling thread.
    let done = unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            0 as libc::c_int,
            &raw mut list.0,
            &raw mut list.1,
        )
    };
    check("get_robust_list", done).map(|()| list)
}

/// Registers a robust list for the calling thread: one that [`former`] returned, or a complete one that
/// stays mapped until another is set. The pair is the address and the length in bytes of its head.
fn set_list((head, bytes): (usize, usize)) -> Result<(), LivenessError> {
    // SAFETY: the call keeps an address, which the kernel reads with its own checks when the thread ends or
    // executes another program. It then writes at most the futex words of the list, and only those that
    // contain the thread's id. The list is the C library's, or that of a `Liveness`, with memory that is
    // mapped as long as it is set (invariant).
    let done = unsafe { libc::syscall(libc::SYS_set_robust_list, head, bytes) };
    check("set_robust_list", done)
}

fn check(call: &'static str, done: libc::c_long) -> Result<(), LivenessError> {
    match done {
        0 => Ok(()),
        _ => Err(LivenessError::Os {
            call,
            source: io::Error::last_os_error(),
        }),
    }
}

/// A client's mapping of a server's public memory, with the liveness word of one applier in it.
///
/// # Invariants
/// The word at byte offset `at` is inside `region`.
#[derive(Debug, Clone)]
pub struct LivenessView {
    region: Arc<Region>,
    at: usize,
}

impl LivenessView {
    /// Creates a view of `region` with the applier's liveness word at byte offset `at`, a multiple of 8.
    ///
    /// # Errors
    /// [`MemError::Bounds`] when the word is not inside the region, or `at` is not aligned.
    pub fn new(region: &Arc<Region>, at: usize) -> Result<Self, MemError> {
        region.check(at, 8)?;
        let region = Arc::clone(region);
        Ok(Self { region, at })
    }

    /// Returns a read-only window of the server's complete public memory.
    #[inline]
    pub fn memory(&self) -> Words<'_> {
        self.region.all_words()
    }

    /// Returns whether the applier thread has ended, by exit, panic or kill: its liveness word has
    /// [`OWNER_DIED`]. False while it runs or has not begun, and always where the kernel refuses robust
    /// lists. Cost: one load.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.memory().load(self.at) & OWNER_DIED != 0 && !mutants::on(Mutant::LivenessIgnored)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn public() -> Arc<Region> {
        Arc::new(Region::memfd("public", 8192).expect("memory for a test").0)
    }

    #[test]
    fn word_says_running_then_ended() {
        let region = public();
        let view = LivenessView::new(&region, 4104).unwrap();
        assert!(!view.has_ended(), "not yet begun");
        let there = Arc::clone(&region);
        let thread = std::thread::spawn(move || {
            let held = Liveness::hold(&there, 4104).unwrap();
            let id = there.words(4104, 8).unwrap().load(0);
            assert_eq!(id, rustix::thread::gettid().as_raw_nonzero().get() as u64);
            let list = former().unwrap();
            drop(held);
            assert_ne!(former().unwrap(), list, "the C library's list is set again");
        });
        thread.join().unwrap();
        assert!(view.has_ended());
    }

    #[test]
    fn panic_and_leak_of_its_thread_mark_the_word() {
        for leaks in [false, true] {
            let region = public();
            let there = Arc::clone(&region);
            let thread = std::thread::spawn(move || {
                let held = Liveness::hold(&there, 64).unwrap();
                match leaks {
                    // Drops no value, as in a thread that is killed.
                    true => std::mem::forget(held),
                    false => std::panic::resume_unwind(Box::new(())),
                }
            });
            assert_eq!(thread.join().is_ok(), leaks);
            assert_eq!(region.words(64, 8).unwrap().load(0), OWNER_DIED, "{leaks}");
        }
    }

    #[test]
    fn word_outside_its_memory_is_refused() {
        let region = public();
        for at in [8192, 8188, 4, usize::MAX] {
            assert!(Liveness::hold(&region, at).is_err(), "{at}");
            assert!(LivenessView::new(&region, at).is_err(), "{at}");
        }
    }
}
